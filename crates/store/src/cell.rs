//! The keys of a tablet's tables: a row's key and a column's name as one string of bytes, which sorts as the pair does
//! (`BigTable`, section 2).
//!
//! The row's bytes come first, each zero byte followed by `0xff`; then `0x00 0x01`, which sorts before whatever goes on
//! in a longer row; then the column's name as it is. No key is the beginning of another row's key.
//!
//! Names of columns are never empty. So the key of (row, "") sorts before all cells of its row, and a version of it
//! without a value is a *row tombstone*: it deletes every version of the row whose timestamp is not greater than its
//! own. A write that deletes a row and writes into it at one timestamp can't be told from one that only deletes it.

use std::borrow::Cow;

use base::limits::{COLUMN_BYTES_MAX, KEY_BYTES_MAX};
use bytes::Bytes;
use thiserror::Error;

/// What stands for a zero byte after the zero itself.
const ESCAPE: u8 = 0xff;
/// What ends a row after a zero.
const END: u8 = 0x01;

/// Bytes of a key, at most: every byte of the row escaped.
pub const BYTES_MAX: usize = 2 * KEY_BYTES_MAX + 2 + COLUMN_BYTES_MAX;

/// Bytes that are no key: they don't say where the row ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a key that is not of a row and a column")]
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

/// The row and the column of a key. The row is copied only if it has a zero byte.
///
/// # Errors
/// When these bytes are no key.
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

/// The first eight bytes of a key's row as a number: of two keys the one that sorts before the other has no greater
/// number. Zeros stand for what a shorter row lacks.
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

/// How many bytes of a key are its row's, with the end of the row: what counts for the filter. All of them if these
/// bytes are no key.
#[must_use]
pub fn row_prefix_bytes(key: &[u8]) -> usize {
    scan(key).map_or(key.len(), |(bytes, _)| bytes)
}

/// Bytes of a key that are its row's, and whether a zero is among them.
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

/// A range of keys: from `start` on, up to `end` without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first key that may be in it.
    pub start: Bytes,
    /// The first key behind it; none if it has no end.
    pub end: Option<Bytes>,
}

impl Range {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    /// The cells of one row, and its tombstones.
    #[must_use]
    pub fn row(row: &[u8]) -> Self {
        let start = encode(row, b"");
        let mut end = start.clone();
        // No key has this instead of the end of its row.
        if let Some(last) = end.last_mut() {
            *last = END + 1;
        }
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// The rows from one on, up to another without it; no end if there is none.
    #[must_use]
    pub fn rows(from: &[u8], to: Option<&[u8]>) -> Self {
        Self { start: encode(from, b"").into(), end: to.map(|to| encode(to, b"").into()) }
    }

    /// The rows whose keys begin with these bytes.
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

    /// What of it comes after a cell: to go on from there.
    #[must_use]
    pub fn after(&self, row: &[u8], column: &[u8]) -> Self {
        let mut start = encode(row, column);
        start.push(0);
        Self { start: self.start.clone().max(start.into()), end: self.end.clone() }
    }

    /// What of it comes before a cell: to go on from there, backwards.
    #[must_use]
    pub fn before(&self, row: &[u8], column: &[u8]) -> Self {
        let end = Bytes::from(encode(row, column));
        let end = self.end.iter().cloned().fold(end, Bytes::min);
        Self { start: self.start.clone(), end: Some(end) }
    }

    /// Whether a key lies before the end.
    #[must_use]
    pub(crate) fn ends_after(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| key < &**end)
    }
}

#[cfg(test)]
mod tests;
