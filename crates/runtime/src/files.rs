//! The store's files on this operating system.
//!
//! A force is `fdatasync`: it makes data and file length durable, but not timestamps, which are not used. A failed
//! force is never retried (guarantee 25): the caller ends the process.

use std::fs::{self, OpenOptions as StdOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use store::BLOCK_BYTES;
use store::files::{File, FileError, FileErrorKind, Files, OpenOptions, ReadAt};

use super::unforced_writes::{self, Held, HeldFiles};

/// Files contain all users' data, so only their owner may access them.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// The store's subdirectory of a node's directory.
pub const STORE: &str = "store";

/// The files in one directory.
#[derive(Clone, Debug)]
pub struct OsFiles {
    root: Arc<Path>,
    /// Whether the lack of O_DIRECT was logged.
    buffered_said: Arc<AtomicBool>,
    /// In tests: writes held back until they are forced.
    held: Option<Arc<HeldFiles>>,
}

#[derive(Clone, Debug)]
pub struct OsFile {
    file: Arc<fs::File>,
    path: Arc<str>,
    held: Option<Arc<Held>>,
}

impl OsFiles {
    /// The files in `root`, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        let held = std::env::var_os(unforced_writes::VARIABLE).map(|_| Arc::default());
        Self { root: root.into(), buffered_said: Arc::new(AtomicBool::new(false)), held }
    }

    /// The same, holding back unforced writes.
    #[cfg(test)]
    fn holding(root: &Path) -> Self {
        Self { held: Some(Arc::default()), ..Self::new(root) }
    }

    /// The writes held back of a file.
    fn held_of(&self, path: &str) -> Option<Arc<Held>> {
        let files = self.held.as_ref()?;
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(files.entry(path.to_owned()).or_default()))
    }

    /// A file was removed or renamed.
    fn renamed(&self, from: &str, to: Option<&str>) {
        let Some(files) = &self.held else { return };
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        let held = files.remove(from);
        if let (Some(held), Some(to)) = (held, to) {
            files.insert(to.to_owned(), held);
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        // Not `join` for the empty path, which would add a slash.
        if path.is_empty() { self.root.to_path_buf() } else { self.root.join(path) }
    }

    fn open_with(&self, path: &str, options: OpenOptions, create: bool) -> io::Result<fs::File> {
        let mut buffered = StdOptions::new();
        buffered.read(true).write(true).create_new(create).mode(FILE_MODE);
        let path = self.path(path);
        // Writes held back need not be aligned.
        if !options.direct || self.held.is_some() {
            return buffered.open(path);
        }
        let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        match buffered.clone().custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.say_buffered(&path);
                // A failed open with O_DIRECT may have created the file.
                buffered.create_new(false).create(create).open(path)
            }
            opened => opened,
        }
    }

    fn say_buffered(&self, path: &Path) {
        if !self.buffered_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = %path.display(), "the file system does not support O_DIRECT: using buffered IO");
        }
    }

    fn handle(&self, path: &str, options: OpenOptions, create: bool, op: &'static str) -> Result<OsFile, FileError> {
        match self.open_with(path, options, create) {
            Ok(file) => Ok(OsFile { file: Arc::new(file), path: path.into(), held: self.held_of(path) }),
            Err(error) => Err(failed(op, path, &error)),
        }
    }
}

impl Files for OsFiles {
    type File = OsFile;

    fn open(&self, path: &str, options: OpenOptions) -> Result<OsFile, FileError> {
        self.handle(path, options, false, "open")
    }

    fn create(&self, path: &str, options: OpenOptions) -> Result<OsFile, FileError> {
        self.handle(path, options, true, "create")
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, FileError> {
        let names = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.path(directory))? {
                // The store's own names are ASCII; others are ignored.
                names.extend(entry?.file_name().into_string().ok());
            }
            names.sort_unstable();
            Ok(names)
        };
        names().map_err(|error| failed("list", directory, &error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        fs::rename(self.path(from), self.path(to)).map_err(|error| failed("rename", from, &error))?;
        self.renamed(from, Some(to));
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<(), FileError> {
        fs::remove_file(self.path(path)).map_err(|error| failed("remove", path, &error))?;
        self.renamed(path, None);
        Ok(())
    }

    fn create_dir(&self, path: &str) -> Result<(), FileError> {
        match fs::DirBuilder::new().mode(DIRECTORY_MODE).create(self.path(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|error| failed("create directory", path, &error)),
        }
    }

    fn sync_dir(&self, path: &str) -> Result<(), FileError> {
        let sync = || fs::File::open(self.path(path))?.sync_all();
        sync().map_err(|error| force_failed("force directory", path, &error))
    }
}

impl ReadAt for OsFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Direct IO cannot read the remainder after an unaligned end of file.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && !done.is_multiple_of(BLOCK_BYTES) => break,
                Err(error) => return Err(failed("read", &self.path, &error)),
            }
        }
        Ok(self.held.as_ref().map_or(done, |held| held.lay_over(offset, buffer, done)))
    }
}

impl File for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        if let Some(held) = &self.held {
            held.write(offset, bytes);
            return Ok(());
        }
        self.write(offset, bytes)
    }

    fn sync(&self) -> Result<(), FileError> {
        let sync = || self.file.sync_data().map_err(|error| force_failed("force", &self.path, &error));
        self.held.as_ref().map_or_else(sync, |held| held.force(|offset, bytes| self.write(offset, bytes), sync))
    }

    fn punch(&self, offset: u64, length: u64) -> Result<(), FileError> {
        // Writes held back must not be overtaken.
        if self.held.is_some() {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(failed("release space of", &self.path, &error.into())),
        }
    }

    fn len(&self) -> Result<u64, FileError> {
        let metadata = self.file.metadata().map_err(|error| failed("measure", &self.path, &error))?;
        Ok(metadata.len().max(self.held.as_ref().map_or(0, |held| held.end())))
    }
}

impl OsFile {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all_at(bytes, offset).map_err(|error| failed("write", &self.path, &error))
    }
}

/// Any error of a force is final: it is never classified as a lack of space and retried (guarantee 25).
fn force_failed(op: &'static str, path: &str, error: &io::Error) -> FileError {
    FileError { kind: FileErrorKind::Other, ..failed(op, path, error) }
}

fn failed(op: &'static str, path: &str, error: &io::Error) -> FileError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => FileErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => FileErrorKind::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FileErrorKind::NoSpace,
        _ => FileErrorKind::Other,
    };
    let path = if path.is_empty() { "the data directory" } else { path };
    FileError { op, path: path.to_owned(), kind, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use store::AlignedBuffer;

    use super::*;
    use tempfile::TempDir;

    #[test]
    fn unsynced_writes_lost_in_holding_mode() {
        let scratch = TempDir::new().unwrap();
        let files = OsFiles::holding(scratch.path());
        let file = files.create("a", OpenOptions::DIRECT).unwrap();
        file.write_at(0, b"forced").unwrap();
        file.sync().unwrap();
        file.write_at(3, b"... not").unwrap();
        files.rename("a", "b").unwrap();
        let read = |files: &OsFiles| {
            let mut buffer = [0; 16];
            let file = files.open("b", OpenOptions::BUFFERED).unwrap();
            let read = file.read_at(0, &mut buffer).unwrap();
            assert_eq!(file.len().unwrap(), read as u64);
            buffer[..read].to_vec()
        };
        assert_eq!(read(&files), b"for... not");
        assert_eq!(read(&OsFiles::new(scratch.path())), b"forced", "unforced writes are invisible to other processes");
    }

    #[test]
    fn direct_io_round_trip() {
        let scratch = TempDir::new().unwrap();
        let files = OsFiles::new(scratch.path());
        files.create_dir("log").unwrap();
        let file = files.create("log/a", OpenOptions::DIRECT).unwrap();
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        block.fill(7);
        file.write_at(4096, &block).unwrap();
        file.sync().unwrap();
        files.sync_dir("log").unwrap();
        files.sync_dir("").unwrap();

        assert_eq!(file.len().unwrap(), 8192);
        let again = files.open("log/a", OpenOptions::DIRECT).unwrap();
        let mut read = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
        assert_eq!(again.read_at(0, &mut read).unwrap(), 8192, "reads stop at the end of the file");
        assert!(read[..4096].iter().all(|byte| *byte == 0) && read[4096..8192].iter().all(|byte| *byte == 7));
        assert_eq!(files.list("log").unwrap(), ["a"]);
    }

    #[test]
    fn file_error_kinds() {
        let scratch = TempDir::new().unwrap();
        let files = OsFiles::new(scratch.path());
        let missing = files.open("none", OpenOptions::BUFFERED).unwrap_err();
        assert_eq!((missing.kind, missing.op), (FileErrorKind::NotFound, "open"));
        files.create("one", OpenOptions::BUFFERED).unwrap();
        assert_eq!(files.create("one", OpenOptions::BUFFERED).unwrap_err().kind, FileErrorKind::Exists);
        assert_eq!(files.list("nowhere").unwrap_err().kind, FileErrorKind::NotFound);
        assert!(
            files.create_dir("d").is_ok() && files.create_dir("d").is_ok(),
            "creating an existing directory succeeds"
        );
    }
}
