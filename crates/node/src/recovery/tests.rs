use base::{Epoch, LogRecord, Sequence};
use bytes::Bytes;
use store::manifest::{CheckpointRef, CohortManifest};

use super::*;
use crate::testing::{Bench, empty, entry};

const OTHER: CohortId = CohortId(9);

/// A node that is restarted ever again before it has appended much still comes to write a checkpoint: what it found in
/// the log past its checkpoint counts.
#[test]
fn what_the_log_holds_past_a_checkpoint_counts_towards_the_next() {
    let mut recovered = empty(1, 1);
    let record = |sequence: u64| {
        let lsn = |sequence| Lsn { epoch: Epoch(u64::from(sequence > 0)), sequence: Sequence(sequence) };
        let entry = entry(lsn(sequence - 1), Bytes::from_static(b"payload"));
        Record { cohort: OTHER, body: LogRecord::Entry(entry) }
    };
    recovered.records = (1..=10).map(record).collect();
    let size = recovered.records[0].size() as u64;
    let mark = |recovered: &Recovered| {
        let bench = Bench::start(recovered);
        assert!(bench.node.outgoing.appended_bytes >= 10 * size);
        bench.node.dormant[&OTHER].checkpoint_mark
    };
    assert_eq!(mark(&recovered), 0, "without a checkpoint all of the log is needed");
    let checkpoint = Some(CheckpointRef { lsn: Lsn::new(1, 4), timestamp: Timestamp(4), bytes: 1 });
    recovered.cohorts.insert(OTHER, CohortManifest { checkpoint, ..CohortManifest::default() });
    assert_eq!(mark(&recovered), 4 * size);
    let checkpoint = Some(CheckpointRef { lsn: Lsn::new(1, 10), timestamp: Timestamp(10), bytes: 1 });
    recovered.cohorts.insert(OTHER, CohortManifest { checkpoint, ..CohortManifest::default() });
    assert_eq!(mark(&recovered), 10 * size, "nothing is needed");
}
