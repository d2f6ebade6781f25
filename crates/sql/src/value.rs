//! Values of the SQL types.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::calendar;
use crate::numeric::Numeric;
use crate::types::SqlType;

/// A value. The integer types of PostgreSQL that represent times keep its representation: days or microseconds since
/// 2000-01-01, with the extreme numbers as infinities.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL of any type.
    Null,
    /// `boolean`
    Bool(bool),
    /// `smallint`
    Int2(i16),
    /// `integer`
    Int4(i32),
    /// `bigint`
    Int8(i64),
    /// `real`
    Float4(f32),
    /// `double precision`
    Float8(f64),
    /// `numeric`
    Numeric(Numeric),
    /// `text`, `varchar` and `char(n)`, the latter with its padding.
    Text(String),
    /// `bytea`
    Bytea(Bytes),
    /// `date`: days since 2000-01-01.
    Date(i32),
    /// `timestamp`: microseconds since 2000-01-01.
    Timestamp(i64),
    /// `timestamptz`: microseconds since 2000-01-01 UTC.
    Timestamptz(i64),
    /// `interval`
    Interval(Interval),
    /// `uuid`
    Uuid([u8; 16]),
    /// `jsonb`, as the text that PostgreSQL prints.
    Jsonb(String),
    Array(Array),
}

/// A span of time. The three units are kept apart, because months and days vary in length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interval {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Interval {
    /// The length that PostgreSQL compares: a month has 30 days, and a day 24 hours.
    fn span(&self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * i128::from(calendar::MICROS_PER_DAY) + i128::from(self.micros)
    }
}

/// An array with lower bounds of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The type of the items, not an array.
    pub element: SqlType,
    /// The length in each dimension; none for the empty array. Their product is the number of items.
    pub dimensions: Vec<u32>,
    /// The items in row-major order.
    pub items: Vec<Value>,
}

impl Array {
    /// A one-dimensional array.
    #[must_use]
    pub fn new(element: SqlType, items: Vec<Value>) -> Self {
        let length = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let dimensions = if items.is_empty() { Vec::new() } else { vec![length] };
        Self { element, dimensions, items }
    }
}

/// PostgreSQL's order of floats: -0 equals 0, and NaN equals itself and is the greatest.
pub(crate) fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

impl Value {
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The type, without declared lengths; `None` for NULL.
    #[must_use]
    pub fn sql_type(&self) -> Option<SqlType> {
        Some(match self {
            Self::Null => return None,
            Self::Bool(_) => SqlType::Bool,
            Self::Int2(_) => SqlType::Int2,
            Self::Int4(_) => SqlType::Int4,
            Self::Int8(_) => SqlType::Int8,
            Self::Float4(_) => SqlType::Float4,
            Self::Float8(_) => SqlType::Float8,
            Self::Numeric(_) => SqlType::Numeric(None),
            Self::Text(_) => SqlType::Text,
            Self::Bytea(_) => SqlType::Bytea,
            Self::Date(_) => SqlType::Date,
            Self::Timestamp(_) => SqlType::Timestamp,
            Self::Timestamptz(_) => SqlType::Timestamptz,
            Self::Interval(_) => SqlType::Interval,
            Self::Uuid(_) => SqlType::Uuid,
            Self::Jsonb(_) => SqlType::Jsonb,
            Self::Array(array) => SqlType::Array(Box::new(array.element.clone())),
        })
    }

    /// The value as an integer, if its type is one.
    #[must_use]
    pub const fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Int2(number) => Some(*number as i64),
            Self::Int4(number) => Some(*number as i64),
            Self::Int8(number) => Some(*number),
            _ => None,
        }
    }

    fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float4(number) => Some(f64::from(*number)),
            Self::Float8(number) => Some(*number),
            Self::Numeric(number) => Some(number.to_f64()),
            _ => self.as_integer().map(|number| number as f64),
        }
    }

    fn as_numeric(&self) -> Option<Numeric> {
        match self {
            Self::Numeric(number) => Some(number.clone()),
            _ => self.as_integer().map(Numeric::from),
        }
    }

    /// Compares two values that are not NULL as PostgreSQL's operators do; numbers of different types too. `None` if
    /// the types cannot be compared, or one is NULL.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        if let (Some(a), Some(b)) = (self.as_integer(), other.as_integer()) {
            return Some(a.cmp(&b));
        }
        Some(match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Text(a), Self::Text(b)) | (Self::Jsonb(a), Self::Jsonb(b)) => a.cmp(b),
            (Self::Bytea(a), Self::Bytea(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::Timestamp(a) | Self::Timestamptz(a), Self::Timestamp(b) | Self::Timestamptz(b)) => a.cmp(b),
            (Self::Date(day), Self::Timestamp(b) | Self::Timestamptz(b)) => day_start(*day).cmp(b),
            (Self::Timestamp(a) | Self::Timestamptz(a), Self::Date(day)) => a.cmp(&day_start(*day)),
            (Self::Interval(a), Self::Interval(b)) => a.span().cmp(&b.span()),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            (Self::Array(a), Self::Array(b)) => return compare_arrays(a, b),
            (Self::Float4(_) | Self::Float8(_), _) | (_, Self::Float4(_) | Self::Float8(_)) => {
                compare_floats(self.as_float()?, other.as_float()?)
            }
            (Self::Numeric(_), _) | (_, Self::Numeric(_)) => self.as_numeric()?.cmp(&other.as_numeric()?),
            _ => return None,
        })
    }

    /// The order of `ORDER BY` ascending: as [`Value::compare`], with NULL last and equal to itself.
    #[must_use]
    pub fn sort_order(&self, other: &Self) -> Ordering {
        match (self.is_null(), other.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.compare(other).unwrap_or(Ordering::Equal),
        }
    }
}

/// The first instant of a day; infinities stay infinite.
pub(crate) fn day_start(day: i32) -> i64 {
    match day {
        i32::MIN => i64::MIN,
        i32::MAX => i64::MAX,
        _ => i64::from(day).saturating_mul(calendar::MICROS_PER_DAY),
    }
}

fn compare_arrays(a: &Array, b: &Array) -> Option<Ordering> {
    if !a.element.is_same_base(&b.element) {
        return None;
    }
    let items = a.items.iter().zip(&b.items).map(|(a, b)| a.sort_order(b));
    let first = items.into_iter().find(|order| order.is_ne());
    Some(
        first.unwrap_or_else(|| {
            a.items.len().cmp(&b.items.len()).then_with(|| a.dimensions.len().cmp(&b.dimensions.len()))
        }),
    )
}
