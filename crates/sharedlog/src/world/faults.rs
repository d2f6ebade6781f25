//! What goes wrong.

use std::collections::BTreeSet;

use base::SplitMix64;

use super::network::{Event, Place};
use super::node::Disk;
use super::{MILLISECOND, Time, World};
use crate::UnitId;

impl World {
    /// Until when a place stands still.
    pub(super) fn paused_until(&self, place: Place) -> Option<Time> {
        let until = match place {
            Place::Node(node) => self.nodes.get(&node)?.paused_until,
            Place::Client(client) => self.clients.paused_until(client)?,
            Place::Registry => return None,
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
        match self.random.below(6) {
            0 if self.options.kills => self.kill(node),
            1 if self.options.disks && self.may_lose(node) => {
                self.kill(node);
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.disk = Disk::default();
                }
                self.count("disks lost");
            }
            2 if self.options.pauses => {
                let until = self.pause_end();
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.paused_until = until;
                }
                self.count("nodes stood still");
            }
            3 if self.options.pauses => {
                let until = self.pause_end();
                self.pause_client(client, until);
                self.count("clients stood still");
            }
            4 if self.options.client_kills => self.kill_client(client),
            5 if self.options.partitions => self.part(),
            _ => {}
        }
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
        self.network.put(back, Event::Restart(Place::Node(id)));
        self.count("nodes killed");
    }

    /// Whether a disk may be lost: each chain of the newest projection keeps a copy, and none can be replaced just now by
    /// one that doesn't.
    fn may_lose(&self, id: u32) -> bool {
        let processes = self.nodes.values().filter_map(|node| node.process.as_ref());
        let is_quiet = processes.clone().all(|process| process.recoveries.is_empty());
        let keeps = |chain: &Vec<UnitId>| {
            let units = BTreeSet::from_iter(chain.iter().copied());
            let others = self.nodes.values().filter(|node| node.id != id);
            others.into_iter().any(|node| {
                let own = units.iter().copied().filter(|unit| self.registry.units[unit] == node.id).collect();
                !node.holds(&own).is_empty()
            })
        };
        let chains = |newest: &crate::Projection| newest.extents.iter().flat_map(|extent| &extent.chains).all(keeps);
        is_quiet && !self.network.has_proposal() && chains(self.newest())
    }

    /// Cuts two places off from each other, in one direction or in both.
    fn part(&mut self) {
        let mut places: Vec<Place> = (1..=self.options.nodes).map(Place::Node).collect();
        places.extend((1..=self.options.clients).map(Place::Client));
        places.push(Place::Registry);
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

    pub(super) fn restart(&mut self, place: Place) {
        match place {
            Place::Node(node) if self.nodes.get(&node).is_some_and(|node| node.process.is_none()) => {
                self.start_node(node);
            }
            Place::Client(client) => self.start_client(client),
            _ => {}
        }
    }

    /// The faults end.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.network.rejoin_all();
        let nodes: Vec<u32> = self.nodes.keys().copied().collect();
        for id in nodes {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.paused_until = 0;
            }
            self.restart(Place::Node(id));
        }
        for client in 1..=self.options.clients {
            self.pause_client(client, 0);
            self.start_client(client);
        }
    }
}
