//! Lease votes (Spanner, Appendix A; guarantees 2 and 14).
//!
//! A follower that answers a leader votes for it: for one grace period from the answer it promises no epoch to another.
//! The leader counts the vote from the moment it *sent* the message that was answered, for one lease by its own clock.
//! The grace is longer than the lease by what two clocks within 1% of true can drift apart, so a quorum of living votes
//! means that nobody else can have been elected. Votes are counted among the voters at the leader's log, like
//! everything: a change of the membership that is not committed differs from the membership before by one voter, and a
//! majority of votes in the one meets every majority of promises in the other.

use base::canary::{Bug, planted};
use base::{Duration, Epoch, Member, Monotonic};

use crate::cohort::{Cohort, Role};

/// How long a voter holds to its vote: lease x (1 + 3d), d = 1%, which is at least lease x (1 + d) / (1 - d).
#[must_use]
pub fn grace(lease: Duration) -> Duration {
    if planted(Bug::GraceWithoutDrift) { lease } else { lease.percent(103) }
}

/// A vote given: no promise to anybody else before its end, unless that leader released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vote {
    pub(crate) leader: Member,
    pub(crate) epoch: Epoch,
    pub(crate) until: Monotonic,
}

impl Cohort {
    /// Until when this leader may answer reads from its applied state, if it may now. An answer must leave no later,
    /// by a clock read *after* it was evaluated (guarantees 12 and 14).
    #[must_use]
    pub fn lease_end(&self, now: Monotonic) -> Option<Monotonic> {
        let Role::Leader(leader) = &self.role else { return None };
        if !self.config.timing.leases || (!leader.open && !planted(Bug::AnswerBeforeBarrier)) {
            return None;
        }
        let end = self.votes_end(now)?;
        (end > now).then_some(end)
    }

    /// The moment at which this leader's votes cease to be a quorum.
    pub(crate) fn votes_end(&self, now: Monotonic) -> Option<Monotonic> {
        let Role::Leader(leader) = &self.role else { return None };
        let lease = self.config.timing.lease;
        let mut ends: Vec<Monotonic> =
            self.voting(leader).filter(|peer| peer.voted).map(|peer| peer.vote_sent + lease).collect();
        ends.push(now + lease);
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let quorum = if planted(Bug::LeaseOfMinority) { 1 } else { self.quorum() };
        ends.get(quorum - 1).copied()
    }

    /// Votes for the leader whose message is being answered. A replica that restarted gives no vote before one grace
    /// has passed: it may have forgotten another.
    pub(crate) fn give_vote(&mut self, leader: Member, epoch: Epoch, now: Monotonic) -> bool {
        if now < self.voteless_until {
            return false;
        }
        self.vote = Some(Vote { leader, epoch, until: now + grace(self.config.timing.lease) });
        true
    }

    /// Whether a vote of ours lives.
    #[must_use]
    pub fn has_voted(&self, now: Monotonic) -> bool {
        self.vote.is_some_and(|vote| now < vote.until)
    }

    /// Whether a vote for someone other than `candidate` lives.
    pub(crate) fn vote_forbids(&self, candidate: Member, now: Monotonic) -> bool {
        if planted(Bug::PrepareIgnoresVote) {
            return false;
        }
        self.vote.is_some_and(|vote| vote.leader != candidate && now < vote.until)
    }
}
