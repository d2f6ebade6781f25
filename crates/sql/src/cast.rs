//! Casts between types, in PostgreSQL's three contexts.

use crate::calendar::{self, MICROS_PER_DAY};
use crate::error::{SqlError, sqlstate};
use crate::numeric::Numeric;
use crate::types::SqlType;
use crate::value::{Array, Value, day_start};

/// Where a cast takes place. Each context permits all casts of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Context {
    /// Between the operands of an operator.
    Implicit,
    /// To the type of the column that is assigned.
    Assignment,
    /// By `CAST` or `::`.
    Explicit,
}

/// Whether a value of type `from` may be cast to `to`.
#[must_use]
pub fn is_allowed(from: &SqlType, to: &SqlType, context: Context) -> bool {
    use SqlType as T;
    if from.is_same_base(to) || (from.is_text() && to.is_text()) {
        return true;
    }
    if let (Some(from), Some(to)) = (from.number_rank(), to.number_rank()) {
        return from < to || context >= Context::Assignment;
    }
    match (from, to) {
        (T::Date, T::Timestamp | T::Timestamptz) | (T::Timestamp, T::Timestamptz) => true,
        (T::Timestamp | T::Timestamptz, T::Date) | (T::Timestamptz, T::Timestamp) => context >= Context::Assignment,
        (T::Bool, T::Int4) | (T::Int4, T::Bool) => context == Context::Explicit,
        (T::Jsonb, T::Bool) => context == Context::Explicit,
        (T::Jsonb, to) if to.is_number() => context == Context::Explicit,
        (T::Array(from), T::Array(to)) => is_allowed(from, to, context),
        // Through the text format.
        (_, to) if to.is_text() => context >= Context::Assignment,
        (from, _) if from.is_text() => context == Context::Explicit,
        _ => false,
    }
}

fn out_of_range(to: &SqlType) -> SqlError {
    SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, format!("{to} out of range"))
}

/// Casts a value to a type, with its declared length. The caller has checked [`is_allowed`].
///
/// # Errors
/// The value does not fit, with PostgreSQL's SQLSTATE.
pub fn cast(value: Value, to: &SqlType, context: Context) -> Result<Value, SqlError> {
    use SqlType as T;
    if let Some(number) = value.as_integer() {
        match to {
            T::Int2 => return i16::try_from(number).map(Value::Int2).map_err(|_| out_of_range(to)),
            T::Int4 => return i32::try_from(number).map(Value::Int4).map_err(|_| out_of_range(to)),
            T::Int8 => return Ok(Value::Int8(number)),
            T::Float4 => return Ok(Value::Float4(number as f32)),
            T::Float8 => return Ok(Value::Float8(number as f64)),
            T::Numeric(_) => return fit_numeric(Numeric::from(number), to),
            T::Bool => return Ok(Value::Bool(number != 0)),
            _ => {}
        }
    }
    Ok(match (value, to) {
        (Value::Null, _) => Value::Null,
        (Value::Numeric(number), T::Numeric(_)) => fit_numeric(number, to)?,
        (Value::Numeric(number), T::Int2 | T::Int4 | T::Int8) => {
            let number = number.to_i64().ok_or_else(|| out_of_range(to))?;
            cast(Value::Int8(number), to, context)?
        }
        (Value::Numeric(number), T::Float8) => Value::Float8(number.to_f64()),
        (Value::Numeric(number), T::Float4) => Value::Float4(number.to_f64() as f32),
        (Value::Float4(number), T::Float4) => Value::Float4(number),
        (Value::Float4(number), T::Float8) => Value::Float8(f64::from(number)),
        (Value::Float4(number), T::Numeric(_)) => {
            let exact: f64 = format!("{number:.5e}").parse().unwrap_or(f64::NAN);
            fit_numeric(Numeric::try_from(if number.is_finite() { exact } else { f64::NAN })?, to)?
        }
        (Value::Float4(number), T::Int2 | T::Int4 | T::Int8) => float_to_integer(f64::from(number), to)?,
        (Value::Float8(number), T::Float8) => Value::Float8(number),
        (Value::Float8(number), T::Float4) => {
            let narrow = number as f32;
            if (narrow.is_infinite() && number.is_finite()) || (narrow == 0.0 && number != 0.0) {
                return Err(out_of_range(to));
            }
            Value::Float4(narrow)
        }
        (Value::Float8(number), T::Numeric(_)) => fit_numeric(Numeric::try_from(number)?, to)?,
        (Value::Float8(number), T::Int2 | T::Int4 | T::Int8) => float_to_integer(number, to)?,
        (Value::Text(text), T::Text | T::Varchar(_) | T::Char(_)) => {
            Value::Text(fit_text(text, to, context == Context::Explicit)?)
        }
        (Value::Bool(value), T::Int4) => Value::Int4(i32::from(value)),
        (Value::Bool(value), T::Text | T::Varchar(_) | T::Char(_)) => {
            let word = if value { "true" } else { "false" };
            Value::Text(fit_text(word.to_owned(), to, context == Context::Explicit)?)
        }
        (Value::Date(day), T::Timestamp) => Value::Timestamp(checked_day_start(day)?),
        (Value::Date(day), T::Timestamptz) => Value::Timestamptz(checked_day_start(day)?),
        (Value::Timestamp(micros) | Value::Timestamptz(micros), T::Timestamp) => Value::Timestamp(micros),
        (Value::Timestamp(micros) | Value::Timestamptz(micros), T::Timestamptz) => Value::Timestamptz(micros),
        (Value::Timestamp(micros) | Value::Timestamptz(micros), T::Date) => Value::Date(day_of(micros)),
        (Value::Array(array), T::Array(element)) => {
            let items = array.items.into_iter().map(|item| cast(item, element, context));
            Value::Array(Array {
                element: (**element).clone(),
                dimensions: array.dimensions,
                items: items.collect::<Result<_, _>>()?,
            })
        }
        (Value::Text(text), _) => to.parse(&text)?,
        (value, _) if value.sql_type().is_some_and(|from| from.is_same_base(to)) => value,
        (value, T::Text | T::Varchar(_) | T::Char(_)) => {
            Value::Text(fit_text(value.to_text().unwrap_or_default(), to, context == Context::Explicit)?)
        }
        (Value::Jsonb(text), T::Bool) => T::Bool.parse(&text)?,
        (Value::Jsonb(text), to) if to.is_number() => cast(T::Numeric(None).parse(&text)?, to, context)?,
        (value, _) => return Err(cannot_cast(value.sql_type().as_ref(), to)),
    })
}

/// The error for a pair of types without a cast.
#[must_use]
pub fn cannot_cast(from: Option<&SqlType>, to: &SqlType) -> SqlError {
    let from = from.map_or_else(|| "unknown".to_owned(), SqlType::base_name);
    SqlError::new(sqlstate::CANNOT_COERCE, format!("cannot cast type {from} to {}", to.base_name()))
}

fn fit_numeric(number: Numeric, to: &SqlType) -> Result<Value, SqlError> {
    Ok(Value::Numeric(match to {
        SqlType::Numeric(Some((precision, scale))) => number.with_precision(*precision, *scale)?,
        _ => number,
    }))
}

fn float_to_integer(number: f64, to: &SqlType) -> Result<Value, SqlError> {
    let rounded = number.round_ties_even();
    // The upper bound of bigint is not a float, its successor is.
    if !(-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&rounded) {
        return Err(out_of_range(to));
    }
    cast(Value::Int8(rounded as i64), to, Context::Explicit)
}

fn checked_day_start(day: i32) -> Result<i64, SqlError> {
    let micros = day_start(day);
    let is_finite = !matches!(day, i32::MIN | i32::MAX);
    if is_finite && !(calendar::MICROS_MIN..calendar::MICROS_END).contains(&micros) {
        return Err(SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "date out of range for timestamp"));
    }
    Ok(micros)
}

fn day_of(micros: i64) -> i32 {
    match micros {
        i64::MIN => i32::MIN,
        i64::MAX => i32::MAX,
        _ => i32::try_from(micros.div_euclid(MICROS_PER_DAY)).unwrap_or(i32::MAX),
    }
}

/// Adapts text to a declared length: `char(n)` is padded. Longer text is truncated if that removes only spaces, or if
/// the cast is explicit.
pub(crate) fn fit_text(mut text: String, to: &SqlType, is_explicit: bool) -> Result<String, SqlError> {
    let (SqlType::Varchar(Some(length)) | SqlType::Char(length)) = to else { return Ok(text) };
    let length = *length as usize;
    // Bytes are at least as many as characters.
    if text.len() > length
        && let Some((end, _)) = text.char_indices().nth(length)
    {
        if !is_explicit && text[end..].contains(|c| c != ' ') {
            let message = format!("value too long for type {to}");
            return Err(SqlError::new(sqlstate::STRING_DATA_RIGHT_TRUNCATION, message));
        }
        text.truncate(end);
    }
    if matches!(to, SqlType::Char(_)) {
        let missing = length - text.chars().count().min(length);
        text.extend(std::iter::repeat_n(' ', missing));
    }
    Ok(text)
}
