//! What a node is asked by its endpoints, and what it answers. These types stand between the endpoints, the node and the
//! simulator.

use base::{Durability, KeyRange, Lsn};
use catalog::CatalogRequest;
use machine::Failure;
use sharedlog::request::LogRequest;

pub use crate::registry::{Ask, Response};

/// What a request came to.
pub type Outcome = machine::Outcome<Response>;

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks the catalog.
    Catalog(CatalogRequest),
    /// Asks the range of a table that holds the position where the request begins.
    Table {
        /// The table's name.
        table: String,
        /// The request.
        request: Ask,
    },
    /// Asks about shared logs.
    Log(LogRequest),
    /// Asks this very node how it and its cohorts are.
    Status,
}

impl Request {
    /// A request to a table.
    pub fn table(table: impl Into<String>, request: impl Into<Ask>) -> Self {
        Self::Table { table: table.into(), request: request.into() }
    }

    /// Whether it may change something, so that its outcome can be in doubt.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Catalog(request) => !machine::Request::reads(request),
            Self::Table { request, .. } => !request.reads(),
            Self::Log(request) => request.changes(),
            Self::Status => false,
        }
    }
}

impl Request {
    /// Bytes of keys, values and names that it holds, roughly.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Catalog(request) => machine::Request::held_bytes(request),
            Self::Table { table, request } => table.len() + request.held_bytes(),
            Self::Log(request) => {
                let batch = if let LogRequest::Append { batch, .. } = request { batch.len() } else { 0 };
                batch + request.log().map_or(0, str::len)
            }
            Self::Status => 0,
        }
    }
}

impl<R: Into<CatalogRequest>> From<R> for Request {
    fn from(request: R) -> Self {
        Self::Catalog(request.into())
    }
}

/// Checks a client's request, as every endpoint does before it hands the request in: form, limits, and what clients may
/// not change.
///
/// # Errors
/// [`Failure::Invalid`], saying what is wrong.
pub fn validate_client(request: &Request) -> Result<(), Failure> {
    if let Request::Log(request) = request {
        sharedlog::validate::check_not_reserved(request)?;
    }
    validate(request)
}

/// Checks a request's form and limits.
///
/// # Errors
/// [`Failure::Invalid`], saying what is wrong.
pub fn validate(request: &Request) -> Result<(), Failure> {
    match request {
        Request::Catalog(request) => catalog::validate(request),
        Request::Log(request) => sharedlog::validate::validate(request),
        Request::Status => Ok(()),
        Request::Table { table, request } => {
            catalog::validate::check_table_name(table)?;
            if let Ask::Tablet(request) = request { tablets::validate(request) } else { Ok(()) }
        }
    }
}

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

#[cfg(test)]
mod tests;
