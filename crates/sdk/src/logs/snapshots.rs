//! Snapshots of an application's state, stored in the log itself, so that earlier entries can be trimmed.
//!
//! [`Keeper`] and [`Finder`] are pure state machines that decide which parts are appended, and where snapshots are
//! searched for. The safety argument is in [`sharedlog::snapshot`] (guarantee 20).

use std::time::Instant;

use bytes::Bytes;
use sharedlog::snapshot::{self, Appended, Finder, Found, Keeper, There, Wanted};
use sharedlog::{Position, PositionRun};
use tokio::task::JoinSet;

use super::{Content, Cursor, Entry, HOLE, Log};
use crate::Error;

/// An application's state, derived from a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The state includes all entries before this; the application continues here.
    pub at: Cursor,
    /// The stored state.
    pub state: Bytes,
}

impl Log {
    /// Stores the state that an application derived from all entries below a position, at most 4 GiB. The snapshot
    /// includes the stamps seen, if `at` is a subscription's [cursor](crate::Subscription::cursor). After success the
    /// log may be trimmed below that position ([`Log::trim`]): applications that can no longer read those entries start
    /// from [`Log::snapshot`].
    ///
    /// # Errors
    /// [`Error`]; [`Error::Precondition`] if the log does not reach that position yet, [`Error::Invalid`] also if the state is
    /// too large.
    /// After any error the call may be repeated; parts of an incomplete snapshot are ignored.
    pub async fn keep_snapshot(&self, at: impl Into<Cursor>, state: impl Into<Bytes>) -> Result<(), Error> {
        let Cursor { next, seen: duplicates } = at.into();
        if next > self.tail().await? {
            return Err(Error::Precondition(format!("log {} does not reach position {next} yet", self.name)));
        }
        // Makes sure that later appends are above the entries included in the snapshot.
        if next > 0 && self.read_waiting(next - 1, 1, HOLE).await?.is_empty() {
            return Err(Error::Unavailable(format!("position {} could not be read in time", next - 1)));
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

    /// Finds the snapshot to start from if the log was trimmed; none if the whole log can still be read.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the log was trimmed beyond all snapshots; otherwise [`Error`].
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
                Wanted::Read(PositionRun { from, count, .. }) => {
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    let entries = self.read_waiting(from.0, count, HOLE).await?;
                    if !entries.is_empty() {
                        progress = Instant::now();
                    } else if progress.elapsed() < self.client.deadline {
                        // Positions that were assigned but never written may be assigned again.
                        finder.tail(Position(self.tail().await?));
                    } else {
                        return Err(Error::Unavailable(format!("position {from} could not be read in time")));
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
                "log {} is trimmed below {mark}, and has no snapshot of a later position",
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
