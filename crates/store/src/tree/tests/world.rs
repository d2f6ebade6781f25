//! A tree with its disk, a log that is never lost, and a stand-in for the manifest: a file that names the SSTables and
//! the position from which to replay the log.

use std::collections::VecDeque;

use base::codec::{Reader, Wire as _, Writer};

use super::*;
use crate::files::{FileError, read_whole, replace};
use crate::memory::MemoryDisk;
use crate::sstable::{DIRECTORY, remove_unnamed};
use crate::testing::identity;

pub(super) const COHORT: CohortId = CohortId(3);

/// Small enough for little work to fill several levels.
pub(super) const TINY: Config = Config {
    memtable_bytes: 4_000,
    frozen_max: 2,
    sstable_bytes: 1_000,
    level0_sstables: 2,
    level0_sstables_max: 6,
    brake: Duration::from_millis(1_000),
    level1_bytes: 4_000,
    level_ratio: 3,
    step_bytes: 700,
    sstable: sstable::Config { block_bytes: 128, filter_bits_per_key: 10 },
};

const NAMED: &str = "named";

/// The content of the manifest: the SSTables, and the number of log entries that they include.
pub(super) type Named = (Vec<SstableRef>, usize);

/// A tree, and the number of entries included in each of its memtables.
pub(super) struct Driven {
    pub(super) tree: Tree,
    leftovers: Leftovers,
    applied: usize,
    flushed: usize,
    frozen_at: VecDeque<usize>,
    /// Number of frozen memtables in the current flush.
    flushing: usize,
    flush: Option<FlushJob>,
    compaction: Option<CompactionJob>,
}

pub(super) struct World {
    pub(super) disk: MemoryDisk,
    cache_bytes: u64,
    cache: Arc<BlockCache>,
    numbers: SstableNumbers,
    recent: Arc<Recent>,
    pub(super) tree: Driven,
    pub(super) log: Vec<Write>,
    pub(super) model: Model,
    pub(super) watermark: Timestamp,
}

pub(super) fn formatted() -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir(DIRECTORY).unwrap();
    disk.sync_dir(crate::SHARD_DIRECTORY).unwrap();
    disk
}

fn timestamp_of(entry: usize) -> Timestamp {
    Timestamp(entry as i64 * 10)
}

impl Driven {
    fn new(tree: Tree, flushed: usize) -> Self {
        let frozen_at = VecDeque::new();
        Self {
            tree,
            leftovers: Leftovers::default(),
            applied: flushed,
            flushed,
            frozen_at,
            flushing: 0,
            flush: None,
            compaction: None,
        }
    }

    fn apply(&mut self, write: &Write) {
        self.applied += 1;
        let timestamp = timestamp_of(self.applied);
        for (row, column, value) in &write.puts {
            let value = value.as_ref().map(|value| Bytes::copy_from_slice(value));
            self.tree.put(cell::encode(row, column).into(), timestamp, value);
        }
        if let Some(row) = &write.deleted_row {
            self.tree.delete_row(row, timestamp);
        }
    }

    pub(super) fn freeze_and_note(&mut self) {
        if self.tree.freeze() {
            self.frozen_at.push_back(self.applied);
        }
    }

    /// One step of a flush. Returns whether there is more to do.
    pub(super) fn flush_step(&mut self, disk: &MemoryDisk, watermark: Timestamp) -> Result<bool, JobError> {
        if self.flush.is_none() {
            self.flush = self.tree.flush_job(watermark, &Range::all());
            self.flushing = self.frozen_at.len();
        }
        let Some(job) = &mut self.flush else { return Ok(false) };
        if let JobStep::Done(outputs) = job.step(disk)? {
            self.flush = None;
            self.tree.flushed(&outputs);
            self.flushed = self.frozen_at.drain(..self.flushing).next_back().unwrap();
        }
        Ok(true)
    }

    /// One step of a compaction. Returns whether there is more to do.
    pub(super) fn compaction_step(&mut self, disk: &MemoryDisk, watermark: Timestamp) -> Result<bool, JobError> {
        if self.compaction.is_none() {
            self.compaction = self.tree.pick_compaction(watermark, &Range::all());
        }
        let Some(job) = &mut self.compaction else { return Ok(false) };
        if let JobStep::Done(outputs) = job.step(disk)? {
            self.compaction = None;
            self.tree.compacted(&outputs);
        }
        Ok(true)
    }

    /// Forces the stand-in for the manifest, and removes files that it no longer names.
    pub(super) fn name_sstables(&mut self, disk: &MemoryDisk) -> Result<(), FileError> {
        let refs = self.tree.refs();
        let mut out = Writer::new();
        out.u64(self.flushed as u64);
        refs.iter().for_each(|named| named.encode(&mut out));
        replace(disk, "", NAMED, out.as_slice())?;
        self.tree.forced(&refs);
        self.leftovers.take_in(self.tree.give_up());
        self.leftovers.removable().iter().try_for_each(|id| disk.remove(&id.path()))
    }
}

pub(super) fn named(disk: &MemoryDisk) -> Named {
    let content = read_whole(disk, NAMED, u64::MAX).unwrap().unwrap_or_else(|| vec![0; 8].into());
    let mut input = Reader::new(content);
    let flushed = input.u64().unwrap() as usize;
    let refs = (0..input.left() / SstableRef::BYTES).map(|_| SstableRef::decode(&mut input).unwrap());
    (refs.collect(), flushed)
}

impl World {
    pub(super) fn new(cache_kind: u64) -> Self {
        let cache_bytes = [0, 1 << 20, 3_000, 1 << 30][cache_kind as usize];
        Self::of(formatted(), cache_bytes, Vec::new(), Model::default(), Timestamp(0))
    }

    /// An empty world on a formatted disk.
    pub(super) fn on(disk: MemoryDisk) -> Self {
        Self::of(disk, 1 << 20, Vec::new(), Model::default(), Timestamp(0))
    }

    /// A world with `rows` rows of one small column, written concurrently with flushes and compactions, and flushed to
    /// SSTables.
    pub(super) fn with_rows(rows: u64) -> Self {
        let mut world = Self::new(1);
        for number in 0..rows {
            world.write(Write::row(number));
            world.work(&mut SplitMix64::new(number));
        }
        world.settle();
        world
    }

    fn of(disk: MemoryDisk, cache_bytes: u64, log: Vec<Write>, model: Model, watermark: Timestamp) -> Self {
        let (cache, numbers) = (Arc::new(BlockCache::new(cache_bytes)), SstableNumbers::default());
        let recent = Arc::new(Recent::new(cache_bytes));
        let site = Site {
            owner: identity().owner(),
            cohort: COHORT,
            config: TINY,
            cache: cache.clone(),
            numbers: numbers.clone(),
            pressure: Arc::default(),
            recent: recent.clone(),
        };
        let (refs, flushed) = named(&disk);
        let ids = refs.iter().map(|named| named.id);
        remove_unnamed(&disk, &ids.collect()).unwrap();
        let mut tree = Driven::new(Tree::open(&disk, site, &refs, &mut OpenSstables::new()).unwrap(), flushed);
        log[flushed..].iter().for_each(|write| tree.apply(write));
        Self { disk, cache_bytes, cache, numbers, recent, tree, log, model, watermark }
    }

    pub(super) fn site(&self) -> Site {
        let (cache, numbers) = (self.cache.clone(), self.numbers.clone());
        let (pressure, recent) = (Arc::default(), self.recent.clone());
        Site { owner: identity().owner(), cohort: COHORT, config: TINY, cache, numbers, pressure, recent }
    }

    /// The site of another process.
    pub(super) fn fresh_site(&self) -> Site {
        let (cache, recent) = (BlockCache::new(self.cache_bytes), Recent::new(self.cache_bytes));
        let (cache, recent) = (Arc::new(cache), Arc::new(recent));
        Site { cache, recent, numbers: SstableNumbers::default(), ..self.site() }
    }

    /// Restarts the process and replays the log.
    pub(super) fn reopen(&mut self) {
        self.disk.kill();
        let (log, model) = (std::mem::take(&mut self.log), std::mem::take(&mut self.model));
        *self = Self::of(self.disk.clone(), self.cache_bytes, log, model, self.watermark);
    }

    pub(super) fn crash(&mut self, random: &mut SplitMix64) {
        self.disk.crash(random);
        self.reopen();
    }

    pub(super) fn write(&mut self, write: Write) {
        self.model.write(timestamp_of(self.log.len() + 1), &write);
        self.tree.apply(&write);
        self.log.push(write);
        if self.tree.tree.active.bytes() >= TINY.memtable_bytes {
            self.tree.freeze_and_note();
        }
    }

    /// Applies the last `count` entries again.
    pub(super) fn apply_again(&mut self, count: usize) {
        self.tree.applied -= count;
        self.log[self.log.len() - count..].iter().for_each(|write| self.tree.apply(write));
    }

    pub(super) fn raise_watermark(&mut self, random: &mut SplitMix64) {
        let room = (self.model.last().0 - self.watermark.0) as u64;
        self.watermark = Timestamp(self.watermark.0 + random.below(room + 1) as i64);
    }

    /// Runs a step of a random job, if there is one.
    pub(super) fn work(&mut self, random: &mut SplitMix64) {
        match random.below(8) {
            0..3 => drop(self.tree.flush_step(&self.disk, self.watermark).unwrap()),
            3..7 => drop(self.tree.compaction_step(&self.disk, self.watermark).unwrap()),
            _ => self.tree.name_sstables(&self.disk).unwrap(),
        }
    }

    pub(super) fn flush_all(&mut self) {
        self.tree.freeze_and_note();
        while self.tree.flush_step(&self.disk, self.watermark).unwrap() {}
    }

    /// Flushes and compacts until there is no more work.
    pub(super) fn settle(&mut self) {
        self.flush_all();
        while self.tree.compaction_step(&self.disk, self.watermark).unwrap() {}
        self.tree.name_sstables(&self.disk).unwrap();
        assert_eq!(self.tree.tree.entries_in_memory(), 0);
        assert!(!self.tree.tree.is_stalled());
    }

    pub(super) fn remove(&mut self) {
        for id in self.tree.leftovers.removable() {
            self.disk.remove(&id.path()).unwrap();
        }
    }

    /// Installs the SSTables of another world, with its log and model, in one manifest.
    pub(super) fn take(&mut self, sstables: Vec<(u8, Arc<Sstable>)>, other: &Self) {
        (self.log, self.model, self.watermark) = (other.log.clone(), other.model.clone(), other.watermark);
        self.tree.tree.replace(sstables).unwrap();
        let disk = self.disk.clone();
        self.tree.flush.take().into_iter().for_each(|job| job.abandon(&disk));
        self.tree.compaction.take().into_iter().for_each(|job| job.abandon(&disk));
        (self.tree.applied, self.tree.flushed) = (self.log.len(), self.log.len());
        self.tree.frozen_at.clear();
        self.tree.name_sstables(&disk).unwrap();
    }

    fn random_moment(&self, random: &mut SplitMix64) -> Timestamp {
        let room = (self.model.last().0 - self.watermark.0) as u64;
        Timestamp(self.watermark.0 + random.below(room + 2) as i64)
    }

    /// Compares random reads with the model.
    pub(super) fn check(&self, random: &mut SplitMix64) {
        let view = self.tree.tree.view();
        for _ in 0..20 {
            let (row, column) = (model::random_row(random, 300), model::random_column(random));
            let at = self.random_moment(random);
            self.model.check_newest(&view, &row, &column, at);
        }
        let rows = [(); 2].map(|()| model::random_row(random, 300));
        let range = match random.below(5) {
            0 => Range::all(),
            1 => Range::row(&rows[0]),
            2 => Range::rows_with_prefix(&rows[0][..rows[0].len() / 2]),
            3 => Range::rows(&rows[0], Some(&rows[1])).after(&rows[0], &model::random_column(random)),
            _ => Range::rows(&rows[0], None).before(&rows[1], &model::random_column(random)),
        };
        self.model.check_cells(&view, &range, self.random_moment(random));
        self.check_changed(&range, random);
    }

    /// Asks whether the range has changed since moments at and above the watermark, most of them recent.
    pub(super) fn check_changed(&self, range: &Range, random: &mut SplitMix64) {
        let (view, last) = (self.tree.tree.view(), self.model.last());
        for _ in 0..8 {
            let since = match random.below(3) {
                0 => self.random_moment(random),
                1 => self.watermark,
                _ => Timestamp((last.0 - random.below(100) as i64).max(self.watermark.0)),
            };
            let steps_max = if random.below(3) == 0 { random.below(20) as usize } else { usize::MAX };
            self.model.check_changed(&view, range, since, steps_max);
        }
    }

    /// Compares every cell, and the observable versions.
    pub(super) fn check_whole(&self) {
        let view = self.tree.tree.view();
        for at in [self.watermark, self.model.last()] {
            self.model.check_cells(&view, &Range::all(), at);
            for (row, column, ..) in self.model.visible(at) {
                self.model.check_newest(&view, &row, &column, at);
            }
        }
        self.model.check_versions(&view, self.watermark);
    }
}
