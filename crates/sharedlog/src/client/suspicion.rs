//! Tracks how long units and the sequencer have been silent.
//!
//! A call reports a target after two requests without a reply. Calls with shorter deadlines would never report one,
//! even if many of them wait for the same unit one after the other. Therefore silence is tracked over all calls.

use std::collections::BTreeMap;

use base::{DetectorConfig, Duration, FailureDetector, Monotonic};

use crate::client::{Suspect, Timing};
use crate::{AskId, Projection};

/// A request abandoned longer ago than this, without a later one, says nothing about its target.
const STALE: Duration = Duration::from_millis(1_000);
/// Maximum abandoned requests for which a late reply still counts as a sign of life.
const LATE_MAX: usize = 1_024;

/// The client's failure detector.
#[derive(Debug)]
pub(super) struct Suspicions {
    detector: FailureDetector<Suspect>,
    late: BTreeMap<AskId, Suspect>,
}

impl Suspicions {
    /// The timeout is that of two first attempts.
    pub(super) fn new(timing: Timing) -> Self {
        let config = DetectorConfig::with_timeout(Duration(2 * timing.answer.0));
        Self { detector: FailureDetector::new(config), late: BTreeMap::new() }
    }

    /// A request was sent; a reply is due from `from` on.
    pub(super) fn asked(&mut self, target: Suspect, from: Monotonic) {
        self.detector.expect(target, from, STALE);
    }

    pub(super) fn answered(&mut self, target: Suspect, now: Monotonic) {
        self.detector.answered(target, now);
    }

    /// No call waits for the reply any more.
    pub(super) fn abandoned(&mut self, ask: AskId, target: Suspect) {
        self.late.insert(ask, target);
        if self.late.len() > LATE_MAX {
            self.late.pop_first();
        }
    }

    /// Handles a reply that no call waits for.
    pub(super) fn answered_late(&mut self, ask: AskId, now: Monotonic) {
        if let Some(target) = self.late.remove(&ask) {
            self.detector.answered(target, now);
        }
    }

    pub(super) fn is_silent(&self, target: Suspect, now: Monotonic) -> bool {
        self.detector.is_silent(target, now)
    }

    pub(super) fn suspect(&mut self, target: Suspect) {
        self.detector.suspect(target);
    }

    /// Abandons requests of older projections. Units that remain keep their timeouts, and so does an unchanged
    /// sequencer.
    pub(super) fn projected(&mut self, old: Option<&Projection>, new: &Projection) {
        self.late.clear();
        let units = new.units();
        let is_same = old.is_some_and(|old| old.sequencer == new.sequencer);
        self.detector.retain(|target| match target {
            Suspect::Unit(unit) => units.contains(&unit),
            Suspect::Sequencer => is_same,
            Suspect::Projection => false,
        });
    }
}
