//! `loggos bench transactions`: latency and throughput of transactions, beside single puts (Spanner, section 5.1).
//!
//! Each client runs one operation after the other, in a closed loop. The operations are those of the paper's tables 3 and
//! 4: writes in one range, in two, in a growing number of them; read-only transactions and snapshot reads; and two with
//! contention, for the aborts and the longest wait of any client.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use sdk::Client;
use serde::Serialize;
use terminal::{Stop, unless_interrupted};
use tokio::task::{JoinSet, LocalSet};

use super::cluster::{Cluster, Start};
use super::connect::ClusterArguments;
use super::meter::{Latencies, Meter, per_operation};
use super::parse;
use super::progress::Progress;
use super::report::{FiguresArguments, Report, or_dash, tenths};
use super::servers::{Servers, load_average};
use super::workload::value;

mod availability;

/// The column of each row.
const COLUMN: &str = "value";
/// Clients that share a connection.
const CLIENTS_PER_CONNECTION: usize = 8;
/// Timeout of an operation, including retries.
const PATIENCE: Duration = Duration::from_secs(30);
/// Nodes of a cluster started for the benchmark.
const NODES: u32 = 5;
/// Rows of each range that the operations without contention choose from.
const ROWS: u64 = 1_000;

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// A put of one row, without a transaction.
    Put,
    /// A transaction that puts one row.
    Write,
    /// A transaction that reads one row.
    Read,
    /// A read of one row as of a moment of the last second.
    Snapshot,
    /// A transaction that puts two rows of one range.
    OneRange,
    /// A transaction that puts two rows of different ranges.
    TwoRanges,
    /// A transaction that puts one row in each of a number of ranges (--participants).
    Participants,
    /// A transaction that increments one row, the same for all clients.
    Counter,
    /// A transaction that increments two rows of different ranges, in either order.
    Opposite,
}

/// Measures transactions.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The operations, one after the other.
    #[arg(long, value_enum, value_name = "OPERATION,...", value_delimiter = ',')]
    #[arg(default_value = "put,write,read,snapshot,one-range,two-ranges,counter,opposite")]
    operation: Vec<Operation>,
    /// Number of concurrent clients, each with one operation in flight.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Ranges in which `participants` puts a row.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,5,10,25,50,100,200")]
    #[arg(value_parser = parse::positive)]
    participants: Vec<usize>,
    /// Bytes of a value. A counter is shorter.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    value_bytes: usize,
    /// Replicas of each range: 1, 3 or 5; 0: the default of the cluster.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    replicas: Vec<u32>,
    /// Measure on clusters of five nodes started for it, one for each of these bounds on the error of the wall clock: a
    /// commit waits for as long, unless replication takes longer.
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', value_parser = parse::uncertainty)]
    #[arg(conflicts_with_all = ["availability", "at", "server_data", "server_pids"])]
    clock_uncertainty: Vec<Duration>,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = parse::time)]
    duration: Duration,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// How often all measurements are repeated, interleaved.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse::positive)]
    rounds: usize,
    /// The tables are named after this, and created if they do not exist.
    #[arg(long, default_value = "bench-transactions")]
    table: String,
    /// Measure, on a cluster of five nodes started for it, the throughput around the loss of a node: of one that leads
    /// nothing, of one that hands over before, and of the leader.
    #[arg(long, conflicts_with_all = ["operation", "participants", "at", "server_data", "server_pids", "rounds"])]
    availability: bool,
    /// Plot the throughput over time as SVG.
    #[arg(long, value_name = "FILE", requires = "availability")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    figures: FiguresArguments,
}

/// The results of one measurement as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Figures {
    bench: &'static str,
    operation: String,
    clients: usize,
    participants: usize,
    value_bytes: usize,
    replicas: u32,
    /// The bound that the nodes were started with (--clock-uncertainty).
    clock_uncertainty_us: Option<u64>,
    operations_per_second: f64,
    #[serde(flatten)]
    latencies: Latencies,
    /// Attempts that were aborted, for each operation.
    aborts: f64,
    /// The longest time in which one client completed no operation, in milliseconds.
    longest_wait_ms: f64,
    /// Mean commit wait, beyond replication, and uncertainty of the clock.
    commit_wait_us: f64,
    uncertainty_us: f64,
    errors: u64,
    server_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
}

/// What one client has counted.
struct Counts {
    latencies_ns: Histogram<u64>,
    attempts: u64,
    longest: Duration,
    commit_wait: Duration,
    uncertainty: Duration,
    errors: u64,
    last_error: Option<sdk::Error>,
}

/// The outcome of an operation: attempts, commit wait, uncertainty.
type Done = (u32, Duration, Duration);

/// The tables and the operation.
struct Work {
    operation: Operation,
    participants: usize,
    replicas: u32,
    /// A table with one range, and one with a range for each participant.
    narrow: String,
    wide: String,
    value: Bytes,
}

/// A cluster to measure.
struct Place {
    at: Vec<String>,
    servers: Servers,
    /// The bound on the error of its clocks, if it was started for the benchmark.
    clock_uncertainty_us: Option<u64>,
}

/// Runs the measurements and reports the results.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    if arguments.availability {
        return availability::run(&arguments).await;
    }
    let progress = Progress::of(0, "measurements");
    let mut report = Report::open(&arguments.figures)?;
    report.add_text(&Figures::heading(), &progress)?;
    if arguments.clock_uncertainty.is_empty() {
        let (at, servers) = (arguments.cluster.endpoints()?, arguments.cluster.servers()?);
        let place = Place { at, servers, clock_uncertainty_us: None };
        return measure_all(&arguments, &place, &mut report, &progress).await;
    }
    for uncertainty in &arguments.clock_uncertainty {
        progress.now("starting a cluster".to_owned());
        let clock_uncertainty_us = u64::try_from(uncertainty.as_micros()).ok();
        let port_offset = arguments.cluster.port_offset;
        let start = Start { nodes: Some(NODES), port_offset, clock_uncertainty_us };
        let measured = unless_interrupted(async {
            let cluster = Cluster::start(start).await?;
            let place = Place { at: cluster.endpoints(), servers: cluster.servers()?, clock_uncertainty_us };
            measure_all(&arguments, &place, &mut report, &progress).await
        });
        measured.await?;
    }
    Ok(())
}

/// All measurements on one cluster.
async fn measure_all(
    arguments: &Arguments,
    place: &Place,
    report: &mut Report,
    progress: &Progress,
) -> Result<(), Stop> {
    let ranges = if arguments.operation.contains(&Operation::Participants) {
        arguments.participants.iter().copied().max().unwrap_or(2).max(2)
    } else {
        2
    };
    let client = Client::connect(&place.at)?.with_deadline(PATIENCE);
    let mut works = Vec::new();
    for &replicas in &arguments.replicas {
        // Without `--replicas`, as in older versions.
        let table = if replicas == 0 { arguments.table.clone() } else { format!("{}-r{replicas}", arguments.table) };
        let (narrow, wide) = (format!("{table}-1"), format!("{table}-{ranges}"));
        client.table(&*narrow).create().replicas(replicas).send().await?;
        let splits = (1..ranges).map(range_start);
        client.table(&*wide).create().split_at(splits).replicas(replicas).send().await?;
        for &operation in &arguments.operation {
            let participants = if operation == Operation::Participants { &arguments.participants[..] } else { &[1] };
            for (&clients, &participants) in
                arguments.clients.iter().flat_map(|c| participants.iter().map(move |p| (c, p)))
            {
                let (narrow, wide, value) = (narrow.clone(), wide.clone(), value(arguments.value_bytes));
                works.push((clients, Rc::new(Work { operation, participants, replicas, narrow, wide, value })));
            }
        }
    }
    for _ in 0..arguments.rounds {
        for (clients, work) in &works {
            let figures = measure(arguments, place, Rc::clone(work), *clients).await?;
            report.add_json(&figures)?;
            report.add_text(&figures.for_people(), progress)?;
        }
    }
    Ok(())
}

fn range_start(range: usize) -> String {
    format!("{range:04}")
}

async fn measure(arguments: &Arguments, place: &Place, work: Rc<Work>, clients: usize) -> Result<Figures, Stop> {
    let connections = clients.div_ceil(CLIENTS_PER_CONNECTION);
    let handles: Vec<Client> = (0..connections)
        .map(|_| Ok(Client::connect(&place.at)?.with_deadline(PATIENCE)))
        .collect::<Result<_, Stop>>()?;
    for handle in &handles {
        handle.table(&*work.narrow).prefer_leader().await;
    }
    let began = Instant::now();
    let (counting, until) = (began + arguments.warmup, began + arguments.warmup + arguments.duration);
    let local = LocalSet::new();
    let (all, meter) = local
        .run_until(async {
            let mut running = JoinSet::new();
            for number in 0..clients {
                let client = handles[number % connections].clone();
                running.spawn_local(one_client(client, Rc::clone(&work), number as u64, counting, until));
            }
            tokio::time::sleep_until(counting.into()).await;
            let meter = Meter::begin(place.servers.clone());
            (running.join_all().await, meter)
        })
        .await;
    let cpu = meter?.used()?;
    let mut latencies = histogram();
    let (mut attempts, mut errors, mut last_error) = (0, 0, None);
    let (mut longest, mut wait, mut uncertainty) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for counts in all {
        latencies.add(counts.latencies_ns).map_err(|error| Stop::invalid(error.to_string()))?;
        attempts += counts.attempts;
        errors += counts.errors;
        longest = longest.max(counts.longest);
        wait += counts.commit_wait;
        uncertainty = uncertainty.max(counts.uncertainty);
        last_error = counts.last_error.or(last_error);
    }
    let operations = latencies.len();
    let run = format!("{:?} with {clients} clients", work.operation);
    if operations == 0 {
        return Err(Stop::NothingDone { run, error: last_error });
    }
    let seconds = arguments.duration.as_secs_f64();
    Ok(Figures {
        bench: "transactions",
        operation: work.operation.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
        clients,
        participants: work.participants,
        value_bytes: arguments.value_bytes,
        replicas: work.replicas,
        clock_uncertainty_us: place.clock_uncertainty_us,
        operations_per_second: tenths(operations as f64 / seconds),
        latencies: Latencies::of(&latencies, 1_000.0),
        aborts: (attempts.saturating_sub(operations)) as f64 / operations as f64,
        longest_wait_ms: tenths(longest.as_secs_f64() * 1e3),
        commit_wait_us: tenths(wait.as_secs_f64() * 1e6 / operations as f64),
        uncertainty_us: tenths(uncertainty.as_secs_f64() * 1e6),
        errors,
        server_cpu_us_per_operation: per_operation(cpu.servers, operations),
        load_average: load_average(),
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("valid bounds")
}

async fn one_client(client: Client, work: Rc<Work>, number: u64, counting: Instant, until: Instant) -> Counts {
    let mut random = SplitMix64::new(crate::SEED ^ (number << 32));
    let mut counts = Counts {
        latencies_ns: histogram(),
        attempts: 0,
        longest: Duration::ZERO,
        commit_wait: Duration::ZERO,
        uncertainty: Duration::ZERO,
        errors: 0,
        last_error: None,
    };
    let mut last = Instant::now();
    while Instant::now() < until {
        let began = Instant::now();
        let done = work.execute(&client, &mut random).await;
        let now = Instant::now();
        if began < counting || now > until {
            last = now;
            continue;
        }
        match done {
            Ok((attempts, commit_wait, uncertainty)) => {
                let nanos = u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX);
                counts.latencies_ns.saturating_record(nanos);
                counts.attempts += u64::from(attempts);
                counts.longest = counts.longest.max(now - last);
                counts.commit_wait += commit_wait;
                counts.uncertainty = counts.uncertainty.max(uncertainty);
                last = now;
            }
            Err(error) => {
                counts.errors += 1;
                counts.last_error = Some(error);
            }
        }
    }
    counts.longest = counts.longest.max(until.saturating_duration_since(last));
    counts
}

impl Work {
    async fn execute(&self, client: &Client, random: &mut SplitMix64) -> Result<Done, sdk::Error> {
        let once = (1, Duration::ZERO, Duration::ZERO);
        let mut row = |range: usize| format!("{}-{:06}", range_start(range), random.below(ROWS));
        let (narrow, wide) = (&*self.narrow, &*self.wide);
        let puts = match self.operation {
            Operation::Put => {
                client.table(narrow).write(row(0)).put(COLUMN, self.value.clone()).send().await?;
                return Ok(once);
            }
            Operation::Snapshot => {
                let age = Duration::from_millis(500);
                let snapshot = client.snapshot_of(sdk::Staleness::Exact(age)).await?;
                snapshot.get(narrow, row(0), COLUMN).await?;
                return Ok(once);
            }
            Operation::Read => {
                let key = row(0);
                let done = client
                    .transaction(|tx| {
                        let key = key.clone();
                        async move { tx.get(narrow, key, COLUMN).await }
                    })
                    .await?;
                return Ok((done.attempts, done.commit_wait, done.uncertainty));
            }
            Operation::Counter => return increment(client, narrow, &["counter".to_owned()]).await,
            Operation::Opposite => {
                let mut keys = [format!("{}-left", range_start(0)), format!("{}-right", range_start(1))];
                if random.below(2) == 0 {
                    keys.reverse();
                }
                return increment(client, wide, &keys).await;
            }
            Operation::Write => vec![(narrow, row(0))],
            Operation::OneRange => vec![(narrow, row(0)), (narrow, row(1))],
            Operation::TwoRanges => vec![(wide, row(0)), (wide, row(1))],
            Operation::Participants => (0..self.participants).map(|range| (wide, row(range))).collect(),
        };
        let done = client
            .transaction(|tx| {
                let (puts, value) = (puts.clone(), self.value.clone());
                async move { puts.into_iter().try_for_each(|(table, key)| tx.put(table, key, COLUMN, value.clone())) }
            })
            .await?;
        Ok((done.attempts, done.commit_wait, done.uncertainty))
    }
}

/// Increments a counter in each of these rows.
async fn increment(client: &Client, table: &str, keys: &[String]) -> Result<Done, sdk::Error> {
    let done = client
        .transaction(|tx| async move {
            for key in keys {
                let cell = tx.get(table, key.clone(), COLUMN).await?;
                let text = cell.as_ref().and_then(|cell| std::str::from_utf8(&cell.value).ok());
                let count: u64 = text.and_then(|text| text.parse().ok()).unwrap_or(0);
                tx.put(table, key.clone(), COLUMN, (count + 1).to_string())?;
            }
            Ok(())
        })
        .await?;
    Ok((done.attempts, done.commit_wait, done.uncertainty))
}

impl Figures {
    fn heading() -> String {
        format!(
            "{:<13} {:>8} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9} {:>5}",
            "OPERATION",
            "REPLICAS",
            "CLOCK US",
            "CLIENTS",
            "RANGES",
            "OP/S",
            "MEAN US",
            "P50 US",
            "P99 US",
            "ABORTS",
            "LONGEST",
            "WAIT US",
            "CPU US/OP",
            "LOAD"
        )
    }

    fn for_people(&self) -> String {
        format!(
            "{:<13} {:>8} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8.2} {:>6} ms {:>8} {:>9} {:>5}{}",
            self.operation,
            or_dash((self.replicas > 0).then_some(self.replicas)),
            or_dash(self.clock_uncertainty_us),
            self.clients,
            self.participants,
            self.operations_per_second,
            self.latencies.mean_us,
            self.latencies.p50_us,
            self.latencies.p99_us,
            self.aborts,
            self.longest_wait_ms,
            self.commit_wait_us,
            or_dash(self.server_cpu_us_per_operation),
            or_dash(self.load_average),
            if self.errors > 0 { format!("  {} errors", self.errors) } else { String::new() },
        )
    }
}
