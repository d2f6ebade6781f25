//! The catalogue, as far as a log sees it: the newest projection, changed by compare-and-set, and who has which unit.
//!
//! It is one place here, which never dies; a cohort of replicas stands for that. Who fetches may be told an older
//! projection.

use std::collections::{BTreeMap, BTreeSet};

use base::{Incarnation, Member, NodeId};

use super::World;
use super::network::{Message, Place};
use crate::recovery::{Homes, Verdict};
use crate::{Extent, LogId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};

#[derive(Debug, Default)]
pub(super) struct Registry {
    /// All that were installed.
    pub(super) history: Vec<Projection>,
    /// The node of each unit.
    pub(super) units: BTreeMap<UnitId, u32>,
    /// The disk that each number was given for.
    disks: BTreeMap<UnitId, Incarnation>,
    last_unit: u64,
}

impl Registry {
    pub(super) fn newest(&self) -> &Projection {
        self.history.last().expect("a log has a projection from its beginning")
    }

    /// Where every unit is.
    pub(super) fn homes(&self) -> Homes {
        let member = |(unit, node): (&UnitId, &u32)| {
            let incarnation = self.disks.get(unit).copied().unwrap_or_default();
            (*unit, Member { node: NodeId(*node), incarnation })
        };
        self.units.iter().map(member).collect()
    }

    /// The number of a new unit on a node's disk.
    pub(super) fn unit_on(&mut self, node: u32, disk: Incarnation) -> UnitId {
        self.last_unit += 1;
        let unit = UnitId(self.last_unit);
        self.units.insert(unit, node);
        self.disks.insert(unit, disk);
        unit
    }
}

impl World {
    /// The log begins: its units have begun, each on its node's disk.
    pub(super) fn found(&mut self) {
        for node in 1..=self.options.nodes {
            self.new_node(node);
        }
        let chains: Vec<Vec<UnitId>> = (0..self.options.founded as u32)
            .map(|chain| {
                let nodes = (0..self.options.copies as u32).map(|copy| self.options.home(chain, copy));
                nodes.collect::<Vec<_>>().into_iter().map(|node| self.registry.unit_on(node, Incarnation(1))).collect()
            })
            .collect();
        let node = self.nodes.get(&1).expect("it was just made");
        let projection = Projection {
            log: LogId(1),
            epoch: ProjectionEpoch(1),
            sequencer: SequencerId { node: NodeId(1), boot: node.boot },
            start: Position(0),
            newest_unit: chains.iter().flatten().copied().max().unwrap_or_default(),
            extents: vec![Extent::new(Position(0), self.options.width, chains)],
        };
        projection.check().expect("a log begins with a good projection");
        self.begin_units(&projection);
        self.registry.history.push(projection);
    }

    pub(super) fn registry_hears(&mut self, from: Place, message: Message) {
        match message {
            Message::Fetch { back } => {
                let older = if !self.is_healed && self.random.chance(100_000) { 2 } else { 1 };
                let history = &self.registry.history;
                let projection = history[history.len().saturating_sub(older)].clone();
                // Bytes travel.
                let projection = Projection::decode(projection.encode()).expect("it was just encoded");
                self.send(Place::Registry, from, Some(back.life), Message::Fetched { projection });
            }
            Message::Propose { projection, back } => {
                let newest = self.newest().clone();
                if projection.epoch == newest.epoch.next() {
                    match projection.may_follow(&newest) {
                        Ok(()) => self.install(&newest, projection),
                        Err(unfit) => self.violate(&format!("a projection is proposed that can't follow: {unfit}")),
                    }
                }
                let verdict = Verdict::Newest(self.newest().clone());
                self.send(Place::Registry, from, Some(back.life), Message::Verdict { verdict, back });
            }
            _ => {}
        }
    }

    /// Only what no disk holds any more is given up.
    fn check_given_up(&mut self, old: &Projection, new: &Projection) {
        let last = old.last().from.0 + old.last().chains.len() as u64;
        for position in (new.first().0..last).map(Position) {
            let (was, is) = (old.chain_of(position).unwrap_or_default(), new.chain_of(position).unwrap_or_default());
            if is.is_empty() && !was.is_empty() {
                self.count("positions given up");
                if let Some(unit) = was.iter().find(|unit| !self.gone.contains(unit)) {
                    return self.violate(&format!("position {position} is given up, and unit {unit} holds it"));
                }
            }
        }
    }

    fn install(&mut self, old: &Projection, new: Projection) {
        self.check_given_up(old, &new);
        let chains = new.extents.iter().flat_map(|extent| &extent.chains);
        let node = |unit: &UnitId| self.registry.units.get(unit);
        if let Some(chain) =
            chains.into_iter().find(|chain| BTreeSet::from_iter(chain.iter().map(node)).len() < chain.len())
        {
            self.violate(&format!("two units of one node stand in the chain {chain:?}"));
        }
        self.count("projections");
        let units = new.units();
        let gone: Vec<UnitId> = old.units().into_iter().filter(|unit| !units.contains(unit)).collect();
        if !gone.is_empty() {
            self.count("units left out");
        }
        self.left_out.extend(gone);
        if units.iter().any(|unit| !old.units().contains(unit)) {
            self.count("new units");
        }
        if new.extents.len() > old.extents.len() {
            self.count("extents opened");
        }
        let copies = |projection: &Projection| projection.extents.first().map_or(0, |extent| extent.units().count());
        if copies(&new) > copies(old) && new.first() == old.first() && old.extents.len() > 1 {
            self.count("chains healed");
        }
        if new.first() > old.first() {
            self.count("extents trimmed away");
        }
        self.registry.history.push(new);
    }
}
