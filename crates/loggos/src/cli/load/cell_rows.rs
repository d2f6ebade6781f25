//! Rows of a file of cells: one object per line for each column of each row, as printed by `export` and `scan --json`.
//!
//! Consecutive lines with the same key form one row, up to the limit of one write. The table's name and the versions
//! are ignored: loaded cells get new versions.

use std::io::BufRead;

use base::limits::{WRITE_BYTES_MAX, WRITE_COLUMNS_MAX};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use terminal::Stop;

use super::json_rows::{Lines, in_line};
use super::row::{Item, Row};

/// The rows of the file.
pub(crate) struct CellRows<R> {
    lines: Lines<R>,
    /// A cell that was read and belongs to the next row.
    ahead: Option<Line>,
    ended: bool,
}

/// A line with its cell, or the reason why it is bad.
struct Line {
    line: u64,
    text: Vec<u8>,
    bytes_read: u64,
    cell: Result<Cell, String>,
}

struct Cell {
    key: Bytes,
    column: Bytes,
    value: Bytes,
}

#[derive(Deserialize)]
struct Object {
    key: Option<String>,
    key_base64: Option<String>,
    column: Option<String>,
    column_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

impl<R: BufRead> CellRows<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { lines: Lines::new(input), ahead: None, ended: false }
    }

    fn line(&mut self) -> Result<Option<Line>, Stop> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        let line = self.lines.next_full()?;
        Ok(line.map(|(line, text, bytes_read)| Line { line, cell: cell(&text), text, bytes_read }))
    }

    fn item(&mut self) -> Result<Option<Item>, Stop> {
        let Some(Line { line, mut text, mut bytes_read, cell }) = self.line()? else { return Ok(None) };
        let first = match cell {
            Ok(cell) => cell,
            Err(reason) => return Ok(Some(Item { line, row: Err(reason), text, bytes_read })),
        };
        let key = first.key;
        let mut bytes = key.len() + first.column.len() + first.value.len();
        let mut columns = vec![(first.column, first.value)];
        while let Some(next) = self.line()? {
            let fits = |cell: &Cell| {
                cell.key == key
                    && columns.len() < WRITE_COLUMNS_MAX
                    && bytes + cell.column.len() + cell.value.len() <= WRITE_BYTES_MAX
                    && columns.iter().all(|(column, _)| *column != cell.column)
            };
            match next.cell {
                Ok(cell) if fits(&cell) => {
                    bytes += cell.column.len() + cell.value.len();
                    columns.push((cell.column, cell.value));
                    text.extend_from_slice(&next.text);
                    bytes_read = next.bytes_read;
                }
                cell => {
                    self.ahead = Some(Line { cell, ..next });
                    break;
                }
            }
        }
        Ok(Some(Item { line, row: Row::with_key(key, columns), text, bytes_read }))
    }
}

impl<R: BufRead> Iterator for CellRows<R> {
    type Item = Result<Item, Stop>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.item().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

fn cell(text: &[u8]) -> Result<Cell, String> {
    let object: Object = serde_json::from_slice(text.trim_ascii_end())
        .map_err(|error| format!("not a cell object: {}", in_line(&error)))?;
    Ok(Cell {
        key: bytes("key", object.key, object.key_base64)?,
        column: bytes("column", object.column, object.column_base64)?,
        value: bytes("value", object.value, object.value_base64)?,
    })
}

fn bytes(name: &str, text: Option<String>, base64: Option<String>) -> Result<Bytes, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(base64)) => {
            BASE64_STANDARD.decode(base64).map(Bytes::from).map_err(|error| format!("{name}_base64: {error}"))
        }
        (None, None) => Err(format!("the cell has no {name:?}")),
        (Some(_), Some(_)) => Err(format!("the cell has both {name:?} and \"{name}_base64\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(file: &'static [u8]) -> Vec<(u64, Result<Row, String>)> {
        CellRows::new(file).map(|item| item.expect("a readable file")).map(|item| (item.line, item.row)).collect()
    }

    #[test]
    fn groups_cells_by_key() {
        let file = br#"{"table":"t","key":"a","column":"c","value":"1","version":7}
{"table":"t","key":"a","column":"d","value_base64":"/wA=","version":8}

{"table":"t","key_base64":"/Q==","column":"c","value":"2","version":7}
{"table":"t","key_base64":"/Q==","column":"c","value":"3","version":7}
"#;
        let row = |key: &'static [u8], columns: Vec<(&'static str, &'static [u8])>| {
            let column = |(column, value): (&'static str, &'static [u8])| (column.into(), value.into());
            Ok(Row { key: key.into(), columns: columns.into_iter().map(column).collect() })
        };
        let expected = [
            (1, row(b"a", vec![("c", b"1"), ("d", b"\xff\0")])),
            (4, row(b"\xfd", vec![("c", b"2")])),
            (5, row(b"\xfd", vec![("c", b"3")])),
        ];
        assert_eq!(rows(file), expected, "a repeated column is written twice, in order");
    }

    #[test]
    fn rejects_invalid_cells() {
        let file = b"{\"key\":\"a\",\"column\":\"c\"}\n[]\n{\"key\":\"a\",\"column\":\"c\",\"value\":\"v\",\"value_base64\":\"\"}\n{\"key\":\"a\",\"column\":\"c\",\"value_base64\":\"?\"}\n";
        assert!(rows(file).iter().all(|(_, row)| row.is_err()));
        assert_eq!(rows(file).len(), 4);
    }
}
