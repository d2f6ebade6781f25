//! Which timestamp a cohort's log had come to how long ago, by its leader's monotonic clock.
//!
//! Timestamps grow under any clock and need not keep pace with time (guarantee 17): after a wall clock that was ahead
//! for a moment they grow by one nanosecond each, for as long as it was ahead. So what is to be so and so *old* is told
//! by a leader that has watched the timestamps itself. A new leader has watched none: what may go, goes later.

use std::collections::VecDeque;

use base::{Duration, Monotonic, Timestamp};

/// Moments remembered, about, at most: they lie so far apart that they reach back as far as is asked for.
const MOMENTS_MAX: u64 = 1_000;

/// Timestamps and when they were seen, both growing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    seen: VecDeque<(Monotonic, Timestamp)>,
}

impl Moments {
    /// The log has come to `timestamp` by now. What no span up to `longest` asks for is forgotten.
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

    /// The greatest timestamp known to have been reached that long ago.
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

    /// A wall clock that leaps ahead and back changes nothing: age is told by the other clock.
    #[test]
    fn age_does_not_depend_on_timestamps() {
        let mut moments = Moments::default();
        for (second, timestamp) in [(10, 5), (11, 1_000_000), (12, 1_000_001), (13, 1_000_002)] {
            moments.note(Timestamp(timestamp), at(second), Duration(10 * SECOND.0));
        }
        assert_eq!(moments.before(SECOND, at(10)), None, "nothing is that old yet");
        assert_eq!(moments.before(SECOND, at(11)), Some(Timestamp(5)));
        assert_eq!(moments.before(SECOND, at(13)), Some(Timestamp(1_000_001)));
        assert_eq!(moments.before(SECOND, at(99)), Some(Timestamp(1_000_002)));
    }

    /// An idle log has one moment, and a busy one's reach back as far as is asked for.
    #[test]
    fn moments_are_bounded() {
        let mut moments = Moments::default();
        for second in 0..100_000 {
            moments.note(Timestamp(7), at(second), SECOND);
        }
        assert_eq!((moments.seen.len(), moments.before(SECOND, at(1))), (1, Some(Timestamp(7))));
        let longest = Duration(50_000 * SECOND.0);
        for second in 100_000..200_000 {
            moments.note(Timestamp(second as i64), at(second), longest);
            assert!(moments.seen.len() as u64 <= MOMENTS_MAX + 2);
        }
        let old = moments.before(longest, at(200_000)).expect("something is that old");
        assert!((149_900..=150_000).contains(&old.0), "{old}");
    }
}
