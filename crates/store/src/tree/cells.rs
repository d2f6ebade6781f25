//! The cells that have a value at a timestamp, one after the other.

use base::Timestamp;
use bytes::Bytes;

use super::merge::{Direction, Merge};
use super::view::View;
use crate::cell::{self, Range};
use crate::sstable::{Io, TableError, VersionRef};

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
    limits: Limits,
    /// What the keys of the first row that was met begin with.
    first_row: Vec<u8>,
    cut: Option<Cut>,
}

/// Where a reader ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The row in which it did.
    pub row: Bytes,
    /// Whether that row alone is more than may be stepped over.
    pub row_is_too_long: bool,
}

/// How much a reader steps over, at most, and how much it has.
#[derive(Clone, Copy, Debug)]
struct Limits {
    steps_max: usize,
    row_steps_max: usize,
    steps: usize,
    /// Those in the row that is being read.
    row_steps: usize,
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
    /// Whether a cell of it was given.
    is_given: bool,
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
            limits: Limits { steps_max: usize::MAX, row_steps_max: usize::MAX, steps: 0, row_steps: 0 },
            first_row: Vec::new(),
            cut: None,
        }
    }

    /// Ends it early once so many versions were stepped over, though not within the first row, nor within one of which
    /// a cell was given: who goes on with the row in which it ended gets further. And once so many of one row were.
    /// What is deleted or old is stepped over in silence: a long stretch of it must not hold up others.
    #[must_use]
    pub fn with_limits(mut self, steps_max: usize, row_steps_max: usize) -> Self {
        self.limits = Limits { steps_max, row_steps_max, ..self.limits };
        self
    }

    /// Where it ended early, if it did.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Counts one more version that is looked at, unless a limit is met.
    fn is_cut(&mut self) -> Result<bool, TableError> {
        let Some(version) = self.merge.current() else { return Ok(false) };
        if self.first_row.is_empty() {
            self.first_row.extend_from_slice(&version.key[..cell::row_prefix_bytes(version.key)]);
        }
        let is_in_row = !self.row.prefix.is_empty() && version.key.starts_with(&self.row.prefix);
        self.limits.row_steps = if is_in_row { self.limits.row_steps + 1 } else { 1 };
        let row_is_too_long = self.limits.row_steps > self.limits.row_steps_max;
        let must_go_on = is_in_row && self.row.is_given || version.key.starts_with(&self.first_row);
        if row_is_too_long || self.limits.steps >= self.limits.steps_max && !must_go_on {
            let (row, _) = cell::decode(version.key)?;
            self.cut = Some(Cut { row: Bytes::copy_from_slice(&row), row_is_too_long });
            return Ok(true);
        }
        self.limits.steps += 1;
        Ok(false)
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
            if self.is_cut()? {
                return Ok(None);
            }
            let Some(version) = self.merge.current() else { return Ok(None) };
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
        let is_same = |version: VersionRef<'_>| *version.key == *self.key;
        while self.merge.current().is_some_and(is_same) {
            self.merge.step()?;
        }
        Ok(())
    }

    /// The versions of a key come the oldest first; the last that is not newer than `at` is the one that counts.
    fn next_backwards(&mut self) -> Result<Option<Cell>, TableError> {
        loop {
            let is_left = |version: VersionRef<'_>| *version.key >= *self.range.start;
            if self.merge.current().is_some_and(is_left) && self.is_cut()? {
                return Ok(None);
            }
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
                self.limits.steps += 1;
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
        self.row.is_given = false;
        self.row.prefix.clear();
        self.row.prefix.extend_from_slice(prefix);
        Ok(())
    }

    fn cell(&mut self, timestamp: Timestamp, value: Bytes) -> Cell {
        self.row.is_given = true;
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
