//! `loggos log ...`: shared logs, and what lies in them.

mod append;
mod entries;

use base::limits::{LOG_COPIES_MAX, LOG_READ_MAX, LOG_STRIPES_MAX};
use clap::Subcommand;
use sdk::{Client, Content, Entry, Log, NewLog};
use serde_json::{Value, json};
use std::time::Duration;

use super::Universe;
use super::output::{Output, Table};
use super::stop::Stop;

/// How long a read waits where nothing lies yet below the log's end. Then it makes a hole there.
const HOLE_PATIENCE: Duration = Duration::from_millis(500);

/// What may be done with shared logs. Records are bytes: they are taken as they are.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a log, unless it is there.
    Create {
        /// Letters, digits, '_', '-' and '.'.
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
    /// Show where a log's positions lie, and which node hands them out.
    Info {
        name: String,
    },
    Append(append::Arguments),
    /// Print what lies at a position, or at positions in a row.
    Read {
        name: String,
        /// The first position, from 0.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// The position before which to stop.
        #[arg(long, value_name = "P", value_parser = position, allow_negative_numbers = true)]
        to: Option<u64>,
    },
    /// Print where a log ends: the position that the next append gets, or a later one.
    Tail {
        name: String,
        /// Print what is appended from now on, as it comes, until Ctrl-C.
        #[arg(long, short)]
        follow: bool,
        /// With --follow: print what lies from this position on, and what comes after it.
        #[arg(long, value_name = "P", requires = "follow", value_parser = position, allow_negative_numbers = true)]
        from: Option<u64>,
    },
    /// Give up what lies below a position, for good.
    Trim {
        name: String,
        /// The first position that is kept.
        #[arg(value_parser = position, allow_negative_numbers = true)]
        position: u64,
        /// Give up what lies at this position, and nothing else.
        #[arg(long)]
        only: bool,
    },
}

impl Command {
    /// The log that it is about.
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

/// Does it; where there is no such log, it says how there can be.
pub(crate) async fn run(universe: &Universe, output: Output, command: Command) -> Result<(), Stop> {
    let name = command.log().map(str::to_owned);
    done(universe, output, command).await.map_err(|stop| match (stop, name) {
        (Stop::Universe(sdk::Error::NotFound(why)), Some(name)) => {
            Stop::NotFound(format!("{why}; create it with: loggos log create {name}"))
        }
        (stop, _) => stop,
    })
}

async fn done(universe: &Universe, output: Output, command: Command) -> Result<(), Stop> {
    let client = universe.client()?;
    match command {
        Command::Create { name, stripes, copies } => {
            let wanted = NewLog { stripes: stripes.unwrap_or(0), copies: copies.unwrap_or(0) };
            let existed = client.log(&name).create_of(wanted).await?;
            let what = if existed { "was there" } else { "created" };
            output.print(&json!({ "log": name, "existed": existed }), || format!("log {name} {what}"))
        }
        Command::List => list(&client, output).await,
        Command::Info { name } => info(&client.log(name), output).await,
        Command::Append(arguments) => append::run(&client, output, arguments).await,
        Command::Read { name, position, to } => read(&client.log(name), output, position, to).await,
        Command::Tail { name, follow: false, .. } => {
            let tail = client.log(&name).tail().await?;
            output.print(&json!({ "log": name, "tail": tail }), || tail.to_string())
        }
        Command::Tail { name, follow: true, from } => follow(&client.log(name), output, from).await,
        Command::Trim { name, position, only: true } => {
            client.log(&name).trim_one(position).await?;
            let object = json!({ "log": name, "trimmed": position });
            output.print(&object, || format!("log {name} trimmed at {position}"))
        }
        Command::Trim { name, position, only: false } => {
            client.log(&name).trim(position).await?;
            let object = json!({ "log": name, "trimmed_before": position });
            output.print(&object, || format!("log {name} trimmed below {position}"))
        }
    }
}

/// A place in a log, as it is typed.
fn position(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a position is a number, from 0 on".to_owned())
}

async fn list(client: &Client, output: Output) -> Result<(), Stop> {
    for log in client.list_logs().await? {
        output.print(&json!({ "log": log }), || log.clone())?;
    }
    Ok(())
}

async fn info(log: &Log, output: Output) -> Result<(), Stop> {
    let known = log.describe().await?;
    let extents = known.extents.iter().map(|extent| {
        let unit = |unit: &sdk::LogUnit| json!({ "unit": unit.unit, "node": unit.node });
        let chain = |chain: &sdk::LogChain| chain.units.iter().map(unit).collect::<Value>();
        json!({ "from": extent.from, "chains": extent.chains.iter().map(chain).collect::<Value>() })
    });
    let object = json!({
        "log": log.name(),
        "id": known.id,
        "epoch": known.epoch,
        "sequencer": known.sequencer,
        "stripes": known.stripes,
        "copies": known.copies,
        "extents": extents.collect::<Value>(),
    });
    output.print(&object, || {
        let mut lines = Table::new(["FROM", "CHAIN", "UNITS", "NODES"]);
        for extent in &known.extents {
            for (number, chain) in (1..).zip(&extent.chains) {
                let of_each = |each: fn(&sdk::LogUnit) -> String| chain.units.iter().map(each).collect::<Vec<_>>();
                let units = of_each(|unit| unit.unit.to_string()).join(",");
                let nodes = of_each(|unit| unit.node.to_string()).join(",");
                lines.add([extent.from.to_string(), number.to_string(), units, nodes]);
            }
        }
        format!("{lines}epoch {}; positions are handed out by node {}", known.epoch, known.sequencer)
    })
}

/// Prints answer by answer, so that any number of entries needs the memory of one.
async fn read(log: &Log, output: Output, from: u64, to: Option<u64>) -> Result<(), Stop> {
    let end = to.unwrap_or_else(|| from.saturating_add(1));
    if end <= from {
        return Err(Stop::invalid(format!("--to {end} is not above position {from}")));
    }
    let tail = log.tail().await?;
    let (mut next, mut has_heading) = (from, false);
    while next < end.min(tail) {
        let count = (end.min(tail) - next).min(LOG_READ_MAX.into()) as u32;
        let entries = log.read_waiting(next, count, HOLE_PATIENCE).await?;
        let Some(last) = entries.last() else {
            // Whoever was given it may have had no time to write there, and nobody had to make a hole.
            return Err(Stop::NotFound(format!("nothing lies at position {next} of log {} yet", log.name())));
        };
        next = last.after();
        if to.is_none() {
            is_there(log, last)?;
        }
        entries::print(output, log.name(), &entries, has_heading)?;
        has_heading = true;
    }
    if next < end {
        return Err(Stop::NotFound(format!("log {} ends at {tail}: nothing lies at position {next} yet", log.name())));
    }
    Ok(())
}

/// Who asks for one entry wants what was appended.
fn is_there(log: &Log, entry: &Entry) -> Result<(), Stop> {
    let (name, position) = (log.name(), entry.position);
    let why = match entry.content {
        Content::Records(_) => return Ok(()),
        Content::Trimmed { before } if before > position => {
            format!("log {name} is trimmed below {before}: what lay at position {position} was given up")
        }
        Content::Trimmed { .. } => format!("what lay at position {position} of log {name} was given up"),
        Content::Junk => format!("position {position} of log {name} is a hole: nothing was ever appended there"),
        Content::Duplicate { of } => {
            format!("position {position} of log {name} is a hole: what was appended lies at position {of}")
        }
        Content::Lost => format!("what lay at position {position} of log {name} is lost, by an operator's word"),
    };
    Err(Stop::NotFound(why))
}

/// Prints what comes, for ever.
async fn follow(log: &Log, output: Output, from: Option<u64>) -> Result<(), Stop> {
    let tail = log.tail().await?;
    let from = from.unwrap_or(tail);
    if from > tail {
        return Err(Stop::NotFound(format!("log {} ends at {tail}: position {from} is not there yet", log.name())));
    }
    let mut subscription = log.subscribe(from);
    let mut has_heading = false;
    loop {
        let entries = subscription.next_many().await;
        let entries = entries.unwrap_or_else(|| Err(sdk::Error::Unavailable("the subscription has ended".into())))?;
        entries::print(output, log.name(), &entries, has_heading)?;
        has_heading = true;
    }
}
