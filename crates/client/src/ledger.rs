//! The client's side of a session (guarantee 10): its writes in progress.
//!
//! A range stores the outcome of each write of a session until the client acknowledges it. Every write carries
//! `first_incomplete`, which acknowledges all lower numbers. The numbers of a session's writes in progress span at most
//! [`SESSION_WINDOW`].

use std::collections::BTreeSet;

use base::canary::{Bug, planted};
use base::limits::SESSION_WINDOW;

use crate::Stamp;

/// The writes in progress of one session.
#[derive(Clone, Debug)]
pub struct Ledger {
    session: u64,
    next: u64,
    under_way: BTreeSet<u64>,
}

impl Ledger {
    /// The ledger of a newly opened session.
    #[must_use]
    pub fn new(session: u64) -> Self {
        Self { session, next: 1, under_way: BTreeSet::new() }
    }

    /// The id of the session.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The stamp of a new write; none while the window is full.
    pub fn begin(&mut self) -> Option<Stamp> {
        let (sequence, first_incomplete) = (self.next, self.first_incomplete());
        if self.room() == 0 {
            return None;
        }
        self.next += 1;
        self.under_way.insert(sequence);
        Some(Stamp { session: self.session, sequence, first_incomplete })
    }

    /// The number of writes that can begin now.
    #[must_use]
    pub fn room(&self) -> u64 {
        SESSION_WINDOW.saturating_sub(self.next - self.first_incomplete())
    }

    fn first_incomplete(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(self.next)
    }

    /// Ends a write, because its outcome is known or no longer of interest. The client will not retry it.
    pub fn end(&mut self, sequence: u64) {
        let was_under_way = self.under_way.remove(&sequence);
        debug_assert!(was_under_way, "write {sequence} ended twice");
        if planted(Bug::StampReused) && sequence + 1 == self.next {
            self.next = sequence;
        }
    }

    /// Whether no write is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(ledger: &mut Ledger) -> (u64, u64) {
        let stamp = ledger.begin().expect("room in the window");
        (stamp.sequence, stamp.first_incomplete)
    }

    #[test]
    fn first_incomplete_is_oldest_pending_write() {
        let mut ledger = Ledger::new(5);
        assert_eq!(begin(&mut ledger), (1, 1));
        assert_eq!(begin(&mut ledger), (2, 1));
        ledger.end(2);
        assert_eq!(begin(&mut ledger), (3, 1));
        ledger.end(1);
        assert_eq!(begin(&mut ledger), (4, 3));
        ledger.end(3);
        ledger.end(4);
        assert_eq!(begin(&mut ledger), (5, 5));
    }

    #[test]
    fn window_starts_at_oldest_pending_write() {
        let mut ledger = Ledger::new(5);
        for sequence in 1..=SESSION_WINDOW {
            assert_eq!(begin(&mut ledger), (sequence, 1));
        }
        ledger.end(2);
        assert_eq!(ledger.begin(), None);
        ledger.end(1);
        assert_eq!(begin(&mut ledger), (SESSION_WINDOW + 1, 3));
    }
}
