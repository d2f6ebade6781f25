//! Row latches: tracks which rows have writes in progress at a leader.
//!
//! A condition is decided against the applied state before its write is proposed (`tablets::Tablet::decide`). The log
//! must therefore hold no unapplied write of that row: the conditional write waits for them. Later writes of the row
//! queue behind it until it is decided, which may need a read of the disk. Unconditional writes do not block each
//! other, and most rows never have waiters.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::request_table::PendingId;

/// The rows of one tablet with writes in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latches {
    rows: BTreeMap<Bytes, Latch>,
}

#[derive(Clone, Debug, Default)]
struct Latch {
    /// Writes in the log that are not applied, and the one being decided.
    under_way: usize,
    /// A conditional write is being decided.
    is_deciding: bool,
    waiting: VecDeque<PendingId>,
}

impl Latches {
    /// Admits a write to its row and returns true, or queues it and returns false.
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

    /// The conditional write that entered is decided, and its entry is the next in the log. Returns the writes that may
    /// be retried.
    pub(crate) fn decided(&mut self, row: &Bytes) -> VecDeque<PendingId> {
        // The write has already left if its decision could not be proposed.
        let Some(latch) = self.rows.get_mut(row) else { return VecDeque::new() };
        latch.is_deciding = false;
        std::mem::take(&mut latch.waiting)
    }

    /// A write that entered is applied, or will never be proposed. Returns the writes that may be retried, in order.
    pub(crate) fn leave(&mut self, row: &Bytes) -> VecDeque<PendingId> {
        let latch = expected!(self.rows.get_mut(row), "a write leaves only a latch that it entered", VecDeque::new());
        latch.under_way -= 1;
        latch.is_deciding = false;
        if latch.under_way > 0 {
            return VecDeque::new();
        }
        self.rows.remove(row).unwrap_or_default().waiting
    }

    /// Releases all latches. Returns all waiting writes; their order does not matter.
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

    /// A conditional write waits for the writes in progress on its row, and later writes wait for it.
    #[test]
    fn latches_are_fifo() {
        let row = Bytes::from_static(b"k");
        let other = Bytes::from_static(b"l");
        let mut latches = Latches::default();
        assert!(latches.enter(&row, PendingId(1), false));
        assert!(latches.enter(&row, PendingId(2), false), "unconditional writes do not block each other");
        assert!(!latches.enter(&row, PendingId(3), true));
        assert!(!latches.enter(&row, PendingId(4), false), "later writes must not starve the third one");
        assert!(latches.enter(&other, PendingId(5), true));
        assert!(latches.leave(&row).is_empty());
        assert_eq!(latches.leave(&row), [PendingId(3), PendingId(4)]);
        assert!(latches.enter(&row, PendingId(3), true));
        assert!(!latches.enter(&row, PendingId(6), false), "the third write is being decided");
        assert_eq!(latches.decided(&row), [PendingId(6)]);
        assert!(latches.enter(&row, PendingId(6), false));
        assert!(!latches.enter(&row, PendingId(7), true));
        assert_eq!(latches.clear().collect::<Vec<_>>(), [PendingId(7)]);
        assert!(latches.is_empty());
    }
}
