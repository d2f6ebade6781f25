//! A cursor within a block: a binary search over the runs, then a scan within one. Only the scan assembles keys, in a
//! buffer that is reused across blocks.

use std::cmp::Ordering;

use base::Timestamp;
use bytes::Bytes;

use super::{Block, Entry};
use crate::sstable::{Malformed, VersionRef, compare};

/// A cursor within a block: on an entry, or nowhere.
pub(in crate::sstable) struct BlockCursor {
    block: Block,
    entry: Option<Entry>,
    key: Vec<u8>,
    /// The run of the last entry read, and its end.
    run: usize,
    run_end: usize,
    /// Offset of the next entry.
    next: usize,
}

impl BlockCursor {
    /// A cursor nowhere in a block.
    pub(in crate::sstable) fn new(block: Block) -> Self {
        Self { block, entry: None, key: Vec::new(), run: 0, run_end: 0, next: 0 }
    }

    /// Moves to nowhere in another block.
    pub(in crate::sstable) fn enter(&mut self, block: Block) {
        self.block = block;
        self.entry = None;
    }

    pub(in crate::sstable) fn leave(&mut self) {
        self.entry = None;
    }

    /// The current version; `None` if the cursor is nowhere.
    #[inline]
    pub(in crate::sstable) fn current(&self) -> Option<VersionRef<'_>> {
        let entry = self.entry.as_ref()?;
        let value = (!entry.is_tombstone).then(|| &self.block.content[entry.value_at..entry.end]);
        Some(VersionRef { key: &self.key, timestamp: entry.timestamp, value })
    }

    /// The current value, which shares the block's memory.
    pub(in crate::sstable) fn value(&self) -> Option<Bytes> {
        let entry = self.entry.as_ref().filter(|entry| !entry.is_tombstone)?;
        Some(self.block.content.slice(entry.value_at..entry.end))
    }

    /// Moves to the first entry not before the version of `key` at `at`. Like all moves, returns whether there is one.
    pub(in crate::sstable) fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<bool, Malformed> {
        let (mut low, mut high) = (0, self.block.runs);
        while low < high {
            let middle = low.midpoint(high);
            match compare(self.block.run_head(middle)?, (key, at)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal | Ordering::Greater => high = middle,
            }
        }
        // The runs from `low` on start at or after the target: the scan starts in the run before.
        self.begin(low.saturating_sub(1));
        while self.next()? {
            if let Some(entry) = &self.entry
                && compare((&self.key, entry.timestamp), (key, at)).is_ge()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(in crate::sstable) fn seek_to_first(&mut self) -> Result<bool, Malformed> {
        self.begin(0);
        self.next()
    }

    pub(in crate::sstable) fn seek_to_last(&mut self) -> Result<bool, Malformed> {
        self.walk_to(self.block.runs.saturating_sub(1), self.block.entries_end)
    }

    /// Moves to the previous entry.
    pub(in crate::sstable) fn previous(&mut self) -> Result<bool, Malformed> {
        let Some(Entry { start, .. }) = self.entry else { return Ok(false) };
        let is_head = start == self.block.run_start(self.run);
        match self.run.checked_sub(usize::from(is_head)) {
            Some(run) => self.walk_to(run, start),
            None => {
                self.leave();
                Ok(false)
            }
        }
    }

    /// Moves to the entry that ends at `end`, by scanning its run.
    fn walk_to(&mut self, run: usize, end: usize) -> Result<bool, Malformed> {
        self.begin(run);
        while self.next()? {
            match self.next.cmp(&end) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(true),
                Ordering::Greater => return Err(Malformed),
            }
        }
        Ok(false)
    }

    /// Moves to before the first entry of a run.
    fn begin(&mut self, run: usize) {
        self.entry = None;
        self.key.clear();
        self.run = run;
        self.next = self.block.run_start(run);
        self.run_end = self.block.run_start(run + 1);
    }

    /// Moves to the next entry; after [`Self::begin`], to the first entry of the run.
    #[inline]
    pub(in crate::sstable) fn next(&mut self) -> Result<bool, Malformed> {
        if self.next >= self.block.entries_end {
            self.entry = None;
            return Ok(false);
        }
        let mut previous = self.entry.map_or(Timestamp(0), |entry| entry.timestamp);
        if self.next >= self.run_end {
            self.run += 1;
            self.run_end = self.block.run_start(self.run + 1);
            self.key.clear();
            previous = Timestamp(0);
        }
        self.entry = None;
        let entry = self.block.entry(self.next, previous)?;
        // Entries must be within their run; otherwise the list of runs is invalid.
        if entry.shared > self.key.len() || entry.end > self.run_end {
            return Err(Malformed);
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(&self.block.content[entry.key_at..entry.value_at]);
        self.next = entry.end;
        self.entry = Some(entry);
        Ok(true)
    }
}
