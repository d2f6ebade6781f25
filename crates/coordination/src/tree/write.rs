//! The operations that change the tree.

use std::borrow::Cow;

use base::canary::{Bug, planted};

use super::change::ParentStat;
use super::{Author, Changes, Kind, Node, NodeId, TTL_MAX_MS, Tree, TreeEvent, Txn};
use crate::acl::{self, perms};
use crate::jute::{CheckVersion, Create, CreateKind, Delete, Operation, Operations, SetAcl, SetData, Stat};
use crate::{ErrorCode, path};

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum WriteResult {
    Operation(OperationResult),
    SetAcl(Stat),
    /// One result per operation. If one failed, all are errors and none took effect.
    Multi(Vec<Result<OperationResult, MultiError>>),
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum OperationResult {
    Create { path: Box<str> },
    Create2 { path: Box<str>, stat: Stat },
    Delete,
    SetData(Stat),
    Check,
}

/// The error of an operation of a failed multi; none for operations before the one that failed.
pub type MultiError = Option<ErrorCode>;

/// The kind of node to create.
#[derive(Clone, Copy)]
struct Mode {
    kind: Kind,
    is_sequential: bool,
}

impl Mode {
    /// Like ZooKeeper: the flags determine whether a node is ephemeral or sequential, and the operation determines
    /// whether it is a container or has a TTL. `create` with the container flag creates a persistent node.
    fn of(create: &Create<'_>, session: i64) -> Result<Self, ErrorCode> {
        let ttl_ms = create.ttl_ms.unwrap_or(-1);
        let (is_ephemeral, is_sequential, has_ttl) = match create.flags {
            0 | 4 => (false, false, false),
            1 => (true, false, false),
            2 => (false, true, false),
            3 => (true, true, false),
            5 => (false, false, true),
            6 => (false, true, true),
            _ => return Err(ErrorCode::BadArguments),
        };
        // The flags and the operation must agree on a TTL, and the TTL must be in range.
        if has_ttl != (create.kind == CreateKind::Ttl) || (has_ttl && !(1..=TTL_MAX_MS).contains(&ttl_ms)) {
            return Err(ErrorCode::BadArguments);
        }
        let kind = match create.kind {
            CreateKind::Container => Kind::Container,
            CreateKind::Ttl => Kind::Ttl { ttl_ms },
            CreateKind::Create | CreateKind::Create2 if is_ephemeral => Kind::Ephemeral(session),
            CreateKind::Create | CreateKind::Create2 => Kind::Persistent,
        };
        Ok(Self { kind, is_sequential })
    }
}

/// The next version, if the current version is the expected one. -1 matches any version, so no node gets it.
pub(super) const fn next_version(version: i32, expected: i32) -> Result<i32, ErrorCode> {
    if expected != -1 && expected != version {
        return Err(ErrorCode::BadVersion);
    }
    Ok(match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    })
}

impl Tree {
    /// Creates a node.
    ///
    /// # Errors
    /// In this order: invalid flags or TTL, a path without a parent, an invalid ACL, no parent node, no permission on
    /// the parent, an invalid path, the node exists, the parent is ephemeral.
    pub fn create(
        &mut self,
        create: &Create<'_>,
        author: Author<'_>,
        txn: Txn,
    ) -> (Result<OperationResult, ErrorCode>, Vec<TreeEvent>) {
        self.one(|tree, changes| tree.create_in(create, author, txn, changes))
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// In this order: a node that every tree has, no parent node, no permission on the parent, no node, a version
    /// mismatch, the node has children.
    pub fn delete(
        &mut self,
        delete: &Delete<'_>,
        author: Author<'_>,
        txn: Txn,
    ) -> (Result<OperationResult, ErrorCode>, Vec<TreeEvent>) {
        self.one(|tree, changes| tree.delete_in(delete, author, txn, changes))
    }

    /// Sets a node's data.
    ///
    /// # Errors
    /// In this order: an invalid path, no node, no permission, a version mismatch.
    pub fn set_data(
        &mut self,
        set: &SetData<'_>,
        author: Author<'_>,
        txn: Txn,
    ) -> (Result<OperationResult, ErrorCode>, Vec<TreeEvent>) {
        self.one(|tree, changes| tree.set_data_in(set, author, txn, changes))
    }

    /// Sets a node's ACL. Fires no watches.
    ///
    /// # Errors
    /// In this order: an invalid path, an invalid ACL, no node, no permission, a mismatch of the ACL version.
    pub fn set_acl(&mut self, set: &SetAcl<'_>, author: Author<'_>) -> Result<Stat, ErrorCode> {
        path::validate(set.path)?;
        let list = acl::resolve(set.acl, author.ids)?;
        let id = self.find(set.path).ok_or(ErrorCode::NoNode)?;
        acl::check(&self.node(id).acl, perms::ADMIN, author.ids)?;
        let aversion = next_version(self.node(id).aversion, set.version)?;
        self.before_change(set.path, id);
        let list = self.acls.intern(list);
        let node = self.node_mut(id);
        (node.acl, node.aversion) = (list, aversion);
        Ok(node.stat())
    }

    /// Performs all operations or none. Each sees the effects of those before it.
    pub fn multi<'a>(
        &mut self,
        operations: &Operations<'a, Operation<'a>>,
        author: Author<'_>,
        txn: Txn,
    ) -> (Vec<Result<OperationResult, MultiError>>, Vec<TreeEvent>) {
        let mut changes = Changes::default();
        let mut results = Vec::new();
        let mut failed = None;
        for operation in operations.iter() {
            if failed.is_some() {
                results.push(Err(Some(ErrorCode::RuntimeInconsistency)));
                continue;
            }
            let result = match operation {
                Operation::Create(create) => self.create_in(&create, author, txn, &mut changes),
                Operation::Delete(delete) => self.delete_in(&delete, author, txn, &mut changes),
                Operation::SetData(set) => self.set_data_in(&set, author, txn, &mut changes),
                Operation::Check(check) => self.check(&check, author),
            };
            if result.is_err() {
                failed = Some(results.len());
            }
            results.push(result.map_err(Some));
        }
        let Some(failed) = failed else { return (results, changes.events) };
        for result in &mut results[..failed] {
            *result = Err(None);
        }
        if !planted(Bug::MultiKeepsFirst) {
            self.undo(changes);
        }
        (results, Vec::new())
    }

    /// Deletes the ephemeral nodes of a session, as one transaction.
    pub fn close_session(&mut self, session: i64, txn: Txn) -> Vec<TreeEvent> {
        let mut changes = Changes::default();
        for path in self.ephemerals.remove(&session).unwrap_or_default() {
            if let (Some(parent), Some(id)) = (self.find(path::parent(&path)), self.find(&path)) {
                self.remove(parent, &path, id, txn, &mut changes);
            }
        }
        changes.events
    }

    /// Deletes a container or TTL node if it is unchanged since the collector found it unused: it has no children, and
    /// `mzxid` and `pzxid` are still the same. Returns `None` otherwise.
    pub fn collect(&mut self, path: &str, mzxid: i64, pzxid: i64, txn: Txn) -> Option<Vec<TreeEvent>> {
        let (parent, id) = (self.find(path::parent(path))?, self.find(path)?);
        let node = self.node(id);
        let is_collectable = matches!(node.kind(), Kind::Container | Kind::Ttl { .. });
        if !is_collectable || node.child_count() > 0 || node.mzxid != mzxid || node.pzxid != pzxid {
            return None;
        }
        let mut changes = Changes::default();
        self.remove(parent, path, id, txn, &mut changes);
        Some(changes.events)
    }

    fn one<T>(
        &mut self,
        operation: impl FnOnce(&mut Self, &mut Changes) -> Result<T, ErrorCode>,
    ) -> (Result<T, ErrorCode>, Vec<TreeEvent>) {
        let mut changes = Changes::default();
        let result = operation(self, &mut changes);
        (result, changes.events)
    }

    fn create_in(
        &mut self,
        create: &Create<'_>,
        author: Author<'_>,
        txn: Txn,
        changes: &mut Changes,
    ) -> Result<OperationResult, ErrorCode> {
        let mode = Mode::of(create, author.session)?;
        let (parent_path, _) = path::split(create.path).ok_or(ErrorCode::BadArguments)?;
        let acl = acl::resolve(create.acl, author.ids)?;
        let parent = self.find(parent_path).ok_or(ErrorCode::NoNode)?;
        acl::check(&self.node(parent).acl, perms::CREATE, author.ids)?;
        let path = if mode.is_sequential {
            Cow::from(format!("{}{:010}", create.path, self.node(parent).created))
        } else {
            Cow::from(create.path)
        };
        path::validate(&path)?;
        if self.find(&path).is_some() {
            return Err(ErrorCode::NodeExists);
        }
        if matches!(self.node(parent).kind(), Kind::Ephemeral(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        self.before_change(parent_path, parent);
        let acl = self.acls.intern(acl);
        let node = Node::new(create.data, acl.clone(), mode.kind.to_owner(), txn);
        let stat = node.stat();
        self.attach(parent, &path, node);
        let parent = self.node_mut(parent);
        changes.created(&path, acl, ParentStat::of(parent), parent.acl.clone());
        parent.created = parent.created.wrapping_add(1);
        parent.pzxid = txn.zxid;
        let path = path.into();
        Ok(match create.kind {
            CreateKind::Create => OperationResult::Create { path },
            CreateKind::Create2 | CreateKind::Container | CreateKind::Ttl => OperationResult::Create2 { path, stat },
        })
    }

    fn delete_in(
        &mut self,
        delete: &Delete<'_>,
        author: Author<'_>,
        txn: Txn,
        changes: &mut Changes,
    ) -> Result<OperationResult, ErrorCode> {
        let (parent_path, _) = path::split(delete.path).ok_or(ErrorCode::BadArguments)?;
        if path::SPECIAL.contains(&delete.path) {
            return Err(ErrorCode::BadArguments);
        }
        let parent = self.find(parent_path).ok_or(ErrorCode::NoNode)?;
        acl::check(&self.node(parent).acl, perms::DELETE, author.ids)?;
        let id = self.find(delete.path).ok_or(ErrorCode::NoNode)?;
        next_version(self.node(id).version, delete.version)?;
        if self.node(id).child_count() > 0 {
            return Err(ErrorCode::NotEmpty);
        }
        self.remove(parent, delete.path, id, txn, changes);
        Ok(OperationResult::Delete)
    }

    fn set_data_in(
        &mut self,
        set: &SetData<'_>,
        author: Author<'_>,
        txn: Txn,
        changes: &mut Changes,
    ) -> Result<OperationResult, ErrorCode> {
        path::validate(set.path)?;
        let id = self.find(set.path).ok_or(ErrorCode::NoNode)?;
        acl::check(&self.node(id).acl, perms::WRITE, author.ids)?;
        let version = next_version(self.node(id).version, set.version)?;
        self.before_change(set.path, id);
        let old = self.replace_data(id, set.data.map(Into::into));
        changes.data_set(set.path, old, self.node(id));
        let node = self.node_mut(id);
        (node.mzxid, node.mtime, node.version) = (txn.zxid, txn.time_ms, version);
        Ok(OperationResult::SetData(node.stat()))
    }

    fn check(&self, check: &CheckVersion<'_>, author: Author<'_>) -> Result<OperationResult, ErrorCode> {
        path::validate(check.path)?;
        let node = self.get(check.path).ok_or(ErrorCode::NoNode)?;
        acl::check(node.acl(), perms::READ, author.ids)?;
        next_version(node.stat().version, check.version)?;
        Ok(OperationResult::Check)
    }

    /// Removes a node without children.
    fn remove(&mut self, parent: NodeId, path: &str, id: NodeId, txn: Txn, changes: &mut Changes) {
        self.before_change(path::parent(path), parent);
        let node = self.detach(parent, path, id);
        let parent = self.node_mut(parent);
        changes.deleted(path, node, ParentStat::of(parent), parent.acl.clone());
        parent.pzxid = txn.zxid;
    }

    pub(super) fn replace_data(&mut self, id: NodeId, data: Option<Box<[u8]>>) -> Option<Box<[u8]>> {
        let node = &mut self.nodes[id.0 as usize];
        self.data_bytes -= node.data_length();
        let old = std::mem::replace(&mut node.data, data);
        self.data_bytes += node.data_length();
        old
    }
}
