//! What the commands print. The JSON shapes are what scripts lean on: a field may be added, none changes.
//!
//! Keys, columns and values are bytes. In JSON those that aren't UTF-8 stand in base64 under a name of their own
//! (`"value_base64"`); for people whatever isn't printable is escaped.

use std::io::{self, Write};
use std::process::ExitCode;

use base::shown;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sdk::{Cell, Row};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::stop::Stop;

mod table;

pub(crate) use table::Table;

/// How to print: for people or for programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// One JSON object, or what people read in its place.
    pub(crate) fn print(self, object: &impl Serialize, people: impl FnOnce() -> String) -> Result<(), Stop> {
        let line = if self.json { to_json(object) } else { people() };
        writeln!(io::stdout().lock(), "{line}")?;
        Ok(())
    }

    /// Rows with all their columns, each column a line; for people below a heading, unless it stands there already.
    pub(crate) fn print_rows(self, table: &str, rows: &[Row], has_heading: bool) -> Result<(), Stop> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let cells = rows.iter().flat_map(|row| row.cells.iter().map(|cell| (&row.key[..], cell)));
        if self.json {
            for (key, cell) in cells {
                writeln!(out, "{}", to_json(&CellObject::of(table, key, cell)))?;
            }
        } else {
            let mut lines = Table::new(["KEY", "COLUMN", "VERSION", "VALUE"]);
            for (key, cell) in cells {
                lines.add([shown(key), shown(&cell.column), cell.version.to_string(), shown(&cell.value)]);
            }
            if has_heading {
                lines.go_on();
            }
            write!(out, "{lines}")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Says on standard error why a command stopped, and gives its exit status.
    pub(crate) fn report(self, stop: &Stop) -> ExitCode {
        if matches!(stop, Stop::Print(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            // `loggos columns scan t | head` has what it wanted.
            return ExitCode::SUCCESS;
        }
        let line = if self.json { to_json(&refusal(stop)) } else { format!("loggos: {}", sentence(stop)) };
        // Where standard error is closed too there is nobody left to tell.
        let _ = writeln!(io::stderr().lock(), "{line}");
        ExitCode::from(stop.exit_status())
    }
}

/// One column, as `put`, `get` and `scan` print it.
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
    /// A column that is there.
    pub(crate) fn of(table: &'a str, key: &'a [u8], cell: &'a Cell) -> Self {
        let (value, value_base64) = text_or_base64(&cell.value);
        Self {
            value,
            value_base64,
            version: Some(cell.version),
            deleted: None,
            ..Self::deleted(table, key, &cell.column)
        }
    }

    /// A row that is there no more.
    pub(crate) fn deleted_row(table: &'a str, key: &'a [u8]) -> Self {
        Self { column: None, column_base64: None, ..Self::deleted(table, key, b"") }
    }

    /// A column that is there no more.
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

/// A range's keys as a field of an object: the first, and the last with null for none; in base64 if one of them isn't
/// UTF-8.
pub(crate) fn range_field(start: &[u8], end: Option<&[u8]>) -> (&'static str, Value) {
    let as_text = |key| std::str::from_utf8(key).ok();
    match (as_text(start), end.map(as_text)) {
        (Some(start), None) => ("range", json!([start, null])),
        (Some(start), Some(Some(end))) => ("range", json!([start, end])),
        _ => ("range_base64", json!([BASE64_STANDARD.encode(start), end.map(|end| BASE64_STANDARD.encode(end))])),
    }
}

/// A key as a field of an object; in base64 if it isn't UTF-8.
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

/// The object that stands on standard error for a command that stopped.
fn refusal(stop: &Stop) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("error".into(), stop.to_string().into());
    object.insert("kind".into(), stop.kind().into());
    match stop {
        Stop::Universe(sdk::Error::Refused { expected, actual, .. }) => {
            object.insert("expected".into(), (*expected).into());
            object.insert("actual".into(), (*actual).into());
        }
        Stop::Invalid { at: Some(at), .. } => {
            object.insert("line".into(), at.line.into());
            object.insert("rows".into(), at.rows.into());
        }
        Stop::LoadCutShort { rows, .. } => {
            object.insert("rows".into(), (*rows).into());
        }
        Stop::AppendCutShort { appended, .. } => {
            object.insert("records".into(), appended.records.into());
            object.insert("first".into(), appended.positions.map(|(first, _)| first).into());
            object.insert("last".into(), appended.positions.map(|(_, last)| last).into());
        }
        _ => {}
    }
    object
}

fn sentence(stop: &Stop) -> String {
    match stop {
        Stop::Universe(sdk::Error::Refused { column, expected, actual }) => {
            format!("version mismatch on column {}: expected {expected}, actual {actual}", shown(column))
        }
        Stop::Universe(sdk::Error::Unavailable(why)) if why.contains("Connection refused") => {
            format!("{why}; does a universe run? --at or --port-offset say where")
        }
        _ => stop.to_string(),
    }
}

pub(crate) fn to_json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("our objects have only strings for keys")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::stop::{Appended, LoadedUntil};

    #[test]
    fn a_cell_is_one_object_with_its_fields_in_order() {
        let cell = Cell { column: "c".into(), value: "v".into(), version: 1_763_668_800_000_000_001 };
        assert_eq!(
            to_json(&CellObject::of("t", b"k", &cell)),
            r#"{"table":"t","key":"k","column":"c","value":"v","version":1763668800000000001}"#
        );
    }

    #[test]
    fn bytes_that_are_not_text_stand_in_base64() {
        let cell = Cell { column: vec![0xfe].into(), value: vec![0xff, 0].into(), version: 1 };
        assert_eq!(
            to_json(&CellObject::of("t", &[0xfd], &cell)),
            r#"{"table":"t","key_base64":"/Q==","column_base64":"/g==","value_base64":"/wA=","version":1}"#
        );
    }

    #[test]
    fn a_range_is_its_two_ends() {
        assert_eq!(range_field(b"", None), ("range", json!(["", null])));
        assert_eq!(range_field(b"a", Some(b"b")), ("range", json!(["a", "b"])));
        assert_eq!(range_field(b"\xff", None), ("range_base64", json!(["/w==", null])));
        assert_eq!(range_field(b"a", Some(b"\xff")), ("range_base64", json!(["YQ==", "/w=="])));
    }

    #[test]
    fn a_deleted_column_has_no_version() {
        assert_eq!(
            to_json(&CellObject::deleted("t", b"k", b"c")),
            r#"{"table":"t","key":"k","column":"c","deleted":true}"#
        );
    }

    #[track_caller]
    fn check(stop: &Stop, object: &str, exit_status: u8) {
        let expected: Map<String, Value> = serde_json::from_str(object).expect("JSON");
        assert_eq!(refusal(stop), expected);
        assert_eq!(stop.exit_status(), exit_status);
    }

    #[test]
    fn refusals_have_a_kind_and_what_is_needed_to_go_on() {
        let mismatch = sdk::Error::Refused { column: "c".into(), expected: 7, actual: 9 };
        check(&mismatch.into(), r#"{"error":"version mismatch","kind":"refused","expected":7,"actual":9}"#, 1);
        check(&Stop::NotFound("no column".into()), r#"{"error":"no column","kind":"not found"}"#, 1);
        check(&sdk::Error::Unavailable("x".into()).into(), r#"{"error":"x","kind":"unavailable"}"#, 3);
        let unknown = sdk::Error::OutcomeUnknown("x".into());
        check(&unknown.into(), r#"{"error":"outcome unknown: x","kind":"unknown"}"#, 3);
        let mut appended = Appended::default();
        appended.note(64, 7);
        appended.note(36, 8);
        let cut_short = Stop::AppendCutShort { error: sdk::Error::Unavailable("x".into()), appended };
        let said = "x; 100 records appended at positions 7 to 8 before";
        check(&cut_short, &format!(r#"{{"error":"{said}","kind":"unavailable","records":100,"first":7,"last":8}}"#), 3);
        let at = Some(LoadedUntil { line: 7, rows: 5 });
        let bad = Stop::Invalid { message: "line 7".into(), at };
        check(&bad, r#"{"error":"line 7","kind":"invalid","line":7,"rows":5}"#, 2);
    }
}
