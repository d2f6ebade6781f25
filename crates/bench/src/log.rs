//! `loggos bench log`: measures shared logs: appends, random reads, a subscriber that catches up, and how long appends
//! are unavailable after a node is killed.
//!
//! Here an *entry* is one record of a batch, as in CORFU's measurements. An operation is one request to the log: an
//! append of a batch, or a read of a position, which holds one batch.
//!
//! Appenders share a few connections, which are assigned to the nodes round robin, starting with the sequencer's node.
//! So a single appender is measured without forwarding, and many appenders use all nodes.

mod clients;
mod figures;
mod kill;
mod stream;
mod turn;

use std::path::PathBuf;
use std::time::Duration;

use base::limits::{LOG_COPIES_MAX, LOG_STRIPES_MAX};
use clap::{Args, ValueEnum};
use terminal::{Stop, unless_interrupted};
use tokio::task::LocalSet;

use self::clients::{Harness, TestLog};
use self::figures::{Figures, Measured, Shape};
use self::stream::READS_MAX;
use super::cluster::{Cluster, Start};
use super::measure::Times;
use super::pairs::Pairs;
use super::progress::Progress;
use super::report::{FiguresArguments, Report};
use super::{parse, plot};
use crate::Platform;
use crate::floor::ChainFloor;

/// Maximum bytes of an append, including the framing of its entries: the server's limit.
const APPEND_BYTES_MAX: usize = 4 << 20;
const ENTRY_FRAME_BYTES: usize = 4;
/// Default duration of a measurement in seconds, without and with --kill.
const DURATION: Duration = Duration::from_secs(10);
const DURATION_KILLED: Duration = Duration::from_secs(5);
/// Default numbers of clients.
const APPENDERS: [usize; 4] = [1, 4, 16, 64];
const APPENDERS_KILLED: usize = 8;
const READERS: usize = 512;
/// Default number of entries appended before random reads and before a subscription.
const ENTRIES_RANDOM: u64 = 100_000;
const ENTRIES_FOLLOWED: u64 = 1_000_000;
/// Default number of pairs with --floor, and of runs of each case with --kill.
const ROUNDS_WITH_FLOOR: u16 = 5;
const RUNS_KILLED: usize = 20;

/// Measures shared logs: appends, reads (--read), and the unavailability of appends after a node is killed (--kill).
///
/// Starts a temporary cluster in TMPDIR, which is removed at the end, unless --data names a running one. Each
/// combination of the given numbers is one line of the table. Each number of stripes has a separate log.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Bytes of an entry.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "512", value_parser = parse::positive)]
    value_bytes: Vec<usize>,
    /// Entries per append.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = parse::positive)]
    batch: Vec<usize>,
    /// Number of concurrent clients, each with one append or read in flight [default: 1,4,16,64; 8 with --kill; 1 with
    /// --floor; 512 with --read random].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Number of chains over which positions are striped.
    #[arg(long, value_name = "S,...", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_STRIPES_MAX)))]
    stripes: Vec<u32>,
    /// Copies of each position, each on a different node.
    #[arg(long, value_name = "C", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_COPIES_MAX)))]
    copies: u32,
    /// Duration of each measurement [default: 10s; 5s after the kill with --kill].
    #[arg(long, alias = "seconds", value_name = "TIME", value_parser = parse::time)]
    duration: Option<Duration>,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse::time)]
    warmup: Duration,
    /// Measure reads instead of appends. The log is filled first.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with_all = ["floor", "rounds", "kill"])]
    read: Option<Read>,
    /// Number of entries appended before the reads [default: 100000; 1000000 with --read follow].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "read")]
    entries: Option<u64>,
    /// Compare one client with the hardware floor of an append: one disk sync and one round trip between processes for
    /// each copy, in sequence.
    #[arg(long, conflicts_with = "kill")]
    floor: bool,
    /// Number of interleaved rounds. Prints medians, ranges and the ratios within the rounds: of each number of stripes
    /// to the first number, and of one client to the floor [default with --floor: 5].
    #[arg(long, alias = "pairs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    #[arg(conflicts_with = "kill")]
    rounds: Option<u16>,
    /// Kill the node that hosts the log's sequencer and one of its log units, and measure how long each client is
    /// blocked.
    #[arg(long)]
    kill: bool,
    /// The node that leads the catalog when the node is killed [default: both cases in turn].
    #[arg(long, value_enum, value_name = "WHERE", requires = "kill")]
    leader: Option<kill::Leader>,
    /// Number of runs of each case [default: 20 with --kill; 1 with --read follow].
    #[arg(long, value_name = "N", value_parser = parse::positive)]
    runs: Option<usize>,
    /// Data directory of a running `loggos dev` to measure [default: a temporary cluster].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    figures: FiguresArguments,
    /// Plot this run and the contents of the --output file as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The kinds of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Read {
    /// Concurrent reads of single random positions, on one stream.
    Random,
    /// One subscription from the log's first entry to its last.
    Follow,
}

/// The kind of measurement in one line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Append,
    Random,
    Follow,
    /// The ends of the round trips share one processor, or use two.
    Floor {
        on_two: bool,
    },
}

impl Arguments {
    fn duration(&self) -> Duration {
        self.duration.unwrap_or(if self.kill { DURATION_KILLED } else { DURATION })
    }

    fn runs(&self) -> usize {
        self.runs.unwrap_or(if self.kill { RUNS_KILLED } else { 1 })
    }

    fn clients(&self) -> &[usize] {
        match self.read {
            Some(Read::Follow) => &[1],
            _ if !self.clients.is_empty() => &self.clients,
            Some(Read::Random) => &[READERS],
            None if self.kill => &[APPENDERS_KILLED],
            None if self.floor => &[1],
            None => &APPENDERS,
        }
    }

    fn rounds(&self) -> Option<u16> {
        self.rounds.or_else(|| self.floor.then_some(ROUNDS_WITH_FLOOR))
    }

    /// The shapes measured alternately: for each combination of the other parameters, all stripe counts.
    fn groups(&self) -> Vec<Vec<Shape>> {
        let copies = self.copies;
        let mut groups = Vec::new();
        for value_bytes in &self.value_bytes {
            for batch in &self.batch {
                for clients in self.clients() {
                    let (value_bytes, batch, clients) = (*value_bytes, *batch, *clients);
                    let of = |stripes: &u32| Shape { stripes: *stripes, copies, clients, value_bytes, batch };
                    groups.push(self.stripes.iter().map(of).collect());
                }
            }
        }
        groups
    }

    /// Validates the arguments before anything is measured.
    fn check(&self) -> Result<(), Stop> {
        let largest = |numbers: &[usize]| numbers.iter().max().copied().unwrap_or_default();
        let entry = largest(&self.value_bytes).saturating_add(ENTRY_FRAME_BYTES);
        if largest(&self.batch).saturating_mul(entry) > APPEND_BYTES_MAX {
            return Err(Stop::invalid(format!("an append is limited to {APPEND_BYTES_MAX} bytes")));
        }
        if self.floor && !self.clients().contains(&1) {
            return Err(Stop::invalid("--floor is compared with a single client: add --clients 1"));
        }
        if self.rounds.is_some() && self.stripes.len() < 2 && !self.floor {
            return Err(Stop::invalid("--rounds requires several --stripes or --floor to compare"));
        }
        if self.kill && self.groups().iter().map(Vec::len).sum::<usize>() > 1 {
            return Err(Stop::invalid("--kill takes a single --value-bytes, --batch, --clients and --stripes"));
        }
        if self.read == Some(Read::Random) && largest(&self.clients) > READS_MAX {
            return Err(Stop::invalid(format!("--read random is limited to {READS_MAX} clients")));
        }
        if self.read == Some(Read::Follow) && !self.clients.is_empty() {
            return Err(Stop::invalid("--read follow has a single client: omit --clients"));
        }
        let is_repeated = self.kill || self.read == Some(Read::Follow);
        if self.runs.is_some() && !is_repeated {
            return Err(Stop::invalid("--runs requires --kill or --read follow"));
        }
        Ok(())
    }
}

/// Runs the benchmark. On any exit, a cluster started for the benchmark is stopped and removed.
pub(crate) async fn run(arguments: Arguments, platform: Platform) -> Result<(), Stop> {
    arguments.check()?;
    let clients = LocalSet::new();
    unless_interrupted(clients.run_until(async {
        let report = Report::open(&arguments.figures)?;
        let progress = Progress::of(turns(&arguments), if arguments.kill { "runs" } else { "turns" });
        progress.now("starting the cluster".to_owned());
        let cluster = match &arguments.data {
            Some(data) => Cluster::running(data)?,
            None => Cluster::start(Start::default()).await?,
        };
        if arguments.kill {
            return kill::run(&arguments, &cluster, report, progress).await;
        }
        Run::new(&arguments, platform, cluster, report, progress)?.all().await
    }))
    .await
}

fn turns(arguments: &Arguments) -> u64 {
    if arguments.kill {
        return (arguments.runs() * kill::Leader::wanted(arguments.leader).len()) as u64;
    }
    let lines: usize = arguments.groups().iter().map(Vec::len).sum();
    (lines * arguments.runs() * usize::from(arguments.rounds().unwrap_or(1))) as u64
}

/// The state of a running benchmark.
struct Run<'a> {
    arguments: &'a Arguments,
    harness: Harness,
    floor: Option<ChainFloor>,
    report: Report,
    progress: Progress,
    measured: Vec<Measured>,
    nothing_done: Option<Stop>,
}

impl<'a> Run<'a> {
    fn new(
        arguments: &'a Arguments,
        platform: Platform,
        cluster: Cluster,
        report: Report,
        progress: Progress,
    ) -> Result<Self, Stop> {
        let floor = arguments.floor.then(|| ChainFloor::prepare(platform, cluster.data())).transpose();
        let floor = floor.map_err(|error| Stop::invalid(format!("cannot measure the floor: {error}")))?;
        let harness = Harness { cluster };
        Ok(Self { arguments, harness, floor, report, progress, measured: Vec::new(), nothing_done: None })
    }

    async fn all(mut self) -> Result<(), Stop> {
        for shapes in self.arguments.groups() {
            match self.arguments.rounds() {
                None => {
                    for shape in shapes {
                        let placed = self.place(shape).await?;
                        for _ in 0..self.arguments.runs() {
                            self.turn(self.what(), &placed).await?;
                        }
                    }
                }
                Some(rounds) => self.rounds(rounds, &shapes).await?,
            }
        }
        self.finish()
    }

    fn what(&self) -> What {
        match self.arguments.read {
            None => What::Append,
            Some(Read::Random) => What::Random,
            Some(Read::Follow) => What::Follow,
        }
    }

    /// The log of this shape, filled before reads.
    async fn place(&self, shape: Shape) -> Result<TestLog, Stop> {
        let usual = match self.arguments.read {
            None => return self.harness.place(shape).await,
            Some(Read::Random) => ENTRIES_RANDOM,
            Some(Read::Follow) => ENTRIES_FOLLOWED,
        };
        self.progress.now(format!("{shape}, filling the log"));
        self.harness.place_filled(shape, self.arguments.entries.unwrap_or(usual)).await
    }

    /// Measures all stripe counts alternately, and the floor if there is one appender; compares within each round.
    async fn rounds(&mut self, rounds: u16, shapes: &[Shape]) -> Result<(), Stop> {
        let mut placed = Vec::with_capacity(shapes.len());
        for shape in shapes {
            placed.push(self.place(*shape).await?);
        }
        let Some(first) = placed.first() else { return Ok(()) };
        let floors: &[What] = match self.floor.is_some() && first.shape.clients == 1 {
            true => &[What::Floor { on_two: false }, What::Floor { on_two: true }],
            false => &[],
        };
        let mut pairs: Vec<Pairs<Figures>> = Vec::new();
        for _ in 0..rounds {
            let mut round = Vec::new();
            for floor in floors {
                round.push((self.turn(*floor, first).await?, floor.title(&first.shape)));
            }
            for placed in &placed {
                round.push((self.turn(What::Append, placed).await?, What::Append.title(&placed.shape)));
            }
            // Compares the first stripe count with each floor, and the other stripe counts with the first.
            let base = &round[floors.len()];
            let compared = round[..floors.len()].iter().map(|floor| (base, floor));
            let compared: Vec<_> =
                compared.chain(round[floors.len() + 1..].iter().map(|other| (other, base))).collect();
            if pairs.is_empty() {
                let begin = |((_, a), (_, b)): &(&(Figures, String), &(Figures, String))| {
                    Pairs::new([a.clone(), b.clone()], first.shape.compared())
                };
                pairs = compared.iter().map(begin).collect();
            }
            for (pairs, ((a, _), (b, _))) in pairs.iter_mut().zip(compared) {
                pairs.add(a, b);
            }
        }
        for pairs in pairs {
            let summary = pairs.summary();
            self.report.add_json(&summary)?;
            self.report.add_text(&summary.to_string(), &self.progress)?;
        }
        Ok(())
    }

    async fn turn(&mut self, what: What, placed: &TestLog) -> Result<Figures, Stop> {
        let (shape, title) = (placed.shape, what.title(&placed.shape));
        self.progress.now(format!("{title}, {}", shape.compared()));
        let times = Times { warmup: self.arguments.warmup, measured: self.arguments.duration() };
        let figures = match (what, &self.floor) {
            (What::Append, _) => turn::appends(&self.harness, placed, times).await?,
            (What::Random, _) => turn::random_reads(&self.harness, placed, times).await?,
            (What::Follow, _) => turn::follow(&self.harness, placed).await?,
            (What::Floor { on_two }, Some(floor)) => turn::floor(floor, on_two, placed, times)?,
            (What::Floor { .. }, None) => return Err(Stop::invalid("the floor was not prepared")),
        };
        if !matches!(what, What::Floor { .. }) {
            self.progress.done(1);
        }
        self.report.add(&figures, &self.progress)?;
        self.measured.push(Measured::of(&figures));
        if figures.operations == 0 {
            let stop =
                Stop::NothingDone { run: format!("{title}, {}", shape.compared()), error: figures.last_error.clone() };
            self.nothing_done.get_or_insert(stop);
        }
        Ok(figures)
    }

    /// Writes the plot. Fails if some turn had no successful operation.
    fn finish(self) -> Result<(), Stop> {
        drop(self.progress);
        if let Some(file) = &self.arguments.plot {
            let measured = match &self.arguments.figures.output {
                Some(json) => plot::read(json)?,
                None => self.measured,
            };
            plot::write(file, &drawn(&measured, self.arguments.read))?;
        }
        self.nothing_done.map_or(Ok(()), Err)
    }
}

/// Latency by load, or entries per second for subscriptions, which have no latency.
fn drawn(measured: &[Measured], read: Option<Read>) -> String {
    if read == Some(Read::Follow) {
        return plot::strip("Catch-up of a subscriber", "entries per second", &Measured::strips(measured));
    }
    let points: Vec<_> = measured.iter().map(Measured::plot_point).collect();
    plot::latency(&points, "entries per second")
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Random => "read random",
            Self::Follow => "read follow",
            Self::Floor { on_two: false } => "floor, 1 CPU",
            Self::Floor { on_two: true } => "floor, 2 CPUs",
        }
    }

    /// A title that distinguishes it within its group.
    fn title(self, shape: &Shape) -> String {
        match self {
            Self::Floor { .. } => self.name().to_owned(),
            _ => format!("{} x{}", self.name(), shape.stripes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(line: &str) -> Arguments {
        Line::try_parse_from(["log"].into_iter().chain(line.split_whitespace())).expect("valid options").arguments
    }

    #[test]
    fn sweep_groups_stripe_counts() {
        let arguments = parsed("--value-bytes 64,512 --batch 1,64 --clients 1,64 --stripes 1,2,4");
        let groups = arguments.groups();
        assert_eq!((groups.len(), arguments.rounds()), (8, None));
        let shape = |stripes| Shape { stripes, copies: 2, clients: 64, value_bytes: 64, batch: 1 };
        assert_eq!(groups[1], [1, 2, 4].map(shape));
        assert_eq!(turns(&arguments), 24);
        assert_eq!(parsed("").clients(), APPENDERS);
    }

    #[test]
    fn mode_sets_defaults() {
        let floor = parsed("--floor");
        assert_eq!((floor.clients(), floor.rounds()), (&[1][..], Some(5)));
        let kill = parsed("--kill");
        assert_eq!((kill.clients(), kill.runs(), turns(&kill)), (&[8][..], 20, 40));
        assert_eq!(kill.duration(), Duration::from_secs(5));
        assert_eq!(turns(&parsed("--kill --leader same --runs 3")), 3);
        let follow = parsed("--read follow --batch 64 --runs 3");
        assert_eq!((follow.clients(), turns(&follow)), (&[1][..], 3));
        assert_eq!(parsed("--read random --clients 8,64").clients(), [8, 64]);
        assert_eq!(parsed("--read random").clients(), [512]);
    }

    #[test]
    fn rejects_invalid_options() {
        let refused = [
            "--batch 65 --value-bytes 65536",
            "--floor --clients 4",
            "--rounds 3",
            "--kill --stripes 1,2",
            "--runs 3",
            "--read random --runs 3",
            "--read random --clients 2049",
            "--read follow --clients 2",
        ];
        for line in refused {
            assert!(parsed(line).check().is_err(), "{line}");
        }
        for line in
            ["--batch 63 --value-bytes 65536", "--rounds 3 --stripes 1,2", "--rounds 3 --floor", "--kill --runs 3"]
        {
            assert!(parsed(line).check().is_ok(), "{line}");
        }
        for line in ["--kill --floor", "--read random --kill", "--entries 9", "--leader same", "--stripes 0"] {
            assert!(Line::try_parse_from(["log"].into_iter().chain(line.split(' '))).is_err(), "{line}");
        }
    }
}
