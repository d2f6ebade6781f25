//! A cursor over the versions of an SSTable: from the top index through an index block to a data block, and between
//! blocks in both directions.

use base::Timestamp;
use bytes::Bytes;

use super::block::{Block, BlockCursor};
use super::frame::{Handle, Kind};
use super::{Blocks, Malformed, Sstable, SstableError, Version, VersionRef, index};

/// A cursor: on a version, or nowhere. It holds at most two blocks.
///
/// A failed move leaves it nowhere.
pub struct SstableCursor<'a> {
    sstable: &'a Sstable,
    blocks: Blocks<'a>,
    top: Level,
    index: Level,
    data: Level,
}

/// The cursor's position in one block.
struct Level {
    place: BlockCursor,
    /// Offset of the block; `None` before the first one.
    at: Option<u64>,
}

impl Level {
    fn new(block: Block, at: Option<u64>) -> Self {
        Self { place: BlockCursor::new(block), at }
    }

    /// Moves within this block; malformed content counts as damage to the SSTable.
    fn go(
        &mut self,
        sstable: &Sstable,
        go: impl FnOnce(&mut BlockCursor) -> Result<bool, Malformed>,
    ) -> Result<bool, SstableError> {
        go(&mut self.place).map_err(|Malformed| sstable.source.damaged(self.at.unwrap_or(0)))
    }

    /// The handle in the current entry.
    fn handle(&self, sstable: &Sstable) -> Result<Handle, SstableError> {
        let entry = self.place.current().and_then(|entry| entry.value);
        index::handle(entry).map_err(|Malformed| sstable.source.damaged(self.at.unwrap_or(0)))
    }

    /// Enters a block, unless it is already there.
    fn enter(&mut self, sstable: &Sstable, blocks: Blocks<'_>, block: Handle, kind: Kind) -> Result<(), SstableError> {
        if self.at != Some(block.offset) {
            self.at = None;
            self.place.enter(sstable.block(block, kind, blocks)?);
            self.at = Some(block.offset);
        }
        Ok(())
    }
}

impl<'a> SstableCursor<'a> {
    pub(super) fn new(sstable: &'a Sstable, blocks: Blocks<'a>) -> Self {
        Self {
            sstable,
            blocks,
            top: Level::new(sstable.top.clone(), Some(sstable.source.end)),
            index: Level::new(Block::empty(), None),
            data: Level::new(Block::empty(), None),
        }
    }

    /// The current version; `None` if the cursor is nowhere.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<VersionRef<'_>> {
        self.data.place.current()
    }

    /// The current value, which shares the block's memory; `None` for a tombstone or nowhere. Keeps the block alive.
    #[must_use]
    pub fn value(&self) -> Option<Bytes> {
        self.data.place.value()
    }

    /// The current version with its value as from [`Self::value`]; `None` if the cursor is nowhere.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Some(self.current()?.to_version(self.value()))
    }

    /// Moves to the newest version of `key` that is not newer than `at`, or else to the first version after that point,
    /// or else nowhere.
    ///
    /// # Errors
    /// When a block is unreadable or damaged; the same holds for every move.
    pub fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        self.data.place.leave();
        let (sstable, blocks) = (self.sstable, self.blocks);
        if !self.top.go(sstable, |place| place.seek(key, at))? {
            return Ok(());
        }
        self.index.enter(sstable, blocks, self.top.handle(sstable)?, Kind::Index)?;
        // The last separator of the index block equals that in the top index.
        self.index.go(sstable, |place| if place.seek(key, at)? { Ok(true) } else { Err(Malformed) })?;
        self.data.enter(sstable, blocks, self.index.handle(sstable)?, Kind::Data)?;
        if self.data.go(sstable, |place| place.seek(key, at))? { Ok(()) } else { self.next_block() }
    }

    /// Moves to the newest version of exactly this key that is not newer than `at`. Returns whether there is one;
    /// otherwise the position is unspecified. `hash` is the filter hash of the key's prefix, computed once for several
    /// SSTables.
    pub(crate) fn seek_newest(&mut self, key: &[u8], hash: u64, at: Timestamp) -> Result<bool, SstableError> {
        if !self.sstable.may_hold_key(key, hash) {
            return Ok(false);
        }
        self.seek(key, at)?;
        Ok(self.current().is_some_and(|version| version.key == key))
    }

    /// Moves to the last version before that of `key` at `at`, or nowhere.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    pub fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        self.seek(key, at)?;
        if self.current().is_some() { self.previous() } else { self.seek_to_last() }
    }

    /// Moves to the first version.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    pub fn seek_to_first(&mut self) -> Result<(), SstableError> {
        self.data.place.leave();
        if self.top.go(self.sstable, BlockCursor::seek_to_first)? { self.first_below() } else { Ok(()) }
    }

    /// Moves to the last version.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    pub fn seek_to_last(&mut self) -> Result<(), SstableError> {
        self.data.place.leave();
        if self.top.go(self.sstable, BlockCursor::seek_to_last)? { self.last_below() } else { Ok(()) }
    }

    /// Moves to the next version; from the last one to nowhere, where it stays.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    #[expect(clippy::should_implement_trait, reason = "it may fail, and the current version is borrowed")]
    #[inline]
    pub fn next(&mut self) -> Result<(), SstableError> {
        if self.current().is_none() || self.data.go(self.sstable, BlockCursor::next)? {
            Ok(())
        } else {
            self.next_block()
        }
    }

    /// Moves to the previous version; from the first one to nowhere, where it stays.
    ///
    /// # Errors
    /// When a block is unreadable or damaged.
    pub fn previous(&mut self) -> Result<(), SstableError> {
        if self.current().is_none() || self.data.go(self.sstable, BlockCursor::previous)? {
            Ok(())
        } else {
            self.previous_block()
        }
    }

    fn next_block(&mut self) -> Result<(), SstableError> {
        self.data.place.leave();
        if self.index.go(self.sstable, BlockCursor::next)? {
            self.enter_data(BlockCursor::seek_to_first)
        } else if self.top.go(self.sstable, BlockCursor::next)? {
            self.first_below()
        } else {
            Ok(())
        }
    }

    fn previous_block(&mut self) -> Result<(), SstableError> {
        self.data.place.leave();
        if self.index.go(self.sstable, BlockCursor::previous)? {
            self.enter_data(BlockCursor::seek_to_last)
        } else if self.top.go(self.sstable, BlockCursor::previous)? {
            self.last_below()
        } else {
            Ok(())
        }
    }

    /// Moves to the first version below the current entry of the top index.
    fn first_below(&mut self) -> Result<(), SstableError> {
        self.index.enter(self.sstable, self.blocks, self.top.handle(self.sstable)?, Kind::Index)?;
        self.index.go(self.sstable, BlockCursor::seek_to_first)?;
        self.enter_data(BlockCursor::seek_to_first)
    }

    /// Moves to the last version below the current entry of the top index.
    fn last_below(&mut self) -> Result<(), SstableError> {
        self.index.enter(self.sstable, self.blocks, self.top.handle(self.sstable)?, Kind::Index)?;
        self.index.go(self.sstable, BlockCursor::seek_to_last)?;
        self.enter_data(BlockCursor::seek_to_last)
    }

    /// Enters the data block of the current index entry. Blocks are never empty.
    fn enter_data(&mut self, go: impl FnOnce(&mut BlockCursor) -> Result<bool, Malformed>) -> Result<(), SstableError> {
        self.data.enter(self.sstable, self.blocks, self.index.handle(self.sstable)?, Kind::Data)?;
        self.data.go(self.sstable, |place| if go(place)? { Ok(true) } else { Err(Malformed) })?;
        Ok(())
    }
}
