//! Reads of a tablet's rows, as of an applied entry or an earlier moment.
//!
//! Whether a replica *may* answer (lease, read index, safe time) is decided elsewhere. Responses are bounded in bytes
//! and in work: a scan ends its page early and returns a continuation.

use std::ops::Bound;

use base::canary::{Bug, planted};
use base::limits::{SCAN_PAGE_BYTES, SCAN_ROWS_MAX};
use base::{KeyRange, Timestamp, shown};
use bytes::{BufMut, Bytes, BytesMut};
use state_machine::failure::{check_kept, invalid};
use state_machine::interface::View as MachineView;
use state_machine::{Failure, KeyPosition, Ownership};
use store::cell::Range;
use store::sstable::{Io, SstableError};
use store::tree::{self, Cells, Changed, Cut, Direction, View};

use crate::command::Command;
use crate::evaluation::{Evaluation, Question};
use crate::request::{
    Cell, Columns, Mismatch, Mutation, Outcome, Part, Rest, Row, Scan, TableRequest, TableResponse, Write,
};
use crate::tablet::transactions::PreparedRows;
use crate::transaction::{CONFLICT, ReadSpan, TransactionPart};
use crate::validate::check_ends;

/// Maximum bytes of names and values in one response, so that it fits into one message between nodes. A larger row is
/// read in parts ([`Part`]). A single column always fits.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Maximum versions that one page of a scan steps over, so that a long run of deleted rows does not delay other
/// requests. The page is then short or even empty, and has a continuation.
const SCAN_STEPS_MAX: usize = 65_536;

/// Maximum versions of one row, including deleted ones, that a response steps over where other requests wait for it: in
/// memory, or if the row may be returned in parts. A row with more is read by a thread that may block.
const ROW_STEPS_MAX: usize = SCAN_STEPS_MAX;

/// The same on a thread that may block: about a second of work. A row with more can only be read in parts, until
/// compaction has removed the deleted versions.
const BLOCKING_ROW_STEPS_MAX: usize = 4 << 20;

/// Maximum versions that the validation of one range of keys steps over. A transaction that would need more is aborted.
const VALIDATION_STEPS_MAX: usize = 1 << 20;

/// Bytes of a row or a cell in a response, without its names and values.
const ROW_FRAME_BYTES: usize = 16;
const CELL_FRAME_BYTES: usize = 24;

/// A tablet's rows as of one entry, readable by any thread.
#[derive(Clone, Debug)]
pub struct TabletView {
    /// The ownership as of that entry: the view answers for no other keys (guarantee 19).
    pub(super) ownership: Ownership,
    pub(super) rows: View,
    /// The timestamp of the last visible entry.
    pub(super) applied: Timestamp,
    pub(super) watermark: Timestamp,
    pub(super) prepared: PreparedRows,
}

impl TabletView {
    /// Reads columns of a row: the named ones in the order given, or all. Returns a [`TableResponse::Row`] with the
    /// columns that exist. A row that is too large for one response is returned in parts if [`Columns::part`] allows it;
    /// otherwise [`Failure::Invalid`].
    ///
    /// # Errors
    /// An SSTable cannot be read, or only by blocking and `io` does not allow that.
    pub fn get(&self, key: &Bytes, columns: &Columns, io: Io) -> Result<Outcome, SstableError> {
        self.get_at(key, columns, self.applied, io)
    }

    /// [`TabletView::get`] as of a moment; also [`Failure::Precondition`] if that is before the watermark. The result for a
    /// moment after the last entry may still change.
    ///
    /// # Errors
    /// As [`TabletView::get`].
    pub fn get_at(&self, key: &Bytes, columns: &Columns, at: Timestamp, io: Io) -> Result<Outcome, SstableError> {
        let at = match self.ownership.check(&KeyPosition::At(key.clone())).and_then(|_| self.moment(at)) {
            Ok(at) => at,
            Err(failure) => return Ok(Err(failure)),
        };
        let Columns { named, part } = columns;
        let mut row = RowBuilder::new(part);
        let after = part.start().cloned().unwrap_or_default();
        match named {
            None => {
                let range = if after.is_empty() { Range::row(key) } else { Range::row(key).after(key, &after) };
                let mut cells = self.cells(range, Direction::Forwards, at, part, io);
                for cell in cells.by_ref() {
                    let tree::Cell { column, timestamp, value, .. } = cell?;
                    if !row.add(column, timestamp, value) {
                        break;
                    }
                }
                row.cut = row.cut.or_else(|| cells.cut().and_then(|cut| cut.column.clone()));
            }
            Some(named) => {
                let passed = named.iter().position(|column| *column == after).map_or(0, |place| place + 1);
                let (passed, rest) = named.split_at(passed);
                // A name that occurs again would otherwise be continued at its first occurrence for ever.
                for column in rest.iter().filter(|column| !passed.contains(column)) {
                    if let Some((timestamp, value)) = self.rows.newest(key, column, at, io)?
                        && !row.add(column.clone(), timestamp, value)
                    {
                        break;
                    }
                }
            }
        }
        Ok(match row.cut.take() {
            None => Ok(TableResponse::Row { cells: row.cells, rest: None }),
            Some(after) if part.is_allowed() => {
                Ok(TableResponse::Row { cells: row.cells, rest: Some(Rest { after, at }) })
            }
            Some(_) => Err(too_large(key, &row, io)?),
        })
    }

    /// Reads a page of rows: a [`TableResponse::Rows`]. A page ends after [`Scan::limit`] rows, [`SCAN_ROWS_MAX`] rows
    /// or [`SCAN_PAGE_BYTES`], after a bounded run of deleted rows, and at the end of the tablet's range. It may
    /// contain no row and still have a continuation. A row that is too large for one response is returned in parts, each
    /// alone on its page, if [`Scan::part`] allows it; otherwise [`Failure::Invalid`], as for reversed ends.
    ///
    /// # Errors
    /// As [`TabletView::get`].
    pub fn scan(&self, scan: &Scan, io: Io) -> Result<Outcome, SstableError> {
        self.scan_at(scan, self.applied, io)
    }

    /// [`TabletView::scan`] as of a moment; also [`Failure::Precondition`] if that is before the watermark.
    ///
    /// # Errors
    /// As [`TabletView::get`].
    pub fn scan_at(&self, scan: &Scan, at: Timestamp, io: Io) -> Result<Outcome, SstableError> {
        let begin = || {
            check_ends(scan)?;
            Ok((self.ownership.check(&scan.position())?, self.moment(at)?))
        };
        let (range, at) = match begin() {
            Ok(begun) => begun,
            Err(failure) => return Ok(Err(failure)),
        };
        let Some((from, to)) = bounds(scan) else {
            return Ok(Ok(TableResponse::Rows { rows: Vec::new(), continuation: None, rest: None }));
        };
        let (from, to, beyond) = clip(from, to, range, scan.reverse);
        let direction = if scan.reverse { Direction::Backwards } else { Direction::Forwards };
        let rows = Range::rows(&from, to.as_deref());
        let range = match scan.within_row() {
            Some((row, column)) if scan.reverse => rows.before(row, column),
            Some((row, column)) => rows.after(row, column),
            None => rows,
        };
        let cells = self.cells(range, direction, at, &scan.part, io);
        let cells = match &scan.columns {
            Some(columns) => cells.with_columns(columns),
            None => cells,
        };
        Page::new(scan, beyond, at, io).fill(cells)
    }

    /// Evaluates the conditions of a write, and returns the command to propose: the write without conditions, or its
    /// refusal. The result is valid only for the next entry that touches the row. So the proposer must make sure that
    /// the log contains no unapplied entry of the row. The tablet must own the row.
    ///
    /// # Errors
    /// As [`TabletView::get`].
    pub fn decide(&self, write: &Write, io: Io) -> Result<Command, SstableError> {
        for Mutation { column, condition, .. } in &write.mutations {
            let Some(expected) = *condition else { continue };
            let found = self.rows.newest(&write.key, column, self.applied, io)?;
            let actual = found.map_or(Timestamp(0), |(timestamp, _)| timestamp);
            if actual != expected {
                let mismatch = Mismatch { column: column.clone(), expected, actual };
                return Ok(Command::Refuse { stamp: write.stamp, key: write.key.clone(), mismatch });
            }
        }
        Ok(Command::unconditional(write.clone()))
    }

    /// Validates the reads of a transaction: the reason for which it must be aborted, if there is one. As for
    /// [`TabletView::decide`], the log must contain no unapplied entry of these keys.
    ///
    /// # Errors
    /// As [`TabletView::get`].
    pub fn conflict(&self, reads: &[ReadSpan], io: Io) -> Result<Option<String>, SstableError> {
        if planted(Bug::CommitNotValidated) {
            return Ok(None);
        }
        // For all reads together, because they may be validated by the thread that leads.
        let mut steps = VALIDATION_STEPS_MAX;
        for ReadSpan { range, seen } in reads {
            if *seen < self.watermark {
                let watermark = self.watermark;
                return Ok(Some(format!(
                    "it has read at timestamp {seen}, before {watermark}, the oldest one that is kept: it took too long"
                )));
            }
            // Otherwise the changes up to that timestamp would not be compared.
            if *seen > self.applied {
                return Ok(Some(format!("it has read at timestamp {seen}, which the range has not reached")));
            }
            let cells = Range::rows(&range.start, range.end.as_deref());
            match self.rows.changed_since(&cells, *seen, &mut steps, io)? {
                Changed::No => {}
                Changed::At(_) => {
                    return Ok(Some(CONFLICT.to_owned()));
                }
                Changed::TooManyVersions => {
                    return Ok(Some("too many versions to compare since it has read".to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// The first timestamp of prepared transactions that may change the answer to a query as of the view's moment.
    pub(crate) fn awaits(&self, question: &Question) -> Option<Timestamp> {
        if self.prepared.is_empty() || planted(Bug::ReadIgnoresPrepared) {
            return None;
        }
        let first = match question {
            Question::Get { key, .. } => self.prepared.get(key).copied(),
            Question::Scan(scan) => bounds(scan).and_then(|(from, to)| {
                let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
                self.prepared.range(range).map(|(_, prepared)| *prepared).min()
            }),
            // Their latches exclude those of a prepared transaction.
            Question::Decide(_) | Question::Commit(_) | Question::Prepare(_) | Question::Prepared { .. } => None,
        };
        first.filter(|prepared| *prepared <= self.applied)
    }

    /// Whether the tablet owns all keys of a transaction's part.
    pub(crate) fn holds_all(&self, part: &TransactionPart) -> bool {
        let Some(own) = self.ownership.range() else { return false };
        part.reads.iter().all(|read| own.includes(&read.range))
            && part.writes.iter().all(|change| own.contains(&change.key))
    }

    /// Whether the tablet owns the position.
    pub(crate) fn holds(&self, position: &KeyPosition) -> bool {
        self.ownership.holds(position)
    }

    fn cells(&self, range: Range, direction: Direction, at: Timestamp, part: &Part, io: Io) -> Cells<'_> {
        let row_steps_max =
            if io == Io::CacheOnly || part.is_allowed() { ROW_STEPS_MAX } else { BLOCKING_ROW_STEPS_MAX };
        self.rows.cells(range, direction, at, io).with_limits(SCAN_STEPS_MAX, row_steps_max)
    }

    /// Limits a moment to the last visible entry.
    fn moment(&self, at: Timestamp) -> Result<Timestamp, Failure> {
        check_kept(at, self.watermark)?;
        Ok(at.min(self.applied))
    }
}

impl MachineView for TabletView {
    type Request = TableRequest;
    type Read = Evaluation;

    fn read(&self, request: &TableRequest) -> Option<Evaluation> {
        Evaluation::of(request, self.clone())
    }

    fn at(mut self, moment: Timestamp) -> Result<Self, Failure> {
        let applied = self.applied;
        if moment > applied {
            return Err(Failure::Unavailable(format!(
                "timestamp {moment} is after {applied}, the last one that this replica has applied"
            )));
        }
        self.applied = self.moment(moment)?;
        Ok(self)
    }

    fn timestamp(&self) -> Timestamp {
        self.applied
    }

    fn range(&self) -> Option<&KeyRange> {
        self.ownership.range()
    }

    fn is_settled(&self) -> bool {
        self.prepared.is_empty()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.applied == other.applied
            && self.watermark == other.watermark
            && self.ownership == other.ownership
            && self.prepared.ptr_eq(&other.prepared)
            && self.rows.is_same(&other.rows)
    }
}

/// The remaining keys of a scan, as `from..to`; none if there are none.
pub(crate) fn bounds(scan: &Scan) -> Option<(Bytes, Option<Bytes>)> {
    let mut from = scan.from.clone().max(scan.prefix.clone());
    let mut to = least(scan.to.clone(), KeyRange::of_prefix(&scan.prefix).end);
    match &scan.continuation {
        Some(end) if scan.reverse => to = least(to, Some(end.clone())),
        Some(next) => from = from.max(next.clone()),
        None => {}
    }
    to.as_ref().is_none_or(|to| from < *to).then_some((from, to))
}

/// The part of `from..to` within the range, which contains the scan's position, and the continuation if the scan goes
/// on in another range.
fn clip(from: Bytes, to: Option<Bytes>, range: &KeyRange, reverse: bool) -> (Bytes, Option<Bytes>, Option<Bytes>) {
    if reverse {
        let beyond = (from < range.start).then(|| range.start.clone());
        return (from.max(range.start.clone()), to, beyond);
    }
    let beyond = range.end.clone().filter(|end| to.as_ref().is_none_or(|to| end < to));
    (from, least(to, range.end.clone()), beyond)
}

/// The lesser of two exclusive ends; none is above every key.
pub(crate) fn least(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The least key above `key`.
fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// The refusal of a row that exceeds a response. If it only has too many versions for a read from memory, a thread that
/// may block reads it instead.
fn too_large(key: &[u8], row: &RowBuilder, io: Io) -> Result<Failure, SstableError> {
    if io == Io::CacheOnly && !row.is_full {
        return Err(SstableError::NotCached);
    }
    Ok(invalid(format!(
        "the requested columns of row \"{}\" exceed the limits of one response, {ANSWER_BYTES_MAX} bytes or \
         {BLOCKING_ROW_STEPS_MAX} versions including deleted ones: read the row in parts (columns_after) or request \
         fewer columns",
        shown(key)
    )))
}

/// Collects the cells of one row of a response.
#[derive(Debug, Default)]
struct RowBuilder {
    cells: Vec<Cell>,
    bytes: usize,
    names_only: bool,
    /// Whether a column did not fit.
    is_full: bool,
    /// If reading the row was stopped early: the last column that was read or passed over.
    cut: Option<Bytes>,
}

impl RowBuilder {
    fn new(part: &Part) -> Self {
        Self { names_only: part.names_only, ..Self::default() }
    }

    /// Adds a column, if the response has room for it; otherwise the row is cut before the column.
    fn add(&mut self, column: Bytes, version: Timestamp, value: Bytes) -> bool {
        let value = if self.names_only { Bytes::new() } else { value };
        let bytes = self.bytes + CELL_FRAME_BYTES + column.len() + value.len();
        if bytes > ANSWER_BYTES_MAX {
            self.is_full = true;
            self.cut = self.cells.last().map(|cell| cell.column.clone());
            return false;
        }
        self.bytes = bytes;
        self.cells.push(Cell { column, value, version });
        true
    }
}

/// Collects one page of a scan.
struct Page<'a> {
    limit: usize,
    is_reverse: bool,
    part: &'a Part,
    at: Timestamp,
    io: Io,
    /// The row that the page continues, as of the moment of its first part. The page ends with it: the caller may want
    /// later rows as of a later moment.
    continued: Option<Bytes>,
    /// The continuation in another range, for use at the end of the cells.
    beyond: Option<Bytes>,
    rows: Vec<Row>,
    bytes: usize,
}

impl<'a> Page<'a> {
    fn new(scan: &'a Scan, beyond: Option<Bytes>, at: Timestamp, io: Io) -> Self {
        let limit = if scan.limit == 0 { SCAN_ROWS_MAX } else { scan.limit.min(SCAN_ROWS_MAX) };
        let (is_reverse, part, rows) = (scan.reverse, &scan.part, Vec::new());
        let continued = scan.within_row().map(|(row, _)| Bytes::copy_from_slice(row));
        Self { limit, is_reverse, part, at, io, continued, beyond, rows, bytes: 0 }
    }

    /// Adds rows until the page is full or `cells` ends. It reads one row beyond the page, so that a continuation is
    /// returned only if there is another row (or if the work limit was reached before that is known).
    fn fill(mut self, mut cells: Cells<'_>) -> Result<Outcome, SstableError> {
        let mut row = RowBuilder::new(self.part);
        let mut key: Option<Bytes> = None;
        loop {
            let cell = if row.cut.is_some() { None } else { cells.next().transpose()? };
            let goes_on = cell.as_ref().is_some_and(|cell| Some(&cell.row) == key.as_ref());
            if !goes_on && let Some(key) = key.take() {
                if let Some(cut) = cells.cut().filter(|cut| cut.row == key) {
                    row.cut.clone_from(&cut.column);
                }
                if self.is_full(&row) {
                    return Ok(Ok(self.end_before(key, None)));
                }
                if row.cut.is_some() {
                    return self.end_within(key, row);
                }
                self.take(key, std::mem::replace(&mut row, RowBuilder::new(self.part)));
            }
            let Some(tree::Cell { row: of, column, timestamp, value }) = cell else { break };
            if self.is_beyond(&of) {
                return Ok(Ok(self.end_before(of, None)));
            }
            key = Some(of);
            row.add(column, timestamp, value);
        }
        match cells.cut() {
            None => {
                let beyond = self.beyond.take();
                Ok(Ok(self.end(beyond, None)))
            }
            Some(Cut { row, column }) if column.is_some() && self.rows.is_empty() && !self.is_beyond(row) => {
                let cut = RowBuilder { cut: column.clone(), ..RowBuilder::default() };
                self.end_within(row.clone(), cut)
            }
            Some(Cut { row, .. }) => Ok(Ok(self.end_before(row.clone(), None))),
        }
    }

    /// Whether the page ends before this row, because it continues another one.
    fn is_beyond(&self, row: &Bytes) -> bool {
        self.continued.as_ref().is_some_and(|continued| continued != row)
    }

    fn is_full(&self, next: &RowBuilder) -> bool {
        let does_not_fit = next.cut.is_some() || self.bytes + next.bytes > ANSWER_BYTES_MAX;
        let overflows = does_not_fit && !self.rows.is_empty();
        self.rows.len() >= self.limit || self.bytes >= SCAN_PAGE_BYTES || overflows
    }

    fn take(&mut self, key: Bytes, mut row: RowBuilder) {
        if self.is_reverse {
            row.cells.reverse();
        }
        self.bytes += ROW_FRAME_BYTES + key.len() + row.bytes;
        self.rows.push(Row { key, cells: row.cells });
    }

    /// Ends the page within a row that exceeds it.
    fn end_within(mut self, key: Bytes, mut row: RowBuilder) -> Result<Outcome, SstableError> {
        if !self.part.is_allowed() {
            return Ok(Err(too_large(&key, &row, self.io)?));
        }
        let rest = row.cut.take().map(|after| Rest { after, at: self.at });
        if !row.cells.is_empty() {
            self.take(key.clone(), row);
        }
        Ok(Ok(self.end_before(key, rest)))
    }

    /// Ends the page before a row, or before the rest of it.
    fn end_before(self, key: Bytes, rest: Option<Rest>) -> TableResponse {
        let continuation = if self.is_reverse { successor(&key) } else { key };
        self.end(Some(continuation), rest)
    }

    fn end(self, continuation: Option<Bytes>, rest: Option<Rest>) -> TableResponse {
        TableResponse::Rows { rows: self.rows, continuation, rest }
    }
}
