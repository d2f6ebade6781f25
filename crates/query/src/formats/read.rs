//! `to_date` and `to_timestamp`: text to times by a template.

use sql::calendar::{DAY_MAX, DAY_MIN, MICROS_END, MICROS_MIN, MICROS_PER_DAY, days_from_civil, days_in_month};
use sql::{SqlError, Value, sqlstate};

use super::times::{DAYS, MONTHS, PATTERNS, ROMAN};
use super::{Node, Pattern, parse};

/// The fields that were read. Absent ones are 0.
#[derive(Debug, Default)]
struct Found {
    year: Option<i64>,
    is_bc: bool,
    month: Option<i64>,
    day: Option<i64>,
    year_day: Option<i64>,
    julian: Option<i64>,
    hour: Option<i64>,
    is_twelve: bool,
    is_pm: bool,
    minute: Option<i64>,
    second: Option<i64>,
    millis: Option<i64>,
    micros: Option<i64>,
    seconds_of_day: Option<i64>,
    zone_hours: Option<i64>,
    zone_minutes: Option<i64>,
    is_zone_negative: bool,
}

fn bad(message: String) -> SqlError {
    SqlError::new(sqlstate::INVALID_DATETIME_FORMAT, message)
}

fn out_of_range(text: &str) -> SqlError {
    let message = format!("date/time field value out of range: \"{text}\"");
    SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, message)
}

/// `to_date(text, template)`
pub(crate) fn to_date(of: &[Value]) -> Result<Value, SqlError> {
    let [Value::Text(text), Value::Text(template)] = of else { return Ok(Value::Null) };
    let found = read(text, template)?;
    let day = found.day(text)?;
    let day = i32::try_from(day).ok().filter(|day| (DAY_MIN..=DAY_MAX).contains(day));
    day.map(Value::Date)
        .ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("date out of range: \"{text}\"")))
}

/// `to_timestamp(text, template)`
pub(crate) fn to_timestamp(of: &[Value]) -> Result<Value, SqlError> {
    let [Value::Text(text), Value::Text(template)] = of else { return Ok(Value::Null) };
    let found = read(text, template)?;
    let micros =
        found.day(text)?.checked_mul(MICROS_PER_DAY).and_then(|start| start.checked_add(found.time(text).ok()?));
    // A time that is out of range is reported first.
    found.time(text)?;
    let micros = micros.filter(|micros| (MICROS_MIN..MICROS_END).contains(micros));
    micros
        .map(Value::Timestamptz)
        .ok_or_else(|| SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, format!("timestamp out of range: \"{text}\"")))
}

impl Found {
    /// The day, since 2000-01-01.
    fn day(&self, text: &str) -> Result<i64, SqlError> {
        if let Some(julian) = self.julian {
            return Ok(julian - 2_451_545);
        }
        let year = match (self.year, self.is_bc) {
            // Without a year, it is 1 BC.
            (None | Some(0), _) => 0,
            (Some(year), true) => 1 - year,
            (Some(year), false) if year < 0 => year + 1,
            (Some(year), false) => year,
        };
        if let Some(day) = self.year_day {
            let (Some(_), days) = (self.year, days_from_civil(year + 1, 1, 1) - days_from_civil(year, 1, 1)) else {
                return Err(bad("cannot calculate day of year without year information".to_owned()));
            };
            if !(1..=days).contains(&day) {
                return Err(out_of_range(text));
            }
            return Ok(days_from_civil(year, 1, 1) + day - 1);
        }
        let month = u32::try_from(self.month.unwrap_or(1)).ok().filter(|month| (1..=12).contains(month));
        let month = month.ok_or_else(|| out_of_range(text))?;
        let day = u32::try_from(self.day.unwrap_or(1)).ok();
        let day = day.filter(|day| (1..=days_in_month(year, month)).contains(day)).ok_or_else(|| out_of_range(text))?;
        Ok(days_from_civil(year, month, day))
    }

    /// The microseconds of the day.
    fn time(&self, text: &str) -> Result<i64, SqlError> {
        let mut hour = self.hour.unwrap_or(0);
        let (mut minute, mut second) = (self.minute.unwrap_or(0), self.second.unwrap_or(0));
        if let Some(seconds) = self.seconds_of_day {
            if !(0..86_400).contains(&seconds) {
                return Err(out_of_range(text));
            }
            (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        }
        if self.is_twelve {
            if !(1..=12).contains(&hour) {
                let error = bad(format!("hour \"{hour}\" is invalid for the 12-hour clock"));
                return Err(error.with_hint("Use the 24-hour clock, or give an hour between 1 and 12."));
            }
            match self.is_pm {
                true if hour < 12 => hour += 12,
                false if hour == 12 => hour = 0,
                _ => {}
            }
        }
        let fraction = self.millis.unwrap_or(0) * 1_000 + self.micros.unwrap_or(0);
        // A fraction of a second may be a whole one.
        let is_valid = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
        let micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction;
        if !is_valid || fraction > 1_000_000 {
            return Err(out_of_range(text));
        }
        let (hours, minutes) = (self.zone_hours.unwrap_or(0), self.zone_minutes.unwrap_or(0));
        if !(0..=15).contains(&hours) || !(0..60).contains(&minutes) {
            return Err(out_of_range(text));
        }
        let offset = (hours * 60 + minutes) * 60_000_000;
        Ok(if self.is_zone_negative { micros + offset } else { micros - offset })
    }
}

/// The rest of the input.
struct Input<'a> {
    rest: &'a str,
}

impl<'a> Input<'a> {
    /// Skips spaces; returns their number.
    fn skip_spaces(&mut self) -> i64 {
        let trimmed = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let skipped = self.rest.len() - trimmed.len();
        self.rest = trimmed;
        i64::try_from(skipped).unwrap_or(i64::MAX)
    }

    fn skip_char(&mut self) {
        let mut chars = self.rest.chars();
        chars.next();
        self.rest = chars.as_str();
    }

    /// A number of `width` digits, or of any number of them; with the number of characters.
    fn number(&mut self, pattern: &Pattern, width: usize, is_open: bool) -> Result<(i64, usize), SqlError> {
        self.skip_spaces();
        let shown = pattern.name;
        let available: &'a str = if is_open {
            self.rest
        } else {
            let end = self.rest.char_indices().nth(width).map_or(self.rest.len(), |(at, _)| at);
            self.rest.get(..end).unwrap_or_default()
        };
        let count = available.chars().count();
        if !is_open && count < width {
            let error = bad(format!("source string too short for \"{shown}\" formatting field"));
            return Err(error.with_detail(format!("Field requires {width} characters, but only {count} remain.")));
        }
        let unsigned = available.strip_prefix(['-', '+']).unwrap_or(available);
        let digits = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let used = if digits == 0 { 0 } else { available.len() - unsigned.len() + digits };
        let value = available.get(..used).unwrap_or_default();
        if used == 0 {
            let error = bad(format!("invalid value \"{available}\" for \"{shown}\""));
            return Err(error.with_detail("Value must be an integer."));
        }
        if !is_open && used < width {
            let error = bad(format!("invalid value \"{available}\" for \"{shown}\""));
            return Err(
                error.with_detail(format!("Field requires {width} characters, but only {used} could be parsed."))
            );
        }
        let number = value.trim_start_matches('+').parse::<i32>().map_err(|_| {
            let message = format!("value for \"{shown}\" in source string is out of range");
            SqlError::new(sqlstate::DATETIME_FIELD_OVERFLOW, message)
        })?;
        self.rest = self.rest.get(used..).unwrap_or_default();
        if pattern.ordinal.is_some() {
            self.skip_char();
            self.skip_char();
        }
        Ok((i64::from(number), used))
    }

    /// One of several names, in any case; its number.
    fn name(&mut self, pattern: &Pattern, names: &[&str], length: Option<usize>) -> Result<usize, SqlError> {
        let rest = self.rest.as_bytes();
        let fits = |name: &&str| {
            let name = name.get(..length.unwrap_or(name.len()).min(name.len())).unwrap_or(name);
            let is_equal = rest.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()));
            is_equal.then_some(name.len())
        };
        let found = names.iter().enumerate().filter_map(|(number, name)| Some((fits(name)?, number)));
        let Some((used, number)) = found.max_by_key(|(used, _)| *used) else {
            let error = bad(format!("invalid value \"{}\" for \"{}\"", self.rest, pattern.name));
            return Err(error.with_detail("The given value did not match any of the allowed values for this field."));
        };
        self.rest = self.rest.get(used..).unwrap_or_default();
        Ok(number)
    }
}

/// Whether the digits of a pattern end where the next pattern begins.
fn is_open(nodes: &[Node], at: usize, pattern: &Pattern) -> bool {
    let names = ["A.D.", "AD", "A.M.", "AM", "B.C.", "BC", "P.M.", "PM", "DAY", "DY", "MONTH", "MON", "RM", "TZ", "OF"];
    pattern.is_bare
        || pattern.ordinal.is_some()
        || match nodes.get(at + 1) {
            Some(Node::Pattern(next)) => names.contains(&next.name.to_ascii_uppercase().as_str()),
            Some(Node::Char(c) | Node::Separator(c)) => !c.is_ascii_digit(),
            None => true,
        }
}

fn set(slot: &mut Option<i64>, value: i64, pattern: &Pattern) -> Result<(), SqlError> {
    match slot {
        Some(found) if *found != value => {
            let error = bad(format!("conflicting values for \"{}\" field in formatting string", pattern.name));
            Err(error.with_detail("This value contradicts a previous setting for the same field type."))
        }
        _ => {
            *slot = Some(value);
            Ok(())
        }
    }
}

fn read(text: &str, template: &str) -> Result<Found, SqlError> {
    let nodes = parse(template, &PATTERNS);
    let mut found = Found::default();
    let mut input = Input { rest: text };
    let mut is_fixed = false;
    // Spaces that were skipped, which other characters of the template match.
    let mut skipped = 0;
    for (at, node) in nodes.iter().enumerate() {
        if input.rest.is_empty() {
            break;
        }
        if !is_fixed && (at == 0 || matches!(node, Node::Pattern(_))) {
            skipped += input.skip_spaces();
        }
        match node {
            Node::Separator(_) if is_fixed => input.skip_char(),
            Node::Separator(_) => {
                skipped -= 1;
                if input.rest.starts_with(|c: char| c.is_ascii_whitespace() || c.is_ascii_punctuation()) {
                    input.skip_char();
                    skipped += 1;
                }
            }
            Node::Char(_) if !is_fixed && skipped > 0 => skipped -= 1,
            Node::Char(_) => input.skip_char(),
            Node::Pattern(pattern) if pattern.name.eq_ignore_ascii_case("FX") => is_fixed = true,
            Node::Pattern(pattern) => {
                field(&mut found, &mut input, pattern, is_open(&nodes, at, pattern))?;
                if !is_fixed {
                    skipped = input.skip_spaces();
                }
            }
        }
    }
    Ok(found)
}

fn field(found: &mut Found, input: &mut Input, pattern: &Pattern, is_open: bool) -> Result<(), SqlError> {
    let name = pattern.name.to_ascii_uppercase();
    let mut number = |width: usize| input.number(pattern, width, is_open);
    match name.as_str() {
        "YYYY" => {
            let (year, _) = number(4)?;
            set(&mut found.year, year, pattern)?;
        }
        "YYY" | "YY" | "Y" => {
            let (year, used) = number(name.len())?;
            // Years that are not complete are near 2020.
            let base = match year {
                _ if used >= 4 => 0,
                0..70 => 2_000,
                70..100 => 1_900,
                100..520 => 2_000,
                520..1_000 => 1_000,
                _ => 0,
            };
            set(&mut found.year, year + base, pattern)?;
        }
        "Y,YYY" => {
            let (thousands, _) = input.number(pattern, 1, true)?;
            let after = input.rest.strip_prefix(',').unwrap_or(input.rest);
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()).min(3);
            let Some(Ok(years)) = after.get(..digits).map(str::parse::<i64>) else {
                return Err(bad("invalid input string for \"Y,YYY\"".to_owned()));
            };
            input.rest = after.get(digits..).unwrap_or_default();
            set(&mut found.year, thousands * 1_000 + years, pattern)?;
        }
        "MM" => {
            let (month, _) = number(2)?;
            set(&mut found.month, month, pattern)?;
        }
        "MONTH" | "MON" | "RM" => {
            let month = match name.as_str() {
                "MONTH" => input.name(pattern, &MONTHS, None)?,
                "MON" => input.name(pattern, &MONTHS, Some(3))?,
                _ => input.name(pattern, &ROMAN, None)?,
            };
            set(&mut found.month, i64::try_from(month).unwrap_or(0) + 1, pattern)?;
        }
        "DD" => {
            let (day, _) = number(2)?;
            set(&mut found.day, day, pattern)?;
        }
        "DDD" => {
            let (day, _) = number(3)?;
            set(&mut found.year_day, day, pattern)?;
        }
        "J" => {
            // It has no fixed width.
            let (day, _) = input.number(pattern, 1, true)?;
            set(&mut found.julian, day, pattern)?;
        }
        "HH" | "HH12" | "HH24" => {
            let (hour, _) = number(2)?;
            set(&mut found.hour, hour, pattern)?;
            found.is_twelve |= name != "HH24";
        }
        "MI" => {
            let (minute, _) = number(2)?;
            set(&mut found.minute, minute, pattern)?;
        }
        "SS" => {
            let (second, _) = number(2)?;
            set(&mut found.second, second, pattern)?;
        }
        "SSSS" | "SSSSS" => {
            let (seconds, _) = number(5)?;
            set(&mut found.seconds_of_day, seconds, pattern)?;
        }
        "MS" => {
            let (millis, used) = number(3)?;
            // 25 is 0.25 s.
            let factor = [1, 100, 10].get(used).copied().unwrap_or(1);
            set(&mut found.millis, millis * factor, pattern)?;
        }
        "US" | "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
            let width = name.strip_prefix("FF").and_then(|digits| digits.parse().ok()).unwrap_or(6);
            let (micros, used) = number(width)?;
            let factor = 10_i64.pow(6_u32.saturating_sub(u32::try_from(used).unwrap_or(6)));
            set(&mut found.micros, micros * factor, pattern)?;
        }
        "A.M." | "P.M." | "AM" | "PM" => {
            let names = if name.contains('.') { ["a.m.", "p.m."] } else { ["am", "pm"] };
            found.is_pm = input.name(pattern, &names, None)? == 1;
            found.is_twelve = true;
        }
        "A.D." | "B.C." => found.is_bc = input.name(pattern, &["a.d.", "b.c."], None)? == 1,
        "AD" | "BC" => found.is_bc = input.name(pattern, &["ad", "bc"], None)? == 1,
        // They have no effect without an ISO week.
        "DAY" => _ = input.name(pattern, &DAYS, None)?,
        "DY" => _ = input.name(pattern, &DAYS, Some(3))?,
        "D" | "Q" => _ = number(1)?,
        "TZH" => {
            found.is_zone_negative = input.rest.starts_with('-');
            input.rest = input.rest.trim_start_matches(['+', '-', ' ']);
            let (hours, _) = input.number(pattern, 2, is_open)?;
            set(&mut found.zone_hours, hours, pattern)?;
        }
        "TZM" => {
            let (minutes, _) = number(2)?;
            set(&mut found.zone_minutes, minutes, pattern)?;
        }
        "CC" | "W" | "WW" | "IW" | "ID" | "IDDD" | "I" | "IY" | "IYY" | "IYYY" => {
            let message = format!("formatting field \"{}\" is not supported in this function", pattern.name);
            return Err(SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, message));
        }
        _ => {
            let message = format!("formatting field \"{}\" is only supported in to_char", pattern.name);
            return Err(SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, message));
        }
    }
    Ok(())
}
