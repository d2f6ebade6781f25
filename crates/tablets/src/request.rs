//! What a client may ask of the columns door and what it is told: the API of Spinnaker's section 3, with sessions for
//! retries (guarantee 10). These types stand between the doors, the node and the simulator; the gRPC messages are
//! `api`'s.

use base::{CohortId, Durability, Duration, KeyRange, Lsn, NodeId, Sequence, Timestamp};
use bytes::Bytes;
use sharedlog::Position;

use crate::catalogue::NodeRecord;
pub use crate::consistency::{AsOf, Consistency, Place};
pub use logs::{Content, ExtentDescription, LogDescription, LogEntry, LogRequest, LogResponse};

mod logs;

/// A session: the cohort whose log opened it and the sequence of the entry that did, unique in the universe for ever.
/// So one range's session is unknown in every other range, and never taken for a stranger's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// Bits of the entry's sequence: at ten thousand entries a second they last for three years. What is left names
    /// sixteen million cohorts.
    const SEQUENCE_BITS: u32 = 40;

    /// Cohorts that sessions can be named for: no range gets a number from here on.
    pub const COHORTS_MAX: u64 = 1 << (u64::BITS - Self::SEQUENCE_BITS);

    /// The session that this entry of this cohort opens; none if its numbers are too large for a name.
    #[must_use]
    pub fn new(cohort: CohortId, sequence: Sequence) -> Option<Self> {
        let fits = u64::from(cohort.0) < Self::COHORTS_MAX && sequence.0 >> Self::SEQUENCE_BITS == 0;
        fits.then(|| Self(u64::from(cohort.0) << Self::SEQUENCE_BITS | sequence.0))
    }

    /// Whether an entry of this cohort up to `last` may have opened it, or one of the range that this one was split off
    /// from: of a cohort that was named before.
    pub(crate) fn may_be_known_to(self, cohort: CohortId, last: Sequence) -> bool {
        let sequence = Sequence(self.0 & ((1 << Self::SEQUENCE_BITS) - 1));
        let is_inherited = self.0 >> Self::SEQUENCE_BITS < u64::from(cohort.0);
        is_inherited || (Self::new(cohort, sequence) == Some(self) && sequence <= last)
    }
}

/// Which write of which session this is: at most one write of a stamp is ever applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionStamp {
    /// The session.
    pub session: SessionId,
    /// The write's number in it, from 1.
    pub sequence: u64,
    /// Every lower number's outcome is known to the client, and may be forgotten.
    pub first_incomplete: u64,
}

/// What is to happen to one column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The column's name.
    pub column: Bytes,
    /// The new value; none deletes the column.
    pub value: Option<Bytes>,
    /// The version the column must have for the *whole write* to happen; `Timestamp(0)`: it must be absent.
    pub condition: Option<Timestamp>,
}

/// A write of one row: all its mutations or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// For retries that apply once; without one a retry may apply again.
    pub stamp: Option<SessionStamp>,
    /// The row.
    pub key: Bytes,
    /// What happens to its columns: one mutation a column at most, one at least.
    pub mutations: Vec<Mutation>,
}

impl Write {
    /// Whether it depends on what is there.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.mutations.iter().any(|mutation| mutation.condition.is_some())
    }
}

/// A condition that was not met.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// The first column whose condition was not met.
    pub column: Bytes,
    /// The version asked for.
    pub expected: Timestamp,
    /// The version it has; 0 if it is absent.
    pub actual: Timestamp,
}

/// Which rows, in which order, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scan {
    /// The first key, included; empty: from the table's beginning.
    pub from: Bytes,
    /// The last key, excluded; none: to the table's end.
    pub to: Option<Bytes>,
    /// Only keys that begin so.
    pub prefix: Bytes,
    /// From the last key to the first.
    pub reverse: bool,
    /// Rows at most; 0: as many as a page holds.
    pub limit: usize,
    /// What the page before gave: the first key that may still come, included; in reverse the key before which the scan
    /// goes on, excluded.
    pub continuation: Option<Bytes>,
}

/// A request to one table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TableRequest {
    /// Opens a session in the range that holds a key.
    OpenSession {
        /// The key; empty: the first range.
        key: Bytes,
    },
    /// Writes a row.
    Write(Write),
    /// Deletes a row, with all its columns.
    DeleteRow {
        /// For retries that apply once.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
    },
    /// Reads columns of a row: those named, or all.
    Get {
        /// The row.
        key: Bytes,
        /// The columns; none: all of them.
        columns: Option<Vec<Bytes>>,
        /// What it may show.
        consistency: Consistency,
    },
    /// Reads rows.
    Scan {
        /// Which.
        scan: Scan,
        /// What it may show.
        consistency: Consistency,
    },
}

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Creates a table unless it is there.
    CreateTable {
        /// Its name.
        name: String,
        /// The keys at which a range ends and the next begins, in any order.
        split_at: Vec<Bytes>,
        /// Replicas of each range: 1, 3 or 5; 0: as many as is usual.
        replicas: u32,
        /// How long old versions are kept; zero: as long as is usual.
        retention: Duration,
        /// What its logs must be on before a write counts; none: disks, as is usual.
        durability: Option<Durability>,
    },
    /// Lists the tables.
    ListTables,
    /// Describes a table: its ranges, and where they lie.
    DescribeTable {
        /// Its name.
        name: String,
    },
    /// Drops a table with all its rows.
    DropTable {
        /// Its name.
        name: String,
    },
    /// Splits a range of a table in two.
    SplitRange {
        /// The table's name.
        name: String,
        /// The key at which the new range begins.
        key: Bytes,
    },
    /// Has a range's replicas move to these nodes. The answer says that it is begun.
    MoveRange {
        /// The range's cohort.
        cohort: CohortId,
        /// The nodes that are to have a replica.
        nodes: Vec<NodeId>,
    },
    /// Has a node join: its disk is blank, and is the universe's once the answer names it.
    AddNode(NodeRecord),
    /// Has a node leave. The answer says that it is begun.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Lists the nodes, those that have left among them.
    ListNodes,
    /// Asks a table.
    Table {
        /// Its name.
        table: String,
        /// The request.
        request: TableRequest,
    },
    /// Asks about shared logs.
    Log(LogRequest),
    /// Asks this very node how it and its cohorts are.
    Status,
}

impl Request {
    /// Whether it may change something, so that its outcome can be in doubt.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::CreateTable { .. } | Self::DropTable { .. } => true,
            Self::SplitRange { .. } | Self::MoveRange { .. } => true,
            Self::AddNode(_) | Self::RemoveNode { .. } => true,
            Self::Table { request, .. } => match request {
                TableRequest::OpenSession { .. } | TableRequest::Write(_) | TableRequest::DeleteRow { .. } => true,
                TableRequest::Get { .. } | TableRequest::Scan { .. } => false,
            },
            Self::Log(request) => request.changes(),
            Self::ListTables | Self::DescribeTable { .. } | Self::ListNodes | Self::Status => false,
        }
    }
}

/// One column of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The column's name.
    pub column: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Its version: the commit timestamp of the write that put it there.
    pub version: Timestamp,
}

/// One row of an answer, its columns in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The columns that are there.
    pub cells: Vec<Cell>,
}

/// A definite good answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// The table is there.
    TableCreated {
        /// Whether it was there before.
        existed: bool,
    },
    /// The table is gone, in every cohort that kept a part of it.
    TableDropped,
    /// The range is split.
    RangeSplit {
        /// The new range's cohort.
        cohort: u32,
    },
    /// A range's replicas are on their way.
    MoveBegun,
    /// A node is on its way out, or out.
    LeaveBegun,
    /// All nodes that there ever were, in the order of their numbers.
    Nodes(Vec<NodeDescription>),
    /// A cohort's members are those of the plan that was asked for.
    PlanDone,
    /// The tables' names in order.
    Tables(Vec<String>),
    /// What is known of the table.
    Table(TableDescription),
    /// The session is open.
    SessionOpened {
        /// The session.
        session: SessionId,
        /// The keys that can be written in it: the range of the tablet that opened it.
        range: KeyRange,
    },
    /// The write was applied.
    Written {
        /// The version that every column it put has now.
        version: Timestamp,
    },
    /// The columns asked for that are there; empty if none is.
    Row(Vec<Cell>),
    /// A page of rows.
    Rows {
        /// The rows.
        rows: Vec<Row>,
        /// Where the scan goes on; none: it is at its end.
        continuation: Option<Bytes>,
    },
    /// What a replica's own state shows, and which state that is.
    Dated {
        /// The answer.
        response: Box<Self>,
        /// The state.
        as_of: Box<AsOf>,
    },
    /// An answer about a shared log.
    Log(LogResponse),
    /// What a log unit says.
    Unit(Box<sharedlog::unit::Reply>),
    /// How the node is.
    Status(Box<Status>),
}

/// Why a request was not done, or is not known to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// A condition was not met; nothing was written.
    #[error("version mismatch on column \"{}\": expected {expected}, actual {actual}", base::shown(column))]
    VersionMismatch {
        /// The first column whose condition was not met.
        column: Bytes,
        /// The version asked for.
        expected: Timestamp,
        /// The version it has; 0 if it is absent.
        actual: Timestamp,
    },
    /// There is no such table.
    #[error("no table named {0:?}")]
    UnknownTable(String),
    /// There is no such log.
    #[error("no log named {0:?}")]
    UnknownLog(String),
    /// What was to be created is there, and is not what was asked for; nothing was done.
    #[error("{0}")]
    Exists(String),
    /// The session is unknown or has expired; the write was not executed *by this request*. For a retry the outcome of
    /// the first try is unknown.
    #[error("session {id} is unknown or has expired", id = .0.0)]
    UnknownSession(SessionId),
    /// The request breaks a limit or a rule of form; nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// Too much is under way; nothing was done; try again later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// No leader could be reached in time; nothing was done.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// This attempt may have appended the batch: a retry with the same stamp tells.
    #[error("the batch may lie in the log, from position {since} on")]
    MayLie {
        /// There or after.
        since: Position,
    },
    /// What an append to a shared log came to can't be told any more, and no retry tells: one might append it for a
    /// second time.
    #[error("outcome unknown: {0}")]
    Forgotten(String),
    /// The write may have been done or may yet be; only a retry with the same session stamp tells.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

impl From<Mismatch> for Failure {
    fn from(Mismatch { column, expected, actual }: Mismatch) -> Self {
        Self::VersionMismatch { column, expected, actual }
    }
}

/// A table, for people and clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableDescription {
    /// Its ranges, in the order of their keys.
    pub ranges: Vec<RangeDescription>,
    /// When it was created.
    pub created: Timestamp,
    /// Replicas that each range is to have.
    pub replicas: u32,
    /// How long old versions are kept.
    pub retention: Duration,
    /// What its logs must be on before a write counts.
    pub durability: Durability,
}

/// A range of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeDescription {
    /// Its keys.
    pub range: KeyRange,
    /// The cohort that keeps its rows.
    pub cohort: u32,
    /// The nodes that the cohort's replicas are on, or are to be on.
    pub members: Vec<u32>,
    /// They are on their way there.
    pub is_moving: bool,
}

/// A node, and how much it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeDescription {
    /// The node.
    pub record: NodeRecord,
    /// Ranges that have a replica on it, to stay or to go.
    pub ranges: u32,
}

/// What a request came to.
pub type Outcome = Result<Response, Failure>;

/// How a node and its cohorts are, as that node sees them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The node that answers.
    pub node: u32,
    /// Its disk.
    pub incarnation: u64,
    /// Its start.
    pub boot: u64,
    /// Every node of the universe.
    pub nodes: Vec<NodeStatus>,
    /// Every cohort this node has a replica of.
    pub cohorts: Vec<CohortStatus>,
    /// What has happened on it.
    pub counters: Counters,
    /// What it can't do as it should, in words for people.
    pub troubles: Vec<String>,
    /// What the universe lacks, in words for people, if this node leads the catalogue.
    pub universe_troubles: Vec<String>,
    /// What can't be served, in words for people, if this node leads the catalogue.
    pub universe_failures: Vec<String>,
}

/// What has happened on a node since its start. The simulator demands that each of them happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Members of cohorts that came, went or were given a vote by leaders here.
    pub members_changed: u64,
    /// Replicas that left this node.
    pub replicas_left: u64,
    /// Reigns begun here.
    pub takeovers: u64,
    /// Entries of ours that gave way to a new leader's.
    pub truncations: u64,
    /// Answers of followers that had fallen behind, and were served from memory.
    pub memory_catch_ups: u64,
    /// Reads of the log for followers that lag.
    pub log_catch_ups: u64,
    /// Whole states sent.
    pub state_catch_ups: u64,
    /// Checkpoints of our own state.
    pub checkpoints: u64,
    /// Memtables that were written as tables.
    pub flushes: u64,
    /// Compactions begun.
    pub compactions: u64,
    /// Writes that were slowed down, since compactions don't keep up, ...
    pub writes_paced: u64,
    /// ... and those that had to wait for a flush or a compaction, each time that they were tried.
    pub writes_stalled: u64,
    /// Projections of shared logs that this node began to replace.
    pub log_repairs: u64,
    /// Times that this node began to have log units filled with what older chains hold.
    pub log_healings: u64,
    /// Units of shared logs that are lost though their disks are not, as this node was told while it led the catalogue.
    pub log_units_lost: u64,
    /// Positions of logs that this node filled, since nobody had written what was given out.
    pub log_fills: u64,
    /// Tables that were found damaged.
    pub tables_damaged: u64,
    /// Reads, and decisions about writes, that waited for the disk.
    pub disk_reads: u64,
    /// Heartbeats sent that stood for those of every cohort at rest with a node.
    pub beats: u64,
    /// Strong reads that rested on a view check.
    pub checked_reads: u64,
    /// Reads that found the lease lapsed.
    pub lease_expiries: u64,
    /// Losses declared by replicas that led here (guarantee 11).
    pub losses: u64,
    /// Replicas whose states gave way to those of logs that had lost some of what they held.
    pub states_left: u64,
    /// Replicas that doubted their logs, or had forgotten some of them, and have caught up.
    pub doubts_ended: u64,
    /// Sessions that were proposed to be forgotten.
    pub sessions_expired: u64,
    /// Replicas of ranges that were split off, begun with the split.
    pub splits: u64,
}

/// A node as another sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeStatus {
    /// The node.
    pub node: u32,
    /// Its disk, as the universe knows it.
    pub incarnation: u64,
    /// Whether it was heard of within the last second.
    pub alive: bool,
    /// Whether it is to leave.
    pub leaving: bool,
    /// Where clients reach it, as `host:port`; empty while the catalogue hasn't told.
    pub grpc: String,
}

/// A cohort as one of its replicas sees it: the leader knows all replicas, others only themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CohortStatus {
    /// The cohort.
    pub cohort: u32,
    /// Its table; empty for the catalogue, and for a log unit.
    pub table: String,
    /// The log that it is a unit of; empty while the catalogue here doesn't say. None: it is no log unit.
    pub log: Option<String>,
    /// The keys that it owns.
    pub range: KeyRange,
    /// Its leader, if known.
    pub leader: Option<u32>,
    /// The newest epoch.
    pub epoch: u64,
    /// Its replicas, as far as known here.
    pub replicas: Vec<ReplicaStatus>,
    /// The last entry that this node has applied.
    pub applied: Lsn,
    /// What its log must be on before an entry counts.
    pub durability: Durability,
    /// Losses that were declared in its log, as far as this node has applied it.
    pub losses: u32,
    /// Requests to change something that the log decided while this node led, since its start ...
    pub writes: u64,
    /// ... and reads that it answered.
    pub reads: u64,
}

/// A replica as seen by its leader or itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaStatus {
    /// The node it is on.
    pub node: u32,
    /// The last entry of its log that counts.
    pub last_lsn: Lsn,
    /// The last entry it is known to have committed.
    pub committed_lsn: Lsn,
    /// Whether it doubts its log, or may have forgotten some of it, and has no vote until it has caught up.
    pub doubtful: bool,
}
