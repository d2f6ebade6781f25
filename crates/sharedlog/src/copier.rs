//! Filling a new unit with what older chains hold (guarantee 20).
//!
//! A new unit stands in the last extent from its beginning; in those before it stands once it is whole. Many positions
//! at one time, what the chain holds is read: at its tail, so that the whole chain holds it, and with a fill where
//! nothing is. That is decided for ever, so it is copied as it is, in whatever epoch. The copier only makes units
//! whole. Whether one is, it says itself when it is sealed ([`recovery`](crate::recovery)): a copier that dies, or two
//! at once, do no harm.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Monotonic};

use crate::client::{Answer, Error};
use crate::limits::{MANY_BYTES_MAX, MANY_MAX};
use crate::recovery::Healing;
use crate::unit::{Command, Reply, Request};
use crate::{AskId, Entry, Kept, Position, Run, UnitId};

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
    /// Read these positions, and fill at once those where nothing is
    /// ([`Client::read_many`](crate::client::Client::read_many), which waits for each of them, for no time);
    /// [`Copier::read`] follows.
    Read(Run),
    /// Call [`Copier::timer`] at this time.
    SetTimer(Monotonic),
    /// It has come to its end: every unit says that it is whole, or one could not be made so. If units are whole, a
    /// recovery has them stand where they should.
    Done {
        /// Whether all are.
        is_whole: bool,
    },
}

/// How a copier works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Runs of positions that are read or copied at one time, at most: each is of [`MANY_MAX`] positions or fewer, and
    /// has [`MANY_BYTES_MAX`] of values or a single one.
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
    /// What reads and copies have left over.
    left: VecDeque<Run>,
    /// Runs under way, by their first positions, and what the unit is told once they are read.
    under_way: BTreeMap<Position, (Run, Option<Command>)>,
    /// What was asked, by the run's first position; with none: how far the unit is.
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
            Some(_) => {
                while self.under_way.len() < self.config.window
                    && let Some(run) = self.left.pop_front().or_else(|| self.next_run(&healing))
                {
                    self.under_way.insert(run.from, (run, None));
                    self.actions.push(Action::Read(run));
                }
                if self.under_way.is_empty() {
                    // All was copied, by what we know. What does the unit say?
                    self.next = None;
                    return self.go_on(now);
                }
            }
        }
        self.actions.push(Action::SetTimer(self.again_at));
    }

    /// The positions that come next.
    fn next_run(&mut self, healing: &Healing) -> Option<Run> {
        let next = self.next.filter(|next| *next < healing.to)?;
        let run = healing.stripe.run(next, healing.to, MANY_MAX);
        let stripe = healing.stripe;
        self.next = Some(stripe.position(stripe.before(run.position(run.count as u64 - 1).next())));
        Some(run)
    }

    /// A read has ended.
    pub fn read(&mut self, run: Run, outcome: Result<Answer, Error>, now: Monotonic) {
        let (Some(healing), Some((of, None))) = (self.healings.last().copied(), self.under_way.get(&run.from)) else {
            return;
        };
        if *of != run {
            return;
        }
        let command = match outcome {
            Ok(Answer::Row(answers)) if answers.contains(&Answer::Lost) => return self.end(false),
            Err(Error::Conflict { .. }) => return self.end(false),
            Ok(Answer::Row(answers)) => command(run, answers),
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

    fn leave(&mut self, left: Run) {
        if left.count > 0 {
            self.left.push_back(left);
        }
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
        self.actions.push(Action::Ask { ask: self.last_ask, unit, request: Request::Command(command) });
    }

    fn end(&mut self, is_whole: bool) {
        self.has_ended = true;
        self.actions.push(Action::Done { is_whole });
    }
}

/// What a unit is told of the first positions of a run, and of how many; none if there is nothing to be told yet.
fn command(run: Run, answers: Vec<Answer>) -> Option<(Command, usize)> {
    let (mut copies, mut bytes) = (Vec::new(), 0);
    for (position, answer) in run.positions().zip(answers) {
        let kept = match answer {
            Answer::Entry(data) => Kept::Entry(Entry::Data(data)),
            Answer::Junk => Kept::Entry(Entry::Junk),
            Answer::Trimmed { mark } if mark > position && copies.is_empty() => {
                let below = run.positions().take_while(|position| *position < mark).count();
                return Some((Command::Trim { epoch: None, before: mark }, below));
            }
            Answer::Trimmed { mark } if mark <= position => Kept::Trimmed,
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
