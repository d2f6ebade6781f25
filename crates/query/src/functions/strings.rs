//! Functions of text and bytes: those that DataFusion lacks, and those with other results there.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest as _, Md5};
use sql::{SqlError, SqlType, Value, sqlstate};

use super::{ANY_NUMBER, Definition};

pub(super) const OWN: [Definition; 7] = [
    Definition { name: "md5", arguments: 1, result: |_| SqlType::Text, evaluate: md5 },
    Definition { name: "encode", arguments: 2, result: |_| SqlType::Text, evaluate: encode },
    Definition { name: "decode", arguments: 2, result: |_| SqlType::Bytea, evaluate: decode },
    Definition { name: VECTOR, arguments: 1, result: |_| SqlType::Text, evaluate: vector },
    Definition { name: "like_escape", arguments: 2, result: |_| SqlType::Text, evaluate: like_escape },
    Definition { name: "similar_to_escape", arguments: ANY_NUMBER, result: |_| SqlType::Text, evaluate: similar },
    Definition { name: "format", arguments: ANY_NUMBER, result: |_| SqlType::Text, evaluate: format_text },
];

/// Maximum width of a field of `format`, and length of its result.
const WIDTH_MAX: usize = 1 << 20;
const FORMATTED_MAX: usize = 1 << 26;

/// The text of `int2vector` and `oidvector`, which are arrays here.
pub(crate) const VECTOR: &str = "/vector";

fn vector(of: &[Value]) -> Result<Value, SqlError> {
    let [Value::Array(array)] = of else { return Ok(Value::Null) };
    let items: Vec<String> = array.items.iter().filter_map(Value::to_text).collect();
    Ok(Value::Text(items.join(" ")))
}

/// The character that a text consists of; `None` for the empty text.
fn escape_character(text: &str) -> Result<Option<char>, SqlError> {
    let mut chars = text.chars();
    let first = chars.next();
    if chars.next().is_some() {
        let error = SqlError::new("22025", "invalid escape string");
        return Err(error.with_hint("Escape string must be empty or one character."));
    }
    Ok(first)
}

/// A pattern of `LIKE` whose escape character is a backslash, for one with another escape character.
fn like_escape(of: &[Value]) -> Result<Value, SqlError> {
    let [Value::Text(pattern), Value::Text(escape)] = of else { return Ok(Value::Null) };
    let escape = escape_character(escape)?;
    let mut out = String::with_capacity(pattern.len());
    let mut is_escaped = false;
    for c in pattern.chars() {
        if Some(c) == escape && !is_escaped {
            out.push('\\');
            is_escaped = true;
            continue;
        }
        if c == '\\' && !is_escaped {
            out.push('\\');
        }
        out.push(c);
        is_escaped = false;
    }
    Ok(Value::Text(out))
}

/// The regular expression for a pattern of `SIMILAR TO`, with an escape character or a backslash.
fn similar(of: &[Value]) -> Result<Value, SqlError> {
    let (pattern, escape) = match of {
        [Value::Text(pattern)] => (pattern, Some('\\')),
        [Value::Text(pattern), Value::Text(escape)] => (pattern, escape_character(escape)?),
        _ => return Ok(Value::Null),
    };
    let mut out = "^(?:".to_owned();
    let (mut is_escaped, mut in_class) = (false, false);
    for c in pattern.chars() {
        if is_escaped {
            if c == '"' {
                return Err(SqlError::unsupported("a separator in a pattern of SIMILAR TO"));
            }
            if c.is_ascii_punctuation() {
                out.push('\\');
            } else if c.is_alphanumeric() {
                // A class of characters, such as \d.
                return Err(SqlError::unsupported("an escaped letter in a pattern of SIMILAR TO"));
            }
            out.push(c);
            is_escaped = false;
        } else if Some(c) == escape {
            is_escaped = true;
        } else if in_class {
            if c == '\\' {
                out.push('\\');
            }
            out.push(c);
            in_class = c != ']';
        } else {
            match c {
                '[' => {
                    out.push(c);
                    in_class = true;
                }
                '%' => out.push_str(".*"),
                '_' => out.push('.'),
                '(' => out.push_str("(?:"),
                '\\' | '.' | '^' | '$' => {
                    out.push('\\');
                    out.push(c);
                }
                other => out.push(other),
            }
        }
    }
    out.push_str(")$");
    Ok(Value::Text(out))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn md5(of: &[Value]) -> Result<Value, SqlError> {
    Ok(match of {
        [Value::Text(text)] => Value::Text(hex(&Md5::digest(text.as_bytes()))),
        [Value::Bytea(bytes)] => Value::Text(hex(&Md5::digest(bytes))),
        [Value::Null] => Value::Null,
        _ => return Err(super::undefined("md5", of)),
    })
}

fn unknown_encoding(name: &str) -> SqlError {
    SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, format!("unrecognized encoding: \"{name}\""))
}

fn encode(of: &[Value]) -> Result<Value, SqlError> {
    let [value, Value::Text(format)] = of else { return Ok(Value::Null) };
    let bytes = match value {
        Value::Null => return Ok(Value::Null),
        Value::Bytea(bytes) => bytes,
        _ => return Err(super::undefined("encode", of)),
    };
    Ok(Value::Text(match format.to_ascii_lowercase().as_str() {
        "hex" => hex(bytes),
        "base64" => {
            let encoded = BASE64.encode(bytes);
            let mut text = String::with_capacity(encoded.len() + encoded.len() / 76);
            for (number, c) in encoded.chars().enumerate() {
                if number > 0 && number % 76 == 0 {
                    text.push('\n');
                }
                text.push(c);
            }
            text
        }
        "escape" => {
            let mut text = String::new();
            for byte in bytes.iter() {
                match byte {
                    0 | 0x80.. => text.push_str(&format!("\\{byte:03o}")),
                    b'\\' => text.push_str("\\\\"),
                    byte => text.push(char::from(*byte)),
                }
            }
            text
        }
        other => return Err(unknown_encoding(other)),
    }))
}

fn decode(of: &[Value]) -> Result<Value, SqlError> {
    let [Value::Text(text), Value::Text(format)] = of else { return Ok(Value::Null) };
    let invalid = |message: String| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message);
    Ok(Value::Bytea(match format.to_ascii_lowercase().as_str() {
        "hex" => {
            let digits: Vec<char> = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
            let mut bytes = Vec::with_capacity(digits.len() / 2);
            for pair in digits.chunks(2) {
                let mut byte = 0;
                for digit in pair {
                    let value = digit.to_digit(16);
                    let value = value.ok_or_else(|| invalid(format!("invalid hexadecimal digit: \"{digit}\"")))?;
                    byte = byte * 16 + u8::try_from(value).unwrap_or(0);
                }
                if pair.len() < 2 {
                    return Err(invalid("invalid hexadecimal data: odd number of digits".to_owned()));
                }
                bytes.push(byte);
            }
            bytes.into()
        }
        "base64" => {
            let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
            match BASE64.decode(text) {
                Ok(bytes) => bytes.into(),
                Err(base64::DecodeError::InvalidByte(_, byte)) => {
                    let symbol = char::from(byte);
                    return Err(invalid(format!("invalid symbol \"{symbol}\" found while decoding base64 sequence")));
                }
                Err(_) => {
                    let error = invalid("invalid base64 end sequence".to_owned());
                    return Err(
                        error.with_hint("Input data is missing padding, is truncated, or is otherwise corrupted.")
                    );
                }
            }
        }
        "escape" => {
            // Only the escapes of `bytea`, not its hexadecimal form.
            if text.starts_with("\\x") {
                return Err(SqlError::new(
                    sqlstate::INVALID_TEXT_REPRESENTATION,
                    "invalid input syntax for type bytea",
                ));
            }
            return SqlType::Bytea.parse(text);
        }
        other => return Err(unknown_encoding(other)),
    }))
}

/// `format(template, value, ...)`
fn format_text(of: &[Value]) -> Result<Value, SqlError> {
    let Some((template, arguments)) = of.split_first() else { return Err(super::undefined("format", of)) };
    let Some(template) = template.to_text() else { return Ok(Value::Null) };
    let invalid = |message: String| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message);
    let unterminated =
        || invalid("unterminated format() type specifier".to_owned()).with_hint("For a single \"%\" use \"%%\".");
    let too_few = || invalid("too few arguments for format()".to_owned());
    let mut out = String::new();
    let mut next = 0;
    let mut rest = template.as_str();
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let mut specifier = Specifier { rest: after };
        let mut take = |position: Option<usize>| {
            let number = position.map_or(next, |position| position - 1);
            next = number + 1;
            arguments.get(number).ok_or_else(too_few)
        };
        let position = specifier.position()?;
        let mut is_left = specifier.skip('-');
        let mut width = specifier.number();
        if width.is_none() && specifier.skip('*') {
            let given = take(specifier.position()?)?;
            let given = given.as_integer().map_or_else(|| if given.is_null() { Ok(0) } else { Err(too_few()) }, Ok)?;
            is_left |= given < 0;
            width = usize::try_from(given.unsigned_abs()).ok();
        }
        let width = width.unwrap_or(0);
        if width > WIDTH_MAX {
            return Err(invalid("number is out of range".to_owned()));
        }
        let kind = specifier.rest.chars().next().ok_or_else(unterminated)?;
        if !['s', 'I', 'L'].contains(&kind) {
            let error = invalid(format!("unrecognized format() type specifier \"{kind}\""));
            return Err(error.with_hint("For a single \"%\" use \"%%\"."));
        }
        rest = specifier.rest.get(1..).unwrap_or_default();
        let value = take(position)?;
        let shown = match (value.to_text(), kind) {
            (None, 'I') => {
                let message = "null values cannot be formatted as an SQL identifier";
                return Err(SqlError::new(sqlstate::NULL_VALUE_NOT_ALLOWED, message));
            }
            (None, 'L') => "NULL".to_owned(),
            (None, _) => String::new(),
            (Some(text), 'I') => sql::system::quote_identifier(&text),
            (Some(text), 'L') => sql::system::quote_literal(&text),
            (Some(text), _) => text,
        };
        let padding = width.saturating_sub(shown.chars().count());
        if out.len() + padding + shown.len() > FORMATTED_MAX {
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, "the result of format() is too long"));
        }
        if !is_left {
            out.extend(std::iter::repeat_n(' ', padding));
        }
        out.push_str(&shown);
        if is_left {
            out.extend(std::iter::repeat_n(' ', padding));
        }
    }
    out.push_str(rest);
    Ok(Value::Text(out))
}

struct Specifier<'a> {
    rest: &'a str,
}

impl Specifier<'_> {
    fn skip(&mut self, c: char) -> bool {
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn number(&mut self) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest.get(..end).filter(|digits| !digits.is_empty())?;
        let number = number.parse().unwrap_or(usize::MAX);
        self.rest = self.rest.get(end..).unwrap_or_default();
        Some(number)
    }

    /// `n$`
    fn position(&mut self) -> Result<Option<usize>, SqlError> {
        let before = self.rest;
        match self.number() {
            Some(number) if self.skip('$') => match number {
                0 => {
                    let message = "format specifies argument 0, but arguments are numbered from 1";
                    Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message))
                }
                number => Ok(Some(number)),
            },
            _ => {
                self.rest = before;
                Ok(None)
            }
        }
    }
}
