//! Throughput over time around a fault.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::report::tenths;

/// Length of a bucket.
const BUCKET: Duration = Duration::from_millis(100);
const BUCKETS_PER_SECOND: usize = 10;
/// The deepest bucket is searched for within this time after the fault. Later ones have other causes.
const DIP_WITHIN: usize = 5 * BUCKETS_PER_SECOND;
/// The fraction of the mean before the fault at which throughput counts as restored.
const RESTORED: f64 = 0.9;

/// Successful operations in each tenth of a second. The fault is at the boundary between two buckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    pub(crate) bucket_ms: u64,
    /// Number of buckets before the fault.
    pub(crate) before: usize,
    pub(crate) counts: Vec<u32>,
}

/// What the fault has cost, against the mean throughput before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dip {
    /// Mean operations per second before the fault.
    pub(crate) before_per_second: f64,
    /// How far the lowest bucket before the fault was below the mean, in percent: the variation without a fault.
    pub(crate) noise_percent: f64,
    /// How far the lowest bucket after the fault was below the mean, in percent.
    pub(crate) dip_percent: f64,
    /// The same for the lowest second.
    pub(crate) dip_of_second_percent: f64,
    /// From the fault until the first bucket, after the lowest one, with 90% of the mean. Zero if none was below;
    /// absent if that throughput was not reached again.
    pub(crate) restored_ms: Option<u64>,
}

impl Timeline {
    /// Whole buckets of the time from `began` to `ended`.
    pub(crate) fn of(completions: &[Instant], began: Instant, fault: Instant, ended: Instant) -> Self {
        let buckets = |time: Duration| (time.as_nanos() / BUCKET.as_nanos()) as usize;
        let before = buckets(fault.saturating_duration_since(began));
        let mut counts = vec![0; before + buckets(ended.saturating_duration_since(fault))];
        for at in completions {
            let bucket = match at.checked_duration_since(fault) {
                Some(after) => Some(before + buckets(after)),
                None => before.checked_sub(fault.duration_since(*at).as_nanos().div_ceil(BUCKET.as_nanos()) as usize),
            };
            if let Some(count) = bucket.and_then(|bucket| counts.get_mut(bucket)) {
                *count += 1;
            }
        }
        Self { bucket_ms: BUCKET.as_millis() as u64, before, counts }
    }

    /// Seconds relative to the fault of the beginning of each bucket, and its operations per second.
    pub(crate) fn per_second(&self) -> Vec<(f64, f64)> {
        let seconds = self.bucket_ms as f64 / 1_000.0;
        let points = self.counts.iter().enumerate();
        points
            .map(|(bucket, count)| ((bucket as f64 - self.before as f64) * seconds, f64::from(*count) / seconds))
            .collect()
    }

    /// The cost of the fault; `None` without throughput before it, or without a bucket after it.
    pub(crate) fn dip(&self) -> Option<Dip> {
        let (before, after) = self.counts.split_at_checked(self.before)?;
        let mean = mean(before)?;
        let after_dip = &after[..after.len().min(DIP_WITHIN)];
        let below = |count: f64| tenths(((1.0 - count / mean) * 100.0).max(0.0));
        let lowest = |counts: &[u32]| counts.iter().min().copied();
        let (at, deepest) = after_dip.iter().enumerate().min_by_key(|(_, count)| **count)?;
        let second = after_dip.windows(BUCKETS_PER_SECOND.min(after_dip.len())).filter_map(self::mean);
        let is_restored = |count: &u32| f64::from(*count) >= RESTORED * mean;
        let restored =
            if is_restored(deepest) { Some(0) } else { after[at..].iter().position(is_restored).map(|n| n + at) };
        Some(Dip {
            before_per_second: tenths(mean * 1_000.0 / self.bucket_ms as f64),
            noise_percent: below(f64::from(lowest(before)?)),
            dip_percent: below(f64::from(*deepest)),
            dip_of_second_percent: below(second.fold(mean, f64::min)),
            restored_ms: restored.map(|buckets| buckets as u64 * self.bucket_ms),
        })
    }
}

/// The mean of the counts; `None` if it is zero or there are none.
fn mean(counts: &[u32]) -> Option<f64> {
    let sum: u32 = counts.iter().sum();
    (!counts.is_empty()).then(|| f64::from(sum) / counts.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_counted_relative_to_fault() {
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        // The first 50 ms before the fault, and the last 20 ms after it, are no whole buckets.
        let completions = [at(10), at(60), at(149), at(150), at(249), at(250), at(469), at(475), at(900)];
        let timeline = Timeline::of(&completions, began, at(250), at(470));
        assert_eq!((timeline.before, &timeline.counts[..]), (2, &[2, 2, 1, 0][..]));
        let points: Vec<f64> = timeline.per_second().iter().map(|point| point.0).collect();
        assert_eq!(points, [-0.2, -0.1, 0.0, 0.1]);
    }

    fn dip(before: &[u32], after: &[u32]) -> Dip {
        Timeline { bucket_ms: 100, before: before.len(), counts: [before, after].concat() }.dip().expect("counts")
    }

    #[test]
    fn dip_is_relative_to_mean_before() {
        let mut after = vec![100; 40];
        after[..4].copy_from_slice(&[80, 0, 0, 89]);
        after[4] = 190;
        let outage = dip(&[90, 110, 95, 105], &after);
        let expected = Dip {
            before_per_second: 1_000.0,
            noise_percent: 10.0,
            dip_percent: 100.0,
            dip_of_second_percent: 14.1,
            restored_ms: Some(400),
        };
        assert_eq!(outage, expected);
        let none = dip(&[100; 4], &[100, 95, 90, 100]);
        assert_eq!((none.dip_percent, none.restored_ms), (10.0, Some(0)));
        assert_eq!(dip(&[100; 4], &[50, 0, 0]).restored_ms, None);
        let empty = Timeline { bucket_ms: 100, before: 0, counts: vec![1, 2] };
        assert_eq!(empty.dip(), None);
    }
}
