//! Test helpers: a log that generates entries, and short constructors for writes.

use base::{ClusterId, CohortId, Entry, Incarnation, KeyRange, Lsn, NodeId, SplitMix64, Timestamp};
use bytes::Bytes;
use state_machine::checkpoint::{Chunks, load as load_chunks};
use state_machine::{Failure, LoadError, LogicalHash, Ownership, StateMachine};
use store::cell::Range;
use store::identity::Owner;
use store::memory::MemoryDisk;
use store::sstable::{DIRECTORY, Io};
use store::tree::{Config, JobStep, Tablespace, Tree};

use crate::checkpoint::TabletSnapshot;
use crate::command::Command;
use crate::request::{ClientSessionId, Mutation, Outcome, SessionStamp, Write};
use crate::tablet::Tablet;

pub(crate) type State = Tablet;

/// Shorthands for frequent operations on a state.
pub(crate) trait Tested {
    fn chunks(&self) -> Vec<Bytes>;
    fn logical_hash(&self) -> u64;
}

impl Tested for Tablet {
    fn chunks(&self) -> Vec<Bytes> {
        Chunks::of(self.snapshot()).collect()
    }

    fn logical_hash(&self) -> u64 {
        let mut hash = LogicalHash::new();
        StateMachine::hash(self, &mut hash).expect("the disk can be read");
        hash.finish()
    }
}

/// Generates entries; each names the previous one as its predecessor.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) last: Lsn,
    pub(crate) timestamp: Timestamp,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { last: Lsn::ZERO, timestamp: Timestamp(0) }
    }

    /// A log that continues after a state.
    pub(crate) fn after(state: &State) -> Self {
        Self { last: state.last_applied(), timestamp: state.last_timestamp() }
    }

    pub(crate) fn entry(&mut self, payload: Bytes) -> Entry {
        let lsn = Lsn::new(self.last.epoch.0.max(1), self.last.sequence.0 + 1);
        self.timestamp = Timestamp(self.timestamp.0 + 10);
        let entry = Entry { lsn, previous: self.last, timestamp: self.timestamp, payload, members: None };
        self.last = lsn;
        entry
    }

    /// Applies a command, and returns its outcome.
    pub(crate) fn apply(&mut self, state: &mut State, command: &Command) -> Option<Outcome> {
        state.apply(&self.entry(command.encode())).expect("the log's next entry").outcome
    }

    pub(crate) fn write(&mut self, state: &mut State, write: &Write) -> Outcome {
        let view = state.view_now();
        let command = view.decide(write, Io::Allowed).expect("the disk can be read");
        self.apply(state, &command)
            .unwrap_or_else(|| Err(Failure::Unavailable("another range owns the row".to_owned())))
    }
}

/// An empty tree with small SSTables.
pub(crate) fn tree(cohort: CohortId) -> Tree {
    let (cluster, node, incarnation) = (ClusterId(1), NodeId(1), Incarnation(1));
    let config = Config { sstable_bytes: 8 << 10, level0_sstables: 2, level1_bytes: 16 << 10, ..Config::DEFAULT };
    Tree::new(Tablespace::new(Owner { cluster, node, incarnation }, config, 1 << 20, 1 << 20).site(cohort))
}

/// A state before its first entry.
pub(crate) fn fresh(cohort: CohortId) -> State {
    Tablet::new(cohort, Incarnation(1), tree(cohort))
}

/// A tablet that owns every key, before its first entry.
pub(crate) fn tablet_of_all(cohort: CohortId) -> State {
    let mut tablet = fresh(cohort);
    tablet.ownership = Ownership::Owns(KeyRange::all());
    tablet
}

/// The state from these chunks, with the rows of another state.
pub(crate) fn load(rows: &State, cohort: CohortId, chunks: &[Bytes]) -> Result<State, LoadError> {
    let snapshot: TabletSnapshot = load_chunks(cohort, chunks)?;
    let mut tree = tree(cohort);
    let oldest = Timestamp(i64::MIN);
    for version in rows.tree().view().versions(Range::all(), oldest, Timestamp(i64::MAX), Io::Allowed) {
        let version = version.expect("the disk can be read");
        tree.put(version.key, version.timestamp, version.value);
    }
    Ok(state_machine::Snapshot::into_machine(snapshot, tree))
}

/// An equal copy of a state.
pub(crate) fn copy(state: &State) -> State {
    load(state, state.progress.cohort, &state.chunks()).expect("its own chunks")
}

/// A disk with the directory for SSTables.
pub(crate) fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    store::files::Files::create_dir(&disk, DIRECTORY).expect("an empty disk");
    disk
}

/// Opens a session in the tablet's range.
pub(crate) fn open_session(state: &State) -> Command {
    let range = state.ownership.range();
    Command::OpenSession { key: range.map(|range| range.start.clone()).unwrap_or_default() }
}

/// Flushes a tablet's memtable to the disk, and compacts until no compaction is due.
pub(crate) fn settle(state: &mut State, disk: &MemoryDisk) {
    let (watermark, range) = (state.watermark(), state.ownership.cells());
    let tree = state.storage_mut();
    tree.freeze();
    while let Some(mut job) = tree.flush_job(watermark, &range) {
        let outputs = loop {
            if let JobStep::Done(outputs) = job.step(disk).expect("a disk with room") {
                break outputs;
            }
        };
        tree.flushed(&outputs);
    }
    while let Some(mut job) = tree.pick_compaction(watermark, &range) {
        let outputs = loop {
            if let JobStep::Done(outputs) = job.step(disk).expect("a disk with room") {
                break outputs;
            }
        };
        tree.compacted(&outputs);
    }
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(crate) fn put(column: &str, value: &str) -> Mutation {
    Mutation { column: bytes(column), value: Some(bytes(value)), condition: None }
}

pub(crate) fn delete(column: &str) -> Mutation {
    Mutation { column: bytes(column), value: None, condition: None }
}

/// Makes the mutation conditional on the column's version.
pub(crate) fn if_version(mutation: Mutation, version: i64) -> Mutation {
    Mutation { condition: Some(Timestamp(version)), ..mutation }
}

pub(crate) fn write(key: &str, mutations: impl Into<Vec<Mutation>>) -> Write {
    Write { stamp: None, key: bytes(key), mutations: mutations.into() }
}

/// The write with a session stamp.
pub(crate) fn stamped(write: Write, session: ClientSessionId, sequence: u64, first_incomplete: u64) -> Write {
    Write { stamp: Some(SessionStamp { session, sequence, first_incomplete }), ..write }
}

pub(crate) fn noise(random: &mut SplitMix64, length: usize) -> Bytes {
    (0..length).map(|_| random.draw().to_le_bytes()[0]).collect()
}
