//! A view: a snapshot of a tree that any thread may read for any length of time.

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::cells::Cells;
use super::levels::Levels;
use super::memtable::Memtable;
use super::merge::{Direction, Merge, Source};
use super::recent::{RecentAtOnce, RecentOfTree};
use super::sorted_run::{RunCursor, place_of};
use super::versions::Versions;
use crate::cell;
use crate::sstable::{BlockCache, Blocks, Io, Sstable, SstableError, filter_hash};

/// A snapshot of a tree. Cheap to create and to clone.
///
/// Every read is *at a timestamp*. The newest memtable is still being written: a reader ignores versions newer than its
/// timestamp, which must be that of an entry with all of its versions already added.
#[derive(Clone)]
pub struct View {
    pub(super) active: Arc<Memtable>,
    pub(super) frozen: Arc<[Arc<Memtable>]>,
    /// Also in SSTables: lookups of single keys search here first.
    pub(super) recent: RecentOfTree,
    pub(super) levels: Arc<Levels>,
    pub(super) cache: Arc<BlockCache>,
}

/// A lookup: versions of one key, not newer than `at` and newer than `above`.
struct Wanted<'a> {
    key: &'a [u8],
    filter_hash: u64,
    at: Timestamp,
    above: Option<Timestamp>,
    /// Whether the key is that of row tombstones, so that sources without any are skipped.
    is_row: bool,
}

/// The result of a lookup: the timestamp, and the value unless it is a tombstone.
type Found = Option<(Timestamp, Option<Bytes>)>;

impl View {
    /// Whether both have the same sources, and differ only in newer versions.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.active, &other.active)
            && Arc::ptr_eq(&self.frozen, &other.frozen)
            && Arc::ptr_eq(&self.levels, &other.levels)
    }

    /// The value of a cell at a timestamp, with the start of its validity; `None` if it has no value.
    ///
    /// # Errors
    /// When a block is unreadable or damaged, or not cached and `io` forbids reading it.
    pub fn newest(
        &self,
        row: &[u8],
        column: &[u8],
        at: Timestamp,
        io: Io,
    ) -> Result<Option<(Timestamp, Bytes)>, SstableError> {
        let key = cell::encode(row, column);
        let prefix = &key[..key.len() - column.len()];
        let filter_hash = filter_hash(prefix);
        let wanted = Wanted { key: &key, filter_hash, at, above: None, is_row: false };
        // A version found in a recent memtable needs the row tombstones of recent memtables: an SSTable may have
        // dropped a tombstone together with the versions that it deletes.
        let recent = self.recent.at_once();
        let Some((timestamp, Some(value))) = self.find(&wanted, &recent, io)? else { return Ok(None) };
        let deletes = Wanted { key: prefix, filter_hash, at, above: Some(timestamp), is_row: true };
        let has_tombstones = self.has_row_tombstones() || recent.has_row_tombstones();
        let is_deleted = has_tombstones && self.find(&deletes, &recent, io)?.is_some();
        Ok((!is_deleted).then_some((timestamp, value)))
    }

    /// The cells within a range of keys that have a value at a timestamp.
    #[must_use]
    pub fn cells(&self, range: cell::Range, direction: Direction, at: Timestamp, io: Io) -> Cells<'_> {
        Cells::new(self, range, direction, at, io)
    }

    /// The versions not newer than `at` that a read at or above the watermark can observe: equal for logically equal
    /// states (guarantee 16).
    #[must_use]
    pub fn versions(&self, range: cell::Range, watermark: Timestamp, at: Timestamp, io: Io) -> Versions<'_> {
        Versions::new(self, range, watermark, at, io)
    }

    /// The SSTables with their levels, to send to another replica after older data was flushed.
    pub fn sstables(&self) -> impl Iterator<Item = (u8, &Arc<Sstable>)> {
        self.levels.iter().flat_map(|(level, sstables)| sstables.iter().map(move |sstable| (level as u8, sstable)))
    }

    /// Whether any source has a row tombstone; otherwise no lookup is needed.
    pub(super) fn has_row_tombstones(&self) -> bool {
        self.levels.has_row_tombstones() || self.memtables().any(Memtable::has_row_tombstones)
    }

    /// The timestamp of the newest tombstone of a row.
    pub(super) fn row_deleted(&self, prefix: &[u8], at: Timestamp, io: Io) -> Result<Option<Timestamp>, SstableError> {
        let filter_hash = filter_hash(prefix);
        let wanted = Wanted { key: prefix, filter_hash, at, above: None, is_row: true };
        Ok(self.find(&wanted, &RecentAtOnce::default(), io)?.map(|(timestamp, _)| timestamp))
    }

    /// The versions of all sources that can hold some within the range. For a single row, these are the SSTables with a
    /// filter that matches the row.
    pub(super) fn merge(&self, range: &cell::Range, direction: Direction, io: Io) -> Merge<'_> {
        let blocks = Blocks { cache: &self.cache, io };
        let row = range.single_row().map(|row| (row, filter_hash(row)));
        let can_hold = |run: &&[Arc<Sstable>]| {
            row.is_none_or(|(row, hash)| {
                let from = run[place_of(run, row)..].iter();
                from.take_while(|sstable| range.ends_after(&sstable.meta().first_key))
                    .any(|sstable| sstable.may_hold_hash(hash))
            })
        };
        let memtables = self.memtables().map(|memtable| Source::Memtable(memtable.cursor()));
        let newest = self.levels.level(0).chunks(1);
        let deeper = self.levels.iter().skip(1).map(|(_, sstables)| sstables).filter(|sstables| !sstables.is_empty());
        let runs = newest.chain(deeper).filter(can_hold).map(|run| Source::Run(Box::new(RunCursor::new(run, blocks))));
        Merge::new(memtables.chain(runs).collect(), direction)
    }

    pub(super) fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&*self.active).chain(self.frozen.iter().map(|memtable| &**memtable))
    }

    /// The newest matching version. Searches newer sources first, and skips sources that cannot hold a newer one.
    fn find(&self, wanted: &Wanted<'_>, recent: &RecentAtOnce, io: Io) -> Result<Found, SstableError> {
        let blocks = Blocks { cache: &self.cache, io };
        let mut found = None;
        for memtable in self.memtables() {
            wanted.find_in_memtable(memtable, &mut found);
        }
        for memtable in recent.iter() {
            wanted.find_in_memtable(memtable, &mut found);
        }
        if found.is_some() {
            // Versions of the key in SSTables are older or equal.
            return Ok(found);
        }
        for sstable in self.levels.level(0) {
            wanted.find_in_sstable(sstable, blocks, &mut found)?;
        }
        for (level, sstables) in self.levels.iter().skip(1) {
            if !sstables.is_empty()
                && let Some(sstable) = self.levels.sstable_of(level, wanted.key)
            {
                wanted.find_in_sstable(sstable, blocks, &mut found)?;
            }
        }
        Ok(found)
    }
}

impl Wanted<'_> {
    /// Whether a version with that timestamp would be newer than the one found.
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

    fn find_in_sstable(&self, sstable: &Sstable, blocks: Blocks<'_>, found: &mut Found) -> Result<(), SstableError> {
        let meta = sstable.meta();
        let is_worthwhile = meta.timestamps.0 <= self.at && self.is_news(meta.timestamps.1, found);
        if !is_worthwhile || (self.is_row && meta.row_tombstones == 0) {
            return Ok(());
        }
        let mut cursor = sstable.cursor(blocks);
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
