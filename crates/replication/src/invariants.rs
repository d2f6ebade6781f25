//! Invariants of a replica.

use base::{Entry, Monotonic, Sequence};

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
        assert!(
            self.is_managed() || self.memberships.are_steps(),
            "a membership differs from the one before by one voter at most: {:?}",
            self.memberships
        );
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

/// PacificA's Commit Invariant: everything committed at a member is committed at the primary, and everything committed
/// at the primary is in the log of every member. Compares the entries that both have in memory.
///
/// `primary` must lead in the configuration that `member` belongs to.
///
/// # Errors
/// A description of the violation.
pub fn commit_invariant(primary: &Cohort, member: &Cohort) -> Result<(), String> {
    let (p, q) = (primary.me().node, member.me().node);
    if member.committed() > primary.committed() && primary.is_open() {
        return Err(format!("node {q} has committed more than its primary, node {p}"));
    }
    if member.last().sequence < primary.committed() {
        return Err(format!("node {q} lacks an entry that its primary, node {p}, has committed"));
    }
    let both = primary.committed().max(member.committed()).min(primary.last().sequence);
    same_through(primary, member, both)
}

/// PacificA's Primary Invariant: at most one replica serves reads, and it is the newest primary that has served any. Each
/// replica comes with the time on its own clock.
///
/// # Errors
/// A description of the violation.
pub fn primary_invariant<'a>(replicas: impl Iterator<Item = (&'a Cohort, Monotonic)> + Clone) -> Result<(), String> {
    let open = replicas.clone().filter(|(replica, _)| replica.is_open());
    let newest = open.map(|(replica, _)| replica.promised().epoch).max();
    let mut serving = replicas.filter(|(replica, now)| replica.lease_end(*now).is_some());
    let Some((one, _)) = serving.next() else { return Ok(()) };
    if let Some((other, _)) = serving.next() {
        return Err(format!("nodes {} and {} both serve reads", one.me().node, other.me().node));
    }
    if Some(one.promised().epoch) < newest {
        return Err(format!("node {} serves reads although a later primary has opened", one.me().node));
    }
    Ok(())
}

/// PacificA's Reconfiguration Invariant: once a new primary serves, its committed entries begin with those that any
/// replica had committed before.
///
/// # Errors
/// A description of the violation.
pub fn reconfiguration_invariant(primary: &Cohort, other: &Cohort) -> Result<(), String> {
    if other.promised().epoch > primary.promised().epoch {
        return Ok(());
    }
    if other.committed() > primary.committed() {
        let (p, q) = (primary.me().node, other.me().node);
        return Err(format!("node {q} has committed more than the new primary, node {p}"));
    }
    same_through(primary, other, other.committed())
}

fn same_through(one: &Cohort, other: &Cohort, through: Sequence) -> Result<(), String> {
    let differs = |entry: &&Entry| {
        let sequence = entry.lsn.sequence;
        sequence <= through && other.lsn_at(sequence).is_some_and(|held| held != entry.lsn)
    };
    match one.entries().find(differs) {
        Some(entry) => Err(format!(
            "nodes {} and {} hold different entries at {}",
            one.me().node,
            other.me().node,
            entry.lsn.sequence
        )),
        None => Ok(()),
    }
}
