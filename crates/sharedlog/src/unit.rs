//! A log unit (CORFU, sections 2.1 and 3.2): a write-once address space, as a replicated state machine.
//!
//! Its commands are entries of its node's write-ahead log, applied once they are forced to disk and again after a
//! restart. So an acknowledged write or seal is durable (guarantee 20). The values are stored separately: an
//! [`Outcome`] states which value to store, and which to look up for a reply. The unit's own state is small: its sealed
//! epoch, its trim mark, and the set of positions that it holds.
//!
//! * *One disk.* A unit starts only on the disk for which it was created. If the disk is lost, so is the unit: a
//!   delayed message cannot restart it empty and let it answer for entries that it lost.
//! * *Write once.* Writing the same entry again returns [`Reply::Written`]; another entry returns [`Reply::Occupied`].
//! * *Sealed.* A request of the sealed epoch or an older one is refused. A unit joins a projection only if it was
//!   sealed in the preceding epoch or started with it.
//! * *Trimmed.* Clients trimmed all positions below the mark. The mark only rises.
//!
//! A reply reflects the state after all forced commands. So requests that change nothing are answered from that state
//! without the log: [`Unit::decide`].

use std::collections::BTreeSet;

use base::Incarnation;
use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Wire as _, Writer};
use bytes::Bytes;

use crate::limits::{DAMAGED_MAX, FOLLOW_BEHIND_MAX, HOLES_MAX, MANY_MAX, POSITION_MAX, UNIT_STRIPES_MAX};
use crate::{Entry, Kept, LogId, Position, PositionRun, ProjectionEpoch, Stripe};
use position_set::PositionSet;

/// The epoch that a drop of the log seals: no projection has a later one.
pub(crate) const DROPPED: ProjectionEpoch = ProjectionEpoch(u64::MAX);

mod intervals;
mod message;
mod position_set;
#[cfg(test)]
mod tests;

pub use message::{Command, EncodedCommand, Reply, Report, Request};

/// The effect of a request or a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Reply(Reply),
    /// Store a value at a position, then reply.
    Store {
        /// The position to write.
        position: Position,
        /// The value. Replaces any stored value.
        kept: Kept,
        /// The reply after storing.
        reply: Reply,
    },
    /// Values below the mark may be deleted; reply.
    Forget {
        before: Position,
        /// The reply to send.
        reply: Reply,
    },
    /// Look up the stored value; [`found`] converts it to a reader's reply.
    Look {
        /// The position to look up.
        position: Position,
    },
    /// Carry out all of these in order; [`Reply::of_many`] combines their replies.
    Many {
        each: Vec<Self>,
        /// Maximum bytes of values in the reply.
        bytes: usize,
    },
    /// Look up the stored value; [`compared`] converts it to a writer's reply.
    Compare {
        /// The position to look up.
        position: Position,
        /// The entry to write.
        entry: Entry,
    },
}

impl Outcome {
    /// Replies to commands contain no values.
    fn many(each: Vec<Self>) -> Self {
        Self::Many { each, bytes: 0 }
    }
}

/// How a request is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It changes nothing and is answered immediately.
    Answer(Outcome),
    /// It is appended to the write-ahead log and answered when it is applied.
    Log {
        /// A reply that is sent before the log is forced. `None` unless a planted bug is active.
        early: Option<Outcome>,
    },
}

/// The state of a unit, without the values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The disk that holds the unit.
    disk: Incarnation,
    log: LogId,
    /// Whether the unit was started. Before that it accepts nothing else.
    begun: bool,
    /// Requests of this epoch and earlier ones are refused.
    sealed: ProjectionEpoch,
    /// Positions below are trimmed.
    trimmed: Position,
    /// One more than the highest position ever written.
    tail: Position,
    occupied: PositionSet,
    /// Positions that it holds but that have unreadable values.
    damaged: BTreeSet<Position>,
}

/// A reader's reply, from the stored value of a position that the unit holds. `None` means that the value is
/// unreadable. The caller then submits [`Command::Damaged`], so that the unit counts the position as missing.
#[must_use]
pub fn found(kept: Option<Kept>, mark: Position) -> Reply {
    match kept {
        Some(Kept::Entry(entry)) => Reply::Value(entry),
        Some(Kept::Trimmed) => Reply::Trimmed { mark },
        None => Reply::Damaged,
    }
}

/// A writer's reply, from the stored value of a position that the unit holds.
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
    /// A unit that was not started, on a node's disk. [`Command::Begin`] for the same disk starts it.
    #[must_use]
    pub fn new(disk: Incarnation) -> Self {
        Self { disk, ..Self::default() }
    }

    /// The disk that holds the unit.
    #[must_use]
    pub fn disk(&self) -> Incarnation {
        self.disk
    }

    /// Requests of this epoch and earlier ones are refused.
    #[must_use]
    pub fn sealed(&self) -> ProjectionEpoch {
        self.sealed
    }

    /// Positions below this are trimmed.
    #[must_use]
    pub fn trimmed(&self) -> Position {
        self.trimmed
    }

    /// One more than the highest position ever written.
    #[must_use]
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// Whether a position is written or trimmed.
    #[must_use]
    pub fn holds(&self, position: Position) -> bool {
        position < self.trimmed || self.occupied.holds(position)
    }

    /// Whether a position is known to be damaged.
    #[must_use]
    pub fn is_damaged(&self, position: Position) -> bool {
        self.damaged.contains(&position)
    }

    /// Number of positions known to be damaged.
    #[must_use]
    pub fn damaged(&self) -> usize {
        self.damaged.len()
    }

    /// The stripes assigned to it.
    pub fn stripes(&self) -> impl Iterator<Item = Stripe> {
        self.occupied.stripes()
    }

    /// Number of intervals in its set of positions, which determines the size of its state.
    #[must_use]
    pub fn intervals(&self) -> usize {
        self.occupied.intervals()
    }

    /// Decides how to handle a request, from the state after all forced commands.
    #[must_use]
    pub fn decide(&self, request: &Request) -> Decision {
        match *request {
            Request::Read { epoch, position } => {
                let refusal = self.refusal(epoch).map(Outcome::Reply);
                Decision::Answer(refusal.unwrap_or_else(|| self.look(position)))
            }
            Request::ReadMany { epoch, run, bytes } => Decision::Answer(match self.refusal(epoch) {
                Some(refusal) => Outcome::Reply(refusal),
                None => Outcome::Many { each: self.look_at(run), bytes },
            }),
            Request::Await { epoch, position, bytes, .. } => {
                let refusal = self.refusal(epoch).map(Outcome::Reply);
                Decision::Answer(refusal.unwrap_or_else(|| Outcome::Many { each: vec![self.look(position)], bytes }))
            }
            Request::Follow { epoch, from, .. } => {
                let is_far = self.tail.0.saturating_sub(from.0) > FOLLOW_BEHIND_MAX;
                let feed =
                    || if is_far { Reply::Done } else { Reply::Feed { from, entries: Vec::new(), tail: self.tail } };
                Decision::Answer(Outcome::Reply(self.refusal(epoch).unwrap_or_else(feed)))
            }
            Request::Confirm { epoch } => {
                Decision::Answer(Outcome::Reply(self.refusal(epoch).unwrap_or(Reply::Confirmed)))
            }
            Request::Holes { epoch, stripe, from, to } => {
                let holes = || Reply::Holes(self.holes(stripe, from, to));
                Decision::Answer(Outcome::Reply(self.refusal(epoch).unwrap_or_else(holes)))
            }
            Request::Command(ref command) => match self.unchanged(command.command()) {
                Some(outcome) => Decision::Answer(outcome),
                None => Decision::Log { early: self.early(command.command()) },
            },
        }
    }

    fn look_at(&self, run: PositionRun) -> Vec<Outcome> {
        run.first(MANY_MAX).positions().map(|position| self.look(position)).collect()
    }

    fn early(&self, command: &Command) -> Option<Outcome> {
        let Command::Seal { epoch } = command else { return None };
        let report = Report { sealed: self.sealed.max(*epoch), ..self.report() };
        planted(Bug::SealNotForced).then_some(Outcome::Reply(Reply::Sealed(report)))
    }

    /// Applies a forced command. Deterministic: the same commands in the same order produce the same state.
    pub fn apply(&mut self, command: Command) -> Outcome {
        if let Some(outcome) = self.unchanged(&command) {
            return outcome;
        }
        match command {
            Command::Begin { log, epoch, trimmed, stripes, .. } => {
                self.log = log;
                self.begun = true;
                self.sealed = self.sealed.max(epoch);
                // The unit is empty: an earlier recovery that started it did not complete.
                if !planted(Bug::OldValuesReturn) {
                    self.occupied = PositionSet::default();
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
            Command::Repair { position, kept } => self.store(position, kept),
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
            Command::AssignStripes { stripes } => {
                stripes.into_iter().for_each(|stripe| self.occupied.tell(stripe));
                Outcome::Reply(Reply::StripesAssigned(self.report()))
            }
        }
    }

    /// The outcome of a command that changes nothing; `None` if it changes the state.
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
            // A unit that begins later must stay sealed.
            Command::Seal { epoch } if *epoch == DROPPED && *epoch > self.sealed => None,
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
            Command::Repair { position, .. } if !self.holds(*position) => reply(Reply::Unwritten),
            Command::Repair { position, kept } => self.unchanged_at(*position, kept),
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
            Command::AssignStripes { stripes } => {
                let all_known = stripes.iter().all(|stripe| self.occupied.stripes().any(|known| known == *stripe));
                if all_known { reply(Reply::StripesAssigned(self.report())) } else { None }
            }
            Command::Seal { .. } => None,
        }
    }

    /// The outcome of storing a value, if that changes nothing.
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

    /// Positions of a stripe that it does not hold, up to [`HOLES_MAX`].
    fn holes(&self, stripe: Stripe, from: Position, to: Position) -> Vec<Position> {
        let mut holes = Vec::new();
        let mut next = self.occupied.missing(stripe, from.max(self.trimmed));
        while next < to && holes.len() < HOLES_MAX {
            holes.push(next);
            next = self.occupied.missing(stripe, next.next());
        }
        holes
    }

    /// The refusal of a request from a sealed epoch.
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

    /// The report that it sends in replies to recoveries and copiers.
    #[must_use]
    pub fn report(&self) -> Report {
        let none = BTreeSet::new();
        let damaged = if planted(Bug::DamageCountsAsWhole) { &none } else { &self.damaged };
        let missing = |stripe: Stripe| {
            let missing = self.occupied.missing(stripe, self.trimmed);
            let damaged = damaged.iter().copied().find(|position| stripe.holds(*position));
            (stripe, damaged.map_or(missing, |position| position.min(missing)))
        };
        let whole = self.occupied.stripes().map(missing).collect();
        let (sealed, tail, trimmed) = (self.sealed, self.tail, self.trimmed);
        Report { sealed, tail, trimmed, damaged: damaged.len() as u32, whole }
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        let blank = Self::new(self.disk);
        let is_blank = *self == blank || *self == Self { sealed: DROPPED, ..blank };
        assert!(self.begun || is_blank, "a unit that was not started has no state, except that it may be dropped");
        assert!(!self.occupied.holds(self.tail), "no position at or above the tail is held");
        assert!(
            self.trimmed.0 == 0 || !self.occupied.holds(Position(self.trimmed.0 - 1)),
            "no position below the trim mark is held"
        );
        assert!(self.damaged.iter().all(|position| self.occupied.holds(*position)), "damaged positions are held");
        assert!(self.damaged.len() <= DAMAGED_MAX, "too many damaged positions");
        assert!(self.occupied.stripes().count() <= UNIT_STRIPES_MAX, "too many stripes");
    }

    /// The encoded state, without the values, for a checkpoint.
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

    /// Decodes a state.
    ///
    /// # Errors
    /// When the bytes are malformed.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let disk = Incarnation(reader.u64()?);
        let (log, begun, sealed) = (LogId(reader.u64()?), reader.bool()?, ProjectionEpoch(reader.u64()?));
        let (trimmed, tail) = (Position::decode(&mut reader)?, Position::decode(&mut reader)?);
        let occupied = PositionSet::decode(&mut reader)?;
        let damaged =
            (0..reader.count(8)?).map(|_| Position::decode(&mut reader)).collect::<Result<BTreeSet<_>, _>>()?;
        if damaged.len() > DAMAGED_MAX || damaged.iter().any(|position| !occupied.holds(*position)) {
            return Err(DecodeError::Invalid { what: "damaged positions" });
        }
        reader.end()?;
        Ok(Self { disk, log, begun, sealed, trimmed, tail, occupied, damaged })
    }
}
