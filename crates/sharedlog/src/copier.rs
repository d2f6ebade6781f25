//! Copies the entries of older chains to a new unit (guarantee 20).
//!
//! A new unit is in the last extent from the start. It joins older extents once it is complete. The copier reads many
//! positions at a time from the chain's tail, so that the whole chain holds them, and fills holes. A position read this
//! way never changes, so it can be copied in any epoch. The copier only copies; the unit itself reports whether it is
//! complete when it is sealed ([`recovery`](crate::recovery)). Therefore a copier may crash, and several may run
//! concurrently.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Error, LogReply};
use crate::limits::{MANY_BYTES_MAX, MANY_MAX};
use crate::recovery::Healing;
use crate::unit::{Command, Reply, Request};
use crate::{AskId, Entry, Kept, Position, PositionRun, UnitId};

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to a unit; [`Copier::answered`] may follow.
    Ask {
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: Request,
    },
    /// Read these positions and fill unwritten ones immediately
    /// ([`Client::read_many`](crate::client::Client::read_many) with a wait of zero for each); [`Copier::read`]
    /// follows.
    Read(PositionRun),
    /// Call [`Copier::timer`] at this time.
    SetTimer(Monotonic),
    /// The copier has ended: every unit reports that it is complete, or one could not be completed. A recovery adds
    /// complete units to their chains.
    Done {
        /// Whether every unit is complete.
        is_whole: bool,
    },
}

/// Configuration of a copier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum runs read or copied concurrently. A run has at most [`MANY_MAX`] positions, and [`MANY_BYTES_MAX`] of
    /// values or a single one.
    pub window: usize,
    /// Timeout before a request is repeated.
    pub again: Duration,
    /// Consecutive failures after which it ends.
    pub failures: u32,
}

/// Copies the stripes listed by healings, one healing after the other.
#[derive(Clone, Debug)]
pub struct Copier {
    config: Config,
    healings: Vec<Healing>,
    /// Next position to copy, once the unit has reported how far it is.
    next: Option<Position>,
    /// Runs to repeat, because a read or a copy covered only a part.
    left: VecDeque<PositionRun>,
    /// Runs in progress by first position, with the command for the unit once they were read.
    under_way: BTreeMap<Position, (PositionRun, Option<Command>)>,
    /// Pending requests by the run's first position; `None` asks for the unit's progress.
    asks: BTreeMap<AskId, Option<Position>>,
    last_ask: AskId,
    failures: u32,
    again_at: Monotonic,
    has_ended: bool,
    actions: Vec<Action>,
}

impl Copier {
    #[must_use]
    pub fn begin(mut healings: Vec<Healing>, config: Config, now: Monotonic) -> Self {
        healings.reverse();
        let mut copier = Self {
            config,
            healings,
            next: None,
            left: VecDeque::new(),
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

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn go_on(&mut self, now: Monotonic) {
        let Some(healing) = self.healings.last().copied() else { return self.end(true) };
        self.again_at = now + self.config.again;
        match self.next {
            None => {
                let stripes = vec![healing.stripe];
                self.ask(healing.unit, None, Command::AssignStripes { stripes });
            }
            Some(_) => {
                while self.under_way.len() < self.config.window
                    && let Some(run) = self.left.pop_front().or_else(|| self.next_run(&healing))
                {
                    self.under_way.insert(run.from, (run, None));
                    self.actions.push(Action::Read(run));
                }
                if self.under_way.is_empty() {
                    // Everything was copied as far as is known. Ask the unit to confirm.
                    self.next = None;
                    return self.go_on(now);
                }
            }
        }
        self.actions.push(Action::SetTimer(self.again_at));
    }

    /// The next run of the current healing.
    fn next_run(&mut self, healing: &Healing) -> Option<PositionRun> {
        let next = self.next.filter(|next| *next < healing.to)?;
        let run = healing.stripe.run(next, healing.to, MANY_MAX);
        let stripe = healing.stripe;
        self.next = Some(stripe.position(stripe.before(run.position(run.count as u64 - 1).next())));
        Some(run)
    }

    /// Handles the outcome of a read.
    pub fn read(&mut self, run: PositionRun, outcome: Result<LogReply, Error>, now: Monotonic) {
        let (Some(healing), Some((of, None))) = (self.healings.last().copied(), self.under_way.get(&run.from)) else {
            return;
        };
        if *of != run {
            return;
        }
        let command = match outcome {
            Ok(LogReply::Range(answers)) if answers.contains(&LogReply::Lost) => return self.end(false),
            Err(Error::Conflict { .. }) => return self.end(false),
            Ok(LogReply::Range(answers)) => command(run, answers),
            _ => None,
        };
        let Some((command, count)) = command else {
            return self.failed(now, |copier| copier.actions.push(Action::Read(run)));
        };
        self.failures = 0;
        self.leave(run.after(count));
        self.under_way.insert(run.from, (run.first(count), Some(command.clone())));
        self.ask(healing.unit, Some(run.from), command);
        self.again_at = now + self.config.again;
    }

    fn leave(&mut self, left: PositionRun) {
        if left.count > 0 {
            self.left.push_back(left);
        }
    }

    /// Handles the reply of a unit.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        let Some(position) = self.asks.remove(&ask) else { return };
        let Some(healing) = self.healings.last().copied() else { return };
        match (position, reply) {
            (None, Reply::StripesAssigned(report)) if self.next.is_none() => {
                let missing = report.whole.iter().find(|(stripe, _)| *stripe == healing.stripe);
                match missing {
                    Some((_, missing)) if *missing >= healing.to => {
                        self.healings.pop();
                    }
                    Some((_, missing)) => self.next = Some(*missing),
                    None => return self.end(false),
                }
            }
            // Positions below the unit's trim mark need no copy.
            (Some(from), Reply::Done) => {
                self.under_way.remove(&from);
            }
            (Some(from), Reply::Many(replies)) if !replies.is_empty() => {
                if !replies.iter().all(|reply| matches!(reply, Reply::Written | Reply::Trimmed { .. })) {
                    return self.end(false);
                }
                if let Some((run, _)) = self.under_way.remove(&from) {
                    self.leave(run.after(replies.len()));
                }
            }
            (_, Reply::Unknown | Reply::Damaged | Reply::Occupied { .. }) => return self.end(false),
            _ => return,
        }
        self.failures = 0;
        self.go_on(now);
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        if self.has_ended {
            return;
        }
        if now < self.again_at {
            return self.actions.push(Action::SetTimer(self.again_at));
        }
        // Reads have their own deadline; copy requests are repeated.
        self.failed(now, |copier| {
            let Some(healing) = copier.healings.last().copied() else { return };
            copier.asks.clear();
            if copier.next.is_none() {
                copier.ask(healing.unit, None, Command::AssignStripes { stripes: vec![healing.stripe] });
            }
            for (from, (_, command)) in copier.under_way.clone() {
                if let Some(command) = command {
                    copier.ask(healing.unit, Some(from), command);
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
        self.actions.push(Action::Ask { ask: self.last_ask, unit, request: Request::Command(command.into()) });
    }

    fn end(&mut self, is_whole: bool) {
        self.has_ended = true;
        self.actions.push(Action::Done { is_whole });
    }
}

/// The command that stores the first answers of a run, and the number of positions it covers. `None` if the first
/// answer is not final.
fn command(run: PositionRun, answers: Vec<LogReply>) -> Option<(Command, usize)> {
    let (mut copies, mut bytes) = (Vec::new(), 0);
    for (position, answer) in run.positions().zip(answers) {
        let kept = match answer {
            LogReply::Entry(data) => Kept::Entry(Entry::Data(data)),
            LogReply::Junk => Kept::Entry(Entry::Junk),
            LogReply::Trimmed { mark } if mark > position && copies.is_empty() => {
                let below = run.positions().take_while(|position| *position < mark).count();
                return Some((Command::Trim { epoch: None, before: mark }, below));
            }
            LogReply::Trimmed { mark } if mark <= position => Kept::Trimmed,
            _ => break,
        };
        bytes += kept.value_bytes();
        if bytes > MANY_BYTES_MAX && !copies.is_empty() {
            break;
        }
        copies.push((position, kept));
    }
    let count = copies.len();
    (count > 0).then_some((Command::CopyMany { copies }, count))
}

#[cfg(test)]
mod tests;
