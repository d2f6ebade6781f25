//! Starts and stops the replicas of this node, so that they match the map in its copy of the catalog.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, Durability, Epoch, KeyRange, Lsn, Member, Membership, Monotonic, Now, Sequence};
use bytes::Bytes;
use catalog::TableOptions;
use replication::{Cohort, ManifestId, Regime, Replay, Replayed, SplitOff, Start};
use sharedlog::log_unit::LogUnit;
use state_machine::interface::{Kind, StateMachine as _};
use state_machine::progress::SPLIT_OFF;
use store::Bulk;
use store::manifest::CohortManifest;
use store::tree::Tablespace;

use crate::contract::Lineage;
use crate::node::Node;
use crate::recovery::StartError;
use crate::registry::{AnyMachine, Loader, Snapshot, storage_of};
use crate::replica::{OnDisk, Replica, cohort_config};
use crate::replica_generation::ReplicaGenerations;

/// The resources of new replicas, and the durable state of replicas that do not run.
#[derive(Debug)]
pub(crate) struct Hosting {
    pub(crate) tablespace: Tablespace,
    /// State on disk of cohorts that have no running replica. Their promises stay in the manifest.
    pub(crate) stopped: BTreeMap<CohortId, StoppedReplica>,
    /// The disk may have lost all records of cohorts absent from the manifest.
    pub(crate) doubt_unknown: bool,
    pub(crate) generations: ReplicaGenerations,
    /// The map may assign replicas to this node that are not running yet.
    pub(crate) has_work: bool,
}

/// State on disk of a cohort that has no running replica.
#[derive(Debug, Default)]
pub(crate) struct StoppedReplica {
    /// Whether the manifest names it.
    pub(crate) is_known: bool,
    /// The newest storage of the cohort in this process.
    pub(crate) lineage: Lineage,
    /// The replica was removed: the manifest that records this, until it is forced.
    pub(crate) retiring: Option<ManifestId>,
    pub(crate) manifest: CohortManifest,
    /// The cohort's records in the log.
    pub(crate) replay: Replay,
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) bulk: Option<Bulk>,
    /// Log bytes before the first record that is not in the checkpoint.
    pub(crate) checkpoint_mark: u64,
}

impl Hosting {
    pub(crate) fn new(
        tablespace: Tablespace,
        stopped: BTreeMap<CohortId, StoppedReplica>,
        doubt_unknown: bool,
    ) -> Self {
        Self { tablespace, stopped, doubt_unknown, generations: ReplicaGenerations::default(), has_work: false }
    }

    /// The catalog applied an entry: the map may assign other replicas to this node.
    pub(crate) fn on_apply(&mut self) {
        self.has_work = true;
    }
}

impl Node {
    /// Brings the local replicas in line with the map, if either has changed.
    pub(crate) fn run_hosting(&mut self, now: Now) -> bool {
        let had_work = std::mem::take(&mut self.hosting.has_work);
        if had_work && let Err(error) = self.host(now) {
            self.halt(error.to_string());
        }
        had_work
    }

    /// Stops the replicas that the map no longer names, starts those that it assigns to this node, and removes those
    /// that were moved away.
    pub(crate) fn host(&mut self, now: Now) -> Result<(), StartError> {
        self.stop_dropped_replicas();
        self.start_tables(now)?;
        // This must come last: a replica started only as the parent of a split is removed if this node has lost the
        // split.
        self.remove_moved_replicas();
        Ok(())
    }

    /// Starts a replica of every range that the catalog assigns to this node, unless it runs already.
    ///
    /// While the catalog's own replica is in doubt, it may again name tables that were dropped and forgotten. Until the
    /// doubt ends, cohorts without state on disk are not started. If the disk may have lost all state of a cohort, its
    /// replica starts at once, in doubt. Ranges created by a split have their own rules ([`Node::may_begin`]).
    fn start_tables(&mut self, now: Now) -> Result<(), StartError> {
        let catalog = self.catalog();
        let is_in_doubt = self.replicas[&CohortId::CATALOG].cohort.doubtful() && !self.hosting.doubt_unknown;
        let may_start = |cohort| match self.hosting.stopped.get(&cohort) {
            Some(stopped) => stopped.retiring.is_none(),
            None => !is_in_doubt,
        };
        let mut parts = BTreeMap::new();
        for (name, record) in catalog.tables() {
            for part in record.parts() {
                let (cohort, parent) = (part.cohort, part.parent);
                if self.is_ours(&part) && !self.replicas.contains_key(&cohort) && may_start(cohort) {
                    let genesis = Membership::of(part.genesis.to_vec());
                    let (table, range, is_split_off) = (name.to_owned(), part.range, parent.is_some());
                    let part = Part { table, options: record.options, range, genesis, is_split_off };
                    parts.insert(cohort, (part, parent));
                }
            }
        }
        for (cohort, _) in catalog.units().filter(|(_, member)| *member == self.cluster.me) {
            if !self.replicas.contains_key(&cohort) && may_start(cohort) {
                let genesis = Membership::of(vec![self.cluster.me]);
                parts.insert(cohort, (Part { genesis, ..Part::of_no_table(LogUnit::KIND) }, None));
            }
        }
        // A parent range has a lower cohort number than its children, and starting it may start them.
        for (cohort, (part, parent)) in parts {
            if self.replicas.contains_key(&cohort) {
                continue;
            }
            if parent.is_none_or(|parent| self.may_begin(cohort, parent, part.genesis.voters())) {
                self.start_replica(cohort, part, None, now)?;
            }
        }
        Ok(())
    }

    /// Starts a replica from its state on disk. Without a checkpoint, a replica created by a split starts from the
    /// state split off its parent.
    pub(crate) fn start_replica(
        &mut self,
        id: CohortId,
        part: Part,
        parent_part: Option<SplitOffState>,
        now: Now,
    ) -> Result<(), StartError> {
        let Part { table, options, range, genesis, is_split_off } = part;
        let (kind, durability) = (options.kind, options.durability());
        let mut stopped = self.hosting.stopped.remove(&id).unwrap_or_else(|| StoppedReplica {
            manifest: CohortManifest { doubtful: self.hosting.doubt_unknown, ..CohortManifest::default() },
            checkpoint_mark: self.outgoing.appended_bytes,
            ..StoppedReplica::default()
        });
        if !stopped.is_known || stopped.lost_checkpoint() {
            stopped.begin(genesis, self.cluster.me);
        }
        let StoppedReplica { manifest, replay, chunks, bulk, lineage, checkpoint_mark, .. } = stopped;
        // A replica that has never followed a leader has acknowledged nothing.
        let has_acknowledged = manifest.promised.epoch > Epoch(0) && parent_part.is_none();
        let forgetful = durability == Durability::Memory && has_acknowledged && !manifest.whole;
        let snapshot = manifest.checkpoint.map(|_| load(id, kind, &chunks)).transpose()?;
        let on_disk = OnDisk::found(&manifest, snapshot.clone(), checkpoint_mark);
        let split_off = parent_part.as_ref().map(|parent_part| parent_part.at);
        let unknown = |reason| StartError::UnknownKind { cohort: id, reason };
        let storage = || storage_of(kind, bulk, self.hosting.tablespace.site(id)).map_err(unknown);
        let state = match (snapshot, parent_part) {
            (Some(snapshot), _) => snapshot.into_machine(storage()?),
            (None, Some(parent_part)) => parent_part.state,
            (None, None) => AnyMachine::new(kind, id, self.cluster.me.incarnation, storage()?).map_err(unknown)?,
        };
        let mut checkpoint = (state.last_applied(), state.last_timestamp());
        // Records of an earlier generation of a removed replica do not belong to the log that it receives now.
        let log = if manifest.is_retired {
            Replayed { cut: Some(Sequence(1)), ..Replayed::default() }
        } else {
            replay.finish(checkpoint.0)
        };
        if planted(Bug::LastLsnFromLogOnly) && log.entries.is_empty() {
            checkpoint.0.epoch = base::Epoch(0);
        }
        let origin = if is_split_off { SPLIT_OFF } else { Lsn::ZERO };
        let config = cohort_config(&self.config, id, &options, self.cluster.me, origin);
        let regime = config.regime;
        let CohortManifest { promised, membership, doubtful, .. } = manifest;
        let start = Start { promised, checkpoint, membership, log, doubtful, forgetful, split_off };
        let cohort = Cohort::start(config, start, now, &mut self.outgoing.outbox);
        let replica = Replica {
            cohort,
            lineage,
            has_returned: manifest.is_retired,
            table,
            range,
            options,
            proposed: BTreeMap::new(),
            latches: Default::default(),
            holds_prepared: false,
            drains_until: Monotonic(0),
            read_locks: Default::default(),
            holds: Default::default(),
            throttle: Default::default(),
            on_disk,
            incoming: None,
            arrived: None,
            unsettled: Vec::new(),
            leader_seen: None,
            alone_since: None,
            housekeeping_at: Monotonic(0),
            last_change: state.last_timestamp(),
            timestamp_history: Default::default(),
            writes: 0,
            reads: 0,
            reads_elsewhere: Default::default(),
            published: None,
            state,
        };
        self.replicas.insert(id, replica);
        self.drain(id, now);
        self.configurations.has_work |= regime == Regime::Managed;
        Ok(())
    }
}

impl StoppedReplica {
    /// Whether this node is the only member of the cohort, according to the state on disk.
    pub(crate) fn is_alone(&self, me: Member) -> bool {
        let membership = self.replay.members().unwrap_or(&self.manifest.membership);
        !membership.is_empty() && membership.everyone().all(|member| member == me)
    }

    /// Whether its checkpoint may have been damaged. The membership in the manifest may then be newer than the first
    /// changes in its log, from which the replica starts again.
    fn lost_checkpoint(&self) -> bool {
        self.manifest.doubtful && self.manifest.checkpoint.is_none() && !self.manifest.is_retired
    }

    /// Initializes a replica that starts from the beginning of the log. A founding member of the cohort starts as that
    /// member. Any other replica joins and learns the membership from the log. It is in doubt until it has caught up,
    /// because an earlier replica may have acknowledged entries that are now lost (guarantee 8).
    fn begin(&mut self, genesis: Membership, me: Member) {
        if genesis.on(me.node) == Some(me) {
            self.manifest.membership = genesis.into();
        } else {
            self.manifest.membership = Default::default();
            self.manifest.doubtful = true;
        }
    }
}

/// The role of a cohort and its members.
pub(crate) struct Part {
    /// The table's name; empty if the cohort belongs to no table.
    pub(crate) table: String,
    /// The options of its table. If it belongs to none: the defaults, without transactions.
    pub(crate) options: TableOptions,
    pub(crate) range: KeyRange,
    /// Its members when it was created.
    pub(crate) genesis: Membership,
    /// Whether its range was created by a split.
    pub(crate) is_split_off: bool,
}

impl Part {
    pub(crate) fn of_no_table(kind: Kind) -> Self {
        Self {
            table: String::new(),
            options: TableOptions { transactions: Some(false), ..TableOptions::of(kind) },
            range: KeyRange::all(),
            genesis: Membership::default(),
            is_split_off: false,
        }
    }
}

/// The initial state of a replica that was created by a split.
pub(crate) struct SplitOffState {
    pub(crate) state: AnyMachine,
    pub(crate) at: SplitOff,
}

fn load(id: CohortId, kind: Kind, chunks: &[Bytes]) -> Result<Snapshot, StartError> {
    Loader::load(id, kind, chunks).map_err(|error| StartError::Checkpoint { cohort: id, reason: error.to_string() })
}

#[cfg(test)]
mod tests;
