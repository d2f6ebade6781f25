//! Durations and points in time on the command line.

use std::time::Duration;

/// The units, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses a duration with its unit, such as `500ms` or `10s`; zero is `0s`.
///
/// # Errors
/// If the unit is missing, or the duration is too long.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit).filter(|_| digits > 0);
    let (_, milliseconds) = unit.ok_or("a duration is a number with a unit: ms, s, m, h or d, such as 500ms or 10s")?;
    let time = number.parse().ok().and_then(|number: u64| number.checked_mul(*milliseconds));
    time.map(Duration::from_millis).ok_or_else(|| "a duration must be below 2^64 ms".into())
}

/// Parses a duration above zero.
///
/// # Errors
/// As for [`duration`].
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("a duration must be positive".into()) } else { Ok(time) })
}

/// Parses a point in time: nanoseconds since 1970, such as a version, or RFC 3339.
///
/// # Errors
/// If it is neither, or out of range.
pub fn timestamp_ns(text: &str) -> Result<i64, String> {
    if let Ok(nanoseconds) = text.parse() {
        return Ok(nanoseconds);
    }
    let wanted = "a time is a version, a number of nanoseconds since 1970, or RFC 3339, such as 2026-11-25T16:30:00Z";
    let time: prost_types::Timestamp = text.parse().ok().filter(|_| text.contains(['T', 't'])).ok_or(wanted)?;
    let nanoseconds = time.seconds.checked_mul(1_000_000_000).and_then(|whole| whole.checked_add(time.nanos.into()));
    nanoseconds.ok_or_else(|| "a time must be between the years 1678 and 2261".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in [("500ms", 500), ("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for text in ["5", "s", "", "-1s", "1.5s", "1w", "99999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0ms").is_err() && positive_duration("1ms").is_ok());
    }

    #[test]
    fn times_as_nanoseconds_or_rfc_3339() {
        assert_eq!(timestamp_ns("1763668800000000001"), Ok(1_763_668_800_000_000_001));
        assert_eq!(timestamp_ns("-1"), Ok(-1));
        let noon = Ok(1_764_072_000_500_000_000);
        assert_eq!(timestamp_ns("2025-11-25T12:00:00.5Z"), noon);
        assert_eq!(timestamp_ns("2025-11-25T14:00:00.5+02:00"), noon);
        for text in
            ["", "yesterday", "2025-11-25", "2025-13-25T12:00:00Z", "9999-01-01T00:00:00Z", "99999999999999999999"]
        {
            assert!(timestamp_ns(text).is_err(), "{text}");
        }
    }
}
