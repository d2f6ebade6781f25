//! Incremental snapshots of a tree that keeps changing.
//!
//! A [`SnapshotCursor`] walks the tree in preorder. Before a node changes, the tree notifies the cursor, which copies
//! the node if it has not been written yet (copy on write). So the snapshot shows the tree at the moment the walk
//! began, and its memory is bounded by one piece and the nodes that change during the walk.
//!
//! The bytes depend only on the tree. A node is one record: depth, name, data, ACL, stat. An ACL is written in full at
//! its first occurrence and by its number afterwards.

use std::collections::BTreeMap;

use base::codec::{DecodeError, Reader, Writer};

use super::node::{Node, NodeId};
use super::{ROOT, Tree, Txn};
use crate::acl::{Acl, AclList, Id};
use crate::path;

/// A walk over the tree as it was when the walk began.
#[derive(Debug, Default)]
pub struct SnapshotCursor {
    /// The path of the last node written.
    written: Option<String>,
    /// Original copies of nodes that changed before they were written; none for nodes created during the walk.
    before: BTreeMap<WalkKey, Option<Node>>,
    acls: BTreeMap<AclList, u32>,
}

/// A path in preorder: compared bytewise, with the separator below all other characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WalkKey(String);

impl WalkKey {
    fn of(path: &str) -> Self {
        Self(if path == path::ROOT { String::new() } else { path.replace('/', "\0") })
    }

    fn path(&self) -> String {
        if self.0.is_empty() { path::ROOT.to_owned() } else { self.0.replace('\0', "/") }
    }
}

impl SnapshotCursor {
    pub(super) fn before_create(&mut self, path: &str) {
        self.keep(path, || None);
    }

    pub(super) fn before_change(&mut self, path: &str, node: &Node) {
        self.keep(path, || Some(node.copy()));
    }

    fn keep(&mut self, path: &str, node: impl FnOnce() -> Option<Node>) {
        let key = WalkKey::of(path);
        if self.written.as_deref().is_none_or(|written| WalkKey::of(written) < key) {
            self.before.entry(key).or_insert_with(node);
        }
    }

    fn write(&mut self, path: &str, node: &Node, out: &mut Writer) {
        let (depth, name) = match path {
            path::ROOT => (0, ""),
            path => (path.matches('/').count(), path.rsplit_once('/').map_or(path, |(_, name)| name)),
        };
        out.u32(u32::try_from(depth).unwrap_or(u32::MAX));
        out.bytes(name.as_bytes());
        out.bool(node.data.is_some());
        out.bytes(node.data.as_deref().unwrap_or_default());
        let next = u32::try_from(self.acls.len()).unwrap_or(u32::MAX);
        let number = *self.acls.entry(node.acl.clone()).or_insert(next);
        out.u32(number);
        if number == next {
            write_acl(&node.acl, out);
        }
        for field in [node.czxid, node.mzxid, node.pzxid, node.ctime, node.mtime, node.owner] {
            out.i64(field);
        }
        for field in [node.version, node.created, node.aversion] {
            out.u32(field.cast_unsigned());
        }
    }
}

fn write_acl(acl: &[Acl], out: &mut Writer) {
    out.u32(u32::try_from(acl.len()).unwrap_or(u32::MAX));
    for acl in acl {
        out.u32(acl.perms.cast_unsigned());
        out.bytes(acl.id.scheme.as_bytes());
        out.bytes(acl.id.id.as_bytes());
    }
}

impl Tree {
    /// Begins a snapshot of the current tree. A snapshot in progress is cancelled.
    pub fn begin_snapshot(&mut self) {
        self.snapshot = Some(Box::default());
    }

    /// Cancels the snapshot in progress.
    pub fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Writes the next node of the snapshot in progress. Returns false at its end.
    pub fn write_next(&mut self, out: &mut Writer) -> bool {
        let Some(mut cursor) = self.snapshot.take() else { return false };
        let Some((key, kept)) = self.next_of_snapshot(&mut cursor) else { return false };
        let path = key.path();
        match &kept {
            Some(node) => cursor.write(&path, node, out),
            None => {
                let Some(id) = self.find(&path) else {
                    debug_assert!(false, "unexpected node {path} in the walk");
                    return false;
                };
                cursor.write(&path, self.node(id), out);
            }
        }
        cursor.written = Some(path);
        self.snapshot = Some(cursor);
        true
    }

    /// The next node of the walk: an original copy, or the one in the tree.
    fn next_of_snapshot(&self, cursor: &mut SnapshotCursor) -> Option<(WalkKey, Option<Node>)> {
        let mut live = self.successor(cursor.written.as_deref());
        while let Some((path, _)) = &live
            && cursor.before.get(&WalkKey::of(path)).is_some_and(Option::is_none)
        {
            live = self.successor(Some(path));
        }
        let live = live.map(|(path, _)| WalkKey::of(&path));
        // Nodes created during the walk need no entry once the walk has passed them.
        while let Some(entry) = cursor.before.first_entry()
            && (entry.get().is_none() && live.as_ref().is_none_or(|live| entry.key() < live))
        {
            entry.remove();
        }
        let kept = cursor.before.first_key_value().map(|(key, node)| (key, node.is_some()));
        match (live, kept) {
            (Some(live), Some((kept, true))) if *kept <= live => cursor.before.pop_first(),
            (None, Some((_, true))) => cursor.before.pop_first(),
            (Some(live), _) => Some((live, None)),
            (None, _) => None,
        }
    }

    /// The node after `path` in preorder, even if `path` no longer exists; the root if there is no path.
    fn successor(&self, path: Option<&str>) -> Option<(String, NodeId)> {
        let Some(path) = path else { return Some((path::ROOT.to_owned(), ROOT)) };
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let mut found = vec![ROOT];
        for name in &names {
            let Some(child) = found.last().and_then(|id| self.node(*id).child(name)) else { break };
            found.push(child);
        }
        let below = |depth: usize, after: Option<&str>| {
            let (name, id) = self.node(found[depth]).child_after(after)?;
            let parent = names[..depth].join("/");
            Some((if depth == 0 { format!("/{name}") } else { format!("/{parent}/{name}") }, id))
        };
        let child = (found.len() > names.len()).then(|| below(names.len(), None)).flatten();
        child.or_else(|| (0..names.len().min(found.len())).rev().find_map(|depth| below(depth, Some(names[depth]))))
    }
}

/// Builds a tree from the records of a snapshot.
#[derive(Debug)]
pub struct TreeBuilder {
    tree: Tree,
    /// The last node and its ancestors, starting at the root.
    path: Vec<NodeId>,
    names: Vec<Box<str>>,
    acls: Vec<AclList>,
}

const fn invalid(what: &'static str) -> DecodeError {
    DecodeError::Invalid { what }
}

impl Default for TreeBuilder {
    fn default() -> Self {
        Self { tree: Tree::empty(), path: Vec::new(), names: Vec::new(), acls: Vec::new() }
    }
}

impl TreeBuilder {
    /// Reads the next node.
    ///
    /// # Errors
    /// When the record is not one that follows.
    pub fn read_next(&mut self, reader: &mut Reader) -> Result<(), DecodeError> {
        let depth = reader.u32()? as usize;
        let name = text(reader)?;
        let has_data = reader.bool()?;
        let data = reader.bytes()?;
        let number = reader.u32()? as usize;
        if number == self.acls.len() {
            let acl = self.tree.acls.intern(read_acl(reader)?);
            self.acls.push(acl);
        }
        let acl = self.acls.get(number).ok_or(invalid("number of an ACL"))?.clone();
        let mut node = Node::new(has_data.then_some(&data[..]), acl, 0, Txn { zxid: 0, time_ms: 0 });
        for field in
            [&mut node.czxid, &mut node.mzxid, &mut node.pzxid, &mut node.ctime, &mut node.mtime, &mut node.owner]
        {
            *field = reader.i64()?;
        }
        for field in [&mut node.version, &mut node.created, &mut node.aversion] {
            *field = reader.u32()?.cast_signed();
        }
        self.add(depth, name, node)
    }

    fn add(&mut self, depth: usize, name: Box<str>, node: Node) -> Result<(), DecodeError> {
        if depth == 0 {
            if !self.tree.nodes.is_empty() {
                return Err(invalid("second root"));
            }
            self.tree.data_bytes += node.data_length();
            self.tree.nodes.push(node);
            self.path.push(ROOT);
            return Ok(());
        }
        if depth > self.path.len() {
            return Err(invalid("depth of a node"));
        }
        self.path.truncate(depth);
        self.names.truncate(depth - 1);
        let parent = self.path[depth - 1];
        if name.is_empty() || name.contains('/') || self.tree.node(parent).child(&name).is_some() {
            return Err(invalid("name of a node"));
        }
        self.names.push(name);
        let path = format!("/{}", self.names.join("/"));
        let id = NodeId(u32::try_from(self.tree.nodes.len()).map_err(|_| invalid("number of nodes"))?);
        self.tree.attach(parent, &path, node);
        self.path.push(id);
        Ok(())
    }

    /// The tree.
    ///
    /// # Errors
    /// When no node was read.
    pub fn finish(self) -> Result<Tree, DecodeError> {
        if self.tree.nodes.is_empty() { Err(invalid("tree without a root")) } else { Ok(self.tree) }
    }
}

fn read_acl(reader: &mut Reader) -> Result<Vec<Acl>, DecodeError> {
    let count = reader.count(12)?;
    let mut acls = Vec::with_capacity(count);
    for _ in 0..count {
        let perms = reader.u32()?.cast_signed();
        acls.push(Acl { perms, id: Id { scheme: text(reader)?, id: text(reader)? } });
    }
    Ok(acls)
}

fn text(reader: &mut Reader) -> Result<Box<str>, DecodeError> {
    let bytes = reader.bytes()?;
    str::from_utf8(&bytes).map(Into::into).map_err(|_| invalid("text"))
}
