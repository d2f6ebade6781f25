//! PostgreSQL's binary wire format of every type, in and out: big-endian.

use base::codec::{DecodeError, Reader};
use bigdecimal::num_bigint::{BigInt, Sign};
use bytes::{BufMut, Bytes, BytesMut};

use crate::calendar;
use crate::error::{SqlError, sqlstate};
use crate::jsonb;
use crate::numeric::Numeric;
use crate::text::DIMENSIONS_MAX;
use crate::types::SqlType;
use crate::value::{Array, Interval, Value};

const NUMERIC_POSITIVE: u16 = 0x0000;
const NUMERIC_NEGATIVE: u16 = 0x4000;
const NUMERIC_BASE: u32 = 10_000;
/// The version byte before the text of a `jsonb` value.
const JSONB_VERSION: u8 = 1;

fn invalid(what: &SqlType) -> SqlError {
    let message = format!("incorrect binary data format for type {what}");
    SqlError::new(sqlstate::INVALID_BINARY_REPRESENTATION, message)
}

/// Big-endian fields of the input.
struct Input<'a> {
    reader: Reader,
    what: &'a SqlType,
}

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SqlError> {
        let bytes = self.reader.raw(N).map_err(|_: DecodeError| invalid(self.what))?;
        bytes[..].try_into().map_err(|_| invalid(self.what))
    }

    fn rest(&mut self) -> Result<Bytes, SqlError> {
        self.reader.raw(self.reader.left()).map_err(|_| invalid(self.what))
    }

    fn text(&mut self) -> Result<String, SqlError> {
        let bytes = self.rest()?;
        let text = std::str::from_utf8(&bytes).map_err(|_| {
            let message = "invalid byte sequence for encoding \"UTF8\"";
            SqlError::new(sqlstate::CHARACTER_NOT_IN_REPERTOIRE, message)
        })?;
        Ok(text.to_owned())
    }

    fn i32(&mut self) -> Result<i32, SqlError> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, SqlError> {
        self.array().map(i64::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, SqlError> {
        self.array().map(u16::from_be_bytes)
    }
}

impl SqlType {
    /// Reads a value in binary format; declared lengths are enforced.
    ///
    /// # Errors
    /// 22P03 for invalid bytes, and the errors of [`SqlType::parse`].
    pub fn from_binary(&self, bytes: Bytes) -> Result<Value, SqlError> {
        let mut input = Input { reader: Reader::new(bytes), what: self };
        let value = self.read(&mut input)?;
        if input.reader.left() > 0 {
            return Err(invalid(self));
        }
        Ok(value)
    }

    fn read(&self, input: &mut Input) -> Result<Value, SqlError> {
        Ok(match self {
            Self::Bool => Value::Bool(input.array::<1>()?[0] != 0),
            Self::Int2 => Value::Int2(i16::from_be_bytes(input.array()?)),
            Self::Int4 => Value::Int4(input.i32()?),
            Self::Int8 => Value::Int8(input.i64()?),
            Self::Float4 => Value::Float4(f32::from_be_bytes(input.array()?)),
            Self::Float8 => Value::Float8(f64::from_be_bytes(input.array()?)),
            Self::Numeric(declared) => {
                let number = read_numeric(input)?;
                Value::Numeric(match declared {
                    None => number,
                    Some((precision, scale)) => number.with_precision(*precision, *scale)?,
                })
            }
            Self::Text | Self::Varchar(_) | Self::Char(_) => return self.parse(&input.text()?),
            Self::Bytea => Value::Bytea(input.rest()?),
            Self::Date => {
                let days = input.i32()?;
                let is_valid = matches!(days, i32::MIN | i32::MAX | calendar::DAY_MIN..=calendar::DAY_MAX);
                if !is_valid {
                    return Err(SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "date out of range"));
                }
                Value::Date(days)
            }
            Self::Timestamp | Self::Timestamptz => {
                let micros = input.i64()?;
                let is_valid = matches!(micros, i64::MIN | i64::MAX)
                    || (calendar::MICROS_MIN..calendar::MICROS_END).contains(&micros);
                if !is_valid {
                    return Err(SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "timestamp out of range"));
                }
                if *self == Self::Timestamp { Value::Timestamp(micros) } else { Value::Timestamptz(micros) }
            }
            Self::Interval => {
                let micros = input.i64()?;
                let days = input.i32()?;
                Value::Interval(Interval { months: input.i32()?, days, micros })
            }
            Self::Uuid => Value::Uuid(input.array()?),
            Self::Jsonb => {
                if input.array()? != [JSONB_VERSION] {
                    return Err(invalid(self));
                }
                Value::Jsonb(jsonb::normalize(&input.text()?)?)
            }
            Self::Array(element) => Value::Array(read_array(element, input)?),
        })
    }
}

fn read_numeric(input: &mut Input) -> Result<Numeric, SqlError> {
    let count = input.u16()?;
    let weight = i16::from_be_bytes(input.array()?);
    let sign = input.u16()?;
    let scale = input.u16()?;
    if !matches!(sign, NUMERIC_POSITIVE | NUMERIC_NEGATIVE) {
        return Err(SqlError::unsupported("numeric NaN or infinity"));
    }
    // Conversions take quadratic time in the number of digits.
    if usize::from(count) * 2 > input.reader.left() || count > 1_000 || weight.unsigned_abs() > 1_000 {
        return Err(invalid(input.what));
    }
    let mut digits = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let digit = u32::from(input.u16()?);
        if digit >= NUMERIC_BASE {
            return Err(invalid(input.what));
        }
        digits.extend(format!("{digit:04}").bytes().map(|digit| digit - b'0'));
    }
    let sign = if sign == NUMERIC_NEGATIVE { Sign::Minus } else { Sign::Plus };
    let unscaled = if digits.is_empty() {
        BigInt::ZERO
    } else {
        BigInt::from_radix_be(sign, &digits, 10).ok_or_else(|| invalid(input.what))?
    };
    // The value is the digits times 10000^(weight - count + 1).
    let exponent = 4 * (i64::from(weight) - i64::from(count) + 1);
    let number = Numeric::new(unscaled, -exponent)?;
    if scale > 1_000 {
        return Err(invalid(input.what));
    }
    Ok(number.rounded(scale))
}

fn read_array(element: &SqlType, input: &mut Input) -> Result<Array, SqlError> {
    let dimensions = usize::try_from(input.i32()?).ok().filter(|count| *count <= DIMENSIONS_MAX);
    let dimensions = dimensions.ok_or_else(|| invalid(input.what))?;
    let _has_null = input.i32()?;
    let oid = u32::from_be_bytes(input.array()?);
    let sent = SqlType::from_oid(oid).ok_or_else(|| invalid(input.what))?;
    // Clients send `text` for `varchar` and the reverse.
    if !(sent.is_same_base(element) || (sent.is_text() && element.is_text())) {
        return Err(SqlError::new(sqlstate::DATATYPE_MISMATCH, "wrong element type"));
    }
    let mut lengths = Vec::with_capacity(dimensions);
    let mut total = u64::from(dimensions > 0);
    for _ in 0..dimensions {
        let length = u32::try_from(input.i32()?).map_err(|_| invalid(input.what))?;
        if input.i32()? != 1 {
            return Err(SqlError::unsupported("an array with a lower bound other than 1"));
        }
        total = total.saturating_mul(u64::from(length));
        lengths.push(length);
    }
    // Each item has at least its length.
    if total.saturating_mul(4) > input.reader.left() as u64 {
        return Err(invalid(input.what));
    }
    let mut items = Vec::new();
    for _ in 0..total {
        let length = input.i32()?;
        items.push(match usize::try_from(length) {
            Ok(length) => element.from_binary(input.reader.raw(length).map_err(|_| invalid(input.what))?)?,
            Err(_) if length == -1 => Value::Null,
            Err(_) => return Err(invalid(input.what)),
        });
    }
    if items.is_empty() {
        lengths.clear();
    }
    Ok(Array { element: element.clone(), dimensions: lengths, items })
}

impl Value {
    /// The value in binary format; `None` for NULL.
    #[must_use]
    pub fn to_binary(&self) -> Option<Bytes> {
        if self.is_null() {
            return None;
        }
        let mut out = BytesMut::new();
        self.write_binary(&mut out);
        Some(out.freeze())
    }

    /// Appends the value in binary format; nothing for NULL.
    pub fn write_binary(&self, out: &mut BytesMut) {
        match self {
            Self::Null => {}
            Self::Bool(value) => out.put_u8(u8::from(*value)),
            Self::Int2(number) => out.put_i16(*number),
            Self::Int4(number) | Self::Date(number) => out.put_i32(*number),
            Self::Int8(number) | Self::Timestamp(number) | Self::Timestamptz(number) => out.put_i64(*number),
            Self::Float4(number) => out.put_f32(*number),
            Self::Float8(number) => out.put_f64(*number),
            Self::Numeric(number) => write_numeric(number, out),
            Self::Text(text) => out.put_slice(text.as_bytes()),
            Self::Bytea(bytes) => out.put_slice(bytes),
            Self::Interval(interval) => {
                out.put_i64(interval.micros);
                out.put_i32(interval.days);
                out.put_i32(interval.months);
            }
            Self::Uuid(uuid) => out.put_slice(uuid),
            Self::Jsonb(text) => {
                out.put_u8(JSONB_VERSION);
                out.put_slice(text.as_bytes());
            }
            Self::Array(array) => write_array(array, out),
        }
    }
}

fn write_numeric(number: &Numeric, out: &mut BytesMut) {
    let (unscaled, scale) = number.parts();
    // Pads the fraction to whole groups of four digits, and then the integer part.
    let mut digits = if number.is_zero() { Vec::new() } else { unscaled.magnitude().to_radix_be(10) };
    digits.resize(digits.len() + usize::from((4 - scale % 4) % 4), 0);
    let fraction_groups = i32::from(scale.div_ceil(4));
    let padding = (4 - digits.len() % 4) % 4;
    let padded: Vec<u8> = std::iter::repeat_n(0, padding).chain(digits).collect();
    let mut groups: Vec<u16> =
        padded.chunks(4).map(|group| group.iter().fold(0, |group, digit| group * 10 + u16::from(*digit))).collect();
    let mut weight = i32::try_from(groups.len()).unwrap_or(0) - fraction_groups - 1;
    let leading = groups.iter().take_while(|group| **group == 0).count();
    groups.drain(..leading);
    weight -= i32::try_from(leading).unwrap_or(0);
    while groups.last() == Some(&0) {
        groups.pop();
    }
    if groups.is_empty() {
        weight = 0;
    }
    out.put_u16(u16::try_from(groups.len()).unwrap_or(0));
    out.put_i16(i16::try_from(weight).unwrap_or(0));
    out.put_u16(if number.is_negative() { NUMERIC_NEGATIVE } else { NUMERIC_POSITIVE });
    out.put_u16(scale);
    groups.iter().for_each(|group| out.put_u16(*group));
}

fn write_array(array: &Array, out: &mut BytesMut) {
    out.put_i32(i32::try_from(array.dimensions.len()).unwrap_or(0));
    out.put_i32(i32::from(array.items.iter().any(Value::is_null)));
    out.put_u32(array.element.oid());
    for length in &array.dimensions {
        out.put_u32(*length);
        out.put_i32(1);
    }
    for item in &array.items {
        let at = out.len();
        out.put_i32(-1);
        if !item.is_null() {
            item.write_binary(out);
            let length = i32::try_from(out.len() - at - 4).unwrap_or(i32::MAX);
            out[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
    }
}
