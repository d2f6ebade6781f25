//! Keeps flushed memtables in memory for a while, because recently written data is read most, first by the next
//! conditional write to the same row. Costs no work, since the data is already in memory.
//!
//! All trees of a node share the capacity. New memtables evict the oldest ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::memtable::Memtable;

/// The node's flushed memtables in memory, up to a size limit.
#[derive(Debug)]
pub struct Recent {
    bytes_max: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    memtables: VecDeque<Arc<Memtable>>,
    bytes: u64,
}

/// Maximum memtables of one tree to search.
const OF_TREE_MAX: usize = 4;

/// The memtables of one tree that exist at one time, newest first, retained during a read.
#[derive(Debug, Default)]
pub(super) struct RecentAtOnce([Option<Arc<Memtable>>; OF_TREE_MAX]);

/// The memtables of one tree, newest first. Once one was evicted, those after it are not searched.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentOfTree(Arc<[Weak<Memtable>]>);

impl Recent {
    /// A limit of `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    /// Adds the flushed memtables of a tree, newest first, to its earlier ones. Evicts the oldest of any tree if
    /// necessary; [`Self::make_room`] should be called before, on another thread.
    pub(super) fn keep(&self, flushed: &[Arc<Memtable>], before: &RecentOfTree) -> RecentOfTree {
        let mut kept = self.kept();
        for memtable in flushed.iter().rev() {
            kept.bytes += memtable.bytes();
            kept.memtables.push_back(Arc::clone(memtable));
        }
        drop(kept);
        self.make_room(0);
        // A range that was split off may retain an older shared memtable: a memtable older than an evicted one must not
        // be used, because it could hide newer versions.
        let before = before.0.iter().take_while(|memtable| memtable.strong_count() > 0).cloned();
        RecentOfTree(flushed.iter().map(Arc::downgrade).chain(before).take(OF_TREE_MAX).collect())
    }

    /// Evicts the oldest until there is space for `bytes`. Freeing a memtable takes milliseconds, because each version
    /// is freed separately.
    pub(super) fn make_room(&self, bytes: u64) {
        while let Some(oldest) = self.kept().pop_beyond(self.bytes_max.saturating_sub(bytes)) {
            // Freed without holding the lock.
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
    /// The newest memtables up to the first evicted one.
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
    use base::Timestamp;

    use super::*;

    fn memtable(value_bytes: usize) -> Arc<Memtable> {
        let memtable = Memtable::new();
        memtable.put(vec![1].into(), Timestamp(1), Some(vec![0; value_bytes].into()));
        Arc::new(memtable)
    }

    fn bytes(of_tree: &RecentOfTree) -> Vec<u64> {
        of_tree.at_once().iter().map(|memtable| memtable.bytes() / 1_000).collect()
    }

    #[test]
    fn evicts_oldest_across_trees() {
        let recent = Recent::new(10_000);
        let one = recent.keep(&[memtable(3_000)], &RecentOfTree::default());
        let other = recent.keep(&[memtable(4_000)], &RecentOfTree::default());
        let one = recent.keep(&[memtable(2_000)], &one);
        assert_eq!((bytes(&one), bytes(&other)), (vec![2, 3], vec![4]));
        recent.make_room(2_000);
        assert_eq!((bytes(&one), bytes(&other)), (vec![2], vec![4]));
        let one = recent.keep(&[memtable(9_000), memtable(1_000)], &one);
        assert_eq!((bytes(&one), bytes(&other)), (vec![9], vec![]), "newest first");
        let one = recent.keep(&[memtable(11_000)], &one);
        assert_eq!(bytes(&one), [0; 0], "a memtable above the limit is not kept");
    }

    #[test]
    fn older_than_evicted_is_not_read() {
        let recent = Recent::new(10_000);
        let (older, newer) = (memtable(1_000), memtable(6_000));
        let one = recent.keep(&[Arc::clone(&older)], &RecentOfTree::default());
        let one = recent.keep(&[newer], &one);
        let split_off = recent.keep(&[older], &RecentOfTree::default());
        let one = recent.keep(&[memtable(4_000)], &one);
        assert_eq!((bytes(&one), bytes(&split_off)), (vec![4], vec![1]), "the older one exists, but not for this tree");
    }
}
