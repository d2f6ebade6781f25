//! The tree of znodes.
//!
//! Operations are deterministic: time and zxid are parameters ([`Txn`]). An operation that violates several conditions
//! fails with the error that ZooKeeper checks first; the order of checks is part of the interface.
//!
//! Nodes are stored in a vector and refer to children by index, so that no code recurses on the depth of the tree, not
//! even `drop`. Data is copied out of frames and log entries, which would otherwise stay in memory as long as the node.

use std::collections::{BTreeMap, BTreeSet};

use crate::acl::{Acl, AclList, Id, perms};
use crate::jute::EventType;
use crate::path;

mod acls;
mod change;
mod node;
mod snapshot;
#[cfg(test)]
mod tests;
mod write;

pub use node::{Kind, NodeRef, TTL_MAX_MS};
pub use snapshot::{SnapshotCursor, TreeBuilder};
pub use write::{MultiError, OperationResult, WriteResult};

use acls::Acls;
use change::Changes;
use node::{Node, NodeId};

/// The transaction that an operation is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Txn {
    /// Its id: it grows from one transaction to the next.
    pub zxid: i64,
    /// Milliseconds since 1970.
    pub time_ms: i64,
}

/// The client that performs an operation.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    /// The session, which owns the ephemeral nodes that it creates.
    pub session: i64,
    /// The identities of its connection.
    pub ids: &'a [Id],
}

/// A change that triggers watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEvent {
    /// The kind of change.
    pub kind: EventType,
    pub path: Box<str>,
    /// The node's ACL: only clients with read permission are notified.
    pub acl: AclList,
}

/// The tree, with the indexes over it.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    acls: Acls,
    ephemerals: BTreeMap<i64, BTreeSet<Box<str>>>,
    containers: BTreeSet<Box<str>>,
    ttls: BTreeSet<Box<str>>,
    data_bytes: u64,
    /// The snapshot in progress; it is notified before a node changes.
    snapshot: Option<Box<SnapshotCursor>>,
}

const ROOT: NodeId = NodeId(0);

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// The tree of a new ensemble: the root, and the nodes under `/zookeeper`.
    #[must_use]
    pub fn new() -> Self {
        let mut tree = Self::empty();
        let open = tree.acls.intern(vec![Acl::world(perms::ALL)]);
        let read_only = tree.acls.intern(vec![Acl::world(perms::READ)]);
        tree.nodes.push(Node::new(Some(b""), open, 0, Txn { zxid: 0, time_ms: 0 }));
        for special in path::SPECIAL.into_iter().skip(1) {
            let is_config = special == "/zookeeper/config";
            let acl = if is_config { &read_only } else { &tree.nodes[0].acl };
            let mut node = Node::new(Some(b""), acl.clone(), 0, Txn { zxid: 0, time_ms: 0 });
            node.aversion = if is_config { -1 } else { 0 };
            let parent = tree.find(path::parent(special)).unwrap_or(ROOT);
            tree.attach(parent, special, node);
        }
        tree
    }

    fn empty() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            acls: Acls::default(),
            ephemerals: BTreeMap::new(),
            containers: BTreeSet::new(),
            ttls: BTreeSet::new(),
            data_bytes: 0,
            snapshot: None,
        }
    }

    /// The node at a path. An empty path denotes the root, too.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<NodeRef<'_>> {
        self.find(path).map(|id| NodeRef::new(self.node(id)))
    }

    fn find(&self, path: &str) -> Option<NodeId> {
        if matches!(path, "" | "/") {
            return Some(ROOT);
        }
        let mut components = path.strip_prefix('/')?.split('/');
        components.try_fold(ROOT, |id, name| self.node(id).child(name))
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Number of nodes, including the root.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Number of descendants of the node at `path`.
    #[must_use]
    pub fn descendants(&self, path: &str) -> Option<usize> {
        let mut pending = vec![self.find(path)?];
        let mut count = 0;
        while let Some(id) = pending.pop() {
            let before = pending.len();
            pending.extend(self.node(id).children().map(|(_, child)| child));
            count += pending.len() - before;
        }
        Some(count)
    }

    /// Bytes of data in all nodes together.
    #[must_use]
    pub const fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The ephemeral nodes of a session, in order.
    pub fn ephemerals(&self, session: i64) -> impl Iterator<Item = &str> {
        self.ephemerals.get(&session).into_iter().flatten().map(|path| &**path)
    }

    /// Number of ephemeral nodes of all sessions.
    #[must_use]
    pub fn ephemeral_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// Sessions that have ephemeral nodes.
    pub fn owners(&self) -> impl Iterator<Item = i64> {
        self.ephemerals.keys().copied()
    }

    /// Container and TTL nodes, which are deleted automatically once they are unused.
    pub fn collectable(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().chain(&self.ttls).map(|path| &**path)
    }

    /// Inserts a node under `parent`. The caller updates the parent's stat.
    fn attach(&mut self, parent: NodeId, path: &str, node: Node) {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        if let Some(index) = self.index(node.kind()) {
            index.insert(path.into());
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.before_create(path);
        }
        self.data_bytes += node.data_length();
        let id = if let Some(id) = self.free.pop() {
            *self.node_mut(id) = node;
            id
        } else {
            let id = u32::try_from(self.nodes.len()).expect("memory limits the number of nodes");
            self.nodes.push(node);
            NodeId(id)
        };
        self.node_mut(parent).add_child(name, id);
    }

    /// Removes the node at `path`.
    fn detach(&mut self, parent: NodeId, path: &str, id: NodeId) -> Node {
        self.before_change(path, id);
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        self.node_mut(parent).remove_child(name);
        let node = std::mem::take(self.node_mut(id));
        self.free.push(id);
        self.data_bytes -= node.data_length();
        if let Some(index) = self.index(node.kind()) {
            index.remove(path);
        }
        if let Kind::Ephemeral(session) = node.kind()
            && self.ephemerals.get(&session).is_some_and(BTreeSet::is_empty)
        {
            self.ephemerals.remove(&session);
        }
        node
    }

    /// The index of nodes of this kind.
    fn index(&mut self, kind: Kind) -> Option<&mut BTreeSet<Box<str>>> {
        match kind {
            Kind::Persistent => None,
            Kind::Ephemeral(session) => Some(self.ephemerals.entry(session).or_default()),
            Kind::Container => Some(&mut self.containers),
            Kind::Ttl { .. } => Some(&mut self.ttls),
        }
    }

    /// Notifies the snapshot in progress, if any.
    fn before_change(&mut self, path: &str, id: NodeId) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.before_change(path, &self.nodes[id.0 as usize]);
        }
    }
}
