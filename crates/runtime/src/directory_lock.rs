//! Ensures that only one process uses a directory: its file `pid` is locked for the lifetime of the process, which the
//! kernel releases however the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

/// The lock file. It contains the pid of the process that owns the directory, or of the last owner if that crashed.
const FILE: &str = "pid";

/// Exclusive ownership of a directory, until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Open to hold the lock. The file is never removed: otherwise two processes could lock two different files.
    file: File,
}

/// Why a directory could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    #[error("{directory} is in use by process {pid}")]
    InUse { directory: String, pid: String },
    #[error("can't lock {directory}: {error}")]
    Failed { directory: String, error: io::Error },
}

impl DirectoryLock {
    /// Claims the directory, unless another process owns it.
    pub fn take(directory: &Path) -> Result<Self, DirectoryLockError> {
        let mut file = lock(directory)?;
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        match write() {
            Ok(()) => Ok(Self { file }),
            Err(error) => Err(DirectoryLockError::Failed { directory: directory.display().to_string(), error }),
        }
    }

    /// Checks whether the directory could be claimed now.
    pub fn is_free(directory: &Path) -> Result<(), DirectoryLockError> {
        lock(directory).map(|_| ())
    }
}

impl Drop for DirectoryLock {
    /// A process that ends cleanly removes its pid, which another process may reuse.
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
    }
}

fn lock(directory: &Path) -> Result<File, DirectoryLockError> {
    let name = || directory.display().to_string();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file =
        options.open(directory.join(FILE)).map_err(|error| DirectoryLockError::Failed { directory: name(), error })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.take(32).read_to_string(&mut pid);
            Err(DirectoryLockError::InUse { directory: name(), pid: pid.trim().to_owned() })
        }
        Err(TryLockError::Error(error)) => Err(DirectoryLockError::Failed { directory: name(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn lock_conflict_names_owner() {
        let scratch = TempDir::new().unwrap();
        let claim = DirectoryLock::take(scratch.path()).unwrap();
        // The lock belongs to the open file, so a second open in the same process is refused too.
        let refusal = DirectoryLock::take(scratch.path()).unwrap_err().to_string();
        assert!(refusal.contains(&std::process::id().to_string()), "{refusal}");
        assert!(refusal.contains(&scratch.path().display().to_string()), "{refusal}");
        drop(claim);
        assert!(DirectoryLock::take(scratch.path()).is_ok());
    }
}
