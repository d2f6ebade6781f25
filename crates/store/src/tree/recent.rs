//! Memtables that are in tables already and are kept for a while: what was written last is what is asked for most,
//! first of all by the next write of a row that names a condition. No work is done for it: the bytes are there.
//!
//! All trees of a node share the room. Whoever is flushed next takes the place of what was flushed first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::memtable::Memtable;

/// The memtables of a node that are kept though they are in tables, up to so many bytes.
#[derive(Debug)]
pub struct Recent {
    bytes_max: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    memtables: VecDeque<Arc<Memtable>>,
    bytes: u64,
}

/// How many of one tree are asked, at most.
const OF_TREE_MAX: usize = 4;

/// Those of one tree that are there at one moment, the newest first, for as long as a read takes.
#[derive(Debug, Default)]
pub(super) struct RecentAtOnce([Option<Arc<Memtable>>; OF_TREE_MAX]);

/// Those of one tree, the newest first. Some may be gone: then those after them are not asked any more.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentOfTree(Arc<[Weak<Memtable>]>);

impl Recent {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    /// Keeps what a tree has flushed, the newest first, with what it had flushed before. [`Self::make_room`] should
    /// have been called elsewhere: the oldest of any tree go, until all fits.
    pub(super) fn keep(&self, flushed: &[Arc<Memtable>], before: &RecentOfTree) -> RecentOfTree {
        let mut kept = self.kept();
        for memtable in flushed.iter().rev() {
            kept.bytes += memtable.bytes();
            kept.memtables.push_back(Arc::clone(memtable));
        }
        drop(kept);
        self.make_room(0);
        // A range that was split off may keep an older one that this tree shares with it: what lies behind one that is
        // gone would hide what that held.
        let before = before.0.iter().take_while(|memtable| memtable.strong_count() > 0).cloned();
        RecentOfTree(flushed.iter().map(Arc::downgrade).chain(before).take(OF_TREE_MAX).collect())
    }

    /// Gives up the oldest until there is room for so many bytes. A memtable is freed version by version: on whose
    /// thread this is called, that takes milliseconds.
    pub(super) fn make_room(&self, bytes: u64) {
        while let Some(oldest) = self.kept().pop_beyond(self.bytes_max.saturating_sub(bytes)) {
            // Not while others wait for the lock.
            drop(oldest);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn pop_beyond(&mut self, bytes_max: u64) -> Option<Arc<Memtable>> {
        let oldest = if self.bytes > bytes_max { self.memtables.pop_front() } else { None };
        self.bytes -= oldest.as_ref().map_or(0, |memtable| memtable.bytes());
        oldest
    }
}

impl RecentOfTree {
    /// Those that are still there, and all that are newer than the last of them.
    pub(super) fn at_once(&self) -> RecentAtOnce {
        let mut there = self.0.iter().map_while(Weak::upgrade).fuse();
        RecentAtOnce(std::array::from_fn(|_| there.next()))
    }
}

impl RecentAtOnce {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Memtable> {
        self.0.iter().flatten().map(|memtable| &**memtable)
    }

    pub(super) fn has_row_tombstones(&self) -> bool {
        self.iter().any(Memtable::has_row_tombstones)
    }
}

#[cfg(test)]
mod tests {
    use base::{Lsn, Timestamp};

    use super::*;

    fn memtable(value_bytes: usize) -> Arc<Memtable> {
        let memtable = Memtable::new();
        memtable.put(vec![1].into(), Timestamp(1), Lsn::ZERO, Some(vec![0; value_bytes].into()));
        Arc::new(memtable)
    }

    fn bytes(of_tree: &RecentOfTree) -> Vec<u64> {
        of_tree.at_once().iter().map(|memtable| memtable.bytes() / 1_000).collect()
    }

    #[test]
    fn the_oldest_of_any_tree_goes_first() {
        let recent = Recent::new(10_000);
        let one = recent.keep(&[memtable(3_000)], &RecentOfTree::default());
        let other = recent.keep(&[memtable(4_000)], &RecentOfTree::default());
        let one = recent.keep(&[memtable(2_000)], &one);
        assert_eq!((bytes(&one), bytes(&other)), (vec![2, 3], vec![4]));
        recent.make_room(2_000);
        assert_eq!((bytes(&one), bytes(&other)), (vec![2], vec![4]));
        let one = recent.keep(&[memtable(9_000), memtable(1_000)], &one);
        assert_eq!((bytes(&one), bytes(&other)), (vec![9], vec![]), "the newest first");
        let one = recent.keep(&[memtable(11_000)], &one);
        assert_eq!(bytes(&one), [0; 0], "what is larger than all the room is not kept");
    }

    #[test]
    fn what_lies_behind_one_that_is_gone_is_not_asked() {
        let recent = Recent::new(10_000);
        let (older, newer) = (memtable(1_000), memtable(6_000));
        let one = recent.keep(&[Arc::clone(&older)], &RecentOfTree::default());
        let one = recent.keep(&[newer], &one);
        let split_off = recent.keep(&[older], &RecentOfTree::default());
        let one = recent.keep(&[memtable(4_000)], &one);
        assert_eq!((bytes(&one), bytes(&split_off)), (vec![4], vec![1]), "the older one lives, but not for this tree");
    }
}
