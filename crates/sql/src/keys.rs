//! Keys: tuples of values as bytes in the same order.
//!
//! # Layout
//! A database is one Loggos table, and each key is a tuple of elements:
//!
//! | key | elements |
//! |---|---|
//! | row | table, primary key... |
//! | row of an interleaved table | root table, its primary key..., child table, the rest of its primary key... |
//! | entry of an index | index, columns..., primary key of the row... |
//! | entry of a unique index | index, columns...; the value is the primary key |
//!
//! The key of a row is a prefix of the keys of its descendants, so they are adjacent: a *directory*. If a
//! column of a unique index is NULL, the primary key follows as in other indexes, because NULLs are distinct.
//!
//! # Elements
//! An element starts with a tag below 0x80 that determines its end, so a tuple can be split without a schema. No
//! element is a prefix of another one. All bytes of an element of a descending column are complemented, the tag too.
//!
//! | element | bytes |
//! |---|---|
//! | integer, boolean, date, timestamp, identifier | 0x20 plus the number of bytes that follow, or 0x1f minus it for a negative number: the number in two's complement, big-endian, without the leading bytes 0x00, or 0xff if negative |
//! | text, bytea | 0x30, the bytes with 0x00 as 0x00 0xff, then 0x00 0x01 |
//! | float8, float4 | 0x31, 8 bytes; 0x32, 4 bytes: big-endian IEEE 754, all bits complemented if negative, else the sign bit |
//! | uuid | 0x33, 16 bytes |
//! | numeric | 0x38 if negative, 0x39 for 0, 0x3a if positive; then, complemented if negative: the exponent of the first digit in base 100 plus 0x8000 as 2 bytes, each digit in base 100 plus 1, and 0x00 |
//! | NULL | 0x7e: after all values if ascending, before them if descending, as in PostgreSQL |
//!
//! Text is ordered by its bytes (the collation `C`). An element does not keep what equal values differ in: the scale
//! of a numeric, and the sign of a zero float. Columns of such types are stored as cells also ([`is_exact`]).

use std::ops::Bound;

use bigdecimal::num_bigint::{BigInt, Sign};
use bytes::Bytes;

use crate::error::{SqlError, sqlstate};
use crate::ids::{IndexId, TableId};
use crate::numeric::Numeric;
use crate::types::SqlType;
use crate::value::Value;

const TAG_INTEGER: u8 = 0x20;
const TAG_BYTES: u8 = 0x30;
const TAG_FLOAT8: u8 = 0x31;
const TAG_FLOAT4: u8 = 0x32;
const TAG_UUID: u8 = 0x33;
const TAG_NUMERIC_NEGATIVE: u8 = 0x38;
const TAG_NUMERIC_ZERO: u8 = 0x39;
const TAG_NUMERIC_POSITIVE: u8 = 0x3a;
const TAG_NULL: u8 = 0x7e;
/// Greater than all tags, complemented or not.
const AFTER_ALL: u8 = 0xff;
const ESCAPE: [u8; 2] = [0x00, 0xff];
const TERMINATOR: [u8; 2] = [0x00, 0x01];

/// The order of a column in a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Ascending, NULLs last.
    #[default]
    Ascending,
    /// Descending, NULLs first.
    Descending,
}

/// A column of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    pub sql_type: SqlType,
    pub direction: Direction,
}

/// The keys from `start` to before `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    /// The first key after the range.
    pub end: Bytes,
}

impl KeyRange {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether it contains a key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && *key < *self.end
    }
}

/// Whether values of a type can be in a key.
#[must_use]
pub const fn is_key_type(what: &SqlType) -> bool {
    !matches!(what, SqlType::Jsonb | SqlType::Array(_) | SqlType::Interval)
}

/// Whether an element keeps all of a value of this type.
#[must_use]
pub const fn is_exact(what: &SqlType) -> bool {
    !matches!(what, SqlType::Numeric(None) | SqlType::Float4 | SqlType::Float8)
}

fn corrupt() -> SqlError {
    SqlError::corrupt("a key")
}

fn write_integer(number: i64, out: &mut Vec<u8>) {
    let bytes = number.to_be_bytes();
    let sign = if number < 0 { 0xff } else { 0 };
    // The tag has the sign, so leading bytes that repeat it are redundant.
    let start = bytes.iter().position(|byte| *byte != sign).unwrap_or(8);
    let count = (8 - start) as u8;
    out.push(if number < 0 { TAG_INTEGER - count - 1 } else { TAG_INTEGER + count });
    out.extend_from_slice(&bytes[start..]);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(TAG_BYTES);
    for byte in bytes {
        if *byte == 0 {
            out.extend_from_slice(&ESCAPE);
        } else {
            out.push(*byte);
        }
    }
    out.extend_from_slice(&TERMINATOR);
}

/// The bits of a float in the order of PostgreSQL: NaN is the greatest, and -0 equals 0.
fn float_bits(number: f64) -> u64 {
    let number = if number.is_nan() { f64::NAN.abs() } else { number + 0.0 };
    let bits = number.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

fn float4_bits(number: f32) -> u32 {
    let number = if number.is_nan() { f32::NAN.abs() } else { number + 0.0 };
    let bits = number.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | (1 << 31) }
}

fn write_numeric(number: &Numeric, out: &mut Vec<u8>) {
    if number.is_zero() {
        out.push(TAG_NUMERIC_ZERO);
        return;
    }
    let is_negative = number.is_negative();
    out.push(if is_negative { TAG_NUMERIC_NEGATIVE } else { TAG_NUMERIC_POSITIVE });
    let start = out.len();
    let (unscaled, scale) = number.parts();
    let mut digits = unscaled.magnitude().to_radix_be(10);
    // An even number of digits after the point, then of all digits.
    if scale % 2 == 1 {
        digits.push(0);
    }
    let fraction_pairs = i32::from(scale.div_ceil(2));
    if digits.len() % 2 == 1 {
        digits.insert(0, 0);
    }
    let exponent = i32::try_from(digits.len() / 2).unwrap_or(0) - fraction_pairs - 1;
    let biased = u16::try_from(exponent + 0x8000).unwrap_or(0);
    out.extend_from_slice(&biased.to_be_bytes());
    let mut pairs: Vec<u8> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |pair, digit| pair * 10 + digit)).collect();
    while pairs.last() == Some(&0) {
        pairs.pop();
    }
    out.extend(pairs.iter().map(|pair| pair + 1));
    out.push(0);
    if is_negative {
        complement(&mut out[start..]);
    }
}

fn complement(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// Appends an element.
///
/// # Errors
/// 0A000 for a type that keys cannot have.
pub fn write_value(value: &Value, direction: Direction, out: &mut Vec<u8>) -> Result<(), SqlError> {
    let start = out.len();
    match value {
        Value::Null => out.push(TAG_NULL),
        Value::Bool(value) => write_integer(i64::from(*value), out),
        Value::Int2(number) => write_integer(i64::from(*number), out),
        Value::Int4(number) | Value::Date(number) => write_integer(i64::from(*number), out),
        Value::Int8(number) | Value::Timestamp(number) | Value::Timestamptz(number) => write_integer(*number, out),
        Value::Float4(number) => {
            out.push(TAG_FLOAT4);
            out.extend_from_slice(&float4_bits(*number).to_be_bytes());
        }
        Value::Float8(number) => {
            out.push(TAG_FLOAT8);
            out.extend_from_slice(&float_bits(*number).to_be_bytes());
        }
        Value::Numeric(number) => write_numeric(number, out),
        Value::Text(text) => write_bytes(text.as_bytes(), out),
        Value::Bytea(bytes) => write_bytes(bytes, out),
        Value::Uuid(uuid) => {
            out.push(TAG_UUID);
            out.extend_from_slice(uuid);
        }
        Value::Interval(_) | Value::Jsonb(_) | Value::Array(_) => {
            let name = value.sql_type().map_or_else(String::new, |what| what.base_name());
            return Err(SqlError::unsupported(format!("a key column of type {name}")));
        }
    }
    if direction == Direction::Descending {
        complement(&mut out[start..]);
    }
    Ok(())
}

/// The elements of a key.
#[derive(Clone, Debug)]
pub struct KeyReader<'a> {
    rest: &'a [u8],
}

/// An element without its tag.
struct Element {
    tag: u8,
    /// The bytes after the tag, not complemented; those of text without escapes and terminator.
    body: Vec<u8>,
}

impl<'a> KeyReader<'a> {
    /// Reads a key from its start.
    #[must_use]
    pub const fn new(key: &'a [u8]) -> Self {
        Self { rest: key }
    }

    /// The bytes that follow.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The end of an element after its tag, and whether it is complemented.
    fn bounds(&self) -> Result<(u8, usize, u8), SqlError> {
        let first = *self.rest.first().ok_or_else(corrupt)?;
        let mask = if first >= 0x80 { 0xff } else { 0 };
        let tag = first ^ mask;
        let body = &self.rest[1..];
        let end = match tag {
            TAG_NULL | TAG_NUMERIC_ZERO => 0,
            TAG_FLOAT8 => 8,
            TAG_FLOAT4 => 4,
            TAG_UUID => 16,
            TAG_BYTES => {
                let mut at = 0;
                loop {
                    let next = body[at..].iter().position(|byte| byte ^ mask == 0).ok_or_else(corrupt)?;
                    match body.get(at + next + 1).map(|byte| byte ^ mask) {
                        Some(0xff) => at += next + 2,
                        Some(0x01) => break at + next + 2,
                        _ => return Err(corrupt()),
                    }
                }
            }
            TAG_NUMERIC_NEGATIVE | TAG_NUMERIC_POSITIVE => {
                let end = if tag == TAG_NUMERIC_NEGATIVE { 0xff } else { 0 };
                let digits = body.get(2..).ok_or_else(corrupt)?;
                digits.iter().position(|byte| byte ^ mask == end).ok_or_else(corrupt)? + 3
            }
            0x20..=0x28 => usize::from(tag - TAG_INTEGER),
            0x17..=0x1f => usize::from(TAG_INTEGER - tag - 1),
            _ => return Err(corrupt()),
        };
        if end > body.len() {
            return Err(corrupt());
        }
        Ok((tag, end, mask))
    }

    fn element(&mut self) -> Result<Element, SqlError> {
        let (tag, end, mask) = self.bounds()?;
        let body = &self.rest[1..=end];
        self.rest = &self.rest[end + 1..];
        let body = if tag == TAG_BYTES {
            let mut plain = Vec::with_capacity(body.len());
            let mut bytes = body[..body.len() - 2].iter().map(|byte| byte ^ mask);
            while let Some(byte) = bytes.next() {
                plain.push(byte);
                if byte == 0 {
                    bytes.next();
                }
            }
            plain
        } else {
            body.iter().map(|byte| byte ^ mask).collect()
        };
        Ok(Element { tag, body })
    }

    /// Skips an element of any type and direction.
    ///
    /// # Errors
    /// The bytes are not a key.
    pub fn skip(&mut self) -> Result<(), SqlError> {
        let (_, end, _) = self.bounds()?;
        self.rest = &self.rest[end + 1..];
        Ok(())
    }

    /// Reads the identifier of a table or index.
    ///
    /// # Errors
    /// The bytes are not a key.
    pub fn id(&mut self) -> Result<u32, SqlError> {
        let number = integer(&self.element()?)?;
        u32::try_from(number).map_err(|_| corrupt())
    }

    /// Reads a value of a column.
    ///
    /// # Errors
    /// The bytes are not a key with a value of this type here.
    pub fn value(&mut self, column: &KeyColumn) -> Result<Value, SqlError> {
        let first = *self.rest.first().ok_or_else(corrupt)?;
        if (first >= 0x80) != (column.direction == Direction::Descending) {
            return Err(corrupt());
        }
        let element = self.element()?;
        if element.tag == TAG_NULL {
            return Ok(Value::Null);
        }
        let narrow = |element: &Element| i32::try_from(integer(element)?).map_err(|_| corrupt());
        Ok(match &column.sql_type {
            SqlType::Bool => Value::Bool(integer(&element)? != 0),
            SqlType::Int2 => Value::Int2(i16::try_from(integer(&element)?).map_err(|_| corrupt())?),
            SqlType::Int4 => Value::Int4(narrow(&element)?),
            SqlType::Int8 => Value::Int8(integer(&element)?),
            SqlType::Date => Value::Date(narrow(&element)?),
            SqlType::Timestamp => Value::Timestamp(integer(&element)?),
            SqlType::Timestamptz => Value::Timestamptz(integer(&element)?),
            SqlType::Float4 if element.tag == TAG_FLOAT4 => {
                let bits = u32::from_be_bytes(fixed(&element.body)?);
                Value::Float4(f32::from_bits(if bits >> 31 == 1 { bits ^ (1 << 31) } else { !bits }))
            }
            SqlType::Float8 if element.tag == TAG_FLOAT8 => {
                let bits = u64::from_be_bytes(fixed(&element.body)?);
                Value::Float8(f64::from_bits(if bits >> 63 == 1 { bits ^ (1 << 63) } else { !bits }))
            }
            SqlType::Numeric(declared) => {
                let number = numeric(element)?;
                Value::Numeric(declared.map_or_else(|| number.clone(), |(_, scale)| number.rounded(scale)))
            }
            SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) if element.tag == TAG_BYTES => {
                Value::Text(String::from_utf8(element.body).map_err(|_| corrupt())?)
            }
            SqlType::Bytea if element.tag == TAG_BYTES => Value::Bytea(element.body.into()),
            SqlType::Uuid if element.tag == TAG_UUID => Value::Uuid(fixed(&element.body)?),
            _ => return Err(corrupt()),
        })
    }
}

fn fixed<const N: usize>(body: &[u8]) -> Result<[u8; N], SqlError> {
    body.try_into().map_err(|_| corrupt())
}

fn integer(element: &Element) -> Result<i64, SqlError> {
    let sign = match element.tag {
        0x20..=0x28 => 0,
        0x17..=0x1f => 0xff,
        _ => return Err(corrupt()),
    };
    // One value has one encoding, also in damaged keys.
    let is_redundant = element.body.first().is_some_and(|byte| *byte == sign);
    let mut bytes = [sign; 8];
    bytes.get_mut(8 - element.body.len()..).ok_or_else(corrupt)?.copy_from_slice(&element.body);
    let number = i64::from_be_bytes(bytes);
    if is_redundant || (number < 0) != (sign == 0xff) { Err(corrupt()) } else { Ok(number) }
}

fn numeric(element: Element) -> Result<Numeric, SqlError> {
    let mut body = element.body;
    let sign = match element.tag {
        TAG_NUMERIC_ZERO => return Ok(Numeric::from(0)),
        TAG_NUMERIC_POSITIVE => Sign::Plus,
        TAG_NUMERIC_NEGATIVE => {
            complement(&mut body);
            Sign::Minus
        }
        _ => return Err(corrupt()),
    };
    let (exponent, digits) = body.split_first_chunk::<2>().ok_or_else(corrupt)?;
    let pairs = digits.split_last().ok_or_else(corrupt)?.1;
    let exponent = i64::from(u16::from_be_bytes(*exponent)) - 0x8000;
    if pairs.len() > 1_100 || pairs.iter().any(|pair| !(1..=100).contains(pair)) {
        return Err(corrupt());
    }
    let pairs: Vec<u8> = pairs.iter().map(|pair| pair - 1).collect();
    let unscaled = BigInt::from_radix_be(sign, &pairs, 100).ok_or_else(corrupt)?;
    let scale = 2 * (i64::try_from(pairs.len()).unwrap_or(0) - 1 - exponent);
    let number = Numeric::new(unscaled, scale).map_err(|_| corrupt())?;
    // The last pair may end with a 0 that is no digit of the number.
    let is_even = pairs.last().is_some_and(|pair| pair % 10 == 0);
    Ok(if is_even && scale > 0 { number.rounded(number.scale() - 1) } else { number })
}

/// The start of all keys of a table, index or sequence with this identifier, and the key of a sequence's row.
#[must_use]
pub fn of_id(id: u32) -> Bytes {
    let mut key = Vec::with_capacity(5);
    write_integer(i64::from(id), &mut key);
    key.into()
}

/// The range of all keys that start with complete elements.
#[must_use]
pub fn prefix_range(prefix: &[u8]) -> KeyRange {
    KeyRange { start: Bytes::copy_from_slice(prefix), end: after(prefix) }
}

/// The range of the descendants of a row, without the row.
#[must_use]
pub fn descendants(row: &[u8]) -> KeyRange {
    KeyRange { start: [row, &[0]].concat().into(), end: after(row) }
}

/// The first key after all keys that start with complete elements.
fn after(prefix: &[u8]) -> Bytes {
    [prefix, &[AFTER_ALL]].concat().into()
}

/// The range of keys that start with `prefix` and have a value between the bounds in the next column. NULL is between
/// no bounds; without any bound it is included.
///
/// # Errors
/// The type of a bound cannot be in a key.
pub fn bounded_range(
    prefix: &[u8],
    direction: Direction,
    bounds: (Bound<&Value>, Bound<&Value>),
) -> Result<KeyRange, SqlError> {
    let with = |value: &Value| {
        let mut key = prefix.to_vec();
        write_value(value, direction, &mut key)?;
        Ok::<_, SqlError>(key)
    };
    let is_ascending = direction == Direction::Ascending;
    let (first, last) = if is_ascending { bounds } else { (bounds.1, bounds.0) };
    let has_bound = !matches!((first, last), (Bound::Unbounded, Bound::Unbounded));
    let start: Bytes = match first {
        Bound::Included(value) => with(value)?.into(),
        Bound::Excluded(value) => after(&with(value)?),
        Bound::Unbounded if has_bound && !is_ascending => after(&with(&Value::Null)?),
        Bound::Unbounded => Bytes::copy_from_slice(prefix),
    };
    let end = match last {
        Bound::Included(value) => after(&with(value)?),
        Bound::Excluded(value) => with(value)?.into(),
        Bound::Unbounded if has_bound && is_ascending => with(&Value::Null)?.into(),
        Bound::Unbounded => after(prefix),
    };
    Ok(KeyRange { start, end })
}

/// The end of the row of a root table in a key, for a root primary key of `columns` columns. Ranges are split only
/// there. `None` if the key is not within such a row.
#[must_use]
pub fn directory(key: &[u8], columns: usize) -> Option<&[u8]> {
    let mut reader = KeyReader::new(key);
    reader.id().ok()?;
    (0..columns).try_for_each(|_| reader.skip()).ok()?;
    Some(&key[..key.len() - reader.rest.len()])
}

/// The layout of the keys of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// The table and its interleaving ancestors, root first, each with the columns that it adds to the primary key.
    pub levels: Vec<(TableId, Vec<KeyColumn>)>,
}

impl RowLayout {
    /// The columns of the primary key, in order.
    pub fn columns(&self) -> impl Iterator<Item = &KeyColumn> {
        self.levels.iter().flat_map(|(_, columns)| columns)
    }

    /// The key of a row. With fewer values than columns, the longest prefix that they determine; after those of a
    /// complete ancestor, it includes the identifier of the next level.
    ///
    /// # Errors
    /// The type of a value cannot be in a key.
    pub fn key(&self, values: &[Value]) -> Result<Vec<u8>, SqlError> {
        let mut key = Vec::with_capacity(16 + 8 * values.len());
        let mut values = values.iter();
        for (table, columns) in &self.levels {
            write_integer(i64::from(table.0), &mut key);
            for column in columns {
                let Some(value) = values.next() else { return Ok(key) };
                write_value(value, column.direction, &mut key)?;
            }
        }
        Ok(key)
    }

    /// The primary key of a row from its key. `None` if the key belongs to another table of the directory.
    ///
    /// # Errors
    /// The bytes are not a key.
    pub fn decode(&self, key: &[u8]) -> Result<Option<Vec<Value>>, SqlError> {
        let mut reader = KeyReader::new(key);
        let mut values = Vec::new();
        for (table, columns) in &self.levels {
            if reader.rest.is_empty() || reader.id()? != table.0 {
                return Ok(None);
            }
            for column in columns {
                values.push(reader.value(column)?);
            }
        }
        Ok(reader.rest.is_empty().then_some(values))
    }
}

/// The layout of the keys of an index's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexLayout {
    pub index: IndexId,
    pub columns: Vec<KeyColumn>,
    /// The columns of the table's primary key.
    pub primary_key: Vec<KeyColumn>,
    pub is_unique: bool,
}

impl IndexLayout {
    /// The start of all keys with these values of the first columns.
    ///
    /// # Errors
    /// The type of a value cannot be in a key.
    pub fn prefix(&self, values: &[Value]) -> Result<Vec<u8>, SqlError> {
        let mut key = Vec::with_capacity(16 + 8 * values.len());
        write_integer(i64::from(self.index.0), &mut key);
        for (value, column) in values.iter().zip(&self.columns) {
            write_value(value, column.direction, &mut key)?;
        }
        Ok(key)
    }

    /// Whether the key of an entry with these values ends with the primary key.
    fn has_primary_key(&self, values: &[Value]) -> bool {
        !self.is_unique || values.iter().any(Value::is_null)
    }

    /// The key of an entry, and its value: the primary key if the key does not contain it.
    ///
    /// # Errors
    /// The type of a value cannot be in a key.
    pub fn entry(&self, values: &[Value], primary_key: &[Value]) -> Result<(Vec<u8>, Vec<u8>), SqlError> {
        let mut key = self.prefix(values)?;
        let mut reference = Vec::new();
        let out = if self.has_primary_key(values) { &mut key } else { &mut reference };
        for (value, column) in primary_key.iter().zip(&self.primary_key) {
            write_value(value, column.direction, out)?;
        }
        Ok((key, reference))
    }

    /// The indexed values and the primary key of an entry.
    ///
    /// # Errors
    /// The bytes are not an entry of this index.
    pub fn decode(&self, key: &[u8], reference: &[u8]) -> Result<(Vec<Value>, Vec<Value>), SqlError> {
        let mut reader = KeyReader::new(key);
        if reader.id()? != self.index.0 {
            return Err(corrupt());
        }
        let values = self.columns.iter().map(|column| reader.value(column)).collect::<Result<Vec<_>, _>>()?;
        if !self.has_primary_key(&values) {
            if !reader.rest.is_empty() {
                return Err(corrupt());
            }
            reader = KeyReader::new(reference);
        }
        let row = self.primary_key.iter().map(|column| reader.value(column)).collect::<Result<Vec<_>, _>>()?;
        if reader.rest.is_empty() { Ok((values, row)) } else { Err(corrupt()) }
    }
}

/// Checks the length of a key.
///
/// # Errors
/// 54000: it is longer than the store permits.
pub fn check_length(key: &[u8]) -> Result<(), SqlError> {
    if key.len() <= base::limits::KEY_BYTES_MAX {
        return Ok(());
    }
    let message = format!("key of {} bytes exceeds the maximum of {}", key.len(), base::limits::KEY_BYTES_MAX);
    Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message))
}
