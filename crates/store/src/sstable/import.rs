//! A table that comes from another replica, byte for byte, under a number of this disk (guarantee 9). It is read from its
//! first byte to its last before anything may name it.

use base::CohortId;

use super::output::Output;
use super::{DIRECTORY, FilterPrefix, Table, TableError, TableId, TableRef};
use crate::files::{FileError, Files, OpenOptions, remove_if_exists};

/// Writes one table as it comes.
pub struct TableImport {
    cohort: CohortId,
    named: TableRef,
    file: Box<dyn Output>,
    /// Bytes that have come.
    bytes: u64,
}

impl TableImport {
    /// Creates the file of a table, under the number that it is to have on this disk; the rest of its name is the
    /// sender's.
    ///
    /// # Errors
    /// When a file operation fails.
    pub fn create<F: Files>(files: &F, cohort: CohortId, named: TableRef) -> Result<Self, FileError> {
        let id = TableId { cohort, number: named.number };
        let file = Box::new(files.create(&id.path(), OpenOptions::BUFFERED)?);
        Ok(Self { cohort, named, file, bytes: 0 })
    }

    /// Bytes that have come so far: where the next belong.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the next bytes. More than the table has are left out: it will be found to be another's.
    ///
    /// # Errors
    /// When that write fails.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let room = usize::try_from(self.named.bytes - self.bytes).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        self.file.write(self.bytes, bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Forces the file, then its directory, and reads all of it. From then on a manifest may name the table. One that
    /// can't be believed is removed again.
    ///
    /// # Errors
    /// When a file operation fails, or it is not the table that was meant, whole.
    pub fn finish<F: Files>(self, files: &F, filter_prefix: FilterPrefix) -> Result<Table, TableError> {
        self.file.force()?;
        files.sync_dir(DIRECTORY)?;
        let table = Table::open(files, self.cohort, &self.named, filter_prefix);
        let table = table.and_then(|table| table.verify().map(|()| table));
        match table {
            Err(TableError::File(error)) => Err(error.into()),
            Err(error) => {
                self.abandon(files)?;
                Err(error)
            }
            Ok(table) => Ok(table),
        }
    }

    /// Removes what has come.
    ///
    /// # Errors
    /// When a file operation fails; the file goes at the next start.
    pub fn abandon<F: Files>(self, files: &F) -> Result<(), FileError> {
        let id = TableId { cohort: self.cohort, number: self.named.number };
        remove_if_exists(files, &id.path())?;
        Ok(())
    }
}
