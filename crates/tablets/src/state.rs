//! The state machine of a cohort, whichever it is: the catalogue's in the first cohort, a tablet's or a log unit's in
//! all others.

use base::{CohortId, Entry, Incarnation, Lsn, Timestamp};
use store::sstable::TableError;
use store::tree::Tree;

use crate::catalogue::{Catalogue, Change};
use crate::checkpoint::Snapshot;
use crate::hash::LogicalHash;
use crate::log_unit::LogUnit;
use crate::progress::ApplyError;
use crate::request::Outcome;
use crate::tablet::Tablet;

/// What a cohort's entries have come to.
#[derive(Debug)]
pub enum State {
    /// The list of tables and nodes.
    Catalogue(Catalogue),
    /// The rows of a range of a table.
    Tablet(Box<Tablet>),
    /// Positions of a shared log.
    Unit(Box<LogUnit>),
}

/// What a cohort is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// To keep the catalogue.
    Catalogue,
    /// To keep a range of a table.
    Tablet,
    /// To keep positions of a shared log, on that disk.
    Unit(Incarnation),
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
    /// The state of a cohort before its first entry. A tablet keeps its rows in the tree, which is empty, and a unit
    /// its values.
    #[must_use]
    pub fn new(cohort: CohortId, purpose: Purpose, tree: Tree) -> Self {
        match purpose {
            Purpose::Catalogue => Self::Catalogue(Catalogue::new()),
            Purpose::Tablet => Self::Tablet(Box::new(Tablet::new(cohort, tree))),
            Purpose::Unit(disk) => Self::Unit(Box::new(LogUnit::new(cohort, disk, tree))),
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
            Self::Tablet(tablet) => {
                let (outcome, change) = tablet.apply(entry)?;
                Ok(Applied { outcome, change })
            }
            Self::Unit(unit) => {
                let (outcome, change) = unit.apply(entry)?;
                Ok(Applied { outcome, change })
            }
        }
    }

    /// The state as it is now, frozen, but for a tablet's rows, which are in its tree. It costs nothing to take;
    /// entries applied while it lives copy what they change.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }

    /// The cohort whose state this is.
    #[must_use]
    pub fn cohort(&self) -> CohortId {
        match self {
            Self::Catalogue(catalogue) => catalogue.progress.cohort,
            Self::Tablet(tablet) => tablet.progress.cohort,
            Self::Unit(unit) => unit.progress.cohort,
        }
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        match self {
            Self::Catalogue(catalogue) => catalogue.last_applied(),
            Self::Tablet(tablet) => tablet.last_applied(),
            Self::Unit(unit) => unit.last_applied(),
        }
    }

    /// The timestamp of the last entry applied; 0 before the first. It is the greatest in the state: new ones must
    /// exceed it (guarantee 17).
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        match self {
            Self::Catalogue(catalogue) => catalogue.last_timestamp(),
            Self::Tablet(tablet) => tablet.last_timestamp(),
            Self::Unit(unit) => unit.last_timestamp(),
        }
    }

    /// A hash of what the state says: equal for states that no read at or above the watermark, no retry and no later
    /// entry can tell apart (guarantee 16). It doesn't depend on which dead versions are still in memory. It reads the
    /// whole state, from the disk too.
    ///
    /// # Errors
    /// When a table can't be read.
    pub fn logical_hash(&self) -> Result<u64, TableError> {
        let mut hash = LogicalHash::new();
        match self {
            Self::Catalogue(catalogue) => catalogue.hash(&mut hash),
            Self::Tablet(tablet) => tablet.hash(&mut hash)?,
            Self::Unit(unit) => unit.hash(&mut hash)?,
        }
        Ok(hash.finish())
    }

    /// Bytes that a snapshot takes, roughly: kept with every entry, so that asking costs nothing.
    #[must_use]
    pub fn snapshot_bytes(&self) -> usize {
        match self {
            Self::Catalogue(catalogue) => catalogue.approximate_bytes(),
            Self::Tablet(tablet) => tablet.session_bytes(),
            Self::Unit(unit) => unit.state_bytes(),
        }
    }

    /// The catalogue, if it is the catalogue's cohort.
    #[must_use]
    pub fn as_catalogue(&self) -> Option<&Catalogue> {
        match self {
            Self::Catalogue(catalogue) => Some(catalogue),
            Self::Tablet(_) | Self::Unit(_) => None,
        }
    }

    /// The tablet, if it is a table's cohort.
    #[must_use]
    pub fn as_tablet(&self) -> Option<&Tablet> {
        if let Self::Tablet(tablet) = self { Some(tablet) } else { None }
    }

    /// The tablet, if it is a table's cohort, to have a part of it split off.
    pub fn as_tablet_mut(&mut self) -> Option<&mut Tablet> {
        if let Self::Tablet(tablet) = self { Some(tablet) } else { None }
    }

    /// The unit, if it is one's cohort.
    #[must_use]
    pub fn as_unit(&self) -> Option<&LogUnit> {
        if let Self::Unit(unit) = self { Some(unit) } else { None }
    }

    /// Where a tablet's rows or a unit's values are kept; none for the catalogue.
    #[must_use]
    pub fn tree(&self) -> Option<&Tree> {
        match self {
            Self::Catalogue(_) => None,
            Self::Tablet(tablet) => Some(tablet.tree()),
            Self::Unit(unit) => Some(unit.tree()),
        }
    }

    /// Where a tablet's rows or a unit's values are kept, to be flushed and compacted.
    pub fn tree_mut(&mut self) -> Option<&mut Tree> {
        match self {
            Self::Catalogue(_) => None,
            Self::Tablet(tablet) => Some(tablet.tree_mut()),
            Self::Unit(unit) => Some(unit.tree_mut()),
        }
    }

    /// Where a tablet's rows or a unit's values were kept; none for the catalogue.
    #[must_use]
    pub fn into_tree(self) -> Option<Tree> {
        match self {
            Self::Catalogue(_) => None,
            Self::Tablet(tablet) => Some(tablet.into_tree()),
            Self::Unit(unit) => Some(unit.into_tree()),
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
            Self::Unit(unit) => unit.invariants(),
        }
    }
}
