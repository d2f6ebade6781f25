//! Membership changes, one at a time (Gaios 3.1 on SMART's reconfiguration; Ongaro, *Consensus*, 4.1; guarantee 8).
//!
//! The membership is part of the log: an entry that changes it takes effect when it is appended and reverts when it is
//! truncated, at each replica according to its own log. Consecutive memberships differ by at most one voter, so every
//! majority of one intersects every majority of the other. A leader appends a change only after the previous one is
//! committed, and not before an entry of its own epoch is: otherwise two leaders might each change the membership
//! differently.
//!
//! A new member starts as a learner: it receives the log, or a snapshot if necessary, and counts in no majority. It
//! starts in doubt, like a replica that may have forgotten acknowledged entries, because it may be a former member that
//! has deleted its log. So it promises nothing before it has caught up with a leader (guarantee 7). Afterwards it may,
//! even before its own log says that it votes; otherwise a single failure at that time could prevent elections.

use std::collections::VecDeque;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Member, MembershipChange, NoStep, NodeId, Now, Sequence, SharedMembership, Timestamp};
use bytes::Bytes;

use crate::cohort::{Cohort, Role};
use crate::config::CommitRule;
use crate::leader::Peer;
use crate::outbox::Outbox;

/// The memberships of a log: the one at its applied end, and every later change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memberships {
    base: SharedMembership,
    /// The sequence of the change that created `base`, or a later one.
    base_changed: Sequence,
    later: VecDeque<(Sequence, SharedMembership)>,
}

/// Why a leader rejects a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// This replica is not the leader.
    #[error("this replica doesn't lead")]
    NotLeader,
    /// No entry of the leader's epoch is committed yet.
    #[error("the leader's first entry is not committed yet")]
    BeforeBarrier,
    /// The previous change is not committed yet.
    #[error("another change is not committed yet")]
    UnderWay,
    /// A leader does not remove itself: it transfers leadership first.
    #[error("the leader hands over before it is removed")]
    Leads,
    /// The learner has not caught up.
    #[error("the candidate member has not caught up yet")]
    Behind,
    /// Without this voter no majority would be alive.
    #[error("without it no majority would be alive")]
    WouldStall,
    /// A newer plan has started.
    #[error("a newer plan has been begun")]
    OldPlan,
    /// The current membership does not allow this change.
    #[error("{0}")]
    NoStep(#[from] NoStep),
}

impl Memberships {
    pub(crate) fn new(base: SharedMembership) -> Self {
        Self { base, base_changed: Sequence(0), later: VecDeque::new() }
    }

    /// The membership in force: that of the last entry that changed it.
    pub(crate) fn last(&self) -> &SharedMembership {
        self.later.back().map_or(&self.base, |(_, membership)| membership)
    }

    /// The sequence of the last change that is not settled.
    pub(crate) fn last_change(&self) -> Option<Sequence> {
        self.later.back().map(|(sequence, _)| *sequence)
    }

    /// A log through this sequence includes the newest membership.
    fn known_from(&self) -> Sequence {
        self.last_change().unwrap_or(self.base_changed)
    }

    /// The membership in force after an entry, which must not precede the settled one.
    fn at(&self, sequence: Sequence) -> &SharedMembership {
        let until = self.later.iter().rev().find(|(changed, _)| *changed <= sequence);
        until.map_or(&self.base, |(_, membership)| membership)
    }

    pub(crate) fn push(&mut self, sequence: Sequence, membership: SharedMembership) {
        self.later.push_back((sequence, membership));
    }

    /// Reverts changes from `from` on, because the log was truncated.
    pub(crate) fn truncate(&mut self, from: Sequence) {
        self.later.retain(|(sequence, _)| *sequence < from);
    }

    /// Settles applied changes, which are never truncated.
    pub(crate) fn settle(&mut self, applied: Sequence) {
        while let Some((changed, membership)) = self.later.pop_front_if(|(sequence, _)| *sequence <= applied) {
            (self.base, self.base_changed) = (membership, changed);
        }
    }

    /// A snapshot replaced the log through this sequence.
    pub(crate) fn replace(&mut self, through: Sequence, membership: SharedMembership) {
        self.later.retain(|(sequence, _)| *sequence > through);
        (self.base, self.base_changed) = (membership, through);
    }

    /// Whether each membership follows from the previous one; the first known one may follow from none.
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
    /// The membership in force at the end of this replica's log.
    #[must_use]
    pub fn membership(&self) -> &SharedMembership {
        if planted(Bug::MembershipOnCommit) {
            return self.memberships.at(self.committed);
        }
        self.memberships.last()
    }

    /// The membership as of the last applied entry; checkpoints store it with the state.
    #[must_use]
    pub fn membership_applied(&self) -> &SharedMembership {
        self.memberships.at(self.applied)
    }

    /// Whether every membership change in this log is known to be committed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.memberships.last_change().is_none_or(|changed| changed <= self.committed)
    }

    pub(crate) fn is_voter(&self, member: Member) -> bool {
        self.membership().is_voter(member)
    }

    /// The members of which a quorum must hold an entry before it is committed: the voters, and at a primary the
    /// candidates that may be members already.
    pub fn electorate(&self) -> impl Iterator<Item = Member> + '_ {
        self.membership().voters().iter().chain(&self.managed.joining).copied()
    }

    /// The number of members of [`Cohort::electorate`] that must hold an entry before it is committed: a majority, or
    /// all.
    #[must_use]
    pub fn quorum(&self) -> usize {
        match self.config.regime.commit_rule() {
            CommitRule::Majority => self.membership().quorum(),
            CommitRule::All => self.electorate().count(),
        }
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

    /// Whether now is a good time for this change: a learner to be promoted has caught up, and without a voter to be
    /// removed a majority of the others is alive. Not needed for safety.
    ///
    /// A learner has caught up only when its own log, too, says that it is one. Until then it may be a former member
    /// that deletes its data when it learns of its removal.
    ///
    /// # Errors
    /// The reason to wait.
    pub fn is_ready_for(&self, change: MembershipChange, now: Now) -> Result<(), ChangeRefused> {
        let Role::Leader(leader) = &self.role else { return Err(ChangeRefused::NotLeader) };
        let next = self.membership().after(change)?;
        let knows = |peer: &Peer| peer.matched >= self.memberships.known_from();
        let is_close = |peer: &Peer| peer.is_close(self.committed) && (knows(peer) || planted(Bug::PromotedUnawares));
        let is_behind = |member: Member| leader.peers.get(&member.node).is_none_or(|peer| !is_close(peer));
        match change {
            MembershipChange::Promote(member) if is_behind(member) => Err(ChangeRefused::Behind),
            // A silent member is removed to continue without it.
            MembershipChange::Remove(_) if self.is_managed() => Ok(()),
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

    /// Appends a membership change by a plan that is not older than the last one. It takes effect now and is permanent
    /// once committed.
    ///
    /// # Errors
    /// When the change is invalid, or not possible now.
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
        if matches!(change, MembershipChange::Remove(member) if self.managed.joining.contains(&member)) {
            // Its addition may be recorded, or the petition was lost. A further version decides.
            self.petition_for(MembershipChange::Keep, now, out)?;
            return Err(ChangeRefused::UnderWay);
        }
        if self.is_managed() && next.voters() != self.membership().voters() {
            return self.petition_for(change, now, out);
        }
        self.append_own(epoch, Bytes::new(), Some(Arc::new(next)), Timestamp(0), now, out);
        self.advance_commit(now, out);
        Ok(())
    }

    /// Makes a leader's peers the members at the end of its log. A member with the same node but another disk is a
    /// different member.
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
