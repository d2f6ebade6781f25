//! The interface between the node machine and its driver: timed events go in, one ordered list of actions comes out.
//! The runtime drives it with real sockets, files and clocks; the simulator drives it with simulated ones.
//!
//! Obligations of a driver:
//! * It carries out actions in order. An action that names a [`Durable`] waits until that much is forced, and does not
//!   delay other actions.
//! * It sends a reply or message that has a `valid_until` only if the monotonic clock, read *after* the machine
//!   produced it, is not past that time. Otherwise it returns [`Event::ReplyExpired`] (guarantees 12 and 14).
//! * Records of [`Action::Append`] reach the log in order. The driver reports completion only for records covered by
//!   one successful force. After a failed force the process ends (guarantee 25).
//! * The machine never reads a clock. Time passes only with events.

use base::{Boot, CohortId, Entry, Force, Lsn, Member, Monotonic, NodeId, ProcessStart, Record, Sequence, Timestamp};
use bytes::Bytes;
use catalog::NodeRecord;
use state_machine::interface::Evaluated;
use state_machine::storage::{Adoption, FileId, Job, Outputs, ReadError, Storage, StoredFile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::manifest::CohortManifest;

use crate::message::Message;
use crate::registry::{Read, Response, Snapshot};
use crate::request::{Outcome, Request};
use crate::views::ReadView;

pub use replication::{Durable, ManifestId, WriteId};

/// Identifies a request submitted by a server endpoint of this node. The endpoint assigns the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Identifies a log or file read that the machine requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Identifies an evaluation that the machine requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvaluationId(pub u64);

/// Identifies a checkpoint started in this process. Two checkpoints of one cohort may cover the same entry: a replica
/// that was removed and came back may receive its former state while the earlier checkpoint is still being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

/// Identifies an incoming state snapshot in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId(pub u64);

/// Identifies a storage of a cohort in this process. Work started for an earlier storage is discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lineage(pub u64);

/// An input of the machine.
#[derive(Debug)]
pub enum Event {
    /// The timer of [`Action::SetTimer`] fired. A spurious or late timer is harmless.
    Timer,
    /// A message arrived. The driver has dropped messages from earlier processes of the sender, and messages addressed
    /// to earlier processes of this node.
    Message {
        from: NodeId,
        /// The boot of the sender's process.
        boot: Boot,
        message: Message,
    },
    /// A peer's process has identified itself. The driver reports this before it delivers the first message of that
    /// process and before it sends any message to it: acknowledgements of an earlier process no longer count.
    PeerStarted {
        /// The peer. If the local catalog does not know its number yet, its own claim is trusted: a node gets the
        /// cluster's name only after it is in the roster.
        from: Member,
        start: ProcessStart,
    },
    /// The driver rejected a peer's process, because its disk was rolled back to an older copy (guarantee 6): its
    /// history contradicts the start that this node has seen. Messages of such a process are not delivered, and
    /// nothing is sent to it. The driver informs the process, which must end.
    PeerRolledBack { peer: NodeId },
    /// The connection on which this node sends to a peer was opened, or is closed. While it is closed, messages to the
    /// peer are dropped. A driver that does not report this is assumed to be connected.
    PeerConnection { peer: NodeId, is_open: bool },
    /// A server endpoint submits a request.
    Request {
        /// The endpoint's number for the request.
        id: RequestId,
        /// The reply is due by this time.
        deadline: Monotonic,
        request: Request,
    },
    /// The clients of these requests have disconnected. Reads end at once, and their replies are discarded.
    GivenUp {
        /// The endpoint's numbers for the requests.
        requests: BTreeSet<RequestId>,
    },
    /// A reply was not sent because its `valid_until` had passed.
    ReplyExpired {
        /// The destination of the reply.
        destination: ReplyDestination,
    },
    /// The log is forced through this record.
    LogForced {
        /// The last record covered.
        through: WriteId,
    },
    /// Both copies of the manifest are forced.
    ManifestForced { through: ManifestId },
    /// The requested checkpoint and its directory are forced, as are the files that its flush made.
    CheckpointWritten {
        /// The cohort of the state.
        cohort: CohortId,
        checkpoint: CheckpointId,
        /// Size of the checkpoint file in bytes.
        bytes: u64,
        /// The output of the flush, if there was one.
        flushed: Option<Outputs>,
    },
    /// The requested checkpoint failed because the disk was full. Its partial files are removed.
    CheckpointFailed {
        /// The cohort of the state.
        cohort: CohortId,
        checkpoint: CheckpointId,
    },
    /// The disk was full for a checkpoint, a log segment or the manifest. The driver retries every few seconds and
    /// reports each failure. A failed compaction is not reported here: it needs space for a copy of all its input,
    /// whereas a row needs little.
    DiskFull,
    /// A compaction has ended.
    Compacted {
        cohort: CohortId,
        /// The storage that it compacted.
        lineage: Lineage,
        /// The new files, forced. `None` if the disk was full or an input file can't be read.
        outputs: Option<Outputs>,
    },
    /// A file of a cohort can't be read or is corrupt.
    FileDamaged { cohort: CohortId },
    /// An evaluation has ended.
    Evaluated { id: EvaluationId, answer: Result<Evaluated<Response>, ReadError> },
    /// The requested part of a file.
    FileRead { id: ReadId, bytes: Result<Bytes, ReadError> },
    /// A part of an incoming file is written.
    FileWritten {
        file: FileId,
        /// Number of bytes written; `None` if the disk was full.
        bytes: Option<u64>,
    },
    /// The files of a snapshot are forced and verified.
    FilesAdopted {
        cohort: CohortId,
        /// The incoming snapshot that the files belong to.
        arrival: ArrivalId,
        /// The storage made of the files; `None` if they are invalid.
        storage: Option<Box<dyn Storage>>,
    },
    /// The requested part of the log.
    LogRead {
        id: ReadId,
        /// The entries in order, starting with the requested one. `None` if the log no longer holds that entry or can't
        /// be read there.
        entries: Option<Vec<Entry>>,
    },
    /// Shut down cleanly: leaders transfer leadership, then the machine emits [`Action::Stopped`].
    Stop,
}

/// The destination of a reply: a server endpoint of this node, or another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplyDestination {
    /// A server endpoint of this node.
    Client(RequestId),
    /// A node that forwarded the request under its own number.
    Forwarded {
        /// The node that forwarded the request.
        node: NodeId,
        /// Its number for the request.
        request: u64,
    },
}

/// An output of the machine. Large and rare fields are boxed because actions are moved several times.
#[derive(Debug)]
pub enum Action {
    /// Publish the state that other threads may read for a replica, replacing the previous view. This action precedes
    /// every reply that depends on the new view, and every message that makes the old view invalid.
    Publish {
        /// The cohort of the replica.
        cohort: CohortId,
        /// The view; `None` if the replica no longer exists.
        view: Option<Arc<ReadView>>,
    },
    /// Append a record to the log.
    Append {
        /// The record's number, one more than the last.
        write: WriteId,
        record: Record,
        /// How soon the record must be forced.
        force: Force,
    },
    /// Write both copies of the manifest, one forced after the other. The driver adds the log's own state (the oldest
    /// segment and the process starts). Once the manifest is forced, it deletes the segments that the named checkpoints make
    /// obsolete.
    WriteManifest {
        /// The manifest's number, one more than the last.
        manifest: ManifestId,
        /// The durable state of every cohort.
        cohorts: BTreeMap<CohortId, CohortManifest>,
        /// The newest start of each peer that this node has seen: the driver checks the next one against it.
        peers: BTreeMap<NodeId, ProcessStart>,
        /// Whether a cohort absent from the manifest is in doubt, because damage may have destroyed all of its log.
        doubt_unknown: bool,
        /// Cohorts that were permanently removed: their records and checkpoints are obsolete.
        gone: BTreeSet<CohortId>,
        /// Cohorts whose log must be kept after this entry, although the checkpoint contains more.
        kept: BTreeMap<CohortId, Sequence>,
    },
    Send {
        to: NodeId,
        message: Message,
        /// Wait until this is forced.
        after: Durable,
        /// Do not send after this time; return [`Event::ReplyExpired`] instead.
        valid_until: Option<Monotonic>,
    },
    /// Reply to a server endpoint.
    Reply {
        /// The endpoint's number for the request.
        to: RequestId,
        outcome: Outcome,
        /// Do not send after this time; return [`Event::ReplyExpired`] instead.
        valid_until: Option<Monotonic>,
    },
    /// Deliver [`Event::Timer`] at this time. A later `SetTimer` replaces this one.
    SetTimer {
        /// When the timer fires.
        at: Monotonic,
    },
    /// Run the flush, if there is one. Then write a checkpoint of the state to a file named after the cohort and LSN,
    /// and force the file and its directory.
    WriteCheckpoint {
        /// The cohort of the state.
        cohort: CohortId,
        checkpoint: CheckpointId,
        /// The last entry applied to the state.
        lsn: Lsn,
        /// The timestamp of that entry.
        timestamp: Timestamp,
        /// A frozen snapshot of the state. The driver may read its chunks on any thread.
        state: Box<Snapshot>,
        /// The flush of rows that no file holds yet.
        flush: Option<Box<dyn Job>>,
    },
    /// Run background work on a storage.
    Compact {
        cohort: CohortId,
        /// The storage to compact.
        lineage: Lineage,
        job: Box<dyn Job>,
    },
    /// Remove files that no manifest names and no read uses.
    RemoveFiles { files: Vec<FileId> },
    /// Evaluate a read that needs the disk.
    Evaluate { id: EvaluationId, read: Box<Read> },
    /// Read a part of a file as stored, without decoding.
    ReadFile {
        id: ReadId,
        file: Arc<dyn StoredFile>,
        /// Offset of the part in bytes.
        offset: u64,
        /// Length of the part in bytes.
        bytes: usize,
        /// Whether to verify the whole file first.
        verify: bool,
    },
    /// Write a part of an incoming file. The first part creates the file.
    WriteFile {
        /// The file's identifier on this disk.
        file: FileId,
        /// Offset of the part in bytes.
        offset: u64,
        bytes: Bytes,
    },
    /// Force the received files and their directory, verify them, and open them as a storage.
    AdoptFiles {
        cohort: CohortId,
        /// The incoming snapshot that the files belong to.
        arrival: ArrivalId,
        adoption: Box<dyn Adoption>,
    },
    /// Read at least one and about `bytes` bytes of entries from a cohort's log on disk, starting at `from`.
    ReadLog {
        id: ReadId,
        cohort: CohortId,
        /// The first entry wanted.
        from: Sequence,
        /// Approximate number of bytes to read.
        bytes: usize,
    },
    /// Report an abnormal condition to the operator.
    Warn { what: String },
    /// Report a normal event to the operator, such as an election.
    Inform { what: String },
    /// The roster known to this node has changed: it determines which nodes to dial, which to accept, and which are
    /// removed.
    Know {
        /// All nodes that ever belonged to the cluster.
        roster: Vec<NodeRecord>,
    },
    /// The machine has shut down cleanly: the process may end.
    Stopped,
    /// The machine can't continue: the process must end now.
    Halt {
        /// The reason, for the operator.
        reason: String,
    },
}
