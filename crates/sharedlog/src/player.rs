//! A subscriber of a log: delivers every entry once, in order, without blocking on crashed writers.
//!
//! It reads ahead on all chains in parallel, up to `window` positions beyond the last delivered one, and never beyond a
//! tail that it has learned. A position that remains unwritten is filled after a wait
//! ([`Client::read_many`](crate::client::Client::read_many) does both). It skips junk and the second entry of a stamp
//! ([`Duplicates`]).
//!
//! The consumer pulls entries with [`Player::take`]. A consumer that stops pulling stops the reads (backpressure).

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Error, LogReply};
use crate::duplicates::Duplicates;
use crate::limits::ROW_MAX;
use crate::{Data, Position, PositionRun};

/// Configuration of a player.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum positions read ahead of the consumer.
    pub window: usize,
    /// Interval between tail queries while the player is at the tail.
    pub poll: Duration,
    /// How long a position may remain unwritten after it was handed out, before it is filled.
    pub wait: Duration,
}

/// An effect for the driver to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read consecutive positions and fill each unwritten one after the wait; [`Player::read`] follows.
    Read {
        /// The positions to read.
        run: PositionRun,
        /// Remaining wait, counted from when the player learned that the positions were handed out. So it waits once
        /// for all positions of a dead writer, not once for each.
        wait: Duration,
    },
    /// Query the tail; [`Player::tail`] follows.
    Tail,
    /// Call [`Player::timer`] at this time.
    SetTimer(Monotonic),
}

/// An item delivered to the consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The next entry of the log.
    Entry {
        /// Position of the entry.
        position: Position,
        /// The stamp and the records.
        data: Data,
    },
    /// The entry was lost, as declared by an operator. Later entries follow.
    Lost {
        /// Position of the lost entry.
        position: Position,
    },
    /// The next positions were trimmed: nothing is readable below the mark. The consumer must load a snapshot at or
    /// above the mark, with its deduplication state.
    Trimmed {
        /// The first position that may be readable.
        mark: Position,
    },
}

const KNOWN_TAILS_MAX: usize = 64;
/// While it is behind, a read covers at least the window divided by this.
const SHARE: usize = 4;

/// A subscriber of a log.
#[derive(Debug)]
pub struct Player {
    config: Config,
    /// Positions below were delivered or skipped.
    next: Position,
    /// Highest known tail: positions below were handed out.
    tail: Position,
    /// Known tails, each with the time at which it was learned.
    known_tails: VecDeque<(Position, Monotonic)>,
    asks_tail: bool,
    /// Time of the next tail query.
    poll_at: Option<Monotonic>,
    /// The time of the last [`Action::SetTimer`].
    timer: Option<Monotonic>,
    /// Outcomes read ahead; `None` while the read is in flight.
    ahead: BTreeMap<Position, Option<LogReply>>,
    duplicates: Duplicates,
    actions: Vec<Action>,
}

impl Player {
    /// Creates a player that starts at `next`, with the deduplication state of the entries before it.
    #[must_use]
    pub fn new(config: Config, next: Position, duplicates: Duplicates) -> Self {
        Self {
            config,
            next,
            tail: next,
            known_tails: VecDeque::new(),
            asks_tail: false,
            poll_at: None,
            timer: None,
            ahead: BTreeMap::new(),
            duplicates,
            actions: Vec::new(),
        }
    }

    /// Positions below were delivered or skipped. A snapshot consists of this position, [`Player::duplicates`] and the
    /// consumer's state.
    #[must_use]
    pub fn next(&self) -> Position {
        self.next
    }

    /// The appends seen before [`Player::next`].
    #[must_use]
    pub fn duplicates(&self) -> &Duplicates {
        &self.duplicates
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Starts the player, or makes it query the tail at once because there may be new entries.
    pub fn nudge(&mut self, now: Monotonic) {
        self.poll_at = None;
        self.look(now);
    }

    /// Returns the next delivery, if it has been read.
    pub fn take(&mut self, now: Monotonic) -> Option<Delivery> {
        let mut taken = None;
        while taken.is_none() {
            let Some(answer) = self.ahead.get_mut(&self.next).and_then(Option::take) else { break };
            let position = self.next;
            match answer {
                LogReply::Entry(data) => {
                    self.pass();
                    if self.duplicates.is_first(data.stamp, position) {
                        taken = Some(Delivery::Entry { position, data });
                    }
                }
                LogReply::Trimmed { mark } if mark > position => {
                    taken = Some(Delivery::Trimmed { mark });
                    self.ahead.insert(position, Some(answer));
                    return taken;
                }
                LogReply::Lost => {
                    self.pass();
                    taken = Some(Delivery::Lost { position });
                }
                // Junk, or trimmed individually.
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

    /// Handles the outcome of a read. Positions without an answer are read again.
    pub fn read(&mut self, run: PositionRun, outcome: Result<LogReply, Error>, now: Monotonic) {
        let answers = match outcome {
            Ok(LogReply::Range(answers)) => answers,
            Err(Error::BeyondTail { tail }) => {
                // Positions handed out by a replaced sequencer no longer count.
                run.positions().for_each(|position| {
                    self.ahead.remove(&position);
                });
                self.tail = self.tail.min(tail.max(self.next));
                self.known_tails.retain(|(known, _)| *known <= self.tail);
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

    /// Remaining wait for a position.
    fn wait_for(&self, position: Position, now: Monotonic) -> Duration {
        let learned_at = self.known_tails.iter().find(|(tail, _)| position < *tail).map_or(now, |(_, at)| *at);
        Duration(self.config.wait.0.saturating_sub(now.0.saturating_sub(learned_at.0)))
    }

    /// Records a newly learned tail. If the list is full, the newest tail is replaced, and its positions are waited for
    /// from now on.
    fn note_tail(&mut self, tail: Position, now: Monotonic) {
        if tail > self.tail {
            self.tail = tail;
            if self.known_tails.len() >= KNOWN_TAILS_MAX {
                self.known_tails.pop_back();
            }
            self.known_tails.push_back((tail, now));
        }
    }

    /// Handles the outcome of a tail query.
    pub fn tail(&mut self, outcome: Result<Position, Error>, now: Monotonic) {
        self.asks_tail = false;
        self.poll_at = Some(now + self.config.poll);
        if let Ok(tail) = outcome {
            self.note_tail(tail, now);
        }
        self.look(now);
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        self.timer = None;
        self.look(now);
    }

    /// Starts the reads that the window allows, and queries the tail once every position below it is being read.
    fn look(&mut self, now: Monotonic) {
        let end = Position(self.next.0.saturating_add(self.config.window as u64)).min(self.tail);
        while self.known_tails.front().is_some_and(|(known, _)| *known <= self.next) {
            self.known_tails.pop_front();
        }
        // If the tail moved back, positions above it are not read and are not in `ahead`.
        let is_vacant = |position: &Position| !self.ahead.contains_key(position);
        let vacant: Vec<Position> = (self.next.0..end.0).map(Position).filter(is_vacant).collect();
        // While it is behind, it waits until several positions can be read together.
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

    /// Starts reads; consecutive positions with the same wait share one.
    fn begin_reads(&mut self, positions: &[Position], now: Monotonic) {
        let mut reads: Vec<(PositionRun, Duration)> = Vec::new();
        for position in positions.iter().copied() {
            self.ahead.insert(position, None);
            let wait = self.wait_for(position, now);
            let follows = |run: &PositionRun| run.position(run.count as u64) == position && run.count < ROW_MAX;
            match reads.last_mut().filter(|(run, waits)| follows(run) && *waits == wait) {
                Some((run, _)) => run.count += 1,
                None => reads.push((PositionRun::of(position, 1), wait)),
            }
        }
        self.actions.extend(reads.into_iter().map(|(run, wait)| Action::Read { run, wait }));
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        assert!(self.ahead.len() <= self.config.window, "read-ahead exceeds the window");
        assert!(
            self.ahead.first_key_value().is_none_or(|(first, _)| *first >= self.next),
            "no outcome below the next position remains"
        );
    }
}

#[cfg(test)]
mod tests;
