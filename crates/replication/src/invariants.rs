//! Invariants of a replica.

use base::Sequence;

use crate::cohort::{Cohort, Role};
use crate::leader::Peer;

impl Cohort {
    /// Checks the invariants that hold between steps. The simulator and the search call this after each step.
    ///
    /// # Panics
    /// When an invariant is violated: a bug in this crate.
    pub fn invariants(&self) {
        let last = self.last().sequence;
        assert!(self.applied <= self.committed, "only committed entries are applied");
        assert!(self.committed <= last, "only entries that are held are committed");
        assert!(self.forced <= last, "only entries that are held are forced");
        assert!(self.log.base().sequence <= self.applied.max(self.committed), "only committed entries are forgotten");
        assert!(self.matched <= last, "only entries that are held are matched");
        self.chain();
        self.reorder_buffer.invariants(self.config.limits.reorder_bytes);
        assert!(self.memberships.are_steps(), "a membership differs from the one before by one voter at most");
        if let Role::Leader(leader) = &self.role {
            assert_eq!(self.promised.epoch, leader.epoch, "a leader has promised itself its epoch, and none since");
            assert!(self.is_voter(self.config.me), "a leader votes");
            assert!(!leader.open || self.applied >= leader.barrier, "a leader opens after its barrier");
            leader.peers.values().for_each(Peer::invariants);
        }
    }

    fn chain(&self) {
        let mut previous = self.log.base();
        for entry in self.entries() {
            assert_eq!(entry.previous, previous, "each entry names its predecessor");
            assert!(entry.lsn.epoch >= previous.epoch, "epochs grow along the log");
            assert_eq!(Sequence(previous.sequence.0 + 1), entry.lsn.sequence, "sequences have no gaps");
            previous = entry.lsn;
        }
    }
}
