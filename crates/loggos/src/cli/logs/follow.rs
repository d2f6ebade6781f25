//! `loggos log tail --follow`: what comes, for ever.
//!
//! A log that gives no answer is asked on: whoever follows it wants what comes after that, too. What no time mends ends
//! it.

use std::io::{self, Write as _};
use std::time::Duration;

use sdk::{Cursor, Error, Log};
use serde_json::json;
use terminal::{Output, Stop, to_json};

use super::{beyond, entries, silence};
use crate::cli::Universe;

/// Between two questions to a log that gives no answer. Each lasts as long as a request may.
const PAUSE: Duration = Duration::from_millis(500);

/// Prints what comes.
pub(super) async fn run(universe: &Universe, log: &Log, output: Output, from: Option<u64>) -> Result<(), Stop> {
    let mut follower = Follower { universe, log, output, is_silent: false };
    let tail = follower.answer(async || log.tail().await).await?;
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
                    follower.heard();
                    entries::print(output, log.name(), &entries, has_heading)?;
                    has_heading = true;
                }
                Some(Err(error)) => break error,
                None => break Error::Unavailable("the subscription has ended".into()),
            }
        };
        at = subscription.cursor().clone();
        follower.failed(error).await?;
        // It may be long until anything comes: that there is an answer again is known before.
        follower.answer(async || log.read(at.position(), 1).await).await?;
    }
}

/// Who follows a log, and what was said of it.
struct Follower<'a> {
    universe: &'a Universe,
    log: &'a Log,
    output: Output,
    /// It has been told that there is no answer.
    is_silent: bool,
}

impl Follower<'_> {
    /// The answer to a question that is asked until there is one.
    async fn answer<T>(&mut self, ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Stop> {
        loop {
            match ask().await {
                Ok(answer) => {
                    self.heard();
                    return Ok(answer);
                }
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// There was no answer: that is told, once. It pauses.
    ///
    /// # Errors
    /// With what ends it, if there is no use in asking on.
    async fn failed(&mut self, error: Error) -> Result<(), Stop> {
        let Error::Unavailable(_) = error else { return Err(error.into()) };
        if !self.is_silent {
            self.is_silent = true;
            let name = self.log.name();
            // What an error names is where a connection failed last, which need not be why there was no answer.
            let why = silence::silent_nodes(self.universe, name).await.unwrap_or_else(|| error.to_string());
            let object = json!({ "log": name, "answers": false, "message": why });
            self.tell(&object, &format!("log {name} gives no answer, and is asked on until Ctrl-C: {why}"));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// There was an answer: that is told, if it was told that there was none.
    fn heard(&mut self) {
        if std::mem::take(&mut self.is_silent) {
            let name = self.log.name();
            self.tell(&json!({ "log": name, "answers": true }), &format!("log {name} answers again"));
        }
    }

    fn tell(&self, object: &serde_json::Value, people: &str) {
        let line = if self.output.is_json() { to_json(object) } else { format!("loggos: {people}") };
        // Where standard error is closed there is nobody to tell.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}
