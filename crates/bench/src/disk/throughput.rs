//! `loggos bench disk --throughput`: the bandwidth of sequential reads over time while a replica is killed, and while it
//! catches up after its restart (Gaios, section 5).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use terminal::Stop;
use tokio::time::{sleep_until, timeout_at};

use super::super::cluster::{Cluster, NodeFault, Start, Which};
use super::super::plot;
use super::super::progress::Progress;
use super::super::report::{Report, or_dash, tenths};
use super::super::servers::load_average;
use super::super::timeline::{Dip, Timeline};
use super::Arguments;
use super::client::{Load, Uri, fill};
use super::figures::{Operation, Shape};

/// The disk, which is deleted at the end.
const DISK: &str = "loggos-bench";

/// One run as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Run {
    bench: &'static str,
    victim: &'static str,
    #[serde(flatten)]
    shape: Shape,
    /// Before the fault, and from the fault until the end.
    before_megabytes_per_second: f64,
    after_megabytes_per_second: f64,
    longest_request_ms: f64,
    /// In requests per second.
    #[serde(flatten)]
    dip: Option<Dip>,
    /// From the restart until all replicas had caught up; absent if that took longer than the run.
    caught_up_ms: Option<u64>,
    timeline: Timeline,
    load_average: Option<f64>,
}

const HEADING: &str = "VICTIM     MB/S BEFORE  MB/S AFTER       DIP   OF 1 s   LONGEST   CAUGHT UP";

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: fn(Dip) -> f64| or_dash(self.dip.map(|dip| format!("{}%", part(dip))));
        write!(
            f,
            "{:<10} {:>11} {:>11} {:>9} {:>8} {:>6} ms {:>11}",
            self.victim,
            self.before_megabytes_per_second,
            self.after_megabytes_per_second,
            percent(|dip| dip.dip_percent),
            percent(|dip| dip.dip_of_second_percent),
            self.longest_request_ms.round(),
            or_dash(self.caught_up_ms.map(|ms| format!("{ms} ms"))),
        )
    }
}

/// Reads through the leader while a follower is killed, and through a follower while the leader is killed; draws both.
pub(super) async fn run(arguments: &Arguments, file: &Path) -> Result<(), Stop> {
    let mut report = Report::open(&arguments.figures)?;
    let progress = Progress::of(2, "runs");
    progress.now("starting the cluster".to_owned());
    let cluster = match &arguments.data {
        Some(data) => Cluster::running(data)?,
        None => Cluster::start(Start::default()).await?,
    };
    let disk = sdk::Client::connect(cluster.endpoints())?.disk(DISK);
    let block = base::limits::DISK_BLOCK_BYTES;
    disk.create((arguments.span as u64).next_multiple_of(block)).stripes(1).send().await?;
    let done = both(arguments, file, &cluster, (&mut report, &progress)).await;
    disk.delete(false).await?;
    done
}

async fn both(
    arguments: &Arguments,
    file: &Path,
    cluster: &Cluster,
    (report, progress): (&mut Report, &Progress),
) -> Result<(), Stop> {
    progress.now("filling the disk".to_owned());
    fill(&uri(cluster, cluster.nodes()[0])?, arguments.span as u64).await?;
    report.add_text(HEADING, progress)?;
    let mut curves = BTreeMap::new();
    for victim in ["follower", "leader"] {
        progress.now(victim.to_owned());
        let run = one(arguments, cluster, victim).await?;
        report.add_json(&run)?;
        report.add_text(&run.to_string(), progress)?;
        progress.done(1);
        let megabytes = run.shape.bytes as f64 / 1e6;
        let shifted = |(at, count): (f64, f64)| (at + arguments.duration.as_secs_f64(), count * megabytes);
        curves.insert(format!("{victim} killed"), run.timeline.per_second().into_iter().map(shifted).collect());
    }
    let (killed, restarted) = (arguments.duration.as_secs_f64(), 3.0 * arguments.duration.as_secs_f64());
    let title = format!("Sequential reads while a node is killed at {killed} s, and restarted at {restarted} s");
    plot::write(file, &plot::lines(&title, ["seconds", "MB per second"], &curves))
}

fn uri(cluster: &Cluster, node: u32) -> Result<Uri, Stop> {
    Ok(Uri { address: cluster.nbd(node)?, export: DISK.to_owned() })
}

async fn one(arguments: &Arguments, cluster: &Cluster, victim: &'static str) -> Result<Run, Stop> {
    cluster.caught_up(Which::Table(DISK)).await?;
    let leader = cluster.term(Which::Table(DISK)).await?.leader;
    let follower = cluster.follower(leader);
    let (killed, attached) = if victim == "leader" { (leader, follower) } else { (follower, leader) };
    let disk = uri(cluster, attached)?;
    let (bytes, depth) = (arguments.bytes[0], *arguments.depth.last().expect("clap demands one"));
    let shape = Shape { operation: Operation::Read, bytes, depth, sequential: true };
    let mut load = Load::attach(&disk, shape, arguments.span).await.map_err(disk.failed())?;
    let began = Instant::now() + arguments.warmup;
    let fault = began + arguments.duration;
    let restart = fault + 2 * arguments.duration;
    let ended = restart + 2 * arguments.duration;
    let (mut completions, mut longest) = (Vec::new(), Duration::ZERO);
    let reading = load.run(ended, |sent, answered| {
        if answered >= began {
            completions.push(answered);
            longest = longest.max(answered - sent);
        }
    });
    let killing = async {
        sleep_until(fault.into()).await;
        let fault = Instant::now();
        let faulted = cluster.inject(killed, NodeFault::Kill)?;
        sleep_until(restart.into()).await;
        let restart = Instant::now();
        cluster.restore(faulted).await?;
        let in_time = timeout_at(ended.into(), cluster.caught_up(Which::Table(DISK))).await;
        let caught_up_ms = in_time.is_ok_and(|done| done.is_ok()).then(|| restart.elapsed().as_millis() as u64);
        Ok::<_, Stop>((fault, caught_up_ms))
    };
    let (read, killed) = tokio::join!(reading, killing);
    let (fault, caught_up_ms) = killed?;
    read.map_err(disk.failed())?;
    let timeline = Timeline::of(&completions, began, fault, ended);
    let per_second = |count: usize, time: Duration| tenths(count as f64 * bytes as f64 / 1e6 / time.as_secs_f64());
    let before = completions.iter().filter(|at| **at < fault).count();
    Ok(Run {
        bench: "disk throughput",
        victim,
        shape,
        before_megabytes_per_second: per_second(before, fault - began),
        after_megabytes_per_second: per_second(completions.len() - before, ended.saturating_duration_since(fault)),
        longest_request_ms: tenths(longest.max(load.oldest()).as_secs_f64() * 1_000.0),
        dip: timeline.dip(),
        caught_up_ms,
        timeline,
        load_average: load_average(),
    })
}
