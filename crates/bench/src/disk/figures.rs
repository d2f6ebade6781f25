//! The results of a measurement: as a line of the table, as JSON, for comparisons, and for plots.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::super::meter::{Latencies, per_operation};
use super::super::pairs::{Compared, Figure};
use super::super::plot::{self, OfBench};
use super::super::report::{or_dash, tenths};
use super::super::servers::load_average;
use super::super::statistics::Spread;
use super::client::Uri;

/// The requests to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operation {
    Read,
    Write,
    /// Reads and writes in equal numbers.
    Mixed,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }
}

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) operation: Operation,
    /// Bytes of a request.
    pub(super) bytes: usize,
    /// Requests in progress.
    pub(super) depth: usize,
    pub(super) sequential: bool,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, bytes, depth, sequential } = self;
        let order = if *sequential { "sequential" } else { "random" };
        write!(f, "{order} {}, {bytes} B, depth {depth}", operation.name())
    }
}

/// The results of one measurement as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    bench: &'static str,
    side: Option<&'static str>,
    disk: String,
    #[serde(flatten)]
    shape: Shape,
    operations_per_second: f64,
    megabytes_per_second: f64,
    #[serde(flatten)]
    latencies: Latencies,
    server_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
}

impl Figures {
    /// The figures of the requests with these latencies, in nanoseconds, within that time.
    pub(super) fn of(
        (side, disk): (Option<&'static str>, &Uri),
        shape: Shape,
        latencies: &Histogram<u64>,
        time: std::time::Duration,
        cpu: Option<std::time::Duration>,
    ) -> Self {
        let per_second = latencies.len() as f64 / time.as_secs_f64();
        Self {
            bench: "disk",
            side,
            disk: format!("{}/{}", disk.address, disk.export),
            shape,
            operations_per_second: tenths(per_second),
            megabytes_per_second: tenths(per_second * shape.bytes as f64 / 1e6),
            latencies: Latencies::of(latencies, 1_000.0),
            server_cpu_us_per_operation: per_operation(cpu, latencies.len()),
            load_average: load_average(),
        }
    }
}

pub(super) const HEADING: &str =
    "DISK                           OPERATION    BYTES DEPTH      OP/S      MB/S    P50 US    P99 US  CPU US/OP  LOAD";

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, shape, operations_per_second, megabytes_per_second, latencies, .. } = self;
        let disk = self.side.map_or_else(|| disk.clone(), |side| format!("{side} {disk}"));
        write!(
            f,
            "{disk:<30} {:<9} {:>8} {:>5} {operations_per_second:>9} {megabytes_per_second:>9} {:>9} {:>9} {:>10} {:>5}",
            shape.operation.name(),
            shape.bytes,
            shape.depth,
            latencies.p50_us,
            latencies.p99_us,
            or_dash(self.server_cpu_us_per_operation),
            or_dash(self.load_average)
        )
    }
}

impl Compared for Figures {
    type Point = Shape;

    const FIGURES: &'static [(&'static str, Figure<Self>, usize)] = &[
        ("operations_per_second", |figures| Some(figures.operations_per_second), 0),
        ("p50_us", |figures| Some(figures.latencies.p50_us), 0),
        ("p99_us", |figures| Some(figures.latencies.p99_us), 0),
        ("server_cpu_us_per_operation", |figures| figures.server_cpu_us_per_operation, 1),
    ];

    fn has_done_nothing(&self) -> bool {
        self.operations_per_second == 0.0
    }

    fn load_average(&self) -> Option<f64> {
        self.load_average
    }
}

/// The fields of a measurement that a plot needs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Measured {
    disk: String,
    #[serde(flatten)]
    shape: Shape,
    operations_per_second: f64,
    megabytes_per_second: f64,
}

impl OfBench for Measured {
    const BENCH: &'static str = "disk";
}

impl Measured {
    pub(super) fn of(figures: &Figures) -> Self {
        let Figures { disk, shape, operations_per_second, megabytes_per_second, .. } = figures;
        Self {
            disk: disk.clone(),
            shape: *shape,
            operations_per_second: *operations_per_second,
            megabytes_per_second: *megabytes_per_second,
        }
    }
}

/// The figure as SVG: bandwidth by size if there are several sizes, otherwise operations per second by depth. Repeated
/// measurements form one point with their median.
pub(super) fn plotted(measured: &[Measured]) -> String {
    let is_by_size = measured.windows(2).any(|pair| pair[0].shape.bytes != pair[1].shape.bytes);
    let mut points: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    for Measured { disk, shape, operations_per_second, megabytes_per_second } in measured {
        let Shape { operation, bytes, depth, sequential } = shape;
        let order = if *sequential { "sequential" } else { "random" };
        let curve = format!("{disk} {order} {}", operation.name());
        let (curve, across, up) = match is_by_size {
            true => (format!("{curve}, depth {depth}"), *bytes, *megabytes_per_second),
            false => (format!("{curve}, {bytes} B"), *depth, *operations_per_second),
        };
        points.entry((curve, across)).or_default().push(up);
    }
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for ((curve, across), measurements) in points {
        let median = Spread::of(&measurements).map(|spread| (across as f64, spread.median));
        curves.entry(curve).or_default().extend(median);
    }
    match is_by_size {
        true => plot::lines_by_size("Bandwidth by request size", "MB per second", &curves),
        false => plot::lines("Requests by depth", ["requests in progress", "requests per second"], &curves),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(bytes: usize, depth: usize, operations_per_second: f64) -> Measured {
        let shape = Shape { operation: Operation::Read, bytes, depth, sequential: false };
        Measured { disk: "a:1/one".to_owned(), shape, operations_per_second, megabytes_per_second: 1.0 }
    }

    #[test]
    fn plot_is_by_size_or_depth() {
        let by_depth = plotted(&[measured(8_192, 1, 10.0), measured(8_192, 32, 50.0), measured(8_192, 32, 70.0)]);
        assert!(by_depth.contains("Requests by depth") && by_depth.contains("a:1/one random read, 8192 B"));
        let by_size = plotted(&[measured(8_192, 1, 10.0), measured(65_536, 1, 50.0)]);
        assert!(by_size.contains("Bandwidth by request size") && by_size.contains("a:1/one random read, depth 1"));
    }

    #[test]
    fn measurement_is_read_from_its_json() {
        let latencies = Histogram::new(3).expect("valid digits");
        let disk: Uri = "nbd://host:1/one".parse().expect("an address");
        let shape = Shape { operation: Operation::Mixed, bytes: 512, depth: 2, sequential: true };
        let figures = Figures::of((Some("A"), &disk), shape, &latencies, std::time::Duration::from_secs(1), None);
        let json = serde_json::to_string(&figures).expect("numbers and names");
        assert!(json.starts_with(r#"{"bench":"disk","side":"A","disk":"host:1/one","operation":"mixed","bytes":512"#));
        assert_eq!(serde_json::from_str::<Measured>(&json).expect("its fields"), Measured::of(&figures));
    }
}
