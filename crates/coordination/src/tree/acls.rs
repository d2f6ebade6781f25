//! Interned ACLs: most trees have only a few different ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::acl::{Acl, AclList};

/// The ACLs of all nodes.
#[derive(Debug, Default)]
pub(super) struct Acls {
    lists: BTreeSet<AclList>,
    /// Number of ACLs at which unused ones are removed.
    sweep_at: usize,
}

/// Unused ACLs are not removed below this number.
const SWEEP_MIN: usize = 64;

impl Acls {
    /// The shared copy of an ACL.
    pub(super) fn intern(&mut self, list: Vec<Acl>) -> AclList {
        if let Some(shared) = self.lists.get(list.as_slice()) {
            return shared.clone();
        }
        if self.lists.len() >= self.sweep_at {
            self.lists.retain(|list| Arc::strong_count(list) > 1);
            self.sweep_at = SWEEP_MIN.max(2 * self.lists.len());
        }
        let shared = AclList::from(list);
        self.lists.insert(shared.clone());
        shared
    }
}
