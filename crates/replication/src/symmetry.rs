//! Renames nodes, for symmetry reduction in the search: replicas differ only by their numbers, so states that are equal
//! up to renaming count as equal.

use base::{Member, NodeId, Promise};

use crate::cohort::{Cohort, Role};
use crate::message::Message;

impl Cohort {
    /// Renames every node. `rename` must be a one-to-one mapping of members.
    pub fn rename(&mut self, rename: impl Fn(NodeId) -> NodeId + Copy) {
        self.config.me.node = rename(self.config.me.node);
        self.promised = renamed_promise(self.promised, rename);
        self.memberships.rename(rename);
        if let Some(vote) = &mut self.vote {
            vote.leader.node = rename(vote.leader.node);
        }
        let rename_all = |nodes: &mut Vec<NodeId>| {
            nodes.iter_mut().for_each(|node| *node = rename(*node));
            nodes.sort_unstable();
        };
        self.managed.rename(rename);
        match &mut self.role {
            Role::Appointed { .. } => {}
            Role::Follower { leader, .. } => *leader = leader.map(rename),
            Role::PreCandidate { granted, .. } => granted.rename(rename_all),
            Role::Candidate { granted, refused, .. } => {
                granted.rename(rename_all);
                rename_all(refused);
            }
            Role::Leader(leader) => {
                let peers = std::mem::take(&mut leader.peers);
                leader.peers = peers.into_values().map(|peer| peer.renamed(rename)).collect();
            }
        }
    }
}

/// The same promise with the candidate renamed.
pub fn renamed_promise(promise: Promise, rename: impl Fn(NodeId) -> NodeId) -> Promise {
    let candidate = promise.candidate.map(|candidate| Member { node: rename(candidate.node), ..candidate });
    Promise { candidate, ..promise }
}

impl Message {
    /// The same message with all nodes renamed.
    #[must_use]
    pub fn renamed(self, rename: impl Fn(NodeId) -> NodeId) -> Self {
        match self {
            Self::Release { epoch, successor } => Self::Release { epoch, successor: successor.map(rename) },
            other => other,
        }
    }
}
