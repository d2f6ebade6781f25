//! `loggos bench sql`: pgbench, the benchmark program of PostgreSQL, with a cluster and with PostgreSQL.
//!
//! pgbench is the client on both sides, with the same scripts and data. The peer is a PostgreSQL server with one
//! synchronous standby, so that on both sides an acknowledged change is forced to two disks or more.

mod figures;
mod pgbench;
mod postgres;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use terminal::{Stop, unless_interrupted};

use self::figures::{Figures, Shape};
use self::pgbench::Endpoint;
use self::postgres::Postgres;
use self::workload::Workload;
use super::cluster::{Cluster, Start};
use super::meter::Meter;
use super::pairs::Pairs;
use super::progress::Progress;
use super::report::{FiguresArguments, Report};
use super::servers::Servers;
use super::{parse, scratch};

/// The database that is created for the measurements, on both sides.
const DATABASE: &str = "loggos_bench";
/// The Loggos table of that database.
const TABLE: &str = "sql.loggos_bench";

/// Measures SQL with pgbench: throughput, latency, and CPU time of the servers, and compares with PostgreSQL.
///
/// Needs pgbench and psql (Debian: postgresql). The database loggos_bench is created anew on each side, and remains.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// PostgreSQL address of a node [default: a temporary cluster of three nodes, at the node that leads most ranges].
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<Endpoint>,
    /// Data directory of a running `loggos dev`, to measure at the node that leads most ranges.
    #[arg(long, value_name = "DIR", conflicts_with = "at")]
    data: Option<PathBuf>,
    /// Data directory of `loggos dev`, which holds the process ids of the servers, to measure their CPU time.
    #[arg(long, value_name = "DIR", requires = "at")]
    server_data: Option<PathBuf>,
    /// Process ids of the servers, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', requires = "at", conflicts_with = "server_data")]
    server_pids: Vec<u32>,
    /// Compare with PostgreSQL, which is started in TMPDIR with one synchronous standby. BIN_DIR has its programs, such as
    /// /usr/lib/postgresql/15/bin [default: the newest one there]. Run as root, it becomes the user postgres.
    #[arg(long, value_name = "BIN_DIR", num_args = 0..=1, default_missing_value = "")]
    against_postgres: Option<String>,
    /// Number of interleaved pairs (A B A B ...) per combination. Prints medians, ranges and the ratio of A to B.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse::positive)]
    pairs: usize,
    /// What each transaction does.
    #[arg(long, value_enum, value_name = "WORKLOAD,...", value_delimiter = ',')]
    #[arg(default_value = "point-read,tpc-b,index-read,range-scan,aggregate")]
    workload: Vec<Workload>,
    /// Number of concurrent clients, each with a connection.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,16", value_parser = parse::positive)]
    clients: Vec<usize>,
    /// Size of the data: 100,000 accounts and 10,000 indexed rows for each unit.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse::positive)]
    scale: usize,
    /// Duration of each measurement, in whole seconds.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = parse::time)]
    duration: Duration,
    /// Warm-up before each measurement, in whole seconds; 0s for none.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// How often a transaction that fails to be serialized is tried; 0 for no limit. Others count as failed.
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_tries: u32,
    #[command(flatten)]
    figures: FiguresArguments,
}

impl Arguments {
    fn shapes(&self) -> Vec<Shape> {
        let scale = self.scale;
        let of = |&workload| self.clients.iter().map(move |&clients| Shape { workload, clients, scale });
        self.workload.iter().flat_map(of).collect()
    }
}

/// One side of a comparison.
struct Side {
    /// The name in the results of a comparison.
    name: Option<&'static str>,
    system: &'static str,
    endpoint: Endpoint,
    servers: Servers,
}

impl Side {
    fn title(&self) -> String {
        self.name.map_or_else(|| self.system.to_owned(), |name| format!("{name} {}", self.system))
    }
}

/// Runs the measurements.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    unless_interrupted(measure(&arguments)).await
}

async fn measure(arguments: &Arguments) -> Result<(), Stop> {
    let shapes = arguments.shapes();
    let is_compared = arguments.against_postgres.is_some();
    let rounds = if is_compared { arguments.pairs } else { 1 };
    let turns = (shapes.len() * rounds * if is_compared { 2 } else { 1 }) as u64;
    let scratch = scratch(&std::env::temp_dir()).map_err(Stop::io("create a temporary directory"))?;
    let mut run = Run {
        arguments,
        scratch: scratch.path(),
        report: Report::open(&arguments.figures)?,
        progress: Progress::of(turns, "measurements"),
    };
    // Both are stopped when they are dropped at the end.
    let (cluster, own) = run.loggos(is_compared.then_some("A")).await?;
    let postgres = match &arguments.against_postgres {
        Some(directory) => Some(run.postgres(Path::new(directory)).await?),
        None => None,
    };
    for shape in shapes {
        let mut pairs: Option<Pairs<Figures>> = None;
        for _ in 0..rounds {
            let a = run.turn(&own, shape).await?;
            if let Some((_, against)) = &postgres {
                let b = run.turn(against, shape).await?;
                let empty = || Pairs::new([own.title(), against.title()], shape);
                pairs.get_or_insert_with(empty).add(&a, &b);
            }
        }
        if let Some(pairs) = pairs {
            let summary = pairs.summary();
            run.report.add_json(&summary)?;
            run.report.add_text(&summary.to_string(), &run.progress)?;
        }
    }
    drop((cluster, postgres));
    Ok(())
}

struct Run<'a> {
    arguments: &'a Arguments,
    /// For the logs of pgbench.
    scratch: &'a Path,
    report: Report,
    progress: Progress,
}

impl Run<'_> {
    /// The side of Loggos with its data, and its cluster if the processes are known.
    async fn loggos(&self, name: Option<&'static str>) -> Result<(Option<Cluster>, Side), Stop> {
        let Arguments { at, data, scale, .. } = self.arguments;
        self.progress.now("loggos, loading".to_owned());
        if let Some(endpoint) = at {
            pgbench::load(endpoint, *scale).await?;
            let servers = Servers::of(&self.arguments.server_pids, self.arguments.server_data.as_deref())?;
            return Ok((None, Side { name, system: "loggos", endpoint: endpoint.clone(), servers }));
        }
        let cluster = match data {
            Some(data) => Cluster::running(data)?,
            None => Cluster::start(Start::default()).await?,
        };
        let first = cluster.nodes().first().copied().unwrap_or(1);
        pgbench::load(&cluster.postgres(first)?.parse().map_err(Stop::invalid)?, *scale).await?;
        let leads = cluster.leads(TABLE).await;
        let count = |node: &u32| leads.values().filter(|(term, _)| term.leader == *node).count();
        let leader = cluster.nodes().into_iter().max_by_key(count).unwrap_or(first);
        let endpoint = cluster.postgres(leader)?.parse().map_err(Stop::invalid)?;
        let servers = cluster.servers()?;
        Ok((Some(cluster), Side { name, system: "loggos", endpoint, servers }))
    }

    async fn postgres(&self, directory: &Path) -> Result<(Postgres, Side), Stop> {
        self.progress.now("PostgreSQL, loading".to_owned());
        let postgres = Postgres::start(directory).await?;
        pgbench::load(postgres.endpoint(), self.arguments.scale).await?;
        // Its planner needs statistics.
        for statement in ["VACUUM ANALYZE", "CHECKPOINT"] {
            pgbench::psql(postgres.endpoint(), DATABASE, statement).await?;
        }
        let (endpoint, servers) = (postgres.endpoint().clone(), Servers::families(&postgres.pids()));
        Ok((postgres, Side { name: Some("B"), system: "postgres", endpoint, servers }))
    }

    async fn turn(&mut self, side: &Side, shape: Shape) -> Result<Figures, Stop> {
        let Arguments { warmup, duration, max_tries, .. } = self.arguments;
        let title = side.title();
        self.progress.now(format!("{title}, {shape}"));
        if warmup.as_secs() > 0 {
            pgbench::run(&side.endpoint, shape, *warmup, *max_tries, self.scratch).await?;
        }
        let meter = Meter::begin(side.servers.clone())?;
        let done = pgbench::run(&side.endpoint, shape, *duration, *max_tries, self.scratch).await?;
        let figures = Figures::of((side.name, side.system), shape, &done, meter.used()?.servers);
        self.progress.done(1);
        self.report.add(&figures, &self.progress)?;
        if done.transactions == 0 {
            return Err(Stop::NothingDone { run: format!("{title}, {shape}"), error: None });
        }
        Ok(figures)
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
        let words = ["sql"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn workloads_and_clients_are_sweeps() {
        assert_eq!(parsed("").unwrap().shapes().len(), 10);
        let arguments = parsed("--workload tpc-b --clients 1,4,16 --against-postgres --at localhost:5441").unwrap();
        assert_eq!(arguments.shapes().len(), 3);
        assert_eq!(arguments.against_postgres.as_deref(), Some(""));
        let directory = parsed("--against-postgres /usr/bin").unwrap().against_postgres;
        assert_eq!(directory.as_deref(), Some("/usr/bin"));
        for line in ["--clients 0", "--workload x", "--at nowhere", "--server-pids 1", "--at h:1 --data d"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
