//! An adaptive-timeout failure detector.
//!
//! A target that was expected to send something and stayed silent for its timeout may be suspected. The user reports
//! when it acts on that ([`FailureDetector::suspect`]). If the target sends something afterwards, the suspicion was
//! false, and its timeout doubles, up to a bound (Chandra and Toueg, Unreliable failure detectors for reliable
//! distributed systems, JACM 43(2), 1996, figure 10). The timeout halves again after each quiet period without a false
//! suspicion. Otherwise every failover after an overload would be slow.
//!
//! It supports heartbeats, where each heartbeat makes the next one expected, and responses, which are expected only
//! after a request. Time is a parameter. Users may pass an [`AwakeClock`], which stops while the process is paused, so
//! that a process does not suspect all others after a pause of its own.

use std::collections::BTreeMap;

use crate::{Duration, Monotonic};

/// The policy: how long a target may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorConfig {
    pub timeout: Duration,
    /// Maximum doublings of the timeout.
    pub doublings_max: u32,
    /// After this time without a false suspicion the timeout is halved.
    pub quiet: Duration,
}

impl DetectorConfig {
    /// A policy with this timeout, doubled up to three times, and halved after each 30 s.
    #[must_use]
    pub const fn with_timeout(timeout: Duration) -> Self {
        Self { timeout, doublings_max: 3, quiet: Duration::from_millis(30_000) }
    }
}

/// The number of doublings of a delay that have not been halved yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    doublings: u32,
    /// The time of the last doubling.
    doubled_at: Monotonic,
}

impl Backoff {
    pub fn double(&mut self, config: &DetectorConfig, now: Monotonic) {
        let doublings = self.doublings(config, now).saturating_add(1).min(config.doublings_max);
        *self = Self { doublings, doubled_at: now };
    }

    /// The current number of doublings.
    #[must_use]
    pub fn doublings(&self, config: &DetectorConfig, now: Monotonic) -> u32 {
        let halved = now.since(self.doubled_at).0 / config.quiet.0.max(1);
        self.doublings.saturating_sub(u32::try_from(halved).unwrap_or(u32::MAX))
    }

    /// Applies the doublings to `delay`.
    #[must_use]
    pub fn scale(&self, delay: Duration, config: &DetectorConfig, now: Monotonic) -> Duration {
        Duration(delay.0 << self.doublings(config, now))
    }

    fn was_doubled_within(&self, span: Duration, now: Monotonic) -> bool {
        self.doublings > 0 && now.since(self.doubled_at) <= span
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Target {
    silent_since: Option<Monotonic>,
    /// When a message was last expected from it.
    expected_at: Monotonic,
    is_suspected: bool,
    backoff: Backoff,
}

/// Monitors targets, each with its own timeout.
#[derive(Clone, Debug)]
pub struct FailureDetector<T> {
    config: DetectorConfig,
    targets: BTreeMap<T, Target>,
}

impl<T: Ord + Copy> FailureDetector<T> {
    /// A detector without targets.
    #[must_use]
    pub const fn new(config: DetectorConfig) -> Self {
        Self { config, targets: BTreeMap::new() }
    }

    /// Records a heartbeat, and expects the next one.
    pub fn heartbeat(&mut self, target: T, now: Monotonic) {
        self.answered(target, now);
        let target = self.targets.entry(target).or_default();
        (target.silent_since, target.expected_at) = (Some(now), now);
    }

    /// Expects a message from `from` on. A silence that has already begun continues, unless nothing was expected for
    /// `stale`.
    pub fn expect(&mut self, target: T, from: Monotonic, stale: Duration) {
        let target = self.targets.entry(target).or_default();
        if target.silent_since.is_none() || from.since(target.expected_at) > stale {
            target.silent_since = Some(from);
        }
        target.expected_at = target.expected_at.max(from);
    }

    /// Records that the expected message arrived, and expects no other.
    pub fn answered(&mut self, target: T, now: Monotonic) {
        let Some(target) = self.targets.get_mut(&target) else { return };
        target.silent_since = None;
        if std::mem::take(&mut target.is_suspected) {
            target.backoff.double(&self.config, now);
        }
    }

    /// Records that the user acts on the silence of a target. If the target sends something later, the suspicion was
    /// false.
    pub fn suspect(&mut self, target: T) {
        if let Some(target) = self.targets.get_mut(&target) {
            target.is_suspected |= target.silent_since.is_some();
        }
    }

    /// Records that a live target responded too late for its user. Several reports within `span` count as one false
    /// suspicion.
    pub fn too_late(&mut self, target: T, span: Duration, now: Monotonic) {
        if let Some(target) = self.targets.get_mut(&target)
            && !target.backoff.was_doubled_within(span, now)
        {
            target.backoff.double(&self.config, now);
        }
    }

    /// Forgets a target, because its process has restarted and its history does not apply to the new process.
    pub fn restarted(&mut self, target: T) {
        self.targets.remove(&target);
    }

    /// Ends all expectations, and keeps only some targets, with their timeouts.
    pub fn retain(&mut self, is_kept: impl Fn(T) -> bool) {
        self.targets.retain(|target, _| is_kept(*target));
        self.targets.values_mut().for_each(|target| target.silent_since = None);
    }

    /// How long an expected message has been missing; none if no message is expected.
    #[must_use]
    pub fn silence(&self, target: T, now: Monotonic) -> Option<Duration> {
        Some(now.since(self.targets.get(&target)?.silent_since?))
    }

    /// The current number of doublings for a target, for use with other timeouts of the same target.
    #[must_use]
    pub fn doublings(&self, target: T, now: Monotonic) -> u32 {
        self.targets.get(&target).map_or(0, |target| target.backoff.doublings(&self.config, now))
    }

    /// How long a target may be silent.
    #[must_use]
    pub fn timeout(&self, target: T, now: Monotonic) -> Duration {
        Duration(self.config.timeout.0 << self.doublings(target, now))
    }

    /// Whether an expected message has been missing for the target's timeout.
    #[must_use]
    pub fn is_silent(&self, target: T, now: Monotonic) -> bool {
        self.silence(target, now).is_some_and(|silence| silence >= self.timeout(target, now))
    }
}

/// A clock that stops while its process is paused: it advances by at most `step` from one event to the next.
#[derive(Clone, Copy, Debug)]
pub struct AwakeClock {
    step: Duration,
    time: Monotonic,
    last: Option<Monotonic>,
}

impl AwakeClock {
    /// A running process handles an event at least every `step`.
    #[must_use]
    pub const fn new(step: Duration) -> Self {
        Self { step, time: Monotonic(0), last: None }
    }

    pub fn event(&mut self, now: Monotonic) {
        let passed = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.time = self.time + Duration(passed.0.min(self.step.0));
        self.last = Some(now);
    }

    #[must_use]
    pub const fn time(&self) -> Monotonic {
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const CONFIG: DetectorConfig = DetectorConfig::with_timeout(Duration::from_millis(250));

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * MILLISECOND)
    }

    #[test]
    fn no_verdict_without_expected_answer() {
        let mut detector = FailureDetector::new(CONFIG);
        assert_eq!((detector.silence(1, at(5)), detector.is_silent(1, at(5))), (None, false));
        detector.suspect(1);
        detector.heartbeat(1, at(10));
        assert_eq!(detector.silence(1, at(30)), Some(Duration::from_millis(20)));
        assert_eq!([259, 260].map(|time| detector.is_silent(1, at(time))), [false, true]);
        assert!(!detector.is_silent(2, at(9_999)));
    }

    #[test]
    fn false_suspicion_doubles_timeout() {
        let mut detector = FailureDetector::new(CONFIG);
        let mut now = 0;
        for timeout in [250, 500, 1_000, 2_000, 2_000] {
            detector.heartbeat(1, at(now));
            assert_eq!(detector.timeout(1, at(now)), Duration::from_millis(timeout));
            now += timeout;
            assert!(!detector.is_silent(1, at(now - 1)) && detector.is_silent(1, at(now)));
            detector.suspect(1);
        }
        detector.heartbeat(1, at(now));
        for timeout in [2_000, 1_000, 500, 250, 250] {
            assert_eq!(detector.timeout(1, at(now)), Duration::from_millis(timeout));
            now += 30_000;
            detector.heartbeat(1, at(now));
        }
    }

    #[test]
    fn restart_confirms_suspicion() {
        let mut detector = FailureDetector::new(CONFIG);
        detector.heartbeat(1, at(0));
        detector.suspect(1);
        detector.restarted(1);
        detector.heartbeat(1, at(1_000));
        assert_eq!(detector.doublings(1, at(1_000)), 0);
    }

    #[test]
    fn concurrent_late_replies_count_once() {
        let mut detector = FailureDetector::new(CONFIG);
        detector.heartbeat(1, at(0));
        (0..9).for_each(|_| detector.too_late(1, Duration::from_millis(1_000), at(5_000)));
        assert_eq!(detector.doublings(1, at(5_000)), 1);
        detector.too_late(1, Duration::from_millis(1_000), at(6_001));
        assert_eq!(detector.doublings(1, at(6_001)), 2);
    }

    #[test]
    fn silence_counts_from_first_request() {
        let (mut detector, stale) = (FailureDetector::new(CONFIG), Duration::from_millis(1_000));
        detector.expect(1, at(100), stale);
        detector.expect(1, at(300), stale);
        assert_eq!([349, 350].map(|time| detector.is_silent(1, at(time))), [false, true]);
        detector.suspect(1);
        detector.answered(1, at(360));
        assert_eq!(detector.silence(1, at(400)), None);
        assert_eq!(detector.timeout(1, at(400)), Duration::from_millis(500));
        detector.expect(1, at(400), stale);
        detector.expect(1, at(1_500), stale);
        assert_eq!(
            detector.silence(1, at(1_510)),
            Some(Duration::from_millis(10)),
            "the restart cleared the first request"
        );
    }

    #[test]
    fn retained_targets_keep_their_timeouts() {
        let (mut detector, stale) = (FailureDetector::new(CONFIG), Duration::from_millis(1_000));
        for target in [1, 2] {
            detector.expect(target, at(0), stale);
            detector.suspect(target);
            detector.answered(target, at(300));
            detector.expect(target, at(300), stale);
        }
        detector.retain(|target| target == 1);
        assert_eq!([1, 2].map(|target| detector.silence(target, at(400))), [None; 2]);
        assert_eq!([1, 2].map(|target| detector.doublings(target, at(400))), [1, 0]);
    }

    #[test]
    fn awake_clock_excludes_pauses() {
        let mut clock = AwakeClock::new(Duration::from_millis(100));
        [1_000, 1_050, 9_000, 9_100].into_iter().for_each(|time| clock.event(at(time)));
        assert_eq!(clock.time(), at(250));
    }
}
