//! The clocks of this world. The machine reads none of them: each reading is handed in with an event.

use base::{Monotonic, Now, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock that goes on while the machine is suspended: leases and graces are measured on it, since one
/// that stops would let an old leader sleep through the end of its lease (guarantee 14).
pub(crate) fn monotonic() -> Monotonic {
    Monotonic(nanoseconds(ClockId::Boottime).unsigned_abs())
}

/// Both clocks, for an event.
pub(crate) fn now() -> Now {
    Now { monotonic: monotonic(), wall: Timestamp(nanoseconds(ClockId::Realtime)) }
}

/// The standard library's form of a span.
pub(crate) fn span(duration: base::Duration) -> std::time::Duration {
    std::time::Duration::from_nanos(duration.0)
}

/// A span in the machine's form.
pub(crate) fn duration(span: std::time::Duration) -> base::Duration {
    base::Duration(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

fn nanoseconds(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    // A wall clock set beyond the year 2262 saturates; the machine takes such a reading for no clock at all.
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
