//! The store of one tablet: our own log-structured merge tree (O'Neil, Cheng, Gawlick and O'Neil, 1996; `BigTable`,
//! section 5.3). What is written goes into a *memtable*. A full one is *frozen* and *flushed*: it becomes a sorted
//! table of level 0. *Compactions* merge the tables of a level into those of the next, which is ten times as large.
//!
//! Keys are cells ([`crate::cell`]); what is stored are *versions* of them, with the timestamp from which on they hold
//! and the LSN of the entry that wrote them. Everything is read at a timestamp. Old versions are kept down to the
//! *watermark* (guarantee 16): flushes and compactions leave out what no read at or above it can tell.
//!
//! [`Tree`] is the state, owned by the machine's thread; it never waits for a disk. [`View`] is what it holds at one
//! moment, for any thread to read. [`FlushJob`] and [`CompactionJob`] do the work on files, in steps, wherever the
//! driver likes.
//!
//! Invariants:
//! * A table is forced, then its directory; only then does the tree take it in, and only then can [`Tree::refs`] name it.
//!   The manifest that names it is forced next, and only then may the log forget what the table holds, and only then are
//!   the files of the tables it replaces removed ([`Tree::forced`], [`Tree::give_up`], [`Leftovers`]).
//! * Timestamps decide, not the order in which sources are read. So an entry may be applied again, and a table that came from
//!   another replica may hold what this one has already. Entries are applied in the order of their timestamps, so of what
//!   may be read at a timestamp no table holds anything newer of a key than the memtables, if these hold any of it.
//! * One flush and one compaction are under way at most. A job that is dropped leaves files that nobody names.
//! * A number is drawn for one table only while the process lives: the cache knows blocks by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Lsn, Timestamp};
use bytes::Bytes;

use crate::cell;
use crate::files::Files;
use crate::identity::Owner;
use crate::sstable::{self, BlockCache, Table, TableError, TableId, TableRef};

mod cells;
mod compaction;
mod flush;
mod job;
mod leftovers;
mod levels;
mod memtable;
mod merge;
mod pressure;
mod recent;
mod retention;
mod run;
mod tablespace;
mod versions;
mod view;

pub use cells::{Cell, Cells, Cut};
pub use compaction::CompactionJob;
pub use flush::FlushJob;
pub use job::{JobError, Outputs, Progress};
pub use leftovers::Leftovers;
pub use levels::LEVELS;
pub use memtable::CELL_OVERHEAD_BYTES;
pub use merge::Direction;
pub use pressure::Pressure;
pub use recent::Recent;
pub use tablespace::Tablespace;
pub use versions::Versions;
pub use view::View;

use levels::Levels;
use memtable::Memtable;
use pressure::Pressing;
use recent::RecentOfTree;

/// Sizes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a memtable that is to be flushed.
    pub memtable_bytes: u64,
    /// Memtables that wait for their flush, from which on writers should wait too.
    pub frozen_max: usize,
    /// Bytes of a table below the first level, about.
    pub table_bytes: u64,
    /// Tables of the first level that are to be compacted.
    pub level0_tables: usize,
    /// Tables of the first level from which on writers should wait: each costs every read.
    pub level0_tables_max: usize,
    /// Once the tree presses for a compaction, writers may add in so long what lies between it and where they should
    /// wait.
    pub brake: Duration,
    /// Bytes of the second level.
    pub level1_bytes: u64,
    /// How many times larger each level below is than the one above.
    pub level_ratio: u64,
    /// Bytes of versions that a step of a job reads.
    pub step_bytes: u64,
    /// How tables are laid out.
    pub table: sstable::Config,
}

/// The numbers of a cohort's tables on one disk. They only grow while the process lives: a tree that takes another's
/// place goes on with its numbers. Clones draw from the same.
#[derive(Clone, Debug)]
pub struct TableNumbers(Arc<AtomicU64>);

/// Where a tree is, and what it shares with others.
#[derive(Clone, Debug)]
pub struct Site {
    /// Whose disk it is on.
    pub owner: Owner,
    /// Whose state it is.
    pub cohort: CohortId,
    /// Its sizes.
    pub config: Config,
    /// The cache of all the node's tables.
    pub cache: Arc<BlockCache>,
    /// The numbers of its tables.
    pub numbers: TableNumbers,
    /// Whether the node's compactions are pressed for.
    pub pressure: Arc<Pressure>,
    /// What the node's trees have flushed last.
    pub recent: Arc<Recent>,
}

/// Tables that are open, by their names: trees that share one have it once.
pub type OpenTables = BTreeMap<TableId, Arc<Table>>;

/// The state of one tablet's store.
pub struct Tree {
    site: Site,
    active: Arc<Memtable>,
    /// The newest first.
    frozen: Arc<[Arc<Memtable>]>,
    /// What was flushed last, as long as there is room for it.
    recent: RecentOfTree,
    levels: Arc<Levels>,
    /// How many of the oldest frozen memtables the flush under way has; 0 if there is none.
    flushing: usize,
    is_compacting: bool,
    /// Through which key each level was compacted.
    cursors: [Bytes; LEVELS],
    /// Tables whose place others took, but which a manifest may still name.
    replaced: Vec<Arc<Table>>,
    /// Tables that no manifest names for this tree, but which a view may still read, or another tree have.
    unnamed: Vec<Arc<Table>>,
    /// Writers would soon have to wait for a compaction.
    pressing: Option<Pressing>,
}

impl Config {
    /// Sizes for a node with gigabytes on its disk.
    pub const DEFAULT: Self = Self {
        memtable_bytes: 32 << 20,
        frozen_max: 2,
        table_bytes: 32 << 20,
        level0_tables: 8,
        level0_tables_max: 36,
        brake: Duration::from_millis(10_000),
        level1_bytes: 1 << 30,
        level_ratio: 10,
        step_bytes: 1 << 20,
        table: sstable::Config::DEFAULT,
    };

    /// Bytes that a level below the first may have.
    fn level_bytes(&self, level: usize) -> u64 {
        (1..level).fold(self.level1_bytes, |bytes, _| bytes.saturating_mul(self.level_ratio))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for TableNumbers {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(1)))
    }
}

impl TableNumbers {
    /// A number that no table has.
    #[must_use]
    pub fn draw(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Those that are drawn from now on are greater than this one.
    pub fn pass(&self, number: u64) {
        self.0.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }
}

impl Tree {
    /// An empty tree.
    #[must_use]
    pub fn new(site: Site) -> Self {
        Self {
            site,
            active: Arc::new(Memtable::new()),
            frozen: Arc::new([]),
            recent: RecentOfTree::default(),
            levels: Arc::new(Levels::default()),
            flushing: 0,
            is_compacting: false,
            cursors: Default::default(),
            replaced: Vec::new(),
            unnamed: Vec::new(),
            pressing: None,
        }
    }

    /// The tree of the tables that a manifest names: what was put after those were written must be put again. Those
    /// that are open already are shared, and what is opened is added to them.
    ///
    /// # Errors
    /// When a table is missing, is not the one that is meant, or can't be believed.
    pub fn open<F: Files>(
        files: &F,
        site: Site,
        refs: &[TableRef],
        opened: &mut OpenTables,
    ) -> Result<Self, TableError> {
        let mut tables = Vec::with_capacity(refs.len());
        for named in refs {
            if named.id.cohort == site.cohort {
                site.numbers.pass(named.id.number);
            }
            let table = match opened.get(&named.id) {
                Some(table) => Arc::clone(table),
                None => Arc::new(Table::open(files, named, cell::row_prefix_bytes)?),
            };
            opened.insert(named.id, Arc::clone(&table));
            tables.push((named.level, table));
        }
        let levels = Levels::new(tables);
        levels.check(refs.len())?;
        Ok(Self { levels: Arc::new(levels), ..Self::new(site) })
    }

    /// Takes these tables, each with its level, in the place of all it has: the state of another replica (guarantee 9).
    /// A job that is under way is to be dropped, and nothing of it handed in any more.
    ///
    /// # Errors
    /// When they can't be one tree. Nothing is changed then.
    pub fn replace(&mut self, tables: impl IntoIterator<Item = (u8, Arc<Table>)>) -> Result<(), TableError> {
        let tables: Vec<_> = tables.into_iter().collect();
        let count = tables.len();
        let levels = Levels::new(tables);
        levels.check(count)?;
        let gone = std::mem::replace(self, Self::new(self.site.clone()));
        let stays = |table: &Arc<Table>| levels.tables().any(|new| new.id() == table.id());
        self.replaced = gone.levels.tables().filter(|table| !stays(table)).cloned().chain(gone.replaced).collect();
        self.unnamed = gone.unnamed;
        if planted(Bug::RecentOutlivesState) {
            self.recent = gone.recent;
        }
        self.levels = Arc::new(levels);
        self.note_pressure();
        Ok(())
    }

    /// A tree that holds all that this one does, for a range that is split off: they share what is in memory and in
    /// tables, each to rid itself of what is not its own when it flushes and compacts.
    #[must_use]
    pub fn split_off(&mut self, site: Site) -> Self {
        self.freeze();
        Self { frozen: Arc::clone(&self.frozen), levels: Arc::clone(&self.levels), ..Self::new(site) }
    }

    /// Where it is.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Adds a version of a cell ([`cell::encode`]); without a value, its tombstone. The key and the value are kept as
    /// long as the memtable is: they should not be small parts of something large.
    ///
    /// # Panics
    /// When the key is that of a row and there is a value: our own bug.
    pub fn put(&mut self, key: Bytes, timestamp: Timestamp, lsn: Lsn, value: Option<Bytes>) {
        assert!(value.is_none() || cell::row_prefix_bytes(&key) < key.len(), "a value is a cell's");
        self.active.put(key, timestamp, lsn, value);
    }

    /// Deletes all versions of a row that are not newer than the timestamp. What the same entry writes into the row is
    /// deleted too: an entry does one or the other.
    pub fn delete_row(&mut self, row: &[u8], timestamp: Timestamp, lsn: Lsn) {
        self.active.put(cell::encode(row, b"").into(), timestamp, lsn, None);
    }

    /// What it holds now.
    #[must_use]
    pub fn view(&self) -> View {
        View {
            active: Arc::clone(&self.active),
            frozen: Arc::clone(&self.frozen),
            recent: self.recent.clone(),
            levels: Arc::clone(&self.levels),
            cache: Arc::clone(&self.site.cache),
        }
    }

    /// Whether the memtable is large enough to be frozen, or so many are frozen that writers wait.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        let config = &self.site.config;
        self.active.bytes() >= config.memtable_bytes || self.frozen.len() >= config.frozen_max
    }

    /// Whether writers should wait: flushes or compactions don't keep up with them.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let config = &self.site.config;
        self.frozen.len() >= config.frozen_max || self.levels.level(0).len() >= config.level0_tables_max
    }

    /// Bytes of memtables that writers may add in a second, where compactions don't keep up with them: the fewer, the
    /// nearer they are to where they should wait. So they come to it ever more slowly, and most often not at all.
    #[must_use]
    pub fn pace(&self) -> Option<u64> {
        self.pressing.as_ref()?;
        let config = &self.site.config;
        let left = config.level0_tables_max.saturating_sub(self.levels.level(0).len()) as u128;
        let in_a_second = left * u128::from(config.memtable_bytes) * 1_000_000_000 / u128::from(config.brake.0.max(1));
        Some(u64::try_from(in_a_second).unwrap_or(u64::MAX))
    }

    /// Begins a new memtable; the one so far waits for its flush. Says whether there was anything in it.
    pub fn freeze(&mut self) -> bool {
        if self.active.is_empty() {
            return false;
        }
        let full = std::mem::replace(&mut self.active, Arc::new(Memtable::new()));
        self.frozen = std::iter::once(full).chain(self.frozen.iter().cloned()).collect();
        true
    }

    /// The flush of all frozen memtables, if there are any and no flush is under way: of what lies in the range, and
    /// without what no read at or above the watermark can tell. After a split, or a flush that failed, there is more
    /// than one; a checkpoint counts on every one of them.
    pub fn flush_job(&mut self, watermark: Timestamp, range: &cell::Range) -> Option<FlushJob> {
        if self.frozen.is_empty() || self.flushing > 0 {
            return None;
        }
        self.flushing = if planted(Bug::FlushOldestOnly) { 1 } else { self.frozen.len() };
        let oldest = self.frozen[self.frozen.len() - self.flushing..].into();
        Some(FlushJob::new(self.site.clone(), oldest, Arc::clone(&self.levels), watermark, range.clone()))
    }

    /// Takes in what a flush has made, in the place of its memtables.
    ///
    /// # Panics
    /// When no flush is under way.
    pub fn flushed(&mut self, outputs: &Outputs) {
        let flushed = std::mem::take(&mut self.flushing);
        assert!(flushed > 0, "a flush is under way");
        let left = self.frozen.len() - flushed;
        self.recent = self.site.recent.keep(&self.frozen[left..], &self.recent);
        self.frozen = self.frozen[..left].into();
        self.levels = Arc::new(self.levels.replaced(&[], outputs.level, &outputs.tables));
        self.note_pressure();
    }

    /// It presses from a quarter of the way to where writers wait: a large compaction takes as long as many flushes.
    fn note_pressure(&mut self) {
        let config = &self.site.config;
        let presses = 4 * self.levels.level(0).len() > 3 * config.level0_tables + config.level0_tables_max;
        if presses != self.pressing.is_some() {
            self.pressing = presses.then(|| self.site.pressure.begin());
        }
    }

    /// The flush under way ended with an error, or was dropped: it is to be done again.
    pub fn flush_failed(&mut self) {
        self.flushing = 0;
    }

    /// A compaction, if some level has too much, or too much that is dead or outside the range, and none is under way.
    /// It leaves out what no read at or above the watermark can tell, and what is not in the range.
    pub fn pick_compaction(&mut self, watermark: Timestamp, range: &cell::Range) -> Option<CompactionJob> {
        if self.is_compacting {
            return None;
        }
        let choice = compaction::choose(&self.levels, &self.site.config, &self.cursors, watermark, range)?;
        self.is_compacting = true;
        if let Some(last) = choice.upper.iter().map(|table| &table.meta().last_key).max() {
            self.cursors[choice.level] = last.clone();
        }
        Some(CompactionJob::new(self.site.clone(), choice, &self.levels, watermark, range.clone()))
    }

    /// Takes in what a compaction has made, in the place of what it read.
    ///
    /// # Panics
    /// When no compaction is under way.
    pub fn compacted(&mut self, outputs: &Outputs) {
        assert!(std::mem::take(&mut self.is_compacting), "a compaction is under way");
        let gone: Vec<TableId> = outputs.inputs.iter().map(|table| table.id()).collect();
        self.levels = Arc::new(self.levels.replaced(&gone, outputs.level, &outputs.tables));
        self.note_pressure();
        // A table that only moved is still there.
        let has_moved = |table: &Table| outputs.tables.iter().any(|output| output.id() == table.id());
        self.replaced.extend(outputs.inputs.iter().filter(|table| !has_moved(table)).cloned());
        debug_assert!(self.levels.are_disjoint(), "levels below the first are sorted");
    }

    /// The compaction under way ended with an error, or was dropped: it is to be chosen anew.
    pub fn compaction_failed(&mut self) {
        self.is_compacting = false;
    }

    /// The tables that it consists of, for the manifest: each is forced. What is still in memtables is not among them.
    #[must_use]
    pub fn refs(&self) -> Vec<TableRef> {
        self.levels.refs()
    }

    /// A manifest that names these tables of the tree, and no others, is forced in both places.
    pub fn forced(&mut self, refs: &[TableRef]) {
        let is_named = |table: &Arc<Table>| refs.iter().any(|named| named.id == table.id());
        let (named, unnamed) = std::mem::take(&mut self.replaced).into_iter().partition(is_named);
        self.replaced = named;
        self.unnamed.extend::<Vec<_>>(unnamed);
    }

    /// Gives up the tables that no manifest names any more for this tree's sake.
    pub fn give_up(&mut self) -> Vec<(TableId, Arc<Table>)> {
        std::mem::take(&mut self.unnamed).into_iter().map(|table| (table.id(), table)).collect()
    }

    /// Whether files of tables whose place others took are still there.
    #[must_use]
    pub fn has_leftovers(&self) -> bool {
        !self.replaced.is_empty() || !self.unnamed.is_empty()
    }

    /// Bytes it takes in memory, about: memtables, filters and top indexes, not the blocks in the cache.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let memtables = self.frozen.iter().map(|memtable| memtable.bytes()).sum::<u64>() + self.active.bytes();
        memtables + self.levels.tables().map(|table| table.memory_bytes() as u64).sum::<u64>()
    }

    /// Bytes of what is in no table yet.
    #[must_use]
    pub fn memtable_bytes(&self) -> u64 {
        self.frozen.iter().map(|memtable| memtable.bytes()).sum::<u64>() + self.active.bytes()
    }

    /// Its tables, each with its name: what a replica that is far behind is sent.
    #[must_use]
    pub fn tables(&self) -> Vec<(TableRef, Arc<Table>)> {
        self.levels.refs().into_iter().zip(self.levels.tables().cloned()).collect()
    }

    /// Versions that are in no table yet.
    #[must_use]
    pub fn entries_in_memory(&self) -> usize {
        self.active.entries() + self.frozen.iter().map(|memtable| memtable.entries()).sum::<usize>()
    }

    /// Bytes of the tables that end before a key, and not before another one.
    #[must_use]
    pub fn bytes_ending(&self, from: &[u8], before: &[u8]) -> u64 {
        let ends = |table: &&Arc<Table>| (from..before).contains(&&table.meta().last_key[..]);
        self.levels.tables().filter(ends).map(|table| table.meta().bytes).sum()
    }

    /// The number of tables and the bytes of their files, by level.
    #[must_use]
    pub fn level_sizes(&self) -> [(usize, u64); LEVELS] {
        std::array::from_fn(|level| (self.levels.level(level).len(), self.levels.bytes(level)))
    }

    /// Checks what holds between any two steps.
    ///
    /// # Panics
    /// When something doesn't.
    pub fn invariants(&self) {
        assert!(self.levels.are_disjoint(), "levels below the first are sorted");
        assert!(self.frozen.iter().all(|memtable| !memtable.is_empty()), "what waits for a flush has something");
        assert!(self.flushing <= self.frozen.len(), "what is flushed is there until it is done");
    }
}

#[cfg(test)]
mod tests;
