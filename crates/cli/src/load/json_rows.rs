//! Rows of a file of JSON lines: one object per line.
//!
//! A value becomes the bytes of a column: a string as is, anything else as its JSON text, exactly as in the file but
//! without whitespace between tokens. So numbers lose no digits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::{BufRead, Read};

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use terminal::Stop;

use super::row::{Item, Row, TEXT_BYTES_MAX, UTF16, is_utf16, wrong};

const ARRAY: &str = "the file is a JSON array, not one object per line; convert it first (`jq -c '.[]'`)";

/// The lines of a file that are not blank.
pub(super) struct Lines<R> {
    input: R,
    line: u64,
    bytes_read: u64,
    /// A line that is not blank was read.
    has_begun: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: 0, bytes_read: 0, has_begun: false }
    }

    /// The next line, including its line end; empty at the end of the file.
    fn next(&mut self) -> Result<Vec<u8>, Stop> {
        let mut text = Vec::new();
        let most = TEXT_BYTES_MAX as u64;
        let read = (&mut self.input).take(most + 1).read_until(b'\n', &mut text);
        let count = read.map_err(Stop::io("read the file"))? as u64;
        self.line += 1;
        self.bytes_read += count;
        if self.line == 1 && is_utf16(&text) {
            return Err(wrong(1, UTF16));
        }
        if count > most {
            return Err(wrong(self.line, &format!("longer than {} MiB", most >> 20)));
        }
        Ok(text)
    }

    /// The next line that is not blank: its number, its text, and the file offset of its end.
    pub(super) fn next_full(&mut self) -> Result<Option<(u64, Vec<u8>, u64)>, Stop> {
        loop {
            let text = self.next()?;
            if text.is_empty() {
                return Ok(None);
            }
            let full = without_mark(self.line, &text).trim_ascii_start();
            if !self.has_begun && full.starts_with(b"[") {
                return Err(wrong(self.line, ARRAY));
            }
            if !full.is_empty() {
                self.has_begun = true;
                return Ok(Some((self.line, text, self.bytes_read)));
            }
        }
    }
}

/// A line without the byte order mark that some files begin with.
fn without_mark(line: u64, text: &[u8]) -> &[u8] {
    if line == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) } else { text }
}

/// The rows of the file.
pub(crate) struct JsonRows<R> {
    lines: Lines<R>,
    key_column: String,
    ended: bool,
}

impl<R: BufRead> JsonRows<R> {
    pub(crate) fn new(input: R, key_column: &str) -> Self {
        Self { lines: Lines::new(input), key_column: key_column.to_owned(), ended: false }
    }

    fn item(&mut self) -> Result<Option<Item>, Stop> {
        let Some((line, text, bytes_read)) = self.lines.next_full()? else { return Ok(None) };
        let row = row(&self.key_column, without_mark(line, &text));
        Ok(Some(Item { line, row, text, bytes_read }))
    }
}

impl<R: BufRead> Iterator for JsonRows<R> {
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

fn row(key_column: &str, json: &[u8]) -> Result<Row, String> {
    let Object(object) = parse_object(json)?;
    let mut columns = Vec::with_capacity(object.len());
    for (name, value) in object {
        let bytes = column(value.get()).map_err(|error| format!("{} of {name:?}", not_json(&error)))?;
        if let Some(bytes) = bytes {
            columns.push((name.into(), bytes));
        }
    }
    Row::of(key_column, columns)
}

/// A JSON object. Duplicate names of fields are an error; a map would silently keep the last one.
struct Object<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    match fields.entry(name) {
                        Entry::Vacant(vacant) => vacant.insert(value),
                        Entry::Occupied(field) => {
                            return Err(M::Error::custom(format_args!("duplicate field {:?}", field.key())));
                        }
                    };
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

fn parse_object(json: &[u8]) -> Result<Object<'_>, String> {
    serde_json::from_slice(json.trim_ascii_end()).map_err(|error| match error.classify() {
        serde_json::error::Category::Data if json.trim_ascii_start().starts_with(b"{") => in_line(&error),
        serde_json::error::Category::Data => "the line is not a JSON object".to_owned(),
        _ => not_json(&error),
    })
}

/// The reason why a line is not JSON. The parser counts lines from 1 within each line, so its line number is dropped.
fn not_json(error: &serde_json::Error) -> String {
    format!("not JSON: {}", in_line(error))
}

/// A parser's message about one line, without its line number.
pub(super) fn in_line(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = error.to_string();
    format!("{} at column {}", reason.strip_suffix(&place).unwrap_or(&reason), error.column())
}

/// The bytes of a value; `None` for null.
fn column(json: &str) -> serde_json::Result<Option<Bytes>> {
    match json.as_bytes().first() {
        Some(b'n') => Ok(None),
        // JSON can encode a lone surrogate, which is not a character.
        Some(b'"') => serde_json::from_str::<String>(json).map(|text| Some(text.into())),
        _ => Ok(Some(compact(json).into())),
    }
}

/// JSON text without whitespace between tokens.
fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        if in_string {
            in_string = escaped || character != '"';
            escaped = !escaped && character == '\\';
        } else if character.is_ascii_whitespace() {
            continue;
        } else {
            in_string = character == '"';
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn rows(file: &'static [u8]) -> Vec<Item> {
        JsonRows::new(file, "k").collect::<Result<_, _>>().expect("a readable file")
    }

    fn columns(file: &'static [u8]) -> Vec<(Bytes, Bytes)> {
        rows(file).remove(0).row.expect("a good row").columns
    }

    #[test]
    fn json_values_become_bytes() {
        let file = br#"{"k": "a", "n": 1.50, "big": 123456789012345678901, "t": true, "none": null,
"#;
        assert!(rows(file)[0].row.is_err(), "an object ends on its line");
        let file = br#"{"k": "a\u00e9", "n": 1.50, "big": 123456789012345678901, "t": true, "none": null}"#;
        let expected = [("big", "123456789012345678901"), ("k", "aé"), ("n", "1.50"), ("t", "true")]
            .map(|(n, v)| (n.into(), v.into()));
        assert_eq!(columns(file), expected);
    }

    #[test]
    fn nested_json_is_compacted() {
        let file = br#"{"k":"a","v":{ "z" : [ 1.0 , "x \" y\\" ] , "a" : { } }}"#;
        assert_eq!(columns(file)[1], ("v".into(), br#"{"z":[1.0,"x \" y\\"],"a":{}}"#[..].into()));
    }

    #[test]
    fn accepts_numeric_keys() {
        assert_eq!(rows(br#"{"k":7}"#)[0].row.as_ref().expect("a good row").key, "7");
    }

    #[test]
    fn numbers_bad_lines_and_skips_blank() {
        let file = b"\xef\xbb\xbf{\"k\":\"a\"}\n\n{\"k\":\r\n[1]\n{\"k\":\"\xff\"}\n{\"k\":null}\n{\"k\":\"b\"}";
        let lines: Vec<_> = rows(file).iter().map(|item| (item.line, item.row.is_ok())).collect();
        assert_eq!(lines, [(1, true), (3, false), (4, false), (5, false), (6, false), (7, true)]);
        let reasons: Vec<_> = rows(file).into_iter().filter_map(|item| item.row.err()).collect();
        assert_eq!(reasons[1], "the line is not a JSON object");
        assert_eq!(reasons[3], "the row has no key column \"k\"");
        assert_eq!(rows(file)[1].text, b"{\"k\":\r\n");
    }

    #[test]
    fn json_error_format() {
        let reason = |file: &'static [u8]| rows(file).remove(0).row.expect_err("a bad row");
        assert_eq!(reason(b"{\"k\":"), "not JSON: EOF while parsing a value at column 5");
        assert_eq!(reason(b"{\"k\":\n"), reason(b"{\"k\":"), "a line end is not a separate line");
        assert_eq!(reason(br#"{"k":"\ud800"}"#), "not JSON: unexpected end of hex escape at column 8 of \"k\"");
        assert!(reason(br#"{"\ud800":"v"}"#).starts_with("not JSON: "));
        assert_eq!(reason(br#"{"k":"a","v":1,"\u0076":2}"#), "duplicate field \"v\" at column 26");
    }

    #[test]
    fn rejects_json_array_and_utf16() {
        for (file, reason) in [
            (&b"\xef\xbb\xbf\n [\n{\"k\":1}]\n"[..], format!("line 2: {ARRAY}")),
            (b"[{\"k\":1}]", format!("line 1: {ARRAY}")),
            (b"\xff\xfe{\0", format!("line 1: {UTF16}")),
            (b"\xfe\xff\0{", format!("line 1: {UTF16}")),
        ] {
            let stop = JsonRows::new(file, "k").next().expect("an error").expect_err("no JSON lines");
            assert_eq!((stop.to_string(), stop.exit_status()), (reason, 2));
        }
    }

    #[test]
    fn endless_json_line_bounds_memory() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let mut rows = JsonRows::new(endless, "k");
        assert!(rows.next().expect("an error").is_err());
        assert!(rows.next().is_none());
    }
}
