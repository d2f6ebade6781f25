//! The part of the cohort's log that is in memory: all entries not yet applied, and some applied ones for followers
//! that lag slightly.

use std::collections::VecDeque;

use base::{Entry, Lsn, Sequence, Timestamp};

/// A contiguous run of entries after `base`.
///
/// Invariant: `entries[i].previous` is the LSN of the entry before it, `base` for the first; timestamps increase.
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

    /// The LSN before the first entry in memory.
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

    /// The LSN at a sequence, including the base; `None` below the base and past the end.
    pub(crate) fn lsn_at(&self, sequence: Sequence) -> Option<Lsn> {
        if sequence == self.base.sequence { Some(self.base) } else { self.entry(sequence).map(|entry| entry.lsn) }
    }

    /// Appends the successor of the last entry.
    pub(crate) fn push(&mut self, entry: Entry) {
        assert_eq!(entry.lsn.sequence, self.last().sequence.next(), "the log is contiguous");
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    /// Removes the entries from `from` on.
    pub(crate) fn truncate(&mut self, from: Sequence) {
        while self.last().sequence >= from {
            let Some(entry) = self.entries.pop_back() else { break };
            self.bytes -= entry.size();
        }
    }

    /// Removes applied entries, oldest first, while more than `keep_bytes` are in memory.
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

    /// Clones of the entries from `from` on: about `bytes` in all, and at least one if there is one.
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
