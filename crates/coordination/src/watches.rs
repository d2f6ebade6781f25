//! Watches: which connections are notified of changes to which nodes.
//!
//! A *standard* watch fires once. A data watch, set by getData and exists, fires when the node is created, deleted or
//! written; a child watch, set by getChildren, when the node is deleted or its children change. A *persistent* watch is
//! both and is not removed when it fires. A *recursive* watch is a persistent data watch of the node and all its
//! descendants. Setting the same watch again on the same connection has no effect.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::jute::EventType;
use crate::path;

#[cfg(test)]
mod tests;

/// The aspect of a node that a watch observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// Existence and data of a node.
    Data,
    /// The children of a node.
    Child,
}

/// The lifetime and scope of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Removed when it fires.
    Standard,
    Persistent,
    /// Removed on request; includes all descendants.
    Recursive,
}

/// The watches that `checkWatches` and `removeWatches` select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ZooKeeper's own names")]
pub enum WatcherType {
    Children,
    Data,
    Any,
    Persistent,
    PersistentRecursive,
}

impl WatcherType {
    /// The watcher type with that code.
    #[must_use]
    pub const fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            1 => Self::Children,
            2 => Self::Data,
            3 => Self::Any,
            4 => Self::Persistent,
            5 => Self::PersistentRecursive,
            _ => return None,
        })
    }

    /// The selected targets and modes. `None` selects all modes.
    const fn meant(self) -> &'static [(WatchTarget, Option<Mode>)] {
        match self {
            Self::Children => &[(WatchTarget::Child, Some(Mode::Standard))],
            Self::Data => &[(WatchTarget::Data, Some(Mode::Standard))],
            Self::Any => &[(WatchTarget::Child, None), (WatchTarget::Data, None)],
            Self::Persistent => {
                &[(WatchTarget::Child, Some(Mode::Persistent)), (WatchTarget::Data, Some(Mode::Persistent))]
            }
            Self::PersistentRecursive => &[(WatchTarget::Data, Some(Mode::Recursive))],
        }
    }
}

/// The modes of one connection's watches of one path, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Modes(u8);

impl Modes {
    const fn bit(mode: Mode) -> u8 {
        1 << mode as u8
    }

    const fn has(self, mode: Option<Mode>) -> bool {
        match mode {
            Some(mode) => self.0 & Self::bit(mode) != 0,
            None => self.0 != 0,
        }
    }

    const fn without(self, mode: Option<Mode>) -> Self {
        match mode {
            Some(mode) => Self(self.0 & !Self::bit(mode)),
            None => Self(0),
        }
    }
}

/// The watches of one target. `C` identifies a connection.
#[derive(Debug)]
struct Watchers<C> {
    by_path: BTreeMap<Box<str>, BTreeMap<C, Modes>>,
    /// Number of (path, connection) pairs.
    count: usize,
    /// Number of recursive watches. If it is 0, ancestors are not searched.
    recursive: usize,
}

impl<C: Copy + Ord> Watchers<C> {
    /// Returns whether the connection had no watch of this path.
    fn add(&mut self, path: &str, connection: C, mode: Mode) -> bool {
        let modes = match self.by_path.get_mut(path) {
            Some(watchers) => watchers.entry(connection).or_default(),
            None => self.by_path.entry(path.into()).or_default().entry(connection).or_default(),
        };
        let is_new = modes.0 == 0;
        if mode == Mode::Recursive && !modes.has(Some(mode)) {
            self.recursive += 1;
        }
        modes.0 |= Modes::bit(mode);
        self.count += usize::from(is_new);
        is_new
    }

    fn modes(&self, path: &str, connection: C) -> Modes {
        self.by_path.get(path).and_then(|watchers| watchers.get(&connection)).copied().unwrap_or_default()
    }

    /// Removes watches. Returns whether there were any.
    fn remove(&mut self, path: &str, connection: C, mode: Option<Mode>) -> bool {
        let modes = self.modes(path, connection);
        if !modes.has(mode) {
            return false;
        }
        let left = modes.without(mode);
        if modes.has(Some(Mode::Recursive)) && !left.has(Some(Mode::Recursive)) {
            self.recursive -= 1;
        }
        if let Some(watchers) = self.by_path.get_mut(path) {
            if left == Modes::default() {
                watchers.remove(&connection);
                self.count -= 1;
            } else {
                watchers.insert(connection, left);
            }
            if watchers.is_empty() {
                self.by_path.remove(path);
            }
        }
        true
    }

    /// Fires the watches of the node at `path`: adds their connections to `notified`, and connections without a
    /// remaining watch of the path to `ended`.
    fn trigger(&mut self, path: &str, notified: &mut BTreeSet<C>, ended: &mut Vec<C>) {
        if self.recursive > 0 {
            for ancestor in path::ancestors(path).skip(1) {
                let watchers = self.by_path.get(ancestor).into_iter().flatten();
                notified.extend(
                    watchers.filter(|(_, modes)| modes.has(Some(Mode::Recursive))).map(|(watcher, _)| *watcher),
                );
            }
        }
        let Some(watchers) = self.by_path.get_mut(path) else { return };
        let before = watchers.len();
        watchers.retain(|watcher, modes| {
            notified.insert(*watcher);
            *modes = modes.without(Some(Mode::Standard));
            if modes.0 == 0 {
                ended.push(*watcher);
            }
            modes.0 != 0
        });
        self.count -= before - watchers.len();
        if watchers.is_empty() {
            self.by_path.remove(path);
        }
    }
}

/// The watches of all connections of a server. `C` identifies a connection.
#[derive(Debug)]
pub struct Watches<C> {
    data: Watchers<C>,
    child: Watchers<C>,
    /// The paths that each connection watches, to remove its watches when it is closed.
    by_connection: BTreeMap<C, BTreeSet<Box<str>>>,
    /// Bytes of these paths.
    path_bytes: usize,
}

impl<C: Copy + Ord> Default for Watches<C> {
    fn default() -> Self {
        let none = || Watchers { by_path: BTreeMap::new(), count: 0, recursive: 0 };
        Self { data: none(), child: none(), by_connection: BTreeMap::new(), path_bytes: 0 }
    }
}

impl<C: Copy + Ord> Watches<C> {
    const fn watchers(&mut self, target: WatchTarget) -> &mut Watchers<C> {
        match target {
            WatchTarget::Data => &mut self.data,
            WatchTarget::Child => &mut self.child,
        }
    }

    /// Adds a one-shot watch.
    pub fn add(&mut self, target: WatchTarget, path: &str, connection: C) {
        self.add_mode(target, path, connection, Mode::Standard);
    }

    /// Adds a persistent watch.
    pub fn add_persistent(&mut self, path: &str, connection: C, is_recursive: bool) {
        if is_recursive {
            self.add_mode(WatchTarget::Data, path, connection, Mode::Recursive);
        } else {
            self.add_mode(WatchTarget::Data, path, connection, Mode::Persistent);
            self.add_mode(WatchTarget::Child, path, connection, Mode::Persistent);
        }
    }

    fn add_mode(&mut self, target: WatchTarget, path: &str, connection: C, mode: Mode) {
        if self.watchers(target).add(path, connection, mode)
            && self.by_connection.entry(connection).or_default().insert(path.into())
        {
            self.path_bytes += path.len();
        }
    }

    /// Whether the connection has a matching watch.
    #[must_use]
    pub fn contains(&self, path: &str, kind: WatcherType, connection: C) -> bool {
        kind.meant().iter().any(|(target, mode)| {
            let watchers = if *target == WatchTarget::Data { &self.data } else { &self.child };
            watchers.modes(path, connection).has(*mode)
        })
    }

    /// Removes matching watches of the connection. Returns whether there were any.
    pub fn remove(&mut self, path: &str, kind: WatcherType, connection: C) -> bool {
        let mut removed = false;
        for (target, mode) in kind.meant() {
            removed |= self.watchers(*target).remove(path, connection, *mode);
        }
        self.forget_path(path, connection);
        removed
    }

    /// Removes all watches of a connection.
    pub fn remove_connection(&mut self, connection: C) {
        for path in self.by_connection.remove(&connection).unwrap_or_default() {
            self.path_bytes -= path.len();
            self.data.remove(&path, connection, None);
            self.child.remove(&path, connection, None);
        }
    }

    /// Fires watches: returns the connections to notify, in order, and removes the one-shot watches among them.
    pub fn trigger(&mut self, kind: EventType, path: &str) -> BTreeSet<C> {
        let (mut notified, mut ended) = (BTreeSet::new(), Vec::new());
        if kind != EventType::ChildrenChanged {
            self.data.trigger(path, &mut notified, &mut ended);
        }
        if matches!(kind, EventType::ChildrenChanged | EventType::Deleted) {
            self.child.trigger(path, &mut notified, &mut ended);
        }
        for connection in ended {
            self.forget_path(path, connection);
        }
        notified
    }

    /// Removes the path from the connection's list if the connection has no watch of it any more.
    fn forget_path(&mut self, path: &str, connection: C) {
        let modes = [self.data.modes(path, connection), self.child.modes(path, connection)];
        if modes.iter().any(|modes| modes.has(None)) {
            return;
        }
        if let Entry::Occupied(mut paths) = self.by_connection.entry(connection) {
            if paths.get_mut().remove(path) {
                self.path_bytes -= path.len();
            }
            if paths.get().is_empty() {
                paths.remove();
            }
        }
    }

    /// Number of (path, connection) pairs, counted separately for each target, as in ZooKeeper.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.data.count + self.child.count
    }

    /// Bytes of the paths that connections watch.
    #[must_use]
    pub const fn path_bytes(&self) -> usize {
        self.path_bytes
    }

    /// The connection with the highest memory use by watches. Examines all watches.
    #[must_use]
    pub fn largest(&self) -> Option<C> {
        /// Memory of a watch without its path.
        const WATCH_BYTES: usize = 200;
        let bytes = |paths: &BTreeSet<Box<str>>| paths.iter().map(|path| WATCH_BYTES + path.len()).sum::<usize>();
        self.by_connection.iter().max_by_key(|(_, paths)| bytes(paths)).map(|(connection, _)| *connection)
    }

    /// Each connection that has watches, and the paths that it watches.
    pub fn by_connection(&self) -> impl Iterator<Item = (C, impl ExactSizeIterator<Item = &str>)> {
        self.by_connection.iter().map(|(connection, paths)| (*connection, paths.iter().map(|path| &**path)))
    }
}
