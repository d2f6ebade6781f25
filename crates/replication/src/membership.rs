//! Membership changes, one at a time (Gaios 3.1 on SMART's reconfiguration; Ongaro, *Consensus*, 4.1; guarantee 8).
//!
//! The membership is part of the log: an entry that changes it takes effect when it is appended and reverts when it is
//! cut, at each replica by its own log. Two memberships that follow each other differ by one voter at most, so every
//! majority of the one meets every majority of the other. A leader appends the next change only once the one before is
//! committed, and none before an entry of its own epoch is: else two leaders might each go one step in another
//! direction.
//!
//! A newcomer is a learner first: it is sent the log as all are, a whole state if need be, and counts in nothing. It
//! starts in doubt, as a replica does that may have forgotten what it acknowledged: it may have been a member once,
//! have gone and let go of its log. So it promises nothing before it has caught up with a leader (guarantee 7); from
//! then on it may, also before its own log says that it votes, or one failure could be too many just then.

use std::collections::VecDeque;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Member, MembershipChange, NoStep, NodeId, Now, Sequence, SharedMembership};
use bytes::Bytes;

use crate::cohort::{Cohort, Role};
use crate::leader::Peer;
use crate::outbox::Outbox;

/// The memberships of a log: the one at its applied end, and every later change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memberships {
    base: SharedMembership,
    /// The place of the change that made the base so, or a later one.
    base_changed: Sequence,
    later: VecDeque<(Sequence, SharedMembership)>,
}

/// Why a leader doesn't take a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// This replica doesn't lead.
    #[error("this replica doesn't lead")]
    NotLeader,
    /// Nothing of its own epoch is committed yet.
    #[error("the leader's first entry is not committed yet")]
    BeforeBarrier,
    /// The change before this one is not committed yet.
    #[error("another change is not committed yet")]
    UnderWay,
    /// The leader doesn't remove itself: it hands over first.
    #[error("the leader hands over before it is removed")]
    Leads,
    /// The learner has not caught up.
    #[error("the candidate member has not caught up yet")]
    Behind,
    /// Without the voter no majority would be alive.
    #[error("without it no majority would be alive")]
    WouldStall,
    /// A newer plan was begun.
    #[error("a newer plan has been begun")]
    OldPlan,
    /// There is no such step from the present membership.
    #[error("{0}")]
    NoStep(#[from] NoStep),
}

impl Memberships {
    pub(crate) fn new(base: SharedMembership) -> Self {
        Self { base, base_changed: Sequence(0), later: VecDeque::new() }
    }

    /// The one in force: that of the last entry that changed it.
    pub(crate) fn last(&self) -> &SharedMembership {
        self.later.back().map_or(&self.base, |(_, membership)| membership)
    }

    /// The place of the last change that is not settled.
    pub(crate) fn last_change(&self) -> Option<Sequence> {
        self.later.back().map(|(sequence, _)| *sequence)
    }

    /// Whose log has come to here knows the newest one.
    fn known_from(&self) -> Sequence {
        self.last_change().unwrap_or(self.base_changed)
    }

    /// The one in force after the entry at a place that is not before the settled one.
    fn at(&self, sequence: Sequence) -> &SharedMembership {
        let until = self.later.iter().rev().find(|(changed, _)| *changed <= sequence);
        until.map_or(&self.base, |(_, membership)| membership)
    }

    pub(crate) fn push(&mut self, sequence: Sequence, membership: SharedMembership) {
        self.later.push_back((sequence, membership));
    }

    /// The log was cut from there on.
    pub(crate) fn truncate(&mut self, from: Sequence) {
        self.later.retain(|(sequence, _)| *sequence < from);
    }

    /// What is applied is never cut.
    pub(crate) fn settle(&mut self, applied: Sequence) {
        while let Some((changed, membership)) = self.later.pop_front_if(|(sequence, _)| *sequence <= applied) {
            (self.base, self.base_changed) = (membership, changed);
        }
    }

    /// A whole state took the place of the log through there.
    pub(crate) fn replace(&mut self, through: Sequence, membership: SharedMembership) {
        self.later.retain(|(sequence, _)| *sequence > through);
        (self.base, self.base_changed) = (membership, through);
    }

    /// Each follows from the one before, but for the first that a log knows of.
    pub(crate) fn are_steps(&self) -> bool {
        let all = || [&self.base].into_iter().chain(self.later.iter().map(|(_, membership)| membership));
        all().zip(all().skip(1)).all(|(before, after)| before.is_empty() || after.meets(before))
    }

    pub(crate) fn rename(&mut self, rename: impl Fn(NodeId) -> NodeId + Copy) {
        let later = self.later.iter_mut().map(|(_, membership)| membership);
        for membership in later.chain([&mut self.base]) {
            *membership = Arc::new(membership.renamed(rename));
        }
    }
}

impl Cohort {
    /// The membership in force at this replica's log.
    #[must_use]
    pub fn membership(&self) -> &SharedMembership {
        if planted(Bug::MembershipOnCommit) {
            return self.memberships.at(self.committed);
        }
        self.memberships.last()
    }

    /// The membership as of the last entry applied: what a checkpoint of the state goes with.
    #[must_use]
    pub fn membership_applied(&self) -> &SharedMembership {
        self.memberships.at(self.applied)
    }

    /// Whether every change of the membership that this log holds is known to be committed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.memberships.last_change().is_none_or(|changed| changed <= self.committed)
    }

    pub(crate) fn is_voter(&self, member: Member) -> bool {
        self.membership().is_voter(member)
    }

    /// How many voters make a majority.
    pub(crate) fn quorum(&self) -> usize {
        self.membership().quorum()
    }

    /// The voters other than this replica.
    pub(crate) fn other_voters(&self) -> Vec<NodeId> {
        let me = self.config.me;
        self.membership().voters().iter().filter(|member| **member != me).map(|member| member.node).collect()
    }

    /// The members other than this replica.
    pub fn peers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.membership().everyone().filter(|member| *member != self.config.me).map(|member| member.node)
    }

    /// Whether a leader would take this change now as far as the time it takes goes: a learner that becomes a voter has
    /// caught up, and without a voter that goes a majority of the others is alive. None of this is needed for safety.
    ///
    /// A learner has caught up when its own log says, too, that it is one. As long as that does not, it may be a
    /// replica that had a part before, and that lets go of all that it holds when it hears at last that it has none any
    /// more.
    ///
    /// # Errors
    /// What is in the way.
    pub fn is_ready_for(&self, change: MembershipChange, now: Now) -> Result<(), ChangeRefused> {
        let Role::Leader(leader) = &self.role else { return Err(ChangeRefused::NotLeader) };
        let next = self.membership().after(change)?;
        let knows = |peer: &Peer| peer.matched >= self.memberships.known_from();
        let is_close = |peer: &Peer| peer.is_close(self.committed) && (knows(peer) || planted(Bug::PromotedUnawares));
        let is_behind = |member: Member| leader.peers.get(&member.node).is_none_or(|peer| !is_close(peer));
        match change {
            MembershipChange::Promote(member) if is_behind(member) => Err(ChangeRefused::Behind),
            MembershipChange::Remove(member) if self.is_voter(member) => {
                let lease = self.config.timing.lease;
                let lives = |voter: &&Member| {
                    **voter == self.config.me
                        || leader.peers.get(&voter.node).is_some_and(|peer| peer.has_voted(lease, now.monotonic))
                };
                let alive = next.voters().iter().filter(lives).count();
                if alive >= next.quorum() { Ok(()) } else { Err(ChangeRefused::WouldStall) }
            }
            _ => Ok(()),
        }
    }

    /// Appends a change of the membership, by a plan that is no older than the last. It is in force from now on, and
    /// made for good when it is committed.
    ///
    /// # Errors
    /// When it must not be made, or not now.
    pub fn change_membership(
        &mut self,
        change: MembershipChange,
        plan: u64,
        now: Now,
        out: &mut Outbox,
    ) -> Result<(), ChangeRefused> {
        let Role::Leader(leader) = &self.role else { return Err(ChangeRefused::NotLeader) };
        let epoch = leader.epoch;
        if self.committed < leader.barrier && !planted(Bug::MembershipBeforeBarrier) {
            return Err(ChangeRefused::BeforeBarrier);
        }
        if !self.is_settled() && !planted(Bug::TwoChangesAtOnce) {
            return Err(ChangeRefused::UnderWay);
        }
        let next = self.membership().after(change)?.by_plan(plan);
        if plan < self.membership().plan() {
            return Err(ChangeRefused::OldPlan);
        }
        if change == MembershipChange::Remove(self.config.me) {
            return Err(ChangeRefused::Leads);
        }
        self.append_own(epoch, Bytes::new(), Some(Arc::new(next)), now, out);
        self.advance_commit(out);
        Ok(())
    }

    /// A leader has those as peers who are members at its log's end. Who was one before under the same node's number
    /// and with another disk is another member.
    pub(crate) fn keep_peers(&mut self) {
        let (me, next, committed) = (self.config.me, self.last().sequence.next(), self.committed);
        let membership = Arc::clone(self.membership());
        let Role::Leader(leader) = &mut self.role else { return };
        leader.peers.retain(|_, peer| membership.on(peer.member.node) == Some(peer.member));
        for member in membership.everyone().filter(|member| *member != me) {
            leader.peers.entry(member.node).or_insert_with(|| Peer::new(member, next, committed));
        }
    }
}

#[cfg(test)]
mod tests;
