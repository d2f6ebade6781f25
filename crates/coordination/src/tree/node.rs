//! A znode.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Txn;
use crate::acl::AclList;
use crate::jute::Stat;

/// An index into the tree's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(pub(super) u32);

/// The lifetime of a node. Like ZooKeeper, nodes store it in the field for the owner of ephemeral nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Deleted by clients only.
    Persistent,
    /// Deleted with this session.
    Ephemeral(i64),
    /// Deleted some time after its last child.
    Container,
    /// Deleted once it has no children and was not modified for the TTL.
    Ttl {
        /// Milliseconds, 1 to [`TTL_MAX_MS`].
        ttl_ms: i64,
    },
}

/// The longest TTL in milliseconds: five bytes.
pub const TTL_MAX_MS: i64 = 0xff_ffff_ffff;
const OWNER_CONTAINER: i64 = i64::MIN;
const OWNER_TTL: i64 = 0xff << 56;

impl Kind {
    pub(super) const fn to_owner(self) -> i64 {
        match self {
            Self::Persistent => 0,
            Self::Ephemeral(session) => session,
            Self::Container => OWNER_CONTAINER,
            Self::Ttl { ttl_ms } => OWNER_TTL | ttl_ms,
        }
    }

    pub(super) const fn from_owner(owner: i64) -> Self {
        match owner {
            0 => Self::Persistent,
            OWNER_CONTAINER => Self::Container,
            owner if owner & OWNER_TTL == OWNER_TTL => Self::Ttl { ttl_ms: owner & TTL_MAX_MS },
            session => Self::Ephemeral(session),
        }
    }
}

/// Stored boxed, because most nodes have no children.
type Children = BTreeMap<Box<str>, NodeId>;

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) data: Option<Box<[u8]>>,
    pub(super) acl: AclList,
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    /// The transaction that last created or deleted a child.
    pub(super) pzxid: i64,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) owner: i64,
    pub(super) version: i32,
    /// Number of children created so far: the suffix of the next sequential child.
    pub(super) created: i32,
    pub(super) aversion: i32,
    children: Option<Box<Children>>,
}

impl Node {
    pub(super) fn new(data: Option<&[u8]>, acl: AclList, owner: i64, txn: Txn) -> Self {
        Self {
            data: data.map(Into::into),
            acl,
            czxid: txn.zxid,
            mzxid: txn.zxid,
            pzxid: txn.zxid,
            ctime: txn.time_ms,
            mtime: txn.time_ms,
            owner,
            ..Self::default()
        }
    }

    /// A copy without the children.
    pub(super) fn copy(&self) -> Self {
        Self { data: self.data.clone(), acl: self.acl.clone(), children: None, ..*self }
    }

    pub(super) const fn kind(&self) -> Kind {
        Kind::from_owner(self.owner)
    }

    pub(super) fn data_length(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }

    pub(super) fn child_count(&self) -> usize {
        self.children.as_ref().map_or(0, |children| children.len())
    }

    pub(super) fn child(&self, name: &str) -> Option<NodeId> {
        self.children.as_ref()?.get(name).copied()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&str, NodeId)> {
        self.children.iter().flat_map(|children| children.iter()).map(|(name, id)| (&**name, *id))
    }

    /// The child that follows `name`; the first one if there is no name.
    pub(super) fn child_after(&self, name: Option<&str>) -> Option<(&str, NodeId)> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let mut following = self.children.as_ref()?.range::<str, _>((from, Bound::Unbounded));
        following.next().map(|(name, id)| (&**name, *id))
    }

    pub(super) fn add_child(&mut self, name: &str, id: NodeId) {
        self.children.get_or_insert_default().insert(name.into(), id);
    }

    pub(super) fn remove_child(&mut self, name: &str) {
        let Some(children) = &mut self.children else { return };
        children.remove(name);
        if children.is_empty() {
            self.children = None;
        }
    }

    pub(super) fn stat(&self) -> Stat {
        let children = i32::try_from(self.child_count()).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            // Counts creations and deletions: nodes that were created and no longer exist were deleted.
            cversion: self.created.wrapping_mul(2).wrapping_sub(children),
            aversion: self.aversion,
            ephemeral_owner: if let Kind::Ephemeral(session) = self.kind() { session } else { 0 },
            data_length: i32::try_from(self.data_length()).unwrap_or(i32::MAX),
            num_children: children,
            pzxid: self.pzxid,
        }
    }
}

/// A node for reading.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a>(&'a Node);

impl<'a> NodeRef<'a> {
    pub(super) const fn new(node: &'a Node) -> Self {
        Self(node)
    }

    /// The data; null and empty data are different.
    #[must_use]
    pub fn data(self) -> Option<&'a [u8]> {
        self.0.data.as_deref()
    }

    #[must_use]
    pub const fn acl(self) -> &'a AclList {
        &self.0.acl
    }

    /// Its stat as clients see it.
    #[must_use]
    pub fn stat(self) -> Stat {
        self.0.stat()
    }

    #[must_use]
    pub const fn kind(self) -> Kind {
        self.0.kind()
    }

    /// Number of children created so far.
    #[must_use]
    pub const fn created(self) -> i32 {
        self.0.created
    }

    /// The names of its children in order.
    #[must_use]
    pub fn children(self) -> impl ExactSizeIterator<Item = &'a str> {
        Names { inner: self.0.children.as_ref().map(|children| children.keys()) }
    }
}

struct Names<'a> {
    inner: Option<std::collections::btree_map::Keys<'a, Box<str>, NodeId>>,
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.inner.as_mut()?.next().map(|name| &**name)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.as_ref().map_or((0, Some(0)), Iterator::size_hint)
    }
}

impl ExactSizeIterator for Names<'_> {}
