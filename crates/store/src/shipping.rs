//! Transfers tables between disks unchanged (Spinnaker, section 6.1): a replica that is far behind receives the table
//! files of another one, in parts. A table has its own checksums, so parts need none: a received table is verified
//! before it is named.

use crate::files::{File, FileError, Files, OpenOptions, remove_if_exists};
use crate::sstable::{DIRECTORY, TableError, TableId, TableRef};
use crate::tree::{OpenTables, Site, Tree};

/// Maximum bytes of a part, which is one message between nodes.
pub const PART_BYTES: usize = 1 << 20;

/// Writes a part of an arriving table. The first part creates the file.
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

/// Forces and verifies received tables, and builds a tree of them.
///
/// # Errors
/// When a file operation fails, or a table is invalid.
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

/// Removes the files of tables that no manifest names.
///
/// # Errors
/// When a file operation fails.
pub fn remove<F: Files>(files: &F, tables: &[TableId]) -> Result<(), FileError> {
    tables.iter().try_for_each(|table| remove_if_exists(files, &table.path()).map(|_| ()))
}

/// Assigns new names on this disk to tables of another one.
#[must_use]
pub fn renamed(site: &Site, tables: &[TableRef]) -> Vec<TableRef> {
    let id = || TableId { cohort: site.cohort, number: site.numbers.draw() };
    tables.iter().map(|table| TableRef { id: id(), ..*table }).collect()
}
