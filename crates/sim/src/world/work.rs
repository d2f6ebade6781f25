//! The work of a process on its tables: flushes and checkpoints, compactions, reads that wait for the disk, tables that
//! come and go. Each takes its time, step by step, and the machine may crash between any two of them.

use std::collections::BTreeMap;

use base::{CohortId, NodeId};
use bytes::Bytes;
use node::contract::{ArrivalId, CheckpointId, EvaluationId, Event, Lineage, ReadId};
use store::checkpoint::{CheckpointMeta, write_checkpoint};
use store::files::{FileError, FileErrorKind};
use store::shipping;
use store::sstable::{Io, Table, TableError, TableId, TableRef};
use store::tree::{CompactionJob, FlushJob, JobError, Outputs, Progress, Site};
use tablets::{Evaluation, Snapshot};

use super::events::Happening;
use super::{MILLISECOND, World};

/// How many times as long a slow step takes.
const SLOWED: u64 = 400;

/// What a process has begun.
pub(crate) enum Work {
    Checkpoint {
        number: CheckpointId,
        meta: CheckpointMeta,
        state: Snapshot,
        flush: Option<FlushJob>,
        flushed: Option<Outputs>,
    },
    Compaction {
        cohort: CohortId,
        lineage: Lineage,
        job: CompactionJob,
    },
    Evaluation {
        id: EvaluationId,
        evaluation: Evaluation,
    },
    ReadTable {
        id: ReadId,
        table: std::sync::Arc<Table>,
        offset: u64,
        bytes: usize,
    },
    WriteTable {
        table: TableId,
        offset: u64,
        bytes: Bytes,
    },
    AdoptTables {
        cohort: CohortId,
        arrival: ArrivalId,
        site: Site,
        tables: Vec<TableRef>,
    },
    RemoveTables {
        tables: Vec<TableId>,
    },
    /// A checkpoint is on disk.
    Written {
        cohort: CohortId,
        checkpoint: CheckpointId,
        bytes: u64,
        flushed: Option<Outputs>,
    },
}

/// All that a process has begun, by number.
#[derive(Default)]
pub(crate) struct Works {
    last: u64,
    begun: BTreeMap<u64, Work>,
}

/// What a step of a work led to.
enum Step {
    Again(Box<Work>),
    Done(Option<Box<Event>>),
    /// The disk failed.
    Failed,
}

impl Step {
    fn done(event: Event) -> Self {
        Self::Done(Some(Box::new(event)))
    }
}

impl World {
    /// Begins a work; its first step comes after a while.
    pub(super) fn begin_work(&mut self, id: NodeId, work: Work) {
        let generation = self.generation(id);
        let longest = match work {
            Work::Evaluation { .. } | Work::ReadTable { .. } | Work::WriteTable { .. } => 3 * MILLISECOND,
            Work::RemoveTables { .. } => MILLISECOND,
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
                Ok(Progress::Working { .. }) => {
                    Step::Again(Box::new(Work::Checkpoint { number, meta, state, flush: Some(flush), flushed: None }))
                }
                Ok(Progress::Done(flushed)) => {
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
                Ok(Progress::Working { .. }) => Step::Again(Box::new(Work::Compaction { cohort, lineage, job })),
                Ok(Progress::Done(outputs)) => Step::done(Event::Compacted { cohort, lineage, outputs: Some(outputs) }),
                Err(JobError::File(_)) => Step::Failed,
                Err(error) => {
                    if let JobError::Table(_) = error {
                        self.step(id, Event::TableDamaged { cohort });
                    }
                    Step::done(Event::Compacted { cohort, lineage, outputs: None })
                }
            },
            Work::Evaluation { id, evaluation } => {
                Step::done(Event::Evaluated { id, answer: evaluation.answer(Io::Allowed) })
            }
            Work::ReadTable { id: read, table, offset, bytes } => {
                let bytes = table.read_raw(offset, bytes).ok();
                Step::done(Event::TableRead { id: read, bytes })
            }
            Work::WriteTable { table, offset, bytes } => match shipping::write_part(&files, table, offset, &bytes) {
                Ok(()) => Step::done(Event::TableWritten { table, bytes: Some(bytes.len() as u64) }),
                Err(error) if is_harmless(&error) => Step::done(Event::TableWritten { table, bytes: None }),
                Err(_) => Step::Failed,
            },
            Work::AdoptTables { cohort, arrival, site, tables } => match shipping::adopt(&files, site, &tables) {
                Ok(tree) => Step::done(Event::TablesAdopted { cohort, arrival, tree: Some(Box::new(tree)) }),
                Err(TableError::File(error)) if !is_harmless(&error) => Step::Failed,
                Err(_) => Step::done(Event::TablesAdopted { cohort, arrival, tree: None }),
            },
            Work::RemoveTables { tables } => match shipping::remove(&files, &tables) {
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
            Self::Compaction { cohort, .. } | Self::AdoptTables { cohort, .. } | Self::Written { cohort, .. } => {
                Some(*cohort)
            }
            _ => None,
        }
    }
}

/// Whether an error says only that there was no room, or that the file was removed meanwhile.
fn is_harmless(error: &FileError) -> bool {
    matches!(error.kind, FileErrorKind::NoSpace | FileErrorKind::NotFound)
}
