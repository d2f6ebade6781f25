//! The write-ahead log: one a node, shared by all its cohorts (Spinnaker 4.1, `PacificA` 3.3).
//!
//! It lies in *segments*, files of one length, filled with zeros and forced before they are used or recycled from ones
//! that nobody needs, so that forcing a batch changes no file's length or place (one flush instead of two). What
//! gathers while one force runs is forced next, as one *batch*: a header and records, padded to whole blocks, in one
//! segment.
//!
//! Every batch names its own place and owner, so that stale, foreign and misdirected writes show; and it names the
//! batch before it by position, length and checksum. An *echo* is a batch without records: written when nothing else
//! came for a while, so that the last records too are named by something that was forced after them.
//!
//! Invariants:
//! * One batch is in flight at most, and a batch is forced before the next is written. So what power loss tears is the
//!   end of the log and one batch at most: an unreadable batch with nothing of this log after it is *torn* and cut;
//!   with anything valid after it, it had been forced and is *damaged* (guarantee 7), never cut in silence.
//! * What is cut is overwritten with zeros, forced, before anything is written there.
//! * Segments go strictly oldest first, and only after the manifest names the new oldest in both places (guarantee 5):
//!   what lies before that number is ignored, whatever it holds.
//! * Records are replayed in log order. An accepted entry or a truncation kills every earlier record of its cohort with
//!   the same or a higher sequence; epochs are never compared.

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

/// Bytes of a batch, at most, unless one record alone has more: a force costs the same up to 64 KiB, and beyond a
/// megabyte there is nothing left to save.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// A place in the log, in bytes from where segment 0 would begin. Segments are numbered from 1, so 0 is no place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// The place `offset` bytes into a segment.
    #[must_use]
    pub fn new(segment: u64, offset: u64, segment_bytes: u64) -> Self {
        Self(segment.saturating_mul(segment_bytes).saturating_add(offset))
    }

    /// The segment it lies in.
    #[must_use]
    pub fn segment(self, segment_bytes: u64) -> u64 {
        self.0 / segment_bytes
    }

    /// Bytes from that segment's start.
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
