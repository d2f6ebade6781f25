//! Calendar arithmetic over PostgreSQL's whole range of years. Days and microseconds count from 2000-01-01, as on its
//! wire.

/// Days from 1970-01-01 to 2000-01-01.
pub const UNIX_DAYS: i64 = 10_957;
/// The microseconds of a day.
pub const MICROS_PER_DAY: i64 = 86_400_000_000;
/// The first day: 4714-11-24 BC.
pub const DAY_MIN: i32 = -2_451_545;
/// The last day: 5874897-12-31.
pub const DAY_MAX: i32 = 2_145_031_948;
/// The first instant: 4714-11-24 00:00:00 BC.
pub const MICROS_MIN: i64 = -211_813_488_000_000_000;
/// The first instant after the last one: 294277-01-01 00:00:00.
pub const MICROS_END: i64 = 9_223_371_331_200_000_000;

/// The days of a date of the proleptic Gregorian calendar; year 0 is 1 BC. The algorithm is Howard Hinnant's
/// `days_from_civil`.
#[must_use]
pub fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month = i64::from(month);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468 - UNIX_DAYS
}

/// The year, month and day.
#[must_use]
pub fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let z = days + UNIX_DAYS + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
}

/// The days of a month, from 1 to 12.
#[must_use]
pub fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        2 if year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Adds months; a day after the month's end becomes its last day.
#[must_use]
pub fn add_months(days: i64, months: i32) -> i64 {
    let (year, month, day) = civil_from_days(days);
    let total = year * 12 + i64::from(month) - 1 + i64::from(months);
    let (year, month) = (total.div_euclid(12), u32::try_from(total.rem_euclid(12)).unwrap_or(0) + 1);
    days_from_civil(year, month, day.min(days_in_month(year, month)))
}
