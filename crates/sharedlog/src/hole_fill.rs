//! Fills positions that were handed out and never written, before a reader reaches them (CORFU, section 3.2).
//!
//! A writer that crashes leaves its positions unwritten. This machine runs beside the sequencer, which knows the
//! positions that it handed out. It queries the tail periodically and scans the positions below any tail older than a
//! limit. Units list their holes from memory, many in one reply, and only those are filled. It is idle while there are
//! no holes. Several instances are safe: a fill never changes a written position.

use std::collections::{BTreeSet, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Error, LogReply};
use crate::limits::HOLES_MAX;
use crate::unit::{Reply, Request};
use crate::{AskId, Position, Projection, ProjectionEpoch, Stripe, UnitId};

/// Configuration of the hole fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Positions handed out longer ago than this are filled.
    pub age: Duration,
    /// Interval between tail queries, and timeout before a request is repeated.
    pub again: Duration,
    pub window: usize,
}

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Query the tail; [`HoleFill::tail`] follows.
    Tail,
    /// Send a request to a unit; [`HoleFill::answered`] may follow.
    Ask {
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: Request,
    },
    /// Fill a position; [`HoleFill::filled`] follows.
    Fill(Position),
    /// Call [`HoleFill::timer`] at this time.
    SetTimer(Monotonic),
}

const KNOWN_TAILS_MAX: usize = 64;

/// Fills the holes of one projection's sequencer and of its predecessors.
#[derive(Clone, Debug)]
pub struct HoleFill {
    config: Config,
    projection: Projection,
    /// Positions below are filled.
    done: Position,
    /// Positions below were handed out.
    handed_out: Position,
    /// Known tails, each with the time at which it was learned.
    known_tails: VecDeque<(Position, Monotonic)>,
    asks_tail: bool,
    /// The scan ends here.
    until: Position,
    /// Chains to scan, each with the next position and the end.
    chains: Vec<(Stripe, UnitId, Position, Position)>,
    asked: Option<AskId>,
    last_ask: AskId,
    /// Holes to fill, and holes being filled.
    holes: VecDeque<Position>,
    filling: BTreeSet<Position>,
    again_at: Monotonic,
    actions: Vec<Action>,
}

impl HoleFill {
    /// Starts with the positions handed out by earlier sequencers.
    #[must_use]
    pub fn begin(projection: Projection, config: Config, now: Monotonic) -> Self {
        let done = projection.first();
        let mut fill = Self {
            config,
            handed_out: projection.start,
            projection,
            done,
            known_tails: VecDeque::new(),
            asks_tail: false,
            until: done,
            chains: Vec::new(),
            asked: None,
            last_ask: AskId(0),
            holes: VecDeque::new(),
            filling: BTreeSet::new(),
            again_at: now,
            actions: Vec::new(),
        };
        fill.ask_tail(now);
        fill
    }

    /// The epoch of its projection.
    #[must_use]
    pub fn epoch(&self) -> ProjectionEpoch {
        self.projection.epoch
    }

    /// Records that the sequencer has handed out every position below `before`.
    pub fn handed_out(&mut self, before: Position, now: Monotonic) {
        self.handed_out = self.handed_out.max(before);
        if self.again_at == Monotonic::NEVER && self.done < self.handed_out {
            self.again_at = now + self.config.age;
            self.actions.push(Action::SetTimer(self.again_at));
        }
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Handles the outcome of a tail query.
    pub fn tail(&mut self, outcome: Result<Position, Error>, now: Monotonic) {
        self.asks_tail = false;
        if let Ok(tail) = outcome
            && self.known_tails.back().is_none_or(|(known, _)| *known < tail)
        {
            if self.known_tails.len() >= KNOWN_TAILS_MAX {
                self.known_tails.pop_back();
            }
            self.known_tails.push_back((tail, now));
        }
        self.go_on(now);
    }

    /// Handles the reply of a unit.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        if self.asked != Some(ask) {
            return;
        }
        // After any other reply the request is repeated later.
        let (Reply::Holes(holes), Some((_, _, from, _))) = (reply, self.chains.last_mut()) else { return };
        self.asked = None;
        match holes.last() {
            Some(last) if holes.len() >= HOLES_MAX => *from = last.next(),
            _ => {
                self.chains.pop();
            }
        }
        self.holes.extend(holes);
        self.go_on(now);
    }

    /// Handles the outcome of a fill.
    pub fn filled(&mut self, position: Position, outcome: &Result<LogReply, Error>, now: Monotonic) {
        if !self.filling.remove(&position) {
            return;
        }
        let is_again = matches!(outcome, Err(Error::OutOfTime | Error::Damaged { .. }));
        if is_again && (self.done..self.until).contains(&position) {
            self.holes.push_back(position);
        }
        self.go_on(now);
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        if self.again_at > now {
            self.actions.push(Action::SetTimer(self.again_at));
        } else if self.done < self.handed_out {
            self.ask_tail(now);
        } else {
            self.again_at = Monotonic::NEVER;
        }
    }

    fn ask_tail(&mut self, now: Monotonic) {
        self.again_at = now + self.config.again;
        self.asked = None;
        if !self.asks_tail {
            self.asks_tail = true;
            self.actions.push(Action::Tail);
        }
        self.actions.push(Action::SetTimer(self.again_at));
        self.go_on(now);
    }

    /// Scans positions that are old enough, chain by chain, and fills the holes found.
    fn go_on(&mut self, now: Monotonic) {
        while self.filling.len() < self.config.window
            && let Some(position) = self.holes.pop_front()
        {
            if self.filling.insert(position) {
                self.actions.push(Action::Fill(position));
            }
        }
        if self.chains.is_empty() && self.holes.is_empty() && self.filling.is_empty() {
            self.done = self.done.max(self.until);
            self.scan_aged(now);
        }
        // Limits the scan to the rate of the fills.
        if self.asked.is_none()
            && self.holes.is_empty()
            && let Some((stripe, unit, from, to)) = self.chains.last().copied()
        {
            self.last_ask.0 += 1;
            self.asked = Some(self.last_ask);
            let request = Request::Holes { epoch: self.projection.epoch, stripe, from, to };
            self.actions.push(Action::Ask { ask: self.last_ask, unit, request });
        }
    }

    /// Starts to scan the positions that have become old enough.
    fn scan_aged(&mut self, now: Monotonic) {
        while let Some((tail, at)) = self.known_tails.front().copied()
            && at + self.config.age <= now
        {
            self.known_tails.pop_front();
            self.until = self.until.max(tail);
        }
        let (done, until) = (self.done, self.until);
        for (extent, end) in self.projection.bounded() {
            let (from, to) = (extent.from.max(done), end.unwrap_or(until).min(until));
            let chains = extent.chains.iter().enumerate().filter(|_| from < to);
            let asked = chains.filter_map(|(at, chain)| Some((extent.stripe(at), *chain.last()?, from, to)));
            self.chains.extend(asked);
        }
    }
}

#[cfg(test)]
mod tests;
