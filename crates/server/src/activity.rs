//! Recent activity of this node: sampled once a second and retained for a few minutes, so that the console can plot it
//! from the moment it is opened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::admin::Activity as Message;
use node::request::Status;

pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Samples retained: three minutes, about 1.5 KiB per status response.
const SAMPLES_MAX: usize = 180;

#[derive(Debug, Default)]
pub(crate) struct Activity(Mutex<RecentActivity>);

/// Input of one sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivitySample<'a> {
    pub(crate) at: Instant,
    /// Requests answered by the data services since the start.
    pub(crate) requests: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) status: &'a Status,
}

/// Activity of one cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) writes_per_second: f64,
    pub(crate) reads_per_second: f64,
}

#[derive(Debug, Default)]
struct RecentActivity {
    last: Option<Totals>,
    resident_bytes: u64,
    requests_per_second: f64,
    cohorts: BTreeMap<u32, Rates>,
    writes_per_second: VecDeque<f32>,
    reads_per_second: VecDeque<f32>,
}

/// Counters at the last sample.
#[derive(Debug)]
struct Totals {
    at: Instant,
    requests: u64,
    /// Writes and reads of each cohort.
    cohorts: BTreeMap<u32, (u64, u64)>,
}

impl Activity {
    pub(crate) fn sample(&self, seen: ActivitySample<'_>) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cohorts = seen.status.cohorts.iter().map(|cohort| (cohort.cohort, (cohort.writes, cohort.reads)));
        let now = Totals { at: seen.at, requests: seen.requests, cohorts: cohorts.collect() };
        if let Some(before) = recent.last.take() {
            recent.add(&before, &now);
        }
        recent.last = Some(now);
        recent.resident_bytes = seen.resident_bytes;
    }

    /// The retained samples, for a status response.
    pub(crate) fn message(&self) -> Message {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Message {
            sample_ms: SAMPLE_INTERVAL.as_millis() as u32,
            resident_bytes: recent.resident_bytes,
            requests_per_second: recent.requests_per_second,
            writes_per_second: recent.writes_per_second.iter().copied().collect(),
            reads_per_second: recent.reads_per_second.iter().copied().collect(),
        }
    }

    /// The rates of a cohort in the last sample.
    pub(crate) fn of_cohort(&self, cohort: u32) -> Rates {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.cohorts.get(&cohort).copied().unwrap_or_default()
    }
}

impl RecentActivity {
    fn add(&mut self, before: &Totals, now: &Totals) {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(f64::EPSILON);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        self.requests_per_second = rate(now.requests, before.requests);
        let of_cohort = |(cohort, (writes, reads)): (&u32, &(u64, u64))| {
            let (writes_before, reads_before) = before.cohorts.get(cohort).copied().unwrap_or_default();
            let rates =
                Rates { writes_per_second: rate(*writes, writes_before), reads_per_second: rate(*reads, reads_before) };
            (*cohort, rates)
        };
        self.cohorts = now.cohorts.iter().map(of_cohort).collect();
        let sum = |of: fn(&Rates) -> f64| self.cohorts.values().map(of).sum::<f64>() as f32;
        let (writes, reads) = (sum(|rates| rates.writes_per_second), sum(|rates| rates.reads_per_second));
        keep(&mut self.writes_per_second, writes);
        keep(&mut self.reads_per_second, reads);
    }
}

fn keep(samples: &mut VecDeque<f32>, sample: f32) {
    if samples.len() == SAMPLES_MAX {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests {
    use base::{KeyRange, Lsn};
    use node::request::{AppliedCatalog, CohortStatus, Counters};

    use super::*;

    fn status(writes: u64, reads: u64) -> Status {
        let cohort = CohortStatus {
            cohort: 2,
            log: None,
            table: "t".into(),
            range: KeyRange::all(),
            leader: Some(1),
            epoch: 1,
            replicas: vec![],
            applied: Lsn::ZERO,
            durability: base::Durability::Forced,
            losses: 0,
            configuration: None,
            sessions: 0,
            prepared: 0,
            bytes: 0,
            writes,
            reads,
        };
        let counters = Counters::default();
        let (troubles, cluster_troubles, cluster_failures) = (vec![], vec![], vec![]);
        let cohorts = vec![cohort];
        Status {
            node: 1,
            incarnation: 1,
            boot: 1,
            clock: Default::default(),
            nodes: vec![],
            cohorts,
            catalog: AppliedCatalog::default(),
            counters,
            transactions: Default::default(),
            members_removed: 0,
            verification: Default::default(),
            troubles,
            cluster_troubles,
            cluster_failures,
        }
    }

    #[test]
    fn rates_use_elapsed_time() {
        let activity = Activity::default();
        let began = Instant::now();
        let sample = |seconds: u64, requests: u64, status: &Status| {
            activity.sample(ActivitySample {
                at: began + Duration::from_secs(seconds),
                requests,
                resident_bytes: 7,
                status,
            });
        };
        sample(0, 10, &status(100, 1_000));
        assert_eq!(activity.of_cohort(2), Rates::default(), "a single sample has no rate");
        sample(2, 30, &status(120, 1_100));
        assert_eq!(activity.of_cohort(2), Rates { writes_per_second: 10.0, reads_per_second: 50.0 });
        assert_eq!(activity.of_cohort(3), Rates::default());
        sample(3, 30, &status(120, 1_100));
        let message = activity.message();
        assert_eq!((message.resident_bytes, message.requests_per_second), (7, 0.0));
        assert_eq!(message.writes_per_second, [10.0, 0.0]);
        assert_eq!(message.reads_per_second, [50.0, 0.0]);
    }

    #[test]
    fn sample_history_limit() {
        let activity = Activity::default();
        let began = Instant::now();
        for second in 0..2 * SAMPLES_MAX as u64 {
            let at = began + Duration::from_secs(second);
            activity.sample(ActivitySample { at, requests: 0, resident_bytes: 0, status: &status(second, 0) });
        }
        assert_eq!(activity.message().writes_per_second, vec![1.0; SAMPLES_MAX]);
    }
}
