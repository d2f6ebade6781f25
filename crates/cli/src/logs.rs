//! `loggos log ...`: shared logs and their entries.

mod append;
mod diagnosis;
mod entries;
mod follow;
mod info;
mod read;
mod trim;

use base::limits::{LOG_COPIES_MAX, LOG_POSITION_MAX, LOG_STRIPES_MAX};
use clap::Subcommand;
use sdk::{Client, Log};
use serde_json::json;
use sharedlog::validate::new_log_name;
use terminal::{Output, Stop};

use super::Cluster;

/// Commands on shared logs. A record is a sequence of bytes, stored unchanged.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a log, unless it exists.
    Create {
        /// Name of the log: letters, digits, '_', '-' and '.'; not '.' or '..', and not starting with '-'.
        name: String,
        /// Number of chains that the positions are striped over, for throughput [default: 1].
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_STRIPES_MAX)))]
        stripes: Option<u32>,
        /// Copies of each position, each on a different node [default: 2; 3 with five or more nodes].
        #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_COPIES_MAX)))]
        copies: Option<u32>,
    },
    /// Drop a log and all its entries permanently, without confirmation.
    Drop {
        /// Name of the log.
        name: String,
        /// Do not wait for nodes that cannot be reached: their copies are lost for good.
        #[arg(long)]
        force: bool,
    },
    /// List the logs.
    List,
    /// Show a log's tail, trim point, epoch, sequencer and chains. Waits for unresponsive units for a fifth of
    /// --timeout.
    Info {
        /// Name of the log.
        name: String,
    },
    Append(append::Arguments),
    /// Print the entry at a position, or the entries of a range of positions.
    Read {
        /// Name of the log.
        name: String,
        /// First position, from 0.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// End of the range, excluded; reading stops earlier at the tail of the log.
        #[arg(long, value_name = "P", value_parser = position, allow_negative_numbers = true)]
        to: Option<u64>,
    },
    /// Print the tail: no entry is at or beyond this position yet.
    Tail {
        /// Name of the log.
        name: String,
        /// Print new entries until Ctrl-C. If the log does not respond within --timeout, report that on standard error
        /// and keep retrying.
        #[arg(long, short)]
        follow: bool,
        /// With --follow: start at this position, which must not be beyond the tail.
        #[arg(long, value_name = "P", requires = "follow", value_parser = position, allow_negative_numbers = true)]
        from: Option<u64>,
    },
    /// Delete all entries below a position permanently.
    Trim {
        /// Name of the log.
        name: String,
        /// First position to keep; with --only, the position to delete.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// Delete only the entry at this position.
        #[arg(long)]
        only: bool,
    },
}

impl Command {
    fn log(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Append(append::Arguments { name, .. })
            | Self::Create { name, .. }
            | Self::Drop { name, .. }
            | Self::Info { name }
            | Self::Read { name, .. }
            | Self::Tail { name, .. }
            | Self::Trim { name, .. } => Some(name),
        }
    }
}

/// Runs a command. If the log does not exist, the error says how to create it; if it is unavailable, the error says
/// which of its nodes do not respond.
pub(crate) async fn run(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let Some(name) = command.log().map(str::to_owned) else { return done(cluster, output, command).await };
    let is_drop = matches!(command, Command::Drop { .. });
    match done(cluster, output, command).await {
        Err(Stop::Cluster(sdk::Error::NotFound(why))) if !is_drop => Err(Stop::NotFound(match new_log_name(&name) {
            Ok(()) => format!("{why}; create it with: loggos log create {name}"),
            Err(refusal) => format!("{why}; the name is invalid: {refusal}"),
        })),
        Err(Stop::Cluster(error)) => Err(diagnosis::with_diagnosis(cluster, &name, error).await.into()),
        Err(Stop::AppendCutShort { error, appended }) => {
            let error = match *error {
                Stop::Cluster(error) => diagnosis::with_diagnosis(cluster, &name, error).await.into(),
                other => other,
            };
            Err(Stop::AppendCutShort { error: Box::new(error), appended })
        }
        done => done,
    }
}

async fn done(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match command {
        Command::Create { name, stripes, copies } => {
            let log = client.log(&name);
            let wanted = log.create().stripes(stripes.unwrap_or(0)).copies(copies.unwrap_or(0));
            let existed = wanted.send().await?;
            let what = if existed { "already exists" } else { "created" };
            output.acknowledge(&json!({ "log": name, "existed": existed }), || format!("log {name} {what}"));
            if copies == Some(1) {
                output
                    .warn(&format!("log {name} has one copy of each position: if a node is lost, so are its entries"));
            }
            Ok(())
        }
        Command::Drop { name, force } => {
            let log = client.log(&name);
            if force {
                log.force_drop_log().await?;
            } else {
                log.drop_log().await?;
            }
            output.acknowledge(&json!({ "log": name, "dropped": true }), || format!("log {name} dropped"));
            Ok(())
        }
        Command::List => list(&client, output).await,
        Command::Info { name } => info::run(cluster, &client.log(name), output).await,
        Command::Append(arguments) => append::run(&client, output, arguments).await,
        Command::Read { name, position, to } => read::run(&client.log(name), output, position, to).await,
        Command::Tail { name, follow: false, .. } => {
            let tail = client.log(&name).tail().await?;
            output.print(&json!({ "log": name, "tail": tail }), || tail.to_string())
        }
        Command::Tail { name, follow: true, from } => follow::run(cluster, &client.log(name), output, from).await,
        Command::Trim { name, position, only: true } => trim::one(&client.log(name), output, position).await,
        Command::Trim { name, position, only: false } => trim::below(&client.log(name), output, position).await,
    }
}

/// The error for a position at or beyond the tail.
fn beyond(log: &Log, tail: u64, position: u64) -> Stop {
    Stop::NotFound(format!("position {position} of log {} is not written yet: the tail is {tail}", log.name()))
}

/// Parses a log position.
fn position(text: &str) -> Result<u64, String> {
    let position = text.parse().ok().filter(|position| *position < LOG_POSITION_MAX);
    position.ok_or_else(|| format!("a position is a number from 0 to {}", LOG_POSITION_MAX - 1))
}

async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for log in client.list_logs().await? {
        output.print(&json!({ "log": log }), || log.clone())?;
    }
    Ok(())
}
