//! [`Storage`] implemented by a log-structured merge tree: memtables are flushed to SSTables, SSTables are
//! compacted, and SSTables are sent to other replicas as files.

use std::sync::Arc;

use bytes::Bytes;
use store::erased::{DynFiles, ErasedFiles};
use store::shipping;
use store::sstable::{Sstable, SstableError};
use store::tree::{self, CompactionJob, FlushJob, Site, Tree};

use super::{
    AdoptError, Adoption, FileId, FileRef, Job, JobError, JobStep, Outputs, Pressure, ReadError, Storage, StoredFile,
    downcast,
};
use crate::checkpoint::Keep;

impl Storage for Tree {
    fn pressure(&self) -> Pressure {
        Pressure { memory_bytes: self.memtable_bytes(), is_stalled: self.is_stalled(), pace: self.pace() }
    }

    fn needs_flush(&self) -> bool {
        Self::needs_flush(self)
    }

    fn flush(&mut self, keep: &Keep) -> Option<Box<dyn Job>> {
        self.freeze();
        let job = self.flush_job(keep.watermark, &keep.cells)?;
        Some(Box::new(job))
    }

    fn flushed(&mut self, outputs: &Outputs) {
        Self::flushed(self, outputs.content());
    }

    fn flush_failed(&mut self) {
        Self::flush_failed(self);
    }

    fn compaction(&mut self, keep: &Keep) -> Option<Box<dyn Job>> {
        let job = self.pick_compaction(keep.watermark, &keep.cells)?;
        Some(Box::new(job))
    }

    fn compacted(&mut self, outputs: &Outputs) {
        Self::compacted(self, outputs.content());
    }

    fn compaction_failed(&mut self) {
        Self::compaction_failed(self);
    }

    fn files(&self) -> Vec<FileRef> {
        self.refs()
    }

    fn forced(&mut self, named: &[FileRef]) {
        Self::forced(self, named);
    }

    fn has_leftovers(&self) -> bool {
        Self::has_leftovers(self)
    }

    fn give_up(&mut self) -> Vec<(FileId, Arc<dyn StoredFile>)> {
        Self::give_up(self).into_iter().map(|(id, sstable)| (id, sstable as Arc<dyn StoredFile>)).collect()
    }

    fn ship(&self) -> Vec<(FileRef, Arc<dyn StoredFile>)> {
        self.sstables().into_iter().map(|(named, sstable)| (named, sstable as Arc<dyn StoredFile>)).collect()
    }

    fn rename(&self, files: &[FileRef]) -> Vec<FileRef> {
        shipping::renamed(self.site(), files)
    }

    fn adoption(&self, sstables: Vec<FileRef>) -> Box<dyn Adoption> {
        Box::new(TreeAdoption { site: self.site().clone(), sstables })
    }

    fn replace(&mut self, arrived: Box<dyn Storage>) {
        let sstables = downcast::<Self>(arrived).sstables().into_iter().map(|(named, sstable)| (named.level, sstable));
        Self::replace(self, sstables).expect("the received SSTables form a tree");
    }

    fn retire(&mut self) {
        Self::replace(self, []).expect("an empty tree is valid");
        Self::forced(self, &[]);
    }

    fn invariants(&self) {
        Self::invariants(self);
    }
}

/// SSTables received from another replica.
#[derive(Debug)]
struct TreeAdoption {
    site: Site,
    sstables: Vec<FileRef>,
}

impl Adoption for TreeAdoption {
    fn run(self: Box<Self>, files: &dyn DynFiles) -> Result<Box<dyn Storage>, AdoptError> {
        match shipping::adopt(&ErasedFiles(files), self.site, &self.sstables) {
            Ok(tree) => Ok(Box::new(tree)),
            Err(SstableError::File(error)) => Err(AdoptError::File(error)),
            Err(error) => Err(AdoptError::Refused(error.to_string())),
        }
    }
}

fn job_step(step: tree::JobStep) -> JobStep {
    match step {
        tree::JobStep::Working { bytes } => JobStep::Working { bytes },
        tree::JobStep::Done(outputs) => JobStep::Done(Outputs::new(outputs.made().collect(), outputs)),
    }
}

impl Job for FlushJob {
    fn step(&mut self, files: &dyn DynFiles) -> Result<JobStep, JobError> {
        Self::step(self, &ErasedFiles(files)).map(job_step)
    }

    fn step_bytes(&self) -> u64 {
        0
    }

    fn is_urgent(&self) -> bool {
        true
    }
}

impl Job for CompactionJob {
    fn step(&mut self, files: &dyn DynFiles) -> Result<JobStep, JobError> {
        Self::step(self, &ErasedFiles(files)).map(job_step)
    }

    fn step_bytes(&self) -> u64 {
        Self::step_bytes(self)
    }

    fn is_urgent(&self) -> bool {
        Self::is_urgent(self)
    }
}

impl StoredFile for Sstable {
    fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, ReadError> {
        Ok(Self::read_raw(self, offset, bytes_max)?)
    }

    fn verify(&self) -> Result<(), ReadError> {
        Ok(Self::verify(self)?)
    }
}
