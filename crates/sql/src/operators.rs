//! Operators on numbers and times, with PostgreSQL's types and errors.

use crate::error::SqlError;
pub use crate::expression::Arithmetic;
pub use crate::expression::negate;
use crate::types::SqlType;
use crate::value::Value;

/// The types of an operator's operands, to which they are cast, and of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operands {
    /// Of the left one.
    pub left: SqlType,
    /// Of the right one.
    pub right: SqlType,
    pub result: SqlType,
}

/// The types of an operation on values of two types; `None` if there is no such operator.
#[must_use]
pub fn operands(operator: Arithmetic, a: &SqlType, b: &SqlType) -> Option<Operands> {
    use SqlType as T;
    let is_sum = matches!(operator, Arithmetic::Add | Arithmetic::Subtract);
    if let Some(common) = common_number(a, b) {
        let has_operator = operator != Arithmetic::Modulo || !matches!(common, T::Float4 | T::Float8);
        return has_operator.then(|| Operands { left: common.clone(), right: common.clone(), result: common });
    }
    let (left, right, result) = match (a, b) {
        (T::Date, T::Int2 | T::Int4) if is_sum => (T::Date, T::Int4, T::Date),
        (T::Int2 | T::Int4, T::Date) if operator == Arithmetic::Add => (T::Int4, T::Date, T::Date),
        (T::Date, T::Date) if operator == Arithmetic::Subtract => (T::Date, T::Date, T::Int4),
        (T::Date, T::Interval) if is_sum => (T::Timestamp, T::Interval, T::Timestamp),
        (T::Interval, T::Date) if operator == Arithmetic::Add => (T::Interval, T::Timestamp, T::Timestamp),
        (T::Timestamp | T::Timestamptz, T::Interval) if is_sum => (a.clone(), T::Interval, a.clone()),
        (T::Interval, T::Timestamp | T::Timestamptz) if operator == Arithmetic::Add => {
            (T::Interval, b.clone(), b.clone())
        }
        (T::Timestamp | T::Timestamptz | T::Date, T::Timestamp | T::Timestamptz | T::Date)
            if operator == Arithmetic::Subtract =>
        {
            let has_zone = [a, b].iter().any(|of| matches!(of, T::Timestamptz));
            let common = if has_zone { T::Timestamptz } else { T::Timestamp };
            (common.clone(), common, T::Interval)
        }
        (T::Interval, b) if b.is_number() && matches!(operator, Arithmetic::Multiply | Arithmetic::Divide) => {
            (T::Interval, T::Float8, T::Interval)
        }
        (a, T::Interval) if a.is_number() && operator == Arithmetic::Multiply => (T::Float8, T::Interval, T::Interval),
        (T::Interval, T::Interval) if is_sum => (T::Interval, T::Interval, T::Interval),
        _ => return None,
    };
    Some(Operands { left, right, result })
}

/// The result for two values of the types that [`operands`] gives; NULL if one is NULL.
///
/// # Errors
/// 22003, 22008 and 22012.
pub fn apply(operator: Arithmetic, a: &Value, b: &Value) -> Result<Value, SqlError> {
    if a.is_null() || b.is_null() {
        return Ok(Value::Null);
    }
    crate::expression::arithmetic(operator, a, b)
}

/// The type in which two numbers are combined; `None` if one is not a type of numbers.
#[must_use]
pub fn common_number(a: &SqlType, b: &SqlType) -> Option<SqlType> {
    use SqlType as T;
    let (a, b) = (a.number_rank()?, b.number_rank()?);
    Some(match a.max(b) {
        0 => T::Int2,
        1 => T::Int4,
        2 => T::Int8,
        3 => T::Numeric(None),
        // Only two of them stay `real`.
        4 if a == b => T::Float4,
        _ => T::Float8,
    })
}
