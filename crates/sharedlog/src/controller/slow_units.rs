//! Detects units that block their log although their nodes are alive.
//!
//! Heartbeats do not reveal a full or slow disk. A unit that clients suspect repeatedly over seconds counts as slow,
//! and the log avoids it for a while. One suspicion is not enough, since the unit may have answered in the meantime.

use base::Monotonic;

use super::Config;

/// Consecutive suspicions that make a unit slow.
const SUSPICIONS: u32 = 3;

/// Counts consecutive suspicions of a log's unit on one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowUnit {
    suspicions: u32,
    /// Time of the last counted suspicion.
    at: Monotonic,
}

impl SlowUnit {
    pub(super) fn suspected(&mut self, config: &Config, now: Monotonic) {
        let passed = now.since(self.at);
        let within = if self.suspicions < SUSPICIONS { config.slow_within } else { config.slow_for };
        if self.suspicions == 0 || passed >= config.slow_again {
            let suspicions = if passed <= within { self.suspicions.saturating_add(1) } else { 1 };
            *self = Self { suspicions, at: now };
        }
    }

    pub(super) fn is_slow(&self, config: &Config, now: Monotonic) -> bool {
        self.suspicions >= SUSPICIONS && now.since(self.at) <= config.slow_for
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;

    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic(1) + Duration::from_millis(millis)
    }

    /// Whether a unit is slow after suspicions at these times, in milliseconds.
    fn is_slow(times: &[u64]) -> bool {
        let (mut unit, config) = (SlowUnit::default(), Config::default());
        times.iter().for_each(|time| unit.suspected(&config, at(*time)));
        unit.is_slow(&config, at(*times.last().expect("some")))
    }

    #[test]
    fn repeated_suspicion_marks_unit_slow() {
        assert!(is_slow(&[5_000, 6_000, 7_000]));
        // The report times of one call that gets no reply.
        assert!(is_slow(&[350, 800, 1_750, 3_600]));
        assert!(is_slow(&[3_600, 7_400, 11_200]));
        assert!(!is_slow(&[5_000, 6_000, 6_900]), "the unit replied for two seconds");
        assert!(!is_slow(&[5_000; 99]), "suspicions at one time count once");
        assert!(!is_slow(&[5_000, 6_000, 16_100, 17_100]), "the unit replied in between");
    }

    #[test]
    fn slow_mark_expires() {
        let (mut unit, config) = (SlowUnit::default(), Config::default());
        (1..=3).for_each(|second| unit.suspected(&config, at(second * 1_000)));
        assert!(unit.is_slow(&config, at(3_000)) && unit.is_slow(&config, at(33_000)));
        assert!(!unit.is_slow(&config, at(33_001)));
        unit.suspected(&config, at(20_000));
        assert!(unit.is_slow(&config, at(50_000)), "the unit is still slow");
        unit.suspected(&config, at(99_000));
        assert!(!unit.is_slow(&config, at(99_000)));
    }
}
