//! The durable state of a node: its identity, its hard state, the write-ahead log shared by all of its cohorts,
//! checkpoints, and the SSTables of its tablets.
//!
//! **Architecture invariants:** this crate is synchronous. It has no clock, no randomness and no threads, and accesses
//! files only through [`files::Files`]. State ([`Store`], [`tree::Tree`]) and IO ([`log::Batch`],
//! [`manifest::ManifestWrite`], [`log::SegmentJob`], [`log::ReadPlan`], [`checkpoint::write_checkpoint`],
//! [`tree::FlushJob`], [`tree::CompactionJob`]) are separate objects: the machine's thread owns the state and never
//! waits for a disk, the driver runs the IO on any thread, and the simulator can crash between any two file operations.
//! The reader of a [`tree::View`] decides whether to access the disk. Damaged bytes never cause a panic.
//!
//! Promises: forced data is found again, in order and unaltered (guarantees 5 and 6); a damaged record is distinguished
//! from a torn one (guarantee 7); a failed force is not retried (guarantee 25).

mod aligned;
mod appender;
pub mod blank;
pub mod cell;
pub mod checkpoint;
pub mod erased;
mod error;
pub mod files;
pub mod handles;
pub mod identity;
pub mod log;
pub mod manifest;
pub mod memory;
mod open;
mod sealed;
pub mod shipping;
pub mod sstable;
mod store;
pub mod stream;
pub mod tree;

pub use aligned::AlignedBuffer;
pub use error::{RecordTooLarge, StoreError};
pub use log::LogSink;
pub use open::{Bulk, Recovered, format, open, open_into};
pub use store::{Config, Store};

/// The on-disk format that this version writes and reads.
pub const FORMAT: u32 = 13;

/// The directory of a shard's files, named by its number. In its parent are the identity and, before formatting, the number of
/// the blank disk: they are of the node.
pub const SHARD_DIRECTORY: &str = "0";

/// Block size for direct IO, in bytes: addresses, offsets and lengths are multiples of it, and batches are padded to
/// it.
pub const BLOCK_BYTES: usize = 4096;

#[cfg(test)]
mod testing;
