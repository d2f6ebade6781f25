//! A read: from the tail of the chain, with patience for a writer that is on its way, and a fill where that is used up.
//!
//! An entry that names an earlier attempt may be a duplicate of it. A reader of that single entry looks back: through the
//! positions from that attempt's on, no more than [`LOOK_BACK_MAX`], each decided first. Who reads a log from its beginning,
//! or from a snapshot, needs no look back: a table tells ([`Duplicates`](crate::duplicates::Duplicates)).

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::client::filling::{Filled, Filling};
use crate::client::task::{Bound, Next, View};
use crate::client::{Answer, Error, Timing};
use crate::limits::LOOK_BACK_MAX;
use crate::unit::{Reply, Request};
use crate::{Data, Entry, Position, ProjectionEpoch, UnitId};

/// A read under way.
#[derive(Debug)]
pub(super) struct Read {
    target: Position,
    /// Where it looks: at its target, or before it for an earlier copy.
    at: Position,
    wait: Option<Duration>,
    look_back: bool,
    timing: Timing,
    /// What lies at the target, once an earlier copy is looked for.
    candidate: Option<Data>,
    /// When a position where nothing lies is filled.
    fill_at: Option<Monotonic>,
    stage: Stage,
    /// The epoch that the tail was asked in last.
    looked_in: ProjectionEpoch,
    bound: Bound,
    pub(super) asked: Option<UnitId>,
}

#[derive(Debug)]
enum Stage {
    Look,
    /// Nothing was there.
    Empty,
    /// Nothing was there in that epoch, and nobody is to wait. The sequencer says whether the epoch was the newest, and whether
    /// the position is beyond the tail. A unit that was left out may not have heard of an entry.
    Confirm(ProjectionEpoch),
    /// It is looked at again at that time.
    Pause(Monotonic),
    /// The wait is over.
    Fill(Filling),
    /// This lies there.
    Told(Told),
    Ended(Result<Answer, Error>),
}

#[derive(Clone, Debug)]
enum Told {
    Entry(Entry),
    Trimmed(Position),
}

impl Read {
    pub(super) fn new(target: Position, wait: Option<Duration>, look_back: bool, timing: Timing) -> Self {
        Self {
            target,
            at: target,
            wait,
            look_back,
            timing,
            candidate: None,
            fill_at: None,
            stage: Stage::Look,
            looked_in: ProjectionEpoch(0),
            bound: Bound::default(),
            asked: None,
        }
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        loop {
            self.asked = None;
            match &mut self.stage {
                Stage::Look => {
                    let Some(chain) = view.projection.chain_of(self.at) else {
                        self.stage = Stage::Told(Told::Trimmed(view.projection.first()));
                        continue;
                    };
                    let unit = if planted(Bug::ReadAtHead) { chain.first() } else { chain.last() };
                    let Some(unit) = unit.copied() else { return Next::Until(view.now + self.timing.poll) };
                    self.asked = Some(unit);
                    self.looked_in = view.projection.epoch;
                    return Next::Unit(unit, Request::Read { epoch: self.looked_in, position: self.at });
                }
                Stage::Empty => self.empty(view.now),
                Stage::Confirm(epoch) if *epoch == view.projection.epoch => return view.ask_tail(),
                Stage::Confirm(_) => self.stage = Stage::Look,
                Stage::Pause(until) if *until <= view.now => self.stage = Stage::Look,
                Stage::Pause(until) => return Next::Until(*until),
                Stage::Fill(filling) => {
                    if let Some(first) = self.bound.check(self.at, view) {
                        return first;
                    }
                    match filling.next(view.projection) {
                        Ok((unit, request)) => {
                            self.asked = Some(unit);
                            return Next::Unit(unit, request);
                        }
                        Err(Filled::Entry(entry)) => self.stage = Stage::Told(Told::Entry(entry)),
                        Err(Filled::Trimmed(mark)) => self.stage = Stage::Told(Told::Trimmed(mark)),
                        Err(Filled::Conflict) => {
                            self.stage = Stage::Ended(Err(Error::Conflict { position: self.at }));
                        }
                    }
                }
                Stage::Told(told) => {
                    let told = told.clone();
                    self.judge(told);
                }
                Stage::Ended(outcome) => return Next::Done(outcome.clone()),
            }
        }
    }

    /// Nothing lies there yet.
    fn empty(&mut self, now: Monotonic) {
        let wait = if self.candidate.is_some() { Some(self.wait.unwrap_or(self.timing.hole)) } else { self.wait };
        let Some(wait) = wait else {
            self.stage = Stage::Confirm(self.looked_in);
            return;
        };
        let fill_at = *self.fill_at.get_or_insert(now + wait);
        self.stage = if fill_at <= now {
            Stage::Fill(Filling::new(self.at))
        } else {
            Stage::Pause(fill_at.min(now + self.timing.poll))
        };
    }

    /// Something lies there.
    fn judge(&mut self, told: Told) {
        let answer = match (told, &self.candidate) {
            (Told::Entry(Entry::Data(data)), None) => match data.since {
                Some(since) if self.look_back && since < self.target => {
                    self.at = Position(since.0.max(self.target.0.saturating_sub(LOOK_BACK_MAX)));
                    self.candidate = Some(data);
                    return self.look();
                }
                _ => Answer::Entry(data),
            },
            (Told::Entry(Entry::Junk), None) => Answer::Junk,
            (Told::Trimmed(mark), None) => Answer::Trimmed { mark },
            (Told::Entry(entry), Some(candidate)) if entry.stamp() == Some(candidate.stamp) => {
                Answer::Duplicate { of: self.at }
            }
            (told, Some(candidate)) => {
                self.at = match told {
                    Told::Trimmed(mark) => self.at.next().max(mark),
                    Told::Entry(_) => self.at.next(),
                };
                if self.at < self.target {
                    return self.look();
                }
                Answer::Entry(candidate.clone())
            }
        };
        self.stage = Stage::Ended(Ok(answer));
    }

    fn look(&mut self) {
        self.fill_at = None;
        self.stage = Stage::Look;
    }

    pub(super) fn heard_tail(&mut self, tail: Position) {
        match self.stage {
            Stage::Confirm(_) if self.at < tail => self.stage = Stage::Ended(Ok(Answer::Unwritten)),
            Stage::Confirm(_) => self.stage = Stage::Ended(Err(Error::BeyondTail { tail })),
            _ => self.bound.heard(tail),
        }
    }

    pub(super) fn heard(&mut self, reply: Reply) {
        match (&mut self.stage, reply) {
            (Stage::Fill(filling), reply) => filling.heard(reply),
            (stage, Reply::Value(entry)) => *stage = Stage::Told(Told::Entry(entry)),
            (stage, Reply::Trimmed { mark }) => *stage = Stage::Told(Told::Trimmed(mark)),
            (stage, Reply::Unwritten) => *stage = Stage::Empty,
            _ => {}
        }
    }
}
