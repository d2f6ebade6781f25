//! The result of a measurement: a table row, a JSON object, a side of a comparison, a point of a plot.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Write;
use crate::meter::{Cpu, Latencies, per_operation};
use crate::pairs::{Compared, Figure};
use crate::plot::{OfBench, PlotPoint};
use crate::recorder::Counted;
use crate::report::{Line, or_dash, tenths};
use crate::servers::load_average;
use crate::statistics::Spread;

/// The load that the sessions generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Shape {
    pub(super) connections: usize,
    /// Outstanding requests per session.
    pub(super) outstanding: usize,
    pub(super) read_percent: u8,
    pub(super) write: Write,
    pub(super) value_bytes: usize,
    /// Nodes that are read and set.
    pub(super) nodes: usize,
}

impl Shape {
    const fn operation(self) -> &'static str {
        match (self.read_percent, self.write) {
            (100, _) => "get",
            (0, Write::Set) => "set",
            (0, Write::Create) => "create",
            (_, Write::Set) => "get and set",
            (_, Write::Create) => "get and create",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, outstanding, read_percent, value_bytes, .. } = self;
        write!(f, "{}, {connections} x {outstanding}, {read_percent}% reads, {value_bytes} B", self.operation())
    }
}

/// The result of a measurement as JSON. Scripts rely on the field names.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    bench: &'static str,
    /// The side of a comparison.
    side: Option<&'static str>,
    operation: &'static str,
    #[serde(flatten)]
    shape: Shape,
    seconds: f64,
    pub(super) operations: u64,
    operations_per_second: f64,
    #[serde(flatten)]
    latencies: Option<Latencies>,
    errors: u64,
    /// The longest time without a reply to any session.
    longest_gap_us: u64,
    /// CPU time per operation of all servers together.
    server_cpu_us_per_operation: Option<f64>,
    /// CPU time per operation of the benchmark itself.
    client_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
    #[serde(skip)]
    pub(super) last_error: Option<sdk::Error>,
}

impl Figures {
    pub(super) fn of(side: Option<&'static str>, shape: Shape, counted: Counted, cpu: Cpu) -> Self {
        let (operations, seconds) = (counted.operations(), counted.elapsed.as_secs_f64());
        Self {
            bench: Measured::BENCH,
            side,
            operation: shape.operation(),
            shape,
            seconds: tenths(seconds),
            operations,
            operations_per_second: tenths(operations as f64 / seconds),
            latencies: (operations > 0).then(|| Latencies::of(&counted.latencies_us, 1.0)),
            errors: counted.errors,
            longest_gap_us: counted.longest_gap.length().as_micros() as u64,
            server_cpu_us_per_operation: per_operation(cpu.servers, operations),
            client_cpu_us_per_operation: per_operation(cpu.client, operations),
            load_average: load_average(),
            last_error: counted.last_error,
        }
    }

    fn latency(&self, of: fn(Latencies) -> f64) -> String {
        or_dash(self.latencies.map(|latencies| format!("{:.0}", of(latencies))))
    }
}

impl Line for Figures {
    const HEADING: &'static str = "SIDE  OPERATION       CONNECTIONS  OUTSTANDING  READ %  VALUE B       OP/S    P50 US     \
                                   P99 US   P99.9 US     MAX US  ERRORS  GAP MS  CPU US/OP  CLIENT US/OP  LOAD";

    fn line(&self) -> String {
        let Shape { connections, outstanding, read_percent, value_bytes, .. } = self.shape;
        format!(
            "{:4}  {:14}  {connections:>11}  {outstanding:>11}  {read_percent:>6}  {value_bytes:>7}  {:>9.0}  {:>8}  \
             {:>9}  {:>9}  {:>9}  {:>6}  {:>6}  {:>9}  {:>12}  {:>4}",
            self.side.unwrap_or("-"),
            self.operation,
            self.operations_per_second,
            self.latency(|latencies| latencies.p50_us),
            self.latency(|latencies| latencies.p99_us),
            self.latency(|latencies| latencies.p999_us),
            self.latency(|latencies| latencies.max_us),
            self.errors,
            self.longest_gap_us / 1_000,
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
    type Point = Shape;

    const FIGURES: &'static [(&'static str, Figure<Self>, usize)] = &[
        ("operations_per_second", |figures| Some(figures.operations_per_second), 0),
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

/// The fields of a measurement that a plot uses.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Measured {
    side: Option<String>,
    operation: String,
    connections: usize,
    outstanding: usize,
    read_percent: u8,
    value_bytes: usize,
    operations_per_second: f64,
    #[serde(default)]
    mean_us: f64,
    #[serde(default)]
    p99_us: f64,
}

impl OfBench for Measured {
    const BENCH: &'static str = "zookeeper";
}

impl Measured {
    pub(super) fn of(figures: &Figures) -> Self {
        let object = serde_json::to_value(figures).expect("numbers and names");
        serde_json::from_value(object).expect("the figures contain these fields")
    }

    fn side(&self) -> String {
        self.side.as_ref().map_or_else(String::new, |side| format!("{side}: "))
    }

    /// Its point in a plot of latency by load.
    pub(super) fn plot_point(&self) -> PlotPoint {
        PlotPoint {
            curve: format!("{}{}, {}% reads, {} B", self.side(), self.operation, self.read_percent, self.value_bytes),
            requested: (self.connections * self.outstanding) as u64,
            load: self.operations_per_second,
            mean_ms: self.mean_us / 1_000.0,
            p99_ms: self.p99_us / 1_000.0,
            is_saturated: false,
        }
    }

    /// Curves of throughput by read percentage, with the medians of repeated measurements.
    pub(super) fn by_reads(measured: &[Self]) -> BTreeMap<String, Vec<(f64, f64)>> {
        let mut curves: BTreeMap<String, BTreeMap<u8, Vec<f64>>> = BTreeMap::new();
        for measured in measured {
            let Self { connections, outstanding, value_bytes, .. } = measured;
            let name = format!("{}{connections} x {outstanding}, {value_bytes} B", measured.side());
            let points = curves.entry(name).or_default().entry(measured.read_percent).or_default();
            points.push(measured.operations_per_second);
        }
        let point = |(reads, rates): (u8, Vec<f64>)| Some((f64::from(reads), Spread::of(&rates)?.median));
        curves.into_iter().map(|(name, points)| (name, points.into_iter().filter_map(point).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use hdrhistogram::Histogram;

    use super::*;
    use crate::recorder::Gap;

    fn figures(side: &'static str, read_percent: u8, operations: u64) -> Figures {
        let mut latencies_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constants");
        latencies_us.record_n(500, operations).expect("in range");
        let now = Instant::now();
        let counted = Counted {
            elapsed: Duration::from_secs(2),
            latencies_us,
            unfinished: 0,
            longest_gap: Gap { began: now, ended: now + Duration::from_millis(3), is_open: false },
            conflicts: 0,
            held_back: 0,
            errors: 1,
            last_error: None,
            successes: Vec::new(),
        };
        let shape = Shape {
            connections: 12,
            outstanding: 256,
            read_percent,
            write: Write::Set,
            value_bytes: 512,
            nodes: 1_000,
        };
        let cpu = Cpu { servers: Some(Duration::from_millis(100)), client: None };
        Figures { load_average: Some(1.5), ..Figures::of(Some(side), shape, counted, cpu) }
    }

    #[test]
    fn zookeeper_turn_json_schema() {
        assert_eq!(
            serde_json::to_string(&figures("A", 0, 1_000)).expect("numbers and names"),
            "{\"bench\":\"zookeeper\",\"side\":\"A\",\"operation\":\"set\",\"connections\":12,\"outstanding\":256,\
             \"read_percent\":0,\"write\":\"set\",\"value_bytes\":512,\"nodes\":1000,\"seconds\":2.0,\
             \"operations\":1000,\"operations_per_second\":500.0,\"mean_us\":500.0,\"p50_us\":500.0,\"p99_us\":500.0,\
             \"p999_us\":500.0,\"max_us\":500.0,\"errors\":1,\"longest_gap_us\":3000,\
             \"server_cpu_us_per_operation\":100.0,\"client_cpu_us_per_operation\":null,\"load_average\":1.5}"
        );
    }

    #[test]
    fn throughput_curves_are_medians() {
        let turns = [("A", 0, 10), ("A", 0, 30), ("A", 0, 20), ("A", 100, 80), ("B", 0, 6)];
        let measured = turns.map(|(side, reads, operations)| Measured::of(&figures(side, reads, operations)));
        let curves = Measured::by_reads(&measured);
        assert_eq!(curves["A: 12 x 256, 512 B"], [(0.0, 10.0), (100.0, 40.0)]);
        assert_eq!(curves["B: 12 x 256, 512 B"], [(0.0, 3.0)]);
        assert_eq!(
            (measured[0].plot_point().requested, measured[3].plot_point().curve),
            (3_072, "A: get, 100% reads, 512 B".into())
        );
    }
}
