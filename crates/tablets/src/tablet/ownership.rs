//! Which range a tablet answers for: decided in its own log, and in nothing else (guarantee 19).
//!
//! The catalogue's map says where to look for a row. A node that reads an old copy of it asks the wrong tablet, and a
//! tablet that trusted the map would answer "not found" for what another keeps, or keep what nobody will look for here.
//! So a tablet answers for what its log made it the owner of, and for nothing else: the leader looks before it reads or
//! proposes, and every replica looks again when it applies an entry, since entries that change what is owned may have
//! come between.

use base::KeyRange;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;
use store::cell;

use super::Tablet;
use super::sessions::Sessions;
use crate::hash::LogicalHash;
use crate::position::Position;
use crate::request::Failure;

/// What a tablet owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// Nothing yet: its first leader is about to tell it.
    #[default]
    Unfounded,
    /// The keys of a range.
    Owns(KeyRange),
    /// Nothing any more: its table is dropped.
    Dropped,
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

    /// Whether it owns that place.
    #[must_use]
    pub fn holds(&self, position: &Position) -> bool {
        self.range().is_some_and(|range| position.is_in(range))
    }

    /// The range, if it holds that place.
    ///
    /// # Errors
    /// When it is another's: nothing was read or written, and whoever asked is to look the range up again. It is no
    /// error that halts the node, for all replicas come to it alike.
    pub(super) fn check(&self, position: &Position) -> Result<&KeyRange, Failure> {
        let holds = self.range().filter(|range| position.is_in(range));
        holds.ok_or_else(|| Failure::Unavailable("the row belongs to another range by now".to_owned()))
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Unfounded => out.u8(UNFOUNDED),
            Self::Owns(range) => {
                out.u8(OWNS);
                range.encode(out);
            }
            Self::Dropped => out.u8(DROPPED),
        }
    }

    pub(crate) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            UNFOUNDED => Ok(Self::Unfounded),
            OWNS => Ok(Self::Owns(KeyRange::decode(input)?)),
            DROPPED => Ok(Self::Dropped),
            tag => Err(DecodeError::UnknownTag { what: "ownership", tag: u64::from(tag) }),
        }
    }

    pub(super) fn hash(&self, hash: &mut LogicalHash) {
        let mut out = Writer::new();
        self.encode(&mut out);
        hash.bytes(out.as_slice());
    }
}

impl Tablet {
    /// What it owns.
    #[must_use]
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// The range comes to it, unless it has one: leaders that followed each other may both have proposed it. Says
    /// whether it has just come.
    pub(super) fn found(&mut self, range: &KeyRange) -> bool {
        let is_new = self.ownership == Ownership::Unfounded;
        if is_new {
            // The keys are slices of the entry that brought them, which goes.
            let copy = |key: &Bytes| Bytes::copy_from_slice(key);
            self.ownership = Ownership::Owns(KeyRange { start: copy(&range.start), end: range.end.as_ref().map(copy) });
        }
        is_new
    }

    /// Its table is dropped: it owns nothing, and what it kept goes. What was proposed before may come after, and finds
    /// nothing to do. Says whether it was there before.
    pub(super) fn drop_all(&mut self) -> bool {
        let is_news = self.ownership != Ownership::Dropped;
        if is_news {
            self.ownership = Ownership::Dropped;
            self.sessions = Sessions::default();
            self.rows.clear();
        }
        is_news
    }
}
