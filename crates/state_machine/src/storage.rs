//! The bulk data of a state machine on a node's disk, behind one interface: flushes before a checkpoint, background
//! work, the files that a manifest names, their transfer to another replica, and write pacing. There are two
//! implementations: a log-structured merge tree (`tree`), and blocks in place (`stream`).
//!
//! State and IO are separate objects. A storage is owned by the machine's thread and never blocks on a disk. A [`Job`]
//! contains all it needs and runs on any thread, with the files that the driver passes in.
//!
//! Individual reads and writes of data do not go through this interface, only operations that are amortized over many
//! of them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use store::erased::DynFiles;
use store::files::FileError;
use store::sstable::SstableError;

use crate::checkpoint::Keep;

mod stream;
mod tree;

pub use store::sstable::{Io, SstableId as FileId, SstableRef as FileRef};
pub use store::tree::JobError;

/// Backpressure of a storage on its writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes in memory that are not in a file yet.
    pub memory_bytes: u64,
    /// Whether writers must stall because flushes or compactions do not keep up.
    pub is_stalled: bool,
    /// The rate limit for writers in bytes per second; none: unlimited.
    pub pace: Option<u64>,
}

/// A file of a storage, as it is sent to another replica.
pub trait StoredFile: fmt::Debug + Send + Sync {
    /// Reads up to `bytes_max` bytes of the file from `offset`.
    ///
    /// # Errors
    /// The disk fails, or the file is truncated.
    fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, ReadError>;

    /// Reads the whole file and verifies its checksums.
    ///
    /// # Errors
    /// The disk fails, or the file is corrupt.
    fn verify(&self) -> Result<(), ReadError>;
}

/// Why data cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The read would block on the disk, which the caller did not allow.
    #[error("the data is not in memory")]
    NotCached,
    /// The data was received from another replica, and the log has not completed it yet.
    #[error("{0}")]
    Incomplete(String),
    /// One block of the data is corrupt. Other replicas may have it.
    #[error("{message}")]
    DamagedBlock {
        /// Its number in the machine's data.
        block: u64,
        message: String,
    },
    /// The data is corrupt, or the disk failed.
    #[error("{0}")]
    Damaged(String),
}

impl From<SstableError> for ReadError {
    fn from(error: SstableError) -> Self {
        match error {
            SstableError::NotCached => Self::NotCached,
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// The result of one step of a job.
#[derive(Debug)]
pub enum JobStep {
    /// The job is not finished. The driver rate-limits jobs by `bytes`.
    Working {
        /// Bytes of keys and values that the step read.
        bytes: u64,
    },
    /// The job is finished. The outputs are passed to the storage.
    Done(Outputs),
}

/// The outputs of a job. Only the storage that created the job knows the type of the content.
#[derive(Debug)]
pub struct Outputs {
    /// The files written. They are synced, and no manifest names them yet.
    pub made: Vec<FileId>,
    content: Box<dyn Any + Send>,
}

impl Outputs {
    /// The outputs of a job of a storage.
    pub fn new<T: Any + Send>(made: Vec<FileId>, content: T) -> Self {
        Self { made, content: Box::new(content) }
    }

    /// The content.
    ///
    /// # Panics
    /// If another type of storage created the job.
    pub fn content<T: Any>(&self) -> &T {
        self.content.downcast_ref().expect("a job's outputs are passed to the storage that created it")
    }
}

/// Files that storages have released, until their last reader is done.
pub type Leftovers = store::tree::Leftovers<dyn StoredFile>;

/// Background work on a storage's files.
pub trait Job: fmt::Debug + Send {
    /// Does part of the work. After the last step the files and their directory are synced.
    ///
    /// # Errors
    /// A file operation fails. The files written so far are removed, unless the error ends the process.
    fn step(&mut self, files: &dyn DynFiles) -> Result<JobStep, JobError>;

    /// Approximate bytes that a step reads.
    fn step_bytes(&self) -> u64;

    /// Whether writers wait for the job, so that its rate must not be limited.
    fn is_urgent(&self) -> bool;
}

/// Files received from another replica, to be verified.
pub trait Adoption: fmt::Debug + Send {
    /// Syncs the files and their directory, verifies them, and creates a storage from them.
    ///
    /// # Errors
    /// [`AdoptError::File`] if the disk fails, [`AdoptError::Refused`] if the files are not valid.
    fn run(self: Box<Self>, files: &dyn DynFiles) -> Result<Box<dyn Storage>, AdoptError>;
}

/// Why received files cannot become a storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// A file operation failed.
    #[error(transparent)]
    File(FileError),
    /// The files are not valid.
    #[error("{0}")]
    Refused(String),
}

/// A state machine's bulk data on one disk.
pub trait Storage: Any + fmt::Debug + Send {
    /// The current backpressure on writers.
    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    /// Whether a checkpoint is due to free memory.
    fn needs_flush(&self) -> bool {
        false
    }

    /// Freezes the data in memory and returns the job that writes it to files, or none if there is no data. The job's
    /// outputs complete a checkpoint taken now. The job may drop data that `keep` does not include.
    fn flush(&mut self, _keep: &Keep) -> Option<Box<dyn Job>> {
        None
    }

    /// Installs the outputs of a flush.
    fn flushed(&mut self, _outputs: &Outputs) {}

    /// The current flush failed or was dropped: the same data must be flushed again.
    fn flush_failed(&mut self) {}

    /// Returns a compaction if one is due and none is running. The job may drop data that `keep` does not include.
    fn compaction(&mut self, _keep: &Keep) -> Option<Box<dyn Job>> {
        None
    }

    /// Installs the outputs of a compaction.
    fn compacted(&mut self, _outputs: &Outputs) {}

    /// The current compaction failed or was dropped.
    fn compaction_failed(&mut self) {}

    /// The files that a manifest must name together with the newest checkpoint.
    fn files(&self) -> Vec<FileRef> {
        Vec::new()
    }

    /// The manifests that a restart may find name only these files: other files may be deleted.
    fn forced(&mut self, _named: &[FileRef]) {}

    /// Whether it has obsolete files that a manifest may still name.
    fn has_leftovers(&self) -> bool {
        false
    }

    /// Releases the obsolete files that no manifest names, each with its id.
    fn give_up(&mut self) -> Vec<(FileId, Arc<dyn StoredFile>)> {
        Vec::new()
    }

    /// The files to send to another replica, with the references that a manifest has for them.
    fn ship(&self) -> Vec<(FileRef, Arc<dyn StoredFile>)> {
        Vec::new()
    }

    /// Whether flushes overwrite data in place. The files change while they are sent, so the log since the checkpoint must
    /// be kept until the receiver has it: it completes the copy (guarantee 29).
    fn is_in_place(&self) -> bool {
        false
    }

    /// Assigns ids on this disk to files received from another replica.
    fn rename(&self, _files: &[FileRef]) -> Vec<FileRef> {
        Vec::new()
    }

    /// Creates a storage from received files with their ids on this disk.
    fn adoption(&self, _files: Vec<FileRef>) -> Box<dyn Adoption> {
        Box::new(NoStorage)
    }

    /// Replaces the content by received data. The previous files are released once no manifest names them.
    fn replace(&mut self, arrived: Box<dyn Storage>);

    /// Releases all files permanently: no manifest names them.
    fn retire(&mut self) {}

    /// Checks the invariants.
    ///
    /// # Panics
    /// If an invariant is broken.
    fn invariants(&self) {}
}

/// Downcasts a storage to its concrete type.
///
/// # Panics
/// If the type differs: a cohort's storage always has the type of its machine's kind.
#[must_use]
pub fn downcast<S: Storage>(storage: Box<dyn Storage>) -> S {
    let storage: Box<dyn Any> = storage;
    *storage.downcast().expect("a cohort's storage has the type of its machine's kind")
}

/// The storage of a machine that keeps its whole state in its checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStorage;

impl Storage for NoStorage {
    fn replace(&mut self, _: Box<dyn Storage>) {}
}

impl Adoption for NoStorage {
    fn run(self: Box<Self>, _: &dyn DynFiles) -> Result<Box<dyn Storage>, AdoptError> {
        Ok(self)
    }
}
