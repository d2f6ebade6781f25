//! Bounds the age of a replica's state without extra messages (guarantee 15).
//!
//! A follower includes its own clock reading in every reply. A leader with a valid lease returns the newest of these
//! readings with its commit point: everything committed before the follower's clock showed that reading, by this leader
//! or an earlier one, is covered by the commit point, because no other leader can be elected before the lease ends.
//! Once the follower has applied that far, its state is as of that reading. Only the follower's own clock is involved,
//! so the bound does not depend on the rates of two clocks.
//!
//! A restarted replica may know a lower commit point than before, and could expose an older state than it has already
//! exposed. It is *current* once it has applied everything that a leader has committed, including the leader's barrier,
//! as reported to this process: that includes every entry that an earlier process applied.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, Sequence};

use crate::cohort::{Cohort, Role};

/// A replica's knowledge of the age of its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Staleness {
    /// It has applied at least as much as any earlier process of this replica.
    is_current: bool,
    /// Everything committed before this replica's clock showed this is applied.
    as_of: Option<Monotonic>,
    /// `as_of` advances to this time once this sequence is applied.
    coming: Option<(Monotonic, Sequence)>,
}

impl Staleness {
    /// A leader within its lease reports that `commit` covers everything committed before this replica's clock showed
    /// `heard`.
    fn told(&mut self, heard: Monotonic, commit: Sequence) {
        // Keeps the first report, because it is reached first. Replacing it continually would leave a lagging replica
        // without any age.
        self.coming.get_or_insert((heard, commit));
    }

    fn applied(&mut self, through: Sequence) {
        if let Some((heard, _)) = self.coming.take_if(|(_, commit)| *commit <= through) {
            self.as_of = self.as_of.max(Some(heard));
        }
    }
}

impl Cohort {
    /// Records a leader's report after handling its message.
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

    /// Whether this leader may return clock readings: only within its lease does its commit point cover everything
    /// committed.
    pub(crate) fn may_tell_ages(&self, now: Monotonic) -> bool {
        self.lease_end(now).is_some()
    }

    /// Leadership ends: the state remains as of the end of the lease.
    pub(crate) fn note_end_of_lease(&mut self, now: Monotonic) {
        self.staleness.as_of = self.freshness().as_of(now);
        self.staleness.is_current |= self.is_open();
    }

    /// Whether it has applied at least as much as any earlier process of this replica, which may have exposed its
    /// state.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.staleness.is_current || self.is_open()
    }

    /// The age of the state.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        let leased_until = match &self.role {
            Role::Leader(leader) if leader.open && self.config.timing.leases => self.votes_end(Monotonic::NEVER),
            _ => None,
        };
        Freshness { leased_until, as_of: self.staleness.as_of }
    }

    /// The time until which this replica expects its leader to be alive; `None` without a known leader.
    #[must_use]
    pub fn leader_until(&self) -> Option<Monotonic> {
        match &self.role {
            Role::Leader(_) => Some(Monotonic::NEVER),
            Role::Follower { leader: Some(_), stand_at } => Some(*stand_at),
            Role::Follower { leader: None, .. }
            | Role::PreCandidate { .. }
            | Role::Candidate { .. }
            | Role::Appointed { .. } => None,
        }
    }
}

/// The age of a state to which nothing is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// No other leader commits anything before this time.
    leased_until: Option<Monotonic>,
    /// Everything committed anywhere before this replica's clock showed this is applied.
    as_of: Option<Monotonic>,
}

impl Freshness {
    /// Every entry committed at least this long ago is in the state (guarantee 14 bounds the error of the clock).
    /// `None` until a leader has reported.
    #[must_use]
    pub fn age(self, now: Monotonic) -> Option<Duration> {
        self.as_of(now).map(|as_of| now.since(as_of).percent(102))
    }

    /// Whether `newer` is newer by less than `span`.
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
