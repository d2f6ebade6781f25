//! Nodes that join the universe, and nodes that leave it: an operator asks some node, again and again until the errand
//! is done. Now and then he has a machine taken away for good as soon as the universe has taken note that it is to
//! leave; and he tries to give a disk that is blank the number of a node that is there.

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Durability, Duration, Epoch, Incarnation, Member, NodeId};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, NodeDescription, NodeRecord, Standing};
use machine::{Failure, Ownership};
use node::contract::{Event, RequestId};
use node::request::{Outcome, Request, Response};
use store::identity::Host;

use super::events::Happening;
use super::machine::{Machine, incarnation};
use super::{MILLISECOND, World};

/// How long one node may take for an answer.
const DEADLINE: Duration = Duration::from_millis(2_000);

/// What the operator is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// One more node joins.
    Join(NodeId),
    /// Some node is to leave.
    LeaveSomeone,
    /// That one is.
    Leave(NodeId),
    /// A blank disk under the number of a node that is there.
    Impostor(NodeId),
}

/// The operator.
#[derive(Default)]
pub(crate) struct Operator {
    asked: BTreeMap<RequestId, Errand>,
    /// Who is to join and has not been given the universe's name.
    joining: BTreeSet<NodeId>,
    /// Who is to leave, and whether the universe has taken note. One at a time is asked to; but what is answered late
    /// may come on top.
    leaving: BTreeMap<NodeId, bool>,
    /// Impostors that wait for a refusal.
    refused: BTreeSet<NodeId>,
    /// The newest epoch of each cohort that was ever seen.
    epochs: BTreeMap<CohortId, Epoch>,
}

impl Operator {
    pub(crate) fn is_idle(&self) -> bool {
        self.joining.is_empty() && self.leaving.is_empty()
    }

    /// For a run that is stuck.
    pub(crate) fn waiting_for(&self) -> String {
        format!("to join: {:?}; to leave: {:?}", self.joining, self.leaving)
    }
}

impl World {
    /// Draws when nodes come and go.
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
            Errand::LeaveSomeone => return self.let_someone_leave(),
            Errand::Join(node) => {
                if self.machines.contains_key(&node) {
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
        let machine = &self.machines[&id];
        if machine.process.is_none() || machine.paused {
            return;
        }
        let deadline = machine.clocks.monotonic(self.now) + DEADLINE;
        let number = self.libraries.number();
        self.operator.asked.insert(number, errand);
        self.step(id, Event::Request { id: number, deadline, request });
    }

    fn let_someone_leave(&mut self) {
        if self.healed || !self.operator.leaving.is_empty() {
            return;
        }
        let there: Vec<NodeId> = self.machines.iter().filter(|(_, m)| !m.is_gone).map(|(id, _)| *id).collect();
        let node = there[self.random.below(there.len() as u64) as usize];
        self.operator.leaving.insert(node, false);
        self.errand(Errand::Leave(node));
    }

    /// A node has answered the operator, if it was he who asked.
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
            // Too few would be left. What was asked before others joined may be refused after what was asked since was
            // heard.
            (Errand::Leave(node), Err(Failure::Invalid(_))) => {
                if self.operator.leaving.get(&node) == Some(&false) {
                    self.operator.leaving.remove(&node);
                }
            }
            // Asked once more before the first answer came, and answered after the node has come, and left.
            (Errand::Join(node), Err(Failure::Exists(_))) if self.machines.contains_key(&node) => {}
            (Errand::Impostor(node), Err(Failure::Exists(_))) => {
                self.count("impostors refused");
                self.operator.refused.insert(node);
            }
            (
                Errand::Join(_) | Errand::Leave(_) | Errand::Impostor(_),
                Err(Failure::Unavailable(_) | Failure::Overloaded(_) | Failure::Unknown(_)),
            ) => {
                if let Errand::Impostor(node) = errand {
                    self.operator.refused.remove(&node);
                }
            }
            (errand, outcome) => self.violate(&format!("{errand:?} was answered with {outcome:?}")),
        }
        true
    }

    /// The universe has the node on its list: its disk is given the universe's name, and its process starts.
    fn hand_over(&mut self, node: NodeId, nodes: &[NodeDescription]) {
        if !self.operator.joining.remove(&node) {
            return;
        }
        let there = nodes.iter().map(|listed| &listed.record).filter(|record| record.standing != Standing::Left);
        let hosts = there.map(|record| Host { member: record.member, peer: record.peer.clone() }).collect();
        let machine = Machine::join(node, hosts, &self.options, &mut self.random);
        self.machines.insert(node, machine);
        self.count("nodes joined");
        self.queue.put(self.now + self.random.below(100 * MILLISECOND), Happening::Start { node });
    }

    /// The universe has taken note that a node is to leave. It may as well be lost for good now, if no other loss comes
    /// on top.
    fn leave_noted(&mut self, node: NodeId) {
        if self.machines[&node].is_gone || self.operator.leaving.get(&node) == Some(&true) {
            return;
        }
        if self.operator.leaving.insert(node, true).is_none() {
            self.errand(Errand::Leave(node));
        }
        let faults = &self.options.faults;
        let is_alone = self.operator.leaving.len() == 1;
        // Where logs are in main memory, the end of a process on top of it leaves nobody who may lead (guarantee 11).
        let is_forced = self.options.durability == Durability::Forced;
        let may_be_lost = is_alone && is_forced && faults.rot == 0 && faults.blank == 0 && !self.has_lost_disk();
        let may_be_lost = may_be_lost && self.may_units_be_lost();
        let are_three = self.options.nodes > 3 || faults.move_range == 0;
        if may_be_lost && are_three && self.options.nodes > 1 && self.random.below(2) == 0 {
            self.count("leavers lost for good");
            self.take_away(node);
        }
    }

    fn has_lost_disk(&self) -> bool {
        self.machines.values().any(Machine::is_foreign)
    }

    fn take_away(&mut self, node: NodeId) {
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.is_gone = true;
            self.end(node, true);
        }
    }

    /// Whoever knows a node that does not know them makes itself known to it, as connections that are made anew do.
    pub(crate) fn introduce_others_to(&mut self, id: NodeId) {
        let Some(process) = self.machines.get(&id).and_then(|machine| machine.process.as_ref()) else { return };
        let known: BTreeSet<NodeId> = process.node.members().iter().map(|member| member.node).collect();
        let knows = |machine: &Machine| {
            let members = machine.process.iter().flat_map(|process| process.node.members());
            members.clone().any(|member| member.node == id)
        };
        let others = self.machines.iter().filter(|(other, machine)| !known.contains(other) && knows(machine));
        let others: Vec<NodeId> = others.map(|(other, _)| *other).collect();
        others.into_iter().for_each(|other| self.hello(other, id));
    }

    /// The nodes that have left as far as any node knows. An operator who was refused at last may have been heard at
    /// first.
    pub(super) fn those_that_left(&self) -> BTreeSet<Member> {
        let processes = self.machines.values().filter_map(|machine| machine.process.as_ref());
        let catalogues =
            processes.flat_map(|process| process.node.replicas()).filter_map(|(.., state)| state.as_catalog());
        let rosters = catalogues.flat_map(|catalogue| catalogue.roster());
        rosters.filter(|node| node.standing == Standing::Left).map(|node| node.member).collect()
    }

    /// No majority counts on a node that has left: the catalogue's cohort is without it wherever the roster says so,
    /// and so is every range at the leader of its newest epoch. (A leader that was replaced may not know.)
    pub(crate) fn check_roster(&mut self) {
        if self.options.leaves == 0 {
            return;
        }
        let left = self.those_that_left();
        let mut leaders: Vec<(CohortId, Epoch, BTreeSet<Member>)> = Vec::new();
        let mut wrong = None;
        for process in self.machines.values().filter_map(|machine| machine.process.as_ref()) {
            for (cohort, replica, state) in process.node.replicas() {
                let epoch = replica.promised().epoch;
                let newest = self.operator.epochs.entry(cohort).or_default();
                *newest = epoch.max(*newest);
                // What is dropped owns nothing any more: its replica on the leaver may hear last that its table is
                // gone.
                let is_dropped = state.ownership() == Some(&Ownership::Dropped);
                // Nor does a log unit: whether a projection has a leaver's unit, the catalogue knows.
                if replica.leads() && !is_dropped && state.as_unit().is_none() {
                    leaders.push((cohort, epoch, replica.membership().everyone().collect()));
                }
                let Some(catalogue) = state.as_catalog() else { continue };
                let has_left = |(_, on): &(CohortId, Member)| {
                    catalogue.roster().any(|node| node.member == *on && node.standing == Standing::Left)
                };
                if let Some((unit, member)) = catalogue.units().find(has_left) {
                    wrong = Some(format!("{member} has left, and has log unit {unit}"));
                }
                let mut gone =
                    catalogue.roster().filter(|node| node.standing == Standing::Left).map(|node| node.member);
                if let Some(member) = gone.find(|member| replica.membership_applied().on(member.node).is_some()) {
                    wrong = Some(format!("{member} has left, and is a member of the catalogue's cohort"));
                }
            }
        }
        leaders.retain(|(cohort, epoch, _)| self.operator.epochs[cohort] == *epoch);
        for (cohort, _, members) in leaders {
            if let Some(member) = members.intersection(&left).next() {
                wrong = Some(format!("{member} has left, and is a member of cohort {cohort}"));
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
