//! Functions of numbers that DataFusion lacks, or that have other errors or types there.

use sql::{Numeric, SqlError, SqlType, Value, sqlstate};

use super::{ANY_NUMBER, Definition, as_float};

pub(super) const OWN: [Definition; 7] = [
    Definition { name: "trunc", arguments: ANY_NUMBER, result: super::rounded_type, evaluate: truncated },
    Definition { name: "sign", arguments: 1, result: super::rounded_type, evaluate: sign },
    Definition { name: "ln", arguments: 1, result: |_| SqlType::Float8, evaluate: |of| logarithm(of, f64::ln) },
    Definition { name: "log10", arguments: 1, result: |_| SqlType::Float8, evaluate: |of| logarithm(of, f64::log10) },
    Definition { name: "log", arguments: ANY_NUMBER, result: |_| SqlType::Float8, evaluate: log },
    Definition { name: BIT_NOT, arguments: 1, result: integer_type, evaluate: bit_not },
    Definition {
        name: super::TYPE_OF,
        arguments: 1,
        result: |_| SqlType::Text,
        // Evaluated with the type of the argument.
        evaluate: |_| Ok(Value::Null),
    },
];

/// `~`
pub(crate) const BIT_NOT: &str = "/bitnot";

fn integer_type(of: &[SqlType]) -> SqlType {
    of.first().filter(|of| of.is_integer()).cloned().unwrap_or(SqlType::Int8)
}

fn bit_not(of: &[Value]) -> Result<Value, SqlError> {
    Ok(match of {
        [Value::Int2(number)] => Value::Int2(!number),
        [Value::Int4(number)] => Value::Int4(!number),
        [Value::Int8(number)] => Value::Int8(!number),
        [Value::Null] => Value::Null,
        _ => {
            let of = of.first().and_then(Value::sql_type).map_or_else(String::new, |of| of.to_string());
            let message = format!("operator does not exist: ~ {of}");
            return Err(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message));
        }
    })
}

fn sign(of: &[Value]) -> Result<Value, SqlError> {
    let [value] = of else { return Ok(Value::Null) };
    if let Value::Numeric(number) = value {
        let sign = match (number.is_zero(), number.is_negative()) {
            (true, _) => 0,
            (_, true) => -1,
            _ => 1,
        };
        return Ok(Value::Numeric(Numeric::from(sign)));
    }
    Ok(as_float(value)?.map_or(Value::Null, |number| {
        Value::Float8(match number {
            number if number > 0.0 => 1.0,
            number if number < 0.0 => -1.0,
            // 0 and NaN.
            number => number,
        })
    }))
}

/// `trunc(number)`, or `trunc(number, digits)`.
fn truncated(of: &[Value]) -> Result<Value, SqlError> {
    let (value, digits) = match of {
        [value] => (value, 0),
        [_, Value::Null] => return Ok(Value::Null),
        [value, digits] => match (value, digits.as_integer()) {
            (Value::Float4(_) | Value::Float8(_), _) | (_, None) => return Err(super::undefined("trunc", of)),
            (value, Some(digits)) => (value, digits),
        },
        _ => return Err(super::undefined("trunc", of)),
    };
    let number = match value {
        Value::Null => return Ok(Value::Null),
        Value::Float4(number) => return Ok(Value::Float8(f64::from(*number).trunc())),
        Value::Float8(number) => return Ok(Value::Float8(number.trunc())),
        Value::Int2(_) | Value::Int4(_) | Value::Int8(_) if of.len() == 1 => {
            return Ok(as_float(value)?.map_or(Value::Null, Value::Float8));
        }
        value => super::as_numeric(value)?,
    };
    let Value::Numeric(number) = number else { return Ok(Value::Null) };
    if digits >= i64::from(number.scale()) {
        return Ok(Value::Numeric(number));
    }
    if digits < -1_000 {
        return Ok(Value::Numeric(Numeric::from(0)));
    }
    // The rest below the last digit.
    let unit = match u16::try_from(digits) {
        Ok(scale) => Numeric::new(1.into(), i64::from(scale))?,
        Err(_) => format!("1{}", "0".repeat(usize::try_from(-digits).unwrap_or(0))).parse()?,
    };
    let whole = number.subtract(&number.remainder(&unit)?)?;
    Ok(Value::Numeric(whole.rounded(u16::try_from(digits).unwrap_or(0))))
}

fn positive(value: &Value) -> Result<Option<f64>, SqlError> {
    let invalid = |message: &str| Err(SqlError::new("2201E", message.to_owned()));
    match as_float(value)? {
        Some(0.0) => invalid("cannot take logarithm of zero"),
        Some(number) if number < 0.0 => invalid("cannot take logarithm of a negative number"),
        number => Ok(number),
    }
}

fn logarithm(of: &[Value], function: fn(f64) -> f64) -> Result<Value, SqlError> {
    let [value] = of else { return Ok(Value::Null) };
    Ok(positive(value)?.map_or(Value::Null, |number| Value::Float8(function(number))))
}

/// `log(number)`, or `log(base, number)`.
fn log(of: &[Value]) -> Result<Value, SqlError> {
    match of {
        [_] => logarithm(of, f64::log10),
        [base, number] => {
            let (Some(base), Some(number)) = (positive(base)?, positive(number)?) else { return Ok(Value::Null) };
            if base == 1.0 {
                return Err(SqlError::new(sqlstate::DIVISION_BY_ZERO, "division by zero"));
            }
            Ok(Value::Float8(number.ln() / base.ln()))
        }
        _ => Err(super::undefined("log", of)),
    }
}
