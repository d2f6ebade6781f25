//! The roster: the cluster's nodes, and how nodes join and leave.
//!
//! A node is a number and a disk. Numbers are never reused, because the promises made by a lost disk stay binding; its
//! replacement is a different node. So the record of a node that left is kept forever.
//!
//! A leaving node gets no new replicas. Each of its ranges is planned to move to the node with the fewest ranges,
//! preferring nodes that the proposer believes to be alive. The node has left once no range counts on it. The proposer
//! of `EndLeave` also makes sure that the catalog's own cohort does not count the node as a voter: it proposes
//! `EndLeave` after the removal in the same log.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, Member, NodeId};

use super::{Catalog, Change, NODES_MAX, REPLICAS, node_bytes};
use crate::request::{CatalogResponse, NodeDescription, Outcome};
use state_machine::Failure;
use state_machine::failure::precondition;

/// Membership state of a node in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// A full member of the cluster.
    #[default]
    Stays,
    /// Its replicas are being moved away; then it leaves.
    Leaving,
    /// It has left. Its number stays taken.
    Left,
}

impl Standing {
    pub(crate) fn tag(self) -> u8 {
        self as u8
    }

    /// Decodes a [`Standing::tag`].
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        [Self::Stays, Self::Leaving, Self::Left].into_iter().find(|standing| standing.tag() == tag)
    }
}

/// Metadata of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// The node and its disk.
    pub member: Member,
    /// The `address:port` for other nodes.
    pub peer: String,
    /// The `address:port` of the gRPC endpoint for clients.
    pub grpc: String,
    pub standing: Standing,
}

impl Catalog {
    /// Registers all of the nodes, or none if one is rejected.
    pub(super) fn register_nodes(&mut self, nodes: Vec<NodeRecord>) -> Result<(), Failure> {
        let mut registered = self.nodes.clone();
        for node in nodes {
            let known = registered.get(&node.member.node);
            if let Some(known) = known.filter(|known| known.member != node.member && !planted(Bug::NumberUsedTwice)) {
                return Err(precondition(format!(
                    "node {} is registered with disk {}, not with disk {}",
                    node.member.node, known.member, node.member
                )));
            }
            let standing = known.map_or(Standing::Stays, |known| known.standing);
            registered.insert(node.member.node, NodeRecord { standing, ..node });
        }
        let count = registered.values().filter(|node| node.standing != Standing::Left).count();
        if count > NODES_MAX {
            return Err(Failure::Overloaded(format!("node limit exceeded: {count} nodes, at most {NODES_MAX}")));
        }
        self.bytes -= self.nodes.values().map(node_bytes).sum::<usize>();
        self.bytes += registered.values().map(node_bytes).sum::<usize>();
        self.nodes = registered;
        Ok(())
    }

    /// Adds a node. Repeating the request is a no-op, or updates the node's addresses.
    pub(super) fn add_node(&mut self, node: NodeRecord) -> Outcome {
        let number = node.member.node;
        self.check_registered()?;
        match self.nodes.get(&number) {
            Some(known) if known.member != node.member && !planted(Bug::NumberUsedTwice) => {
                return Err(Failure::Exists(format!(
                    "number {number} is taken by another disk: numbers are never reused, not even that of a lost disk. \
                     Start the new disk with a new node number"
                )));
            }
            Some(known) if known.standing == Standing::Left => {
                return Err(Failure::Exists(format!(
                    "node {number} has left the cluster: it can rejoin only with a blank disk and a new number"
                )));
            }
            _ => {}
        }
        let is_other = |other: &&NodeRecord| other.member.node != number;
        let is_there = |other: &NodeRecord| other.peer == node.peer || other.grpc == node.grpc;
        if let Some(other) = self.nodes().filter(is_other).find(|other| is_there(other)) {
            let (peer, grpc, other) = (&node.peer, &node.grpc, other.member.node);
            return Err(Failure::Exists(format!(
                "node {other} already uses {peer} or {grpc}, the addresses of node {number}"
            )));
        }
        self.register_nodes(vec![node])?;
        Ok(self.list_nodes())
    }

    /// Marks a node as leaving. Idempotent.
    pub(super) fn begin_leave(&mut self, node: NodeId) -> Outcome {
        self.check_registered()?;
        let record = self.nodes.get(&node).ok_or_else(|| precondition(format!("there is no node {node}")))?;
        match record.standing {
            Standing::Left | Standing::Leaving => {}
            Standing::Stays => {
                let left = self.staying().filter(|member| member.node != node).count();
                let least = self.most_replicas().max(REPLICAS as usize);
                if left < least {
                    return Err(precondition(format!(
                        "without node {node} the cluster has {left} nodes, and {least} are needed for a range's replicas"
                    )));
                }
                self.set_standing(node, Standing::Leaving);
                self.forget_vain_spares();
            }
        }
        Ok(CatalogResponse::LeaveBegun)
    }

    /// Marks a leaving node as having left, unless a range or log unit still counts on it.
    pub(super) fn end_leave(&mut self, node: NodeId) -> Option<Change> {
        let leaving = self.nodes.get(&node).filter(|record| record.standing == Standing::Leaving)?;
        if self.counts_on(leaving.member) && !planted(Bug::LeaverLeftBehind) {
            return None;
        }
        self.set_standing(node, Standing::Left);
        Some(Change::NodesChanged)
    }

    fn check_registered(&self) -> Result<(), Failure> {
        if self.nodes.is_empty() {
            return Err(Failure::Unavailable("the cluster's first nodes are not registered yet".to_owned()));
        }
        Ok(())
    }

    fn set_standing(&mut self, node: NodeId, standing: Standing) {
        if let Some(record) = self.nodes.get_mut(&node) {
            record.standing = standing;
        }
    }

    /// Plans to move every range away from nodes that are leaving. Ranges being split or dropped are skipped: they are
    /// planned when this command is proposed again.
    pub(super) fn move_off(&mut self, absent: &[NodeId]) -> Option<Change> {
        let mut load = self.load();
        let tables = || self.tables.values().filter(|table| !table.is_dropping).flat_map(|table| &table.ranges);
        let is_to_go = |members: &[Member]| members.iter().any(|member| !load.contains_key(&member.node));
        let going: Vec<(CohortId, Vec<NodeId>)> = tables()
            .filter(|range| is_to_go(&range.members))
            .map(|range| (range.cohort, range.members.iter().map(|member| member.node).collect()))
            .collect();
        let mut begun = false;
        for (cohort, mut nodes) in going {
            let wanted = nodes.len();
            nodes.retain(|node| load.contains_key(node));
            while nodes.len() < wanted {
                let others = load.iter().filter(|(node, _)| !nodes.contains(node));
                let Some(least) = others
                    .min_by_key(|(node, ranges)| (absent.contains(node), **ranges, **node))
                    .map(|(node, _)| *node)
                else {
                    break;
                };
                load.entry(least).and_modify(|ranges| *ranges += 1);
                nodes.push(least);
            }
            begun |= self.begin_move(cohort, &nodes, true).is_ok();
        }
        begun.then_some(Change::MoveBegun)
    }

    /// The number of ranges planned on each node that stays.
    pub(super) fn load(&self) -> BTreeMap<NodeId, usize> {
        let mut load: BTreeMap<NodeId, usize> = self.staying().map(|member| (member.node, 0)).collect();
        let tables = self.tables.values().filter(|table| !table.is_dropping);
        for member in tables.flat_map(|table| &table.ranges).flat_map(|range| &range.members) {
            load.entry(member.node).and_modify(|ranges| *ranges += 1);
        }
        load
    }

    /// The disks of the nodes that stay, in order of node number.
    pub fn staying(&self) -> impl Iterator<Item = Member> + '_ {
        self.nodes.values().filter(|node| node.standing == Standing::Stays).map(|node| node.member)
    }

    /// The nodes with a full disk, as of the leader's last [`NoteFull`](crate::CatalogCommand::NoteFull), in order.
    #[must_use]
    pub fn full(&self) -> &[NodeId] {
        &self.full
    }

    /// The disks of the nodes that are leaving and have not left yet.
    pub fn leaving(&self) -> impl Iterator<Item = Member> + '_ {
        self.nodes.values().filter(|node| node.standing == Standing::Leaving).map(|node| node.member)
    }

    /// All nodes that have not left, in order of node number.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.roster().filter(|node| node.standing != Standing::Left)
    }

    /// All nodes that ever existed, in order of node number.
    pub fn roster(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values()
    }

    /// The number of ranges, and of parts being split off, with a replica on this disk, including replicas that will
    /// move away.
    #[must_use]
    pub fn ranges_on(&self, member: Member) -> usize {
        self.parts().filter(|part| part.is_on(member)).count()
    }

    /// Whether a range, a part being split off, or a log unit is placed on this disk.
    #[must_use]
    pub fn counts_on(&self, member: Member) -> bool {
        self.ranges_on(member) > 0 || self.units().any(|(_, on)| on == member)
    }

    /// Whether the current plans keep a range on this disk.
    #[must_use]
    pub fn is_kept_on(&self, member: Member) -> bool {
        let mut ranges = self.tables.values().flat_map(|table| &table.ranges);
        ranges.any(|range| range.members.contains(&member))
    }

    fn most_replicas(&self) -> usize {
        let ranges = self.tables.values().flat_map(|table| &table.ranges);
        ranges.map(|range| range.members.len()).max().unwrap_or(0)
    }

    /// Lists all nodes: a [`CatalogResponse::Nodes`].
    #[must_use]
    pub fn list_nodes(&self) -> CatalogResponse {
        let describe = |record: &NodeRecord| NodeDescription {
            ranges: u32::try_from(self.ranges_on(record.member)).unwrap_or(u32::MAX),
            record: record.clone(),
        };
        CatalogResponse::Nodes(self.roster().map(describe).collect())
    }
}
