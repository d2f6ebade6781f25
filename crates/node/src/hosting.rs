//! The replicas that this node has, had or may get: brought in line with the map of its copy of the catalogue.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, Durability, Duration, Epoch, KeyRange, Lsn, Member, Membership, Monotonic, Now, Sequence};
use bytes::Bytes;
use machine::progress::SPLIT_OFF;
use machine::state_machine::Kind;
use replication::{Cohort, ManifestId, Replay, Replayed, SplitOff, Start};
use store::manifest::CohortManifest;
use store::tree::{Tablespace, Tree};

use crate::contract::Lineage;
use crate::lives::Lives;
use crate::node::Node;
use crate::recovery::StartError;
use crate::registry::{AnyMachine, Loader, Snapshot, storage_of};
use crate::replica::{OnDisk, Replica, cohort_config};

/// What replicas begin with, and what is left of those that ended.
#[derive(Debug)]
pub(crate) struct Hosting {
    /// Where the tablets' trees are.
    pub(crate) tablespace: Tablespace,
    /// What the disk held of cohorts that the catalogue hasn't named yet. Their promises stay in the manifest.
    pub(crate) dormant: BTreeMap<CohortId, Dormant>,
    /// The disk may have lost all that it held of cohorts that it says nothing of.
    pub(crate) doubt_unknown: bool,
    pub(crate) lives: Lives,
    /// The map may give this node a part in more ranges than it has replicas of.
    pub(crate) has_work: bool,
}

/// What the disk held of a cohort that the catalogue hasn't named yet.
#[derive(Debug, Default)]
pub(crate) struct Dormant {
    /// Whether the manifest names it.
    pub(crate) is_known: bool,
    /// What trees it had here in this process.
    pub(crate) lineage: Lineage,
    /// The replica has left: the manifest that says so, while that is on its way.
    pub(crate) retiring: Option<ManifestId>,
    pub(crate) manifest: CohortManifest,
    /// What the log holds of it.
    pub(crate) replay: Replay,
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) tree: Option<Tree>,
    /// How much the log held before the first record that is not in the checkpoint.
    pub(crate) checkpoint_mark: u64,
}

impl Hosting {
    pub(crate) fn new(tablespace: Tablespace, dormant: BTreeMap<CohortId, Dormant>, doubt_unknown: bool) -> Self {
        Self { tablespace, dormant, doubt_unknown, lives: Lives::default(), has_work: false }
    }

    /// Whatever the catalogue says that is new, the map may give this node other replicas.
    pub(crate) fn on_apply(&mut self) {
        self.has_work = true;
    }
}

impl Node {
    /// Brings the replicas here in line with the map, if either has changed.
    pub(crate) fn run_hosting(&mut self, now: Now) -> bool {
        let had_work = std::mem::take(&mut self.hosting.has_work);
        if had_work && let Err(error) = self.host(now) {
            self.halt(error.to_string());
        }
        had_work
    }

    /// Ends the replicas that the map names no more, starts those that it gives this node, and lets go of those that
    /// have left.
    pub(crate) fn host(&mut self, now: Now) -> Result<(), StartError> {
        self.let_go();
        self.start_tables(now)?;
        // After that: one that was started only for what was split off it goes, if the split is lost to it.
        self.let_leavers_go();
        Ok(())
    }

    /// Starts a replica of every range that the catalogue gives this node a part in, unless it runs already.
    ///
    /// While the catalogue's own replica is in doubt, it may come to speak once more of tables that were dropped and
    /// forgotten: of what the disk holds nothing of, nothing is started until that has ended. (Where the disk may have
    /// lost all that it held of a cohort, it is started at once, and in doubt.) What was split off another range has
    /// its own rules ([`Node::may_begin`]).
    fn start_tables(&mut self, now: Now) -> Result<(), StartError> {
        let catalogue = self.catalogue();
        let is_in_doubt = self.replicas[&CohortId::CATALOGUE].cohort.doubtful() && !self.hosting.doubt_unknown;
        let may_start = |cohort| match self.hosting.dormant.get(&cohort) {
            Some(dormant) => dormant.retiring.is_none(),
            None => !is_in_doubt,
        };
        let mut parts = BTreeMap::new();
        for (name, record) in catalogue.tables() {
            for part in record.parts() {
                let (cohort, parent) = (part.cohort, part.parent);
                if self.is_ours(&part) && !self.replicas.contains_key(&cohort) && may_start(cohort) {
                    let genesis = Membership::of(part.genesis.to_vec());
                    let (table, is_split_off) = (name.to_owned(), parent.is_some());
                    let (range, retention, durability) = (part.range, record.retention, record.durability);
                    let kind = record.kind;
                    let part = Part { table, kind, range, retention, durability, genesis, is_split_off };
                    parts.insert(cohort, (part, parent));
                }
            }
        }
        for (cohort, _) in catalogue.units().filter(|(_, member)| *member == self.cluster.me) {
            if !self.replicas.contains_key(&cohort) && may_start(cohort) {
                let genesis = Membership::of(vec![self.cluster.me]);
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
        let mut dormant = self.hosting.dormant.remove(&id).unwrap_or_else(|| Dormant {
            manifest: CohortManifest { doubtful: self.hosting.doubt_unknown, ..CohortManifest::default() },
            checkpoint_mark: self.outgoing.appended_bytes,
            ..Dormant::default()
        });
        if !dormant.is_known {
            dormant.begin(genesis, self.cluster.me);
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
            let tree = || tree.unwrap_or_else(|| Tree::new(self.hosting.tablespace.site(id)));
            storage_of(kind, tree).map_err(unknown)
        };
        let state = match (snapshot, born) {
            (Some(snapshot), _) => snapshot.into_machine(storage()?),
            (None, Some(born)) => born.state,
            (None, None) => AnyMachine::new(kind, id, self.cluster.me.incarnation, storage()?).map_err(unknown)?,
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
        let config = cohort_config(&self.config, id, kind, self.cluster.me, origin, durability);
        let CohortManifest { promised, membership, doubtful, .. } = manifest;
        let start = Start { promised, checkpoint, membership, log, doubtful, forgetful, split_off };
        let cohort = Cohort::start(config, start, now, &mut self.outgoing.outbox);
        let replica = Replica {
            cohort,
            lineage,
            has_returned: manifest.is_retired,
            table,
            range,
            retention,
            proposed: BTreeMap::new(),
            latches: Default::default(),
            brake: Default::default(),
            on_disk,
            incoming: None,
            arrived: None,
            unsettled: Vec::new(),
            leader_seen: None,
            alone_since: None,
            housekeeping_at: Monotonic(0),
            last_change: state.last_timestamp(),
            moments: Default::default(),
            writes: 0,
            reads: 0,
            reads_elsewhere: Default::default(),
            published: None,
            state,
        };
        self.replicas.insert(id, replica);
        self.drain(id, now);
        Ok(())
    }
}

impl Dormant {
    /// Whether nobody else is a member of the cohort, as far as the disk says.
    pub(crate) fn is_alone(&self, me: Member) -> bool {
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
    pub(crate) fn of_no_table(kind: Kind) -> Self {
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
