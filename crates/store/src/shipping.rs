//! Tables on their way between disks, as they are (Spinnaker, section 6.1): a replica that is far behind is sent the
//! files of another, part by part. A table's checksums know the disk that wrote it, so a part needs none of its own: a
//! table that has arrived is looked through before it is named.

use crate::files::{File, FileError, Files, OpenOptions, remove_if_exists};
use crate::sstable::{DIRECTORY, TableError, TableId, TableRef};
use crate::tree::{OpenTables, Site, Tree};

/// Bytes of a part, at most: it is one message between nodes.
pub const PART_BYTES: usize = 1 << 20;

/// Writes a part of a table that is arriving. Its file is created with the first part.
///
/// # Errors
/// When a file operation fails.
pub fn write_part<F: Files>(files: &F, table: TableId, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
    let path = table.path();
    let file = if offset == 0 {
        remove_if_exists(files, &path)?;
        files.create(&path, OpenOptions::BUFFERED)?
    } else {
        files.open(&path, OpenOptions::BUFFERED)?
    };
    file.write_at(offset, bytes)
}

/// Forces tables that have arrived, and their directory, looks through them, and makes a tree of them.
///
/// # Errors
/// When a file operation fails, or they are not what they should be.
pub fn adopt<F: Files>(files: &F, site: Site, tables: &[TableRef]) -> Result<Tree, TableError> {
    for table in tables {
        files.open(&table.id.path(), OpenOptions::BUFFERED)?.sync()?;
    }
    files.sync_dir(DIRECTORY)?;
    let tree = Tree::open(files, site, tables, &mut OpenTables::new())?;
    for (_, table) in tree.tables() {
        table.verify()?;
    }
    Ok(tree)
}

/// Removes the files of tables that nobody names.
///
/// # Errors
/// When a file operation fails.
pub fn remove<F: Files>(files: &F, tables: &[TableId]) -> Result<(), FileError> {
    tables.iter().try_for_each(|table| remove_if_exists(files, &table.path()).map(|_| ()))
}

/// The names that the tables of another disk get on this one.
#[must_use]
pub fn renamed(site: &Site, tables: &[TableRef]) -> Vec<TableRef> {
    let id = || TableId { cohort: site.cohort, number: site.numbers.draw() };
    tables.iter().map(|table| TableRef { id: id(), ..*table }).collect()
}
