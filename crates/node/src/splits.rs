//! Splits ranges. The catalog leader has the range's cohort append the split to its own log, and each replica creates
//! one of the new cohort when it applies that entry (guarantee 19). The two map entries are described in
//! `catalog/src/catalog/splits.rs`, the initial state of the new range in `tablets/src/tablet/split.rs`.
//!
//! The new replica's state depends on the parent's until the manifest names a checkpoint of its own: a restart replays
//! the parent's log through the split and reaches the same state. Therefore:
//! * The log contains the split entry and its commit before any record of the new cohort.
//! * Until the manifest names the new replica's checkpoint, no checkpoint of the parent passes the split, and no
//!   snapshot replaces the parent's state.
//! * No checkpoint of the parent passes the split before the new cohort has committed an entry of its own. Until then a
//!   majority holds the split-off state only in the parent's log, which a lagging replica must receive.

use std::collections::{BTreeSet, VecDeque};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, KeyRange, Member, Membership, Now};
use catalog::{Catalog, CatalogCommand, Change, SplitUnderWay};
use replication::SplitOff;
use state_machine::progress::SPLIT_OFF;

use crate::contract::ManifestId;
use crate::hosting::StoppedReplica;
use crate::hosting::{Part, SplitOffState};
use crate::message::Query;
use crate::node::Node;
use crate::recovery::StartError;
use crate::registry::{AnyMachine, split_request};
use crate::replica::Replica;
use crate::request::Outcome;
use crate::request_table::{ReplyTo, Target};

/// How long a cohort may take to append a split to its log before the request is repeated.
const SPLIT_PATIENCE: Duration = Duration::from_millis(5_000);

/// The splits that this node coordinates or waits for, and the replicas that they create here.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    /// A split may be able to make progress.
    pub(crate) has_work: bool,
    /// New cohorts with an outstanding request to their parents to append the split.
    asked: BTreeSet<CohortId>,
    /// New cohorts with a split that is in the parent's log.
    taken: BTreeSet<CohortId>,
    /// Replicas to be created.
    to_start: VecDeque<SplitOffReplica>,
    /// Parents with children that still depend on them.
    parents: BTreeSet<CohortId>,
    /// The manifest that records a replica as in doubt, until it is forced.
    doubted: Option<ManifestId>,
}

/// A replica to be created by a split.
#[derive(Debug)]
struct SplitOffReplica {
    parent: CohortId,
    child: CohortId,
    genesis: Membership,
    range: KeyRange,
    state: AnyMachine,
}

impl Splits {
    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::SplitBegun { .. });
    }
}

impl Node {
    /// Advances every split in progress, if this node leads the catalog.
    pub(crate) fn run_splits(&mut self, now: Now) -> bool {
        let (taken, had_work) = (std::mem::take(&mut self.splits.taken), std::mem::take(&mut self.splits.has_work));
        if !had_work && taken.is_empty() {
            return false;
        }
        let splits: Vec<SplitUnderWay> = self.led_catalog().into_iter().flat_map(Catalog::splits).collect();
        for SplitUnderWay { name, kind, parent, key, child, members } in splits {
            if taken.contains(&child) {
                self.propose(CohortId::CATALOG, CatalogCommand::EndSplit { name, child }.encode(), now);
            } else if had_work && self.splits.asked.insert(child) {
                let deadline = now.monotonic + SPLIT_PATIENCE;
                let Some(ask) = split_request(kind, key, child, Membership::of(members)) else {
                    debug_assert!(false, "the catalog splits only machines that support it");
                    continue;
                };
                self.begin(ReplyTo::Split(child), deadline, Target::Cohort(parent), Query::Machine(ask), now);
            }
        }
        true
    }

    /// Handles a cohort's reply to the request to append a split. After a failure, housekeeping repeats the request.
    pub(crate) fn split_answered(&mut self, child: CohortId, outcome: &Outcome) {
        self.splits.asked.remove(&child);
        if outcome.is_ok() {
            self.splits.taken.insert(child);
        }
    }

    /// The entry applied last split off a part of a tablet's range. The initial state of the new replica is captured
    /// now, before another entry is applied.
    pub(crate) fn split_off(&mut self, parent: CohortId, child: CohortId, members: &Membership, range: KeyRange) {
        let has_left = self.hosting.stopped.get(&child).is_some_and(|stopped| stopped.manifest.is_retired);
        let has_part = members.is_voter(self.cluster.me) && !has_left;
        let there = self.replicas.get(&child);
        let (is_there, has_nothing) = (there.is_some(), there.is_some_and(Replica::has_nothing));
        let replica = expected!(self.replicas.get_mut(&parent), "only a local replica applies the split");
        // If the parent was removed from this node before, the new replica was started without it.
        if has_part && has_nothing && !replica.has_returned {
            return self.halt(format!("cohort {child} was started empty before cohort {parent} split it off"));
        }
        replica.unsettled.push(child);
        replica.on_disk.may_compact |= planted(Bug::CompactionAheadOfSplit);
        self.splits.parents.insert(parent);
        // A replica with its own checkpoint already runs. A node that was not a member then, or was removed since, gets
        // no replica.
        if has_part && !is_there {
            let Some(state) = replica.state.split_off(child, range.clone(), &self.hosting.tablespace) else {
                return self
                    .halt(format!("the log of cohort {parent} has a split that its state machine does not support"));
            };
            let genesis = Membership::of(members.voters().to_vec());
            self.splits.to_start.push_back(SplitOffReplica { parent, child, genesis, range, state });
        }
    }

    /// Creates the replicas that were split off.
    pub(crate) fn begin_split_off(&mut self, now: Now) {
        while let Some(replica) = self.splits.to_start.pop_front() {
            if let Err(error) = self.start_split_off(replica, now) {
                self.halt(error.to_string());
            }
            // The map may no longer assign the new range to a replica that applied the split late.
            self.hosting.has_work = true;
        }
    }

    fn start_split_off(&mut self, replica: SplitOffReplica, now: Now) -> Result<(), StartError> {
        let SplitOffReplica { parent: id, child, genesis, range, state } = replica;
        let parent = expected!(self.replicas.get_mut(&id), "only a local replica applies the split", Ok(()));
        // A restart must not find a record of the new cohort without the commit of the split.
        parent.cohort.note_committed(&mut self.outgoing.outbox);
        // The parent's leader also campaigns for the new cohort, after it has informed the followers of the commit.
        parent.cohort.heartbeat(now, &mut self.outgoing.outbox);
        let patience = if parent.cohort.leads() { Duration::ZERO } else { self.config.timing.lease };
        let voteless_until = parent.cohort.voteless_until();
        let at = SplitOff { voteless_until, stand_at: voteless_until.max(now.monotonic + patience) };
        let (table, options) = (parent.table.clone(), parent.options);
        self.drain(id, now);
        let part = Part { table, options, range, genesis, is_split_off: true };
        self.start_replica(child, part, Some(SplitOffState { state, at }), now)?;
        self.counters.splits += 1;
        if let Some(replica) = self.replicas.get_mut(&child) {
            replica.on_disk.is_wanted = !planted(Bug::SplitUnnamed);
        }
        Ok(())
    }

    /// Resumes checkpoints and snapshot installations of parents without dependent children.
    pub(crate) fn settle_splits(&mut self, now: Now) {
        for id in self.splits.parents.iter().copied().collect::<Vec<_>>() {
            self.install(id, now);
            let before = self.replicas.get(&id).map_or(&[][..], |replica| &replica.unsettled);
            let unsettled: Vec<CohortId> = before.iter().copied().filter(|child| !self.is_settled(*child)).collect();
            if unsettled.is_empty() {
                self.splits.parents.remove(&id);
                self.hosting.has_work = true;
                self.configurations.has_work = true;
            }
            if unsettled.len() < before.len()
                && let Some(replica) = self.replicas.get_mut(&id)
            {
                replica.unsettled = unsettled;
            }
        }
    }

    /// Whether a child depends on this replica's state, so that the replica must not be removed.
    pub(crate) fn is_rested_on(&self, id: CohortId) -> bool {
        if let Some(replica) = self.replicas.get(&id) {
            return !replica.unsettled.is_empty();
        }
        // A removed replica holds no state for a child to depend on. Starting it would only keep the child waiting, and
        // would not recover the child's lost state.
        if self.hosting.stopped.get(&id).is_some_and(|stopped| stopped.manifest.is_retired) {
            return false;
        }
        let rests = |child: CohortId| {
            let stopped = self.hosting.stopped.get(&child);
            stopped.is_some_and(|stopped| stopped.manifest.checkpoint.is_none() && !stopped.replay.is_empty())
        };
        let mut parts = self.catalog().parts();
        parts.any(|part| part.parent == Some(id) && part.is_on(self.cluster.me) && rests(part.cohort))
    }

    /// Whether the map assigns a replica to this node, or the replica must stay because a child depends on it.
    pub(crate) fn is_ours(&self, part: &catalog::Part<'_>) -> bool {
        part.is_on(self.cluster.me)
            || (self.hosting.stopped.contains_key(&part.cohort) && self.is_rested_on(part.cohort))
    }

    /// Whether a replica that does not run is still to be started.
    fn is_to_come(&self, id: CohortId) -> bool {
        self.catalog().part_of(id).is_some_and(|part| self.is_ours(&part))
    }

    /// Whether the child has its own checkpoint, and a majority has its state in its own log or checkpoint. A child
    /// that no longer runs here belongs to a dropped table.
    fn is_settled(&self, child: CohortId) -> bool {
        self.replicas
            .get(&child)
            .is_none_or(|replica| replica.on_disk.lsn().is_some() && replica.cohort.applied() > SPLIT_OFF.sequence)
    }

    /// Whether a child of a local replica is not named by the manifest yet.
    pub(crate) fn has_unnamed_children(&self, id: CohortId) -> bool {
        let is_unnamed =
            |child: &CohortId| self.replicas.get(child).is_some_and(|replica| replica.on_disk.lsn().is_none());
        let children = self.replicas.get(&id).map_or(&[][..], |replica| &replica.unsettled);
        children.iter().any(is_unnamed) && !planted(Bug::SplitUnnamed)
    }

    /// Whether a replica of a split-off range may start from its state on disk.
    ///
    /// Without its own checkpoint it is created when the parent's replica applies the split. If the parent has
    /// installed a snapshot past the split, or was removed, that will never happen. The replica then starts empty and
    /// receives a snapshot, like a new member. If the log holds any of its records, it may have lost acknowledged
    /// entries. It is then put in doubt (guarantee 7) before its log is truncated.
    ///
    /// A missing parent replica does not imply that it was removed: it may itself wait for a split, while the map is
    /// ahead of the logs.
    pub(crate) fn may_begin(&mut self, id: CohortId, parent: CohortId, genesis: &[Member]) -> bool {
        let manifest = self.hosting.stopped.get(&id).map(|stopped| &stopped.manifest);
        let joins = !genesis.contains(&self.cluster.me) || manifest.is_some_and(|manifest| manifest.is_retired);
        if joins || manifest.is_some_and(|manifest| manifest.checkpoint.is_some()) {
            return true;
        }
        let begun = |parent: &Replica| parent.state.children().contains(&id);
        let is_passed = match self.replicas.get(&parent) {
            Some(parent) => begun(parent),
            None => !self.is_to_come(parent) || planted(Bug::BegunBeforeParent),
        };
        let is_about_to = self.splits.to_start.iter().any(|replica| replica.child == id);
        if !is_passed || is_about_to || self.splits.doubted.is_some() {
            return false;
        }
        let forgets = |stopped: &&mut StoppedReplica| !stopped.replay.is_empty() && !stopped.manifest.doubtful;
        if let Some(stopped) = self.hosting.stopped.get_mut(&id).filter(forgets) {
            stopped.manifest.doubtful = true;
            self.splits.doubted = Some(self.outgoing.outbox.change_manifest());
            return false;
        }
        true
    }

    /// A manifest is forced: a replica that it records as in doubt may start.
    pub(crate) fn doubts_forced(&mut self, through: ManifestId) {
        if self.splits.doubted.take_if(|manifest| *manifest <= through).is_some() {
            self.hosting.has_work = true;
        }
    }
}

#[cfg(test)]
mod tests;
