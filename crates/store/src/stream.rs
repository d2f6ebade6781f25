//! The in-place store of a stream of blocks, such as a stripe of a virtual disk (Gaios, section 3.2).
//!
//! A stream is a sparse sequence of blocks of [`BLOCK_BYTES`]. The replicated log is its journal: a change goes into a
//! *layer* in memory, and a flush later writes the newest content of each changed block to its place in one large *data
//! file*. So the content of a write reaches the disk twice: in the log, and in its place.
//!
//! * The stream is divided into *groups* of [`GROUP_BLOCKS`] blocks. A group that contains a block which is not a hole
//!   has a *slot* of [`GROUP_BYTES`] in the data file, the lowest that is free when the entry is applied: replicas that
//!   applied the same entries have the same slots. The first page of a slot is used only while the file is sent to
//!   another replica (`ship`).
//! * Per block, a number in memory states whether it is a hole, zero, or data, and then its checksum: CRC-32C over
//!   cohort, block number and content. It is stored apart from the data, so that a block cannot vouch for itself: a lost
//!   or misdirected write is found.
//! * *Map files* contain slots and checksums as of a checkpoint: one has the whole map, and each later one the changes of
//!   a flush (`map`). They are written once. The manifest that names a checkpoint names the map files of the same
//!   moment: it is the superblock, forced last, in two copies.
//!
//! Invariants:
//! * **A flush may be cut off anywhere.** It overwrites only blocks that entries after the checkpoint in the manifest
//!   write whole, or free. These entries are in the log until another manifest is forced. So once a restart has applied its own log, every block is that of
//!   one moment again.
//! * **A block is read from the data file only if no layer has it**, and only with the checksum in memory. A reader
//!   that meets a flush sees another checksum, and then looks again: the layer of the flush has the block until the
//!   flush is installed.
//! * The cache has the content of a block as of the last flush that was installed, or an earlier one in which it was the
//!   same. It is used only if no layer has the block.
//! * Reads return the content as of some moment between their start and their end, per block. All of it is committed.
//! * A stream that was received from another replica mixes moments until the entry [`StreamStore::complete_from`] is
//!   applied. No read is answered before that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use base::canary::{Bug, planted};
use base::{CohortId, Sequence, checksum_append};
use bytes::Bytes;

use crate::BLOCK_BYTES;
use crate::erased::{DynFiles, ErasedFile};
use crate::files::{File as _, FileError, FileErrorKind, OpenOptions};
use crate::sstable::{BlockCache, SstableId, SstableRef};
use crate::tree::Site;

mod adopt;
mod flush;
mod layer;
mod map;
mod read;
mod ship;
#[cfg(test)]
mod tests;

pub use adopt::adopt;
pub use flush::{StreamFlush, StreamFlushed, StreamStep};
pub use layer::{CHANGE_OVERHEAD_BYTES, Empty};
pub use read::{BlockState, Piece, StreamView, Verified};
pub use ship::Shipped;

use layer::Layer;
use map::{Map, Placed, Sums};

/// Blocks of a group.
pub const GROUP_BLOCKS: u64 = 255;
/// Bytes of a group in the data file: a page, and its blocks.
pub const GROUP_BYTES: u64 = (GROUP_BLOCKS + 1) * BLOCK_BYTES as u64;

/// The highest slot, far above those of the largest stripe.
const SLOTS_MAX: u32 = 1 << 30;

/// The roles of a stream's files in a manifest, in place of the level of an SSTable. Trees have fewer levels.
pub(crate) const DATA: u8 = 0xf0;
/// A map file with the whole map.
const WHOLE: u8 = 0xf1;
/// A map file with changes.
const CHANGES: u8 = 0xf2;

/// Whether a manifest's reference is to a file of a stream.
pub(crate) fn is_stream_file(named: &SstableRef) -> bool {
    named.level >= DATA
}

/// Why a stream cannot be read or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The block is not in memory, and the caller must not wait for the disk.
    #[error("the block is not in memory")]
    NotCached,
    /// The stream was received from another replica, and the log does not complete it yet.
    #[error("the stream is incomplete until entry {0} is applied")]
    Incomplete(Sequence),
    /// The content of a block does not have its checksum.
    #[error("block {block} of {path} is damaged")]
    DamagedBlock {
        path: String,
        /// The number of the block in the stream.
        block: u64,
    },
    /// A map file, or a received file, is invalid.
    #[error("{path} is invalid: {reason}")]
    Invalid { path: String, reason: &'static str },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A group of blocks, as of the last applied entry.
#[derive(Clone, Debug)]
struct Group {
    slot: u32,
    /// The number of blocks that are not holes.
    live: u16,
    /// The number of the flush that has changed blocks of it last.
    generation: u64,
    /// As of the last flush that was installed.
    sums: Arc<Sums>,
}

/// The content that readers share with the owner of the stream.
#[derive(Debug)]
struct Live {
    groups: BTreeMap<u64, Group>,
    /// Slots below `slots` that no group has.
    free: BTreeSet<u32>,
    slots: u32,
    /// The changes since the last flush began.
    active: Layer,
    /// The changes that a flush is writing.
    frozen: Option<Arc<Layer>>,
    /// The data file, once it exists.
    file: Option<ErasedFile>,
    /// The last entry with a change.
    last_change: Sequence,
    /// The number of flushes installed.
    flushes: u64,
}

#[derive(Debug)]
struct Shared {
    cohort: CohortId,
    /// The name of the data file.
    data: SstableId,
    cache: Arc<BlockCache>,
    /// The last entry that the source had applied when it sent its last block.
    complete_from: Sequence,
    live: RwLock<Live>,
}

/// A stream of blocks with its files, owned by the thread that applies entries.
#[derive(Debug)]
pub struct StreamStore {
    site: Site,
    shared: Arc<Shared>,
    /// The state of the checkpoint that the manifest names, or will name next.
    map: Arc<Map>,
    /// Its files, in the order in which they are loaded.
    files: Vec<SstableRef>,
    /// Files that a manifest may still name.
    replaced: Vec<SstableRef>,
    /// Files that no manifest names.
    unnamed: Vec<SstableRef>,
}

/// The checksum of a block, with its place as the seed. 0 and 1 have other meanings in a map.
fn sum_of(cohort: CohortId, block: u64, content: &[u8]) -> u32 {
    let mut place = [0; 12];
    place[..4].copy_from_slice(&cohort.0.to_le_bytes());
    if !planted(Bug::StreamChecksumUnseeded) {
        place[4..].copy_from_slice(&block.to_le_bytes());
    }
    match checksum_append(base::checksum(&place), content) {
        sum @ (map::HOLE | map::ZERO) => sum + 2,
        sum => sum,
    }
}

/// The offset of a block in the data file.
fn offset_of(slot: u32, block: u64) -> u64 {
    u64::from(slot) * GROUP_BYTES + (1 + block % GROUP_BLOCKS) * BLOCK_BYTES as u64
}

impl Shared {
    fn new(site: &Site, data: SstableId, complete_from: Sequence, live: Live) -> Arc<Self> {
        let (cohort, cache) = (site.cohort, Arc::clone(&site.cache));
        Arc::new(Self { cohort, data, cache, complete_from, live: RwLock::new(live) })
    }

    /// No code that holds the lock panics in the middle of an update.
    fn read(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn of(map: &Map, file: Option<ErasedFile>) -> Self {
        let group = |(number, placed): (&u64, &Placed)| {
            let live = placed.sums.iter().filter(|sum| **sum != map::HOLE).count() as u16;
            (*number, Group { slot: placed.slot, live, generation: 0, sums: Arc::clone(&placed.sums) })
        };
        let groups: BTreeMap<u64, Group> = map.groups.iter().map(group).collect();
        let slots = groups.values().map(|group| group.slot + 1).max().unwrap_or(0);
        let used: BTreeSet<u32> = groups.values().map(|group| group.slot).collect();
        let free = (0..slots).filter(|slot| !used.contains(slot)).collect();
        let (active, frozen, last_change, flushes) = (Layer::default(), None, Sequence(0), 0);
        Self { groups, free, slots, active, frozen, file, last_change, flushes }
    }

    /// Whether a block is a hole.
    fn is_hole(&self, block: u64) -> bool {
        let layers = self.active.state(block).or_else(|| self.frozen.as_ref()?.state(block));
        let flushed = || self.groups.get(&(block / GROUP_BLOCKS)).map(|group| group.sums[at(block)]);
        layers.map_or_else(|| flushed().is_none_or(|sum| sum == map::HOLE), |state| state == BlockState::Hole)
    }

    /// Whether the content of a block has this checksum, and no layer has the block.
    fn is_flushed_as(&self, block: u64, sum: u32) -> bool {
        let is_in_memory = [Some(&self.active), self.frozen.as_deref()]
            .into_iter()
            .flatten()
            .any(|layer| layer.state(block).is_some());
        let flushed = self.groups.get(&(block / GROUP_BLOCKS)).map(|group| group.sums[at(block)]);
        !is_in_memory && flushed == Some(sum)
    }

    /// The group of a block, with a slot.
    fn group(&mut self, number: u64) -> &mut Group {
        self.groups.entry(number).or_insert_with(|| {
            let slot = self.free.pop_first().unwrap_or_else(|| {
                self.slots += 1;
                self.slots - 1
            });
            Group { slot, live: 0, generation: self.flushes, sums: map::no_sums() }
        })
    }

    fn put(&mut self, block: u64, content: Bytes) {
        if self.is_hole(block) {
            self.group(block / GROUP_BLOCKS).live += 1;
        }
        self.active.put(block, content);
    }

    fn clear(&mut self, blocks: Range<u64>, to: Empty) {
        match to {
            Empty::Zero => {
                for block in blocks.clone() {
                    if self.is_hole(block) {
                        self.group(block / GROUP_BLOCKS).live += 1;
                    }
                }
            }
            Empty::Hole => self.free(&blocks),
        }
        self.active.clear(blocks, to);
    }

    /// The slots of the groups in which a layer has more than holes.
    fn slots_of(&self, layer: &Layer) -> BTreeMap<u64, u32> {
        let of_zeroes = layer.ranges().filter(|(_, to)| *to == Empty::Zero);
        let of_zeroes = of_zeroes.flat_map(|(range, _)| range.start / GROUP_BLOCKS..range.end.div_ceil(GROUP_BLOCKS));
        let mut slots = BTreeMap::new();
        for number in of_zeroes.chain(layer.blocks().map(|(block, _)| block / GROUP_BLOCKS)) {
            if let Some(group) = self.groups.get(&number) {
                slots.entry(number).or_insert(group.slot);
            }
        }
        slots
    }

    /// Counts the blocks that become holes, and frees the slots of groups without others.
    fn free(&mut self, blocks: &Range<u64>) {
        let numbers = blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS);
        let touched: Vec<u64> = self.groups.range(numbers).map(|(number, _)| *number).collect();
        for number in touched {
            let first = number * GROUP_BLOCKS;
            let inside = blocks.start.max(first)..blocks.end.min(first + GROUP_BLOCKS);
            let is_whole = inside.end - inside.start == GROUP_BLOCKS;
            let gone = if is_whole { 0 } else { inside.filter(|block| !self.is_hole(*block)).count() as u16 };
            if let Some(group) = self.groups.get_mut(&number) {
                group.live = if is_whole { 0 } else { group.live - gone };
                if group.live == 0 {
                    self.free.insert(group.slot);
                    self.groups.remove(&number);
                }
            }
        }
    }
}

/// The place of a block in its group.
fn at(block: u64) -> usize {
    (block % GROUP_BLOCKS) as usize
}

/// Changes of one entry.
#[derive(Debug)]
pub struct Edit<'a> {
    live: RwLockWriteGuard<'a, Live>,
    cohort: CohortId,
}

impl Edit<'_> {
    /// Writes a block. The buffer is retained until it is flushed. It may be a slice of a larger one, whose other parts are
    /// blocks of the same change.
    ///
    /// # Panics
    /// When the content is not a whole block, which is a bug.
    pub fn put(&mut self, block: u64, content: Bytes) {
        assert_eq!(content.len(), BLOCK_BYTES, "blocks are whole");
        self.live.put(block, content);
    }

    /// Writes a block again, with the content that it has: the next flush replaces what is in its place on the disk. Nothing
    /// happens, and the result is false, if it has other content, or is still in memory.
    ///
    /// # Panics
    /// When the content is not a whole block, which is a bug.
    pub fn heal(&mut self, block: u64, content: Bytes) -> bool {
        assert_eq!(content.len(), BLOCK_BYTES, "blocks are whole");
        let is_current = self.live.is_flushed_as(block, sum_of(self.cohort, block, &content));
        if is_current || planted(Bug::HealUnchecked) {
            self.live.put(block, content);
        }
        is_current
    }

    pub fn clear(&mut self, blocks: Range<u64>, to: Empty) {
        if !blocks.is_empty() {
            self.live.clear(blocks, to);
        }
    }
}

impl StreamStore {
    #[must_use]
    pub fn new(site: Site) -> Self {
        Self::of(site, Map::default(), Vec::new(), None, Sequence(0))
    }

    fn of(site: Site, map: Map, files: Vec<SstableRef>, file: Option<ErasedFile>, complete_from: Sequence) -> Self {
        let named = files.iter().find(|named| named.level == DATA).map(|named| named.id);
        let data = named.unwrap_or_else(|| SstableId { cohort: site.cohort, number: site.numbers.draw() });
        let shared = Shared::new(&site, data, complete_from, Live::of(&map, file));
        Self { site, shared, map: Arc::new(map), files, replaced: Vec::new(), unnamed: Vec::new() }
    }

    /// Opens the files named by a manifest; later changes must be applied again.
    ///
    /// # Errors
    /// When a file is missing, or a map file is damaged. The data is verified when it is read.
    pub fn open(files: &dyn DynFiles, site: Site, refs: &[SstableRef]) -> Result<Self, StreamError> {
        refs.iter().for_each(|named| site.numbers.pass(named.id.number));
        let mut map = Map::default();
        let mut complete_from = Sequence(0);
        let mut data = None;
        for named in refs {
            match named.level {
                DATA => data = Some(open_data(files, named.id)?),
                WHOLE => (map, complete_from) = map::read_whole(files, &site, named)?,
                CHANGES => map::read_changes(files, &site, named, &mut map)?,
                _ => return Err(invalid(named.id, "it is not a file of a stream")),
            }
        }
        let slots: BTreeSet<u32> = map.groups.values().map(|placed| placed.slot).collect();
        if slots.len() != map.groups.len() || slots.last().is_some_and(|slot| *slot > SLOTS_MAX) {
            return Err(StreamError::Invalid { path: String::new(), reason: "the slots of the map are invalid" });
        }
        if data.is_none() {
            return Err(StreamError::Invalid { path: String::new(), reason: "the manifest names no data file" });
        }
        Ok(Self::of(site, map, refs.to_vec(), data, complete_from))
    }

    /// Says so if the data file ends before the last block that the map has.
    ///
    /// # Errors
    /// The length of the file is unknown.
    pub fn cut_short(&self) -> Result<Option<String>, FileError> {
        let live = self.shared.read();
        let has_content = |sum: &u32| *sum != map::HOLE && *sum != map::ZERO;
        let end = |group: &Group| {
            let last = group.sums.iter().rposition(has_content)?;
            Some(offset_of(group.slot, last as u64) + BLOCK_BYTES as u64)
        };
        let needed = live.groups.values().filter_map(end).max().unwrap_or(0);
        let there = live.file.as_ref().map_or(Ok(0), |file| file.len())?;
        let missing = needed.saturating_sub(there);
        let path = self.shared.data.path();
        Ok((missing > 0).then(|| format!("the data file {path} was cut short: {missing} bytes are missing at its end")))
    }

    /// Its location and shared resources.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Begins the changes of an entry.
    pub fn edit(&mut self, entry: Sequence) -> Edit<'_> {
        let mut live = self.shared.write();
        live.last_change = entry;
        Edit { live, cohort: self.site.cohort }
    }

    /// The content, for readers on any thread.
    #[must_use]
    pub fn view(&self) -> StreamView {
        StreamView::new(Arc::clone(&self.shared))
    }

    /// The entry from which on the stream is that of one moment.
    #[must_use]
    pub fn complete_from(&self) -> Sequence {
        self.shared.complete_from
    }

    #[must_use]
    pub fn layer_bytes(&self) -> u64 {
        let live = self.shared.read();
        live.active.bytes() + live.frozen.as_ref().map_or(0, |layer| layer.bytes())
    }

    /// Whether a flush is due.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        self.shared.read().active.bytes() >= self.site.config.memtable_bytes
    }

    /// Whether writers should wait, because the flush does not keep up.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        let live = self.shared.read();
        live.frozen.is_some() && live.active.bytes() >= self.site.config.memtable_bytes
    }

    /// Freezes the changes so far, and returns the job that writes them; none if there are none. A flush that failed is
    /// begun again, with the later changes.
    pub fn flush(&mut self) -> Option<StreamFlush> {
        let mut live = self.shared.write();
        if live.frozen.is_some() {
            let later = std::mem::take(&mut live.active);
            let earlier = live.frozen.take().map(Arc::unwrap_or_clone).unwrap_or_default();
            live.active = earlier.followed_by(later);
        }
        if live.active.is_empty() {
            return None;
        }
        let layer = Arc::new(std::mem::take(&mut live.active));
        live.frozen = Some(Arc::clone(&layer));
        let slots = live.slots_of(&layer);
        Some(StreamFlush::new(self, live.file.clone(), layer, slots))
    }

    /// Installs a flush: the next manifest names its files.
    pub fn flushed(&mut self, done: &StreamFlushed) {
        let mut live = self.shared.write();
        if live.frozen.take().is_none() {
            return;
        }
        live.file = Some(done.file.clone());
        live.flushes += 1;
        let generation = live.flushes;
        for number in &done.touched {
            let Some(group) = live.groups.get_mut(number) else { continue };
            group.generation = generation;
            // A group that was freed since, and has another slot, has only blocks that the active layer has.
            group.sums = done.map.groups.get(number).map_or_else(map::no_sums, |placed| Arc::clone(&placed.sums));
        }
        // The cache may have overwritten content. Blocks that have changed again are cached by the next flush.
        if !planted(Bug::StreamCacheStale) {
            for (block, content) in &done.cached {
                self.shared.cache.insert_page(self.shared.data, *block, content.clone());
            }
            done.uncached.iter().for_each(|block| self.shared.cache.remove_page(self.shared.data, *block));
        }
        drop(live);
        self.map = Arc::clone(&done.map);
        let before = std::mem::replace(&mut self.files, done.files.clone());
        self.replaced.extend(before.into_iter().filter(|named| !done.files.iter().any(|new| new.id == named.id)));
    }

    /// The files for the manifest. Excludes the content of layers.
    #[must_use]
    pub fn refs(&self) -> Vec<SstableRef> {
        self.files.clone()
    }

    /// Manifests that a restart may find name exactly these files.
    pub fn forced(&mut self, refs: &[SstableRef]) {
        let is_named = |file: &SstableRef| refs.iter().any(|named| named.id == file.id);
        let (named, unnamed) = std::mem::take(&mut self.replaced).into_iter().partition(is_named);
        self.replaced = named;
        self.unnamed.extend::<Vec<_>>(unnamed);
    }

    /// Drains the files that no manifest names any more. Readers have the data file open, so it may be removed.
    pub fn give_up(&mut self) -> Vec<SstableId> {
        std::mem::take(&mut self.unnamed).into_iter().map(|named| named.id).collect()
    }

    /// Whether obsolete files still exist.
    #[must_use]
    pub fn has_leftovers(&self) -> bool {
        !self.replaced.is_empty() || !self.unnamed.is_empty()
    }

    /// Replaces the content by that of another stream. Jobs in progress must be dropped.
    pub fn replace(&mut self, other: Self) {
        let gone = std::mem::replace(self, other);
        self.replaced.extend(gone.files.into_iter().filter(|old| !self.files.iter().any(|new| new.id == old.id)));
        self.replaced.extend(gone.replaced);
        self.unnamed.extend(gone.unnamed);
        // A first flush that failed has left a data file that no manifest ever named.
        let is_begun = gone.shared.read().frozen.is_some();
        if is_begun && gone.map.groups.is_empty() && self.shared.data != gone.shared.data {
            self.unnamed.push(map::data_reference(gone.shared.data));
        }
    }

    /// Removes all content. Jobs in progress must be dropped. Readers that have a view keep the content of before.
    pub fn reset(&mut self) {
        self.replace(Self::new(self.site.clone()));
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// When one is broken.
    pub fn invariants(&self) {
        let live = self.shared.read();
        let slots: BTreeSet<u32> = live.groups.values().map(|group| group.slot).collect();
        assert_eq!(slots.len(), live.groups.len(), "no two groups have the same slot");
        assert!(slots.is_disjoint(&live.free), "the slot of a group is not free");
        assert_eq!(slots.len() + live.free.len(), live.slots as usize, "every slot is used or free");
        for group in live.groups.values() {
            assert!(group.live > 0 && u64::from(group.live) <= GROUP_BLOCKS, "a group with a slot has content");
        }
    }
}

fn open_data(files: &dyn DynFiles, data: SstableId) -> Result<ErasedFile, StreamError> {
    match files.open(&data.path(), OpenOptions::DIRECT) {
        Ok(file) => Ok(file),
        Err(error) if error.kind == FileErrorKind::NotFound => Err(invalid(data, "it does not exist")),
        Err(error) => Err(error.into()),
    }
}

fn invalid(file: SstableId, reason: &'static str) -> StreamError {
    StreamError::Invalid { path: file.path(), reason }
}
