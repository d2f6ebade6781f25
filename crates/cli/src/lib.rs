//! The client commands.
//!
//! Each command sends requests through `sdk` and prints the results: as aligned tables for people, or as one JSON
//! object per line (`--json`) with stable fields (`output`). The exit status reports the outcome (`Stop`).
//!
//! **Architecture invariant:** these commands access nodes only as clients do, over the network.

mod admin;
mod columns;
mod disks;
mod export;
mod load;
mod logs;
mod output;
mod reads;
#[cfg(feature = "sql")]
mod sql;
mod status;
mod tables;
mod txn;
mod writes;
mod zk;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use terminal::{GRPC, Output, Stop, positive_duration};

pub use zk::{Command as ZooKeeperCommand, Servers};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the health of the cluster, nodes, cohorts, their leaders, epochs, LSNs and lag. Exits with 3 if anything is
    /// unavailable.
    Status {
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        options: status::Options,
    },
    /// Administer a cluster: form it, add and remove nodes, split and move ranges.
    Admin {
        #[command(flatten)]
        cluster: Cluster,
        #[command(subcommand)]
        command: admin::Command,
    },
    /// Tables of versioned columns: create, read, write, load and export.
    Columns {
        #[command(flatten)]
        cluster: Cluster,
        #[command(subcommand)]
        command: columns::Command,
    },
    /// Transactions: a shell to read and change rows of any tables atomically, or a script of such commands.
    Txn {
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        options: txn::Options,
    },
    /// SQL: run statements, in PostgreSQL's dialect.
    #[cfg(feature = "sql")]
    Sql {
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        options: sql::Options,
    },
    /// Shared logs: create, append, read, follow and trim.
    Log {
        #[command(flatten)]
        cluster: Cluster,
        #[command(subcommand)]
        command: logs::Command,
    },
    /// Virtual disks: create, resize and delete. Clients attach them with the Network Block Device protocol.
    Disk {
        #[command(flatten)]
        cluster: Cluster,
        #[command(subcommand)]
        command: disks::Command,
    },
}

/// The cluster's addresses, and options of every client command.
#[derive(Clone, Debug, Args)]
pub struct Cluster {
    /// gRPC addresses of one or more nodes [env: LOGGOS_AT] [default: 127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203].
    #[arg(long, global = true, value_name = "HOST:PORT,...", value_delimiter = ',')]
    at: Vec<String>,
    /// Offset added to the default ports, as in `loggos dev --port-offset`. Takes precedence over LOGGOS_AT.
    #[arg(long, global = true, value_name = "K", conflicts_with = "at")]
    port_offset: Option<u16>,
    /// Print one JSON object per line, and errors as JSON on standard error.
    #[arg(long, global = true)]
    json: bool,
    /// Timeout of a request including retries, such as 500ms or 10s.
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    timeout: Duration,
}

impl Cluster {
    fn client(&self) -> Result<sdk::Client, Stop> {
        self.client_at(self.endpoints()?)
    }

    /// A client for a command with many concurrent requests.
    fn streaming_client(&self) -> Result<sdk::Client, Stop> {
        let client = sdk::Client::streaming(self.endpoints()?)?;
        Ok(client.with_deadline(self.deadline()))
    }

    fn client_at(&self, endpoints: Vec<String>) -> Result<sdk::Client, Stop> {
        Ok(sdk::Client::connect(endpoints)?.with_deadline(self.deadline()))
    }

    fn deadline(&self) -> Duration {
        self.timeout
    }

    fn endpoints(&self) -> Result<Vec<String>, Stop> {
        GRPC.endpoints(&self.at, self.port_offset)
    }
}

/// Runs a command and returns its exit status.
pub fn run(command: Command) -> ExitCode {
    match command {
        Command::Status { cluster, options } => {
            let output = Output::new(cluster.json);
            finish(output, status::run(&cluster, output, &options))
        }
        Command::Admin { cluster, command } => {
            let output = Output::new(cluster.json);
            finish(output, admin::run(&cluster, output, command))
        }
        Command::Columns { cluster, command } => {
            let output = Output::new(cluster.json);
            finish(output, columns::run(&cluster, output, command))
        }
        Command::Txn { cluster, options } => {
            let output = Output::new(cluster.json);
            finish(output, txn::run(&cluster, output, options))
        }
        #[cfg(feature = "sql")]
        Command::Sql { cluster, options } => {
            let output = Output::new(cluster.json);
            finish(output, sql::run(&cluster, output, options))
        }
        Command::Log { cluster, command } => {
            let output = Output::new(cluster.json);
            finish(output, logs::run(&cluster, output, command))
        }
        Command::Disk { cluster, command } => {
            let output = Output::new(cluster.json);
            finish(output, disks::run(&cluster, output, command))
        }
    }
}

/// Runs a command of `loggos zk` and returns its exit status.
pub fn run_zk(servers: &Servers, command: &ZooKeeperCommand) -> ExitCode {
    let output = Output::new(servers.json);
    output.finish(zk::run(servers, output, command))
}

/// Runs a command on a single-threaded runtime, since it mostly waits for the network.
pub fn finish(output: Output, command: impl Future<Output = Result<(), Stop>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(command);
            // A resolution of a host name may take much longer than the command's deadline.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(Stop::Io { what: "start the runtime".into(), error }),
    };
    output.finish(done)
}
