//! The membership of a cohort (guarantee 8).

use std::sync::Arc;

use crate::codec::DecodeError;
use crate::{Member, NodeId};

/// The members of a cohort at one index of its log. Voters form majorities. *Learners* are candidate members: they
/// receive the log as voters do, and are not part of any quorum.
///
/// An empty membership means that the replica's log does not contain one yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The plan of the last step. The catalog numbers the plans of each cohort in increasing order.
    plan: u64,
    /// In order of node; voters and learners together contain each node at most once.
    voters: Vec<Member>,
    learners: Vec<Member>,
}

/// Maximum voters and learners of a cohort: five replicas and a replacement, or for the catalog a learner on every
/// other node.
pub const MEMBERS_MAX: usize = 1_024;

/// One step of a membership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MembershipChange {
    AddLearner(Member),
    /// Make a learner a voter.
    Promote(Member),
    /// Remove a voter or a learner.
    Remove(Member),
    /// Keep all members, and record another plan.
    Keep,
}

/// Why a step cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStep {
    /// The step has been made already.
    #[error("the change is already in effect")]
    AlreadySo,
    /// The node is a member with another disk, which must be removed first.
    #[error("node {} is a member with another disk", .0.node)]
    OtherDisk(Member),
    /// The member to promote is not a learner.
    #[error("the member to promote is not a learner")]
    NoLearner,
    /// The step would remove the last voter.
    #[error("the last voter cannot be removed")]
    LastVoter,
    /// There are too many members.
    #[error("member limit reached ({MEMBERS_MAX})")]
    TooMany,
}

impl Membership {
    /// A membership of these voters, without learners.
    #[must_use]
    pub fn of(mut voters: Vec<Member>) -> Self {
        voters.sort_unstable();
        voters.dedup_by_key(|member| member.node);
        Self { plan: 0, voters, learners: Vec::new() }
    }

    /// A membership with the `voters` lowest nodes as voters, and the others as learners.
    #[must_use]
    pub fn with_voters(members: Vec<Member>, voters: usize) -> Self {
        let mut all = Self::of(members);
        all.learners = all.voters.split_off(voters.min(all.voters.len()));
        all
    }

    /// The plan of the last step; 0 before the first.
    #[must_use]
    pub fn plan(&self) -> u64 {
        self.plan
    }

    /// The same members, with another plan.
    #[must_use]
    pub fn by_plan(self, plan: u64) -> Self {
        Self { plan, ..self }
    }

    /// Whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.voters.is_empty()
    }

    /// The voters, in order of node.
    #[must_use]
    pub fn voters(&self) -> &[Member] {
        &self.voters
    }

    /// The learners, in order of node.
    #[must_use]
    pub fn learners(&self) -> &[Member] {
        &self.learners
    }

    pub fn everyone(&self) -> impl Iterator<Item = Member> + '_ {
        self.voters.iter().chain(&self.learners).copied()
    }

    /// The number of voters in a majority.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Whether the member is a voter.
    #[must_use]
    pub fn is_voter(&self, member: Member) -> bool {
        self.voters.contains(&member)
    }

    /// Whether the member is a learner.
    #[must_use]
    pub fn is_learner(&self, member: Member) -> bool {
        self.learners.contains(&member)
    }

    /// The member on a node.
    #[must_use]
    pub fn on(&self, node: NodeId) -> Option<Member> {
        self.everyone().find(|member| member.node == node)
    }

    /// The membership after a step.
    ///
    /// # Errors
    /// The step cannot be made from this membership.
    pub fn after(&self, change: MembershipChange) -> Result<Self, NoStep> {
        let mut next = self.clone();
        match change {
            MembershipChange::AddLearner(member) => {
                match self.on(member.node) {
                    Some(there) if there == member => return Err(NoStep::AlreadySo),
                    Some(there) => return Err(NoStep::OtherDisk(there)),
                    None => {}
                }
                if self.voters.len() + self.learners.len() >= MEMBERS_MAX {
                    return Err(NoStep::TooMany);
                }
                next.learners.push(member);
            }
            MembershipChange::Promote(member) => {
                if self.is_voter(member) {
                    return Err(NoStep::AlreadySo);
                }
                let place = self.learners.iter().position(|learner| *learner == member).ok_or(NoStep::NoLearner)?;
                next.voters.push(next.learners.remove(place));
            }
            MembershipChange::Remove(member) => {
                if self.on(member.node) != Some(member) {
                    return Err(NoStep::AlreadySo);
                }
                if self.voters == [member] {
                    return Err(NoStep::LastVoter);
                }
                next.voters.retain(|voter| *voter != member);
                next.learners.retain(|learner| *learner != member);
            }
            MembershipChange::Keep => {}
        }
        next.voters.sort_unstable();
        next.learners.sort_unstable();
        Ok(next)
    }

    /// The membership after a configuration with these voters was installed. Former voters become learners, unless
    /// their node has another disk in it: they take part again only once they hold everything (guarantee 27).
    #[must_use]
    pub fn configured(&self, voters: &[Member]) -> Self {
        let mut next = Self { plan: self.plan, ..Self::of(voters.to_vec()) };
        next.learners = self.everyone().filter(|member| next.on(member.node).is_none()).collect();
        next.learners.sort_unstable();
        next.learners.truncate(MEMBERS_MAX.saturating_sub(next.voters.len()));
        next
    }

    /// The same voters, without learners.
    #[must_use]
    pub fn without_learners(self) -> Self {
        Self { learners: Vec::new(), ..self }
    }

    /// Whether at most one voter was added or removed since `before`. Then every majority of one membership intersects
    /// every majority of the other.
    #[must_use]
    pub fn meets(&self, before: &Self) -> bool {
        let lacks = |one: &Self, other: &Self| one.voters.iter().filter(|voter| !other.is_voter(**voter)).count();
        lacks(self, before) + lacks(before, self) <= 1
    }

    /// The same membership, with the node numbers changed by `rename`.
    #[must_use]
    pub fn renamed(&self, rename: impl Fn(NodeId) -> NodeId) -> Self {
        let all = |members: &[Member]| {
            let mut renamed: Vec<Member> =
                members.iter().map(|member| Member { node: rename(member.node), ..*member }).collect();
            renamed.sort_unstable();
            renamed
        };
        Self { plan: self.plan, voters: all(&self.voters), learners: all(&self.learners) }
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        16 + (self.voters.len() + self.learners.len()) * Member::ENCODED_BYTES
    }

    /// Checks that it has the form that the other functions maintain.
    fn check(&self) -> Result<(), DecodeError> {
        let mut nodes: Vec<NodeId> = self.everyone().map(|member| member.node).collect();
        nodes.sort_unstable();
        let is_in_order = |members: &[Member]| members.is_sorted_by(|a, b| a.node < b.node);
        let is_one = nodes.is_sorted_by(|a, b| a < b) && is_in_order(&self.voters) && is_in_order(&self.learners);
        if !is_one || nodes.len() > MEMBERS_MAX || (self.voters.is_empty() && !nodes.is_empty()) {
            return Err(DecodeError::Invalid { what: "membership of a cohort" });
        }
        Ok(())
    }
}

crate::wire! { struct Membership { plan, voters, learners } checked by Self::check }

impl From<Vec<Member>> for Membership {
    fn from(voters: Vec<Member>) -> Self {
        Self::of(voters)
    }
}

/// A membership shared by entries, logs and replicas.
pub type SharedMembership = Arc<Membership>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;
    use crate::codec::Wire as _;

    fn member(node: u32) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(u64::from(node) * 10) }
    }

    fn three() -> Membership {
        Membership::of([3, 1, 2].map(member).to_vec())
    }

    #[test]
    fn founders_vote_and_others_learn() {
        let five = Membership::with_voters([5, 4, 3, 2, 1].map(member).to_vec(), 3);
        assert_eq!((five.voters(), five.learners()), (&[1, 2, 3].map(member)[..], &[4, 5].map(member)[..]));
        assert_eq!(Membership::with_voters(vec![member(1)], 3), Membership::of(vec![member(1)]));
    }

    #[test]
    fn member_add_and_remove_steps() {
        let with = three().after(MembershipChange::AddLearner(member(4))).unwrap();
        assert_eq!((with.quorum(), with.learners()), (2, &[member(4)][..]));
        let four = with.after(MembershipChange::Promote(member(4))).unwrap();
        assert_eq!((four.quorum(), four.learners().len()), (3, 0));
        assert!(with.meets(&three()) && four.meets(&with) && four.meets(&three()));
        let back = four.after(MembershipChange::Remove(member(1))).unwrap();
        assert_eq!(back, Membership::of([2, 3, 4].map(member).to_vec()));
        assert!(back.meets(&four) && !back.meets(&three()));
    }

    #[test]
    fn rejected_step_reports_reason() {
        let other = Member { node: NodeId(3), incarnation: Incarnation(99) };
        let after = |change| three().after(change).unwrap_err();
        assert_eq!(after(MembershipChange::AddLearner(member(3))), NoStep::AlreadySo);
        assert_eq!(after(MembershipChange::AddLearner(other)), NoStep::OtherDisk(member(3)));
        assert_eq!(after(MembershipChange::Promote(member(4))), NoStep::NoLearner);
        assert_eq!(after(MembershipChange::Promote(member(3))), NoStep::AlreadySo);
        assert_eq!(after(MembershipChange::Remove(other)), NoStep::AlreadySo);
        let alone = Membership::of(vec![member(1)]);
        assert_eq!(alone.after(MembershipChange::Remove(member(1))), Err(NoStep::LastVoter));
    }

    #[test]
    fn membership_codec_round_trip() {
        let read = |membership: &Membership| {
            let bytes = membership.to_bytes();
            assert_eq!(bytes.len(), membership.bytes());
            Membership::from_bytes(bytes)
        };
        let with = three().after(MembershipChange::AddLearner(member(4))).unwrap();
        for whole in [Membership::default(), three(), with] {
            assert_eq!(read(&whole), Ok(whole.clone()));
        }
        let twice = Membership { plan: 1, voters: vec![member(1)], learners: vec![member(1)] };
        let unsorted = Membership { plan: 1, voters: vec![member(2), member(1)], learners: Vec::new() };
        let voiceless = Membership { plan: 1, voters: Vec::new(), learners: vec![member(1)] };
        for broken in [twice, unsorted, voiceless] {
            assert!(read(&broken).is_err(), "{broken:?}");
        }
    }
}
