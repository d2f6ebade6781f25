//! Follows a shared log through any node: decides from which node and position to subscribe, and which entries to deliver.
//!
//! After a node fails or stops responding, the subscription moves to the next node, at the first undelivered position. So
//! each position is delivered once, without gaps.

use base::{Duration, Monotonic, SplitMix64};

use crate::attempts::{Attempts, Next};
use crate::{Effect, Error, Fault};

/// A subscription to a log.
#[derive(Clone, Debug)]
pub struct Follower {
    next: u64,
    endpoint: usize,
    endpoints: usize,
    /// Maximum time without a response from any node.
    patience: Duration,
    /// The failed attempts since the last response, and the time of the first.
    failures: Option<(Attempts, Monotonic)>,
    jitter: SplitMix64,
}

/// The relation of a received entry to the delivered ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOrder {
    Next,
    /// An entry that was delivered before.
    Duplicate,
    /// Entries before it are missing, so the node must not be followed.
    Gap,
}

impl Follower {
    /// Follows from a position on, starting at one of the endpoints. Fails after `patience` without a response.
    #[must_use]
    pub fn new(next: u64, endpoint: usize, endpoints: usize, patience: Duration, seed: u64) -> Self {
        let endpoints = endpoints.max(1);
        let jitter = SplitMix64::new(seed);
        Self { next, endpoint: endpoint % endpoints, endpoints, patience, failures: None, jitter }
    }

    /// The first position that was not delivered yet, from which to subscribe.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The endpoint to subscribe at.
    #[must_use]
    pub fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// Classifies a received entry, which represents the positions from `position` to `after`, exclusive.
    pub fn accept(&mut self, position: u64, after: u64) -> EntryOrder {
        if after <= self.next {
            return EntryOrder::Duplicate;
        }
        if position > self.next {
            return EntryOrder::Gap;
        }
        self.next = after;
        EntryOrder::Next
    }

    /// Records a response of the node.
    pub fn responded(&mut self) {
        self.failures = None;
    }

    /// Records a failure of the endpoint, and selects the next one. Returns the pause before subscribing there.
    ///
    /// # Errors
    /// Other nodes would fail in the same way, or no node has responded for too long.
    pub fn failed(&mut self, fault: Fault, now: Monotonic) -> Result<Duration, Error> {
        let (endpoints, patience) = (self.endpoints as u32, self.patience);
        let begun = || (Attempts::new(Effect::Reads, endpoints, patience), now);
        let (attempts, since) = self.failures.get_or_insert_with(begun);
        let left = Duration(self.patience.0.saturating_sub(now.since(*since).0));
        match attempts.after(fault, left, &mut self.jitter) {
            Next::GiveUp(error) => Err(error),
            Next::OutOfTime | Next::NewSession => Err(attempts.out_of_time(left)),
            Next::Retry { pause, elsewhere } => {
                if elsewhere {
                    self.endpoint = (self.endpoint + 1) % self.endpoints;
                }
                Ok(pause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(1_000);

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(0) + Duration::from_millis(milliseconds)
    }

    fn lost() -> Fault {
        Fault::Lost("reset".into())
    }

    #[test]
    fn failover_skips_delivered_positions() {
        let mut follower = Follower::new(5, 1, 3, PATIENCE, 1);
        assert_eq!((follower.endpoint(), follower.next()), (1, 5));
        assert_eq!(follower.accept(5, 6), EntryOrder::Next);
        assert_eq!(follower.accept(6, 90), EntryOrder::Next, "a trimmed range is one entry");
        assert_eq!(follower.failed(lost(), at(0)), Ok(Duration::ZERO));
        assert_eq!((follower.endpoint(), follower.next()), (2, 90));
        assert_eq!(follower.accept(88, 89), EntryOrder::Duplicate);
        assert_eq!(follower.accept(91, 92), EntryOrder::Gap);
        assert_eq!(follower.accept(80, 95), EntryOrder::Next, "the trimmed range grew meanwhile");
        assert_eq!(follower.next(), 95);
    }

    #[test]
    fn gives_up_after_prolonged_silence() {
        let mut follower = Follower::new(0, 0, 2, PATIENCE, 1);
        assert!(follower.failed(lost(), at(0)).is_ok());
        assert!(follower.failed(lost(), at(900)).is_ok());
        follower.responded();
        assert!(follower.failed(lost(), at(5_000)).is_ok());
        assert!(follower.failed(lost(), at(5_900)).is_ok());
        assert!(matches!(follower.failed(lost(), at(6_000)), Err(Error::Unavailable(_))));
    }

    #[test]
    fn missing_log_is_not_retried() {
        let mut follower = Follower::new(0, 0, 2, PATIENCE, 1);
        let unknown = Error::NotFound("no log named \"l\"".into());
        assert_eq!(follower.failed(Fault::Definite(unknown.clone()), at(0)), Err(unknown));
    }
}
