//! PostgreSQL's text format of every type, in and out. Times are in UTC, in ISO format.

mod arrays;
mod times;

pub(crate) use arrays::DIMENSIONS_MAX;

use std::fmt::Write as _;

use bigdecimal::{BigDecimal, FromPrimitive as _};
use bytes::Bytes;

use crate::error::{SqlError, sqlstate};
use crate::jsonb;
use crate::types::SqlType;
use crate::value::Value;

pub(crate) fn invalid(what: &SqlType, text: &str) -> SqlError {
    let message = format!("invalid input syntax for type {}: \"{text}\"", what.base_name());
    SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, message)
}

fn out_of_range(what: &SqlType, text: &str) -> SqlError {
    let message = format!("value \"{text}\" is out of range for type {what}");
    SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, message)
}

fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}')
}

impl SqlType {
    /// Reads a value in text format, as the type's input function in PostgreSQL does, and as an assignment to a column
    /// of this type: declared lengths are enforced.
    ///
    /// # Errors
    /// With the SQLSTATE of PostgreSQL, such as 22P02 and 22003.
    pub fn parse(&self, text: &str) -> Result<Value, SqlError> {
        Ok(match self {
            Self::Bool => Value::Bool(parse_bool(text)?),
            Self::Int2 => Value::Int2(i16::try_from(self.integer(text)?).map_err(|_| out_of_range(self, trim(text)))?),
            Self::Int4 => Value::Int4(i32::try_from(self.integer(text)?).map_err(|_| out_of_range(self, trim(text)))?),
            Self::Int8 => Value::Int8(self.integer(text)?),
            Self::Float4 => {
                let number: f32 = trim(text).parse().map_err(|_| invalid(self, text))?;
                self.check_float(text, f64::from(number))?;
                Value::Float4(number)
            }
            Self::Float8 => {
                let number: f64 = trim(text).parse().map_err(|_| invalid(self, text))?;
                self.check_float(text, number)?;
                Value::Float8(number)
            }
            Self::Numeric(None) => Value::Numeric(text.parse()?),
            Self::Numeric(Some((precision, scale))) => {
                let number: crate::Numeric = text.parse()?;
                Value::Numeric(number.with_precision(*precision, *scale)?)
            }
            Self::Text | Self::Varchar(None) => Value::Text(checked_text(text)?.to_owned()),
            Self::Varchar(Some(_)) | Self::Char(_) => {
                Value::Text(crate::cast::fit_text(checked_text(text)?.to_owned(), self, false)?)
            }
            Self::Bytea => Value::Bytea(parse_bytea(text)?),
            Self::Date => Value::Date(times::parse_date(text)?),
            Self::Timestamp => Value::Timestamp(times::parse_timestamp(text, self)?),
            Self::Timestamptz => Value::Timestamptz(times::parse_timestamp(text, self)?),
            Self::Interval => Value::Interval(times::parse_interval(text)?),
            Self::Uuid => Value::Uuid(parse_uuid(text).ok_or_else(|| invalid(self, text))?),
            Self::Jsonb => Value::Jsonb(jsonb::normalize(text)?),
            Self::Array(element) => Value::Array(arrays::parse(element, text)?),
        })
    }

    fn integer(&self, text: &str) -> Result<i64, SqlError> {
        let trimmed = trim(text);
        let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid(self, text));
        }
        trimmed.parse().map_err(|_| out_of_range(self, trimmed))
    }

    /// Refuses a finite number that became infinite, or a number other than 0 that became 0.
    fn check_float(&self, text: &str, number: f64) -> Result<(), SqlError> {
        let is_written_infinite = trim(text).bytes().any(|byte| matches!(byte, b'n' | b'N'));
        let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
        let is_written_zero = !mantissa.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
        if (number.is_infinite() && !is_written_infinite) || (number == 0.0 && !is_written_zero) {
            let message = format!("\"{}\" is out of range for type {self}", trim(text));
            return Err(SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, message));
        }
        Ok(())
    }
}

fn checked_text(text: &str) -> Result<&str, SqlError> {
    if text.contains('\0') {
        let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
        return Err(SqlError::new(sqlstate::CHARACTER_NOT_IN_REPERTOIRE, message));
    }
    Ok(text)
}

fn parse_bool(text: &str) -> Result<bool, SqlError> {
    let word = trim(text).to_ascii_lowercase();
    let is_prefix = |whole: &str| !word.is_empty() && whole.starts_with(&word);
    if word == "1" || word == "on" || is_prefix("true") || is_prefix("yes") {
        return Ok(true);
    }
    if word == "0" || word == "off" || word == "of" || is_prefix("false") || is_prefix("no") {
        return Ok(false);
    }
    Err(invalid(&SqlType::Bool, text))
}

fn parse_bytea(text: &str) -> Result<Bytes, SqlError> {
    let hex = |digit: u8| char::from(digit).to_digit(16);
    if let Some(digits) = text.strip_prefix("\\x") {
        let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let error = |message: &str| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message);
        if digits.len() % 2 == 1 {
            return Err(error("invalid hexadecimal data: odd number of digits"));
        }
        let bytes = digits.chunks_exact(2).map(|pair| Some((hex(pair[0])? * 16 + hex(pair[1])?) as u8));
        return bytes.collect::<Option<Vec<u8>>>().map(Bytes::from).ok_or_else(|| error("invalid hexadecimal digit"));
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        if *byte != b'\\' {
            out.push(*byte);
        } else if bytes.get(at) == Some(&b'\\') {
            out.push(b'\\');
            at += 1;
        } else {
            match bytes.get(at..at + 3) {
                Some([a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7']) => {
                    out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                    at += 3;
                }
                _ => {
                    let message = "invalid input syntax for type bytea";
                    return Err(SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, message));
                }
            }
        }
    }
    Ok(out.into())
}

/// 32 hexadecimal digits, with a hyphen after any group of four, and possibly in braces.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let trimmed = text.strip_prefix('{').map_or(Some(text), |rest| rest.strip_suffix('}'))?;
    let mut uuid = [0; 16];
    let mut rest = trimmed.bytes().peekable();
    for (place, byte) in uuid.iter_mut().enumerate() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        *byte = u8::try_from(digit()? * 16 + digit()?).ok()?;
        if place % 2 == 1 && place < 15 && rest.peek() == Some(&b'-') {
            rest.next();
        }
    }
    rest.next().is_none().then_some(uuid)
}

/// The shortest digits that give the number, as PostgreSQL chooses them: the closest ones, with a tie to the even digit,
/// and none that are exactly between two numbers. Rust accepts the latter if reading rounds them to this number.
fn shortest(number: f64, is_single: bool) -> String {
    let read = |text: &str| {
        if is_single { text.parse().map(|number: f32| f64::from(number)) } else { text.parse::<f64>() }
    };
    let with_digits = |digits: usize| {
        let after_point = digits.saturating_sub(1);
        if is_single { format!("{:.after_point$e}", number as f32) } else { format!("{number:.after_point$e}") }
    };
    let text = if is_single { format!("{:e}", number as f32) } else { format!("{number:e}") };
    let mantissa = text.split('e').next().unwrap_or_default();
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let closest = with_digits(digits);
    let text = if read(&closest) == Ok(number) { closest } else { text };
    // The distance of smaller numbers is less than that of such short digits.
    let (whole, ulp) = if is_single {
        (8_388_608.0, f64::from((number.abs() as f32).next_up()) - number.abs())
    } else {
        (4_503_599_627_370_496.0, number.abs().next_up() - number.abs())
    };
    if number.abs() < whole || !ulp.is_finite() {
        return text;
    }
    let bits = if is_single { u64::from((number as f32).to_bits() << 9) } else { number.to_bits() << 12 };
    let is_between = |text: &str| {
        // Four times the numbers, so that all are integers.
        let exact = |number: f64| BigDecimal::from_f64(number).map(|number| number * BigDecimal::from(4));
        let distance = (text.parse::<BigDecimal>().ok()? * BigDecimal::from(4)).abs() - exact(number.abs())?;
        // Below a power of two, the distance of numbers is half as large.
        let is_power_of_two = bits == 0;
        let below = exact(if is_power_of_two { ulp / 4.0 } else { ulp / 2.0 })?;
        Some(distance == exact(ulp / 2.0)? || distance == -below)
    };
    let is_valid = |text: &String| read(text) == Ok(number) && is_between(text) != Some(true);
    if is_valid(&text) {
        return text;
    }
    (digits + 1..=17).map(with_digits).find(is_valid).unwrap_or(text)
}

/// Digits in scientific notation, written in fixed notation for exponents from -4 to below `fixed_below`.
fn write_float(scientific: &str, fixed_below: i32, out: &mut String) {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, unsigned) = mantissa.strip_prefix('-').map_or(("", mantissa), |unsigned| ("-", unsigned));
    out.push_str(sign);
    if !(-4..fixed_below).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{unsigned}e{sign}{:02}", exponent.unsigned_abs());
        return;
    }
    let digits: String = unsigned.chars().filter(|c| *c != '.').collect();
    if exponent < 0 {
        out.push_str("0.");
        (1..exponent.unsigned_abs()).for_each(|_| out.push('0'));
        out.push_str(&digits);
        return;
    }
    let before = exponent.unsigned_abs() as usize + 1;
    if digits.len() > before {
        let _ = write!(out, "{}.{}", &digits[..before], &digits[before..]);
    } else {
        out.push_str(&digits);
        (digits.len()..before).for_each(|_| out.push('0'));
    }
}

fn write_special(number: f64, out: &mut String) -> bool {
    if number.is_finite() {
        return false;
    }
    out.push_str(match number {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    });
    true
}

impl Value {
    /// The value in text format; `None` for NULL.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        if self.is_null() {
            return None;
        }
        let mut out = String::new();
        self.write_text(&mut out);
        Some(out)
    }

    /// Appends the value in text format; nothing for NULL.
    pub fn write_text(&self, out: &mut String) {
        // Writing to a string does not fail.
        let _ = match self {
            Self::Null => Ok(()),
            Self::Bool(value) => out.write_str(if *value { "t" } else { "f" }),
            Self::Int2(number) => write!(out, "{number}"),
            Self::Int4(number) => write!(out, "{number}"),
            Self::Int8(number) => write!(out, "{number}"),
            Self::Float4(number) => {
                if !write_special(f64::from(*number), out) {
                    write_float(&shortest(f64::from(*number), true), 6, out);
                }
                Ok(())
            }
            Self::Float8(number) => {
                if !write_special(*number, out) {
                    write_float(&shortest(*number, false), 15, out);
                }
                Ok(())
            }
            Self::Numeric(number) => write!(out, "{number}"),
            Self::Text(text) | Self::Jsonb(text) => out.write_str(text),
            Self::Bytea(bytes) => {
                out.push_str("\\x");
                bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
            }
            Self::Date(day) => {
                times::write_date(*day, out);
                Ok(())
            }
            Self::Timestamp(micros) => {
                times::write_timestamp(*micros, "", out);
                Ok(())
            }
            Self::Timestamptz(micros) => {
                times::write_timestamp(*micros, "+00", out);
                Ok(())
            }
            Self::Interval(interval) => {
                times::write_interval(*interval, out);
                Ok(())
            }
            Self::Uuid(uuid) => uuid.iter().enumerate().try_for_each(|(place, byte)| {
                let hyphen = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
                write!(out, "{hyphen}{byte:02x}")
            }),
            Self::Array(array) => {
                arrays::write(array, out);
                Ok(())
            }
        };
    }
}
