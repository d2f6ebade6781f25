//! Starts a node from its disk contents: replicas start in the order in which the catalog names them.

use std::collections::BTreeMap;

use base::{CohortId, LogRecord, Lsn, Member, Membership, Monotonic, Now, Record};
use bytes::Bytes;
use catalog::Catalog;
use replication::Replay;
use state_machine::interface::StateMachine as _;
use store::manifest::CohortManifest;
use store::{LogSink, Recovered};

use crate::config::NodeConfig;
use crate::contract::Action;
use crate::hosting::{Hosting, Part, StoppedReplica};
use crate::logs::Logs;
use crate::node::Node;
use crate::outgoing::Outgoing;
use crate::registry::UnknownKind;
use crate::request_table::RequestTable;
use crate::roster::{Roster, catalog_voters};
use crate::transactions::Transactions;

/// Why a node can't start from its disk contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Data was lost, and no other node has a copy.
    #[error("the log is damaged, and a single-node cluster has no other copy")]
    NoCopyToRepairFrom,
    /// The catalog gives this node a replica of a kind that this version doesn't know.
    #[error("cohort {cohort}: {reason}")]
    UnknownKind { cohort: CohortId, reason: UnknownKind },
    /// The checkpoint does not match the manifest.
    #[error("cannot read the checkpoint of cohort {cohort}: {reason}")]
    Checkpoint { cohort: CohortId, reason: String },
}

/// The log's records per cohort, collected during replay. Only the records that a replica starts from are kept.
#[derive(Debug, Default)]
pub struct Replays {
    of: BTreeMap<CohortId, Replay>,
    /// Log bytes before the first record of a cohort that is not in its checkpoint.
    marks: BTreeMap<CohortId, u64>,
    /// Approximate size of all records in bytes.
    bytes: u64,
    records: u64,
}

impl Replays {
    /// Number of records read.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
}

impl LogSink for Replays {
    fn take(&mut self, record: Record, checkpoint: Lsn) {
        let (size, is_past) = (record.size() as u64, record.sequence() > checkpoint.sequence);
        let Record { cohort, mut body } = record;
        if is_past {
            self.marks.entry(cohort).or_insert(self.bytes);
            if let LogRecord::Entry(entry) = &mut body {
                // Copied so that the entry does not retain the whole read batch in memory.
                entry.payload = Bytes::copy_from_slice(&entry.payload);
            }
        }
        self.of.entry(cohort).or_insert_with(|| Replay::after(checkpoint)).record(body);
        self.bytes += size;
        self.records += 1;
    }
}

impl Node {
    /// Starts a node from its disk contents, and appends its first actions to `actions`.
    ///
    /// # Errors
    /// A [`StartError`] if the disk contents do not permit a start.
    pub fn new(
        config: NodeConfig,
        recovered: &mut Recovered<Replays>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<Self, StartError> {
        let stopped = sort_out(recovered);
        let identity = &recovered.identity;
        let me = Member { node: identity.node, incarnation: identity.incarnation };
        let genesis = identity.members.clone();
        if genesis.len() == 1 && stopped.values().any(|cohort| cohort.manifest.doubtful && cohort.is_alone(me)) {
            return Err(StartError::NoCopyToRepairFrom);
        }
        let mut members: Vec<Member> = identity.known().chain([me]).collect();
        members.sort_unstable();
        members.dedup();
        let cluster = Roster::new(me, recovered.boot, members, recovered.peers.clone(), now.monotonic);
        let hosting = Hosting::new(recovered.tablespace.clone(), stopped, recovered.doubt_unknown);
        let in_doubt = config.in_doubt;
        let mut node = Self {
            config,
            replicas: Default::default(),
            hosting,
            outgoing: Outgoing { appended_bytes: recovered.records.bytes, ..Outgoing::default() },
            checkpoints: Default::default(),
            transfers: Default::default(),
            beats: Default::default(),
            clock_watch: Default::default(),
            pending_requests: RequestTable::new(cluster.boot),
            evaluations: Default::default(),
            mending: Default::default(),
            spreading: Default::default(),
            notices: Default::default(),
            drops: Default::default(),
            splits: Default::default(),
            moves: Default::default(),
            configurations: Default::default(),
            logs: Logs::new(cluster.sequencer()),
            transactions: Transactions::new(in_doubt),
            counters: Default::default(),
            stop: Default::default(),
            actions: Vec::new(),
            timer_at: Monotonic::NEVER,
            cluster,
        };
        let voters = catalog_voters(genesis.len());
        let catalog = Part { genesis: Membership::with_voters(genesis, voters), ..Part::of_no_table(Catalog::KIND) };
        node.start_replica(CohortId::CATALOG, catalog, None, now)?;
        node.host(now)?;
        node.settle(now, actions);
        Ok(node)
    }
}

/// Assigns each cohort its state from disk.
fn sort_out(recovered: &mut Recovered<Replays>) -> BTreeMap<CohortId, StoppedReplica> {
    let mut replays = std::mem::take(&mut recovered.records.of);
    for (cohort, known) in &recovered.cohorts {
        let checkpoint = known.checkpoint.map_or(Lsn::ZERO, |at| at.lsn);
        replays.entry(*cohort).or_insert_with(|| Replay::after(checkpoint));
    }
    let mut bulks = std::mem::take(&mut recovered.bulks);
    let mut sorted = BTreeMap::new();
    for (cohort, replay) in replays {
        let mark = recovered.records.marks.get(&cohort).copied().unwrap_or(recovered.records.bytes);
        let stopped = stopped(recovered, cohort, replay, mark);
        sorted.insert(cohort, StoppedReplica { bulk: bulks.remove(&cohort), ..stopped });
    }
    sorted
}

fn stopped(recovered: &Recovered<Replays>, cohort: CohortId, replay: Replay, checkpoint_mark: u64) -> StoppedReplica {
    let known = recovered.cohorts.get(&cohort);
    let unknown = || CohortManifest { doubtful: recovered.doubt_unknown, ..CohortManifest::default() };
    let manifest = known.cloned().unwrap_or_else(unknown);
    let chunks = recovered.checkpoints.get(&cohort).cloned().unwrap_or_default();
    StoppedReplica { is_known: known.is_some(), manifest, replay, chunks, checkpoint_mark, ..StoppedReplica::default() }
}

#[cfg(test)]
mod tests;
