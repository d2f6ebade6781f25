//! Time as a parameter: every event carries it, and the pure crates read no clock.

use std::fmt;
use std::ops::{Add, Sub};

/// Nanoseconds on this node's monotonic clock. It includes the time that the machine was suspended (`CLOCK_BOOTTIME`),
/// and its rate is within 1% of true (guarantee 14). Comparable within one node only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

/// Nanoseconds since 1970. A wall clock reading is only a hint and may be wrong. A cohort's timestamps have this type
/// too, and increase regardless of any clock (guarantee 17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// Both clocks at the time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For timers, leases and deadlines.
    pub monotonic: Monotonic,
    /// Only for the timestamps of versions.
    pub wall: Timestamp,
    /// The maximum error of `wall`, if one is known.
    pub uncertainty: Option<Duration>,
}

/// An interval that contains true time, as long as the clock is within its stated bound (Spanner, section 3, `TT.now`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The beginning: everything earlier is past.
    pub earliest: Timestamp,
    /// The end: everything later is in the future.
    pub latest: Timestamp,
}

crate::wire! { struct Interval { earliest, latest } }

impl Now {
    /// The interval that contains true time; none while the error of the wall clock has no bound.
    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        let uncertainty = i64::try_from(self.uncertainty?.0).ok()?;
        let (earliest, latest) = (self.wall.0.checked_sub(uncertainty)?, self.wall.0.checked_add(uncertainty)?);
        Some(Interval { earliest: Timestamp(earliest), latest: Timestamp(latest) })
    }
}

impl Interval {
    /// Whether the timestamp has definitely passed (`TT.after`).
    #[must_use]
    pub fn after(&self, timestamp: Timestamp) -> bool {
        timestamp < self.earliest
    }

    /// Whether the timestamp has definitely not arrived (`TT.before`).
    #[must_use]
    pub fn before(&self, timestamp: Timestamp) -> bool {
        timestamp > self.latest
    }
}

crate::wire! { newtype Monotonic, Duration, Timestamp }

impl Duration {
    pub const ZERO: Self = Self(0);

    /// A duration of milliseconds.
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds * 1_000_000)
    }

    /// A duration of microseconds.
    #[must_use]
    pub const fn from_micros(microseconds: u64) -> Self {
        Self(microseconds * 1_000)
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// `percent` of this duration, rounded up.
    #[must_use]
    pub const fn percent(self, percent: u64) -> Self {
        Self((self.0 * percent).div_ceil(100))
    }
}

impl Monotonic {
    /// The far future, for a timer that is not set.
    pub const NEVER: Self = Self(u64::MAX);

    /// The duration since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Duration {
    /// Formats it as a whole number of the largest possible unit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        let whole = UNITS.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        let (unit, name) = whole.unwrap_or(&(1, "ns"));
        write!(f, "{}{name}", self.0 / unit)
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Duration> for Monotonic {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_has_both_ends_at_the_uncertainty() {
        let now = |wall, uncertainty| Now { wall: Timestamp(wall), uncertainty, ..Now::default() };
        assert_eq!(now(100, None).interval(), None);
        assert_eq!(now(i64::MAX, Some(Duration(1))).interval(), None, "no such timestamp");
        let interval = now(100, Some(Duration(10))).interval().unwrap();
        assert_eq!((interval.earliest, interval.latest), (Timestamp(90), Timestamp(110)));
        let is = |at| (interval.after(Timestamp(at)), interval.before(Timestamp(at)));
        assert_eq!([89, 90, 110, 111].map(is), [(true, false), (false, false), (false, false), (false, true)]);
    }

    #[test]
    fn duration_uses_largest_unit() {
        let spans = [7 * 24 * 3_600_000, 36 * 3_600_000, 60_000, 90_000, 1_500].map(Duration::from_millis);
        assert_eq!(spans.map(|span| span.to_string()), ["7d", "36h", "1m", "90s", "1500ms"]);
        assert_eq!([0, 1_001, 2_000].map(|span| Duration(span).to_string()), ["0ns", "1001ns", "2us"]);
    }
}
