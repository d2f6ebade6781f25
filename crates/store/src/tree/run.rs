//! A sorted run: disjoint tables in order, read as one. Each level below the first is a run, and so is each table of
//! the first level.

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use crate::sstable::{Blocks, Table, TableCursor, TableError, VersionRef};

/// The index of the only table that can hold a key or its successor.
pub(super) fn place_of(run: &[Arc<Table>], key: &[u8]) -> usize {
    run.partition_point(|table| *table.meta().last_key < *key)
}

/// A cursor over the versions of a run, on one or nowhere. It uses at most one table at a time.
pub(super) struct RunCursor<'a> {
    run: &'a [Arc<Table>],
    blocks: Blocks<'a>,
    /// Index of the current table, and the cursor in it; `None` is nowhere.
    place: usize,
    table: Option<TableCursor<'a>>,
}

impl<'a> RunCursor<'a> {
    pub(super) fn new(run: &'a [Arc<Table>], blocks: Blocks<'a>) -> Self {
        Self { run, blocks, place: 0, table: None }
    }

    #[inline]
    pub(super) fn current(&self) -> Option<VersionRef<'_>> {
        self.table.as_ref()?.current()
    }

    pub(super) fn value(&self) -> Option<Bytes> {
        self.table.as_ref()?.value()
    }

    /// Enters a table, unless it is already there; nowhere if the index is out of range.
    fn enter(&mut self, place: usize) -> Option<&mut TableCursor<'a>> {
        if self.place != place || self.table.is_none() {
            self.place = place;
            self.table = self.run.get(place).map(|table| table.cursor(self.blocks));
        }
        self.table.as_mut()
    }

    pub(super) fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), TableError> {
        if let Some(table) = self.enter(place_of(self.run, key)) {
            table.seek(key, at)?;
        }
        self.skip_forwards()
    }

    pub(super) fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), TableError> {
        match self.enter(place_of(self.run, key)) {
            Some(table) => table.seek_before(key, at)?,
            None => return self.seek_to_last(),
        }
        self.skip_backwards()
    }

    pub(super) fn seek_to_last(&mut self) -> Result<(), TableError> {
        match self.run.len().checked_sub(1).and_then(|last| self.enter(last)) {
            Some(table) => table.seek_to_last(),
            None => Ok(()),
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<(), TableError> {
        if let Some(table) = &mut self.table {
            table.next()?;
        }
        if self.current().is_some() { Ok(()) } else { self.skip_forwards() }
    }

    pub(super) fn previous(&mut self) -> Result<(), TableError> {
        if let Some(table) = &mut self.table {
            table.previous()?;
        }
        self.skip_backwards()
    }

    /// Moves from the end of a table to the start of the next.
    fn skip_forwards(&mut self) -> Result<(), TableError> {
        while self.table.is_some() && self.current().is_none() {
            if let Some(table) = self.enter(self.place + 1) {
                table.seek_to_first()?;
            }
        }
        Ok(())
    }

    /// Moves from the start of a table to the end of the previous one.
    fn skip_backwards(&mut self) -> Result<(), TableError> {
        while self.table.is_some() && self.current().is_none() {
            match self.place.checked_sub(1).and_then(|place| self.enter(place)) {
                Some(table) => table.seek_to_last()?,
                None => self.table = None,
            }
        }
        Ok(())
    }
}
