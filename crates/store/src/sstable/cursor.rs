//! A place among the versions of a table, and how it moves: down from the top index through an index block to a data
//! block, and from block to block in either direction.

use base::Timestamp;
use bytes::Bytes;

use super::block::{Block, BlockCursor};
use super::frame::{Handle, Kind};
use super::{Blocks, Malformed, Table, TableError, Version, VersionRef, index};

/// A place among the versions of a table: on one, or nowhere. It holds two blocks at most.
///
/// A move that fails leaves it nowhere.
pub struct TableCursor<'a> {
    table: &'a Table,
    blocks: Blocks<'a>,
    top: Level,
    index: Level,
    data: Level,
}

/// A place in one of the blocks on the way down.
struct Level {
    place: BlockCursor,
    /// Where the block lies; none if no block was entered yet.
    at: Option<u64>,
}

impl Level {
    fn new(block: Block, at: Option<u64>) -> Self {
        Self { place: BlockCursor::new(block), at }
    }

    /// A move in this block; that its bytes make no sense is the table's damage.
    fn go(
        &mut self,
        table: &Table,
        go: impl FnOnce(&mut BlockCursor) -> Result<bool, Malformed>,
    ) -> Result<bool, TableError> {
        go(&mut self.place).map_err(|Malformed| table.source.damaged(self.at.unwrap_or(0)))
    }

    /// The handle that the entry here is.
    fn handle(&self, table: &Table) -> Result<Handle, TableError> {
        let entry = self.place.current().and_then(|entry| entry.value);
        index::handle(entry).map_err(|Malformed| table.source.damaged(self.at.unwrap_or(0)))
    }

    /// Enters a block, unless this is the one.
    fn enter(&mut self, table: &Table, blocks: Blocks<'_>, block: Handle, kind: Kind) -> Result<(), TableError> {
        if self.at != Some(block.offset) {
            self.at = None;
            self.place.enter(table.block(block, kind, blocks)?);
            self.at = Some(block.offset);
        }
        Ok(())
    }
}

impl<'a> TableCursor<'a> {
    pub(super) fn new(table: &'a Table, blocks: Blocks<'a>) -> Self {
        Self {
            table,
            blocks,
            top: Level::new(table.top.clone(), Some(table.source.end)),
            index: Level::new(Block::empty(), None),
            data: Level::new(Block::empty(), None),
        }
    }

    /// The version here; nothing if this is nowhere.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<VersionRef<'_>> {
        self.data.place.current()
    }

    /// The value of the version here, sharing the block's bytes; nothing if that is a tombstone, or this is nowhere. As
    /// long as it lives, so does the block.
    #[must_use]
    pub fn value(&self) -> Option<Bytes> {
        self.data.place.value()
    }

    /// The version here, its value as [`Self::value`] gives it; nothing if this is nowhere.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Some(self.current()?.to_version(self.value()))
    }

    /// Goes to the newest version of `key` that is not newer than `at`; if there is none, to the version that would
    /// come after it; if there is none of these either, nowhere.
    ///
    /// # Errors
    /// When a block can't be read or believed; so with every move.
    pub fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), TableError> {
        self.data.place.leave();
        let (table, blocks) = (self.table, self.blocks);
        if !self.top.go(table, |place| place.seek(key, at))? {
            return Ok(());
        }
        self.index.enter(table, blocks, self.top.handle(table)?, Kind::Index)?;
        // The index block's own last separator is what the top index has of it.
        self.index.go(table, |place| if place.seek(key, at)? { Ok(true) } else { Err(Malformed) })?;
        self.data.enter(table, blocks, self.index.handle(table)?, Kind::Data)?;
        if self.data.go(table, |place| place.seek(key, at))? { Ok(()) } else { self.next_block() }
    }

    /// Goes to the newest version of exactly this key that is not newer than `at`, and says whether there is one; if
    /// not, it may be anywhere. `hash` is that of the key's filter prefix: who asks many tables works it out once.
    pub(crate) fn seek_newest(&mut self, key: &[u8], hash: u64, at: Timestamp) -> Result<bool, TableError> {
        if !self.table.may_hold_key(key, hash) {
            return Ok(false);
        }
        self.seek(key, at)?;
        Ok(self.current().is_some_and(|version| version.key == key))
    }

    /// Goes to the last version that comes before that of `key` at `at`; if there is none, nowhere.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    pub fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), TableError> {
        self.seek(key, at)?;
        if self.current().is_some() { self.previous() } else { self.seek_to_last() }
    }

    /// Goes to the first version.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    pub fn seek_to_first(&mut self) -> Result<(), TableError> {
        self.data.place.leave();
        if self.top.go(self.table, BlockCursor::seek_to_first)? { self.first_below() } else { Ok(()) }
    }

    /// Goes to the last version.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    pub fn seek_to_last(&mut self) -> Result<(), TableError> {
        self.data.place.leave();
        if self.top.go(self.table, BlockCursor::seek_to_last)? { self.last_below() } else { Ok(()) }
    }

    /// Goes to the next version, from the last one nowhere; nowhere it stays.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    #[expect(clippy::should_implement_trait, reason = "it may fail, and what it comes to is borrowed")]
    #[inline]
    pub fn next(&mut self) -> Result<(), TableError> {
        if self.current().is_none() || self.data.go(self.table, BlockCursor::next)? {
            Ok(())
        } else {
            self.next_block()
        }
    }

    /// Goes to the version before, from the first one nowhere; nowhere it stays.
    ///
    /// # Errors
    /// When a block can't be read or believed.
    pub fn previous(&mut self) -> Result<(), TableError> {
        if self.current().is_none() || self.data.go(self.table, BlockCursor::previous)? {
            Ok(())
        } else {
            self.previous_block()
        }
    }

    fn next_block(&mut self) -> Result<(), TableError> {
        self.data.place.leave();
        if self.index.go(self.table, BlockCursor::next)? {
            self.enter_data(BlockCursor::seek_to_first)
        } else if self.top.go(self.table, BlockCursor::next)? {
            self.first_below()
        } else {
            Ok(())
        }
    }

    fn previous_block(&mut self) -> Result<(), TableError> {
        self.data.place.leave();
        if self.index.go(self.table, BlockCursor::previous)? {
            self.enter_data(BlockCursor::seek_to_last)
        } else if self.top.go(self.table, BlockCursor::previous)? {
            self.last_below()
        } else {
            Ok(())
        }
    }

    /// Goes to the first version below the top index's entry.
    fn first_below(&mut self) -> Result<(), TableError> {
        self.index.enter(self.table, self.blocks, self.top.handle(self.table)?, Kind::Index)?;
        self.index.go(self.table, BlockCursor::seek_to_first)?;
        self.enter_data(BlockCursor::seek_to_first)
    }

    /// Goes to the last version below the top index's entry.
    fn last_below(&mut self) -> Result<(), TableError> {
        self.index.enter(self.table, self.blocks, self.top.handle(self.table)?, Kind::Index)?;
        self.index.go(self.table, BlockCursor::seek_to_last)?;
        self.enter_data(BlockCursor::seek_to_last)
    }

    /// Enters the data block of the index block's entry. No block is empty.
    fn enter_data(&mut self, go: impl FnOnce(&mut BlockCursor) -> Result<bool, Malformed>) -> Result<(), TableError> {
        self.data.enter(self.table, self.blocks, self.index.handle(self.table)?, Kind::Data)?;
        self.data.go(self.table, |place| if go(place)? { Ok(true) } else { Err(Malformed) })?;
        Ok(())
    }
}
