//! `to_char` of dates, timestamps and intervals.

use std::fmt::Write as _;

use sql::calendar::{MICROS_PER_DAY, civil_from_days, days_from_civil};
use sql::cast::{Context, cast};
use sql::{Interval, SqlError, SqlType, Value, sqlstate};

use super::{Grammar, Node, Pattern, ordinal, parse};

/// Patterns with their own case, and others that are also written in lower case.
pub(super) const PATTERNS: Grammar = Grammar {
    patterns: &[
        "A.D.", "a.d.", "A.M.", "a.m.", "AD", "ad", "AM", "am", "B.C.", "b.c.", "BC", "bc", "P.M.", "p.m.", "PM", "pm",
        "DAY", "Day", "day", "DY", "Dy", "dy", "MONTH", "Month", "month", "MON", "Mon", "mon", "RM", "rm", "TZ", "tz",
        "CC", "cc", "DDD", "ddd", "DD", "dd", "D", "d", "FF1", "ff1", "FF2", "ff2", "FF3", "ff3", "FF4", "ff4", "FF5",
        "ff5", "FF6", "ff6", "FX", "fx", "HH24", "hh24", "HH12", "hh12", "HH", "hh", "IDDD", "iddd", "ID", "id", "IW",
        "iw", "IYYY", "iyyy", "IYY", "iyy", "IY", "iy", "I", "i", "J", "j", "MI", "mi", "MM", "mm", "MS", "ms", "OF",
        "of", "Q", "q", "SSSSS", "sssss", "SSSS", "ssss", "SS", "ss", "TZH", "tzh", "TZM", "tzm", "US", "us", "WW",
        "ww", "W", "w", "Y,YYY", "y,yyy", "YYYY", "yyyy", "YYY", "yyy", "YY", "yy", "Y", "y",
    ],
    has_modifiers: true,
};

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
pub(super) const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
pub(super) const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// The fields of a time.
struct Fields {
    is_interval: bool,
    has_zone: bool,
    year: i64,
    month: i64,
    day: i64,
    /// The day of the year.
    year_day: i64,
    week_day: i64,
    /// Days since 2000-01-01.
    days: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
}

/// The ISO year and week of a day.
pub(crate) fn iso_week(days: i64) -> (i64, i64) {
    // The week belongs to the year of its Thursday.
    let thursday = days - (days + 5).rem_euclid(7) + 3;
    let (year, ..) = civil_from_days(thursday);
    (year, (thursday - days_from_civil(year, 1, 1)) / 7 + 1)
}

/// The day of the week, from Sunday. 2000-01-01 was a Saturday.
pub(crate) fn week_day(days: i64) -> i64 {
    (days + 6).rem_euclid(7)
}

impl Fields {
    fn of_timestamp(micros: i64, has_zone: bool) -> Self {
        let (days, time) = (micros.div_euclid(MICROS_PER_DAY), micros.rem_euclid(MICROS_PER_DAY));
        let (year, month, day) = civil_from_days(days);
        Self {
            is_interval: false,
            has_zone,
            year,
            month: i64::from(month),
            day: i64::from(day),
            year_day: days - days_from_civil(year, 1, 1) + 1,
            week_day: week_day(days),
            days,
            hour: time / 3_600_000_000,
            minute: time / 60_000_000 % 60,
            second: time / 1_000_000 % 60,
            micros: time % 1_000_000,
        }
    }

    fn of_interval(interval: Interval) -> Self {
        let Interval { months, days, micros } = interval;
        Self {
            is_interval: true,
            has_zone: false,
            year: i64::from(months / 12),
            month: i64::from(months % 12),
            day: i64::from(days),
            year_day: i64::from(months) * 30 + i64::from(days),
            week_day: 0,
            days: 0,
            hour: micros / 3_600_000_000,
            minute: micros / 60_000_000 % 60,
            second: micros / 1_000_000 % 60,
            micros: micros % 1_000_000,
        }
    }

    /// The year before the era: 1 BC is year 0.
    fn shown_year(&self, year: i64) -> i64 {
        if self.is_interval || year > 0 { year } else { 1 - year }
    }
}

/// `None` for infinities, and without a template.
pub(super) fn to_char(value: &Value, template: &str) -> Result<Option<String>, SqlError> {
    let fields = match value {
        Value::Timestamp(i64::MIN | i64::MAX)
        | Value::Timestamptz(i64::MIN | i64::MAX)
        | Value::Date(i32::MIN | i32::MAX) => return Ok(None),
        Value::Timestamp(micros) => Fields::of_timestamp(*micros, false),
        Value::Date(_) => match cast(value.clone(), &SqlType::Timestamptz, Context::Explicit)? {
            Value::Timestamptz(micros) => Fields::of_timestamp(micros, true),
            _ => return Ok(None),
        },
        Value::Timestamptz(micros) => Fields::of_timestamp(*micros, true),
        Value::Interval(interval) => Fields::of_interval(*interval),
        _ => return Ok(None),
    };
    if template.is_empty() {
        return Ok(None);
    }
    let mut out = String::new();
    for node in parse(template, &PATTERNS) {
        match node {
            Node::Pattern(pattern) => write(&fields, &pattern, &mut out)?,
            Node::Char(c) | Node::Separator(c) => out.push(c),
        }
    }
    Ok(Some(out))
}

/// Digits with zeros in front, to a width that a sign does not count in.
fn number(number: i64, width: usize, pattern: &Pattern, out: &mut String) {
    with_sign(number, if number < 0 { width + 1 } else { width }, pattern, out);
}

/// Digits with zeros in front, to a width that a sign counts in.
fn with_sign(number: i64, width: usize, pattern: &Pattern, out: &mut String) {
    let width = if pattern.is_bare { 0 } else { width };
    let start = out.len();
    // Writing to a string does not fail.
    _ = write!(out, "{number:0width$}");
    if let Some(is_upper) = pattern.ordinal {
        let suffix = ordinal(out.get(start..).unwrap_or_default(), is_upper);
        out.push_str(suffix);
    }
}

/// A name in the case of its pattern, padded to a width.
fn name(name: &str, width: usize, pattern: &Pattern, out: &mut String) {
    let mut letters = pattern.name.chars();
    let (first, second) = (letters.next().unwrap_or('a'), letters.next().unwrap_or('a'));
    let shown = match (first.is_uppercase(), second.is_uppercase()) {
        (true, true) => name.to_ascii_uppercase(),
        (true, false) => name.to_owned(),
        _ => name.to_ascii_lowercase(),
    };
    let width = if pattern.is_bare { 0 } else { width };
    _ = write!(out, "{shown:width$}");
}

/// One of two marks, in the form of the pattern.
fn mark(is_first: bool, first: &str, second: &str, pattern: &Pattern, out: &mut String) {
    let mut shown = if is_first { first } else { second }.to_owned();
    if pattern.name.contains('.') {
        shown = shown.chars().flat_map(|c| [c, '.']).collect();
    }
    if pattern.name.starts_with(|c: char| c.is_lowercase()) {
        shown = shown.to_ascii_lowercase();
    }
    out.push_str(&shown);
}

fn write(fields: &Fields, pattern: &Pattern, out: &mut String) -> Result<(), SqlError> {
    let upper = pattern.name.to_ascii_uppercase();
    let no_interval = ["A.D.", "AD", "B.C.", "BC", "DAY", "DY", "D", "ID", "MONTH", "MON", "TZ", "TZH", "TZM", "OF"];
    if fields.is_interval && no_interval.contains(&upper.as_str()) {
        let error =
            SqlError::new(sqlstate::INVALID_DATETIME_FORMAT, "invalid format specification for an interval value");
        return Err(error.with_hint("Intervals are not tied to specific calendar dates."));
    }
    let month = |names: &'static [&'static str]| {
        let number = if fields.month < 0 { fields.month + 13 } else { fields.month };
        usize::try_from(number - 1).ok().and_then(|number| names.get(number)).copied()
    };
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let day = usize::try_from(fields.week_day).ok().and_then(|day| DAYS.get(day)).copied().unwrap_or_default();
    let (iso_year, iso_week) = iso_week(fields.days);
    let year = fields.shown_year(fields.year);
    let iso_shown = fields.shown_year(iso_year);
    let twelve = if fields.hour % 12 == 0 { 12 } else { fields.hour % 12 };
    let seconds = fields.hour * 3_600 + fields.minute * 60 + fields.second;
    match upper.as_str() {
        "A.M." | "AM" | "P.M." | "PM" => mark(fields.hour % 24 >= 12, "PM", "AM", pattern, out),
        "A.D." | "AD" | "B.C." | "BC" => mark(fields.year <= 0, "BC", "AD", pattern, out),
        "HH" | "HH12" => number(twelve, 2, pattern, out),
        "HH24" => number(fields.hour, 2, pattern, out),
        "MI" => number(fields.minute, 2, pattern, out),
        "SS" => number(fields.second, 2, pattern, out),
        "MS" | "FF3" => fraction(fields.micros, 3, pattern, out),
        "US" | "FF6" => fraction(fields.micros, 6, pattern, out),
        "FF1" => fraction(fields.micros, 1, pattern, out),
        "FF2" => fraction(fields.micros, 2, pattern, out),
        "FF4" => fraction(fields.micros, 4, pattern, out),
        "FF5" => fraction(fields.micros, 5, pattern, out),
        "SSSS" | "SSSSS" => number(seconds, 0, pattern, out),
        "TZ" if fields.has_zone => out.push_str(if pattern.name == "TZ" { "UTC" } else { "utc" }),
        "TZH" => out.push_str("+00"),
        "TZM" => out.push_str("00"),
        "OF" => out.push_str(if pattern.is_bare { "+0" } else { "+00" }),
        "MONTH" => {
            if let Some(month) = month(&MONTHS) {
                name(month, 9, pattern, out);
            }
        }
        "MON" => {
            if let Some(month) = month(&MONTHS) {
                name(short(month), 0, pattern, out);
            }
        }
        "RM" => {
            if let Some(month) = month(&ROMAN) {
                name(month, 4, pattern, out);
            }
        }
        "MM" => number(fields.month, 2, pattern, out),
        "DAY" => name(day, 9, pattern, out),
        "DY" => name(short(day), 0, pattern, out),
        "DDD" => with_sign(fields.year_day, 3, pattern, out),
        "IDDD" => {
            let monday = fields.days - (fields.days + 5).rem_euclid(7);
            let week_start = monday - (iso_week - 1) * 7;
            number(fields.days - week_start + 1, 3, pattern, out);
        }
        "DD" => with_sign(fields.day, 2, pattern, out),
        "D" => number(fields.week_day + 1, 0, pattern, out),
        "ID" => number(if fields.week_day == 0 { 7 } else { fields.week_day }, 0, pattern, out),
        "WW" => number((fields.year_day - 1) / 7 + 1, 2, pattern, out),
        "IW" => number(iso_week, 2, pattern, out),
        "W" => number((fields.day - 1) / 7 + 1, 0, pattern, out),
        "Q" if fields.month != 0 => number((fields.month - 1) / 3 + 1, 0, pattern, out),
        "CC" => {
            let century = match fields.year {
                year if fields.is_interval => year / 100,
                year if year > 0 => (year - 1) / 100 + 1,
                year => year / 100 - 1,
            };
            number(century, 2, pattern, out);
        }
        "Y,YYY" => {
            _ = write!(out, "{},{:03}", year / 1_000, year % 1_000);
            if let Some(is_upper) = pattern.ordinal {
                out.push_str(ordinal(&format!("{:03}", year % 1_000), is_upper));
            }
        }
        "YYYY" => number(year, 4, pattern, out),
        "YYY" => number(year % 1_000, 3, pattern, out),
        "YY" => number(year % 100, 2, pattern, out),
        "Y" => number(year % 10, 1, pattern, out),
        "IYYY" => number(iso_shown, 4, pattern, out),
        "IYY" => number(iso_shown % 1_000, 3, pattern, out),
        "IY" => number(iso_shown % 100, 2, pattern, out),
        "I" => number(iso_shown % 10, 1, pattern, out),
        // The Julian day of 2000-01-01 is 2,451,545.
        "J" if !fields.is_interval => number(fields.days + 2_451_545, 0, pattern, out),
        "J" => return Err(SqlError::unsupported("the pattern \"J\" for an interval")),
        _ => {}
    }
    Ok(())
}

/// The first digits of the fraction of a second, which FM does not shorten.
fn fraction(micros: i64, digits: u32, pattern: &Pattern, out: &mut String) {
    let value = micros / 10_i64.pow(6 - digits);
    with_sign(value, digits as usize, &Pattern { is_bare: false, ..pattern.clone() }, out);
}
