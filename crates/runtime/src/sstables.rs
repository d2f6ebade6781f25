//! The threads for SSTables and checkpoints: flushes, compactions, reads from disk, installation and removal of
//! SSTables. Each kind has its own lane: a compaction that takes minutes must not delay a flush or a read.

use std::io;
use std::sync::Arc;

use base::CohortId;
use bytes::Bytes;
use node::contract::{ArrivalId, CheckpointId, EvaluationId, Event, Lineage, ReadId};
use node::registry::{Read, Snapshot};
use state_machine::storage::{AdoptError, Adoption, FileId, Job, JobError, JobStep, Outputs, StoredFile};
use store::checkpoint::{CheckpointMeta, write_checkpoint};
use store::files::{FileError, FileErrorKind};
use store::handles::HandleCache;
use store::identity::Owner;
use store::shipping;
use store::sstable::Io;

use super::budget::Budget;
use super::files::OsFiles;
use super::inbox::{Inbox, Input};
use super::job_thread::{JobThread, retry_while_disk_full};

/// A cache of open SSTables with a limited size. Checkpoints are written through it, too.
pub(crate) type SstableFiles = HandleCache<OsFiles>;

/// A checkpoint to write, possibly with a memtable to flush first.
#[derive(Debug)]
pub(crate) struct CheckpointJob {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) meta: CheckpointMeta,
    pub(crate) state: Snapshot,
    pub(crate) flush: Option<Box<dyn Job>>,
}

/// Installation of SSTables from another node, or removal of obsolete ones. Executed in order.
#[derive(Debug)]
pub(crate) enum Change {
    Write { file: FileId, offset: u64, bytes: Bytes },
    Adopt { cohort: CohortId, arrival: ArrivalId, adoption: Box<dyn Adoption> },
    Remove { files: Vec<FileId> },
}

/// A raw read of a part of an SSTable, to send it to another node.
#[derive(Debug)]
pub(crate) struct PartRead {
    pub(crate) id: ReadId,
    pub(crate) file: Arc<dyn StoredFile>,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Whether to verify the whole file first.
    pub(crate) verify: bool,
}

/// Background work on the files of a storage, and its owner.
type Compaction = (CohortId, Lineage, Box<dyn Job>);

/// One lane for each kind of work.
#[derive(Debug)]
pub(crate) struct SstableLanes {
    checkpoints: JobThread<CheckpointJob>,
    compactions: JobThread<Compaction>,
    evaluations: JobThread<(EvaluationId, Read)>,
    parts: JobThread<PartRead>,
    changes: JobThread<Change>,
}

impl SstableLanes {
    pub(crate) fn start(
        files: &SstableFiles,
        owner: Owner,
        budget: &Arc<Budget>,
        inbox: &Arc<Inbox>,
    ) -> io::Result<Self> {
        Ok(Self {
            checkpoints: checkpoint_lane(files.clone(), owner, Arc::clone(budget), Arc::clone(inbox))?,
            compactions: compaction_lane(files.clone(), Arc::clone(budget), Arc::clone(inbox))?,
            evaluations: evaluation_lane(Arc::clone(inbox))?,
            parts: part_lane(Arc::clone(inbox))?,
            changes: change_lane(files.clone(), Arc::clone(inbox))?,
        })
    }

    pub(crate) fn checkpoint(&self, job: CheckpointJob) {
        self.checkpoints.put(job);
    }

    pub(crate) fn compact(&self, cohort: CohortId, lineage: Lineage, job: Box<dyn Job>) {
        self.compactions.put((cohort, lineage, job));
    }

    pub(crate) fn evaluate(&self, id: EvaluationId, read: Read) {
        self.evaluations.put((id, read));
    }

    pub(crate) fn read(&self, part: PartRead) {
        self.parts.put(part);
    }

    pub(crate) fn change(&self, change: Change) {
        self.changes.put(change);
    }
}

fn checkpoint_lane(
    files: SstableFiles,
    owner: Owner,
    budget: Arc<Budget>,
    inbox: Arc<Inbox>,
) -> io::Result<JobThread<CheckpointJob>> {
    JobThread::start("checkpoints", move |CheckpointJob { checkpoint, meta, state, flush }: CheckpointJob| {
        let (cohort, lsn) = (meta.cohort, meta.lsn);
        let flushed = match flush.map(|job| flush_whole(job, &files, &budget)).transpose() {
            Ok(flushed) => flushed,
            Err(JobError::NoSpace(error)) => {
                tracing::error!(%cohort, %error, "disk full: the memtable will be flushed when space is available");
                return inbox.post(Input::Done(Event::CheckpointFailed { cohort, checkpoint }));
            }
            Err(error) => super::die(&format!("can't flush a memtable: {error}")),
        };
        let bytes =
            retry_while_disk_full("a checkpoint", &inbox, || write_checkpoint(&files, &owner, &meta, state.chunks()));
        tracing::debug!(%cohort, %lsn, bytes, "checkpoint written");
        inbox.post(Input::Done(Event::CheckpointWritten { cohort, checkpoint, bytes, flushed }));
    })
}

fn flush_whole(mut job: Box<dyn Job>, files: &SstableFiles, budget: &Budget) -> Result<Outputs, JobError> {
    let _under_way = budget.flush();
    loop {
        if let JobStep::Done(outputs) = job.step(files)? {
            return Ok(outputs);
        }
    }
}

fn compaction_lane(files: SstableFiles, budget: Arc<Budget>, inbox: Arc<Inbox>) -> io::Result<JobThread<Compaction>> {
    JobThread::start("compactions", move |(cohort, lineage, job): Compaction| {
        let outputs = match compact_whole(job, &files, &budget) {
            Ok(outputs) => Some(outputs),
            Err(JobError::File(error)) => super::die(&format!("can't compact SSTables: {error}")),
            Err(JobError::NoSpace(error)) => {
                tracing::error!(%cohort, %error, "disk full: SSTables will be compacted when space is available");
                None
            }
            Err(JobError::Sstable(error)) => {
                tracing::error!(%cohort, %error, "can't read an SSTable: this replica resigns as leader");
                inbox.post(Input::Done(Event::FileDamaged { cohort }));
                None
            }
        };
        inbox.post(Input::Done(Event::Compacted { cohort, lineage, outputs }));
    })
}

fn compact_whole(mut job: Box<dyn Job>, files: &SstableFiles, budget: &Budget) -> Result<Outputs, JobError> {
    let bytes = job.step_bytes();
    loop {
        if let JobStep::Done(outputs) = budget.compact(bytes, job.is_urgent(), || job.step(files))? {
            return Ok(outputs);
        }
    }
}

fn evaluation_lane(inbox: Arc<Inbox>) -> io::Result<JobThread<(EvaluationId, Read)>> {
    JobThread::start("rows", move |(id, read): (EvaluationId, Read)| {
        let answer = read.answer(Io::Allowed);
        if let Err(error) = &answer {
            tracing::error!(%error, "can't read data of a replica");
        }
        inbox.post(Input::Done(Event::Evaluated { id, answer }));
    })
}

fn part_lane(inbox: Arc<Inbox>) -> io::Result<JobThread<PartRead>> {
    JobThread::start("shipping", move |PartRead { id, file, offset, bytes, verify }: PartRead| {
        let verified = if verify { file.verify() } else { Ok(()) };
        let bytes = verified.and_then(|()| file.read_raw(offset, bytes));
        if let Err(error) = &bytes {
            tracing::error!(%error, "can't read data of a replica to send it");
        }
        inbox.post(Input::Done(Event::FileRead { id, bytes }));
    })
}

fn change_lane(files: SstableFiles, inbox: Arc<Inbox>) -> io::Result<JobThread<Change>> {
    JobThread::start("sstables", move |change: Change| match change {
        Change::Write { file, offset, bytes } => {
            let written = shipping::write_part(&files, file, offset, &bytes);
            let bytes = match written {
                Ok(()) => Some(bytes.len() as u64),
                Err(error) if is_harmless(&error) => None,
                Err(error) => super::die(&format!("can't write a received SSTable: {error}")),
            };
            inbox.post(Input::Done(Event::FileWritten { file, bytes }));
        }
        Change::Adopt { cohort, arrival, adoption } => {
            let storage = match adoption.run(&files) {
                Ok(storage) => Some(storage),
                Err(AdoptError::File(error)) if !is_harmless(&error) => {
                    super::die(&format!("can't force received SSTables: {error}"))
                }
                Err(error) => {
                    tracing::error!(%cohort, %error, "received SSTables are invalid");
                    None
                }
            };
            inbox.post(Input::Done(Event::FilesAdopted { cohort, arrival, storage }));
        }
        Change::Remove { files: gone } => {
            if let Err(error) = shipping::remove(&files, &gone) {
                super::die(&format!("can't remove an obsolete SSTable: {error}"));
            }
        }
    })
}

/// Whether an error only reports a lack of space, or that the file was removed meanwhile.
fn is_harmless(error: &FileError) -> bool {
    matches!(error.kind, FileErrorKind::NoSpace | FileErrorKind::NotFound)
}
