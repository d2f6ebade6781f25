//! The part of the cohort's log that is held in memory: everything not yet applied, and a tail of what is, for
//! followers that lag a little.

use std::collections::VecDeque;

use base::{Entry, Lsn, Sequence, Timestamp};

/// A contiguous run of entries after `base`.
///
/// Invariant: `entries[i].previous` is the LSN of the entry before it, `base` for the first; timestamps grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryLog {
    base: Lsn,
    base_timestamp: Timestamp,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl MemoryLog {
    pub(crate) fn new(base: Lsn, base_timestamp: Timestamp) -> Self {
        Self { base, base_timestamp, entries: VecDeque::new(), bytes: 0 }
    }

    /// The LSN before the first entry held.
    pub(crate) fn base(&self) -> Lsn {
        self.base
    }

    pub(crate) fn last(&self) -> Lsn {
        self.entries.back().map_or(self.base, |entry| entry.lsn)
    }

    pub(crate) fn last_timestamp(&self) -> Timestamp {
        self.entries.back().map_or(self.base_timestamp, |entry| entry.timestamp)
    }

    pub(crate) fn entry(&self, sequence: Sequence) -> Option<&Entry> {
        let index = sequence.0.checked_sub(self.base.sequence.0 + 1)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The LSN at a sequence, that of the base included; none below it and past the end.
    pub(crate) fn lsn_at(&self, sequence: Sequence) -> Option<Lsn> {
        if sequence == self.base.sequence { Some(self.base) } else { self.entry(sequence).map(|entry| entry.lsn) }
    }

    /// Appends the successor of the last entry.
    pub(crate) fn push(&mut self, entry: Entry) {
        assert_eq!(entry.lsn.sequence, self.last().sequence.next(), "the log is contiguous");
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    /// Drops the entries from `from` on.
    pub(crate) fn truncate(&mut self, from: Sequence) {
        while self.last().sequence >= from {
            let Some(entry) = self.entries.pop_back() else { break };
            self.bytes -= entry.size();
        }
    }

    /// Forgets applied entries, oldest first, while more than `keep_bytes` are held.
    pub(crate) fn trim(&mut self, through: Sequence, keep_bytes: usize) {
        while self.bytes > keep_bytes {
            let Some(first) = self.entries.front() else { break };
            if first.lsn.sequence > through {
                break;
            }
            self.base = first.lsn;
            self.base_timestamp = first.timestamp;
            self.bytes -= first.size();
            self.entries.pop_front();
        }
    }

    /// Clones of the entries from `from` on, at least one if there is one, about `bytes` in all.
    pub(crate) fn slice(&self, from: Sequence, bytes: usize) -> Vec<Entry> {
        let mut slice = Vec::new();
        let mut size = 0;
        let mut sequence = from;
        while let Some(entry) = self.entry(sequence) {
            size += entry.size();
            if size > bytes && !slice.is_empty() {
                break;
            }
            slice.push(entry.clone());
            sequence = sequence.next();
        }
        slice
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }
}
