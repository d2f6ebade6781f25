//! `loggos bench disk`: reads and writes of virtual disks, over the Network Block Device protocol.
//!
//! The client is a part of this program, so that Loggos and other NBD servers are measured alike. Every write carries the
//! flag FUA: the answer says that it is durable.

mod client;
mod figures;
mod throughput;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use terminal::{Stop, unless_interrupted};

use self::client::{Load, Uri, fill};
use self::figures::{Figures, HEADING, Measured, Operation, Shape, plotted};
use super::meter::Meter;
use super::pairs::Pairs;
use super::progress::Progress;
use super::report::{FiguresArguments, Report};
use super::servers::Servers;
use super::{parse, plot};

/// Measures reads and writes of virtual disks, or of any NBD server. The content of the disks is overwritten.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The disks, measured in turn: nbd://HOST[:PORT]/NAME.
    #[arg(value_name = "URI", required_unless_present = "throughput")]
    disks: Vec<Uri>,
    /// The requests.
    #[arg(long, value_enum, value_name = "OPERATION,...", value_delimiter = ',', default_value = "write,read")]
    operation: Vec<Operation>,
    /// Bytes of a request.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "8192", value_parser = parse::positive)]
    bytes: Vec<usize>,
    /// Requests in progress.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,32", value_parser = parse::positive)]
    depth: Vec<usize>,
    /// Consecutive addresses instead of random ones.
    #[arg(long)]
    sequential: bool,
    /// Bytes at the beginning of the disk that are used.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = parse::positive)]
    span: usize,
    /// How often all measurements are repeated, interleaved.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse::positive)]
    rounds: usize,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = parse::time)]
    duration: Duration,
    /// Process ids of the first disk's servers, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    server_pids: Vec<u32>,
    /// Data directory of `loggos dev`, which holds the process ids of the first disk's servers.
    #[arg(long, value_name = "DIR", conflicts_with = "server_pids")]
    server_data: Option<PathBuf>,
    /// Number of interleaved pairs (A B A B ...) per combination: A is each disk in turn, B is --against. Prints medians,
    /// ranges and the ratio of A to B.
    #[arg(long, value_name = "N", requires = "against", conflicts_with = "rounds", value_parser = parse::positive)]
    pairs: Option<usize>,
    /// The disk to compare with, such as nbdkit's: nbd://HOST[:PORT]/NAME.
    #[arg(long, value_name = "URI", requires = "pairs")]
    against: Option<Uri>,
    /// Process ids of the servers to compare with.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', requires = "against")]
    against_pids: Vec<u32>,
    #[command(flatten)]
    figures: FiguresArguments,
    /// Plot this run and the contents of the --output file as SVG: bandwidth by size if several sizes are given, requests
    /// per second by depth otherwise.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Instead: plot the bandwidth of sequential reads, of the first size and the last depth, in one run with a killed
    /// follower, and one with a killed leader, as SVG. The node is killed after --duration, and restarted after two more.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["disks", "plot", "rounds", "pairs", "operation", "sequential"])]
    throughput: Option<PathBuf>,
    /// Data directory of a running `loggos dev` for --throughput [default: a temporary cluster].
    #[arg(long, value_name = "DIR", requires = "throughput")]
    data: Option<PathBuf>,
}

impl Arguments {
    fn shapes(&self) -> Vec<Shape> {
        let sequential = self.sequential;
        let mut shapes = Vec::new();
        for &operation in &self.operation {
            for &bytes in &self.bytes {
                shapes.extend(self.depth.iter().map(|&depth| Shape { operation, bytes, depth, sequential }));
            }
        }
        shapes
    }

    /// The disks to measure in turn, and the one to compare with.
    fn sides(&self) -> Result<(Vec<Side<'_>>, Option<Side<'_>>), Stop> {
        let name = self.against.is_some().then_some("A");
        let mut disks = Vec::new();
        for (place, disk) in self.disks.iter().enumerate() {
            let servers = match place {
                0 => Servers::of(&self.server_pids, self.server_data.as_deref())?,
                _ => Servers::of(&[], None)?,
            };
            disks.push(Side { name, disk, servers });
        }
        let servers = Servers::of(&self.against_pids, None)?;
        Ok((disks, self.against.as_ref().map(|disk| Side { name: Some("B"), disk, servers })))
    }
}

/// A disk with its servers.
struct Side<'a> {
    /// If it is compared.
    name: Option<&'static str>,
    disk: &'a Uri,
    servers: Servers,
}

impl Side<'_> {
    fn title(&self) -> String {
        let Uri { address, export } = self.disk;
        self.name.map_or_else(|| format!("{address}/{export}"), |name| format!("{name} {address}/{export}"))
    }
}

/// Runs the measurements.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    match &arguments.throughput {
        Some(file) => unless_interrupted(throughput::run(&arguments, file)).await,
        None => unless_interrupted(measure_all(&arguments)).await,
    }
}

async fn measure_all(arguments: &Arguments) -> Result<(), Stop> {
    let (disks, against) = arguments.sides()?;
    let (shapes, rounds) = (arguments.shapes(), arguments.pairs.unwrap_or(arguments.rounds));
    let turns = shapes.len() * rounds * disks.len() * if against.is_some() { 2 } else { 1 };
    let mut run = Run {
        arguments,
        report: Report::open(&arguments.figures)?,
        progress: Progress::of(turns as u64, "measurements"),
        measured: Vec::new(),
    };
    for side in disks.iter().chain(&against) {
        run.progress.now(format!("filling {}", side.title()));
        fill(side.disk, arguments.span as u64).await?;
    }
    run.report.add_text(HEADING, &run.progress)?;
    let mut pairs: BTreeMap<(usize, usize), Pairs<Figures>> = BTreeMap::new();
    for _ in 0..rounds {
        for (shape_place, shape) in shapes.iter().enumerate() {
            for (disk_place, side) in disks.iter().enumerate() {
                let a = run.turn(side, *shape).await?;
                if let Some(against) = &against {
                    let b = run.turn(against, *shape).await?;
                    let empty = || Pairs::new([side.title(), against.title()], *shape);
                    pairs.entry((disk_place, shape_place)).or_insert_with(empty).add(&a, &b);
                }
            }
        }
    }
    for pairs in pairs.into_values() {
        let summary = pairs.summary();
        run.report.add_json(&summary)?;
        run.report.add_text(&summary.to_string(), &run.progress)?;
    }
    let Some(file) = &arguments.plot else { return Ok(()) };
    let measured = match &arguments.figures.output {
        Some(file) => plot::read(file)?,
        None => run.measured,
    };
    plot::write(file, &plotted(&measured))
}

struct Run<'a> {
    arguments: &'a Arguments,
    report: Report,
    progress: Progress,
    measured: Vec<Measured>,
}

impl Run<'_> {
    async fn turn(&mut self, side: &Side<'_>, shape: Shape) -> Result<Figures, Stop> {
        self.progress.now(format!("{}, {shape}", side.title()));
        let figures = measure(self.arguments, side, shape).await?;
        self.report.add_json(&figures)?;
        self.report.add_text(&figures.to_string(), &self.progress)?;
        self.progress.done(1);
        self.measured.push(Measured::of(&figures));
        Ok(figures)
    }
}

async fn measure(arguments: &Arguments, side: &Side<'_>, shape: Shape) -> Result<Figures, Stop> {
    let mut load = Load::attach(side.disk, shape, arguments.span).await.map_err(side.disk.failed())?;
    let counting = Instant::now() + arguments.warmup;
    let mut latencies = Histogram::<u64>::new_with_max(60_000_000_000, 3).expect("valid bounds");
    let mut meter = None;
    let measured = load.run(counting + arguments.duration, |began, ended| {
        if ended >= counting {
            meter.get_or_insert_with(|| Meter::begin(side.servers.clone()));
            latencies.saturating_record(u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX));
        }
    });
    measured.await.map_err(side.disk.failed())?;
    let Some(meter) = meter else {
        return Err(Stop::NothingDone { run: format!("{}, {shape}", side.title()), error: None });
    };
    let cpu = meter?.used()?.servers;
    load.finish().await.map_err(side.disk.failed())?;
    Ok(Figures::of((side.name, side.disk), shape, &latencies, arguments.duration, cpu))
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

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        let words = ["disk"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn number_lists_are_sweeps() {
        let arguments = parsed("nbd://h/one nbd://h/three --bytes 512,4096 --depth 1,8,32").unwrap();
        assert_eq!((arguments.shapes().len(), arguments.disks.len()), (12, 2));
        let paired = parsed("nbd://h/one --pairs 5 --against nbd://h:10900/").unwrap();
        let (disks, against) = paired.sides().unwrap();
        assert_eq!(disks[0].title(), "A h:10809/one");
        assert_eq!(against.unwrap().title(), "B h:10900/");
        assert!(parsed("--throughput figure.svg --bytes 1048576").is_ok());
        let wrong =
            ["", "nbd://h/d --pairs 5", "nbd://h/d --against nbd://h/e", "nbd://h/d --throughput f", "--data d"];
        for line in wrong {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
