//! Filling a new unit with what older chains hold (guarantee 20).
//!
//! A new unit stands in the last extent from its beginning; in those before it stands once it is whole. Position by
//! position, what the chain holds is read: at its tail, so that the whole chain holds it, and with a fill where nothing is.
//! That is decided for ever, so it is copied as it is, in whatever epoch. The copier only makes units whole. Whether one
//! is, it says itself when it is sealed ([`recovery`](crate::recovery)): a copier that dies, or two at once, do no harm.

use std::collections::BTreeMap;

use base::{Duration, Monotonic};

use crate::client::{Answer, Error};
use crate::recovery::Healing;
use crate::unit::{Command, Reply, Request};
use crate::{AskId, Entry, Kept, Position, UnitId};

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a unit; [`Copier::answered`] may follow.
    Ask {
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: Request,
    },
    /// Read a position, and fill it at once if nothing is there; [`Copier::read`] follows.
    Read(Position),
    /// Call [`Copier::timer`] at this time.
    SetTimer(Monotonic),
    /// It has come to its end: every unit says that it is whole, or one could not be made so. If units are whole, a recovery
    /// has them stand where they should.
    Done {
        /// Whether all are.
        is_whole: bool,
    },
}

/// How a copier works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Positions that are read or copied at one time, at most.
    pub window: usize,
    /// For an answer, before it is asked again.
    pub again: Duration,
    /// Askings in a row that come to nothing before it gives up.
    pub failures: u32,
}

/// Copies what healings need, one after the other.
#[derive(Clone, Debug)]
pub struct Copier {
    config: Config,
    healings: Vec<Healing>,
    /// The healing under way, if the unit has said from where on; else it is asked.
    next: Option<Position>,
    /// Positions under way, and what the unit is told once they are read.
    under_way: BTreeMap<Position, Option<Command>>,
    /// What was asked; with no position: how far the unit is.
    asks: BTreeMap<AskId, Option<Position>>,
    last_ask: AskId,
    failures: u32,
    again_at: Monotonic,
    has_ended: bool,
    actions: Vec<Action>,
}

impl Copier {
    /// Begins.
    #[must_use]
    pub fn begin(mut healings: Vec<Healing>, config: Config, now: Monotonic) -> Self {
        healings.reverse();
        let mut copier = Self {
            config,
            healings,
            next: None,
            under_way: BTreeMap::new(),
            asks: BTreeMap::new(),
            last_ask: AskId(0),
            failures: 0,
            again_at: now,
            has_ended: false,
            actions: Vec::new(),
        };
        copier.go_on(now);
        copier
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether it has come to its end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Asks, reads and copies what is to come next.
    fn go_on(&mut self, now: Monotonic) {
        let Some(healing) = self.healings.last().copied() else { return self.end(true) };
        self.again_at = now + self.config.again;
        match self.next {
            None => {
                let stripes = vec![healing.stripe];
                self.ask(healing.unit, None, Command::Tell { stripes });
            }
            Some(mut next) => {
                while next < healing.to && self.under_way.len() < self.config.window {
                    self.under_way.insert(next, None);
                    self.actions.push(Action::Read(next));
                    next = Position(next.0.saturating_add(healing.stripe.count));
                }
                self.next = Some(next);
                if self.under_way.is_empty() {
                    // All was copied, by what we know. What does the unit say?
                    self.next = None;
                    return self.go_on(now);
                }
            }
        }
        self.actions.push(Action::SetTimer(self.again_at));
    }

    /// A read has ended.
    pub fn read(&mut self, position: Position, outcome: Result<Answer, Error>, now: Monotonic) {
        let (Some(healing), true) = (self.healings.last().copied(), self.under_way.contains_key(&position)) else {
            return;
        };
        let copy = |kept| Command::Copy { position, kept };
        let command = match outcome {
            Ok(Answer::Entry(data)) => copy(Kept::Entry(Entry::Data(data))),
            Ok(Answer::Junk) => copy(Kept::Entry(Entry::Junk)),
            Ok(Answer::Trimmed { mark }) if mark > position => Command::Trim { epoch: None, before: mark },
            Ok(Answer::Trimmed { .. }) => copy(Kept::Trimmed),
            Err(Error::Conflict { .. }) => return self.end(false),
            _ => return self.failed(now, |copier| copier.actions.push(Action::Read(position))),
        };
        self.failures = 0;
        self.under_way.insert(position, Some(command.clone()));
        self.ask(healing.unit, Some(position), command);
        self.again_at = now + self.config.again;
    }

    /// A unit has answered.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        let Some(position) = self.asks.remove(&ask) else { return };
        let Some(healing) = self.healings.last().copied() else { return };
        match (position, reply) {
            (None, Reply::Told(report)) if self.next.is_none() => {
                let missing = report.whole.iter().find(|(stripe, _)| *stripe == healing.stripe);
                match missing {
                    Some((_, missing)) if *missing >= healing.to => {
                        self.healings.pop();
                    }
                    Some((_, missing)) => self.next = Some(*missing),
                    None => return self.end(false),
                }
            }
            // What lies below the unit's mark need not be copied.
            (Some(position), Reply::Written | Reply::Done | Reply::Trimmed { .. }) => {
                self.under_way.remove(&position);
            }
            (_, Reply::Unknown | Reply::Damaged | Reply::Occupied { .. }) => return self.end(false),
            _ => return,
        }
        self.failures = 0;
        self.go_on(now);
    }

    /// The time that [`Action::SetTimer`] named has come.
    pub fn timer(&mut self, now: Monotonic) {
        if self.has_ended {
            return;
        }
        if now < self.again_at {
            return self.actions.push(Action::SetTimer(self.again_at));
        }
        // Reads end by themselves; what was to be copied is asked again.
        self.failed(now, |copier| {
            let Some(healing) = copier.healings.last().copied() else { return };
            copier.asks.clear();
            if copier.next.is_none() {
                copier.ask(healing.unit, None, Command::Tell { stripes: vec![healing.stripe] });
            }
            for (position, command) in copier.under_way.clone() {
                if let Some(command) = command {
                    copier.ask(healing.unit, Some(position), command);
                }
            }
        });
    }

    fn failed(&mut self, now: Monotonic, again: impl Fn(&mut Self)) {
        self.failures += 1;
        if self.failures > self.config.failures {
            return self.end(false);
        }
        again(self);
        self.again_at = now + self.config.again;
        self.actions.push(Action::SetTimer(self.again_at));
    }

    fn ask(&mut self, unit: UnitId, position: Option<Position>, command: Command) {
        self.last_ask.0 += 1;
        self.asks.insert(self.last_ask, position);
        self.actions.push(Action::Ask { ask: self.last_ask, unit, request: Request::Command(command) });
    }

    fn end(&mut self, is_whole: bool) {
        self.has_ended = true;
        self.actions.push(Action::Done { is_whole });
    }
}

#[cfg(test)]
mod tests;
