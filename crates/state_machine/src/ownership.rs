//! The part of a table's keys that a machine serves. Only the machine's own log decides it (guarantee 19).
//!
//! The catalog's map is a hint about where to find a key. A node with a stale map asks the wrong cohort. A machine that
//! trusted the map would answer "not found" for a key that another cohort stores, or store a key that no client will
//! look for here. So a machine serves only the keys that its log assigned to it. The leader checks before it reads or
//! proposes. Every replica checks again when it applies an entry, because entries in between may have changed the
//! ownership.

use base::KeyRange;
use base::codec::{Wire, Writer};
use bytes::Bytes;
use store::cell;

use crate::failure::Failure;
use crate::hash::LogicalHash;
use crate::key_position::KeyPosition;

/// The part of a table's keys that a machine owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// Nothing yet: its first leader will assign its range.
    #[default]
    Unassigned,
    /// The keys of a range.
    Owns(KeyRange),
    /// Nothing any more: the table was dropped.
    Dropped,
}

/// The relation of a machine to a key position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// The machine serves it.
    This,
    /// The machine has no range yet.
    Unassigned,
    /// Another machine serves it.
    Other,
}

impl Ownership {
    /// The range, if it owns one.
    #[must_use]
    pub fn range(&self) -> Option<&KeyRange> {
        match self {
            Self::Unassigned | Self::Dropped => None,
            Self::Owns(range) => Some(range),
        }
    }

    /// The cells that it may own; all cells if it owns no range.
    #[must_use]
    pub fn cells(&self) -> cell::Range {
        self.range().map_or_else(cell::Range::all, |range| cell::Range::rows(&range.start, range.end.as_deref()))
    }

    /// Whether it owns the position.
    #[must_use]
    pub fn holds(&self, position: &KeyPosition) -> bool {
        self.range().is_some_and(|range| position.is_in(range))
    }

    /// Whether it serves the position.
    #[must_use]
    pub fn owner_of(&self, position: &KeyPosition) -> KeyOwner {
        match self {
            Self::Unassigned => KeyOwner::Unassigned,
            Self::Owns(range) if position.is_in(range) => KeyOwner::This,
            Self::Owns(_) | Self::Dropped => KeyOwner::Other,
        }
    }

    /// The range, if it contains the position.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it does not: nothing was read or written, and the client must look up the range
    /// again. This does not halt the node, because all replicas reach the same result.
    pub fn check(&self, position: &KeyPosition) -> Result<&KeyRange, Failure> {
        let holds = self.range().filter(|range| position.is_in(range));
        holds.ok_or_else(|| Failure::Unavailable("the row now belongs to another range".to_owned()))
    }

    /// Assigns the range, unless one was assigned before: successive leaders may both have proposed it. Returns whether
    /// it was assigned now.
    pub fn assign_range(&mut self, range: &KeyRange) -> bool {
        let is_new = *self == Self::Unassigned;
        if is_new {
            // Copied, because slices would keep the whole entry in memory.
            let copy = |key: &Bytes| Bytes::copy_from_slice(key);
            *self = Self::Owns(KeyRange { start: copy(&range.start), end: range.end.as_ref().map(copy) });
        }
        is_new
    }

    /// Adds it to a hash.
    pub fn add_to(&self, hash: &mut LogicalHash) {
        let mut out = Writer::new();
        self.encode(&mut out);
        hash.bytes(out.as_slice());
    }
}

base::wire! {
    enum Ownership, "ownership" {
        0 => Unassigned,
        1 => Owns(range),
        2 => Dropped,
    }
}
