//! SSTables: the files of a log-structured merge tree (`BigTable`, section 4). An SSTable is written once, in order,
//! and is immutable. It holds *versions*: the value of a key from a timestamp on.
//!
//! A file consists of data blocks with an index block after every few of them, then a filter, the top index, and a
//! footer:
//!
//! ```text
//! data data ... index  data data ... index  filter  top-index  footer
//! ```
//!
//! * A *block* has entries in order, with prefix-compressed keys. It is compressed if that saves an eighth (`block`,
//!   `frame`).
//! * An *index block* names data blocks, and the *top index* names index blocks, each with a separator key (`index`).
//!   They have the format of data blocks.
//! * The *filter* excludes most keys that are not in the SSTable. It uses the key's prefix that identifies the row,
//!   independent of column and timestamp (`filter`).
//! * The *footer* records the SSTable's origin and statistics.
//!
//! An open SSTable keeps its filter and its top index in memory. Other blocks are read through a [`BlockCache`] shared
//! by all SSTables of a node.
//!
//! Invariants:
//! * Versions are ordered by key ascending, then by timestamp descending, newest first. No two have the same key and
//!   timestamp.
//! * Every byte of a file is covered by a checksum, and every checksum includes the SSTable's origin and the file
//!   offset, to detect stale, foreign and misdirected blocks. A manifest names an SSTable with its checksum
//!   ([`SstableRef`]), to detect a misplaced SSTable. An SSTable has the same bytes on every disk. Verified data may be
//!   cached; unverifiable data is [`SstableError::Damaged`]. Damage never causes a panic, or an allocation beyond the
//!   limits and the file's length.
//! * The file is forced, then its directory; only then may a manifest name it. A file that no manifest names is garbage
//!   and is removed at the next start ([`remove_unnamed`]).
//! * An SSTable number is not reused within its cohort while the process runs, because the cache identifies blocks by
//!   it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use base::{CohortId, Timestamp};
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
pub use cursor::SstableCursor;
pub(crate) use filter::hash as filter_hash;
pub use footer::{Origin, SstableMeta};
pub use reader::Sstable;
pub use writer::SstableWriter;

/// The directory of the SSTables.
pub const DIRECTORY: &str = "0/tables";

/// Maximum bytes of a key: those of the longest [`crate::cell`].
pub const KEY_BYTES_MAX: usize = crate::cell::BYTES_MAX;

/// Maximum bytes of a value: those of one write.
pub const VALUE_BYTES_MAX: usize = base::limits::WRITE_BYTES_MAX;

/// Returns the length of the key's prefix used by the filter: the part that names the row. Keys with the same prefix
/// share a filter entry. A length beyond the key means the whole key.
pub type FilterPrefix = fn(&[u8]) -> usize;

/// The name of an SSTable on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SstableId {
    /// The cohort that wrote or received it.
    pub cohort: CohortId,
    /// Counts the SSTables of the cohort on this disk.
    pub number: u64,
}

/// An SSTable as named by a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SstableRef {
    /// Its name on this disk. A range that was split off shares SSTables with its parent, under the parent's names.
    pub id: SstableId,
    /// Its level in the tree.
    pub level: u8,
    /// Size of the file.
    pub bytes: u64,
    /// Its checksum, as in [`SstableMeta`].
    pub checksum: u32,
}

/// The value of a key from a timestamp on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    pub key: Bytes,
    /// Start of its validity.
    pub timestamp: Timestamp,
    /// The value; `None` for a tombstone.
    pub value: Option<Bytes>,
}

/// A borrowed version, in a block or a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRef<'a> {
    pub key: &'a [u8],
    /// Start of its validity.
    pub timestamp: Timestamp,
    /// The value; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
}

/// Layout of an SSTable. May differ between SSTables; readers do not need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Uncompressed size of a block. A larger version gets its own block.
    pub block_bytes: usize,
    /// Bits per key in the filter. Ten give a false-positive rate of about 1%; zero disables the filter.
    pub filter_bits_per_key: usize,
}

/// Why an SSTable cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SstableError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not exist.
    #[error("the SSTable is missing")]
    Missing,
    /// The SSTables in a manifest do not form a tree: some overlap within a level.
    #[error("the SSTables in the manifest overlap within a level")]
    Tree,
    /// It contains a key that is not a valid cell.
    #[error(transparent)]
    Key(#[from] crate::cell::NotACell),
    /// A block is not cached, and reading from disk was not allowed.
    #[error("a block is not in the cache")]
    NotCached,
    /// It has an unknown format.
    #[error("the SSTable has format {0}")]
    OtherFormat(u32),
    /// It is damaged, or another SSTable: it must be fetched from another replica.
    #[error("{path} is damaged at byte {offset}, or is another SSTable")]
    Damaged {
        path: String,
        /// Byte offset of the damaged part.
        offset: u64,
    },
}

/// Invalid content despite a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed;

impl SstableId {
    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{DIRECTORY}/{}-{}", self.cohort, self.number)
    }

    /// Parses the name of an SSTable file.
    fn parse(name: &str) -> Option<Self> {
        let (cohort, number) = name.split_once('-')?;
        let id = Self { cohort: CohortId(cohort.parse().ok()?), number: number.parse().ok()? };
        // Rejects other spellings of a number, such as "07".
        (id.path().strip_prefix(DIRECTORY)?.strip_prefix('/')? == name).then_some(id)
    }
}

impl SstableRef {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = 25;

    /// A reference to an SSTable in `level`.
    #[must_use]
    pub fn new(id: SstableId, level: u8, meta: &SstableMeta) -> Self {
        Self { id, level, bytes: meta.bytes, checksum: meta.checksum }
    }
}

base::wire! { struct SstableId { cohort, number } }
base::wire! { struct SstableRef { id, level, bytes, checksum } }

impl Config {
    /// Blocks of a page, and a filter with a false-positive rate of 1%.
    pub const DEFAULT: Self = Self { block_bytes: 4 << 10, filter_bits_per_key: 10 };
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl VersionRef<'_> {
    /// Bytes of the key and the value.
    pub(crate) fn bytes(&self) -> u64 {
        (self.key.len() + self.value.map_or(0, <[u8]>::len)) as u64
    }

    /// Copies the key; `value` must be the same value as a shared buffer.
    #[must_use]
    pub fn to_version(&self, value: Option<Bytes>) -> Version {
        Version { key: Bytes::copy_from_slice(self.key), timestamp: self.timestamp, value }
    }
}

impl<'a> From<&'a Version> for VersionRef<'a> {
    fn from(version: &'a Version) -> Self {
        let Version { key, timestamp, value } = version;
        Self { key, timestamp: *timestamp, value: value.as_deref() }
    }
}

/// The order of versions: by key ascending, then by timestamp descending.
#[inline]
#[must_use]
pub fn compare(left: (&[u8], Timestamp), right: (&[u8], Timestamp)) -> Ordering {
    left.0.cmp(right.0).then_with(|| right.1.cmp(&left.1))
}

/// Removes every file except the named SSTables: unfinished ones, and finished ones that no manifest names. Call at
/// startup, before any SSTable is written.
///
/// # Errors
/// When a file operation fails; the next start continues.
pub fn remove_unnamed<F: Files>(files: &F, named: &BTreeSet<SstableId>) -> Result<(), FileError> {
    for name in files.list(DIRECTORY)? {
        if SstableId::parse(&name).is_none_or(|id| !named.contains(&id)) {
            remove_if_exists(files, &format!("{DIRECTORY}/{name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
