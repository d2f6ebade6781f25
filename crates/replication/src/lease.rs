//! Lease votes (Spanner, Appendix A; guarantees 2 and 14).
//!
//! A follower that replies to a leader votes for it: for one grace period from the reply it promises no epoch to
//! another replica. The leader counts the vote from the time at which it *sent* the request, for one lease by its own
//! clock. The grace exceeds the lease by the possible drift between two clocks with a rate error of 1%, so while a
//! quorum of votes is valid, no other leader can have been elected. Votes are counted among the voters at the end of
//! the leader's log. An uncommitted membership change differs from the previous membership by one voter, and a majority
//! of votes in one intersects every majority of promises in the other.

use base::canary::{Bug, planted};
use base::{Duration, Epoch, Member, Monotonic};

use crate::cohort::{Cohort, Role};

/// How long a voter honours its vote: lease x (1 + 3d) with d = 1%, which is at least lease x (1 + d) / (1 - d).
#[must_use]
pub fn grace(lease: Duration) -> Duration {
    if planted(Bug::GraceWithoutDrift) { lease } else { lease.percent(103) }
}

/// A vote given: until its end the replica promises nothing to others, unless the leader released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vote {
    pub(crate) leader: Member,
    pub(crate) epoch: Epoch,
    pub(crate) until: Monotonic,
}

impl Cohort {
    /// The time until which this leader may serve reads from its applied state; `None` if it may not. A reply must be
    /// sent before that time, by a clock read *after* the read was evaluated (guarantees 12 and 14).
    #[must_use]
    pub fn lease_end(&self, now: Monotonic) -> Option<Monotonic> {
        let Role::Leader(leader) = &self.role else { return None };
        if !self.config.timing.leases || (!leader.open && !planted(Bug::AnswerBeforeBarrier)) {
            return None;
        }
        let end = self.votes_end(now)?;
        (end > now).then_some(end)
    }

    /// The time at which this leader's votes cease to be a quorum.
    pub(crate) fn votes_end(&self, now: Monotonic) -> Option<Monotonic> {
        let Role::Leader(leader) = &self.role else { return None };
        let lease = self.config.timing.lease;
        let mut ends: Vec<Monotonic> =
            self.voting(leader).filter(|peer| peer.voted).map(|peer| peer.vote_sent + lease).collect();
        ends.push(now + lease);
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let is_minority = planted(Bug::LeaseOfMinority) || (planted(Bug::PrimaryPastLease) && self.is_managed());
        let quorum = if is_minority { 1 } else { self.quorum() };
        ends.get(quorum - 1).copied()
    }

    /// Whether this leader has had no majority of votes for a lease: a proposal is unlikely to be committed.
    #[must_use]
    pub fn lacks_votes(&self, now: Monotonic) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let is_established = now > leader.since + self.config.timing.lease;
        is_established && self.votes_end(now).is_none_or(|end| now > end)
    }

    /// Votes for the sender of the message being answered. A restarted replica gives no vote for one grace period,
    /// because it may have given another vote before.
    pub(crate) fn give_vote(&mut self, leader: Member, epoch: Epoch, now: Monotonic) -> bool {
        // A vote for a primary only keeps this replica from becoming the primary itself, which it does not do before then.
        if now < self.voteless_until && !self.is_managed() {
            return false;
        }
        self.vote = Some(Vote { leader, epoch, until: now + grace(self.config.timing.lease) });
        true
    }

    /// Whether this replica's vote is still valid.
    #[must_use]
    pub fn has_voted(&self, now: Monotonic) -> bool {
        self.vote.is_some_and(|vote| now < vote.until)
    }

    /// Whether a valid vote for another replica than `candidate` exists.
    pub(crate) fn vote_forbids(&self, candidate: Member, now: Monotonic) -> bool {
        if planted(Bug::PrepareIgnoresVote) {
            return false;
        }
        self.vote.is_some_and(|vote| vote.leader != candidate && now < vote.until)
    }
}
