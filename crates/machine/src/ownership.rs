//! Which part of a table's keys a machine answers for: decided in its own log, and in nothing else (guarantee 19).
//!
//! The catalog's map says where to look for a key. A node that reads an old copy of it asks the wrong cohort, and a
//! machine that trusted the map would answer "not found" for what another keeps, or keep what nobody will look for here.
//! So it answers for what its log made it the owner of: the leader checks before it reads or proposes, and every replica
//! checks again when it applies an entry, since entries that change what is owned may have come between.

use base::KeyRange;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;
use store::cell;

use crate::failure::Failure;
use crate::hash::LogicalHash;
use crate::key_position::KeyPosition;
use crate::state_machine::Wire;

/// What a machine owns of a table's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// Nothing yet: its first leader is about to give it its range.
    #[default]
    Unfounded,
    /// The keys of a range.
    Owns(KeyRange),
    /// Nothing any more: its table is dropped.
    Dropped,
}

/// Whether a machine answers for a position in a table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Owned,
    /// It has no range yet.
    NotYet,
    /// Another does.
    Elsewhere,
}

const UNFOUNDED: u8 = 0;
const OWNS: u8 = 1;
const DROPPED: u8 = 2;

impl Ownership {
    /// The range, if it owns one.
    #[must_use]
    pub fn range(&self) -> Option<&KeyRange> {
        match self {
            Self::Unfounded | Self::Dropped => None,
            Self::Owns(range) => Some(range),
        }
    }

    /// The cells that it may own: all, if no range says which.
    #[must_use]
    pub fn cells(&self) -> cell::Range {
        self.range().map_or_else(cell::Range::all, |range| cell::Range::rows(&range.start, range.end.as_deref()))
    }

    /// Whether it owns that position.
    #[must_use]
    pub fn holds(&self, position: &KeyPosition) -> bool {
        self.range().is_some_and(|range| position.is_in(range))
    }

    /// Whether it answers for that position.
    #[must_use]
    pub fn standing(&self, position: &KeyPosition) -> Standing {
        match self {
            Self::Unfounded => Standing::NotYet,
            Self::Owns(range) if position.is_in(range) => Standing::Owned,
            Self::Owns(_) | Self::Dropped => Standing::Elsewhere,
        }
    }

    /// The range, if it holds that position.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] when it is another's: nothing was read or written, and the range is to be looked up
    /// again. It does not halt the node, for all replicas come to it alike.
    pub fn check(&self, position: &KeyPosition) -> Result<&KeyRange, Failure> {
        let holds = self.range().filter(|range| position.is_in(range));
        holds.ok_or_else(|| Failure::Unavailable("the row belongs to another range by now".to_owned()))
    }

    /// Gives it a range, unless it has or had one: leaders that followed each other may both have proposed it. Returns
    /// whether the range is new.
    pub fn found(&mut self, range: &KeyRange) -> bool {
        let is_new = *self == Self::Unfounded;
        if is_new {
            // The keys are slices of the entry that brought them, which goes.
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

impl Wire for Ownership {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Unfounded => out.u8(UNFOUNDED),
            Self::Owns(range) => {
                out.u8(OWNS);
                range.encode(out);
            }
            Self::Dropped => out.u8(DROPPED),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            UNFOUNDED => Ok(Self::Unfounded),
            OWNS => Ok(Self::Owns(KeyRange::decode(input)?)),
            DROPPED => Ok(Self::Dropped),
            tag => Err(DecodeError::UnknownTag { what: "ownership", tag: u64::from(tag) }),
        }
    }
}
