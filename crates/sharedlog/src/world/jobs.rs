//! Appends that are made sooner or later, by one process or by several, each under one stamp.

use base::Duration;
use base::canary::{Bug, planted};
use bytes::Bytes;

use super::World;
use super::clients::Call;
use crate::client::{Answer, Error, Stamped};
use crate::{Batch, ClientId, Position, Stamp};

/// How long a client tries to find out where the log ends before it appends.
const AWARE_IN: Duration = Duration::from_millis(60);

/// Of a million clients so many name nothing that no attempt lies below.
const CARELESS: u64 = 100_000;

/// An append, until it is known to be made, or never to be.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) stamp: Stamp,
    pub(super) batch: Batch,
    /// One more than the highest position of an append that had ended before its first attempt.
    floor: Position,
    /// No attempt lies below this, as far as its client can know.
    least: Position,
    /// What its attempts name; none, of a client that doesn't care.
    pub(super) since: Option<Position>,
    /// More than one process may have appended it.
    pub(super) contested: bool,
    pub(super) under_way: u32,
    pub(super) is_done: bool,
    /// Given up, and surely not made.
    pub(super) is_given_up: bool,
    /// Whether it was made can't be told any more.
    pub(super) is_forgotten: bool,
}

impl Job {
    /// Nobody tries it again.
    pub(super) fn has_ended(&self) -> bool {
        self.is_done || self.is_given_up || self.is_forgotten
    }
}

impl World {
    /// Another process has to append what one may have appended.
    pub(super) fn retry_in_doubt(&mut self, job: usize) {
        let of = &mut self.clients.jobs[job];
        of.contested = true;
        self.clients.waiting.push(job);
    }

    /// A client that knows nothing of the log asks where it ends before it appends, as the client library does.
    pub(super) fn append_unaware(&mut self, id: u32) {
        let (now, token, floor) = (self.clock(), self.token(), self.checks.highest_complete());
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.calls.insert(token, Call::TailFirst { floor });
        process.client.tail(token, now + AWARE_IN, now);
        self.settle_client(id);
    }

    /// It hears of a tail: and has it that something is held just before it, since a tail alone may go back.
    pub(super) fn tail_first(&mut self, id: u32, outcome: &Result<Answer, Error>) {
        let (now, token) = (self.clock(), self.token());
        match outcome {
            Ok(Answer::Tail(tail)) if tail.0 > 0 && !planted(Bug::TailNamed) => {
                let Some(process) = self.clients.processes.get_mut(&id) else { return };
                process.calls.insert(token, Call::LastFirst { tail: *tail });
                let wait = Some(Duration::from_millis(5));
                process.client.read(token, Position(tail.0 - 1), wait, now + AWARE_IN, now);
                self.settle_client(id);
            }
            Ok(Answer::Tail(tail)) => self.new_append(id, Some(*tail)),
            _ => self.new_append(id, Some(Position(0))),
        }
    }

    /// It has read what lies before the tail.
    pub(super) fn last_first(&mut self, id: u32, tail: Position, outcome: &Result<Answer, Error>) {
        let is_held = match outcome {
            Ok(Answer::Entry(_) | Answer::Junk | Answer::Trimmed { .. } | Answer::Lost) => true,
            Ok(_) | Err(_) => false,
        };
        self.count(if is_held { "appends after what is held" } else { "appends after nothing that is held" });
        self.new_append(id, Some(if is_held { tail } else { Position(0) }));
    }

    /// An append whose client has found out from where on its attempts lie, or knows of one that has just ended.
    pub(super) fn new_append(&mut self, id: u32, least: Option<Position>) {
        let number = self.clients.jobs.len() as u64;
        // A few clients in the log's eyes, each with some appends under way.
        let stamp = Stamp { client: ClientId(1 + number % 2), sequence: 1 + number / 2 };
        let batch = Batch::of(&[Bytes::from(number.to_be_bytes().to_vec())]).expect("it is small");
        let floor = self.checks.highest_complete().map_or(Position(0), Position::next);
        let least = least.unwrap_or(floor);
        let since = (!self.random.chance(CARELESS)).then_some(least);
        if since.is_none() {
            self.checks.careless(stamp);
        }
        self.clients.jobs.push(Job {
            stamp,
            batch,
            floor,
            least,
            since,
            contested: false,
            under_way: 0,
            is_done: false,
            is_given_up: false,
            is_forgotten: false,
        });
        self.attempt(id, number as usize);
    }

    pub(super) fn attempt(&mut self, id: u32, job: usize) {
        let (now, token) = (self.clock(), self.token());
        let patience = if self.is_healed { 500 } else { 10 + self.random.below(100) };
        let of = &mut self.clients.jobs[job];
        if of.is_done && !of.contested || of.is_forgotten {
            return;
        }
        of.under_way += 1;
        let (batch, stamp, since) = (of.batch.clone(), of.stamp, of.since);
        let is_open = |job: &&Job| job.stamp.client == stamp.client && !job.has_ended();
        let oldest = self.clients.jobs.iter().filter(is_open).map(|job| job.stamp.sequence).min();
        let stamped = Stamped { stamp, oldest_open: oldest.unwrap_or(stamp.sequence).min(stamp.sequence) };
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.calls.insert(token, Call::Append { job });
        process.client.append(token, batch, Some(stamped), since, now + Duration::from_millis(patience), now);
        self.settle_client(id);
    }

    pub(super) fn append_ended(&mut self, job: usize, outcome: Result<Answer, Error>) -> Result<(), String> {
        let retries = self.is_healed || self.random.chance(700_000);
        let highest = self.given_out.values().copied().max().unwrap_or_default();
        let of = &mut self.clients.jobs[job];
        of.under_way -= 1;
        match outcome {
            Ok(Answer::Appended(position)) => {
                of.is_done = true;
                let (stamp, batch) = (of.stamp, of.batch.clone());
                // One that is tried again may lie where an earlier attempt has put it, or has its place from that: it
                // began with the first.
                let floor = of.floor.0.checked_sub(1).map(Position);
                if position < of.least {
                    return Err(format!("an append lies at {position}, and no attempt was to lie below {}", of.least));
                }
                self.count("appends");
                self.checks.appended(stamp, batch, position, floor)
            }
            Err(Error::Unknown { .. }) => {
                self.count("appends in doubt");
                self.retry_in_doubt(job);
                Ok(())
            }
            Err(Error::OutsideWindow { .. }) => {
                self.count("appends outside their window");
                self.clients.waiting.push(job);
                Ok(())
            }
            Err(Error::Forgotten { position }) => {
                of.is_forgotten = true;
                self.count("appends forgotten");
                self.check_forgotten(position)
            }
            Err(Error::TooLate { since, known_from }) => {
                if of.since != Some(since) || since >= known_from || known_from > highest {
                    return Err(format!("{since} is called too late for an append that names {:?}", of.since));
                }
                of.is_forgotten = true;
                self.count("appends tried too late");
                Ok(())
            }
            Err(Error::Decided) if of.has_ended() => {
                self.count("appends decided meanwhile");
                Ok(())
            }
            Err(Error::OutOfTime) => {
                if retries || of.contested {
                    self.clients.waiting.push(job);
                } else {
                    of.is_given_up = true;
                }
                self.count("appends that failed");
                Ok(())
            }
            other => Err(format!("an append came to {other:?}")),
        }
    }
}
