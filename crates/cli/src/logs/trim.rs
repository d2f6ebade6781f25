//! `loggos log trim`: discards entries permanently, and determines the trim mark.

use sdk::{Content, Entry, Log};
use serde_json::json;
use terminal::{Output, Stop};

use super::beyond;

/// Trims all positions below the given one.
pub(super) async fn below(log: &Log, output: Output, position: u64) -> Result<(), Stop> {
    let tail = log.tail().await?;
    if position > tail {
        return Err(beyond(log, tail, position));
    }
    log.trim(position).await?;
    // The log may already be trimmed further. If the query fails, `position` is still a correct lower bound.
    let mark = trimmed_before(log).await.unwrap_or(position).max(position);
    let name = log.name();
    output.acknowledge(&json!({ "log": name, "trimmed_before": mark }), || match mark {
        _ if mark > position => format!("log {name} is already trimmed below {mark}"),
        _ => format!("log {name} trimmed below {position}"),
    });
    Ok(())
}

pub(super) async fn one(log: &Log, output: Output, position: u64) -> Result<(), Stop> {
    let tail = log.tail().await?;
    if position >= tail {
        return Err(beyond(log, tail, position));
    }
    log.trim_one(position).await?;
    let name = log.name();
    output.acknowledge(&json!({ "log": name, "trimmed": position }), || format!("log {name} trimmed at {position}"));
    Ok(())
}

/// The position below which the log is trimmed.
pub(super) async fn trimmed_before(log: &Log) -> Result<u64, sdk::Error> {
    let mut mark = 0;
    loop {
        // A mark comes from the units of one chain; those of the next position may have a higher one.
        match log.read(mark, 1).await?.first() {
            Some(Entry { content: Content::Trimmed { before }, .. }) if *before > mark => mark = *before,
            _ => return Ok(mark),
        }
    }
}
