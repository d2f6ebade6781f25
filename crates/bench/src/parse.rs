//! Parsers for command line numbers with a range.

/// A count of at least one.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "not a number of at least 1".to_owned())
}

/// Seconds, possibly with a fraction.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let invalid = || "not a number of seconds from 0 to 86400".to_owned();
    text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds)).ok_or_else(invalid)
}

/// Operations per second.
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
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(seconds("-1").is_err() && seconds("inf").is_err() && seconds("NaN").is_err());
        assert_eq!(rate("2500.5"), Ok(2_500.5));
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("inf").is_err() && rate("NaN").is_err());
    }
}
