//! `loggos bench`: what it costs and how long it takes, on this machine, now.
//!
//! A benchmark is a program and never a test. The same closed loop drives Loggos and the peer that it is measured
//! against, each through its leader, over as many connections, with the same keys and values: each client sends its
//! next operation when the last is answered (as in the papers' own measurements).

mod columns;
mod cpu;
mod recorder;
mod report;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::output::Output;
use crate::runtime::bench_floor;

/// What may be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads or writes of one column, in a closed loop, of Loggos or of etcd.
    Columns(columns::Arguments),
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
        Command::Columns(arguments) => super::finish(Output::new(false), columns::run(arguments)),
        Command::Floor { data, json } => bench_floor::run(&data, json),
    }
}
