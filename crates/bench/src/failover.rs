//! `loggos bench failover`: how long writes are unavailable when a leader dies or pauses, and where that time goes.
//!
//! Clients write, the leader of their table is killed or paused, and the result is the longest time in which no client
//! had a write acknowledged; a gap that is still open at the end counts. This is what users see, so it includes the
//! client library's behavior: connections to a killed leader close at once, but a paused one stays silent, and the
//! library tries another node only after a second.
//!
//! The surviving nodes are polled for their status meanwhile ([`watch`]), which splits the gap:
//!
//! | part | from | until |
//! |---|---|---|
//! | detect | the last acknowledged write | a survivor reports that it has promised a newer epoch |
//! | elect | then | a survivor reports that it leads: a majority has promised, in its manifests |
//! | take over | then | the first acknowledged write |
//! | barrier (in take over) | then | the new leader's commit point is in its own epoch: it serves requests |
//!
//! So detection includes the grace period of the old leader's lease, the random delay before a candidacy, and the
//! pre-vote round. The part of the takeover after the barrier is the clients' way to the new leader. Each time is
//! observed with a delay of at most one query and [`watch::PAUSE`], about two milliseconds on an idle machine. (The
//! paper's Table 1 excludes detection.)

mod run;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use base::SplitMix64;
use clap::Args;
use terminal::{Stop, unless_interrupted};
use tokio::task::LocalSet;
use tokio::time::sleep;

use self::run::{HEADING, Run, Summary, strips};
use self::watch::Watch;
use super::cluster::{Cluster, Strike, Which};
use super::measure::{Offer, Point, Running, Side};
use super::progress::Progress;
use super::report::Report;
use super::schedule::Pacing;
use super::servers::{Servers, load_average};
use super::target::{TABLE, Target};
use super::workload::Workload;
use super::{SEED, parse, plot};

/// The leader is killed or paused at a random time within this, so that runs meet different phases of the heartbeat.
const SPREAD_MS: u64 = 200;
/// Measurement starts this long before it.
const LEAD: Duration = Duration::from_millis(50);

/// The time without writes when the leader of the table is killed or stopped.
///
/// A cluster of its own is started in the temporary directory (TMPDIR names another), and removed at the end; or one
/// that runs is used. After each run the node is brought back, and the next begins when it has caught up.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// What happens to the leader.
    #[arg(long, value_enum, default_value = "kill")]
    signal: Strike,
    /// How often.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = parse::positive)]
    runs: usize,
    /// The directory of a `loggos dev` that runs, whose nodes are struck. [default: a cluster of its own]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Clients that write.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse::positive)]
    clients: usize,
    /// An open loop of so many writes a second, instead of a closed one.
    #[arg(long, value_name = "R", value_parser = parse::rate)]
    rate: Option<f64>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    value_bytes: usize,
    /// Keys that are written, at random.
    #[arg(long, default_value_t = 5_000, value_parser = parse::positive)]
    keys: usize,
    /// Seconds of writing before the leader is struck.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse::seconds)]
    warmup: f64,
    /// Seconds of writing after it is.
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = parse::seconds)]
    seconds: f64,
    /// Where the figures go as JSON, an object a run and one for all; `-` is standard output, and then there is no
    /// table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the runs as SVG: these, and those that are in the --json file already.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Measures. On any exit, paused nodes resume, and a cluster started for the benchmark is stopped and removed.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    let clients = LocalSet::new();
    unless_interrupted(clients.run_until(measure(&arguments))).await
}

async fn measure(arguments: &Arguments) -> Result<(), Stop> {
    let mut report = Report::open(arguments.json.as_deref())?;
    let progress = Progress::of(arguments.runs as u64, "runs");
    progress.now("starting the cluster".to_owned());
    let cluster = match &arguments.data {
        Some(data) => Cluster::running(data)?,
        None => Cluster::start().await?,
    };
    let workload = Workload::writes(arguments.keys, arguments.value_bytes);
    let target = Target::Loggos(cluster.endpoints());
    let side = Side::prepare(None, target, workload, Servers::of(&[], None)?).await?;
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
        let drawn = match &arguments.json {
            Some(json) if json.as_os_str() != "-" => plot::read(json)?,
            _ => runs.clone(),
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
    sleep(Duration::from_secs_f64(arguments.warmup) + wait).await;
    let term = cluster.term(Which::Table(TABLE)).await?;
    let watch = Watch::begin(&cluster.others(term.leader), term).await?;
    writing.start();
    // Let some writes complete, so that the gap has a beginning.
    sleep(LEAD).await;
    let struck = cluster.strike(term.leader, arguments.signal)?;
    sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let (counted, _) = writing.stop();
    let marks = watch.stop();
    let load = load_average();
    writing.settle().await;
    cluster.bring_back(struck).await?;
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
