//! The SSTables of a tree by level. SSTables of level 0 come from memtables and may overlap; in lower levels, SSTables
//! are sorted and disjoint.
//!
//! Invariant: no key has versions in two SSTables of one level below the first. So a lookup reads at most one SSTable
//! of such a level.

use std::cmp::Reverse;
use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::retention::Tombstone;
use super::sorted_run::place_of;
use crate::sstable::{Sstable, SstableError, SstableId, SstableRef};

/// Number of levels. With the configured ratio between levels, this is enough for any disk.
pub const LEVELS: usize = 7;

/// The SSTables of a tree. Immutable: a flush or a compaction creates a new value.
#[derive(Clone, Default)]
pub(super) struct Levels {
    /// In the first level, the SSTable with the newest version is first.
    levels: [Vec<Arc<Sstable>>; LEVELS],
    /// Whether any SSTable has a row tombstone; checked by every read.
    has_row_tombstones: bool,
}

/// A closed interval of keys.
#[derive(Clone)]
pub(super) struct Span {
    first: Bytes,
    last: Bytes,
}

impl Span {
    pub(super) fn of(sstable: &Sstable) -> Self {
        Self { first: sstable.meta().first_key.clone(), last: sstable.meta().last_key.clone() }
    }

    /// The span of several SSTables; `None` without SSTables.
    pub(super) fn of_all<'a>(sstables: impl IntoIterator<Item = &'a Arc<Sstable>>) -> Option<Self> {
        sstables
            .into_iter()
            .map(|sstable| Self::of(sstable))
            .reduce(|span, other| Self { first: span.first.min(other.first), last: span.last.max(other.last) })
    }

    pub(super) fn overlaps(&self, sstable: &Sstable) -> bool {
        self.first <= sstable.meta().last_key && sstable.meta().first_key <= self.last
    }
}

/// Size of the SSTables' files.
pub(super) fn bytes_of(sstables: &[Arc<Sstable>]) -> u64 {
    sstables.iter().map(|sstable| sstable.meta().bytes).sum()
}

/// Whether an SSTable may hold versions that a tombstone with that timestamp deletes.
pub(super) fn holds_older(sstable: &Sstable, tombstone: Tombstone<'_>, timestamp: Timestamp) -> bool {
    let meta = sstable.meta();
    let (first, last) = (&*meta.first_key, &*meta.last_key);
    let overlaps = match tombstone {
        Tombstone::OfCell(key) => first <= key && key <= last,
        Tombstone::OfRow(prefix) => (first <= prefix || first.starts_with(prefix)) && prefix <= last,
    };
    overlaps && meta.timestamps.0 < timestamp
}

impl Levels {
    pub(super) fn new(sstables: impl IntoIterator<Item = (u8, Arc<Sstable>)>) -> Self {
        let mut levels = Self::default();
        for (level, sstable) in sstables {
            if let Some(level) = levels.levels.get_mut(usize::from(level)) {
                level.push(sstable);
            }
        }
        levels.settle();
        levels
    }

    /// Sorts each level and computes summaries.
    fn settle(&mut self) {
        self.levels[0].sort_by_key(|sstable| Reverse(sstable.meta().timestamps.1));
        for level in &mut self.levels[1..] {
            level.sort_by(|left, right| left.meta().first_key.cmp(&right.meta().first_key));
        }
        self.has_row_tombstones = self.levels.iter().flatten().any(|sstable| sstable.meta().row_tombstones > 0);
    }

    #[inline]
    pub(super) fn has_row_tombstones(&self) -> bool {
        self.has_row_tombstones
    }

    pub(super) fn level(&self, level: usize) -> &[Arc<Sstable>] {
        &self.levels[level]
    }

    /// Each level's number and SSTables, from the first level on.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[Arc<Sstable>])> {
        self.levels.iter().map(Vec::as_slice).enumerate()
    }

    pub(super) fn sstables(&self) -> impl Iterator<Item = &Arc<Sstable>> {
        self.levels.iter().flatten()
    }

    /// Size of a level's files.
    pub(super) fn bytes(&self, level: usize) -> u64 {
        bytes_of(&self.levels[level])
    }

    /// The SSTables of a level that overlap a span.
    pub(super) fn overlapping(&self, level: usize, span: &Span) -> Vec<Arc<Sstable>> {
        self.levels[level].iter().filter(|sstable| span.overlaps(sstable)).cloned().collect()
    }

    /// The SSTable of a level below the first that may hold a key.
    #[inline]
    pub(super) fn sstable_of(&self, level: usize, key: &[u8]) -> Option<&Arc<Sstable>> {
        let sstables = &self.levels[level];
        sstables.get(place_of(sstables, key)).filter(|sstable| *sstable.meta().first_key <= *key)
    }

    /// Replaces SSTables by new ones in `level`.
    pub(super) fn replaced(&self, gone: &[SstableId], level: u8, new: &[Arc<Sstable>]) -> Self {
        let mut levels = self.clone();
        for sstables in &mut levels.levels {
            sstables.retain(|sstable| !gone.contains(&sstable.id()));
        }
        levels.levels[usize::from(level)].extend(new.iter().cloned());
        levels.settle();
        levels
    }

    /// Their names, for a manifest.
    pub(super) fn refs(&self) -> Vec<SstableRef> {
        let of_level = |(level, sstables): (usize, &[Arc<Sstable>])| {
            let named = |sstable: &Arc<Sstable>| SstableRef::new(sstable.id(), level as u8, sstable.meta());
            sstables.iter().map(named).collect::<Vec<_>>()
        };
        self.iter().flat_map(of_level).collect()
    }

    /// Checks that there are `count` SSTables and that they form a tree.
    pub(super) fn check(&self, count: usize) -> Result<(), SstableError> {
        if self.are_disjoint() && self.sstables().count() == count { Ok(()) } else { Err(SstableError::Tree) }
    }

    /// Whether no two SSTables of a level below the first overlap.
    pub(super) fn are_disjoint(&self) -> bool {
        self.levels[1..]
            .iter()
            .all(|sstables| sstables.windows(2).all(|pair| pair[0].meta().last_key < pair[1].meta().first_key))
    }
}
