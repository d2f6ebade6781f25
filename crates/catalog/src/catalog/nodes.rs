//! The roster: which nodes the universe has, how it gets more of them, and how one leaves.
//!
//! A node is a number and a disk, and a number is never used twice: whatever a lost disk had promised stays promised,
//! and what takes its place is another node. So the record of a node that has left stays, for good.
//!
//! A node that is to leave gets nothing more to keep, and the ranges on it are planned to go elsewhere, each to a node
//! that lives, as far as whoever proposes it knows, and has the fewest. It is gone once no range counts on it any more.
//! That no vote about the catalog itself counts on it either is for whoever proposes the last entry to see: it comes
//! after the removal in the same log.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, Member, NodeId};

use super::{Catalog, Change, NODES_MAX, REPLICAS, node_bytes};
use crate::request::{CatalogResponse, NodeDescription, Outcome};
use machine::Failure;
use machine::failure::invalid;

/// How a node stands to the universe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// It is one of the universe's nodes.
    #[default]
    Stays,
    /// It gives away what it has, and then leaves.
    Leaving,
    /// It has left.
    Left,
}

impl Standing {
    /// The number that stands for it where it is written.
    pub(crate) fn tag(self) -> u8 {
        self as u8
    }

    /// What such a number stands for.
    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        [Self::Stays, Self::Leaving, Self::Left].into_iter().find(|standing| standing.tag() == tag)
    }
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// The node and its disk.
    pub member: Member,
    /// Where other nodes reach it, as `address:port`.
    pub peer: String,
    /// Where clients reach it, as `address:port`.
    pub grpc: String,
    /// How it stands to the universe.
    pub standing: Standing,
}

impl Catalog {
    /// Registers all of the nodes, or none if one is refused.
    pub(super) fn register_nodes(&mut self, nodes: Vec<NodeRecord>) -> Result<(), Failure> {
        let mut registered = self.nodes.clone();
        for node in nodes {
            let known = registered.get(&node.member.node);
            if let Some(known) = known.filter(|known| known.member != node.member && !planted(Bug::NumberUsedTwice)) {
                return Err(invalid(format!(
                    "node {} is known with the disk {}: the disk {} is another's",
                    node.member.node, known.member, node.member
                )));
            }
            let standing = known.map_or(Standing::Stays, |known| known.standing);
            registered.insert(node.member.node, NodeRecord { standing, ..node });
        }
        let count = registered.values().filter(|node| node.standing != Standing::Left).count();
        if count > NODES_MAX {
            return Err(Failure::Overloaded(format!("{count} nodes would be known, over the limit of {NODES_MAX}")));
        }
        self.bytes -= self.nodes.values().map(node_bytes).sum::<usize>();
        self.bytes += registered.values().map(node_bytes).sum::<usize>();
        self.nodes = registered;
        Ok(())
    }

    /// A node joins. To ask for it once more does nothing, or tells its new addresses.
    pub(super) fn add_node(&mut self, node: NodeRecord) -> Outcome {
        let number = node.member.node;
        self.check_registered()?;
        match self.nodes.get(&number) {
            Some(known) if known.member != node.member && !planted(Bug::NumberUsedTwice) => {
                return Err(Failure::Exists(format!(
                    "the number {number} is taken, by another disk: no number is used twice, not even a lost disk's. The node \
                     of a new disk has a number of its own"
                )));
            }
            Some(known) if known.standing == Standing::Left => {
                return Err(Failure::Exists(format!(
                    "node {number} has left the universe: it comes back with a blank disk and another number"
                )));
            }
            _ => {}
        }
        let is_other = |other: &&NodeRecord| other.member.node != number;
        let is_there = |other: &NodeRecord| other.peer == node.peer || other.grpc == node.grpc;
        if let Some(other) = self.nodes().filter(is_other).find(|other| is_there(other)) {
            let (peer, grpc, other) = (&node.peer, &node.grpc, other.member.node);
            return Err(Failure::Exists(format!(
                "node {other} is reached at {peer} or {grpc}, as node {number} would be"
            )));
        }
        self.register_nodes(vec![node])?;
        Ok(self.list_nodes())
    }

    /// A node is to leave: that is noted.
    pub(super) fn begin_leave(&mut self, node: NodeId) -> Outcome {
        self.check_registered()?;
        let record = self.nodes.get(&node).ok_or_else(|| invalid(format!("there is no node {node}")))?;
        match record.standing {
            Standing::Left | Standing::Leaving => {}
            Standing::Stays => {
                let left = self.staying().filter(|member| member.node != node).count();
                let least = self.most_replicas().max(REPLICAS as usize);
                if left < least {
                    return Err(invalid(format!(
                        "without node {node} there would be {left} nodes, and {least} are needed for the replicas of a range"
                    )));
                }
                self.set_standing(node, Standing::Leaving);
                self.forget_vain_spares();
            }
        }
        Ok(CatalogResponse::LeaveBegun)
    }

    /// A node has left, unless something counts on it still.
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
            return Err(Failure::Unavailable("the universe's first nodes are not registered yet".to_owned()));
        }
        Ok(())
    }

    fn set_standing(&mut self, node: NodeId, standing: Standing) {
        if let Some(record) = self.nodes.get_mut(&node) {
            record.standing = standing;
        }
    }

    /// Plans for every range on a node that is to leave to be elsewhere. What is being split or dropped is left as it
    /// is: it is planned for when this is proposed again.
    pub(super) fn move_off(&mut self, absent: &[NodeId]) -> Option<Change> {
        let mut load: BTreeMap<NodeId, usize> = self.staying().map(|member| (member.node, 0)).collect();
        let tables = || self.tables.values().filter(|table| !table.is_dropping).flat_map(|table| &table.ranges);
        for member in tables().flat_map(|range| &range.members) {
            load.entry(member.node).and_modify(|ranges| *ranges += 1);
        }
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
            begun |= self.begin_move(cohort, &nodes).is_ok();
        }
        begun.then_some(Change::MoveBegun)
    }

    /// The nodes that stay, in the order of their numbers.
    pub fn staying(&self) -> impl Iterator<Item = Member> + '_ {
        self.nodes.values().filter(|node| node.standing == Standing::Stays).map(|node| node.member)
    }

    /// The nodes that are to leave and have not yet.
    pub fn leaving(&self) -> impl Iterator<Item = Member> + '_ {
        self.nodes.values().filter(|node| node.standing == Standing::Leaving).map(|node| node.member)
    }

    /// All nodes that have not left, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.roster().filter(|node| node.standing != Standing::Left)
    }

    /// All nodes that there ever were, in the order of their numbers.
    pub fn roster(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values()
    }

    /// How many ranges, and parts that are being split off, have a replica on a node's disk, to stay or to go.
    #[must_use]
    pub fn ranges_on(&self, member: Member) -> usize {
        self.parts().filter(|part| part.is_on(member)).count()
    }

    /// Whether a range, a part of one, or a log unit has its place on a node's disk.
    #[must_use]
    pub fn counts_on(&self, member: Member) -> bool {
        self.ranges_on(member) > 0 || self.units().any(|(_, on)| on == member)
    }

    /// Whether a range is to stay on a node's disk as far as is planned.
    #[must_use]
    pub fn is_kept_on(&self, member: Member) -> bool {
        let mut ranges = self.tables.values().flat_map(|table| &table.ranges);
        ranges.any(|range| range.members.contains(&member))
    }

    fn most_replicas(&self) -> usize {
        let ranges = self.tables.values().flat_map(|table| &table.ranges);
        ranges.map(|range| range.members.len()).max().unwrap_or(0)
    }

    /// The answer to who asks for the nodes: a [`CatalogResponse::Nodes`].
    #[must_use]
    pub fn list_nodes(&self) -> CatalogResponse {
        let describe = |record: &NodeRecord| NodeDescription {
            ranges: u32::try_from(self.ranges_on(record.member)).unwrap_or(u32::MAX),
            record: record.clone(),
        };
        CatalogResponse::Nodes(self.roster().map(describe).collect())
    }
}
