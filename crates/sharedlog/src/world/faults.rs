//! Fault injection.

use base::{Incarnation, SplitMix64};

use super::network::{Event, Message, Return, SimMachine, SimProcess};
use super::node::{Disk, Node};
use super::{MILLISECOND, Time, World};
use crate::recovery::Recovery;
use crate::unit::{Command, Request};
use crate::{AskId, Position, Projection, UnitId};

impl World {
    /// The end of a pause.
    pub(super) fn paused_until(&self, place: SimProcess) -> Option<Time> {
        let until = match place {
            SimProcess::Node(node) => self.nodes.get(&node)?.paused_until,
            SimProcess::Client(client) => self.clients.paused_until(client)?,
            SimProcess::Registry => return None,
        };
        (until > self.now).then_some(until)
    }

    pub(super) fn fault(&mut self) {
        if self.is_healed {
            return;
        }
        let pause = MILLISECOND + self.random.below(2 * self.options.fault_every);
        self.network.put(self.now + pause, Event::Fault);
        let node = 1 + self.random.below(self.options.nodes.into()) as u32;
        let client = 1 + self.random.below(self.options.clients.into()) as u32;
        match self.random.below(9) {
            6 if self.options.damage => self.damage(node),
            0 | 7 | 8 if self.options.kills => self.kill(node),
            1 if self.options.disks && (self.options.losses || self.may_lose(node)) => {
                self.kill(node);
                let units = self.registry.units.iter().filter(|(_, of)| **of == node).map(|(unit, _)| *unit);
                let units: Vec<UnitId> = units.collect();
                let of = node;
                if let Some(node) = self.nodes.get_mut(&node) {
                    self.gone.extend(units.into_iter().filter(|unit| node.disk.has(*unit)));
                    node.disk = Disk::blank(Incarnation(node.disk.incarnation.0 + 1));
                }
                self.forget_vain_spares();
                self.begin_late(of);
                self.count("disks lost");
            }
            2 if self.options.pauses => {
                let until = self.pause_end();
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.paused_until = until;
                }
                self.count("nodes paused");
            }
            3 if self.options.pauses => {
                let until = self.pause_end();
                self.pause_client(client, until);
                self.count("clients paused");
            }
            4 if self.options.client_kills => self.kill_client(client),
            5 if self.options.partitions => self.part(),
            _ => {}
        }
    }

    /// A delayed duplicate of the command that started the units of a node arrives after its disk was replaced.
    fn begin_late(&mut self, id: u32) {
        let stood = self.newest().units();
        for unit in stood.into_iter().filter(|unit| self.registry.units[unit] == id) {
            let Some(command) = self.begins.get(&unit).cloned() else { continue };
            let back = Return { place: SimProcess::Node(id), life: 0, machine: SimMachine::Player, ask: AskId(0) };
            let message = Message::ToUnit { unit, request: Request::Command(command.into()), back };
            let time = self.now + self.random.below(150 * MILLISECOND);
            let to = SimProcess::Node(id);
            self.network.put(time, Event::Deliver { from: back.place, to, life: None, message });
        }
    }

    /// Whether no replacement of the projection is in progress.
    fn is_quiet(&self) -> bool {
        let mut processes = self.nodes.values().filter_map(|node| node.process.as_ref());
        processes.all(|process| process.controller.recoveries().next().is_none())
            && self.network.proposals().next().is_none()
    }

    /// Loses one value on a node's disk, if other units of its chain hold it.
    fn damage(&mut self, id: u32) {
        if !self.is_quiet() || !self.may_lose(id) {
            return;
        }
        let newest = self.newest().clone();
        let all_live = |unit: &UnitId| {
            let process = self.nodes.get(&self.registry.units[unit]).and_then(|node| node.process.as_ref());
            process.is_some_and(|process| process.units.units.get(unit).is_some_and(|unit| unit.damaged() == 0))
        };
        let Some(units) = self.nodes.get(&id).and_then(|node| node.process.as_ref()).map(|process| &process.units)
        else {
            return;
        };
        let may_go = |(unit, position): &&(UnitId, Position)| {
            let chain = newest.chain_of(*position).unwrap_or_default();
            chain.len() > 1 && chain.contains(unit) && chain.iter().all(all_live) && !self.has_damage(chain)
        };
        let places: Vec<_> = units.values.keys().filter(may_go).copied().collect();
        let Some(place) = places.get(self.random.below(places.len() as u64) as usize).copied() else { return };
        if let Some(Node { disk, process: Some(process), .. }) = self.nodes.get_mut(&id) {
            // The node must detect the loss before any other component relies on this copy alone, because that would be
            // two losses at once.
            process.units.values.remove(&place);
            process.units.apply(place.0, Command::Damaged { position: place.1 });
            disk.checkpoint(&process.units);
            self.count("values damaged");
        }
    }

    /// Whether a unit of the chain has lost a value or believes that it has.
    fn has_damage(&self, chain: &[UnitId]) -> bool {
        chain.iter().any(|unit| {
            let Some(node) = self.nodes.get(&self.registry.units[unit]) else { return false };
            match &node.process {
                Some(process) => process.units.has_damage(*unit),
                None => node.disk.replay().has_damage(*unit),
            }
        })
    }

    fn pause_end(&mut self) -> Time {
        self.now + 5 * MILLISECOND + self.random.below(100 * MILLISECOND)
    }

    fn kill(&mut self, id: u32) {
        let mut random = SplitMix64::new(self.random.draw());
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.process.is_none() {
            return;
        }
        node.die(&mut random);
        let back = self.now + MILLISECOND + self.random.below(80 * MILLISECOND);
        self.network.put(back, Event::Restart(SimProcess::Node(id)));
        self.count("nodes killed");
    }

    /// Whether a disk may be lost: each chain of the newest projection, and of any possible successor, keeps a copy.
    fn may_lose(&self, id: u32) -> bool {
        let is_elsewhere = |unit: &UnitId| {
            let node = self.registry.units[unit];
            let holds = self.nodes.get(&node).is_some_and(|node| node.disk.has(*unit));
            node != id && holds && !self.has_damage(&[*unit])
        };
        let keeps = |chain: &Vec<UnitId>| chain.is_empty() || chain.iter().any(is_elsewhere);
        let all_keep = |projection: &Projection| projection.extents.iter().flat_map(|extent| &extent.chains).all(keeps);
        let epoch = self.newest().epoch;
        let processes = self.nodes.values().filter_map(|node| node.process.as_ref());
        let recoveries = processes.flat_map(|process| process.controller.recoveries());
        let may_end = |recovery: &Recovery| {
            let (sealed, successor) = recovery.counts_on();
            // The recovery may complete with only the replies that it has, or that are in flight.
            let counted = |chain: &Vec<UnitId>| {
                !chain.iter().any(|unit| self.registry.units[unit] == id)
                    || chain.iter().any(|unit| sealed.contains(unit) && is_elsewhere(unit))
            };
            let chains = recovery.replaces().extents.iter().flat_map(|extent| &extent.chains);
            // New units may be missing from the registry by then: the recovery continues without them.
            let is_kept = chains.into_iter().all(counted) && successor.is_none_or(all_keep);
            recovery.epoch() < epoch || is_kept
        };
        let proposals = self.network.proposals();
        all_keep(self.newest())
            && recoveries.into_iter().all(may_end)
            && proposals.filter(|proposal| proposal.epoch > epoch).all(all_keep)
    }

    /// Partitions two places, in one direction or in both.
    fn part(&mut self) {
        let mut places: Vec<SimProcess> = (1..=self.options.nodes).map(SimProcess::Node).collect();
        places.extend((1..=self.options.clients).map(SimProcess::Client));
        places.push(SimProcess::Registry);
        let mut any = || places[self.random.below(places.len() as u64) as usize];
        let (one, other) = (any(), any());
        let both = self.random.chance(600_000);
        let until = self.now + 5 * MILLISECOND + self.random.below(80 * MILLISECOND);
        for (from, to) in [(one, other), (other, one)].into_iter().take(if both { 2 } else { 1 }) {
            self.network.part(from, to);
            self.network.put(until, Event::Rejoin(from, to));
        }
        self.count("partitions");
    }

    pub(super) fn restart(&mut self, place: SimProcess) {
        match place {
            SimProcess::Node(node) if self.nodes.get(&node).is_some_and(|node| node.process.is_none()) => {
                self.start_node(node);
            }
            SimProcess::Client(client) => self.start_client(client),
            _ => {}
        }
    }

    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.network.rejoin_all();
        self.leaving.clear();
        let nodes: Vec<u32> = self.nodes.keys().copied().collect();
        for id in nodes {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.paused_until = 0;
            }
            self.restart(SimProcess::Node(id));
        }
        // Removes wrong reports from the controllers.
        self.elect(false);
        for client in 1..=self.options.clients {
            self.pause_client(client, 0);
            self.start_client(client);
        }
    }
}
