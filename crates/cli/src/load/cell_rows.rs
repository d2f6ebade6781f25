//! Rows of a file of cells: for each column of each row one JSON object per line, as printed by `scan --json`, or one
//! CSV record. `export` writes both.
//!
//! Consecutive cells with the same key form one row, up to the limit of one write. The table's name and the versions
//! are ignored: loaded cells get new versions.

use std::io::BufRead;

use base::limits::{WRITE_BYTES_MAX, WRITE_COLUMNS_MAX};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use csv::ByteRecord;
use serde::Deserialize;
use terminal::Stop;

use super::csv_records::{Record, Records};
use super::json_rows::{Lines, in_line};
use super::row::{Item, Row, wrong};

/// The header of a CSV file of cells.
pub(crate) const HEADER: [&str; 4] = ["key", "column", "version", "value"];

/// The rows of the file.
pub(crate) struct CellRows<R> {
    cells: Cells<R>,
    /// A cell that was read and belongs to the next row.
    ahead: Option<Line>,
    ended: bool,
}

enum Cells<R> {
    Json(Lines<R>),
    Csv(Records<R>),
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
    pub(crate) fn json(input: R) -> Self {
        Self { cells: Cells::Json(Lines::new(input)), ahead: None, ended: false }
    }

    /// Fails if the header is not [`HEADER`].
    pub(crate) fn csv(input: R) -> Result<Self, Stop> {
        let mut records = Records::new(input);
        let header = records.header()?;
        if !is_header(&header) {
            return Err(wrong(header.line, &format!("neither a JSON object nor the header {:?}", HEADER.join(","))));
        }
        Ok(Self { cells: Cells::Csv(records), ahead: None, ended: false })
    }

    fn line(&mut self) -> Result<Option<Line>, Stop> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        match &mut self.cells {
            Cells::Json(lines) => {
                let line = lines.next_full()?;
                Ok(line.map(|(line, text, bytes_read)| Line { line, cell: json_cell(&text), text, bytes_read }))
            }
            Cells::Csv(records) => Ok(records.next()?.map(|record| {
                let cell = record.check(HEADER.len()).map(|()| csv_cell(&record.cells));
                Line { line: record.line, text: record.text, bytes_read: record.bytes_read, cell }
            })),
        }
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

/// Whether this is the header of a CSV file of cells.
pub(super) fn is_header(record: &Record) -> bool {
    record.cells == HEADER[..]
}

/// The cell of a record with as many fields as [`HEADER`].
fn csv_cell(record: &ByteRecord) -> Cell {
    let field = |index| Bytes::copy_from_slice(record.get(index).unwrap_or_default());
    Cell { key: field(0), column: field(1), value: field(3) }
}

fn json_cell(text: &[u8]) -> Result<Cell, String> {
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
        CellRows::json(file).map(|item| item.expect("a readable file")).map(|item| (item.line, item.row)).collect()
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
    fn groups_csv_cells_by_key() {
        let file = b"key,column,version,value\na,c,7,\"1,\n\"\na,d,8,\nb,c\nb,c,7,\xff\0\n";
        let rows = CellRows::csv(&file[..]).expect("a good header").map(|item| item.expect("a readable file"));
        let rows: Vec<_> = rows.map(|item| (item.line, item.row)).collect();
        let cell = |column: &'static str, value: &'static [u8]| (column.into(), value.into());
        let row = |key: &'static str, columns| Ok(Row { key: key.into(), columns });
        assert_eq!(rows[0], (2, row("a", vec![cell("c", b"1,\n"), cell("d", b"")])));
        assert_eq!(rows[1].1, Err("the row has 2 cells, the header has 4".into()));
        assert_eq!(rows[2], (6, row("b", vec![cell("c", b"\xff\0")])));
        let wrong = CellRows::csv(&b"key,value\n"[..]).err().expect("another header").to_string();
        assert_eq!(wrong, "line 1: neither a JSON object nor the header \"key,column,version,value\"");
    }

    #[test]
    fn rejects_invalid_cells() {
        let file = b"{\"key\":\"a\",\"column\":\"c\"}\n[]\n{\"key\":\"a\",\"column\":\"c\",\"value\":\"v\",\"value_base64\":\"\"}\n{\"key\":\"a\",\"column\":\"c\",\"value_base64\":\"?\"}\n";
        assert!(rows(file).iter().all(|(_, row)| row.is_err()));
        assert_eq!(rows(file).len(), 4);
    }
}
