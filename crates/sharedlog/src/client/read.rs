//! A read of one position from the tail of its chain. If the tail's value is damaged, the unit before it is read and
//! the tail is repaired. If the position is unwritten, the read waits for a slow writer and then fills it. The tail
//! parks the request until the position is written ([`Request::Await`]); a unit with too many parked requests answers
//! at once.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::client::hole_fill::{Filled, HoleFill};
use crate::client::task::{Bound, Next, View};
use crate::client::{Error, LogReply, Timing, Wait};
use crate::limits::BATCH_BYTES_MAX;
use crate::unit::{Command, Reply, Request};
use crate::{Entry, Kept, Position, PositionRun, ProjectionEpoch, UnitId};

/// A read in progress.
#[derive(Debug)]
pub(super) struct Read {
    at: Position,
    wait: Option<Duration>,
    /// Whether it fills the position after the wait.
    fills: bool,
    /// Maximum size of the entry, in bytes.
    bytes: usize,
    timing: Timing,
    /// End of the wait for an unwritten position.
    waits_until: Option<Monotonic>,
    /// When the read started.
    began: Option<Monotonic>,
    stage: Stage,
    /// The epoch of the last request.
    looked_in: ProjectionEpoch,
    /// The last request was a parked one.
    awaited: bool,
    /// Number of units, from the tail, with a damaged value.
    damaged: usize,
    is_damaged: bool,
    bound: Bound,
    pub(super) asked: Option<UnitId>,
}

#[derive(Debug)]
enum Stage {
    Look,
    /// The values of units are damaged, and the unit before them has the entry: repairs them and then returns the
    /// entry.
    Repair(Entry),
    /// The position was unwritten.
    Empty,
    /// The position was unwritten in that epoch, and the caller does not wait. The sequencer confirms that the epoch
    /// was the newest, and whether the position is below the tail. A unit that was removed from the log may lack the
    /// entry.
    Confirm(ProjectionEpoch),
    /// Read again at that time.
    Pause(Monotonic),
    /// The wait is over: fill the position.
    Fill(HoleFill),
    /// The content of the position.
    Content(PositionContent),
    Ended(Result<LogReply, Error>),
}

#[derive(Clone, Debug)]
enum PositionContent {
    Entry(Entry),
    Trimmed(Position),
    Lost,
}

impl Read {
    pub(super) fn new(at: Position, wait: Wait, bytes: usize, timing: Timing) -> Self {
        Self {
            at,
            wait: wait.time(),
            fills: !matches!(wait, Wait::Watch(_)),
            bytes,
            timing,
            waits_until: None,
            began: None,
            stage: Stage::Look,
            looked_in: ProjectionEpoch(0),
            awaited: false,
            damaged: 0,
            is_damaged: false,
            bound: Bound::default(),
            asked: None,
        }
    }

    pub(super) fn position(&self) -> Position {
        self.at
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        let began = *self.began.get_or_insert(view.now);
        loop {
            self.asked = None;
            match &mut self.stage {
                Stage::Look => {
                    let Some(chain) = view.projection.chain_of(self.at) else {
                        self.stage = Stage::Content(PositionContent::Trimmed(view.projection.first()));
                        continue;
                    };
                    if chain.is_empty() {
                        self.stage = Stage::Content(PositionContent::Lost);
                        continue;
                    }
                    if self.looked_in != view.projection.epoch {
                        self.damaged = 0;
                    }
                    if self.damaged >= chain.len() {
                        // A newer projection may have a unit that was unavailable.
                        (self.damaged, self.is_damaged) = (0, true);
                        return Next::Until(view.now + view.pause);
                    }
                    let from_tail = chain.iter().rev().nth(self.damaged);
                    let unit = if planted(Bug::ReadAtHead) { chain.first() } else { from_tail };
                    let Some(unit) = unit.copied() else { return Next::Until(view.now + self.timing.poll) };
                    self.asked = Some(unit);
                    self.looked_in = view.projection.epoch;
                    self.awaited = self.left(view.now).is_some();
                    return Next::Unit(unit, self.question(view));
                }
                Stage::Repair(entry) => {
                    let chain = view.projection.chain_of(self.at).unwrap_or_default();
                    let unit = chain.iter().rev().nth(self.damaged.wrapping_sub(1)).copied();
                    let Some(unit) = unit.filter(|_| self.damaged > 0 && self.looked_in == view.projection.epoch)
                    else {
                        self.stage = Stage::Content(PositionContent::Entry(entry.clone()));
                        continue;
                    };
                    self.asked = Some(unit);
                    let (position, kept) = (self.at, Kept::Entry(entry.clone()));
                    return Next::Unit(unit, Request::Command(Command::Repair { position, kept }.into()));
                }
                Stage::Empty => self.empty(began, view.now),
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
                        Err(Filled::Entry(entry)) => self.stage = Stage::Content(PositionContent::Entry(entry)),
                        Err(Filled::Trimmed(mark)) => self.stage = Stage::Content(PositionContent::Trimmed(mark)),
                        Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                        Err(Filled::Lost) => self.stage = Stage::Content(PositionContent::Lost),
                        Err(Filled::Conflict) => {
                            self.stage = Stage::Ended(Err(Error::Conflict { position: self.at }));
                        }
                    }
                }
                Stage::Content(content) => {
                    let content = content.clone();
                    self.end_with(content);
                }
                Stage::Ended(outcome) => return Next::Done(outcome.clone()),
            }
        }
    }

    /// The request to the unit. A repair reads a value of any size, because damage is rare.
    fn question(&mut self, view: &View) -> Request {
        let (epoch, position, now) = (self.looked_in, self.at, view.now);
        let is_any_size = self.bytes >= BATCH_BYTES_MAX || self.damaged > 0;
        let bytes = if is_any_size { BATCH_BYTES_MAX } else { self.bytes };
        match self.left(now) {
            Some(left) => Request::Await { epoch, position, wait: left, bytes },
            None if is_any_size => Request::Read { epoch, position },
            None => Request::ReadMany { epoch, run: PositionRun::of(position, 1), bytes },
        }
    }

    /// Remaining wait, after a reply that the position is unwritten.
    fn left(&self, now: Monotonic) -> Option<Duration> {
        self.waits_until.map(|until| until.since(now)).filter(|wait| *wait > Duration::ZERO)
    }

    /// The position is unwritten.
    fn empty(&mut self, began: Monotonic, now: Monotonic) {
        let Some(wait) = self.wait else {
            self.stage = Stage::Confirm(self.looked_in);
            return;
        };
        // A writer gets the full wait before its position is filled. A read that never fills counts from its start.
        let from = if self.fills { now } else { began };
        let until = *self.waits_until.get_or_insert(from + wait);
        self.stage = match () {
            () if until > now && self.awaited => Stage::Pause(until.min(now + self.timing.poll)),
            () if until > now => Stage::Look,
            () if self.fills => Stage::Fill(HoleFill::new(self.at)),
            () => Stage::Confirm(self.looked_in),
        };
    }

    /// Ends with the content of the position.
    fn end_with(&mut self, content: PositionContent) {
        self.stage = Stage::Ended(Ok(match content {
            PositionContent::Entry(Entry::Data(data)) => LogReply::Entry(data),
            PositionContent::Entry(Entry::Junk) => LogReply::Junk,
            PositionContent::Trimmed(mark) => LogReply::Trimmed { mark },
            PositionContent::Lost => LogReply::Lost,
        }));
    }

    /// Skips the repair of a unit that does not reply.
    pub(super) fn unanswered(&mut self) {
        if let Stage::Repair(_) = &self.stage {
            self.damaged = self.damaged.saturating_sub(1);
        }
    }

    pub(super) fn out_of_time(&self) -> Error {
        match &self.stage {
            Stage::Fill(filling) => filling.out_of_time(),
            _ if self.is_damaged => Error::Damaged { position: self.at },
            _ => Error::OutOfTime,
        }
    }

    pub(super) fn tail_replied(&mut self, epoch: ProjectionEpoch, tail: Position) {
        match self.stage {
            // The position was unwritten in another epoch.
            Stage::Confirm(of) if of != epoch => self.stage = Stage::Look,
            Stage::Confirm(_) if self.at < tail => self.stage = Stage::Ended(Ok(LogReply::Unwritten)),
            Stage::Confirm(_) => self.stage = Stage::Ended(Err(Error::BeyondTail { tail })),
            _ => self.bound.tail_replied(epoch, tail),
        }
    }

    pub(super) fn unit_replied(&mut self, reply: Reply) {
        match (&mut self.stage, reply) {
            (Stage::Fill(filling), reply) => filling.unit_replied(reply),
            // Any reply: continue with the next unit toward the tail. The entry is known.
            (Stage::Repair(_), _) => self.damaged = self.damaged.saturating_sub(1),
            (stage, Reply::Many(none)) if none.is_empty() => *stage = Stage::Ended(Ok(LogReply::Larger)),
            (Stage::Look, Reply::Damaged) => self.damaged += 1,
            (Stage::Look, Reply::Unwritten) if self.damaged > 0 => {
                self.stage = Stage::Ended(Err(Error::Conflict { position: self.at }));
            }
            (stage, Reply::Value(entry)) if self.damaged > 0 => *stage = Stage::Repair(entry),
            (stage, Reply::Value(entry)) => *stage = Stage::Content(PositionContent::Entry(entry)),
            (stage, Reply::Trimmed { mark }) => *stage = Stage::Content(PositionContent::Trimmed(mark)),
            (stage, Reply::Unwritten) => *stage = Stage::Empty,
            _ => {}
        }
    }
}
