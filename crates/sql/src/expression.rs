//! Bound expressions, with names and types resolved, and their evaluation with PostgreSQL's semantics: three-valued
//! logic, and errors instead of overflows.

use std::cmp::Ordering;

use crate::calendar::{self, MICROS_PER_DAY};
use crate::cast::{Context, cast};
use crate::error::{SqlError, sqlstate};
use crate::ids::SequenceId;
use crate::types::SqlType;
use crate::value::{Interval, Value};

/// Values that an expression takes from outside.
pub trait Supply {
    /// The next value of a sequence.
    ///
    /// # Errors
    /// The sequence has no further value, or none was fetched.
    fn next_value(&mut self, sequence: SequenceId) -> Result<i64, SqlError>;

    /// The last value that [`Self::next_value`] returned for a sequence in this session.
    fn current_value(&mut self, _: SequenceId) -> Option<i64> {
        None
    }

    /// The last value that [`Self::next_value`] returned in this session.
    fn last_value(&mut self) -> Option<i64> {
        None
    }

    /// The id of the transaction. If it has none, one is assigned or none is returned.
    ///
    /// # Errors
    /// It cannot be assigned here, or not yet.
    fn transaction_id(&mut self, _assigns: bool) -> Result<Option<i64>, SqlError> {
        Err(SqlError::unsupported("the id of the transaction here"))
    }

    /// The status of a transaction by its id in text, in PostgreSQL's words; none if it is not known any more.
    ///
    /// # Errors
    /// It was not fetched yet, or is unknown to the cluster.
    fn transaction_status(&mut self, _id: &str) -> Result<Option<&'static str>, SqlError> {
        Err(SqlError::unsupported("the status of a transaction here"))
    }

    /// A random UUID (version 4).
    fn random_uuid(&mut self) -> [u8; 16];
}

/// The context in which expressions are evaluated.
pub struct Environment<'a> {
    /// The values of `$1` and so on.
    pub parameters: &'a [Value],
    /// The start of the transaction: microseconds since 2000-01-01 UTC.
    pub now: i64,
    pub supply: &'a mut dyn Supply,
}

/// The rows that an expression refers to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rows<'a> {
    /// The values of the table's columns.
    pub(crate) row: &'a [Value],
    /// The row that was to be inserted, in `ON CONFLICT DO UPDATE`.
    pub(crate) excluded: &'a [Value],
}

/// An operator on numbers and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    /// The comparison with the operands exchanged.
    pub(crate) fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            Self::Equal | Self::NotEqual => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Lower,
    Upper,
    Length,
    Abs,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Constant(Value),
    Parameter(usize),
    Column(usize),
    Excluded(usize),
    Now,
    NextValue(SequenceId),
    /// `currval`: the sequence, and its name.
    CurrentValue(SequenceId, String),
    /// `lastval`
    LastValue,
    /// `pg_current_xact_id`, or without assigning one.
    TransactionId {
        assigns: bool,
    },
    /// `pg_xact_status`
    TransactionStatus(Box<Self>),
    RandomUuid,
    Not(Box<Self>),
    Negate(Box<Self>),
    Arithmetic(Arithmetic, Box<Self>, Box<Self>),
    Concatenate(Box<Self>, Box<Self>),
    Compare(Comparison, Box<Self>, Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    IsNull(Box<Self>),
    /// `IS TRUE`, `IS FALSE`.
    Is(Box<Self>, bool),
    IsDistinct(Box<Self>, Box<Self>),
    /// Not below the first bound, and not above the second one.
    Between(Box<Self>, Box<Self>, Box<Self>),
    In(Box<Self>, Vec<Self>),
    Cast(Box<Self>, SqlType, Context),
    /// Text without the padding of `char(n)`.
    Unpadded(Box<Self>),
    Coalesce(Vec<Self>),
    Case(Vec<(Self, Self)>, Box<Self>),
    Call(Function, Box<Self>),
}

impl Expression {
    /// Whether the value is the same for all rows and needs nothing from outside but parameters and the time.
    pub(crate) fn is_constant(&self) -> bool {
        let mut is_constant = true;
        self.visit(&mut |part| {
            is_constant &= !matches!(
                part,
                Self::Column(_)
                    | Self::Excluded(_)
                    | Self::NextValue(_)
                    | Self::CurrentValue(..)
                    | Self::LastValue
                    | Self::TransactionId { .. }
                    | Self::TransactionStatus(_)
                    | Self::RandomUuid
            );
        });
        is_constant
    }

    /// Calls a function with this expression and all within it.
    pub(crate) fn visit(&self, visitor: &mut dyn FnMut(&Self)) {
        visitor(self);
        match self {
            Self::Constant(_)
            | Self::Parameter(_)
            | Self::Column(_)
            | Self::Excluded(_)
            | Self::Now
            | Self::NextValue(_)
            | Self::CurrentValue(..)
            | Self::LastValue
            | Self::TransactionId { .. }
            | Self::RandomUuid => {}
            Self::TransactionStatus(a)
            | Self::Not(a)
            | Self::Negate(a)
            | Self::IsNull(a)
            | Self::Is(a, _)
            | Self::Cast(a, ..)
            | Self::Unpadded(a)
            | Self::Call(_, a) => a.visit(visitor),
            Self::Arithmetic(_, a, b)
            | Self::Concatenate(a, b)
            | Self::Compare(_, a, b)
            | Self::And(a, b)
            | Self::Or(a, b)
            | Self::IsDistinct(a, b) => {
                a.visit(visitor);
                b.visit(visitor);
            }
            Self::Between(a, low, high) => [a, low, high].into_iter().for_each(|part| part.visit(visitor)),
            Self::In(a, list) => {
                a.visit(visitor);
                list.iter().for_each(|item| item.visit(visitor));
            }
            Self::Coalesce(list) => list.iter().for_each(|item| item.visit(visitor)),
            Self::Case(branches, other) => {
                for (when, then) in branches {
                    when.visit(visitor);
                    then.visit(visitor);
                }
                other.visit(visitor);
            }
        }
    }

    /// Adds the numbers of its columns.
    pub(crate) fn add_columns(&self, numbers: &mut Vec<usize>) {
        self.visit(&mut |part| {
            if let Self::Column(number) = part {
                numbers.push(*number);
            }
        });
    }

    /// The value for a row.
    pub(crate) fn evaluate(&self, rows: Rows, environment: &mut Environment) -> Result<Value, SqlError> {
        let mut value = |expression: &Self| expression.evaluate(rows, environment);
        let missing = |what: &str| SqlError::new(sqlstate::INTERNAL_ERROR, format!("there is no such {what}"));
        Ok(match self {
            Self::Constant(value) => value.clone(),
            Self::Parameter(number) => {
                environment.parameters.get(*number).cloned().ok_or_else(|| missing("parameter"))?
            }
            Self::Column(number) => rows.row.get(*number).cloned().ok_or_else(|| missing("column"))?,
            Self::Excluded(number) => rows.excluded.get(*number).cloned().ok_or_else(|| missing("column"))?,
            Self::Now => Value::Timestamptz(environment.now),
            Self::NextValue(sequence) => Value::Int8(environment.supply.next_value(*sequence)?),
            Self::CurrentValue(sequence, name) => {
                let value = environment.supply.current_value(*sequence);
                Value::Int8(value.ok_or_else(|| not_in_session(&format!("currval of sequence \"{name}\"")))?)
            }
            Self::LastValue => {
                let value = environment.supply.last_value();
                Value::Int8(value.ok_or_else(|| not_in_session("lastval"))?)
            }
            Self::TransactionId { assigns } => {
                environment.supply.transaction_id(*assigns)?.map_or(Value::Null, Value::Int8)
            }
            Self::TransactionStatus(a) => match value(a)?.to_text() {
                Some(id) => {
                    let status = environment.supply.transaction_status(&id)?;
                    status.map_or(Value::Null, |status| Value::Text(status.to_owned()))
                }
                None => Value::Null,
            },
            Self::RandomUuid => Value::Uuid(environment.supply.random_uuid()),
            Self::Not(a) => truth(&value(a)?)?.map_or(Value::Null, |a| Value::Bool(!a)),
            Self::Negate(a) => negate(value(a)?)?,
            Self::Arithmetic(operator, a, b) => match (value(a)?, value(b)?) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (a, b) => arithmetic(*operator, &a, &b)?,
            },
            Self::Concatenate(a, b) => match (value(a)?, value(b)?) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (Value::Bytea(a), Value::Bytea(b)) => Value::Bytea([a, b].concat().into()),
                (a, b) => {
                    let mut text = a.to_text().unwrap_or_default();
                    b.write_text(&mut text);
                    Value::Text(text)
                }
            },
            Self::Compare(comparison, a, b) => {
                let (a, b) = (value(a)?, value(b)?);
                a.compare(&b).map_or(Value::Null, |order| Value::Bool(comparison.holds(order)))
            }
            Self::And(a, b) => match truth(&value(a)?)? {
                Some(false) => Value::Bool(false),
                a => match (a, truth(&value(b)?)?) {
                    (_, Some(false)) => Value::Bool(false),
                    (Some(true), Some(true)) => Value::Bool(true),
                    _ => Value::Null,
                },
            },
            Self::Or(a, b) => match truth(&value(a)?)? {
                Some(true) => Value::Bool(true),
                a => match (a, truth(&value(b)?)?) {
                    (_, Some(true)) => Value::Bool(true),
                    (Some(false), Some(false)) => Value::Bool(false),
                    _ => Value::Null,
                },
            },
            Self::IsNull(a) => Value::Bool(value(a)?.is_null()),
            Self::Is(a, wanted) => Value::Bool(truth(&value(a)?)? == Some(*wanted)),
            Self::IsDistinct(a, b) => Value::Bool(value(a)?.sort_order(&value(b)?).is_ne()),
            Self::Between(a, low, high) => {
                let a = value(a)?;
                match a.compare(&value(low)?).map(Ordering::is_ge) {
                    Some(false) => Value::Bool(false),
                    from => match (from, a.compare(&value(high)?).map(Ordering::is_le)) {
                        (_, Some(false)) => Value::Bool(false),
                        (Some(true), Some(true)) => Value::Bool(true),
                        _ => Value::Null,
                    },
                }
            }
            Self::In(a, list) => {
                let a = value(a)?;
                let mut result = Value::Bool(false);
                for item in list {
                    match a.compare(&value(item)?) {
                        Some(Ordering::Equal) => return Ok(Value::Bool(true)),
                        Some(_) => {}
                        None => result = Value::Null,
                    }
                }
                result
            }
            Self::Cast(a, to, context) => cast(value(a)?, to, *context)?,
            Self::Unpadded(a) => match value(a)? {
                Value::Text(mut text) => {
                    text.truncate(text.trim_end_matches(' ').len());
                    Value::Text(text)
                }
                other => other,
            },
            Self::Coalesce(list) => {
                for item in list {
                    let value = value(item)?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Value::Null
            }
            Self::Case(branches, other) => {
                for (when, then) in branches {
                    if truth(&value(when)?)? == Some(true) {
                        return value(then);
                    }
                }
                value(other)?
            }
            Self::Call(function, a) => call(*function, value(a)?)?,
        })
    }
}

/// A condition's value: `None` if it is unknown.
pub(crate) fn truth(value: &Value) -> Result<Option<bool>, SqlError> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(value) => Ok(Some(*value)),
        _ => Err(SqlError::new(sqlstate::DATATYPE_MISMATCH, "argument must be type boolean")),
    }
}

fn out_of_range(what: &str) -> SqlError {
    let code =
        if what == "interval" { sqlstate::DATETIME_FIELD_OVERFLOW } else { sqlstate::NUMERIC_VALUE_OUT_OF_RANGE };
    SqlError::new(code, format!("{what} out of range"))
}

fn division_by_zero() -> SqlError {
    SqlError::new(sqlstate::DIVISION_BY_ZERO, "division by zero")
}

fn not_in_session(what: &str) -> SqlError {
    let message = format!("{what} is not yet defined in this session");
    SqlError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

fn undefined(operator: Arithmetic) -> SqlError {
    SqlError::new(sqlstate::UNDEFINED_FUNCTION, format!("operator does not exist: {operator:?}"))
}

/// `- value`
///
/// # Errors
/// 22003: it is out of range.
pub fn negate(value: Value) -> Result<Value, SqlError> {
    let zero = match value {
        Value::Null => return Ok(Value::Null),
        Value::Float4(number) => return Ok(Value::Float4(-number)),
        Value::Float8(number) => return Ok(Value::Float8(-number)),
        Value::Numeric(number) => return Ok(Value::Numeric(number.negate())),
        Value::Interval(_) => Value::Interval(Interval::default()),
        Value::Int2(_) => Value::Int2(0),
        Value::Int4(_) => Value::Int4(0),
        _ => Value::Int8(0),
    };
    arithmetic(Arithmetic::Subtract, &zero, &value)
}

macro_rules! integers {
    ($operator:expr, $a:expr, $b:expr, $variant:ident, $name:literal) => {{
        if matches!($operator, Arithmetic::Divide | Arithmetic::Modulo) && $b == 0 {
            return Err(division_by_zero());
        }
        let result = match $operator {
            Arithmetic::Add => $a.checked_add($b),
            Arithmetic::Subtract => $a.checked_sub($b),
            Arithmetic::Multiply => $a.checked_mul($b),
            Arithmetic::Divide => $a.checked_div($b),
            // The remainder of the least number and -1 is 0.
            Arithmetic::Modulo => Some($a.wrapping_rem($b)),
        };
        result.map(Value::$variant).ok_or_else(|| out_of_range($name))
    }};
}

/// Both operands have the types of [`crate::operators::operands`].
pub(crate) fn arithmetic(operator: Arithmetic, a: &Value, b: &Value) -> Result<Value, SqlError> {
    use Arithmetic as O;
    match (a, b) {
        (Value::Int2(a), Value::Int2(b)) => integers!(operator, a, *b, Int2, "smallint"),
        (Value::Int4(a), Value::Int4(b)) => integers!(operator, a, *b, Int4, "integer"),
        (Value::Int8(a), Value::Int8(b)) => integers!(operator, a, *b, Int8, "bigint"),
        (Value::Float4(a), Value::Float4(b)) => {
            let result = float(operator, f64::from(*a), f64::from(*b))?;
            let narrow = result as f32;
            check_float(f64::from(narrow), operator, f64::from(*a), f64::from(*b))?;
            Ok(Value::Float4(narrow))
        }
        (Value::Float8(a), Value::Float8(b)) => float(operator, *a, *b).map(Value::Float8),
        (Value::Numeric(a), Value::Numeric(b)) => Ok(Value::Numeric(match operator {
            O::Add => a.add(b)?,
            O::Subtract => a.subtract(b)?,
            O::Multiply => a.multiply(b)?,
            O::Divide => a.divide(b)?,
            O::Modulo => a.remainder(b)?,
        })),
        (Value::Date(day), Value::Int4(days)) => {
            let days = if operator == O::Add { Some(*days) } else { days.checked_neg() };
            let moved = days.and_then(|days| day.checked_add(days));
            let moved = moved.filter(|day| (calendar::DAY_MIN..=calendar::DAY_MAX).contains(day));
            moved.map(Value::Date).ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "date out of range"))
        }
        (Value::Int4(_), Value::Date(_)) => arithmetic(operator, b, a),
        (Value::Date(a), Value::Date(b)) => a.checked_sub(*b).map(Value::Int4).ok_or_else(|| out_of_range("integer")),
        (Value::Timestamp(micros), Value::Interval(interval)) => {
            move_timestamp(*micros, *interval, operator).map(Value::Timestamp)
        }
        (Value::Timestamptz(micros), Value::Interval(interval)) => {
            move_timestamp(*micros, *interval, operator).map(Value::Timestamptz)
        }
        (Value::Interval(_), Value::Timestamp(_) | Value::Timestamptz(_)) => arithmetic(operator, b, a),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::Timestamptz(a), Value::Timestamptz(b)) => {
            let micros = a.checked_sub(*b).ok_or_else(|| out_of_range("interval"))?;
            let days = i32::try_from(micros / MICROS_PER_DAY).map_err(|_| out_of_range("interval"))?;
            Ok(Value::Interval(Interval { months: 0, days, micros: micros % MICROS_PER_DAY }))
        }
        (Value::Interval(interval), Value::Float8(factor)) => scaled(*interval, *factor, operator).map(Value::Interval),
        (Value::Float8(_), Value::Interval(_)) => arithmetic(operator, b, a),
        (Value::Interval(a), Value::Interval(b)) => {
            let sum = |a: i32, b: i32| if operator == O::Add { a.checked_add(b) } else { a.checked_sub(b) };
            let micros =
                if operator == O::Add { a.micros.checked_add(b.micros) } else { a.micros.checked_sub(b.micros) };
            match (sum(a.months, b.months), sum(a.days, b.days), micros) {
                (Some(months), Some(days), Some(micros)) => Ok(Value::Interval(Interval { months, days, micros })),
                _ => Err(out_of_range("interval")),
            }
        }
        _ => Err(undefined(operator)),
    }
}

/// An interval multiplied or divided by a number: fractions of months become days, and fractions of days hours.
fn scaled(interval: Interval, factor: f64, operator: Arithmetic) -> Result<Interval, SqlError> {
    const SECONDS_PER_DAY: f64 = 86_400.0;
    // To whole microseconds, as fractions of seconds.
    let round = |seconds: f64| (seconds * 1e6).round_ties_even() / 1e6;
    let times = |number: f64| if operator == Arithmetic::Divide { number / factor } else { number * factor };
    let whole = |number: f64| {
        let is_inside = number.trunc() >= f64::from(i32::MIN) && number.trunc() <= f64::from(i32::MAX);
        is_inside.then_some(number as i32).ok_or_else(|| out_of_range("interval"))
    };
    if operator == Arithmetic::Divide && factor == 0.0 {
        return Err(division_by_zero());
    }
    let (all_months, all_days) = (times(f64::from(interval.months)), times(f64::from(interval.days)));
    let (months, mut days) = (whole(all_months)?, whole(all_days)?);
    let rest_days = round((all_months - f64::from(months)) * 30.0);
    let mut rest = round((all_days - f64::from(days) + rest_days - rest_days.trunc()) * SECONDS_PER_DAY);
    let add = |days: i32, more: f64| days.checked_add(more as i32).ok_or_else(|| out_of_range("interval"));
    if rest.abs() >= SECONDS_PER_DAY {
        let more = (rest / SECONDS_PER_DAY).trunc();
        days = add(days, more)?;
        rest -= more * SECONDS_PER_DAY;
    }
    days = add(days, rest_days)?;
    let micros = (times(interval.micros as f64) + rest * 1e6).round_ties_even();
    // 2^63 is the first number that does not fit.
    if !(micros >= i64::MIN as f64 && micros < -(i64::MIN as f64)) {
        return Err(out_of_range("interval"));
    }
    Ok(Interval { months, days, micros: micros as i64 })
}

fn check_float(result: f64, operator: Arithmetic, a: f64, b: f64) -> Result<(), SqlError> {
    if result.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range: overflow"));
    }
    let can_underflow = match operator {
        Arithmetic::Multiply => a != 0.0 && b != 0.0,
        Arithmetic::Divide => a != 0.0 && b.is_finite(),
        _ => false,
    };
    if result == 0.0 && can_underflow {
        return Err(SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range: underflow"));
    }
    Ok(())
}

fn float(operator: Arithmetic, a: f64, b: f64) -> Result<f64, SqlError> {
    let result = match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide if b == 0.0 && !a.is_nan() => return Err(division_by_zero()),
        Arithmetic::Divide => a / b,
        Arithmetic::Modulo => return Err(undefined(operator)),
    };
    check_float(result, operator, a, b)?;
    Ok(result)
}

fn move_timestamp(micros: i64, interval: Interval, operator: Arithmetic) -> Result<i64, SqlError> {
    if matches!(micros, i64::MIN | i64::MAX) {
        return Ok(micros);
    }
    let moved = || {
        let negate = operator == Arithmetic::Subtract;
        let months = if negate { interval.months.checked_neg()? } else { interval.months };
        let days = i64::from(interval.days) * if negate { -1 } else { 1 };
        let change = if negate { interval.micros.checked_neg()? } else { interval.micros };
        let day = calendar::add_months(micros.div_euclid(MICROS_PER_DAY), months).checked_add(days)?;
        day.checked_mul(MICROS_PER_DAY)?.checked_add(micros.rem_euclid(MICROS_PER_DAY))?.checked_add(change)
    };
    let moved = moved().filter(|micros| (calendar::MICROS_MIN..calendar::MICROS_END).contains(micros));
    moved.ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "timestamp out of range"))
}

fn call(function: Function, value: Value) -> Result<Value, SqlError> {
    Ok(match (function, value) {
        (_, Value::Null) => Value::Null,
        (Function::Lower, Value::Text(text)) => Value::Text(text.to_lowercase()),
        (Function::Upper, Value::Text(text)) => Value::Text(text.to_uppercase()),
        (Function::Length, Value::Text(text)) => {
            Value::Int4(i32::try_from(text.chars().count()).map_err(|_| out_of_range("integer"))?)
        }
        (Function::Abs, value) => {
            let zero = cast(Value::Int4(0), &value.sql_type().unwrap_or(SqlType::Int4), Context::Explicit)?;
            if value.compare(&zero) == Some(Ordering::Less) { negate(value)? } else { value }
        }
        (_, value) => value,
    })
}
