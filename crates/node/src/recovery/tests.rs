use base::{Epoch, LogRecord, Sequence};
use bytes::Bytes;
use store::manifest::{CheckpointRef, CohortManifest};

use base::Timestamp;

use super::*;
use crate::testing::{Bench, empty, entry};

const OTHER: CohortId = CohortId(9);

/// A node that restarts repeatedly before it appends much must still write a checkpoint: log records past the last
/// checkpoint count from the start.
#[test]
fn replayed_log_bytes_trigger_checkpoint() {
    let record = |sequence: u64| {
        let lsn = |sequence| Lsn { epoch: Epoch(u64::from(sequence > 0)), sequence: Sequence(sequence) };
        let entry = entry(lsn(sequence - 1), Bytes::from_static(b"payload"));
        Record { cohort: OTHER, body: LogRecord::Entry(entry) }
    };
    let size = record(1).size() as u64;
    let mark = |checkpoint: Option<CheckpointRef>| {
        let mut recovered = empty(1, 1);
        recovered.records = (1..=10).map(record).collect();
        recovered.cohorts.insert(OTHER, CohortManifest { checkpoint, ..CohortManifest::default() });
        let bench = Bench::start(recovered);
        assert!(bench.node.outgoing.appended_bytes >= 10 * size);
        bench.node.hosting.stopped[&OTHER].checkpoint_mark
    };
    assert_eq!(mark(None), 0, "without a checkpoint the whole log is needed");
    let checkpoint = |sequence: i64| {
        let lsn = Lsn::new(1, sequence.cast_unsigned());
        Some(CheckpointRef { lsn, timestamp: Timestamp(sequence), bytes: 1 })
    };
    assert_eq!(mark(checkpoint(4)), 4 * size);
    assert_eq!(mark(checkpoint(10)), 10 * size, "no log record is needed");
}

#[test]
fn catalog_voter_count_by_cluster_size() {
    let votes = |nodes| {
        let bench = Bench::start(empty(nodes, nodes));
        let membership = bench.node.replicas[&CohortId::CATALOG].cohort.membership().clone();
        assert_eq!(membership.everyone().count(), nodes as usize);
        membership.voters().len()
    };
    assert_eq!([1, 3, 4, 5, 7].map(votes), [1, 3, 3, 5, 5]);
}
