//! From what the disk held to a running node: replicas are started in the order in which the catalogue names them.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{
    CohortId, Durability, Duration, Epoch, KeyRange, LogRecord, Lsn, Member, Membership, Now, Record, Sequence,
};
use bytes::Bytes;
use machine::progress::SPLIT_OFF;
use machine::state_machine::Kind;
use replication::{Cohort, Replay, Replayed, SplitOff, Start};
use store::manifest::CohortManifest;
use store::tree::Tree;
use store::{LogSink, Recovered};

use crate::config::NodeConfig;
use crate::contract::Action;
use crate::node::Node;
use crate::registry::{AnyMachine, Loader, Snapshot, UnknownKind, storage_of};
use crate::replica::{Dormant, OnDisk, Replica, cohort_config};
use crate::roster::catalogue_voters;

/// Why a node can't start from what its disk holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Something was lost, and there is nobody to fetch it from.
    #[error("part of this node's log is damaged, and a universe of one node has no other copy")]
    NothingToMendFrom,
    /// The catalog gives this node a replica of a kind that this version doesn't know.
    #[error("cohort {cohort}: {reason}")]
    UnknownKind {
        /// Whose.
        cohort: CohortId,
        /// Which.
        reason: UnknownKind,
    },
    /// A checkpoint holds another state than the manifest says.
    #[error("the checkpoint of cohort {cohort} can't be read: {reason}")]
    Checkpoint {
        /// Whose.
        cohort: CohortId,
        /// Why.
        reason: String,
    },
}

/// What the log holds for each cohort, gathered as it is read: no more of it is kept than a replica starts from.
#[derive(Debug, Default)]
pub struct Replays {
    of: BTreeMap<CohortId, Replay>,
    /// How much the log held before the first record of a cohort that is not in its checkpoint.
    marks: BTreeMap<CohortId, u64>,
    /// Bytes of all records, about.
    bytes: u64,
    records: u64,
}

impl Replays {
    /// How many records were read.
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
                // Its own, lest it keep the batch in memory that it was read with.
                entry.payload = Bytes::copy_from_slice(&entry.payload);
            }
        }
        self.of.entry(cohort).or_insert_with(|| Replay::after(checkpoint)).record(body);
        self.bytes += size;
        self.records += 1;
    }
}

impl Node {
    /// Starts a node from what its disk held. The first actions are put into `actions`.
    ///
    /// # Errors
    /// When it can't go on from there.
    pub fn new(
        config: NodeConfig,
        recovered: &mut Recovered<Replays>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<Self, StartError> {
        let dormant = sort_out(recovered);
        let identity = &recovered.identity;
        let me = Member { node: identity.node, incarnation: identity.incarnation };
        let genesis = identity.members.clone();
        if genesis.len() == 1 && dormant.values().any(|cohort| cohort.manifest.doubtful && cohort.is_alone(me)) {
            return Err(StartError::NothingToMendFrom);
        }
        let mut members: Vec<Member> = identity.known().chain([me]).collect();
        members.sort_unstable();
        members.dedup();
        let tablespace = recovered.tablespace.clone();
        let mut node = Self::empty(config, me, recovered.boot, members, tablespace, recovered.doubt_unknown);
        node.dormant = dormant;
        node.outgoing.appended_bytes = recovered.records.bytes;
        let voters = catalogue_voters(genesis.len());
        let catalogue = Part { genesis: Membership::with_voters(genesis, voters), ..Part::of_no_table(Kind::CATALOG) };
        node.start_replica(CohortId::CATALOGUE, catalogue, None, now)?;
        node.learn_roster();
        node.let_go();
        node.let_leavers_go();
        node.start_tables(now)?;
        node.settle(now, actions);
        Ok(node)
    }

    /// Starts a replica of every range that the catalogue gives this node a part in, unless it runs already.
    ///
    /// While the catalogue's own replica is in doubt, it may come to speak once more of tables that were dropped and
    /// forgotten: of what the disk holds nothing of, nothing is started until that has ended. (Where the disk may have
    /// lost all that it held of a cohort, it is started at once, and in doubt.) What was split off another range has
    /// its own rules ([`Node::may_begin`]).
    pub(crate) fn start_tables(&mut self, now: Now) -> Result<(), StartError> {
        let Some(catalogue) = self.catalogue() else { return Ok(()) };
        let is_in_doubt = self.replicas[&CohortId::CATALOGUE].cohort.doubtful() && !self.doubt_unknown;
        let may_start = |cohort| match self.dormant.get(&cohort) {
            Some(dormant) => dormant.retiring.is_none(),
            None => !is_in_doubt,
        };
        let mut parts = BTreeMap::new();
        let mut is_any_elsewhere = false;
        for (name, record) in catalogue.tables() {
            for part in record.parts() {
                let (cohort, parent) = (part.cohort, part.parent);
                if self.is_ours(&part) && !self.replicas.contains_key(&cohort) && may_start(cohort) {
                    is_any_elsewhere |= !part.is_on(self.me);
                    let genesis = Membership::of(part.genesis.to_vec());
                    let (table, is_split_off) = (name.to_owned(), parent.is_some());
                    let (range, retention, durability) = (part.range, record.retention, record.durability);
                    let kind = record.kind;
                    let part = Part { table, kind, range, retention, durability, genesis, is_split_off };
                    parts.insert(cohort, (part, parent));
                }
            }
        }
        for (cohort, _) in catalogue.units().filter(|(_, member)| *member == self.me) {
            if !self.replicas.contains_key(&cohort) && may_start(cohort) {
                let genesis = Membership::of(vec![self.me]);
                parts.insert(cohort, (Part { genesis, ..Part::of_no_table(Kind::LOG_UNIT) }, None));
            }
        }
        // A range that others were split off has a lower number than theirs: it may begin them.
        for (cohort, (part, parent)) in parts {
            if self.replicas.contains_key(&cohort) {
                continue;
            }
            if parent.is_none_or(|parent| self.may_begin(cohort, parent, part.genesis.voters())) {
                self.start_replica(cohort, part, None, now)?;
            }
        }
        // One that is here only for what was split off it goes, if the split is lost to it: its cohort tells it nothing
        // more.
        if is_any_elsewhere {
            self.splits.look_for_leavers();
        }
        Ok(())
    }

    /// Starts a replica from what the disk holds of it; without a checkpoint, from the state that was split off, if it
    /// was.
    pub(crate) fn start_replica(
        &mut self,
        id: CohortId,
        part: Part,
        born: Option<Born>,
        now: Now,
    ) -> Result<(), StartError> {
        let Part { table, kind, range, retention, durability, genesis, is_split_off } = part;
        let mut dormant = self.dormant.remove(&id).unwrap_or_else(|| Dormant {
            manifest: CohortManifest { doubtful: self.doubt_unknown, ..CohortManifest::default() },
            checkpoint_mark: self.outgoing.appended_bytes,
            ..Dormant::default()
        });
        if !dormant.is_known {
            dormant.begin(genesis, self.me);
        }
        let Dormant { manifest, replay, chunks, tree, lineage, checkpoint_mark, .. } = dormant;
        // Who has followed nobody yet has acknowledged nothing.
        let has_acknowledged = manifest.promised.epoch > Epoch(0) && born.is_none();
        let forgetful = durability == Durability::Memory && has_acknowledged && !manifest.whole;
        let snapshot = manifest.checkpoint.map(|_| load(id, kind, &chunks)).transpose()?;
        let on_disk = OnDisk::found(&manifest, snapshot.clone(), checkpoint_mark);
        let split_off = born.as_ref().map(|born| born.at);
        let unknown = |reason| StartError::UnknownKind { cohort: id, reason };
        let storage = || {
            let tree = || tree.unwrap_or_else(|| Tree::new(self.tablespace.site(id)));
            storage_of(kind, tree).map_err(unknown)
        };
        let state = match (snapshot, born) {
            (Some(snapshot), _) => snapshot.into_machine(storage()?),
            (None, Some(born)) => born.state,
            (None, None) => AnyMachine::new(kind, id, self.me.incarnation, storage()?).map_err(unknown)?,
        };
        let mut checkpoint = (state.last_applied(), state.last_timestamp());
        // What the log may hold of an earlier life of a replica that had left is no part of what is sent to it now.
        let log = if manifest.is_retired {
            Replayed { cut: Some(Sequence(1)), ..Replayed::default() }
        } else {
            replay.finish(checkpoint.0)
        };
        if planted(Bug::LastLsnFromLogOnly) && log.entries.is_empty() {
            checkpoint.0.epoch = base::Epoch(0);
        }
        let origin = if is_split_off { SPLIT_OFF } else { Lsn::ZERO };
        let config = cohort_config(&self.config, id, kind, self.me, origin, durability);
        let CohortManifest { promised, membership, doubtful, .. } = manifest;
        let start = Start { promised, checkpoint, membership, log, doubtful, forgetful, split_off };
        let cohort = Cohort::start(config, start, now, &mut self.outgoing.outbox);
        let mut replica = Replica::new(cohort, state, table, range, retention, on_disk);
        (replica.lineage, replica.has_returned) = (lineage, manifest.is_retired);
        self.replicas.insert(id, replica);
        self.drain(id, now);
        Ok(())
    }
}

impl Dormant {
    /// Whether nobody else is a member of the cohort, as far as the disk says.
    fn is_alone(&self, me: Member) -> bool {
        let membership = self.replay.members().unwrap_or(&self.manifest.membership);
        !membership.is_empty() && membership.everyone().all(|member| member == me)
    }

    /// A replica of which the manifest says nothing has promised nothing. Where it was there when the cohort was
    /// created, it starts as the member that it then was. Everybody else joins, and learns from the log who the members
    /// are; in doubt until it has caught up, since it may have been one before, and may have acknowledged what it holds
    /// no more (guarantee 8).
    fn begin(&mut self, genesis: Membership, me: Member) {
        if genesis.on(me.node) == Some(me) {
            self.manifest.membership = genesis.into();
        } else {
            self.manifest.doubtful = true;
        }
    }
}

/// What a cohort is there for, and who has a part in it.
pub(crate) struct Part {
    /// The table; empty for what is none's.
    pub(crate) table: String,
    /// The kind of its state machine.
    pub(crate) kind: Kind,
    pub(crate) range: KeyRange,
    /// How long old versions are kept.
    pub(crate) retention: Duration,
    /// What its log must be on before an entry counts.
    pub(crate) durability: Durability,
    /// Its members when it was created.
    pub(crate) genesis: Membership,
    /// Whether its range was split off another's.
    pub(crate) is_split_off: bool,
}

impl Part {
    fn of_no_table(kind: Kind) -> Self {
        Self {
            table: String::new(),
            kind,
            range: KeyRange::all(),
            retention: Duration::ZERO,
            durability: Durability::Forced,
            genesis: Membership::default(),
            is_split_off: false,
        }
    }
}

/// What a replica begins with that was split off another.
pub(crate) struct Born {
    pub(crate) state: AnyMachine,
    pub(crate) at: SplitOff,
}

fn load(id: CohortId, kind: Kind, chunks: &[Bytes]) -> Result<Snapshot, StartError> {
    Loader::load(id, kind, chunks).map_err(|error| StartError::Checkpoint { cohort: id, reason: error.to_string() })
}

/// Gives every cohort what the disk held of it.
fn sort_out(recovered: &mut Recovered<Replays>) -> BTreeMap<CohortId, Dormant> {
    let mut replays = std::mem::take(&mut recovered.records.of);
    for (cohort, known) in &recovered.cohorts {
        let checkpoint = known.checkpoint.map_or(Lsn::ZERO, |at| at.lsn);
        replays.entry(*cohort).or_insert_with(|| Replay::after(checkpoint));
    }
    let mut trees = std::mem::take(&mut recovered.trees);
    let mut sorted = BTreeMap::new();
    for (cohort, replay) in replays {
        let mark = recovered.records.marks.get(&cohort).copied().unwrap_or(recovered.records.bytes);
        let dormant = dormant(recovered, cohort, replay, mark);
        sorted.insert(cohort, Dormant { tree: trees.remove(&cohort), ..dormant });
    }
    sorted
}

fn dormant(recovered: &Recovered<Replays>, cohort: CohortId, replay: Replay, checkpoint_mark: u64) -> Dormant {
    let known = recovered.cohorts.get(&cohort);
    let unknown = || CohortManifest { doubtful: recovered.doubt_unknown, ..CohortManifest::default() };
    let manifest = known.cloned().unwrap_or_else(unknown);
    let chunks = recovered.checkpoints.get(&cohort).cloned().unwrap_or_default();
    Dormant { is_known: known.is_some(), manifest, replay, chunks, checkpoint_mark, ..Dormant::default() }
}

#[cfg(test)]
mod tests;
