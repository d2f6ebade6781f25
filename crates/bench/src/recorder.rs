//! Records the operations of a run: latencies, errors, and the longest time without success of any client.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Maximum distinguishable latency, in microseconds: the timeout of an operation.
const LATENCY_MAX_US: u64 = 60_000_000;
/// Significant digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// Counters for clients that share a thread.
#[derive(Default)]
pub(crate) struct Recorder(RefCell<Option<Counting>>);

struct Counting {
    began: Instant,
    latencies_us: Histogram<u64>,
    last_success: Instant,
    longest_gap: Gap,
    conflicts: u64,
    held_back: u64,
    errors: u64,
    last_error: Option<sdk::Error>,
    /// The times of the successes, if they are kept.
    successes: Option<Vec<Instant>>,
}

/// A time without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// The gap was ended by the end of the run, not by a success.
    pub(crate) is_open: bool,
}

impl Gap {
    pub(crate) fn length(&self) -> Duration {
        self.ended - self.began
    }
}

pub(crate) struct Counted {
    pub(crate) elapsed: Duration,
    /// Of successful operations, and the elapsed time of unfinished ones.
    pub(crate) latencies_us: Histogram<u64>,
    /// Operations of an open loop with an intended start before the end and without a response.
    pub(crate) unfinished: u64,
    /// The longest time between two successes of any clients, or between one and the start or end of the run.
    pub(crate) longest_gap: Gap,
    /// Conditional puts that were refused: responses without a write.
    pub(crate) conflicts: u64,
    /// Operations of an open loop that waited for a client.
    pub(crate) held_back: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: Option<sdk::Error>,
    /// The times of the successes, if they were kept.
    pub(crate) successes: Vec<Instant>,
}

impl Counted {
    pub(crate) fn operations(&self) -> u64 {
        self.latencies_us.len() - self.unfinished
    }
}

impl Recorder {
    pub(crate) fn start(&self) {
        let now = Instant::now();
        let latencies_us =
            Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS).expect("the bounds are constants");
        self.0.replace(Some(Counting {
            began: now,
            latencies_us,
            last_success: now,
            longest_gap: Gap { began: now, ended: now, is_open: false },
            conflicts: 0,
            held_back: 0,
            errors: 0,
            last_error: None,
            successes: None,
        }));
    }

    /// [`Recorder::start`], and keeps the time of each success.
    pub(crate) fn start_with_times(&self) {
        self.start();
        if let Some(counting) = &mut *self.0.borrow_mut() {
            counting.successes = Some(Vec::new());
        }
    }

    /// Records the outcome of an operation with this intended start. The success of an operation that began before the
    /// run also ends a gap.
    pub(crate) fn ended(&self, began: Instant, done: Result<(), sdk::Error>) {
        self.ended_at(began, Instant::now(), done);
    }

    /// [`Recorder::ended`] at a given time, for operations that ended together.
    pub(crate) fn ended_at(&self, began: Instant, now: Instant, done: Result<(), sdk::Error>) {
        let Some(counting) = &mut *self.0.borrow_mut() else { return };
        match done {
            Ok(()) => {
                counting.gap_ends(now, false);
                counting.last_success = now;
                counting.add_latency(now - began);
                if let Some(successes) = &mut counting.successes {
                    successes.push(now);
                }
            }
            Err(sdk::Error::Refused { .. }) => counting.conflicts += 1,
            Err(error) => {
                counting.errors += 1;
                counting.last_error = Some(error);
            }
        }
    }

    /// Records that an operation had to wait for a client.
    pub(crate) fn was_held_back(&self) {
        if let Some(counting) = &mut *self.0.borrow_mut() {
            counting.held_back += 1;
        }
    }

    /// Ends the run. Unfinished operations of an open loop are recorded with their elapsed time: otherwise the latency of
    /// a server that hangs at the end would be missing.
    ///
    /// # Panics
    /// When it was never started.
    pub(crate) fn stop(&self, unfinished: &[Instant]) -> Counted {
        let mut counting = self.0.take().expect("the run was started");
        let now = Instant::now();
        counting.gap_ends(now, true);
        for intended in unfinished {
            counting.add_latency(now.saturating_duration_since(*intended));
        }
        let Counting { began, latencies_us, longest_gap, conflicts, held_back, errors, last_error, successes, .. } =
            counting;
        let unfinished = unfinished.len() as u64;
        Counted {
            elapsed: now - began,
            latencies_us,
            unfinished,
            longest_gap,
            conflicts,
            held_back,
            errors,
            last_error,
            successes: successes.unwrap_or_default(),
        }
    }
}

impl Counting {
    fn gap_ends(&mut self, now: Instant, is_open: bool) {
        let gap = Gap { began: self.last_success, ended: now, is_open };
        if gap.length() > self.longest_gap.length() {
            self.longest_gap = gap;
        }
    }

    fn add_latency(&mut self, latency: Duration) {
        self.latencies_us.saturating_record(latency.as_micros() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_completions_in_run() {
        let recorder = Recorder::default();
        recorder.ended(Instant::now(), Ok(()));
        recorder.start();
        recorder.ended(Instant::now(), Ok(()));
        recorder.ended(Instant::now(), Err(sdk::Error::Unavailable("x".into())));
        let (expected, actual) = (sdk::Version::ABSENT, sdk::Version::from_nanos(2));
        let refused = sdk::Error::Refused { column: "c".into(), expected, actual };
        recorder.ended(Instant::now(), Err(refused));
        let counted = recorder.stop(&[]);
        assert_eq!((counted.operations(), counted.errors, counted.conflicts), (1, 1, 1));
        recorder.ended(Instant::now(), Ok(()));
    }

    #[test]
    fn run_without_success_is_one_open_gap() {
        let recorder = Recorder::default();
        recorder.start();
        let counted = recorder.stop(&[]);
        assert_eq!((counted.longest_gap.length(), counted.longest_gap.is_open), (counted.elapsed, true));
    }

    #[test]
    fn unfinished_operations_add_latency_only() {
        let recorder = Recorder::default();
        recorder.start();
        recorder.ended(Instant::now(), Ok(()));
        let counted = recorder.stop(&[Instant::now() - Duration::from_secs(3)]);
        assert_eq!((counted.operations(), counted.unfinished), (1, 1));
        assert!(counted.latencies_us.max() >= 3_000_000);
    }
}
