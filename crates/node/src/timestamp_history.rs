//! Records the timestamps that a cohort's log has reached over time, by a replica's monotonic clock.
//!
//! Timestamps always grow but need not keep pace with time (guarantee 17). After a wall clock was temporarily ahead,
//! they grow by one nanosecond per entry until the clock catches up. The age of a version is therefore measured by a
//! replica that has observed the timestamps itself, also while it followed. A restarted one has no observations, so
//! expiry is delayed.

use std::collections::VecDeque;

use base::{Duration, Monotonic, Timestamp};

/// Approximate maximum number of samples. Their spacing is chosen so that they cover the longest span in use.
const MOMENTS_MAX: u64 = 1_000;

/// Observed timestamps with the times of observation, both increasing.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimestampHistory {
    seen: VecDeque<(Monotonic, Timestamp)>,
}

impl TimestampHistory {
    /// Records that the log has reached `timestamp`. Drops samples that no span up to `longest` needs.
    pub(crate) fn note(&mut self, timestamp: Timestamp, now: Monotonic, longest: Duration) {
        let apart = Duration(longest.0 / MOMENTS_MAX);
        if self.seen.back().is_some_and(|(at, last)| *last >= timestamp || now.since(*at) < apart) {
            return;
        }
        self.seen.push_back((now, timestamp));
        while self.seen.get(1).is_some_and(|(at, _)| *at + longest <= now) {
            self.seen.pop_front();
        }
    }

    /// The greatest timestamp known to have been reached at least `span` ago.
    pub(crate) fn before(&self, span: Duration, now: Monotonic) -> Option<Timestamp> {
        let past = self.seen.partition_point(|(at, _)| *at + span <= now);
        past.checked_sub(1).map(|last| self.seen[last].1)
    }

    pub(crate) fn clear(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_millis(1_000);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * SECOND.0)
    }

    /// A jump of the wall clock does not affect ages, which use the monotonic clock.
    #[test]
    fn age_is_independent_of_timestamps() {
        let mut history = TimestampHistory::default();
        for (second, timestamp) in [(10, 5), (11, 1_000_000), (12, 1_000_001), (13, 1_000_002)] {
            history.note(Timestamp(timestamp), at(second), Duration(10 * SECOND.0));
        }
        assert_eq!(history.before(SECOND, at(10)), None, "no sample is old enough");
        assert_eq!(history.before(SECOND, at(11)), Some(Timestamp(5)));
        assert_eq!(history.before(SECOND, at(13)), Some(Timestamp(1_000_001)));
        assert_eq!(history.before(SECOND, at(99)), Some(Timestamp(1_000_002)));
    }

    /// An idle log keeps one sample. The samples of a busy log cover the longest span.
    #[test]
    fn moment_count_limit() {
        let mut history = TimestampHistory::default();
        for second in 0..100_000 {
            history.note(Timestamp(7), at(second), SECOND);
        }
        assert_eq!((history.seen.len(), history.before(SECOND, at(1))), (1, Some(Timestamp(7))));
        let longest = Duration(50_000 * SECOND.0);
        for second in 100_000..200_000 {
            history.note(Timestamp(second as i64), at(second), longest);
            assert!(history.seen.len() as u64 <= MOMENTS_MAX + 2);
        }
        let old = history.before(longest, at(200_000)).expect("a sample is old enough");
        assert!((149_900..=150_000).contains(&old.0), "{old}");
    }
}
