//! `loggos bench columns`: measures latency and throughput of single-column operations, in a closed or an open loop, on
//! one target or on two alternating ones.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terminal::{GRPC, Stop};

use super::measure::{Offer, Point, Side, Times, measure};
use super::pairs::Pairs;
use super::parse;
use super::plot;
use super::progress::Progress;
use super::report::{Figures, FiguresArguments, Report};
use super::schedule::Pacing;
use super::servers::Servers;
use super::target::Target;
use super::workload::{Operation, Workload};

/// Default numbers of concurrent clients in a closed loop.
const CLOSED_CLIENTS: [usize; 4] = [1, 4, 16, 64];
/// Default limit of concurrent operations in an open loop: more than a busy closed loop has.
const OPEN_CLIENTS: usize = 256;

/// Measures latency and throughput of operations on single columns.
///
/// In a closed loop (the default), each client starts its next operation when the last one completes. With --rate the
/// loop is open: operations start on a schedule, independently of earlier ones, and latency is measured from the
/// scheduled start. Each number of clients or rate is one line of the table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    workload: Workload,
    /// Number of concurrent clients, each with one operation in flight [default: 1,4,16,64]. In an open loop, the maximum
    /// number of operations in flight [default: 256].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Run an open loop with this number of operations per second.
    #[arg(long, value_name = "R,...", value_delimiter = ',', value_parser = parse::rate)]
    rate: Vec<f64>,
    /// The distribution of arrivals in an open loop.
    #[arg(long, value_enum, default_value = "poisson", requires = "rate")]
    pacing: Pacing,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "10s", value_parser = parse::time)]
    duration: Duration,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse::time)]
    warmup: Duration,
    /// gRPC addresses of one or more nodes [env: LOGGOS_AT] [default: 127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203], or
    /// another system: `loggos-stream://HOST:PORT,...`, `etcd://HOST:PORT,...` or, in a build with `--features cassandra`,
    /// `cassandra://HOST:PORT,...`.
    #[arg(long, alias = "target", value_name = "HOST:PORT,...|TARGET")]
    at: Option<Target>,
    /// Offset added to the default ports, as in `loggos dev --port-offset`. Takes precedence over LOGGOS_AT.
    #[arg(long, value_name = "K", conflicts_with = "at")]
    port_offset: Option<u16>,
    /// Send requests over streams, as with `loggos-stream://`.
    #[arg(long)]
    stream: bool,
    /// Process ids of the servers, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', conflicts_with = "server_data")]
    server_pids: Vec<u32>,
    /// Data directory of `loggos dev`, which holds the process ids of the servers.
    #[arg(long, value_name = "DIR")]
    server_data: Option<PathBuf>,
    /// Number of interleaved pairs (A B A B ...) for each number of clients or rate: A is --at with --operation, B is
    /// --against with --against-operation. Prints medians, ranges and the ratio of A to B.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pairs: Option<u16>,
    /// The system to compare with, as for --at [default: --at].
    #[arg(long, value_name = "TARGET", requires = "pairs")]
    against: Option<Target>,
    /// The operation to compare with [default: --operation].
    #[arg(long, value_enum, requires = "pairs")]
    against_operation: Option<Operation>,
    /// Process ids of the servers to compare with.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', requires = "against", conflicts_with = "against_data")]
    against_pids: Vec<u32>,
    /// Data directory of the servers to compare with, if `loggos dev` runs them.
    #[arg(long, value_name = "DIR", requires = "against")]
    against_data: Option<PathBuf>,
    #[command(flatten)]
    figures: FiguresArguments,
    /// Plot latency by load as SVG, from this run and the contents of the --output file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Arguments {
    fn points(&self) -> Result<Vec<Point>, Stop> {
        if self.rate.is_empty() {
            let clients = if self.clients.is_empty() { &CLOSED_CLIENTS } else { &self.clients[..] };
            return Ok(clients.iter().map(|clients| Point { clients: *clients, offer: None }).collect());
        }
        let clients = match self.clients[..] {
            [] => OPEN_CLIENTS,
            [clients] => clients,
            _ => {
                return Err(Stop::invalid(
                    "an open loop takes a single --clients: the maximum of operations in flight",
                ));
            }
        };
        let offers = self.rate.iter().map(|rate| Offer { rate: *rate, pacing: self.pacing });
        Ok(offers.map(|offer| Point { clients, offer: Some(offer) }).collect())
    }

    /// The workload, and the one to compare with.
    fn workloads(&self) -> Result<(Workload, Option<Workload>), Stop> {
        let is_paired = self.against.is_some() || self.against_operation.is_some();
        if self.pairs.is_some() != is_paired {
            return Err(Stop::invalid("--pairs requires --against or --against-operation"));
        }
        let own = self.workload.of(self.workload.operation);
        let other = is_paired.then(|| self.workload.of(self.against_operation.unwrap_or(self.workload.operation)));
        let is_mixed = [Some(&own), other.as_ref()].into_iter().flatten().any(Workload::is_mixed);
        if self.workload.says_write_percent() && !is_mixed {
            return Err(Stop::invalid("--write-percent requires --operation mixed"));
        }
        Ok((own, other))
    }

    fn target(&self) -> Result<Target, Stop> {
        let target = match &self.at {
            Some(target) => target.clone(),
            None => Target::Loggos(GRPC.endpoints(&[], self.port_offset)?),
        };
        Ok(if self.stream { target.streaming() } else { target })
    }

    fn servers(&self) -> Result<Servers, Stop> {
        Servers::of(&self.server_pids, self.server_data.as_deref())
    }

    /// If both sides use one target, they share its servers.
    fn servers_against(&self) -> Result<Servers, Stop> {
        match self.against {
            None => self.servers(),
            Some(_) => Servers::of(&self.against_pids, self.against_data.as_deref()),
        }
    }
}

/// Measures all points sequentially.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    let points = arguments.points()?;
    let (workload, workload_against) = arguments.workloads()?;
    for workload in [Some(&workload), workload_against.as_ref()].into_iter().flatten() {
        points.iter().try_for_each(|point| workload.check(point.clients))?;
    }
    let times = Times { warmup: arguments.warmup, measured: arguments.duration };
    let (servers, servers_against) = (arguments.servers()?, arguments.servers_against()?);
    let mut run = Run::new(&arguments, &points, times)?;
    let name = workload_against.is_some().then_some("A");
    let side = Side::prepare(name, arguments.target()?, workload, servers).await?;
    match workload_against {
        None => {
            for point in points {
                run.turn(&side, point).await?;
            }
        }
        Some(workload) => {
            let target = arguments.against.clone().map_or_else(|| arguments.target(), Ok)?;
            let against = Side::prepare(Some("B"), target, workload, servers_against).await?;
            for point in points {
                run.pairs(&side, &against, point, arguments.pairs.unwrap_or(1)).await?;
            }
        }
    }
    run.finish(&arguments)
}

/// The state of a running benchmark.
struct Run {
    times: Times,
    report: Report,
    progress: Progress,
    measured: Vec<plot::Measured>,
    /// The error of the first turn without a successful operation.
    nothing_done: Option<Stop>,
}

impl Run {
    fn new(arguments: &Arguments, points: &[Point], times: Times) -> Result<Self, Stop> {
        let turns = points.len() as u64 * arguments.pairs.map_or(1, |pairs| 2 * u64::from(pairs));
        Ok(Self {
            times,
            report: Report::open(&arguments.figures)?,
            progress: Progress::of(turns, "turns"),
            measured: Vec::new(),
            nothing_done: None,
        })
    }

    async fn turn(&mut self, side: &Side, point: Point) -> Result<Figures, Stop> {
        self.progress.now(format!("{}, {point}", side.title()));
        let figures = measure(side, point, self.times).await?;
        self.progress.done(1);
        self.report.add(&figures, &self.progress)?;
        self.measured.push(plot::Measured::of(&figures));
        if figures.operations == 0 {
            let stop =
                Stop::NothingDone { run: format!("{}, {point}", side.title()), error: figures.last_error.clone() };
            self.nothing_done.get_or_insert(stop);
        }
        Ok(figures)
    }

    async fn pairs(&mut self, side: &Side, against: &Side, point: Point, count: u16) -> Result<(), Stop> {
        let mut pairs = Pairs::new([side, against].map(Side::title), point);
        for _ in 0..count {
            let (a, b) = (self.turn(side, point).await?, self.turn(against, point).await?);
            pairs.add(&a, &b);
        }
        let summary = pairs.summary();
        self.report.add_json(&summary)?;
        self.report.add_text(&summary.to_string(), &self.progress)
    }

    /// Writes the plot. Fails if some turn had no successful operation.
    fn finish(self, arguments: &Arguments) -> Result<(), Stop> {
        drop(self.progress);
        if let Some(file) = &arguments.plot {
            // The file also contains this run.
            let measured = match &arguments.figures.output {
                Some(file) => plot::read(file)?,
                None => self.measured,
            };
            let points: Vec<_> = measured.iter().map(plot::Measured::plot_point).collect();
            plot::write(file, &plot::latency(&points, "operations per second"))?;
        }
        self.nothing_done.map_or(Ok(()), Err)
    }
}
