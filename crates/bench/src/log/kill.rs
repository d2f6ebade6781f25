//! Measures how long each appender is blocked after a node is killed that hosts a log's sequencer and one of its units.
//!
//! Appends continue once the catalog's leader has chosen another sequencer and chains without the dead unit. If the
//! killed node led the catalog, the election of a new leader comes first. The two cases are measured separately
//! ([`Leader`]).
//!
//! Each appender has its own connection, and the connections are spread over all nodes: only some appenders lose their
//! node. A gap is the longest time between two completed appends of one appender. It is measured from shortly before
//! the kill, and includes a gap that is still open at the end.
//!
//! Each case has its own log. Between two runs the cluster is restored: the node restarts, the catalog's replicas catch
//! up, the log is trimmed, and all its chains are brought back to the configured number of copies. If the sequencer or
//! the catalog's leader is then on the wrong node for the case, nodes are killed outside the runs until it is not.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use base::SplitMix64;
use clap::ValueEnum;
use sdk::admin::LogChain;
use sdk::{Client, Log};
use serde::{Deserialize, Serialize};
use terminal::Stop;
use tokio::time::sleep;

use super::Arguments;
use super::clients::{Appender, Supply, TestLog};
use super::figures::Shape;
use crate::SEED;
use crate::cluster::{Cluster, NodeFault, Which, wait_until};
use crate::loops::Crew;
use crate::plot::{self, OfBench, Strip};
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{Report, or_dash};
use crate::servers::load_average;
use crate::statistics::Spread;
use crate::target::OPERATION_TIME_MAX;

/// The node is killed at a random time within this, so that runs meet different phases of the heartbeat.
const SPREAD_MS: u64 = 200;
/// Measurement starts this long before the kill.
const LEAD: Duration = Duration::from_millis(50);
/// A log that has been complete for this long is stable: its projection is replaced at most once a second.
const UNCHANGED: Duration = Duration::from_millis(1_500);
/// Maximum number of kills to prepare a run: each succeeds with a probability of about one half.
const TRIES: usize = 30;

/// Whether the killed node leads the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Leader {
    /// Another node leads it.
    Elsewhere,
    /// The killed node leads it.
    Same,
}

impl Leader {
    /// The given case, or both cases.
    pub(crate) fn wanted(one: Option<Self>) -> Vec<Self> {
        one.map_or_else(|| vec![Self::Elsewhere, Self::Same], |one| vec![one])
    }

    fn name(self) -> &'static str {
        match self {
            Self::Elsewhere => "elsewhere",
            Self::Same => "same",
        }
    }
}

/// One run as JSON. Scripts depend on the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "bench", rename = "log kill")]
pub(crate) struct KillRun {
    leader: Leader,
    run: usize,
    /// The node that was killed.
    node: u32,
    stripes: u32,
    copies: u32,
    value_bytes: usize,
    batch: usize,
    /// The node that each appender connects to first, and the appender's longest gap.
    via: Vec<u32>,
    gaps_us: Vec<u64>,
    longest_gap_us: u64,
    /// Gaps ended by the end of the run, not by an append.
    open_gaps: usize,
    operations: u64,
    errors: u64,
    load_average: Option<f64>,
}

impl OfBench for KillRun {
    const BENCH: &'static str = "log kill";
}

const HEADING: &str =
    "RUN  LEADER     NODE  LONGEST MS  MEDIAN MS  AT ITS NODE MS  ELSEWHERE MS  APPENDS  ERRORS  LOAD";

impl KillRun {
    /// The gaps of appenders connected to the killed node, or of all others.
    fn gaps(&self, is_at_node: bool) -> Vec<f64> {
        let gaps = self.via.iter().zip(&self.gaps_us).filter(|(node, _)| (**node == self.node) == is_at_node);
        gaps.map(|(_, gap)| *gap as f64).collect()
    }

    fn all_gaps(&self) -> Vec<f64> {
        self.gaps_us.iter().map(|gap| *gap as f64).collect()
    }
}

impl fmt::Display for KillRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = |gaps: &[f64]| Spread::of(gaps).map(|spread| format!("{:.1}", spread.median / 1_000.0));
        write!(
            f,
            "{:>3}  {:9}  {:>4}  {:>10.1}  {:>9}  {:>14}  {:>12}  {:>7}  {:>6}  {:>4}",
            self.run,
            self.leader.name(),
            self.node,
            self.longest_gap_us as f64 / 1_000.0,
            or_dash(median(&self.all_gaps())),
            or_dash(median(&self.gaps(true))),
            or_dash(median(&self.gaps(false))),
            self.operations,
            self.errors,
            or_dash(self.load_average),
        )?;
        if self.open_gaps > 0 { write!(f, "  {} still blocked", self.open_gaps) } else { Ok(()) }
    }
}

/// The summary of all runs of one case, in microseconds.
#[derive(Debug, Serialize)]
struct Summary {
    bench: &'static str,
    leader: Leader,
    runs: usize,
    open_gaps: usize,
    /// Over all appenders of all runs.
    gap_us: Option<Spread>,
    /// Over the longest gap of each run.
    longest_gap_us: Option<Spread>,
}

impl Summary {
    fn of(leader: Leader, runs: &[KillRun]) -> Self {
        let gaps: Vec<f64> = runs.iter().flat_map(KillRun::all_gaps).collect();
        let longest: Vec<f64> = runs.iter().map(|run| run.longest_gap_us as f64).collect();
        let open_gaps = runs.iter().map(|run| run.open_gaps).sum();
        let (gap_us, longest_gap_us) = (Spread::of(&gaps), Spread::of(&longest));
        Self { bench: "log kill summary", leader, runs: runs.len(), open_gaps, gap_us, longest_gap_us }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leader, runs, .. } = self;
        write!(f, "\n{runs} runs, the catalog's leader {}; milliseconds: median (lowest to highest)", leader.name())?;
        for (name, spread) in [("gap per appender", self.gap_us), ("longest per run", self.longest_gap_us)] {
            let Some(Spread { median, lowest, highest }) = spread else { continue };
            let [median, lowest, highest] = [median, lowest, highest].map(|us| us / 1_000.0);
            write!(f, "\n{name:17}  {median:.1} ({lowest:.1} to {highest:.1})")?;
        }
        if self.open_gaps > 0 {
            write!(f, "\n{} appenders were still blocked at the end of their run", self.open_gaps)?;
        }
        Ok(())
    }
}

/// A column with all gaps of each case, and one with the longest gap of each run.
fn strips(runs: &[KillRun]) -> Vec<Strip> {
    let mut strips = Vec::new();
    for leader in Leader::wanted(None) {
        let runs: Vec<&KillRun> = runs.iter().filter(|run| run.leader == leader).collect();
        let gaps = runs.iter().flat_map(|run| run.all_gaps()).map(|us| us / 1_000.0).collect();
        let longest = runs.iter().map(|run| run.longest_gap_us as f64 / 1_000.0).collect();
        if !runs.is_empty() {
            strips.push(Strip { name: format!("leader {}: appenders", leader.name()), measurements: gaps });
            strips.push(Strip { name: format!("leader {}: longest", leader.name()), measurements: longest });
        }
    }
    strips
}

pub(super) async fn run(
    arguments: &Arguments,
    cluster: &Cluster,
    mut report: Report,
    progress: Progress,
) -> Result<(), Stop> {
    let Some(shape) = arguments.groups().into_iter().flatten().next() else { return Ok(()) };
    report.add_text(HEADING, &progress)?;
    let (mut draw, mut runs) = (SplitMix64::new(SEED), Vec::new());
    for leader in Leader::wanted(arguments.leader) {
        let bench = Bench::create(arguments, cluster, shape, leader).await?;
        let first = runs.len();
        for number in 1..=arguments.runs() {
            progress.now(format!("the catalog's leader {}", leader.name()));
            let run = bench.run(number, Duration::from_millis(draw.below(SPREAD_MS))).await?;
            report.add_json(&run)?;
            report.add_text(&run.to_string(), &progress)?;
            progress.done(1);
            runs.push(run);
        }
        let summary = Summary::of(leader, &runs[first..]);
        report.add_json(&summary)?;
        report.add_text(&summary.to_string(), &progress)?;
    }
    drop(progress);
    if let Some(file) = &arguments.plot {
        let drawn = match &arguments.figures.output {
            Some(json) => plot::read(json)?,
            None => runs.clone(),
        };
        plot::write(file, &plot::strip("Time without appends", "milliseconds", &strips(&drawn)))?;
    }
    match runs.iter().find(|run| run.operations == 0) {
        Some(run) => Err(Stop::NothingDone { run: format!("run {}", run.run), error: None }),
        None => Ok(()),
    }
}

/// The log of one case.
struct Bench<'a> {
    arguments: &'a Arguments,
    cluster: &'a Cluster,
    leader: Leader,
    shape: Shape,
    log: Log,
}

impl<'a> Bench<'a> {
    /// Creates the log with its sequencer on the required node, which is the node that receives the request. Repeats
    /// with other logs until that node also hosts a unit.
    async fn create(
        arguments: &'a Arguments,
        cluster: &'a Cluster,
        shape: Shape,
        leader: Leader,
    ) -> Result<Self, Stop> {
        let leads = cluster.term(Which::Catalog).await?.leader;
        let nodes = cluster.nodes();
        let wanted = nodes.iter().find(|node| (**node == leads) == (leader == Leader::Same)).copied().unwrap_or(leads);
        let creator = Client::connect(cluster.endpoints_from(wanted))?;
        let client = Client::connect(cluster.endpoints())?;
        let mut number = 1;
        loop {
            let name = format!("bench-kill-{}-{number}", leader.name());
            let log = creator.log(&name);
            log.create().stripes(shape.stripes).copies(shape.copies).send().await?;
            let placed = TestLog::named(name.as_str(), shape).described(&log.describe().await?);
            if placed.sequencer_has_unit() || number == nodes.len() {
                return Ok(Self { arguments, cluster, leader, shape, log: client.log(name) });
            }
            number += 1;
        }
    }

    /// One run: append, kill, keep appending, bring the node back.
    async fn run(&self, number: usize, wait: Duration) -> Result<KillRun, Stop> {
        let placed = self.arrange().await?;
        let (mut crew, mut recorders, mut via) = (Crew::default(), Vec::new(), Vec::new());
        let (supply, nodes) = (Supply::new(self.shape), self.cluster.nodes());
        for entry_node in nodes.iter().cycle().take(self.shape.clients) {
            let client = Client::connect(self.cluster.endpoints_from(*entry_node))?.with_deadline(OPERATION_TIME_MAX);
            let recorder = Rc::new(Recorder::default());
            crew.closed_loop(Appender { log: client.log(self.log.name()), supply: supply.clone() }, &recorder);
            recorders.push(recorder);
            via.push(*entry_node);
        }
        sleep(self.arguments.warmup + wait).await;
        recorders.iter().for_each(|recorder| recorder.start());
        // Let some appends complete, so that the gaps have a beginning.
        sleep(LEAD).await;
        let faulted = self.cluster.inject(placed.sequencer, NodeFault::Kill)?;
        sleep(self.arguments.duration()).await;
        let counted: Vec<_> = recorders.iter().map(|recorder| recorder.stop(&[])).collect();
        let load_average = load_average();
        crew.settle().await;
        self.cluster.restore(faulted).await?;
        let gaps_us: Vec<u64> = counted.iter().map(|one| one.longest_gap.length().as_micros() as u64).collect();
        Ok(KillRun {
            leader: self.leader,
            run: number,
            node: placed.sequencer,
            stripes: self.shape.stripes,
            copies: self.shape.copies,
            value_bytes: self.shape.value_bytes,
            batch: self.shape.batch,
            via,
            longest_gap_us: gaps_us.iter().max().copied().unwrap_or_default(),
            gaps_us,
            open_gaps: counted.iter().filter(|one| one.longest_gap.is_open).count(),
            operations: counted.iter().map(super::super::recorder::Counted::operations).sum(),
            errors: counted.iter().map(|one| one.errors).sum(),
            load_average,
        })
    }

    /// Waits until the cluster is restored, with the sequencer and the catalog's leader on the required nodes.
    async fn arrange(&self) -> Result<TestLog, Stop> {
        for _ in 0..TRIES {
            let placed = self.whole().await?;
            let leads = self.cluster.term(Which::Catalog).await?.leader;
            let is_same = leads == placed.sequencer;
            if placed.sequencer_has_unit() && is_same == (self.leader == Leader::Same) {
                return Ok(placed);
            }
            // Afterwards a node with a unit hosts the sequencer, or another node leads.
            let unwanted = if placed.sequencer_has_unit() { leads } else { placed.sequencer };
            let faulted = self.cluster.inject(unwanted, NodeFault::Kill)?;
            self.caught_up_without(unwanted).await?;
            self.cluster.restore(faulted).await?;
        }
        let wanted = format!("could not place the catalog's leader ({}) in {TRIES} tries", self.leader.name());
        Err(sdk::Error::Unavailable(wanted).into())
    }

    /// Waits until the log has a sequencer, and the catalog a leader, other than the killed node.
    async fn caught_up_without(&self, dead: u32) -> Result<(), Stop> {
        let client = Client::connect(self.cluster.others(dead))?;
        let log = client.log(self.log.name());
        wait_until("the log and the catalog work without the killed node", async || {
            // Only appends detect that a sequencer has failed.
            log.append([""]).await?;
            let statuses = client.status_of_each().await;
            let cohorts = statuses.iter().flatten().flat_map(|status| &status.cohorts);
            let leads = |cohort: &&sdk::admin::Cohort| cohort.cohort == base::CohortId::CATALOG.0;
            let is_led = cohorts.filter(leads).all(|cohort| cohort.leader.is_some_and(|leader| leader != dead));
            Ok((is_led && log.describe().await?.sequencer != dead).then_some(()))
        })
        .await
    }

    /// Waits until all nodes serve, the catalog's replicas have caught up, and the log's chains have all their copies.
    async fn whole(&self) -> Result<TestLog, Stop> {
        self.cluster.caught_up(Which::Catalog).await?;
        // Entries of earlier runs are irrelevant here, but would have to be copied.
        let tail = self.log.tail().await?;
        self.log.trim(tail).await?;
        wait_until("the log's chains have all their copies", async || {
            let before = self.log.describe().await?;
            let placed = TestLog::named(self.log.name(), self.shape).described(&before);
            let is_full = |chain: &LogChain| chain.units.len() == self.shape.copies as usize;
            let mut chains = before.extents.iter().flat_map(|extent| &extent.chains);
            if placed.chains.len() < self.shape.stripes as usize || !chains.all(is_full) {
                return Ok(None);
            }
            sleep(UNCHANGED).await;
            Ok((self.log.describe().await?.epoch == before.epoch).then_some(placed))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill_run(leader: Leader, gaps_us: [u64; 3]) -> KillRun {
        KillRun {
            leader,
            run: 1,
            node: 2,
            stripes: 1,
            copies: 2,
            value_bytes: 512,
            batch: 1,
            via: vec![1, 2, 3],
            gaps_us: gaps_us.to_vec(),
            longest_gap_us: gaps_us.into_iter().max().expect("three"),
            open_gaps: 0,
            operations: 9,
            errors: 0,
            load_average: None,
        }
    }

    #[test]
    fn gaps_split_by_connected_node() {
        let run = kill_run(Leader::Same, [300_000, 800_000, 400_000]);
        assert_eq!((run.gaps(true), run.gaps(false)), (vec![800_000.0], vec![300_000.0, 400_000.0]));
        let line = run.to_string();
        assert_eq!(
            line,
            "  1  same          2       800.0      400.0           800.0         350.0        9       0     -"
        );
        assert_eq!(HEADING.len(), line.len());
    }

    #[test]
    fn summary_of_appender_and_longest_gaps() {
        let runs =
            [kill_run(Leader::Elsewhere, [1_000, 2_000, 9_000]), kill_run(Leader::Elsewhere, [3_000, 4_000, 7_000])];
        let summary = Summary::of(Leader::Elsewhere, &runs);
        assert_eq!(summary.gap_us, Some(Spread { median: 3_500.0, lowest: 1_000.0, highest: 9_000.0 }));
        assert_eq!(summary.longest_gap_us, Some(Spread { median: 8_000.0, lowest: 7_000.0, highest: 9_000.0 }));
        assert!(summary.to_string().ends_with("longest per run    8.0 (7.0 to 9.0)"), "{summary}");
        let drawn = strips(&runs);
        assert_eq!(drawn.len(), 2, "only measured cases are drawn");
        assert_eq!(drawn[1].measurements, [9.0, 7.0]);
    }

    #[test]
    fn kill_run_json_round_trip() {
        let run = kill_run(Leader::Elsewhere, [1, 2, 3]);
        let line = serde_json::to_string(&run).expect("numbers and names");
        assert!(line.starts_with(r#"{"bench":"log kill","leader":"elsewhere","run":1,"node":2,"#), "{line}");
        assert_eq!(serde_json::from_str::<KillRun>(&line).expect("the same object"), run);
    }
}
