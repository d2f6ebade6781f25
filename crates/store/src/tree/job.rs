//! Common parts of flushes and compactions: jobs that run in steps on any thread, and write tables that do not exist
//! before a manifest names them.

use std::sync::Arc;

use base::Lsn;
use base::canary::{Bug, planted};
use thiserror::Error;

use super::Site;
use crate::cell;
use crate::files::{FileError, FileErrorKind, Files, remove_if_exists};
use crate::sstable::{Table, TableError, TableId, TableRef, TableWriter, VersionRef};

/// The result of a step.
pub enum Progress {
    /// More steps are needed. A driver may limit the rate of the bytes read.
    Working {
        /// Bytes of keys and values read in this step.
        bytes: u64,
    },
    /// The job is complete: pass the output to the tree.
    Done(Outputs),
}

/// The output of a job.
pub struct Outputs {
    /// The new tables, forced.
    pub(super) tables: Vec<Arc<Table>>,
    /// The level of the new tables.
    pub(super) level: u8,
    /// The tables that they replace.
    pub(super) inputs: Vec<Arc<Table>>,
    /// The highest LSN of an entry that may have been dropped; zero if none was. A replica that has not applied it
    /// cannot learn of it from individual tables (guarantee 9).
    pub dropped_through: Lsn,
}

impl Outputs {
    /// The tables written by the job, not counting moved ones.
    pub fn made(&self) -> impl Iterator<Item = TableId> {
        let is_input = |table: &Table| self.inputs.iter().any(|input| input.id() == table.id());
        self.tables.iter().filter(move |table| !is_input(table)).map(|table| table.id())
    }
}

/// Why a job failed. Drop the job and notify the tree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The disk is full. The output was removed; start another job once there is space.
    #[error(transparent)]
    NoSpace(FileError),
    /// The disk failed: the process must end (guarantee 25).
    #[error(transparent)]
    File(FileError),
    /// A table is unreadable or damaged: it must be fetched from another replica.
    #[error(transparent)]
    Table(TableError),
}

impl From<FileError> for JobError {
    fn from(error: FileError) -> Self {
        if error.kind == FileErrorKind::NoSpace { Self::NoSpace(error) } else { Self::File(error) }
    }
}

impl From<TableError> for JobError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::File(error) => error.into(),
            error => Self::Table(error),
        }
    }
}

/// Minimum and maximum LSN of several sources; zero without any.
pub(super) fn span(lsns: impl Iterator<Item = (Lsn, Lsn)>) -> (Lsn, Lsn) {
    lsns.reduce(|range, other| (range.0.min(other.0), range.1.max(other.1))).unwrap_or_default()
}

/// Writes versions into a sequence of tables.
pub(super) struct Sink {
    site: Site,
    level: u8,
    /// Size at which a table ends.
    table_bytes: u64,
    /// Minimum and maximum LSN of all inputs.
    lsns: (Lsn, Lsn),
    writer: Option<(u64, TableWriter)>,
    last_key: Vec<u8>,
    /// Numbers of all tables started.
    begun: Vec<u64>,
    finished: Vec<Arc<Table>>,
}

impl Sink {
    pub(super) fn new(site: Site, level: u8, table_bytes: u64, lsns: (Lsn, Lsn)) -> Self {
        Self {
            site,
            level,
            table_bytes,
            lsns,
            writer: None,
            last_key: Vec::new(),
            begun: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Writes a version. A table ends only before another key.
    pub(super) fn push<F: Files>(&mut self, files: &F, version: VersionRef<'_>) -> Result<(), JobError> {
        let is_full = self.writer.as_ref().is_some_and(|(_, writer)| writer.bytes() >= self.table_bytes);
        if is_full && *self.last_key != *version.key {
            self.end_table(files)?;
        }
        let writer = match &mut self.writer {
            Some((_, writer)) => writer,
            none => {
                let number = self.site.numbers.draw();
                let id = TableId { cohort: self.site.cohort, number };
                self.begun.push(number);
                let config = self.site.config.table;
                let writer = TableWriter::create(files, &self.site.owner, id, config, cell::row_prefix_bytes)?;
                let (_, writer) = none.insert((number, writer));
                if planted(Bug::CompactionLosesVersion) && self.begun.len() > 1 {
                    return Ok(());
                }
                writer
            }
        };
        writer.push(version)?;
        self.last_key.clear();
        self.last_key.extend_from_slice(version.key);
        Ok(())
    }

    fn end_table<F: Files>(&mut self, files: &F) -> Result<(), JobError> {
        let Some((number, mut writer)) = self.writer.take() else { return Ok(()) };
        writer.cover(self.lsns);
        let meta = writer.finish(files)?;
        let id = TableId { cohort: self.site.cohort, number };
        let table = Table::open(files, &TableRef::new(id, self.level, &meta), cell::row_prefix_bytes)?;
        self.finished.push(Arc::new(table));
        Ok(())
    }

    /// Finishes the last table, and returns all of them.
    pub(super) fn finish<F: Files>(&mut self, files: &F) -> Result<Vec<Arc<Table>>, JobError> {
        self.end_table(files)?;
        Ok(std::mem::take(&mut self.finished))
    }

    /// Cleans up after an error: removes the output, unless the process must end.
    pub(super) fn fail<F: Files>(&mut self, files: &F, error: &JobError) {
        if !matches!(error, JobError::File(_)) {
            self.abandon(files);
        }
    }

    /// Removes the output. A file that cannot be removed is removed at the next start.
    pub(super) fn abandon<F: Files>(&mut self, files: &F) {
        self.writer = None;
        self.finished.clear();
        for number in self.begun.drain(..) {
            let _ = remove_if_exists(files, &TableId { cohort: self.site.cohort, number }.path());
        }
    }
}
