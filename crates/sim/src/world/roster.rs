//! Nodes that join and leave the cluster. An operator sends requests to some node, and retries until the task is done.
//! Occasionally the operator removes a machine for good as soon as the cluster has recorded that it is leaving, or
//! tries to start a blank disk under the number of an existing node.

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Durability, Duration, Epoch, Incarnation, Member, NodeId};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, NodeDescription, NodeRecord, Replication, Standing};
use node::contract::{Event, RequestId};
use node::request::{Outcome, Request, Response};
use state_machine::{Failure, Ownership};
use store::identity::Host;

use super::events::Happening;
use super::host::{SimHost, incarnation};
use super::{MILLISECOND, World};

/// Deadline of a request to one node.
const DEADLINE: Duration = Duration::from_millis(2_000);

/// A task of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Join(NodeId),
    LeaveSomeone,
    Leave(NodeId),
    /// Add a blank disk under the number of an existing node.
    Impostor(NodeId),
}

/// The state of the operator.
#[derive(Default)]
pub(crate) struct Operator {
    asked: BTreeMap<RequestId, Errand>,
    /// Nodes being added that have not received the cluster's identity.
    joining: BTreeSet<NodeId>,
    /// Nodes being removed, and whether the cluster has recorded it. The operator removes one at a time, but a late
    /// response may add another.
    leaving: BTreeMap<NodeId, bool>,
    /// Impostors still to be refused.
    refused: BTreeSet<NodeId>,
    /// The newest epoch seen of each cohort.
    epochs: BTreeMap<CohortId, Epoch>,
}

impl Operator {
    pub(crate) fn is_idle(&self) -> bool {
        self.joining.is_empty() && self.leaving.is_empty()
    }

    /// Describes pending tasks, for a run that is stuck.
    pub(crate) fn waiting_for(&self) -> String {
        format!("to join: {:?}; to leave: {:?}", self.joining, self.leaving)
    }
}

impl World {
    /// Schedules the tasks of the operator.
    pub(crate) fn begin_errands(&mut self) {
        let (nodes, joins) = (self.options.nodes, self.options.joins);
        for number in 1..=joins {
            self.plan(Errand::Join(NodeId(nodes + number)));
        }
        for _ in 0..self.options.leaves {
            self.plan(Errand::LeaveSomeone);
        }
        if joins > 0 {
            self.plan(Errand::Impostor(NodeId(1)));
        }
    }

    fn plan(&mut self, errand: Errand) {
        let at = self.now + self.random.below(self.options.fault_time);
        self.queue.put(at, Happening::Errand { errand });
    }

    pub(crate) fn errand(&mut self, errand: Errand) {
        let request = match errand {
            Errand::LeaveSomeone => return self.begin_some_leave(),
            Errand::Join(node) => {
                if self.hosts.contains_key(&node) {
                    return;
                }
                self.operator.joining.insert(node);
                Request::Catalog(CatalogRequest::Change(CatalogCommand::AddNode {
                    node: record(Member { node, incarnation: incarnation(node.0) }),
                }))
            }
            Errand::Leave(node) => match self.operator.leaving.get(&node) {
                Some(false) => Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginLeave { node })),
                Some(true) => Request::Catalog(CatalogRequest::ListNodes),
                None => return,
            },
            Errand::Impostor(node) => {
                if self.healed || !self.operator.refused.insert(node) {
                    return;
                }
                Request::Catalog(CatalogRequest::Change(CatalogCommand::AddNode {
                    node: record(Member { node, incarnation: Incarnation(9_999) }),
                }))
            }
        };
        let again = self.now + 200 * MILLISECOND + self.random.below(1_000 * MILLISECOND);
        self.queue.put(again, Happening::Errand { errand });
        let id = self.any_node();
        let machine = &self.hosts[&id];
        if machine.process.is_none() || machine.paused {
            return;
        }
        let deadline = machine.clocks.monotonic(self.now) + DEADLINE;
        let number = self.libraries.number();
        self.operator.asked.insert(number, errand);
        self.step(id, Event::Request { id: number, deadline, request });
    }

    fn begin_some_leave(&mut self) {
        if self.healed || !self.operator.leaving.is_empty() {
            return;
        }
        let there: Vec<NodeId> = self.hosts.iter().filter(|(_, m)| !m.is_gone).map(|(id, _)| *id).collect();
        let node = there[self.random.below(there.len() as u64) as usize];
        self.operator.leaving.insert(node, false);
        self.errand(Errand::Leave(node));
    }

    /// Handles a node's response to the operator; returns false if the request was not the operator's.
    pub(super) fn errand_answered(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let Some(errand) = self.operator.asked.remove(&id) else { return false };
        match (errand, outcome) {
            (Errand::Join(node), Ok(Response::Catalog(CatalogResponse::Nodes(nodes)))) => self.hand_over(node, nodes),
            (Errand::Leave(node), Ok(Response::Catalog(CatalogResponse::LeaveBegun))) => self.leave_noted(node),
            (Errand::Leave(node), Ok(Response::Catalog(CatalogResponse::Nodes(nodes)))) => {
                let is_it = |listed: &NodeDescription| {
                    listed.record.member.node == node && listed.record.standing == Standing::Left
                };
                if nodes.iter().any(is_it) && self.operator.leaving.remove(&node).is_some() {
                    self.count("nodes left");
                    self.take_away(node);
                }
            }
            // Too few nodes would remain. A request sent before other nodes joined may be refused after a later one was
            // accepted.
            (Errand::Leave(node), Err(Failure::Precondition(_))) => {
                if self.operator.leaving.get(&node) == Some(&false) {
                    self.operator.leaving.remove(&node);
                }
            }
            // Retried before the first response arrived, and answered after the node has joined, or even left.
            (Errand::Join(node), Err(Failure::Exists(_))) if self.hosts.contains_key(&node) => {}
            (Errand::Impostor(node), Err(Failure::Exists(_))) => {
                self.count("impostors refused");
                self.operator.refused.insert(node);
            }
            (
                Errand::Join(_) | Errand::Leave(_) | Errand::Impostor(_),
                Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_) | Failure::Unknown(_)),
            ) => {
                if let Errand::Impostor(node) = errand {
                    self.operator.refused.remove(&node);
                }
            }
            (errand, outcome) => self.violate(&format!("{errand:?}: unexpected outcome {outcome:?}")),
        }
        true
    }

    /// The cluster has added the node: its disk receives the cluster's identity, and its process starts.
    fn hand_over(&mut self, node: NodeId, nodes: &[NodeDescription]) {
        if !self.operator.joining.remove(&node) {
            return;
        }
        let there = nodes.iter().map(|listed| &listed.record).filter(|record| record.standing != Standing::Left);
        let hosts = there.map(|record| Host { member: record.member, peer: record.peer.clone() }).collect();
        let machine = SimHost::join(node, hosts, &self.options, &mut self.random);
        self.hosts.insert(node, machine);
        self.count("nodes joined");
        self.queue.put(self.now + self.random.below(100 * MILLISECOND), Happening::Start { node });
    }

    /// The cluster has recorded that a node is leaving. The machine may be lost for good now, if no other loss adds to
    /// it.
    fn leave_noted(&mut self, node: NodeId) {
        if self.hosts[&node].is_gone || self.operator.leaving.get(&node) == Some(&true) {
            return;
        }
        if self.operator.leaving.insert(node, true).is_none() {
            self.errand(Errand::Leave(node));
        }
        let faults = &self.options.faults;
        let is_alone = self.operator.leaving.len() == 1;
        // With main-memory logs, the end of another process would leave no replica eligible to lead (guarantee 11).
        let is_forced = self.options.durability == Durability::Forced;
        let may_be_lost = is_alone && is_forced && faults.rot == 0 && faults.blank == 0 && !self.has_lost_disk();
        // A primary may be the only member of its configuration.
        let is_paxos = self.options.replication == Replication::Paxos;
        let may_be_lost = may_be_lost && is_paxos && self.may_units_be_lost();
        let are_three = self.options.nodes > 3 || faults.move_range == 0;
        if may_be_lost && are_three && self.options.nodes > 1 && self.random.below(2) == 0 {
            self.count("leaving nodes lost");
            self.take_away(node);
        }
    }

    fn has_lost_disk(&self) -> bool {
        self.hosts.values().any(SimHost::is_foreign)
    }

    fn take_away(&mut self, node: NodeId) {
        if let Some(machine) = self.hosts.get_mut(&node) {
            machine.is_gone = true;
            self.end(node, true);
        }
    }

    /// Nodes that know this node introduce themselves to it if it does not know them or has lost its connection to them:
    /// nodes connect again by themselves, also those that have nothing to say to each other.
    pub(crate) fn introduce_others_to(&mut self, id: NodeId) {
        let Some(process) = self.hosts.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let members = process.node.members().iter().map(|member| member.node);
        let known: BTreeSet<NodeId> = members.filter(|peer| !process.lost_peers.contains(peer)).collect();
        let knows = |machine: &SimHost| {
            let members = machine.process.iter().flat_map(|process| process.node.members());
            members.clone().any(|member| member.node == id)
        };
        let others = self.hosts.iter().filter(|(other, machine)| !known.contains(other) && knows(machine));
        let others: Vec<NodeId> = others.map(|(other, _)| *other).collect();
        others.into_iter().for_each(|other| self.hello(other, id));
    }

    /// The members that have left according to any node. An operator's request may have succeeded although a retry was
    /// refused.
    pub(super) fn departed_members(&self) -> BTreeSet<Member> {
        let processes = self.hosts.values().filter_map(|machine| machine.process.as_ref());
        let catalogs =
            processes.flat_map(|process| process.node.replicas()).filter_map(|(.., state)| state.as_catalog());
        let rosters = catalogs.flat_map(|catalog| catalog.roster());
        rosters.filter(|node| node.standing == Standing::Left).map(|node| node.member).collect()
    }

    /// Checks that no majority includes a node that has left: the catalog's cohort excludes it wherever the roster says
    /// that it left, and so does every range at the leader of its newest epoch. (A replaced leader may not know.)
    pub(crate) fn check_roster(&mut self) {
        if self.options.leaves == 0 {
            return;
        }
        let left = self.departed_members();
        let mut leaders: Vec<(CohortId, Epoch, BTreeSet<Member>)> = Vec::new();
        let mut wrong = None;
        for process in self.hosts.values().filter_map(|machine| machine.process.as_ref()) {
            for (cohort, replica, state) in process.node.replicas() {
                let epoch = replica.promised().epoch;
                let newest = self.operator.epochs.entry(cohort).or_default();
                *newest = epoch.max(*newest);
                // A dropped table owns nothing: its replica on the leaving node may be the last to learn that the table
                // is gone.
                let is_dropped = state.ownership() == Some(&Ownership::Dropped);
                // Log units are checked below: the catalog knows whether a projection contains a unit on that node.
                if replica.leads() && !is_dropped && state.as_unit().is_none() {
                    leaders.push((cohort, epoch, replica.membership().everyone().collect()));
                }
                let Some(catalog) = state.as_catalog() else { continue };
                let has_left = |(_, on): &(CohortId, Member)| {
                    catalog.roster().any(|node| node.member == *on && node.standing == Standing::Left)
                };
                if let Some((unit, member)) = catalog.units().find(has_left) {
                    wrong = Some(format!("{member} has left but still holds log unit {unit}"));
                }
                let mut gone = catalog.roster().filter(|node| node.standing == Standing::Left).map(|node| node.member);
                if let Some(member) = gone.find(|member| replica.membership_applied().on(member.node).is_some()) {
                    wrong = Some(format!("{member} has left but is still a member of the catalog's cohort"));
                }
            }
        }
        leaders.retain(|(cohort, epoch, _)| self.operator.epochs[cohort] == *epoch);
        for (cohort, _, members) in leaders {
            if let Some(member) = members.intersection(&left).next() {
                wrong = Some(format!("{member} has left but is still a member of cohort {cohort}"));
            }
        }
        if let Some(wrong) = wrong {
            self.violate(&wrong);
        }
    }
}

fn record(member: Member) -> NodeRecord {
    let at = |port: u32| format!("10.0.0.{}:{port}", member.node);
    NodeRecord { member, peer: at(7_101), grpc: at(7_201), standing: Standing::Stays }
}
