//! Readers that wait at a log unit for what isn't there yet.
//!
//! A follower at its log's end asks once, and hears as soon as the entry has come: nobody looks again and again. Where
//! the unit is sealed, or trimmed, all who wait there ask again: the log may go on elsewhere. A reader is told that
//! nothing has come when its wait is over; so is at once who finds too many waiting.

use std::collections::BTreeMap;

use base::limits::WAITS_IN_FLIGHT_MAX;
use base::{CohortId, Monotonic, Now};
use sharedlog::Position;
use sharedlog::log_unit::News;
use sharedlog::unit::Reply;

use crate::node::Node;
use crate::pending::{PendingId, Place};

/// Readers that wait at the units of one node, at most: all that may wait at the doors of four.
const AWAITS_MAX: usize = 4 * WAITS_IN_FLIGHT_MAX;

/// Who waits for what.
#[derive(Debug, Default)]
pub(crate) struct Awaits {
    of: BTreeMap<(CohortId, Position), Vec<PendingId>>,
    until: BTreeMap<(Monotonic, PendingId), (CohortId, Position)>,
}

impl Awaits {
    pub(super) fn next_timer(&self) -> Option<Monotonic> {
        self.until.first_key_value().map(|((until, _), _)| *until)
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    fn insert(&mut self, id: PendingId, cohort: CohortId, position: Position, until: Monotonic) {
        self.of.entry((cohort, position)).or_default().push(id);
        self.until.insert((until, id), (cohort, position));
    }

    /// Those who wait for a position of a unit.
    fn take(&mut self, cohort: CohortId, position: Position) -> Vec<PendingId> {
        self.of.remove(&(cohort, position)).unwrap_or_default()
    }

    /// All who wait at a unit.
    fn take_all(&mut self, cohort: CohortId) -> Vec<PendingId> {
        let of_unit = (cohort, Position(0))..=(cohort, Position(u64::MAX));
        self.of.extract_if(of_unit, |_, _| true).flat_map(|(_, waiting)| waiting).collect()
    }

    /// One whose wait is over.
    fn take_due(&mut self, now: Monotonic) -> Option<PendingId> {
        let (first, place) = self.until.first_key_value().filter(|((until, _), _)| *until <= now)?;
        let ((until, id), place) = (*first, *place);
        self.until.remove(&(until, id));
        if let Some(waiting) = self.of.get_mut(&place) {
            waiting.retain(|other| *other != id);
            if waiting.is_empty() {
                self.of.remove(&place);
            }
        }
        Some(id)
    }
}

impl Node {
    /// A reader waits at a unit until something comes, if it may.
    pub(super) fn await_position(&mut self, id: PendingId, cohort: CohortId, position: Position, until: Monotonic) {
        if self.logs.awaits.len() >= AWAITS_MAX {
            return self.unit_replies(id, Reply::Unwritten);
        }
        self.pendings.place(id, Place::AtUnit { until });
        self.logs.awaits.insert(id, cohort, position, until);
    }

    /// A unit has applied an entry of its log: whoever waited for what that has brought asks again.
    pub(crate) fn unit_applied(&mut self, cohort: CohortId, now: Now) {
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        let Some(unit) = replica.state.as_unit_mut() else { return };
        let News { stored, is_other } = unit.take_news();
        let awaits = &mut self.logs.awaits;
        let waiting: Vec<PendingId> = match is_other {
            true => awaits.take_all(cohort),
            false => stored.into_iter().flat_map(|position| awaits.take(cohort, position)).collect(),
        };
        for id in waiting {
            let Some(Place::AtUnit { until }) = self.pendings.get(id).map(|pending| pending.place) else { continue };
            self.logs.awaits.until.remove(&(until, id));
            self.unit_asked(id, cohort, now);
        }
    }

    /// Who has waited long enough is told that nothing came.
    pub(super) fn await_timers(&mut self, now: Now) {
        while let Some(id) = self.logs.awaits.take_due(now.monotonic) {
            if self.pendings.get(id).is_some_and(|pending| matches!(pending.place, Place::AtUnit { .. })) {
                self.unit_replies(id, Reply::Unwritten);
            }
        }
    }
}

#[cfg(test)]
mod tests;
