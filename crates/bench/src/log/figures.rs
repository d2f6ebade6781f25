//! The results of a turn: as a line of the table, as JSON, for comparisons, and for plots.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base::counted;
use serde::{Deserialize, Serialize};

use super::super::meter::{Cpu, Latencies, per_operation};
use super::super::pairs::{Compared, Figure};
use super::super::plot::{OfBench, PlotPoint, Strip};
use super::super::report::{Line, or_dash, tenths};
use super::What;
use super::clients::TestLog;

/// The parameters of a measurement of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Shape {
    pub(crate) stripes: u32,
    pub(crate) copies: u32,
    /// Appenders, or concurrent reads.
    pub(crate) clients: usize,
    pub(crate) value_bytes: usize,
    pub(crate) batch: usize,
}

impl Shape {
    /// The parameters that both sides of a comparison share: all but the stripes.
    pub(crate) fn compared(self) -> ComparedParameters {
        let Self { copies, clients, value_bytes, batch, .. } = self;
        ComparedParameters { copies, clients, value_bytes, batch }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stripes, {}", self.stripes, self.compared())
    }
}

/// The parameters that the sides of a comparison share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ComparedParameters {
    copies: u32,
    clients: usize,
    value_bytes: usize,
    batch: usize,
}

impl fmt::Display for ComparedParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copies, clients, value_bytes, batch } = self;
        let (clients, copies) = (counted(*clients as u64, "client"), counted((*copies).into(), "copy"));
        write!(f, "{clients}, {batch} x {value_bytes} B, {copies}")
    }
}

/// The results of a turn as JSON. Scripts depend on the fields.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) bench: &'static str,
    pub(crate) operation: &'static str,
    #[serde(flatten)]
    pub(crate) shape: Shape,
    /// The nodes of the chains of new positions, each from head to tail; and the sequencer's node.
    pub(crate) chains: Vec<Vec<u32>>,
    pub(crate) sequencer: u32,
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) operations_per_second: f64,
    pub(crate) entries: u64,
    pub(crate) entries_per_second: f64,
    /// `None` for a subscription.
    #[serde(flatten)]
    pub(crate) latencies: Option<Latencies>,
    pub(crate) errors: u64,
    /// The longest time in which no client got a response.
    pub(crate) longest_gap_us: Option<u64>,
    /// Of all servers together.
    pub(crate) server_cpu_us_per_operation: Option<f64>,
    pub(crate) server_cpu_us_per_entry: Option<f64>,
    /// Of the benchmark itself.
    pub(crate) client_cpu_us_per_operation: Option<f64>,
    pub(crate) load_average: Option<f64>,
    #[serde(skip)]
    pub(crate) last_error: Option<sdk::Error>,
}

impl Figures {
    /// The figures of this number of operations and entries within `time`.
    pub(crate) fn of(what: What, placed: &TestLog, time: Duration, operations: u64, entries: u64, cpu: Cpu) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            bench: "log",
            operation: what.name(),
            shape: placed.shape,
            chains: placed.chains.clone(),
            sequencer: placed.sequencer,
            seconds: tenths(seconds),
            operations,
            operations_per_second: tenths(operations as f64 / seconds),
            entries,
            entries_per_second: tenths(entries as f64 / seconds),
            latencies: None,
            errors: 0,
            longest_gap_us: None,
            server_cpu_us_per_operation: per_operation(cpu.servers, operations),
            server_cpu_us_per_entry: per_operation(cpu.servers, entries),
            client_cpu_us_per_operation: per_operation(cpu.client, operations),
            load_average: super::super::servers::load_average(),
            last_error: None,
        }
    }

    fn latency(&self, of: fn(Latencies) -> f64) -> String {
        or_dash(self.latencies.map(|latencies| format!("{:.0}", of(latencies))))
    }
}

impl Line for Figures {
    const HEADING: &'static str = "OPERATION      STRIPES  CLIENTS  VALUE B  BATCH  ENTRIES/S      OP/S    P50 US    P99 US  \
                                   P99.9 US    MAX US  ERRORS  GAP MS  CPU US/ENTRY  CPU US/OP  CLIENT US/OP  LOAD";

    fn line(&self) -> String {
        let Shape { stripes, clients, value_bytes, batch, .. } = self.shape;
        format!(
            "{:13}  {stripes:>7}  {clients:>7}  {value_bytes:>7}  {batch:>5}  {:>9.0}  {:>8.0}  {:>8}  {:>8}  {:>8}  {:>8}  \
             {:>6}  {:>6}  {:>12}  {:>9}  {:>12}  {:>4}",
            self.operation,
            self.entries_per_second,
            self.operations_per_second,
            self.latency(|latencies| latencies.p50_us),
            self.latency(|latencies| latencies.p99_us),
            self.latency(|latencies| latencies.p999_us),
            self.latency(|latencies| latencies.max_us),
            self.errors,
            or_dash(self.longest_gap_us.map(|us| us / 1_000)),
            or_dash(self.server_cpu_us_per_entry),
            or_dash(self.server_cpu_us_per_operation),
            or_dash(self.client_cpu_us_per_operation),
            or_dash(self.load_average),
        )
    }

    fn doubts(&self) -> Vec<String> {
        let failed = self.last_error.as_ref();
        let failed = failed.map(|error| format!("{} operations failed, the last with: {error}", self.errors));
        failed.into_iter().collect()
    }
}

impl Compared for Figures {
    type Point = ComparedParameters;

    const FIGURES: &'static [(&'static str, Figure<Self>, usize)] = &[
        ("entries_per_second", |figures| Some(figures.entries_per_second), 0),
        ("p50_us", |figures| Some(figures.latencies?.p50_us), 0),
        ("p99_us", |figures| Some(figures.latencies?.p99_us), 0),
        ("server_cpu_us_per_operation", |figures| figures.server_cpu_us_per_operation, 1),
    ];

    fn has_done_nothing(&self) -> bool {
        self.operations == 0
    }

    fn load_average(&self) -> Option<f64> {
        self.load_average
    }
}

/// The fields of a measurement that plots need.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Measured {
    operation: String,
    stripes: u32,
    copies: u32,
    clients: usize,
    value_bytes: usize,
    batch: usize,
    entries_per_second: f64,
    #[serde(default)]
    mean_us: f64,
    #[serde(default)]
    p99_us: f64,
}

impl OfBench for Measured {
    const BENCH: &'static str = "log";
}

impl Measured {
    pub(crate) fn of(figures: &Figures) -> Self {
        let object = serde_json::to_value(figures).expect("numbers and names");
        serde_json::from_value(object).expect("the figures contain these fields")
    }

    fn curve(&self) -> String {
        let Self { operation, stripes, copies, value_bytes, batch, .. } = self;
        let (stripes, copies) = (counted((*stripes).into(), "stripe"), counted((*copies).into(), "copy"));
        format!("{operation}, {batch} x {value_bytes} B, {stripes} of {copies}")
    }

    /// Its point on a curve of latency against load.
    pub(crate) fn plot_point(&self) -> PlotPoint {
        PlotPoint {
            curve: self.curve(),
            requested: self.clients as u64,
            load: self.entries_per_second,
            mean_ms: self.mean_us / 1_000.0,
            p99_ms: self.p99_us / 1_000.0,
            is_saturated: false,
        }
    }

    /// The entries per second of subscriptions, with a column for each kind.
    pub(crate) fn strips(measured: &[Self]) -> Vec<Strip> {
        let mut by_name: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for measured in measured.iter().filter(|measured| measured.operation == What::Follow.name()) {
            let Self { stripes, value_bytes, batch, .. } = measured;
            let name = format!("{batch} x {value_bytes} B, x{stripes}");
            by_name.entry(name).or_default().push(measured.entries_per_second);
        }
        by_name.into_iter().map(|(name, measurements)| Strip { name, measurements }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;

    fn figures(what: What) -> Figures {
        let shape = Shape { stripes: 2, copies: 2, clients: 64, value_bytes: 512, batch: 64 };
        let placed = TestLog { chains: vec![vec![1, 2], vec![2, 3]], sequencer: 1, ..TestLog::named("l", shape) };
        let cpu = Cpu { servers: Some(Duration::from_millis(640)), client: Some(Duration::from_millis(100)) };
        Figures::of(what, &placed, Duration::from_secs(2), 1_000, 64_000, cpu)
    }

    #[test]
    fn log_turn_json_schema() {
        let mut latencies = Histogram::new(3).expect("constants");
        latencies.record_n(500, 10).expect("in range");
        let figures = Figures {
            latencies: Some(Latencies::of(&latencies, 1.0)),
            load_average: Some(1.5),
            ..figures(What::Append)
        };
        assert_eq!(
            serde_json::to_string(&figures).expect("numbers and names"),
            "{\"bench\":\"log\",\"operation\":\"append\",\"stripes\":2,\"copies\":2,\"clients\":64,\"value_bytes\":512,\
             \"batch\":64,\"chains\":[[1,2],[2,3]],\"sequencer\":1,\"seconds\":2.0,\
             \"operations\":1000,\"operations_per_second\":500.0,\"entries\":64000,\"entries_per_second\":32000.0,\
             \"mean_us\":500.0,\"p50_us\":500.0,\"p99_us\":500.0,\"p999_us\":500.0,\"max_us\":500.0,\"errors\":0,\
             \"longest_gap_us\":null,\"server_cpu_us_per_operation\":640.0,\"server_cpu_us_per_entry\":10.0,\
             \"client_cpu_us_per_operation\":100.0,\"load_average\":1.5}"
        );
        assert!(Figures::HEADING.starts_with("OPERATION"));
        let measured = Measured::of(&figures);
        assert_eq!(measured.plot_point().curve, "append, 64 x 512 B, 2 stripes of 2 copies");
        assert_eq!((measured.plot_point().mean_ms, Measured::strips(&[measured])), (0.5, vec![]));
    }

    #[test]
    fn follower_figures_omit_latency() {
        let followed = figures(What::Follow);
        let object = serde_json::to_string(&followed).expect("numbers and names");
        assert!(!object.contains("p50_us"), "{object}");
        let strips = Measured::strips(&[Measured::of(&followed), Measured::of(&followed)]);
        assert_eq!(strips, [Strip { name: "64 x 512 B, x2".into(), measurements: vec![32_000.0; 2] }]);
        assert!(
            followed
                .line()
                .starts_with("read follow          2       64      512     64      32000       500         -")
        );
    }
}
