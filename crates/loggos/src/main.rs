//! `loggos`: nodes, a local universe, and the client commands, in one binary.

mod cli;
mod runtime;
mod simulation;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Where a local universe is unless told otherwise.
const DATA_DEFAULT: &str = "./loggos-data";

/// A replicated data platform: rows of versioned columns, and shared logs, that survive their machines.
#[derive(Debug, Parser)]
#[command(name = "loggos", version, about, arg_required_else_help = true)]
struct Loggos {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a universe of several nodes on this machine, until Ctrl-C; the first time, form it.
    #[command(args_conflicts_with_subcommands = true)]
    Dev {
        #[command(flatten)]
        universe: Local,
        #[command(subcommand)]
        command: Option<DevCommand>,
    },
    /// Run one node.
    Start {
        /// The node's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How to write what the node tells on standard error; `LOGGOS_LOG` says how much, as in `warn` or `debug`.
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t = runtime::start::LogFormat::Text)]
        log_format: runtime::start::LogFormat,
        /// End as soon as standard input does: whoever started this node is gone then.
        #[arg(long, hide = true)]
        parent_pipe: bool,
    },
    /// Run the same machines under simulated networks, disks and clocks, and check what they promise.
    Sim(simulation::Simulate),
    #[command(flatten)]
    Client(cli::Command),
}

/// A local universe.
#[derive(Debug, Args)]
struct Local {
    /// How many nodes: 1, 3 or 5 [default: as many as it was formed with, 3 at first].
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// The universe's directory.
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Added to every port, so that several universes can run on one machine.
    #[arg(long, value_name = "K", default_value_t = 0)]
    port_offset: u16,
    /// Memory for the rows of each node, as 512MiB or 2GiB: half of it caches tables, a quarter is for what is in none yet
    /// [default: 128MiB each].
    #[arg(long, value_name = "SIZE", value_parser = runtime::memory_size)]
    memory: Option<u64>,
}

/// What may be asked of a universe that runs.
#[derive(Debug, Subcommand)]
enum DevCommand {
    /// Start a node that is down, and wait until it serves.
    Restart {
        /// The node's number, from 1.
        node: u32,
        /// The universe's directory.
        #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
        data: PathBuf,
    },
}

fn main() -> ExitCode {
    match Loggos::parse().command {
        Command::Dev { command: Some(DevCommand::Restart { node, data }), .. } => runtime::dev::restart(&data, node),
        Command::Dev { universe: Local { nodes, data, port_offset, memory }, command: None } => {
            runtime::dev::run(&runtime::dev::Options { nodes, data, port_offset, memory })
        }
        Command::Start { config, log_format, parent_pipe } => runtime::start::run(&config, log_format, parent_pipe),
        Command::Sim(what) => simulation::run(&what),
        Command::Client(command) => cli::run(command),
    }
}
