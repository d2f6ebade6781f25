//! Object-safe versions of [`Files`] and [`File`], for jobs that a driver runs without knowing the implementation. The
//! cost of an indirect call is negligible compared with a file operation.

use std::fmt;
use std::sync::Arc;

use crate::files::{File, FileError, Files, OpenOptions, ReadAt};

/// An open file as a trait object.
pub trait DynFileHandle: ReadAt {
    /// As [`File::write_at`].
    ///
    /// # Errors
    /// As for [`File::write_at`].
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// As [`File::sync`].
    ///
    /// # Errors
    /// As for [`File::sync`].
    fn sync(&self) -> Result<(), FileError>;

    /// As [`File::punch`].
    ///
    /// # Errors
    /// As for [`File::punch`].
    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError>;

    /// As [`File::len`].
    ///
    /// # Errors
    /// As for [`File::len`].
    fn length(&self) -> Result<u64, FileError>;
}

impl<F: File> DynFileHandle for F {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        File::write_at(self, offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        File::sync(self)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError> {
        File::punch(self, offset, length)
    }

    fn length(&self) -> Result<u64, FileError> {
        File::len(self)
    }
}

/// An open file of [`ErasedFiles`].
#[derive(Clone)]
pub struct ErasedFile(Arc<dyn DynFileHandle>);

impl ReadAt for ErasedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.0.read_at(offset, buffer)
    }
}

impl File for ErasedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        DynFileHandle::write_at(&*self.0, offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        DynFileHandle::sync(&*self.0)
    }

    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError> {
        self.0.punch(offset, length)
    }

    fn len(&self) -> Result<u64, FileError> {
        self.0.length()
    }
}

/// [`Files`] as a trait object, for jobs that do not know the implementation. Implemented for every [`Files`].
pub trait DynFiles {
    /// As [`Files::open`].
    ///
    /// # Errors
    /// As for [`Files::open`].
    fn open(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError>;

    /// As [`Files::create`].
    ///
    /// # Errors
    /// As for [`Files::create`].
    fn create(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError>;

    /// As [`Files::list`].
    ///
    /// # Errors
    /// As for [`Files::list`].
    fn list(&self, directory: &str) -> Result<Vec<String>, FileError>;

    /// As [`Files::rename`].
    ///
    /// # Errors
    /// As for [`Files::rename`].
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;

    /// As [`Files::remove`].
    ///
    /// # Errors
    /// As for [`Files::remove`].
    fn remove(&self, path: &str) -> Result<(), FileError>;

    /// As [`Files::create_dir`].
    ///
    /// # Errors
    /// As for [`Files::create_dir`].
    fn create_dir(&self, path: &str) -> Result<(), FileError>;

    /// As [`Files::sync_dir`].
    ///
    /// # Errors
    /// As for [`Files::sync_dir`].
    fn sync_dir(&self, path: &str) -> Result<(), FileError>;
}

impl<F: Files> DynFiles for F {
    fn open(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError> {
        Ok(ErasedFile(Arc::new(Files::open(self, path, options)?)))
    }

    fn create(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError> {
        Ok(ErasedFile(Arc::new(Files::create(self, path, options)?)))
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        Files::list(self, directory)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        Files::rename(self, from, to)
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        Files::remove(self, path)
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        Files::create_dir(self, path)
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        Files::sync_dir(self, path)
    }
}

impl fmt::Debug for ErasedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErasedFile").finish_non_exhaustive()
    }
}

/// [`DynFiles`] as [`Files`], for generic code.
#[derive(Clone, Copy)]
pub struct ErasedFiles<'a>(pub &'a dyn DynFiles);

impl Files for ErasedFiles<'_> {
    type File = ErasedFile;

    fn open(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError> {
        DynFiles::open(self.0, path, options)
    }

    fn create(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError> {
        DynFiles::create(self.0, path, options)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        DynFiles::list(self.0, directory)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        DynFiles::rename(self.0, from, to)
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        DynFiles::remove(self.0, path)
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        DynFiles::create_dir(self.0, path)
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        DynFiles::sync_dir(self.0, path)
    }
}
