//! Chooses the leading controllers and disturbs them.
//!
//! The controllers are the production code. Here leadership changes often, and the leaders get wrong reports of units
//! in doubt, sealed projections and leaving nodes. Nodes are also partitioned from the others while they keep running.

use std::collections::BTreeSet;

use base::{Member, NodeId};

use super::network::{Event, Message, SimProcess};
use super::{MILLISECOND, World};
use crate::client::Suspect;
use crate::{ProjectionEpoch, UnitId};

/// Probabilities in parts per million: another controller becomes the leader; the previous one continues too.
const ELECTION: u64 = 150_000;
const TWO_LEADERS: u64 = 500_000;

impl World {
    /// Elects one or more leaders and disturbs them.
    pub(super) fn operate(&mut self) {
        let pause = 5 * MILLISECOND + self.random.below(if self.is_healed { 5 } else { 40 } * MILLISECOND);
        self.network.put(self.now + pause, Event::Operate);
        let is_running = |(node, life): &(u32, u64)| {
            let process = self.nodes.get(node).and_then(|node| node.process.as_ref());
            process.is_some_and(|process| process.life == *life)
        };
        let running: Vec<(u32, u64)> = self.leaders.iter().copied().filter(is_running).collect();
        self.leaders = running;
        if self.leaders.is_empty() || !self.is_healed && self.random.chance(ELECTION) {
            let goes_on = self.random.chance(TWO_LEADERS);
            self.elect(goes_on);
        }
        if !self.is_healed && self.options.restless {
            self.disturb();
        }
        if self.is_healed {
            let nodes: Vec<u32> = self.nodes.keys().copied().collect();
            nodes.into_iter().for_each(|node| self.scrub(node));
        }
        if self.is_healed || self.random.chance(300_000) {
            let damaged = self.damaged_units();
            self.report_in_doubt(&damaged);
        }
    }

    /// Another controller leads; the previous leaders may not know it yet.
    pub(super) fn elect(&mut self, others_go_on: bool) {
        if !others_go_on {
            for (node, life) in std::mem::take(&mut self.leaders) {
                if let Some(process) = self.process(node, Some(life)) {
                    process.controller.step_down();
                }
            }
        }
        let running = self.nodes.values().filter_map(|node| Some((node.id, node.process.as_ref()?.life)));
        let running: Vec<(u32, u64)> = running.filter(|running| !self.leaders.contains(running)).collect();
        let elected = running.get(self.random.below(running.len().max(1) as u64) as usize).copied();
        self.leaders.extend(elected);
        self.count("controllers elected");
        if self.leaders.len() > 1 {
            self.count("concurrent leading controllers");
        }
    }

    /// Sends a wrong report to the leaders.
    fn disturb(&mut self) {
        let newest = self.newest();
        let (epoch, units, sequencer) = (newest.epoch, newest.units(), newest.sequencer.node.0);
        let unit = units[self.random.below(units.len() as u64) as usize];
        let any = 1 + self.random.below(self.options.nodes.into()) as u32;
        let node = if self.random.chance(500_000) { sequencer } else { any };
        match self.random.below(16) {
            // An unnecessary replacement of the projection.
            0 | 1 => {
                for (leader, _) in self.leaders.clone() {
                    let message = Message::Suspected { epoch, suspect: Suspect::Projection };
                    self.send(SimProcess::Registry, SimProcess::Node(leader), None, message);
                }
            }
            2 => self.report_suspect(SimProcess::Registry, epoch, Suspect::Unit(unit)),
            3 => self.report_suspect(SimProcess::Registry, epoch, Suspect::Sequencer),
            4 if self.has_others(unit) => self.report_in_doubt(&BTreeSet::from([unit])),
            5 | 9 | 10 => self.cut_off(node, epoch),
            6 if !self.leaving.remove(&node) => {
                self.leaving.insert(node);
                self.count("nodes asked to leave");
            }
            7 | 8 => self.name_units(&[NodeId(node)]),
            _ => {}
        }
    }

    /// Partitions a node from the other nodes and the registry, but not from clients. If it runs the sequencer, another
    /// one must take over.
    fn cut_off(&mut self, node: u32, epoch: ProjectionEpoch) {
        let until = self.now + self.random.below(250 * MILLISECOND);
        self.count("nodes partitioned from the others");
        let others = self.nodes.keys().copied().filter(|other| *other != node).map(SimProcess::Node);
        for other in others.chain([SimProcess::Registry]).collect::<Vec<_>>() {
            for (from, to) in [(SimProcess::Node(node), other), (other, SimProcess::Node(node))] {
                self.network.part(from, to);
                self.network.put(until, Event::Rejoin(from, to));
            }
        }
        // By then its silence exceeds any timeout extended by false suspicions.
        for delay in [30, 60, 110, 210] {
            for (leader, _) in self.leaders.clone() {
                let (from, to) = (SimProcess::Registry, SimProcess::Node(leader));
                let message = Message::Suspected { epoch, suspect: Suspect::Sequencer };
                let time = self.now + delay * MILLISECOND;
                self.network.put(time, Event::Deliver { from, to, life: None, message });
            }
        }
    }

    /// Whether each chain of a unit has another one that is running and undamaged.
    fn has_others(&self, unit: UnitId) -> bool {
        let is_well = |other: &UnitId| *other != unit && self.lives(*other) && self.is_unharmed(*other);
        let mut chains = self.newest().extents.iter().flat_map(|extent| &extent.chains);
        chains.all(|chain| !chain.contains(&unit) || chain.iter().any(is_well))
    }

    fn report_in_doubt(&mut self, units: &BTreeSet<UnitId>) {
        for unit in units {
            let Some(member) = self.registry.member_of(*unit) else { continue };
            for (leader, _) in self.leaders.clone() {
                let message = Message::UnitsInDoubt { member, units: vec![*unit] };
                self.send(SimProcess::Node(member.node.0), SimProcess::Node(leader), None, message);
            }
        }
    }

    /// A client or a sequencer reports a suspect.
    pub(super) fn report_suspect(&mut self, from: SimProcess, epoch: ProjectionEpoch, suspect: Suspect) {
        self.count("suspicions");
        // The leader as known to its node.
        let leader = self.leaders.get(self.random.below(self.leaders.len().max(1) as u64) as usize).copied();
        if let Some((leader, _)) = leader {
            self.send(from, SimProcess::Node(leader), None, Message::Suspected { epoch, suspect });
        }
    }

    /// The disk of a node.
    pub(super) fn member(&self, node: u32) -> Member {
        let incarnation = self.nodes.get(&node).map(|node| node.disk.incarnation).unwrap_or_default();
        Member { node: NodeId(node), incarnation }
    }

    /// Whether a unit exists and its node is running.
    pub(super) fn lives(&self, unit: UnitId) -> bool {
        let node = self.registry.units.get(&unit).and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| node.process.as_ref().is_some_and(|process| process.units.units.contains_key(&unit)))
    }

    /// Whether all values of a unit are readable.
    fn is_unharmed(&self, unit: UnitId) -> bool {
        let node = self.nodes.get(&self.registry.units[&unit]);
        node.and_then(|node| node.process.as_ref()).is_some_and(|process| process.units.lost(unit).is_empty())
    }

    /// Whether the newest projection is unavailable.
    fn is_in_trouble(&self) -> bool {
        let newest = self.newest();
        let sequencer = newest.sequencer;
        let process = self.nodes.get(&sequencer.node.0).and_then(|node| node.process.as_ref());
        process.is_none_or(|process| process.me != sequencer) || !newest.units().iter().all(|unit| self.lives(*unit))
    }

    /// Whether the last extent lacks units or chains.
    fn is_thin(&self) -> bool {
        let chains = &self.newest().last().chains;
        chains.len() < self.options.stripes || chains.iter().any(|chain| chain.len() < self.options.copies)
    }

    /// Whether no repair is pending. The projection may still be sealed: the next client that notices it reports it.
    pub(super) fn is_well(&self) -> bool {
        let chains = || self.newest().extents.iter().flat_map(|extent| &extent.chains);
        let mut processes = self.nodes.values().filter_map(|node| node.process.as_ref());
        processes.all(|process| process.controller.recoveries().next().is_none())
            && !self.is_in_trouble()
            && !self.is_thin()
            && self.damaged_units().is_empty()
            && self.newest().units().iter().all(|unit| self.is_unharmed(*unit))
            && chains().all(|chain| chain.is_empty() || chain.len() >= self.options.copies)
    }

    pub(super) fn why_stuck(&self) -> String {
        let newest = self.newest();
        let dead: Vec<UnitId> = newest.units().into_iter().filter(|unit| !self.lives(*unit)).collect();
        let controllers = self.nodes.values().filter_map(|node| node.process.as_ref());
        let controllers: Vec<_> = controllers
            .filter(|process| process.controller.leads())
            .map(|process| (process.me, process.controller.counters(), process.controller.recoveries().count()))
            .collect();
        format!(
            "trouble {}, dead {dead:?}, damaged {:?}, copies {}, clients {}, leaders {:?} {controllers:?}, listed {:?}, newest {newest:?}",
            self.is_in_trouble(),
            self.damaged_units(),
            self.options.copies,
            self.clients.why_stuck(),
            self.leaders,
            self.registry.listed,
        )
    }
}
