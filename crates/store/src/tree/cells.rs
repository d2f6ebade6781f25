//! Iterates over the cells that have a value at a timestamp.

use base::Timestamp;
use bytes::Bytes;

use super::merge::{Direction, Merge};
use super::view::View;
use crate::cell::{self, Range};
use crate::sstable::{Io, SstableError, VersionRef};

/// Versions of one key that are skipped one by one before seeking past the others.
const STEPS_MAX: usize = 8;
/// Names of columns that cells of several rows share, and the maximum length of one.
const SHARED_NAMES_MAX: usize = 16;
const SHARED_NAME_BYTES_MAX: usize = 64;

/// A cell with a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The row's key, shared by the cells of a row.
    pub row: Bytes,
    pub column: Bytes,
    /// Start of the value's validity.
    pub timestamp: Timestamp,
    /// The value, which shares the memory of the block or memtable.
    pub value: Bytes,
}

/// The cells of a view that have a value at a timestamp, in the order of rows and columns or in reverse.
///
/// It ends after an error. To continue, create another one for the rest ([`Range::after`], [`Range::before`]).
pub struct Cells<'a> {
    view: &'a View,
    merge: Merge<'a>,
    range: Range,
    direction: Direction,
    at: Timestamp,
    io: Io,
    has_row_tombstones: bool,
    /// The columns to return; none: all.
    columns: Option<&'a [Bytes]>,
    state: State,
    /// The last key with a version that is not too new, and the versions skipped since the last seek.
    key: Vec<u8>,
    steps: usize,
    row: Row,
    limits: Limits,
    /// The names of columns that were returned, and the place of the next one if rows have the same columns.
    names: Vec<Bytes>,
    next_name: usize,
    /// The last key examined.
    examined: Vec<u8>,
    /// Length of its prefix that identifies the row.
    examined_row_bytes: usize,
    /// Key prefix of the first row.
    first_row: Vec<u8>,
    cut: Option<Cut>,
}

/// Where an iteration ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The row where it ended.
    pub row: Bytes,
    /// If that row alone exceeds the limit: the last column that was examined. Continuing beyond it makes progress. Empty
    /// if only the row's tombstones were examined, which takes fewer steps than any limit in use.
    pub column: Option<Bytes>,
}

/// Limits on skipped versions, and the current counts.
#[derive(Clone, Copy, Debug)]
struct Limits {
    steps_max: usize,
    row_steps_max: usize,
    steps: usize,
    /// Count for the current row.
    row_steps: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Reading,
    Ended,
}

#[derive(Default)]
struct Row {
    /// Key prefix of the row; empty before the first.
    prefix: Vec<u8>,
    key: Bytes,
    /// Its newest tombstone, as far as known.
    deleted: Option<Timestamp>,
    /// Whether one of its cells was returned.
    is_given: bool,
}

impl<'a> Cells<'a> {
    pub(super) fn new(view: &'a View, range: Range, direction: Direction, at: Timestamp, io: Io) -> Self {
        Self {
            view,
            merge: view.merge(&range, direction, io),
            range,
            direction,
            at,
            io,
            has_row_tombstones: view.has_row_tombstones(),
            columns: None,
            state: State::New,
            key: Vec::new(),
            steps: 0,
            row: Row::default(),
            limits: Limits { steps_max: usize::MAX, row_steps_max: usize::MAX, steps: 0, row_steps: 0 },
            names: Vec::new(),
            next_name: 0,
            examined: Vec::new(),
            examined_row_bytes: 0,
            first_row: Vec::new(),
            cut: None,
        }
    }

    /// Ends the iteration early after `steps_max` versions, but not within the first row or a row with a returned cell,
    /// so that continuing with the row where it ended makes progress. Also ends after `row_steps_max` versions of one
    /// row. Without limits, a long stretch of deleted or old versions could block other work.
    #[must_use]
    pub fn with_limits(mut self, steps_max: usize, row_steps_max: usize) -> Self {
        self.limits = Limits { steps_max, row_steps_max, ..self.limits };
        self
    }

    /// Returns only these columns.
    #[must_use]
    pub fn with_columns(mut self, columns: &'a [Bytes]) -> Self {
        self.columns = Some(columns);
        self
    }

    /// Where the iteration ended early, if it did.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Counts one more examined version, unless a limit is reached. It is never reached between two versions of a key.
    fn is_cut(&mut self) -> Result<bool, SstableError> {
        let Some(version) = self.merge.current() else { return Ok(false) };
        let limits = &mut self.limits;
        limits.steps += 1;
        limits.row_steps += 1;
        if *version.key == *self.examined {
            return Ok(false);
        }
        let is_same_row =
            !self.examined.is_empty() && version.key.starts_with(&self.examined[..self.examined_row_bytes]);
        if !is_same_row {
            limits.row_steps = 1;
        }
        let is_given = self.row.is_given && version.key.starts_with(&self.row.prefix);
        let must_go_on = is_given || self.first_row.is_empty() || version.key.starts_with(&self.first_row);
        let row_is_too_long = limits.row_steps > limits.row_steps_max;
        if row_is_too_long || limits.steps > limits.steps_max && !must_go_on {
            let (row, _) = cell::decode(version.key)?;
            let column = row_is_too_long.then(|| Bytes::copy_from_slice(&self.examined[self.examined_row_bytes..]));
            self.cut = Some(Cut { row: Bytes::copy_from_slice(&row), column });
            return Ok(true);
        }
        self.examined.clear();
        self.examined.extend_from_slice(version.key);
        if !is_same_row {
            self.examined_row_bytes = cell::row_prefix_bytes(version.key);
        }
        if self.first_row.is_empty() {
            self.first_row.extend_from_slice(&version.key[..self.examined_row_bytes]);
        }
        Ok(false)
    }

    fn next_cell(&mut self) -> Result<Option<Cell>, SstableError> {
        if self.state == State::New {
            self.begin()?;
            self.state = State::Reading;
        }
        match self.direction {
            Direction::Forwards => self.next_forwards(),
            Direction::Backwards => self.next_backwards(),
        }
    }

    fn begin(&mut self) -> Result<(), SstableError> {
        match (self.direction, &self.range.end) {
            (Direction::Forwards, _) => self.merge.seek(&self.range.start, Timestamp(i64::MAX)),
            (Direction::Backwards, Some(end)) => self.merge.seek_before(end, Timestamp(i64::MAX)),
            (Direction::Backwards, None) => self.merge.seek_to_last(),
        }
    }

    /// The first version of a key that is not newer than `at` is the visible one; the others are skipped.
    fn next_forwards(&mut self) -> Result<Option<Cell>, SstableError> {
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
            } else if is_value && self.row.deleted <= Some(timestamp) && self.is_wanted() {
                let value = self.merge.value();
                self.merge.step()?;
                return Ok(value.map(|value| self.cell(timestamp, value)));
            }
            self.merge.step()?;
        }
        Ok(None)
    }

    /// Moves to the next version, or past all versions of this key that are too new.
    fn pass_newer(&mut self) -> Result<(), SstableError> {
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

    /// Moves to the next version, or past all versions of this key.
    fn pass_over(&mut self) -> Result<(), SstableError> {
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

    /// Versions of a key arrive oldest first; the last one not newer than `at` is the visible one.
    fn next_backwards(&mut self) -> Result<Option<Cell>, SstableError> {
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
                self.limits.row_steps += 1;
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
            if self.key.len() > self.row.prefix.len() && self.row.deleted <= Some(timestamp) && self.is_wanted() {
                return Ok(Some(self.cell(timestamp, value)));
            }
        }
    }

    /// Enters the row of the current key, unless it is the same row.
    fn enter_row(&mut self) -> Result<(), SstableError> {
        if !self.row.prefix.is_empty() && self.key.starts_with(&self.row.prefix) {
            return Ok(());
        }
        let (row, column) = cell::decode(&self.key)?;
        let prefix = &self.key[..self.key.len() - column.len()];
        // In forward order the row tombstone precedes the cells, unless the range starts after it.
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

    /// Whether the column of the current key is to be returned.
    fn is_wanted(&self) -> bool {
        let column = &self.key[self.row.prefix.len()..];
        self.columns.is_none_or(|columns| columns.iter().any(|wanted| *wanted == *column))
    }

    fn cell(&mut self, timestamp: Timestamp, value: Bytes) -> Cell {
        self.row.is_given = true;
        let column = self.name();
        Cell { row: self.row.key.clone(), column, timestamp, value }
    }

    /// The column's name of the current key, which shares memory with that of an earlier row if it is a short one.
    fn name(&mut self) -> Bytes {
        let column = &self.key[self.row.prefix.len()..];
        if column.len() > SHARED_NAME_BYTES_MAX {
            return Bytes::copy_from_slice(column);
        }
        // Rows usually have the same columns in the same order.
        let (before, after) = self.names.split_at(self.next_name.min(self.names.len()));
        if let Some(found) = after.iter().chain(before).position(|name| *name == *column) {
            let place = (self.next_name + found) % self.names.len();
            self.next_name = place + 1;
            return self.names[place].clone();
        }
        let name = Bytes::copy_from_slice(column);
        if self.names.len() < SHARED_NAMES_MAX {
            self.names.push(name.clone());
            self.next_name = self.names.len();
        }
        name
    }
}

impl Iterator for Cells<'_> {
    type Item = Result<Cell, SstableError>;

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
