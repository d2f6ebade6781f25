//! A row of a file, and its validation against the server's limits, with the server's messages.

use bytes::Bytes;
use node::request::{Ask, Request};
use tablets::request;
use tablets::request::TableRequest;
use terminal::{LoadedUntil, Stop};

/// Maximum size of the text of one row: twice the size of a write, to allow for quotes and escapes. Otherwise a file
/// with an unclosed quote would be read into memory whole.
pub(crate) const TEXT_BYTES_MAX: usize = 2 * base::limits::WRITE_BYTES_MAX;

/// Maximum length of a reason, which may contain a long column name.
const REASON_CHARACTERS_MAX: usize = 300;

/// A row to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Bytes,
    /// The columns that are present, without duplicates.
    pub(crate) columns: Vec<(Bytes, Bytes)>,
}

/// One row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// The first line, from 1.
    pub(crate) line: u64,
    /// The row, or why it is bad.
    pub(crate) row: Result<Row, String>,
    /// Its text exactly as in the file.
    pub(crate) text: Vec<u8>,
    /// File offset of its end.
    pub(crate) bytes_read: u64,
}

/// A row that cannot be loaded.
#[derive(Clone, Debug)]
pub(crate) struct Bad {
    pub(crate) line: u64,
    pub(crate) reason: String,
    pub(crate) text: Vec<u8>,
}

impl Row {
    /// A row with these columns; fails if it has no key or exceeds a limit.
    pub(crate) fn of(key_column: &str, columns: Vec<(Bytes, Bytes)>) -> Result<Self, String> {
        let key = columns.iter().find(|(column, _)| column == key_column.as_bytes()).map(|(_, value)| value.clone());
        let Some(key) = key else { return Err(format!("the row has no key column {key_column:?}")) };
        Self::with_key(key, columns)
    }

    /// A row with this key; fails if it exceeds a limit.
    pub(crate) fn with_key(key: Bytes, columns: Vec<(Bytes, Bytes)>) -> Result<Self, String> {
        let row = Self { key, columns };
        row.check().map(|()| row).map_err(|reason| reason.chars().take(REASON_CHARACTERS_MAX).collect())
    }

    fn check(&self) -> Result<(), String> {
        let mutation = |(column, value): &(Bytes, Bytes)| request::Mutation {
            column: column.clone(),
            value: Some(value.clone()),
            condition: None,
        };
        let mutations = self.columns.iter().map(mutation).collect();
        let write = request::Write { stamp: None, key: self.key.clone(), mutations };
        // The table's name is checked when the table is created.
        let request = Request::Table { table: "t".into(), request: Ask::Tablet(TableRequest::Write(write)) };
        node::request::validate(&request).map_err(|failure| failure.to_string())
    }
}

/// The error for a file that cannot be read further.
pub(crate) fn wrong(line: u64, reason: &str) -> Stop {
    let at = Some(LoadedUntil { line, rows: 0 });
    Stop::Invalid { message: format!("line {line}: {reason}"), at }
}

/// The error for a file in UTF-16, which begins with a byte order mark.
pub(crate) const UTF16: &str = "the file is UTF-16, not UTF-8; convert it first (`iconv -f UTF-16 -t UTF-8`)";

pub(crate) fn is_utf16(file: &[u8]) -> bool {
    file.starts_with(b"\xff\xfe") || file.starts_with(b"\xfe\xff")
}

#[cfg(test)]
mod tests {
    use base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

    use super::*;

    fn row(columns: &[(&'static str, Vec<u8>)]) -> Result<Row, String> {
        Row::of("k", columns.iter().map(|(column, value)| ((*column).into(), value.clone().into())).collect())
    }

    #[test]
    fn key_is_also_column() {
        let row = row(&[("a", b"1".to_vec()), ("k", b"JFK".to_vec())]).expect("a good row");
        assert_eq!(row.key, "JFK");
        assert_eq!(row.columns.len(), 2);
    }

    #[test]
    fn rejects_missing_key_or_oversized_row() {
        assert!(row(&[("a", b"1".to_vec())]).expect_err("no key").contains("\"k\""));
        assert!(row(&[("k", vec![])]).is_err());
        assert!(row(&[("k", vec![b'x'; KEY_BYTES_MAX + 1])]).is_err());
        assert!(row(&[("k", b"1".to_vec()), ("a", vec![0; VALUE_BYTES_MAX + 1])]).is_err());
        assert!(row(&[("k", b"1".to_vec()), ("", b"2".to_vec())]).is_err());
    }
}
