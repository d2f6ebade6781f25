//! The system clocks. The machine reads no clock: each event carries a reading.
//!
//! A reading of the wall clock comes with a bound on its error if its source has one (Spanner, section 3). The kernel
//! is such a source: time daemons tell it the greatest error after each measurement, and it adds the drift since.

use std::io;

use base::{Duration, Monotonic, Now};
use rtime_clock::adjtime::{Timex, adjtimex};

pub(crate) use endpoints::clock::{duration, monotonic, now, span};

/// The error between two processes that read the same clock.
const HOST_UNCERTAINTY: Duration = Duration::from_micros(1);
/// The kernel's bound is read at most this often, because that costs microseconds, unless the wall clock was set.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Drift that the kernel allows for, in parts per million.
const DRIFT_PPM: u64 = 500;
/// The kernel's greatest error in microseconds (`NTP_PHASE_LIMIT`), which means that the clock is not synchronized.
const UNSYNCHRONIZED_US: u64 = 16_000_000;
/// Once a second the kernel adds this to its error, in microseconds.
const DRIFT_US: u64 = 500;
/// A second begins in the kernel up to this much later than on the clock: with the next timer interrupt.
const TICK: Duration = Duration::from_millis(10);
/// The difference between both clocks changes by more than this only if the wall clock was set.
const STEP_NS: u64 = 10_000;

/// The source of a bound on the wall clock's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// All nodes of the cluster read the clock of one machine.
    Host,
    /// The kernel, if a time daemon tells it the error.
    Kernel,
    Configured(Duration),
    None,
}

/// The clocks of one thread, with the bound on the wall clock's error.
#[derive(Debug)]
pub(crate) struct Clock {
    source: Source,
    sample: Option<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    read_at: Monotonic,
    /// Start of the drift that the bound does not include.
    as_of: Monotonic,
    /// The wall clock minus the monotonic clock: another value means that the wall clock was set.
    offset: i128,
    bound: Option<Duration>,
}

/// What the kernel knows about the error of the wall clock, in microseconds.
#[derive(Clone, Copy, Debug)]
struct KernelError {
    greatest_us: u64,
    estimate_us: u64,
}

/// Why the kernel gives no bound.
#[derive(Debug, thiserror::Error)]
enum Unbounded {
    #[error("the wall clock is not synchronized")]
    Unsynchronized,
    /// An error of 0 is the default of the field. `systemd-timesyncd` sets that.
    #[error("the time daemon does not measure the error of the wall clock: use chrony or ntpd")]
    NotMeasured,
    #[error("adjtimex: {0}")]
    Io(#[from] io::Error),
}

impl Source {
    /// For the machine's messages.
    pub(crate) fn kind(self) -> node::ClockSource {
        match self {
            Self::Host => node::ClockSource::Host,
            Self::Kernel => node::ClockSource::Kernel,
            Self::Configured(_) => node::ClockSource::Configured,
            Self::None => node::ClockSource::None,
        }
    }
}

impl Clock {
    pub(crate) fn new(source: Source) -> Self {
        Self { source, sample: None }
    }

    /// Both clocks, for an event, with the bound on the error of the wall clock.
    pub(crate) fn now(&mut self) -> Now {
        let now = now();
        let uncertainty = match self.source {
            Source::Host => Some(HOST_UNCERTAINTY),
            Source::Kernel => self.kernel_uncertainty(now, read_kernel),
            Source::Configured(uncertainty) => Some(uncertainty),
            Source::None => None,
        };
        Now { uncertainty, ..now }
    }

    fn kernel_uncertainty(&mut self, now: Now, read: impl FnOnce() -> io::Result<KernelError>) -> Option<Duration> {
        let offset = i128::from(now.wall.0) - i128::from(now.monotonic.0);
        let is_current = |sample: &Sample| {
            let step = (offset - sample.offset).unsigned_abs();
            now.monotonic.since(sample.read_at) < SAMPLE_EVERY && step <= u128::from(STEP_NS)
        };
        let sample = match self.sample.filter(is_current) {
            Some(sample) => sample,
            None => self.take_sample(now, offset, read),
        };
        let drift = now.monotonic.since(sample.as_of).0.saturating_mul(DRIFT_PPM).div_ceil(1_000_000);
        sample.bound.map(|bound| Duration(bound.0.saturating_add(drift)))
    }

    fn take_sample(&mut self, now: Now, offset: i128, read: impl FnOnce() -> io::Result<KernelError>) -> Sample {
        let bound = read().map_err(Unbounded::Io).and_then(KernelError::bound);
        let was_bounded = self.sample.map(|sample| sample.bound.is_some());
        match &bound {
            Ok(bound) if was_bounded != Some(true) => {
                tracing::info!(microseconds = bound.0 / 1_000, "the error of the wall clock is bounded");
            }
            Err(reason) if was_bounded != Some(false) => {
                tracing::warn!(%reason, "the error of the wall clock has no bound");
            }
            _ => {}
        }
        // The kernel adds the drift of a second when the next second begins.
        let second = Duration::from_millis(1_000);
        let in_second = Duration(now.wall.0.rem_euclid(1_000_000_000).unsigned_abs());
        let since_second = now.monotonic - in_second;
        let as_of = if in_second < TICK { since_second - second } else { since_second };
        *self.sample.insert(Sample { read_at: now.monotonic, as_of, offset, bound: bound.ok() })
    }
}

impl KernelError {
    /// The flag `STA_UNSYNC` is not significant: chrony does not clear it unless it also sets the hardware clock.
    fn bound(self) -> Result<Duration, Unbounded> {
        if self.greatest_us >= UNSYNCHRONIZED_US {
            return Err(Unbounded::Unsynchronized);
        }
        // Nothing but the kernel's drift was ever added.
        if self.estimate_us == 0 && self.greatest_us.is_multiple_of(DRIFT_US) {
            return Err(Unbounded::NotMeasured);
        }
        // Daemons round down.
        Ok(Duration::from_micros(self.greatest_us + 1))
    }
}

/// Reads the kernel's state; changes nothing, and requires no privilege.
fn read_kernel() -> io::Result<KernelError> {
    let mut state = Timex::new();
    adjtimex(&mut state)?;
    let unsigned = |microseconds: i64| u64::try_from(microseconds).unwrap_or(UNSYNCHRONIZED_US);
    Ok(KernelError { greatest_us: unsigned(state.0.maxerror), estimate_us: unsigned(state.0.esterror) })
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A reading a while after the start of a second of the wall clock.
    fn at(nanoseconds: u64) -> Now {
        let wall = Timestamp(1_000 * SECOND.cast_signed() + nanoseconds.cast_signed());
        Now { monotonic: Monotonic(5 * SECOND + nanoseconds), wall, uncertainty: None }
    }

    fn kernel(greatest_us: u64, estimate_us: u64) -> io::Result<KernelError> {
        Ok(KernelError { greatest_us, estimate_us })
    }

    fn unread() -> io::Result<KernelError> {
        panic!("the last sample is current")
    }

    #[test]
    fn kernel_bound_grows_until_next_sample() {
        let mut clock = Clock::new(Source::Kernel);
        // 0.2 s after the start of a second, the kernel lacks the drift since.
        assert_eq!(clock.kernel_uncertainty(at(200_000_000), || kernel(99, 9)), Some(Duration(100_000 + 100_000)));
        assert_eq!(clock.kernel_uncertainty(at(299_999_999), unread), Some(Duration(100_000 + 150_000)));
        assert_eq!(clock.kernel_uncertainty(at(300_000_000), || kernel(49, 9)), Some(Duration(50_000 + 150_000)));
        assert_eq!(clock.kernel_uncertainty(at(SECOND), || kernel(549, 9)), Some(Duration(1_050_000)));
        assert_eq!(clock.kernel_uncertainty(at(SECOND + 100_000_000), || kernel(549, 9)), Some(Duration(600_000)));
    }

    #[test]
    fn changed_wall_clock_takes_new_sample() {
        let mut clock = Clock::new(Source::Kernel);
        assert!(clock.kernel_uncertainty(at(0), || kernel(99, 9)).is_some());
        let mut later = at(1_000);
        later.wall.0 -= 20_000;
        assert_eq!(clock.kernel_uncertainty(later, || kernel(16_000_000, 16_000_000)), None);
        assert_eq!(clock.kernel_uncertainty(later, unread), None);
    }

    #[test]
    fn kernel_without_bound() {
        assert!(matches!(kernel(16_000_000, 9).unwrap().bound(), Err(Unbounded::Unsynchronized)));
        for greatest in [0, 500, 32_000] {
            assert!(matches!(kernel(greatest, 0).unwrap().bound(), Err(Unbounded::NotMeasured)));
        }
        assert_eq!(kernel(32_001, 0).unwrap().bound().unwrap(), Duration::from_micros(32_002));
        let mut clock = Clock::new(Source::Kernel);
        assert_eq!(clock.kernel_uncertainty(at(0), || Err(io::ErrorKind::PermissionDenied.into())), None);
    }

    #[test]
    fn sources_give_bounds() {
        let uncertainty = |source| Clock::new(source).now().uncertainty;
        assert_eq!(uncertainty(Source::Host), Some(Duration::from_micros(1)));
        assert_eq!(uncertainty(Source::Configured(Duration(7))), Some(Duration(7)));
        assert_eq!(uncertainty(Source::None), None);
        read_kernel().expect("reading needs no privilege");
    }
}
