//! Reads of the applied state, now or as of a moment.
//!
//! Whether a replica *may* answer (a lease, a view check, a safe time) is decided elsewhere; here is only what the answer
//! says. Answers are bounded in bytes and in the work they take: a scan ends its page early and says where it goes on.

use base::Timestamp;
use base::limits::{SCAN_PAGE_BYTES, SCAN_ROWS_MAX};
use base::shown;
use bytes::{BufMut, Bytes, BytesMut};

use super::rows::{CellKey, Rows};
use super::versions::Versions;
use super::{Tablet, invalid};
use crate::request::{Cell, Failure, Outcome, Response, Row, Scan};
use crate::validate::check_ends;

/// Bytes of names and values in one answer, at most: it must fit into one message between nodes. A row beyond can be
/// read in parts only, by naming columns (a single one always fits).
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Cells that one page of a scan looks at, at most: a long run of deleted rows must not hold up the node. The page is
/// then short, or even empty, and says where the scan goes on.
const SCAN_CELLS_MAX: usize = 65_536;

/// Cells of one row that an answer looks at, at most: as many as an answer has room for if their names and values were
/// empty. More can be there only if most of them are deleted and wait to be swept.
const ROW_CELLS_MAX: usize = ANSWER_BYTES_MAX / CELL_FRAME_BYTES;

/// Bytes that a row or a cell takes in an answer beside its names and values.
const ROW_FRAME_BYTES: usize = 16;
const CELL_FRAME_BYTES: usize = 24;

/// Later than every version.
const LATEST: Timestamp = Timestamp(i64::MAX);

impl Tablet {
    /// Reads columns of a row, those named (in the order named) or all: a [`Response::Row`] with those that are there.
    ///
    /// # Errors
    /// [`Failure::Invalid`] when the answer would be too large.
    pub fn get(&self, key: &Bytes, columns: Option<&[Bytes]>) -> Outcome {
        self.get_at(key, columns, LATEST)
    }

    /// As [`Tablet::get`], as of a moment. What a moment after [`Tablet::last_timestamp`] shows may still change.
    ///
    /// # Errors
    /// Also when the moment is before the watermark.
    pub fn get_at(&self, key: &Bytes, columns: Option<&[Bytes]>, at: Timestamp) -> Outcome {
        self.check_moment(at)?;
        let mut row = RowBuilder::default();
        match columns {
            None => {
                let mut cells = self.rows.row(key);
                while let Some((cell, versions)) = cells.next().filter(|_| !row.is_too_large()) {
                    row.add(&cell.column, versions, at);
                }
            }
            Some(columns) => {
                for column in columns {
                    let cell = CellKey { key: key.clone(), column: column.clone() };
                    if let Some(versions) = self.rows.cells().get(&cell) {
                        row.add(column, versions, at);
                    }
                }
            }
        }
        row.check_size(key)?;
        Ok(Response::Row(row.cells))
    }

    /// Reads a page of rows: a [`Response::Rows`]. A page ends after [`Scan::limit`] rows, [`SCAN_ROWS_MAX`] rows or
    /// [`SCAN_PAGE_BYTES`], and after a bounded stretch of deleted rows; it may hold no row and still have a
    /// continuation.
    ///
    /// # Errors
    /// [`Failure::Invalid`] when the ends are reversed, or a row is too large for one answer.
    pub fn scan(&self, scan: &Scan) -> Outcome {
        self.scan_at(scan, LATEST)
    }

    /// As [`Tablet::scan`], as of a moment. What a moment after [`Tablet::last_timestamp`] shows may still change.
    ///
    /// # Errors
    /// Also when the moment is before the watermark.
    pub fn scan_at(&self, scan: &Scan, at: Timestamp) -> Outcome {
        self.check_moment(at)?;
        check_ends(scan)?;
        let Some((from, to)) = bounds(scan) else {
            return Ok(Response::Rows { rows: Vec::new(), continuation: None });
        };
        let cells = self.rows.between(from, to);
        let page = Page::new(scan.limit, at);
        if scan.reverse { page.fill(cells.rev(), true) } else { page.fill(cells, false) }
    }

    fn check_moment(&self, at: Timestamp) -> Result<(), Failure> {
        let watermark = self.watermark();
        if at < watermark {
            return Err(invalid(format!("the moment {at} is before {watermark}, the oldest that can still be read")));
        }
        Ok(())
    }
}

impl Rows {
    pub(super) fn row<'a>(&'a self, key: &'a Bytes) -> impl Iterator<Item = (&'a CellKey, &'a Versions)> {
        let start = CellKey { key: key.clone(), column: Bytes::new() };
        self.cells().range(start..).take_while(move |(cell, _)| cell.key == *key)
    }

    /// The cells of rows with keys in `from..to`; `from` lies before `to`.
    fn between(&self, from: Bytes, to: Option<Bytes>) -> impl DoubleEndedIterator<Item = (&CellKey, &Versions)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let start_of = |key| CellKey { key, column: Bytes::new() };
        self.cells().range((Included(start_of(from)), to.map_or(Unbounded, |to| Excluded(start_of(to)))))
    }
}

/// The keys that are left to scan, as `from..to`; none if there can be none.
fn bounds(scan: &Scan) -> Option<(Bytes, Option<Bytes>)> {
    let mut from = scan.from.clone().max(scan.prefix.clone());
    let mut to = least(scan.to.clone(), after_prefix(&scan.prefix));
    match &scan.continuation {
        Some(last) if scan.reverse => to = least(to, Some(last.clone())),
        Some(last) => from = from.max(successor(last)),
        None => {}
    }
    to.as_ref().is_none_or(|to| from < *to).then_some((from, to))
}

/// The lesser of two ends; none is beyond every key.
fn least(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The key right after `key`.
fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// The first key after all that begin with `prefix`; none if they reach to the end.
fn after_prefix(prefix: &Bytes) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut next = BytesMut::from(&prefix[..=last]);
    next[last] += 1;
    Some(next.freeze())
}

/// A row of an answer in the making.
#[derive(Debug, Default)]
struct RowBuilder {
    cells: Vec<Cell>,
    bytes: usize,
    looked_at: usize,
}

impl RowBuilder {
    /// Adds a column if it is there at that moment, and there is room.
    fn add(&mut self, column: &Bytes, versions: &Versions, at: Timestamp) {
        self.looked_at += 1;
        let Some(version) = versions.at(at) else { return };
        let Some(value) = &version.value else { return };
        self.bytes += CELL_FRAME_BYTES + column.len() + value.len();
        if !self.is_too_large() {
            self.cells.push(Cell { column: column.clone(), value: value.clone(), version: version.timestamp });
        }
    }

    /// Whether no answer can hold it. Nothing is gained by looking at more of it.
    fn is_too_large(&self) -> bool {
        self.bytes > ANSWER_BYTES_MAX || self.looked_at > ROW_CELLS_MAX
    }

    fn check_size(&self, key: &Bytes) -> Result<(), Failure> {
        if !self.is_too_large() {
            return Ok(());
        }
        Err(invalid(format!(
            "the columns asked for of row \"{}\" have more than {ANSWER_BYTES_MAX} bytes, or are more than \
             {ROW_CELLS_MAX} with deleted ones, the limits for one answer: name fewer",
            shown(key)
        )))
    }
}

/// A page of a scan in the making.
struct Page {
    at: Timestamp,
    limit: usize,
    rows: Vec<Row>,
    bytes: usize,
    cells_left: usize,
}

impl Page {
    fn new(limit: usize, at: Timestamp) -> Self {
        let limit = if limit == 0 { SCAN_ROWS_MAX } else { limit.min(SCAN_ROWS_MAX) };
        Self { at, limit, rows: Vec::new(), bytes: 0, cells_left: SCAN_CELLS_MAX }
    }

    /// Takes rows in until the page is full or `cells` is at its end. It looks on for one row more than it takes, so that
    /// a continuation is given only if there is something to go on with (or nobody has looked yet).
    fn fill<'a>(mut self, cells: impl Iterator<Item = (&'a CellKey, &'a Versions)>, reverse: bool) -> Outcome {
        let mut cells = cells.peekable();
        let mut last_key: Option<&Bytes> = None;
        while let Some((first, _)) = cells.peek() {
            if self.cells_left == 0 {
                return Ok(self.end(last_key));
            }
            let key = &first.key;
            let mut row = RowBuilder::default();
            while let Some((cell, versions)) = cells.next_if(|(cell, _)| cell.key == *key && !row.is_too_large()) {
                row.add(&cell.column, versions, self.at);
                self.cells_left = self.cells_left.saturating_sub(1);
            }
            if row.bytes > 0 || row.is_too_large() {
                if self.is_full(&row) {
                    return Ok(self.end(last_key));
                }
                row.check_size(key)?;
                self.take(key, row, reverse);
            }
            last_key = Some(key);
        }
        Ok(self.end(None))
    }

    fn is_full(&self, next: &RowBuilder) -> bool {
        let does_not_fit = next.is_too_large() || self.bytes + next.bytes > ANSWER_BYTES_MAX;
        let overflows = does_not_fit && !self.rows.is_empty();
        self.rows.len() >= self.limit || self.bytes >= SCAN_PAGE_BYTES || overflows
    }

    fn take(&mut self, key: &Bytes, mut row: RowBuilder, reverse: bool) {
        if reverse {
            row.cells.reverse();
        }
        self.bytes += ROW_FRAME_BYTES + key.len() + row.bytes;
        self.rows.push(Row { key: key.clone(), cells: row.cells });
    }

    fn end(self, continuation: Option<&Bytes>) -> Response {
        Response::Rows { rows: self.rows, continuation: continuation.cloned() }
    }
}
