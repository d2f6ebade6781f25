//! The cells that have a value at a timestamp, one after the other.

use base::Timestamp;
use bytes::Bytes;

use super::merge::{Direction, Merge};
use super::view::View;
use crate::cell::{self, Range};
use crate::sstable::{Io, TableError};

/// Versions of one key that are stepped over before the rest of them is jumped over.
const STEPS_MAX: usize = 8;

/// A cell that has a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The row's key. The cells of a row share it.
    pub row: Bytes,
    /// The column's name.
    pub column: Bytes,
    /// Since when the cell has this value.
    pub timestamp: Timestamp,
    /// The value, sharing the bytes of the block or the memtable that it lies in.
    pub value: Bytes,
}

/// The cells of a view that have a value at a timestamp, in the order of rows and columns or backwards.
///
/// An error ends it. Who wants to go on makes another, of what comes after the last cell ([`Range::after`],
/// [`Range::before`]).
pub struct Cells<'a> {
    view: &'a View,
    merge: Merge<'a>,
    range: Range,
    direction: Direction,
    at: Timestamp,
    io: Io,
    has_row_tombstones: bool,
    state: State,
    /// The key that was looked at last, and how many versions were stepped over since the last jump.
    key: Vec<u8>,
    steps: usize,
    row: Row,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Reading,
    Ended,
}

/// The row that is being read.
#[derive(Default)]
struct Row {
    /// What its keys begin with; empty before the first.
    prefix: Vec<u8>,
    key: Bytes,
    /// Its newest tombstone, as far as it is known.
    deleted: Option<Timestamp>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(view: &'a View, range: Range, direction: Direction, at: Timestamp, io: Io) -> Self {
        Self {
            view,
            merge: view.merge(direction, io),
            range,
            direction,
            at,
            io,
            has_row_tombstones: view.has_row_tombstones(),
            state: State::New,
            key: Vec::new(),
            steps: 0,
            row: Row::default(),
        }
    }

    fn next_cell(&mut self) -> Result<Option<Cell>, TableError> {
        if self.state == State::New {
            self.begin()?;
            self.state = State::Reading;
        }
        match self.direction {
            Direction::Forwards => self.next_forwards(),
            Direction::Backwards => self.next_backwards(),
        }
    }

    fn begin(&mut self) -> Result<(), TableError> {
        match (self.direction, &self.range.end) {
            (Direction::Forwards, _) => self.merge.seek(&self.range.start, Timestamp(i64::MAX)),
            (Direction::Backwards, Some(end)) => self.merge.seek_before(end, Timestamp(i64::MAX)),
            (Direction::Backwards, None) => self.merge.seek_to_last(),
        }
    }

    /// The first version of a key that is not newer than `at` is the one that counts; the others are passed over.
    fn next_forwards(&mut self) -> Result<Option<Cell>, TableError> {
        while let Some(version) = self.merge.current().filter(|version| self.range.ends_after(version.key)) {
            let (timestamp, is_value) = (version.timestamp, version.value.is_some());
            if *self.key == *version.key {
                self.pass_over()?;
                continue;
            }
            if timestamp > self.at {
                self.pass_newer()?;
                continue;
            }
            self.key.clear();
            self.key.extend_from_slice(version.key);
            self.steps = 0;
            self.enter_row()?;
            if self.key.len() == self.row.prefix.len() {
                self.row.deleted = self.row.deleted.max(Some(timestamp));
            } else if is_value && self.row.deleted < Some(timestamp) {
                let value = self.merge.value();
                self.merge.step()?;
                return Ok(value.map(|value| self.cell(timestamp, value)));
            }
            self.merge.step()?;
        }
        Ok(None)
    }

    /// Goes on to the next version, or past all that are too new of this key.
    fn pass_newer(&mut self) -> Result<(), TableError> {
        self.steps += 1;
        match self.merge.current() {
            Some(version) if self.steps >= STEPS_MAX => {
                self.steps = 0;
                let key = version.key.to_vec();
                self.merge.seek(&key, self.at)
            }
            _ => self.merge.step(),
        }
    }

    /// Goes on to the next version, or past all of this key.
    fn pass_over(&mut self) -> Result<(), TableError> {
        self.steps += 1;
        if self.steps < STEPS_MAX {
            return self.merge.step();
        }
        self.steps = 0;
        self.merge.seek(&self.key, Timestamp(i64::MIN))?;
        let is_same = |version: crate::sstable::VersionRef<'_>| *version.key == *self.key;
        while self.merge.current().is_some_and(is_same) {
            self.merge.step()?;
        }
        Ok(())
    }

    /// The versions of a key come the oldest first; the last that is not newer than `at` is the one that counts.
    fn next_backwards(&mut self) -> Result<Option<Cell>, TableError> {
        loop {
            let mut found = None;
            let mut is_any = false;
            while let Some(version) = self.merge.current().filter(|version| *version.key >= *self.range.start) {
                if !is_any {
                    is_any = true;
                    self.key.clear();
                    self.key.extend_from_slice(version.key);
                } else if *self.key != *version.key {
                    break;
                }
                if version.timestamp <= self.at {
                    found = Some((version.timestamp, self.merge.value()));
                }
                self.merge.step()?;
            }
            if !is_any {
                return Ok(None);
            }
            let Some((timestamp, Some(value))) = found else { continue };
            self.enter_row()?;
            if self.key.len() > self.row.prefix.len() && self.row.deleted < Some(timestamp) {
                return Ok(Some(self.cell(timestamp, value)));
            }
        }
    }

    /// Learns of the row of the key here, unless it is the row before.
    fn enter_row(&mut self) -> Result<(), TableError> {
        if !self.row.prefix.is_empty() && self.key.starts_with(&self.row.prefix) {
            return Ok(());
        }
        let (row, column) = cell::decode(&self.key)?;
        let prefix = &self.key[..self.key.len() - column.len()];
        // Forwards the tombstone is met before the cells are, unless the range begins after it.
        let is_passed = self.direction == Direction::Backwards || *self.range.start > *prefix;
        self.row.deleted = match self.has_row_tombstones && is_passed {
            true => self.view.row_deleted(prefix, self.at, self.io)?,
            false => None,
        };
        self.row.key = Bytes::copy_from_slice(&row);
        self.row.prefix.clear();
        self.row.prefix.extend_from_slice(prefix);
        Ok(())
    }

    fn cell(&self, timestamp: Timestamp, value: Bytes) -> Cell {
        let column = Bytes::copy_from_slice(&self.key[self.row.prefix.len()..]);
        Cell { row: self.row.key.clone(), column, timestamp, value }
    }
}

impl Iterator for Cells<'_> {
    type Item = Result<Cell, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Ended {
            return None;
        }
        let next = self.next_cell();
        if !matches!(next, Ok(Some(_))) {
            self.state = State::Ended;
        }
        next.transpose()
    }
}
