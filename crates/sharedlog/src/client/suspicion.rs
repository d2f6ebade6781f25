//! Which units have answered nothing for how long, and whether the sequencer has.
//!
//! A call reports whom it has asked twice without an answer. Calls with deadlines before that would never report
//! anybody, though one after the other waits for the same unit: so the silences of all calls are watched together.

use std::collections::BTreeMap;

use base::{DetectorConfig, Duration, FailureDetector, Monotonic};

use crate::client::{Suspect, Timing};
use crate::{AskId, Projection};

/// A request that was given up so long ago, with none after it, says nothing of its target any more.
const STALE: Duration = Duration::from_millis(1_000);
/// Requests that were given up, and whose late answers still count as signs of life, at most.
const LATE_MAX: usize = 1_024;

/// The client's failure detector.
#[derive(Debug)]
pub(super) struct Suspicions {
    detector: FailureDetector<Suspect>,
    late: BTreeMap<AskId, Suspect>,
}

impl Suspicions {
    /// Suspicion takes two first attempts without an answer.
    pub(super) fn new(timing: Timing) -> Self {
        let config = DetectorConfig::with_timeout(Duration(2 * timing.answer.0));
        Self { detector: FailureDetector::new(config), late: BTreeMap::new() }
    }

    /// A request is sent that may be answered from then on.
    pub(super) fn asked(&mut self, whom: Suspect, from: Monotonic) {
        self.detector.expect(whom, from, STALE);
    }

    pub(super) fn answered(&mut self, whom: Suspect, now: Monotonic) {
        self.detector.answered(whom, now);
    }

    /// No call waits for the answer any more.
    pub(super) fn gave_up(&mut self, ask: AskId, whom: Suspect) {
        self.late.insert(ask, whom);
        if self.late.len() > LATE_MAX {
            self.late.pop_first();
        }
    }

    /// An answer has come that no call waits for.
    pub(super) fn answered_late(&mut self, ask: AskId, now: Monotonic) {
        if let Some(whom) = self.late.remove(&ask) {
            self.detector.answered(whom, now);
        }
    }

    pub(super) fn is_silent(&self, whom: Suspect, now: Monotonic) -> bool {
        self.detector.is_silent(whom, now)
    }

    pub(super) fn suspect(&mut self, whom: Suspect) {
        self.detector.suspect(whom);
    }

    /// Requests of older projections are given up. Units that stay keep their timeouts, and so does a sequencer.
    pub(super) fn projected(&mut self, old: Option<&Projection>, new: &Projection) {
        self.late.clear();
        let units = new.units();
        let is_same = old.is_some_and(|old| old.sequencer == new.sequencer);
        self.detector.retain(|whom| match whom {
            Suspect::Unit(unit) => units.contains(&unit),
            Suspect::Sequencer => is_same,
            Suspect::Projection => false,
        });
    }
}
