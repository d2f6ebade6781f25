//! Appends that are made sooner or later, by one process or by several, each under one stamp.

use base::Duration;
use bytes::Bytes;

use super::World;
use super::clients::Call;
use crate::client::{Answer, Error, Stamped};
use crate::{Batch, ClientId, Position, Stamp};

/// An append, until it is known to be made, or never to be.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) stamp: Stamp,
    pub(super) batch: Batch,
    /// No attempt can have come below this.
    floor: Position,
    /// An attempt came to nothing definite: it lies there or after, if at all.
    since: Option<Position>,
    /// More than one process may have appended it.
    pub(super) contested: bool,
    pub(super) under_way: u32,
    pub(super) is_done: bool,
    /// Given up, and surely not made.
    pub(super) is_given_up: bool,
}

impl World {
    /// Another process has to append what one may have appended.
    pub(super) fn retry_in_doubt(&mut self, job: usize) {
        let of = &mut self.clients.jobs[job];
        of.contested = true;
        of.since = Some(of.since.unwrap_or(of.floor).min(of.floor));
        self.clients.waiting.push(job);
    }

    pub(super) fn new_append(&mut self, id: u32) {
        let number = self.clients.jobs.len() as u64;
        // A few clients in the log's eyes, each with some appends under way.
        let stamp = Stamp { client: ClientId(1 + number % 2), sequence: 1 + number / 2 };
        let batch = Batch::of(&[Bytes::from(number.to_be_bytes().to_vec())]).expect("it is small");
        let floor = self.checks.highest_complete().map_or(Position(0), Position::next);
        self.clients.jobs.push(Job {
            stamp,
            batch,
            floor,
            since: None,
            contested: false,
            under_way: 0,
            is_done: false,
            is_given_up: false,
        });
        self.attempt(id, number as usize);
    }

    pub(super) fn attempt(&mut self, id: u32, job: usize) {
        let (now, token) = (self.clock(), self.token());
        let patience = if self.is_healed { 500 } else { 10 + self.random.below(100) };
        let of = &mut self.clients.jobs[job];
        if of.is_done && !of.contested {
            return;
        }
        of.under_way += 1;
        let (batch, stamp, since) = (of.batch.clone(), of.stamp, of.since);
        let is_open = |job: &&Job| job.stamp.client == stamp.client && !job.is_done && !job.is_given_up;
        let oldest = self.clients.jobs.iter().filter(is_open).map(|job| job.stamp.sequence).min();
        let stamped = Stamped { stamp, oldest_open: oldest.unwrap_or(stamp.sequence).min(stamp.sequence) };
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.calls.insert(token, Call::Append { job });
        process.client.append(token, batch, Some(stamped), since, now + Duration::from_millis(patience), now);
        self.settle_client(id);
    }

    pub(super) fn append_ended(&mut self, job: usize, outcome: Result<Answer, Error>) -> Result<(), String> {
        let retries = self.is_healed || self.random.chance(700_000);
        let of = &mut self.clients.jobs[job];
        of.under_way -= 1;
        match outcome {
            Ok(Answer::Appended(position)) => {
                of.is_done = true;
                let (stamp, batch) = (of.stamp, of.batch.clone());
                // One that is tried again may lie where an earlier attempt has put it, or has its place from that: it began with
                // the first.
                let floor = of.floor.0.checked_sub(1).map(Position);
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
                // Of one that is done its client has said so.
                if !self.clients.jobs[job].is_done {
                    self.clients.waiting.push(job);
                }
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
