//! Medians, ranges, and confidence bounds of medians.

use serde::Serialize;

/// Error probability of a bound.
const RISK: f64 = 0.05;

/// Median and range of several measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Spread {
    /// Of measurements in any order; `None` without measurements.
    pub(crate) fn of(measurements: &[f64]) -> Option<Self> {
        let sorted = sorted(measurements);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, lowest, highest })
    }
}

/// An upper bound of the median of the population that the measurements are a sample of, with a confidence of 95 % for
/// any distribution. `None` with fewer than five measurements, which are too few.
///
/// It inverts the sign test. Each measurement is below the true median with a probability of one half, so the number
/// below it is binomial. The k-th smallest is below the median only if at least k measurements are; the bound is the
/// smallest k-th for which that has a probability of at most 5 %. (For five measurements it is the largest: all five
/// are below the median with a probability of 1/32.) The measurements must be independent and identically distributed,
/// which is approximately true for turns that alternate within minutes.
pub(crate) fn upper_bound_of_median(measurements: &[f64]) -> Option<f64> {
    let sorted = sorted(measurements);
    Some(sorted[rank(sorted.len())? - 1])
}

/// The corresponding lower bound.
pub(crate) fn lower_bound_of_median(measurements: &[f64]) -> Option<f64> {
    let sorted = sorted(measurements);
    Some(sorted[sorted.len() - rank(sorted.len())?])
}

/// The smallest k such that k or more of `count` fair coins fall on one side with a probability of at most [`RISK`].
fn rank(count: usize) -> Option<usize> {
    let (mut probability, mut tail, mut found) = (0.5_f64.powi(i32::try_from(count).ok()?), 0.0, None);
    // Downwards from k = count, which has a single outcome.
    for k in (1..=count).rev() {
        tail += probability;
        if tail > RISK {
            break;
        }
        found = Some(k);
        probability *= k as f64 / (count - k + 1) as f64;
    }
    found
}

fn sorted(measurements: &[f64]) -> Vec<f64> {
    let mut sorted = measurements.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::SplitMix64;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, lowest: 1.0, highest: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, lowest: 1.0, highest: 4.0 }));
    }

    /// The ranks of one-sided sign tests, as in published tables.
    #[test]
    fn sign_test_order_statistics() {
        let ranks = [(4, None), (5, Some(5)), (6, Some(6)), (7, Some(7)), (8, Some(7)), (10, Some(9)), (20, Some(15))];
        for (count, expected) in ranks {
            assert_eq!(rank(count), expected, "{count}");
        }
        let measurements: Vec<f64> = (1..=8).rev().map(f64::from).collect();
        assert_eq!(upper_bound_of_median(&measurements), Some(7.0));
        assert_eq!(lower_bound_of_median(&measurements), Some(2.0));
        assert_eq!(upper_bound_of_median(&measurements[..4]), None);
        assert_eq!(rank(0), None);
        assert!(rank(1_000).is_some_and(|rank| (520..540).contains(&rank)));
    }

    #[test]
    fn bounds_have_95_percent_coverage() {
        let (mut draw, mut wrong) = (SplitMix64::new(1), 0);
        for _ in 0..10_000 {
            // Skewed like latencies; the median of the population is one half cubed.
            let sample: Vec<f64> = (0..9).map(|_| (draw.below(1 << 30) as f64 / f64::from(1 << 30)).powi(3)).collect();
            wrong += u32::from(upper_bound_of_median(&sample).expect("nine are enough") < 0.125);
        }
        // Eight or more of nine coins: 10 in 512.
        assert!((150..250).contains(&wrong), "{wrong}");
    }
}
