//! Appends that are retried until they succeed or are abandoned, by one process or several, each with one stamp.

use std::collections::BTreeSet;

use base::Duration;
use bytes::Bytes;

use super::World;
use super::clients::Call;
use crate::client::{Error, LogReply};
use crate::{Batch, ClientId, Position, Stamp};

/// An append in progress.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) stamp: Stamp,
    batch: Batch,
    /// More than one process may have appended it.
    contested: bool,
    pub(super) under_way: u32,
    pub(super) is_done: bool,
    is_given_up: bool,
    /// Positions returned by its attempts, acknowledged or in doubt.
    pub(super) reported: BTreeSet<Position>,
    /// Attempts that returned no position, because their process crashed.
    pub(super) unreported: usize,
}

impl Job {
    /// Whether it is not retried any more.
    pub(super) fn has_ended(&self) -> bool {
        self.is_done || self.is_given_up
    }
}

impl World {
    /// Another process retries an append with an unknown outcome.
    pub(super) fn retry_in_doubt(&mut self, job: usize) {
        let of = &mut self.clients.jobs[job];
        of.contested = true;
        self.clients.waiting.push(job);
    }

    pub(super) fn new_append(&mut self, id: u32) {
        let number = self.clients.jobs.len() as u64;
        // Few client numbers, each with several concurrent appends.
        let stamp = Stamp { client: ClientId(1 + number % 2), sequence: 1 + number / 2 };
        let batch = Batch::of(&[Bytes::from(number.to_be_bytes().to_vec())]).expect("within the limits");
        self.clients.jobs.push(Job {
            stamp,
            batch,
            contested: false,
            under_way: 0,
            is_done: false,
            is_given_up: false,
            reported: BTreeSet::new(),
            unreported: 0,
        });
        self.attempt(id, number as usize);
    }

    pub(super) fn attempt(&mut self, id: u32, job: usize) {
        let (now, token, floor) = (self.clock(), self.token(), self.checks.highest_complete());
        let patience = if self.is_healed { 500 } else { 10 + self.random.below(100) };
        let of = &mut self.clients.jobs[job];
        if of.is_done && !of.contested {
            return;
        }
        of.under_way += 1;
        let (batch, stamp) = (of.batch.clone(), of.stamp);
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.calls.insert(token, Call::Append { job, floor });
        process.client.append(token, batch, Some(stamp), now + Duration::from_millis(patience), now);
        self.settle_client(id);
    }

    pub(super) fn append_ended(
        &mut self,
        job: usize,
        floor: Option<Position>,
        outcome: Result<LogReply, Error>,
    ) -> Result<(), String> {
        let retries = self.is_healed || self.random.chance(700_000);
        let of = &mut self.clients.jobs[job];
        of.under_way -= 1;
        match outcome {
            Ok(LogReply::Appended(position)) => {
                of.is_done = true;
                of.reported.insert(position);
                let (stamp, batch) = (of.stamp, of.batch.clone());
                self.count("appends");
                self.checks.appended(stamp, batch, position, floor)
            }
            Err(Error::Unknown { position }) => {
                of.reported.insert(position);
                self.count("appends in doubt");
                self.retry_in_doubt(job);
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
            other => Err(format!("an append returned {other:?}")),
        }
    }
}
