//! A frozen state and its chunks: what a checkpoint file holds, and what a replica far behind is sent. The rows of a
//! tablet are not among it: they are in tables, which go along.
//!
//! The chunks are, in order: a header (what this is, of which cohort, through which entry), the parts of the state, and
//! an end that counts the chunks before it and carries the checksum of them all, one after the other. Each part is
//! packed into chunks of [`CHUNK_BYTES`] at most, or of one record if that alone is more (a value may have 8 MiB): so a
//! chunk always fits into one message between nodes.
//!
//! Everything that decides a later outcome travels along: last LSN and timestamp, the range, the sessions with their
//! outcomes, the watermark (guarantees 9, 10, 16, 17 and 19).

use std::fmt;

use base::codec::Writer;
use base::{CohortId, Lsn, NodeId, Timestamp};
use bytes::Bytes;
use imbl::OrdMap;
use sharedlog::unit::Unit;
use store::cell;
use store::tree::Tree;

use crate::catalogue::{Catalogue, LogRecord, NodeRecord, TableRecord};
use crate::log_unit::{LogUnit, kept_cells};
use crate::progress::Progress;
use crate::state::State;
use crate::tablet::sessions::{Open, Sessions};
use crate::tablet::{Ownership, Tablet};

mod chunks;
mod format;
mod load;
mod pack;

pub use chunks::Chunks;
pub use load::{LoadError, Loader};

use chunks::Place;

/// Bytes of a chunk, at most, unless one record is larger: it is written, sent and checked at one go.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A state, frozen: it shares its memory with the state that goes on, and can be sent to another thread.
#[derive(Clone)]
pub struct Snapshot {
    progress: Progress,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Catalogue {
        nodes: OrdMap<NodeId, NodeRecord>,
        tables: OrdMap<String, TableRecord>,
        logs: OrdMap<String, LogRecord>,
        next_cohort: CohortId,
    },
    Tablet {
        ownership: Ownership,
        children: Vec<CohortId>,
        watermark: Timestamp,
        sessions: Open,
    },
    Unit(Unit),
}

impl Snapshot {
    pub(crate) fn of(state: &State) -> Self {
        match state {
            State::Catalogue(catalogue) => Self::of_catalogue(catalogue),
            State::Tablet(tablet) => Self {
                progress: tablet.progress,
                content: Content::Tablet {
                    ownership: tablet.ownership.clone(),
                    children: tablet.children.clone(),
                    watermark: tablet.watermark(),
                    sessions: tablet.sessions.open_sessions().clone(),
                },
            },
            State::Unit(unit) => Self { progress: unit.progress, content: Content::Unit(unit.unit.clone()) },
        }
    }

    pub(crate) fn of_catalogue(catalogue: &Catalogue) -> Self {
        let content = Content::Catalogue {
            nodes: catalogue.nodes.clone(),
            tables: catalogue.tables.clone(),
            logs: catalogue.logs.clone(),
            next_cohort: catalogue.next_cohort,
        };
        Self { progress: catalogue.progress, content }
    }

    /// The state that this is of. `tree` holds a tablet's rows.
    #[must_use]
    pub fn into_state(self, tree: Tree) -> State {
        match self.content {
            Content::Catalogue { nodes, tables, logs, next_cohort } => {
                State::Catalogue(Catalogue::of(self.progress, nodes, tables, logs, next_cohort))
            }
            Content::Tablet { ownership, children, watermark, sessions } => {
                let tablet = Tablet::of(self.progress, ownership, children, watermark, Sessions::of(sessions), tree);
                State::Tablet(Box::new(tablet))
            }
            Content::Unit(unit) => State::Unit(Box::new(LogUnit::of(self.progress, unit, tree))),
        }
    }

    /// The cohort whose state this is.
    #[must_use]
    pub fn cohort(&self) -> CohortId {
        self.progress.cohort
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// The timestamp of the last entry applied.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    /// The watermark of a tablet: tables that go along may lack what no read at or above it can tell, and no more. Of a
    /// unit nothing is read but the newest.
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        match &self.content {
            Content::Catalogue { .. } => Timestamp(0),
            Content::Tablet { watermark, .. } => *watermark,
            Content::Unit(_) => self.progress.last_timestamp,
        }
    }

    /// The cells that a tablet may own, or a unit has not trimmed: what tables that go along may lack are others.
    #[must_use]
    pub fn cells(&self) -> cell::Range {
        match &self.content {
            Content::Catalogue { .. } => cell::Range::all(),
            Content::Tablet { ownership, .. } => ownership.cells(),
            Content::Unit(unit) => kept_cells(unit),
        }
    }

    /// Whether it is of a tablet whose table was dropped: no rows go along.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        matches!(self.content, Content::Tablet { ownership: Ownership::Dropped, .. })
    }

    /// The snapshot in pieces, made one at a time: a [`Loader`] makes a snapshot of them. Two snapshots of one state
    /// give the same bytes.
    #[must_use]
    pub fn chunks(&self) -> Chunks {
        Chunks { snapshot: self.clone(), next: Place::Header, count: 0, checksum: 0 }
    }

    fn header(&self) -> Bytes {
        let kind = match &self.content {
            Content::Catalogue { .. } => format::CATALOGUE,
            Content::Tablet { .. } => format::TABLET,
            Content::Unit(_) => format::UNIT,
        };
        let mut out = Writer::new();
        out.u8(format::HEADER);
        out.u64(format::MAGIC);
        out.u32(format::VERSION);
        out.u8(kind);
        out.u32(self.progress.cohort.0);
        out.lsn(self.progress.last_applied);
        out.i64(self.progress.last_timestamp.0);
        out.u32(self.progress.losses);
        match &self.content {
            Content::Catalogue { next_cohort, .. } => out.u32(next_cohort.0),
            Content::Tablet { ownership, children, watermark, sessions } => {
                ownership.encode(&mut out);
                out.u32(u32::try_from(children.len()).expect("ranges are below 2^32"));
                children.iter().for_each(|child| out.u32(child.0));
                out.i64(watermark.0);
                out.u64(sessions.len() as u64);
            }
            Content::Unit(unit) => out.bytes(&unit.encode()),
        }
        out.finish()
    }
}

impl fmt::Debug for Snapshot {
    /// Says what it is of, not what is in it: that may be gigabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("cohort", &self.progress.cohort)
            .field("last_applied", &self.progress.last_applied)
            .field("last_timestamp", &self.progress.last_timestamp)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
