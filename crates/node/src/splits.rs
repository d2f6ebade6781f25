//! Splitting a range: whoever leads the catalogue has the range's cohort take the split into its own log, and each
//! replica of it begins one of the new cohort when it applies that entry (guarantee 19;
//! `catalog/src/catalog/splits.rs` has the two steps in the map, `tablets/src/tablet/split.rs` what the new one
//! begins with).
//!
//! The new replica's state rests on the old one's, until a checkpoint of its own is named: a restart replays the old
//! log through the split and comes to the same again. So
//! * the log holds, before any record of the new cohort, the split and that it is committed;
//! * no checkpoint of the old cohort passes the split, and no whole state takes its place, before the new one's is named;
//! * nor does a checkpoint pass it before the new cohort has committed an entry of its own: until then a majority has what
//!   was split off in the old cohort's log alone, and a laggard must be given it by that.

use std::collections::{BTreeSet, VecDeque};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, KeyRange, Member, Membership, Now};
use catalog::{Catalog, CatalogCommand, Change, SplitUnderWay};
use machine::progress::SPLIT_OFF;
use replication::SplitOff;

use crate::contract::ManifestId;
use crate::hosting::Dormant;
use crate::hosting::{Born, Part};
use crate::message::Query;
use crate::node::Node;
use crate::pending::{Origin, Target};
use crate::recovery::StartError;
use crate::registry::{AnyMachine, split_request};
use crate::replica::Replica;
use crate::request::Outcome;

/// How long a cohort has to take a split into its log before it is asked again.
const SPLIT_PATIENCE: Duration = Duration::from_millis(5_000);

/// The splits that this node drives or waits for, and the replicas that they begin here.
#[derive(Debug, Default)]
pub(crate) struct Splits {
    /// A split may be brought one step on.
    pub(crate) has_work: bool,
    /// New cohorts whose parents are being asked to take the split into their logs.
    asked: BTreeSet<CohortId>,
    /// New cohorts whose parents have the splits in their logs.
    taken: BTreeSet<CohortId>,
    /// Replicas that are to begin.
    births: VecDeque<Birth>,
    /// Cohorts that others were split off, while those rest on them.
    parents: BTreeSet<CohortId>,
    /// The manifest that says of a replica that it is in doubt, while it is on its way.
    doubted: Option<ManifestId>,
}

/// A replica that was split off another and is to begin.
#[derive(Debug)]
struct Birth {
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
    /// Brings every split that has begun one step on, if we lead the catalogue.
    pub(crate) fn run_splits(&mut self, now: Now) -> bool {
        let (taken, had_work) = (std::mem::take(&mut self.splits.taken), std::mem::take(&mut self.splits.has_work));
        if !had_work && taken.is_empty() {
            return false;
        }
        let splits: Vec<SplitUnderWay> = self.led_catalogue().into_iter().flat_map(Catalog::splits).collect();
        for SplitUnderWay { name, kind, parent, key, child, members } in splits {
            if taken.contains(&child) {
                self.propose(CohortId::CATALOGUE, CatalogCommand::EndSplit { name, child }.encode(), now);
            } else if had_work && self.splits.asked.insert(child) {
                let deadline = now.monotonic + SPLIT_PATIENCE;
                let Some(ask) = split_request(kind, key, child, Membership::of(members)) else {
                    debug_assert!(false, "the catalog begins no split of a machine that has none");
                    continue;
                };
                self.begin(Origin::Split(child), deadline, Target::Cohort(parent), Query::Machine(ask), now);
            }
        }
        true
    }

    /// What a cohort said that was asked to take the split into its log. If it failed, housekeeping asks again.
    pub(crate) fn split_answered(&mut self, child: CohortId, outcome: &Outcome) {
        self.splits.asked.remove(&child);
        if outcome.is_ok() {
            self.splits.taken.insert(child);
        }
    }

    /// A part of a tablet's range was split off with the entry applied last: what it begins with is taken now, before
    /// another entry is applied.
    pub(crate) fn split_off(&mut self, parent: CohortId, child: CohortId, members: &Membership, range: KeyRange) {
        let has_left = self.hosting.dormant.get(&child).is_some_and(|dormant| dormant.manifest.is_retired);
        let has_part = members.is_voter(self.cluster.me) && !has_left;
        let there = self.replicas.get(&child);
        let (is_there, has_nothing) = (there.is_some(), there.is_some_and(Replica::has_nothing));
        let replica = expected!(self.replicas.get_mut(&parent), "a replica has applied the split");
        // Where the old range had left before, the new one was begun without it.
        if has_part && has_nothing && !replica.has_returned {
            return self.halt(format!("cohort {child} was begun with nothing before cohort {parent} split it off"));
        }
        replica.unsettled.push(child);
        replica.on_disk.may_compact |= planted(Bug::CompactionAheadOfSplit);
        self.splits.parents.insert(parent);
        // One that a checkpoint of its own was there of runs already. Who was no member then, or has left since, has no
        // part.
        if has_part && !is_there {
            let Some(state) = replica.state.split_off(child, range.clone(), &self.hosting.tablespace) else {
                return self.halt(format!("cohort {parent} has a split in its log, and its state machine has none"));
            };
            let genesis = Membership::of(members.voters().to_vec());
            self.splits.births.push_back(Birth { parent, child, genesis, range, state });
        }
    }

    /// Begins the replicas that were split off.
    pub(crate) fn begin_split_off(&mut self, now: Now) {
        while let Some(birth) = self.splits.births.pop_front() {
            if let Err(error) = self.give_birth(birth, now) {
                self.halt(error.to_string());
            }
            // By the map, whoever was late to apply the split may have no part in it any more.
            self.hosting.has_work = true;
        }
    }

    fn give_birth(&mut self, birth: Birth, now: Now) -> Result<(), StartError> {
        let Birth { parent: id, child, genesis, range, state } = birth;
        let parent = expected!(self.replicas.get_mut(&id), "a replica has applied the split", Ok(()));
        // No record of the new cohort may be found after a restart, and this not.
        parent.cohort.note_committed(&mut self.outgoing.outbox);
        // Whoever leads the one stands for the other, after it has told the rest that they have it too.
        parent.cohort.heartbeat(now, &mut self.outgoing.outbox);
        let patience = if parent.cohort.leads() { Duration::ZERO } else { self.config.timing.lease };
        let voteless_until = parent.cohort.voteless_until();
        let at = SplitOff { voteless_until, stand_at: voteless_until.max(now.monotonic + patience) };
        let (table, kind) = (parent.table.clone(), parent.state.kind());
        let (retention, durability) = (parent.retention, parent.cohort.config().durability);
        self.drain(id, now);
        let part = Part { table, kind, range, retention, durability, genesis, is_split_off: true };
        self.start_replica(child, part, Some(Born { state, at }), now)?;
        self.counters.splits += 1;
        if let Some(replica) = self.replicas.get_mut(&child) {
            replica.on_disk.is_wanted = !planted(Bug::SplitUnnamed);
        }
        Ok(())
    }

    /// Lets checkpoints and whole states that waited for what was split off go on, where nothing rests on the old any
    /// more.
    pub(crate) fn settle_splits(&mut self, now: Now) {
        for id in self.splits.parents.iter().copied().collect::<Vec<_>>() {
            self.install(id, now);
            let before = self.replicas.get(&id).map_or(&[][..], |replica| &replica.unsettled);
            let unsettled: Vec<CohortId> = before.iter().copied().filter(|child| !self.is_settled(*child)).collect();
            if unsettled.is_empty() {
                self.splits.parents.remove(&id);
                self.hosting.has_work = true;
            }
            if unsettled.len() < before.len()
                && let Some(replica) = self.replicas.get_mut(&id)
            {
                replica.unsettled = unsettled;
            }
        }
    }

    /// Whether something that was split off a replica here has nothing but that, so that it must not go.
    pub(crate) fn is_rested_on(&self, id: CohortId) -> bool {
        if let Some(replica) = self.replicas.get(&id) {
            return !replica.unsettled.is_empty();
        }
        // One that has left holds nothing that could be rested on, and to start it would only keep what was split off
        // it waiting: whatever that has lost of its own, it isn't found here.
        if self.hosting.dormant.get(&id).is_some_and(|dormant| dormant.manifest.is_retired) {
            return false;
        }
        let rests = |child: CohortId| {
            let dormant = self.hosting.dormant.get(&child);
            dormant.is_some_and(|dormant| dormant.manifest.checkpoint.is_none() && !dormant.replay.is_empty())
        };
        let mut parts = self.catalogue().parts();
        parts.any(|part| part.parent == Some(id) && part.is_on(self.cluster.me) && rests(part.cohort))
    }

    /// Whether the map gives this node a replica of it, to stay, or to go when nothing rests on it any more.
    pub(crate) fn is_ours(&self, part: &catalog::Part<'_>) -> bool {
        part.is_on(self.cluster.me)
            || (self.hosting.dormant.contains_key(&part.cohort) && self.is_rested_on(part.cohort))
    }

    /// Whether a replica that doesn't run is to be started yet.
    fn is_to_come(&self, id: CohortId) -> bool {
        self.catalogue().part_of(id).is_some_and(|part| self.is_ours(&part))
    }

    /// Whether what was split off has a checkpoint of its own, and a majority has it too, in its own log or checkpoint.
    /// One that doesn't run here any more belongs to a table that is gone.
    fn is_settled(&self, child: CohortId) -> bool {
        self.replicas
            .get(&child)
            .is_none_or(|replica| replica.on_disk.lsn().is_some() && replica.cohort.applied() > SPLIT_OFF.sequence)
    }

    /// Whether the manifest doesn't name yet what was split off a replica here.
    pub(crate) fn has_unnamed_children(&self, id: CohortId) -> bool {
        let is_unnamed =
            |child: &CohortId| self.replicas.get(child).is_some_and(|replica| replica.on_disk.lsn().is_none());
        let children = self.replicas.get(&id).map_or(&[][..], |replica| &replica.unsettled);
        children.iter().any(is_unnamed) && !planted(Bug::SplitUnnamed)
    }

    /// Whether a replica of a range that was split off may be started from what the disk holds of it. Without a
    /// checkpoint of its own it begins with the split, when the old range's replica applies that; unless that one has
    /// been given a state of after the split, or has left, and never will. Then it begins with nothing and is sent all,
    /// as who joins later does. It may have forgotten what it had acknowledged, if the log holds anything of it: then
    /// it is in doubt (guarantee 7), from before its log is cut.
    ///
    /// An old range's replica that isn't there has not left for that: it may be waiting for a split itself, when the
    /// map is ahead of the logs.
    pub(crate) fn may_begin(&mut self, id: CohortId, parent: CohortId, genesis: &[Member]) -> bool {
        let manifest = self.hosting.dormant.get(&id).map(|dormant| &dormant.manifest);
        let joins = !genesis.contains(&self.cluster.me) || manifest.is_some_and(|manifest| manifest.is_retired);
        if joins || manifest.is_some_and(|manifest| manifest.checkpoint.is_some()) {
            return true;
        }
        let begun = |parent: &Replica| parent.state.children().contains(&id);
        let is_passed = match self.replicas.get(&parent) {
            Some(parent) => begun(parent),
            None => !self.is_to_come(parent) || planted(Bug::BegunBeforeParent),
        };
        let is_about_to = self.splits.births.iter().any(|birth| birth.child == id);
        if !is_passed || is_about_to || self.splits.doubted.is_some() {
            return false;
        }
        let forgets = |dormant: &&mut Dormant| !dormant.replay.is_empty() && !dormant.manifest.doubtful;
        if let Some(dormant) = self.hosting.dormant.get_mut(&id).filter(forgets) {
            dormant.manifest.doubtful = true;
            self.splits.doubted = Some(self.outgoing.outbox.change_manifest());
            return false;
        }
        true
    }

    /// A manifest is forced: a replica whose doubt it holds may be started.
    pub(crate) fn doubts_forced(&mut self, through: ManifestId) {
        if self.splits.doubted.take_if(|manifest| *manifest <= through).is_some() {
            self.hosting.has_work = true;
        }
    }
}

#[cfg(test)]
mod tests;
