//! Readings of the system clocks. The machine reads none: each event carries a reading.

use base::{Duration, Monotonic, Now, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock that also advances while the machine is suspended. Leases and grace periods are measured on it:
/// on a clock that stops, an old leader could sleep through the end of its lease (guarantee 14).
pub fn monotonic() -> Monotonic {
    Monotonic(nanoseconds(ClockId::Boottime).unsigned_abs())
}

/// Both clocks, without a bound on the error of the wall clock.
pub fn now() -> Now {
    Now { monotonic: monotonic(), wall: Timestamp(nanoseconds(ClockId::Realtime)), uncertainty: None }
}

/// Converts to the standard library's type.
pub fn span(duration: Duration) -> std::time::Duration {
    std::time::Duration::from_nanos(duration.0)
}

/// Converts from the standard library's type.
pub fn duration(span: std::time::Duration) -> Duration {
    Duration(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    // A wall clock beyond the year 2262 saturates; the machine ignores such a reading.
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
