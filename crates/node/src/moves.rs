//! Moves replicas: the catalog leader has each cohort carry out its plan from the map, and nodes remove replicas that
//! were moved away (guarantee 8). The two catalog entries are described in `catalog/src/catalog/moves.rs`.
//!
//! The cohort's own leader carries out a plan, one membership change at a time. New members join as learners, catch up,
//! and then become voters. Members absent from the plan are then removed, the leader last, after it has transferred
//! leadership. Each step is a log entry, and the resulting membership carries the plan's number. A stale plan therefore
//! has no effect, and a plan counts as complete only once the cohort's log says so.
//!
//! A node removes a replica once the plan that excludes it is complete. The replica's data is then deleted, so its
//! promise stays in the manifest with a mark: if the replica returns, it joins as a new member, in doubt. The node
//! keeps a replica if its log has a newer plan than the map, because the map found at a start may be older than the map
//! before the restart. It also keeps a replica on which the product of a split still depends (`splits.rs`).

use std::collections::BTreeMap;

use base::{CohortId, Duration, Member, Membership, MembershipChange, Now, SharedMembership};
use catalog::{CatalogCommand, Change, Move};
use state_machine::Failure;
use store::manifest::CohortManifest;

use crate::contract::{Lineage, ManifestId};
use crate::hosting::StoppedReplica;
use crate::message::Query;
use crate::node::Node;
use crate::registry::{Response, storage_found};
use crate::request::Outcome;
use crate::request_table::{Pending, ReplyTo, RequestState, Target};

/// How long a cohort may work on a plan before the request is repeated.
const PLAN_PATIENCE: Duration = Duration::from_millis(10_000);
/// Maximum number of concurrent membership changes. Each may transfer a state snapshot.
const MOVES_AT_ONCE: usize = 8;

/// The cohorts with an outstanding request to carry out a plan, and the plans' numbers.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    asked: BTreeMap<CohortId, u64>,
    /// The cohort asked last. Later cohorts go first, so that stuck moves do not starve the others.
    last: CohortId,
    /// Completed plans that are to be recorded in the map.
    done: Vec<(CohortId, u64)>,
    /// The map may have a new plan.
    pub(crate) has_work: bool,
}

impl Moves {
    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::MoveBegun | Change::MoveEnded | Change::NodesChanged);
    }
}

impl Node {
    /// Records completed plans in the map, and advances the others, if this node leads the catalog.
    pub(crate) fn run_moves(&mut self, now: Now) -> bool {
        let (done, had_work) = (std::mem::take(&mut self.moves.done), std::mem::take(&mut self.moves.has_work));
        for &(cohort, plan) in &done {
            self.propose(CohortId::CATALOG, CatalogCommand::EndMove { cohort, plan }.encode(), now);
        }
        if had_work {
            self.push_moves(now);
            self.push_roster(now);
        }
        had_work || !done.is_empty()
    }

    /// Sends requests to the cohorts with unfinished plans, if this node leads the catalog.
    fn push_moves(&mut self, now: Now) {
        let Some(catalog) = self.led_catalog() else { return };
        let (asked, last) = (&self.moves.asked, self.moves.last);
        let is_asked = |planned: &Move| asked.get(&planned.cohort) == Some(&planned.plan);
        let mut moves: Vec<Move> = catalog.moves().filter(|planned| !is_asked(planned)).collect();
        // A newer plan replaces the outstanding one of its cohort, and takes precedence.
        let is_replaced = |planned: &Move| asked.contains_key(&planned.cohort);
        moves.sort_unstable_by_key(|planned| (!is_replaced(planned), planned.cohort <= last, planned.cohort));
        for Move { cohort, plan, members } in moves {
            if self.moves.asked.len() >= MOVES_AT_ONCE && !self.moves.asked.contains_key(&cohort) {
                break;
            }
            self.moves.asked.insert(cohort, plan);
            self.moves.last = cohort;
            let deadline = now.monotonic + PLAN_PATIENCE;
            let query = Query::Plan(Membership::of(members).by_plan(plan));
            self.begin(ReplyTo::Move(cohort, plan), deadline, Target::Cohort(cohort), query, now);
        }
    }

    /// Handles a cohort's reply to the request to carry out a plan. If the plan is incomplete, housekeeping repeats it.
    pub(crate) fn plan_answered(&mut self, cohort: CohortId, plan: u64, outcome: &Outcome) {
        if self.moves.asked.get(&cohort) == Some(&plan) {
            self.moves.asked.remove(&cohort);
        }
        if outcome.is_ok() {
            self.moves.done.push((cohort, plan));
        }
    }

    /// Takes the next step of a plan at the cohort's leader, or reports that the plan is complete.
    pub(crate) fn carry_plan_on(&mut self, pending: Pending, cohort: CohortId, now: Now) {
        let (Query::Plan(plan), Some(replica)) = (&pending.query, self.replicas.get(&cohort)) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let held = SharedMembership::clone(replica.cohort.membership());
        if held.plan() > plan.plan() {
            return self.respond(pending, Err(Failure::Precondition("superseded by a newer plan".to_owned())), None);
        }
        if !replica.unsettled.is_empty() {
            // Until the split is settled, a majority holds its product only in this cohort's log, so no member may be
            // removed.
            return self.pending_requests.place(pending, RequestState::Waiting);
        }
        let step = next_step(&held, plan, self.cluster.me, replica.cohort.is_managed());
        let is_by_plan = held.plan() == plan.plan();
        match step {
            None if is_by_plan && replica.cohort.is_settled() => {
                return self.respond(pending, Ok(Response::PlanDone), None);
            }
            None if is_by_plan => {}
            step => self.take_step_of(cohort, step.unwrap_or(MembershipChange::Keep), plan.plan(), now),
        }
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// Takes a membership step if possible. A step that is blocked now is retried later.
    pub(crate) fn take_step_of(&mut self, cohort: CohortId, step: MembershipChange, plan: u64, now: Now) {
        let me = self.cluster.me;
        let mut changed = false;
        self.with_cohort(cohort, now, |cohort, out| {
            if cohort.is_ready_for(step, now).is_err() {
                return;
            }
            if step == MembershipChange::Remove(me) {
                if cohort.is_settled() {
                    cohort.release(now, out);
                }
            } else {
                changed = cohort.change_membership(step, plan, now, out).is_ok();
            }
        });
        self.counters.members_changed += u64::from(changed);
    }

    /// Removes the replicas that were moved away from this node.
    pub(crate) fn remove_moved_replicas(&mut self) {
        let elsewhere = self.catalog().parts().filter(|part| !part.is_on(self.cluster.me));
        let leavers: Vec<CohortId> = elsewhere
            .filter(|part| self.known_plan(part.cohort).is_some_and(|plan| plan <= part.plan))
            .filter(|part| !self.is_rested_on(part.cohort))
            .map(|part| part.cohort)
            .collect();
        leavers.into_iter().for_each(|cohort| self.retire(cohort));
    }

    /// The newest plan in the log of a local replica; `None` if nothing remains of that replica.
    fn known_plan(&self, id: CohortId) -> Option<u64> {
        if let Some(replica) = self.replicas.get(&id) {
            return Some(replica.cohort.membership().plan());
        }
        let stopped = self.hosting.stopped.get(&id).filter(|stopped| !stopped.manifest.is_retired)?;
        Some(stopped.replay.members().unwrap_or(&stopped.manifest.membership).plan())
    }

    /// Deletes all state of a replica except its promise.
    pub(crate) fn retire(&mut self, id: CohortId) {
        let lineage = self.replicas.get(&id).map(|replica| replica.lineage);
        self.end_replica(id, true);
        let mut stopped = expected!(self.hosting.stopped.remove(&id), "a removed replica left state on disk");
        if let Some(bulk) = stopped.bulk.take() {
            self.drops.leave(id, storage_found(bulk), true);
        }
        let promised = stopped.manifest.promised;
        let manifest = CohortManifest { promised, doubtful: true, is_retired: true, ..CohortManifest::default() };
        let retiring = Some(self.outgoing.outbox.change_manifest());
        let lineage = lineage.map_or(stopped.lineage, |lineage| Lineage(lineage.0 + 1));
        let checkpoint_mark = self.outgoing.appended_bytes;
        let left = StoppedReplica {
            is_known: true,
            manifest,
            lineage,
            retiring,
            checkpoint_mark,
            ..StoppedReplica::default()
        };
        self.hosting.stopped.insert(id, left);
        self.cluster.routes.remove(&id);
        self.hosting.generations.end(id);
        self.counters.replicas_left += 1;
    }

    /// A manifest is forced: it records the removed replicas, so they may return.
    pub(crate) fn leavers_forced(&mut self, through: ManifestId) {
        let retiring = self.hosting.stopped.values_mut().map(|stopped| &mut stopped.retiring);
        let forced = retiring.filter_map(|retiring| retiring.take_if(|manifest| *manifest <= through)).count();
        if forced > 0 {
            self.hosting.has_work = true;
        }
    }
}

/// The next step from a membership to the planned one. Under primary/backup replication all planned members are candidates
/// first, so that none waits for an absent one; the primary adds each as soon as it has caught up.
fn next_step(held: &Membership, plan: &Membership, me: Member, is_managed: bool) -> Option<MembershipChange> {
    let is_planned = |member: &Member| plan.on(member.node) == Some(*member);
    // A lost disk is removed before its replacement is added.
    let replaced = held.everyone().find(|member| !is_planned(member) && plan.on(member.node).is_some());
    if let Some(member) = replaced {
        return Some(MembershipChange::Remove(member));
    }
    let missing = plan.voters().iter().find(|voter| held.on(voter.node).is_none());
    if let Some(member) = missing.filter(|_| is_managed) {
        return Some(MembershipChange::AddLearner(*member));
    }
    for voter in plan.voters() {
        if held.is_learner(*voter) {
            return Some(MembershipChange::Promote(*voter));
        }
        if !held.is_voter(*voter) {
            return Some(MembershipChange::AddLearner(*voter));
        }
    }
    if let Some(learner) = plan.learners().iter().find(|learner| held.on(learner.node).is_none()) {
        return Some(MembershipChange::AddLearner(*learner));
    }
    let mut leavers: Vec<Member> = held.everyone().filter(|member| !is_planned(member)).collect();
    // The leader is removed last.
    leavers.sort_unstable_by_key(|member| (*member == me, *member));
    leavers.first().map(|member| MembershipChange::Remove(*member))
}

#[cfg(test)]
mod tests;
