//! A tablet's checkpoint: its whole state except the rows, which are in the tables of its tree.

use base::codec::{Reader, Writer};
use base::{CohortId, Timestamp};
use bytes::Bytes;
use state_machine::checkpoint::{Chunked, Cursor, FIRST_PART, Keep, LoadError, Loader, Snapshot, unexpected};
use state_machine::interface::{StateMachine as _, Wire};
use state_machine::sessions::{Open, load_sessions, pack_sessions};
use state_machine::{ClientSessionId, Kind, Ownership, Progress};
use store::tree::Tree;

use crate::tablet::{ClientSessions, Tablet, WriteOutcome};

const SESSIONS: u8 = FIRST_PART;

/// An immutable snapshot of a tablet, without its rows.
#[derive(Clone, Debug)]
pub struct TabletSnapshot {
    progress: Progress,
    ownership: Ownership,
    children: Vec<CohortId>,
    watermark: Timestamp,
    sessions: Open<WriteOutcome>,
}

impl TabletSnapshot {
    pub(crate) fn of(tablet: &Tablet) -> Self {
        Self {
            progress: tablet.progress,
            ownership: tablet.ownership.clone(),
            children: tablet.children.clone(),
            watermark: tablet.watermark(),
            sessions: tablet.sessions.open_sessions().clone(),
        }
    }
}

impl Chunked for TabletSnapshot {
    fn kind(&self) -> Kind {
        Tablet::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        self.ownership.encode(out);
        self.children.encode(out);
        out.i64(self.watermark.0);
        out.u64(self.sessions.len() as u64);
    }

    fn part(&self, after: &Cursor) -> Option<(Bytes, Cursor)> {
        let last = after.last[..].try_into().ok().map(|last| ClientSessionId(u64::from_be_bytes(last)));
        let (chunk, ClientSessionId(last)) = pack_sessions(SESSIONS, &self.sessions, last)?;
        Some((chunk, Cursor { tag: SESSIONS, last: Bytes::copy_from_slice(&last.to_be_bytes()) }))
    }
}

impl Snapshot for TabletSnapshot {
    type Machine = Tablet;
    type Loader = TabletLoader;

    fn keep(&self) -> Keep {
        Keep { watermark: self.watermark, cells: self.ownership.cells() }
    }

    fn is_dropped(&self) -> bool {
        self.ownership == Ownership::Dropped
    }

    fn into_machine(self, tree: Tree) -> Tablet {
        let Self { progress, ownership, children, watermark, sessions } = self;
        Tablet::of(progress, ownership, children, watermark, ClientSessions::of(sessions), tree)
    }
}

/// Restores a snapshot from its chunks.
#[derive(Clone, Debug)]
pub struct TabletLoader {
    progress: Progress,
    ownership: Ownership,
    children: Vec<CohortId>,
    watermark: Timestamp,
    sessions: ClientSessions,
    /// The number of sessions according to the header.
    count: u64,
}

impl Loader for TabletLoader {
    type Snapshot = TabletSnapshot;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let ownership = Ownership::decode(&mut header)?;
        let children = Wire::decode(&mut header)?;
        let watermark = Timestamp(header.i64()?);
        if watermark < Timestamp(0) || watermark > progress.last_timestamp {
            return Err(LoadError::Impossible("the watermark exceeds the last timestamp"));
        }
        let count = header.u64()?;
        header.end()?;
        Ok(Self { progress, ownership, children, watermark, sessions: ClientSessions::default(), count })
    }

    fn part(&mut self, tag: u8, mut input: Reader) -> Result<(), LoadError> {
        match tag {
            SESSIONS => load_sessions(&mut input, &self.progress, &mut self.sessions),
            _ => Err(unexpected(tag)),
        }
    }

    fn finish(self) -> Result<TabletSnapshot, LoadError> {
        let Self { progress, ownership, children, watermark, sessions, count } = self;
        if sessions.len() as u64 != count {
            return Err(LoadError::Impossible("the session count does not match the header"));
        }
        let sessions = sessions.open_sessions().clone();
        Ok(TabletSnapshot { progress, ownership, children, watermark, sessions })
    }
}

#[cfg(test)]
mod tests;
