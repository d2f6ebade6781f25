//! The segment files of the log: which exist, which sequences they hold, and which to prepare, recycle or remove.

use std::collections::{BTreeMap, VecDeque};

use base::canary::{Bug, planted};
use base::{CohortId, LogRecord, Record, Sequence};

use super::frame::HEADER_BYTES;
use crate::BLOCK_BYTES;
use crate::files::{File, FileError, FileErrorKind, Files, OpenOptions, TEMPORARY, remove_if_exists, write_zeros};

/// The directory of the segments.
pub const DIRECTORY: &str = "0/log";

/// Maximum released segments kept for recycling beyond the prepared ones. Enough for a burst of checkpoints.
const SPARE_MAX: usize = 2;

/// Minimum length of a segment: a header and a small entry, twice.
pub(crate) fn segment_bytes_min() -> u64 {
    const { assert!(HEADER_BYTES < BLOCK_BYTES) };
    2 * BLOCK_BYTES as u64
}

/// Upper limit of segment numbers: more bytes than any disk will ever write, and positions fit in 64 bits.
const NUMBERS_END: u64 = 1 << 36;

/// The path of a segment.
#[must_use]
pub fn path(number: u64) -> String {
    format!("{DIRECTORY}/{number:016x}")
}

/// Parses the name of a segment.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (format!("{number:016x}") == name && number < NUMBERS_END).then_some(number)
}

/// The temporary name of a segment while it is filled.
pub(super) fn temporary() -> String {
    format!("{DIRECTORY}/segment{TEMPORARY}")
}

/// The segments of a log, from the oldest to the last prepared.
#[derive(Clone, Debug)]
pub struct Segments {
    segment_bytes: u64,
    /// The highest live sequence of each cohort in each segment with batches.
    highest: BTreeMap<u64, BTreeMap<CohortId, Sequence>>,
    /// The highest live sequence of each cohort.
    ends: BTreeMap<CohortId, Sequence>,
    /// The last segment that is ready for batches.
    prepared: u64,
    /// Released segments with existing files, oldest first.
    spare: VecDeque<u64>,
    job: Option<SegmentJob>,
}

/// A job for a segment's file, on any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentJob {
    number: u64,
    segment_bytes: u64,
    kind: JobKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    Fill,
    Recycle { from: u64 },
    Remove,
}

impl Segments {
    pub(super) fn new(segment_bytes: u64, prepared: u64, spare: VecDeque<u64>) -> Self {
        Self { segment_bytes, highest: BTreeMap::new(), ends: BTreeMap::new(), prepared, spare, job: None }
    }

    pub(super) fn note<'a>(&mut self, segment: u64, records: impl Iterator<Item = &'a Record>) {
        self.highest.entry(segment).or_default();
        for record in records {
            let cohort = record.cohort;
            match &record.body {
                LogRecord::Entry(entry) => {
                    self.kill(cohort, entry.lsn.sequence);
                    self.raise(segment, cohort, entry.lsn.sequence);
                    self.ends.insert(cohort, entry.lsn.sequence);
                }
                LogRecord::Truncation { from } => {
                    self.kill(cohort, *from);
                    // The segment may be released only if the cohort has a checkpoint or a live entry.
                    self.raise(segment, cohort, Sequence(0));
                }
                LogRecord::CommitPoint(lsn) => self.raise(segment, cohort, lsn.sequence),
            }
        }
    }

    fn raise(&mut self, segment: u64, cohort: CohortId, sequence: Sequence) {
        let highest = self.highest.entry(segment).or_default().entry(cohort).or_default();
        *highest = sequence.max(*highest);
    }

    /// Invalidated entries need no checkpoint: the record that invalidated them is in a later segment, and segments are
    /// released oldest first.
    fn kill(&mut self, cohort: CohortId, from: Sequence) {
        if self.ends.get(&cohort).is_none_or(|end| *end < from) {
            return;
        }
        self.ends.insert(cohort, from.previous());
        for highest in self.highest.values_mut() {
            if let Some(sequence) = highest.get_mut(&cohort) {
                *sequence = from.previous().min(*sequence);
            }
        }
    }

    /// Later segments are invalid and must be prepared again.
    pub(super) fn end_at(&mut self, number: u64) {
        self.prepared = self.prepared.min(number);
    }

    pub(super) fn is_prepared(&self, number: u64) -> bool {
        number <= self.prepared
    }

    /// The segments before `last` that may be released, keeping at least `keep` segments.
    pub(super) fn dispensable(&self, floors: &BTreeMap<CohortId, Sequence>, last: u64, keep: u64) -> Vec<u64> {
        let is_checkpointed = |highest: &BTreeMap<CohortId, Sequence>| {
            highest.iter().all(|(cohort, highest)| *highest <= floors.get(cohort).copied().unwrap_or_default())
        };
        let old = self.highest.iter().filter(|(number, _)| **number < last && last - **number >= keep);
        let gone: Vec<u64> = if planted(Bug::SegmentsOutOfOrder) {
            old.filter(|(_, highest)| is_checkpointed(highest)).map(|(number, _)| *number).collect()
        } else {
            old.take_while(|(_, highest)| is_checkpointed(highest)).map(|(number, _)| *number).collect()
        };
        gone
    }

    pub(super) fn release(&mut self, gone: &[u64]) {
        for number in gone {
            if self.highest.remove(number).is_some() {
                self.spare.push_back(*number);
            }
        }
    }

    /// The next job to keep `ahead` segments after `current` prepared; `None` while the last job is in progress.
    pub fn next_job(&mut self, current: u64, ahead: u64) -> Option<SegmentJob> {
        if self.job.is_some() {
            return None;
        }
        let (number, kind) = if self.prepared < current.saturating_add(ahead) {
            let recycle = self.spare.pop_front();
            (self.prepared + 1, recycle.map_or(JobKind::Fill, |from| JobKind::Recycle { from }))
        } else if self.spare.len() > SPARE_MAX {
            (self.spare.pop_front()?, JobKind::Remove)
        } else {
            return None;
        };
        self.job = Some(SegmentJob { number, segment_bytes: self.segment_bytes, kind });
        self.job
    }

    /// Completes a job.
    ///
    /// # Panics
    /// When it is not the job in progress.
    pub fn job_done(&mut self, job: SegmentJob) {
        assert_eq!(self.job.take(), Some(job), "at most one job is in progress");
        if job.kind != JobKind::Remove {
            self.prepared = job.number;
        }
    }
}

impl Segments {
    /// A job failed for lack of space and will be issued again.
    ///
    /// # Panics
    /// When it is not the job in progress.
    pub(crate) fn job_postponed(&mut self, job: SegmentJob) {
        assert_eq!(self.job.take(), Some(job), "at most one job is in progress");
        match job.kind {
            JobKind::Fill => {}
            JobKind::Recycle { from } => self.spare.push_front(from),
            JobKind::Remove => self.spare.push_front(job.number),
        }
    }
}

impl SegmentJob {
    /// Whether the job recycles a released segment.
    #[must_use]
    pub fn recycles(&self) -> bool {
        matches!(self.kind, JobKind::Recycle { .. })
    }

    /// The job that creates a new segment.
    pub(crate) fn fill(number: u64, segment_bytes: u64) -> Self {
        Self { number, segment_bytes, kind: JobKind::Fill }
    }

    /// Executes the job and forces its effect.
    ///
    /// # Errors
    /// When a file operation fails. If the disk is full ([`FileErrorKind::NoSpace`]) nothing has changed, and the job
    /// may be repeated later; the log continues until its prepared segments are full.
    pub fn execute<F: Files>(&self, files: &F) -> Result<(), FileError> {
        match self.kind {
            JobKind::Remove => {
                remove_if_exists(files, &path(self.number))?;
                files.sync_dir(DIRECTORY)
            }
            JobKind::Recycle { from } => {
                if !self.recycle(files, from)? {
                    self.create(files)?;
                }
                files.sync_dir(DIRECTORY)
            }
            JobKind::Fill => {
                self.create(files)?;
                files.sync_dir(DIRECTORY)
            }
        }
    }

    /// Renames an old segment, if it has the right length.
    fn recycle<F: Files>(&self, files: &F, from: u64) -> Result<bool, FileError> {
        let Some(file) = crate::files::open_if_exists(files, &path(from), OpenOptions::BUFFERED)? else {
            return Ok(false);
        };
        if file.len()? != self.segment_bytes {
            files.remove(&path(from))?;
            return Ok(false);
        }
        files.rename(&path(from), &path(self.number))?;
        Ok(true)
    }

    /// Filled and forced under a temporary name, so that a segment with its final name always has its full length.
    fn create<F: Files>(&self, files: &F) -> Result<(), FileError> {
        let temporary = temporary();
        remove_if_exists(files, &temporary)?;
        let file = files.create(&temporary, OpenOptions::DIRECT)?;
        match write_zeros(&file, 0, self.segment_bytes) {
            Err(error) if error.kind == FileErrorKind::NoSpace => {
                files.remove(&temporary)?;
                return Err(error);
            }
            other => other?,
        }
        file.sync()?;
        files.rename(&temporary, &path(self.number))
    }
}
