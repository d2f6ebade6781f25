//! The files of the log: which are there, what they hold, which are wanted next and which have gone.

use std::collections::{BTreeMap, VecDeque};

use base::canary::{Bug, planted};
use base::{CohortId, LogRecord, Record, Sequence};

use super::frame::HEADER_BYTES;
use crate::BLOCK_BYTES;
use crate::files::{File, FileError, FileErrorKind, Files, OpenOptions, TEMPORARY, remove_if_exists, write_zeros};

/// The directory of the segments.
pub const DIRECTORY: &str = "log";

/// Segments that are kept to be recycled, beyond those prepared: as many as a burst of checkpoints frees at once is
/// enough, the rest is room for others.
const SPARE_MAX: usize = 2;

/// The least length of a segment: a header and a small entry, twice over.
pub(crate) fn segment_bytes_min() -> u64 {
    const { assert!(HEADER_BYTES < BLOCK_BYTES) };
    2 * BLOCK_BYTES as u64
}

/// Numbers of segments end here, at more bytes than any disk will ever write, so that positions fit in 64 bits.
const NUMBERS_END: u64 = 1 << 36;

/// The path of a segment.
#[must_use]
pub fn path(number: u64) -> String {
    format!("{DIRECTORY}/{number:016x}")
}

/// The number in the name of a segment.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (format!("{number:016x}") == name && number < NUMBERS_END).then_some(number)
}

/// The name under which a segment is filled.
pub(super) fn temporary() -> String {
    format!("{DIRECTORY}/segment{TEMPORARY}")
}

/// The segments of a log, from the oldest to the last prepared.
#[derive(Clone, Debug)]
pub struct Segments {
    segment_bytes: u64,
    /// For each segment that holds batches: the highest sequence of each cohort that is live in it.
    highest: BTreeMap<u64, BTreeMap<CohortId, Sequence>>,
    /// The highest of all, of each cohort.
    ends: BTreeMap<CohortId, Sequence>,
    /// The last segment that is ready for batches.
    prepared: u64,
    /// Segments that have gone and whose files are still there, oldest first.
    spare: VecDeque<u64>,
    job: Option<SegmentJob>,
}

/// Something to be done about a segment's file, on any thread.
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
                    // The cohort must have a checkpoint, or something live, for its log to be forgotten.
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

    /// What is dead needs no checkpoint. Whatever it was killed by lies behind it, and segments go oldest first.
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

    /// Segments after this one are not what they should be: they are prepared anew.
    pub(super) fn end_at(&mut self, number: u64) {
        self.prepared = self.prepared.min(number);
    }

    pub(super) fn is_prepared(&self, number: u64) -> bool {
        number <= self.prepared
    }

    /// The segments that may go, of those before `last`: all but `keep` segments in all.
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

    /// What is to be done next, so that `ahead` segments behind `current` are ready before they are needed; nothing
    /// while the last such job isn't done.
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

    /// The job is done.
    ///
    /// # Panics
    /// When it isn't the one that was asked for.
    pub fn job_done(&mut self, job: SegmentJob) {
        assert_eq!(self.job.take(), Some(job), "one job is under way at most");
        if job.kind != JobKind::Remove {
            self.prepared = job.number;
        }
    }
}

impl Segments {
    /// The job could not be done, for want of room: it is to be given out again.
    ///
    /// # Panics
    /// When it isn't the one that was asked for.
    pub(crate) fn job_postponed(&mut self, job: SegmentJob) {
        assert_eq!(self.job.take(), Some(job), "one job is under way at most");
        match job.kind {
            JobKind::Fill => {}
            JobKind::Recycle { from } => self.spare.push_front(from),
            JobKind::Remove => self.spare.push_front(job.number),
        }
    }
}

impl SegmentJob {
    /// Whether it gives a segment that has gone a new number.
    #[must_use]
    pub fn recycles(&self) -> bool {
        matches!(self.kind, JobKind::Recycle { .. })
    }

    /// The job that makes a segment from nothing.
    pub(crate) fn fill(number: u64, segment_bytes: u64) -> Self {
        Self { number, segment_bytes, kind: JobKind::Fill }
    }

    /// Does it; what it did is forced.
    ///
    /// # Errors
    /// When a file operation fails. If the disk is full ([`FileErrorKind::NoSpace`]) nothing was changed, and the job
    /// may be done again once there is room; the log goes on until its prepared segments are full.
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

    /// Gives an old file the new name, if it is what a segment should be.
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

    /// Filled with zeros and forced under another name, so that a segment under its own name has its whole length.
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
