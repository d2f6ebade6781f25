//! Fills positions that were given out and never written, before a reader comes to them (CORFU, section 3.2).
//!
//! A writer that dies leaves the positions that it took. This machine goes with the sequencer, which knows what it gave
//! out. It asks for the tail every now and then, and scans what lies below a tail that is old enough. Units list their
//! holes from memory, many in one answer, and only those are filled. It rests while all that was given out is filled.
//! More than one at a time do no harm: a fill changes nothing that is decided.

use std::collections::{BTreeSet, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Answer, Error};
use crate::limits::HOLES_MAX;
use crate::unit::{Reply, Request};
use crate::{AskId, Position, Projection, ProjectionEpoch, Stripe, UnitId};

/// How fast holes are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What was given out so long ago is filled.
    pub age: Duration,
    /// Between two requests for the tail, and for an answer before it is asked again.
    pub again: Duration,
    /// Positions that are filled at one time, at most.
    pub window: usize,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask for the tail; [`HoleFill::tail`] follows.
    Tail,
    /// Ask a unit; [`HoleFill::answered`] may follow.
    Ask {
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: Request,
    },
    /// Fill a position; [`HoleFill::filled`] follows.
    Fill(Position),
    /// Call [`HoleFill::timer`] at this time.
    SetTimer(Monotonic),
}

/// Tails that are remembered with their times, at most.
const TOLD_MAX: usize = 64;

/// Fills the holes of one projection's sequencer, and of those before it.
#[derive(Clone, Debug)]
pub struct HoleFill {
    config: Config,
    projection: Projection,
    /// All before is filled.
    done: Position,
    /// All before was given out.
    given_out: Position,
    /// Tails, and when they were told.
    told: VecDeque<(Position, Monotonic)>,
    asks_tail: bool,
    /// What is looked through: up to there.
    until: Position,
    /// Chains that are to be asked yet, each with the first position that is asked for, and the end.
    chains: Vec<(Stripe, UnitId, Position, Position)>,
    asked: Option<AskId>,
    last_ask: AskId,
    /// Holes that are to be filled, and those that are being filled.
    holes: VecDeque<Position>,
    filling: BTreeSet<Position>,
    again_at: Monotonic,
    actions: Vec<Action>,
}

impl HoleFill {
    /// Begins with what earlier sequencers gave out.
    #[must_use]
    pub fn begin(projection: Projection, config: Config, now: Monotonic) -> Self {
        let done = projection.first();
        let mut fill = Self {
            config,
            given_out: projection.start,
            projection,
            done,
            told: VecDeque::new(),
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

    /// The sequencer has given out all before a position.
    pub fn given_out(&mut self, before: Position, now: Monotonic) {
        self.given_out = self.given_out.max(before);
        if self.again_at == Monotonic::NEVER && self.done < self.given_out {
            self.again_at = now + self.config.age;
            self.actions.push(Action::SetTimer(self.again_at));
        }
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The tail was told, or could not be.
    pub fn tail(&mut self, outcome: Result<Position, Error>, now: Monotonic) {
        self.asks_tail = false;
        if let Ok(tail) = outcome
            && self.told.back().is_none_or(|(told, _)| *told < tail)
        {
            if self.told.len() >= TOLD_MAX {
                self.told.pop_back();
            }
            self.told.push_back((tail, now));
        }
        self.go_on(now);
    }

    /// A unit has answered.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        if self.asked != Some(ask) {
            return;
        }
        // Whatever else it says, it is asked again in a while.
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

    /// A fill has ended.
    pub fn filled(&mut self, position: Position, outcome: &Result<Answer, Error>, now: Monotonic) {
        if !self.filling.remove(&position) {
            return;
        }
        let is_again = matches!(outcome, Err(Error::OutOfTime | Error::Damaged { .. }));
        if is_again && (self.done..self.until).contains(&position) {
            self.holes.push_back(position);
        }
        self.go_on(now);
    }

    /// The time that [`Action::SetTimer`] named has come.
    pub fn timer(&mut self, now: Monotonic) {
        if self.again_at > now {
            self.actions.push(Action::SetTimer(self.again_at));
        } else if self.done < self.given_out {
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

    /// Scans what is old enough, chain by chain, and fills what is found.
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
            self.look_through(now);
        }
        // No more is asked for than can be filled.
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

    /// Begins with what has become old enough meanwhile.
    fn look_through(&mut self, now: Monotonic) {
        while let Some((tail, at)) = self.told.front().copied()
            && at + self.config.age <= now
        {
            self.told.pop_front();
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
