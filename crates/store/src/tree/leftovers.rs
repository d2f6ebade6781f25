//! Files that trees have given up, until nobody reads them any more: only then do they go.
//!
//! Two trees may have shared a file, after a range was split. Whichever gives it up first, the other still has it: it
//! goes once both have, and no view of either is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sstable::{Table, TableId};

/// The files that the trees of one disk, or whatever else keeps files under such names, have given up.
#[derive(Debug)]
pub struct Leftovers<F: ?Sized = Table> {
    files: BTreeMap<TableId, Arc<F>>,
}

impl<F: ?Sized> Default for Leftovers<F> {
    fn default() -> Self {
        Self { files: BTreeMap::new() }
    }
}

impl<F: ?Sized> Leftovers<F> {
    /// They have been given up.
    pub fn take_in(&mut self, files: impl IntoIterator<Item = (TableId, Arc<F>)>) {
        self.files.extend(files);
    }

    /// Those that nobody has or reads any more: they are to be removed. Each is told once; a file whose removal fails
    /// goes at the next start.
    pub fn removable(&mut self) -> Vec<TableId> {
        let unused = self.files.extract_if(.., |_, file| Arc::strong_count(file) == 1);
        unused.map(|(id, _)| id).collect()
    }
}
