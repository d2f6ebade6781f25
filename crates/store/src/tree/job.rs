//! Common parts of flushes and compactions: jobs that run in steps on any thread, and write SSTables that do not exist
//! before a manifest names them.

use std::sync::Arc;

use base::canary::{Bug, planted};
use thiserror::Error;

use super::Site;
use crate::cell;
use crate::files::{FileError, FileErrorKind, Files, remove_if_exists};
use crate::sstable::{Sstable, SstableError, SstableId, SstableRef, SstableWriter, VersionRef};

/// The result of a step.
pub enum JobStep {
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
    /// The new SSTables, forced.
    pub(super) sstables: Vec<Arc<Sstable>>,
    /// The level of the new SSTables.
    pub(super) level: u8,
    /// The SSTables that they replace.
    pub(super) inputs: Vec<Arc<Sstable>>,
}

impl Outputs {
    /// The SSTables written by the job, not counting moved ones.
    pub fn made(&self) -> impl Iterator<Item = SstableId> {
        let is_input = |sstable: &Sstable| self.inputs.iter().any(|input| input.id() == sstable.id());
        self.sstables.iter().filter(move |sstable| !is_input(sstable)).map(|sstable| sstable.id())
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
    /// An SSTable is unreadable or damaged: it must be fetched from another replica.
    #[error(transparent)]
    Sstable(SstableError),
}

impl From<FileError> for JobError {
    fn from(error: FileError) -> Self {
        if error.kind == FileErrorKind::NoSpace { Self::NoSpace(error) } else { Self::File(error) }
    }
}

impl From<SstableError> for JobError {
    fn from(error: SstableError) -> Self {
        match error {
            SstableError::File(error) => error.into(),
            error => Self::Sstable(error),
        }
    }
}

/// Writes versions into a sequence of SSTables.
pub(super) struct Sink {
    site: Site,
    level: u8,
    /// Size at which an SSTable ends.
    sstable_bytes: u64,
    writer: Option<(u64, SstableWriter)>,
    last_key: Vec<u8>,
    /// Numbers of all SSTables started.
    begun: Vec<u64>,
    finished: Vec<Arc<Sstable>>,
}

impl Sink {
    pub(super) fn new(site: Site, level: u8, sstable_bytes: u64) -> Self {
        Self { site, level, sstable_bytes, writer: None, last_key: Vec::new(), begun: Vec::new(), finished: Vec::new() }
    }

    /// Writes a version. An SSTable ends only before another key.
    pub(super) fn push<F: Files>(&mut self, files: &F, version: VersionRef<'_>) -> Result<(), JobError> {
        let is_full = self.writer.as_ref().is_some_and(|(_, writer)| writer.bytes() >= self.sstable_bytes);
        if is_full && *self.last_key != *version.key {
            self.end_sstable(files)?;
        }
        let writer = match &mut self.writer {
            Some((_, writer)) => writer,
            none => {
                let number = self.site.numbers.draw();
                let id = SstableId { cohort: self.site.cohort, number };
                self.begun.push(number);
                let config = self.site.config.sstable;
                let writer = SstableWriter::create(files, &self.site.owner, id, config, cell::row_prefix_bytes)?;
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

    fn end_sstable<F: Files>(&mut self, files: &F) -> Result<(), JobError> {
        let Some((number, writer)) = self.writer.take() else { return Ok(()) };
        let meta = writer.finish(files)?;
        let id = SstableId { cohort: self.site.cohort, number };
        let sstable = Sstable::open(files, &SstableRef::new(id, self.level, &meta), cell::row_prefix_bytes)?;
        self.finished.push(Arc::new(sstable));
        Ok(())
    }

    /// Finishes the last SSTable, and returns all of them.
    pub(super) fn finish<F: Files>(&mut self, files: &F) -> Result<Vec<Arc<Sstable>>, JobError> {
        self.end_sstable(files)?;
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
            let _ = remove_if_exists(files, &SstableId { cohort: self.site.cohort, number }.path());
        }
    }
}
