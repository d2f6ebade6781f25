//! The state of the whole model, its transitions, and its invariants.

use std::hash::Hasher;

use base::{Entry, Lsn, Member, Sequence};
use xxhash_rust::xxh3::Xxh3Default;

use super::Scope;
use super::event::Event;
use super::moves::Move;
use super::reached::Marks;
use super::replica::Replica;
use super::world::{Interner, Number, ORDERS, REPLICAS, World};

/// Interned histories: the entries applied anywhere, by sequence from 1, and all entries appended anywhere.
#[derive(Default)]
pub(super) struct Histories {
    pub(super) chosen: Interner<Vec<Lsn>>,
    values: Interner<Vec<Entry>>,
}

/// A state of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) cells: [Number; REPLICAS],
    pub(super) chosen: Number,
    /// All entries appended anywhere, to check that an LSN has one value. Not part of the fingerprint: a value that no
    /// replica holds any more can no longer be sent.
    values: Number,
    left: Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    epochs: u8,
    entries: u8,
    crashes: u8,
    ticks: u8,
    checkpoints: u8,
    releases: u8,
    changes: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// The move with this number of the replica at that index.
    Move(u8, u16),
    Tick,
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl State {
    pub(super) fn start(scope: Scope, world: &mut World, histories: &mut Histories) -> Self {
        Self {
            cells: world.start(),
            chosen: histories.chosen.number(Vec::new()),
            values: histories.values.number(Vec::new()),
            left: Left {
                epochs: small(scope.epochs),
                entries: small(scope.entries),
                crashes: small(scope.crashes),
                ticks: small(scope.ticks),
                checkpoints: small(scope.checkpoints),
                releases: small(scope.releases),
                changes: small(scope.changes),
            },
        }
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = Xxh3Default::new();
        self.cells.iter().for_each(|cell| hasher.write_u32(*cell));
        hasher.write_u32(self.chosen);
        let Left { epochs, entries, crashes, ticks, checkpoints, releases, changes } = self.left;
        hasher.write(&[epochs, entries, crashes, ticks, checkpoints, releases, changes]);
        hasher.finish()
    }

    /// A canonical representative of all states that differ only in the numbers of the replicas. The cohort does not
    /// depend on the order of node numbers, with one exception: a leader that releases its epoch picks its successor by
    /// number among equally advanced followers. Used only in scopes with three fixed voters and no releases.
    pub(super) fn in_order(mut self, world: &mut World) -> Self {
        // The fourth replica is not used with this reduction.
        let renamings = [0, 1, 2].map(|index| world.renamings(self.cells[index]));
        let mut least = self.cells;
        for (number, order) in ORDERS.iter().enumerate() {
            let mut cells = self.cells;
            for (renamings, place) in renamings.iter().zip(order) {
                cells[usize::from(*place)] = renamings[number];
            }
            least = least.min(cells);
        }
        self.cells = least;
        self
    }

    /// All transitions from this state.
    pub(super) fn choices(&self, world: &mut World, choices: &mut Vec<Choice>) {
        if self.left.ticks > 0 {
            choices.push(Choice::Tick);
        }
        for index in 0..REPLICAS {
            let moves = world.moves(self.cells[index]);
            for (number, what) in moves.iter().enumerate() {
                if self.allows(index, what, world) {
                    choices.push(Choice::Move(index as u8, number as u16));
                }
            }
        }
    }

    /// Whether the remaining scope permits it. A crash is reserved for each replica that must lose unforced writes.
    fn allows(&self, index: usize, what: &Move, world: &World) -> bool {
        let left = self.left;
        let stuck_elsewhere =
            (0..REPLICAS).filter(|other| *other != index && world.get(self.cells[*other]).local.is_stuck).count();
        let can_crash = usize::from(left.crashes) > stuck_elsewhere;
        let of_event = match what.event {
            Event::Propose => left.entries > 0,
            Event::Release => left.releases > 0,
            Event::Change(_) => left.changes > 0,
            Event::Crash { .. } => can_crash,
            Event::Checkpoint => left.checkpoints > 0,
            Event::Campaign | Event::Deliver(_) | Event::ForceLog | Event::ForceManifest | Event::Tick => true,
        };
        of_event && (!what.step.stands || left.epochs > 0) && (!what.step.sticks || can_crash)
    }

    /// The event of a choice and its replica; `None` for a step of time.
    pub(super) fn event(&self, choice: Choice, world: &mut World) -> Option<(usize, Event)> {
        let Choice::Move(index, number) = choice else { return None };
        let index = index as usize;
        Some((index, world.moves(self.cells[index])[number as usize].event))
    }

    /// Executes a choice; `None` if it has no effect.
    ///
    /// # Errors
    /// The invariant that it violates.
    pub(super) fn carry_out(
        &self,
        choice: Choice,
        world: &mut World,
        histories: &mut Histories,
    ) -> Result<Option<(Self, Marks)>, String> {
        let Choice::Move(index, number) = choice else {
            return self.pass_time(world, histories).map(|next| Some((next, 0)));
        };
        let index = index as usize;
        let moves = world.moves(self.cells[index]);
        let what = &moves[number as usize];
        let mut next = *self;
        next.cells[index] = what.next;
        next.deliver(what, world);
        if next.cells == self.cells {
            return Ok(None);
        }
        next.left.spend(what);
        histories.append(&mut next.values, &what.step.appended, what.step.leads)?;
        histories.apply(&mut next.chosen, &what.applied)?;
        next.check(world, histories)?;
        let goes_on = !what.is_quiet || next.chosen != self.chosen;
        Ok(goes_on.then_some((next, what.step.marks)))
    }

    fn pass_time(&self, world: &mut World, histories: &Histories) -> Result<Self, String> {
        let mut next = *self;
        next.left.ticks -= 1;
        let made = self.cells.map(|cell| world.tick(cell));
        for (cell, made) in next.cells.iter_mut().zip(&made) {
            *cell = made.next;
        }
        made.iter().for_each(|made| next.deliver(made, world));
        next.check_reads(world, histories.chosen.get(self.chosen).len())?;
        Ok(next)
    }

    fn deliver(&mut self, what: &Move, world: &mut World) {
        for (to, bundle) in &what.sent {
            self.cells[*to] = world.add(self.cells[*to], *bundle);
        }
    }

    fn check(&self, world: &World, histories: &Histories) -> Result<(), String> {
        let chosen = histories.chosen.get(self.chosen);
        self.chosen_is_durable(chosen, world)?;
        self.check_views(chosen.len(), world)?;
        self.check_reads(world, chosen.len())
    }

    /// Checks that every applied entry would be recovered from at least one disk of each majority that can elect a
    /// leader. The membership is the one in the log of each holder.
    fn chosen_is_durable(&self, chosen: &[Lsn], world: &World) -> Result<(), String> {
        let replicas = self.cells.map(|cell| &world.get(cell).local.replica);
        for (index, lsn) in chosen.iter().enumerate() {
            let holds = |replica: &&&Replica| replica.durable.get(index) == Some(lsn);
            let holders: Vec<Member> = replicas.iter().filter(holds).map(|replica| replica.cohort.me()).collect();
            let meets = |replica: &&Replica| {
                let membership = &replica.durable_membership;
                let held = membership.voters().iter().filter(|voter| holders.contains(voter)).count();
                held + membership.quorum() > membership.voters().len()
            };
            if holders.is_empty() || !replicas.iter().filter(holds).all(meets) {
                return Err(format!("{lsn} was applied, but after restarts only {holders:?} would recover it"));
            }
        }
        Ok(())
    }

    /// Checks that a view check by any replica now would make it wait for all applied entries.
    fn check_views(&self, chosen: usize, world: &World) -> Result<(), String> {
        let cohorts = self.cells.map(|cell| &world.get(cell).local.replica.cohort);
        for (index, cohort) in cohorts.iter().enumerate() {
            let others = [cohorts[(index + 1) % 3], cohorts[(index + 2) % 3]];
            if let Some(stamp) = cohort.view_of(&others).filter(|stamp| *stamp < Sequence(chosen as u64)) {
                return Err(format!(
                    "node {} could read with read index {stamp}, but {chosen} entries are applied",
                    cohort.me().node
                ));
            }
        }
        Ok(())
    }

    /// Checks that a leader that may read has applied every entry applied anywhere.
    fn check_reads(&self, world: &World, chosen: usize) -> Result<(), String> {
        for cell in self.cells {
            let cell = world.get(cell);
            if cell.reads_at.is_some_and(|applied| applied < Sequence(chosen as u64)) {
                let cohort = &cell.local.replica.cohort;
                return Err(format!(
                    "node {} could read at {}, but {chosen} entries are applied",
                    cohort.me().node,
                    cohort.applied()
                ));
            }
        }
        Ok(())
    }
}

impl Left {
    fn spend(&mut self, what: &Move) {
        self.epochs -= u8::from(what.step.stands);
        match what.event {
            Event::Propose => self.entries -= 1,
            Event::Release => self.releases -= 1,
            Event::Change(_) => self.changes -= 1,
            Event::Crash { .. } => self.crashes -= 1,
            Event::Checkpoint => self.checkpoints -= 1,
            _ => {}
        }
    }
}

impl Histories {
    /// Checks that an LSN has one value, and is assigned to one entry only once.
    fn append(&mut self, number: &mut Number, entries: &[Entry], proposed: bool) -> Result<(), String> {
        for entry in entries {
            let values = self.values.get(*number);
            match values.iter().find(|known| known.lsn == entry.lsn) {
                Some(known) if proposed => return Err(format!("LSN {} was assigned to two entries", known.lsn)),
                Some(known) if known == entry => {}
                Some(known) => return Err(format!("LSN {} has two values: {known:?} and {entry:?}", entry.lsn)),
                None => {
                    let mut values = values.clone();
                    values.push(entry.clone());
                    values.sort_unstable();
                    *number = self.values.number(values);
                }
            }
        }
        Ok(())
    }

    /// Checks that a sequence has one value.
    fn apply(&mut self, number: &mut Number, entries: &[Entry]) -> Result<(), String> {
        for entry in entries {
            let chosen = self.chosen.get(*number);
            let index = entry.lsn.sequence.previous().0 as usize;
            match chosen.get(index) {
                Some(lsn) if *lsn == entry.lsn => {}
                Some(lsn) => {
                    return Err(format!("{lsn} was applied at sequence {}, then {}", entry.lsn.sequence, entry.lsn));
                }
                None if index == chosen.len() => {
                    let mut chosen = chosen.clone();
                    chosen.push(entry.lsn);
                    *number = self.chosen.number(chosen);
                }
                None => return Err(format!("{} was applied after a gap", entry.lsn)),
            }
        }
        Ok(())
    }
}

pub(super) fn describe(state: &State, choice: Choice, world: &mut World) -> String {
    let Choice::Move(index, number) = choice else { return "time passes".to_owned() };
    let moves = world.moves(state.cells[index as usize]);
    let what = &moves[number as usize];
    let lost = if what.step.sticks { ", never forced" } else { "" };
    let events = what.after.iter().chain([&what.event]).map(|event| describe_event(index, *event, world));
    events.collect::<Vec<_>>().join("; ") + lost
}

fn describe_event(index: u8, event: Event, world: &World) -> String {
    let Event::Deliver(number) = event else { return format!("{}: {event:?}", index + 1) };
    let envelope = world.envelope(number);
    format!("{} -> {}: {:?}", envelope.from, envelope.to, envelope.message)
}
