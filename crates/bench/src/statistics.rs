//! Medians, ranges, and how sure a median is.

use serde::Serialize;

/// What a bound may be wrong with: one time in twenty.
const RISK: f64 = 0.05;

/// The middle and the ends of several measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Spread {
    /// Of measurements in any order; none without a measurement.
    pub(crate) fn of(measurements: &[f64]) -> Option<Self> {
        let sorted = sorted(measurements);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, lowest, highest })
    }
}

/// What the median of the whole population, of which the measurements are a sample, is not above: wrong at most one
/// time in twenty, whatever the distribution. None if there are too few measurements to say so: fewer than five.
///
/// It is the sign test turned around. Each measurement lies below the true median with a probability of one half, so
/// that the number of those below is binomial. The k-th smallest is below the median only if k of them are, at least;
/// the bound is the smallest k-th for which that has a probability of one in twenty or less. (Of five measurements it
/// is the largest: all five lie below the median one time in 32.) The measurements must be independent of each other
/// and of one distribution, which turns that alternate within minutes come close to.
pub(crate) fn upper_bound_of_median(measurements: &[f64]) -> Option<f64> {
    let sorted = sorted(measurements);
    Some(sorted[rank(sorted.len())? - 1])
}

/// The same from below: what the median is not below.
pub(crate) fn lower_bound_of_median(measurements: &[f64]) -> Option<f64> {
    let sorted = sorted(measurements);
    Some(sorted[sorted.len() - rank(sorted.len())?])
}

/// The smallest k such that of so many fair coins k or more fall on one side with a probability of [`RISK`] at most.
fn rank(count: usize) -> Option<usize> {
    let (mut probability, mut tail, mut found) = (0.5_f64.powi(i32::try_from(count).ok()?), 0.0, None);
    // From k = count, where one outcome of all is enough, downwards.
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
    fn the_median_is_the_middle_or_between_two() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, lowest: 1.0, highest: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { median: 2.5, lowest: 1.0, highest: 4.0 }));
    }

    /// The ranks of one-sided sign tests, as tables have them.
    #[test]
    fn bounds_are_the_order_statistics_of_the_sign_test() {
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
    fn a_bound_is_wrong_one_time_in_twenty_at_most() {
        let (mut draw, mut wrong) = (SplitMix64::new(1), 0);
        for _ in 0..10_000 {
            // As skewed as latencies are; the median of all is one half cubed.
            let sample: Vec<f64> = (0..9).map(|_| (draw.below(1 << 30) as f64 / f64::from(1 << 30)).powi(3)).collect();
            wrong += u32::from(upper_bound_of_median(&sample).expect("nine are enough") < 0.125);
        }
        // Of nine coins eight or more: 10 in 512.
        assert!((150..250).contains(&wrong), "{wrong}");
    }
}
