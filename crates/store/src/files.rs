//! The file operations that the store needs, as a trait. The runtime implements it with the operating system's files,
//! and [`crate::memory`] with a simulated disk that loses unforced data.
//!
//! Requirements for an implementation:
//! * A write is durable once [`File::sync`] of that file returns, and a directory entry once [`Files::sync_dir`] of
//!   that directory does; not before. Power loss may keep any subset of the unforced sectors (512 bytes).
//! * An error of [`File::sync`] is final: unforced data may be lost even if a later call succeeds, so the process ends
//!   (guarantee 25). This crate never retries a force.
//! * Paths are relative to the data directory, with `/` between components; the empty path is the data directory.

use bytes::Bytes;
use thiserror::Error;

use crate::aligned::AlignedBuffer;

/// The kind of a failed file operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileErrorKind {
    /// The file does not exist.
    NotFound,
    /// The file already exists.
    Exists,
    /// The disk is full.
    NoSpace,
    /// The simulated machine has lost power, or the handle belongs to an earlier process.
    Crashed,
    /// Any other error: the disk cannot be trusted any more.
    Other,
}

/// A failed file operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot {op} {path}: {message}")]
pub struct FileError {
    /// The operation, as a verb.
    pub op: &'static str,
    /// The affected file or directory.
    pub path: String,
    /// The cause, for programs.
    pub kind: FileErrorKind,
    /// The operating system's message.
    pub message: String,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Use direct IO, bypassing the page cache. Offsets, lengths and addresses must be multiples of
    /// [`crate::BLOCK_BYTES`]. An implementation without direct IO may ignore this.
    pub direct: bool,
}

impl OpenOptions {
    /// Through the page cache.
    pub const BUFFERED: Self = Self { direct: false };
    pub const DIRECT: Self = Self { direct: true };
}

/// A readable file, as an object-safe trait, so that readers do not depend on the implementation.
pub trait ReadAt: Send + Sync {
    /// Reads from `offset` and returns the number of bytes: fewer than requested only at the end of the file.
    ///
    /// # Errors
    /// When the disk fails to read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError>;
}

/// A handle to an open file. Clones refer to the same file.
pub trait File: ReadAt + Clone + 'static {
    /// Writes all of `bytes` at `offset`, extending the file if necessary.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Makes the content and length of the file durable (fsync).
    ///
    /// # Errors
    /// When durability is uncertain: the process must end.
    fn sync(&self) -> Result<(), FileError>;

    /// Releases the disk space of a part of the file, if the file system can do that. The content of the part is undefined
    /// until it is written again, and the length of the file stays. Offset and length are multiples of
    /// [`crate::BLOCK_BYTES`].
    ///
    /// # Errors
    /// When the disk fails.
    fn punch(&self, _offset: u64, _length: u64) -> Result<(), FileError> {
        Ok(())
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    /// When the file system does not report it.
    fn len(&self) -> Result<u64, FileError>;

    /// Whether the file is empty.
    ///
    /// # Errors
    /// As for [`File::len`].
    fn is_empty(&self) -> Result<bool, FileError> {
        self.len().map(|length| length == 0)
    }
}

/// The files in one data directory.
pub trait Files {
    /// A handle to an open file.
    type File: File;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when it does not exist.
    fn open(&self, path: &str, options: OpenOptions) -> Result<Self::File, FileError>;

    /// Creates an empty file.
    ///
    /// # Errors
    /// [`FileErrorKind::Exists`] when it already exists.
    fn create(&self, path: &str, options: OpenOptions) -> Result<Self::File, FileError>;

    /// The names (not paths) of the files in a directory, sorted.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when the directory does not exist.
    fn list(&self, directory: &str) -> Result<Vec<String>, FileError>;

    /// Renames a file within its directory, replacing any file with the new name.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when it does not exist.
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;

    /// Removes a file.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when it does not exist.
    fn remove(&self, path: &str) -> Result<(), FileError>;

    /// Creates a directory, unless it exists.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn create_dir(&self, path: &str) -> Result<(), FileError>;

    /// Makes creations, renames and removals in a directory durable.
    ///
    /// # Errors
    /// When durability is uncertain: the process must end.
    fn sync_dir(&self, path: &str) -> Result<(), FileError>;
}

/// The content of a file, up to `bytes_max`; `None` if it does not exist.
pub(crate) fn read_whole<F: Files>(files: &F, path: &str, bytes_max: u64) -> Result<Option<Bytes>, FileError> {
    let Some(file) = open_if_exists(files, path, OpenOptions::BUFFERED)? else { return Ok(None) };
    let length = usize::try_from(file.len()?.min(bytes_max)).unwrap_or(usize::MAX);
    let mut content = vec![0; length];
    let read = file.read_at(0, &mut content)?;
    content.truncate(read);
    Ok(Some(content.into()))
}

/// Opens a file; `None` if it does not exist.
pub(crate) fn open_if_exists<F: Files>(
    files: &F,
    path: &str,
    options: OpenOptions,
) -> Result<Option<F::File>, FileError> {
    match files.open(path, options) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind == FileErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file if it exists. Returns whether it did.
pub(crate) fn remove_if_exists<F: Files>(files: &F, path: &str) -> Result<bool, FileError> {
    match files.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind == FileErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Atomically replaces the content of `path`: writes and forces a temporary file, renames it, and forces the directory.
pub(crate) fn replace<F: Files>(files: &F, directory: &str, path: &str, content: &[u8]) -> Result<(), FileError> {
    let beside = format!("{path}{TEMPORARY}");
    remove_if_exists(files, &beside)?;
    let file = files.create(&beside, OpenOptions::BUFFERED)?;
    file.write_at(0, content)?;
    file.sync()?;
    files.rename(&beside, path)?;
    files.sync_dir(directory)
}

/// Fills a file with zeros from `from` to `to`, both multiples of the block size.
pub(crate) fn write_zeros<F: File>(file: &F, from: u64, to: u64) -> Result<(), FileError> {
    const STEP: u64 = 1 << 20;
    let zeros = AlignedBuffer::zeroed(usize::try_from(STEP.min(to.saturating_sub(from))).unwrap_or(0));
    let mut at = from;
    while at < to {
        let step = (to - at).min(STEP);
        file.write_at(at, &zeros[..usize::try_from(step).unwrap_or(0)])?;
        at += step;
    }
    Ok(())
}

/// Suffix of unfinished files.
pub(crate) const TEMPORARY: &str = ".new";
