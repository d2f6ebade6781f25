//! Where a state machine's bulk data lies on a node's disk, behind one interface: what is flushed before a checkpoint is
//! taken, what is done in the background, which files a manifest names, how they travel to another replica, and how fast
//! may be written. A log-structured merge tree is one implementation (`tree`); one that writes in place can be
//! another.
//!
//! State and IO are separate objects, as everywhere: a storage is owned by the machine's thread and never waits for a
//! disk. A [`Job`] carries itself out wherever the driver likes, against whatever files it has.
//!
//! No write or read of data goes through this interface, only what happens once for many of them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use store::erased::DynFiles;
use store::files::FileError;
use store::sstable::TableError;

use crate::checkpoint::Keep;

mod tree;

pub use store::sstable::{Io, TableId as FileId, TableRef as FileRef};
pub use store::tree::JobError;

/// How much a storage presses its writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes in memory that no file holds yet.
    pub memory_bytes: u64,
    /// Whether writers should wait: flushes or compactions don't keep up with them.
    pub is_stalled: bool,
    /// Bytes that writers may add in a second; none: as many as they like.
    pub pace: Option<u64>,
}

/// A file that a storage keeps, as it is sent to another replica.
pub trait StoredFile: fmt::Debug + Send + Sync {
    /// The file's bytes from `offset` on, `bytes_max` at most.
    ///
    /// # Errors
    /// When the disk fails, or the file has lost its end.
    fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, ReadError>;
}

/// Why data can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The disk would have to be waited for, which was not allowed.
    #[error("the data is not in memory")]
    NotCached,
    /// The data is damaged, or the disk failed.
    #[error("{0}")]
    Damaged(String),
}

impl From<TableError> for ReadError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::NotCached => Self::NotCached,
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// How far a step of a job came.
#[derive(Debug)]
pub enum Progress {
    /// There is more to do. So many bytes of data were read: what a driver limits the rate of.
    Working {
        /// Keys and values.
        bytes: u64,
    },
    /// All is done: to be handed to the storage.
    Done(Outputs),
}

/// What a job has made. Only the storage that gave the job out knows what it is.
#[derive(Debug)]
pub struct Outputs {
    /// The files that it wrote. They are forced, and nothing names them yet.
    pub made: Vec<FileId>,
    content: Box<dyn Any + Send>,
}

impl Outputs {
    /// What a job of one storage has made.
    pub fn new<T: Any + Send>(made: Vec<FileId>, content: T) -> Self {
        Self { made, content: Box::new(content) }
    }

    /// What it is.
    ///
    /// # Panics
    /// When it was made by a job of another storage.
    pub fn content<T: Any>(&self) -> &T {
        self.content.downcast_ref().expect("a job's outputs go to the storage that gave it out")
    }
}

/// Files that storages have given up, until nobody reads them any more.
pub type Leftovers = store::tree::Leftovers<dyn StoredFile>;

/// Work on a storage's files.
pub trait Job: fmt::Debug + Send {
    /// Does some of the work. After the last step what was made is forced, and so is its directory.
    ///
    /// # Errors
    /// When a file operation fails. What was written is removed again, unless the process must end.
    fn step(&mut self, files: &dyn DynFiles) -> Result<Progress, JobError>;

    /// Bytes that a step reads, about.
    fn step_bytes(&self) -> u64;

    /// Whether writers wait for it, so that its rate is not to be limited.
    fn is_urgent(&self) -> bool;
}

/// Files that have arrived from another replica, to be looked through.
pub trait Adoption: fmt::Debug + Send {
    /// Forces the files and their directory, looks through them, and makes a storage of them.
    ///
    /// # Errors
    /// [`AdoptError::File`] when the disk fails, [`AdoptError::Refused`] when they are not what they should be.
    fn run(self: Box<Self>, files: &dyn DynFiles) -> Result<Box<dyn Storage>, AdoptError>;
}

/// Why files that arrived are no storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// A file operation failed.
    #[error(transparent)]
    File(FileError),
    /// They are not what they should be.
    #[error("{0}")]
    Refused(String),
}

/// A state machine's bulk data on one disk.
pub trait Storage: Any + fmt::Debug + Send {
    /// How much it presses its writers.
    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    /// Whether a checkpoint is due for the sake of memory.
    fn needs_flush(&self) -> bool {
        false
    }

    /// Freezes what is in memory and gives the job that writes it into files, if there is anything: a checkpoint taken now
    /// is complete with it. What `keep` doesn't name may be left out.
    fn flush(&mut self, _keep: &Keep) -> Option<Box<dyn Job>> {
        None
    }

    /// Takes in what a flush has made.
    fn flushed(&mut self, _outputs: &Outputs) {}

    /// The flush under way ended with an error, or was dropped: it is to be done again.
    fn flush_failed(&mut self) {}

    /// Background work, if some is due and none is under way. What `keep` doesn't name may be left out.
    fn compaction(&mut self, _keep: &Keep) -> Option<Box<dyn Job>> {
        None
    }

    /// Takes in what background work has made.
    fn compacted(&mut self, _outputs: &Outputs) {}

    /// The background work under way ended with an error, or was dropped.
    fn compaction_failed(&mut self) {}

    /// The files that a manifest is to name beside the newest checkpoint.
    fn files(&self) -> Vec<FileRef> {
        Vec::new()
    }

    /// Manifests that a start may find name these files: others may go.
    fn forced(&mut self, _named: &[FileRef]) {}

    /// Whether it has files that it needs no more, which a manifest may still name.
    fn has_leftovers(&self) -> bool {
        false
    }

    /// The files that it needs no more and that no manifest names, each with its name.
    fn give_up(&mut self) -> Vec<(FileId, Arc<dyn StoredFile>)> {
        Vec::new()
    }

    /// The files with the names that a manifest has for them, to be sent to another replica.
    fn ship(&self) -> Vec<(FileRef, Arc<dyn StoredFile>)> {
        Vec::new()
    }

    /// The names on this disk of files that arrive from another.
    fn rename(&self, _files: &[FileRef]) -> Vec<FileRef> {
        Vec::new()
    }

    /// What makes a storage of files that have arrived, under their names on this disk.
    fn adoption(&self, _files: Vec<FileRef>) -> Box<dyn Adoption> {
        Box::new(NoStorage)
    }

    /// Takes the place of what it held by what has arrived. Files that it had are given up once no manifest names them.
    fn replace(&mut self, arrived: Box<dyn Storage>);

    /// Gives up all its files, for good: no manifest names them.
    fn retire(&mut self) {}

    /// Checks what must always hold.
    ///
    /// # Panics
    /// When an invariant is broken.
    fn invariants(&self) {}
}

/// The storage as what it is.
///
/// # Panics
/// When it is another: a cohort's storage is always of its machine's kind.
#[must_use]
pub fn downcast<S: Storage>(storage: Box<dyn Storage>) -> S {
    let storage: Box<dyn Any> = storage;
    *storage.downcast().expect("a cohort's storage is of its machine's kind")
}

/// The storage of a machine whose whole state is in its checkpoint.
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
