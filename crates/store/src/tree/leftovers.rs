//! Obsolete files. A file is removed once no reader holds it.
//!
//! Two trees share files after a range is split. A shared file is removed after both trees have released it and the
//! last view of either is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sstable::{Sstable, SstableId};

/// The obsolete files of one disk.
#[derive(Debug)]
pub struct Leftovers<F: ?Sized = Sstable> {
    files: BTreeMap<SstableId, Arc<F>>,
}

impl<F: ?Sized> Default for Leftovers<F> {
    fn default() -> Self {
        Self { files: BTreeMap::new() }
    }
}

impl<F: ?Sized> Leftovers<F> {
    /// Adds files that a tree or another storage has released.
    pub fn take_in(&mut self, files: impl IntoIterator<Item = (SstableId, Arc<F>)>) {
        self.files.extend(files);
    }

    /// Takes the files without a reader, for the caller to remove. Each is returned once. If a removal fails, the file
    /// is removed at the next start.
    pub fn removable(&mut self) -> Vec<SstableId> {
        let unused = self.files.extract_if(.., |_, file| Arc::strong_count(file) == 1);
        unused.map(|(id, _)| id).collect()
    }
}
