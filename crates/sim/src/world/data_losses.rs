//! Losses of main-memory logs (guarantee 11). Nothing may be lost unless a majority's processes have ended without a
//! clean stop, and every loss must be declared. The history of clients before the loss must be linearizable regardless;
//! after it, all replicas must agree.

use std::collections::BTreeSet;

use base::{CohortId, Durability, Epoch, Member, NodeId};

use super::World;
use crate::history::{Operation, What};

/// The losses of a run.
#[derive(Default)]
pub(crate) struct Losses {
    /// Cohorts and epochs that declared a loss.
    seen: BTreeSet<(CohortId, Epoch)>,
    /// The logical time at which the first loss began.
    pub(super) first: Option<u64>,
    /// Nodes with a process that ended other than by a clean stop.
    pub(super) ended: BTreeSet<NodeId>,
}

impl Losses {
    /// Whether a cohort may have lost data.
    pub(super) fn is_of(&self, cohort: CohortId) -> bool {
        self.seen.iter().any(|(of, _)| *of == cohort)
    }
}

impl World {
    /// Whether any data may be lost by now.
    pub(super) fn is_lossy(&self) -> bool {
        self.losses.first.is_some()
    }

    /// Records that a process stopped on request. If its disk was full or stuck it left no clean-stop mark, and reports
    /// that by its absence.
    pub(super) fn note_stop(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let marked = &process.store.manifest().cohorts;
        let is_left = |cohort: &CohortId| marked.get(cohort).is_some_and(|cohort| cohort.whole);
        let mut in_memory = process.node.replicas().filter(|(_, replica, _)| !replica.is_in_doubt());
        let has_marks = in_memory
            .all(|(cohort, replica, _)| replica.config().regime.durability() == Durability::Forced || is_left(&cohort));
        drop(in_memory);
        let has_mark = has_marks && process.manifests.is_empty();
        self.count(if has_mark { "stops with clean-stop marks" } else { "stops without clean-stop marks" });
        if !has_mark {
            self.losses.ended.insert(id);
        }
    }

    /// Checks whether a node leads after a loss, and whether that loss is permitted.
    pub(super) fn check_losses(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let mut wrong = None;
        for (cohort, replica, _) in process.node.replicas() {
            if !replica.declares_loss() || !self.losses.seen.insert((cohort, replica.promised().epoch)) {
                continue;
            }
            *self.counters.entry("losses declared").or_default() += 1;
            let membership = replica.membership();
            let has_ended = |member: &&Member| self.losses.ended.contains(&member.node);
            let ended = membership.voters().iter().filter(has_ended).count();
            let others = membership.voters().len() - ended;
            if replica.config().regime.durability() == Durability::Forced || others >= membership.quorum() {
                wrong = Some(format!(
                    "node {id} declares a loss in cohort {cohort}, but only {ended} processes have ended uncleanly"
                ));
            }
            let now = self.clients.moment();
            self.losses.first.get_or_insert(now);
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }

    /// The history up to the first loss. Operations without a response by then have unknown outcomes.
    pub(super) fn history_until_loss(&self) -> Vec<Operation> {
        let history = self.clients.history.clone();
        let Some(end) = self.losses.first else { return history };
        let is_early = |operation: &Operation| operation.called <= end;
        let until_loss = history.into_iter().filter(is_early).map(|operation| {
            let returned = operation.returned.filter(|at| *at <= end);
            Operation { returned, ..operation }
        });
        until_loss
            .filter(|operation| operation.returned.is_some() || matches!(operation.what, What::Write { .. }))
            .collect()
    }
}
