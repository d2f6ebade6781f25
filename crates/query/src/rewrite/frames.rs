//! Offsets of window frames. DataFusion has only constants there; parameters have internal values until they are known.

use sql::{SqlError, SqlType, Value};
use sqlparser::ast::{self, Expr, WindowFrameBound, WindowFrameUnits};

use super::{Rewrite, parameter, type_named};
use crate::frames::{interval_text, negative_offset, parameter_text};

/// Replaces the offsets of the frame of a window by constants.
pub(super) fn rewrite(rewrite: &mut Rewrite<'_>, window: &mut ast::WindowSpec) -> Result<(), SqlError> {
    let Some(frame) = &mut window.window_frame else { return Ok(()) };
    let is_range = frame.units == WindowFrameUnits::Range;
    let bounds = [(Some(&mut frame.start_bound), true), (frame.end_bound.as_mut(), false)];
    for (bound, is_start) in bounds {
        if let Some(WindowFrameBound::Preceding(Some(offset)) | WindowFrameBound::Following(Some(offset))) = bound {
            let constant = constant(rewrite, offset, is_range, is_start)?;
            **offset = Expr::Value(ast::Value::Number(constant, false).into());
        }
    }
    Ok(())
}

fn constant(rewrite: &mut Rewrite<'_>, offset: &Expr, is_range: bool, is_start: bool) -> Result<String, SqlError> {
    let mut operand = offset;
    let mut cast = None;
    loop {
        match operand {
            Expr::Nested(inner) => operand = inner,
            Expr::Cast { expr, data_type, array: false, .. } if cast.is_none() => {
                cast = Some(type_named(data_type)?);
                operand = expr;
            }
            Expr::TypedString(typed) if cast.is_none() => {
                cast = Some(type_named(&typed.data_type)?);
                break;
            }
            _ => break,
        }
    }
    if let Some(number) = parameter(operand) {
        let of = cast.unwrap_or(if is_range { SqlType::Text } else { SqlType::Int8 });
        rewrite.slot(number)?.get_or_insert(of);
        return Ok(parameter_text(number, is_range));
    }
    let interval = |text: &str| match SqlType::Interval.parse(text)? {
        Value::Interval(interval) => interval_text(&interval),
        _ => Err(unsupported()),
    };
    let is_number = cast.as_ref().is_none_or(|cast| cast.is_integer() || is_range && cast.is_number());
    match operand {
        Expr::Value(value) => match &value.value {
            ast::Value::Number(digits, _) if is_number => match digits.parse::<i64>() {
                // Larger numbers of rows stand for parameters.
                Ok(number) if !is_range => Ok(number.min(crate::frames::ROWS_MAX).to_string()),
                _ => Ok(digits.clone()),
            },
            ast::Value::SingleQuotedString(text) if is_range && cast == Some(SqlType::Interval) => interval(text),
            _ => Err(unsupported()),
        },
        Expr::TypedString(typed) if is_range && cast == Some(SqlType::Interval) => {
            interval(&typed.value.clone().into_string().unwrap_or_default())
        }
        Expr::Interval(literal) if is_range && literal.leading_precision.is_none() => {
            let Expr::Value(value) = &*literal.value else { return Err(unsupported()) };
            let text = value.value.clone().into_string().unwrap_or_default();
            interval(&literal.leading_field.as_ref().map_or_else(|| text.clone(), |field| format!("{text} {field}")))
        }
        Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr } if matches!(&**expr, Expr::Value(_)) => {
            Err(negative_offset(is_range, is_start))
        }
        _ => Err(unsupported()),
    }
}

fn unsupported() -> SqlError {
    SqlError::unsupported("an offset of a window frame that is neither a constant nor a parameter")
}
