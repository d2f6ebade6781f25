//! The `loggos` binary: nodes, a local cluster, and the client commands.

mod dev;
mod simulation;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use coordination::log_port::Playback;
use runtime::config::DiskReads;
use runtime::files::OsFiles;
use store::files::{Files as _, OpenOptions};
use terminal::{DATA_DEFAULT, Output};

/// Half of the instructions of glibc's allocator, and free lists for each thread: requests are allocated on one thread and
/// released on another one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The version, with the commit that it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("LOGGOS_COMMIT"), ")");

/// A replicated data platform: tables of versioned columns, SQL databases, transactions over all of them, virtual disks,
/// totally ordered shared logs, and a ZooKeeper service.
#[derive(Debug, Parser)]
#[command(name = "loggos", version = VERSION, about, arg_required_else_help = true, after_help = terminal::EXIT_STATUSES)]
#[command(disable_help_subcommand = true)]
struct Loggos {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a local cluster until Ctrl-C. The first run forms it.
    Dev {
        #[command(flatten)]
        cluster: Local,
        #[command(subcommand)]
        command: Option<DevCommand>,
    },
    /// Run one node.
    Start {
        /// Configuration file of the node (TOML).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Format of the log on standard error. The environment variable `LOGGOS_LOG` sets its level, such as `warn`.
        #[arg(long, value_enum, value_name = "FORMAT", default_value_t = runtime::start::LogFormat::Text)]
        log_format: runtime::start::LogFormat,
        /// Exit when standard input is closed, which means that the parent process has exited.
        #[arg(long, hide = true)]
        parent_pipe: bool,
    },
    /// Run the node under simulated networks, disks and clocks, and check its guarantees.
    Sim(simulation::Simulate),
    #[command(flatten)]
    Client(cli::Command),
    /// ZooKeeper: read and change znodes, or serve ZooKeeper clients.
    Zk {
        #[command(flatten)]
        servers: cli::Servers,
        #[command(subcommand)]
        command: ZooKeeper,
    },
    /// Run benchmarks.
    Bench(bench::Arguments),
    /// Print the help of a command, such as `loggos help columns put`, or of all commands.
    Help {
        /// The command.
        command: Vec<String>,
        /// All commands, or all parts of the given one.
        #[arg(long)]
        all: bool,
    },
    /// Print a completion script for a shell, such as `source <(loggos completions bash)`.
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ZooKeeper {
    /// Serve ZooKeeper clients: as a node configured by a ZooKeeper configuration file, or with --at as a stateless
    /// server of a running cluster. Nodes with blank disks form a cluster automatically.
    Serve(runtime::zoo_serve::Options),
    #[command(flatten)]
    Client(cli::ZooKeeperCommand),
}

/// The platform for `loggos bench`, the same as a node's.
const BENCH_PLATFORM: bench::Platform = bench::Platform {
    create_log: |directory, name| {
        let files = OsFiles::new(directory);
        let log = files.create(name, OpenOptions::DIRECT)?;
        files.sync_dir("")?;
        Ok(Box::new(log))
    },
    ask_for_real_time: runtime::ask_for_real_time,
};

#[derive(Debug, Args)]
struct Local {
    /// Number of nodes: 1, 3 or 5 [default: the number that it was formed with; 3 for a new cluster].
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Directory of the cluster [default: ./loggos-data; with `restart --port-offset K`: the directory of the running
    /// cluster with that offset].
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Offset added to every port, to run several clusters on one machine [default: 0].
    #[arg(long, global = true, value_name = "K")]
    port_offset: Option<u16>,
    /// Memory for rows per node, such as 512MiB or 2GiB: three eighths cache blocks, one eighth flushed memtables,
    /// a quarter memtables; at half, writes wait [default: 128MiB, 64MiB, 128MiB and 256MiB].
    #[arg(long, value_name = "SIZE", value_parser = runtime::config::memory_size)]
    memory: Option<u64>,
    /// When ZooKeeper endpoints read the log: `push`, an interval from 1ms to 1s, or `adaptive` [default: push].
    #[arg(long, value_name = "WHEN")]
    zookeeper_playback: Option<Playback>,
    /// The replica that answers a read of a disk [default: any].
    #[arg(long, value_enum, value_name = "REPLICA")]
    disk_reads: Option<DiskReads>,
    /// The bound on the error of the wall clock that the nodes assume, 1us to 250ms, to observe the cost of a real clock
    /// [default: 1us].
    #[arg(long, value_name = "TIME", value_parser = runtime::config::clock_uncertainty)]
    clock_uncertainty: Option<String>,
}

/// Operations on a running cluster, identified by `--data`, or by `--port-offset` alone.
#[derive(Debug, Subcommand)]
enum DevCommand {
    /// Start a node that is down, and wait until it serves requests.
    Restart {
        /// Number of the node, from 1.
        node: u32,
    },
}

fn main() -> ExitCode {
    match Loggos::parse().command {
        Command::Dev { cluster, command: Some(DevCommand::Restart { node }) } => cluster.restart(node),
        Command::Dev { cluster, command: None } => {
            let Local { nodes, memory, zookeeper_playback: playback, disk_reads, clock_uncertainty, .. } = cluster;
            let data = cluster.data.unwrap_or_else(default_data);
            let port_offset = cluster.port_offset.unwrap_or(0);
            dev::run(&dev::Options { nodes, data, port_offset, memory, playback, disk_reads, clock_uncertainty })
        }
        Command::Start { config, log_format, parent_pipe } => runtime::start::run(&config, log_format, parent_pipe),
        Command::Sim(what) => simulation::run(&what),
        Command::Client(command) => cli::run(command),
        Command::Zk { command: ZooKeeper::Serve(options), .. } => runtime::zoo_serve::run(&options),
        Command::Zk { servers, command: ZooKeeper::Client(command) } => cli::run_zk(&servers, &command),
        Command::Bench(arguments) => cli::finish(Output::new(false), bench::run(arguments, BENCH_PLATFORM)),
        Command::Help { command, all } => {
            let Some(text) = help(&command, all) else {
                let why = format!("there is no command \"loggos {}\"", command.join(" "));
                Loggos::command().error(ErrorKind::InvalidSubcommand, why).exit()
            };
            Output::new(false).finish(io::stdout().write_all(text.as_bytes()).map_err(terminal::Stop::Print))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Loggos::command(), "loggos", &mut script);
            Output::new(false).finish(io::stdout().write_all(&script).map_err(terminal::Stop::Print))
        }
    }
}

fn default_data() -> PathBuf {
    DATA_DEFAULT.into()
}

/// The help of a command, with `all` also that of its parts. `None` if there is no such command.
fn help(path: &[String], all: bool) -> Option<String> {
    let mut root = Loggos::command();
    root.build();
    let mut command = &mut root;
    for name in path {
        command = command.find_subcommand_mut(name)?;
    }
    let mut text = command.render_long_help().to_string();
    if all {
        add_parts(command, &mut text);
    }
    Some(text)
}

fn add_parts(command: &mut clap::Command, text: &mut String) {
    for part in command.get_subcommands_mut().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        let name = part.get_bin_name().unwrap_or_default().to_owned();
        text.push_str(&format!("\n\n{name}\n{}\n{}", "=".repeat(name.len()), part.render_long_help()));
        add_parts(part, text);
    }
}

impl Local {
    fn restart(self, node: u32) -> ExitCode {
        let Self { nodes, memory, zookeeper_playback, disk_reads, clock_uncertainty, .. } = &self;
        let is_for_start = nodes.is_some() || memory.is_some() || zookeeper_playback.is_some();
        if is_for_start || disk_reads.is_some() || clock_uncertainty.is_some() {
            let why = "--nodes, --memory, --zookeeper-playback, --disk-reads and --clock-uncertainty apply only when the \
                       cluster is started, not to `restart`";
            Loggos::command().error(ErrorKind::ArgumentConflict, why).exit();
        }
        let data = match (self.data, self.port_offset) {
            (Some(data), _) => data,
            (None, None) => default_data(),
            (None, Some(offset)) => match dev::running(|arguments| started_with(offset, arguments)) {
                Some(data) => data,
                None => {
                    eprintln!("loggos: no `loggos dev` of this user is running with --port-offset {offset}");
                    return ExitCode::from(3);
                }
            },
        };
        dev::restart(&data, node)
    }
}

/// Returns the data directory if `arguments` are those of a `loggos dev` with this port offset.
fn started_with(offset: u16, arguments: &[OsString]) -> Option<PathBuf> {
    match Loggos::try_parse_from(arguments).ok()?.command {
        Command::Dev { cluster: Local { data, port_offset, .. }, command: None } => {
            (port_offset.unwrap_or(0) == offset).then(|| data.unwrap_or_else(default_data))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_process_matched_by_command_line() {
        let started = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            started_with(300, &arguments)
        };
        assert_eq!(started("loggos dev --port-offset 300"), Some(default_data()));
        assert_eq!(started("/bin/loggos dev --data /d --port-offset=300 --nodes 5"), Some("/d".into()));
        assert_eq!(started("loggos dev --data /d"), None, "another offset");
        assert_eq!(started("loggos dev restart 1 --port-offset 300"), None, "restarts a node");
        assert_eq!(started("loggos log list --port-offset 300"), None, "a client");
        assert_eq!(started("cargo run -- dev --port-offset 300"), None, "its parent process");
    }

    #[test]
    fn help_covers_all_commands() {
        let all = help(&[], true).expect("the root");
        for name in ["loggos disk create", "loggos sql", "loggos txn", "loggos columns put", "loggos zk serve"] {
            assert!(all.contains(&format!("\n{name}\n==")), "{name}");
        }
        assert!(help(&["disk".to_owned(), "create".to_owned()], false).is_some_and(|text| text.contains("--size")));
        assert_eq!(help(&["nothing".to_owned()], false), None);
    }

    #[test]
    fn dev_options_precede_or_follow_subcommand() {
        let parsed = |line: &str| match Loggos::try_parse_from(line.split(' ')).expect("valid arguments").command {
            Command::Dev { cluster: Local { data, port_offset, .. }, command: Some(DevCommand::Restart { node }) } => {
                (data, port_offset, node)
            }
            other => panic!("{line}: {other:?}"),
        };
        let both = (Some("/d".into()), Some(3), 1);
        assert_eq!(parsed("loggos dev --data /d --port-offset 3 restart 1"), both);
        assert_eq!(parsed("loggos dev restart 1 --data /d --port-offset 3"), both);
        assert_eq!(parsed("loggos dev restart 1"), (None, None, 1));
    }
}
