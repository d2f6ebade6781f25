use std::time::{Duration as StdDuration, Instant};

use base::{Boot, ClusterId, Entry, Force, Incarnation, LogRecord, Lsn, Member, NodeId, Timestamp};
use mio::{Events, Poll, Token, Waker};
use node::contract::CheckpointId;
use node::registry::AnyMachine;
use prometheus::Registry;
use state_machine::StateMachine as _;
use store::Recovered;
use store::checkpoint::CheckpointMeta;
use store::identity::Identity;
use store::tree::{Tablespace, Tree};
use tempfile::TempDir;

use super::*;
use crate::budget::Budget;
use crate::clock;
use crate::sstables::{CheckpointJob, SstableFiles};
use tablets::Tablet;

/// A store with its threads and their output.
struct Bench {
    disk: Disk,
    inbox: Arc<Inbox>,
    poll: Poll,
}

fn identity() -> Identity {
    let member = Member { node: NodeId(1), incarnation: Incarnation(5) };
    Identity {
        cluster: ClusterId(7),
        node: member.node,
        incarnation: member.incarnation,
        members: vec![member],
        hosts: Vec::new(),
    }
}

fn small() -> store::Config {
    store::Config { segment_bytes: 64 << 10, keep_bytes: 0, segments_ahead: 1, ..store::Config::default() }
}

fn open(files: &OsFiles) -> (Bench, Recovered) {
    let (store, recovered) = store::open(files.clone(), small()).unwrap();
    let poll = Poll::new().unwrap();
    let inbox = Arc::new(Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap()));
    let metrics = DiskMetrics::register(&Registry::new()).unwrap();
    let (sstables, budget) = (SstableFiles::new(files.clone(), 8), Budget::new(1 << 20));
    let disk = Disk::start(store, &sstables, &budget, &inbox, metrics).unwrap();
    (Bench { disk, inbox, poll }, recovered)
}

fn record(sequence: u64) -> Record {
    let entry = Entry {
        lsn: Lsn::new(1, sequence),
        previous: Lsn::new(1, sequence - 1),
        timestamp: Timestamp(1),
        payload: vec![7; 3_000].into(),
        members: None,
    };
    Record { cohort: CohortId(2), body: LogRecord::Entry(entry) }
}

impl Bench {
    /// The state of a cohort before its first entry.
    fn state(&self, cohort: CohortId) -> AnyMachine {
        let tablespace = Tablespace::new(identity().owner(), small().tree, small().cache_bytes, small().recent_bytes);
        let tree = Tree::new(tablespace.site(cohort));
        AnyMachine::new(Tablet::KIND, cohort, identity().incarnation, Box::new(tree)).expect("a kind that is known")
    }

    /// Runs the machine's loop until `is_done`.
    fn until(&mut self, mut is_done: impl FnMut(&Input, &Disk) -> bool) {
        let began = Instant::now();
        let (mut ready, mut inputs) = (Events::with_capacity(8), Vec::new());
        loop {
            assert!(began.elapsed() < StdDuration::from_secs(60), "the disk's threads answer");
            self.disk.pump(clock::monotonic());
            self.poll.poll(&mut ready, Some(StdDuration::from_millis(10))).unwrap();
            self.inbox.take(&mut inputs);
            for input in inputs.drain(..) {
                match &input {
                    Input::BatchForced(batch) => {
                        self.disk.batch_forced(batch.clone(), clock::monotonic());
                    }
                    Input::ManifestForced(_, write) => self.disk.manifest_forced(write),
                    Input::SegmentDone(job) => self.disk.segment_done(*job, clock::monotonic()),
                    _ => {}
                }
                if is_done(&input, &self.disk) {
                    return;
                }
            }
        }
    }
}

#[test]
fn forced_records_survive_restart() {
    let scratch = TempDir::new().unwrap();
    let files = OsFiles::new(scratch.path());
    store::format(&files, &identity(), &small()).unwrap();
    let (mut bench, recovered) = open(&files);
    assert_eq!((recovered.boot, recovered.records.len()), (Boot(1), 0));

    // More than two segments, so that segments are prepared while the log is written.
    for sequence in 1..=60 {
        bench.disk.append(WriteId(sequence), record(sequence), Force::Now);
    }
    bench.until(|_, disk| disk.store.log().forced_through() == 60);
    // A record without a force of its own waits for the next force.
    bench.disk.append(WriteId(61), record(61), Force::WithNext);
    bench.disk.append(WriteId(62), record(62), Force::Now);
    bench.until(|_, disk| disk.store.log().forced_through() == 62);

    let id = ReadId(9);
    assert!(bench.disk.read_log(id, CohortId(2), Sequence(3), 1));
    bench.until(|input, _| match input {
        Input::Done(Event::LogRead { id: read, entries: Some(entries) }) => {
            assert_eq!((*read, entries[0].lsn), (id, Lsn::new(1, 3)));
            true
        }
        _ => false,
    });
    assert!(!bench.disk.read_log(id, CohortId(2), Sequence(63), 1), "the log doesn't hold that");
    drop(bench);

    let (_, recovered) = open(&files);
    assert_eq!((recovered.boot, recovered.damage), (Boot(2), None));
    assert_eq!(recovered.records, (1..=62).map(record).collect::<Vec<_>>());
}

#[test]
fn checkpoint_releases_log_segments() {
    let scratch = TempDir::new().unwrap();
    let files = OsFiles::new(scratch.path());
    store::format(&files, &identity(), &small()).unwrap();
    let (mut bench, _) = open(&files);
    for sequence in 1..=100 {
        bench.disk.append(WriteId(sequence), record(sequence), Force::Now);
    }
    bench.until(|_, disk| disk.store.log().forced_through() == 100);

    let (cohort, lsn, timestamp) = (CohortId(2), Lsn::new(1, 100), Timestamp(1));
    let state = bench.state(cohort).snapshot();
    let chunks: Vec<_> = state.chunks().collect();
    let meta = CheckpointMeta { cohort, lsn, timestamp };
    bench.disk.sstables().checkpoint(CheckpointJob { checkpoint: CheckpointId(1), meta, state, flush: None });
    let mut written = 0;
    bench.until(|input, _| {
        if let Input::Done(Event::CheckpointWritten { bytes, .. }) = input {
            written = *bytes;
        }
        written > 0
    });
    let checkpoint = Some(store::manifest::CheckpointRef { lsn, timestamp, bytes: written });
    let cohorts = BTreeMap::from([(cohort, CohortManifest { checkpoint, ..CohortManifest::default() })]);
    let (manifest, gone) = (ManifestId(1), BTreeSet::new());
    bench.disk.write_manifest(NextManifest {
        manifest,
        cohorts,
        peers: BTreeMap::new(),
        doubt_unknown: false,
        gone,
        kept: BTreeMap::new(),
    });
    bench.until(|input, _| matches!(input, Input::ManifestForced(ManifestId(1), _)));
    assert!(bench.disk.store.manifest().oldest_segment > 1);
    drop(bench);

    let (_, recovered) = open(&files);
    assert_eq!(recovered.checkpoints[&cohort], chunks);
    assert!(recovered.records.len() < 100, "the oldest segments are gone");
}
