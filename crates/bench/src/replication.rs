//! `loggos bench replication`: writes under each kind of replication, and their cost for a leader and a follower
//! (PacificA, table 1).

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::Bytes;
use clap::Args;
use sdk::Table;
use serde::Serialize;
use terminal::{Replication, Stop, unless_interrupted};
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::cluster::{Cluster, Start, Usage};
use super::loops::{Crew, Operate};
use super::progress::Progress;
use super::recorder::Recorder;
use super::report::{FiguresArguments, Report, or_dash, tenths};
use super::servers::load_average;
use super::target::{CLIENTS_PER_CONNECTION, OPERATION_TIME_MAX};
use super::workload::value;
use super::{SEED, parse};

const COLUMN: &str = "value";
/// The compared tables: their names, replicas and replication.
const TABLES: [(&str, u32, Replication); 3] = [
    ("one-replica", 1, Replication::Paxos),
    ("paxos", 3, Replication::Paxos),
    ("primary-backup", 3, Replication::PrimaryBackup),
];

/// Compares kinds of replication: writes per second, latency, and the CPU time, network and disk of the leader and of a
/// follower.
///
/// Starts a temporary cluster of three nodes in TMPDIR, which is removed at the end.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Number of concurrent clients, each with one write in flight.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64,1", value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    value_bytes: usize,
    /// Number of distinct keys, chosen at random.
    #[arg(long, default_value_t = 5_000, value_parser = parse::positive)]
    keys: usize,
    /// How often all measurements are repeated, interleaved.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse::positive)]
    rounds: usize,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "4s", value_parser = parse::time)]
    duration: Duration,
    #[command(flatten)]
    figures: FiguresArguments,
}

/// One measurement as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Run {
    bench: &'static str,
    table: &'static str,
    replicas: u32,
    clients: usize,
    value_bytes: usize,
    operations_per_second: f64,
    p50_us: u64,
    p99_us: u64,
    errors: u64,
    leader: Rates,
    /// Absent with one replica.
    follower: Option<Rates>,
    load_average: Option<f64>,
}

/// Resources that a node used per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Rates {
    /// Percent of one processor.
    cpu_percent: f64,
    /// Bytes exchanged with other nodes, in MB per second. Clients do not count.
    sent_mb: f64,
    received_mb: f64,
    /// MB per second written to files.
    written_mb: f64,
}

impl Rates {
    fn between(before: Usage, after: Usage, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let mb = |before: u64, after: u64| tenths(after.saturating_sub(before) as f64 / 1e6 / seconds);
        Self {
            cpu_percent: tenths(after.cpu.saturating_sub(before.cpu).as_secs_f64() * 100.0 / seconds),
            sent_mb: mb(before.sent_bytes, after.sent_bytes),
            received_mb: mb(before.received_bytes, after.received_bytes),
            written_mb: mb(before.written_bytes, after.written_bytes),
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu_percent, sent_mb, received_mb, written_mb } = self;
        write!(f, "{cpu_percent:>6} {sent_mb:>6} {received_mb:>6} {written_mb:>6}")
    }
}

const HEADING: &str = "                                                       LEADER                      FOLLOWER
TABLE           CLIENTS  WRITES/S   P50 US   P99 US     CPU %   SENT  REC'D  WRITE    CPU %   SENT  REC'D  WRITE  LOAD";

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, clients, operations_per_second, p50_us, p99_us, leader, .. } = self;
        let follower = self.follower.map_or_else(|| format!("{:>27}", "-"), |rates| rates.to_string());
        write!(
            f,
            "{table:<14} {clients:>8} {operations_per_second:>9} {p50_us:>8} {p99_us:>8}    {leader}   {follower} {:>5}",
            or_dash(self.load_average)
        )?;
        if self.errors > 0 { write!(f, "  {} errors", self.errors) } else { Ok(()) }
    }
}

/// A client that puts random rows.
struct Writer {
    table: Table,
    keys: u64,
    value: Bytes,
    draw: SplitMix64,
}

impl Operate for Writer {
    async fn operate(&mut self) -> Result<(), sdk::Error> {
        let key = format!("key-{:08}", self.draw.below(self.keys));
        self.table.write(key).put(COLUMN, self.value.clone()).send().await.map(drop)
    }
}

/// Runs the measurements on a cluster of their own.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    unless_interrupted(LocalSet::new().run_until(measure(&arguments))).await
}

async fn measure(arguments: &Arguments) -> Result<(), Stop> {
    let mut report = Report::open(&arguments.figures)?;
    let points = (arguments.rounds * arguments.clients.len() * TABLES.len()) as u64;
    let progress = Progress::of(points, "measurements");
    progress.now("starting the cluster".to_owned());
    let cluster = Cluster::start(Start::default()).await?;
    let client = sdk::Client::connect(cluster.endpoints())?;
    for (name, replicas, replication) in TABLES {
        client.table(name).create().replicas(replicas).replication(replication.into()).send().await?;
    }
    report.add_text(HEADING, &progress)?;
    for _ in 0..arguments.rounds {
        for &clients in &arguments.clients {
            for (table, replicas, _) in TABLES {
                progress.now(table.to_owned());
                let run = one(arguments, &cluster, table, replicas, clients).await?;
                report.add_json(&run)?;
                report.add_text(&run.to_string(), &progress)?;
                progress.done(1);
            }
        }
    }
    Ok(())
}

async fn one(
    arguments: &Arguments,
    cluster: &Cluster,
    table: &'static str,
    replicas: u32,
    clients: usize,
) -> Result<Run, Stop> {
    let (recorder, mut crew) = (Rc::new(Recorder::default()), Crew::default());
    let mut connections = Vec::new();
    for _ in 0..clients.div_ceil(CLIENTS_PER_CONNECTION) {
        let handle = sdk::Client::connect(cluster.endpoints())?.with_deadline(OPERATION_TIME_MAX).table(table);
        handle.prefer_leader().await;
        connections.push(handle);
    }
    let value = value(arguments.value_bytes);
    for number in 0..clients {
        let table = connections[number % connections.len()].clone();
        let draw = SplitMix64::new(SEED + number as u64);
        let writer = Writer { table, keys: arguments.keys as u64, value: value.clone(), draw };
        crew.closed_loop(writer, &recorder);
    }
    sleep(arguments.warmup).await;
    let leads = cluster.leads(table).await;
    let term = leads.values().next().map(|(term, _)| *term);
    let term = term.ok_or_else(|| Stop::invalid(format!("the table {table} has no leader")))?;
    let (before, began) = (cluster.usage()?, Instant::now());
    recorder.start();
    sleep(arguments.duration).await;
    let counted = recorder.stop(&[]);
    let (after, elapsed) = (cluster.usage()?, began.elapsed());
    crew.settle().await;
    if counted.operations() == 0 {
        let run = format!("{table} with {clients} clients");
        return Err(Stop::NothingDone { run, error: counted.last_error });
    }
    let quantile = |quantile| counted.latencies_us.value_at_quantile(quantile);
    let rates = |node: u32| rates_of(node, &before, &after, elapsed);
    let follower = cluster.follower(term.leader);
    Ok(Run {
        bench: "replication",
        table,
        replicas,
        clients,
        value_bytes: arguments.value_bytes,
        operations_per_second: tenths(counted.operations() as f64 / counted.elapsed.as_secs_f64()),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        errors: counted.errors,
        leader: rates(term.leader)?,
        follower: if replicas > 1 { Some(rates(follower)?) } else { None },
        load_average: load_average(),
    })
}

fn rates_of(
    node: u32,
    before: &BTreeMap<u32, Usage>,
    after: &BTreeMap<u32, Usage>,
    elapsed: Duration,
) -> Result<Rates, Stop> {
    let both = before.get(&node).zip(after.get(&node));
    let (before, after) = both.ok_or_else(|| Stop::invalid(format!("node {node} is not running")))?;
    Ok(Rates::between(*before, *after, elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        let of = |cpu_ms, bytes| Usage {
            cpu: Duration::from_millis(cpu_ms),
            written_bytes: bytes,
            sent_bytes: 2 * bytes,
            received_bytes: bytes / 2,
        };
        let rates = Rates::between(of(1_000, 0), of(2_000, 8_000_000), Duration::from_secs(2));
        let expected = Rates { cpu_percent: 50.0, sent_mb: 8.0, received_mb: 2.0, written_mb: 4.0 };
        assert_eq!(rates, expected);
    }
}
