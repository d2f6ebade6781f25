//! An open SSTable.

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::block::Block;
use super::filter::{self, Filter};
use super::footer::{BlocksChecksum, FOOTER_BYTES_MAX, Footer, Part, SstableMeta};
use super::frame::{Handle, Kind, Seed, Source};
use super::sweep::Sweep;
use super::{Blocks, FilterPrefix, Io, SstableCursor, SstableError, SstableId, SstableRef, Version};
use crate::files::{File, Files, OpenOptions, open_if_exists};
use crate::sealed::Broken;

mod verify;

/// Bytes read first from the end of a file: enough for the footer, except with very long keys.
const END_BYTES: u64 = 1 << 10;

/// An open SSTable, with its filter and its top index in memory. Thread-safe; clones share memory.
#[derive(Clone)]
pub struct Sstable {
    id: SstableId,
    pub(super) source: Source,
    pub(super) top: Block,
    meta: SstableMeta,
    blocks: BlocksChecksum,
    filter: Filter,
    filter_prefix: FilterPrefix,
}

impl Sstable {
    /// Opens the SSTable named by `named`, which must have been written with the same `filter_prefix`. Reads only the
    /// filter and the top index. Rejects a valid but different SSTable: the checksum includes the origin, which may be
    /// another cohort than the current one.
    ///
    /// # Errors
    /// When the file does not exist, is a different SSTable, or its footer, filter or top index is damaged.
    pub fn open<F: Files>(files: &F, named: &SstableRef, filter_prefix: FilterPrefix) -> Result<Self, SstableError> {
        let id = named.id;
        let path = id.path();
        let file = open_if_exists(files, &path, OpenOptions::BUFFERED)?.ok_or(SstableError::Missing)?;
        let end = file.len()?;
        let (footer, footer_at) = read_footer(&file, &path, end)?;
        let Footer { meta, blocks, filter: filter_part, top: top_part } = footer;
        let source = Source { file: Arc::new(file), path, seed: Seed::new(&meta.origin), end };
        let is_meant = (meta.bytes, meta.checksum) == (named.bytes, named.checksum);
        if !is_meant || meta.bytes != end {
            return Err(source.damaged(footer_at));
        }
        // The parts named by the footer are contiguous, so every byte is covered by a checksum.
        if filter_part.handle.end() != Some(top_part.handle.offset) || top_part.handle.end() != Some(footer_at) {
            return Err(source.damaged(footer_at));
        }
        let filter = read_part(&source, filter_part, Kind::Filter)?;
        let filter = Filter::parse(filter).map_err(|_| source.damaged(filter_part.handle.offset))?;
        let top = read_part(&source, top_part, Kind::Top)?;
        let top = Block::parse(top).map_err(|_| source.damaged(top_part.handle.offset))?;
        let source = Source { end: filter_part.handle.offset, ..source };
        Ok(Self { id, source, top, meta, blocks, filter, filter_prefix })
    }

    /// The same SSTable for one sequential scan that bypasses all caches.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub(crate) fn swept<F: Files>(&self, files: &F) -> Result<Self, SstableError> {
        let file = open_if_exists(files, &self.source.path, OpenOptions::DIRECT)?.ok_or(SstableError::Missing)?;
        Ok(Self { source: self.source.clone().with_file(Arc::new(Sweep::new(file))), ..self.clone() })
    }

    /// Its name on this disk.
    #[must_use]
    pub fn id(&self) -> SstableId {
        self.id
    }

    /// The statistics from its footer.
    #[must_use]
    pub fn meta(&self) -> &SstableMeta {
        &self.meta
    }

    /// Memory used while it is open, not counting cached blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let keys = self.meta.first_key.len() + self.meta.last_key.len();
        size_of::<Self>() + self.filter.bytes() + self.top.bytes() + keys + self.source.path.len()
    }

    /// Raw bytes of the file from `offset` on, to send to another replica ([`crate::shipping`]). The receiver verifies
    /// them.
    ///
    /// # Errors
    /// When the disk fails, or the file is truncated.
    pub fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, SstableError> {
        let left = usize::try_from(self.meta.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(bytes_max)];
        let read = self.source.file.read_at(offset, &mut bytes)?;
        if read < bytes.len() { Err(self.source.damaged(offset)) } else { Ok(bytes.into()) }
    }

    /// False if it contains no key with the filter prefix `prefix`. True is wrong about once in a hundred times.
    #[must_use]
    pub fn may_hold(&self, prefix: &[u8]) -> bool {
        self.may_hold_hash(filter::hash(prefix))
    }

    /// [`Self::may_hold`] with the filter hash of the prefix, computed once for several SSTables.
    pub(crate) fn may_hold_hash(&self, hash: u64) -> bool {
        self.filter.may_hold(hash)
    }

    /// The newest version of exactly this key that is not newer than `at`; may be a tombstone.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    pub fn newest(&self, key: &[u8], at: Timestamp, blocks: Blocks<'_>) -> Result<Option<Version>, SstableError> {
        let mut cursor = self.cursor(blocks);
        let prefix = &key[..(self.filter_prefix)(key).min(key.len())];
        let is_found = cursor.seek_newest(key, filter::hash(prefix), at)?;
        Ok(if is_found { cursor.version() } else { None })
    }

    /// False if there is no version of exactly this key, with the given filter hash.
    pub(super) fn may_hold_key(&self, key: &[u8], hash: u64) -> bool {
        self.meta.spans(key) && self.filter.may_hold(hash)
    }

    /// A cursor over its versions, nowhere at first.
    #[must_use]
    pub fn cursor<'a>(&'a self, blocks: Blocks<'a>) -> SstableCursor<'a> {
        SstableCursor::new(self, blocks)
    }

    /// A block from the cache or the file.
    pub(super) fn block(&self, handle: Handle, kind: Kind, blocks: Blocks<'_>) -> Result<Block, SstableError> {
        if let Some(block) = blocks.cache.block(self.id, handle.offset) {
            return Ok(block);
        }
        if blocks.io == Io::CacheOnly {
            return Err(SstableError::NotCached);
        }
        let (block, _) = self.read_block(handle, kind)?;
        if blocks.io == Io::Allowed {
            blocks.cache.insert(self.id, handle.offset, block.clone());
        }
        Ok(block)
    }

    /// A block from the file, and its checksum.
    fn read_block(&self, handle: Handle, kind: Kind) -> Result<(Block, u32), SstableError> {
        let (content, sum) = self.source.read(handle, kind)?;
        let block = Block::parse(content).map_err(|_| self.source.damaged(handle.offset))?;
        Ok((block, sum))
    }
}

/// The footer, and its offset.
fn read_footer<H: File>(file: &H, path: &str, length: u64) -> Result<(Footer, u64), SstableError> {
    let damaged = |bytes: u64| SstableError::Damaged { path: path.to_owned(), offset: length.saturating_sub(bytes) };
    let read_end = |bytes: u64| {
        let bytes = bytes.min(length);
        let mut end = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let read = file.read_at(length - bytes, &mut end)?;
        if read < end.len() { Err(damaged(bytes)) } else { Ok(Bytes::from(end)) }
    };
    let mut end = read_end(END_BYTES)?;
    let bytes = Footer::bytes(&end).ok_or_else(|| damaged(END_BYTES))?;
    if bytes > end.len() {
        end = read_end(FOOTER_BYTES_MAX as u64)?;
    }
    let start = end.len().checked_sub(bytes).ok_or_else(|| damaged(end.len() as u64))?;
    match Footer::decode(&end.slice(start..)) {
        Ok(footer) => Ok((footer, length - bytes as u64)),
        Err(Broken::OtherFormat(format)) => Err(SstableError::OtherFormat(format)),
        Err(Broken::Damaged) => Err(damaged(bytes as u64)),
    }
}

fn read_part(source: &Source, part: Part, kind: Kind) -> Result<Bytes, SstableError> {
    let (content, sum) = source.read(part.handle, kind)?;
    if sum == part.checksum { Ok(content) } else { Err(source.damaged(part.handle.offset)) }
}
