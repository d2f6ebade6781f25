//! `loggos bench failover --throughput`: throughput over time while a follower, then the leader, is killed, and while it
//! catches up after its restart (PacificA, figures 5 to 7).

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use terminal::{Replication, Stop};
use tokio::time::{sleep, sleep_until};

use super::super::cluster::{Cluster, NodeFault, Which};
use super::super::measure::{Point, Running, Side};
use super::super::plot;
use super::super::progress::Progress;
use super::super::report::{Report, or_dash};
use super::super::servers::load_average;
use super::super::target::TABLE;
use super::super::timeline::{Dip, Timeline};
use super::{Arguments, Victim};

/// Measured time before the fault.
const BEFORE: Duration = Duration::from_secs(5);
/// From the fault until the node is restarted, and from there until the end.
const DOWN: Duration = Duration::from_secs(10);

/// One run as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Run {
    bench: &'static str,
    victim: &'static str,
    replication: &'static str,
    clients: usize,
    value_bytes: usize,
    errors: u64,
    #[serde(flatten)]
    dip: Option<Dip>,
    /// From the fault until the restart command, and from there until all replicas had caught up; absent if that took
    /// longer than the run.
    restarted_ms: u64,
    caught_up_ms: Option<u64>,
    timeline: Timeline,
    load_average: Option<f64>,
}

const HEADING: &str = "VICTIM      BEFORE/S    NOISE       DIP   OF 1 s      RESTORED   CAUGHT UP";

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = self.victim;
        let Some(dip) = self.dip else { return write!(f, "{victim:<10} no write succeeded before the fault") };
        let time = |ms: Option<u64>| or_dash(ms.map(|ms| format!("{ms} ms")));
        write!(
            f,
            "{victim:<10} {:>9} {:>8}% {:>8}% {:>7}% {:>13} {:>11}",
            dip.before_per_second,
            dip.noise_percent,
            dip.dip_percent,
            dip.dip_of_second_percent,
            time(dip.restored_ms),
            time(self.caught_up_ms),
        )?;
        if self.errors > 0 { write!(f, "  {} errors", self.errors) } else { Ok(()) }
    }
}

/// Runs both, and draws them.
pub(super) async fn run(
    arguments: &Arguments,
    file: &Path,
    cluster: &Cluster,
    side: &Side,
    (report, progress): (&mut Report, &Progress),
) -> Result<(), Stop> {
    report.add_text(HEADING, progress)?;
    let mut curves = BTreeMap::new();
    for (victim, name) in [(Victim::Follower, "follower"), (Victim::Leader, "leader")] {
        progress.now(name.to_owned());
        let run = one(arguments, cluster, side, (victim, name)).await?;
        report.add_json(&run)?;
        report.add_text(&run.to_string(), progress)?;
        let shifted = |(seconds, count): (f64, f64)| (seconds + BEFORE.as_secs_f64(), count);
        curves.insert(format!("{name} killed"), run.timeline.per_second().into_iter().map(shifted).collect());
    }
    let (killed, restarted) = (BEFORE.as_secs(), (BEFORE + DOWN).as_secs());
    let title = format!("Writes while a node is killed at {killed} s, and restarted at {restarted} s");
    plot::write(file, &plot::lines(&title, ["seconds", "writes per second"], &curves))
}

async fn one(
    arguments: &Arguments,
    cluster: &Cluster,
    side: &Side,
    (victim, name): (Victim, &'static str),
) -> Result<Run, Stop> {
    cluster.caught_up(Which::Table(TABLE)).await?;
    let writing = Running::begin(side, Point { clients: arguments.clients, offer: None }).await?;
    sleep(arguments.warmup).await;
    let term = cluster.term(Which::Table(TABLE)).await?;
    let node = if victim == Victim::Leader { term.leader } else { cluster.follower(term.leader) };
    let began = Instant::now();
    writing.start_with_times();
    sleep(BEFORE).await;
    let fault = Instant::now();
    let faulted = cluster.inject(node, NodeFault::Kill)?;
    sleep(DOWN).await;
    let (restart, end) = (Instant::now(), Instant::now() + DOWN);
    cluster.restore(faulted).await?;
    let caught_up = cluster.caught_up(Which::Table(TABLE));
    let in_time = tokio::time::timeout_at(end.into(), caught_up).await;
    let caught_up_ms = in_time.is_ok_and(|done| done.is_ok()).then(|| restart.elapsed().as_millis() as u64);
    sleep_until(end.into()).await;
    let ended = Instant::now();
    let (counted, _) = writing.stop();
    let load_average = load_average();
    writing.settle().await;
    let timeline = Timeline::of(&counted.successes, began, fault, ended);
    Ok(Run {
        bench: "failover throughput",
        victim: name,
        replication: if arguments.replication == Replication::Paxos { "paxos" } else { "primary-backup" },
        clients: arguments.clients,
        value_bytes: arguments.value_bytes,
        errors: counted.errors,
        dip: timeline.dip(),
        restarted_ms: (restart - fault).as_millis() as u64,
        caught_up_ms,
        timeline,
        load_average,
    })
}
