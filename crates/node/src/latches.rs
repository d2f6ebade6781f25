//! Which rows have writes under way at a leader.
//!
//! A condition is decided from the applied state before its write is proposed ([`tablets::Tablet::decide`]), so the log
//! may not hold a write of that row which is not applied yet: the conditional write waits for it, and whatever comes
//! for the row after it waits behind it, until it is decided: the disk may have to be read for that. Writes without a
//! condition pass each other freely; most rows never have anybody wait.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::pending::PendingId;

/// The rows of one tablet that have writes under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latches {
    rows: BTreeMap<Bytes, Latch>,
}

#[derive(Clone, Debug, Default)]
struct Latch {
    /// Writes that are in the log and not applied, and the one that is being decided.
    under_way: usize,
    /// A conditional write is being decided.
    is_deciding: bool,
    waiting: VecDeque<PendingId>,
}

impl Latches {
    /// Has a write enter its row, and says whether it may go on; if not, it waits.
    pub(crate) fn enter(&mut self, row: &Bytes, id: PendingId, is_conditional: bool) -> bool {
        let latch = self.rows.entry(row.clone()).or_default();
        let is_free = latch.under_way == 0 || !is_conditional && !latch.is_deciding;
        let may = is_free && latch.waiting.is_empty();
        if may {
            latch.under_way += 1;
            latch.is_deciding |= is_conditional;
        } else {
            latch.waiting.push_back(id);
        }
        may
    }

    /// The conditional write that entered is decided, and its entry comes next in the log. Gives those that may try
    /// again.
    pub(crate) fn decided(&mut self, row: &Bytes) -> VecDeque<PendingId> {
        // It has left, if what was decided could not be proposed.
        let Some(latch) = self.rows.get_mut(row) else { return VecDeque::new() };
        latch.is_deciding = false;
        std::mem::take(&mut latch.waiting)
    }

    /// A write that entered is applied, or will never be proposed. Gives those that may try again, in their order.
    pub(crate) fn leave(&mut self, row: &Bytes) -> VecDeque<PendingId> {
        let latch = expected!(self.rows.get_mut(row), "who leaves has entered", VecDeque::new());
        latch.under_way -= 1;
        latch.is_deciding = false;
        if latch.under_way > 0 {
            return VecDeque::new();
        }
        self.rows.remove(row).unwrap_or_default().waiting
    }

    /// Lets go of everything: all that waited, in no order that matters.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = PendingId> {
        std::mem::take(&mut self.rows).into_values().flat_map(|latch| latch.waiting)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conditional write waits for what is under way in its row, and what comes later waits for it.
    #[test]
    fn first_come_first_served() {
        let row = Bytes::from_static(b"k");
        let other = Bytes::from_static(b"l");
        let mut latches = Latches::default();
        assert!(latches.enter(&row, PendingId(1), false));
        assert!(latches.enter(&row, PendingId(2), false), "puts pass each other");
        assert!(!latches.enter(&row, PendingId(3), true));
        assert!(!latches.enter(&row, PendingId(4), false), "or the third would never get its turn");
        assert!(latches.enter(&other, PendingId(5), true));
        assert!(latches.leave(&row).is_empty());
        assert_eq!(latches.leave(&row), [PendingId(3), PendingId(4)]);
        assert!(latches.enter(&row, PendingId(3), true));
        assert!(!latches.enter(&row, PendingId(6), false), "the third is being decided");
        assert_eq!(latches.decided(&row), [PendingId(6)]);
        assert!(latches.enter(&row, PendingId(6), false));
        assert!(!latches.enter(&row, PendingId(7), true));
        assert_eq!(latches.clear().collect::<Vec<_>>(), [PendingId(7)]);
        assert!(latches.is_empty());
    }
}
