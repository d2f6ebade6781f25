//! Requests to a node from its endpoints, and the replies. The endpoints, the node and the simulator share these types.

use base::{CohortId, Durability, Duration, KeyRange, Lsn, NodeId, Timestamp};
use catalog::{Catalog, CatalogRequest};
use sharedlog::request::LogRequest;
use state_machine::Failure;

pub use crate::config::ClockSource;
pub use crate::registry::{Ask, Response, TransactionRequest};

/// The result of a request.
pub type Outcome = state_machine::Outcome<Response>;

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A request to the catalog.
    Catalog(CatalogRequest),
    /// A request to the range of a table that holds the request's first key position.
    Table {
        table: String,
        request: Ask,
    },
    /// A request about shared logs.
    Log(LogRequest),
    Transaction(Box<TransactionRequest>),
    /// A cohort is to be led by this node, which has a replica of it.
    Lead {
        cohort: CohortId,
        node: NodeId,
    },
    /// The interval that contains true time, by this node's clock.
    Clock,
    /// The status of this node and its cohorts.
    Status,
}

impl Request {
    /// A request to a table.
    pub fn table(table: impl Into<String>, request: impl Into<Ask>) -> Self {
        Self::Table { table: table.into(), request: request.into() }
    }

    /// Whether it may change state, so that its outcome can be unknown.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Catalog(request) => !state_machine::Request::reads(request),
            Self::Table { request, .. } => !request.reads(),
            Self::Log(request) => request.changes(),
            Self::Transaction(_) | Self::Lead { .. } => true,
            Self::Clock | Self::Status => false,
        }
    }
}

impl Request {
    /// Whether it opens a client's session in a range.
    #[must_use]
    pub fn opens_session(&self) -> bool {
        matches!(self, Self::Table { request, .. } if request.opens_session())
    }

    /// The time within which it must be sent to its leader, if there is one.
    #[must_use]
    pub fn start_within(&self) -> Option<Duration> {
        if let Self::Table { request, .. } = self { request.start_within() } else { None }
    }

    /// Approximate size of its keys, values and names in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Catalog(request) => state_machine::Request::held_bytes(request),
            Self::Table { table, request } => table.len() + request.held_bytes(),
            Self::Log(request) => {
                let batch = if let LogRequest::Append { batch, .. } = request { batch.len() } else { 0 };
                batch + request.log().map_or(0, str::len)
            }
            Self::Transaction(transaction) => transaction.held_bytes(),
            Self::Lead { .. } | Self::Clock | Self::Status => 0,
        }
    }
}

impl<R: Into<CatalogRequest>> From<R> for Request {
    fn from(request: R) -> Self {
        Self::Catalog(request.into())
    }
}

/// Validates a client's request. Every endpoint does so before it submits the request. Checks the form, the limits, and
/// that the request changes nothing reserved.
///
/// # Errors
/// [`Failure::Invalid`] with a description of the problem.
pub fn validate_client(request: &Request) -> Result<(), Failure> {
    if let Request::Log(request) = request {
        sharedlog::validate::check_not_reserved(request)?;
    }
    validate(request)
}

/// Validates a request of a translation server, which may change the log of the coordination service, and no other.
///
/// # Errors
/// [`Failure::Invalid`] with a description of the problem.
pub fn validate_translation_server(request: &Request) -> Result<(), Failure> {
    if let Request::Log(request) = request {
        sharedlog::validate::check_translation_server(request)?;
    }
    validate(request)
}

/// Checks a request's form and limits.
///
/// # Errors
/// [`Failure::Invalid`] with a description of the problem.
pub fn validate(request: &Request) -> Result<(), Failure> {
    match request {
        Request::Catalog(request) => state_machine::Request::validate(request),
        Request::Log(request) => sharedlog::validate::validate(request),
        Request::Transaction(transaction) => transaction.validate(catalog::validate::check_table_name),
        Request::Lead { .. } | Request::Clock | Request::Status => Ok(()),
        Request::Table { table, request } => {
            catalog::validate::check_table_name(table)?;
            request.validate()
        }
    }
}

/// The status of a node and its cohorts, as known to that node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The node that reports.
    pub node: u32,
    /// The incarnation of its disk.
    pub incarnation: u64,
    pub boot: u64,
    /// Every node of the cluster.
    pub nodes: Vec<NodeStatus>,
    /// This node's wall clock.
    pub clock: ClockStatus,
    /// Every cohort with a replica on this node.
    pub cohorts: Vec<CohortStatus>,
    /// The map: all ranges and log units of the cluster.
    pub catalog: AppliedCatalog,
    /// Event counts since the start.
    pub counters: Counters,
    pub transactions: TransactionCounts,
    /// Members that left configurations of which this node is the primary, since the start.
    pub members_removed: u64,
    /// The verification in the background; `None` if there is nothing to verify.
    pub verification: Option<VerificationStatus>,
    /// Problems of this node, as messages for operators.
    pub troubles: Vec<String>,
    /// Degraded conditions of the cluster, as messages for operators. Set if this node leads the catalog.
    pub cluster_troubles: Vec<String>,
    /// Unavailable parts of the cluster, as messages for operators. Set if this node leads the catalog.
    pub cluster_failures: Vec<String>,
}

/// The wall clock of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockStatus {
    /// The source of the bound on its error.
    pub source: ClockSource,
    /// The bound; `None` if there is none, or a greater one than configured.
    pub uncertainty: Option<Duration>,
    /// Whether the clocks of most other nodes contradict it.
    pub is_outlier: bool,
    /// Why the node must not execute transactions, as a message for operators; `None` if it may.
    pub refusal: Option<String>,
}

/// The catalog as this node has applied it. A copy shares its records with the original.
#[derive(Clone, Debug, Default)]
pub struct AppliedCatalog(pub Catalog);

impl PartialEq for AppliedCatalog {
    /// The log determines the state.
    fn eq(&self, other: &Self) -> bool {
        self.0.last_applied() == other.0.last_applied()
    }
}

impl Eq for AppliedCatalog {}

/// Event counts of a node since its start. The simulator requires that each event occurs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Members added, removed or promoted by leaders on this node.
    pub members_changed: u64,
    /// Replicas that were moved away from this node.
    pub replicas_left: u64,
    /// Petitions for a configuration sent to the catalog.
    pub petitions: u64,
    /// Epochs that began with a leader on this node.
    pub takeovers: u64,
    /// Local entries that were replaced by a new leader's entries.
    pub truncations: u64,
    /// Followers that lagged and were served from memory.
    pub memory_catch_ups: u64,
    /// Log reads for lagging followers.
    pub log_catch_ups: u64,
    pub state_catch_ups: u64,
    /// Checkpoints of local state.
    pub checkpoints: u64,
    /// Memtables flushed to SSTables.
    pub flushes: u64,
    pub compactions: u64,
    /// Writes delayed by the write throttle.
    pub writes_paced: u64,
    /// Attempts of writes that had to wait for a flush or a compaction.
    pub writes_stalled: u64,
    /// Projections of shared logs that this node started to replace.
    pub log_repairs: u64,
    /// Times that this node started to copy entries of older chains to log units.
    pub log_healings: u64,
    /// Log units reported as lost, although their disks are present, while this node led the catalog.
    pub log_units_lost: u64,
    /// Log positions that this node filled because their writer never wrote them.
    pub log_fills: u64,
    pub sstables_damaged: u64,
    /// Damaged blocks that replicas of this node have met.
    pub blocks_damaged: u64,
    /// Those that were mended.
    pub blocks_mended: u64,
    /// Reads, and decisions about writes, that waited for the disk.
    pub disk_reads: u64,
    /// Batched heartbeats sent for all cohorts that were idle on a peer.
    pub beats: u64,
    /// Replies of peers with wall clocks that contradicted this node's: one of the two is outside of its bound.
    pub clock_contradictions: u64,
    /// Strong reads that used a read-index check.
    pub checked_reads: u64,
    /// Reads that failed because the lease had expired.
    pub lease_expiries: u64,
    /// Losses declared by leaders on this node (guarantee 11).
    pub losses: u64,
    /// Replica states replaced because the log had lost a part of them.
    pub states_left: u64,
    /// Replicas that were in doubt about their logs, or had lost part of them, and have caught up.
    pub doubts_ended: u64,
    pub sessions_expired: u64,
    /// Replicas created by splits.
    pub splits: u64,
    /// Prepared transactions that learned their outcome by asking the coordinator.
    pub doubts_resolved: u64,
}

/// How far a node is in the verification of its replicas' blocks in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VerificationStatus {
    /// The next blocks: those of this cohort, ...
    pub cohort: u32,
    /// ... from this one on.
    pub block: u64,
    /// When the last pass over all replicas ended; `None` before the first end since the start.
    pub completed: Option<Timestamp>,
}

/// Counts of the transactions that a node has driven, and of waits for locks, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransactionCounts {
    pub committed: u64,
    /// Aborted, because another transaction or write had changed a row that was read.
    pub aborted_by_conflict: u64,
    /// Aborted, because older ones had priority.
    pub aborted_by_priority: u64,
    /// Aborted for another reason, such as a range without a leader.
    pub aborted: u64,
    /// Refused: the clock has no bound, a limit is exceeded, or a table is missing.
    pub refused: u64,
    /// Those with an unknown outcome.
    pub unknown: u64,
    /// Requests that waited for the lock of another transaction, or for an earlier change of the same row, at leaders on
    /// this node.
    pub lock_waits: u64,
}

/// A node as seen by another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeStatus {
    pub node: u32,
    /// The incarnation of its disk, as known to the cluster.
    pub incarnation: u64,
    /// Whether a message arrived from it within the last second.
    pub alive: bool,
    /// Whether it is being removed.
    pub leaving: bool,
    /// Whether the reporting node rejected its last process, because its disk was rolled back to an older copy.
    pub rolled_back: bool,
    /// The address for clients, as `host:port`; empty until the catalog has it.
    pub grpc: String,
}

/// A cohort as seen by one of its replicas. The leader knows all replicas, others only themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CohortStatus {
    pub cohort: u32,
    /// Its table; empty for the catalog, and for a log unit.
    pub table: String,
    /// The log of a log unit; empty if the local catalog does not name it yet. `None` if the cohort is no log unit.
    pub log: Option<String>,
    /// The keys that it owns.
    pub range: KeyRange,
    /// Its leader, if known.
    pub leader: Option<u32>,
    pub epoch: u64,
    /// Its replicas, as far as they are known on this node.
    pub replicas: Vec<ReplicaStatus>,
    /// The last entry that this node has applied.
    pub applied: Lsn,
    /// The log storage that an entry must reach before it counts as acknowledged.
    pub durability: Durability,
    /// Losses declared in its log, through the last applied entry.
    pub losses: u32,
    /// Its configuration, under primary/backup replication.
    pub configuration: Option<ConfigurationStatus>,
    /// The clients' sessions that are open in it.
    pub sessions: usize,
    /// The transactions over several ranges that are prepared in it now.
    pub prepared: usize,
    /// About the bytes of its rows on this node, with old versions; 0 for other kinds of state.
    pub bytes: u64,
    /// Writes that the log decided while this node led, since the start.
    pub writes: u64,
    /// Reads answered by this node since the start.
    pub reads: u64,
}

/// The configuration of a cohort as known to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigurationStatus {
    pub version: u64,
    /// The node of the primary.
    pub primary: u32,
    /// The nodes of its members, in order.
    pub members: Vec<u32>,
    /// At the primary: the nodes of the replicas that are not members yet.
    pub candidates: Vec<u32>,
    /// Whether this replica is the only member and in doubt about its log, so that the cohort has stopped.
    pub is_stranded: bool,
}

/// A replica as seen by its leader or itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaStatus {
    /// The node it is on.
    pub node: u32,
    /// The last valid entry of its log.
    pub last_lsn: Lsn,
    /// The last entry that it is known to have committed.
    pub committed_lsn: Lsn,
    /// Whether it is in doubt about its log and does not vote until it has caught up.
    pub doubtful: bool,
}

#[cfg(test)]
mod tests;
