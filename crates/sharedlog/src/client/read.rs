//! A read: from the tail of the chain, or, where the tail has lost what it holds, from the unit before it, which gives
//! it back; with patience for a writer that is on its way, and a fill where that is used up. The tail is asked to
//! answer when something has come ([`Request::Await`]); a unit that has too many such askers says at once that nothing
//! is there.
//!
//! An entry that names an earlier attempt may be a duplicate of it. A reader of that single entry looks back: through
//! the positions from that attempt's on, no more than [`LOOK_BACK_MAX`], each decided first. Tails are asked which appends
//! lie at many of these ([`Request::Stamps`]), and only for those that the machine doesn't know yet
//! ([`stamps`](super::stamps)), nor has another read ask for. Who reads a log from its beginning, or from a snapshot,
//! needs no look back: a table tells ([`Duplicates`](crate::duplicates::Duplicates)).

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::client::filling::{Filled, Filling};
use crate::client::stamps::{Found, Noted};
use crate::client::task::{Bound, Next, View};
use crate::client::{Answer, Error, Timing, Wait};
use crate::limits::{BATCH_BYTES_MAX, LOOK_BACK_MAX, MANY_MAX};
use crate::unit::{Command, Reply, Request};
use crate::{Data, Entry, Kept, Position, ProjectionEpoch, Run, Stamp, UnitId};

/// A read under way.
#[derive(Debug)]
pub(super) struct Read {
    target: Position,
    /// Where it looks: at its target, or before it for an earlier copy.
    at: Position,
    wait: Option<Duration>,
    /// Where nothing has come when the wait is over, it is filled.
    fills: bool,
    look_back: bool,
    /// Bytes that the target may have.
    bytes: usize,
    timing: Timing,
    /// What lies at the target, once an earlier copy is looked for.
    candidate: Option<Data>,
    /// The position before the target that is looked at is asked for by itself: what lies there is to be seen.
    is_single: bool,
    /// Of so many positions from that one on it was asked which appends lie there.
    asked_for: usize,
    /// What was found out before the target.
    noted: Vec<Noted>,
    /// When the wait at a position where nothing lies is over.
    waits_until: Option<Monotonic>,
    /// When it was asked for.
    began: Option<Monotonic>,
    stage: Stage,
    /// The epoch that the tail was asked in last.
    looked_in: ProjectionEpoch,
    /// It was to answer when something has come.
    awaited: bool,
    /// So many units from the tail up hold it, and have lost it.
    damaged: usize,
    is_damaged: bool,
    bound: Bound,
    pub(super) asked: Option<UnitId>,
}

#[derive(Debug)]
enum Stage {
    Look,
    /// Units have lost it, and the one before them has it: they are given it back, and then it is told.
    Mend(Entry),
    /// Nothing was there.
    Empty,
    /// Nothing was there in that epoch, and nobody is to wait. The sequencer says whether the epoch was the newest, and
    /// whether the position is beyond the tail. A unit that was left out may not have heard of an entry.
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
    Lost,
}

impl Read {
    pub(super) fn new(target: Position, wait: Wait, look_back: bool, bytes: usize, timing: Timing) -> Self {
        Self {
            target,
            at: target,
            wait: wait.time(),
            fills: !matches!(wait, Wait::Watch(_)),
            look_back,
            bytes,
            timing,
            candidate: None,
            is_single: false,
            asked_for: 0,
            noted: Vec::new(),
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

    /// An entry was read that may be a duplicate.
    pub(super) fn of_candidate(target: Position, data: Data, wait: Wait, timing: Timing) -> Self {
        let mut read = Self::new(target, wait, true, BATCH_BYTES_MAX, timing);
        read.judge(Told::Entry(Entry::Data(data)));
        read
    }

    /// What it has found out of decided positions.
    pub(super) fn take_noted(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.noted)
    }

    /// The position that it is of.
    pub(super) fn target(&self) -> Position {
        self.target
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        let began = *self.began.get_or_insert(view.now);
        loop {
            self.asked = None;
            match &mut self.stage {
                Stage::Look => {
                    if let Some(answer) = self.look_it_up(view) {
                        self.stage = Stage::Ended(Ok(answer));
                        continue;
                    }
                    if self.looks_at_many() && view.is_asked_for(self.at) {
                        return Next::Stamps;
                    }
                    let Some(chain) = view.projection.chain_of(self.at) else {
                        self.stage = Stage::Told(Told::Trimmed(view.projection.first()));
                        continue;
                    };
                    if chain.is_empty() {
                        self.stage = Stage::Told(Told::Lost);
                        continue;
                    }
                    if self.looked_in != view.projection.epoch {
                        self.damaged = 0;
                    }
                    if self.damaged >= chain.len() {
                        // A newer projection may have a unit that comes back.
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
                Stage::Mend(entry) => {
                    let chain = view.projection.chain_of(self.at).unwrap_or_default();
                    let unit = chain.iter().rev().nth(self.damaged.wrapping_sub(1)).copied();
                    let Some(unit) = unit.filter(|_| self.damaged > 0 && self.looked_in == view.projection.epoch)
                    else {
                        self.stage = Stage::Told(Told::Entry(entry.clone()));
                        continue;
                    };
                    self.asked = Some(unit);
                    let (position, kept) = (self.at, Kept::Entry(entry.clone()));
                    return Next::Unit(unit, Request::Command(Command::Mend { position, kept }));
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
                        Err(Filled::Entry(entry)) => self.stage = Stage::Told(Told::Entry(entry)),
                        Err(Filled::Trimmed(mark)) => self.stage = Stage::Told(Told::Trimmed(mark)),
                        Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                        Err(Filled::Lost) => self.stage = Stage::Told(Told::Lost),
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

    /// What the unit is asked. Of any size is what the tail has lost, and an earlier position that is looked at by itself:
    /// few wait for such.
    fn question(&mut self, view: &View) -> Request {
        let (epoch, position, now) = (self.looked_in, self.at, view.now);
        if self.looks_at_many() {
            let place = view.projection.place_of(position);
            let before = (self.target.0 - position.0).min(MANY_MAX as u64) as usize;
            let is_there = |position: &Position| view.projection.place_of(*position) == place;
            self.asked_for = Run::of(position, before).positions().take_while(is_there).count();
            return Request::Stamps { epoch, run: Run::of(position, self.asked_for) };
        }
        let is_any_size = self.bytes >= BATCH_BYTES_MAX || self.candidate.is_some() || self.damaged > 0;
        let bytes = if is_any_size { BATCH_BYTES_MAX } else { self.bytes };
        match self.left(now) {
            Some(left) => Request::Await { epoch, position, wait: left, bytes },
            None if is_any_size => Request::Read { epoch, position },
            None => Request::ReadMany { epoch, run: Run::of(position, 1), bytes },
        }
    }

    /// Whether it is asked which appends lie from here on to the target, without a wait.
    fn looks_at_many(&self) -> bool {
        self.candidate.is_some() && !self.is_single && self.damaged == 0 && self.waits_until.is_none()
    }

    /// Goes on to the first position before the target that has an earlier copy, or of which nothing is known; if there
    /// is none, the target's entry is no duplicate.
    fn look_it_up(&mut self, view: &View) -> Option<Answer> {
        let candidate = self.candidate.as_ref()?;
        let (at, is_known) = match view.stamps.find(candidate.stamp, self.at, self.target) {
            // It may have been trimmed since: it is looked at once more.
            Found::At(of) => (of, true),
            Found::Unknown(at) => (at, false),
            Found::Nowhere => return Some(Answer::Entry(candidate.clone())),
        };
        if at > self.at {
            self.at = at;
            self.look();
        }
        self.is_single |= is_known;
        None
    }

    /// How long it waits still where nothing was there at the last look.
    fn left(&self, now: Monotonic) -> Option<Duration> {
        self.waits_until.map(|until| until.since(now)).filter(|wait| *wait > Duration::ZERO)
    }

    /// Nothing lies there yet.
    fn empty(&mut self, began: Monotonic, now: Monotonic) {
        // What lies before an entry that may be a duplicate is decided in any case.
        let is_before = self.candidate.is_some();
        let wait = if is_before { self.wait.filter(|_| self.fills).or(Some(self.timing.hole)) } else { self.wait };
        let Some(wait) = wait else {
            self.stage = Stage::Confirm(self.looked_in);
            return;
        };
        // Whoever may write there has all of the time before it is filled; who only watches has not more than it said.
        let from = if self.fills || is_before { now } else { began };
        let until = *self.waits_until.get_or_insert(from + wait);
        self.stage = match () {
            () if until > now && self.awaited => Stage::Pause(until.min(now + self.timing.poll)),
            () if until > now => Stage::Look,
            () if self.fills || is_before => Stage::Fill(Filling::new(self.at)),
            () => Stage::Confirm(self.looked_in),
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
            (Told::Lost, None) => Answer::Lost,
            (Told::Trimmed(mark), None) => Answer::Trimmed { mark },
            // What lies there has been given up while it was looked for before.
            (Told::Trimmed(mark), Some(_)) if mark > self.target => Answer::Trimmed { mark },
            (Told::Entry(entry), Some(candidate)) if entry.stamp() == Some(candidate.stamp) => {
                Answer::Duplicate { of: self.at }
            }
            (told, Some(candidate)) => {
                if let Told::Entry(entry) = &told {
                    self.noted.push((self.at, entry.stamp()));
                }
                self.at = match told {
                    Told::Trimmed(mark) => self.at.next().max(mark),
                    Told::Entry(_) | Told::Lost => self.at.next(),
                };
                if self.at < self.target {
                    return self.look();
                }
                Answer::Entry(candidate.clone())
            }
        };
        self.stage = Stage::Ended(Ok(answer));
    }

    /// A unit that doesn't answer is not mended.
    pub(super) fn unanswered(&mut self) {
        if let Stage::Mend(_) = &self.stage {
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

    fn look(&mut self) {
        (self.damaged, self.is_damaged, self.is_single) = (0, false, false);
        self.waits_until = None;
        self.stage = Stage::Look;
    }

    pub(super) fn heard_tail(&mut self, epoch: ProjectionEpoch, tail: Position) {
        match self.stage {
            // That nothing was there was said in another epoch.
            Stage::Confirm(of) if of != epoch => self.stage = Stage::Look,
            Stage::Confirm(_) if self.at < tail => self.stage = Stage::Ended(Ok(Answer::Unwritten)),
            Stage::Confirm(_) => self.stage = Stage::Ended(Err(Error::BeyondTail { tail })),
            _ => self.bound.heard(epoch, tail),
        }
    }

    pub(super) fn heard(&mut self, reply: Reply) {
        let looks_at_many = self.looks_at_many();
        match (&mut self.stage, reply) {
            (Stage::Fill(filling), reply) => filling.heard(reply),
            // Whatever it says: the next, nearer to the tail. The value is known.
            (Stage::Mend(_), _) => self.damaged = self.damaged.saturating_sub(1),
            (Stage::Look, Reply::Stamps { mark, stamps }) if looks_at_many => self.heard_stamps(mark, stamps),
            (stage, Reply::Many(none)) if none.is_empty() => *stage = Stage::Ended(Ok(Answer::Larger)),
            (Stage::Look, Reply::Damaged) => self.damaged += 1,
            (Stage::Look, Reply::Unwritten) if self.damaged > 0 => {
                self.stage = Stage::Ended(Err(Error::Conflict { position: self.at }));
            }
            (stage, Reply::Value(entry)) if self.damaged > 0 => *stage = Stage::Mend(entry),
            (stage, Reply::Value(entry)) => *stage = Stage::Told(Told::Entry(entry)),
            (stage, Reply::Trimmed { mark }) => *stage = Stage::Told(Told::Trimmed(mark)),
            (stage, Reply::Unwritten) => *stage = Stage::Empty,
            _ => {}
        }
    }

    /// Which appends the tail has from where it is looked on: that is known from now on.
    fn heard_stamps(&mut self, mark: Position, stamps: Vec<Option<Stamp>>) {
        // What becomes of one that it doesn't tell is to be seen.
        self.is_single = stamps.is_empty();
        self.noted.extend(Run::of(self.at, self.asked_for).positions().zip(stamps));
        if mark > self.target {
            self.stage = Stage::Told(Told::Trimmed(mark));
        }
    }
}
