//! The nodes of the universe as this one knows them, and what whoever leads the catalogue does about those that come
//! and go (guarantees 6 and 8; `catalog/src/catalog/nodes.rs` has the entries about it).
//!
//! A node knows those that it was formed with or joined, those on the roster that its copy of the catalogue holds, and
//! those that have made themselves known to it. The last are needed after a restart, while that copy is behind what it
//! was: of any two nodes, the one that came later was told of the other when it joined, and makes itself known to it.
//! To know a node makes it count in nothing: who counts is decided in each cohort's log.
//!
//! Every node is a member of the catalogue, since it finds tables by its own copy. Those that stay come as learners,
//! and become voters where one is missing; those that leave go once no range is on them.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Boot, CohortId, Member, Membership, MembershipChange, Monotonic, NodeId, Now, SharedMembership};
use bytes::Bytes;
use catalog::{Catalog, CatalogCommand, Change, Standing};
use replication::Cohort;
use sharedlog::SequencerId;

use crate::contract::Action;
use crate::node::Node;

/// Who decides what the catalogue says: three nodes, at first those with the lowest numbers; ...
const CATALOGUE_VOTERS: usize = 3;
/// ... and five in a universe of so many nodes.
const CATALOGUE_VOTERS_OF_MANY: usize = 5;
const MANY_NODES: usize = 7;

/// A peer that wasn't heard of for so long counts as not alive.
pub(crate) const ALIVE: base::Duration = base::Duration::from_millis(1_000);

/// The nodes as this one knows them, and whom to ask.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) me: Member,
    pub(crate) boot: Boot,
    /// Every node, this one included, in the order of their numbers.
    pub(crate) members: Vec<Member>,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    /// Who leads cohorts that this node has no replica of, as far as it was told.
    pub(crate) routes: BTreeMap<CohortId, NodeId>,
    /// The driver is to be told of the roster.
    pub(crate) has_work: bool,
}

/// A peer as last heard of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) boot: Boot,
    pub(crate) heard_at: Option<Monotonic>,
    /// It left a forwarded request without an answer in time, and was not heard of since.
    pub(crate) silent: bool,
}

impl Cluster {
    pub(crate) fn new(me: Member, boot: Boot, members: Vec<Member>) -> Self {
        let peers = members.iter().filter(|member| **member != me).map(|member| (member.node, Peer::default()));
        Self { me, boot, peers: peers.collect(), members, routes: BTreeMap::new(), has_work: true }
    }

    /// This process, as a sequencer of shared logs.
    pub(crate) fn sequencer(&self) -> SequencerId {
        SequencerId { node: self.me.node, boot: self.boot }
    }

    /// The replica that a node's disk is.
    pub(crate) fn member(&self, node: NodeId) -> Option<Member> {
        self.members.iter().copied().find(|member| member.node == node)
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

/// How many vote about the catalogue in a universe of so many nodes, at least.
pub(crate) fn catalogue_voters(nodes: usize) -> usize {
    match nodes {
        0..CATALOGUE_VOTERS => 1,
        CATALOGUE_VOTERS..MANY_NODES => CATALOGUE_VOTERS,
        _ => CATALOGUE_VOTERS_OF_MANY,
    }
}

impl Node {
    /// A peer has made its process known.
    pub(crate) fn peer_started(&mut self, from: Member, boot: Boot, now: Now) {
        let is_over = |catalogue: &Catalog| {
            catalogue.roster().any(|node| node.member.node == from.node && node.standing == Standing::Left)
        };
        if !is_over(self.catalogue()) {
            self.cluster.know(from);
        }
        if self.cluster.member(from.node) == Some(from) {
            self.heard(from.node, boot, now);
        }
    }

    /// Takes over the roster of our copy of the catalogue, and tells the driver, if it has changed.
    pub(crate) fn run_roster(&mut self) -> bool {
        if !std::mem::take(&mut self.cluster.has_work) {
            return false;
        }
        let roster = self.catalogue().roster().cloned().collect();
        self.actions.push(Action::Know { roster });
        let (left, there): (Vec<_>, Vec<_>) = self
            .catalogue()
            .roster()
            .map(|node| (node.member, node.standing))
            .partition(|(_, standing)| *standing == Standing::Left);
        for (member, _) in left.into_iter().filter(|(member, _)| *member != self.cluster.me) {
            self.cluster.members.retain(|known| *known != member);
            self.cluster.peers.remove(&member.node);
            self.logs.controller.forget(member.node);
            self.beats.forget_peer(member.node);
        }
        there.into_iter().for_each(|(member, _)| self.cluster.know(member));
        true
    }

    /// Takes the next step toward the members that the catalogue's own cohort is to have, if we lead it.
    pub(crate) fn push_roster(&mut self, now: Now) {
        let Some(catalogue) = self.led_catalogue() else { return };
        let replica = &self.replicas[&CohortId::CATALOGUE];
        let held = SharedMembership::clone(replica.cohort.membership());
        let is_ready = |change| replica.cohort.is_ready_for(change, now).is_ok();
        if let Some(step) = next_step(&held, catalogue, is_ready) {
            let plan = held.plan();
            self.take_step_of(CohortId::CATALOGUE, step, plan, now);
        }
    }
}

/// What is next on the way to a catalogue whose members are the nodes that stay, as many of them voters as are needed.
fn next_step(
    held: &Membership,
    catalogue: &Catalog,
    is_ready: impl Fn(MembershipChange) -> bool,
) -> Option<MembershipChange> {
    let stays: Vec<Member> = catalogue.staying().collect();
    if let Some(newcomer) = stays.iter().find(|member| held.on(member.node).is_none()) {
        return Some(MembershipChange::AddLearner(*newcomer));
    }
    let voters = stays.iter().filter(|member| held.is_voter(**member)).count();
    let is_short = voters < catalogue_voters(stays.len());
    // An even number of voters survives no more failures than the odd one below, and needs one more to agree.
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
    let has_nothing = |member: &Member| !catalogue.counts_on(*member) || planted(Bug::LeaverLeftBehind);
    let mut leavers = catalogue.leaving().filter(|member| held.on(member.node).is_some()).filter(has_nothing);
    leavers.next().map(MembershipChange::Remove)
}

/// What whoever leads the catalogue proposes now and then of nodes that are to leave: that the ranges on them are to
/// go; and that one is gone, on which nothing counts any more.
pub(crate) fn proposals(
    catalogue: &Catalog,
    cohort: &Cohort,
    peers: &BTreeMap<NodeId, Peer>,
    now: Monotonic,
) -> Vec<Bytes> {
    let is_out = |member: Member| {
        let is_removed = cohort.is_settled() && cohort.membership().on(member.node).is_none();
        (is_removed || planted(Bug::LeaverStillVotes))
            && (!catalogue.counts_on(member) || planted(Bug::LeaverLeftBehind))
    };
    let gone = catalogue.leaving().filter(|member| is_out(*member));
    let mut proposals: Vec<CatalogCommand> =
        gone.map(|member| CatalogCommand::EndLeave { node: member.node }).collect();
    if catalogue.leaving().any(|member| catalogue.is_kept_on(member)) {
        let is_heard = |peer: &Peer| peer.heard_at.is_some_and(|heard| now.since(heard) < ALIVE);
        let absent = peers.iter().filter(|(_, peer)| !is_heard(peer)).map(|(node, _)| *node).collect();
        proposals.push(CatalogCommand::MoveOff { absent });
    }
    proposals.iter().map(CatalogCommand::encode).collect()
}

#[cfg(test)]
mod tests;
