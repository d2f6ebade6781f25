//! `loggos log ...`: shared logs and their entries.

mod append;
mod entries;
mod follow;
mod info;
mod read;
mod silence;
mod trim;

use base::limits::{LOG_COPIES_MAX, LOG_POSITION_MAX, LOG_STRIPES_MAX};
use clap::Subcommand;
use sdk::{Client, Log, NewLog};
use serde_json::json;
use sharedlog::validate::new_log_name;
use terminal::{Output, Stop};

use super::Cluster;

/// What may be done with shared logs. Records are bytes: they are taken as they are.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a log, unless it is there.
    Create {
        /// The log's name: letters, digits, '_', '-' and '.'; not '.', not '..', and no '-' at its beginning.
        name: String,
        /// Chains that its positions are spread over, for throughput [default: 1].
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_STRIPES_MAX)))]
        stripes: Option<u32>,
        /// Copies of each position, on as many nodes [default: 2, and 3 on five nodes or more].
        #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_COPIES_MAX)))]
        copies: Option<u32>,
    },
    /// List the logs.
    List,
    /// Show where a log ends, what of it was given up, where its positions lie, and which node hands them out. Units that
    /// don't answer are waited for a fifth of --timeout.
    Info {
        /// The log's name.
        name: String,
    },
    Append(append::Arguments),
    /// Print what lies at a position, or at positions in a row.
    Read {
        /// The log's name.
        name: String,
        /// The first position, from 0.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// The position before which to stop; where the log ends before it, that is where it stops.
        #[arg(long, value_name = "P", value_parser = position, allow_negative_numbers = true)]
        to: Option<u64>,
    },
    /// Print where a log ends: the position that the next append gets, or a later one.
    Tail {
        /// The log's name.
        name: String,
        /// Print what is appended from now on, as it comes, until Ctrl-C. When the log gives no answer for as long as
        /// --timeout says, that is told on standard error, and it is asked on.
        #[arg(long, short)]
        follow: bool,
        /// With --follow: print what lies from this position on, and what comes after it. The log may not end before it.
        #[arg(long, value_name = "P", requires = "follow", value_parser = position, allow_negative_numbers = true)]
        from: Option<u64>,
    },
    /// Give up what lies below a position, for good.
    Trim {
        /// The log's name.
        name: String,
        /// The first position that is kept; with --only, the one that is given up.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// Give up what lies at this position, and nothing else.
        #[arg(long)]
        only: bool,
    },
}

impl Command {
    /// The name of the log that the command accesses.
    fn log(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Append(append::Arguments { name, .. })
            | Self::Create { name, .. }
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
    match done(cluster, output, command).await {
        Err(Stop::Cluster(sdk::Error::NotFound(why))) => Err(Stop::NotFound(match new_log_name(&name) {
            Ok(()) => format!("{why}; create it with: loggos log create {name}"),
            Err(refusal) => format!("{why}, and there can be none: {refusal}"),
        })),
        Err(Stop::Cluster(error)) => Err(silence::explained(cluster, &name, error).await.into()),
        Err(Stop::AppendCutShort { error, appended }) => {
            Err(Stop::AppendCutShort { error: silence::explained(cluster, &name, error).await, appended })
        }
        done => done,
    }
}

async fn done(cluster: &Cluster, output: Output, command: Command) -> Result<(), Stop> {
    let client = cluster.client()?;
    match command {
        Command::Create { name, stripes, copies } => {
            let wanted = NewLog { stripes: stripes.unwrap_or(0), copies: copies.unwrap_or(0) };
            let existed = client.log(&name).create_of(wanted).await?;
            let what = if existed { "was there" } else { "created" };
            output.print(&json!({ "log": name, "existed": existed }), || format!("log {name} {what}"))
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
    Stop::NotFound(format!("log {} ends at {tail}: nothing lies at position {position} yet", log.name()))
}

/// Parses a log position.
fn position(text: &str) -> Result<u64, String> {
    let position = text.parse().ok().filter(|position| *position < LOG_POSITION_MAX);
    position.ok_or_else(|| format!("a position is a number, from 0 to {}", LOG_POSITION_MAX - 1))
}

async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for log in client.list_logs().await? {
        output.print(&json!({ "log": log }), || log.clone())?;
    }
    Ok(())
}
