//! The storage of one tablet: a log-structured merge tree (O'Neil, Cheng, Gawlick and O'Neil, 1996; `BigTable`, section
//! 5.3). Writes go into a *memtable*. A full memtable is *frozen* and *flushed* to an SSTable of level 0.
//! *Compactions* merge the SSTables of a level into those of the next, which is ten times as large.
//!
//! Keys are cells ([`crate::cell`]). The tree stores *versions* of them (MVCC), with the timestamp from which they are
//! valid. Every read is at a timestamp. Old versions are kept down to the
//! *watermark* (guarantee 16): flushes and compactions drop versions that no read at or above it can observe.
//!
//! [`Tree`] is the state, owned by the machine's thread; it never waits for a disk. [`View`] is a snapshot that any
//! thread can read. [`FlushJob`] and [`CompactionJob`] do the file IO in steps, on any thread of the driver.
//!
//! Invariants:
//! * An SSTable and then its directory are forced before the tree includes it and [`Tree::refs`] names it. Then the
//!   manifest that names it is forced. Only after that may the log release the SSTable's entries, and the files of
//!   replaced SSTables be removed ([`Tree::forced`], [`Tree::give_up`], [`Leftovers`]).
//! * The versions of a key are added in timestamp order, so no SSTable holds a newer version of it than a memtable does:
//!   a lookup that finds a visible version in the memtables skips the SSTables. Among memtables, and among SSTables, timestamps
//!   decide, not the order: an entry may be applied again, and an SSTable received from another replica may contain
//!   entries that are already present.
//! * At most one flush and one compaction are in progress. A dropped job leaves files that no manifest names.
//! * An SSTable number is used once while the process runs, because the cache identifies blocks by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Timestamp};
use bytes::Bytes;

use crate::cell;
use crate::files::Files;
use crate::identity::Owner;
use crate::sstable::{self, BlockCache, Sstable, SstableError, SstableId, SstableRef};

mod cells;
mod changed;
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
mod sorted_run;
mod tablespace;
mod versions;
mod view;

pub use cells::{Cell, Cells, Cut};
pub use changed::Changed;
pub use compaction::CompactionJob;
pub use flush::FlushJob;
pub use job::{JobError, JobStep, Outputs};
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
    /// Memtable size that triggers a flush, in bytes.
    pub memtable_bytes: u64,
    /// Number of frozen memtables at which writers should wait (write stall).
    pub frozen_max: usize,
    /// Approximate size of an SSTable below the first level, in bytes.
    pub sstable_bytes: u64,
    /// Number of SSTables in the first level that triggers a compaction.
    pub level0_sstables: usize,
    /// Number of SSTables in the first level at which writers should wait, because every read checks each of them.
    pub level0_sstables_max: usize,
    /// Once a compaction is urgent, time in which writers may add the SSTables that remain up to the write stall.
    pub brake: Duration,
    /// Maximum size of the second level, in bytes.
    pub level1_bytes: u64,
    /// Size ratio between consecutive levels.
    pub level_ratio: u64,
    /// Bytes of versions read per step of a job.
    pub step_bytes: u64,
    /// Layout of the SSTables.
    pub sstable: sstable::Config,
}

/// Allocates the SSTable numbers of a cohort on one disk. They only grow while the process runs: a tree that replaces
/// another one continues with its numbers. Clones share the counter.
#[derive(Clone, Debug)]
pub struct SstableNumbers(Arc<AtomicU64>);

/// The location of a tree, and its shared resources.
#[derive(Clone, Debug)]
pub struct Site {
    /// The disk that holds it.
    pub owner: Owner,
    /// The cohort that it belongs to.
    pub cohort: CohortId,
    pub config: Config,
    /// The node's block cache.
    pub cache: Arc<BlockCache>,
    /// Allocates numbers for its SSTables.
    pub numbers: SstableNumbers,
    /// Whether compactions of the node are urgent.
    pub pressure: Arc<Pressure>,
    /// The node's recently flushed memtables.
    pub recent: Arc<Recent>,
}

/// Open SSTables by name, so that trees that share an SSTable open it once.
pub type OpenSstables = BTreeMap<SstableId, Arc<Sstable>>;

/// The state of one tablet's tree.
pub struct Tree {
    site: Site,
    active: Arc<Memtable>,
    frozen: Arc<[Arc<Memtable>]>,
    /// Recently flushed memtables, as long as there is space for them.
    recent: RecentOfTree,
    levels: Arc<Levels>,
    /// Number of the oldest frozen memtables in the current flush; 0 without one.
    flushing: usize,
    is_compacting: bool,
    /// The key through which each level was compacted.
    cursors: [Bytes; LEVELS],
    /// Replaced SSTables that a manifest may still name.
    replaced: Vec<Arc<Sstable>>,
    /// SSTables that no manifest names for this tree, but that a view or another tree may still use.
    unnamed: Vec<Arc<Sstable>>,
    /// Present while a write stall is near unless a compaction completes.
    pressing: Option<Pressing>,
}

impl Config {
    /// Sizes for a node with gigabytes of data.
    pub const DEFAULT: Self = Self {
        memtable_bytes: 32 << 20,
        frozen_max: 2,
        sstable_bytes: 32 << 20,
        level0_sstables: 8,
        level0_sstables_max: 36,
        brake: Duration::from_millis(10_000),
        level1_bytes: 1 << 30,
        level_ratio: 10,
        step_bytes: 1 << 20,
        sstable: sstable::Config::DEFAULT,
    };

    /// Maximum size of a level below the first.
    fn level_bytes(&self, level: usize) -> u64 {
        (1..level).fold(self.level1_bytes, |bytes, _| bytes.saturating_mul(self.level_ratio))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for SstableNumbers {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(1)))
    }
}

impl SstableNumbers {
    /// Allocates an unused number.
    #[must_use]
    pub fn draw(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes later numbers greater than this one.
    pub fn pass(&self, number: u64) {
        self.0.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }
}

impl Tree {
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

    /// Opens the SSTables named by a manifest; later writes must be applied again. Uses SSTables in `opened`, and adds
    /// the others to it.
    ///
    /// # Errors
    /// When an SSTable is missing, different or damaged.
    pub fn open<F: Files>(
        files: &F,
        site: Site,
        refs: &[SstableRef],
        opened: &mut OpenSstables,
    ) -> Result<Self, SstableError> {
        let mut sstables = Vec::with_capacity(refs.len());
        for named in refs {
            if named.id.cohort == site.cohort {
                site.numbers.pass(named.id.number);
            }
            let sstable = match opened.get(&named.id) {
                Some(sstable) => Arc::clone(sstable),
                None => Arc::new(Sstable::open(files, named, cell::row_prefix_bytes)?),
            };
            opened.insert(named.id, Arc::clone(&sstable));
            sstables.push((named.level, sstable));
        }
        let levels = Levels::new(sstables);
        levels.check(refs.len())?;
        Ok(Self { levels: Arc::new(levels), ..Self::new(site) })
    }

    /// Replaces the whole content by these SSTables and their levels: the state of another replica (guarantee 9). Jobs
    /// in progress must be dropped.
    ///
    /// # Errors
    /// When the SSTables do not form a tree. Nothing is changed then.
    pub fn replace(&mut self, sstables: impl IntoIterator<Item = (u8, Arc<Sstable>)>) -> Result<(), SstableError> {
        let sstables: Vec<_> = sstables.into_iter().collect();
        let count = sstables.len();
        let levels = Levels::new(sstables);
        levels.check(count)?;
        let gone = std::mem::replace(self, Self::new(self.site.clone()));
        let stays = |sstable: &Arc<Sstable>| levels.sstables().any(|new| new.id() == sstable.id());
        self.replaced =
            gone.levels.sstables().filter(|sstable| !stays(sstable)).cloned().chain(gone.replaced).collect();
        self.unnamed = gone.unnamed;
        if planted(Bug::RecentOutlivesState) {
            self.recent = gone.recent;
        }
        self.levels = Arc::new(levels);
        self.note_pressure();
        Ok(())
    }

    /// A tree with the same content, for a range that is split off. Both share memory and SSTables, and each drops the
    /// other's data when it flushes and compacts.
    #[must_use]
    pub fn split_off(&mut self, site: Site) -> Self {
        self.freeze();
        Self { frozen: Arc::clone(&self.frozen), levels: Arc::clone(&self.levels), ..Self::new(site) }
    }

    /// Its location and shared resources.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Adds a version of a cell ([`cell::encode`]); `None` adds a tombstone. The memtable retains the buffers of key
    /// and value, so they should not be slices of larger ones.
    ///
    /// # Panics
    /// When the key is that of a row and there is a value, which is a bug.
    pub fn put(&mut self, key: Bytes, timestamp: Timestamp, value: Option<Bytes>) {
        assert!(value.is_none() || cell::row_prefix_bytes(&key) < key.len(), "a row key has no value");
        self.active.put(key, timestamp, value);
    }

    /// Deletes all versions of a row below the timestamp. Columns that are put at the same timestamp stay, so an entry may
    /// delete a row and put columns of it.
    pub fn delete_row(&mut self, row: &[u8], timestamp: Timestamp) {
        self.active.put(cell::encode(row, b"").into(), timestamp, None);
    }

    /// A snapshot of the content.
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

    /// Whether the memtable should be frozen, or too many frozen ones exist.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        let config = &self.site.config;
        self.active.bytes() >= config.memtable_bytes || self.frozen.len() >= config.frozen_max
    }

    /// Whether writers should wait (write stall): flushes or compactions do not keep up.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let config = &self.site.config;
        self.frozen.len() >= config.frozen_max || self.levels.level(0).len() >= config.level0_sstables_max
    }

    /// Rate limit for writers in memtable bytes per second, while compactions do not keep up. It decreases as the write
    /// stall comes closer, so writers slow down gradually and rarely stall.
    #[must_use]
    pub fn pace(&self) -> Option<u64> {
        self.pressing.as_ref()?;
        let config = &self.site.config;
        let left = config.level0_sstables_max.saturating_sub(self.levels.level(0).len()) as u128;
        let in_a_second = left * u128::from(config.memtable_bytes) * 1_000_000_000 / u128::from(config.brake.0.max(1));
        Some(u64::try_from(in_a_second).unwrap_or(u64::MAX))
    }

    /// Starts a new memtable, and queues the current one for a flush. Returns whether it contained anything.
    pub fn freeze(&mut self) -> bool {
        if self.active.is_empty() {
            return false;
        }
        let full = std::mem::replace(&mut self.active, Arc::new(Memtable::new()));
        self.frozen = std::iter::once(full).chain(self.frozen.iter().cloned()).collect();
        true
    }

    /// A flush of all frozen memtables, if there are any and no flush is in progress. Includes only the range, and
    /// drops versions that no read at or above the watermark can observe. There can be several memtables after a split
    /// or a failed flush; a checkpoint requires that all are flushed.
    pub fn flush_job(&mut self, watermark: Timestamp, range: &cell::Range) -> Option<FlushJob> {
        if self.frozen.is_empty() || self.flushing > 0 {
            return None;
        }
        self.flushing = if planted(Bug::FlushOldestOnly) { 1 } else { self.frozen.len() };
        let oldest = self.frozen[self.frozen.len() - self.flushing..].into();
        Some(FlushJob::new(self.site.clone(), oldest, Arc::clone(&self.levels), watermark, range.clone()))
    }

    /// Replaces the flushed memtables by the output of the flush.
    ///
    /// # Panics
    /// When no flush is in progress.
    pub fn flushed(&mut self, outputs: &Outputs) {
        let flushed = std::mem::take(&mut self.flushing);
        assert!(flushed > 0, "a flush is in progress");
        let left = self.frozen.len() - flushed;
        self.recent = self.site.recent.keep(&self.frozen[left..], &self.recent);
        self.frozen = self.frozen[..left].into();
        self.levels = Arc::new(self.levels.replaced(&[], outputs.level, &outputs.sstables));
        self.note_pressure();
    }

    /// Compactions are urgent from a quarter of the way to the write stall, because a large compaction takes as long as
    /// many flushes.
    fn note_pressure(&mut self) {
        let config = &self.site.config;
        let presses = 4 * self.levels.level(0).len() > 3 * config.level0_sstables + config.level0_sstables_max;
        if presses != self.pressing.is_some() {
            self.pressing = presses.then(|| self.site.pressure.begin());
        }
    }

    /// The current flush failed or was dropped; it will be repeated.
    pub fn flush_failed(&mut self) {
        self.flushing = 0;
    }

    /// A compaction, if a level is too large, or has too much dead or out-of-range data, and none is in progress. Drops
    /// versions that no read at or above the watermark can observe, and data outside the range.
    pub fn pick_compaction(&mut self, watermark: Timestamp, range: &cell::Range) -> Option<CompactionJob> {
        if self.is_compacting {
            return None;
        }
        let choice = compaction::choose(&self.levels, &self.site.config, &self.cursors, watermark, range)?;
        self.is_compacting = true;
        if let Some(last) = choice.upper.iter().map(|sstable| &sstable.meta().last_key).max() {
            self.cursors[choice.level] = last.clone();
        }
        Some(CompactionJob::new(self.site.clone(), choice, &self.levels, watermark, range.clone()))
    }

    /// Replaces the inputs of a compaction by its output.
    ///
    /// # Panics
    /// When no compaction is in progress.
    pub fn compacted(&mut self, outputs: &Outputs) {
        assert!(std::mem::take(&mut self.is_compacting), "a compaction is in progress");
        let gone: Vec<SstableId> = outputs.inputs.iter().map(|sstable| sstable.id()).collect();
        self.levels = Arc::new(self.levels.replaced(&gone, outputs.level, &outputs.sstables));
        self.note_pressure();
        // A moved SSTable remains.
        let has_moved = |sstable: &Sstable| outputs.sstables.iter().any(|output| output.id() == sstable.id());
        self.replaced.extend(outputs.inputs.iter().filter(|sstable| !has_moved(sstable)).cloned());
        debug_assert!(self.levels.are_disjoint(), "levels below the first are sorted");
    }

    /// The current compaction failed or was dropped; another one will be chosen.
    pub fn compaction_failed(&mut self) {
        self.is_compacting = false;
    }

    /// The SSTables of the tree, all forced, for the manifest. Excludes data in memtables.
    #[must_use]
    pub fn refs(&self) -> Vec<SstableRef> {
        self.levels.refs()
    }

    /// A manifest that names exactly these SSTables of the tree is forced in both places.
    pub fn forced(&mut self, refs: &[SstableRef]) {
        let is_named = |sstable: &Arc<Sstable>| refs.iter().any(|named| named.id == sstable.id());
        let (named, unnamed) = std::mem::take(&mut self.replaced).into_iter().partition(is_named);
        self.replaced = named;
        self.unnamed.extend::<Vec<_>>(unnamed);
    }

    /// Drains the SSTables that no manifest names for this tree any more.
    pub fn give_up(&mut self) -> Vec<(SstableId, Arc<Sstable>)> {
        std::mem::take(&mut self.unnamed).into_iter().map(|sstable| (sstable.id(), sstable)).collect()
    }

    /// Whether files of replaced SSTables still exist.
    #[must_use]
    pub fn has_leftovers(&self) -> bool {
        !self.replaced.is_empty() || !self.unnamed.is_empty()
    }

    /// Approximate memory use: memtables, filters and top indexes, without cached blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let memtables = self.frozen.iter().map(|memtable| memtable.bytes()).sum::<u64>() + self.active.bytes();
        memtables + self.levels.sstables().map(|sstable| sstable.memory_bytes() as u64).sum::<u64>()
    }

    /// The bytes of its SSTables and memtables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.levels.sstables().map(|sstable| sstable.meta().bytes).sum::<u64>() + self.memtable_bytes()
    }

    #[must_use]
    pub fn memtable_bytes(&self) -> u64 {
        self.frozen.iter().map(|memtable| memtable.bytes()).sum::<u64>() + self.active.bytes()
    }

    /// Its SSTables with their names, to send to a replica that is far behind.
    #[must_use]
    pub fn sstables(&self) -> Vec<(SstableRef, Arc<Sstable>)> {
        self.levels.refs().into_iter().zip(self.levels.sstables().cloned()).collect()
    }

    #[must_use]
    pub fn entries_in_memory(&self) -> usize {
        self.active.entries() + self.frozen.iter().map(|memtable| memtable.entries()).sum::<usize>()
    }

    /// Size of the SSTables with a last key from `from` to below `before`.
    #[must_use]
    pub fn bytes_ending(&self, from: &[u8], before: &[u8]) -> u64 {
        let ends = |sstable: &&Arc<Sstable>| (from..before).contains(&&sstable.meta().last_key[..]);
        self.levels.sstables().filter(ends).map(|sstable| sstable.meta().bytes).sum()
    }

    /// Number of SSTables and size of their files, by level.
    #[must_use]
    pub fn level_sizes(&self) -> [(usize, u64); LEVELS] {
        std::array::from_fn(|level| (self.levels.level(level).len(), self.levels.bytes(level)))
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        assert!(self.levels.are_disjoint(), "levels below the first are sorted");
        assert!(self.frozen.iter().all(|memtable| !memtable.is_empty()), "frozen memtables are not empty");
        assert!(self.flushing <= self.frozen.len(), "memtables in a flush stay frozen until it ends");
    }
}

#[cfg(test)]
mod tests;
