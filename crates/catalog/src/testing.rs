//! Test helpers: a log that generates consecutive entries, and a kind of state machine.

use base::{Entry, Lsn, Timestamp};
use bytes::Bytes;
use state_machine::Kind;

/// Generates entries; each names the previous one as its predecessor.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    last: Lsn,
    pub(crate) timestamp: Timestamp,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { last: Lsn::ZERO, timestamp: Timestamp(0) }
    }

    pub(crate) fn entry(&mut self, payload: Bytes) -> Entry {
        let lsn = Lsn::new(self.last.epoch.0.max(1), self.last.sequence.0 + 1);
        self.timestamp = Timestamp(self.timestamp.0 + 10);
        let entry = Entry { lsn, previous: self.last, timestamp: self.timestamp, payload, members: None };
        self.last = lsn;
        entry
    }
}

/// A kind with support for splits.
pub(crate) const TABLET: Kind = Kind(2);
