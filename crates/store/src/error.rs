//! What can go wrong, coarse by what the caller should do.

use base::NodeId;
use thiserror::Error;

use crate::files::FileError;

/// Why a data directory can't be opened, formatted or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// A file operation failed: the process must end, and may be started again.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no identity: format the directory, or point to the right one.
    #[error("the data directory is not formatted: it has no file `identity`")]
    NotFormatted,
    /// The directory was written in a format that this version doesn't know.
    #[error("{what} is of format {found}, this version reads format {known}")]
    OtherFormat {
        /// The file.
        what: &'static str,
        /// The format found.
        found: u32,
        /// The format known.
        known: u32,
    },
    /// Both copies of something are damaged or missing: the disk is lost, and the node comes back as a new replica
    /// under a new incarnation (guarantee 6).
    #[error("no whole copy of the {what} is left: this disk is lost, format it under a new incarnation")]
    Lost {
        /// What was lost.
        what: &'static str,
    },
    /// Part of what the only node of a universe had forced is damaged: there is no other copy to mend it from. Nothing
    /// was changed.
    #[error("{what} is damaged, and a universe of one node has no other copy")]
    NothingToMendFrom {
        /// What is damaged.
        what: String,
    },
    /// The directory belongs to another node, universe or incarnation.
    #[error("the data directory belongs to node {node} of another universe or incarnation, or with other members")]
    OtherIdentity {
        /// The node whose it is.
        node: NodeId,
    },
    /// There is data without an identity: formatting would destroy it.
    #[error("the data directory has no identity but holds a node's data: it is not formatted over")]
    InUse,
    /// A setting that can't work.
    #[error("segment_bytes must be a multiple of 4096 and at least {least}, not {found}")]
    SegmentBytes {
        /// The least that works.
        least: u64,
        /// What was set.
        found: u64,
    },
}

/// A record that fits in no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a record of {bytes} bytes fits in no segment: at most {limit} do")]
pub struct RecordTooLarge {
    /// Bytes of the record.
    pub bytes: usize,
    /// Bytes of the largest that fits.
    pub limit: usize,
}
