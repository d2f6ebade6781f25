//! The contract between the node machine and whoever drives it: events with a time go in, ONE ordered list of actions
//! comes out. The runtime drives it with real sockets, files and clocks; the simulator with its own.
//!
//! What a driver owes the machine:
//! * It carries actions out in order; an action that names a [`Durable`] waits until that much is forced, and no other
//!   action waits for it.
//! * A reply or message that names a `valid_until` leaves only if the monotonic clock, read *after* the machine
//!   answered, is not past it; otherwise the driver hands [`Event::AnswerExpired`] back (guarantees 12 and 14).
//! * [`Action::Append`] records reach the log in order; a completion is published only for what one successful force
//!   covered; after a failed force the process ends (guarantee 25).
//! * Between two events no time passes for the machine: it never reads a clock.

use base::{Boot, CohortId, Entry, Force, Lsn, Member, Monotonic, NodeId, Record, Sequence, Timestamp};
use bytes::Bytes;
use catalog::NodeRecord;
use machine::state_machine::Evaluated;
use machine::storage::{Adoption, FileId, Job, Outputs, ReadError, Storage, StoredFile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::manifest::CohortManifest;

use crate::message::Message;
use crate::registry::{Read, Response, Snapshot};
use crate::request::{Outcome, Request};
use crate::views::ReadView;

pub use replication::{Durable, ManifestId, WriteId};

/// A request that a door handed in: the door's own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Numbers the reads of the log that the machine asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Numbers the evaluations that the machine asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvaluationId(pub u64);

/// Numbers the checkpoints that were begun in this process. Two of one cohort may be of the same entry: a replica that
/// left, and came back, may be given the state that it had, while the one before it is still being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

/// Numbers the whole states that began to arrive in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId(pub u64);

/// Numbers the storages that a cohort had in this process: what was begun for an earlier one is of no use any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lineage(pub u64);

/// What happens to the machine.
#[derive(Debug)]
pub enum Event {
    /// The moment asked for with [`Action::SetTimer`] has come (or passed, or was never asked for: harmless).
    Timer,
    /// A message arrived. The driver has dropped what an earlier process of the sender sent, and what was meant for an
    /// earlier process of this node.
    Message {
        /// The sender.
        from: NodeId,
        /// The sender's start.
        boot: Boot,
        /// What it says.
        message: Message,
    },
    /// A peer has made its process known. The driver says so before it hands in that process's first message, and
    /// before it addresses any message to it: what an earlier process of the peer had acknowledged counts no more.
    PeerStarted {
        /// The peer. Of a number that the catalogue here says nothing of yet, it is who it says it is: nobody is given
        /// the universe's name before the roster holds them.
        from: Member,
        /// Its start.
        boot: Boot,
    },
    /// A door hands in a request.
    Request {
        /// The door's number for it.
        id: RequestId,
        /// By then it must have an answer.
        deadline: Monotonic,
        /// What is asked.
        request: Request,
    },
    /// Nobody waits for the answers to these requests any more. Those that read are answered at once, in vain.
    GivenUp {
        /// The door's numbers for them.
        requests: BTreeSet<RequestId>,
    },
    /// An answer was not sent, because its `valid_until` had passed.
    AnswerExpired {
        /// Whose answer.
        answer: Answer,
    },
    /// The log is forced through this record.
    LogForced {
        /// The last record covered.
        through: WriteId,
    },
    /// The manifest is forced in both places.
    ManifestForced {
        /// The manifest.
        through: ManifestId,
    },
    /// The checkpoint asked for is on disk, forced, with its directory, and before it what its flush has made.
    CheckpointWritten {
        /// Whose state it holds.
        cohort: CohortId,
        /// Which it is.
        checkpoint: CheckpointId,
        /// The bytes of its file.
        bytes: u64,
        /// What the flush has made, if there was one.
        flushed: Option<Outputs>,
    },
    /// There was no room for the checkpoint asked for, and nothing is left of it.
    CheckpointFailed {
        /// Whose.
        cohort: CohortId,
        /// Which.
        checkpoint: CheckpointId,
    },
    /// Something found no room on the disk just now: a checkpoint, a segment of the log or the manifest. It is tried
    /// again every few seconds, and each time without success is told. A compaction that finds none is none of these:
    /// it needs room for all it reads once more, where a row needs little.
    DiskFull,
    /// A compaction has ended.
    Compacted {
        /// Whose.
        cohort: CohortId,
        /// Of which storage.
        lineage: Lineage,
        /// The new files, forced; none if there was no room for them or one of the old can't be read.
        outputs: Option<Outputs>,
    },
    /// A file of a cohort can't be read, or not be believed.
    FileDamaged {
        /// Whose.
        cohort: CohortId,
    },
    /// An evaluation has ended.
    Evaluated {
        /// Which.
        id: EvaluationId,
        /// What it came to.
        answer: Result<Evaluated<Response>, ReadError>,
    },
    /// The part of a file asked for.
    FileRead {
        /// The read.
        id: ReadId,
        /// The bytes; none if they can't be read.
        bytes: Option<Bytes>,
    },
    /// A part of an arriving file is written.
    FileWritten {
        /// Which.
        file: FileId,
        /// Its bytes; none if there was no room for it.
        bytes: Option<u64>,
    },
    /// The files that arrived are forced and were looked through.
    FilesAdopted {
        /// Whose they are.
        cohort: CohortId,
        /// With which whole state they came.
        arrival: ArrivalId,
        /// The storage that they are; none if they are not what they should be.
        storage: Option<Box<dyn Storage>>,
    },
    /// The part of the log asked for.
    LogRead {
        /// The read.
        id: ReadId,
        /// The entries in order, from the one asked for; none if the log doesn't hold that one any more, or can't be
        /// read there.
        entries: Option<Vec<Entry>>,
    },
    /// The process is to stop cleanly: leaders hand over, then [`Action::Stopped`].
    Stop,
}

/// An answer that was on its way: to a door here, or to another node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// To a door of this node.
    Door(RequestId),
    /// To a node that had forwarded the request under its own number.
    Forwarded {
        /// The node that asked.
        node: NodeId,
        /// Its number for the request.
        request: u64,
    },
}

/// What the machine wants done. What is large and rare is boxed: actions are moved a few times each.
#[derive(Debug)]
pub enum Action {
    /// Show other threads what a replica can answer from now, in the place of what it showed before. It comes before
    /// every answer that rests on what is new in it, and before what makes it wrong is said to anybody.
    Publish {
        /// Whose replica.
        cohort: CohortId,
        /// The view; none: there is no replica any more.
        view: Option<Arc<ReadView>>,
    },
    /// Append a record to the log.
    Append {
        /// Its number, one more than the last.
        write: WriteId,
        /// The record.
        record: Record,
        /// How soon it is to be forced.
        force: Force,
    },
    /// Write the manifest in both places, one forced after the other. The driver adds what is the log's own (the oldest
    /// segment, the boot) and lets go of segments that the checkpoints named in it make dispensable, once it is forced.
    WriteManifest {
        /// Its number, one more than the last.
        manifest: ManifestId,
        /// What it says of every cohort.
        cohorts: BTreeMap<CohortId, CohortManifest>,
        /// Whether a cohort that is not named is to be doubted: damage may have taken all that the log held of it.
        doubt_unknown: bool,
        /// Cohorts that are gone for good: none of their records or checkpoints is needed.
        gone: BTreeSet<CohortId>,
    },
    /// Send a message.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
        /// Not before this is forced.
        after: Durable,
        /// Not after this moment: then it's [`Event::AnswerExpired`].
        valid_until: Option<Monotonic>,
    },
    /// Answer a door.
    Reply {
        /// The door's number for the request.
        to: RequestId,
        /// The answer.
        outcome: Outcome,
        /// Not after this moment: then it's [`Event::AnswerExpired`].
        valid_until: Option<Monotonic>,
    },
    /// Call with [`Event::Timer`] at this moment. A later one takes the place of this.
    SetTimer {
        /// When.
        at: Monotonic,
    },
    /// Carry out the flush, if there is one; then write a checkpoint of the state as a file named for cohort and LSN,
    /// force it and its directory.
    WriteCheckpoint {
        /// Whose state.
        cohort: CohortId,
        /// Its number.
        checkpoint: CheckpointId,
        /// Through which entry.
        lsn: Lsn,
        /// The timestamp of that entry.
        timestamp: Timestamp,
        /// The state, frozen; the driver asks it for its chunks wherever it likes.
        state: Box<Snapshot>,
        /// The flush of what no file holds yet.
        flush: Option<Box<dyn Job>>,
    },
    /// Carry out background work on a storage.
    Compact {
        /// Whose files.
        cohort: CohortId,
        /// Of which storage.
        lineage: Lineage,
        /// The work.
        job: Box<dyn Job>,
    },
    /// Remove files of storages that no manifest names and nobody reads.
    RemoveFiles {
        /// Which.
        files: Vec<FileId>,
    },
    /// Answer a question that needs the disk.
    Evaluate {
        /// The evaluation's number.
        id: EvaluationId,
        /// The question.
        read: Box<Read>,
    },
    /// Read a part of a file, as it lies on the disk.
    ReadFile {
        /// The read's number.
        id: ReadId,
        /// The file.
        file: Arc<dyn StoredFile>,
        /// Where the part begins.
        offset: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// Write a part of a file that is arriving; the file is created with the first.
    WriteFile {
        /// The file, on this disk.
        file: FileId,
        /// Where the part begins.
        offset: u64,
        /// The part.
        bytes: Bytes,
    },
    /// Force the files that arrived and their directory, look through them, and make a storage of them.
    AdoptFiles {
        /// Whose they are.
        cohort: CohortId,
        /// With which whole state they came.
        arrival: ArrivalId,
        /// The work.
        adoption: Box<dyn Adoption>,
    },
    /// Read entries of a cohort's log from disk, from `from` on, about `bytes` of them, one at least.
    ReadLog {
        /// The read's number.
        id: ReadId,
        /// The cohort.
        cohort: CohortId,
        /// The first entry wanted.
        from: Sequence,
        /// About how many bytes.
        bytes: usize,
    },
    /// Tell the operator of something that is not as it should be.
    Warn {
        /// What.
        what: String,
    },
    /// The roster has changed as far as this node knows: whom to dial, whom to accept, and who has left.
    Know {
        /// All nodes that there ever were.
        roster: Vec<NodeRecord>,
    },
    /// The machine has stopped cleanly: the process may end.
    Stopped,
    /// The machine can't go on; the process must end now.
    Halt {
        /// Why, for the operator.
        reason: String,
    },
}
