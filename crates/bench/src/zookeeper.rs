//! `loggos bench zookeeper`: measures any server of the ZooKeeper protocol with the same client.

mod figures;
mod load;
mod session;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use terminal::{Stop, ZOOKEEPER, unless_interrupted};
use tokio::task::LocalSet;
use tokio::time::sleep;

use self::figures::{Figures, Measured, Shape};
use self::load::Sessions;
use super::measure::Times;
use super::meter::Meter;
use super::pairs::Pairs;
use super::progress::Progress;
use super::recorder::Recorder;
use super::report::{FiguresArguments, Report};
use super::servers::Servers;
use super::{parse, plot};

/// Measures requests of ZooKeeper clients: throughput, latency, and CPU time of the servers.
///
/// Each session has one connection with several outstanding requests. Sessions are spread over the servers, reads and
/// writes over the znodes below /loggos-bench. Each combination of the given numbers is one line of the table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Addresses of the servers: Loggos, or any other server of the protocol [env: LOGGOS_ZK_AT] [default:
    /// 127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183].
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    at: Vec<String>,
    /// Offset added to the default ports, as in `loggos dev --port-offset`. Takes precedence over LOGGOS_ZK_AT.
    #[arg(long, value_name = "K", conflicts_with = "at")]
    port_offset: Option<u16>,
    /// Number of sessions, with one connection each.
    #[arg(long, alias = "connections", value_name = "C,...", value_delimiter = ',', default_value = "12")]
    #[arg(value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Outstanding requests per session.
    #[arg(long, value_name = "W,...", value_delimiter = ',', default_value = "256", value_parser = parse::positive)]
    outstanding: Vec<usize>,
    /// Percentage of reads (getData), chosen at random.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "0")]
    #[arg(value_parser = clap::value_parser!(u8).range(..=100))]
    read_percent: Vec<u8>,
    /// The kind of the other requests.
    #[arg(long, value_enum, value_name = "KIND", default_value = "set")]
    write: Write,
    /// Bytes of a znode's data.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "512", value_parser = parse::positive)]
    value_bytes: Vec<usize>,
    /// Number of znodes to read and set.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = parse::positive)]
    nodes: usize,
    /// Keep the created znodes, to measure servers that hold many.
    #[arg(long)]
    keep: bool,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "10s", value_parser = parse::time)]
    duration: Duration,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse::time)]
    warmup: Duration,
    /// Process ids of the servers, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', conflicts_with = "server_data")]
    server_pids: Vec<u32>,
    /// Data directory of `loggos dev`, which holds the process ids of the servers.
    #[arg(long, value_name = "DIR")]
    server_data: Option<PathBuf>,
    /// Number of interleaved pairs (A B A B ...) per combination: A is --at, B is --against. Prints medians, ranges
    /// and the ratio of A to B.
    #[arg(long, value_name = "N", requires = "against", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pairs: Option<u16>,
    /// Addresses of the servers to compare with.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "pairs")]
    against: Vec<String>,
    /// Process ids of the servers to compare with.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', requires = "against", conflicts_with = "against_data")]
    against_pids: Vec<u32>,
    /// Data directory of the servers to compare with, if `loggos dev` runs them.
    #[arg(long, value_name = "DIR", requires = "against")]
    against_data: Option<PathBuf>,
    #[command(flatten)]
    figures: FiguresArguments,
    /// Plot this run and the contents of the --output file as SVG: throughput by read percentage if several are given,
    /// latency by load otherwise.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Write {
    /// setData of a random znode.
    Set,
    /// create of new znodes, below one znode per session; they are deleted after the measurement.
    Create,
}

impl Arguments {
    fn shapes(&self) -> Vec<Shape> {
        let (write, nodes) = (self.write, self.nodes);
        let mut shapes = Vec::new();
        for &value_bytes in &self.value_bytes {
            for &connections in &self.clients {
                for &outstanding in &self.outstanding {
                    let of =
                        |&read_percent| Shape { connections, outstanding, read_percent, write, value_bytes, nodes };
                    shapes.extend(self.read_percent.iter().map(of));
                }
            }
        }
        shapes
    }

    fn sides(&self) -> Result<Vec<Side>, Stop> {
        let side = |name, endpoints: &[String], pids, data| {
            Ok::<_, Stop>(Side { name, endpoints: endpoints.to_vec(), servers: Servers::of(pids, data)? })
        };
        let is_paired = self.pairs.is_some();
        let name = is_paired.then_some("A");
        let at = ZOOKEEPER.endpoints(&self.at, self.port_offset)?;
        let mut sides = vec![side(name, &at, &self.server_pids, self.server_data.as_deref())?];
        if is_paired {
            sides.push(side(Some("B"), &self.against, &self.against_pids, self.against_data.as_deref())?);
        }
        Ok(sides)
    }
}

/// One side of a comparison.
struct Side {
    name: Option<&'static str>,
    endpoints: Vec<String>,
    servers: Servers,
}

impl Side {
    fn title(&self) -> String {
        let endpoint = self.endpoints.first().map_or("", String::as_str);
        self.name.map_or_else(|| endpoint.to_owned(), |name| format!("{name} {endpoint}"))
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    let sessions = LocalSet::new();
    unless_interrupted(sessions.run_until(async {
        let (shapes, sides) = (arguments.shapes(), arguments.sides()?);
        let rounds = arguments.pairs.unwrap_or(1);
        let turns = (shapes.len() * sides.len()) as u64 * u64::from(rounds);
        let mut run = Run {
            arguments: &arguments,
            report: Report::open(&arguments.figures)?,
            progress: Progress::of(turns, "turns"),
            measured: Vec::new(),
            nothing_done: None,
        };
        for shape in shapes {
            run.shape(&sides, shape, rounds).await?;
        }
        run.finish()
    }))
    .await
}

struct Run<'a> {
    arguments: &'a Arguments,
    report: Report,
    progress: Progress,
    measured: Vec<Measured>,
    nothing_done: Option<Stop>,
}

impl Run<'_> {
    async fn shape(&mut self, sides: &[Side], shape: Shape, rounds: u16) -> Result<(), Stop> {
        for side in sides {
            self.progress.now(format!("{}, preparing", side.title()));
            load::prepare(&side.endpoints[0], shape.nodes, shape.value_bytes).await?;
        }
        let mut pairs = None;
        for _ in 0..rounds {
            let a = self.turn(&sides[0], shape).await?;
            if let Some(against) = sides.get(1) {
                let b = self.turn(against, shape).await?;
                let titles = || [sides[0].title(), against.title()];
                pairs.get_or_insert_with(|| Pairs::new(titles(), shape)).add(&a, &b);
            }
        }
        let Some(pairs) = pairs else { return Ok(()) };
        let summary = pairs.summary();
        self.report.add_json(&summary)?;
        self.report.add_text(&summary.to_string(), &self.progress)
    }

    async fn turn(&mut self, side: &Side, shape: Shape) -> Result<Figures, Stop> {
        let title = format!("{}, {shape}", side.title());
        self.progress.now(title.clone());
        let times = Times { warmup: self.arguments.warmup, measured: self.arguments.duration };
        let recorder = Rc::new(Recorder::default());
        let sessions = Sessions::begin(&side.endpoints, shape, &recorder).await?;
        sleep(times.warmup).await;
        let meter = Meter::begin(side.servers.clone())?;
        recorder.start();
        sleep(times.measured).await;
        let counted = recorder.stop(&[]);
        let cpu = meter.used()?;
        sessions.end(self.arguments.keep).await?;
        let figures = Figures::of(side.name, shape, counted, cpu);
        self.progress.done(1);
        self.report.add(&figures, &self.progress)?;
        self.measured.push(Measured::of(&figures));
        if figures.operations == 0 {
            let stop = Stop::NothingDone { run: title, error: figures.last_error.clone() };
            self.nothing_done.get_or_insert(stop);
        }
        Ok(figures)
    }

    /// Writes the plot. A run without completed operations is an error.
    fn finish(self) -> Result<(), Stop> {
        drop(self.progress);
        if let Some(file) = &self.arguments.plot {
            let measured = match &self.arguments.figures.output {
                Some(file) => plot::read(file)?,
                None => self.measured,
            };
            let drawn = if self.arguments.read_percent.len() > 1 {
                let axes = ["reads, percent", "operations per second"];
                plot::lines("Throughput against reads", axes, &Measured::by_reads(&measured))
            } else {
                let points: Vec<_> = measured.iter().map(Measured::plot_point).collect();
                plot::latency(&points, "operations per second")
            };
            plot::write(file, &drawn)?;
        }
        self.nothing_done.map_or(Ok(()), Err)
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

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        let words = ["zookeeper"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn number_list_is_sweep() {
        let arguments = parsed("--read-percent 0,50,100 --clients 1,12 --outstanding 1,256").unwrap();
        let shapes = arguments.shapes();
        assert_eq!((shapes.len(), shapes[1].read_percent, shapes[11].outstanding), (12, 50, 256));
        assert_eq!(parsed("").unwrap().shapes().len(), 1);
    }

    #[test]
    fn pairs_require_two_sides() {
        let paired = parsed("--pairs 5 --against 127.0.0.1:21811,127.0.0.1:21812").unwrap();
        let sides = paired.sides().unwrap();
        assert_eq!(sides.iter().map(Side::title).collect::<Vec<_>>(), ["A 127.0.0.1:2181", "B 127.0.0.1:21811"]);
        assert_eq!(parsed("").unwrap().sides().unwrap().len(), 1);
        for line in ["--pairs 5", "--against a:1", "--read-percent 101", "--clients 0", "--against-pids 1"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
