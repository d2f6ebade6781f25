//! Where replicas go: whoever leads the catalogue has each cohort carry out the plan that the map holds for it, and
//! nodes let go of replicas that have left them (guarantee 8; `catalog/src/catalog/moves.rs` has the two entries
//! about it).
//!
//! A plan is carried out by the cohort's own leader, one step of the membership at a time: newcomers come as learners
//! and are brought up to date, then vote; then those go who are to have no replica, the leader itself last, after it
//! has handed over. Each step is an entry, and the membership that it makes names the plan: so an old plan that is
//! asked for late changes nothing, and a plan counts as carried out only once the cohort's log says so.
//!
//! A node lets go of a replica once the plan is carried out that leaves it without one. What it held it has forgotten
//! then, so its promise stays in the manifest, marked: should the replica come back, it comes as a stranger, in doubt.
//! It does not let go of one whose log knows of a newer plan than the map: the map that a start finds may be older than
//! what it had before; nor of one that what was split off it rests on here (`splits.rs`).

use std::collections::BTreeMap;

use base::{CohortId, Duration, Member, Membership, MembershipChange, Now, SharedMembership};
use catalog::{CatalogCommand, Change, Move};
use machine::Failure;
use store::manifest::CohortManifest;

use crate::contract::{Lineage, ManifestId};
use crate::hosting::Dormant;
use crate::message::Query;
use crate::node::Node;
use crate::pending::{Origin, PendingId, Place, Target};
use crate::registry::Response;
use crate::request::Outcome;

/// How long a cohort is asked to carry out a plan before it is asked anew.
const PLAN_PATIENCE: Duration = Duration::from_millis(10_000);
/// Cohorts whose members change at once, at most: each may have a whole state on its way.
const MOVES_AT_ONCE: usize = 8;

/// The cohorts that are being asked to carry out a plan, and which.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    asked: BTreeMap<CohortId, u64>,
    /// The one that was asked last: those after it come next, so that moves which hang keep no other waiting for ever.
    last: CohortId,
    /// Plans that were carried out, and that the map is to say so of.
    done: Vec<(CohortId, u64)>,
    /// A plan may have been made: a cohort is to be asked.
    pub(crate) has_work: bool,
}

impl Moves {
    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::MoveBegun | Change::MoveEnded | Change::NodesChanged);
    }
}

impl Node {
    /// Has the map say which plans are carried out, and brings the others one step on, if we lead the catalogue.
    pub(crate) fn run_moves(&mut self, now: Now) -> bool {
        let (done, had_work) = (std::mem::take(&mut self.moves.done), std::mem::take(&mut self.moves.has_work));
        for &(cohort, plan) in &done {
            self.propose(CohortId::CATALOGUE, CatalogCommand::EndMove { cohort, plan }.encode(), now);
        }
        if had_work {
            self.push_moves(now);
            self.push_roster(now);
        }
        had_work || !done.is_empty()
    }

    /// Asks the cohorts whose plans are not known to be carried out, if we lead the catalogue.
    fn push_moves(&mut self, now: Now) {
        let Some(catalogue) = self.led_catalogue() else { return };
        let (asked, last) = (&self.moves.asked, self.moves.last);
        let is_asked = |planned: &Move| asked.get(&planned.cohort) == Some(&planned.plan);
        let mut moves: Vec<Move> = catalogue.moves().filter(|planned| !is_asked(planned)).collect();
        // A newer plan takes the place of the one that was asked for, and waits for nobody.
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
            self.begin(Origin::Move(cohort, plan), deadline, Target::Cohort(cohort), query, now);
        }
    }

    /// What a cohort said that was asked to carry out a plan. If it has not, housekeeping asks again.
    pub(crate) fn plan_answered(&mut self, cohort: CohortId, plan: u64, outcome: &Outcome) {
        if self.moves.asked.get(&cohort) == Some(&plan) {
            self.moves.asked.remove(&cohort);
        }
        if outcome.is_ok() {
            self.moves.done.push((cohort, plan));
        }
    }

    /// We lead the cohort: takes the next step of a plan, or says that none is left.
    pub(crate) fn carry_plan_on(&mut self, id: PendingId, cohort: CohortId, plan: &Membership, now: Now) {
        let replica = expected!(self.replicas.get(&cohort), "it leads the cohort");
        let held = SharedMembership::clone(replica.cohort.membership());
        if held.plan() > plan.plan() {
            return self.complete(id, Err(Failure::Invalid("a newer plan has been begun".to_owned())), None);
        }
        if !replica.unsettled.is_empty() {
            // What was split off has a majority in this cohort's log alone: nobody goes who holds that.
            return self.pendings.place(id, Place::Waiting);
        }
        let step = next_step(&held, plan, self.cluster.me);
        let is_by_plan = held.plan() == plan.plan();
        match step {
            None if is_by_plan && replica.cohort.is_settled() => {
                return self.complete(id, Ok(Response::PlanDone), None);
            }
            None if is_by_plan => {}
            step => self.take_step_of(cohort, step.unwrap_or(MembershipChange::Keep), plan.plan(), now),
        }
        self.pendings.place(id, Place::Waiting);
    }

    /// Takes a step, if it is time: what is in the way now may be out of it when it is tried again.
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

    /// Lets go of the replicas that have left this node.
    pub(crate) fn let_leavers_go(&mut self) {
        let elsewhere = self.catalogue().parts().filter(|part| !part.is_on(self.cluster.me));
        let leavers: Vec<CohortId> = elsewhere
            .filter(|part| self.known_plan(part.cohort).is_some_and(|plan| plan <= part.plan))
            .filter(|part| !self.is_rested_on(part.cohort))
            .map(|part| part.cohort)
            .collect();
        leavers.into_iter().for_each(|cohort| self.retire(cohort));
    }

    /// The newest plan that the log of a replica of ours knows of, unless nothing is left of that replica.
    fn known_plan(&self, id: CohortId) -> Option<u64> {
        if let Some(replica) = self.replicas.get(&id) {
            return Some(replica.cohort.membership().plan());
        }
        let dormant = self.hosting.dormant.get(&id).filter(|dormant| !dormant.manifest.is_retired)?;
        Some(dormant.replay.members().unwrap_or(&dormant.manifest.membership).plan())
    }

    /// Forgets all that a replica held but its promise.
    fn retire(&mut self, id: CohortId) {
        let lineage = self.replicas.get(&id).map(|replica| replica.lineage);
        self.end_replica(id, true);
        let mut dormant = expected!(self.hosting.dormant.remove(&id), "something is here that retires");
        if let Some(tree) = dormant.tree.take() {
            self.drops.leave(id, Box::new(tree), true);
        }
        let promised = dormant.manifest.promised;
        let manifest = CohortManifest { promised, doubtful: true, is_retired: true, ..CohortManifest::default() };
        let retiring = Some(self.outgoing.outbox.change_manifest());
        let lineage = lineage.map_or(dormant.lineage, |lineage| Lineage(lineage.0 + 1));
        let checkpoint_mark = self.outgoing.appended_bytes;
        let left = Dormant { is_known: true, manifest, lineage, retiring, checkpoint_mark, ..Dormant::default() };
        self.hosting.dormant.insert(id, left);
        self.cluster.routes.remove(&id);
        self.hosting.lives.end(id);
        self.counters.replicas_left += 1;
    }

    /// A manifest is forced: what it says of replicas that have left is safe, and they may come back.
    pub(crate) fn leavers_forced(&mut self, through: ManifestId) {
        let retiring = self.hosting.dormant.values_mut().map(|dormant| &mut dormant.retiring);
        let forced = retiring.filter_map(|retiring| retiring.take_if(|manifest| *manifest <= through)).count();
        if forced > 0 {
            self.hosting.has_work = true;
        }
    }
}

/// What is to be done next on the way from a membership to the one that is planned.
fn next_step(held: &Membership, plan: &Membership, me: Member) -> Option<MembershipChange> {
    let is_planned = |member: &Member| plan.on(member.node) == Some(*member);
    // A lost disk goes before the one that takes its place comes.
    let replaced = held.everyone().find(|member| !is_planned(member) && plan.on(member.node).is_some());
    if let Some(member) = replaced {
        return Some(MembershipChange::Remove(member));
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
    // Whoever leads goes last.
    leavers.sort_unstable_by_key(|member| (*member == me, *member));
    leavers.first().map(|member| MembershipChange::Remove(*member))
}

#[cfg(test)]
mod tests;
