//! The configuration of a replica group under primary/backup replication (PacificA, section 2.2; guarantee 27).

use crate::codec::DecodeError;
use crate::{Epoch, MEMBERS_MAX, Member, NodeId};

/// A configuration of a cohort: its members and which of them is the primary. The catalog is the configuration manager
/// and replaces a configuration only with one of the next version.
///
/// Invariant: `members` is not empty, is in order of node with each node at most once, and contains `primary`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Configuration {
    /// Its version, which is also the epoch of the entries that its primary proposes; 1: the cohort's first one.
    pub version: Epoch,
    /// The members, in order of node. Each must hold an update before the update commits.
    pub members: Vec<Member>,
    /// The primary, one of the members.
    pub primary: Member,
    /// The last version in which an operator declared that acknowledged updates may be lost; 0: never. A log whose last
    /// entry has a lower epoch may contain updates that the members have lost.
    pub loss: Epoch,
}

/// Why a configuration cannot replace another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuccessor {
    /// It was requested for another configuration than the current one.
    #[error("the configuration has another version")]
    OtherVersion,
    /// The members are not a valid set with the primary among them.
    #[error("the members are not distinct nodes that include the primary")]
    Malformed,
    /// The primary was no member before, so it may lack committed updates.
    #[error("the primary was not a member of the configuration before")]
    UnknownPrimary,
    /// Only the primary knows which candidates hold everything, so a change of primary adds no member.
    #[error("a new primary cannot add members")]
    AddsMembers,
}

impl Configuration {
    /// A configuration of these members; the primary is added to them if it is missing.
    #[must_use]
    pub fn new(version: Epoch, mut members: Vec<Member>, primary: Member) -> Self {
        if !members.contains(&primary) {
            members.push(primary);
        }
        members.sort_unstable();
        members.dedup_by_key(|member| member.node);
        Self { version, members, primary, loss: Epoch(0) }
    }

    /// The first configuration of a range that is split off. A loss that was declared before does not concern it: its
    /// replicas are made from states after the loss.
    #[must_use]
    pub fn for_child(&self) -> Self {
        Self { loss: Epoch(0), ..self.clone() }
    }

    /// Whether the member belongs to it.
    #[must_use]
    pub fn has(&self, member: Member) -> bool {
        self.members.contains(&member)
    }

    /// Checks whether it may replace `before`.
    ///
    /// # Errors
    /// The first reason why it may not.
    pub fn may_follow(&self, before: &Self) -> Result<(), NoSuccessor> {
        if self.version.0.checked_sub(1) != Some(before.version.0) {
            return Err(NoSuccessor::OtherVersion);
        }
        if !self.is_well_formed() {
            return Err(NoSuccessor::Malformed);
        }
        if !before.has(self.primary) {
            return Err(NoSuccessor::UnknownPrimary);
        }
        if self.primary != before.primary && self.members.iter().any(|member| !before.has(*member)) {
            return Err(NoSuccessor::AddsMembers);
        }
        Ok(())
    }

    /// Whether the members are distinct nodes in order that include the primary.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        self.members.len() <= MEMBERS_MAX && self.members.is_sorted_by(|a, b| a.node < b.node) && self.has(self.primary)
    }

    /// The same configuration with the node numbers changed by `rename`.
    #[must_use]
    pub fn renamed(&self, rename: impl Fn(NodeId) -> NodeId) -> Self {
        let renamed = |member: Member| Member { node: rename(member.node), ..member };
        let members = self.members.iter().map(|member| renamed(*member)).collect();
        Self { loss: self.loss, ..Self::new(self.version, members, renamed(self.primary)) }
    }

    fn check(&self) -> Result<(), DecodeError> {
        if self.is_well_formed() { Ok(()) } else { Err(DecodeError::Invalid { what: "configuration of a cohort" }) }
    }
}

crate::wire! { struct Configuration { version, primary, members, loss } checked by Self::check }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;
    use crate::codec::Wire as _;

    fn member(node: u32) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(u64::from(node) * 10) }
    }

    fn of(version: u64, nodes: &[u32], primary: u32) -> Configuration {
        let members = nodes.iter().map(|node| member(*node)).collect();
        Configuration { version: Epoch(version), members, primary: member(primary), loss: Epoch(0) }
    }

    #[test]
    fn successor_rules() {
        let before = of(4, &[1, 2, 3], 1);
        let may = |after: Configuration| after.may_follow(&before);
        assert_eq!(may(of(5, &[1, 3], 1)), Ok(()), "a secondary is removed");
        assert_eq!(may(of(5, &[2, 3], 2)), Ok(()), "the primary is replaced");
        assert_eq!(may(of(5, &[1, 2, 3], 1)), Ok(()), "the primary has restarted");
        assert_eq!(may(of(5, &[1, 2, 3, 4], 1)), Ok(()), "a candidate is added");
        assert_eq!(may(of(4, &[1, 3], 1)), Err(NoSuccessor::OtherVersion));
        assert_eq!(may(of(6, &[1, 3], 1)), Err(NoSuccessor::OtherVersion));
        assert_eq!(may(of(5, &[], 1)), Err(NoSuccessor::Malformed));
        assert_eq!(may(of(5, &[2, 3], 1)), Err(NoSuccessor::Malformed));
        assert_eq!(may(of(5, &[2, 1, 3], 1)), Err(NoSuccessor::Malformed));
        assert_eq!(may(of(5, &[1, 2, 3, 4], 4)), Err(NoSuccessor::UnknownPrimary));
        assert_eq!(may(of(5, &[2, 3, 4], 2)), Err(NoSuccessor::AddsMembers));
    }

    #[test]
    fn configuration_codec_rejects_malformed() {
        let whole = of(7, &[1, 2, 3], 2);
        assert_eq!(Configuration::from_bytes(whole.to_bytes()), Ok(whole));
        for broken in [of(7, &[], 2), of(7, &[1, 3], 2), of(7, &[2, 2], 2)] {
            assert!(Configuration::from_bytes(broken.to_bytes()).is_err(), "{broken:?}");
        }
    }
}
