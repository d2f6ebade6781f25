//! The data of COPY: text and CSV, in PostgreSQL's formats.

use bytes::{Buf as _, Bytes, BytesMut};
use sql::cast::{Context, cast};
use sql::{SqlError, SqlType, Value, sqlstate};

/// Characters of a value that an error shows.
const SHOWN_MAX: usize = 100;
/// Maximum bytes of a row.
const ROW_BYTES_MAX: usize = 16 << 20;

/// The format of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    is_csv: bool,
    delimiter: u8,
    null: String,
    has_header: bool,
    quote: u8,
    escape: u8,
}

fn invalid(message: impl Into<String>) -> SqlError {
    SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message)
}

fn one_byte(option: &str, value: &str) -> Result<u8, SqlError> {
    let value = if value == "\\t" || value == "E'\\t" { "\t" } else { value };
    match value.as_bytes() {
        [byte] if *byte != b'\n' && *byte != b'\r' => Ok(*byte),
        _ => Err(SqlError::new(
            sqlstate::FEATURE_NOT_SUPPORTED,
            format!("COPY {option} must be a single one-byte character"),
        )),
    }
}

impl Format {
    /// The format that the options of a statement describe.
    pub fn of(options: &[(String, String)]) -> Result<Self, SqlError> {
        let is_csv = options
            .iter()
            .any(|(name, value)| name == "csv" || (name == "format" && value.eq_ignore_ascii_case("csv")));
        let mut format = Self {
            is_csv,
            delimiter: if is_csv { b',' } else { b'\t' },
            null: if is_csv { String::new() } else { "\\N".to_owned() },
            has_header: false,
            quote: b'"',
            escape: b'"',
        };
        let mut escape = None;
        for (name, value) in options {
            match name.as_str() {
                "format" if matches!(value.to_lowercase().as_str(), "text" | "csv") => {}
                "format" | "binary" => return Err(SqlError::unsupported("COPY in this format")),
                "csv" => {
                    if value.to_lowercase().split_whitespace().any(|word| word == "header") {
                        format.has_header = true;
                    }
                }
                "delimiter" => format.delimiter = one_byte("delimiter", value)?,
                "null" => format.null.clone_from(value),
                "header" => format.has_header = !matches!(value.to_lowercase().as_str(), "false" | "off" | "0"),
                "quote" => format.quote = one_byte("quote", value)?,
                "escape" => escape = Some(one_byte("escape", value)?),
                // Rows of a transaction are visible to others only once it is committed.
                "freeze" => {}
                "encoding" if value.to_lowercase().replace('-', "") == "utf8" => {}
                _ => return Err(invalid(format!("option \"{name}\" of COPY is not supported"))),
            }
        }
        format.escape = escape.unwrap_or(format.quote);
        Ok(format)
    }

    /// The line with the names of the columns, if there is one.
    pub fn header(&self, names: &[String]) -> Option<Bytes> {
        self.has_header.then(|| {
            let names: Vec<Value> = names.iter().map(|name| Value::Text(name.clone())).collect();
            self.row(&names)
        })
    }

    /// A row as a line.
    pub fn row(&self, values: &[Value]) -> Bytes {
        let mut line = Vec::with_capacity(16 * values.len());
        for (number, value) in values.iter().enumerate() {
            if number > 0 {
                line.push(self.delimiter);
            }
            match value.to_text() {
                None => line.extend_from_slice(self.null.as_bytes()),
                Some(text) if self.is_csv => self.write_csv(&text, values.len() == 1, &mut line),
                Some(text) => self.write_text(&text, &mut line),
            }
        }
        line.push(b'\n');
        line.into()
    }

    fn write_text(&self, text: &str, line: &mut Vec<u8>) {
        for byte in text.bytes() {
            let escaped = match byte {
                b'\\' => b'\\',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0x08 => b'b',
                0x0b => b'v',
                0x0c => b'f',
                byte if byte == self.delimiter => byte,
                byte => {
                    line.push(byte);
                    continue;
                }
            };
            line.extend_from_slice(&[b'\\', escaped]);
        }
    }

    fn write_csv(&self, text: &str, is_only: bool, line: &mut Vec<u8>) {
        let special = |byte: u8| byte == self.delimiter || byte == self.quote || byte == b'\n' || byte == b'\r';
        let needs_quotes = text == self.null || text.bytes().any(special) || (is_only && text == "\\.");
        if !needs_quotes {
            line.extend_from_slice(text.as_bytes());
            return;
        }
        line.push(self.quote);
        for byte in text.bytes() {
            if byte == self.quote || byte == self.escape {
                line.push(self.escape);
            }
            line.push(byte);
        }
        line.push(self.quote);
    }
}

/// A column that is copied.
#[derive(Clone, Debug)]
pub struct CopyColumn {
    pub name: String,
    pub sql_type: SqlType,
}

/// Divides data into rows.
#[derive(Debug)]
pub struct Parser {
    format: Format,
    table: String,
    columns: Vec<CopyColumn>,
    buffer: BytesMut,
    /// The bytes of the buffer that were searched and contain no end of a row, and whether they end inside of quotes.
    scanned: usize,
    in_quotes: bool,
    line: u64,
    is_over: bool,
}

impl Parser {
    pub fn new(format: Format, table: &str, columns: Vec<CopyColumn>) -> Self {
        Self {
            format,
            table: table.to_owned(),
            columns,
            buffer: BytesMut::new(),
            scanned: 0,
            in_quotes: false,
            line: 0,
            is_over: false,
        }
    }

    /// Adds data. Returns the rows that are complete.
    ///
    /// # Errors
    /// 22P04 and errors of values, with the number of the line.
    pub fn push(&mut self, data: &[u8]) -> Result<Vec<Vec<Value>>, SqlError> {
        self.buffer.extend_from_slice(data);
        let mut rows = Vec::new();
        while let Some(end) = self.row_end() {
            let mut line = self.buffer.split_to(end);
            self.buffer.advance(1);
            (self.scanned, self.in_quotes) = (0, false);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            rows.extend(self.row(&line)?);
        }
        if self.buffer.len() > ROW_BYTES_MAX {
            let message = format!("a row of COPY is larger than {} MiB", ROW_BYTES_MAX >> 20);
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        Ok(rows)
    }

    /// Bytes of data without the end of its row.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The end of the data.
    ///
    /// # Errors
    /// As [`Parser::push`].
    pub fn finish(&mut self) -> Result<Vec<Vec<Value>>, SqlError> {
        if self.in_quotes {
            return Err(self.bad("unterminated CSV quoted field"));
        }
        let mut line = self.buffer.split();
        self.scanned = 0;
        if line.is_empty() {
            return Ok(Vec::new());
        }
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Ok(self.row(&line)?.into_iter().collect())
    }

    fn row_end(&mut self) -> Option<usize> {
        let is_csv = self.format.is_csv;
        let mut at = self.scanned;
        while let Some(byte) = self.buffer.get(at).copied() {
            if is_csv {
                if self.in_quotes && byte == self.format.escape && byte != self.format.quote {
                    // The escaped byte may not have arrived yet.
                    if at + 1 >= self.buffer.len() {
                        break;
                    }
                    at += 2;
                    continue;
                }
                if byte == self.format.quote {
                    self.in_quotes = !self.in_quotes;
                } else if byte == b'\n' && !self.in_quotes {
                    return Some(at);
                }
            } else if byte == b'\\' {
                if at + 1 >= self.buffer.len() {
                    break;
                }
                at += 2;
                continue;
            } else if byte == b'\n' {
                return Some(at);
            }
            at += 1;
        }
        self.scanned = at;
        None
    }

    fn row(&mut self, line: &[u8]) -> Result<Option<Vec<Value>>, SqlError> {
        self.line += 1;
        if self.is_over || (self.line == 1 && self.format.has_header) {
            return Ok(None);
        }
        if line == b"\\." {
            self.is_over = true;
            return Ok(None);
        }
        let fields = if self.format.is_csv { self.csv_fields(line)? } else { self.text_fields(line)? };
        if fields.len() > self.columns.len() {
            return Err(self.bad("extra data after last expected column"));
        }
        if let Some(missing) = self.columns.get(fields.len()) {
            let message = format!("missing data for column \"{}\"", missing.name);
            return Err(self.bad(&message));
        }
        let mut row = Vec::with_capacity(fields.len());
        for (field, column) in fields.into_iter().zip(&self.columns) {
            row.push(match field {
                None => Value::Null,
                Some(text) => {
                    let parsed = column.sql_type.parse(&text);
                    let value = parsed.and_then(|value| cast(value, &column.sql_type, Context::Assignment));
                    value.map_err(|error| {
                        let shown: String = text.chars().take(SHOWN_MAX).collect();
                        self.located(error, &format!(", column {}: \"{shown}\"", column.name))
                    })?
                }
            });
        }
        Ok(Some(row))
    }

    fn bad(&self, message: &str) -> SqlError {
        self.located(SqlError::new("22P04", message), "")
    }

    /// Adds the line number as context, with further text about the place.
    fn located(&self, error: SqlError, place: &str) -> SqlError {
        SqlError { context: Some(format!("COPY {}, line {}{place}", self.table, self.line).into()), ..error }
    }

    fn utf8(&self, bytes: Vec<u8>) -> Result<String, SqlError> {
        String::from_utf8(bytes).map_err(|_| {
            let message = "invalid byte sequence for encoding \"UTF8\"";
            self.located(SqlError::new(sqlstate::CHARACTER_NOT_IN_REPERTOIRE, message), "")
        })
    }

    fn text_fields(&self, line: &[u8]) -> Result<Vec<Option<String>>, SqlError> {
        let mut fields = Vec::with_capacity(self.columns.len());
        let (mut start, mut at) = (0, 0);
        loop {
            match line.get(at) {
                Some(b'\\') => at += 2,
                Some(byte) if *byte != self.format.delimiter => at += 1,
                end => {
                    let raw = &line[start..at.min(line.len())];
                    let is_null = raw == self.format.null.as_bytes();
                    fields.push(if is_null { None } else { Some(self.utf8(unescape(raw))?) });
                    if end.is_none() {
                        return Ok(fields);
                    }
                    at += 1;
                    start = at;
                }
            }
        }
    }

    fn csv_fields(&self, line: &[u8]) -> Result<Vec<Option<String>>, SqlError> {
        let Format { delimiter, quote, escape, null, .. } = &self.format;
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut at = 0;
        loop {
            let (mut field, mut was_quoted, mut in_quotes) = (Vec::new(), false, false);
            loop {
                match line.get(at).copied() {
                    None => break,
                    Some(byte) if in_quotes => {
                        let next = line.get(at + 1).copied();
                        if byte == *escape && next.is_some_and(|next| next == *quote || next == *escape) {
                            field.extend(next);
                            at += 1;
                        } else if byte == *quote {
                            in_quotes = false;
                        } else {
                            field.push(byte);
                        }
                    }
                    Some(byte) if byte == *quote => (was_quoted, in_quotes) = (true, true),
                    Some(byte) if byte == *delimiter => break,
                    Some(byte) => field.push(byte),
                }
                at += 1;
            }
            let is_null = !was_quoted && field == null.as_bytes();
            fields.push(if is_null { None } else { Some(self.utf8(field)?) });
            if at >= line.len() {
                return Ok(fields);
            }
            at += 1;
        }
    }
}

/// Resolves the escapes of the text format.
pub fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(byte) = raw.get(at).copied() {
        at += 1;
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let Some(next) = raw.get(at).copied() else {
            text.push(byte);
            break;
        };
        at += 1;
        let digits = |from: usize, max: usize, radix: u32| {
            raw[from.min(raw.len())..].iter().take(max).take_while(|byte| char::from(**byte).is_digit(radix)).count()
        };
        let number = |from: usize, count: usize, radix: u32| {
            let digits = raw[from..from + count].iter().filter_map(|byte| char::from(*byte).to_digit(radix));
            digits.fold(0, |number, digit| number * radix + digit) as u8
        };
        text.push(match next {
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'0'..=b'7' => {
                let count = digits(at - 1, 3, 8);
                at += count - 1;
                number(at - count, count, 8)
            }
            b'x' if digits(at, 2, 16) > 0 => {
                let count = digits(at, 2, 16);
                at += count;
                number(at - count, count, 16)
            }
            other => other,
        });
    }
    text
}
