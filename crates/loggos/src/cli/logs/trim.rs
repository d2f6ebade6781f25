//! `loggos log trim`: what is given up for good; and what was.

use sdk::{Content, Entry, Log};
use serde_json::json;
use terminal::{Output, Stop};

use super::beyond;

/// Gives up what lies below a position.
pub(super) async fn below(log: &Log, output: Output, position: u64) -> Result<(), Stop> {
    let tail = log.tail().await?;
    if position > tail {
        return Err(beyond(log, tail, position));
    }
    log.trim(position).await?;
    // It may have been trimmed further before. That all below `position` is given up is true without this answer.
    let mark = trimmed_before(log).await.unwrap_or(position).max(position);
    let name = log.name();
    output.print(&json!({ "log": name, "trimmed_before": mark }), || match mark {
        _ if mark > position => format!("log {name} is trimmed below {mark} already"),
        _ => format!("log {name} trimmed below {position}"),
    })
}

/// Gives up what lies at one position.
pub(super) async fn one(log: &Log, output: Output, position: u64) -> Result<(), Stop> {
    let tail = log.tail().await?;
    if position >= tail {
        return Err(beyond(log, tail, position));
    }
    log.trim_one(position).await?;
    let name = log.name();
    output.print(&json!({ "log": name, "trimmed": position }), || format!("log {name} trimmed at {position}"))
}

/// Below which position all was given up.
pub(super) async fn trimmed_before(log: &Log) -> Result<u64, sdk::Error> {
    let mut mark = 0;
    loop {
        // A mark is that of the units which are asked: those that hold what follows may know of a higher one.
        match log.read(mark, 1).await?.first() {
            Some(Entry { content: Content::Trimmed { before }, .. }) if *before > mark => mark = *before,
            _ => return Ok(mark),
        }
    }
}
