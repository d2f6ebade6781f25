//! The few file operations that the store needs, as a trait: the runtime implements it with the operating system's
//! files, [`crate::memory`] with a disk that forgets what was never forced.
//!
//! What an implementation owes the store:
//! * A write is durable once [`File::sync`] of that file returns, an entry of a directory once [`Files::sync_dir`] of that
//!   directory does; nothing is promised before. Power loss may keep any part of what was written and not forced, in
//!   sectors of 512 bytes.
//! * An error of [`File::sync`] is final: what was not forced then may be gone even if a later call succeeds, so the
//!   process ends (guarantee 25). Nothing in this crate tries a force again.
//! * Paths are relative to the data directory, with `/` between their parts; the empty path is the data directory.

use bytes::Bytes;
use thiserror::Error;

use crate::aligned::AlignedBuffer;

/// What an operation on files failed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileErrorKind {
    /// There is no file of that name.
    NotFound,
    /// There is a file of that name already.
    Exists,
    /// The disk is full.
    NoSpace,
    /// The simulated machine has lost its power, or the handle belongs to a process before this one.
    Crashed,
    /// Anything else: the disk can't be trusted any further.
    Other,
}

/// An operation on files that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("can't {op} {path}: {message}")]
pub struct FileError {
    /// What was to be done, as a verb.
    pub op: &'static str,
    /// With which file or directory.
    pub path: String,
    /// Why not, as far as a program cares.
    pub kind: FileErrorKind,
    /// Why not, in the operating system's words.
    pub message: String,
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Ask for IO past the page cache. Offsets, lengths and addresses are then multiples of [`crate::BLOCK_BYTES`]; an
    /// implementation that can't do so opens the file as any other.
    pub direct: bool,
}

impl OpenOptions {
    /// Through the page cache.
    pub const BUFFERED: Self = Self { direct: false };
    /// Past the page cache.
    pub const DIRECT: Self = Self { direct: true };
}

/// A file that can be read, as an object: who only reads need not know whose file it is.
pub trait ReadAt: Send + Sync {
    /// Reads from `offset` on, and says how many bytes: fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// When the disk can't read there.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError>;
}

/// A handle to an open file; its clones are handles to the same file.
pub trait File: ReadAt + Clone + 'static {
    /// Writes all of `bytes` at `offset`, making the file longer if they reach past its end.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// Forces what was written to this file, and its length.
    ///
    /// # Errors
    /// When that can't be promised: the process must end.
    fn sync(&self) -> Result<(), FileError>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// When it can't be asked.
    fn len(&self) -> Result<u64, FileError>;

    /// Whether the file holds no byte.
    ///
    /// # Errors
    /// When its length can't be asked.
    fn is_empty(&self) -> Result<bool, FileError> {
        self.len().map(|length| length == 0)
    }
}

/// The files under one data directory.
pub trait Files {
    /// A handle to an open file.
    type File: File;

    /// Opens a file that exists, to read and write.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when there is none.
    fn open(&self, path: &str, options: OpenOptions) -> Result<Self::File, FileError>;

    /// Creates an empty file.
    ///
    /// # Errors
    /// [`FileErrorKind::Exists`] when there is one of that name.
    fn create(&self, path: &str, options: OpenOptions) -> Result<Self::File, FileError>;

    /// The names (not paths) of the files in a directory, sorted.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when there is no such directory.
    fn list(&self, directory: &str) -> Result<Vec<String>, FileError>;

    /// Renames a file within its directory, taking the place of one that has the new name.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when there is no such file.
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;

    /// Removes a file.
    ///
    /// # Errors
    /// [`FileErrorKind::NotFound`] when there is no such file.
    fn remove(&self, path: &str) -> Result<(), FileError>;

    /// Creates a directory, unless it exists.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn create_dir(&self, path: &str) -> Result<(), FileError>;

    /// Forces what was created, renamed and removed in a directory.
    ///
    /// # Errors
    /// When that can't be promised: the process must end.
    fn sync_dir(&self, path: &str) -> Result<(), FileError>;
}

/// All that a file holds, up to `bytes_max`; nothing when there is no such file.
pub(crate) fn read_whole<F: Files>(files: &F, path: &str, bytes_max: u64) -> Result<Option<Bytes>, FileError> {
    let Some(file) = open_if_exists(files, path, OpenOptions::BUFFERED)? else { return Ok(None) };
    let length = usize::try_from(file.len()?.min(bytes_max)).unwrap_or(usize::MAX);
    let mut content = vec![0; length];
    let read = file.read_at(0, &mut content)?;
    content.truncate(read);
    Ok(Some(content.into()))
}

/// Opens a file; nothing when there is none.
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

/// Removes a file if there is one.
pub(crate) fn remove_if_exists<F: Files>(files: &F, path: &str) -> Result<bool, FileError> {
    match files.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind == FileErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts a file with this content in the place of `path` or leaves what was there: written beside it, forced, renamed,
/// the directory forced.
pub(crate) fn replace<F: Files>(files: &F, directory: &str, path: &str, content: &[u8]) -> Result<(), FileError> {
    let beside = format!("{path}{TEMPORARY}");
    remove_if_exists(files, &beside)?;
    let file = files.create(&beside, OpenOptions::BUFFERED)?;
    file.write_at(0, content)?;
    file.sync()?;
    files.rename(&beside, path)?;
    files.sync_dir(directory)
}

/// Fills a file with zeros from `from` up to `to`, both multiples of a block.
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

/// What the name of a file that isn't finished ends in.
pub(crate) const TEMPORARY: &str = ".new";
