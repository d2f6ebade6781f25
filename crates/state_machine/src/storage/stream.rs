//! [`Storage`] implemented by a stream of blocks in place: a flush writes changed blocks to their places, and a stream
//! is sent to other replicas while it changes.

use std::sync::Arc;

use bytes::Bytes;
use store::erased::DynFiles;
use store::stream::{self, Shipped, StreamError, StreamFlush, StreamStep, StreamStore};
use store::tree::Site;

use super::{
    AdoptError, Adoption, FileId, FileRef, Job, JobError, JobStep, Outputs, Pressure, ReadError, Storage, StoredFile,
    downcast,
};
use crate::checkpoint::Keep;

impl Storage for StreamStore {
    fn pressure(&self) -> Pressure {
        Pressure { memory_bytes: self.layer_bytes(), is_stalled: self.is_stalled(), pace: None }
    }

    fn needs_flush(&self) -> bool {
        Self::needs_flush(self)
    }

    fn flush(&mut self, _: &Keep) -> Option<Box<dyn Job>> {
        let job = Self::flush(self)?;
        Some(Box::new(job))
    }

    fn flushed(&mut self, outputs: &Outputs) {
        Self::flushed(self, outputs.content());
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
        Self::give_up(self).into_iter().map(|id| (id, Arc::new(Obsolete) as Arc<dyn StoredFile>)).collect()
    }

    fn ship(&self) -> Vec<(FileRef, Arc<dyn StoredFile>)> {
        Self::ship(self).into_iter().map(|(named, file)| (named, file as Arc<dyn StoredFile>)).collect()
    }

    fn is_in_place(&self) -> bool {
        true
    }

    fn rename(&self, files: &[FileRef]) -> Vec<FileRef> {
        store::shipping::renamed(self.site(), files)
    }

    fn adoption(&self, files: Vec<FileRef>) -> Box<dyn Adoption> {
        Box::new(StreamAdoption { site: self.site().clone(), files })
    }

    fn replace(&mut self, arrived: Box<dyn Storage>) {
        Self::replace(self, downcast(arrived));
    }

    fn retire(&mut self) {
        self.reset();
        Self::forced(self, &[]);
    }

    fn invariants(&self) {
        Self::invariants(self);
    }
}

/// A file without readers: they have it open.
#[derive(Debug)]
struct Obsolete;

impl StoredFile for Obsolete {
    fn read_raw(&self, _: u64, _: usize) -> Result<Bytes, ReadError> {
        Err(ReadError::Damaged("the file is obsolete".to_owned()))
    }

    fn verify(&self) -> Result<(), ReadError> {
        Err(ReadError::Damaged("the file is obsolete".to_owned()))
    }
}

/// Files received from another replica.
#[derive(Debug)]
struct StreamAdoption {
    site: Site,
    files: Vec<FileRef>,
}

impl Adoption for StreamAdoption {
    fn run(self: Box<Self>, files: &dyn DynFiles) -> Result<Box<dyn Storage>, AdoptError> {
        match stream::adopt(files, self.site, &self.files) {
            Ok(stream) => Ok(Box::new(stream)),
            Err(StreamError::File(error)) => Err(AdoptError::File(error)),
            Err(error) => Err(AdoptError::Refused(error.to_string())),
        }
    }
}

impl Job for StreamFlush {
    fn step(&mut self, files: &dyn DynFiles) -> Result<JobStep, JobError> {
        Ok(match Self::step(self, files)? {
            StreamStep::Working { bytes } => JobStep::Working { bytes },
            StreamStep::Done(done) => JobStep::Done(Outputs::new(done.made().to_vec(), done)),
        })
    }

    fn step_bytes(&self) -> u64 {
        0
    }

    fn is_urgent(&self) -> bool {
        true
    }
}

impl StoredFile for Shipped {
    fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, ReadError> {
        Ok(Self::read_raw(self, offset, bytes_max)?)
    }

    fn verify(&self) -> Result<(), ReadError> {
        Ok(Self::verify(self)?)
    }
}

impl From<StreamError> for ReadError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::NotCached => Self::NotCached,
            StreamError::Incomplete(_) => Self::Incomplete(error.to_string()),
            StreamError::DamagedBlock { block, .. } => Self::DamagedBlock { block, message: error.to_string() },
            other => Self::Damaged(other.to_string()),
        }
    }
}
