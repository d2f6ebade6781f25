//! Whoever looks after the log: has projections replaced where something is wrong, or without need, and units filled.

use std::collections::BTreeSet;

use base::Duration;

use super::network::Event;
use super::{MILLISECOND, RECOVERY, World};
use crate::copier::{Config, Copier};
use crate::recovery::{Plan, Recovery, healings};
use crate::{Position, SequencerId, UnitId};

const COPIER: Config = Config { window: 4, again: Duration::from_millis(10), failures: 8 };

impl World {
    /// Looks at the log, and does something about what it sees, perhaps on several nodes at once.
    pub(super) fn operate(&mut self) {
        let pause = 5 * MILLISECOND + self.random.below(if self.is_healed { 5 } else { 40 } * MILLISECOND);
        self.network.put(self.now + pause, Event::Operate);
        let needed = self.is_in_trouble() || self.is_thin() || self.is_healed && !self.damaged_units().is_empty();
        if self.is_healed {
            let nodes: Vec<u32> = self.nodes.keys().copied().collect();
            nodes.into_iter().for_each(|node| self.scrub(node));
        }
        if needed || !self.is_healed && self.options.restless && self.random.chance(200_000) {
            let times = if self.random.chance(300_000) { 2 } else { 1 };
            for _ in 0..times {
                if let Some(node) = self.any_node() {
                    self.recover(node, true);
                }
            }
        } else if let Some(node) = self.any_node() {
            self.copy(node);
        }
    }

    /// A running node.
    fn any_node(&mut self) -> Option<u32> {
        let running: Vec<u32> = self.nodes.values().filter(|node| node.process.is_some()).map(|node| node.id).collect();
        running.get(self.random.below(running.len() as u64) as usize).copied()
    }

    /// Whether a unit is there and answers.
    fn lives(&self, unit: UnitId) -> bool {
        let node = self.registry.units.get(&unit).and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| node.process.as_ref().is_some_and(|process| process.units.units.contains_key(&unit)))
    }

    /// Whether all that a unit holds can be read.
    fn is_unharmed(&self, unit: UnitId) -> bool {
        let node = self.nodes.get(&self.registry.units[&unit]);
        node.and_then(|node| node.process.as_ref()).is_some_and(|process| process.units.lost(unit).is_empty())
    }

    /// Whether the newest projection can't serve.
    fn is_in_trouble(&self) -> bool {
        let newest = self.newest();
        let sequencer = newest.sequencer;
        let lives = self.nodes.get(&sequencer.node.0).and_then(|node| node.process.as_ref());
        let is_sealed = |unit: &UnitId| {
            let node = self.nodes.get(&self.registry.units[unit]);
            let process = node.and_then(|node| node.process.as_ref());
            process
                .is_some_and(|process| process.units.units.get(unit).is_some_and(|unit| unit.sealed() >= newest.epoch))
        };
        let units = newest.units();
        lives.is_none_or(|process| process.me != sequencer)
            || !units.iter().all(|unit| self.lives(*unit))
            || units.iter().any(is_sealed)
    }

    /// Whether new entries have fewer copies or chains than they should.
    fn is_thin(&self) -> bool {
        let chains = &self.newest().last().chains;
        chains.len() < self.options.stripes || chains.iter().any(|chain| chain.len() < self.options.copies)
    }

    /// Whether nothing is left to be done.
    pub(super) fn is_well(&self) -> bool {
        let chains = || self.newest().extents.iter().flat_map(|extent| &extent.chains);
        let no_recovery = self.nodes.values().filter_map(|node| node.process.as_ref());
        let no_recovery = no_recovery.clone().all(|process| process.recoveries.is_empty());
        no_recovery
            && !self.is_in_trouble()
            && !self.is_thin()
            && self.damaged_units().is_empty()
            && self.newest().units().iter().all(|unit| self.is_unharmed(*unit))
            && chains().all(|chain| chain.is_empty() || chain.len() >= self.options.copies)
    }

    /// Has a node replace the projection that it knows.
    pub(super) fn recover(&mut self, id: u32, with_spares: bool) {
        let now = self.clock();
        let sequencer = if self.random.chance(500_000) { Some(id) } else { self.any_node() };
        let Some(sequencer) = sequencer.and_then(|node| self.nodes.get(&node)) else { return };
        let sequencer = SequencerId { node: base::NodeId(sequencer.id), boot: sequencer.boot };
        let gives_spares = with_spares && (self.is_healed || self.random.chance(700_000));
        let spares = if gives_spares { self.spares() } else { Vec::new() };
        let units = self.newest().units();
        let leaves_one = with_spares && !self.is_healed && self.random.chance(300_000);
        let slow = units.get(self.random.below(units.len() as u64) as usize).copied().filter(|_| leaves_one);
        let mut leave_out = BTreeSet::from_iter(slow);
        if self.is_healed || self.random.chance(300_000) {
            leave_out.extend(self.damaged_units());
        }
        let plan = Plan {
            sequencer,
            leave_out,
            leaving: BTreeSet::new(),
            spares,
            homes: self.registry.homes(),
            lost: self.declared_lost(),
            at_least: if self.options.losses { self.end_remembered() } else { Position(0) },
            stripes: self.options.stripes,
            width: self.options.width,
            copies: self.options.copies,
        };
        let number = self.token().0;
        let Some(process) = self.nodes.get_mut(&id).and_then(|node| node.process.as_mut()) else { return };
        // Two at one time on one node are as good as two on two.
        if process.recoveries.len() >= 2 {
            return;
        }
        let Some(known) = process.known.clone() else { return };
        process.recoveries.insert(number, Recovery::begin(known, plan, RECOVERY, now));
        self.count("recoveries begun");
        self.settle_node(id);
    }

    /// What an operator knows to be gone, with its disk.
    fn declared_lost(&self) -> BTreeSet<UnitId> {
        if self.options.losses { self.gone.clone() } else { BTreeSet::new() }
    }

    /// An end of the log that is remembered, so that no position is given out twice.
    fn end_remembered(&self) -> Position {
        self.given_out.values().copied().fold(Position(0), Position::max)
    }

    /// New units, one on each running node for each that is missing: the recovery places them. Among them may be one
    /// that was left out, and has no place in a projection any more.
    fn spares(&mut self) -> Vec<UnitId> {
        let mut spares = Vec::new();
        if self.random.chance(300_000) {
            let left_out: Vec<UnitId> = self.left_out.iter().copied().filter(|unit| self.lives(*unit)).collect();
            spares.extend(left_out.get(self.random.below(left_out.len() as u64) as usize));
        }
        let chains = self.newest().last().chains.clone();
        let living = chains.iter().flatten().filter(|unit| self.lives(**unit)).count();
        let missing = (chains.len().max(self.options.stripes) * self.options.copies).saturating_sub(living);
        for _ in 0..missing {
            let mut free: Vec<u32> =
                self.nodes.values().filter(|node| node.process.is_some()).map(|node| node.id).collect();
            while !free.is_empty() {
                let node = free.swap_remove(self.random.below(free.len() as u64) as usize);
                let disk = self.nodes[&node].disk.incarnation;
                spares.push(self.registry.unit_on(node, disk));
            }
        }
        spares
    }

    /// Has a node fill units, if there is something to fill.
    fn copy(&mut self, id: u32) {
        let (now, copies, homes) = (self.clock(), self.options.copies, self.registry.homes());
        let number = self.token().0;
        let Some(process) = self.nodes.get_mut(&id).and_then(|node| node.process.as_mut()) else { return };
        let Some(known) = &process.known else { return };
        let healings = healings(known, copies, &homes, &BTreeSet::new());
        if healings.is_empty() || process.copier.is_some() {
            return;
        }
        process.copier = Some((number, Copier::begin(healings, COPIER, now)));
        self.count("copiers");
        self.settle_node(id);
    }

    /// A copier has ended.
    pub(super) fn copied(&mut self, id: u32, is_whole: bool) {
        self.count(if is_whole { "units made whole" } else { "copiers given up" });
        if is_whole {
            self.recover(id, false);
        }
    }

    /// A client can't go on.
    pub(super) fn suspected(&mut self) {
        self.count("suspicions");
    }

    pub(super) fn why_stuck(&self) -> String {
        let newest = self.newest();
        let dead: Vec<UnitId> = newest.units().into_iter().filter(|unit| !self.lives(*unit)).collect();
        format!(
            "trouble {}, dead {dead:?}, copies {}, clients {}, newest {newest:?}",
            self.is_in_trouble(),
            self.options.copies,
            self.clients.why_stuck(),
        )
    }
}
