//! A place in a block, and how it moves: by a binary search over the runs and a walk within one. Only the walk puts
//! keys together, in a buffer that is kept from block to block.

use std::cmp::Ordering;

use base::Timestamp;
use bytes::Bytes;

use super::{Base, Block, Entry};
use crate::sstable::{Malformed, VersionRef, compare};

/// A place in a block: on an entry, or nowhere.
pub(in crate::sstable) struct BlockCursor {
    block: Block,
    entry: Option<Entry>,
    /// The entry's key.
    key: Vec<u8>,
    /// The run of the entry that was read last, and where that run ends.
    run: usize,
    run_end: usize,
    /// Where the next entry begins.
    next: usize,
}

impl BlockCursor {
    /// Nowhere in a block.
    pub(in crate::sstable) fn new(block: Block) -> Self {
        Self { block, entry: None, key: Vec::new(), run: 0, run_end: 0, next: 0 }
    }

    /// Goes nowhere in another block.
    pub(in crate::sstable) fn enter(&mut self, block: Block) {
        self.block = block;
        self.entry = None;
    }

    /// Goes nowhere.
    pub(in crate::sstable) fn leave(&mut self) {
        self.entry = None;
    }

    /// The version here; nothing if this is nowhere.
    #[inline]
    pub(in crate::sstable) fn current(&self) -> Option<VersionRef<'_>> {
        let entry = self.entry.as_ref()?;
        let value = (!entry.is_tombstone).then(|| &self.block.content[entry.value_at..entry.end]);
        Some(VersionRef { key: &self.key, timestamp: entry.timestamp(), lsn: entry.lsn(), value })
    }

    /// The value here, sharing the block's bytes.
    pub(in crate::sstable) fn value(&self) -> Option<Bytes> {
        let entry = self.entry.as_ref().filter(|entry| !entry.is_tombstone)?;
        Some(self.block.content.slice(entry.value_at..entry.end))
    }

    /// Goes to the first entry that is not before the version of `key` at `at`. Says whether there is one; so do all
    /// that follow.
    pub(in crate::sstable) fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<bool, Malformed> {
        let (mut low, mut high) = (0, self.block.runs);
        while low < high {
            let middle = low.midpoint(high);
            match compare(self.block.run_head(middle)?, (key, at)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal | Ordering::Greater => high = middle,
            }
        }
        // The runs from `low` on begin too late to hold anything before the target: the walk begins in the one before.
        self.begin(low.saturating_sub(1));
        while self.next()? {
            if let Some(entry) = &self.entry
                && compare((&self.key, entry.timestamp()), (key, at)).is_ge()
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

    /// Goes to the entry before.
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

    /// Goes to the entry that ends at `end`, from the start of its run.
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

    /// Stands before the first entry of a run.
    fn begin(&mut self, run: usize) {
        self.entry = None;
        self.key.clear();
        self.run = run;
        self.next = self.block.run_start(run);
        self.run_end = self.block.run_start(run + 1);
    }

    /// Goes to the next entry. Nowhere is followed by the first of the run that was begun.
    #[inline]
    pub(in crate::sstable) fn next(&mut self) -> Result<bool, Malformed> {
        if self.next >= self.block.entries_end {
            self.entry = None;
            return Ok(false);
        }
        let mut base = self.entry.map(|entry| entry.base).unwrap_or_default();
        if self.next >= self.run_end {
            self.run += 1;
            self.run_end = self.block.run_start(self.run + 1);
            self.key.clear();
            base = Base::default();
        }
        self.entry = None;
        let entry = self.block.entry(self.next, base)?;
        // A run's entries lie within it, or the list of runs is not that of these entries.
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
