//! What flushes and compactions have in common: they are carried out in steps, wherever the driver likes, and write
//! tables that are nothing before a manifest names them.

use std::sync::Arc;

use base::Lsn;
use base::canary::{Bug, planted};
use thiserror::Error;

use super::Site;
use crate::cell;
use crate::files::{FileError, FileErrorKind, Files, remove_if_exists};
use crate::sstable::{Table, TableError, TableId, TableRef, TableWriter, VersionRef};

/// How far a step came.
pub enum Progress {
    /// There is more to do. So many bytes of versions were read: what a driver limits the rate of.
    Working {
        /// Keys and values.
        bytes: u64,
    },
    /// All is done: to be handed to the tree.
    Done(Outputs),
}

/// What a job has made.
pub struct Outputs {
    /// The new tables, forced.
    pub(super) tables: Vec<Arc<Table>>,
    /// The level they belong to.
    pub(super) level: u8,
    /// The tables whose place they take.
    pub(super) inputs: Vec<Arc<Table>>,
    /// The greatest LSN of an entry that may have been left out, zero if none was: a replica that has not applied it
    /// can't learn of it from the tables one by one (guarantee 9).
    pub dropped_through: Lsn,
}

impl Outputs {
    /// The tables that the job wrote, if it wrote any: not those that it only moved.
    pub fn made(&self) -> impl Iterator<Item = TableId> {
        let is_input = |table: &Table| self.inputs.iter().any(|input| input.id() == table.id());
        self.tables.iter().filter(move |table| !is_input(table)).map(|table| table.id())
    }
}

/// Why a job ended. It is to be dropped then, and the tree told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The disk is full. What the job had written is removed again; another may be begun once there is room.
    #[error(transparent)]
    NoSpace(FileError),
    /// The disk failed: the process must end (guarantee 25).
    #[error(transparent)]
    File(FileError),
    /// A table can't be read or believed: it must come anew from another replica.
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

/// The least and the greatest LSN of several sources; zero if there is none.
pub(super) fn span(lsns: impl Iterator<Item = (Lsn, Lsn)>) -> (Lsn, Lsn) {
    lsns.reduce(|range, other| (range.0.min(other.0), range.1.max(other.1))).unwrap_or_default()
}

/// Writes versions into tables, one after the other.
pub(super) struct Sink {
    site: Site,
    level: u8,
    /// Bytes after which a table ends.
    table_bytes: u64,
    /// The least and the greatest LSN of all that is read.
    lsns: (Lsn, Lsn),
    writer: Option<(u64, TableWriter)>,
    last_key: Vec<u8>,
    /// The numbers of all tables begun.
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

    /// Writes a version. A table ends only where another key begins.
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

    /// Ends the last table, and gives all.
    pub(super) fn finish<F: Files>(&mut self, files: &F) -> Result<Vec<Arc<Table>>, JobError> {
        self.end_table(files)?;
        Ok(std::mem::take(&mut self.finished))
    }

    /// What is left to do after an error: if the process lives, what was written is removed.
    pub(super) fn fail<F: Files>(&mut self, files: &F, error: &JobError) {
        if !matches!(error, JobError::File(_)) {
            self.abandon(files);
        }
    }

    /// Gives back the space of what was written. A file that can't be removed goes at the next start.
    pub(super) fn abandon<F: Files>(&mut self, files: &F) {
        self.writer = None;
        self.finished.clear();
        for number in self.begun.drain(..) {
            let _ = remove_if_exists(files, &TableId { cohort: self.site.cohort, number }.path());
        }
    }
}
