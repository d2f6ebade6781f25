//! A follower of a log: every entry once, in the log's order, without waiting for anybody who died.
//!
//! It reads ahead, over all chains at once, but no further than its window from what was taken; and no further than a
//! tail that it was told. A position where nothing comes is filled after a wait
//! ([`Client::read_many`](crate::client::Client::read_many) does both). Junk is passed over, and so is the second entry
//! of a stamp ([`Duplicates`]).
//!
//! What it delivers is taken from it ([`Player::take`]): who takes nothing has nothing read.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Answer, Error};
use crate::duplicates::Duplicates;
use crate::limits::ROW_MAX;
use crate::{Data, Position, Run};

/// How a player reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Positions that it reads ahead of what was taken, at most.
    pub window: usize,
    /// How long it waits at the tail before it asks for it again.
    pub poll: Duration,
    /// How long a position may be given out before it is filled where nothing lies.
    pub wait: Duration,
}

/// What the driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read positions in a row, and fill each after the wait; [`Player::read`] follows.
    Read {
        /// The positions.
        run: Run,
        /// What is left of the wait, counted from when the player was told that the position is given out. So it waits
        /// once for all positions that a dead writer took, not once for each.
        wait: Duration,
    },
    /// Ask for the tail; [`Player::tail`] follows.
    Tail,
    /// Call [`Player::timer`] at this time.
    SetTimer(Monotonic),
}

/// What a player delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The next entry of the log.
    Entry {
        /// Where it lies.
        position: Position,
        /// It.
        data: Data,
    },
    /// What lay there is lost, by an operator's word. What comes after it follows.
    Lost {
        /// Where it lay.
        position: Position,
    },
    /// What comes next was given up: there is nothing more to be had before the mark. A snapshot that is as new must be
    /// taken instead, with its table of duplicates.
    Trimmed {
        /// The first position that may be there.
        mark: Position,
    },
}

/// Tails that are remembered with their times, at most.
const TOLD_MAX: usize = 64;
/// Where it is behind, it reads such a part of its window at one time.
const SHARE: usize = 4;

/// A follower of a log.
#[derive(Debug)]
pub struct Player {
    config: Config,
    /// All before was delivered or passed over.
    next: Position,
    /// Positions below are given out, as far as is known.
    tail: Position,
    /// Tails, and when they were told.
    told: VecDeque<(Position, Monotonic)>,
    asks_tail: bool,
    /// When the tail is asked for next.
    poll_at: Option<Monotonic>,
    /// The time that was asked for last.
    timer: Option<Monotonic>,
    /// What was read, or is being read: `None`.
    ahead: BTreeMap<Position, Option<Answer>>,
    duplicates: Duplicates,
    actions: Vec<Action>,
}

impl Player {
    /// A player that begins at a position, with the table of duplicates of what came before.
    #[must_use]
    pub fn new(config: Config, next: Position, duplicates: Duplicates) -> Self {
        Self {
            config,
            next,
            tail: next,
            told: VecDeque::new(),
            asks_tail: false,
            poll_at: None,
            timer: None,
            ahead: BTreeMap::new(),
            duplicates,
            actions: Vec::new(),
        }
    }

    /// All before this was delivered or passed over: with [`Player::duplicates`], a snapshot's place.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// The appends that were seen before [`Player::next`].
    #[must_use]
    pub fn duplicates(&self) -> &Duplicates {
        &self.duplicates
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Begins, or goes on at once: there may be something new.
    pub fn nudge(&mut self, now: Monotonic) {
        self.poll_at = None;
        self.look(now);
    }

    /// The next thing to be delivered, if it is there.
    pub fn take(&mut self, now: Monotonic) -> Option<Delivery> {
        let mut taken = None;
        while taken.is_none() {
            let Some(answer) = self.ahead.get_mut(&self.next).and_then(Option::take) else { break };
            let position = self.next;
            match answer {
                Answer::Entry(data) => {
                    self.pass();
                    if self.duplicates.is_first(data.stamp, position) {
                        taken = Some(Delivery::Entry { position, data });
                    }
                }
                Answer::Trimmed { mark } if mark > position => {
                    taken = Some(Delivery::Trimmed { mark });
                    self.ahead.insert(position, Some(answer));
                    return taken;
                }
                Answer::Lost => {
                    self.pass();
                    taken = Some(Delivery::Lost { position });
                }
                // Junk, or given up by itself.
                _ => self.pass(),
            }
        }
        self.look(now);
        taken
    }

    fn pass(&mut self) {
        self.ahead.remove(&self.next);
        self.next = self.next.next();
    }

    /// A read has ended. What it brought no answer for is read again.
    pub fn read(&mut self, run: Run, outcome: Result<Answer, Error>, now: Monotonic) {
        let answers = match outcome {
            Ok(Answer::Row(answers)) => answers,
            Err(Error::BeyondTail { tail }) => {
                // What a sequencer gave out that is gone counts no more.
                run.positions().for_each(|position| {
                    self.ahead.remove(&position);
                });
                self.tail = self.tail.min(tail.max(self.next));
                self.told.retain(|(told, _)| *told <= self.tail);
                return self.look(now);
            }
            _ => Vec::new(),
        };
        let left = run.after(answers.len());
        for (position, answer) in run.positions().zip(answers) {
            if let Some(slot) = self.ahead.get_mut(&position) {
                *slot = Some(answer);
            }
        }
        let left: Vec<Position> = left.positions().filter(|position| self.ahead.get(position) == Some(&None)).collect();
        self.begin_reads(&left, now);
        self.look(now);
    }

    /// How long to wait yet for a position.
    fn wait_for(&self, position: Position, now: Monotonic) -> Duration {
        let told = self.told.iter().find(|(tail, _)| position < *tail).map_or(now, |(_, at)| *at);
        Duration(self.config.wait.0.saturating_sub(now.0.saturating_sub(told.0)))
    }

    /// Notes when positions were told to be given out. Where that is too much to be noted, they count from later on.
    fn note_tail(&mut self, tail: Position, now: Monotonic) {
        if tail > self.tail {
            self.tail = tail;
            if self.told.len() >= TOLD_MAX {
                self.told.pop_back();
            }
            self.told.push_back((tail, now));
        }
    }

    /// The tail was told, or could not be.
    pub fn tail(&mut self, outcome: Result<Position, Error>, now: Monotonic) {
        self.asks_tail = false;
        self.poll_at = Some(now + self.config.poll);
        if let Ok(tail) = outcome {
            self.note_tail(tail, now);
        }
        self.look(now);
    }

    /// The time that [`Action::SetTimer`] named has come.
    pub fn timer(&mut self, now: Monotonic) {
        self.timer = None;
        self.look(now);
    }

    /// Reads what may be read, and asks for the tail where all below it is being read.
    fn look(&mut self, now: Monotonic) {
        let end = Position(self.next.0.saturating_add(self.config.window as u64)).min(self.tail);
        while self.told.front().is_some_and(|(told, _)| *told <= self.next) {
            self.told.pop_front();
        }
        // What is beyond a tail that went back is not read, and is not in `ahead`.
        let is_vacant = |position: &Position| !self.ahead.contains_key(position);
        let vacant: Vec<Position> = (self.next.0..end.0).map(Position).filter(is_vacant).collect();
        // Where there is more to come, not each is read as soon as there is room for it.
        let is_gap = vacant.first() < self.ahead.last_key_value().map(|(last, _)| last);
        if end == self.tail || is_gap || vacant.len() >= self.config.window / SHARE {
            self.begin_reads(&vacant, now);
        }
        if self.asks_tail || end < self.tail || self.ahead.len() >= self.config.window {
            return;
        }
        match self.poll_at {
            Some(at) if now < at => {
                if self.timer.replace(at) != Some(at) {
                    self.actions.push(Action::SetTimer(at));
                }
            }
            _ => {
                self.asks_tail = true;
                self.actions.push(Action::Tail);
            }
        }
    }

    /// Reads positions: in a row what lies in a row, and is waited for as long.
    fn begin_reads(&mut self, positions: &[Position], now: Monotonic) {
        let mut reads: Vec<(Run, Duration)> = Vec::new();
        for position in positions.iter().copied() {
            self.ahead.insert(position, None);
            let wait = self.wait_for(position, now);
            let follows = |run: &Run| run.position(run.count as u64) == position && run.count < ROW_MAX;
            match reads.last_mut().filter(|(run, waits)| follows(run) && *waits == wait) {
                Some((run, _)) => run.count += 1,
                None => reads.push((Run::of(position, 1), wait)),
            }
        }
        self.actions.extend(reads.into_iter().map(|(run, wait)| Action::Read { run, wait }));
    }

    /// Checks what must hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.ahead.len() <= self.config.window, "it reads no further ahead than it may");
        assert!(self.ahead.first_key_value().is_none_or(|(first, _)| *first >= self.next), "what was passed is gone");
    }
}

#[cfg(test)]
mod tests;
