//! The disk budget: client requests have priority, then flushes, then compactions.
//!
//! The log has a thread of its own at real-time priority and no limit. A compaction yields while a memtable is flushed,
//! and its read rate is limited. It runs unthrottled only to avoid a write stall due to the number of SSTables.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock;

/// Maximum read rate of compactions in bytes per second: several times the write rate of a busy node, and a small part
/// of the disk's bandwidth.
pub(crate) const COMPACTION_BYTES_PER_SECOND: u64 = 64 << 20;
/// Maximum time that a compaction yields to flushes between two steps: flushes may be continuous.
const PATIENCE: Duration = Duration::from_millis(100);

/// The budget shared by a node's background jobs.
#[derive(Debug)]
pub(crate) struct Budget {
    compaction_bytes_per_second: u64,
    flushes: Mutex<usize>,
    flushed: Condvar,
}

/// A flush in progress.
pub(crate) struct Flushing<'a>(&'a Budget);

impl Budget {
    pub(crate) fn new(compaction_bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self {
            compaction_bytes_per_second: compaction_bytes_per_second.max(1),
            flushes: Mutex::new(0),
            flushed: Condvar::new(),
        })
    }

    /// No code panics while it holds this lock.
    fn flushes(&self) -> MutexGuard<'_, usize> {
        self.flushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a flush, until the result is dropped.
    pub(crate) fn flush(&self) -> Flushing<'_> {
        *self.flushes() += 1;
        Flushing(self)
    }

    /// Runs one step of a compaction, which reads about `bytes`, and sleeps as the rate limit requires.
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
    fn compaction_rate_limit_yields_to_flush() {
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
