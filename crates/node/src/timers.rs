//! A queue of timers.

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;

/// The next timer of each key, or an earlier time. Most timers are postponed repeatedly, and an early wakeup costs less
/// than updating the queue on each postponement.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    queue: BTreeSet<(Monotonic, K)>,
    of: BTreeMap<K, Monotonic>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { queue: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Timers<K> {
    /// Sets a timer. [`Monotonic::NEVER`] sets none.
    pub(crate) fn set(&mut self, id: K, at: Monotonic) {
        let queued = self.of.get(&id).copied();
        if at == Monotonic::NEVER || queued.is_some_and(|queued| queued <= at) {
            return;
        }
        if let Some(queued) = queued {
            self.queue.remove(&(queued, id));
        }
        self.queue.insert((at, id));
        self.of.insert(id, at);
    }

    /// Removes and returns one key with an expired timer.
    pub(crate) fn take_due(&mut self, now: Monotonic) -> Option<K> {
        let first = *self.queue.first().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&first);
        self.of.remove(&first.1);
        Some(first.1)
    }

    /// The queued time of a key.
    pub(crate) fn of(&self, id: K) -> Option<Monotonic> {
        self.of.get(&id).copied()
    }

    pub(crate) fn next_due(&self) -> Option<Monotonic> {
        self.queue.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use base::CohortId;

    use super::*;

    /// A postponed timer fires at its original time and is set again. An advanced timer fires once.
    #[test]
    fn rescheduled_timers_fire_on_time() {
        let mut timers = Timers::default();
        let [first, second] = [CohortId(1), CohortId(2)];
        for (id, at) in [(first, 10), (second, 20), (first, 30), (second, 5)] {
            timers.set(id, Monotonic(at));
        }
        timers.set(first, Monotonic::NEVER);
        assert_eq!(timers.take_due(Monotonic(4)), None);
        assert_eq!(timers.take_due(Monotonic(10)), Some(second));
        assert_eq!(timers.take_due(Monotonic(10)), Some(first), "at the original time");
        assert_eq!(timers.take_due(Monotonic(100)), None);
    }
}
