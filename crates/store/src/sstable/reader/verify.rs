//! Verifies a whole SSTable, to detect damage before a read encounters it, or before a received SSTable is named.

use bytes::Bytes;

use super::super::block::{Block, BlockCursor};
use super::super::footer::{BlocksChecksum, SstableMeta};
use super::super::frame::{Handle, Kind};
use super::super::{Malformed, SstableError, VersionRef, compare, filter, index};
use super::Sstable;

/// The state of the verification.
struct Verification {
    /// Expected offset of the next block.
    offset: u64,
    meta: SstableMeta,
    blocks: BlocksChecksum,
    last: Option<(Vec<u8>, base::Timestamp)>,
}

impl Sstable {
    /// Reads the whole SSTable without the cache: checks every checksum, the order of the versions, and their
    /// consistency with the footer and the filter.
    ///
    /// # Errors
    /// When a part of it is unreadable or damaged.
    pub fn verify(&self) -> Result<(), SstableError> {
        let mut seen = Verification {
            offset: 0,
            meta: SstableMeta::new(self.meta.origin),
            blocks: BlocksChecksum::default(),
            last: None,
        };
        for index_block in self.handles(&self.top, self.source.end)? {
            let (index, index_sum) = self.read_block(index_block, Kind::Index)?;
            for data_block in self.handles(&index, index_block.offset)? {
                self.verify_next(&mut seen, data_block)?;
                let (data, sum) = self.read_block(data_block, Kind::Data)?;
                seen.blocks.add(sum);
                self.verify_versions(&mut seen, data).map_err(|_| self.source.damaged(data_block.offset))?;
            }
            self.verify_next(&mut seen, index_block)?;
            seen.blocks.add(index_sum);
        }
        seen.meta.last_key = seen.last.map(|(key, _)| Bytes::from(key)).unwrap_or_default();
        (seen.meta.bytes, seen.meta.checksum) = (self.meta.bytes, self.meta.checksum);
        let is_whole = seen.offset == self.source.end && seen.meta == self.meta && seen.blocks == self.blocks;
        if is_whole { Ok(()) } else { Err(self.source.damaged(seen.offset)) }
    }

    /// The handles in an index block at `offset`.
    fn handles(&self, block: &Block, offset: u64) -> Result<Vec<Handle>, SstableError> {
        let read = || {
            let mut handles = Vec::new();
            let mut entries = BlockCursor::new(block.clone());
            entries.seek_to_first()?;
            while let Some(entry) = entries.current() {
                handles.push(index::handle(entry.value)?);
                entries.next()?;
            }
            Ok(handles)
        };
        read().map_err(|Malformed| self.source.damaged(offset))
    }

    /// Blocks are contiguous, so every byte is read.
    fn verify_next(&self, seen: &mut Verification, block: Handle) -> Result<(), SstableError> {
        match block.end() {
            Some(end) if block.offset == seen.offset => {
                seen.offset = end;
                Ok(())
            }
            _ => Err(self.source.damaged(block.offset)),
        }
    }

    fn verify_versions(&self, seen: &mut Verification, block: Block) -> Result<(), Malformed> {
        let mut versions = BlockCursor::new(block);
        versions.seek_to_first()?;
        while let Some(version) = versions.current() {
            self.verify_version(seen, version)?;
            versions.next()?;
        }
        Ok(())
    }

    fn verify_version(&self, seen: &mut Verification, version: VersionRef<'_>) -> Result<(), Malformed> {
        let VersionRef { key, timestamp, .. } = version;
        let is_in_order = seen.last.as_ref().is_none_or(|last| compare((&last.0, last.1), (key, timestamp)).is_lt());
        let prefix_bytes = (self.filter_prefix)(key).min(key.len());
        if !is_in_order || !self.filter.may_hold(filter::hash(&key[..prefix_bytes])) {
            return Err(Malformed);
        }
        if seen.meta.entries == 0 {
            seen.meta.first_key = Bytes::copy_from_slice(key);
        }
        let is_superseded = seen.last.as_ref().is_some_and(|(last, _)| *last == key);
        seen.meta.count(version, prefix_bytes, is_superseded);
        let last = seen.last.get_or_insert_default();
        last.0.clear();
        last.0.extend_from_slice(key);
        last.1 = timestamp;
        Ok(())
    }
}
