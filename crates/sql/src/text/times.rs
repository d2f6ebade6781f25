//! The text format of dates, timestamps and intervals: ISO 8601 as PostgreSQL prints it, in UTC.

use std::fmt::Write as _;

use super::invalid;
use crate::calendar::{self, MICROS_PER_DAY};
use crate::error::{SqlError, sqlstate};
use crate::types::SqlType;
use crate::value::Interval;

const MICROS_PER_SECOND: i64 = 1_000_000;

fn bad_format(what: &SqlType, text: &str) -> SqlError {
    SqlError { sqlstate: sqlstate::INVALID_DATETIME_FORMAT, ..invalid(what, text) }
}

fn overflow(text: &str) -> SqlError {
    let message = format!("date/time field value out of range: \"{text}\"");
    SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, message)
}

/// Splits digits off the front.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// A decimal fraction of a unit, rounded to whole parts: `digits` after the point, of a unit of `parts`.
fn fraction(digits: &str, parts: i64) -> i64 {
    let mut value: i128 = 0;
    let mut scale: i128 = 1;
    for digit in digits.bytes().take(18) {
        value = value * 10 + i128::from(digit - b'0');
        scale *= 10;
    }
    i64::try_from((value * i128::from(parts) + scale / 2) / scale).unwrap_or(0)
}

enum Special {
    Lowest,
    Highest,
    Epoch,
}

fn special(text: &str) -> Option<Special> {
    match text.to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" => Some(Special::Highest),
        "-infinity" => Some(Special::Lowest),
        "epoch" => Some(Special::Epoch),
        _ => None,
    }
}

/// Reads a date at the front of the text, and returns the rest. The caller has removed ` BC`.
fn read_date<'a>(text: &'a str, is_bc: bool, what: &SqlType, whole: &str) -> Result<(i64, &'a str), SqlError> {
    let bad = || bad_format(what, whole);
    let number = |digits: &str| digits.parse::<u32>().map_err(|_| bad());
    let (first, rest) = digits(text);
    let (year, month, day, rest) = match rest.as_bytes().first() {
        Some(b'-') if first.len() >= 3 => {
            let (month, rest) = digits(&rest[1..]);
            let (day, rest) = digits(rest.strip_prefix('-').ok_or_else(bad)?);
            (first, month, day, rest)
        }
        Some(separator @ (b'/' | b'-')) if (1..=2).contains(&first.len()) => {
            // PostgreSQL's default order is MDY.
            let (day, rest) = digits(&rest[1..]);
            let (year, rest) = digits(rest.strip_prefix(char::from(*separator)).ok_or_else(bad)?);
            (year, first, day, rest)
        }
        _ if first.len() == 8 => (&first[..4], &first[4..6], &first[6..], rest),
        _ => return Err(bad()),
    };
    if month.len() > 2 || day.len() > 2 || year.len() > 7 || year.len() < 3 {
        return Err(bad());
    }
    let (year, month, day) = (i64::from(number(year)?), number(month)?, number(day)?);
    let year = if is_bc { 1 - year } else { year };
    if (year == 0 && !is_bc) || (is_bc && year > 0) {
        return Err(overflow(whole));
    }
    if !(1..=12).contains(&month) || !(1..=calendar::days_in_month(year, month)).contains(&day) {
        return Err(overflow(whole));
    }
    Ok((calendar::days_from_civil(year, month, day), rest))
}

/// Reads `HH:MM[:SS[.fraction]]` at the front, in microseconds. 24:00:00 and a second of 60 are valid.
fn read_time<'a>(text: &'a str, what: &SqlType, whole: &str) -> Result<(i64, &'a str), SqlError> {
    let bad = || bad_format(what, whole);
    let number = |digits: &str| digits.parse::<i64>().map_err(|_| bad());
    let (hours, rest) = digits(text);
    let (minutes, rest) = digits(rest.strip_prefix(':').ok_or_else(bad)?);
    let (seconds, rest) = rest.strip_prefix(':').map_or(("0", rest), digits);
    let (part, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if hours.len() > 2 || minutes.len() > 2 || seconds.len() > 2 {
        return Err(bad());
    }
    let (hours, minutes, seconds) = (number(hours)?, number(minutes)?, number(seconds)?);
    let micros = ((hours * 60 + minutes) * 60 + seconds) * MICROS_PER_SECOND + fraction(part, MICROS_PER_SECOND);
    if hours > 24 || minutes > 59 || seconds > 60 || micros > MICROS_PER_DAY {
        return Err(overflow(whole));
    }
    Ok((micros, rest))
}

/// Reads a time zone in microseconds east of UTC.
fn read_zone(text: &str, what: &SqlType, whole: &str) -> Result<i64, SqlError> {
    let bad = || bad_format(what, whole);
    let text = text.trim();
    if ["", "z", "utc", "gmt", "zulu"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(0);
    }
    let sign = match text.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => {
            let error =
                SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, format!("time zone \"{text}\" not recognized"));
            return if text.starts_with(|c: char| c.is_ascii_alphabetic()) { Err(error) } else { Err(bad()) };
        }
    };
    let plain: String = text[1..].chars().filter(|c| *c != ':').collect();
    if plain.is_empty() || plain.len() > 6 || !plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    // `+5`, `+05`, `+0530`, `+053015`
    let padded = if plain.len() % 2 == 1 { format!("0{plain}") } else { plain };
    let part = |at: usize| padded.get(at..at + 2).map_or(Ok(0), str::parse::<i64>).map_err(|_| bad());
    let (hours, minutes, seconds) = (part(0)?, part(2)?, part(4)?);
    if hours > 15 || minutes > 59 || seconds > 59 {
        let message = format!("time zone displacement out of range: \"{whole}\"");
        return Err(SqlError::new("22009", message));
    }
    Ok(sign * ((hours * 60 + minutes) * 60 + seconds) * MICROS_PER_SECOND)
}

fn without_era(text: &str) -> (&str, bool) {
    let text = super::trim(text);
    match text.len().checked_sub(3).and_then(|at| text.split_at_checked(at)) {
        Some((rest, era)) if era.eq_ignore_ascii_case(" bc") => (rest.trim_end(), true),
        Some((rest, era)) if era.eq_ignore_ascii_case(" ad") => (rest.trim_end(), false),
        _ => (text, false),
    }
}

pub(super) fn parse_date(text: &str) -> Result<i32, SqlError> {
    let (trimmed, is_bc) = without_era(text);
    match special(trimmed) {
        Some(Special::Highest) => return Ok(i32::MAX),
        Some(Special::Lowest) => return Ok(i32::MIN),
        Some(Special::Epoch) => return Ok(-calendar::UNIX_DAYS as i32),
        None => {}
    }
    let (days, rest) = read_date(trimmed, is_bc, &SqlType::Date, text)?;
    // As in PostgreSQL, a time and a zone are read and ignored.
    let rest = rest.trim_start_matches(['T', ' ']);
    if !rest.is_empty() {
        let (_, rest) = read_time(rest, &SqlType::Date, text)?;
        read_zone(rest, &SqlType::Date, text)?;
    }
    let days = i32::try_from(days).ok().filter(|days| (calendar::DAY_MIN..=calendar::DAY_MAX).contains(days));
    days.ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("date out of range: \"{text}\"")))
}

pub(super) fn parse_timestamp(text: &str, what: &SqlType) -> Result<i64, SqlError> {
    let (trimmed, is_bc) = without_era(text);
    match special(trimmed) {
        Some(Special::Highest) => return Ok(i64::MAX),
        Some(Special::Lowest) => return Ok(i64::MIN),
        Some(Special::Epoch) => return Ok(-calendar::UNIX_DAYS * MICROS_PER_DAY),
        None => {}
    }
    let (days, rest) = read_date(trimmed, is_bc, what, text)?;
    let (micros, zone) = match rest.strip_prefix(['T', 't', ' ']) {
        Some(rest) if rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) => {
            read_time(rest.trim_start(), what, text)?
        }
        _ => (0, rest),
    };
    // A zone is valid for `timestamp` too, and ignored.
    let zone = read_zone(zone, what, text)?;
    let zone = if *what == SqlType::Timestamptz { zone } else { 0 };
    let total = days.checked_mul(MICROS_PER_DAY).and_then(|total| total.checked_add(micros - zone));
    total
        .filter(|total| (calendar::MICROS_MIN..calendar::MICROS_END).contains(total))
        .ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("timestamp out of range: \"{text}\"")))
}

fn write_civil(days: i64, out: &mut String) -> &'static str {
    let (year, month, day) = calendar::civil_from_days(days);
    let (shown, era) = if year <= 0 { (1 - year, " BC") } else { (year, "") };
    let _ = write!(out, "{shown:04}-{month:02}-{day:02}");
    era
}

pub(super) fn write_date(days: i32, out: &mut String) {
    match days {
        i32::MAX => out.push_str("infinity"),
        i32::MIN => out.push_str("-infinity"),
        _ => {
            let era = write_civil(i64::from(days), out);
            out.push_str(era);
        }
    }
}

/// Appends the fraction of a second without trailing zeros.
fn write_fraction(micros: u64, out: &mut String) {
    if micros > 0 {
        let digits = format!("{micros:06}");
        let _ = write!(out, ".{}", digits.trim_end_matches('0'));
    }
}

fn write_clock(micros: u64, out: &mut String) {
    let seconds = micros / 1_000_000;
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    write_fraction(micros % 1_000_000, out);
}

pub(super) fn write_timestamp(micros: i64, zone: &str, out: &mut String) {
    match micros {
        i64::MAX => out.push_str("infinity"),
        i64::MIN => out.push_str("-infinity"),
        _ => {
            let era = write_civil(micros.div_euclid(MICROS_PER_DAY), out);
            out.push(' ');
            write_clock(micros.rem_euclid(MICROS_PER_DAY).unsigned_abs(), out);
            out.push_str(zone);
            out.push_str(era);
        }
    }
}

pub(super) fn write_interval(interval: Interval, out: &mut String) {
    let start = out.len();
    // After a negative field, a positive one has an explicit sign.
    let mut was_negative = false;
    let units = [(interval.months / 12, "year"), (interval.months % 12, "mon"), (interval.days, "day")];
    for (count, unit) in units.into_iter().filter(|(count, _)| *count != 0) {
        let space = if out.len() > start { " " } else { "" };
        let sign = if was_negative && count > 0 { "+" } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        let _ = write!(out, "{space}{sign}{count} {unit}{plural}");
        was_negative = count < 0;
    }
    if interval.micros != 0 || out.len() == start {
        let space = if out.len() > start { " " } else { "" };
        let sign = if interval.micros < 0 {
            "-"
        } else if was_negative {
            "+"
        } else {
            ""
        };
        out.push_str(space);
        out.push_str(sign);
        write_clock(interval.micros.unsigned_abs(), out);
    }
}

/// A unit in months, days and microseconds.
fn unit(name: &str) -> Option<(i64, i64, i64)> {
    let name = name.to_ascii_lowercase();
    let micros = |micros: i64| Some((0, 0, micros));
    match name.as_str() {
        "us" | "usec" | "usecs" | "microsecond" | "microseconds" => micros(1),
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => micros(1_000),
        "s" | "sec" | "secs" | "second" | "seconds" => micros(MICROS_PER_SECOND),
        "m" | "min" | "mins" | "minute" | "minutes" => micros(60 * MICROS_PER_SECOND),
        "h" | "hr" | "hrs" | "hour" | "hours" => micros(3_600 * MICROS_PER_SECOND),
        "d" | "day" | "days" => Some((0, 1, 0)),
        "w" | "week" | "weeks" => Some((0, 7, 0)),
        "mon" | "mons" | "month" | "months" => Some((1, 0, 0)),
        "y" | "yr" | "yrs" | "year" | "years" => Some((12, 0, 0)),
        "decade" | "decades" => Some((120, 0, 0)),
        "century" | "centuries" | "c" => Some((1_200, 0, 0)),
        "millennium" | "millennia" | "mil" | "mils" => Some((12_000, 0, 0)),
        _ => None,
    }
}

#[derive(Default)]
struct Sum {
    months: i64,
    days: i64,
    micros: i64,
}

impl Sum {
    /// Adds `sign * (whole + 0.part)` units. The fraction of a month becomes days, that of a day microseconds.
    fn add(&mut self, sign: i64, whole: &str, part: &str, unit: (i64, i64, i64)) -> Option<()> {
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let scaled = |size: i64| whole.checked_mul(size);
        let (months, days, micros) = unit;
        let add = |total: &mut i64, value: i64| {
            *total = total.checked_add(sign.checked_mul(value)?)?;
            Some(())
        };
        add(&mut self.months, scaled(months)?)?;
        add(&mut self.days, scaled(days)?)?;
        add(&mut self.micros, scaled(micros)?)?;
        if months > 1 {
            add(&mut self.months, fraction(part, months))
        } else if months == 1 {
            let of_month = fraction(part, 30 * MICROS_PER_DAY);
            add(&mut self.days, of_month / MICROS_PER_DAY)?;
            add(&mut self.micros, of_month % MICROS_PER_DAY)
        } else if days > 0 {
            let of_days = fraction(part, days * MICROS_PER_DAY);
            add(&mut self.days, of_days / MICROS_PER_DAY)?;
            add(&mut self.micros, of_days % MICROS_PER_DAY)
        } else {
            add(&mut self.micros, fraction(part, micros))
        }
    }

    fn finish(&self, negative: bool) -> Option<Interval> {
        let sign = if negative { -1 } else { 1 };
        Some(Interval {
            months: i32::try_from(self.months.checked_mul(sign)?).ok()?,
            days: i32::try_from(self.days.checked_mul(sign)?).ok()?,
            micros: self.micros.checked_mul(sign)?,
        })
    }
}

/// Splits `[sign]digits[.digits]` off the front.
fn signed_number(text: &str) -> Option<(i64, &str, &str, &str)> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let (whole, rest) = digits(rest);
    let (part, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    (!whole.is_empty() || !part.is_empty()).then_some((sign, whole, part, rest))
}

fn read_iso_interval(text: &str, sum: &mut Sum) -> Option<()> {
    let mut rest = text.strip_prefix(['P', 'p'])?;
    let mut is_time = false;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(['T', 't']).filter(|_| !is_time) {
            (rest, is_time) = (after, true);
            continue;
        }
        let (sign, whole, part, after) = signed_number(rest)?;
        let letter = after.chars().next()?.to_ascii_uppercase();
        let name = match (letter, is_time) {
            ('Y', false) => "year",
            ('M', false) => "month",
            ('W', false) => "week",
            ('D', false) => "day",
            ('H', true) => "hour",
            ('M', true) => "minute",
            ('S', true) => "second",
            _ => return None,
        };
        sum.add(sign, whole, part, unit(name)?)?;
        rest = &after[1..];
    }
    Some(())
}

/// Returns whether `ago` ended it.
fn read_interval(text: &str, sum: &mut Sum) -> Option<bool> {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(false);
        }
        if rest.eq_ignore_ascii_case("ago") {
            return Some(true);
        }
        let (sign, whole, part, after) = signed_number(rest)?;
        if let Some(minutes) = after.strip_prefix(':').filter(|_| part.is_empty()) {
            let (minutes, after) = digits(minutes);
            let (seconds, after) = after.strip_prefix(':').map_or(("0", after), digits);
            let (part, after) = after.strip_prefix('.').map_or(("", after), digits);
            if minutes.is_empty() || minutes.parse::<u8>().ok()? > 59 || seconds.parse::<u8>().ok()? > 60 {
                return None;
            }
            sum.add(sign, whole, "", unit("hour")?)?;
            sum.add(sign, minutes, "", unit("minute")?)?;
            sum.add(sign, seconds, part, unit("second")?)?;
            rest = after;
            continue;
        }
        let after = after.trim_start();
        let (name, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        // A last number without a unit counts seconds.
        let of = if name.is_empty() && after.is_empty() { unit("second")? } else { unit(name)? };
        sum.add(sign, whole, part, of)?;
        rest = after;
    }
}

pub(super) fn parse_interval(text: &str) -> Result<Interval, SqlError> {
    let trimmed = super::trim(text).trim_start_matches('@');
    let mut sum = Sum::default();
    let is_ago = if trimmed.starts_with(['P', 'p']) {
        read_iso_interval(trimmed, &mut sum).filter(|()| trimmed.len() > 1).map(|()| false)
    } else {
        read_interval(trimmed, &mut sum).filter(|_| !trimmed.is_empty())
    };
    let interval = is_ago.and_then(|is_ago| sum.finish(is_ago));
    interval.ok_or_else(|| bad_format(&SqlType::Interval, text))
}
