//! `loggos log tail --follow`: prints new entries indefinitely.
//!
//! If the log is unavailable, the command keeps retrying, since later entries are wanted too. Permanent errors end it.

use std::io::{self, Write as _};
use std::time::Duration;

use sdk::{Cursor, Error, Log};
use serde_json::json;
use terminal::{Output, Stop, to_json};

use super::{beyond, diagnosis, entries};
use crate::Cluster;

/// Delay between retries. Each attempt lasts up to the request timeout.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn run(cluster: &Cluster, log: &Log, output: Output, from: Option<u64>) -> Result<(), Stop> {
    let mut follower = Follower { cluster, log, output, is_outage_reported: false };
    let tail = follower.retry(async || log.tail().await).await?;
    let from = from.unwrap_or(tail);
    if from > tail {
        return Err(beyond(log, tail, from));
    }
    let mut at = Cursor::from(from);
    let mut has_heading = false;
    loop {
        let mut subscription = log.subscribe(at);
        let error = loop {
            match subscription.next_many().await {
                Some(Ok(entries)) => {
                    follower.responded();
                    entries::print(output, log.name(), &entries, has_heading)?;
                    has_heading = true;
                }
                Some(Err(error)) => break error,
                None => break Error::Unavailable("the subscription has ended".into()),
            }
        };
        at = subscription.cursor().clone();
        follower.failed(error).await?;
        // The next entry may take long: check first whether the log responds again.
        follower.retry(async || log.read(at.position(), 1).await).await?;
    }
}

/// A follower of a log, and its reported state.
struct Follower<'a> {
    cluster: &'a Cluster,
    log: &'a Log,
    output: Output,
    /// Whether an outage was reported and has not ended.
    is_outage_reported: bool,
}

impl Follower<'_> {
    /// Retries a request until it succeeds or fails permanently.
    async fn retry<T>(&mut self, request: impl AsyncFn() -> Result<T, Error>) -> Result<T, Stop> {
        loop {
            match request().await {
                Ok(answer) => {
                    self.responded();
                    return Ok(answer);
                }
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Reports an outage once, and pauses.
    ///
    /// # Errors
    /// A permanent error, which ends the command.
    async fn failed(&mut self, error: Error) -> Result<(), Stop> {
        let Error::Unavailable(_) = error else { return Err(error.into()) };
        if !self.is_outage_reported {
            self.is_outage_reported = true;
            let name = self.log.name();
            // The error names the last connection that failed, which need not be the cause.
            let why = diagnosis::unresponsive_nodes(self.cluster, name).await.unwrap_or_else(|| error.to_string());
            let object = json!({ "log": name, "answers": false, "message": why });
            self.report(&object, &format!("log {name} does not respond; retrying until Ctrl-C: {why}"));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Reports the end of an outage, if one was reported.
    fn responded(&mut self) {
        if std::mem::take(&mut self.is_outage_reported) {
            let name = self.log.name();
            self.report(&json!({ "log": name, "answers": true }), &format!("log {name} responds again"));
        }
    }

    fn report(&self, object: &serde_json::Value, text: &str) {
        let line = if self.output.is_json() { to_json(object) } else { format!("loggos: {text}") };
        // A closed standard error is ignored.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}
