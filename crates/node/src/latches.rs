//! Which rows have writes under way at a leader.
//!
//! A condition is decided from the applied state before its write is proposed ([`tablets::Tablet::decide`]), so the log may
//! not hold a write of that row which is not applied yet: the conditional write waits for it, and whatever comes for the
//! row after it waits behind it. Writes without a condition pass each other freely; most rows never have anybody wait.

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
    /// Writes that are in the log and not applied.
    under_way: usize,
    waiting: VecDeque<PendingId>,
}

impl Latches {
    /// Has a write enter its row, and says whether it may go on; if not, it waits.
    pub(crate) fn enter(&mut self, row: &Bytes, id: PendingId, is_conditional: bool) -> bool {
        let latch = self.rows.entry(row.clone()).or_default();
        let may = latch.waiting.is_empty() && (latch.under_way == 0 || !is_conditional);
        if may {
            latch.under_way += 1;
        } else {
            latch.waiting.push_back(id);
        }
        may
    }

    /// A write that entered is applied, or will never be proposed. Gives those that may try again, in their order.
    pub(crate) fn leave(&mut self, row: &Bytes) -> VecDeque<PendingId> {
        let Some(latch) = self.rows.get_mut(row) else { return VecDeque::new() };
        latch.under_way -= 1;
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
        assert!(!latches.enter(&row, PendingId(6), true));
        assert_eq!(latches.clear().collect::<Vec<_>>(), [PendingId(6)]);
        assert!(latches.is_empty());
    }
}
