//! The write-ahead log: one per node, shared by all its cohorts (Spinnaker 4.1, `PacificA` 3.3).
//!
//! It consists of *segments*: files of fixed length that are filled with zeros and forced in advance, or recycled, so
//! that forcing a batch changes no file metadata (one disk flush instead of two). Records that arrive during a force
//! are forced next, as one *batch* (group commit): a header and records, padded to whole blocks, within one segment.
//!
//! Every batch names its own position and owner, to detect stale, foreign and misdirected writes. It also names the
//! previous batch by position, length and checksum. An *echo* is a batch without records, written after a short idle
//! time, so that the last records are named by a later forced batch too.
//!
//! Invariants:
//! * At most one batch is in flight, and a batch is forced before the next one is written. So power loss can tear only
//!   the end of the log, at most one batch: an unreadable batch without any later batch is *torn* and cut off; one
//!   followed by a valid batch had been forced and is *damaged* (guarantee 7), and is never cut off silently.
//! * A cut-off part is overwritten with zeros and forced before anything is written there.
//! * Segments are released strictly oldest first, and only after the manifest names the new oldest one in both places
//!   (guarantee 5): earlier segments are ignored.
//! * Records are replayed in log order. An accepted entry or a truncation invalidates every earlier record of its
//!   cohort with the same or a higher sequence; epochs are never compared.

mod frame;
mod index;
mod read;
mod recovery;
mod segments;
mod writer;

pub use read::ReadPlan;
pub use recovery::{Damage, LogSink, RecoveredLog, cut_damaged, recover};
pub use segments::{DIRECTORY, SegmentJob};
pub use writer::{Batch, LogWriter};

pub use segments::path as segment_path;
pub(crate) use segments::segment_bytes_min;

/// Maximum bytes of a batch, unless a single record is larger. A force costs the same up to 64 KiB, and batches above a
/// megabyte save nothing more.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// A position in the log: the byte offset from the hypothetical start of segment 0. Segments are numbered from 1, so 0
/// is not a valid position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// The position at `offset` bytes in a segment.
    #[must_use]
    pub fn new(segment: u64, offset: u64, segment_bytes: u64) -> Self {
        Self(segment.saturating_mul(segment_bytes).saturating_add(offset))
    }

    /// The segment of the position.
    #[must_use]
    pub fn segment(self, segment_bytes: u64) -> u64 {
        self.0 / segment_bytes
    }

    /// Byte offset within the segment.
    #[must_use]
    pub fn offset(self, segment_bytes: u64) -> u64 {
        self.0 % segment_bytes
    }
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests;
