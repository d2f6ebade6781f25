//! A follower of a log: every entry once, in the log's order, without waiting for anybody who died.
//!
//! It reads ahead, over all chains at once, but no further than its window from what was taken; and no further than a
//! tail that it was told. A position where nothing comes is filled after a wait ([`Client::read`](crate::client::Client::read)
//! does both). Junk is passed over, and so is the second entry of a stamp ([`Duplicates`]).
//!
//! What it delivers is taken from it ([`Player::take`]): who takes nothing has nothing read.

use std::collections::BTreeMap;

use base::{Duration, Monotonic};

use crate::client::{Answer, Error};
use crate::duplicates::Duplicates;
use crate::{Data, Position};

/// How a player reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Positions that it reads ahead of what was taken, at most.
    pub window: usize,
    /// How long it waits at the tail before it asks for it again.
    pub poll: Duration,
}

/// What the driver is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read a position, and fill it after the wait; [`Player::read`] follows.
    Read(Position),
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
    /// What comes next was given up: there is nothing more to be had before the mark. A snapshot that is as new must be
    /// taken instead, with its table of duplicates.
    Trimmed {
        /// The first position that may be there.
        mark: Position,
    },
}

/// A follower of a log.
#[derive(Debug)]
pub struct Player {
    config: Config,
    /// All before was delivered or passed over.
    next: Position,
    /// Positions below are given out, as far as is known.
    tail: Position,
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

    /// A read has ended.
    pub fn read(&mut self, position: Position, outcome: Result<Answer, Error>, now: Monotonic) {
        let Some(slot) = self.ahead.get_mut(&position) else { return };
        match outcome {
            Ok(Answer::Unwritten) => self.again(position),
            Ok(answer) => *slot = Some(answer),
            Err(Error::BeyondTail { tail }) => {
                // What a sequencer gave out that is gone counts no more.
                self.ahead.remove(&position);
                self.tail = self.tail.min(tail.max(self.next));
            }
            Err(_) => self.again(position),
        }
        self.look(now);
    }

    fn again(&mut self, position: Position) {
        self.actions.push(Action::Read(position));
    }

    /// The tail was told, or could not be.
    pub fn tail(&mut self, outcome: Result<Position, Error>, now: Monotonic) {
        self.asks_tail = false;
        self.poll_at = Some(now + self.config.poll);
        if let Ok(tail) = outcome {
            self.tail = self.tail.max(tail);
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
        // What is beyond a tail that went back is not read, and is not in `ahead`.
        for position in (self.next.0..end.0).map(Position) {
            self.ahead.entry(position).or_insert_with(|| {
                self.actions.push(Action::Read(position));
                None
            });
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
