//! The catalog as seen by a log: the newest projection, replaced by compare-and-set, and the units of each node.
//!
//! It is a single component that never fails, in place of a replicated cohort. A fetch may return an older projection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Incarnation, Member, NodeId};

use super::network::{Message, SimProcess};
use super::{LOG, World};
use crate::controller::{ClusterState, LogState};
use crate::recovery::ProposalOutcome;
use crate::{Extent, Position, Projection, ProjectionEpoch, SequencerId, UnitId};

#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) history: Vec<Projection>,
    /// The node of each unit.
    pub(super) units: BTreeMap<UnitId, u32>,
    /// The disk for which each unit was created.
    disks: BTreeMap<UnitId, Incarnation>,
    last_unit: u64,
    /// Units that are in the newest projection or may join it.
    pub(super) listed: BTreeSet<UnitId>,
}

impl Registry {
    pub(super) fn newest(&self) -> &Projection {
        self.history.last().expect("a log always has a projection")
    }

    /// The disk of a unit.
    pub(super) fn member_of(&self, unit: UnitId) -> Option<Member> {
        let incarnation = self.disks.get(&unit).copied().unwrap_or_default();
        self.units.get(&unit).map(|node| Member { node: NodeId(*node), incarnation })
    }

    /// Listed units that are not in the newest projection.
    fn spares(&self) -> Vec<UnitId> {
        let standing = self.newest().units();
        self.listed.iter().copied().filter(|unit| !standing.contains(unit)).collect()
    }

    /// Creates a unit on a node's disk.
    pub(super) fn unit_on(&mut self, node: u32, disk: Incarnation) -> UnitId {
        self.last_unit += 1;
        let unit = UnitId(self.last_unit);
        self.units.insert(unit, node);
        self.disks.insert(unit, disk);
        self.listed.insert(unit);
        unit
    }
}

impl World {
    /// Creates the log: its units start on the disks of their nodes.
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
        let node = self.nodes.get(&1).expect("the node was just created");
        let projection = Projection {
            log: LOG,
            epoch: ProjectionEpoch(1),
            sequencer: SequencerId { node: NodeId(1), boot: node.boot },
            start: Position(0),
            newest_unit: chains.iter().flatten().copied().max().unwrap_or_default(),
            extents: vec![Extent::new(Position(0), self.options.width, chains)],
        };
        projection.check().expect("the initial projection is valid");
        self.begin_units(&projection);
        self.registry.history.push(projection);
    }

    pub(super) fn registry_receives(&mut self, from: SimProcess, message: Message) {
        match message {
            Message::Fetch { back } => {
                let older = if !self.is_healed && self.random.chance(100_000) { 2 } else { 1 };
                let history = &self.registry.history;
                let projection = history[history.len().saturating_sub(older)].clone();
                // Messages are encoded.
                let projection = Projection::decode(projection.encode()).expect("own encoding");
                let leads =
                    self.leaders.iter().any(|(node, life)| from == SimProcess::Node(*node) && *life == back.life);
                let cluster = leads.then(|| Box::new(self.cluster_state()));
                self.send(SimProcess::Registry, from, Some(back.life), Message::Fetched { projection, cluster });
            }
            Message::Propose { projection, back } => {
                let newest = self.newest().clone();
                let mut verdict = None;
                if projection.epoch == newest.epoch.next() {
                    let is_gone = |unit: &UnitId| !self.registry.listed.contains(unit) && !self.left_out.contains(unit);
                    let gone: Vec<UnitId> = projection.units().into_iter().filter(is_gone).collect();
                    match projection.may_follow(&newest) {
                        Ok(()) if !gone.is_empty() => verdict = Some(ProposalOutcome::UnitsGone(gone)),
                        Ok(()) => self.install(&newest, projection),
                        Err(unfit) => self.violate(&format!("an invalid projection was proposed: {unfit}")),
                    }
                }
                let verdict = verdict.unwrap_or_else(|| ProposalOutcome::Newest(self.newest().clone()));
                self.send(SimProcess::Registry, from, Some(back.life), Message::ProposalOutcome { verdict, back });
            }
            Message::AddUnits { nodes } => self.name_units(&nodes),
            Message::ForgetSpares { units } => {
                let spares = self.registry.spares();
                self.registry.listed.retain(|unit| !units.contains(unit) || !spares.contains(unit));
            }
            _ => {}
        }
    }

    /// The state for a leading controller. Sometimes it lists a unit that was removed.
    fn cluster_state(&mut self) -> ClusterState {
        let members: Vec<Member> = self.nodes.keys().map(|node| self.member(*node)).collect();
        let (leaving, staying) = members.into_iter().partition(|member| self.leaving.contains(&member.node.0));
        let mut listed = self.registry.listed.clone();
        if self.random.chance(300_000) {
            let left_out: Vec<UnitId> = self.left_out.iter().copied().filter(|unit| self.lives(*unit)).collect();
            listed.extend(left_out.get(self.random.below(left_out.len().max(1) as u64) as usize));
        }
        let log = LogState {
            projection: self.newest().clone(),
            stripes: self.options.stripes,
            width: self.options.width,
            copies: self.options.copies,
            units: listed.into_iter().filter_map(|unit| Some((unit, self.registry.member_of(unit)?))).collect(),
            lost: if self.options.losses { self.gone.clone() } else { BTreeSet::new() },
            at_least: if self.options.losses { self.end_remembered() } else { Position(0) },
        };
        ClusterState { staying, leaving, logs: BTreeMap::from([(log.id(), Arc::new(log))]) }
    }

    /// An end of the log supplied by the operator, so that no position is handed out twice.
    fn end_remembered(&self) -> Position {
        self.handed_out.values().copied().fold(Position(0), Position::max)
    }

    /// Creates a unit on each node that stays, replacing its spare.
    pub(super) fn name_units(&mut self, nodes: &[NodeId]) {
        for node in nodes.iter().map(|node| node.0).filter(|node| !self.leaving.contains(node)).collect::<BTreeSet<_>>()
        {
            let member = self.member(node);
            let spares = self.registry.spares();
            let is_vain = |unit: &UnitId| spares.contains(unit) && self.registry.member_of(*unit) == Some(member);
            let vain: Vec<UnitId> = self.registry.listed.iter().copied().filter(is_vain).collect();
            vain.iter().for_each(|unit| _ = self.registry.listed.remove(unit));
            self.registry.unit_on(node, member.incarnation);
        }
    }

    /// Checks that only chains without any remaining copy are abandoned.
    fn check_given_up(&mut self, old: &Projection, new: &Projection) {
        let last = old.last().from.0 + old.last().chains.len() as u64;
        for position in (new.first().0..last).map(Position) {
            let (was, is) = (old.chain_of(position).unwrap_or_default(), new.chain_of(position).unwrap_or_default());
            if is.is_empty() && !was.is_empty() {
                self.count("positions abandoned");
                if let Some(unit) = was.iter().find(|unit| !self.gone.contains(unit)) {
                    return self.violate(&format!("position {position} is abandoned although unit {unit} holds it"));
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
            self.violate(&format!("chain {chain:?} has two units on one node"));
        }
        self.count("projections");
        let old_process = self.nodes.get(&old.sequencer.node.0).and_then(|node| node.process.as_ref());
        if new.sequencer != old.sequencer && old_process.is_some_and(|process| process.me == old.sequencer) {
            self.count("live sequencers replaced");
        }
        let units = new.units();
        let gone: Vec<UnitId> = old.units().into_iter().filter(|unit| !units.contains(unit)).collect();
        if !gone.is_empty() {
            self.count("units removed");
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
            self.count("chains re-replicated");
        }
        if new.first() > old.first() {
            self.count("extents dropped after a trim");
        }
        // The new sequencer's node is notified; the others learn of the projection at their next tick.
        let (to, projection) = (SimProcess::Node(new.sequencer.node.0), new.clone());
        self.send(SimProcess::Registry, to, None, Message::Fetched { projection, cluster: None });
        self.registry.history.push(new);
        self.forget_vain_spares();
    }

    /// Removes spares that can never join the log.
    pub(super) fn forget_vain_spares(&mut self) {
        let newest_unit = self.newest().newest_unit;
        let is_vain = |unit: &UnitId| {
            let member = self.registry.member_of(*unit);
            *unit <= newest_unit || member.is_none_or(|member| self.member(member.node.0) != member)
        };
        let vain: Vec<UnitId> = self.registry.spares().into_iter().filter(is_vain).collect();
        self.registry.listed.retain(|unit| !vain.contains(unit));
    }
}
