//! Latches: which keys have changes in progress at a leader.
//!
//! A condition is decided against the applied state before its change is proposed (`tablets::Tablet::decide`). The log
//! must therefore hold no unapplied change of the keys that it depends on: such a change locks them exclusively and
//! waits. Later changes of these keys queue behind it until it is decided, which may need a read of the disk. Blind
//! changes do not block each other, and most keys never have waiters.
//!
//! A transaction also depends on keys that it does not change, and shares these with others that only read them. Once
//! decided, a change keeps only the latches of the keys that it changes. A prepared transaction keeps all of them until it is
//! resolved, which another range decides; a new leader takes them before it admits any change.
//!
//! Invariants:
//! * A change takes all its latches at once, or none, and waits. So there are no deadlocks within a range.
//! * First in, first out: a change waits for every earlier one that waits for an overlapping latch.
//! * A waiting change overlaps a held latch, directly or through other waiting changes, and leaves the queue when that
//!   latch becomes free. It may then end without taking its latches, so those that queue behind it are retried, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::KeyRange;
use base::canary::{Bug, planted};
use bytes::Bytes;
use state_machine::{LockKeys, LockMode, LockOwner, Locks};

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
    /// Changes in the log that are not applied, and those that locked it exclusively.
    writers: usize,
    /// A change that locked it exclusively is being decided, or is a prepared transaction.
    is_deciding: bool,
    /// Changes that locked it as shared and are being decided, or are prepared transactions.
    readers: usize,
    /// The transactions among these that may hold latches of other ranges.
    owners: Vec<LockOwner>,
    /// Arrival numbers of the changes that wait for this latch, among others.
    waiting: Vec<u64>,
}

impl Latch {
    fn admits(&self, mode: LockMode) -> bool {
        self.is_compatible(mode) && self.waiting.is_empty()
    }

    /// Whether the holders allow this mode.
    fn is_compatible(&self, mode: LockMode) -> bool {
        match mode {
            LockMode::Shared => self.writers == 0,
            LockMode::Blind => !self.is_deciding && self.readers == 0 || planted(Bug::BlindWriteOverPrepared),
            LockMode::Exclusive => self.writers == 0 && self.readers == 0 || planted(Bug::ConditionIgnoresUnderWay),
        }
    }

    fn take(&mut self, mode: LockMode, owner: Option<LockOwner>) {
        match mode {
            LockMode::Shared => self.readers += 1,
            LockMode::Blind => self.writers += 1,
            LockMode::Exclusive => {
                self.writers += 1;
                self.is_deciding = !planted(Bug::ConditionIgnoresUnderWay);
            }
        }
        self.owners.extend(owner);
    }

    fn leave(&mut self, mode: LockMode, owner: Option<LockOwner>) {
        match mode {
            LockMode::Shared => self.readers -= 1,
            LockMode::Blind => self.writers -= 1,
            LockMode::Exclusive => {
                self.writers -= 1;
                self.is_deciding = false;
            }
        }
        if let Some(place) = owner.and_then(|owner| self.owners.iter().position(|other| *other == owner)) {
            self.owners.swap_remove(place);
        }
    }

    fn is_free(&self) -> bool {
        self.writers == 0 && self.readers == 0
    }
}

impl Latches {
    /// Takes all latches of a change and returns true, or queues it and returns false.
    pub(crate) fn enter(&mut self, locks: &Locks, id: PendingId) -> bool {
        let may = self.admits(locks);
        if may {
            self.hold(locks);
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

    /// Queues a change unless it could take all latches now, and returns whether it could.
    pub(crate) fn pass(&mut self, locks: &Locks, id: PendingId) -> bool {
        self.admits(locks) || self.enter(locks, id)
    }

    fn admits(&self, locks: &Locks) -> bool {
        locks.spans().iter().all(|span| self.overlapping(&span.keys).all(|latch| latch.admits(span.mode)))
    }

    /// Takes latches for a transaction that is prepared in the state.
    pub(crate) fn hold(&mut self, locks: &Locks) {
        for span in locks.spans() {
            self.latch_mut(&span.keys).take(span.mode, locks.owner);
        }
    }

    /// Whether a change with these latches would wait for an older transaction that may hold latches of other ranges:
    /// for its latches, or behind changes that wait for them. A transaction that may hold latches of other ranges itself
    /// does not wait for it (wait-die), so that there are no deadlocks between ranges.
    pub(crate) fn are_of_older(&self, locks: &Locks) -> bool {
        let Some(owner) = locks.owner else { return false };
        let is_older = |other: &LockOwner| *other < owner;
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![locks]);
        while let Some(locks) = ahead.pop() {
            for span in locks.spans() {
                for latch in self.overlapping(&span.keys) {
                    if latch.owners.iter().any(is_older) && !latch.is_compatible(span.mode) {
                        return true;
                    }
                    let news = latch.waiting.iter().filter(|arrival| seen.insert(**arrival));
                    ahead.extend(news.filter_map(|arrival| Some(&self.waiting.get(arrival)?.locks)));
                }
            }
            if locks.owner.as_ref().is_some_and(is_older) {
                return true;
            }
        }
        false
    }

    /// Whether a transaction that may hold latches of other ranges has any.
    pub(crate) fn have_owners(&self) -> bool {
        self.keys.values().chain(self.ranges.values()).any(|latch| !latch.owners.is_empty())
    }

    /// The change that took these latches is decided, and its entry is the next in the log: it only needs those of the
    /// keys that it changes. Returns the changes that may be retried, in order.
    pub(crate) fn decided(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        for span in locks.spans() {
            let Some(latch) = self.find_mut(&span.keys) else {
                debug_assert!(false, "a change is decided while it holds its latches");
                continue;
            };
            match span.mode {
                LockMode::Shared => latch.leave(span.mode, locks.owner),
                LockMode::Blind => {}
                LockMode::Exclusive => latch.is_deciding = false,
            }
        }
        self.wake(locks.spans().iter().map(|span| span.keys.clone()).collect())
    }

    /// A transaction with these latches is prepared, and keeps them. Returns the changes that may be retried, in order:
    /// the same prepare may have been sent again, and need no latches any more.
    pub(crate) fn kept(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        if planted(Bug::PreparedReadsNotLocked) {
            return self.release(locks, |mode| mode == LockMode::Shared);
        }
        if self.waiting.is_empty() {
            return VecDeque::new();
        }
        self.wake(locks.spans().iter().map(|span| span.keys.clone()).collect())
    }

    /// A change that was decided, or needed no decision, is applied. Returns the changes that may be retried, in order.
    pub(crate) fn leave(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        self.release(locks, |mode| mode != LockMode::Shared)
    }

    /// A change that took these latches will never be decided, or a prepared transaction is resolved. Returns the
    /// changes that may be retried, in order.
    pub(crate) fn abandon(&mut self, locks: &Locks) -> VecDeque<PendingId> {
        self.release(locks, |_| true)
    }

    fn release(&mut self, locks: &Locks, is_held: impl Fn(LockMode) -> bool) -> VecDeque<PendingId> {
        let mut free = Vec::new();
        for span in locks.spans().iter().filter(|span| is_held(span.mode)) {
            let Some(latch) = self.find_mut(&span.keys) else {
                debug_assert!(false, "a change leaves only latches that it took");
                continue;
            };
            latch.leave(span.mode, locks.owner);
            if latch.writers == 0 {
                free.push(span.keys.clone());
            }
        }
        self.wake(free)
    }

    /// A waiting change has ended: those that queue behind it are returned, to be retried.
    pub(crate) fn cancel(&mut self, id: PendingId) -> VecDeque<PendingId> {
        let arrival = self.waiting.iter().find(|(_, waiting)| waiting.id == id).map(|(arrival, _)| *arrival);
        let Some(Waiting { locks, .. }) = arrival.and_then(|arrival| self.waiting.remove(&arrival)) else {
            return VecDeque::new();
        };
        self.wake(locks.spans().iter().map(|span| span.keys.clone()).collect())
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
                latch.is_free()
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
