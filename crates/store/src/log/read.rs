//! Reads entries from the log, for a replica that lags beyond the entries in memory.

use base::{CohortId, Entry, LogRecord, Record, Sequence};

use super::frame::{self, BatchLocation, Frame};
use super::index::Run;
use super::segments;
use super::writer::LogWriter;
use crate::AlignedBuffer;
use crate::files::{FileError, Files, OpenOptions, ReadAt as _, open_if_exists};
use crate::identity::Owner;

const READ_BATCHES_MAX: usize = 256;

/// A read that may run on any thread. It contains the locations of the entries at planning time. If a segment was
/// recycled since, the segment number in its frames reveals it.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    owner: Owner,
    segment_bytes: u64,
    cohort: CohortId,
    bytes: usize,
    runs: Vec<Run>,
}

impl ReadPlan {
    pub(super) fn new(
        log: &LogWriter,
        cohort: CohortId,
        from: Sequence,
        below: Option<Sequence>,
        bytes: usize,
    ) -> Option<Self> {
        let runs = log.index.runs(cohort, from, below, READ_BATCHES_MAX);
        let plan = Self { owner: log.owner, segment_bytes: log.segment_bytes, cohort, bytes, runs };
        (!plan.runs.is_empty()).then_some(plan)
    }

    /// The live entries in order, contiguous, at least one; `None` if the first is missing or damaged.
    ///
    /// # Errors
    /// When the disk fails to read.
    pub fn execute<F: Files>(&self, files: &F) -> Result<Option<Vec<Entry>>, FileError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut size = 0;
        for run in &self.runs {
            let Some(found) = self.read_run(files, run)? else { break };
            for entry in found {
                if size >= self.bytes && !entries.is_empty() {
                    return Ok(Some(entries));
                }
                size += entry.size();
                entries.push(entry);
            }
        }
        Ok((!entries.is_empty()).then_some(entries))
    }

    /// The entries of one run; `None` unless all of them are intact.
    fn read_run<F: Files>(&self, files: &F, run: &Run) -> Result<Option<Vec<Entry>>, FileError> {
        let number = run.batch.segment(self.segment_bytes);
        let Some(file) = open_if_exists(files, &segments::path(number), OpenOptions::DIRECT)? else {
            return Ok(None);
        };
        let mut bytes = AlignedBuffer::zeroed(run.bytes as usize);
        let read = file.read_at(run.batch.offset(self.segment_bytes), &mut bytes)?;
        let place = BatchLocation { owner: self.owner, position: run.batch, segment: number };
        let records = frame::parse(&bytes[..read], &place).and_then(|frame: Frame| frame.records().ok());
        Ok(records.and_then(|records| self.live(records, run)))
    }

    /// Applies the replay rule within one batch; the run excludes entries invalidated by later batches.
    fn live(&self, records: Vec<Record>, run: &Run) -> Option<Vec<Entry>> {
        let mut live: Vec<Entry> = Vec::new();
        // Live entries are in the order of their sequences, so invalidated ones are at the end.
        let kill = |live: &mut Vec<Entry>, from: Sequence| {
            live.truncate(live.partition_point(|entry| entry.lsn.sequence < from));
        };
        for record in records.into_iter().filter(|record| record.cohort == self.cohort) {
            match record.body {
                LogRecord::Entry(entry) => {
                    kill(&mut live, entry.lsn.sequence);
                    live.push(entry);
                }
                LogRecord::Truncation { from } => kill(&mut live, from),
                LogRecord::CommitPoint(_) => {}
            }
        }
        live.retain(|entry| run.first <= entry.lsn.sequence && entry.lsn.sequence <= run.last);
        let is_whole = live.len() as u64 == run.last.0 - run.first.0 + 1;
        is_whole.then_some(live)
    }
}
