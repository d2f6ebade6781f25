//! Identifiers. Each has a type of its own, so that they cannot be confused.

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

        crate::wire! { newtype $name }
    };
}

number! {
    /// A node of the cluster, numbered from 1.
    NodeId(u32)
}

number! {
    /// A cohort: a group of replicas of one state machine. Cohort 1 is the catalog.
    CohortId(u32)
}

number! {
    /// The identity of a node's *disk*, drawn at random when the data directory is formatted. It reveals an empty disk
    /// under a known node id (guarantee 6).
    Incarnation(u64)
}

number! {
    /// The number of a node's start on one disk. It is synced before the process does anything else, so that messages
    /// of an earlier process of the same node can be detected.
    Boot(u64)
}

impl CohortId {
    /// The cohort of the catalog, which stores the lists of tables and nodes.
    pub const CATALOG: Self = Self(1);
}

/// A member of a cohort: a node *and* its disk. The same node with another disk is another member: an empty disk under
/// a known node id is not the former replica (guarantee 6).
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub node: NodeId,
    /// The disk of the node when it became a member.
    pub incarnation: Incarnation,
}

crate::wire! { struct Member { node, incarnation } }
crate::wire! { struct Promise { epoch, candidate } }

impl Member {
    pub const ENCODED_BYTES: usize = 12;

    /// Whether `members` contains this node with this disk.
    #[must_use]
    pub fn is_among(self, members: &[Self]) -> bool {
        members.contains(&self)
    }

    /// The fields that are compared, ordered and hashed.
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

/// The id of the cluster that a node, a frame or a file belongs to: 128 random bits, fixed when the cluster is formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The promise of a replica of a cohort: to accept no proposal of an older epoch, and to promise this epoch to no other
/// candidate. It names the candidate's node *and* disk, and is synced in two places before it is sent (guarantees 2 and
/// 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The newest epoch promised.
    pub epoch: crate::Epoch,
    /// The candidate; none before the first promise.
    pub candidate: Option<Member>,
}
