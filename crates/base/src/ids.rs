//! Identifiers, each a type of its own so that none can stand in another's place.

use crate::codec::{DecodeError, Reader, Writer};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::canary::{Bug, planted};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number! {
    /// A node of the universe, numbered from 1.
    NodeId(u32)
}

number! {
    /// A cohort: a group of replicas of one state machine. Cohort 1 is the catalogue's.
    CohortId(u32)
}

number! {
    /// The identity of a node's *disk*: drawn when the data directory is formatted and never again, so that an empty
    /// disk under a known name is known for what it is (guarantee 6).
    Incarnation(u64)
}

number! {
    /// The number of a node's start on one disk: forced before anything else is done, so that messages to or from an
    /// earlier process of the same node can be told from today's.
    Boot(u64)
}

impl CohortId {
    /// The first, fixed cohort: it keeps the list of tables and nodes.
    pub const CATALOGUE: Self = Self(1);
}

/// A replica's place in a cohort: the node *and* its disk. Who has another disk is another member: an empty disk under
/// a known name is not the replica that was there (guarantee 6).
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The disk it had when it was made a member.
    pub incarnation: Incarnation,
}

impl Member {
    /// Bytes of an encoded member.
    pub const ENCODED_BYTES: usize = 12;

    /// Appends the member to `out`.
    pub fn encode(self, out: &mut Writer) {
        out.u32(self.node.0);
        out.u64(self.incarnation.0);
    }

    /// Reads what [`Member::encode`] wrote.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { node: NodeId(input.u32()?), incarnation: Incarnation(input.u64()?) })
    }

    /// Whether a node with this disk is one of `members`.
    #[must_use]
    pub fn is_among(self, members: &[Self]) -> bool {
        members.contains(&self)
    }

    /// What tells members apart, everywhere.
    fn identity(self) -> (NodeId, Incarnation) {
        let disk = if planted(Bug::BlankDiskJoins) { Incarnation(0) } else { self.incarnation };
        (self.node, disk)
    }
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Member {}

impl PartialOrd for Member {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Member {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:x}", self.node, self.incarnation.0)
    }
}

/// The universe that a node, a frame or a file belongs to: 128 bits, random or as good as that, fixed at its formation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniverseId(pub u128);

impl fmt::Display for UniverseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a replica has promised for a cohort: to accept no proposal of an older epoch, and to give this epoch to nobody
/// else. It names the candidate's node *and* disk, and is forced in two places before it leaves (guarantees 2 and 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The newest epoch promised.
    pub epoch: crate::Epoch,
    /// To whom; none before the first promise.
    pub candidate: Option<Member>,
}
