//! `loggos bench load`: loads many rows through the client library as fast as possible; reports rows per second and the
//! memory used on each node.
//!
//! Unlike `bench columns` it writes each key once, with many concurrent writes on few streams, like a program that
//! fills a table. It shows the capacity of a cluster, and its behavior while tables grow.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::counted;
use base::limits::SESSION_WINDOW;
use bytes::Bytes;
use clap::Args;
use sdk::Table;
use serde::Serialize;
use terminal::Stop;
use tokio::task::{JoinSet, LocalSet};

use super::connect::ClusterArguments;
use super::parse;
use super::progress::Progress;
use super::report::{FiguresArguments, Report, or_dash};
use super::servers::load_average;
use super::workload::value;

/// The column of each row.
const COLUMN: Bytes = Bytes::from_static(b"value");
/// Timeout of a row, including retries.
const ROW_TIME_MAX: Duration = Duration::from_secs(60);
/// Rows between updates of the progress bar.
const PROGRESS_ROWS: u64 = 1_000;

/// Loads many rows through the client library as fast as possible.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Number of rows, with one column each. Keys are sequential, and the same in every run.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_bytes: usize,
    /// Number of concurrent clients, each with one row in flight.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = parse::positive)]
    clients: usize,
    /// Number of connections shared by the clients. Each has one session, with at most 1024 writes in flight.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = parse::positive)]
    connections: usize,
    /// The table to write to, created if it does not exist.
    #[arg(long, default_value = "bench-load")]
    table: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    figures: FiguresArguments,
}

/// The results of a load as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Figures {
    bench: &'static str,
    rows: u64,
    value_bytes: usize,
    clients: usize,
    connections: usize,
    seconds: f64,
    rows_per_second: f64,
    server_cpu_us_per_row: Option<f64>,
    load_average: Option<f64>,
    /// Resident memory of each node in KiB, before the first row and after the last.
    resident_kib_before: BTreeMap<String, u64>,
    resident_kib: BTreeMap<String, u64>,
}

/// Runs the load and reports the results.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    if arguments.clients as u64 > SESSION_WINDOW * arguments.connections as u64 {
        let message = format!("a connection is limited to {SESSION_WINDOW} clients: increase --connections");
        return Err(Stop::invalid(message));
    }
    let servers = arguments.cluster.servers()?;
    let mut report = Report::open(&arguments.figures)?;
    let tables = connect(&arguments).await?;
    let progress = Progress::of(arguments.rows, "rows");
    let (resident_kib_before, cpu_before) = (servers.resident_kib()?, servers.cpu_time()?);
    let began = Instant::now();
    LocalSet::new().run_until(write_all(&arguments, &tables, &progress)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = cpu_before.zip(servers.cpu_time()?).map(|(before, after)| after.saturating_sub(before));
    let tenths = |number: f64| (number * 10.0).round() / 10.0;
    let figures = Figures {
        bench: "load",
        rows: arguments.rows,
        value_bytes: arguments.value_bytes,
        clients: arguments.clients,
        connections: arguments.connections,
        seconds: tenths(seconds),
        rows_per_second: tenths(arguments.rows as f64 / seconds),
        server_cpu_us_per_row: cpu.map(|cpu| tenths(cpu.as_secs_f64() * 1e6 / arguments.rows as f64)),
        load_average: load_average(),
        resident_kib_before,
        resident_kib: servers.resident_kib()?,
    };
    report.add_json(&figures)?;
    report.add_text(&figures.for_people(), &progress)
}

async fn connect(arguments: &Arguments) -> Result<Vec<Table>, Stop> {
    let at = arguments.cluster.endpoints()?;
    let mut tables = Vec::with_capacity(arguments.connections);
    for _ in 0..arguments.connections {
        let client = sdk::Client::streaming(&at)?;
        // If no node responds, this fails earlier than the first row would.
        let table = client.table(&*arguments.table);
        table.create().send().await?;
        table.prefer_leader().await;
        tables.push(table.with_deadline(ROW_TIME_MAX));
    }
    Ok(tables)
}

/// The state shared by all writers.
struct Load {
    rows: u64,
    value: Bytes,
    /// The next row to be written.
    next: Cell<u64>,
    done: Cell<u64>,
    /// The error that stopped the load.
    error: RefCell<Option<sdk::Error>>,
}

/// Returns when every row is written, or after an error when no write is in flight.
async fn write_all(arguments: &Arguments, tables: &[Table], progress: &Progress) -> Result<(), Stop> {
    let load = Rc::new(Load {
        rows: arguments.rows,
        value: value(arguments.value_bytes),
        next: Cell::new(0),
        done: Cell::new(0),
        error: RefCell::new(None),
    });
    let mut writers = JoinSet::new();
    for (_, table) in (0..arguments.clients).zip(tables.iter().cycle()) {
        writers.spawn_local(write(Rc::clone(&load), table.clone(), progress.clone()));
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("no writer panics");
    }
    match load.error.take() {
        Some(error) => Err(Stop::LoadCutShort { error, rows: load.done.get() }),
        None => Ok(()),
    }
}

/// Writes one row at a time, until there are no more rows or a writer has failed.
async fn write(load: Rc<Load>, table: Table, progress: Progress) {
    while load.next.get() < load.rows && load.error.borrow().is_none() {
        let row = load.next.replace(load.next.get() + 1);
        match table.write(format!("row-{row:012}")).put(COLUMN, load.value.clone()).send().await {
            Ok(_) => {
                load.done.set(load.done.get() + 1);
                if load.done.get().is_multiple_of(PROGRESS_ROWS) {
                    progress.done(PROGRESS_ROWS);
                }
            }
            Err(error) => {
                load.error.borrow_mut().get_or_insert(error);
            }
        }
    }
}

impl Figures {
    fn for_people(&self) -> String {
        let rows = counted(self.rows, "row");
        let mut text = format!(
            "{rows} of {} bytes in {:.1} s: {:.0} rows/s; CPU {} us/row; load average {}",
            self.value_bytes,
            self.seconds,
            self.rows_per_second,
            or_dash(self.server_cpu_us_per_row),
            or_dash(self.load_average),
        );
        for (node, kib) in &self.resident_kib {
            let before = self.resident_kib_before.get(node).copied().unwrap_or_default();
            let a_row = kib.saturating_sub(before) as f64 * 1_024.0 / self.rows as f64;
            let (before, after) = (before >> 10, kib >> 10);
            text += &format!("\n{node}: {after} MiB resident, {before} MiB before; {a_row:.0} bytes per row");
        }
        text
    }
}
