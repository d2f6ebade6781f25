//! Prints rows and keys. The JSON fields are stable: fields may be added, but not changed.
//!
//! Keys, columns and values are bytes. In JSON, those that are not UTF-8 are base64 in a separate field
//! (`"value_base64"`); in text, unprintable bytes are escaped.

use std::io::{self, Write};

use base::shown;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sdk::{Cell, Row};
use serde::Serialize;
use serde_json::{Value, json};
use terminal::{Output, Stop, Table, to_json};

/// Prints rows, one line per column; as text with a heading, unless `has_heading`.
pub(crate) fn print_rows(output: Output, table: &str, rows: &[Row], has_heading: bool) -> Result<(), Stop> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let cells = rows.iter().flat_map(|row| row.cells.iter().map(|cell| (&row.key[..], cell)));
    if output.is_json() {
        for (key, cell) in cells {
            writeln!(out, "{}", to_json(&CellObject::of(table, key, cell)))?;
        }
    } else {
        let mut lines = Table::new(["KEY", "COLUMN", "VERSION", "VALUE"]);
        for (key, cell) in cells {
            lines.add([shown(key), shown(&cell.column), cell.version.to_string(), shown(&cell.value)]);
        }
        if has_heading {
            lines.omit_heading();
        }
        write!(out, "{lines}")?;
    }
    out.flush()?;
    Ok(())
}

/// A column, as printed by `put`, `get` and `scan`.
#[derive(Debug, Serialize)]
pub(crate) struct CellObject<'a> {
    table: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<bool>,
}

impl<'a> CellObject<'a> {
    /// An existing column.
    pub(crate) fn of(table: &'a str, key: &'a [u8], cell: &'a Cell) -> Self {
        let (value, value_base64) = text_or_base64(&cell.value);
        Self {
            value,
            value_base64,
            version: Some(cell.version.as_nanos()),
            deleted: None,
            ..Self::deleted(table, key, &cell.column)
        }
    }

    /// A deleted row.
    pub(crate) fn deleted_row(table: &'a str, key: &'a [u8]) -> Self {
        Self { column: None, column_base64: None, ..Self::deleted(table, key, b"") }
    }

    /// A deleted column.
    pub(crate) fn deleted(table: &'a str, key: &'a [u8], column: &'a [u8]) -> Self {
        let (key, key_base64) = text_or_base64(key);
        let (column, column_base64) = text_or_base64(column);
        Self {
            table,
            key,
            key_base64,
            column,
            column_base64,
            value: None,
            value_base64: None,
            version: None,
            deleted: Some(true),
        }
    }
}

/// A range as a field of an object: the first key, and the end key or null; in base64 if one of them is not UTF-8.
pub(crate) fn range_field(start: &[u8], end: Option<&[u8]>) -> (&'static str, Value) {
    let as_text = |key| std::str::from_utf8(key).ok();
    match (as_text(start), end.map(as_text)) {
        (Some(start), None) => ("range", json!([start, null])),
        (Some(start), Some(Some(end))) => ("range", json!([start, end])),
        _ => ("range_base64", json!([BASE64_STANDARD.encode(start), end.map(|end| BASE64_STANDARD.encode(end))])),
    }
}

/// A key as a field of an object; in base64 if it is not UTF-8.
pub(super) fn key_field(key: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(key) {
        Ok(key) => ("key", key.into()),
        Err(_) => ("key_base64", BASE64_STANDARD.encode(key).into()),
    }
}

fn text_or_base64(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use sdk::Version;

    use super::*;

    #[test]
    fn cell_json_field_order() {
        let cell = Cell::new("c", "v", Version::from_nanos(1_763_668_800_000_000_001));
        assert_eq!(
            to_json(&CellObject::of("t", b"k", &cell)),
            r#"{"table":"t","key":"k","column":"c","value":"v","version":1763668800000000001}"#
        );
    }

    #[test]
    fn non_utf8_bytes_as_base64() {
        let cell = Cell::new(vec![0xfe], vec![0xff, 0], Version::from_nanos(1));
        assert_eq!(
            to_json(&CellObject::of("t", &[0xfd], &cell)),
            r#"{"table":"t","key_base64":"/Q==","column_base64":"/g==","value_base64":"/wA=","version":1}"#
        );
    }

    #[test]
    fn range_json_has_both_bounds() {
        assert_eq!(range_field(b"", None), ("range", json!(["", null])));
        assert_eq!(range_field(b"a", Some(b"b")), ("range", json!(["a", "b"])));
        assert_eq!(range_field(b"\xff", None), ("range_base64", json!(["/w==", null])));
        assert_eq!(range_field(b"a", Some(b"\xff")), ("range_base64", json!(["YQ==", "/w=="])));
    }

    #[test]
    fn deleted_column_json_omits_version() {
        assert_eq!(
            to_json(&CellObject::deleted("t", b"k", b"c")),
            r#"{"table":"t","key":"k","column":"c","deleted":true}"#
        );
    }
}
