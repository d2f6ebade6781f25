//! Leading on after a loss, in cohorts with main-memory logs (guarantee 11).
//!
//! A replica that may have forgotten what it acknowledged counts for no candidate. Where a majority has, nobody could
//! ever lead again. Two kinds of candidate may then lead on with what is left, and the first entry of such a reign
//! declares that acknowledged entries may be lost:
//! * one that has the promises of a majority *of forgetful replicas*, after it has waited for the others for a while;
//! * one that has the promises of *all* replicas, no majority of which have damaged disks: there is nobody left who could
//!   hold more.
//!
//! One that is forgetful and one that isn't make no majority together: while a majority may have forgotten nothing, all
//! that was acknowledged is still there, and is waited for.
//!
//! Each voter says what its log is worth when it promises. From then on it takes no part in any earlier reign, so that
//! nothing can be committed with its help, nor can its doubt end, between its word and the new reign.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use base::{NodeId, Now};

use crate::cohort::{Cohort, Role};

/// What a replica's log is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worth {
    /// It holds all that it acknowledged.
    Whole,
    /// It was in memory, and its last entries are forgotten: no more than [`crate::UNFORCED_MAX`].
    Forgetful,
    /// Its disk is damaged: any part of it may be lost (guarantee 7).
    Damaged,
}

impl Worth {
    pub(crate) fn encode(self, out: &mut Writer) {
        out.u8(match self {
            Self::Whole => 0,
            Self::Forgetful => 1,
            Self::Damaged => 2,
        });
    }

    pub(crate) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            0 => Ok(Self::Whole),
            1 => Ok(Self::Forgetful),
            2 => Ok(Self::Damaged),
            tag => Err(DecodeError::UnknownTag { what: "worth of a log", tag: u64::from(tag) }),
        }
    }
}

/// Who has granted what a candidate asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Grants {
    /// Those whose logs are whole.
    pub(crate) whole: Vec<NodeId>,
    forgetful: Vec<NodeId>,
    damaged: Vec<NodeId>,
}

impl Grants {
    pub(crate) fn of(node: NodeId, worth: Worth) -> Self {
        let mut grants = Self::default();
        grants.add(node, worth);
        grants
    }

    /// The first word of each counts: it goes with the promise.
    pub(crate) fn add(&mut self, node: NodeId, worth: Worth) {
        if self.contains(node) {
            return;
        }
        let nodes = match worth {
            Worth::Whole => &mut self.whole,
            Worth::Forgetful => &mut self.forgetful,
            Worth::Damaged => &mut self.damaged,
        };
        super::election::add(nodes, node);
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        [&self.whole, &self.forgetful, &self.damaged].iter().any(|nodes| nodes.contains(&node))
    }

    pub(crate) fn rename(&mut self, rename: impl Fn(&mut Vec<NodeId>)) {
        [&mut self.whole, &mut self.forgetful, &mut self.damaged].into_iter().for_each(rename);
    }

    /// Whether these are enough to lead on with a loss, out of so many.
    fn suffice(&self, quorum: usize, all: usize) -> bool {
        self.forgetful.len() >= quorum || self.are_all(quorum, all)
    }

    /// Whether nobody is left who could hold more. A majority of damaged disks may have lost anything, members that it
    /// had let in among it.
    fn are_all(&self, quorum: usize, all: usize) -> bool {
        self.whole.len() + self.forgetful.len() + self.damaged.len() == all && self.damaged.len() < quorum
    }
}

impl Cohort {
    /// What our log is worth.
    pub(crate) fn worth(&self) -> Worth {
        let is_damaged = self.doubtful && !planted(Bug::DoubtfulPromises);
        match (is_damaged, self.forgetful()) {
            (true, _) => Worth::Damaged,
            (false, true) => Worth::Forgetful,
            (false, false) => Worth::Whole,
        }
    }

    /// Whether those that have granted are enough to lead on with a loss.
    pub(crate) fn suffice_for_loss(&self, granted: &Grants) -> bool {
        self.is_in_memory() && granted.suffice(self.quorum(), self.membership().voters().len())
    }

    /// Whether we may stand though a loss is to be declared: those that would have us are enough, and all others have
    /// had their say or their time.
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

    fn grants(worths: &[Worth]) -> Grants {
        let mut grants = Grants::default();
        (1..).zip(worths).for_each(|(node, worth)| grants.add(NodeId(node), *worth));
        grants
    }

    #[test]
    fn who_is_enough_to_lead_on_with_a_loss() {
        use Worth::{Damaged, Forgetful, Whole};
        let enough = |worths: &[Worth], quorum, all| grants(worths).suffice(quorum, all);
        assert!(enough(&[Forgetful, Forgetful], 2, 3));
        assert!(!enough(&[Forgetful, Whole], 2, 3), "the third may hold more");
        assert!(!enough(&[Forgetful, Damaged], 2, 3));
        assert!(enough(&[Forgetful, Whole, Damaged], 2, 3), "nobody is left");
        assert!(!enough(&[Damaged, Whole, Damaged], 2, 3), "a majority may have let in others, and lost that");
        assert!(!enough(&[Damaged], 1, 1));
    }

    #[test]
    fn nobody_is_counted_twice() {
        let mut grants = grants(&[Worth::Whole]);
        grants.add(NodeId(1), Worth::Forgetful);
        assert_eq!((grants.whole.len(), grants.forgetful.len()), (1, 0));
    }
}
