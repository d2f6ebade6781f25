//! Flushes: jobs that write the changes of a layer to their places, and then the map of the new checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::Sequence;
use base::canary::{Bug, planted};
use bytes::Bytes;

use super::layer::Layer;
use super::map::{self, Changes, Map};
use super::read::CACHED_BLOCKS_MAX;
use super::{CHANGES, DATA, GROUP_BLOCKS, GROUP_BYTES, StreamStore, WHOLE, at, offset_of, sum_of};
use crate::erased::{DynFiles, ErasedFile, ErasedFiles};
use crate::files::{File as _, FileErrorKind, OpenOptions, remove_if_exists};
use crate::sstable::{DIRECTORY, SstableId, SstableRef};
use crate::tree::{JobError, Site};
use crate::{AlignedBuffer, BLOCK_BYTES};

/// The changes in map files may take this part of the space of a whole map; then a whole map is written again.
const CHANGES_PART: u64 = 2;
/// Changes below this size do not matter.
const CHANGES_BYTES_MIN: u64 = 64 << 10;
/// Bytes of data written in a step.
const STEP_BYTES: usize = 1 << 20;

/// A flush of a layer. Runs in steps on any thread.
#[derive(Debug)]
pub struct StreamFlush {
    site: Site,
    data: SstableId,
    complete_from: Sequence,
    layer: Arc<Layer>,
    /// The slots of the groups in which the layer has more than holes.
    slots: BTreeMap<u64, u32>,
    /// The map of the checkpoint before.
    before: Arc<Map>,
    /// The files of the checkpoint before.
    files: Vec<SstableRef>,
    file: Option<ErasedFile>,
    /// The next block to write.
    next: u64,
    /// The blocks written, with their sums.
    sums: Vec<(u64, u32)>,
    /// Blocks for the cache, in buffers of their own.
    cached: Vec<(u64, Bytes)>,
    /// Blocks that the cache must not have any more: those of large writes.
    uncached: Vec<u64>,
}

/// The result of a step.
#[derive(Debug)]
pub enum StreamStep {
    /// More steps are needed.
    Working {
        /// Bytes written in this step.
        bytes: u64,
    },
    /// The flush is complete.
    Done(StreamFlushed),
}

/// The output of a flush.
#[derive(Clone, Debug)]
pub struct StreamFlushed {
    pub(super) map: Arc<Map>,
    pub(super) touched: Vec<u64>,
    pub(super) file: ErasedFile,
    pub(super) files: Vec<SstableRef>,
    pub(super) cached: Vec<(u64, Bytes)>,
    pub(super) uncached: Vec<u64>,
    made: Vec<SstableId>,
}

impl StreamFlushed {
    /// The files that did not exist before.
    #[must_use]
    pub fn made(&self) -> &[SstableId] {
        &self.made
    }
}

impl StreamFlush {
    pub(super) fn new(
        store: &StreamStore,
        file: Option<ErasedFile>,
        layer: Arc<Layer>,
        slots: BTreeMap<u64, u32>,
    ) -> Self {
        Self {
            site: store.site.clone(),
            data: store.shared.data,
            complete_from: store.shared.complete_from,
            layer,
            slots,
            before: Arc::clone(&store.map),
            files: store.files.clone(),
            file,
            next: 0,
            sums: Vec::new(),
            cached: Vec::new(),
            uncached: Vec::new(),
        }
    }

    /// Does a part of the work.
    ///
    /// # Errors
    /// A file operation fails. Nothing needs to be cleaned up: the blocks are written again.
    pub fn step(&mut self, files: &dyn DynFiles) -> Result<StreamStep, JobError> {
        let file = self.data_file(files)?;
        let mut bytes = 0;
        while bytes < STEP_BYTES {
            let written = self.write_run(&file)?;
            if written == 0 {
                return if bytes > 0 {
                    Ok(StreamStep::Working { bytes: bytes as u64 })
                } else {
                    self.finish(files, file)
                };
            }
            bytes += written;
        }
        Ok(StreamStep::Working { bytes: bytes as u64 })
    }

    /// The data file, which the first flush creates. A file of that name without a manifest that names it is from a
    /// flush that failed.
    fn data_file(&mut self, files: &dyn DynFiles) -> Result<ErasedFile, JobError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let path = self.data.path();
        let file = match files.open(&path, OpenOptions::DIRECT) {
            Err(error) if error.kind == FileErrorKind::NotFound => files.create(&path, OpenOptions::DIRECT)?,
            opened => opened?,
        };
        Ok(self.file.insert(file).clone())
    }

    /// Writes the next blocks that are adjacent in the data file. Returns the bytes written; 0 at the end.
    fn write_run(&mut self, file: &ErasedFile) -> Result<usize, JobError> {
        let mut run: Vec<(u64, &Bytes)> = Vec::new();
        for (block, content) in self.layer.blocks_from(self.next) {
            let is_adjacent =
                run.last().is_none_or(|(last, _)| last + 1 == block && last / GROUP_BLOCKS == block / GROUP_BLOCKS);
            if !is_adjacent {
                break;
            }
            run.push((block, content));
        }
        let Some(((first, _), (last, _))) = run.first().zip(run.last()) else { return Ok(0) };
        let is_small = run.len() <= CACHED_BLOCKS_MAX;
        let buffer = AlignedBuffer::written(run.len() * BLOCK_BYTES, |out| {
            run.iter().for_each(|(_, content)| out.raw(content));
        });
        for (block, content) in &run {
            self.sums.push((*block, sum_of(self.site.cohort, *block, content)));
            if is_small {
                self.cached.push((*block, Bytes::copy_from_slice(content)));
            } else {
                self.uncached.push(*block);
            }
        }
        // The group exists: it has this block.
        if let Some(slot) = self.slots.get(&(first / GROUP_BLOCKS)) {
            file.write_at(offset_of(*slot, *first), &buffer)?;
        }
        self.next = last + 1;
        Ok(buffer.len())
    }

    /// Forces the data, and writes the map.
    fn finish(&mut self, files: &dyn DynFiles, file: ErasedFile) -> Result<StreamStep, JobError> {
        let changes = Changes::of(&self.layer, std::mem::take(&mut self.sums), &self.slots);
        let mut map = Map::clone(&self.before);
        let touched = changes.apply(&mut map);
        for (offset, length) in released(&self.before, &map, &touched) {
            file.punch(offset, length)?;
        }
        if !planted(Bug::StreamMapBeforeData) {
            file.sync()?;
        }
        let id = SstableId { cohort: self.site.cohort, number: self.site.numbers.draw() };
        let content = changes.encode(&self.site, id);
        let is_change = |named: &&SstableRef| named.level == CHANGES;
        let before: u64 = self.files.iter().filter(is_change).map(|named| named.bytes).sum();
        let may_take = (map.whole_bytes() / CHANGES_PART).max(CHANGES_BYTES_MIN);
        let has_whole = self.files.iter().any(|named| named.level == WHOLE);
        let is_whole = !has_whole || before + content.len() as u64 > may_take;
        let (kind, content) = match is_whole {
            true => (WHOLE, map.encode(&self.site.owner, id, self.complete_from)),
            false => (CHANGES, content),
        };
        let path = id.path();
        remove_if_exists(&ErasedFiles(files), &path)?;
        let written = files.create(&path, OpenOptions::BUFFERED)?;
        let done = written.write_at(0, &content).and_then(|()| written.sync());
        if let Err(error) = done {
            if error.kind == FileErrorKind::NoSpace {
                // A file that cannot be removed is removed at the next start.
                let _ = files.remove(&path);
            }
            return Err(error.into());
        }
        files.sync_dir(DIRECTORY)?;
        let mut named: Vec<SstableRef> = match is_whole {
            true => vec![map::data_reference(self.data)],
            false => self.files.clone(),
        };
        named.push(map::reference(id, kind, &content));
        let had_data = self.files.iter().any(|file| file.level == DATA);
        let made = if had_data { vec![id] } else { vec![self.data, id] };
        let map = Arc::new(map);
        let (cached, uncached) = (std::mem::take(&mut self.cached), std::mem::take(&mut self.uncached));
        Ok(StreamStep::Done(StreamFlushed { map, touched, file, files: named, cached, uncached, made }))
    }
}

/// The space that has lost its content, as offset and length: of slots that no group has any more, and of blocks that are
/// empty now. The old content is not needed after a crash: the entries that freed it are in the log.
fn released(before: &Map, now: &Map, touched: &[u64]) -> Vec<(u64, u64)> {
    let old = |number: &u64| before.groups.get(number);
    let kept: BTreeSet<u32> = touched.iter().filter_map(|number| Some(now.groups.get(number)?.slot)).collect();
    let mut released = Vec::new();
    for number in touched {
        let gone = old(number).map(|placed| placed.slot).filter(|slot| !kept.contains(slot));
        released.extend(gone.map(|slot| (u64::from(slot) * GROUP_BYTES, GROUP_BYTES)));
        let Some(placed) = now.groups.get(number) else { continue };
        let has_content = |sum: u32| sum != map::HOLE && sum != map::ZERO;
        // In a slot that the group did not have before, there may be content of another group.
        let same = old(number).filter(|old| old.slot == placed.slot);
        let is_released = |block: &u64| {
            let had = same.is_none_or(|old| has_content(old.sums[at(*block)]));
            had && !has_content(placed.sums[at(*block)])
        };
        let blocks: Vec<u64> = (number * GROUP_BLOCKS..(number + 1) * GROUP_BLOCKS).filter(is_released).collect();
        for run in blocks.chunk_by(|left, right| left + 1 == *right) {
            released.push((offset_of(placed.slot, run[0]), (run.len() * BLOCK_BYTES) as u64));
        }
    }
    released
}
