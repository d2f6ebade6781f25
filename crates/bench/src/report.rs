//! Reports results as lines of a table and as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use base::counted;
use clap::Args;
use serde::Serialize;
use terminal::{Stop, to_json};

use super::measure::{Offer, Point, Side};
use super::pairs::{Compared, Figure};
use super::progress::Progress;
use super::recorder::Counted;
use super::servers::load_average;

/// An open loop that achieves less than this fraction of the offered load is saturated: its latencies depend mainly on
/// the duration of the run.
const SATURATED_BELOW: f64 = 0.95;

/// Where the results of a benchmark go, besides the table.
#[derive(Clone, Debug, Args)]
pub(crate) struct FiguresArguments {
    /// Print one JSON object per line instead of the table.
    #[arg(long)]
    json: bool,
    /// Append the figures to this file as JSON, one object per line.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The results of a run as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) bench: &'static str,
    pub(crate) target: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) clients: usize,
    pub(crate) value_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) operations_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
    pub(crate) errors: u64,
    pub(crate) longest_gap_us: u64,
    pub(crate) server_cpu_us_per_operation: Option<f64>,
    pub(crate) load_average: Option<f64>,
    /// The side of a comparison.
    pub(crate) side: Option<&'static str>,
    pub(crate) mode: &'static str,
    pub(crate) write_percent: u8,
    pub(crate) keys: usize,
    pub(crate) key_order: &'static str,
    /// The consistency of reads.
    pub(crate) reads: &'static str,
    /// The durability of an acknowledged write.
    pub(crate) durability: &'static str,
    pub(crate) conflicts: u64,
    pub(crate) p90_us: u64,
    pub(crate) p95_us: u64,
    pub(crate) p999_us: u64,
    /// The configured rate of an open loop; the actual arrivals during the measurement are in `offered_per_second`.
    pub(crate) rate: Option<f64>,
    pub(crate) pacing: Option<&'static str>,
    pub(crate) offered_per_second: Option<f64>,
    pub(crate) saturated: bool,
    pub(crate) held_back: u64,
    pub(crate) unfinished: u64,
    #[serde(skip)]
    pub(crate) last_error: Option<sdk::Error>,
}

impl Figures {
    pub(crate) fn of(
        side: &Side,
        point: Point,
        counted: Counted,
        offered: Option<u64>,
        server_cpu: Option<Duration>,
    ) -> Self {
        let work = &side.workload;
        let load = |offer: Offer| (offer.rate, offer.pacing.name());
        let (rate, pacing) = point.offer.map(load).unzip();
        Self {
            target: side.target.name(),
            operation: work.operation.name(),
            clients: point.clients,
            value_bytes: work.value_bytes,
            load_average: load_average(),
            side: side.name,
            mode: if point.offer.is_some() { "open" } else { "closed" },
            write_percent: work.write_percent(),
            keys: work.keys,
            key_order: if work.consecutive { "consecutive" } else { "random" },
            reads: work.reads.name(),
            durability: work.durability.name(),
            rate,
            pacing,
            ..Self::counted(counted, offered, server_cpu)
        }
    }

    /// The recorded results, without the parameters.
    fn counted(counted: Counted, offered: Option<u64>, server_cpu: Option<Duration>) -> Self {
        let (operations, seconds) = (counted.operations(), counted.elapsed.as_secs_f64());
        let Counted { latencies_us: latencies, unfinished, longest_gap, conflicts, held_back, errors, .. } = counted;
        let per_operation = |cpu: Duration| tenths(cpu.as_secs_f64() * 1e6 / operations as f64);
        Self {
            bench: "columns",
            target: "",
            operation: "",
            clients: 0,
            value_bytes: 0,
            seconds: tenths(seconds),
            operations,
            operations_per_second: tenths(operations as f64 / seconds),
            mean_us: tenths(latencies.mean()),
            p50_us: latencies.value_at_quantile(0.50),
            p99_us: latencies.value_at_quantile(0.99),
            max_us: latencies.max(),
            errors,
            longest_gap_us: longest_gap.length().as_micros() as u64,
            server_cpu_us_per_operation: server_cpu.filter(|_| operations > 0).map(per_operation),
            load_average: None,
            side: None,
            mode: "",
            write_percent: 0,
            keys: 0,
            key_order: "",
            reads: "",
            durability: "",
            conflicts,
            p90_us: latencies.value_at_quantile(0.90),
            p95_us: latencies.value_at_quantile(0.95),
            p999_us: latencies.value_at_quantile(0.999),
            rate: None,
            pacing: None,
            offered_per_second: offered.map(|offered| tenths(offered as f64 / seconds)),
            saturated: offered.is_some_and(|offered| (operations as f64) < SATURATED_BELOW * offered as f64),
            held_back,
            unfinished,
            last_error: counted.last_error,
        }
    }

    /// Remarks shown after the figures in the table.
    fn remarks(&self) -> String {
        let mut remarks = Vec::new();
        if self.saturated {
            remarks.push("saturated".to_owned());
        }
        if self.conflicts > 0 {
            remarks.push(counted(self.conflicts, "conflict"));
        }
        let counts = [(self.held_back, "held back"), (self.unfinished, "unfinished")];
        remarks.extend(counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        remarks.join(", ")
    }
}

pub(crate) fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// The destination of results.
pub(crate) struct Report {
    file: Option<File>,
    table: bool,
    headed: bool,
}

impl Report {
    /// Appends to an existing file, so that results of alternating runs are in one file.
    pub(crate) fn open(arguments: &FiguresArguments) -> Result<Self, Stop> {
        let open = |path: &PathBuf| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map_err(Stop::io(format!("write {}", path.display())))
        };
        let file = arguments.output.as_ref().map(open).transpose()?;
        Ok(Self { file, table: !arguments.json, headed: false })
    }

    /// Writes a JSON object to the file, if there is one, and to standard output instead of the table.
    pub(crate) fn add_json(&mut self, object: &impl Serialize) -> Result<(), Stop> {
        let line = to_json(object);
        if let Some(file) = &mut self.file {
            writeln!(file, "{line}")?;
        }
        if !self.table {
            writeln!(io::stdout().lock(), "{line}")?;
        }
        Ok(())
    }

    /// Prints a text, if the table is enabled. Hides the progress bar meanwhile.
    pub(crate) fn add_text(&self, text: &str, progress: &Progress) -> Result<(), Stop> {
        if self.table {
            progress.aside(|| writeln!(io::stdout().lock(), "{text}"))?;
        }
        Ok(())
    }

    /// Reports a run as a line of the table, and reasons to doubt it on standard error.
    pub(crate) fn add<L: Line>(&mut self, line: &L, progress: &Progress) -> Result<(), Stop> {
        self.add_json(line)?;
        if !self.headed {
            self.headed = true;
            self.add_text(L::HEADING, progress)?;
        }
        self.add_text(&line.line(), progress)?;
        progress.aside(|| {
            let mut err = io::stderr().lock();
            line.doubts().iter().try_for_each(|doubt| writeln!(err, "loggos: {doubt}"))
        })?;
        Ok(())
    }
}

/// The results of a run as a line of a table.
pub(crate) trait Line: Serialize {
    const HEADING: &'static str;

    /// The line, without the heading.
    fn line(&self) -> String;

    /// Reasons to doubt the figures.
    fn doubts(&self) -> Vec<String>;
}

impl Line for Figures {
    const HEADING: &'static str = HEADING;

    fn line(&self) -> String {
        table_line(self)
    }

    fn doubts(&self) -> Vec<String> {
        let Self { errors, held_back, clients, .. } = self;
        let failed = self.last_error.as_ref();
        let failed = failed.map(|error| format!("{errors} operations failed, the last with: {error}"));
        let waited = (*held_back > 0)
            .then(|| format!("{held_back} operations waited because {clients} were in flight; increase --clients"));
        failed.into_iter().chain(waited).collect()
    }
}

impl Compared for Figures {
    type Point = Point;

    const FIGURES: &'static [(&'static str, Figure<Self>, usize)] = &[
        ("operations_per_second", |figures| Some(figures.operations_per_second), 0),
        ("mean_us", |figures| Some(figures.mean_us), 0),
        ("p50_us", |figures| Some(figures.p50_us as f64), 0),
        ("p99_us", |figures| Some(figures.p99_us as f64), 0),
        ("server_cpu_us_per_operation", |figures| figures.server_cpu_us_per_operation, 1),
    ];

    fn has_done_nothing(&self) -> bool {
        self.operations == 0
    }

    fn load_average(&self) -> Option<f64> {
        self.load_average
    }
}

const HEADING: &str = "TARGET    OPERATION        CLIENTS  OFFERED/S  VALUE B       OP/S    MEAN US     P50 US     P90 US     \
                       P95 US     P99 US   P99.9 US     MAX US  ERRORS  GAP MS  CPU US/OP  LOAD";

fn table_line(figures: &Figures) -> String {
    let target = figures.side.map_or_else(|| figures.target.to_owned(), |side| format!("{side} {}", figures.target));
    let line = format!(
        "{target:8}  {:15}  {:>7}  {:>9}  {:>7}  {:>9.1}  {:>9.1}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>6}  {:>6}  \
         {:>9}  {:>4}  {}",
        figures.operation,
        figures.clients,
        or_dash(figures.offered_per_second),
        figures.value_bytes,
        figures.operations_per_second,
        figures.mean_us,
        figures.p50_us,
        figures.p90_us,
        figures.p95_us,
        figures.p99_us,
        figures.p999_us,
        figures.max_us,
        figures.errors,
        figures.longest_gap_us / 1_000,
        or_dash(figures.server_cpu_us_per_operation),
        or_dash(figures.load_average),
        figures.remarks(),
    );
    line.trim_end().to_owned()
}

pub(crate) fn or_dash(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Gap;
    use super::*;
    use hdrhistogram::Histogram;
    use std::time::Instant;

    fn counted(operations: u64) -> Counted {
        let mut latencies_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constants");
        latencies_us.record_n(500, operations).expect("in range");
        let now = Instant::now();
        Counted {
            elapsed: Duration::from_secs(2),
            latencies_us,
            unfinished: 0,
            longest_gap: Gap { began: now, ended: now + Duration::from_millis(3), is_open: false },
            conflicts: 2,
            held_back: 0,
            errors: 1,
            last_error: None,
            successes: Vec::new(),
        }
    }

    #[test]
    fn report_json_schema() {
        let figures = Figures {
            target: "loggos",
            operation: "write",
            clients: 64,
            value_bytes: 4_096,
            load_average: Some(1.5),
            mode: "closed",
            write_percent: 100,
            keys: 5_000,
            key_order: "random",
            reads: "strong",
            durability: "forced",
            ..Figures::counted(counted(1_000), None, Some(Duration::from_millis(100)))
        };
        assert_eq!(
            serde_json::to_string(&figures).expect("numbers and names"),
            "{\"bench\":\"columns\",\"target\":\"loggos\",\"operation\":\"write\",\"clients\":64,\"value_bytes\":4096,\
             \"seconds\":2.0,\"operations\":1000,\"operations_per_second\":500.0,\"mean_us\":500.0,\"p50_us\":500,\
             \"p99_us\":500,\"max_us\":500,\"errors\":1,\"longest_gap_us\":3000,\"server_cpu_us_per_operation\":100.0,\
             \"load_average\":1.5,\"side\":null,\"mode\":\"closed\",\"write_percent\":100,\"keys\":5000,\
             \"key_order\":\"random\",\"reads\":\"strong\",\"durability\":\"forced\",\"conflicts\":2,\
             \"p90_us\":500,\"p95_us\":500,\"p999_us\":500,\"rate\":null,\
             \"pacing\":null,\"offered_per_second\":null,\"saturated\":false,\"held_back\":0,\"unfinished\":0}"
        );
    }

    #[test]
    fn saturation_threshold() {
        let saturated = |operations, offered| Figures::counted(counted(operations), offered, None).saturated;
        assert!(!saturated(1_000, None));
        assert!(!saturated(950, Some(1_000)));
        assert!(saturated(949, Some(1_000)));
        assert!(saturated(0, Some(1)));
        assert!(!saturated(0, Some(0)));
    }
}
