//! [`Files`] and [`File`] as objects, for work that is handed to a driver without knowing whose files it gets. One more
//! indirect call for each file operation is nothing beside the operation.

use std::sync::Arc;

use crate::files::{File, FileError, Files, OpenOptions, ReadAt};

/// An open file as an object.
pub trait DynFileHandle: ReadAt {
    /// As [`File::write_at`].
    ///
    /// # Errors
    /// As there.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError>;

    /// As [`File::sync`].
    ///
    /// # Errors
    /// As there.
    fn sync(&self) -> Result<(), FileError>;

    /// As [`File::len`].
    ///
    /// # Errors
    /// As there.
    fn length(&self) -> Result<u64, FileError>;
}

impl<F: File> DynFileHandle for F {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        File::write_at(self, offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        File::sync(self)
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

    fn len(&self) -> Result<u64, FileError> {
        self.0.length()
    }
}

/// [`Files`] as an object: work that is handed to a driver need not know whose files it gets. Every [`Files`] is one.
pub trait DynFiles {
    /// As [`Files::open`].
    ///
    /// # Errors
    /// As there.
    fn open(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError>;

    /// As [`Files::create`].
    ///
    /// # Errors
    /// As there.
    fn create(&self, path: &str, options: OpenOptions) -> Result<ErasedFile, FileError>;

    /// As [`Files::list`].
    ///
    /// # Errors
    /// As there.
    fn list(&self, directory: &str) -> Result<Vec<String>, FileError>;

    /// As [`Files::rename`].
    ///
    /// # Errors
    /// As there.
    fn rename(&self, from: &str, to: &str) -> Result<(), FileError>;

    /// As [`Files::remove`].
    ///
    /// # Errors
    /// As there.
    fn remove(&self, path: &str) -> Result<(), FileError>;

    /// As [`Files::create_dir`].
    ///
    /// # Errors
    /// As there.
    fn create_dir(&self, path: &str) -> Result<(), FileError>;

    /// As [`Files::sync_dir`].
    ///
    /// # Errors
    /// As there.
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

/// [`DynFiles`] as [`Files`], for code that is generic in them.
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
