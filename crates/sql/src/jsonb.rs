//! JSON as PostgreSQL's `jsonb` prints it: one space after `:` and `,`, the keys of an object by length and then by
//! bytes, the last of duplicate keys, numbers as `numeric`.

use std::collections::BTreeMap;

use base::limits::VALUE_BYTES_MAX;

use crate::error::{SqlError, sqlstate};
use crate::numeric::Numeric;
use crate::value::Value;

/// Maximum nesting: parsing and everything that works on the result is recursive.
const NESTING_MAX: usize = 500;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// The bytes of the output so far. A number such as `1e999` is longer there than in the text.
    written: usize,
}

/// The text that PostgreSQL prints for a `jsonb` value.
///
/// # Errors
/// The text is not JSON, or nested too deeply, or its result is longer than a value may be.
pub fn normalize(text: &str) -> Result<String, SqlError> {
    let mut parser = Parser::new(text);
    let mut out = String::with_capacity(text.len());
    parser.value(&mut out, 0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.invalid());
    }
    Ok(out)
}

/// The member of an object with a key, or the item of an array with a number, from its end if that is negative.
/// `None` if there is none.
///
/// # Errors
/// The text is not JSON.
pub fn member(text: &str, key: &Value) -> Result<Option<String>, SqlError> {
    let mut parser = Parser::new(text);
    parser.skip_space();
    let is_object = parser.peek() == Some(b'{');
    let is_wanted = match key {
        Value::Text(_) => is_object,
        other => other.as_integer().is_some() && parser.peek() == Some(b'['),
    };
    if !is_wanted {
        return Ok(None);
    }
    parser.at += 1;
    let mut items = Vec::new();
    while !parser.take(b'}') && !parser.take(b']') && parser.at < text.len() {
        let name = if is_object { Some(parser.string()?) } else { None };
        if is_object && !parser.take(b':') {
            return Err(parser.invalid());
        }
        let mut item = String::new();
        parser.value(&mut item, 1)?;
        if let (Some(name), Value::Text(wanted)) = (name, key)
            && name == *wanted
        {
            return Ok(Some(item));
        }
        items.push(item);
        parser.take(b',');
        parser.skip_space();
    }
    let Some(number) = key.as_integer() else { return Ok(None) };
    let from_start = if number < 0 { i64::try_from(items.len()).unwrap_or(0) + number } else { number };
    Ok(usize::try_from(from_start).ok().and_then(|number| items.into_iter().nth(number)))
}

/// A JSON value as text: a string without its quotes. `None` for `null`.
///
/// # Errors
/// The text is not JSON.
pub fn as_text(text: &str) -> Result<Option<String>, SqlError> {
    match text.chars().next() {
        Some('"') => Parser::new(text).string().map(Some),
        _ if text == "null" => Ok(None),
        _ => Ok(Some(text.to_owned())),
    }
}

/// Appends a JSON string in quotes.
pub fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, written: 0 }
    }

    /// Counts bytes of the output.
    fn count(&mut self, bytes: usize) -> Result<(), SqlError> {
        self.written += bytes;
        if self.written > VALUE_BYTES_MAX {
            let message = format!("value of type jsonb exceeds {VALUE_BYTES_MAX} bytes");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        Ok(())
    }

    fn invalid(&self) -> SqlError {
        let error = SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json");
        let rest = self.text.get(self.at..).unwrap_or_default();
        match rest.chars().next() {
            None => error.with_detail("The input string ended unexpectedly."),
            Some(_) => {
                let token: String = rest.chars().take_while(|c| !c.is_whitespace()).take(20).collect();
                error.with_detail(format!("Token \"{token}\" is invalid."))
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        self.skip_space();
        let is_there = self.peek() == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn value(&mut self, out: &mut String, depth: usize) -> Result<(), SqlError> {
        if depth > NESTING_MAX {
            return Err(SqlError::new(sqlstate::STATEMENT_TOO_COMPLEX, "JSON is nested too deeply"));
        }
        self.skip_space();
        let before = out.len();
        match self.peek() {
            Some(b'{') => return self.object(out, depth),
            Some(b'[') => return self.list(out, depth),
            Some(b'"') => {
                let text = self.string()?;
                quote(&text, out);
            }
            Some(b'-' | b'0'..=b'9') => self.number(out)?,
            _ => {
                let rest = &self.text[self.at..];
                let word = ["true", "false", "null"].into_iter().find(|word| rest.starts_with(word));
                let word = word.ok_or_else(|| self.invalid())?;
                self.at += word.len();
                out.push_str(word);
            }
        }
        self.count(out.len() - before)
    }

    fn object(&mut self, out: &mut String, depth: usize) -> Result<(), SqlError> {
        self.at += 1;
        let (written, before) = (self.written, out.len());
        let mut members: BTreeMap<(usize, String), String> = BTreeMap::new();
        if !self.take(b'}') {
            loop {
                self.skip_space();
                if self.peek() != Some(b'"') {
                    return Err(self.invalid());
                }
                let key = self.string()?;
                if !self.take(b':') {
                    return Err(self.invalid());
                }
                let mut value = String::new();
                self.value(&mut value, depth + 1)?;
                if let Some(replaced) = members.insert((key.len(), key), value) {
                    self.written -= replaced.len();
                }
                if self.take(b'}') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.invalid());
                }
            }
        }
        out.push('{');
        for (number, ((_, key), value)) in members.iter().enumerate() {
            out.push_str(if number == 0 { "" } else { ", " });
            quote(key, out);
            out.push_str(": ");
            out.push_str(value);
        }
        out.push('}');
        self.written = written;
        self.count(out.len() - before)
    }

    fn list(&mut self, out: &mut String, depth: usize) -> Result<(), SqlError> {
        self.at += 1;
        out.push('[');
        self.count("[]".len())?;
        if !self.take(b']') {
            loop {
                self.value(out, depth + 1)?;
                if self.take(b']') {
                    break;
                }
                if !self.take(b',') {
                    return Err(self.invalid());
                }
                out.push_str(", ");
                self.count(", ".len())?;
            }
        }
        out.push(']');
        Ok(())
    }

    fn string(&mut self) -> Result<String, SqlError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let c = rest.chars().next().ok_or_else(|| self.invalid())?;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape()?),
                c if c < ' ' => return Err(self.invalid()),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SqlError> {
        let c = self.peek().ok_or_else(|| self.invalid())?;
        self.at += 1;
        Ok(match c {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let mut unit = self.hex()?;
                if (0xd800..0xdc00).contains(&unit) {
                    if !self.text[self.at..].starts_with("\\u") {
                        return Err(self.invalid());
                    }
                    self.at += 2;
                    let low = self.hex()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err(self.invalid());
                    }
                    unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                }
                if unit == 0 {
                    let error = SqlError::new("22P05", "unsupported Unicode escape sequence");
                    return Err(error.with_detail("\\u0000 cannot be converted to text."));
                }
                char::from_u32(unit).ok_or_else(|| self.invalid())?
            }
            _ => return Err(self.invalid()),
        })
    }

    fn hex(&mut self) -> Result<u32, SqlError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).ok_or_else(|| self.invalid())?;
        let mut unit = 0;
        for digit in digits {
            unit = unit * 16 + char::from(*digit).to_digit(16).ok_or_else(|| self.invalid())?;
        }
        self.at += 4;
        Ok(unit)
    }

    fn number(&mut self, out: &mut String) -> Result<(), SqlError> {
        let rest = &self.text[self.at..];
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let number = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        let unsigned = number.strip_prefix('-').unwrap_or(number);
        let whole = &unsigned[..unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len())];
        let fraction = &unsigned[whole.len()..];
        let has_digit_after_point =
            fraction.strip_prefix('.').is_none_or(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) || !has_digit_after_point {
            return Err(self.invalid());
        }
        let value: Numeric = number.parse().map_err(|error: SqlError| {
            if error.sqlstate == sqlstate::INVALID_TEXT_REPRESENTATION { self.invalid() } else { error }
        })?;
        self.at += number.len();
        out.push_str(&value.to_string());
        Ok(())
    }
}
