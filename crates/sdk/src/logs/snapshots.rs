//! Snapshots: what a program has made of a log, kept in the log itself, so that what is before may be trimmed.
//!
//! What is appended when, and where to look, is decided by [`Keeper`] and [`Finder`], pure machines; what makes that
//! safe is said with them ([`sharedlog::snapshot`], guarantee 20).

use std::time::Instant;

use bytes::Bytes;
use sharedlog::snapshot::{self, Appended, Finder, Found, Keeper, There, Wanted};
use sharedlog::{Position, Run};
use tokio::task::JoinSet;

use super::{Content, Cursor, Entry, HOLE, Log};
use crate::Error;

/// What a program made of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// All before was played for it: the program goes on here.
    pub at: Cursor,
    /// What was kept.
    pub state: Bytes,
}

impl Log {
    /// Keeps what a program has made of all that lies below a position, 4 GiB at most, with what was seen there if the position
    /// is a subscription's [cursor](crate::Subscription::cursor). Once it is kept, what lies below that position may be
    /// trimmed ([`Log::trim`]): who can't play it any more begins with [`Log::snapshot`].
    ///
    /// # Errors
    /// As [`Error`] has them; [`Error::Invalid`], too, if the log doesn't reach that position yet, or there is too much
    /// of it. After any error it may be kept again; what the log has of it by then does no harm.
    pub async fn keep_snapshot(&self, at: impl Into<Cursor>, state: impl Into<Bytes>) -> Result<(), Error> {
        let Cursor { next, seen: duplicates } = at.into();
        if next > self.tail().await? {
            return Err(Error::Invalid(format!("log {} does not reach position {next} yet", self.name)));
        }
        // Whatever is appended from now on lies above what is held there.
        if next > 0 && self.read_waiting(next - 1, 1, HOLE).await?.is_empty() {
            return Err(Error::Unavailable(format!("nothing was told of position {}", next - 1)));
        }
        let snapshot = snapshot::Snapshot { next: Position(next), duplicates, state: state.into() };
        let mut keeper = Keeper::new(&snapshot).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut appends = JoinSet::new();
        loop {
            while let Some((number, batch)) = keeper.next_append() {
                let log = self.clone();
                let records = batch.records().map_err(|error| Error::Invalid(error.to_string()))?;
                appends.spawn(async move { (number, log.append_batch(records).await) });
            }
            let Some(ended) = appends.join_next().await else { return Ok(()) };
            let (number, outcome) = ended.map_err(|error| Error::OutcomeUnknown(error.to_string()))?;
            keeper.appended(number, Appended::At(Position(outcome?)));
        }
    }

    /// What a program begins with if the log has been trimmed; none, if it can play all of it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the log was trimmed further than any snapshot reaches; else as [`Error`] has them.
    pub async fn snapshot(&self) -> Result<Option<Snapshot>, Error> {
        let first = self.read(0, 1).await?;
        let Some(Content::Trimmed { before: mark @ 1.. }) = first.first().map(|entry| &entry.content) else {
            return Ok(None);
        };
        let mut finder = Finder::new(Position(*mark));
        let mut progress = Instant::now();
        loop {
            match finder.wants() {
                Wanted::Tail => finder.tail(Position(self.tail().await?)),
                Wanted::Read(Run { from, count, .. }) => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    let entries = self.read_waiting(from.0, count, HOLE).await?;
                    if !entries.is_empty() {
                        progress = Instant::now();
                    } else if progress.elapsed() < self.client.deadline {
                        // What was given out and never written may be given out again.
                        finder.tail(Position(self.tail().await?));
                    } else {
                        return Err(Error::Unavailable(format!("nothing was told of position {from}")));
                    }
                    finder.read(entries.into_iter().map(there));
                }
                Wanted::Nothing => break,
            }
        }
        match finder.found() {
            Found::Snapshot(snapshot::Snapshot { next, duplicates, state }) => {
                Ok(Some(Snapshot { at: Cursor { next: next.0, seen: duplicates }, state }))
            }
            Found::Nothing { mark } => Err(Error::NotFound(format!(
                "log {} is trimmed below {mark}, and has no snapshot that is as new",
                self.name
            ))),
        }
    }
}

fn there(entry: Entry) -> There {
    match entry.content {
        Content::Records(records) | Content::Snapshot(records) => There::Records(records),
        Content::Trimmed { before } if before > entry.position => There::TrimmedBelow(Position(before)),
        Content::Trimmed { .. } | Content::Junk | Content::Repeated | Content::Lost => There::Nothing,
    }
}
