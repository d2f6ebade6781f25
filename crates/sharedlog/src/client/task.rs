//! The interface between the client machine and its calls: a call states its next request and receives the reply.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::client::append::Append;
use crate::client::hole_fill::{Filled, HoleFill};
use crate::client::range_read::{Part, RangeRead};
use crate::client::read::Read;
use crate::client::trim::{Trim, TrimOne};
use crate::client::{CallId, Error, LogReply, Suspect};
use crate::{ClientId, Entry, Position, Projection, ProjectionEpoch, UnitId, sequencer, unit};

/// The context in which a call decides its next step.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) projection: &'a Projection,
    /// The highest tail reported by the projection's sequencer.
    pub(super) tail: Option<Position>,
    pub(super) now: Monotonic,
    /// Interval for rechecking a position that no unit can read, until a new projection resolves it.
    pub(super) pause: Duration,
}

impl View<'_> {
    /// Whether a position is certainly below the tail.
    pub(super) fn is_handed_out(&self, position: Position) -> bool {
        position < self.projection.start || self.tail.is_some_and(|tail| position < tail)
    }

    pub(super) fn ask_tail(&self) -> Next {
        Next::Sequencer(sequencer::Request::Tail { epoch: self.projection.epoch })
    }
}

/// The next step of a call.
#[derive(Debug)]
pub(super) enum Next {
    /// Send a request to a unit.
    Unit(UnitId, unit::Request),
    /// Send a request to the sequencer.
    Sequencer(sequencer::Request),
    /// Get a position for an append.
    Position,
    /// Start these internal calls.
    Calls(Vec<Task>),
    /// Advance the call again at that time.
    Until(Monotonic),
    /// The call has ended.
    Done(Result<LogReply, Error>),
}

/// A caller's call or an internal one.
#[derive(Debug)]
pub(super) enum Task {
    Append(Append),
    Read(Read),
    Range(Box<RangeRead>),
    Part(Part),
    Tail(Option<Position>),
    Fill(Fill),
    Trim(Trim),
    TrimOne(TrimOne),
    /// Requests positions for these appends of the machine's client.
    Asking(ClientId, Vec<CallId>),
}

impl Task {
    pub(super) fn next(&mut self, view: &View) -> Next {
        match self {
            Self::Append(append) => append.next(view),
            Self::Read(read) => read.next(view),
            Self::Range(row) => row.next(view),
            Self::Part(part) => part.next(view),
            Self::Tail(None) => view.ask_tail(),
            Self::Tail(Some(tail)) => Next::Done(Ok(LogReply::Tail(*tail))),
            Self::Fill(fill) => fill.next(view),
            Self::Trim(trim) => trim.next(view),
            Self::TrimOne(trim) => trim.next(view),
            Self::Asking(client, wanted) => {
                let (epoch, count) = (view.projection.epoch, wanted.len() as u64);
                Next::Sequencer(sequencer::Request::Positions { epoch, client: *client, count })
            }
        }
    }

    /// Handles a unit's reply, except a refusal or [`Unknown`](unit::Reply::Unknown).
    pub(super) fn unit_replied(&mut self, reply: unit::Reply) {
        match self {
            Self::Append(append) => append.unit_replied(reply),
            Self::Read(read) => read.unit_replied(reply),
            Self::Part(part) => part.unit_replied(reply),
            Self::Fill(fill) => fill.filling.unit_replied(reply),
            Self::Trim(trim) => trim.unit_replied(&reply),
            Self::TrimOne(trim) => trim.unit_replied(reply),
            Self::Range(_) | Self::Tail(_) | Self::Asking(..) => {}
        }
    }

    /// Handles a tail reported by the sequencer of that epoch.
    pub(super) fn tail_replied(&mut self, epoch: ProjectionEpoch, tail: Position) {
        match self {
            Self::Tail(found) => *found = Some(tail),
            Self::Read(read) => read.tail_replied(epoch, tail),
            Self::Fill(fill) => fill.bound.tail_replied(epoch, tail),
            Self::Trim(trim) => trim.bound.tail_replied(epoch, tail),
            Self::TrimOne(trim) => trim.bound.tail_replied(epoch, tail),
            Self::Append(_) | Self::Range(_) | Self::Part(_) | Self::Asking(..) => {}
        }
    }

    /// The request timed out or failed.
    pub(super) fn unanswered(&mut self) {
        match self {
            Self::Trim(trim) => trim.unanswered(),
            Self::Read(read) => read.unanswered(),
            _ => {}
        }
    }

    /// Whether it continues despite a refusal: only with a planted bug.
    pub(super) fn ignores_seal(&mut self) -> bool {
        match self {
            Self::Append(append) => append.ignores_seal(),
            _ => false,
        }
    }

    /// Target of the last request.
    pub(super) fn target(&self) -> Suspect {
        self.asked_unit().map_or(Suspect::Sequencer, Suspect::Unit)
    }

    /// The unit addressed by the last request; `None` for the sequencer.
    pub(super) fn asked_unit(&self) -> Option<UnitId> {
        match self {
            Self::Append(append) => append.asked,
            Self::Read(read) => read.asked,
            Self::Part(part) => part.asked,
            Self::Fill(fill) => fill.filling.asked,
            Self::Trim(trim) => trim.asked,
            Self::TrimOne(trim) => trim.asked,
            Self::Range(_) | Self::Tail(_) | Self::Asking(..) => None,
        }
    }

    /// The outcome at the deadline.
    pub(super) fn out_of_time(&mut self) -> Result<LogReply, Error> {
        Err(match self {
            Self::Range(row) => return row.out_of_time(),
            Self::Append(append) => append.out_of_time(),
            Self::Read(read) => read.out_of_time(),
            Self::Fill(fill) => fill.filling.out_of_time(),
            Self::TrimOne(trim) => trim.out_of_time(),
            _ => Error::OutOfTime,
        })
    }
}

/// Ensures that a position is below the tail before it is modified: filling a position beyond the tail would end the
/// log there. A tail is valid only in its epoch, because the next sequencer may start lower and reuse positions.
#[derive(Debug, Default)]
pub(super) struct Bound {
    tail: Option<(ProjectionEpoch, Position)>,
}

impl Bound {
    pub(super) fn tail_replied(&mut self, epoch: ProjectionEpoch, tail: Position) {
        self.tail = Some((epoch, tail));
    }

    /// `None` if the position was handed out; otherwise the step to take first.
    pub(super) fn check(&mut self, position: Position, view: &View) -> Option<Next> {
        if view.is_handed_out(position) {
            return None;
        }
        let is_newest = |epoch: ProjectionEpoch| epoch == view.projection.epoch || planted(Bug::OldTailCounts);
        match self.tail.take().filter(|(epoch, _)| is_newest(*epoch)) {
            Some((_, tail)) if position < tail => None,
            Some((_, tail)) => Some(Next::Done(Err(Error::BeyondTail { tail }))),
            None => Some(view.ask_tail()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Fill {
    pub(super) filling: HoleFill,
    pub(super) bound: Bound,
}

impl Fill {
    pub(super) fn new(position: Position) -> Self {
        Self { filling: HoleFill::new(position), bound: Bound::default() }
    }

    fn next(&mut self, view: &View) -> Next {
        if let Some(first) = self.bound.check(self.filling.position, view) {
            self.filling.asked = None;
            return first;
        }
        match self.filling.next(view.projection) {
            Ok((unit, request)) => Next::Unit(unit, request),
            Err(Filled::Entry(Entry::Data(data))) => Next::Done(Ok(LogReply::Entry(data))),
            Err(Filled::Entry(Entry::Junk)) => Next::Done(Ok(LogReply::Junk)),
            Err(Filled::Trimmed(mark)) => Next::Done(Ok(LogReply::Trimmed { mark })),
            Err(Filled::Lost) => Next::Done(Ok(LogReply::Lost)),
            Err(Filled::Damaged) => Next::Until(view.now + view.pause),
            Err(Filled::Conflict) => Next::Done(Err(Error::Conflict { position: self.filling.position })),
        }
    }
}
