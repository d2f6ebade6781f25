//! `loggos bench transactions --availability`: throughput around the loss of a node (Spanner, section 5.2 and figure 5).
//!
//! Each of five nodes holds all ranges of a table. The clients write in the ranges that one of the nodes leads. In the
//! first run, another node is killed; in the second, the node hands its leaderships over and ends; in the third, the node
//! is killed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::Bytes;
use sdk::Client;
use serde::Serialize;
use terminal::{Stop, unless_interrupted};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::{Arguments, CLIENTS_PER_CONNECTION, COLUMN, NODES, PATIENCE, ROWS, range_start, value};
use crate::cluster::{Cluster, NodeFault, Start, Term, Which};
use crate::plot;
use crate::progress::Progress;
use crate::report::Report;
use crate::servers::load_average;
use crate::timeline::{Dip, Timeline};

const RANGES: usize = 25;
/// Measured time before the fault.
const BEFORE: Duration = Duration::from_secs(5);
/// Measured time after it.
const AFTER: Duration = Duration::from_secs(10);

/// The node that is lost.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Loss {
    /// A node that leads no range with writes is killed.
    NonLeader,
    /// The leader hands over and ends.
    LeaderSoft,
    /// The leader is killed.
    LeaderHard,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::NonLeader => "non-leader",
            Self::LeaderSoft => "leader-soft",
            Self::LeaderHard => "leader-hard",
        }
    }
}

/// The results of one run as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Run {
    bench: &'static str,
    loss: Loss,
    clients: usize,
    /// The ranges that the clients write in.
    ranges: usize,
    value_bytes: usize,
    errors: u64,
    #[serde(flatten)]
    dip: Option<Dip>,
    timeline: Timeline,
    load_average: Option<f64>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.loss.name();
        let Some(dip) = self.dip else { return write!(f, "{name:<12} no operation succeeded before the fault") };
        let restored = dip.restored_ms.map_or_else(|| "not restored".to_owned(), |time| format!("{time} ms"));
        write!(
            f,
            "{name:<12} {:>9} {:>8}% {:>8}% {:>8}% {restored:>12}",
            dip.before_per_second, dip.noise_percent, dip.dip_percent, dip.dip_of_second_percent
        )?;
        if self.errors > 0 { write!(f, "  {} errors", self.errors) } else { Ok(()) }
    }
}

/// Runs the three measurements on a cluster of their own.
pub(super) async fn run(arguments: &Arguments) -> Result<(), Stop> {
    unless_interrupted(LocalSet::new().run_until(measure(arguments))).await
}

async fn measure(arguments: &Arguments) -> Result<(), Stop> {
    let mut report = Report::open(&arguments.figures)?;
    let progress = Progress::of(3, "runs");
    progress.now("starting the cluster".to_owned());
    let start = Start { nodes: Some(NODES), port_offset: arguments.cluster.port_offset, ..Start::default() };
    let cluster = Cluster::start(start).await?;
    let table = format!("{}-availability", arguments.table);
    let client = Client::connect(cluster.endpoints())?.with_deadline(PATIENCE);
    client.table(&*table).create().split_at((1..RANGES).map(range_start)).replicas(NODES).send().await?;
    report.add_text("LOSS          BEFORE/S    NOISE       DIP   OF 1 s      RESTORED", &progress)?;
    let mut curves = BTreeMap::new();
    for loss in [Loss::NonLeader, Loss::LeaderSoft, Loss::LeaderHard] {
        progress.now(loss.name().to_owned());
        let run = one(arguments, &cluster, &table, loss).await?;
        report.add_json(&run)?;
        report.add_text(&run.to_string(), &progress)?;
        progress.done(1);
        let shifted = |(seconds, count): (f64, f64)| (seconds + run.timeline.before as f64 / 10.0, count);
        curves.insert(loss.name().to_owned(), run.timeline.per_second().into_iter().map(shifted).collect());
    }
    drop(progress);
    if let Some(file) = &arguments.plot {
        draw(file, &curves)?;
    }
    Ok(())
}

fn draw(file: &Path, curves: &BTreeMap<String, Vec<(f64, f64)>>) -> Result<(), Stop> {
    let title = format!("Transactions around the loss of a node at {} s", BEFORE.as_secs());
    plot::write(file, &plot::lines(&title, ["seconds", "transactions per second"], curves))
}

/// One run: write, lose a node, keep writing, bring the node back.
async fn one(arguments: &Arguments, cluster: &Cluster, table: &str, loss: Loss) -> Result<Run, Stop> {
    let leads = settled(cluster, table).await?;
    let (leader, starts) = most(&leads);
    let counts = Rc::new(RefCell::new((Vec::new(), 0_u64)));
    let mut clients = JoinSet::new();
    let count = arguments.clients.first().copied().unwrap_or(1);
    for chunk in (0..count).collect::<Vec<_>>().chunks(CLIENTS_PER_CONNECTION) {
        let client = Client::connect(cluster.endpoints())?.with_deadline(PATIENCE);
        client.table(table).prefer_leader().await;
        for number in chunk {
            let (client, table, starts) = (client.clone(), table.to_owned(), starts.clone());
            let (value, counts) = (value(arguments.value_bytes), Rc::clone(&counts));
            let mut random = SplitMix64::new(crate::SEED ^ ((*number as u64) << 32));
            clients.spawn_local(async move {
                loop {
                    let start = &starts[random.below(starts.len() as u64) as usize];
                    let key = format!("{start}-{:06}", random.below(ROWS));
                    let put = client.transaction(|tx| {
                        let (table, key, value) = (table.clone(), key.clone(), value.clone());
                        async move { tx.put(table, key, COLUMN, value) }
                    });
                    let done = put.await;
                    let (completions, errors) = &mut *counts.borrow_mut();
                    match done {
                        Ok(_) => completions.push(Instant::now()),
                        Err(_) => *errors += 1,
                    }
                }
            });
        }
    }
    sleep(arguments.warmup).await;
    let began = Instant::now();
    sleep(BEFORE).await;
    let fault = Instant::now();
    let (node, signal) = match loss {
        Loss::NonLeader => (leader % NODES + 1, NodeFault::Kill),
        Loss::LeaderSoft => (leader, NodeFault::Term),
        Loss::LeaderHard => (leader, NodeFault::Kill),
    };
    let faulted = cluster.inject(node, signal)?;
    sleep(AFTER).await;
    let ended = Instant::now();
    let load_average = load_average();
    clients.shutdown().await;
    cluster.restore(faulted).await?;
    let (completions, errors) = counts.take();
    let timeline = Timeline::of(&completions, began, fault, ended);
    Ok(Run {
        bench: "transactions-availability",
        loss,
        clients: count,
        ranges: starts.len(),
        value_bytes: arguments.value_bytes,
        errors,
        dip: timeline.dip(),
        timeline,
        load_average,
    })
}

/// The leaders of the ranges, once all replicas have caught up.
async fn settled(cluster: &Cluster, table: &str) -> Result<BTreeMap<u32, (Term, Bytes)>, Stop> {
    let leads = crate::cluster::wait_until("all ranges have leaders", async || {
        let leads = cluster.leads(table).await;
        Ok((leads.len() == RANGES).then_some(leads))
    });
    for cohort in leads.await?.keys() {
        cluster.caught_up(Which::Cohort(*cohort)).await?;
    }
    Ok(cluster.leads(table).await)
}

/// The node that leads the most ranges, and the first keys of these.
fn most(leads: &BTreeMap<u32, (Term, Bytes)>) -> (u32, Vec<String>) {
    let mut by_node: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (term, start) in leads.values() {
        let start = if start.is_empty() { range_start(0) } else { String::from_utf8_lossy(start).into_owned() };
        by_node.entry(term.leader).or_default().push(start);
    }
    by_node.into_iter().max_by_key(|(_, starts)| starts.len()).unwrap_or_default()
}
