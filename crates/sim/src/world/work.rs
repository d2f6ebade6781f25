//! Background work of a process on its SSTables: flushes and checkpoints, compactions, reads that wait for the disk,
//! creation and removal of SSTables. Each runs in steps that take time, and the machine may crash between any two of
//! them.

use std::collections::BTreeMap;

use base::{CohortId, NodeId};
use bytes::Bytes;
use node::contract::{ArrivalId, CheckpointId, EvaluationId, Event, Lineage, ReadId};
use node::registry::{Read, Snapshot};
use state_machine::storage::{AdoptError, Adoption, FileId, Job, JobError, JobStep, Outputs, StoredFile};
use store::checkpoint::{CheckpointMeta, write_checkpoint};
use store::files::{FileError, FileErrorKind};
use store::shipping;
use store::sstable::Io;

use super::events::Happening;
use super::{MILLISECOND, World};

/// Slowdown of a slow step.
const SLOWED: u64 = 400;

pub(crate) enum Work {
    Checkpoint {
        number: CheckpointId,
        meta: CheckpointMeta,
        state: Snapshot,
        flush: Option<Box<dyn Job>>,
        flushed: Option<Outputs>,
    },
    Compaction {
        cohort: CohortId,
        lineage: Lineage,
        job: Box<dyn Job>,
    },
    Evaluation {
        id: EvaluationId,
        read: Read,
    },
    ReadFile {
        id: ReadId,
        file: std::sync::Arc<dyn StoredFile>,
        offset: u64,
        bytes: usize,
        verify: bool,
    },
    WriteFile {
        file: FileId,
        offset: u64,
        bytes: Bytes,
    },
    AdoptFiles {
        cohort: CohortId,
        arrival: ArrivalId,
        adoption: Box<dyn Adoption>,
    },
    RemoveFiles {
        files: Vec<FileId>,
    },
    /// A checkpoint is on disk.
    Written {
        cohort: CohortId,
        checkpoint: CheckpointId,
        bytes: u64,
        flushed: Option<Outputs>,
    },
}

/// All work in progress, by number.
#[derive(Default)]
pub(crate) struct Works {
    last: u64,
    begun: BTreeMap<u64, Work>,
}

/// The result of a step of work.
enum Step {
    Again(Box<Work>),
    Done(Option<Box<Event>>),
    Failed,
}

impl Step {
    fn done(event: Event) -> Self {
        Self::Done(Some(Box::new(event)))
    }
}

impl World {
    /// Begins work; its first step completes after a delay.
    pub(super) fn begin_work(&mut self, id: NodeId, work: Work) {
        let generation = self.generation(id);
        let longest = match work {
            Work::Evaluation { .. } | Work::ReadFile { .. } | Work::WriteFile { .. } => 3 * MILLISECOND,
            Work::RemoveFiles { .. } => MILLISECOND,
            _ => 20 * MILLISECOND,
        };
        let is_slow = self.random.chance(self.options.slow_work) && !self.healed;
        let longest = if is_slow { SLOWED * longest } else { longest };
        let at = self.now + 20_000 + self.random.below(longest);
        let Some(process) = self.process(id) else { return };
        process.works.last += 1;
        let number = process.works.last;
        process.works.begun.insert(number, work);
        self.queue.put(at, Happening::Work { node: id, generation, number });
    }

    pub(super) fn work(&mut self, id: NodeId, number: u64) {
        let Some(process) = self.process(id) else { return };
        let Some(work) = process.works.begun.remove(&number) else { return };
        let (files, owner) = (process.store.files().clone(), process.store.owner());
        let cohort = work.cohort();
        let step = match work {
            Work::Checkpoint { number, meta, state, flush: Some(mut flush), .. } => match flush.step(&files) {
                Ok(JobStep::Working { .. }) => {
                    Step::Again(Box::new(Work::Checkpoint { number, meta, state, flush: Some(flush), flushed: None }))
                }
                Ok(JobStep::Done(flushed)) => {
                    Step::Again(Box::new(Work::Checkpoint { number, meta, state, flush: None, flushed: Some(flushed) }))
                }
                Err(JobError::NoSpace(_)) => {
                    Step::done(Event::CheckpointFailed { cohort: meta.cohort, checkpoint: number })
                }
                Err(_) => Step::Failed,
            },
            Work::Checkpoint { number, meta, state, flush: None, flushed } => {
                match write_checkpoint(&files, &owner, &meta, state.chunks()) {
                    Ok(bytes) => {
                        Step::Again(Box::new(Work::Written { cohort: meta.cohort, checkpoint: number, bytes, flushed }))
                    }
                    Err(error) if error.kind == FileErrorKind::NoSpace => {
                        Step::Again(Box::new(Work::Checkpoint { number, meta, state, flush: None, flushed }))
                    }
                    Err(_) => Step::Failed,
                }
            }
            Work::Written { cohort, checkpoint, bytes, flushed } => {
                Step::done(Event::CheckpointWritten { cohort, checkpoint, bytes, flushed })
            }
            Work::Compaction { cohort, lineage, mut job } => match job.step(&files) {
                Ok(JobStep::Working { .. }) => Step::Again(Box::new(Work::Compaction { cohort, lineage, job })),
                Ok(JobStep::Done(outputs)) => Step::done(Event::Compacted { cohort, lineage, outputs: Some(outputs) }),
                Err(JobError::File(_)) => Step::Failed,
                Err(error) => {
                    if let JobError::Sstable(_) = error {
                        self.step(id, Event::FileDamaged { cohort });
                    }
                    Step::done(Event::Compacted { cohort, lineage, outputs: None })
                }
            },
            Work::Evaluation { id, read } => Step::done(Event::Evaluated { id, answer: read.answer(Io::Allowed) }),
            Work::ReadFile { id: read, file, offset, bytes, verify } => {
                let verified = if verify { file.verify() } else { Ok(()) };
                let bytes = verified.and_then(|()| file.read_raw(offset, bytes));
                Step::done(Event::FileRead { id: read, bytes })
            }
            Work::WriteFile { file, offset, bytes } => match shipping::write_part(&files, file, offset, &bytes) {
                Ok(()) => Step::done(Event::FileWritten { file, bytes: Some(bytes.len() as u64) }),
                Err(error) if is_harmless(&error) => Step::done(Event::FileWritten { file, bytes: None }),
                Err(_) => Step::Failed,
            },
            Work::AdoptFiles { cohort, arrival, adoption } => match adoption.run(&files) {
                Ok(storage) => Step::done(Event::FilesAdopted { cohort, arrival, storage: Some(storage) }),
                Err(AdoptError::File(error)) if !is_harmless(&error) => Step::Failed,
                Err(_) => Step::done(Event::FilesAdopted { cohort, arrival, storage: None }),
            },
            Work::RemoveFiles { files: gone } => match shipping::remove(&files, &gone) {
                Ok(()) => Step::Done(None),
                Err(_) => Step::Failed,
            },
        };
        self.note(number, u64::from(cohort.map_or(0, |cohort| cohort.0)));
        match step {
            Step::Again(work) => self.begin_work(id, *work),
            Step::Done(Some(event)) => self.step(id, *event),
            Step::Done(None) => {}
            Step::Failed => self.disk_failed(id),
        }
    }
}

impl Work {
    fn cohort(&self) -> Option<CohortId> {
        match self {
            Self::Checkpoint { meta, .. } => Some(meta.cohort),
            Self::Compaction { cohort, .. } | Self::AdoptFiles { cohort, .. } | Self::Written { cohort, .. } => {
                Some(*cohort)
            }
            _ => None,
        }
    }
}

/// Whether an error only reports a lack of space, or that the file was removed meanwhile.
fn is_harmless(error: &FileError) -> bool {
    matches!(error.kind, FileErrorKind::NoSpace | FileErrorKind::NotFound)
}
