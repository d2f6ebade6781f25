//! Seeing to it that a position holds one entry on its whole chain (CORFU, section 3.2; guarantee 20).
//!
//! Head first: junk to the head, unless it holds something; then whatever the head holds, down the chain. Two that fill, or a
//! filler and a slow writer, so come to the same entry: the head takes one. All of it happens in one epoch: when that is over
//! it begins anew, since another unit may be the head.

use base::canary::{Bug, planted};

use crate::unit::{Command, Reply, Request};
use crate::{Entry, Kind, Position, Projection, ProjectionEpoch, UnitId};

/// A position on its way to one entry.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) position: Position,
    epoch: ProjectionEpoch,
    stage: Stage,
    pub(super) asked: Option<UnitId>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Junk goes to the head.
    Junk,
    /// The head holds something: what?
    Look,
    /// The first units hold the entry; so many.
    Down(Entry, usize),
    Ended(Filled),
}

/// What lies at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// This, on the whole chain.
    Entry(Entry),
    /// Nothing any more.
    Trimmed(Position),
    /// Not the same on all units.
    Conflict,
}

impl Filling {
    pub(super) fn new(position: Position) -> Self {
        Self { position, epoch: ProjectionEpoch(0), stage: Stage::Junk, asked: None }
    }

    /// Whom to ask what next; or what it has come to.
    pub(super) fn next(&mut self, projection: &Projection) -> Result<(UnitId, Request), Filled> {
        let position = self.position;
        let Some(chain) = projection.chain_of(position) else { return Err(Filled::Trimmed(projection.first())) };
        let mut chain = chain.to_vec();
        if planted(Bug::FillFromTail) {
            chain.reverse();
        }
        if self.epoch != projection.epoch && !matches!(self.stage, Stage::Ended(_)) {
            (self.epoch, self.stage) = (projection.epoch, Stage::Junk);
        }
        let epoch = self.epoch;
        let write = |entry| Request::Command(Command::Write { epoch, position, entry });
        let (unit, request) = match &self.stage {
            Stage::Junk => (chain[0], write(Entry::Junk)),
            Stage::Look => (chain[0], Request::Read { epoch, position }),
            Stage::Down(entry, count) => match chain.get(*count) {
                Some(unit) => (*unit, write(entry.clone())),
                None => return Err(Filled::Entry(entry.clone())),
            },
            Stage::Ended(filled) => return Err(filled.clone()),
        };
        self.asked = Some(unit);
        Ok((unit, request))
    }

    pub(super) fn heard(&mut self, reply: Reply) {
        self.stage = match (self.stage.clone(), reply) {
            (_, Reply::Trimmed { mark }) => Stage::Ended(Filled::Trimmed(mark)),
            (Stage::Junk, Reply::Written) => Stage::Down(Entry::Junk, 1),
            (Stage::Junk, Reply::Occupied { by: Kind::Data }) => Stage::Look,
            (Stage::Look, Reply::Value(entry)) => Stage::Down(entry, 1),
            (Stage::Down(entry, count), Reply::Written) => Stage::Down(entry, count + 1),
            (Stage::Down(..), Reply::Occupied { .. }) => Stage::Ended(Filled::Conflict),
            (stage, _) => stage,
        };
    }
}
