//! Decimal numbers of arbitrary precision, as PostgreSQL's `numeric` without `NaN` and infinities.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, RoundingMode, ToPrimitive, Zero};

use crate::error::{SqlError, sqlstate};

/// Maximum digits before or after the decimal point: the limit of a declared `numeric(p, s)` in PostgreSQL.
/// Undeclared ones are longer there, but the digits of a literal such as `1e100000` take memory.
const DIGITS_MAX: i64 = 1_000;

/// A decimal number with a scale: the digits after the decimal point, also those that are 0.
#[derive(Clone, Debug)]
pub struct Numeric(BigDecimal);

fn overflow() -> SqlError {
    SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format")
}

impl Numeric {
    /// `unscaled / 10^scale`.
    ///
    /// # Errors
    /// It has too many digits.
    pub fn new(unscaled: BigInt, scale: i64) -> Result<Self, SqlError> {
        Self::bounded(BigDecimal::new(unscaled, scale))
    }

    /// Checks the number of digits, and expands a negative scale.
    fn bounded(number: BigDecimal) -> Result<Self, SqlError> {
        let scale = number.fractional_digit_count();
        let before = i64::try_from(number.digits()).unwrap_or(i64::MAX).saturating_sub(scale);
        if scale > DIGITS_MAX || (before > DIGITS_MAX && !number.is_zero()) || scale < -DIGITS_MAX {
            return Err(overflow());
        }
        Ok(Self(if scale < 0 { number.with_scale(0) } else { number }))
    }

    /// The number without its decimal point, and the digits after the point.
    #[must_use]
    pub fn parts(&self) -> (BigInt, u16) {
        let (unscaled, scale) = self.0.as_bigint_and_exponent();
        (unscaled, u16::try_from(scale).unwrap_or(0))
    }

    /// The digits after the decimal point.
    #[must_use]
    pub fn scale(&self) -> u16 {
        u16::try_from(self.0.fractional_digit_count()).unwrap_or(0)
    }

    /// True for 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    /// True below 0.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.0.sign() == Sign::Minus
    }

    /// Rounds half away from zero to `scale`, and checks that at most `precision` digits result.
    ///
    /// # Errors
    /// There are more digits before the decimal point than fit.
    pub fn with_precision(&self, precision: u16, scale: u16) -> Result<Self, SqlError> {
        let rounded = self.rounded(scale);
        if !rounded.is_zero() && rounded.0.digits() > u64::from(precision) {
            let error = SqlError::new(sqlstate::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow");
            let exponent = i32::from(precision) - i32::from(scale);
            let limit = if exponent == 0 { "1".to_owned() } else { format!("10^{exponent}") };
            return Err(error.with_detail(format!(
                "A field with precision {precision}, scale {scale} must round to an absolute value less than {limit}."
            )));
        }
        Ok(rounded)
    }

    /// Rounds half away from zero.
    #[must_use]
    pub fn rounded(&self, scale: u16) -> Self {
        Self(self.0.with_scale_round(i64::from(scale), RoundingMode::HalfUp))
    }

    /// The nearest integer, if it fits.
    #[must_use]
    pub fn to_i64(&self) -> Option<i64> {
        self.rounded(0).parts().0.to_i64()
    }

    /// The nearest `float8`.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        // Parsing rounds correctly.
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// # Errors
    /// The result has too many digits.
    pub fn add(&self, other: &Self) -> Result<Self, SqlError> {
        Self::bounded(&self.0 + &other.0)
    }

    /// # Errors
    /// The result has too many digits.
    pub fn subtract(&self, other: &Self) -> Result<Self, SqlError> {
        // In PostgreSQL the result has the larger scale, also if it is 0.
        let scale = self.scale().max(other.scale());
        Self::bounded((&self.0 - &other.0).with_scale(i64::from(scale)))
    }

    /// # Errors
    /// The result has too many digits.
    pub fn multiply(&self, other: &Self) -> Result<Self, SqlError> {
        let scale = i64::from(self.scale()) + i64::from(other.scale());
        Self::bounded((&self.0 * &other.0).with_scale(scale))
    }

    /// The quotient, with PostgreSQL's choice of the scale: at least 16 significant digits.
    ///
    /// # Errors
    /// 22012: division by zero; the result has too many digits.
    pub fn divide(&self, other: &Self) -> Result<Self, SqlError> {
        if other.is_zero() {
            return Err(SqlError::new(sqlstate::DIVISION_BY_ZERO, "division by zero"));
        }
        let ((weight, first), (other_weight, other_first)) = (self.first_group(), other.first_group());
        let quotient_weight = weight - other_weight - i64::from(first <= other_first);
        let wanted = 16 - 4 * quotient_weight;
        let scale = wanted.max(i64::from(self.scale())).max(i64::from(other.scale())).clamp(0, DIGITS_MAX);
        let ((a, a_scale), (b, b_scale)) = (self.parts(), other.parts());
        // One digit more, by which the quotient is rounded.
        let shift = scale + 1 + i64::from(b_scale) - i64::from(a_scale);
        let power = |digits: i64| BigInt::from(10).pow(u32::try_from(digits).unwrap_or(0));
        let quotient = if shift >= 0 { a * power(shift) / b } else { a / (b * power(-shift)) };
        let quotient = Self(BigDecimal::new(quotient, scale + 1));
        Self::bounded(quotient.rounded(u16::try_from(scale).unwrap_or(0)).0)
    }

    /// The same number with the zeros that PostgreSQL shows at the end of an average: at least 16 significant digits.
    #[must_use]
    pub fn as_average(&self) -> Self {
        let (weight, _) = self.first_group();
        let scale = (16 - 4 * weight).max(i64::from(self.scale())).clamp(0, DIGITS_MAX);
        Self(self.0.with_scale(scale))
    }

    /// The remainder of a division that rounds towards zero.
    ///
    /// # Errors
    /// 22012: division by zero.
    pub fn remainder(&self, other: &Self) -> Result<Self, SqlError> {
        if other.is_zero() {
            return Err(SqlError::new(sqlstate::DIVISION_BY_ZERO, "division by zero"));
        }
        let scale = i64::from(self.scale()).max(i64::from(other.scale()));
        Self::bounded((&self.0 % &other.0).with_scale(scale))
    }

    /// The weight and the value of the first group of four digits that is not 0, in PostgreSQL's base 10,000.
    fn first_group(&self) -> (i64, u32) {
        let (unscaled, scale) = self.parts();
        let digits = unscaled.magnitude().to_string();
        if self.is_zero() {
            return (0, 0);
        }
        let before = i64::try_from(digits.len()).unwrap_or(i64::MAX) - i64::from(scale);
        let weight = (before - 1).div_euclid(4);
        let length = usize::try_from(before - 4 * weight).unwrap_or(0);
        let group: String = digits.chars().chain(std::iter::repeat('0')).take(length).collect();
        (weight, group.parse().unwrap_or(0))
    }

    /// The same number without zeros at the end of its fraction.
    #[must_use]
    pub fn trimmed(&self) -> Self {
        let (mut unscaled, mut scale) = self.parts();
        let ten = BigInt::from(10);
        while scale > 0 && (&unscaled % &ten) == BigInt::from(0) {
            unscaled /= &ten;
            scale -= 1;
        }
        Self(BigDecimal::new(unscaled, i64::from(scale)))
    }

    #[must_use]
    pub fn negate(&self) -> Self {
        Self(-&self.0)
    }
}

impl From<i64> for Numeric {
    fn from(number: i64) -> Self {
        Self(BigDecimal::from(number))
    }
}

/// The number with the shortest text that gives this `float8`, limited to 15 digits as in PostgreSQL.
impl TryFrom<f64> for Numeric {
    type Error = SqlError;

    fn try_from(number: f64) -> Result<Self, SqlError> {
        if !number.is_finite() {
            let message = "cannot convert NaN or infinity to numeric";
            return Err(SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, message));
        }
        let text = format!("{number:.14e}");
        let exact: BigDecimal = text.parse().map_err(|_| overflow())?;
        Self::bounded(exact.normalized())
    }
}

impl FromStr for Numeric {
    type Err = SqlError;

    fn from_str(text: &str) -> Result<Self, SqlError> {
        let invalid = || {
            let message = format!("invalid input syntax for type numeric: \"{text}\"");
            SqlError::new(sqlstate::INVALID_TEXT_REPRESENTATION, message)
        };
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
        let (mantissa, exponent) = match trimmed.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent),
            None => (trimmed, "0"),
        };
        let unsigned = mantissa.strip_prefix(['+', '-']).unwrap_or(mantissa);
        let digits = unsigned.bytes().filter(u8::is_ascii_digit).count();
        let points = unsigned.bytes().filter(|byte| *byte == b'.').count();
        if digits == 0 || points > 1 || digits + points != unsigned.len() {
            if ["nan", "infinity", "inf", "-infinity", "-inf"].contains(&trimmed.to_ascii_lowercase().as_str()) {
                return Err(SqlError::unsupported(format!("numeric {trimmed}")));
            }
            return Err(invalid());
        }
        let unsigned_exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if unsigned_exponent.is_empty() || !unsigned_exponent.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        // Checked before the digits are converted, which takes quadratic time.
        let exponent: i64 = exponent.parse().map_err(|_| overflow())?;
        if digits > 2 * DIGITS_MAX as usize || exponent.abs() > 2 * DIGITS_MAX {
            return Err(overflow());
        }
        let fraction = unsigned.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let plain: String = mantissa.chars().filter(|c| *c != '.').collect();
        let unscaled: BigInt = plain.parse().map_err(|_| invalid())?;
        Self::new(unscaled, i64::try_from(fraction).unwrap_or(i64::MAX) - exponent)
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Numeric {}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_plain_string())
    }
}
