//! Validation of client requests to a range, at the endpoint and again before a proposal. A request that fails here has
//! had no effect.
//!
//! Applying an entry repeats none of these checks: limits may change between versions, and a committed entry must have
//! the same effect on every replica.

use std::collections::BTreeSet;

use base::limits::{
    COLUMN_BYTES_MAX, KEY_BYTES_MAX, SESSION_WINDOW, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX, VALUE_BYTES_MAX,
    WRITE_BYTES_MAX, WRITE_COLUMNS_MAX,
};
use base::shown;
use bytes::Bytes;
use state_machine::Failure;
use state_machine::limits::{check_count, check_size, refuse};

use crate::request::{Columns, Mutation, Part, Scan, SessionStamp, TableRequest, Write};
use crate::transaction::{ReadSpan, RowChange, TransactionPart};

/// Maximum columns named in one read: as many as in a write.
const READ_COLUMNS_MAX: usize = WRITE_COLUMNS_MAX;
/// Bytes of a key that is too long in the message about it.
const KEY_BYTES_SHOWN: usize = 32;

/// Checks a request's format and limits.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn validate(request: &TableRequest) -> Result<(), Failure> {
    match request {
        TableRequest::OpenSession { key } => check_key_size(key),
        TableRequest::Write(write) => check_write(write),
        TableRequest::DeleteRow { stamp, key } => {
            stamp.as_ref().map_or(Ok(()), check_stamp)?;
            check_key(key)
        }
        TableRequest::Get { key, columns, .. } => check_get(key, columns),
        TableRequest::Scan { scan, .. } => check_scan(scan),
        TableRequest::Commit(commit) => {
            check_stamp(&commit.stamp)?;
            check_key_size(&commit.key)?;
            check_part(&commit.part)
        }
        TableRequest::Prepare(prepare) => {
            check_stamp(&prepare.coordinator.stamp)?;
            check_key_size(&prepare.coordinator.key)?;
            check_part(&prepare.part)
        }
        TableRequest::Abort { key, stamp } => {
            check_stamp(stamp)?;
            check_key_size(key)
        }
        TableRequest::Unlock { key, .. } => check_key_size(key),
        TableRequest::Hold { timestamp, .. } if timestamp.0 < 0 => refuse(format!("negative timestamp: {timestamp}")),
        TableRequest::Hold { key, .. } => check_key_size(key),
        TableRequest::Resolve { .. } | TableRequest::Split { .. } | TableRequest::Drop => Ok(()),
    }
}

/// Checks the reads and writes of a transaction, or of its part in one range.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn check_part(part: &TransactionPart) -> Result<(), Failure> {
    check_totals(part)?;
    for read in &part.reads {
        if read.range.end.as_ref().is_some_and(|end| *end <= read.range.start) {
            return refuse("a range of keys that were read ends before it begins");
        }
        check_size("the first key that was read", read.range.start.len(), KEY_BYTES_MAX)?;
        check_size(
            "the end of the keys that were read",
            read.range.end.as_ref().map_or(0, Bytes::len),
            KEY_BYTES_MAX + 1,
        )?;
    }
    let mut rows = BTreeSet::new();
    for RowChange { key, deletes_row, columns } in &part.writes {
        check_key(key)?;
        if !rows.insert(key) {
            return refuse(format!("the transaction changes row \"{}\" twice", shown(key)));
        }
        if columns.is_empty() && !deletes_row {
            return refuse(format!("the change of row \"{}\" names no column", shown(key)));
        }
        check_count("columns in the change of a row", columns.len(), WRITE_COLUMNS_MAX)?;
        let mut names = BTreeSet::new();
        for (column, value) in columns {
            check_column(column)?;
            let value_bytes = value.as_ref().map_or(0, Bytes::len);
            check_size(format_args!("the value of column \"{}\"", shown(column)), value_bytes, VALUE_BYTES_MAX)?;
            if !names.insert(column) {
                return refuse(format!(
                    "the change of row \"{}\" names column \"{}\" twice",
                    shown(key),
                    shown(column)
                ));
            }
        }
    }
    Ok(())
}

/// Checks the number of reads and writes of a transaction, and their size.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn check_totals(part: &TransactionPart) -> Result<(), Failure> {
    check_count("ranges read by the transaction", part.reads.len(), TRANSACTION_READS_MAX)?;
    check_count("rows changed by the transaction", part.writes.len(), TRANSACTION_WRITES_MAX)?;
    let of_read = |read: &ReadSpan| read.range.start.len() + read.range.end.as_ref().map_or(0, Bytes::len);
    let of_column = |(column, value): &(Bytes, Option<Bytes>)| column.len() + value.as_ref().map_or(0, Bytes::len);
    let of_write = |change: &RowChange| change.key.len() + change.columns.iter().map(of_column).sum::<usize>();
    let bytes = part.reads.iter().map(of_read).sum::<usize>() + part.writes.iter().map(of_write).sum::<usize>();
    check_size("the transaction (keys, columns and values together)", bytes, WRITE_BYTES_MAX)
}

fn check_write(write: &Write) -> Result<(), Failure> {
    write.stamp.as_ref().map_or(Ok(()), check_stamp)?;
    check_key(&write.key)?;
    if write.mutations.is_empty() {
        return refuse("the write has no mutation");
    }
    check_count("columns in the write", write.mutations.len(), WRITE_COLUMNS_MAX)?;
    let mut columns = BTreeSet::new();
    for mutation in &write.mutations {
        check_mutation(mutation)?;
        if !columns.insert(&mutation.column) {
            return refuse(format!("the write names column \"{}\" twice", shown(&mutation.column)));
        }
    }
    let bytes = |mutation: &Mutation| mutation.column.len() + mutation.value.as_ref().map_or(0, Bytes::len);
    let total = write.key.len() + write.mutations.iter().map(bytes).sum::<usize>();
    check_size("the write (key, columns and values together)", total, WRITE_BYTES_MAX)
}

fn check_stamp(stamp: &SessionStamp) -> Result<(), Failure> {
    let SessionStamp { sequence, first_incomplete, .. } = *stamp;
    if sequence == 0 || first_incomplete == 0 {
        return refuse(format!("writes of a session are numbered from 1: write {sequence}, first {first_incomplete}"));
    }
    if first_incomplete > sequence {
        return refuse(format!("write {sequence} is below the first incomplete write, {first_incomplete}"));
    }
    if sequence - first_incomplete >= SESSION_WINDOW {
        return refuse(format!(
            "write {sequence} is out of its session's window: from {first_incomplete}, the first incomplete one, \
             {SESSION_WINDOW} writes may be under way"
        ));
    }
    Ok(())
}

fn check_mutation(mutation: &Mutation) -> Result<(), Failure> {
    check_column(&mutation.column)?;
    if let Some(value) = &mutation.value {
        check_size(format_args!("the value of column \"{}\"", shown(&mutation.column)), value.len(), VALUE_BYTES_MAX)?;
    }
    match mutation.condition {
        Some(version) if version.0 < 0 => refuse(format!("negative version: {version}")),
        _ => Ok(()),
    }
}

fn check_get(key: &Bytes, columns: &Columns) -> Result<(), Failure> {
    check_key(key)?;
    let named = columns.named.as_deref().unwrap_or_default();
    check_count("columns requested", named.len(), READ_COLUMNS_MAX)?;
    named.iter().try_for_each(check_column)?;
    match columns.part.start() {
        Some(after) if columns.named.is_some() && !named.contains(after) => {
            refuse(format!("columns_after \"{}\" is not one of the columns requested", shown(after)))
        }
        _ => check_row_part(&columns.part),
    }
}

fn check_row_part(part: &Part) -> Result<(), Failure> {
    check_size("columns_after", part.after.as_ref().map_or(0, Bytes::len), COLUMN_BYTES_MAX)
}

/// An end of a scan may be any byte string with the length of a key, including the empty one. A continuation may be one
/// byte longer, because it may be the successor of the longest key.
fn check_scan(scan: &Scan) -> Result<(), Failure> {
    check_size("the scan's first key", scan.from.len(), KEY_BYTES_MAX)?;
    check_size("the scan's prefix", scan.prefix.len(), KEY_BYTES_MAX)?;
    check_size("the scan's last key", scan.to.as_ref().map_or(0, Bytes::len), KEY_BYTES_MAX)?;
    check_size("the scan's continuation", scan.continuation.as_ref().map_or(0, Bytes::len), KEY_BYTES_MAX + 1)?;
    let columns = scan.columns.as_deref().unwrap_or_default();
    check_count("columns requested", columns.len(), READ_COLUMNS_MAX)?;
    columns.iter().try_for_each(check_column)?;
    check_row_part(&scan.part)?;
    if scan.part.start().is_some() && scan.within_row().is_none() {
        return refuse("columns_after needs the continuation that the previous page returned with it");
    }
    check_ends(scan)
}

/// The ends of a scan must be in order, in either direction.
pub(crate) fn check_ends(scan: &Scan) -> Result<(), Failure> {
    match &scan.to {
        Some(to) if scan.from > *to => refuse(format!(
            "the scan's ends are reversed: from \"{}\" is above to \"{}\" (also in a reverse scan, from is the lower end)",
            shown(&scan.from),
            shown(to)
        )),
        _ => Ok(()),
    }
}

fn check_key(key: &Bytes) -> Result<(), Failure> {
    if key.is_empty() {
        return refuse("the row's key is empty");
    }
    check_key_size(key)
}

/// A client opens its session with the key of its first write, so the message is the same for both.
fn check_key_size(key: &Bytes) -> Result<(), Failure> {
    if key.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    let beginning = shown(&key[..key.len().min(KEY_BYTES_SHOWN)]);
    check_size(format_args!("the row's key \"{beginning}...\""), key.len(), KEY_BYTES_MAX)
}

fn check_column(column: &Bytes) -> Result<(), Failure> {
    if column.is_empty() {
        return refuse("a column's name is empty");
    }
    check_size("a column's name", column.len(), COLUMN_BYTES_MAX)
}

#[cfg(test)]
mod tests;
