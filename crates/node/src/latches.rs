//! Latches: which keys have changes in progress at a leader.
//!
//! A condition is decided against the applied state before its change is proposed (`tablets::Tablet::decide`). The log
//! must therefore hold no unapplied change of the keys that it depends on: such a change locks them exclusively and
//! waits. Later changes of these keys queue behind it until it is decided, which may need a read of the disk. Blind
//! changes do not block each other, and most keys never have waiters.
//!
//! Invariants:
//! * A change takes all its latches at once, or none, and waits. So there are no deadlocks.
//! * First in, first out: a change waits for every earlier one that waits for an overlapping latch.
//! * A waiting change overlaps a held latch, directly or through other waiting changes, and leaves the queue when that
//!   latch becomes free. It may then end without taking its latches, so those that queue behind it are retried, too.

use std::collections::{BTreeMap, VecDeque};

use base::KeyRange;
use base::canary::{Bug, planted};
use bytes::Bytes;
use state_machine::{LockKeys, LockMode, Locks};

use crate::request_table::PendingId;

/// The latches of one state machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latches {
    keys: BTreeMap<Bytes, Latch>,
    /// All are compared with every key: there are few.
    ranges: BTreeMap<KeyRange, Latch>,
    /// The waiting changes, in order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    arrivals: u64,
}

#[derive(Clone, Debug)]
struct Waiting {
    id: PendingId,
    locks: Locks,
}

#[derive(Clone, Debug, Default)]
struct Latch {
    /// Changes in the log that are not applied, and the one being decided.
    under_way: usize,
    /// A change that locked it exclusively is being decided.
    is_deciding: bool,
    /// Arrival numbers of the changes that wait for this latch, among others.
    waiting: Vec<u64>,
}

impl Latch {
    fn admits(&self, mode: LockMode) -> bool {
        let is_free = self.under_way == 0 || !excludes(mode) && !self.is_deciding;
        is_free && self.waiting.is_empty()
    }
}

/// Whether a change must wait for those under way.
fn excludes(mode: LockMode) -> bool {
    match mode {
        LockMode::Blind => false,
        LockMode::Exclusive => !planted(Bug::ConditionIgnoresUnderWay),
    }
}

impl Latches {
    /// Takes all latches of a change and returns true, or queues it and returns false.
    pub(crate) fn enter(&mut self, locks: &Locks, id: PendingId) -> bool {
        let may = locks.spans().iter().all(|span| self.overlapping(&span.keys).all(|latch| latch.admits(span.mode)));
        if may {
            for span in locks.spans() {
                let latch = self.latch_mut(&span.keys);
                latch.under_way += 1;
                latch.is_deciding |= excludes(span.mode);
            }
        } else {
            self.arrivals += 1;
            let arrival = self.arrivals;
            for span in locks.spans() {
                self.latch_mut(&span.keys).waiting.push(arrival);
            }
            self.waiting.insert(arrival, Waiting { id, locks: locks.clone() });
        }
        may
    }

    /// The change that took these latches is decided, and its entry is the next in the log. Returns the changes that
    /// may be retried, in order.
    pub(crate) fn decided(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        for span in locks.spans() {
            // The change has already left if its decision could not be proposed.
            if let Some(latch) = self.find_mut(&span.keys) {
                latch.is_deciding = false;
            }
        }
        self.wake(locks.spans().iter().map(|span| span.keys.clone()).collect())
    }

    /// A change that took these latches is applied, or will never be proposed. Returns the changes that may be retried,
    /// in order.
    pub(crate) fn leave(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        let mut free = Vec::new();
        for span in locks.spans() {
            let Some(latch) = self.find_mut(&span.keys) else {
                debug_assert!(false, "a change leaves only latches that it took");
                continue;
            };
            latch.under_way -= 1;
            latch.is_deciding = false;
            if latch.under_way == 0 {
                free.push(span.keys.clone());
            }
        }
        self.wake(free)
    }

    /// Releases all latches. Returns all waiting changes.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = PendingId> {
        std::mem::take(self).waiting.into_values().map(|waiting| waiting.id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// The latches on any of these keys.
    fn overlapping(&self, keys: &LockKeys) -> impl Iterator<Item = &Latch> {
        let of_ranges = self.ranges.iter().filter(|(range, _)| keys.overlaps(range)).map(|(_, latch)| latch);
        self.keys.range::<Bytes, _>(keys.bounds()).map(|(_, latch)| latch).chain(of_ranges)
    }

    /// The latch on exactly these keys.
    fn find_mut(&mut self, keys: &LockKeys) -> Option<&mut Latch> {
        match keys {
            LockKeys::Key(key) => self.keys.get_mut(key),
            LockKeys::Range(range) => self.ranges.get_mut(range),
        }
    }

    fn latch_mut(&mut self, keys: &LockKeys) -> &mut Latch {
        match keys {
            LockKeys::Key(key) => self.keys.entry(key.clone()).or_default(),
            LockKeys::Range(range) => self.ranges.entry(range.clone()).or_default(),
        }
    }

    /// Removes the changes that wait for latches on these keys, and those that queue behind them. Returns them in order
    /// of arrival. Removes latches that are no longer used.
    fn wake(&mut self, mut freed: Vec<LockKeys>) -> VecDeque<PendingId> {
        let mut woken = BTreeMap::new();
        while let Some(keys) = freed.pop() {
            let mut arrivals = Vec::new();
            let mut empty = |latch: &mut Latch| {
                arrivals.append(&mut latch.waiting);
                latch.under_way == 0
            };
            self.keys.extract_if(keys.bounds(), |_, latch| empty(latch)).for_each(drop);
            self.ranges.extract_if(.., |range, latch| keys.overlaps(range) && empty(latch)).for_each(drop);
            for arrival in arrivals {
                // A change that waits for several latches is found several times.
                if let Some(Waiting { id, locks }) = self.waiting.remove(&arrival) {
                    freed.extend(locks.spans().iter().map(|span| span.keys.clone()));
                    woken.insert(arrival, id);
                }
            }
        }
        woken.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
