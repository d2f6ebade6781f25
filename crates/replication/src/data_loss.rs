//! Continuing after data loss, in cohorts with main-memory logs (guarantee 11).
//!
//! A replica that may have forgotten acknowledged entries does not count for a candidate. If that holds for a majority,
//! no leader could ever be elected. Two kinds of candidates may then lead with the remaining data, and the first entry
//! of their epoch declares that acknowledged entries may be lost:
//! * one with promises of a majority *of forgetful replicas*, after a wait for the others;
//! * one with promises of *all* replicas, unless a majority of them have damaged disks: no other replica could hold
//!   more.
//!
//! Forgetful and intact replicas do not add up to a majority: while a majority may be intact, every acknowledged entry
//! still exists, and the candidate waits for it.
//!
//! Each voter reports the state of its log with its promise. From then on it takes no part in earlier epochs, so
//! nothing can be committed with its help, and its doubt cannot end, between the report and the new epoch.

use base::canary::{Bug, planted};
use base::{NodeId, Now};

use crate::cohort::{Cohort, Role};

/// The state of a replica's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogIntegrity {
    /// It holds everything that it acknowledged.
    Whole,
    /// The log was in memory and lost its last entries: at most [`crate::UNFORCED_MAX`].
    Forgetful,
    /// Its disk is damaged: any part of the log may be lost (guarantee 7).
    Damaged,
}

/// The replicas that have granted a candidate's request, by the state of their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Grants {
    /// Replicas with whole logs.
    pub(crate) whole: Vec<NodeId>,
    forgetful: Vec<NodeId>,
    damaged: Vec<NodeId>,
}

impl Grants {
    pub(crate) fn of(node: NodeId, integrity: LogIntegrity) -> Self {
        let mut grants = Self::default();
        grants.add(node, integrity);
        grants
    }

    /// Only the first report of each replica counts, because it belongs to the promise.
    pub(crate) fn add(&mut self, node: NodeId, integrity: LogIntegrity) {
        if self.contains(node) {
            return;
        }
        let nodes = match integrity {
            LogIntegrity::Whole => &mut self.whole,
            LogIntegrity::Forgetful => &mut self.forgetful,
            LogIntegrity::Damaged => &mut self.damaged,
        };
        super::election::add(nodes, node);
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        [&self.whole, &self.forgetful, &self.damaged].iter().any(|nodes| nodes.contains(&node))
    }

    pub(crate) fn rename(&mut self, rename: impl Fn(&mut Vec<NodeId>)) {
        [&mut self.whole, &mut self.forgetful, &mut self.damaged].into_iter().for_each(rename);
    }

    /// Whether these grants are enough to lead with a loss.
    fn suffice(&self, quorum: usize, all: usize) -> bool {
        self.forgetful.len() >= quorum || self.are_all(quorum, all)
    }

    /// Whether no other replica could hold more. A majority of damaged disks may have lost anything, including members
    /// that it had admitted.
    fn are_all(&self, quorum: usize, all: usize) -> bool {
        self.whole.len() + self.forgetful.len() + self.damaged.len() == all && self.damaged.len() < quorum
    }
}

impl Cohort {
    /// The state of this replica's log.
    pub(crate) fn integrity(&self) -> LogIntegrity {
        let is_damaged = self.doubtful && !planted(Bug::DoubtfulPromises);
        match (is_damaged, self.forgetful()) {
            (true, _) => LogIntegrity::Damaged,
            (false, true) => LogIntegrity::Forgetful,
            (false, false) => LogIntegrity::Whole,
        }
    }

    /// Whether these grants are enough to lead with a loss.
    pub(crate) fn suffice_for_loss(&self, granted: &Grants) -> bool {
        self.is_in_memory() && granted.suffice(self.quorum(), self.membership().voters().len())
    }

    /// Whether this pre-candidate may stand although a loss must be declared: the grants are enough, and all other
    /// replicas have replied or the wait for them is over.
    pub(crate) fn may_declare(&mut self, now: Now) -> bool {
        let Role::PreCandidate { granted, .. } = &self.role else { return false };
        if !self.suffice_for_loss(granted) {
            return false;
        }
        let patience = now.monotonic + self.config.timing.loss_patience;
        let ends = *self.memory.patience_ends.get_or_insert(patience);
        granted.are_all(self.quorum(), self.membership().voters().len()) || now.monotonic >= ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(integrities: &[LogIntegrity]) -> Grants {
        let mut grants = Grants::default();
        (1..).zip(integrities).for_each(|(node, integrity)| grants.add(NodeId(node), *integrity));
        grants
    }

    #[test]
    fn grants_required_for_loss_recovery() {
        use LogIntegrity::{Damaged, Forgetful, Whole};
        let enough = |integrities: &[LogIntegrity], quorum, all| grants(integrities).suffice(quorum, all);
        assert!(enough(&[Forgetful, Forgetful], 2, 3));
        assert!(!enough(&[Forgetful, Whole], 2, 3), "the third may hold more");
        assert!(!enough(&[Forgetful, Damaged], 2, 3));
        assert!(enough(&[Forgetful, Whole, Damaged], 2, 3), "nobody is left");
        assert!(!enough(&[Damaged, Whole, Damaged], 2, 3), "a majority may have let in others, and lost that");
        assert!(!enough(&[Damaged], 1, 1));
    }

    #[test]
    fn duplicate_grant_counts_once() {
        let mut grants = grants(&[LogIntegrity::Whole]);
        grants.add(NodeId(1), LogIntegrity::Forgetful);
        assert_eq!((grants.whole.len(), grants.forgetful.len()), (1, 0));
    }
}
