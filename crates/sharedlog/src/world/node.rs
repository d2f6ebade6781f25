//! A node: its disk and its units.
//!
//! All units of a node share one write-ahead log. When a process crashes, commands that were not forced are lost,
//! except that a prefix of the force in progress may be on disk. A checkpoint holds the units' encoded states and their
//! values.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use base::{Boot, Incarnation, SplitMix64};
use bytes::Bytes;

use super::network::{Event, Message, Return, SimMachine, SimProcess};
use super::process::Process;
use super::{MICROSECOND, World};
use crate::unit::{self, Command, Decision, EncodedCommand, Outcome, Reply, Request, Unit};
use crate::{AskId, Kept, Position, Projection, UnitId};

/// The state that survives a crash.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) incarnation: Incarnation,
    checkpoint: BTreeMap<UnitId, Bytes>,
    values: BTreeMap<(UnitId, Position), Kept>,
    /// Forced commands after the checkpoint, encoded.
    log: Vec<(UnitId, Bytes)>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u32,
    pub(super) boot: Boot,
    pub(super) disk: Disk,
    pub(super) process: Option<Process>,
    pub(super) paused_until: u64,
}

/// The units of a process.
#[derive(Debug, Default)]
pub(super) struct Units {
    disk: Incarnation,
    pub(super) units: BTreeMap<UnitId, Unit>,
    pub(super) values: BTreeMap<(UnitId, Position), Kept>,
    /// Commands that are not forced, in the order of the log.
    pub(super) queue: Vec<(UnitId, EncodedCommand, Return)>,
    pub(super) is_forcing: bool,
}

impl Disk {
    pub(super) fn blank(incarnation: Incarnation) -> Self {
        Self { incarnation, checkpoint: BTreeMap::new(), values: BTreeMap::new(), log: Vec::new() }
    }

    /// Recovers the units from the checkpoint and the log.
    pub(super) fn replay(&self) -> Units {
        let decoded = |(id, bytes): (&UnitId, &Bytes)| (*id, Unit::decode(bytes.clone()).expect("own encoding"));
        let mut units = Units {
            disk: self.incarnation,
            units: self.checkpoint.iter().map(decoded).collect(),
            values: self.values.clone(),
            ..Units::default()
        };
        for (unit, command) in &self.log {
            let command = Command::decode(command.clone()).expect("own encoding");
            units.apply(*unit, command);
        }
        units
    }

    pub(super) fn checkpoint(&mut self, units: &Units) {
        self.checkpoint = units.units.iter().map(|(id, unit)| (*id, unit.encode())).collect();
        self.values.clone_from(&units.values);
        self.log.clear();
    }

    /// Whether the disk holds a unit.
    pub(super) fn has(&self, unit: UnitId) -> bool {
        self.checkpoint.contains_key(&unit) || self.log.iter().any(|(logged, _)| *logged == unit)
    }
}

impl Units {
    /// Positions that a unit holds without their values.
    pub(super) fn lost(&self, id: UnitId) -> Vec<Position> {
        let Some(unit) = self.units.get(&id) else { return Vec::new() };
        let held = (unit.trimmed().0..unit.tail().0).map(Position).filter(|position| unit.holds(*position));
        held.filter(|position| !self.values.contains_key(&(id, *position))).collect()
    }

    /// Whether a unit has lost a value, or still believes so although it was just restored.
    pub(super) fn has_damage(&self, id: UnitId) -> bool {
        !self.lost(id).is_empty() || self.units.get(&id).is_some_and(|unit| unit.damaged() > 0)
    }

    /// Applies a forced command and returns the reply.
    pub(super) fn apply(&mut self, id: UnitId, command: Command) -> Reply {
        let unit = self.units.entry(id).or_insert_with(|| Unit::new(self.disk));
        let outcome = unit.apply(command);
        unit.invariants();
        self.carry_out(id, outcome)
    }

    /// Carries out an outcome on the values.
    pub(super) fn carry_out(&mut self, id: UnitId, outcome: Outcome) -> Reply {
        let mark = self.units.get(&id).map(Unit::trimmed).unwrap_or_default();
        match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Store { position, kept, reply } => {
                self.values.insert((id, position), kept);
                reply
            }
            Outcome::Forget { before, reply } => {
                let gone: Vec<_> =
                    self.values.range((id, Position(0))..(id, before)).map(|(place, _)| *place).collect();
                gone.iter().for_each(|place| {
                    self.values.remove(place);
                });
                reply
            }
            Outcome::Look { position } => unit::found(self.values.get(&(id, position)).cloned(), mark),
            Outcome::Compare { position, entry } => unit::compared(self.values.get(&(id, position)), &entry, mark),
            Outcome::Many { each, bytes } => {
                let replies = each.into_iter().map(|outcome| Ok::<_, Infallible>(self.carry_out(id, outcome)));
                let Ok(many) = Reply::of_many(replies, bytes);
                many
            }
        }
    }
}

impl World {
    pub(super) fn new_node(&mut self, id: u32) {
        let node = Node { id, boot: Boot(0), disk: Disk::blank(Incarnation(1)), process: None, paused_until: 0 };
        self.nodes.insert(id, node);
        self.start_node(id);
    }

    /// Starts the units of the first projection.
    pub(super) fn begin_units(&mut self, projection: &Projection) {
        for unit in projection.units() {
            let stripes = projection.stripes_of(unit);
            let epoch = crate::ProjectionEpoch(0);
            let disk = Incarnation(1);
            let command = Command::Begin { disk, log: projection.log, epoch, trimmed: Position(0), stripes };
            self.begins.insert(unit, command.clone());
            let node = self.registry.units[&unit];
            let Some(node) = self.nodes.get_mut(&node) else { continue };
            node.disk.log.push((unit, command.encode()));
            if let Some(process) = &mut node.process {
                process.units.apply(unit, command);
            }
        }
    }

    /// Handles a request to a unit.
    pub(super) fn unit_asked(&mut self, node: u32, unit: UnitId, request: Request, back: Return) {
        if let Request::Command(command) = &request {
            if let begin @ Command::Begin { .. } = command.command() {
                self.begins.insert(unit, begin.clone());
            }
            if let Err(what) = self.check_command(command.command()) {
                return self.violate(&what);
            }
        }
        let Some(process) = self.nodes.get_mut(&node).and_then(|node| node.process.as_mut()) else { return };
        let of_nobody = Unit::new(process.units.disk);
        let positions = request.positions();
        let met = process.units.units.get(&unit).unwrap_or(&of_nobody).decide(&request);
        let reply = match met {
            Decision::Answer(outcome) => Some(process.units.carry_out(unit, outcome)),
            Decision::Log { early } => {
                if let Request::Command(command) = request {
                    process.units.queue.push((unit, command, back));
                }
                early.map(|outcome| process.units.carry_out(unit, outcome))
            }
        };
        let own =
            Return { place: SimProcess::Node(node), life: process.life, machine: SimMachine::Player, ask: AskId(0) };
        let replies = reply.as_ref().map_or(&[][..], Reply::each);
        for (position, _) in positions.into_iter().zip(replies).filter(|(_, reply)| **reply == Reply::Damaged) {
            process.units.queue.push((unit, Command::Damaged { position }.into(), own));
        }
        if let Some(reply) = reply {
            self.send(SimProcess::Node(node), back.place, Some(back.life), Message::OfUnit { reply, back });
        }
        self.force(node);
    }

    /// Forces the queued commands, unless a force is in progress.
    fn force(&mut self, id: u32) {
        let speed = self.options.speed;
        let takes = speed.is_none().then(|| 200 * MICROSECOND + self.random.below(2_000) * MICROSECOND);
        let Some(process) = self.nodes.get_mut(&id).and_then(|node| node.process.as_mut()) else { return };
        if process.units.queue.is_empty() || process.units.is_forcing {
            return;
        }
        process.units.is_forcing = true;
        let count = process.units.queue.len().min(speed.map_or(usize::MAX, |speed| speed.batch));
        let bytes = || process.units.queue[..count].iter().map(|(_, command, _)| command.bytes().len()).sum();
        let takes = takes.or_else(|| speed.map(|speed| speed.force_of(bytes()))).unwrap_or_default();
        let life = process.life;
        self.network.put(self.now + takes, Event::Forced { node: id, life, count });
    }

    pub(super) fn forced(&mut self, id: u32, life: u64, count: usize) {
        let checkpoints = self.options.speed.is_none() && self.random.chance(200_000);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(process) = node.process.as_mut().filter(|process| process.life == life) else { return };
        process.units.is_forcing = false;
        let forced: Vec<_> = process.units.queue.drain(..count).collect();
        let mut replies = Vec::new();
        for (unit, command, back) in forced {
            node.disk.log.push((unit, command.bytes().clone()));
            replies.push((process.units.apply(unit, command.command().clone()), back));
        }
        if checkpoints {
            node.disk.checkpoint(&process.units);
            self.count("checkpoints");
        }
        for (reply, back) in replies {
            self.send(SimProcess::Node(id), back.place, Some(back.life), Message::OfUnit { reply, back });
        }
        self.force(id);
    }
}

impl World {
    /// The node's periodic scrub: checks that every value is readable.
    pub(super) fn scrub(&mut self, id: u32) {
        let Some(process) = self.nodes.get_mut(&id).and_then(|node| node.process.as_mut()) else { return };
        let own =
            Return { place: SimProcess::Node(id), life: process.life, machine: SimMachine::Player, ask: AskId(0) };
        let units: Vec<UnitId> = process.units.units.keys().copied().collect();
        for unit in units {
            for position in process.units.lost(unit) {
                process.units.queue.push((unit, Command::Damaged { position }.into(), own));
            }
        }
        self.force(id);
    }

    /// Units of the newest projection that know of damage.
    pub(super) fn damaged_units(&self) -> BTreeSet<UnitId> {
        let processes = self.nodes.values().filter_map(|node| node.process.as_ref());
        let all = processes.flat_map(|process| &process.units.units);
        let damaged: BTreeSet<UnitId> = all.filter(|(_, unit)| unit.damaged() > 0).map(|(id, _)| *id).collect();
        self.newest().units().into_iter().filter(|unit| damaged.contains(unit)).collect()
    }
}

impl Node {
    /// Crashes the process. A prefix of the force in progress may be on disk.
    pub(super) fn die(&mut self, random: &mut SplitMix64) {
        let Some(process) = self.process.take() else { return };
        if process.units.is_forcing {
            let kept = random.below(process.units.queue.len() as u64 + 1) as usize;
            let kept = process.units.queue.iter().take(kept);
            self.disk.log.extend(kept.map(|(unit, command, _)| (*unit, command.bytes().clone())));
        }
    }
}
