//! What calls have in common: each says what it needs next, and hears what came of it.

use base::Monotonic;

use crate::client::append::Append;
use crate::client::filling::{Filled, Filling};
use crate::client::read::Read;
use crate::client::trim::{Trim, TrimOne};
use crate::client::{Answer, CallId, Error};
use crate::{Entry, Position, Projection, UnitId, sequencer, unit};

/// What a call knows when it says what it needs next.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) projection: &'a Projection,
    /// The highest tail that the projection's sequencer told.
    pub(super) tail: Option<Position>,
    pub(super) now: Monotonic,
}

impl View<'_> {
    /// Whether a position is surely below the tail: it was given out.
    pub(super) fn is_given_out(&self, position: Position) -> bool {
        position < self.projection.start || self.tail.is_some_and(|tail| position < tail)
    }

    /// Asks for the tail.
    pub(super) fn ask_tail(&self) -> Next {
        Next::Sequencer(sequencer::Request::Tail { epoch: self.projection.epoch })
    }
}

/// What a call needs next.
#[derive(Debug)]
pub(super) enum Next {
    /// A unit's answer.
    Unit(UnitId, unit::Request),
    /// The sequencer's.
    Sequencer(sequencer::Request),
    /// A position.
    Position,
    /// To be asked again at that time.
    Until(Monotonic),
    /// Nothing: it has ended.
    Done(Result<Answer, Error>),
}

/// A call, or an errand of the machine's own.
#[derive(Debug)]
pub(super) enum Task {
    Append(Append),
    Read(Read),
    Tail(Option<Position>),
    Fill(Fill),
    Trim(Trim),
    TrimOne(TrimOne),
    /// Positions for these appends.
    Asking(Vec<CallId>),
}

impl Task {
    pub(super) fn next(&mut self, view: &View) -> Next {
        match self {
            Self::Append(append) => append.next(view),
            Self::Read(read) => read.next(view),
            Self::Tail(None) => view.ask_tail(),
            Self::Tail(Some(tail)) => Next::Done(Ok(Answer::Tail(*tail))),
            Self::Fill(fill) => fill.next(view),
            Self::Trim(trim) => trim.next(view),
            Self::TrimOne(trim) => trim.next(view),
            Self::Asking(calls) => {
                let (epoch, count) = (view.projection.epoch, calls.len() as u64);
                Next::Sequencer(sequencer::Request::Positions { epoch, count })
            }
        }
    }

    /// What the unit that was asked has said. It is neither a refusal nor an excuse.
    pub(super) fn heard_unit(&mut self, reply: unit::Reply) {
        match self {
            Self::Append(append) => append.heard(reply),
            Self::Read(read) => read.heard(reply),
            Self::Fill(fill) => fill.filling.heard(reply),
            Self::Trim(trim) => trim.heard(&reply),
            Self::TrimOne(trim) => trim.heard(reply),
            Self::Tail(_) | Self::Asking(_) => {}
        }
    }

    pub(super) fn heard_tail(&mut self, tail: Position) {
        match self {
            Self::Tail(told) => *told = Some(tail),
            Self::Read(read) => read.heard_tail(tail),
            Self::Fill(fill) => fill.bound.heard(tail),
            Self::Trim(trim) => trim.bound.heard(tail),
            Self::TrimOne(trim) => trim.bound.heard(tail),
            Self::Append(_) | Self::Asking(_) => {}
        }
    }

    /// There was no answer in time.
    pub(super) fn unanswered(&mut self) {
        if let Self::Append(append) = self {
            append.unanswered();
        }
    }

    /// Whether it goes on as if a unit had not refused: never, but for a planted bug.
    pub(super) fn heeds_no_seal(&mut self) -> bool {
        match self {
            Self::Append(append) => append.heeds_no_seal(),
            _ => false,
        }
    }

    /// The unit that it asked last; none if it asked the sequencer.
    pub(super) fn asked_unit(&self) -> Option<UnitId> {
        match self {
            Self::Append(append) => append.asked,
            Self::Read(read) => read.asked,
            Self::Fill(fill) => fill.filling.asked,
            Self::Trim(trim) => trim.asked,
            Self::TrimOne(trim) => trim.asked,
            Self::Tail(_) | Self::Asking(_) => None,
        }
    }

    /// What is told when the deadline comes.
    pub(super) fn out_of_time(&self) -> Error {
        match self {
            Self::Append(append) => append.out_of_time(),
            _ => Error::OutOfTime,
        }
    }
}

/// Has it that a position lies below the tail before anything is done to it: whoever filled what is beyond would have the log
/// end there.
#[derive(Debug, Default)]
pub(super) struct Bound {
    told: Option<Position>,
}

impl Bound {
    pub(super) fn heard(&mut self, tail: Position) {
        self.told = Some(tail);
    }

    /// None, if the position is given out; else what is to be done first.
    pub(super) fn check(&mut self, position: Position, view: &View) -> Option<Next> {
        if view.is_given_out(position) {
            return None;
        }
        match self.told.take() {
            Some(tail) if position < tail => None,
            Some(tail) => Some(Next::Done(Err(Error::BeyondTail { tail }))),
            None => Some(view.ask_tail()),
        }
    }
}

/// Fills one position.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) filling: Filling,
    pub(super) bound: Bound,
}

impl Fill {
    pub(super) fn new(position: Position) -> Self {
        Self { filling: Filling::new(position), bound: Bound::default() }
    }

    fn next(&mut self, view: &View) -> Next {
        if let Some(first) = self.bound.check(self.filling.position, view) {
            self.filling.asked = None;
            return first;
        }
        match self.filling.next(view.projection) {
            Ok((unit, request)) => Next::Unit(unit, request),
            Err(Filled::Entry(Entry::Data(data))) => Next::Done(Ok(Answer::Entry(data))),
            Err(Filled::Entry(Entry::Junk)) => Next::Done(Ok(Answer::Junk)),
            Err(Filled::Trimmed(mark)) => Next::Done(Ok(Answer::Trimmed { mark })),
            Err(Filled::Conflict) => Next::Done(Err(Error::Conflict { position: self.filling.position })),
        }
    }
}
