//! The disk's budget: what clients wait for comes first, then flushes, and compactions take what is left.
//!
//! The log has a thread of its own at real-time priority and is bounded by nothing. A compaction stands back while a
//! memtable is flushed, and reads no faster than it is allowed to. It is given way only when there are so many tables
//! that writes would soon have to wait for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock;

/// Bytes of tables that compactions read in a second, at most: several times what a busy node writes, and a small part
/// of what its disk can do.
pub(crate) const COMPACTION_BYTES_PER_SECOND: u64 = 64 << 20;
/// A compaction waits for a flush no longer than this between two steps: flushes may follow one another for ever.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a node's jobs share.
#[derive(Debug)]
pub(crate) struct Budget {
    compaction_bytes_per_second: u64,
    /// How many flushes are under way.
    flushes: Mutex<usize>,
    flushed: Condvar,
}

/// A flush that is under way.
pub(crate) struct Flushing<'a>(&'a Budget);

impl Budget {
    pub(crate) fn new(compaction_bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self {
            compaction_bytes_per_second: compaction_bytes_per_second.max(1),
            flushes: Mutex::new(0),
            flushed: Condvar::new(),
        })
    }

    /// Nothing that holds this lock panics half-way.
    fn flushes(&self) -> MutexGuard<'_, usize> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flush begins; it ends when what this gives is dropped.
    pub(crate) fn flush(&self) -> Flushing<'_> {
        *self.flushes() += 1;
        Flushing(self)
    }

    /// Does one step of a compaction, which reads about so many bytes, and takes as long as the budget says.
    pub(crate) fn compact<T>(&self, bytes: u64, is_urgent: bool, step: impl FnOnce() -> T) -> T {
        if is_urgent {
            return step();
        }
        let waited = self.flushed.wait_timeout_while(self.flushes(), PATIENCE, |flushes| *flushes > 0);
        drop(waited);
        let begun = clock::monotonic();
        let done = step();
        let least = base::Duration(bytes.saturating_mul(1_000_000_000) / self.compaction_bytes_per_second);
        let left = (begun + least).since(clock::monotonic());
        std::thread::sleep(clock::span(left));
        done
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        *self.0.flushes() -= 1;
        self.0.flushed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_compaction_keeps_to_its_rate_and_stands_back_for_flushes() {
        let budget = Budget::new(1_000_000);
        let begun = Instant::now();
        budget.compact(20_000, false, || ());
        assert!(begun.elapsed() >= Duration::from_millis(20), "at a million bytes in a second");

        let flush = budget.flush();
        let begun = Instant::now();
        budget.compact(0, false, || ());
        assert!(begun.elapsed() >= PATIENCE);
        drop(flush);

        let flush = budget.flush();
        budget.compact(1 << 50, true, || ());
        drop(flush);
        assert_eq!(*budget.flushes(), 0);
    }
}
