//! Messages between machines: lost, duplicated, delayed, reordered, partitioned.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::codec::{Wire as _, Writer};
use base::{Member, NodeId, ProcessStart, StartHistory};
use bytes::Bytes;
use node::message::Message;

use super::events::Happening;
use super::host::SimHost;
use super::process::UNACKNOWLEDGED;
use super::{MILLISECOND, SECOND, World};

pub(crate) struct Envelope {
    pub(crate) from: Member,
    /// The start of the sender's process, and the ones before it on its disk.
    pub(crate) from_starts: Arc<StartHistory>,
    pub(crate) to: NodeId,
    /// The disk that it is addressed to: no connection delivers to a different disk under the same number (guarantee
    /// 6).
    pub(crate) to_member: Member,
    /// The process that it is addressed to, if the sender knows one.
    pub(crate) to_start: Option<ProcessStart>,
    pub(crate) bytes: Bytes,
}

#[derive(Default)]
pub(crate) struct Network {
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Messages that arrive once the partition ends, as if retransmitted by a connection that survives it.
    held: Vec<Envelope>,
    partition: u64,
}

impl Network {
    /// Whether messages are lost in one of the directions.
    pub(super) fn separates(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.contains(&(a, b)) || self.cut.contains(&(b, a))
    }
}

impl World {
    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, message: &Message) {
        let mut out = Writer::new();
        message.encode(&mut out);
        // A connection never duplicates a message: a forwarded request arrives at most once. Cohort messages must
        // tolerate duplicates regardless.
        let may_double =
            matches!(message, Message::Cohort { .. } | Message::StateChunk { .. } | Message::OfGenerations { .. });
        self.send_bytes(from, to, &out.finish(), may_double);
    }

    /// Introduces a process to a peer, like a new connection.
    pub(crate) fn hello(&mut self, from: NodeId, to: NodeId) {
        self.send_bytes(from, to, &Bytes::new(), true);
    }

    fn send_bytes(&mut self, from: NodeId, to: NodeId, bytes: &Bytes, may_double: bool) {
        let Some(machine) = self.hosts.get(&from) else { return };
        let Some(process) = machine.process.as_ref() else { return };
        let member = machine.member;
        let (from_starts, to_start) = (Arc::clone(&process.starts), process.seen(to));
        let Some(to_member) = process.node.members().iter().find(|member| member.node == to).copied() else { return };
        let faulty = !self.healed;
        let is_cut = self.network.cut.contains(&(from, to));
        if is_cut && self.random.chance(self.options.held_back) {
            let envelope = Envelope { from: member, from_starts, to, to_member, to_start, bytes: bytes.clone() };
            return self.network.held.push(envelope);
        }
        if is_cut || (faulty && self.random.chance(self.options.loss)) {
            return;
        }
        let copies = if faulty && may_double && self.random.chance(self.options.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = self.random.below(if faulty { self.options.delay } else { MILLISECOND });
            if faulty && self.random.chance(self.options.long_delay) {
                delay *= 100;
            }
            let (bytes, from_starts) = (bytes.clone(), Arc::clone(&from_starts));
            let envelope = Envelope { from: member, from_starts, to, to_member, to_start, bytes };
            self.queue.put(self.now + 20_000 + delay, Happening::Deliver(Box::new(envelope)));
        }
    }

    /// Partitions the nodes, in both directions or in one.
    pub(crate) fn partition(&mut self, both_ways: bool) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        let leader = if self.random.below(2) == 0 { self.any_leader() } else { None };
        let side: BTreeSet<NodeId> = match leader {
            Some(leader) => self.minority_with(leader, &nodes),
            None => nodes.iter().copied().filter(|_| self.random.below(2) == 0).collect(),
        };
        self.end_partitions();
        for a in &nodes {
            for b in &nodes {
                let apart = side.contains(a) && !side.contains(b);
                if apart {
                    self.network.cut.insert((*a, *b));
                }
                if apart && both_ways {
                    self.network.cut.insert((*b, *a));
                }
                // A connection needs both directions.
                if apart {
                    self.lose_peer_later(*a, *b, UNACKNOWLEDGED);
                    self.lose_peer_later(*b, *a, UNACKNOWLEDGED);
                }
            }
        }
        let number = self.network.partition;
        let span = 100 * MILLISECOND + self.random.below(4 * SECOND);
        self.queue.put(self.now + span, Happening::Rejoin { number });
    }

    /// A random node that leads a cohort.
    fn any_leader(&mut self) -> Option<NodeId> {
        let leads = |machine: &SimHost| {
            machine
                .process
                .as_ref()
                .is_some_and(|process| process.node.replicas().any(|(_, replica, _)| replica.leads()))
        };
        let leaders: Vec<NodeId> = self.hosts.iter().filter(|(_, machine)| leads(machine)).map(|(id, _)| *id).collect();
        let drawn = self.random.below(leaders.len().max(1) as u64) as usize;
        leaders.get(drawn).copied()
    }

    /// A random minority that contains the node.
    fn minority_with(&mut self, node: NodeId, nodes: &[NodeId]) -> BTreeSet<NodeId> {
        let mut others: Vec<NodeId> = nodes.iter().copied().filter(|other| *other != node).collect();
        let mut side = BTreeSet::from([node]);
        while side.len() < nodes.len() / 2 {
            let drawn = self.random.below(others.len() as u64) as usize;
            side.insert(others.swap_remove(drawn));
        }
        side
    }

    /// The nodes that most other nodes cannot receive from.
    pub(super) fn lesser_part(&self) -> Vec<NodeId> {
        let unheard = |node: NodeId| self.network.cut.iter().filter(|(from, _)| *from == node).count();
        self.hosts.keys().copied().filter(|node| unheard(*node) > self.hosts.len() / 2).collect()
    }

    pub(crate) fn rejoin(&mut self, number: u64) {
        if number == self.network.partition {
            self.end_partitions();
            self.introduce_all();
        }
    }

    pub(crate) fn introduce_all(&mut self) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.introduce_others_to(node));
    }

    /// Ends the partition and delivers the messages held back, in random order.
    pub(crate) fn end_partitions(&mut self) {
        self.network.partition += 1;
        self.network.cut.clear();
        for envelope in std::mem::take(&mut self.network.held) {
            self.count("messages delayed by partitions");
            let delay = self.random.below(self.options.delay);
            self.queue.put(self.now + 20_000 + delay, Happening::Deliver(Box::new(envelope)));
        }
    }
}
