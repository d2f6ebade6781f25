//! `loggos bench failover`: measures how long writes are unavailable after a leader is killed or paused, and where the
//! time goes.
//!
//! Clients write, and the leader of their table is killed or paused. The result is the longest time without an
//! acknowledged write of any client, including a gap that is still open at the end. This is the unavailability that
//! users experience, so it includes the behavior of the client library: connections to a killed leader close at once,
//! but those to a paused leader stay open, and the library tries another node only after a timeout.
//!
//! Meanwhile the surviving nodes are polled for their status ([`watch`]). This divides the gap into parts:
//!
//! | part | from | until |
//! |---|---|---|
//! | detect | the last acknowledged write | a survivor reports that it has promised a newer epoch |
//! | elect | the end of detect | a survivor reports that it leads: a majority has promised, in its manifests |
//! | take over | the end of elect | the first acknowledged write |
//! | barrier (part of take over) | the end of elect | the new leader's commit point is in its own epoch: it serves requests |
//!
//! So detection includes the grace period of the old leader's lease, the random delay before a candidacy, and the
//! pre-vote round. After the barrier, the rest of the takeover is the time that clients need to find the new leader.
//! Each time is observed with a delay of at most one query and [`watch::PAUSE`], about two milliseconds on an idle
//! machine. (The paper's Table 1 excludes detection.)

mod results;
mod throughput;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use base::SplitMix64;
use clap::{Args, ValueEnum};
use terminal::{Replication, Stop, unless_interrupted};
use tokio::task::LocalSet;
use tokio::time::sleep;

use self::results::{HEADING, Run, Summary, strips};
use self::watch::Watch;
use super::cluster::{Cluster, NodeFault, Start, Which};
use super::measure::{Offer, Point, Running, Side};
use super::progress::Progress;
use super::report::{FiguresArguments, Report};
use super::schedule::Pacing;
use super::servers::{Servers, load_average};
use super::target::{TABLE, Target};
use super::workload::Workload;
use super::{SEED, parse, plot};

/// The fault is injected at a random time within this, so that runs hit different phases of the heartbeat.
const SPREAD_MS: u64 = 200;
/// The measurement starts this long before the fault.
const LEAD: Duration = Duration::from_millis(50);

/// Measures how long writes are unavailable after the leader of a table is killed or paused.
///
/// Starts a temporary cluster in TMPDIR, which is removed at the end, unless --data names a running one. After each run
/// the node is restarted or resumed, and the next run starts when it has caught up.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The fault to inject.
    #[arg(long, value_enum, default_value = "kill")]
    signal: NodeFault,
    /// The replica to inject it into.
    #[arg(long, value_enum, default_value = "leader")]
    victim: Victim,
    /// How the table is replicated.
    #[arg(long, value_enum, value_name = "KIND", default_value = "paxos")]
    replication: Replication,
    /// Number of runs.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = parse::positive)]
    runs: usize,
    /// Data directory of a running `loggos dev` [default: a temporary cluster].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Number of concurrent clients, each with one write in flight.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse::positive)]
    clients: usize,
    /// Run an open loop with this number of writes per second.
    #[arg(long, value_name = "R", value_parser = parse::rate)]
    rate: Option<f64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    value_bytes: usize,
    /// Number of distinct keys, chosen at random.
    #[arg(long, default_value_t = 5_000, value_parser = parse::positive)]
    keys: usize,
    /// Warm-up before the fault.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// Duration of each measurement after the fault.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = parse::time)]
    duration: Duration,
    #[command(flatten)]
    figures: FiguresArguments,
    /// Plot this run and the contents of the --output file as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Instead: plot the throughput of one run with a killed follower, and one with a killed leader, as SVG. The node is
    /// restarted and catches up within the run.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plot", "victim", "signal", "runs", "rate"])]
    throughput: Option<PathBuf>,
}

/// The replica that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Victim {
    /// The leader, or primary.
    Leader,
    /// A follower, or secondary.
    Follower,
}

/// Runs the benchmark. On any exit, paused nodes resume, and a cluster started for the benchmark is stopped and removed.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    let clients = LocalSet::new();
    unless_interrupted(clients.run_until(measure(&arguments))).await
}

async fn measure(arguments: &Arguments) -> Result<(), Stop> {
    let mut report = Report::open(&arguments.figures)?;
    let progress = Progress::of(arguments.runs as u64, "runs");
    progress.now("starting the cluster".to_owned());
    let cluster = match &arguments.data {
        Some(data) => Cluster::running(data)?,
        None => Cluster::start(Start::default()).await?,
    };
    let workload =
        Workload { replication: arguments.replication, ..Workload::writes(arguments.keys, arguments.value_bytes) };
    let target = Target::Loggos(cluster.endpoints());
    let side = Side::prepare(None, target, workload, Servers::of(&[], None)?).await?;
    if let Some(file) = &arguments.throughput {
        return throughput::run(arguments, file, &cluster, &side, (&mut report, &progress)).await;
    }
    report.add_text(HEADING, &progress)?;
    let (mut draw, mut runs) = (SplitMix64::new(SEED), Vec::new());
    for number in 1..=arguments.runs {
        progress.now(arguments.signal.name().to_owned());
        let wait = Duration::from_millis(draw.below(SPREAD_MS));
        let run = one(arguments, number, &cluster, &side, wait).await?;
        report.add_json(&run)?;
        report.add_text(&run.to_string(), &progress)?;
        progress.done(1);
        runs.push(run);
    }
    let summary = Summary::of(arguments.signal, &runs);
    report.add_json(&summary)?;
    report.add_text(&summary.to_string(), &progress)?;
    drop(progress);
    if let Some(file) = &arguments.plot {
        let drawn = match &arguments.figures.output {
            Some(file) => plot::read(file)?,
            None => runs.clone(),
        };
        plot::write(file, &plot::strip("Time without writes, and its parts", "milliseconds", &strips(&drawn)))?;
    }
    match runs.iter().find(|run| run.operations == 0) {
        Some(run) => Err(Stop::NothingDone { run: format!("run {}", run.run), error: None }),
        None => Ok(()),
    }
}

/// One run: write, inject the fault, keep writing, bring the node back.
async fn one(
    arguments: &Arguments,
    number: usize,
    cluster: &Cluster,
    side: &Side,
    wait: Duration,
) -> Result<Run, Stop> {
    cluster.caught_up(Which::Table(TABLE)).await?;
    let offer = arguments.rate.map(|rate| Offer { rate, pacing: Pacing::Poisson });
    let point = Point { clients: arguments.clients, offer };
    let mut writing = Running::begin(side, point).await?;
    sleep(arguments.warmup + wait).await;
    let term = cluster.term(Which::Table(TABLE)).await?;
    let victim = match arguments.victim {
        Victim::Leader => term.leader,
        Victim::Follower => cluster.follower(term.leader),
    };
    let watch = Watch::begin(&cluster.others(victim), term).await?;
    writing.start();
    // Let some writes complete, so that the gap has a beginning.
    sleep(LEAD).await;
    let faulted = cluster.inject(victim, arguments.signal)?;
    sleep(arguments.duration).await;
    let (counted, _) = writing.stop();
    let marks = watch.stop();
    let load = load_average();
    writing.settle().await;
    cluster.restore(faulted).await?;
    Ok(Run {
        signal: arguments.signal,
        run: number,
        clients: arguments.clients,
        rate: arguments.rate,
        value_bytes: arguments.value_bytes,
        operations: counted.operations(),
        errors: counted.errors,
        load_average: load,
        ..Run::of(&counted.longest_gap, &marks)
    })
}
