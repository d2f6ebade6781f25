//! Completes a position, so that every unit of its chain holds the same entry (CORFU, section 3.2; guarantee 20).
//!
//! Writes junk to the head unless it holds an entry, and then copies the head's entry down the chain. Concurrent
//! fillers, or a filler and a slow writer, agree on the entry, because the head accepts only one. All steps happen in
//! one epoch. In a newer epoch the fill restarts, since another unit may be the head.

use base::canary::{Bug, planted};

use crate::client::Error;
use crate::unit::{Command, Reply, Request};
use crate::{Entry, Kept, Kind, Position, Projection, ProjectionEpoch, UnitId};

/// A fill of one position.
#[derive(Debug)]
pub(super) struct HoleFill {
    pub(super) position: Position,
    epoch: ProjectionEpoch,
    stage: Stage,
    is_damaged: bool,
    pub(super) asked: Option<UnitId>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Write junk to the head.
    Junk,
    /// The head holds an entry: read it.
    Look,
    /// The head's value is damaged. Read it from the unit with this index.
    Seek(usize),
    /// The value of the unit with this index is damaged: restore it with this entry.
    Repair(Entry, usize),
    /// The first units, as many as given, hold the entry.
    Down(Entry, usize),
    Ended(Filled),
}

/// The outcome of a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// The whole chain holds this entry.
    Entry(Entry),
    /// The position was trimmed.
    Trimmed(Position),
    /// The chain was abandoned.
    Lost,
    /// The head's value is damaged, and no other unit holds it. A writer may still write the same entry. Only a
    /// projection without that head can decide otherwise.
    Damaged,
    /// Two units hold different entries.
    Conflict,
}

impl HoleFill {
    pub(super) fn new(position: Position) -> Self {
        Self { position, epoch: ProjectionEpoch(0), stage: Stage::Junk, is_damaged: false, asked: None }
    }

    /// The next request, or the outcome.
    pub(super) fn next(&mut self, projection: &Projection) -> Result<(UnitId, Request), Filled> {
        let position = self.position;
        let Some(chain) = projection.chain_of(position) else { return Err(Filled::Trimmed(projection.first())) };
        if chain.is_empty() {
            return Err(Filled::Lost);
        }
        let mut chain = chain.to_vec();
        if planted(Bug::FillFromTail) {
            chain.reverse();
        }
        if self.epoch != projection.epoch && !matches!(self.stage, Stage::Ended(_)) {
            (self.epoch, self.stage) = (projection.epoch, Stage::Junk);
        }
        if matches!(self.stage, Stage::Seek(number) if number >= chain.len()) {
            (self.stage, self.is_damaged) = (Stage::Junk, true);
            return Err(Filled::Damaged);
        }
        let epoch = self.epoch;
        let write = |entry| Request::Command(Command::Write { epoch, position, entry }.into());
        let (unit, request) = match &self.stage {
            Stage::Junk => (chain[0], write(Entry::Junk)),
            Stage::Look => (chain[0], Request::Read { epoch, position }),
            Stage::Seek(number) => (chain[*number], Request::Read { epoch, position }),
            Stage::Repair(entry, number) => {
                let kept = Kept::Entry(entry.clone());
                (chain[*number], Request::Command(Command::Repair { position, kept }.into()))
            }
            Stage::Down(entry, count) => match chain.get(*count) {
                Some(unit) => (*unit, write(entry.clone())),
                None => return Err(Filled::Entry(entry.clone())),
            },
            Stage::Ended(filled) => return Err(filled.clone()),
        };
        self.asked = Some(unit);
        Ok((unit, request))
    }

    pub(super) fn out_of_time(&self) -> Error {
        let position = self.position;
        if self.is_damaged { Error::Damaged { position } } else { Error::OutOfTime }
    }

    pub(super) fn unit_replied(&mut self, reply: Reply) {
        self.is_damaged = false;
        self.stage = match (self.stage.clone(), reply) {
            (_, Reply::Trimmed { mark }) => Stage::Ended(Filled::Trimmed(mark)),
            (Stage::Junk, Reply::Written) => Stage::Down(Entry::Junk, 1),
            (Stage::Junk, Reply::Occupied { by: Kind::Data }) => Stage::Look,
            (Stage::Look, Reply::Value(entry)) => Stage::Down(entry, 1),
            (Stage::Junk | Stage::Look, Reply::Damaged) => Stage::Seek(1),
            (Stage::Seek(_), Reply::Value(entry)) => Stage::Repair(entry, 0),
            (Stage::Seek(number), Reply::Unwritten | Reply::Damaged) => Stage::Seek(number + 1),
            (Stage::Down(entry, count), Reply::Damaged) => Stage::Repair(entry, count),
            (Stage::Repair(entry, number), Reply::Written) => Stage::Down(entry, number + 1),
            (Stage::Repair(..), Reply::Occupied { .. }) => Stage::Ended(Filled::Conflict),
            (Stage::Down(entry, count), Reply::Written) => Stage::Down(entry, count + 1),
            (Stage::Down(..), Reply::Occupied { .. }) => Stage::Ended(Filled::Conflict),
            (stage, _) => stage,
        };
    }
}
