//! The state machine of a cohort, whichever it is: the catalogue's in the first cohort, a tablet's in all others.

use base::{CohortId, Entry, Lsn, Timestamp};
use bytes::Bytes;

use crate::catalogue::{Catalogue, Change};
use crate::checkpoint::{LoadError, Loader, Snapshot};
use crate::hash::LogicalHash;
use crate::progress::ApplyError;
use crate::request::Outcome;
use crate::tablet::Tablet;

/// What a cohort's entries have come to.
#[derive(Clone, Debug)]
pub enum State {
    /// The list of tables and nodes.
    Catalogue(Catalogue),
    /// The rows of a table.
    Tablet(Tablet),
}

/// What applying an entry came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The answer to whoever asked for it; none for what no client asks for (a barrier, an expiry, a watermark).
    pub outcome: Option<Outcome>,
    /// What the node must act on.
    pub change: Option<Change>,
}

impl State {
    /// The state of a cohort before its first entry.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        if cohort == CohortId::CATALOGUE {
            Self::Catalogue(Catalogue::new())
        } else {
            Self::Tablet(Tablet::new(cohort))
        }
    }

    /// Applies an entry: the direct successor of the last one applied.
    ///
    /// # Errors
    /// When it isn't that, its timestamp doesn't grow, or its command can't be read. The state is unchanged; the node
    /// must halt, lest its replica drift apart from the others.
    pub fn apply(&mut self, entry: &Entry) -> Result<Applied, ApplyError> {
        match self {
            Self::Catalogue(catalogue) => {
                let (outcome, change) = catalogue.apply(entry)?;
                Ok(Applied { outcome, change })
            }
            Self::Tablet(tablet) => Ok(Applied { outcome: tablet.apply(entry)?, change: None }),
        }
    }

    /// The state as it is now, frozen. It costs nothing to take; entries applied while it lives copy what they change.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }

    /// The state that a snapshot's chunks hold, which came from disk or from a peer.
    ///
    /// # Errors
    /// When they are not all the chunks of one snapshot of this cohort, whole and in order. Whatever the bytes are, this
    /// doesn't panic.
    pub fn load(cohort: CohortId, chunks: &[Bytes]) -> Result<Self, LoadError> {
        let mut loader = Loader::new(cohort);
        chunks.iter().try_for_each(|chunk| loader.push(chunk))?;
        loader.finish()
    }

    /// The cohort whose state this is.
    #[must_use]
    pub fn cohort(&self) -> CohortId {
        match self {
            Self::Catalogue(catalogue) => catalogue.progress.cohort,
            Self::Tablet(tablet) => tablet.progress.cohort,
        }
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        match self {
            Self::Catalogue(catalogue) => catalogue.last_applied(),
            Self::Tablet(tablet) => tablet.last_applied(),
        }
    }

    /// The timestamp of the last entry applied; 0 before the first. It is the greatest in the state: new ones must exceed
    /// it (guarantee 17).
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        match self {
            Self::Catalogue(catalogue) => catalogue.last_timestamp(),
            Self::Tablet(tablet) => tablet.last_timestamp(),
        }
    }

    /// A hash of what the state says: equal for states that no read at or above the watermark, no retry and no later
    /// entry can tell apart (guarantee 16). It doesn't depend on which dead versions are still in memory. It reads the
    /// whole state.
    #[must_use]
    pub fn logical_hash(&self) -> u64 {
        let mut hash = LogicalHash::new();
        match self {
            Self::Catalogue(catalogue) => catalogue.hash(&mut hash),
            Self::Tablet(tablet) => tablet.hash(&mut hash),
        }
        hash.finish()
    }

    /// Bytes of memory that the state takes, roughly, dead versions included. Kept with every entry: asking costs
    /// nothing.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        match self {
            Self::Catalogue(catalogue) => catalogue.approximate_bytes(),
            Self::Tablet(tablet) => tablet.approximate_bytes(),
        }
    }

    /// The catalogue, if it is the catalogue's cohort.
    #[must_use]
    pub fn as_catalogue(&self) -> Option<&Catalogue> {
        match self {
            Self::Catalogue(catalogue) => Some(catalogue),
            Self::Tablet(_) => None,
        }
    }

    /// The tablet, if it is a table's cohort.
    #[must_use]
    pub fn as_tablet(&self) -> Option<&Tablet> {
        match self {
            Self::Catalogue(_) => None,
            Self::Tablet(tablet) => Some(tablet),
        }
    }

    /// Checks what must always hold; simulation calls it after every step. It reads the whole state.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        match self {
            Self::Catalogue(catalogue) => catalogue.invariants(),
            Self::Tablet(tablet) => tablet.invariants(),
        }
    }
}
