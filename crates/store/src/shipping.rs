//! Transfers SSTables between disks unchanged (Spinnaker, section 6.1): a replica that is far behind receives the
//! SSTable files of another one, in parts. An SSTable has its own checksums, so parts need none: a received SSTable is
//! verified before it is named.

use crate::files::{File, FileError, Files, OpenOptions, remove_if_exists};
use crate::sstable::{DIRECTORY, SstableError, SstableId, SstableRef};
use crate::tree::{OpenSstables, Site, Tree};

/// Maximum bytes of a part, which is one message between nodes.
pub const PART_BYTES: usize = 1 << 20;

/// Writes a part of an arriving SSTable. The first part creates the file.
///
/// # Errors
/// When a file operation fails.
pub fn write_part<F: Files>(files: &F, sstable: SstableId, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
    let path = sstable.path();
    let file = if offset == 0 {
        remove_if_exists(files, &path)?;
        files.create(&path, OpenOptions::BUFFERED)?
    } else {
        files.open(&path, OpenOptions::BUFFERED)?
    };
    file.write_at(offset, bytes)
}

/// Forces and verifies received SSTables, and builds a tree of them.
///
/// # Errors
/// When a file operation fails, or an SSTable is invalid.
pub fn adopt<F: Files>(files: &F, site: Site, sstables: &[SstableRef]) -> Result<Tree, SstableError> {
    for sstable in sstables {
        files.open(&sstable.id.path(), OpenOptions::BUFFERED)?.sync()?;
    }
    files.sync_dir(DIRECTORY)?;
    let tree = Tree::open(files, site, sstables, &mut OpenSstables::new())?;
    for (_, sstable) in tree.sstables() {
        sstable.verify()?;
    }
    Ok(tree)
}

/// Removes the files of SSTables that no manifest names.
///
/// # Errors
/// When a file operation fails.
pub fn remove<F: Files>(files: &F, sstables: &[SstableId]) -> Result<(), FileError> {
    sstables.iter().try_for_each(|sstable| remove_if_exists(files, &sstable.path()).map(|_| ()))
}

/// Assigns new names on this disk to SSTables of another one.
#[must_use]
pub fn renamed(site: &Site, sstables: &[SstableRef]) -> Vec<SstableRef> {
    let id = || SstableId { cohort: site.cohort, number: site.numbers.draw() };
    sstables.iter().map(|sstable| SstableRef { id: id(), ..*sstable }).collect()
}
