//! The reads and the pending writes of a transaction.

use std::collections::{BTreeMap, BTreeSet};

use api::columns as message;
use base::limits::{TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX, WRITE_BYTES_MAX, WRITE_COLUMNS_MAX};
use bytes::Bytes;
use client::{PendingCell, PendingWrites, RowName, RowWrite, TransactionId};

use crate::types::{Cell, Row};
use crate::{Error, Version};

/// Keys that were read: a table, and the keys from the first to the second, exclusive; none: to the end of the table.
type Span = (String, Bytes, Option<Bytes>);

/// The reads and writes of a transaction. The limits are those that the server checks at the commit.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The spans read, each with the timestamp of the oldest state that was read.
    reads: BTreeMap<Span, i64>,
    /// Whether a span was read in different states.
    reads_differ: bool,
    /// The ranges with read locks of any attempt, as a table and the range's first key, each with a key in it.
    pub(super) locked: BTreeMap<(String, Bytes), Bytes>,
    /// Those of this attempt.
    pub(super) read_now: BTreeSet<(String, Bytes)>,
    /// Reads of any attempt that have no answer, and may lock later, each as a table and a key, and how often. Also
    /// those that were answered late, because another copy of the request may still be on its way.
    pub(super) unanswered: BTreeMap<(String, Bytes), usize>,
    /// Whether read locks were released. The nodes then ignore further reads of this owner.
    pub(super) has_unlocked: bool,
    writes: PendingWrites,
    /// The id under which it is committed, if it was asked for.
    pub(super) id: Option<TransactionId>,
    /// The timestamp of the oldest state that was read.
    oldest_ns: Option<i64>,
    /// Bytes of all keys, names and values.
    bytes: usize,
    has_ended: bool,
}

/// The content of a commit.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) reads: Vec<message::TransactionRead>,
    pub(super) writes: Vec<message::TransactionWrite>,
    pub(super) needs_commit: bool,
}

impl State {
    /// Ends this attempt. Returns the state of another one, with the ranges in which earlier ones have read locks, or
    /// may get some.
    pub(super) fn again(&mut self) -> Self {
        self.end();
        let (locked, unanswered) = (std::mem::take(&mut self.locked), std::mem::take(&mut self.unanswered));
        Self { locked, unanswered, ..Self::default() }
    }

    /// Notes a read that is sent.
    pub(super) fn asks(&mut self, place: (String, Bytes)) {
        if self.unanswered.len() < TRANSACTION_READS_MAX {
            *self.unanswered.entry(place).or_default() += 1;
        }
    }

    /// Notes that no copy of a read is left.
    pub(super) fn is_answered(&mut self, place: &(String, Bytes)) {
        if let Some(count) = self.unanswered.get_mut(place) {
            *count -= 1;
            if *count == 0 {
                self.unanswered.remove(place);
            }
        }
    }

    /// At most this number of places of reads that may lock later, spread evenly, because many may be in one range.
    pub(super) fn unanswered(&self, max: usize) -> Vec<(String, Bytes)> {
        let step = self.unanswered.len().div_ceil(max).max(1);
        self.unanswered.keys().step_by(step).cloned().collect()
    }

    /// # Errors
    /// [`Error::Invalid`] if the transaction was committed or rolled back.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.has_ended { invalid("the transaction has ended".to_owned()) } else { Ok(()) }
    }

    /// Notes that the keys from `start` to `end` were read, in a state with this timestamp.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too much.
    pub(super) fn has_read(&mut self, table: &str, start: Bytes, end: Option<Bytes>, seen: i64) -> Result<(), Error> {
        self.check_open()?;
        if end.as_ref().is_some_and(|end| *end <= start) {
            return Ok(());
        }
        self.oldest_ns = Some(self.oldest_ns.map_or(seen, |oldest| oldest.min(seen)));
        let mut span: Span = (table.to_owned(), start, end);
        if let Some(before) = self.reads.get_mut(&span) {
            self.reads_differ |= *before != seen;
            *before = seen.min(*before);
            return Ok(());
        }
        // Neighbors in states with the same timestamp are one read: neither has changed between the two reads.
        let before = self.reads.range(..&span).next_back();
        let before =
            before.filter(|((table, _, end), at)| (table, end.as_ref(), **at) == (&span.0, Some(&span.1), seen));
        let before = before.map(|(before, _)| before.clone());
        let after = span.2.as_ref().and_then(|end| self.reads.range((span.0.clone(), end.clone(), None)..).next());
        let after =
            after.filter(|((table, start, _), at)| (table, Some(start), **at) == (&span.0, span.2.as_ref(), seen));
        let after = after.map(|(after, _)| after.clone());
        if let Some((_, start, _)) = &before {
            span.1 = start.clone();
        }
        if let Some((_, _, end)) = &after {
            span.2.clone_from(end);
        }
        let replaced: Vec<Span> = [before, after].into_iter().flatten().collect();
        // The limits are checked before anything changes: after an error, the earlier reads are still validated.
        if self.reads.len() - replaced.len() >= TRANSACTION_READS_MAX {
            return invalid(format!("the transaction has read more than {TRANSACTION_READS_MAX} rows or pages"));
        }
        let (new, old) = (span_bytes(&span), replaced.iter().map(span_bytes).sum::<usize>());
        self.add_bytes(new.saturating_sub(old))?;
        self.bytes -= old.saturating_sub(new);
        for span in &replaced {
            self.reads.remove(span);
        }
        self.reads.insert(span, seen);
        Ok(())
    }

    /// Whether a row's version shows that it has changed since an earlier read of this key, so that the commit would fail.
    pub(super) fn is_outdated(&self, table: &str, key: &Bytes, version: i64) -> bool {
        if self.oldest_ns.is_none_or(|oldest| version <= oldest) {
            return false;
        }
        let first = (table.to_owned(), Bytes::new(), None);
        let end = (table.to_owned(), Bytes::from([key, &[0][..]].concat()), None);
        let covers = |((_, _, end), seen): (&Span, &i64)| end.as_ref().is_none_or(|end| end > key) && version > *seen;
        self.reads.range(first..end).any(covers)
    }

    /// Changes a column of a row.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too much.
    pub(super) fn change(
        &mut self,
        table: String,
        key: Bytes,
        column: Bytes,
        value: Option<Bytes>,
    ) -> Result<(), Error> {
        self.check_open()?;
        let place = (table, key);
        let row = self.writes.of(&place);
        let old = row.and_then(|row| row.columns.get_key_value(&column)).map_or(0, column_bytes);
        if old == 0 && row.is_some_and(|row| row.columns.len() >= WRITE_COLUMNS_MAX) {
            return invalid(format!("the transaction changes more than {WRITE_COLUMNS_MAX} columns of a row"));
        }
        let new = column_bytes((&column, &value)) + self.row_bytes(&place)?;
        self.add_bytes(new.saturating_sub(old))?;
        self.bytes -= old.saturating_sub(new);
        self.writes.change(place, column, value);
        Ok(())
    }

    /// Deletes a row, and forgets earlier changes of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is too much.
    pub(super) fn delete_row(&mut self, table: String, key: Bytes) -> Result<(), Error> {
        self.check_open()?;
        let place = (table, key);
        let new = self.row_bytes(&place)?;
        self.add_bytes(new)?;
        let before = self.writes.delete_row(place);
        self.bytes -= before.iter().flat_map(|row| &row.columns).map(column_bytes).sum::<usize>();
        Ok(())
    }

    /// The bytes of a row's key, unless the row is changed already.
    fn row_bytes(&self, place: &RowName) -> Result<usize, Error> {
        if self.writes.of(place).is_some() {
            return Ok(0);
        }
        if self.writes.len() >= TRANSACTION_WRITES_MAX {
            return invalid(format!("the transaction changes more than {TRANSACTION_WRITES_MAX} rows"));
        }
        Ok(place.1.len())
    }

    fn add_bytes(&mut self, bytes: usize) -> Result<(), Error> {
        if self.bytes + bytes > WRITE_BYTES_MAX {
            let max = WRITE_BYTES_MAX >> 20;
            return invalid(format!(
                "the keys, columns and values of the transaction are larger than {max} MiB together"
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    pub(super) fn savepoint(&self) -> PendingWrites {
        self.writes.clone()
    }

    /// # Errors
    /// [`Error::Invalid`] if the transaction has ended.
    pub(super) fn restore(&mut self, savepoint: &PendingWrites) -> Result<(), Error> {
        self.check_open()?;
        self.bytes -= self.writes.iter().map(write_bytes).sum::<usize>();
        self.writes.clone_from(savepoint);
        self.bytes += self.writes.iter().map(write_bytes).sum::<usize>();
        Ok(())
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn write(&self, table: &str, key: &Bytes) -> Option<&RowWrite> {
        self.writes.of(&(table.to_owned(), key.clone()))
    }

    /// A row with the transaction's own changes.
    pub(super) fn over(&self, table: &str, row: Row) -> Row {
        let cells = self.writes.over(&(table.to_owned(), row.key.clone()), row.cells);
        Row::new(row.key, cells)
    }

    /// The rows of a page that covers these keys, in order of key, with the transaction's own changes.
    pub(super) fn merged(&self, table: &str, start: &Bytes, end: Option<&Bytes>, page: Vec<Row>) -> Vec<Row> {
        if self.writes.is_empty() {
            return page;
        }
        let page = page.into_iter().map(|row| (row.key, row.cells)).collect();
        self.writes.merged(table, start, end, page).into_iter().map(|(key, cells)| Row::new(key, cells)).collect()
    }

    /// Ends the transaction. Returns its reads and writes.
    pub(super) fn end(&mut self) -> Parts {
        self.has_ended = true;
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        // A single strong read shows one moment between its beginning and its end: there is nothing to validate.
        let needs_commit = !writes.is_empty() || reads.len() > 1 || self.reads_differ || self.id.is_some();
        let read = |((table, start, end), seen_ns)| message::TransactionRead { table, start, end, seen_ns };
        let reads = reads.into_iter().map(read).collect();
        let writes = writes.into_iter().map(|(name, row)| message_of(name, row)).collect();
        Parts { reads, writes, needs_commit }
    }

    /// Notes that a range has read locks.
    pub(super) fn has_locked(&mut self, range: (String, Bytes), key: Bytes) {
        self.read_now.insert(range.clone());
        self.locked.entry(range).or_insert(key);
    }

    /// A key in each range with read locks, except in some ranges.
    pub(super) fn locked_but(&self, except: &BTreeSet<(String, Bytes)>) -> Vec<(String, Bytes)> {
        let others = self.locked.iter().filter(|(range, _)| !except.contains(*range));
        others.map(|((table, _), key)| (table.clone(), key.clone())).collect()
    }
}

impl PendingCell for Cell {
    fn column(&self) -> &Bytes {
        &self.column
    }

    fn put(column: Bytes, value: Bytes) -> Self {
        Self::new(column, value, Version::ABSENT)
    }
}

fn message_of((table, key): RowName, row: RowWrite) -> message::TransactionWrite {
    // A row that is deleted has no columns to delete.
    let columns = row.columns.into_iter().filter(|(_, value)| value.is_some() || !row.deletes_row);
    let mutation = |(column, value)| message::Mutation { column, value, condition: None };
    let mutations = columns.map(mutation).collect();
    message::TransactionWrite { table, key, mutations, delete_row: row.deletes_row }
}

fn span_bytes((_, start, end): &Span) -> usize {
    start.len() + end.as_ref().map_or(0, Bytes::len)
}

fn write_bytes(((_, key), row): (&RowName, &RowWrite)) -> usize {
    key.len() + row.columns.iter().map(column_bytes).sum::<usize>()
}

fn column_bytes((column, value): (&Bytes, &Option<Bytes>)) -> usize {
    column.len() + value.as_ref().map_or(0, Bytes::len)
}

fn invalid<T>(reason: String) -> Result<T, Error> {
    Err(Error::Invalid(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::type_complexity, reason = "a span in one line")]
    fn spans(state: &State) -> Vec<(&str, &[u8], Option<&[u8]>, i64)> {
        let reads = state.reads.iter();
        reads.map(|((table, start, end), seen)| (&**table, &**start, end.as_deref(), *seen)).collect()
    }

    #[track_caller]
    fn read(state: &mut State, table: &str, start: &'static str, end: Option<&'static str>, seen: i64) {
        state.has_read(table, start.into(), end.map(Into::into), seen).expect("within the limits");
    }

    fn put(state: &mut State, key: &'static str, column: &'static str, value: &'static str) {
        state.change("t".into(), key.into(), column.into(), Some(value.into())).expect("within the limits");
    }

    #[test]
    fn adjacent_pages_of_one_state_are_one_read() {
        let mut state = State::default();
        read(&mut state, "t", "a", Some("c"), 5);
        read(&mut state, "t", "c", Some("e"), 5);
        read(&mut state, "t", "e", None, 6);
        read(&mut state, "u", "e", None, 6);
        let other = [("t", &b"e"[..], None, 6), ("u", b"e", None, 6)];
        assert_eq!(spans(&state), [&[("t", &b"a"[..], Some(&b"e"[..]), 5)][..], &other].concat());
        // Backwards, and into a gap.
        read(&mut state, "v", "m", None, 7);
        read(&mut state, "v", "a", Some("c"), 7);
        read(&mut state, "v", "c", Some("m"), 7);
        assert_eq!(spans(&state)[3..], [("v", &b"a"[..], None, 7)]);
        assert_eq!(state.bytes, 1 + 1 + 1 + 1 + 1);
    }

    /// A read beyond the limit changes nothing: the neighbors that it would extend are still validated.
    #[test]
    fn read_beyond_the_limit_keeps_earlier_reads() {
        let mut state = State::default();
        read(&mut state, "t", "a", Some("c"), 5);
        read(&mut state, "t", "e", Some("g"), 5);
        let before = state.savepoint();
        put(&mut state, "k", "c", "v");
        let large = Bytes::from(vec![0; WRITE_BYTES_MAX - state.bytes - 1]);
        state.change("t".into(), "l".into(), Bytes::new(), Some(large)).expect("within the limits");
        assert_eq!(state.bytes, WRITE_BYTES_MAX);
        assert!(state.has_read("t", "g".into(), Some("larger than g".into()), 5).is_err());
        let earlier = [("t", &b"a"[..], Some(&b"c"[..]), 5), ("t", b"e", Some(b"g"), 5)];
        assert_eq!(spans(&state), earlier);
        state.restore(&before).expect("it is open");
        assert_eq!((state.bytes, state.end().reads.len()), (4, 2));
    }

    /// The state of the first read counts: a change between the two is a conflict.
    #[test]
    fn repeated_read_keeps_oldest_state() {
        let mut state = State::default();
        read(&mut state, "t", "a", Some("b"), 5);
        read(&mut state, "t", "a", Some("b"), 5);
        assert!(!state.reads_differ);
        read(&mut state, "t", "a", Some("b"), 8);
        assert_eq!(spans(&state), [("t", &b"a"[..], Some(&b"b"[..]), 5)]);
        assert!(state.end().needs_commit, "it has seen two states");
        assert!(state.check_open().is_err());
    }

    /// Two reads of one key: one is answered, the other is dropped.
    #[test]
    fn reads_without_an_answer_are_known() {
        let (mut state, place) = (State::default(), |key: &'static str| ("t".to_owned(), Bytes::from(key)));
        state.asks(place("a"));
        state.asks(place("a"));
        state.asks(place("b"));
        state.is_answered(&place("a"));
        state.is_answered(&place("b"));
        state.is_answered(&place("unknown"));
        assert_eq!(state.unanswered(9), [place("a")]);
        let mut again = state.again();
        assert!(state.check_open().is_err() && state.unanswered(9).is_empty());
        for key in ["b", "c", "d", "e"] {
            again.asks(place(key));
        }
        assert_eq!(again.unanswered(9).len(), 5, "with that of the earlier attempt");
        assert_eq!(again.unanswered(2), [place("a"), place("d")]);
    }

    /// A later read shows that an earlier one is outdated, of a row or of a range without the row.
    #[test]
    fn newer_version_of_a_read_row_is_a_conflict() {
        let mut state = State::default();
        let is_outdated =
            |state: &State, table, key: &'static str, version| state.is_outdated(table, &Bytes::from(key), version);
        assert!(!is_outdated(&state, "t", "b", 9));
        read(&mut state, "t", "a", Some("d"), 5);
        read(&mut state, "t", "f", Some("f\0"), 7);
        read(&mut state, "u", "a", None, 6);
        assert!(!is_outdated(&state, "t", "b", 5) && is_outdated(&state, "t", "b", 6));
        assert!(!is_outdated(&state, "t", "d", 9) && !is_outdated(&state, "t", "e", 9), "they were not read");
        assert!(!is_outdated(&state, "t", "f", 7) && is_outdated(&state, "t", "f", 8));
        assert!(is_outdated(&state, "u", "z", 7));
    }

    /// The outcome of a transaction with an id can be queried, so that one without changes has a commit, too.
    #[test]
    fn transaction_with_an_id_needs_a_commit() {
        let stamp = client::Stamp { session: 1, sequence: 1, first_incomplete: 1 };
        let id = Some(TransactionId { table: "t".to_owned(), key: Bytes::new(), stamp });
        let mut state = State { id, ..State::default() };
        assert!(state.end().needs_commit);
        assert!(state.again().id.is_none());
    }

    #[test]
    fn single_read_needs_no_commit() {
        let mut state = State::default();
        read(&mut state, "t", "a", Some("b"), 5);
        assert!(!state.end().needs_commit);
        let mut state = State::default();
        read(&mut state, "t", "a", Some("b"), 5);
        read(&mut state, "t", "b", Some("c"), 6);
        assert!(state.end().needs_commit);
    }

    #[test]
    fn changes_of_a_row_are_one() {
        let mut state = State::default();
        put(&mut state, "k", "c", "first");
        put(&mut state, "k", "c", "v");
        put(&mut state, "k", "d", "v");
        state.change("t".into(), "k".into(), "d".into(), None).unwrap();
        assert_eq!(state.bytes, 1 + 2 + 1);
        let writes = state.end().writes;
        let values: Vec<_> = writes[0].mutations.iter().map(|one| (one.column.clone(), one.value.clone())).collect();
        assert_eq!(values, [("c".into(), Some("v".into())), ("d".into(), None)]);
        assert_eq!(writes.len(), 1);
    }

    #[test]
    fn rewritten_row_loses_its_other_columns() {
        let mut state = State::default();
        put(&mut state, "k", "gone", "v");
        state.delete_row("t".into(), "k".into()).unwrap();
        assert_eq!(state.bytes, 1);
        put(&mut state, "k", "b", "new");
        let row = Row::new("k", vec![Cell::new("a", "old", Version::from_nanos(1))]);
        let shown = state.merged("t", &"".into(), None, vec![row]);
        assert_eq!(shown[0].cells.iter().map(|cell| &cell.value[..]).collect::<Vec<_>>(), [b"new"]);
        state.change("t".into(), "k".into(), "c".into(), None).unwrap();
        let write = state.end().writes.pop().expect("a write");
        let columns: Vec<_> = write.mutations.iter().map(|one| &one.column[..]).collect();
        assert_eq!((write.delete_row, columns), (true, vec![&b"b"[..]]));
    }

    #[test]
    fn restored_writes_are_those_of_the_savepoint() {
        let mut state = State::default();
        put(&mut state, "k", "c", "first");
        let (savepoint, bytes) = (state.savepoint(), state.bytes);
        put(&mut state, "k", "c", "a longer value");
        put(&mut state, "l", "c", "v");
        state.delete_row("t".into(), "m".into()).unwrap();
        state.restore(&savepoint).expect("it is open");
        assert_eq!(state.bytes, bytes);
        let writes = state.end().writes;
        assert_eq!((writes.len(), writes[0].mutations[0].value.clone()), (1, Some("first".into())));
        assert!(state.restore(&savepoint).is_err());
    }

    #[test]
    fn limits_are_checked_at_the_call() {
        let mut state = State::default();
        for number in 0..TRANSACTION_WRITES_MAX {
            state.delete_row("t".into(), number.to_string().into()).unwrap();
        }
        assert!(state.delete_row("t".into(), "new".into()).is_err());
        state.delete_row("t".into(), "7".into()).unwrap();
        let mut state = State::default();
        for number in 0..TRANSACTION_READS_MAX {
            state.has_read("t", number.to_string().into(), Some("z".into()), 1).unwrap();
        }
        assert!(state.has_read("t", "new".into(), Some("z".into()), 1).is_err());
        let mut state = State::default();
        let large = Bytes::from(vec![0; WRITE_BYTES_MAX - 2]);
        state.change("t".into(), "k".into(), "c".into(), Some(large.clone())).unwrap();
        assert!(state.change("t".into(), "k".into(), "d".into(), None).is_err());
        state.change("t".into(), "k".into(), "c".into(), Some(large)).unwrap();
        for column in 0..WRITE_COLUMNS_MAX {
            state.change("t".into(), "k".into(), "c".into(), None).unwrap();
            _ = state.change("t".into(), "k".into(), column.to_string().into(), None);
        }
        assert!(state.change("t".into(), "k".into(), "d".into(), None).is_err());
    }

    #[test]
    fn pages_show_own_changes() {
        let mut state = State::default();
        put(&mut state, "b", "c", "new");
        put(&mut state, "c", "c", "own");
        put(&mut state, "z", "c", "beyond");
        state.change("u".into(), "b".into(), "c".into(), Some("other table".into())).unwrap();
        state.delete_row("t".into(), "d".into()).unwrap();
        let row = |key: &'static str| Row::new(key, vec![Cell::new("c", "old", Version::from_nanos(1))]);
        let rows = state.merged("t", &"a".into(), Some(&"x".into()), ["a", "b", "d"].map(row).into());
        let shown: Vec<_> = rows.iter().map(|row| (&row.key[..], &row.cells[0].value[..])).collect();
        assert_eq!(shown, [(&b"a"[..], &b"old"[..]), (b"b", b"new"), (b"c", b"own")]);
    }
}
