//! Coverage of a search: if some part of the protocol was never reached, the scope was too small to test it.

use std::collections::BTreeMap;

use super::event::{Event, Outcome};
use super::replica::Replica;

/// A set of coverage points, one bit each.
pub(super) type Marks = u32;

/// Names of the coverage points, by bit.
const NAMES: [&str; 14] = [
    "leaders of epoch 1",
    "leaders of epoch 2",
    "leaders of epoch 3",
    "leaders of epoch 4",
    "client entries in epoch 1",
    "client entries in epoch 2",
    "client entries in epoch 3",
    "client entries in epoch 4",
    "truncations",
    "re-proposals",
    "commits",
    "crashes",
    "records lost",
    "membership changes",
];
const EPOCHS: u64 = 4;
const TRUNCATION: Marks = 1 << 8;
const REPROPOSAL: Marks = 1 << 9;
const COMMIT: Marks = 1 << 10;
const CRASH: Marks = 1 << 11;
const LOSS: Marks = 1 << 12;
const CHANGE: Marks = 1 << 13;

/// The coverage points that an event reached.
pub(super) fn marks(before: &Replica, event: Event, outcome: &Outcome) -> Marks {
    let (old, new) = (&before.cohort, &outcome.replica.cohort);
    let epoch = u32::try_from(new.promised().epoch.0.min(EPOCHS)).unwrap_or(0).saturating_sub(1);
    let mut marks = 0;
    if new.leads() && !old.leads() {
        marks |= 1 << epoch;
        if old.last().sequence > old.committed() {
            marks |= REPROPOSAL;
        }
    }
    if event == Event::Propose && new.last() > old.last() {
        marks |= 1 << (u64::from(epoch) + EPOCHS);
    }
    if matches!(event, Event::Change(_)) && new.last() > old.last() {
        marks |= CHANGE;
    }
    if let Event::Crash { .. } = event {
        marks |= CRASH;
        if new.last() < old.last() {
            marks |= LOSS;
        }
    } else if old.entries().any(|entry| new.lsn_at(entry.lsn.sequence).is_some_and(|held| held != entry.lsn)) {
        marks |= TRUNCATION;
    }
    if new.leads() && new.committed() > old.committed() {
        marks |= COMMIT;
    }
    marks
}

/// How often each point was reached.
#[derive(Default)]
pub(super) struct Counters([u64; NAMES.len()]);

impl Counters {
    pub(super) fn add(&mut self, mut marks: Marks) {
        while marks != 0 {
            self.0[marks.trailing_zeros() as usize] += 1;
            marks &= marks - 1;
        }
    }

    pub(super) fn named(&self) -> BTreeMap<&'static str, u64> {
        NAMES.iter().copied().zip(self.0).filter(|(_, times)| *times > 0).collect()
    }
}
