//! Counts what the clients of a run do: latencies, errors, and the longest time in which none of them had success.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The longest latency that is told from longer ones: an operation's own limit.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Digits that a latency keeps.
const LATENCY_DIGITS: u8 = 3;

/// Counts for clients that share a thread.
#[derive(Default)]
pub(crate) struct Recorder(RefCell<Option<Counting>>);

struct Counting {
    began: Instant,
    latencies_us: Histogram<u64>,
    last_success: Instant,
    longest_gap: Duration,
    errors: u64,
    last_error: Option<sdk::Error>,
}

/// What was counted.
pub(crate) struct Counted {
    pub(crate) elapsed: Duration,
    pub(crate) latencies_us: Histogram<u64>,
    /// The longest time between two successes of any clients, or between one and an end of the run.
    pub(crate) longest_gap: Duration,
    pub(crate) errors: u64,
    pub(crate) last_error: Option<sdk::Error>,
}

impl Recorder {
    /// From now on everything counts.
    pub(crate) fn start(&self) {
        let now = Instant::now();
        let latencies_us =
            Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).expect("the bounds are constants");
        let (longest_gap, errors, last_error) = (Duration::ZERO, 0, None);
        self.0.replace(Some(Counting { began: now, latencies_us, last_success: now, longest_gap, errors, last_error }));
    }

    /// An operation that began then has just succeeded. One that began before the run is not the run's, but its success
    /// ends a gap.
    pub(crate) fn success(&self, began: Instant) {
        let now = Instant::now();
        if let Some(counting) = &mut *self.0.borrow_mut() {
            counting.gap_ends(now);
            counting.last_success = now;
            counting.latencies_us.saturating_record((now - began).as_micros() as u64);
        }
    }

    pub(crate) fn error(&self, error: sdk::Error) {
        if let Some(counting) = &mut *self.0.borrow_mut() {
            counting.errors += 1;
            counting.last_error = Some(error);
        }
    }

    /// Ends the run.
    ///
    /// # Panics
    /// When it was never started.
    pub(crate) fn stop(&self) -> Counted {
        let mut counting = self.0.take().expect("a run ends after it began");
        let now = Instant::now();
        counting.gap_ends(now);
        let Counting { began, latencies_us, longest_gap, errors, last_error, .. } = counting;
        Counted { elapsed: now - began, latencies_us, longest_gap, errors, last_error }
    }
}

impl Counting {
    fn gap_ends(&mut self, now: Instant) {
        self.longest_gap = self.longest_gap.max(now - self.last_success);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_in_the_run_counts() {
        let recorder = Recorder::default();
        recorder.success(Instant::now());
        recorder.start();
        recorder.success(Instant::now());
        recorder.error(sdk::Error::Unavailable("x".into()));
        let counted = recorder.stop();
        assert_eq!((counted.latencies_us.len(), counted.errors), (1, 1));
        recorder.success(Instant::now());
    }

    #[test]
    fn a_run_without_success_is_one_gap() {
        let recorder = Recorder::default();
        recorder.start();
        let counted = recorder.stop();
        assert_eq!(counted.longest_gap, counted.elapsed);
    }
}
