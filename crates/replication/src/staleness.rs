//! How old the state of a replica may be, told without asking anybody (guarantee 15).
//!
//! A follower puts its own clock's reading into every answer. A leader that holds its lease sends the newest of these
//! readings back with its commit point: whatever was committed before the follower's clock showed that, by this leader
//! or by any before, is within that commit point, since nobody else can have been elected before the lease ends. Once
//! the follower has applied so far, its state is as of that reading. Only one clock has a part in it, so nothing hangs
//! on how two run.
//!
//! A restarted replica knows less to be committed than it once did, and could show a state from before what it has
//! shown. It is *current* once it has applied all that a leader has committed, that leader's own barrier among it, as
//! told to this very process: every entry that any earlier process applied is among that.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, Sequence};

use crate::cohort::{Cohort, Role};

/// What a replica knows of the age of its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Staleness {
    /// It has applied at least what any earlier process of this replica had.
    is_current: bool,
    /// Everything that was committed before our clock showed this is applied.
    as_of: Option<Monotonic>,
    /// The same will hold of this moment once so much is applied.
    coming: Option<(Monotonic, Sequence)>,
}

impl Staleness {
    /// A leader within its lease says that it had committed so much when our clock showed `heard`, or later.
    fn told(&mut self, heard: Monotonic, commit: Sequence) {
        // The first is reached first: one that never comes to its end would leave a replica that lags without any age.
        self.coming.get_or_insert((heard, commit));
    }

    fn applied(&mut self, through: Sequence) {
        if let Some((heard, _)) = self.coming.take_if(|(_, commit)| *commit <= through) {
            self.as_of = self.as_of.max(Some(heard));
        }
    }
}

impl Cohort {
    /// A leader's message was taken in, with what it says of its commit point's age.
    pub(crate) fn learn_age(&mut self, heard: Option<Monotonic>, commit: Sequence, now: Monotonic) {
        let applied = self.applied;
        if let Some(heard) = heard {
            let heard = if planted(Bug::AgeFromReceipt) { now } else { heard };
            self.staleness.applied(applied);
            self.staleness.told(heard, commit);
        }
        self.staleness.applied(applied);
        let all = self.leader_committed;
        let has_barrier = self.log.lsn_at(all).is_some_and(|lsn| lsn.epoch == self.following);
        self.staleness.is_current |= has_barrier && applied >= all;
    }

    /// Whether this leader may send back what a follower's clock has shown: only within its lease does its commit point
    /// hold all that was committed.
    pub(crate) fn may_tell_ages(&self, now: Monotonic) -> bool {
        self.lease_end(now).is_some()
    }

    /// The lead ends: the state stays what it was within the lease.
    pub(crate) fn note_end_of_lease(&mut self, now: Monotonic) {
        self.staleness.as_of = self.freshness().as_of(now);
        self.staleness.is_current |= self.is_open();
    }

    /// Whether it has applied at least what any earlier process of this replica had, or may have shown to anybody.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.staleness.is_current || self.is_open()
    }

    /// How old the state is.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        let leased_until = match &self.role {
            Role::Leader(leader) if leader.open && self.config.timing.leases => self.votes_end(Monotonic::NEVER),
            _ => None,
        };
        Freshness { leased_until, as_of: self.staleness.as_of }
    }

    /// Until when this replica counts on the leader that it knows, if it knows one.
    #[must_use]
    pub fn leader_until(&self) -> Option<Monotonic> {
        match &self.role {
            Role::Leader(_) => Some(Monotonic::NEVER),
            Role::Follower { leader: Some(_), stand_at } => Some(*stand_at),
            Role::Follower { leader: None, .. } | Role::PreCandidate { .. } | Role::Candidate { .. } => None,
        }
    }
}

/// How old a state is that nothing is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Nobody else commits anything before.
    leased_until: Option<Monotonic>,
    /// Everything that was committed anywhere before our clock showed this is applied.
    as_of: Option<Monotonic>,
}

impl Freshness {
    /// Whatever was committed so long ago, or longer, is in the state (guarantee 14 bounds how far our clock is off);
    /// none as long as no leader told.
    #[must_use]
    pub fn age(self, now: Monotonic) -> Option<Duration> {
        self.as_of(now).map(|as_of| now.since(as_of).percent(102))
    }

    /// Whether another is newer, by less than a span.
    #[must_use]
    pub fn is_near(self, newer: Self, span: Duration) -> bool {
        let is_near = |old: Option<Monotonic>, new: Option<Monotonic>| match (old, new) {
            (Some(old), Some(new)) => old <= new && new.since(old) < span,
            (old, new) => old == new,
        };
        is_near(self.leased_until, newer.leased_until) && is_near(self.as_of, newer.as_of)
    }

    fn as_of(self, now: Monotonic) -> Option<Monotonic> {
        self.leased_until.map(|end| end.min(now)).max(self.as_of)
    }
}
