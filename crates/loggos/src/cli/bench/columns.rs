//! `loggos bench columns`: the closed loop.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::cpu::Servers;
use super::recorder::Recorder;
use super::report::{Figures, Report};
use super::target::{Connection, Target};
use crate::cli::stop::Stop;

/// Clients that share one connection: few, so that HTTP/2 is never what is measured.
const CLIENTS_PER_CONNECTION: usize = 8;
/// Writes under way while the keys are put that are to be read.
const PREPARING_CLIENTS: usize = 32;
/// A client whose operation failed waits so long before the next: a refused one fails at once, and would fail a million
/// times.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);
/// The seed of values and keys: every run has the same ones.
const SEED: u64 = 1;

/// Closed loop of one-column operations.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// What each client does.
    #[arg(long, value_enum, default_value = "write")]
    operation: Operation,
    /// Clients at one time; several numbers are measured one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_parser = positive)]
    clients: Vec<usize>,
    /// Bytes of a value.
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    value_bytes: usize,
    /// Measured seconds of each number of clients.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds before, which don't count.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    warmup: f64,
    /// Who is measured: `loggos://HOST:PORT,...` or `etcd://HOST:PORT,...`.
    #[arg(long, default_value = "loggos://127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203")]
    target: Target,
    /// Keys that are written or read, at random.
    #[arg(long, default_value_t = 5_000, value_parser = positive)]
    keys: usize,
    /// Where the figures go as JSON, an object a line; `-` is standard output, and then there is no table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The servers' processes, whose CPU time is measured.
    #[arg(long, value_name = "PID,...", value_delimiter = ',', conflicts_with = "server_data")]
    server_pids: Vec<u32>,
    /// The data directory of `loggos dev`, where the servers' processes are named.
    #[arg(long, value_name = "DIR")]
    server_data: Option<PathBuf>,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Puts, each acknowledged when it is durable on a majority.
    Write,
    /// Linearizable reads.
    Read,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a number from 1 on is wanted".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let wanted = || "a number of seconds is wanted, 86400 at most".to_owned();
    text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds)).ok_or_else(wanted)
}

/// What all clients of a run share.
struct Work {
    operation: Operation,
    keys: usize,
    value: Bytes,
    recorder: Recorder,
}

/// Measures each number of clients in turn.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    let servers = Servers::of(&arguments.server_pids, arguments.server_data.as_deref())?;
    let mut report = Report::open(arguments.json.as_deref())?;
    arguments.target.prepare().await?;
    if arguments.operation == Operation::Read {
        put_all_keys(&arguments).await?;
    }
    for clients in &arguments.clients {
        // The clients share what they count, on one thread.
        let figures = LocalSet::new().run_until(measure(&arguments, *clients, &servers)).await?;
        report.add(&figures)?;
    }
    Ok(())
}

async fn measure(arguments: &Arguments, clients: usize, servers: &Servers) -> Result<Figures, Stop> {
    let work = Rc::new(Work {
        operation: arguments.operation,
        keys: arguments.keys,
        value: value(arguments.value_bytes),
        recorder: Recorder::default(),
    });
    let mut loops = JoinSet::new();
    let mut connection = arguments.target.connect().await?;
    for client in 0..clients {
        if client > 0 && client.is_multiple_of(CLIENTS_PER_CONNECTION) {
            connection = arguments.target.connect().await?;
        }
        loops.spawn_local(closed_loop(Rc::clone(&work), connection.clone(), SEED + client as u64));
    }
    sleep(Duration::from_secs_f64(arguments.warmup)).await;
    let cpu_before = servers.cpu_time()?;
    work.recorder.start();
    sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let counted = work.recorder.stop();
    let cpu_after = servers.cpu_time()?;
    loops.abort_all();
    let server_cpu = cpu_before.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
    Ok(Figures {
        target: arguments.target.name(),
        operation: arguments.operation,
        clients,
        value_bytes: arguments.value_bytes,
        counted,
        server_cpu,
    })
}

/// One client: the next operation begins when the last is answered.
async fn closed_loop(work: Rc<Work>, mut connection: Connection, seed: u64) {
    let mut draw = SplitMix64::new(seed);
    loop {
        let key = key(draw.below(work.keys as u64) as usize);
        let began = Instant::now();
        let done = match work.operation {
            Operation::Write => connection.write(key, work.value.clone()).await,
            Operation::Read => connection.read(key).await,
        };
        match done {
            Ok(()) => work.recorder.success(began),
            Err(error) => {
                work.recorder.error(error);
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// Puts every key once, so that there is something to read.
async fn put_all_keys(arguments: &Arguments) -> Result<(), Stop> {
    let connection = arguments.target.connect().await?;
    let value = value(arguments.value_bytes);
    let mut writes = JoinSet::new();
    for number in 0..arguments.keys {
        if writes.len() == PREPARING_CLIENTS {
            writes.join_next().await.expect("some are under way").expect("no write panics")?;
        }
        let (mut connection, value) = (connection.clone(), value.clone());
        writes.spawn(async move { connection.write(key(number), value).await });
    }
    while let Some(write) = writes.join_next().await {
        write.expect("no write panics")?;
    }
    Ok(())
}

fn key(number: usize) -> Bytes {
    format!("key-{number:08}").into()
}

/// Bytes that no compression makes smaller.
fn value(bytes: usize) -> Bytes {
    let mut draw = SplitMix64::new(SEED);
    let mut value = Vec::with_capacity(bytes + 8);
    while value.len() < bytes {
        value.extend_from_slice(&draw.draw().to_le_bytes());
    }
    value.truncate(bytes);
    value.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_size_asked_for() {
        for bytes in [0, 1, 8, 4_096, 4_099] {
            assert_eq!(value(bytes).len(), bytes);
        }
    }

    #[test]
    fn numbers_of_clients_and_seconds_are_checked() {
        assert_eq!(positive("64"), Ok(64));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(seconds("-1").is_err() && seconds("inf").is_err() && seconds("NaN").is_err());
    }
}
