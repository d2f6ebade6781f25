//! Trims all positions below one, or a single position.
//!
//! Units are trimmed from head to tail. So once a reader at a tail sees a position as trimmed, every later reader does.
//! A newer projection may contain units that were not trimmed: the trim restarts.

use crate::client::hole_fill::{Filled, HoleFill};
use crate::client::task::{Bound, Next, View};
use crate::client::{Error, LogReply};
use crate::unit::{Command, Reply, Request};
use crate::{Position, ProjectionEpoch, UnitId};

/// Trims every position below one.
#[derive(Debug)]
pub(super) struct Trim {
    before: Position,
    epoch: ProjectionEpoch,
    count: usize,
    /// Whether the last addressed unit holds only positions to be trimmed.
    holds_nothing: bool,
    pub(super) bound: Bound,
    pub(super) asked: Option<UnitId>,
}

impl Trim {
    pub(super) fn new(before: Position) -> Self {
        Self { before, epoch: ProjectionEpoch(0), count: 0, holds_nothing: false, bound: Bound::default(), asked: None }
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        self.asked = None;
        if self.before.0 == 0 {
            return Next::Done(Ok(LogReply::Done));
        }
        if let Some(first) = self.bound.check(Position(self.before.0 - 1), view) {
            return first;
        }
        if self.epoch != view.projection.epoch {
            (self.epoch, self.count) = (view.projection.epoch, 0);
        }
        let Some(unit) = view.projection.units().get(self.count).copied() else {
            return Next::Done(Ok(LogReply::Done));
        };
        self.asked = Some(unit);
        let is_kept = |end: Option<Position>| end.is_none_or(|end| end > self.before);
        let mut kept = view.projection.bounded().filter(|(_, end)| is_kept(*end));
        self.holds_nothing = !kept.any(|(extent, _)| extent.units().any(|other| other == unit));
        Next::Unit(unit, Request::Command(Command::Trim { epoch: Some(self.epoch), before: self.before }.into()))
    }

    pub(super) fn unit_replied(&mut self, reply: &Reply) {
        if matches!(reply, Reply::Done) {
            self.count += 1;
        }
    }

    /// If all extents of a unit are trimmed, the unit may be dead. The next projection drops these extents.
    pub(super) fn unanswered(&mut self) {
        if self.holds_nothing {
            self.count += 1;
        }
    }
}

/// Trims one position, after filling it.
#[derive(Debug)]
pub(super) struct TrimOne {
    filling: HoleFill,
    epoch: ProjectionEpoch,
    count: usize,
    is_filled: bool,
    pub(super) bound: Bound,
    pub(super) asked: Option<UnitId>,
}

impl TrimOne {
    pub(super) fn new(position: Position) -> Self {
        Self {
            filling: HoleFill::new(position),
            epoch: ProjectionEpoch(0),
            count: 0,
            is_filled: false,
            bound: Bound::default(),
            asked: None,
        }
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        self.asked = None;
        let position = self.filling.position;
        if let Some(first) = self.bound.check(position, view) {
            return first;
        }
        if !self.is_filled {
            match self.filling.next(view.projection) {
                Ok((unit, request)) => {
                    self.asked = Some(unit);
                    return Next::Unit(unit, request);
                }
                Err(Filled::Lost) => return Next::Done(Ok(LogReply::Lost)),
                Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                Err(Filled::Conflict) => return Next::Done(Err(Error::Conflict { position })),
                // An earlier trim may have reached only some of the units.
                Err(Filled::Entry(_) | Filled::Trimmed(_)) => self.is_filled = true,
            }
        }
        if self.epoch != view.projection.epoch {
            (self.epoch, self.count) = (view.projection.epoch, 0);
        }
        let chain = view.projection.chain_of(position).unwrap_or_default();
        let Some(unit) = chain.get(self.count).copied() else { return Next::Done(Ok(LogReply::Done)) };
        self.asked = Some(unit);
        Next::Unit(unit, Request::Command(Command::TrimOne { epoch: self.epoch, position }.into()))
    }

    pub(super) fn out_of_time(&self) -> Error {
        self.filling.out_of_time()
    }

    pub(super) fn unit_replied(&mut self, reply: Reply) {
        if !self.is_filled {
            return self.filling.unit_replied(reply);
        }
        // A unit that never held the position has nothing to trim.
        if matches!(reply, Reply::Done | Reply::Unwritten) {
            self.count += 1;
        }
    }
}
