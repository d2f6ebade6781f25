//! Limits the number of open files: a node may have more SSTables than a process may open. Recently read files stay
//! open (LRU), and others are reopened when they are read.
//!
//! For files that are written once and then only read. A created file is held open by its creator, because a force only
//! covers writes through its own handle. A file opened for direct IO is held by its reader, because such sequential
//! reads are few. Only handles for random reads are shared.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{File, FileError, Files, OpenOptions, ReadAt};

/// Files with at most a given number open, not counting those held by callers. Clones share them.
pub struct HandleCache<F: Files> {
    shared: Arc<Shared<F>>,
}

struct Shared<F: Files> {
    files: F,
    open_max: usize,
    open: Mutex<Open<F::File>>,
}

/// The open files by path, each with the time of its last use.
struct Open<H> {
    handles: BTreeMap<Arc<str>, (u64, H)>,
    moment: u64,
}

/// A file of a [`HandleCache`].
pub struct CachedFile<F: Files> {
    shared: Arc<Shared<F>>,
    path: Arc<str>,
    /// The handle of a created file, or of one opened for direct IO.
    own: Option<F::File>,
}

impl<F: Files> HandleCache<F> {
    /// Limits the open files of `files` to `open_max`, at least one.
    #[must_use]
    pub fn new(files: F, open_max: usize) -> Self {
        let open = Mutex::new(Open { handles: BTreeMap::new(), moment: 0 });
        Self { shared: Arc::new(Shared { files, open_max: open_max.max(1), open }) }
    }

    /// Number of open files, not counting those held by callers.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.shared.open().handles.len()
    }

    fn file(&self, path: &str, own: Option<F::File>) -> CachedFile<F> {
        CachedFile { shared: Arc::clone(&self.shared), path: path.into(), own }
    }
}

impl<F: Files> Shared<F> {
    /// A poisoned lock is usable: no code that holds it panics in the middle of an update.
    fn open(&self) -> MutexGuard<'_, Open<F::File>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of a file, which is opened if necessary, without holding the lock.
    fn handle(&self, path: &Arc<str>) -> Result<F::File, FileError> {
        if let Some(handle) = self.open().take(path) {
            return Ok(handle);
        }
        let handle = self.files.open(path, OpenOptions::BUFFERED)?;
        self.open().insert(Arc::clone(path), handle.clone(), self.open_max);
        Ok(handle)
    }
}

impl<H: Clone> Open<H> {
    fn take(&mut self, path: &str) -> Option<H> {
        self.moment += 1;
        let (used, handle) = self.handles.get_mut(path)?;
        *used = self.moment;
        Some(handle.clone())
    }

    /// Adds a handle, and closes the least recently used one if there are too many.
    fn insert(&mut self, path: Arc<str>, handle: H, open_max: usize) {
        self.handles.insert(path, (self.moment, handle));
        if self.handles.len() > open_max {
            let oldest = self.handles.iter().min_by_key(|(_, (used, _))| *used).map(|(path, _)| Arc::clone(path));
            oldest.map(|path| self.handles.remove(&path));
        }
    }
}

impl<F: Files> Clone for HandleCache<F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<F: Files> Clone for CachedFile<F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), path: Arc::clone(&self.path), own: self.own.clone() }
    }
}

impl<F: Files + Send + Sync + 'static> Files for HandleCache<F> {
    type File = CachedFile<F>;

    fn open(&self, path: &str, options: OpenOptions) -> Result<CachedFile<F>, FileError> {
        if options.direct {
            let own = self.shared.files.open(path, options)?;
            return Ok(self.file(path, Some(own)));
        }
        let file = self.file(path, None);
        self.shared.handle(&file.path)?;
        Ok(file)
    }

    fn create(&self, path: &str, options: OpenOptions) -> Result<CachedFile<F>, FileError> {
        let own = self.shared.files.create(path, options)?;
        Ok(self.file(path, Some(own)))
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        self.shared.files.list(directory)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let mut open = self.shared.open();
        open.handles.remove(from);
        open.handles.remove(to);
        drop(open);
        self.shared.files.rename(from, to)
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        self.shared.open().handles.remove(path);
        self.shared.files.remove(path)
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        self.shared.files.create_dir(path)
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        self.shared.files.sync_dir(path)
    }
}

impl<F: Files + Send + Sync + 'static> CachedFile<F> {
    fn handle(&self) -> Result<F::File, FileError> {
        self.own.clone().map_or_else(|| self.shared.handle(&self.path), Ok)
    }
}

impl<F: Files + Send + Sync + 'static> ReadAt for CachedFile<F> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.handle()?.read_at(offset, buffer)
    }
}

impl<F: Files + Send + Sync + 'static> File for CachedFile<F> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.handle()?.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        self.handle()?.sync()
    }

    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError> {
        self.handle()?.punch(offset, length)
    }

    fn len(&self) -> Result<u64, FileError> {
        self.handle()?.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileErrorKind;
    use crate::memory::MemoryDisk;

    #[test]
    fn open_file_limit_keeps_all_readable() {
        let files = HandleCache::new(MemoryDisk::new(), 3);
        let paths: Vec<String> = (0..10).map(|number| format!("file{number}")).collect();
        for (number, path) in paths.iter().enumerate() {
            let file = files.create(path, OpenOptions::BUFFERED).unwrap();
            file.write_at(0, &[number as u8]).unwrap();
            file.sync().unwrap();
        }
        assert_eq!(files.open_files(), 0, "the creator holds the file");
        let handles: Vec<_> = paths.iter().map(|path| files.open(path, OpenOptions::BUFFERED).unwrap()).collect();
        for _ in 0..3 {
            for (number, handle) in handles.iter().enumerate() {
                let mut byte = [0];
                assert_eq!(handle.read_at(0, &mut byte), Ok(1));
                assert_eq!(usize::from(byte[0]), number);
                assert!(files.open_files() <= 3);
            }
        }
        files.remove(&paths[9]).unwrap();
        assert_eq!(files.open_files(), 2, "removed files are closed");
        assert_eq!(handles[9].len().unwrap_err().kind, FileErrorKind::NotFound);
        assert_eq!(
            files.open("none", OpenOptions::BUFFERED).err().map(|error| error.kind),
            Some(FileErrorKind::NotFound)
        );
    }

    #[test]
    fn handle_cache_is_send_and_sync() {
        fn shared<T: Send + Sync>() {}
        shared::<HandleCache<MemoryDisk>>();
    }
}
