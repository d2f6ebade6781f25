//! An open table.

use base::Timestamp;
use bytes::Bytes;

use super::block::Block;
use super::filter::{self, Filter};
use super::footer::{FOOTER_BYTES_MAX, Footer, Part, TableMeta};
use super::frame::{Handle, Kind, Seed, Source};
use super::{BlockCache, FilterPrefix, TableCursor, TableError, TableId, Version};
use crate::files::{File, Files, OpenOptions, open_if_exists, read_full};
use crate::identity::Owner;
use crate::sealed::Broken;

mod verify;

/// Bytes at the end of a file that are read at once: more than all but the longest keys make of a footer.
const END_BYTES: u64 = 1 << 10;

/// A table that can be read, with its filter and its top index in memory.
pub struct Table<H> {
    pub(super) source: Source<H>,
    pub(super) top: Block,
    meta: TableMeta,
    filter: Filter,
    filter_prefix: FilterPrefix,
}

impl<H: File> Table<H> {
    /// Opens a table, which was written with the same `filter_prefix`. Of its blocks, only the filter and the top index
    /// are looked at. Whether it is the one that a manifest means is for the caller to say, by [`Self::meta`].
    ///
    /// # Errors
    /// When there is no such file, or its end, its filter or its top index can't be believed.
    pub fn open<F: Files<File = H>>(
        files: &F,
        owner: &Owner,
        id: TableId,
        filter_prefix: FilterPrefix,
    ) -> Result<Self, TableError> {
        let path = id.path();
        let file = open_if_exists(files, &path, OpenOptions::BUFFERED)?.ok_or(TableError::Missing)?;
        let end = file.len()?;
        let source = Source { file, path, seed: Seed::new(owner, id), end };
        let (footer, footer_at) = read_footer(&source)?;
        if footer.owner != *owner || footer.meta.id != id || footer.meta.bytes != source.end {
            return Err(source.damaged(footer_at));
        }
        // What the footer names lies before it, without a gap: there is no byte that nothing checks.
        let Footer { meta, filter: filter_part, top: top_part, .. } = footer;
        if filter_part.handle.end() != Some(top_part.handle.offset) || top_part.handle.end() != Some(footer_at) {
            return Err(source.damaged(footer_at));
        }
        let filter = read_part(&source, filter_part, Kind::Filter)?;
        let filter = Filter::parse(filter).map_err(|_| source.damaged(filter_part.handle.offset))?;
        let top = read_part(&source, top_part, Kind::Top)?;
        let top = Block::parse(top).map_err(|_| source.damaged(top_part.handle.offset))?;
        let source = Source { end: filter_part.handle.offset, ..source };
        Ok(Self { source, top, meta, filter, filter_prefix })
    }

    /// What it holds.
    #[must_use]
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// Bytes it takes in memory while it is open, beside the blocks in the cache.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let keys = self.meta.first_key.len() + self.meta.last_key.len();
        size_of::<Self>() + self.filter.bytes() + self.top.bytes() + keys + self.source.path.len()
    }

    /// False if it holds no key of which `prefix` is what counts for the filter; true says nothing, about once in a
    /// hundred times.
    #[must_use]
    pub fn may_hold(&self, prefix: &[u8]) -> bool {
        self.filter.may_hold(filter::hash(prefix))
    }

    /// The newest version of exactly this key that is not newer than `at`: a tombstone, if that is what it is.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    pub fn newest(&self, key: &[u8], at: Timestamp, cache: &BlockCache) -> Result<Option<Version>, TableError> {
        if !self.meta.spans(key) || !self.may_hold(&key[..(self.filter_prefix)(key).min(key.len())]) {
            return Ok(None);
        }
        let mut cursor = self.cursor(cache);
        cursor.seek(key, at)?;
        let is_found = cursor.current().is_some_and(|version| version.key == key);
        Ok(if is_found { cursor.version() } else { None })
    }

    /// A place among its versions; nowhere at first.
    #[must_use]
    pub fn cursor<'a>(&'a self, cache: &'a BlockCache) -> TableCursor<'a, H> {
        TableCursor::new(self, cache)
    }

    /// A block, from the cache or the file.
    pub(super) fn block(&self, handle: Handle, kind: Kind, cache: &BlockCache) -> Result<Block, TableError> {
        if let Some(block) = cache.block(self.meta.id, handle.offset) {
            return Ok(block);
        }
        let (block, _) = self.read_block(handle, kind)?;
        cache.insert(self.meta.id, handle.offset, block.clone());
        Ok(block)
    }

    /// A block from the file, and its checksum.
    fn read_block(&self, handle: Handle, kind: Kind) -> Result<(Block, u32), TableError> {
        let (content, sum) = self.source.read(handle, kind)?;
        let block = Block::parse(content).map_err(|_| self.source.damaged(handle.offset))?;
        Ok((block, sum))
    }
}

/// The end of the file, and where it begins.
fn read_footer<H: File>(source: &Source<H>) -> Result<(Footer, u64), TableError> {
    let mut end = read_end(source, END_BYTES)?;
    let damaged = |bytes: u64| source.damaged(source.end.saturating_sub(bytes));
    let bytes = Footer::bytes(&end).ok_or_else(|| damaged(END_BYTES))?;
    if bytes > end.len() {
        end = read_end(source, FOOTER_BYTES_MAX as u64)?;
    }
    let start = end.len().checked_sub(bytes).ok_or_else(|| damaged(end.len() as u64))?;
    match Footer::decode(&end.slice(start..)) {
        Ok(footer) => Ok((footer, source.end - bytes as u64)),
        Err(Broken::OtherFormat(format)) => Err(TableError::OtherFormat(format)),
        Err(Broken::Damaged) => Err(damaged(bytes as u64)),
    }
}

/// So many bytes at the end of the file; all of a shorter one.
fn read_end<H: File>(source: &Source<H>, bytes: u64) -> Result<Bytes, TableError> {
    let bytes = bytes.min(source.end);
    let mut end = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let read = read_full(&source.file, source.end - bytes, &mut end)?;
    if read < end.len() { Err(source.damaged(source.end - bytes)) } else { Ok(end.into()) }
}

fn read_part<H: File>(source: &Source<H>, part: Part, kind: Kind) -> Result<Bytes, TableError> {
    let (content, sum) = source.read(part.handle, kind)?;
    if sum == part.checksum { Ok(content) } else { Err(source.damaged(part.handle.offset)) }
}
