//! The known nodes of the cluster, and the catalog leader's handling of nodes that join and leave (guarantees 6 and 8).
//! The catalog entries are described in `catalog/src/catalog/nodes.rs`.
//!
//! A node knows its founding or join configuration, the roster in its copy of the catalog, and the nodes that have
//! identified themselves to it. The last are needed after a restart, while that copy is behind its earlier state: of
//! any two nodes, the later one learned of the other when it joined, and identifies itself to it. Knowing a node gives
//! it no vote: each cohort's log decides its membership.
//!
//! Every node is a member of the catalog's cohort, because it locates tables by its own copy. Nodes that stay join as
//! learners and are promoted when voters are missing. Nodes that leave are removed once they host no range.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{
    Boot, CohortId, Duration, Member, Membership, MembershipChange, Monotonic, NodeId, Now, ProcessStart,
    SharedMembership,
};
use bytes::Bytes;
use catalog::{Catalog, CatalogCommand, Change, Standing};
use replication::Cohort;
use sharedlog::SequencerId;

use crate::contract::Action;
use crate::node::Node;

/// Numbers of catalog voters that a cluster may have, the greatest first: it has the greatest that its nodes allow. So a
/// cluster of five survives the loss of any two. More than five voters would make each change of the catalog slower.
const CATALOG_VOTERS: [usize; 3] = [5, 3, 1];

/// A peer that was silent for this long counts as not alive.
pub(crate) const ALIVE: base::Duration = base::Duration::from_millis(1_000);

/// The known nodes, and the known leaders.
#[derive(Debug)]
pub(crate) struct Roster {
    pub(crate) me: Member,
    pub(crate) boot: Boot,
    /// Every node, including this one, ordered by number.
    pub(crate) members: Vec<Member>,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    /// The newest start of each peer that was ever seen, for the manifest (guarantee 6).
    pub(crate) starts: BTreeMap<NodeId, ProcessStart>,
    /// Leaders of cohorts without a local replica, from redirects.
    pub(crate) routes: BTreeMap<CohortId, NodeId>,
    /// The driver must receive the new roster.
    pub(crate) has_work: bool,
    /// When this process started.
    started: Monotonic,
}

/// The state of a peer at the last contact.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) boot: Boot,
    pub(crate) last_contact: Option<Monotonic>,
    /// A forwarded request to it timed out, and no message has arrived from it since.
    pub(crate) silent: bool,
    /// Until when its disk counts as full.
    pub(crate) full_until: Monotonic,
    /// The driver has no connection to it: messages to it are dropped.
    pub(crate) is_disconnected: bool,
    /// Its last process was rejected, because its disk was rolled back.
    pub(crate) is_rolled_back: bool,
}

impl Roster {
    pub(crate) fn new(
        me: Member,
        boot: Boot,
        members: Vec<Member>,
        starts: BTreeMap<NodeId, ProcessStart>,
        started: Monotonic,
    ) -> Self {
        let peers = members.iter().filter(|member| **member != me).map(|member| (member.node, Peer::default()));
        Self { me, boot, peers: peers.collect(), starts, members, routes: BTreeMap::new(), has_work: true, started }
    }

    /// The identity of this process as a sequencer of shared logs.
    pub(crate) fn sequencer(&self) -> SequencerId {
        SequencerId { node: self.me.node, boot: self.boot }
    }

    /// The member identity of a node, which includes its disk's incarnation.
    pub(crate) fn member(&self, node: NodeId) -> Option<Member> {
        self.members.iter().copied().find(|member| member.node == node)
    }

    /// The other nodes that this process has had no contact with for this time.
    fn absent_for(&self, time: Duration, now: Monotonic) -> Vec<NodeId> {
        let is_absent = |peer: &Peer| now.since(peer.last_contact.unwrap_or(self.started)) >= time;
        self.peers.iter().filter(|(_, peer)| is_absent(peer)).map(|(node, _)| *node).collect()
    }

    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::NodesChanged);
    }

    fn know(&mut self, member: Member) {
        if self.member(member.node).is_none() {
            self.members.push(member);
            self.members.sort_unstable();
        }
        if member != self.me {
            self.peers.entry(member.node).or_default();
        }
    }
}

/// Minimum number of catalog voters in a cluster of `nodes` nodes; initially those with the lowest numbers.
pub(crate) fn catalog_voters(nodes: usize) -> usize {
    CATALOG_VOTERS.into_iter().find(|voters| *voters <= nodes).unwrap_or(1)
}

impl Node {
    /// A peer has identified its process.
    pub(crate) fn peer_started(&mut self, from: Member, start: ProcessStart, now: Now) {
        let is_over = |catalog: &Catalog| {
            catalog.roster().any(|node| node.member.node == from.node && node.standing == Standing::Left)
        };
        if !is_over(self.catalog()) {
            self.cluster.know(from);
        }
        if self.cluster.member(from.node) == Some(from) {
            if self.cluster.starts.insert(from.node, start) != Some(start) {
                self.outgoing.outbox.change_manifest();
            }
            self.peer_contacted(from.node, start.boot, now);
        }
    }

    pub(crate) fn peer_rolled_back(&mut self, peer: NodeId) {
        // The peer may have been removed.
        if let Some(peer) = self.cluster.peers.get_mut(&peer) {
            peer.is_rolled_back = true;
        }
    }

    /// Adopts the roster of the local catalog, and reports it to the driver if it has changed.
    pub(crate) fn run_roster(&mut self) -> bool {
        if !std::mem::take(&mut self.cluster.has_work) {
            return false;
        }
        let roster = self.catalog().roster().cloned().collect();
        self.actions.push(Action::Know { roster });
        let (left, there): (Vec<_>, Vec<_>) = self
            .catalog()
            .roster()
            .map(|node| (node.member, node.standing))
            .partition(|(_, standing)| *standing == Standing::Left);
        for (member, _) in left.into_iter().filter(|(member, _)| *member != self.cluster.me) {
            self.cluster.members.retain(|known| *known != member);
            self.cluster.peers.remove(&member.node);
            self.cluster.starts.remove(&member.node);
            self.logs.controller.forget(member.node);
            self.beats.forget_peer(member.node);
            self.clock_watch.forget_peer(member.node);
        }
        there.into_iter().for_each(|(member, _)| self.cluster.know(member));
        true
    }

    /// Takes the next step toward the planned membership of the catalog's cohort, if this node leads it.
    pub(crate) fn push_roster(&mut self, now: Now) {
        let Some(catalog) = self.led_catalog() else { return };
        let replica = &self.replicas[&CohortId::CATALOG];
        let held = SharedMembership::clone(replica.cohort.membership());
        let is_ready = |change| replica.cohort.is_ready_for(change, now).is_ok();
        if let Some(step) = next_step(&held, catalog, is_ready) {
            let plan = held.plan();
            self.take_step_of(CohortId::CATALOG, step, plan, now);
        }
    }
}

/// The next step toward a catalog cohort of the remaining nodes, with the required number of voters.
fn next_step(
    held: &Membership,
    catalog: &Catalog,
    is_ready: impl Fn(MembershipChange) -> bool,
) -> Option<MembershipChange> {
    let stays: Vec<Member> = catalog.staying().collect();
    if let Some(newcomer) = stays.iter().find(|member| held.on(member.node).is_none()) {
        return Some(MembershipChange::AddLearner(*newcomer));
    }
    let voters = stays.iter().filter(|member| held.is_voter(**member)).count();
    let is_short = voters < catalog_voters(stays.len());
    // An even number of voters tolerates no more failures than the next lower odd number, but needs a larger quorum.
    if is_short || voters % 2 == 0 {
        let learners = stays.iter().filter(|member| held.is_learner(**member));
        let promotion = learners.map(|learner| MembershipChange::Promote(*learner)).find(|change| is_ready(*change));
        if promotion.is_some() {
            return promotion;
        }
    }
    if is_short {
        return None;
    }
    let has_nothing = |member: &Member| !catalog.counts_on(*member) || planted(Bug::LeaverLeftBehind);
    let mut leavers = catalog.leaving().filter(|member| held.on(member.node).is_some()).filter(has_nothing);
    leavers.next().map(MembershipChange::Remove)
}

/// Periodic proposals of the catalog leader about nodes: to move the ranges of leaving ones away, to remove one once it is
/// in no cohort, and to record the nodes with a full disk.
pub(crate) fn proposals(
    catalog: &Catalog,
    cohort: &Cohort,
    (roster, is_full): (&Roster, bool),
    replace_after: Duration,
    now: Monotonic,
) -> Vec<Bytes> {
    let is_out = |member: Member| {
        let is_removed = cohort.is_settled() && cohort.membership().on(member.node).is_none();
        (is_removed || planted(Bug::LeaverStillVotes)) && (!catalog.counts_on(member) || planted(Bug::LeaverLeftBehind))
    };
    let gone = catalog.leaving().filter(|member| is_out(*member));
    let mut proposals: Vec<CatalogCommand> =
        gone.map(|member| CatalogCommand::EndLeave { node: member.node }).collect();
    let mut full: Vec<NodeId> =
        roster.peers.iter().filter(|(_, peer)| now < peer.full_until).map(|(id, _)| *id).collect();
    full.extend(is_full.then_some(roster.me.node));
    full.sort_unstable();
    if full != catalog.full() {
        proposals.push(CatalogCommand::NoteFull { nodes: full });
    }
    let is_alive = |peer: &Peer| peer.last_contact.is_some_and(|last_contact| now.since(last_contact) < ALIVE);
    let suspected = || roster.peers.iter().filter(|(_, peer)| !is_alive(peer)).map(|(node, _)| *node).collect();
    if catalog.leaving().any(|member| catalog.is_kept_on(member)) {
        proposals.push(CatalogCommand::MoveOff { absent: suspected() });
    }
    if replace_after > Duration::ZERO {
        let absent = roster.absent_for(replace_after, now);
        let suspected: Vec<NodeId> = suspected();
        if !catalog.replacements(&absent, &suspected).is_empty() {
            proposals.push(CatalogCommand::Replace { absent, suspected });
        }
    }
    proposals.iter().map(CatalogCommand::encode).collect()
}

#[cfg(test)]
mod tests;
