//! The keys of a tablet's SSTables: a row key and a column name as one byte string that sorts like the pair
//! (`BigTable`, section 2).
//!
//! The row's bytes come first, with each zero byte followed by `0xff`; then `0x00 0x01`, which sorts before any
//! continuation of a longer row; then the column name unchanged. No key is a prefix of another row's key.
//!
//! Column names are never empty. So the key of (row, "") sorts before all cells of its row, and a version of it without
//! a value is a *row tombstone*: it deletes every version of the row with a lower timestamp. So a write may delete a row
//! and put columns of it at the same timestamp: the row then has only these columns.

use std::borrow::Cow;

use base::limits::{COLUMN_BYTES_MAX, KEY_BYTES_MAX};
use bytes::Bytes;
use thiserror::Error;

/// Follows a zero byte within a row.
const ESCAPE: u8 = 0xff;
/// Follows the zero byte that ends a row.
const END: u8 = 0x01;

/// Maximum bytes of a key: every byte of the row is escaped.
pub const BYTES_MAX: usize = 2 * KEY_BYTES_MAX + 2 + COLUMN_BYTES_MAX;

/// The bytes are not a valid key, because they do not mark the end of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key does not consist of a row and a column")]
pub struct NotACell;

/// The key of a cell; with an empty column, that of the row's tombstones.
#[must_use]
pub fn encode(row: &[u8], column: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(row.len() + 2 + column.len());
    encode_into(&mut key, row, column);
    key
}

/// Appends the key of a cell.
pub fn encode_into(key: &mut Vec<u8>, row: &[u8], column: &[u8]) {
    escape_into(key, row);
    key.extend_from_slice(&[0, END]);
    key.extend_from_slice(column);
}

fn escape_into(key: &mut Vec<u8>, row: &[u8]) {
    for (place, part) in row.split(|byte| *byte == 0).enumerate() {
        if place > 0 {
            key.extend_from_slice(&[0, ESCAPE]);
        }
        key.extend_from_slice(part);
    }
}

/// The row and the column of a key. Copies the row only if it contains a zero byte.
///
/// # Errors
/// When the bytes are not a valid key.
pub fn decode(key: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), NotACell> {
    let (row_bytes, is_escaped) = scan(key).ok_or(NotACell)?;
    let (escaped, column) = (&key[..row_bytes - 2], &key[row_bytes..]);
    Ok((if is_escaped { Cow::Owned(unescape(escaped)) } else { Cow::Borrowed(escaped) }, column))
}

fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        row.push(*byte);
        if *byte == 0 {
            bytes.next();
        }
    }
    row
}

/// The first eight bytes of a key's row as a number, padded with zeros. Preserves the order of keys, not strictly.
#[must_use]
pub(crate) fn row_head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let mut bytes = key.iter();
    for place in &mut head {
        match bytes.next() {
            Some(0) if bytes.next() == Some(&ESCAPE) => {}
            Some(byte @ 1..) => *place = *byte,
            Some(0) | None => break,
        }
    }
    u64::from_be_bytes(head)
}

/// Length of the key's part that identifies the row, including its end: the filter uses this part. The whole length if
/// the bytes are not a valid key.
#[must_use]
pub fn row_prefix_bytes(key: &[u8]) -> usize {
    scan(key).map_or(key.len(), |(bytes, _)| bytes)
}

/// Length of the row's part, and whether it contains an escaped zero.
fn scan(key: &[u8]) -> Option<(usize, bool)> {
    let (mut at, mut is_escaped) = (0, false);
    loop {
        at += key[at..].iter().position(|byte| *byte == 0)?;
        match *key.get(at + 1)? {
            END => return Some((at + 2, is_escaped)),
            ESCAPE => is_escaped = true,
            _ => return None,
        }
        at += 2;
    }
}

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first key in the range.
    pub start: Bytes,
    /// The first key after the range; `None` if it is unbounded.
    pub end: Option<Bytes>,
}

impl Range {
    #[must_use]
    pub fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    /// The cells and tombstones of one row.
    #[must_use]
    pub fn row(row: &[u8]) -> Self {
        let start = encode(row, b"");
        let mut end = start.clone();
        // No key contains this in place of the end of its row.
        if let Some(last) = end.last_mut() {
            *last = END + 1;
        }
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// The rows from `from` to below `to`; unbounded if `to` is `None`.
    #[must_use]
    pub fn rows(from: &[u8], to: Option<&[u8]>) -> Self {
        Self { start: encode(from, b"").into(), end: to.map(|to| encode(to, b"").into()) }
    }

    /// The rows with keys that begin with `prefix`.
    #[must_use]
    pub fn rows_with_prefix(prefix: &[u8]) -> Self {
        let mut start = Vec::with_capacity(prefix.len());
        escape_into(&mut start, prefix);
        let end = start.iter().rposition(|byte| *byte != u8::MAX).map(|place| {
            let mut end = start[..=place].to_vec();
            end[place] += 1;
            end.into()
        });
        Self { start: start.into(), end }
    }

    /// The part after a cell, to continue a scan.
    #[must_use]
    pub fn after(&self, row: &[u8], column: &[u8]) -> Self {
        let mut start = encode(row, column);
        start.push(0);
        Self { start: self.start.clone().max(start.into()), end: self.end.clone() }
    }

    /// The part before a cell, to continue a reverse scan.
    #[must_use]
    pub fn before(&self, row: &[u8], column: &[u8]) -> Self {
        let end = Bytes::from(encode(row, column));
        let end = self.end.iter().cloned().fold(end, Bytes::min);
        Self { start: self.start.clone(), end: Some(end) }
    }

    /// The key prefix of the row, if the range holds the tombstones of a row and no key of another row: that of
    /// [`Range::row`], or the rows from a key to below its successor.
    #[must_use]
    pub(crate) fn single_row(&self) -> Option<&[u8]> {
        let (start, end) = (&self.start[..], self.end.as_deref()?);
        let stem = start.strip_suffix(&[0, END])?;
        // The first key of any other row, after the start, is that of the row with a zero byte appended.
        let is_single = scan(start)?.0 == start.len() && end.strip_prefix(stem)? <= &[0, ESCAPE, 0, END][..];
        is_single.then_some(start)
    }

    /// Whether a key is before the end.
    #[must_use]
    pub(crate) fn ends_after(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| key < &**end)
    }
}

#[cfg(test)]
mod tests;
