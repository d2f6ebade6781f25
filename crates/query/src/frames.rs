//! Parameters as offsets of window frames.
//!
//! DataFusion plans a frame with constants. Until the values are known, a parameter is a number of rows above
//! [`ROWS_MAX`], or, for `RANGE`, its name.

use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
use sql::{Interval, SqlError, Value};

use crate::error::wrap;

/// Maximum number of rows; no partition has as many.
pub(crate) const ROWS_MAX: i64 = i64::MAX - (1 << 20);
const FIRST: u64 = (i64::MAX - (1 << 19)) as u64;

/// The constant that stands for a parameter.
pub(crate) fn parameter_text(number: usize, is_range: bool) -> String {
    if is_range { format!("${}", number + 1) } else { (FIRST + number as u64).to_string() }
}

/// The number of the parameter for which a constant stands, from 0.
fn parameter_of(bound: &WindowFrameBound) -> Option<usize> {
    let (WindowFrameBound::Preceding(constant) | WindowFrameBound::Following(constant)) = bound else { return None };
    match constant {
        ScalarValue::UInt64(Some(rows)) => usize::try_from(rows.checked_sub(FIRST)?).ok(),
        ScalarValue::Utf8(Some(text)) => text.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1),
        _ => None,
    }
}

/// Whether a frame has parameters.
pub(crate) fn has_parameters(frame: &WindowFrame) -> bool {
    parameter_of(&frame.start_bound).is_some() || parameter_of(&frame.end_bound).is_some()
}

/// The frame with the values of its parameters, which have these numbers from 0.
pub(crate) fn bound(frame: &WindowFrame, value: impl Fn(usize) -> Result<Value>) -> Result<WindowFrame> {
    let is_range = frame.units == WindowFrameUnits::Range;
    let replaced = |bound: &WindowFrameBound, is_start: bool| -> Result<WindowFrameBound> {
        let Some(number) = parameter_of(bound) else { return Ok(bound.clone()) };
        let constant = offset(&value(number)?, is_range, is_start).map_err(wrap)?;
        Ok(match bound {
            WindowFrameBound::Preceding(_) => WindowFrameBound::Preceding(constant),
            WindowFrameBound::Following(_) => WindowFrameBound::Following(constant),
            WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
        })
    };
    let (start, end) = (replaced(&frame.start_bound, true)?, replaced(&frame.end_bound, false)?);
    Ok(WindowFrame::new_bounds(frame.units, start, end))
}

fn offset(value: &Value, is_range: bool, is_start: bool) -> std::result::Result<ScalarValue, SqlError> {
    if *value == Value::Null {
        let place = if is_start { "starting" } else { "ending" };
        return Err(SqlError::new("22004", format!("frame {place} offset must not be null")));
    }
    if let Value::Interval(interval) = value
        && is_range
    {
        return Ok(ScalarValue::Utf8(Some(interval_text(interval)?)));
    }
    let text = value.to_text().unwrap_or_default();
    if text.trim_start().starts_with('-') {
        return Err(negative_offset(is_range, is_start));
    }
    if is_range {
        return Ok(ScalarValue::Utf8(Some(text)));
    }
    let rows = value.as_integer().and_then(|rows| u64::try_from(rows.min(ROWS_MAX)).ok());
    let rows = rows.ok_or_else(|| SqlError::new("42804", "argument of ROWS must be type bigint"))?;
    Ok(ScalarValue::UInt64(Some(rows)))
}

pub(crate) fn negative_offset(is_range: bool, is_start: bool) -> SqlError {
    if is_range {
        return SqlError::new("22013", "invalid preceding or following size in window function");
    }
    let place = if is_start { "starting" } else { "ending" };
    SqlError::new("22013", format!("frame {place} offset must not be negative"))
}

/// An interval in the format that DataFusion reads.
pub(crate) fn interval_text(interval: &Interval) -> std::result::Result<String, SqlError> {
    let Interval { months, days, micros } = *interval;
    let sum = (i128::from(months) * 30 + i128::from(days)) * 86_400_000_000 + i128::from(micros);
    if sum < 0 {
        return Err(negative_offset(true, true));
    }
    Ok(format!("{months} months {days} days {micros} microseconds"))
}
