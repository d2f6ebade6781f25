//! The results of a measurement: as a line of the table, as JSON, and for comparisons.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::pgbench::Outcome;
use super::workload::Workload;
use crate::meter::{Latencies, per_operation};
use crate::pairs::{Compared, Figure};
use crate::report::{Line, or_dash, tenths};
use crate::servers::load_average;

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shape {
    pub(super) workload: Workload,
    pub(super) clients: usize,
    /// pgbench's scale: 100,000 accounts each.
    pub(super) scale: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, clients, scale } = self;
        write!(f, "{}, {clients} clients, scale {scale}", workload.name())
    }
}

/// The results of one measurement as JSON. Scripts depend on the fields.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    bench: &'static str,
    side: Option<&'static str>,
    system: &'static str,
    #[serde(flatten)]
    shape: Shape,
    seconds: f64,
    transactions: u64,
    operations_per_second: f64,
    /// Mean of all transactions, by pgbench.
    average_us: f64,
    /// Latencies of the logged transactions.
    #[serde(flatten)]
    latencies: Option<Latencies>,
    /// Transactions that failed after all tries.
    failed: u64,
    /// Attempts after a serialization failure.
    retries: u64,
    server_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
}

impl Figures {
    pub(super) fn of(
        (side, system): (Option<&'static str>, &'static str),
        shape: Shape,
        done: &Outcome,
        cpu: Option<Duration>,
    ) -> Self {
        Self {
            bench: "sql",
            side,
            system,
            shape,
            seconds: tenths(done.seconds),
            transactions: done.transactions,
            operations_per_second: tenths(done.per_second),
            average_us: tenths(done.average_us),
            latencies: (!done.latencies_us.is_empty()).then(|| Latencies::of(&done.latencies_us, 1.0)),
            failed: done.failed,
            retries: done.retries,
            server_cpu_us_per_operation: per_operation(cpu, done.transactions),
            load_average: load_average(),
        }
    }

    fn latency(&self, of: fn(Latencies) -> f64) -> Option<f64> {
        self.latencies.map(of)
    }
}

impl Line for Figures {
    const HEADING: &'static str = "SYSTEM       WORKLOAD     CLIENTS  SCALE       OP/S   AVERAGE US    P50 US    P99 US  RETRIES  FAILED  \
                                   CPU US/OP  LOAD";

    fn line(&self) -> String {
        let Self { shape: Shape { workload, clients, scale }, operations_per_second, average_us, .. } = self;
        let system = self.side.map_or_else(|| self.system.to_owned(), |side| format!("{side} {}", self.system));
        format!(
            "{system:<12} {:<11} {clients:>8} {scale:>6} {operations_per_second:>10} {average_us:>12} {:>9} {:>9} {:>8} {:>7} {:>10} \
             {:>5}",
            workload.name(),
            or_dash(self.latency(|latencies| latencies.p50_us)),
            or_dash(self.latency(|latencies| latencies.p99_us)),
            self.retries,
            self.failed,
            or_dash(self.server_cpu_us_per_operation),
            or_dash(self.load_average)
        )
    }

    fn doubts(&self) -> Vec<String> {
        let Self { failed, transactions, .. } = self;
        let doubt = || format!("{failed} transactions were given up, {transactions} done; increase --max-tries");
        (*failed > 0).then(doubt).into_iter().collect()
    }
}

impl Compared for Figures {
    type Point = Shape;

    const FIGURES: &'static [(&'static str, Figure<Self>, usize)] = &[
        ("operations_per_second", |figures| Some(figures.operations_per_second), 0),
        ("average_us", |figures| Some(figures.average_us), 0),
        ("p50_us", |figures| figures.latency(|latencies| latencies.p50_us), 0),
        ("p99_us", |figures| figures.latency(|latencies| latencies.p99_us), 0),
        ("server_cpu_us_per_operation", |figures| figures.server_cpu_us_per_operation, 1),
    ];

    fn has_done_nothing(&self) -> bool {
        self.transactions == 0
    }

    fn load_average(&self) -> Option<f64> {
        self.load_average
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_shape_and_counts() {
        let done = Outcome { transactions: 10, per_second: 5.04, retries: 3, seconds: 2.0, ..Outcome::default() };
        let shape = Shape { workload: Workload::TpcB, clients: 16, scale: 2 };
        let figures = Figures::of((Some("A"), "loggos"), shape, &done, Some(Duration::from_millis(1)));
        let json = serde_json::to_string(&figures).expect("numbers and names");
        let start =
            r#"{"bench":"sql","side":"A","system":"loggos","workload":"tpc-b","clients":16,"scale":2,"seconds":2.0"#;
        assert!(json.starts_with(start), "{json}");
        assert!(json.contains(r#""failed":0,"retries":3,"server_cpu_us_per_operation":100.0"#), "{json}");
        assert!(
            figures.line().starts_with("A loggos     tpc-b             16      2          5 "),
            "{}",
            figures.line()
        );
    }
}
