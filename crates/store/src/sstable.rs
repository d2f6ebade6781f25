//! Sorted tables: the files of a log-structured merge tree (`BigTable`, section 4). A table is written once, in order,
//! and never changed. It holds *versions*: what a key's value was from a timestamp on, and under which LSN it was
//! logged.
//!
//! A file is data blocks with an index block after every few of them, then a filter, the top index, and a footer:
//!
//! ```text
//! data data ... index  data data ... index  filter  top-index  footer
//! ```
//!
//! * A *block* has its entries in order, their keys without the prefix that they share with the key before, and is
//!   compressed when that saves an eighth (`block`, `frame`).
//! * An *index block* names data blocks, the *top index* names index blocks, each by a key that lies between it and the
//!   next (`index`). They are blocks as the others are.
//! * The *filter* tells of most keys that are not in the table that they are not, from a prefix of the key that is the
//!   row's, whatever the column and the timestamp (`filter`).
//! * The *footer* says where the table was written and what is in it. It knows the least and the greatest LSN, so that a follower
//!   that lags behind the log is sent just the tables that hold what it misses (Spinnaker, section 6.1).
//!
//! An open table holds its filter and its top index in memory. The other blocks come through a [`BlockCache`] that all
//! tables of a node share.
//!
//! Invariants:
//! * Versions are in order: by key ascending, then by timestamp descending, the newest first. No two have the same key
//!   and timestamp.
//! * Every byte of a file is under a checksum, and every checksum covers the table's origin and the place in the file: a
//!   stale, foreign or misdirected block is not believed. A manifest names a table with its checksum ([`TableRef`]), so
//!   that a whole table in another's place is not believed either. A table has the same bytes on every disk it is sent to. What was read and checked may be kept, what fails is
//!   [`TableError::Damaged`]; no damage panics, or asks for more memory than the limits and the file's length allow.
//! * A file is forced, then its directory. Only then may a manifest name it. A file that no manifest names is nothing,
//!   and goes at the next start ([`remove_unnamed`]).
//! * The number of a table is never given to another of its cohort while this process lives: the cache knows blocks by it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Lsn, Timestamp};
use bytes::Bytes;
use thiserror::Error;

use crate::files::{FileError, Files, remove_if_exists};

mod block;
mod cache;
mod cursor;
mod filter;
mod footer;
mod frame;
mod index;
mod reader;
mod sweep;
mod varint;
mod writer;

pub use cache::{BlockCache, Blocks, Io};
pub use cursor::TableCursor;
pub(crate) use filter::hash as filter_hash;
pub use footer::{Origin, TableMeta};
pub use reader::Table;
pub use writer::TableWriter;

/// The directory of the tables.
pub const DIRECTORY: &str = "tables";

/// Bytes of a key, at most: those of the longest [`crate::cell`].
pub const KEY_BYTES_MAX: usize = crate::cell::BYTES_MAX;

/// Bytes of a value, at most: as many as one write may have.
pub const VALUE_BYTES_MAX: usize = base::limits::WRITE_BYTES_MAX;

/// How many bytes of a key count for the filter: the part that names the row. Keys of which the same bytes count are
/// told of together. More than the key has means all of it.
pub type FilterPrefix = fn(&[u8]) -> usize;

/// The name of a table on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// Whose state it is part of.
    pub cohort: CohortId,
    /// Counts the tables of the cohort on this disk.
    pub number: u64,
}

/// A table as a manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableRef {
    /// Its name on this disk. A range that was split off shares tables with the range it was part of, under the names
    /// that they have there.
    pub id: TableId,
    /// Where it stands in the tree.
    pub level: u8,
    /// Bytes of its file.
    pub bytes: u64,
    /// Its checksum, as [`TableMeta`] has it.
    pub checksum: u32,
}

/// What a key's value was from a timestamp on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The key.
    pub key: Bytes,
    /// From when on.
    pub timestamp: Timestamp,
    /// The entry of the log that said so.
    pub lsn: Lsn,
    /// The value; none if the key was deleted: a tombstone.
    pub value: Option<Bytes>,
}

/// A version that lies elsewhere: in a block, or in a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// From when on.
    pub timestamp: Timestamp,
    /// The entry of the log that said so.
    pub lsn: Lsn,
    /// The value; none if the key was deleted: a tombstone.
    pub value: Option<&'a [u8]>,
}

/// How a table is laid out. It may differ from table to table: no reader needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a block before it is compressed. A version that has more lies in a block of its own.
    pub block_bytes: usize,
    /// Bits of the filter for each key of it. Ten let about one in a hundred through; zero means no filter.
    pub filter_bits_per_key: usize,
}

/// Why a table can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// The disk failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such file.
    #[error("the table is missing")]
    Missing,
    /// The tables that a manifest names can't be one tree: some overlap that must not.
    #[error("the tables named are not a tree")]
    Tree,
    /// A key in it is none of a tablet's.
    #[error(transparent)]
    Key(#[from] crate::cell::NotACell),
    /// A block would have to be read from the disk, which was not allowed.
    #[error("a block is not in the cache")]
    NotCached,
    /// It is of a format that this version doesn't know.
    #[error("the table is of format {0}")]
    OtherFormat(u32),
    /// It is not what was written, or another's: it must come anew from another replica.
    #[error("{path} is damaged at byte {offset}, or another's")]
    Damaged {
        /// The file.
        path: String,
        /// Where the part that can't be believed begins, in bytes from the file's start.
        offset: u64,
    },
}

/// Bytes that are not what a writer writes, though their checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed;

impl TableId {
    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{DIRECTORY}/{}-{}", self.cohort, self.number)
    }

    /// What the name of a file in the directory says.
    fn parse(name: &str) -> Option<Self> {
        let (cohort, number) = name.split_once('-')?;
        let id = Self { cohort: CohortId(cohort.parse().ok()?), number: number.parse().ok()? };
        // A number may be written in several ways ("07"), of which one is a table's.
        (id.path().strip_prefix(DIRECTORY)?.strip_prefix('/')? == name).then_some(id)
    }
}

impl TableRef {
    /// Bytes of an encoded one.
    pub const BYTES: usize = 25;

    /// The table of that name, which stands in `level`.
    #[must_use]
    pub fn new(id: TableId, level: u8, meta: &TableMeta) -> Self {
        Self { id, level, bytes: meta.bytes, checksum: meta.checksum }
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.id.cohort.0);
        out.u64(self.id.number);
        out.u8(self.level);
        out.u64(self.bytes);
        out.u32(self.checksum);
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let id = TableId { cohort: CohortId(input.u32()?), number: input.u64()? };
        Ok(Self { id, level: input.u8()?, bytes: input.u64()?, checksum: input.u32()? })
    }
}

impl Config {
    /// Blocks of a page, and a filter that lets one in a hundred through.
    pub const DEFAULT: Self = Self { block_bytes: 4 << 10, filter_bits_per_key: 10 };
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl VersionRef<'_> {
    /// Bytes of its key and its value.
    pub(crate) fn bytes(&self) -> u64 {
        (self.key.len() + self.value.map_or(0, <[u8]>::len)) as u64
    }

    /// The version with a key of its own, and its value as who holds it shares it.
    #[must_use]
    pub fn to_version(&self, value: Option<Bytes>) -> Version {
        Version { key: Bytes::copy_from_slice(self.key), timestamp: self.timestamp, lsn: self.lsn, value }
    }
}

impl<'a> From<&'a Version> for VersionRef<'a> {
    fn from(version: &'a Version) -> Self {
        let Version { key, timestamp, lsn, value } = version;
        Self { key, timestamp: *timestamp, lsn: *lsn, value: value.as_deref() }
    }
}

/// The order of versions: by key ascending, then by timestamp descending.
#[inline]
#[must_use]
pub fn compare(left: (&[u8], Timestamp), right: (&[u8], Timestamp)) -> Ordering {
    left.0.cmp(right.0).then_with(|| right.1.cmp(&left.1))
}

/// Removes every file but the tables to keep: unfinished ones, and finished ones that no manifest came to name. To be
/// called at a start, before any table is written.
///
/// # Errors
/// When a file operation fails; the next start carries on.
pub fn remove_unnamed<F: Files>(files: &F, named: &BTreeSet<TableId>) -> Result<(), FileError> {
    for name in files.list(DIRECTORY)? {
        if TableId::parse(&name).is_none_or(|id| !named.contains(&id)) {
            remove_if_exists(files, &format!("{DIRECTORY}/{name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
