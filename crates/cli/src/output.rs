//! Prints rows and keys. The JSON fields are stable: fields may be added, but not changed.
//!
//! Keys, columns and values are bytes. In JSON, those that are not UTF-8 are base64 in a separate field
//! (`"value_base64"`); in text, unprintable bytes are escaped. With `--base64` all of them are base64. Versions are
//! strings in JSON, because they exceed 2^53.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt as _;

use base::shown;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use base64::{Engine as _, alphabet};
use bytes::Bytes;
use clap::Args;
use sdk::{Cell, Row};
use serde::Serialize;
use serde_json::Value;
use terminal::{Output, Stop, Table, to_json};

/// Prints rows, one line per column; as text with a heading, unless one was printed.
pub(crate) fn print_rows(
    output: Output,
    encoding: Encoding,
    table: &str,
    rows: &[Row],
    shown: Shown,
) -> Result<(), Stop> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let cells = rows.iter().flat_map(|row| row.cells.iter().map(|cell| (&row.key[..], cell)));
    if output.is_json() {
        for (key, cell) in cells {
            let object = CellObject::of(encoding, table, key, cell);
            writeln!(out, "{}", to_json(&if shown.names_only { object.without_value() } else { object }))?;
        }
    } else {
        let mut lines = Table::new(["KEY", "COLUMN", "VERSION", "VALUE"]);
        let mut names = Table::new(["KEY", "COLUMN", "VERSION"]);
        for (key, cell) in cells {
            let [key, column, value] = [key, &cell.column, &cell.value].map(|bytes| encoding.shown(bytes));
            if shown.names_only {
                names.add([key, column, cell.version.to_string()]);
            } else {
                lines.add([key, column, cell.version.to_string(), value]);
            }
        }
        if shown.has_heading {
            lines.omit_heading();
            names.omit_heading();
        }
        if shown.names_only { write!(out, "{names}")? } else { write!(out, "{lines}")? }
    }
    out.flush()?;
    Ok(())
}

/// How rows are printed: whether their heading was printed before, and whether only names were read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// A heading was printed before.
    pub(crate) has_heading: bool,
    /// The values were not read.
    pub(crate) names_only: bool,
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
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<bool>,
}

impl<'a> CellObject<'a> {
    /// An existing column.
    pub(crate) fn of(encoding: Encoding, table: &'a str, key: &'a [u8], cell: &'a Cell) -> Self {
        let (value, value_base64) = encoding.fields(&cell.value);
        Self {
            value,
            value_base64,
            version: Some(cell.version.to_string()),
            deleted: None,
            ..Self::deleted(encoding, table, key, &cell.column)
        }
    }

    /// A column that was read without its value.
    fn without_value(self) -> Self {
        Self { value: None, value_base64: None, ..self }
    }

    /// A deleted row.
    pub(crate) fn deleted_row(encoding: Encoding, table: &'a str, key: &'a [u8]) -> Self {
        Self { column: None, column_base64: None, ..Self::deleted(encoding, table, key, b"") }
    }

    /// A deleted column.
    pub(crate) fn deleted(encoding: Encoding, table: &'a str, key: &'a [u8], column: &'a [u8]) -> Self {
        let (key, key_base64) = encoding.fields(key);
        let (column, column_base64) = encoding.fields(column);
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

/// A key as a field of an object; in base64 if it is not UTF-8.
pub(super) fn key_field(key: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(key) {
        Ok(key) => ("key", key.into()),
        Err(_) => ("key_base64", BASE64_STANDARD.encode(key).into()),
    }
}

/// The option of commands on rows.
#[derive(Clone, Copy, Debug, Args)]
pub struct EncodingArguments {
    /// Keys, columns and values are base64, in arguments and in the output.
    #[arg(long)]
    base64: bool,
}

impl EncodingArguments {
    pub(crate) fn encoding(self) -> Encoding {
        if self.base64 { Encoding::Base64 } else { Encoding::Text }
    }
}

/// How keys, columns and values appear in arguments and in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Text,
    Base64,
}

/// Padding is optional, since it would look like the separator of COLUMN=VALUE.
const BASE64_UNPADDED: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Encoding {
    /// The bytes of an argument.
    pub(crate) fn bytes(self, argument: OsString) -> Result<Bytes, Stop> {
        let text = argument.into_vec();
        match self {
            Self::Text => Ok(text.into()),
            Self::Base64 => {
                let decoded = BASE64_UNPADDED.decode(&text);
                Ok(decoded
                    .map_err(|error| Stop::invalid(format!("\"{}\" is not base64: {error}", shown(&text))))?
                    .into())
            }
        }
    }

    /// The bytes as text.
    pub(crate) fn shown(self, bytes: &[u8]) -> String {
        match self {
            Self::Text => shown(bytes),
            Self::Base64 => BASE64_STANDARD.encode(bytes),
        }
    }

    /// The values of the two fields of an object, of which one is present.
    fn fields(self, bytes: &[u8]) -> (Option<&str>, Option<String>) {
        match std::str::from_utf8(bytes) {
            Ok(text) if self == Self::Text => (Some(text), None),
            _ => (None, Some(BASE64_STANDARD.encode(bytes))),
        }
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
            to_json(&CellObject::of(Encoding::Text, "t", b"k", &cell)),
            r#"{"table":"t","key":"k","column":"c","value":"v","version":"1763668800000000001"}"#
        );
    }

    #[test]
    fn non_utf8_bytes_as_base64() {
        let cell = Cell::new(vec![0xfe], vec![0xff, 0], Version::from_nanos(1));
        assert_eq!(
            to_json(&CellObject::of(Encoding::Text, "t", &[0xfd], &cell)),
            r#"{"table":"t","key_base64":"/Q==","column_base64":"/g==","value_base64":"/wA=","version":"1"}"#
        );
    }

    #[test]
    fn base64_arguments_with_or_without_padding() {
        for argument in ["/w", "/w=="] {
            assert_eq!(Encoding::Base64.bytes(argument.into()).expect("base64"), &b"\xff"[..]);
        }
        assert!(Encoding::Base64.bytes("?".into()).is_err());
        let cell = Cell::new("c", "v", Version::from_nanos(1));
        assert_eq!(
            to_json(&CellObject::of(Encoding::Base64, "t", b"k", &cell)),
            r#"{"table":"t","key_base64":"aw==","column_base64":"Yw==","value_base64":"dg==","version":"1"}"#
        );
    }

    #[test]
    fn deleted_column_json_omits_version() {
        assert_eq!(
            to_json(&CellObject::deleted(Encoding::Text, "t", b"k", b"c")),
            r#"{"table":"t","key":"k","column":"c","deleted":true}"#
        );
    }
}
