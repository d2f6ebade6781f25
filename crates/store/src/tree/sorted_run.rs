//! A sorted run: disjoint SSTables in order, read as one. Each level below the first is a run, and so is each SSTable
//! of the first level.

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use crate::sstable::{Blocks, Sstable, SstableCursor, SstableError, VersionRef};

/// The index of the only SSTable that can hold a key or its successor.
pub(super) fn place_of(run: &[Arc<Sstable>], key: &[u8]) -> usize {
    run.partition_point(|sstable| *sstable.meta().last_key < *key)
}

/// A cursor over the versions of a run, on one or nowhere. It uses at most one SSTable at a time.
pub(super) struct RunCursor<'a> {
    run: &'a [Arc<Sstable>],
    blocks: Blocks<'a>,
    /// Index of the current SSTable, and the cursor in it; `None` is nowhere.
    place: usize,
    sstable: Option<SstableCursor<'a>>,
}

impl<'a> RunCursor<'a> {
    pub(super) fn new(run: &'a [Arc<Sstable>], blocks: Blocks<'a>) -> Self {
        Self { run, blocks, place: 0, sstable: None }
    }

    #[inline]
    pub(super) fn current(&self) -> Option<VersionRef<'_>> {
        self.sstable.as_ref()?.current()
    }

    pub(super) fn value(&self) -> Option<Bytes> {
        self.sstable.as_ref()?.value()
    }

    /// Enters an SSTable, unless it is already there; nowhere if the index is out of range.
    fn enter(&mut self, place: usize) -> Option<&mut SstableCursor<'a>> {
        if self.place != place || self.sstable.is_none() {
            self.place = place;
            self.sstable = self.run.get(place).map(|sstable| sstable.cursor(self.blocks));
        }
        self.sstable.as_mut()
    }

    pub(super) fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        if let Some(sstable) = self.enter(place_of(self.run, key)) {
            sstable.seek(key, at)?;
        }
        self.skip_forwards()
    }

    pub(super) fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        match self.enter(place_of(self.run, key)) {
            Some(sstable) => sstable.seek_before(key, at)?,
            None => return self.seek_to_last(),
        }
        self.skip_backwards()
    }

    pub(super) fn seek_to_last(&mut self) -> Result<(), SstableError> {
        match self.run.len().checked_sub(1).and_then(|last| self.enter(last)) {
            Some(sstable) => sstable.seek_to_last(),
            None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<(), SstableError> {
        if let Some(sstable) = &mut self.sstable {
            sstable.next()?;
        }
        if self.current().is_some() { Ok(()) } else { self.skip_forwards() }
    }

    pub(super) fn previous(&mut self) -> Result<(), SstableError> {
        if let Some(sstable) = &mut self.sstable {
            sstable.previous()?;
        }
        self.skip_backwards()
    }

    /// Moves from the end of an SSTable to the start of the next.
    fn skip_forwards(&mut self) -> Result<(), SstableError> {
        while self.sstable.is_some() && self.current().is_none() {
            if let Some(sstable) = self.enter(self.place + 1) {
                sstable.seek_to_first()?;
            }
        }
        Ok(())
    }

    /// Moves from the start of an SSTable to the end of the previous one.
    fn skip_backwards(&mut self) -> Result<(), SstableError> {
        while self.sstable.is_some() && self.current().is_none() {
            match self.place.checked_sub(1).and_then(|place| self.enter(place)) {
                Some(sstable) => sstable.seek_to_last()?,
                None => self.sstable = None,
            }
        }
        Ok(())
    }
}
