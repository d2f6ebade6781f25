//! `loggos bench`: what it costs and how long it takes, on this machine, now.
//!
//! A benchmark is a program and never a test. The same loops drive Loggos and the peer that it is measured against,
//! each through its leader, over as many connections, with the same keys and values.

mod columns;
mod failover;
mod load;
mod log;
mod loops;
mod measure;
mod pairs;
mod parse;
mod plot;
mod progress;
mod recorder;
mod report;
mod schedule;
mod servers;
mod statistics;
mod target;
mod universe;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::output::Output;
use crate::runtime::bench_floor;

/// The seed of values, keys and schedules: every run has the same ones.
const SEED: u64 = 1;

/// What may be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads and writes of one column, in a closed or an open loop, of Loggos or of etcd, alone or in pairs.
    Columns(Box<columns::Arguments>),
    /// The longest time without a write when the leader is killed or stopped, and what it consists of.
    Failover(failover::Arguments),
    /// Many rows, as fast as they can be written: rows a second, and the memory that they take.
    Load(load::Arguments),
    Log(Box<log::Arguments>),
    /// One force of the log, three at once, and one round trip: what this machine charges for what no design avoids.
    Floor {
        /// The directory on whose disk the log is measured; what is written there is removed again.
        #[arg(long, value_name = "DIR", default_value = crate::DATA_DEFAULT)]
        data: PathBuf,
        /// Print one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// Measures.
pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Columns(arguments) => super::finish(Output::new(false), columns::run(*arguments)),
        Command::Failover(arguments) => super::finish(Output::new(false), failover::run(arguments)),
        Command::Load(arguments) => super::finish(Output::new(false), load::run(arguments)),
        Command::Log(arguments) => super::finish(Output::new(false), log::run(*arguments)),
        Command::Floor { data, json } => bench_floor::run(&data, json),
    }
}
