//! Appends without a stamp of their caller's: they get one of the machine's own, and all of them have one window
//! ([`Stamp::is_in_window`]). Those that it has no room for wait for the oldest to end, in their order: nobody who gave
//! no stamp is to know of one.

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;

use crate::client::{CallId, Stamped, Token};
use crate::{Batch, ClientId, Stamp};

/// An append that has no stamp yet.
#[derive(Debug)]
pub(super) struct Unstamped {
    pub(super) token: Token,
    pub(super) batch: Batch,
    pub(super) deadline: Monotonic,
}

/// The machine's own stamps, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct OwnStamps {
    /// The last one.
    last: u64,
    /// Those of appends under way.
    open: BTreeMap<CallId, u64>,
    waiting: BTreeMap<u64, Unstamped>,
    deadlines: BTreeSet<(Monotonic, u64)>,
    last_waiting: u64,
}

impl OwnStamps {
    /// It waits for a stamp.
    pub(super) fn push(&mut self, append: Unstamped) {
        self.last_waiting += 1;
        self.deadlines.insert((append.deadline, self.last_waiting));
        self.waiting.insert(self.last_waiting, append);
    }

    /// The next of those who wait, with its stamp, if there is one. It is to be the call of that number.
    pub(super) fn pop(&mut self, client: ClientId, call: CallId) -> Option<(Unstamped, Stamped)> {
        let sequence = self.last + 1;
        let oldest_open = self.open.values().next().copied().unwrap_or(sequence);
        let stamp = Stamp { client, sequence };
        let (number, append) = self.waiting.first_key_value().filter(|_| stamp.is_in_window(oldest_open))?;
        let (number, deadline) = (*number, append.deadline);
        self.deadlines.remove(&(deadline, number));
        self.last = sequence;
        self.open.insert(call, sequence);
        self.waiting.remove(&number).map(|append| (append, Stamped { stamp, oldest_open }))
    }

    /// One whose deadline has come before it had a stamp.
    pub(super) fn pop_late(&mut self, now: Monotonic) -> Option<Token> {
        let late = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.deadlines.remove(&late);
        let (_, number) = late;
        self.waiting.remove(&number).map(|append| append.token)
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, call: CallId) {
        self.open.remove(&call);
    }

    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many are under way.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }
}
