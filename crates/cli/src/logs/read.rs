//! `loggos log read`: reads one or more consecutive positions.

use std::time::Duration;

use base::limits::LOG_READ_MAX;
use sdk::{Content, Entry, Log};
use terminal::{Output, Stop};

use super::{beyond, entries};

/// How long a read waits at an unwritten position below the tail. After that the position is filled with junk.
const HOLE_PATIENCE: Duration = Duration::from_millis(500);

/// Prints response by response, so that memory use does not depend on the number of entries.
pub(super) async fn run(log: &Log, output: Output, from: u64, to: Option<u64>) -> Result<(), Stop> {
    if let Some(to) = to.filter(|to| *to <= from) {
        return Err(Stop::invalid(format!("--to {to} must be greater than position {from}")));
    }
    let tail = log.tail().await?;
    if from >= tail {
        return Err(beyond(log, tail, from));
    }
    let end = to.unwrap_or(from + 1);
    let (mut next, mut has_heading) = (from, false);
    while next < end.min(tail) {
        let count = (end.min(tail) - next).min(LOG_READ_MAX.into()) as u32;
        let entries = log.read_waiting(next, count, HOLE_PATIENCE).await?;
        let Some(last) = entries.last() else {
            // The client that was assigned this position may still write it, and the hole is not filled yet.
            return Err(Stop::NotFound(format!("position {next} of log {} is not written yet", log.name())));
        };
        next = last.after();
        if to.is_none() {
            is_there(log, last)?;
        }
        entries::print(output, log.name(), &entries, has_heading)?;
        has_heading = true;
    }
    Ok(())
}

/// Fails if a read of a single position did not return an appended entry.
fn is_there(log: &Log, entry: &Entry) -> Result<(), Stop> {
    let (name, position) = (log.name(), entry.position);
    let why = match entry.content {
        Content::Records(_) | Content::Snapshot(_) => return Ok(()),
        Content::Trimmed { before } if before > position => {
            format!("position {position} was deleted: log {name} is trimmed below {before}")
        }
        Content::Trimmed { .. } => format!("position {position} of log {name} was trimmed"),
        Content::Junk | Content::Repeated => {
            format!("position {position} of log {name} is a hole: it holds no entry")
        }
        Content::Lost => format!("position {position} of log {name} is lost, as declared by an operator"),
    };
    Err(Stop::NotFound(why))
}
