//! Cells: the columns of a row in the store.
//!
//! A row has a marker cell, so that a row of NULLs exists, and one cell for each column with a value. NULL is absent.
//! The name of a column's cell is its identifier in decimal; that of the marker is `0`. The value of the marker is the
//! greatest column in the schema of the writer, little-endian without trailing 0 bytes: an absent cell of a later
//! column means the column's initial value ([`Column::initial`](crate::schema::Column::initial)). Columns of the primary key
//! are in the key, and also in cells if the key does not keep all of the value. The cells of an index entry are the
//! marker, with the primary key as its value if the key does not contain it, and the stored columns.
//!
//! # Values
//! The type is in the schema, so the encoding does not repeat it.
//!
//! | type | bytes |
//! |---|---|
//! | boolean | 0 or 1 |
//! | integers, date, timestamps | two's complement, little-endian, without trailing bytes that only repeat the sign; 0 is empty |
//! | float4, float8 | IEEE 754, little-endian |
//! | numeric | the scale as 2 bytes, little-endian; the digits as a little-endian integer in two's complement |
//! | text, varchar, char, jsonb | UTF-8 |
//! | bytea, uuid | the bytes |
//!
//! The width of an integer can grow with the type of its column without rewriting its cells.

use bigdecimal::num_bigint::BigInt;
use bytes::Bytes;

use crate::error::SqlError;
use crate::ids::ColumnId;
use crate::numeric::Numeric;
use crate::types::SqlType;
use crate::value::Value;

/// The identifier of the marker cell, which no column has.
pub const MARKER: ColumnId = ColumnId(0);
pub(crate) const MARKER_NAME: &[u8] = b"0";

/// The name of a column's cell.
#[must_use]
pub fn name(column: ColumnId) -> Bytes {
    column.0.to_string().into_bytes().into()
}

/// The column of a cell; `None` if the name is not one of a cell.
#[must_use]
pub fn column(name: &[u8]) -> Option<ColumnId> {
    let text = std::str::from_utf8(name).ok()?;
    let is_plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    text.parse().ok().filter(|_| is_plain).map(ColumnId)
}

fn encode_integer(number: i64) -> Bytes {
    let bytes = number.to_le_bytes();
    let sign = if number < 0 { 0xff } else { 0 };
    let mut length = bytes.iter().rposition(|byte| *byte != sign).map_or(0, |last| last + 1);
    // The last byte must have the sign.
    let has_sign = length > 0 && (bytes[length - 1] >= 0x80) == (number < 0);
    if number != 0 && !has_sign {
        length += 1;
    }
    Bytes::copy_from_slice(&bytes[..length])
}

fn decode_integer(bytes: &[u8]) -> Option<i64> {
    let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
    let mut all = [sign; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(all))
}

/// The value of a cell; `None` for NULL, which has no cell.
///
/// # Errors
/// 0A000 for a type that columns cannot have.
pub fn encode(value: &Value) -> Result<Option<Bytes>, SqlError> {
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::Bool(value) => Bytes::from_static(if *value { &[1] } else { &[0] }),
        Value::Int2(number) => encode_integer(i64::from(*number)),
        Value::Int4(number) | Value::Date(number) => encode_integer(i64::from(*number)),
        Value::Int8(number) | Value::Timestamp(number) | Value::Timestamptz(number) => encode_integer(*number),
        Value::Float4(number) => Bytes::copy_from_slice(&number.to_le_bytes()),
        Value::Float8(number) => Bytes::copy_from_slice(&number.to_le_bytes()),
        Value::Numeric(number) => {
            let (unscaled, scale) = number.parts();
            [&scale.to_le_bytes()[..], &unscaled.to_signed_bytes_le()].concat().into()
        }
        Value::Text(text) | Value::Jsonb(text) => Bytes::copy_from_slice(text.as_bytes()),
        Value::Bytea(bytes) => bytes.clone(),
        Value::Uuid(uuid) => Bytes::copy_from_slice(uuid),
        Value::Interval(_) | Value::Array(_) => {
            let name = value.sql_type().map_or_else(String::new, |what| what.base_name());
            return Err(SqlError::unsupported(format!("a column of type {name}")));
        }
    }))
}

/// The value of a cell of a column.
///
/// # Errors
/// XX001: the bytes are not a value of this type.
pub fn decode(bytes: &Bytes, what: &SqlType) -> Result<Value, SqlError> {
    decoded(bytes, what).ok_or_else(|| SqlError::corrupt(format!("a value of type {what}")))
}

fn decoded(bytes: &Bytes, what: &SqlType) -> Option<Value> {
    let text = || std::str::from_utf8(bytes).ok().map(str::to_owned);
    Some(match what {
        SqlType::Bool => Value::Bool(match bytes[..] {
            [0] => false,
            [1] => true,
            _ => return None,
        }),
        SqlType::Int2 => Value::Int2(i16::try_from(decode_integer(bytes)?).ok()?),
        SqlType::Int4 => Value::Int4(i32::try_from(decode_integer(bytes)?).ok()?),
        SqlType::Int8 => Value::Int8(decode_integer(bytes)?),
        SqlType::Date => Value::Date(i32::try_from(decode_integer(bytes)?).ok()?),
        SqlType::Timestamp => Value::Timestamp(decode_integer(bytes)?),
        SqlType::Timestamptz => Value::Timestamptz(decode_integer(bytes)?),
        SqlType::Float4 => Value::Float4(f32::from_le_bytes(bytes[..].try_into().ok()?)),
        SqlType::Float8 => Value::Float8(f64::from_le_bytes(bytes[..].try_into().ok()?)),
        SqlType::Numeric(_) => {
            let (scale, digits) = bytes.split_first_chunk::<2>()?;
            let scale = i64::from(u16::from_le_bytes(*scale));
            // Longer than any valid one; converting it to digits takes quadratic time.
            if digits.is_empty() || digits.len() > 1_024 {
                return None;
            }
            Value::Numeric(Numeric::new(BigInt::from_signed_bytes_le(digits), scale).ok()?)
        }
        SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) => Value::Text(text()?),
        SqlType::Jsonb => Value::Jsonb(text()?),
        SqlType::Bytea => Value::Bytea(bytes.clone()),
        SqlType::Uuid => Value::Uuid(bytes[..].try_into().ok()?),
        SqlType::Interval | SqlType::Array(_) => return None,
    })
}
