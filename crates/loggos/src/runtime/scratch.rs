//! A directory of its own for a test or a benchmark, removed at the end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory; dropping it removes it with all that is in it.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new directory under the system's temporary one.
    #[cfg(test)]
    pub(crate) fn new(name: &str) -> Self {
        Self::under(&std::env::temp_dir(), name).expect("the temporary directory takes a directory")
    }

    /// A new directory under `parent`.
    pub(crate) fn under(parent: &Path, name: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("loggos-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
