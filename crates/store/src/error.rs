//! Errors, grouped by how the caller should react.

use base::NodeId;
use thiserror::Error;

use crate::files::FileError;

/// Why a data directory cannot be opened, formatted or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// A file operation failed: the process must end and may be restarted.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no identity: format the directory, or use the right one.
    #[error("the data directory is not formatted: it has no file `identity`")]
    NotFormatted,
    /// The directory has an unknown format.
    #[error("{what} has format {found}; this version reads format {known}")]
    OtherFormat {
        what: &'static str,
        found: u32,
        /// The format of this version.
        known: u32,
    },
    /// Both copies are damaged or missing: the disk is lost, and the node must rejoin as a new replica with a new
    /// incarnation (guarantee 6).
    #[error("no intact copy of the {what} remains: this disk is lost; format it with a new incarnation")]
    Lost { what: &'static str },
    /// Forced data of a single-node cluster is damaged, and there is no other copy for a repair. Nothing was changed.
    #[error("{what} is damaged, and a cluster of one node has no other copy")]
    NoCopyToRepairFrom { what: String },
    /// The directory belongs to another node, cluster or incarnation.
    #[error("the data directory belongs to node {node} of another cluster or incarnation, or with other members")]
    OtherIdentity {
        /// The node that the directory belongs to.
        node: NodeId,
    },
    /// There is data without an identity: formatting would destroy it.
    #[error(
        "the data directory has no identity but contains a node's data: it is not formatted, to preserve that data"
    )]
    InUse,
    #[error("segment_bytes must be a multiple of 4096 and at least {least}, not {found}")]
    SegmentBytes {
        /// The smallest valid value.
        least: u64,
        found: u64,
    },
}

/// A record does not fit in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a record of {bytes} bytes does not fit in a segment: the limit is {limit}")]
pub struct RecordTooLarge {
    /// Size of the record.
    pub bytes: usize,
    /// Size of the largest record that fits.
    pub limit: usize,
}
