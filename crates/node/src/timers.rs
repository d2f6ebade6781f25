//! Who is to be woken, and when.

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;

/// The next moment of each of many, or an earlier one: most moments are put off again and again, and one that is
/// asked too early costs less than to note each time that it was.
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
    /// Something is to be done about it at that moment, or never.
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

    /// One whose moment has come.
    pub(crate) fn take_due(&mut self, now: Monotonic) -> Option<K> {
        let first = *self.queue.first().filter(|(at, _)| *at <= now)?;
        self.queue.remove(&first);
        self.of.remove(&first.1);
        Some(first.1)
    }

    /// What it is noted for.
    pub(crate) fn of(&self, id: K) -> Option<Monotonic> {
        self.of.get(&id).copied()
    }

    /// The next moment of any.
    pub(crate) fn next_due(&self) -> Option<Monotonic> {
        self.queue.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use base::CohortId;

    use super::*;

    /// A moment that is put off strikes when it was, and is set anew; one that is brought forward strikes once.
    #[test]
    fn no_moment_is_missed() {
        let mut timers = Timers::default();
        let [first, second] = [CohortId(1), CohortId(2)];
        for (id, at) in [(first, 10), (second, 20), (first, 30), (second, 5)] {
            timers.set(id, Monotonic(at));
        }
        timers.set(first, Monotonic::NEVER);
        assert_eq!(timers.take_due(Monotonic(4)), None);
        assert_eq!(timers.take_due(Monotonic(10)), Some(second));
        assert_eq!(timers.take_due(Monotonic(10)), Some(first), "earlier than need be");
        assert_eq!(timers.take_due(Monotonic(100)), None);
    }
}
