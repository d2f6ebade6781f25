//! Reads that are parked at a log unit until an entry arrives (long poll).
//!
//! A reader at the end of the log sends one request and gets the reply as soon as the entry arrives. When the unit is
//! sealed or trimmed, all parked reads are answered at once, because the log may continue on other units. At the end of
//! its wait a read gets the reply "no entry". If too many reads are parked, further ones get that reply immediately.

use std::collections::BTreeMap;

use base::limits::WAITS_IN_FLIGHT_MAX;
use base::{CohortId, Monotonic};
use sharedlog::Position;
use sharedlog::unit::Request;

use super::units::UnitCall;

/// Maximum number of reads parked at the units of one node: as many as the endpoints of four nodes may have waiting.
const AWAITS_MAX: usize = 4 * WAITS_IN_FLIGHT_MAX;

/// The parked reads, ordered by position and by the end of their wait.
#[derive(Debug, Default)]
pub(crate) struct ParkedReads {
    last: u64,
    by_position: BTreeMap<(CohortId, Position, u64), UnitCall>,
    by_end: BTreeMap<(Monotonic, u64), (CohortId, Position)>,
}

impl ParkedReads {
    pub(super) fn next_timer(&self) -> Option<Monotonic> {
        self.by_end.first_key_value().map(|((end, _), _)| *end)
    }

    pub(super) fn has_room(&self) -> bool {
        self.by_end.len() < AWAITS_MAX
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_end.len()
    }

    pub(super) fn insert(&mut self, call: UnitCall) {
        let Request::Await { position, .. } = call.request else { return };
        self.last += 1;
        self.by_end.insert((call.until, self.last), (call.cohort, position));
        self.by_position.insert((call.cohort, position, self.last), call);
    }

    /// Removes and returns the reads parked at a unit for these positions, or all of them.
    pub(super) fn take(&mut self, cohort: CohortId, stored: &[Position], all: bool) -> Vec<UnitCall> {
        if self.by_end.is_empty() {
            return Vec::new();
        }
        let everything = [(Position(0), Position(u64::MAX))];
        let stored: Vec<_> = stored.iter().map(|position| (*position, *position)).collect();
        let mut taken = Vec::new();
        for (first, last) in if all { &everything[..] } else { &stored } {
            let range = (cohort, *first, 0)..=(cohort, *last, u64::MAX);
            for ((.., number), call) in self.by_position.extract_if(range, |_, _| true) {
                self.by_end.remove(&(call.until, number));
                taken.push(call);
            }
        }
        taken
    }

    /// Removes one read with an expired wait.
    pub(super) fn take_due(&mut self, now: Monotonic) -> Option<UnitCall> {
        let first = self.by_end.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, number), (cohort, position)) = first.remove_entry();
        self.by_position.remove(&(cohort, position, number))
    }
}

#[cfg(test)]
mod tests;
