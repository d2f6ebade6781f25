//! A view: what a tree holds at one moment, which any thread may read for as long as it likes.

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::cells::Cells;
use super::levels::Levels;
use super::memtable::Memtable;
use super::merge::{Direction, Merge, Source};
use super::recent::{RecentAtOnce, RecentOfTree};
use super::run::RunCursor;
use super::versions::Versions;
use crate::cell;
use crate::sstable::{BlockCache, Blocks, Io, Table, TableError, filter_hash};

/// What a tree holds at one moment. Its clones cost little, and so does it.
///
/// Everything is read *at a timestamp*. The memtable at its head is still written to: a reader ignores what is newer
/// than the timestamp, so that one must be of an entry whose versions are all put already.
#[derive(Clone)]
pub struct View {
    pub(super) active: Arc<Memtable>,
    /// The newest first.
    pub(super) frozen: Arc<[Arc<Memtable>]>,
    /// In tables, too: one key is looked for here first.
    pub(super) recent: RecentOfTree,
    pub(super) levels: Arc<Levels>,
    pub(super) cache: Arc<BlockCache>,
}

/// What is looked for: versions of one key that are not newer than `at`, and newer than `above`.
struct Wanted<'a> {
    key: &'a [u8],
    filter_hash: u64,
    at: Timestamp,
    above: Option<Timestamp>,
    /// Whether the key is that of a row's tombstones, so that sources without any need not be asked.
    is_row: bool,
}

/// A version that was found: its timestamp, and its value if it is not a tombstone.
type Found = Option<(Timestamp, Option<Bytes>)>;

impl View {
    /// Whether another one is of the same sources: then it differs in nothing but the timestamps that it is read at.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.active, &other.active)
            && Arc::ptr_eq(&self.frozen, &other.frozen)
            && Arc::ptr_eq(&self.levels, &other.levels)
    }

    /// The value that a cell has at a timestamp, and since when; nothing if it has none.
    ///
    /// # Errors
    /// When a block can't be read or believed, or had to be read and `io` doesn't allow that.
    pub fn newest(
        &self,
        row: &[u8],
        column: &[u8],
        at: Timestamp,
        io: Io,
    ) -> Result<Option<(Timestamp, Bytes)>, TableError> {
        let key = cell::encode(row, column);
        let prefix = &key[..key.len() - column.len()];
        let filter_hash = filter_hash(prefix);
        let wanted = Wanted { key: &key, filter_hash, at, above: None, is_row: false };
        // What is found there is asked about there: a table may have dropped the tombstone with all that it deleted.
        let recent = self.recent.at_once();
        let Some((timestamp, Some(value))) = self.find(&wanted, &recent, io)? else { return Ok(None) };
        let above = timestamp.0.checked_sub(1).map(Timestamp);
        let deletes = Wanted { key: prefix, filter_hash, at, above, is_row: true };
        let has_tombstones = self.has_row_tombstones() || recent.has_row_tombstones();
        let is_deleted = has_tombstones && self.find(&deletes, &recent, io)?.is_some();
        Ok((!is_deleted).then_some((timestamp, value)))
    }

    /// The cells that have a value at a timestamp, within a range of keys.
    #[must_use]
    pub fn cells(&self, range: cell::Range, direction: Direction, at: Timestamp, io: Io) -> Cells<'_> {
        Cells::new(self, range, direction, at, io)
    }

    /// The versions that a read at or above the watermark can tell, of those that are not newer than `at`: equal for
    /// states that are logically equal (guarantee 16).
    #[must_use]
    pub fn versions(&self, range: cell::Range, watermark: Timestamp, at: Timestamp, io: Io) -> Versions<'_> {
        Versions::new(self, range, watermark, at, io)
    }

    /// The tables, each with its level: what is sent to another replica, after all that is older is flushed.
    pub fn tables(&self) -> impl Iterator<Item = (u8, &Arc<Table>)> {
        self.levels.iter().flat_map(|(level, tables)| tables.iter().map(move |table| (level as u8, table)))
    }

    /// Whether any source has the tombstone of a row: else nobody needs to look for one.
    pub(super) fn has_row_tombstones(&self) -> bool {
        self.levels.has_row_tombstones() || self.memtables().any(Memtable::has_row_tombstones)
    }

    /// The timestamp of the newest tombstone of a row.
    pub(super) fn row_deleted(&self, prefix: &[u8], at: Timestamp, io: Io) -> Result<Option<Timestamp>, TableError> {
        let filter_hash = filter_hash(prefix);
        let wanted = Wanted { key: prefix, filter_hash, at, above: None, is_row: true };
        Ok(self.find(&wanted, &RecentAtOnce::default(), io)?.map(|(timestamp, _)| timestamp))
    }

    pub(super) fn merge(&self, direction: Direction, io: Io) -> Merge<'_> {
        let blocks = Blocks { cache: &self.cache, io };
        let memtables = self.memtables().map(|memtable| Source::Memtable(memtable.cursor()));
        let newest = self.levels.level(0).chunks(1);
        let deeper = self.levels.iter().skip(1).map(|(_, tables)| tables).filter(|tables| !tables.is_empty());
        let runs = newest.chain(deeper).map(|run| Source::Run(Box::new(RunCursor::new(run, blocks))));
        Merge::new(memtables.chain(runs).collect(), direction)
    }

    fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&*self.active).chain(self.frozen.iter().map(|memtable| &**memtable))
    }

    /// The newest version of what is wanted. Newer sources are looked into first; what can't hold anything newer than
    /// what was found isn't looked into at all.
    fn find(&self, wanted: &Wanted<'_>, recent: &RecentAtOnce, io: Io) -> Result<Found, TableError> {
        let blocks = Blocks { cache: &self.cache, io };
        let mut found = None;
        for memtable in self.memtables() {
            wanted.find_in_memtable(memtable, &mut found);
        }
        for memtable in recent.iter() {
            wanted.find_in_memtable(memtable, &mut found);
        }
        if found.is_some() {
            // What tables have of the key is older, or the same.
            return Ok(found);
        }
        for table in self.levels.level(0) {
            wanted.find_in_table(table, blocks, &mut found)?;
        }
        for (level, tables) in self.levels.iter().skip(1) {
            if !tables.is_empty()
                && let Some(table) = self.levels.table_of(level, wanted.key)
            {
                wanted.find_in_table(table, blocks, &mut found)?;
            }
        }
        Ok(found)
    }
}

impl Wanted<'_> {
    /// Whether a version with that timestamp would be newer than what was found.
    fn is_news(&self, timestamp: Timestamp, found: &Found) -> bool {
        let above = found.as_ref().map(|(timestamp, _)| *timestamp).or(self.above);
        above.is_none_or(|above| timestamp > above)
    }

    fn find_in_memtable(&self, memtable: &Memtable, found: &mut Found) {
        if !self.is_news(memtable.newest_timestamp(), found) || (self.is_row && !memtable.has_row_tombstones()) {
            return;
        }
        if let Some((timestamp, value)) = memtable.newest(self.key, self.at)
            && self.is_news(timestamp, found)
        {
            *found = Some((timestamp, value));
        }
    }

    fn find_in_table(&self, table: &Table, blocks: Blocks<'_>, found: &mut Found) -> Result<(), TableError> {
        let meta = table.meta();
        let is_worthwhile = meta.timestamps.0 <= self.at && self.is_news(meta.timestamps.1, found);
        if !is_worthwhile || (self.is_row && meta.row_tombstones == 0) {
            return Ok(());
        }
        let mut cursor = table.cursor(blocks);
        if !cursor.seek_newest(self.key, self.filter_hash, self.at)? {
            return Ok(());
        }
        if let Some(version) = cursor.current()
            && self.is_news(version.timestamp, found)
        {
            *found = Some((version.timestamp, cursor.value()));
        }
        Ok(())
    }
}
