//! Writes an SSTable: accepts versions in order and writes blocks as they fill.
//!
//! A writer may be suspended after any version. The SSTable does not exist before [`SstableWriter::finish`] has forced
//! the file and its directory; a writer that is dropped earlier leaves a file that no manifest names.

use base::Timestamp;
use base::canary::{Bug, planted};
use bytes::Bytes;

use super::block::BlockBuilder;
use super::filter::{self, FilterBuilder};
use super::footer::{BlocksChecksum, Footer, Origin, Part, SstableMeta};
use super::frame::{Framer, Handle, Kind, Seed};
use super::index::{IndexBuilder, separator};
use super::{Config, DIRECTORY, FilterPrefix, KEY_BYTES_MAX, SstableId, VALUE_BYTES_MAX, VersionRef, compare};
use crate::appender::Appender;
use crate::files::{FileError, Files};
use crate::identity::Owner;

/// Approximate overhead of an entry, to decide where a block ends.
const ENTRY_BYTES: usize = 16;

pub struct SstableWriter {
    out: Appender,
    config: Config,
    filter_prefix: FilterPrefix,
    /// Statistics of the versions so far. The last key is in `last_key` until the end.
    meta: SstableMeta,
    last_key: Vec<u8>,
    last_timestamp: Timestamp,
    blocks: BlocksChecksum,
    data: BlockBuilder,
    /// The data block that is not in an index block yet: its separator depends on the first key of the next block.
    unnamed: Option<Handle>,
    index: IndexBuilder,
    top: IndexBuilder,
    filter: FilterBuilder,
    framer: Framer,
}

impl SstableWriter {
    /// Creates the file of an SSTable.
    ///
    /// # Errors
    /// When a file operation fails; [`crate::files::FileErrorKind::Exists`] if the number was used before.
    ///
    /// # Panics
    /// When the block size exceeds the maximum size of a value.
    pub fn create<F: Files>(
        files: &F,
        owner: &Owner,
        id: SstableId,
        config: Config,
        filter_prefix: FilterPrefix,
    ) -> Result<Self, FileError> {
        assert!(config.block_bytes <= VALUE_BYTES_MAX, "readers reject blocks of {} bytes", config.block_bytes);
        let origin = Origin { owner: *owner, id };
        Ok(Self {
            out: Appender::create(files, id.path())?,
            config,
            filter_prefix,
            meta: SstableMeta::new(origin),
            last_key: Vec::new(),
            last_timestamp: Timestamp(0),
            blocks: BlocksChecksum::default(),
            data: BlockBuilder::default(),
            unnamed: None,
            index: IndexBuilder::default(),
            top: IndexBuilder::default(),
            filter: FilterBuilder::new(config.filter_bits_per_key),
            framer: Framer::new(Seed::new(&origin)),
        })
    }

    /// Adds a version. Writes buffered data if there is enough, with at most one write.
    ///
    /// # Errors
    /// When the write fails. The SSTable is then unusable: drop the writer.
    ///
    /// # Panics
    /// When the version is out of order or exceeds the limits. That is a bug: external input is validated earlier.
    pub fn push<'a>(&mut self, version: impl Into<VersionRef<'a>>) -> Result<(), FileError> {
        let version = version.into();
        let VersionRef { key, timestamp, value } = version;
        let value_bytes = value.map_or(0, <[u8]>::len);
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(value_bytes <= VALUE_BYTES_MAX, "a value of {value_bytes} bytes");
        let last = (&self.last_key[..], self.last_timestamp);
        assert!(self.meta.entries == 0 || compare(last, (key, timestamp)).is_lt(), "versions are pushed in order");

        let bytes = ENTRY_BYTES + key.len() + value_bytes;
        if self.data.entries() > 0 && self.data.bytes() + bytes > self.config.block_bytes {
            self.end_data_block();
        }
        if let Some(block) = self.unnamed.take() {
            self.index.add(separator((&self.last_key, self.last_timestamp), key), block);
            if self.index.is_full(self.config.block_bytes) {
                self.end_index_block();
            }
        }
        self.data.add(key, timestamp, value);
        let prefix_bytes = (self.filter_prefix)(key).min(key.len());
        let filtered = if planted(Bug::FilterOnWholeKey) { key } else { &key[..prefix_bytes] };
        self.filter.add(filter::hash(filtered));
        if self.meta.entries == 0 {
            self.meta.first_key = Bytes::copy_from_slice(key);
        }
        self.meta.count(version, prefix_bytes, self.meta.entries > 0 && *self.last_key == *key);
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_timestamp = timestamp;
        self.out.write_if_full()
    }

    /// Approximate size of the file if it ended here, to decide where to start another SSTable.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.out.offset() + self.data.bytes() as u64
    }

    /// Versions pushed so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// Writes the remaining data, and forces the file and then its directory. A manifest may then name the SSTable.
    ///
    /// # Errors
    /// When a file operation fails. The SSTable is then unusable; after a failed force the process must end.
    pub fn finish<F: Files>(mut self, files: &F) -> Result<SstableMeta, FileError> {
        if self.data.entries() > 0 {
            self.end_data_block();
        }
        if let Some(block) = self.unnamed.take() {
            self.index.add((&self.last_key, self.last_timestamp), block);
        }
        if !self.index.is_empty() {
            self.end_index_block();
        }
        let filter = std::mem::replace(&mut self.filter, FilterBuilder::new(0)).finish();
        let filter = self.append(Kind::Filter, &filter);
        let mut top = std::mem::take(&mut self.top);
        let top = self.append(Kind::Top, top.finish());
        self.meta.last_key = Bytes::copy_from_slice(&self.last_key);
        let mut footer = Footer { meta: self.meta.clone(), blocks: self.blocks, filter, top };
        // The footer contains the length of the file in a fixed-size field, so its own length is known first.
        footer.meta.bytes = self.out.offset() + footer.encode().0.len() as u64;
        let (end, checksum) = footer.encode();
        self.out.room().extend_from_slice(&end);
        self.out.write_rest(files)?;
        if !planted(Bug::TableNotForced) {
            self.out.force()?;
        }
        if !planted(Bug::TableDirectoryNotForced) {
            files.sync_dir(DIRECTORY)?;
        }
        Ok(SstableMeta { checksum, ..footer.meta })
    }

    fn append(&mut self, kind: Kind, content: &[u8]) -> Part {
        let offset = self.out.offset();
        let (handle, checksum) = self.framer.append(self.out.room(), offset, kind, content);
        Part { handle, checksum }
    }

    fn end_data_block(&mut self) {
        let offset = self.out.offset();
        let (handle, sum) = self.framer.append(self.out.room(), offset, Kind::Data, self.data.finish());
        self.data.clear();
        self.blocks.add(sum);
        self.unnamed = Some(handle);
    }

    fn end_index_block(&mut self) {
        let offset = self.out.offset();
        let (handle, sum) = self.framer.append(self.out.room(), offset, Kind::Index, self.index.finish());
        self.top.add(self.index.last(), handle);
        self.index.clear();
        self.blocks.add(sum);
    }
}
