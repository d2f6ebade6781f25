//! A log unit (CORFU, section 2.1 and 3.2): a write-once address space, as a replicated state machine.
//!
//! Its commands are entries of its node's write-ahead log, applied once they are forced, and again after a restart. So
//! what a unit says that it took, or that it is sealed, is on its disk (guarantee 20). Its values lie elsewhere: an
//! [`Outcome`] says which to store, and which to look up for an answer. What a unit knows by itself is small: how far
//! it is sealed, how far it is trimmed, and which positions it holds.
//!
//! * *One disk.* A unit begins on the disk that its number was given for. Where that is lost, so is the unit: a message that
//!   was late can't have it begin again, empty, and answer for what it held.
//! * *Write once.* The same entry again is [`Reply::Written`]; another one is [`Reply::Occupied`].
//! * *Sealed.* A request of the sealed epoch, or of an older one, is refused. A unit stands in a projection only if it was
//!   sealed in the epoch before, or began with that.
//! * *Trimmed.* What lies below the mark was given up by the log's users. The mark only rises.
//!
//! What a request says about the unit is true of the state that all forced commands have come to. So requests may be
//! answered from it without the log where they change nothing: [`Unit::meet`].

use std::collections::BTreeSet;

use base::Incarnation;
use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::limits::{DAMAGED_MAX, HOLES_MAX, MANY_MAX, POSITION_MAX, UNIT_STRIPES_MAX};
use crate::{Entry, Kept, LogId, Position, ProjectionEpoch, Run, Stripe};
use occupied::Occupied;

mod intervals;
mod message;
mod occupied;
#[cfg(test)]
mod tests;

pub use message::{Command, Reply, Report, Request};

/// What a request or a command comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This is the answer.
    Reply(Reply),
    /// Keep this under the position, then answer.
    Store {
        /// The position.
        position: Position,
        /// What takes the place of anything that is kept there.
        kept: Kept,
        /// The answer.
        reply: Reply,
    },
    /// Values below the mark may go; answer.
    Forget {
        /// The mark.
        before: Position,
        /// The answer.
        reply: Reply,
    },
    /// Look up what is kept there; [`found`] says what it means to a reader.
    Look {
        /// The position.
        position: Position,
    },
    /// All of these, one after the other; [`Reply::of_many`] makes one answer of theirs.
    Many {
        /// They.
        each: Vec<Self>,
        /// Bytes of values in the answer, at most.
        bytes: usize,
    },
    /// Look up what is kept there; [`compared`] says what it means to who wanted to write.
    Compare {
        /// The position.
        position: Position,
        /// What was to be written.
        entry: Entry,
    },
}

impl Outcome {
    /// What commands come to has no values in it.
    fn many(each: Vec<Self>) -> Self {
        Self::Many { each, bytes: 0 }
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Met {
    /// It changes nothing, and is answered.
    Answer(Outcome),
    /// It goes to the log, and is answered when it is applied.
    Log {
        /// What goes to the log.
        command: Command,
        /// An answer that leaves before the log is forced: never, but for a planted bug.
        early: Option<Outcome>,
    },
}

/// What a unit knows by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The disk that it is on.
    disk: Incarnation,
    log: LogId,
    /// Whether it was begun. Before that it takes nothing.
    begun: bool,
    /// Everything of this epoch and before is refused.
    sealed: ProjectionEpoch,
    /// What lies below is trimmed.
    trimmed: Position,
    /// One more than the highest position ever written.
    tail: Position,
    occupied: Occupied,
    /// Positions that it holds, and whose values can't be read.
    damaged: BTreeSet<Position>,
}

/// What a reader is told of what lies at a position that a unit holds. None: the value can't be read. Whoever finds
/// that gives the unit a [`Command::Damaged`], so that it is known for a position that the unit lacks.
#[must_use]
pub fn found(kept: Option<Kept>, mark: Position) -> Reply {
    match kept {
        Some(Kept::Entry(entry)) => Reply::Value(entry),
        Some(Kept::Trimmed) => Reply::Trimmed { mark },
        None => Reply::Damaged,
    }
}

/// What somebody is told who wanted to write to a position that a unit holds.
#[must_use]
pub fn compared(kept: Option<&Kept>, entry: &Entry, mark: Position) -> Reply {
    match kept {
        Some(Kept::Entry(other)) if other == entry => Reply::Written,
        Some(Kept::Entry(other)) => Reply::Occupied { by: other.kind() },
        Some(Kept::Trimmed) => Reply::Trimmed { mark },
        None => Reply::Damaged,
    }
}

impl Unit {
    /// A unit that has not begun, on a node's disk: a [`Command::Begin`] that is meant for that disk begins it.
    #[must_use]
    pub fn new(disk: Incarnation) -> Self {
        Self { disk, ..Self::default() }
    }

    /// The disk that it is on.
    #[must_use]
    pub fn disk(&self) -> Incarnation {
        self.disk
    }

    /// Everything of this epoch and before is refused.
    #[must_use]
    pub fn sealed(&self) -> ProjectionEpoch {
        self.sealed
    }

    /// What lies below this is trimmed.
    #[must_use]
    pub fn trimmed(&self) -> Position {
        self.trimmed
    }

    /// One more than the highest position ever written.
    #[must_use]
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// Whether it holds a position, below its mark or above.
    #[must_use]
    pub fn holds(&self, position: Position) -> bool {
        position < self.trimmed || self.occupied.holds(position)
    }

    /// Whether it knows a position to be damaged.
    #[must_use]
    pub fn is_damaged(&self, position: Position) -> bool {
        self.damaged.contains(&position)
    }

    /// How many positions it knows to be damaged.
    #[must_use]
    pub fn damaged(&self) -> usize {
        self.damaged.len()
    }

    /// The stripes that it was told of.
    pub fn told(&self) -> impl Iterator<Item = Stripe> {
        self.occupied.told()
    }

    /// How many intervals its positions make up: what its size depends on.
    #[must_use]
    pub fn intervals(&self) -> usize {
        self.occupied.intervals()
    }

    /// Says what becomes of a request, from the state that all forced commands have come to.
    #[must_use]
    pub fn meet(&self, request: Request) -> Met {
        match request {
            Request::Read { epoch, position } => {
                let refusal = self.refusal(epoch).map(Outcome::Reply);
                Met::Answer(refusal.unwrap_or_else(|| self.look(position)))
            }
            Request::ReadMany { epoch, run, bytes } => Met::Answer(match self.refusal(epoch) {
                Some(refusal) => Outcome::Reply(refusal),
                None => Outcome::Many { each: self.look_at(run), bytes },
            }),
            Request::Await { epoch, position, bytes, .. } => {
                let refusal = self.refusal(epoch).map(Outcome::Reply);
                Met::Answer(refusal.unwrap_or_else(|| Outcome::Many { each: vec![self.look(position)], bytes }))
            }
            Request::Confirm { epoch } => Met::Answer(Outcome::Reply(self.refusal(epoch).unwrap_or(Reply::Confirmed))),
            Request::Holes { epoch, stripe, from, to } => {
                let holes = || Reply::Holes(self.holes(stripe, from, to));
                Met::Answer(Outcome::Reply(self.refusal(epoch).unwrap_or_else(holes)))
            }
            Request::Command(command) => match self.unchanged(&command) {
                Some(outcome) => Met::Answer(outcome),
                None => Met::Log { early: self.early(&command), command },
            },
        }
    }

    fn look_at(&self, run: Run) -> Vec<Outcome> {
        run.first(MANY_MAX).positions().map(|position| self.look(position)).collect()
    }

    fn early(&self, command: &Command) -> Option<Outcome> {
        let Command::Seal { epoch } = command else { return None };
        let report = Report { sealed: self.sealed.max(*epoch), ..self.report() };
        planted(Bug::SealNotForced).then_some(Outcome::Reply(Reply::Sealed(report)))
    }

    /// Applies a forced command. The same commands in the same order come to the same state everywhere.
    pub fn apply(&mut self, command: Command) -> Outcome {
        if let Some(outcome) = self.unchanged(&command) {
            return outcome;
        }
        match command {
            Command::Begin { log, epoch, trimmed, stripes, .. } => {
                self.log = log;
                self.begun = true;
                self.sealed = self.sealed.max(epoch);
                // It is empty: what another recovery had in mind for it came to nothing.
                if !planted(Bug::OldValuesReturn) {
                    self.occupied = Occupied::default();
                }
                stripes.into_iter().for_each(|stripe| self.occupied.tell(stripe));
                self.trim(trimmed, Reply::Begun)
            }
            Command::Write { position, entry, .. } => self.store(position, Kept::Entry(entry)),
            Command::CopyMany { copies } => {
                let copy = |(position, kept)| match self.unchanged_at(position, &kept) {
                    Some(outcome) => outcome,
                    None => self.store(position, kept),
                };
                Outcome::many(copies.into_iter().map(copy).collect())
            }
            Command::Mend { position, kept } => self.store(position, kept),
            Command::Damaged { position } => {
                self.damaged.insert(position);
                Outcome::Reply(Reply::Damaged)
            }
            Command::Seal { epoch } => {
                self.sealed = self.sealed.max(epoch);
                Outcome::Reply(Reply::Sealed(self.report()))
            }
            Command::Trim { before, .. } => self.trim(before, |_| Reply::Done),
            Command::TrimOne { position, .. } => {
                self.damaged.remove(&position);
                Outcome::Store { position, kept: Kept::Trimmed, reply: Reply::Done }
            }
            Command::Tell { stripes } => {
                stripes.into_iter().for_each(|stripe| self.occupied.tell(stripe));
                Outcome::Reply(Reply::Told(self.report()))
            }
        }
    }

    /// What a command comes to that changes nothing; none if it does.
    fn unchanged(&self, command: &Command) -> Option<Outcome> {
        let reply = |reply| Some(Outcome::Reply(reply));
        match command {
            Command::Begin { disk, .. } if *disk != self.disk && !planted(Bug::BegunOnAnotherDisk) => {
                reply(Reply::Elsewhere)
            }
            Command::Begin { log, .. } => {
                let is_other = self.begun && self.log != *log;
                let is_used = !self.occupied.is_empty() || self.tail > Position(0);
                if is_other || is_used && !planted(Bug::OldValuesReturn) { reply(Reply::NotEmpty) } else { None }
            }
            _ if !self.begun => reply(Reply::Unknown),
            Command::Write { epoch, position, entry } => match self.refusal(*epoch) {
                Some(refusal) => reply(refusal),
                None if let Some(gone) = self.gone(*position) => reply(gone),
                None if self.damaged.contains(position) => reply(Reply::Damaged),
                None if entry == &Entry::Junk && planted(Bug::FillOverwrites) => None,
                None if self.occupied.holds(*position) => {
                    Some(Outcome::Compare { position: *position, entry: entry.clone() })
                }
                None => None,
            },
            Command::CopyMany { copies } => {
                let each = copies.iter().map(|(position, kept)| self.unchanged_at(*position, kept));
                each.collect::<Option<Vec<_>>>().map(Outcome::many)
            }
            Command::Mend { position, .. } if !self.holds(*position) => reply(Reply::Unwritten),
            Command::Mend { position, kept } => self.unchanged_at(*position, kept),
            Command::Damaged { position } => {
                let is_new = self.gone(*position).is_none() && self.occupied.holds(*position);
                let is_new = is_new && self.damaged.len() < DAMAGED_MAX && !self.damaged.contains(position);
                if is_new { None } else { reply(Reply::Damaged) }
            }
            Command::Seal { epoch } if *epoch <= self.sealed => reply(Reply::Sealed(self.report())),
            Command::Trim { epoch, before } => match epoch.and_then(|epoch| self.refusal(epoch)) {
                Some(refusal) => reply(refusal),
                None if *before <= self.trimmed => reply(Reply::Done),
                None => None,
            },
            Command::TrimOne { epoch, position } => match self.refusal(*epoch) {
                Some(refusal) => reply(refusal),
                None if *position < self.trimmed => reply(Reply::Done),
                None if !self.occupied.holds(*position) => reply(Reply::Unwritten),
                None => None,
            },
            Command::Tell { stripes } => {
                let all_known = stripes.iter().all(|stripe| self.occupied.told().any(|known| known == *stripe));
                if all_known { reply(Reply::Told(self.report())) } else { None }
            }
            Command::Seal { .. } => None,
        }
    }

    /// What it comes to that this is to be kept at a position, if nothing changes by it.
    fn unchanged_at(&self, position: Position, kept: &Kept) -> Option<Outcome> {
        if self.damaged.contains(&position) {
            return None;
        }
        match (self.gone(position), kept) {
            (Some(gone), _) => Some(Outcome::Reply(gone)),
            (None, Kept::Entry(entry)) if self.occupied.holds(position) => {
                Some(Outcome::Compare { position, entry: entry.clone() })
            }
            (None, _) => None,
        }
    }

    fn look(&self, position: Position) -> Outcome {
        match self.gone(position) {
            Some(gone) => Outcome::Reply(gone),
            None if self.damaged.contains(&position) => Outcome::Reply(Reply::Damaged),
            None if self.occupied.holds(position) => Outcome::Look { position },
            None => Outcome::Reply(Reply::Unwritten),
        }
    }

    /// Positions of a stripe that it doesn't hold.
    fn holes(&self, stripe: Stripe, from: Position, to: Position) -> Vec<Position> {
        let mut holes = Vec::new();
        let mut next = self.occupied.missing(stripe, from.max(self.trimmed));
        while next < to && holes.len() < HOLES_MAX {
            holes.push(next);
            next = self.occupied.missing(stripe, next.next());
        }
        holes
    }

    /// What is said to a request of an epoch that is over.
    fn refusal(&self, epoch: ProjectionEpoch) -> Option<Reply> {
        if !self.begun {
            return Some(Reply::Unknown);
        }
        (epoch <= self.sealed).then_some(Reply::Refused { sealed: self.sealed })
    }

    fn gone(&self, position: Position) -> Option<Reply> {
        (position < self.trimmed || position.0 >= POSITION_MAX).then_some(Reply::Trimmed { mark: self.trimmed })
    }

    fn store(&mut self, position: Position, kept: Kept) -> Outcome {
        if !self.occupied.holds(position) {
            self.occupied.insert(position);
        }
        self.damaged.remove(&position);
        self.tail = self.tail.max(position.next());
        Outcome::Store { position, kept, reply: Reply::Written }
    }

    fn trim(&mut self, before: Position, reply: impl Fn(Report) -> Reply) -> Outcome {
        if before > self.trimmed {
            self.trimmed = before;
            self.occupied.remove_below(before);
            self.damaged = self.damaged.split_off(&before);
        }
        Outcome::Forget { before: self.trimmed, reply: reply(self.report()) }
    }

    /// What it says of itself.
    #[must_use]
    pub fn report(&self) -> Report {
        let none = BTreeSet::new();
        let damaged = if planted(Bug::DamageCountsAsWhole) { &none } else { &self.damaged };
        let missing = |stripe: Stripe| {
            let missing = self.occupied.missing(stripe, self.trimmed);
            let damaged = damaged.iter().copied().find(|position| stripe.holds(*position));
            (stripe, damaged.map_or(missing, |position| position.min(missing)))
        };
        let whole = self.occupied.told().map(missing).collect();
        let (sealed, tail, trimmed) = (self.sealed, self.tail, self.trimmed);
        Report { sealed, tail, trimmed, damaged: damaged.len() as u32, whole }
    }

    /// Checks what must hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.begun || *self == Self::new(self.disk), "nothing is taken before the beginning");
        assert!(!self.occupied.holds(self.tail), "nothing lies at the tail or above");
        assert!(self.trimmed.0 == 0 || !self.occupied.holds(Position(self.trimmed.0 - 1)), "nothing below the mark");
        assert!(self.damaged.iter().all(|position| self.occupied.holds(*position)), "what is damaged is held");
        assert!(self.damaged.len() <= DAMAGED_MAX, "damage is bounded");
        assert!(self.occupied.told().count() <= UNIT_STRIPES_MAX, "stripes are bounded");
    }

    /// Writes its state, for a checkpoint. The values are not in it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.disk.0);
        writer.u64(self.log.0);
        writer.bool(self.begun);
        writer.u64(if planted(Bug::SealForgotten) { 0 } else { self.sealed.0 });
        writer.u64(self.trimmed.0);
        writer.u64(self.tail.0);
        self.occupied.encode(&mut writer);
        writer.u32(self.damaged.len() as u32);
        self.damaged.iter().for_each(|position| writer.u64(position.0));
        writer.finish()
    }

    /// Reads a state.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let disk = Incarnation(reader.u64()?);
        let (log, begun, sealed) = (LogId(reader.u64()?), reader.bool()?, ProjectionEpoch(reader.u64()?));
        let (trimmed, tail) = (Position::decode(&mut reader)?, Position::decode(&mut reader)?);
        let occupied = Occupied::decode(&mut reader)?;
        let damaged =
            (0..reader.count(8)?).map(|_| Position::decode(&mut reader)).collect::<Result<BTreeSet<_>, _>>()?;
        if damaged.len() > DAMAGED_MAX || damaged.iter().any(|position| !occupied.holds(*position)) {
            return Err(DecodeError::Invalid { what: "damaged positions" });
        }
        reader.end()?;
        Ok(Self { disk, log, begun, sealed, trimmed, tail, occupied, damaged })
    }
}
