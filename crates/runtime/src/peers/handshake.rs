//! The acceptance check of a hello, independent of sockets.
//!
//! A node is one disk of one cluster (guarantee 6). A different disk with a member's number is rejected with a reason
//! that names the usual cause, a data directory that was lost and formatted again. A disk that was rolled back to an
//! older copy is recognized by its history of starts, which contradicts the newest start that this node has seen.

use std::collections::{BTreeMap, BTreeSet};

use base::{Boot, ClusterId, Member, NodeId, ProcessStart, StartHistory};

use crate::frames::{Hello, PROTOCOL_VERSION, Refusal, RefusalKind};

/// This node's identity, and the members that it knows.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster: ClusterId,
    pub(crate) member: Member,
    /// The start of this process, and the ones before it.
    pub(crate) starts: StartHistory,
    /// The newest start of each peer that earlier processes of this node have seen.
    pub(crate) peers: BTreeMap<NodeId, ProcessStart>,
    /// This node's address for peers.
    pub(crate) address: String,
    /// The known members of the cluster with their disks, including this one.
    pub(crate) members: Vec<Member>,
}

/// Maximum number of connected nodes that are not in the local roster yet; equal to the maximum size of a cluster.
const UNANNOUNCED_MAX: usize = catalog::catalog::NODES_MAX;

/// Checks hellos, and remembers the newest start of each member.
#[derive(Debug)]
pub(crate) struct Handshake {
    identity: Identity,
    /// The newest start of each peer that this process has seen.
    newest: BTreeMap<NodeId, ProcessStart>,
    /// New starts that the machine was not notified of yet.
    started: Vec<(Member, ProcessStart)>,
    /// Peers with rolled-back disks that the machine was not notified of yet.
    rolled_back: Vec<NodeId>,
    /// Nodes that have left.
    left: BTreeSet<NodeId>,
    /// Nodes that connected before they were in the local roster, with their stated identity and address.
    unannounced: BTreeMap<NodeId, (Member, String)>,
}

impl Handshake {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            newest: BTreeMap::new(),
            started: Vec::new(),
            rolled_back: Vec::new(),
            left: BTreeSet::new(),
            unannounced: BTreeMap::new(),
        }
    }

    /// This node's hello to `to`.
    pub(crate) fn hello(&self, to: NodeId) -> Hello {
        Hello {
            version: PROTOCOL_VERSION,
            cluster: self.identity.cluster,
            node: self.identity.member.node,
            incarnation: self.identity.member.incarnation,
            to,
            starts: self.identity.starts.clone(),
            address: self.identity.address.clone(),
        }
    }

    /// Updates the roster from the machine: current members, and nodes that have left.
    pub(crate) fn update_roster(
        &mut self,
        current: impl IntoIterator<Item = Member>,
        left: impl IntoIterator<Item = NodeId>,
    ) {
        self.left = left.into_iter().collect();
        let members = &mut self.identity.members;
        members.extend(current);
        members.sort_unstable();
        members.dedup();
        members.retain(|member| !self.left.contains(&member.node));
        self.unannounced
            .retain(|node, _| !self.left.contains(node) && members.iter().all(|member| member.node != *node));
    }

    /// The address of a node that connected before it was in the local roster.
    pub(crate) fn address_of(&self, node: NodeId) -> Option<&str> {
        self.unannounced.get(&node).map(|(_, address)| address.as_str())
    }

    /// Whether this is the newest known boot of the node: messages in flight from an earlier one are dropped.
    pub(crate) fn is_newest(&self, node: NodeId, boot: Boot) -> bool {
        self.newest.get(&node).is_none_or(|newest| newest.boot <= boot)
    }

    /// Accepts the node that sent `hello`, or returns the refusal.
    pub(crate) fn judge(&mut self, hello: &Hello) -> Result<(), Refusal> {
        if let Err((kind, reason)) = self.check(hello) {
            if kind == RefusalKind::RolledBack {
                self.rolled_back.push(hello.node);
            }
            let Identity { cluster, member: Member { node, incarnation }, .. } = self.identity;
            return Err(Refusal { kind, cluster, node, incarnation, reason });
        }
        let member = Member { node: hello.node, incarnation: hello.incarnation };
        if !self.identity.members.iter().any(|known| known.node == member.node) {
            self.unannounced.insert(member.node, (member, hello.address.clone()));
        }
        let start = hello.starts.newest();
        if self.newest.insert(hello.node, start) != Some(start) {
            self.started.push((member, start));
        }
        Ok(())
    }

    /// New starts since the last call. The machine is notified of them before it receives messages from them, and before
    /// it sends them any.
    pub(crate) fn take_started(&mut self) -> Vec<(Member, ProcessStart)> {
        std::mem::take(&mut self.started)
    }

    /// Peers that were rejected since the last call because their disks were rolled back.
    pub(crate) fn take_rolled_back(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.rolled_back)
    }

    fn check(&self, hello: &Hello) -> Result<(), (RefusalKind, String)> {
        let own = &self.identity;
        if hello.version != PROTOCOL_VERSION {
            let reason = format!(
                "protocol mismatch: node {} has version {PROTOCOL_VERSION}, node {} version {}",
                own.member.node, hello.node, hello.version
            );
            return Err((RefusalKind::Version, reason));
        }
        if hello.cluster != own.cluster {
            let reason = format!(
                "cluster mismatch: node {} belongs to cluster {}, node {} to cluster {}",
                own.member.node, own.cluster, hello.node, hello.cluster
            );
            return Err((RefusalKind::Cluster, reason));
        }
        if hello.to != own.member.node {
            let reason = format!("address mismatch: this is node {}, not node {}", own.member.node, hello.to);
            return Err((RefusalKind::Recipient, reason));
        }
        self.check_membership(hello)?;
        let seen = self.newest.get(&hello.node).or_else(|| own.peers.get(&hello.node));
        match seen.filter(|seen| hello.starts.contradicts(**seen)) {
            Some(seen) => {
                let reason = format!(
                    "the disk of node {} was rolled back to an older copy: its boot {} is not one that followed boot {} \
                     of node {} on its former disk. The copy lacks promises and acknowledged writes: remove the data \
                     directory, join a new node with a new number (loggos admin join), then remove node {} (loggos \
                     admin leave {})",
                    hello.node,
                    hello.starts.newest().boot,
                    seen.boot,
                    hello.node,
                    hello.node,
                    hello.node
                );
                Err((RefusalKind::RolledBack, reason))
            }
            None => Ok(()),
        }
    }

    /// Accepts unknown node numbers: a node receives the cluster's identity only after it was added to the roster, and
    /// numbers are never reused, so the local roster is stale.
    fn check_membership(&self, hello: &Hello) -> Result<(), (RefusalKind, String)> {
        let members = &self.identity.members;
        if self.left.contains(&hello.node) {
            let reason = format!(
                "node {} has left cluster {}; its data is not needed any more. To add it again, erase its disk and join \
                 with a new number",
                hello.node, self.identity.cluster
            );
            return Err((RefusalKind::Left, reason));
        }
        if (Member { node: hello.node, incarnation: hello.incarnation }).is_among(members) {
            return Ok(());
        }
        let unannounced = self.unannounced.get(&hello.node).map(|(member, _)| member);
        let known = members.iter().find(|member| member.node == hello.node).or(unannounced);
        match known.filter(|member| member.incarnation != hello.incarnation) {
            Some(member) => {
                let reason = format!(
                    "the disk of node {} has incarnation {:x}, but the cluster knows incarnation {:x}. A lost or replaced \
                     disk may have lost promises and acknowledged writes: it must join with a new node number",
                    hello.node, hello.incarnation.0, member.incarnation.0
                );
                Err((RefusalKind::NotMember, reason))
            }
            None if unannounced.is_none() && self.unannounced.len() >= UNANNOUNCED_MAX => {
                let reason = format!("too many nodes that are not in the roster yet ({UNANNOUNCED_MAX})");
                Err((RefusalKind::NotMember, reason))
            }
            None => Ok(()),
        }
    }

    /// The consequence of a refusal for this node: the reason to halt, if a member reports that this disk is not the
    /// one that the cluster knows, that it is an older copy, or that this node has left.
    pub(crate) fn verdict(&self, refusal: &Refusal) -> Option<(RefusalKind, String)> {
        let own = &self.identity;
        let by_member = refusal.cluster == own.cluster
            && own.members.iter().any(|m| m.node == refusal.node && m.incarnation == refusal.incarnation);
        (by_member && matches!(refusal.kind, RefusalKind::NotMember | RefusalKind::RolledBack | RefusalKind::Left))
            .then(|| (refusal.kind, format!("rejected by node {}: {}", refusal.node, refusal.reason)))
    }
}

#[cfg(test)]
mod tests {
    use base::Incarnation;

    use super::*;

    fn member(node: u32, incarnation: u64) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(incarnation) }
    }

    fn handshake(node: u32, incarnation: u64) -> Handshake {
        let members = vec![member(1, 10), member(2, 20), member(3, 30)];
        let (cluster, address) = (ClusterId(7), format!("10.0.0.{node}:7"));
        let (member, starts, peers) = (member(node, incarnation), starts(&[1, 2, 3, 4, 5]), BTreeMap::new());
        Handshake::new(Identity { cluster, member, starts, peers, address, members })
    }

    fn starts(nonces: &[u64]) -> StartHistory {
        let mut starts = StartHistory::default();
        nonces.iter().for_each(|nonce| starts.add(*nonce));
        starts
    }

    fn refused(change: impl FnOnce(&mut Hello)) -> Refusal {
        let mut hello = handshake(2, 20).hello(NodeId(1));
        change(&mut hello);
        handshake(1, 10).judge(&hello).unwrap_err()
    }

    #[test]
    fn handshake_between_members() {
        let hello = handshake(2, 20).hello(NodeId(1));
        assert_eq!(handshake(1, 10).judge(&hello), Ok(()));
    }

    #[test]
    fn refusal_names_both_identities() {
        let other = PROTOCOL_VERSION + 1;
        let refusal = refused(|hello| hello.version = other);
        assert_eq!(refusal.kind, RefusalKind::Version);
        let [ours, theirs] = [PROTOCOL_VERSION, other].map(|version| format!("version {version}"));
        assert!(refusal.reason.contains(&ours) && refusal.reason.contains(&theirs), "{}", refusal.reason);

        let refusal = refused(|hello| hello.cluster = ClusterId(8));
        assert_eq!(refusal.kind, RefusalKind::Cluster);
        assert!(refusal.reason.contains(&ClusterId(7).to_string()), "{}", refusal.reason);
        assert!(refusal.reason.contains(&ClusterId(8).to_string()), "{}", refusal.reason);

        assert_eq!(refused(|hello| hello.to = NodeId(3)).kind, RefusalKind::Recipient);
    }

    #[test]
    fn handshake_learns_joins_and_refuses_left_nodes() {
        let (mut own, mut later) = (handshake(1, 10), handshake(4, 40));
        assert_eq!(own.judge(&later.hello(NodeId(1))), Ok(()));
        assert_eq!(own.take_started(), [(member(4, 40), starts(&[1, 2, 3, 4, 5]).newest())]);
        assert_eq!(own.address_of(NodeId(4)), Some("10.0.0.4:7"));
        assert_eq!(own.judge(&handshake(4, 41).hello(NodeId(1))).unwrap_err().kind, RefusalKind::NotMember);
        own.update_roster([member(4, 40)], []);
        assert_eq!(own.judge(&later.hello(NodeId(1))), Ok(()));
        assert_eq!(own.address_of(NodeId(4)), None);
        own.update_roster([], [NodeId(4)]);
        let refusal = own.judge(&later.hello(NodeId(1))).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Left);
        assert!(later.verdict(&refusal).is_some_and(|(_, why)| why.contains("has left")));
        assert!(later.judge(&own.hello(NodeId(4))).is_ok());
    }

    #[test]
    fn replaced_disk_is_refused_and_halts() {
        let mut blank = handshake(2, 0xbad);
        let refusal = handshake(1, 10).judge(&blank.hello(NodeId(1))).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::NotMember);
        assert!(refusal.reason.contains("bad") && refusal.reason.contains("14"), "{}", refusal.reason);
        assert!(blank.verdict(&refusal).is_some());

        // Not for a refusal from an unverified peer, nor for another kind of refusal.
        let stranger = Refusal { incarnation: Incarnation(99), ..refusal.clone() };
        assert_eq!(blank.verdict(&stranger), None);
        assert_eq!(blank.verdict(&Refusal { kind: RefusalKind::Version, ..refusal }), None);
        assert!(blank.judge(&handshake(1, 10).hello(NodeId(2))).is_ok(), "a member of the roster");
    }

    #[test]
    fn rolled_back_disk_is_refused_and_halts() {
        let (mut own, mut later) = (handshake(1, 10), handshake(1, 10));
        let mut hello = handshake(2, 20).hello(NodeId(1));
        own.judge(&hello).unwrap();
        assert!(!own.is_newest(NodeId(2), Boot(4)));
        assert!(own.is_newest(NodeId(2), Boot(5)) && own.is_newest(NodeId(2), Boot(6)));
        // The next process of this node knows the start from the manifest, and is notified of it again.
        later.identity.peers = own.newest.clone();
        for own in [&mut own, &mut later] {
            own.take_started();
            for nonces in [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 9], &[1, 2, 9, 9, 9, 9]] {
                hello.starts = starts(nonces);
                let refusal = own.judge(&hello).unwrap_err();
                assert_eq!((refusal.kind, own.take_rolled_back()), (RefusalKind::RolledBack, vec![NodeId(2)]));
                assert!(handshake(2, 20).verdict(&refusal).is_some_and(|(_, why)| why.contains("admin leave 2")));
            }
            assert!(own.take_started().is_empty());
        }
        hello.starts = starts(&[1, 2, 3, 4, 5]);
        assert!(later.judge(&hello).is_ok() && later.take_started().len() == 1);
        hello.starts = starts(&[1, 2, 3, 4, 5, 6, 7]);
        assert!(own.judge(&hello).is_ok() && own.take_started().len() == 1);
    }
}
