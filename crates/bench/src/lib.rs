//! `loggos bench`: benchmarks of cost and latency on the current machine.
//!
//! Benchmarks are programs, not tests. The same loops drive Loggos and the systems that it is compared with: each
//! through its leader, over the same number of connections, with the same keys and values.

mod cluster;
mod columns;
mod connect;
mod disk;
mod failover;
mod floor;
mod load;
mod log;
mod loops;
mod measure;
mod meter;
mod pairs;
mod parse;
mod plot;
mod progress;
mod recorder;
mod replication;
mod report;
mod schedule;
mod servers;
mod sql;
mod statistics;
mod target;
mod timeline;
mod transactions;
mod workload;
mod zookeeper;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use store::files::{File, FileError};
use terminal::Stop;

/// The seed of values, keys and schedules, so that they are the same in every run.
const SEED: u64 = 1;

/// The arguments of `loggos bench`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure reads and writes of single columns, in a closed or an open loop, and compare with etcd or Cassandra.
    Columns(Box<columns::Arguments>),
    /// Measure how long writes are unavailable after the leader is killed or paused, and where the time goes.
    Failover(failover::Arguments),
    /// Load many rows as fast as possible: rows per second, and memory used by the nodes.
    Load(load::Arguments),
    Log(Box<log::Arguments>),
    Zookeeper(zookeeper::Arguments),
    Replication(replication::Arguments),
    Disk(Box<disk::Arguments>),
    Sql(Box<sql::Arguments>),
    Transactions(Box<transactions::Arguments>),
    /// Measure the hardware floor of this machine: one disk sync, three concurrent ones, and round trips between processes.
    Floor {
        /// Directory on the disk to measure. The files created there are removed at the end.
        #[arg(long, value_name = "DIR", default_value = terminal::DATA_DEFAULT)]
        data: PathBuf,
        /// Print one JSON object per line.
        #[arg(long)]
        json: bool,
    },
}

/// A node's log file and the priority of its log thread, for measuring the floor.
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    /// Opens a file as a node opens a segment of its log.
    pub create_log: CreateLog,
    /// Requests real-time priority for the calling thread; false if refused.
    pub ask_for_real_time: fn() -> bool,
}

/// Creates an empty log file in a directory, under a name.
pub type CreateLog = fn(&Path, &str) -> Result<Box<dyn LogFile>, FileError>;

/// A log file as a trait object: see [`File`].
pub trait LogFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Forces all writes.
    ///
    /// # Errors
    /// When durability is uncertain.
    fn sync(&self) -> Result<(), FileError>;
}

impl<F: File> LogFile for F {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        File::write_at(self, offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        File::sync(self)
    }
}

/// Runs a benchmark and prints the results.
///
/// # Errors
/// When nothing could be measured.
pub async fn run(arguments: Arguments, platform: Platform) -> Result<(), Stop> {
    match arguments.command {
        Command::Columns(arguments) => columns::run(*arguments).await,
        Command::Failover(arguments) => failover::run(arguments).await,
        Command::Load(arguments) => load::run(arguments).await,
        Command::Log(arguments) => log::run(*arguments, platform).await,
        Command::Zookeeper(arguments) => zookeeper::run(arguments).await,
        Command::Disk(arguments) => disk::run(*arguments).await,
        Command::Sql(arguments) => sql::run(*arguments).await,
        Command::Replication(arguments) => replication::run(arguments).await,
        Command::Transactions(arguments) => transactions::run(*arguments).await,
        Command::Floor { data, json } => floor::run(platform, &data, json),
    }
}

/// A temporary directory under `parent`; removed when dropped.
fn scratch(parent: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("loggos-bench-").tempdir_in(parent)
}
