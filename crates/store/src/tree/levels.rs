//! The tables of a tree by level. Tables of level 0 come from memtables and may overlap; in lower levels, tables are
//! sorted and disjoint.
//!
//! Invariant: no key has versions in two tables of one level below the first. So a lookup reads at most one table of
//! such a level.

use std::cmp::Reverse;
use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::retention::Tombstone;
use super::run::place_of;
use crate::sstable::{Table, TableError, TableId, TableRef};

/// Number of levels. With the configured ratio between levels, this is enough for any disk.
pub const LEVELS: usize = 7;

/// The tables of a tree. Immutable: a flush or a compaction creates a new value.
#[derive(Clone, Default)]
pub(super) struct Levels {
    /// In the first level, the table with the newest version is first.
    levels: [Vec<Arc<Table>>; LEVELS],
    /// Whether any table has a row tombstone; checked by every read.
    has_row_tombstones: bool,
}

/// A closed interval of keys.
#[derive(Clone)]
pub(super) struct Span {
    first: Bytes,
    last: Bytes,
}

impl Span {
    pub(super) fn of(table: &Table) -> Self {
        Self { first: table.meta().first_key.clone(), last: table.meta().last_key.clone() }
    }

    /// The span of several tables; `None` without tables.
    pub(super) fn of_all<'a>(tables: impl IntoIterator<Item = &'a Arc<Table>>) -> Option<Self> {
        tables
            .into_iter()
            .map(|table| Self::of(table))
            .reduce(|span, other| Self { first: span.first.min(other.first), last: span.last.max(other.last) })
    }

    pub(super) fn overlaps(&self, table: &Table) -> bool {
        self.first <= table.meta().last_key && table.meta().first_key <= self.last
    }
}

/// Size of the tables' files.
pub(super) fn bytes_of(tables: &[Arc<Table>]) -> u64 {
    tables.iter().map(|table| table.meta().bytes).sum()
}

/// Whether a table may hold versions that a tombstone with that timestamp deletes.
pub(super) fn holds_older(table: &Table, tombstone: Tombstone<'_>, timestamp: Timestamp) -> bool {
    let meta = table.meta();
    let (first, last) = (&*meta.first_key, &*meta.last_key);
    let overlaps = match tombstone {
        Tombstone::OfCell(key) => first <= key && key <= last,
        Tombstone::OfRow(prefix) => (first <= prefix || first.starts_with(prefix)) && prefix <= last,
    };
    overlaps && meta.timestamps.0 <= timestamp
}

impl Levels {
    /// Tables with their levels.
    pub(super) fn new(tables: impl IntoIterator<Item = (u8, Arc<Table>)>) -> Self {
        let mut levels = Self::default();
        for (level, table) in tables {
            if let Some(level) = levels.levels.get_mut(usize::from(level)) {
                level.push(table);
            }
        }
        levels.settle();
        levels
    }

    /// Sorts each level and computes summaries.
    fn settle(&mut self) {
        self.levels[0].sort_by_key(|table| Reverse(table.meta().timestamps.1));
        for level in &mut self.levels[1..] {
            level.sort_by(|left, right| left.meta().first_key.cmp(&right.meta().first_key));
        }
        self.has_row_tombstones = self.levels.iter().flatten().any(|table| table.meta().row_tombstones > 0);
    }

    #[inline]
    pub(super) fn has_row_tombstones(&self) -> bool {
        self.has_row_tombstones
    }

    pub(super) fn level(&self, level: usize) -> &[Arc<Table>] {
        &self.levels[level]
    }

    /// Each level's number and tables, from the first level on.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[Arc<Table>])> {
        self.levels.iter().map(Vec::as_slice).enumerate()
    }

    /// Every table.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    /// Size of a level's files.
    pub(super) fn bytes(&self, level: usize) -> u64 {
        bytes_of(&self.levels[level])
    }

    /// The tables of a level that overlap a span.
    pub(super) fn overlapping(&self, level: usize, span: &Span) -> Vec<Arc<Table>> {
        self.levels[level].iter().filter(|table| span.overlaps(table)).cloned().collect()
    }

    /// The table of a level below the first that may hold a key.
    #[inline]
    pub(super) fn table_of(&self, level: usize, key: &[u8]) -> Option<&Arc<Table>> {
        let tables = &self.levels[level];
        tables.get(place_of(tables, key)).filter(|table| *table.meta().first_key <= *key)
    }

    /// Replaces tables by new ones in `level`.
    pub(super) fn replaced(&self, gone: &[TableId], level: u8, new: &[Arc<Table>]) -> Self {
        let mut levels = self.clone();
        for tables in &mut levels.levels {
            tables.retain(|table| !gone.contains(&table.id()));
        }
        levels.levels[usize::from(level)].extend(new.iter().cloned());
        levels.settle();
        levels
    }

    /// Their names, for a manifest.
    pub(super) fn refs(&self) -> Vec<TableRef> {
        let of_level = |(level, tables): (usize, &[Arc<Table>])| {
            let named = |table: &Arc<Table>| TableRef::new(table.id(), level as u8, table.meta());
            tables.iter().map(named).collect::<Vec<_>>()
        };
        self.iter().flat_map(of_level).collect()
    }

    /// Checks that there are `count` tables and that they form a tree.
    pub(super) fn check(&self, count: usize) -> Result<(), TableError> {
        if self.are_disjoint() && self.tables().count() == count { Ok(()) } else { Err(TableError::Tree) }
    }

    /// Whether no two tables of a level below the first overlap.
    pub(super) fn are_disjoint(&self) -> bool {
        self.levels[1..]
            .iter()
            .all(|tables| tables.windows(2).all(|pair| pair[0].meta().last_key < pair[1].meta().first_key))
    }
}
