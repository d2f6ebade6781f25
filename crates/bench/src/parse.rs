//! Parsers for command line numbers with a range.

use std::time::Duration;

const PHASE_TIME_MAX: Duration = Duration::from_secs(86_400);

/// A count of at least one.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "not a number of at least 1".to_owned())
}

/// The duration of a phase, at most a day. A plain number is accepted as seconds, for `--seconds 10`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let too_long = || "above the limit of 1d".to_owned();
    let time = text.parse().map_or_else(|_| terminal::duration(text), |seconds| Ok(Duration::from_secs(seconds)));
    time.and_then(|time| if time > PHASE_TIME_MAX { Err(too_long()) } else { Ok(time) })
}

/// The bound on the error of a clock, which may be in microseconds.
pub(crate) fn uncertainty(text: &str) -> Result<Duration, String> {
    let micros = text.strip_suffix("us").and_then(|number| number.parse().ok());
    micros.map_or_else(|| terminal::duration(text), |micros| Ok(Duration::from_micros(micros)))
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let invalid = || "not a number of operations per second from 0.1 to 1000000".to_owned();
    text.parse().ok().filter(|rate| (0.1..=1_000_000.0).contains(rate)).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_out_of_range_numbers() {
        assert_eq!(positive("64"), Ok(64));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!((time("0s"), time("1d")), (Ok(Duration::ZERO), Ok(PHASE_TIME_MAX)));
        assert!(time("-1s").is_err() && time("2d").is_err() && time("100000").is_err());
        assert_eq!(time("5"), Ok(Duration::from_secs(5)));
        assert_eq!(uncertainty("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(uncertainty("4ms"), Ok(Duration::from_millis(4)));
        assert!(uncertainty("us").is_err() && uncertainty("-1us").is_err());
        assert_eq!(rate("2500.5"), Ok(2_500.5));
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("inf").is_err() && rate("NaN").is_err());
    }
}
