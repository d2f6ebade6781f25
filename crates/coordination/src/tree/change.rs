//! The changes of a transaction: the events to fire, and an undo log in case a later operation of the same multi fails.

use super::node::Node;
use super::{Tree, TreeEvent};
use crate::acl::AclList;
use crate::jute::EventType;
use crate::path;

/// The changes of one transaction so far.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) events: Vec<TreeEvent>,
    undo: Vec<Undo>,
}

/// One undo record. Its path is valid once all later records were undone.
#[derive(Debug)]
enum Undo {
    Create { path: Box<str>, parent: ParentStat },
    Delete { path: Box<str>, node: Box<Node>, parent: ParentStat },
    SetData { path: Box<str>, data: Option<Box<[u8]>>, mzxid: i64, mtime: i64, version: i32 },
}

/// The fields of a parent that change with its children.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParentStat {
    created: i32,
    pzxid: i64,
}

impl ParentStat {
    pub(super) const fn of(parent: &Node) -> Self {
        Self { created: parent.created, pzxid: parent.pzxid }
    }
}

impl Changes {
    pub(super) fn created(&mut self, path: &str, acl: AclList, parent: ParentStat, parent_acl: AclList) {
        self.event(EventType::Created, path, acl);
        self.event(EventType::ChildrenChanged, path::parent(path), parent_acl);
        self.undo.push(Undo::Create { path: path.into(), parent });
    }

    pub(super) fn deleted(&mut self, path: &str, node: Node, parent: ParentStat, parent_acl: AclList) {
        self.event(EventType::Deleted, path, node.acl.clone());
        self.event(EventType::ChildrenChanged, path::parent(path), parent_acl);
        self.undo.push(Undo::Delete { path: path.into(), node: Box::new(node), parent });
    }

    /// `before` is the node before the change, except for its data.
    pub(super) fn data_set(&mut self, path: &str, data: Option<Box<[u8]>>, before: &Node) {
        self.event(EventType::DataChanged, path, before.acl.clone());
        let (mzxid, mtime, version) = (before.mzxid, before.mtime, before.version);
        self.undo.push(Undo::SetData { path: path.into(), data, mzxid, mtime, version });
    }

    fn event(&mut self, kind: EventType, path: &str, acl: AclList) {
        self.events.push(TreeEvent { kind, path: path.into(), acl });
    }
}

impl Tree {
    /// Undoes all changes in reverse order.
    pub(super) fn undo(&mut self, changes: Changes) {
        for step in changes.undo.into_iter().rev() {
            match step {
                Undo::Create { path, parent } => {
                    let (Some(parent_id), Some(id)) = (self.find(path::parent(&path)), self.find(&path)) else {
                        debug_assert!(false, "{path} does not exist");
                        continue;
                    };
                    self.detach(parent_id, &path, id);
                    self.restore_parent(parent_id, parent);
                }
                Undo::Delete { path, node, parent } => {
                    let Some(parent_id) = self.find(path::parent(&path)) else {
                        debug_assert!(false, "the parent of {path} does not exist");
                        continue;
                    };
                    self.attach(parent_id, &path, *node);
                    self.restore_parent(parent_id, parent);
                }
                Undo::SetData { path, data, mzxid, mtime, version } => {
                    let Some(id) = self.find(&path) else { continue };
                    self.replace_data(id, data);
                    let node = self.node_mut(id);
                    (node.mzxid, node.mtime, node.version) = (mzxid, mtime, version);
                }
            }
        }
    }

    fn restore_parent(&mut self, parent: super::NodeId, stat: ParentStat) {
        let parent = self.node_mut(parent);
        (parent.created, parent.pzxid) = (stat.created, stat.pzxid);
    }
}
