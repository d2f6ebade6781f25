//! Merges sorted sources: memtables and runs of SSTables, in the order of versions or in reverse.

use std::cmp::Ordering;

use base::Timestamp;
use bytes::Bytes;

use super::memtable::MemtableCursor;
use super::sorted_run::RunCursor;
use crate::sstable::{SstableError, VersionRef, compare};

/// The direction of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first key to the last.
    Forwards,
    /// From the last key to the first.
    Backwards,
}

pub(super) enum Source<'a> {
    Memtable(MemtableCursor<'a>),
    Run(Box<RunCursor<'a>>),
}

impl Source<'_> {
    #[inline]
    fn current(&self) -> Option<VersionRef<'_>> {
        match self {
            Self::Memtable(cursor) => cursor.current(),
            Self::Run(cursor) => cursor.current(),
        }
    }

    fn value(&self) -> Option<Bytes> {
        match self {
            Self::Memtable(cursor) => cursor.value(),
            Self::Run(cursor) => cursor.value(),
        }
    }

    fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        match self {
            Self::Memtable(cursor) => {
                cursor.seek(key, at);
                Ok(())
            }
            Self::Run(cursor) => cursor.seek(key, at),
        }
    }

    fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        match self {
            Self::Memtable(cursor) => {
                cursor.seek_before(key, at);
                Ok(())
            }
            Self::Run(cursor) => cursor.seek_before(key, at),
        }
    }

    fn seek_to_last(&mut self) -> Result<(), SstableError> {
        match self {
            Self::Memtable(cursor) => {
                cursor.seek_to_last();
                Ok(())
            }
            Self::Run(cursor) => cursor.seek_to_last(),
        }
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Result<(), SstableError> {
        match (self, direction) {
            (Self::Memtable(cursor), Direction::Forwards) => cursor.next(),
            (Self::Memtable(cursor), Direction::Backwards) => cursor.previous(),
            (Self::Run(cursor), Direction::Forwards) => cursor.next()?,
            (Self::Run(cursor), Direction::Backwards) => cursor.previous()?,
        }
        Ok(())
    }
}

/// A cursor over the versions of all sources, on one or nowhere. It moves in one direction. A version that several
/// sources hold occurs several times, first in the first source.
///
/// A failed move leaves it nowhere.
pub(super) struct Merge<'a> {
    sources: Vec<Source<'a>>,
    direction: Direction,
    /// The sources on a version, with the current one last: after a step the moved source usually stays near the end.
    order: Vec<usize>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(sources: Vec<Source<'a>>, direction: Direction) -> Self {
        let order = Vec::with_capacity(sources.len());
        Self { sources, direction, order }
    }

    /// The current version; `None` if the cursor is nowhere.
    #[inline]
    pub(super) fn current(&self) -> Option<VersionRef<'_>> {
        self.sources[*self.order.last()?].current()
    }

    /// The current value, which shares memory with its source.
    pub(super) fn value(&self) -> Option<Bytes> {
        self.sources[*self.order.last()?].value()
    }

    /// Forwards: moves to the first version not before that of `key` at `at`.
    pub(super) fn seek(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        debug_assert_eq!(self.direction, Direction::Forwards);
        self.place_all(|source| source.seek(key, at))
    }

    /// Backwards: moves to the last version before that of `key` at `at`.
    pub(super) fn seek_before(&mut self, key: &[u8], at: Timestamp) -> Result<(), SstableError> {
        debug_assert_eq!(self.direction, Direction::Backwards);
        self.place_all(|source| source.seek_before(key, at))
    }

    /// Backwards: moves to the last version.
    pub(super) fn seek_to_last(&mut self) -> Result<(), SstableError> {
        debug_assert_eq!(self.direction, Direction::Backwards);
        self.place_all(Source::seek_to_last)
    }

    fn place_all(&mut self, place: impl Fn(&mut Source<'a>) -> Result<(), SstableError>) -> Result<(), SstableError> {
        self.order.clear();
        self.sources.iter_mut().try_for_each(place)?;
        for source in 0..self.sources.len() {
            self.enqueue(source);
        }
        Ok(())
    }

    /// Moves to the next version in the direction.
    #[inline]
    pub(super) fn step(&mut self) -> Result<(), SstableError> {
        let Some(source) = self.order.pop() else { return Ok(()) };
        if let Err(error) = self.sources[source].step(self.direction) {
            self.order.clear();
            return Err(error);
        }
        self.enqueue(source);
        Ok(())
    }

    /// Inserts a source into the order, if it is on a version.
    fn enqueue(&mut self, source: usize) {
        if self.sources[source].current().is_none() {
            return;
        }
        let mut place = self.order.len();
        while place > 0 && self.comes_after(source, self.order[place - 1]) {
            place -= 1;
        }
        self.order.insert(place, source);
    }

    fn comes_after(&self, source: usize, other: usize) -> bool {
        let place = |source: usize| self.sources[source].current().map(|version| (version.key, version.timestamp));
        let (Some(own), Some(others)) = (place(source), place(other)) else { return false };
        let ordering = match self.direction {
            Direction::Forwards => compare(own, others),
            Direction::Backwards => compare(others, own),
        };
        match ordering {
            Ordering::Less => false,
            Ordering::Equal => source > other,
            Ordering::Greater => true,
        }
    }
}
