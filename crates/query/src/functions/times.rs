//! Functions of dates, timestamps and intervals that DataFusion lacks, or that have other types or results there.

use sql::calendar::{MICROS_END, MICROS_MIN, MICROS_PER_DAY, civil_from_days, days_from_civil, days_in_month};
use sql::cast::{Context, cast};
use sql::{Interval, Numeric, SqlError, SqlType, Value, sqlstate};

use super::{ANY_NUMBER, Definition, as_float};
use crate::formats;
use crate::values::NUMERIC_PRECISION;

/// `extract` of a field; the digit is that of its result's scale.
pub(crate) const EXTRACT: &str = "/extract0";
pub(crate) const EXTRACT_MILLIS: &str = "/extract3";
pub(crate) const EXTRACT_SECONDS: &str = "/extract6";

pub(super) const OWN: [Definition; 12] = [
    Definition { name: EXTRACT, arguments: 2, result: |_| scaled(0), evaluate: |of| extract(of, 0) },
    Definition { name: EXTRACT_MILLIS, arguments: 2, result: |_| scaled(3), evaluate: |of| extract(of, 3) },
    Definition { name: EXTRACT_SECONDS, arguments: 2, result: seconds_type, evaluate: |of| extract(of, 6) },
    Definition { name: "date_part", arguments: 2, result: |_| SqlType::Float8, evaluate: date_part },
    Definition { name: "/age", arguments: 2, result: |_| SqlType::Interval, evaluate: age },
    Definition {
        name: "justify_hours",
        arguments: 1,
        result: |_| SqlType::Interval,
        evaluate: |of| justify(of, hours),
    },
    Definition { name: "justify_days", arguments: 1, result: |_| SqlType::Interval, evaluate: |of| justify(of, days) },
    Definition {
        name: "justify_interval",
        arguments: 1,
        result: |_| SqlType::Interval,
        evaluate: |of| justify(of, |interval| days(hours(interval)?).and_then(one_sign)),
    },
    Definition { name: "to_char", arguments: 2, result: |_| SqlType::Text, evaluate: formats::to_char },
    Definition { name: "to_date", arguments: 2, result: |_| SqlType::Date, evaluate: formats::to_date },
    Definition {
        name: "to_timestamp",
        arguments: ANY_NUMBER,
        result: |_| SqlType::Timestamptz,
        evaluate: to_timestamp,
    },
    Definition { name: "isfinite", arguments: 1, result: |_| SqlType::Bool, evaluate: is_finite },
];

fn scaled(scale: u16) -> SqlType {
    SqlType::Numeric(Some((u16::from(NUMERIC_PRECISION), scale)))
}

/// A date has whole seconds.
fn seconds_type(of: &[SqlType]) -> SqlType {
    scaled(if of.get(1) == Some(&SqlType::Date) { 0 } else { 6 })
}

fn out_of_range(what: &str) -> SqlError {
    SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("{what} out of range"))
}

/// A field of a time, as a number of this many units in one: `second` is a number of microseconds.
struct Field {
    units: i128,
    scale: u16,
}

fn whole(units: i64) -> Option<Field> {
    Some(Field { units: i128::from(units), scale: 0 })
}

fn field(name: &str, value: &Value) -> Result<Option<Field>, SqlError> {
    let of = value.sql_type().map_or_else(String::new, |of| of.to_string());
    let unknown =
        || SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, format!("unit \"{name}\" not recognized for type {of}"));
    let unsupported =
        || SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, format!("unit \"{name}\" not supported for type {of}"));
    let name = canonical(name);
    let found = match value {
        Value::Interval(_) if OF_DAYS.contains(&name) => return Err(unsupported()),
        Value::Interval(interval) => of_interval(name, *interval),
        Value::Date(i32::MIN | i32::MAX)
        | Value::Timestamp(i64::MIN | i64::MAX)
        | Value::Timestamptz(i64::MIN | i64::MAX) => {
            return infinite(name);
        }
        Value::Date(day) if name == "julian" => whole(i64::from(*day) + 2_451_545),
        Value::Timestamp(_) | Value::Timestamptz(_) if name == "julian" => return Err(unsupported()),
        Value::Date(day) => match name {
            "microseconds" | "milliseconds" | "second" | "minute" | "hour" | "timezone" | "timezone_hour"
            | "timezone_minute" => return Err(unsupported()),
            _ => of_timestamp(name, i64::from(*day), 0),
        },
        Value::Timestamp(_) if name.starts_with("timezone") => return Err(unsupported()),
        Value::Timestamp(micros) | Value::Timestamptz(micros) => {
            of_timestamp(name, micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY))
        }
        _ => return Ok(None),
    };
    found.map(Some).ok_or_else(unknown)
}

/// Fields that intervals do not have.
const OF_DAYS: [&str; 9] =
    ["week", "isoyear", "dow", "isodow", "doy", "julian", "timezone", "timezone_hour", "timezone_minute"];

/// The name of a field, which has several.
fn canonical(name: &str) -> &str {
    match name {
        "years" | "y" | "yr" | "yrs" => "year",
        "months" | "mon" | "mons" => "month",
        "days" | "d" => "day",
        "hours" | "h" | "hr" | "hrs" => "hour",
        "minutes" | "min" | "mins" | "m" => "minute",
        "seconds" | "sec" | "secs" | "s" => "second",
        "millisecond" | "ms" | "msec" | "msecs" => "milliseconds",
        "microsecond" | "us" | "usec" | "usecs" => "microseconds",
        "weeks" | "w" => "week",
        "decades" | "dec" | "decs" => "decade",
        "centuries" | "c" | "cent" => "century",
        "millennia" | "mil" | "mils" => "millennium",
        "qtr" => "quarter",
        other => other,
    }
}

/// Fields that grow without limit, which are infinite for infinities. Others are NULL.
const GROWING: [&str; 7] = ["year", "decade", "century", "millennium", "julian", "isoyear", "epoch"];

fn infinite(name: &str) -> Result<Option<Field>, SqlError> {
    if GROWING.contains(&name) {
        return Err(SqlError::unsupported(format!("unit \"{name}\" of infinity")));
    }
    // Unknown names are refused as for other values.
    let is_known = of_timestamp(name, 0, 0).is_some();
    if is_known { Ok(None) } else { Err(unknown_field(name)) }
}

fn unknown_field(name: &str) -> SqlError {
    let message = format!("unit \"{name}\" not recognized for type timestamp");
    SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message)
}

/// A field of a day since 2000-01-01 and a time in microseconds.
fn of_timestamp(name: &str, day: i64, time: i64) -> Option<Field> {
    let (year, month, day_of_month) = civil_from_days(day);
    let week_day = formats::week_day(day);
    // Years BC count from 1.
    let shown = |year: i64| if year > 0 { year } else { year - 1 };
    let part = |years: i64| if year > 0 { (year + years - 1) / years } else { -((years - 1 - (year - 1)) / years) };
    match name {
        "microseconds" => whole(time % 60_000_000),
        "milliseconds" => Some(Field { units: i128::from(time % 60_000_000), scale: 3 }),
        "second" => Some(Field { units: i128::from(time % 60_000_000), scale: 6 }),
        "minute" => whole(time / 60_000_000 % 60),
        "hour" => whole(time / 3_600_000_000),
        "day" => whole(i64::from(day_of_month)),
        "month" => whole(i64::from(month)),
        "quarter" => whole((i64::from(month) - 1) / 3 + 1),
        "week" => whole(formats::iso_week(day).1),
        "year" => whole(shown(year)),
        "isoyear" => whole(shown(formats::iso_week(day).0)),
        "decade" => whole(year.div_euclid(10)),
        "century" => whole(part(100)),
        "millennium" => whole(part(1_000)),
        "dow" => whole(week_day),
        "isodow" => whole(if week_day == 0 { 7 } else { week_day }),
        "doy" => whole(day - days_from_civil(year, 1, 1) + 1),
        "epoch" => {
            let micros = i128::from(day) * i128::from(MICROS_PER_DAY) + i128::from(time);
            Some(Field { units: micros + 946_684_800_000_000, scale: 6 })
        }
        "timezone" | "timezone_hour" | "timezone_minute" => whole(0),
        _ => None,
    }
}

fn of_interval(name: &str, interval: Interval) -> Option<Field> {
    let Interval { months, days, micros } = interval;
    let (years, months) = (i64::from(months / 12), i64::from(months % 12));
    match name {
        "microseconds" => whole(micros % 60_000_000),
        "milliseconds" => Some(Field { units: i128::from(micros % 60_000_000), scale: 3 }),
        "second" => Some(Field { units: i128::from(micros % 60_000_000), scale: 6 }),
        "minute" => whole(micros / 60_000_000 % 60),
        "hour" => whole(micros / 3_600_000_000),
        "day" => whole(i64::from(days)),
        "month" => whole(months),
        "quarter" => whole(months / 3 + 1),
        "year" => whole(years),
        "decade" => whole(years / 10),
        "century" => whole(years / 100),
        "millennium" => whole(years / 1_000),
        "epoch" => {
            // A year has 365.25 days, a month 30.
            let seconds = i128::from(years) * 31_557_600 + i128::from(months) * 2_592_000 + i128::from(days) * 86_400;
            Some(Field { units: seconds * 1_000_000 + i128::from(micros), scale: 6 })
        }
        _ => None,
    }
}

/// The name of a field, and a value that has fields.
fn named<'a>(of: &'a [Value], function: &str) -> Result<Option<(String, &'a Value)>, SqlError> {
    let [name, value] = of else { return Ok(None) };
    match (name, value) {
        (Value::Null, _) | (_, Value::Null) => Ok(None),
        (Value::Text(name), Value::Interval(_) | Value::Date(_) | Value::Timestamp(_) | Value::Timestamptz(_)) => {
            Ok(Some((name.to_lowercase(), value)))
        }
        _ => Err(super::undefined(function, of)),
    }
}

fn extract(of: &[Value], scale: u16) -> Result<Value, SqlError> {
    let Some((name, value)) = named(of, "extract")? else { return Ok(Value::Null) };
    let Some(field) = field(&name, value)? else { return Ok(Value::Null) };
    let scale = if matches!(value, Value::Date(_)) { 0 } else { scale };
    let number = Numeric::new(field.units.into(), i64::from(field.scale))?;
    Ok(Value::Numeric(number.rounded(scale.min(field.scale))))
}

fn date_part(of: &[Value]) -> Result<Value, SqlError> {
    let Some((name, value)) = named(of, "date_part")? else { return Ok(Value::Null) };
    // Unlike `extract`, it has no form for dates.
    let value = match value {
        Value::Date(_) => cast(value.clone(), &SqlType::Timestamp, Context::Explicit)?,
        other => other.clone(),
    };
    let infinity = match value {
        Value::Timestamp(i64::MAX) | Value::Timestamptz(i64::MAX) => f64::INFINITY,
        Value::Timestamp(i64::MIN) | Value::Timestamptz(i64::MIN) => f64::NEG_INFINITY,
        _ => 0.0,
    };
    if infinity != 0.0 && GROWING.contains(&canonical(&name)) {
        return Ok(Value::Float8(infinity));
    }
    Ok(match field(&name, &value)? {
        None => Value::Null,
        // PostgreSQL adds them in this order.
        Some(Field { units, scale: 3 }) => {
            Value::Float8((units / 1_000_000) as f64 * 1_000.0 + (units % 1_000_000) as f64 / 1_000.0)
        }
        Some(Field { units, scale }) => Value::Float8(units as f64 / 10_f64.powi(i32::from(scale))),
    })
}

/// The difference of two timestamps in years, months, days and a time.
fn age(of: &[Value]) -> Result<Value, SqlError> {
    let micros = |value: &Value| match value {
        Value::Null => Ok(None),
        Value::Timestamp(micros) | Value::Timestamptz(micros) => Ok(Some(*micros)),
        Value::Date(_) | Value::Text(_) => match cast(value.clone(), &SqlType::Timestamp, Context::Explicit)? {
            Value::Timestamp(micros) => Ok(Some(micros)),
            _ => Ok(None),
        },
        _ => Err(super::undefined("age", of)),
    };
    let [a, b] = of else { return Ok(Value::Null) };
    let (Some(a), Some(b)) = (micros(a)?, micros(b)?) else { return Ok(Value::Null) };
    if [a, b].iter().any(|micros| matches!(*micros, i64::MIN | i64::MAX)) {
        return Err(out_of_range("interval"));
    }
    let (later, earlier) = (a.max(b), a.min(b));
    let parts = |micros: i64| {
        let (year, month, day) = civil_from_days(micros.div_euclid(MICROS_PER_DAY));
        (year, month, i64::from(day), micros.rem_euclid(MICROS_PER_DAY))
    };
    let (year, month, day, time) = parts(later);
    let (from_year, from_month, from_day, from_time) = parts(earlier);
    let mut months = (year - from_year) * 12 + i64::from(month) - i64::from(from_month);
    let (mut days, mut time) = (day - from_day, time - from_time);
    if time < 0 {
        time += MICROS_PER_DAY;
        days -= 1;
    }
    if days < 0 {
        days += i64::from(days_in_month(from_year, from_month));
        months -= 1;
    }
    let sign = if a < b { -1 } else { 1 };
    let narrow = |number: i64| i32::try_from(number * sign).map_err(|_| out_of_range("interval"));
    Ok(Value::Interval(Interval { months: narrow(months)?, days: narrow(days)?, micros: time * sign }))
}

fn justify(of: &[Value], function: fn(Interval) -> Result<Interval, SqlError>) -> Result<Value, SqlError> {
    match of {
        [Value::Interval(interval)] => function(*interval).map(Value::Interval),
        [Value::Null] => Ok(Value::Null),
        _ => Err(super::undefined("justify_interval", of)),
    }
}

/// 24 hours are a day; both have one sign.
fn hours(interval: Interval) -> Result<Interval, SqlError> {
    let more = i32::try_from(interval.micros / MICROS_PER_DAY).map_err(|_| out_of_range("interval"))?;
    let mut days = interval.days.checked_add(more).ok_or_else(|| out_of_range("interval"))?;
    let mut micros = interval.micros % MICROS_PER_DAY;
    if days > 0 && micros < 0 {
        micros += MICROS_PER_DAY;
        days -= 1;
    } else if days < 0 && micros > 0 {
        micros -= MICROS_PER_DAY;
        days += 1;
    }
    Ok(Interval { days, micros, ..interval })
}

/// 30 days are a month; both have one sign.
fn days(interval: Interval) -> Result<Interval, SqlError> {
    let mut months = interval.months.checked_add(interval.days / 30).ok_or_else(|| out_of_range("interval"))?;
    let mut days = interval.days % 30;
    if months > 0 && days < 0 {
        days += 30;
        months -= 1;
    } else if months < 0 && days > 0 {
        days -= 30;
        months += 1;
    }
    Ok(Interval { months, days, ..interval })
}

/// All parts with the sign of the months.
fn one_sign(interval: Interval) -> Result<Interval, SqlError> {
    let Interval { mut months, mut days, mut micros } = interval;
    if months > 0 && (days < 0 || days == 0 && micros < 0) {
        days += 30;
        months -= 1;
    } else if months < 0 && (days > 0 || days == 0 && micros > 0) {
        days -= 30;
        months += 1;
    }
    if days > 0 && micros < 0 {
        micros += MICROS_PER_DAY;
        days -= 1;
    } else if days < 0 && micros > 0 {
        micros -= MICROS_PER_DAY;
        days += 1;
    }
    Ok(Interval { months, days, micros })
}

/// `to_timestamp(seconds)`, or `to_timestamp(text, template)`.
fn to_timestamp(of: &[Value]) -> Result<Value, SqlError> {
    match of {
        [_, _] => formats::to_timestamp(of),
        [value] => {
            let Some(seconds) = as_float(value)? else { return Ok(Value::Null) };
            if seconds.is_infinite() {
                return Ok(Value::Timestamptz(if seconds > 0.0 { i64::MAX } else { i64::MIN }));
            }
            let message =
                || SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("timestamp out of range: \"{seconds}\""));
            if seconds.is_nan() {
                return Err(SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, "timestamp cannot be NaN"));
            }
            let micros = ((seconds - 946_684_800.0) * 1e6).round_ties_even();
            let is_valid = micros >= MICROS_MIN as f64 && micros < MICROS_END as f64;
            if is_valid { Ok(Value::Timestamptz(micros as i64)) } else { Err(message()) }
        }
        _ => Err(super::undefined("to_timestamp", of)),
    }
}

fn is_finite(of: &[Value]) -> Result<Value, SqlError> {
    Ok(match of {
        [Value::Null] => Value::Null,
        [Value::Date(day)] => Value::Bool(!matches!(*day, i32::MIN | i32::MAX)),
        [Value::Timestamp(micros) | Value::Timestamptz(micros)] => Value::Bool(!matches!(*micros, i64::MIN | i64::MAX)),
        [Value::Interval(_)] => Value::Bool(true),
        _ => return Err(super::undefined("isfinite", of)),
    })
}
