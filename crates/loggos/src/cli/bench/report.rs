//! The figures of a run: a line of a table for people, an object a line for programs.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::columns::Operation;
use super::cpu::load_average;
use super::recorder::Counted;
use crate::cli::stop::Stop;

/// What a run came to.
pub(crate) struct Figures {
    pub(crate) target: &'static str,
    pub(crate) operation: Operation,
    pub(crate) clients: usize,
    pub(crate) value_bytes: usize,
    pub(crate) counted: Counted,
    /// What the servers used, if it was measured.
    pub(crate) server_cpu: Option<Duration>,
}

/// A run as JSON. The fields are a promise to scripts.
#[derive(Debug, PartialEq, Serialize)]
struct Line {
    bench: &'static str,
    target: &'static str,
    operation: &'static str,
    clients: usize,
    value_bytes: usize,
    seconds: f64,
    operations: u64,
    operations_per_second: f64,
    mean_us: f64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    errors: u64,
    longest_gap_us: u64,
    server_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
}

impl Line {
    fn of(figures: &Figures, load_average: Option<f64>) -> Self {
        let Counted { elapsed, latencies_us, longest_gap, errors, .. } = &figures.counted;
        let (operations, seconds) = (latencies_us.len(), elapsed.as_secs_f64());
        let per_operation = |cpu: Duration| tenths(cpu.as_secs_f64() * 1e6 / operations as f64);
        Self {
            bench: "columns",
            target: figures.target,
            operation: figures.operation.name(),
            clients: figures.clients,
            value_bytes: figures.value_bytes,
            seconds: tenths(seconds),
            operations,
            operations_per_second: tenths(operations as f64 / seconds),
            mean_us: tenths(latencies_us.mean()),
            p50_us: latencies_us.value_at_quantile(0.50),
            p99_us: latencies_us.value_at_quantile(0.99),
            max_us: latencies_us.max(),
            errors: *errors,
            longest_gap_us: longest_gap.as_micros() as u64,
            server_cpu_us_per_operation: figures.server_cpu.filter(|_| operations > 0).map(per_operation),
            load_average,
        }
    }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Where figures go, one run after the other.
pub(crate) struct Report {
    json: Option<Box<dyn Write>>,
    table: bool,
    headed: bool,
}

impl Report {
    /// Adds to the JSON file if there is one already: runs of peers, turn by turn, belong together.
    pub(crate) fn open(json: Option<&Path>) -> Result<Self, Stop> {
        let (json, table): (Option<Box<dyn Write>>, bool) = match json {
            None => (None, true),
            Some(path) if path == Path::new("-") => (Some(Box::new(io::stdout())), false),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                (Some(Box::new(file.map_err(Stop::io(format!("write {}", path.display())))?)), true)
            }
        };
        Ok(Self { json, table, headed: false })
    }

    pub(crate) fn add(&mut self, figures: &Figures) -> Result<(), Stop> {
        let line = Line::of(figures, load_average());
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", serde_json::to_string(&line).expect("numbers and names"))?;
            json.flush()?;
        }
        if self.table {
            self.add_to_table(&line)?;
        }
        if let Some(error) = &figures.counted.last_error {
            writeln!(io::stderr(), "loggos: {} operations failed, the last with: {error}", line.errors)?;
        }
        Ok(())
    }

    fn add_to_table(&mut self, line: &Line) -> Result<(), Stop> {
        let mut out = io::stdout().lock();
        if !self.headed {
            self.headed = true;
            writeln!(
                out,
                "TARGET  OPERATION  CLIENTS  VALUE B       OP/S    MEAN US     P50 US     P99 US  ERRORS  GAP MS  \
                 CPU US/OP  LOAD"
            )?;
        }
        writeln!(
            out,
            "{:6}  {:9}  {:>7}  {:>7}  {:>9.1}  {:>9.1}  {:>9}  {:>9}  {:>6}  {:>6}  {:>9}  {:>4}",
            line.target,
            line.operation,
            line.clients,
            line.value_bytes,
            line.operations_per_second,
            line.mean_us,
            line.p50_us,
            line.p99_us,
            line.errors,
            line.longest_gap_us / 1_000,
            or_dash(line.server_cpu_us_per_operation),
            or_dash(line.load_average),
        )?;
        Ok(())
    }
}

fn or_dash(number: Option<f64>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;

    #[test]
    fn a_run_is_one_object_of_the_promised_shape() {
        let mut latencies_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constants");
        for _ in 0..1_000 {
            latencies_us.record(500).expect("in range");
        }
        let counted = Counted {
            elapsed: Duration::from_secs(2),
            latencies_us,
            longest_gap: Duration::from_millis(3),
            errors: 1,
            last_error: None,
        };
        let server_cpu = Some(Duration::from_millis(100));
        let figures = Figures {
            target: "loggos",
            operation: Operation::Write,
            clients: 64,
            value_bytes: 4_096,
            counted,
            server_cpu,
        };
        let line = serde_json::to_string(&Line::of(&figures, Some(1.5))).expect("numbers and names");
        assert_eq!(
            line,
            "{\"bench\":\"columns\",\"target\":\"loggos\",\"operation\":\"write\",\"clients\":64,\"value_bytes\":4096,\
             \"seconds\":2.0,\"operations\":1000,\"operations_per_second\":500.0,\"mean_us\":500.0,\"p50_us\":500,\
             \"p99_us\":500,\"max_us\":500,\"errors\":1,\"longest_gap_us\":3000,\"server_cpu_us_per_operation\":100.0,\
             \"load_average\":1.5}"
        );
    }
}
