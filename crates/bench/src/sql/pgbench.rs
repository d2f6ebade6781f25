//! Runs pgbench and psql, and parses the report and the latency logs of pgbench.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use hdrhistogram::Histogram;
use terminal::Stop;

use super::DATABASE;
use super::figures::Shape;
use super::workload::{TABLES, indexed_rows};
use crate::cluster::output_of;
use crate::scratch;

/// Timeout of loading the data.
const LOAD_PATIENCE: Duration = Duration::from_secs(3_600);
/// Timeout of other statements.
const STATEMENT_PATIENCE: Duration = Duration::from_secs(120);
/// Time for the last transactions of a run, after its duration.
const RUN_PATIENCE: Duration = Duration::from_secs(120);
/// Rows of a transaction that loads data: the size of transactions is limited.
const COPIED_ROWS: usize = 1_000;
/// Prefix of the names of the latency logs.
const LOG: &str = "latencies";
/// Maximum threads of pgbench.
const THREADS_MAX: usize = 2;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not an address HOST:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: port.parse().map_err(|_| wrong())? })
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// Transactions that were committed.
    pub(super) transactions: u64,
    /// Transactions that failed after all tries.
    pub(super) failed: u64,
    pub(super) retries: u64,
    pub(super) per_second: f64,
    pub(super) average_us: f64,
    /// Latencies of the logged part of the transactions.
    pub(super) latencies_us: Histogram<u64>,
}

impl Default for Outcome {
    fn default() -> Self {
        let latencies_us = Histogram::new_with_max(3_600_000_000, 3).expect("valid bounds");
        let (seconds, per_second, average_us) = (0.0, 0.0, 0.0);
        Self { seconds, transactions: 0, failed: 0, retries: 0, per_second, average_us, latencies_us }
    }
}

fn command(program: &str, endpoint: &Endpoint) -> Command {
    let mut command = Command::new(program);
    command.arg("--host").arg(&endpoint.host).args(["--port", &endpoint.port.to_string(), "--username", "postgres"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end. Returns its standard output.
pub(super) async fn succeed(mut command: Command, patience: Duration) -> Result<String, Stop> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output_of(command, patience).await.map_err(Stop::io(format!("run {program}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = error.lines().filter(|line| line.contains("error") || line.contains("ERROR")).collect();
    let shown = if lines.is_empty() { error.trim().to_owned() } else { lines.join("; ") };
    Err(Stop::Refused(format!("{program}: {shown}")))
}

pub(super) async fn psql(endpoint: &Endpoint, database: &str, statements: &str) -> Result<String, Stop> {
    let mut psql = command("psql", endpoint);
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "--dbname", database, "--command", statements]);
    succeed(psql, STATEMENT_PATIENCE).await
}

/// Creates the database again, with the tables of pgbench and the indexed table.
pub(super) async fn load(endpoint: &Endpoint, scale: usize) -> Result<(), Stop> {
    psql(endpoint, "postgres", &format!("DROP DATABASE IF EXISTS {DATABASE}")).await?;
    psql(endpoint, "postgres", &format!("CREATE DATABASE {DATABASE}")).await?;
    let directory = scratch(&std::env::temp_dir()).map_err(Stop::io("create a temporary directory"))?;
    let path = directory.path().join("tables.sql");
    let mut file = File::create(&path).map_err(Stop::io(format!("write {}", path.display())))?;
    write!(file, "{TABLES}")?;
    for rows in indexed_rows(scale).chunks(COPIED_ROWS) {
        write!(file, "COPY bench_indexed FROM STDIN;\n{}\\.\n", rows.concat())?;
    }
    let mut tables = command("psql", endpoint);
    tables.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "--dbname", DATABASE, "--file"]).arg(&path);
    succeed(tables, LOAD_PATIENCE).await?;
    let mut rows = command("pgbench", endpoint);
    // Only the step that generates the rows.
    rows.args(["--initialize", "--init-steps", "g", "--quiet", "--scale", &scale.to_string(), DATABASE]);
    succeed(rows, LOAD_PATIENCE).await.map(drop)
}

/// Runs a workload for a time. The latency logs are written to `directory`, and removed after they were read.
pub(super) async fn run(
    endpoint: &Endpoint,
    shape: Shape,
    duration: Duration,
    max_tries: u32,
    directory: &Path,
) -> Result<Outcome, Stop> {
    let Shape { workload, clients, scale } = shape;
    let mut pgbench = command("pgbench", endpoint);
    pgbench.current_dir(directory).args(["--no-vacuum", "--protocol", "prepared", "--log", "--log-prefix", LOG]);
    pgbench.args(["--sampling-rate", &workload.logged().to_string(), "--max-tries", &max_tries.to_string()]);
    pgbench.args(["--client", &clients.to_string(), "--jobs", &clients.min(THREADS_MAX).to_string()]);
    pgbench.args(["--time", &duration.as_secs().max(1).to_string(), "--scale", &scale.to_string()]);
    if let Some(builtin) = workload.builtin() {
        pgbench.args(["--builtin", builtin]);
    } else {
        let path = directory.join("script.sql");
        fs::write(&path, workload.script(scale)).map_err(Stop::io(format!("write {}", path.display())))?;
        pgbench.arg("--file").arg(path);
    }
    pgbench.arg(DATABASE);
    let printed = succeed(pgbench, duration + RUN_PATIENCE).await?;
    let mut outcome = parse(&printed)
        .ok_or_else(|| Stop::invalid(format!("pgbench printed something else than its report: {printed}")))?;
    for entry in fs::read_dir(directory).map_err(Stop::io(format!("read {}", directory.display())))? {
        let path = entry?.path();
        if path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(LOG)) {
            let text = fs::read_to_string(&path).map_err(Stop::io(format!("read {}", path.display())))?;
            record(&text, &mut outcome.latencies_us);
            fs::remove_file(&path).map_err(Stop::io(format!("remove {}", path.display())))?;
        }
    }
    Ok(outcome)
}

/// pgbench's report. `None` if it is not one.
fn parse(printed: &str) -> Option<Outcome> {
    let number = |name: &str| -> Option<f64> {
        let rest = printed.lines().find_map(|line| line.strip_prefix(name))?;
        let rest = rest.trim_start_matches([':', '=', ' ']);
        rest.split(|char: char| !(char.is_ascii_digit() || char == '.')).next()?.parse().ok()
    };
    let transactions = number("number of transactions actually processed")?;
    Some(Outcome {
        seconds: number("duration")?,
        transactions: transactions as u64,
        failed: number("number of failed transactions").unwrap_or(0.0) as u64,
        // Not reported if there is only one try.
        retries: number("total number of retries").unwrap_or(0.0) as u64,
        per_second: number("tps ")?,
        average_us: number("latency average")? * 1_000.0,
        ..Outcome::default()
    })
}

/// Records the latencies of a log: `client transaction latency_us script second microsecond [retries]`. The latency of a
/// transaction that failed is the word `failed`.
fn record(log: &str, latencies_us: &mut Histogram<u64>) {
    let latency = |line: &str| line.split(' ').nth(2)?.parse().ok();
    log.lines().filter_map(latency).for_each(|latency| latencies_us.saturating_record(latency));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report() {
        let report = "pgbench (15.18)\ntransaction type: <builtin: TPC-B (sort of)>\nscaling factor: 1\nduration: 2 s\n\
                      number of transactions actually processed: 2356\nnumber of failed transactions: 7 (0.296%)\n\
                      number of transactions retried: 12 (0.5%)\ntotal number of retries: 15\n\
                      latency average = 3.387 ms\ninitial connection time = 3.5 ms\n\
                      tps = 1180.417495 (without initial connection time)\n";
        let outcome = parse(report).expect("a report");
        assert_eq!((outcome.transactions, outcome.failed, outcome.retries), (2_356, 7, 15));
        assert_eq!((outcome.seconds, outcome.per_second, outcome.average_us), (2.0, 1_180.417_495, 3_387.0));
        assert!(parse("pgbench: error").is_none());
    }

    #[test]
    fn reads_the_log() {
        let mut latencies = Outcome::default().latencies_us;
        record("0 1 500 0 1700000000 1 0\n1 1 failed 0 1700000000 2 99\n0 2 700 0 1700000000 3 1\n", &mut latencies);
        assert_eq!((latencies.len(), latencies.max()), (2, 700));
    }

    #[test]
    fn parses_endpoints() {
        assert_eq!("[::1]:5441".parse(), Ok(Endpoint { host: "::1".to_owned(), port: 5_441 }));
        assert!("localhost".parse::<Endpoint>().is_err() && "h:99999".parse::<Endpoint>().is_err());
    }
}
