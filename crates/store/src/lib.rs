//! What a node keeps on its disk: its identity, its hard state, the write-ahead log that all its cohorts share, their
//! checkpoints and the sorted tables of their tablets.
//!
//! **Architecture invariants:** this crate is synchronous. It reads no clock, draws no randomness, starts no thread and
//! knows no file but through [`files::Files`]. State ([`Store`], [`tree::Tree`]) and IO ([`log::Batch`],
//! [`manifest::ManifestWrite`], [`log::SegmentJob`], [`log::ReadPlan`], [`checkpoint::write_checkpoint`],
//! [`tree::FlushJob`], [`tree::CompactionJob`]) are separate objects: the machine's thread owns the state and never
//! waits for a disk, the IO runs wherever the driver likes, and the simulator crashes between any two file operations.
//! Who reads a [`tree::View`] says whether the disk may be asked. No damaged byte makes it panic.
//!
//! What it promises: what was forced is found again, in order, with nothing invented (guarantees 5 and 6); a damaged
//! record is told from a torn one (guarantee 7); no force is tried twice (guarantee 25).

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
pub mod tree;

pub use aligned::AlignedBuffer;
pub use error::{RecordTooLarge, StoreError};
pub use log::LogSink;
pub use open::{Recovered, format, open, open_into};
pub use store::{Config, Store};

/// The format that this version writes and reads.
pub const FORMAT: u32 = 7;

/// The unit of IO past the page cache: addresses, offsets and lengths are multiples of it, and batches are padded to
/// it.
pub const BLOCK_BYTES: usize = 4096;

#[cfg(test)]
mod testing;
