//! The store as a driver sees it: one data directory, opened.
//!
//! [`Store`] is the state, owned by the machine's thread; what goes to the disk leaves it as objects that carry
//! themselves out elsewhere and come back when they are done: [`Batch`], [`ManifestWrite`], [`SegmentJob`],
//! [`ReadPlan`].

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Boot, CohortId, Force, Lsn, Record, Sequence};

use crate::error::{RecordTooLarge, StoreError};
use crate::files::{FileError, Files, OpenOptions};
use crate::identity::{Identity, Owner};
use crate::log::{self, Batch, LogWriter, ReadPlan, SegmentJob};
use crate::manifest::{CohortManifest, Manifest, ManifestWrite, Places};
use crate::tree;

/// How a store is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a log segment; a multiple of 4096. Fixed when the directory is formatted: [`crate::open`] takes what it
    /// finds. A record must fit in one.
    pub segment_bytes: u64,
    /// Bytes of the log that are kept even if every cohort has them in a checkpoint, for replicas that lag.
    pub keep_bytes: u64,
    /// Segments that are prepared before they are needed.
    pub segments_ahead: u64,
    /// Sizes of the tablets' trees.
    pub tree: tree::Config,
    /// Bytes of the cache of blocks that all tables share.
    pub cache_bytes: u64,
    /// Bytes of memtables that are kept though they are flushed.
    pub recent_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        let tree = tree::Config::default();
        Self {
            segment_bytes: 64 << 20,
            keep_bytes: 128 << 20,
            segments_ahead: 2,
            tree,
            cache_bytes: 128 << 20,
            recent_bytes: 64 << 20,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let least = log::segment_bytes_min();
        let is_good = self.segment_bytes >= least && self.segment_bytes.is_multiple_of(crate::BLOCK_BYTES as u64);
        if is_good { Ok(()) } else { Err(StoreError::SegmentBytes { least, found: self.segment_bytes }) }
    }
}

/// An open data directory.
#[derive(Debug)]
pub struct Store<F: Files> {
    files: F,
    config: Config,
    identity: Identity,
    manifest: Manifest,
    places: Places<F::File>,
    log: LogWriter,
    /// Cohorts of which nothing is needed any more.
    gone: BTreeSet<CohortId>,
    /// Handles of the segments that batches go to.
    segments: BTreeMap<u64, F::File>,
}

impl<F: Files> Store<F> {
    pub(crate) fn new(
        files: F,
        config: Config,
        identity: Identity,
        manifest: Manifest,
        places: Places<F::File>,
        log: LogWriter,
    ) -> Self {
        Self { files, config, identity, manifest, places, log, gone: BTreeSet::new(), segments: BTreeMap::new() }
    }

    /// The files it lies in.
    #[must_use]
    pub fn files(&self) -> &F {
        &self.files
    }

    /// Whose it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What every file of it carries: [`crate::checkpoint::write_checkpoint`] wants it.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.identity.owner()
    }

    /// The number of this start.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.manifest.boot
    }

    /// Appends a record under its number; see [`LogWriter::append`].
    ///
    /// # Errors
    /// When the record fits in no segment.
    pub fn append(&mut self, write: u64, record: Record, force: Force) -> Result<(), RecordTooLarge> {
        self.log.append(write, record, force)
    }

    /// Whether no batch is in flight: only then another is made.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.log.is_idle()
    }

    /// The next batch, if something asks to be forced and its segment is prepared; see [`LogWriter::next_batch`].
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.log.next_batch()
    }

    /// Whether something is to be forced soon, and nothing now; see [`LogWriter::has_time`].
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.log.has_time()
    }

    /// What was to be forced soon is to be forced now.
    pub fn hurry(&mut self) {
        self.log.hurry();
    }

    /// A batch that names the last one, if no later one does; see [`LogWriter::echo`].
    pub fn echo(&mut self) -> Option<Batch> {
        self.log.echo()
    }

    /// The file that a batch of this segment goes to.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn batch_file(&mut self, segment: u64) -> Result<F::File, FileError> {
        self.segments.retain(|number, _| *number >= segment);
        if let Some(file) = self.segments.get(&segment) {
            return Ok(file.clone());
        }
        let file = self.files.open(&log::segment_path(segment), OpenOptions::DIRECT)?;
        self.segments.insert(segment, file.clone());
        Ok(file)
    }

    /// The batch in flight is forced. Says through which append.
    pub fn forced(&mut self) -> u64 {
        self.log.forced()
    }

    /// Takes back a batch that is forced, for its memory.
    pub fn recycle(&mut self, batch: Batch) {
        self.log.recycle(batch);
    }

    /// Where to find entries of a cohort; see [`LogWriter::plan_read`].
    #[must_use]
    pub fn plan_read(&self, cohort: CohortId, from: Sequence, bytes: usize) -> Option<ReadPlan> {
        self.log.plan_read(cohort, from, bytes)
    }

    /// What is to be done next about a segment's file, if anything: to be asked for after each batch and each manifest.
    /// One job is under way at most.
    pub fn segment_job(&mut self) -> Option<SegmentJob> {
        let current = self.log.current_segment();
        self.log.segments_mut().next_job(current, self.config.segments_ahead.max(1))
    }

    /// The job is done.
    pub fn segment_done(&mut self, job: SegmentJob) {
        self.log.segments_mut().job_done(job);
    }

    /// The job could not be done, for want of room ([`FileErrorKind::NoSpace`]): it is given out again.
    ///
    /// [`FileErrorKind::NoSpace`]: crate::files::FileErrorKind::NoSpace
    pub(crate) fn segment_postponed(&mut self, job: SegmentJob) {
        self.log.segments_mut().job_postponed(job);
    }

    /// Of these cohorts nothing is needed any more, whatever the log still holds of them: the next manifest, which
    /// doesn't name them, lets their segments and checkpoints go. It is to be said anew after each start.
    pub fn let_go(&mut self, cohorts: BTreeSet<CohortId>) {
        self.gone = cohorts;
    }

    /// Begins to write a manifest with this said of the cohorts. The log's oldest segment in it is the oldest that the
    /// checkpoints in it leave needed.
    pub fn begin_manifest(
        &mut self,
        cohorts: BTreeMap<CohortId, CohortManifest>,
        doubt_unknown: bool,
    ) -> ManifestWrite<F::File> {
        let floors = cohorts.iter().filter_map(|(id, cohort)| Some((*id, cohort.checkpoint?.lsn.sequence)));
        let retired: BTreeSet<CohortId> =
            cohorts.iter().filter(|(_, cohort)| cohort.is_retired).map(|(id, _)| *id).collect();
        let was_retired = |id: &CohortId| self.manifest.cohorts.get(id).is_some_and(|cohort| cohort.is_retired);
        let leavers: Vec<CohortId> = retired.iter().copied().filter(|id| !was_retired(id)).collect();
        let gone_floors = self.gone.iter().chain(&retired).map(|id| (*id, Sequence(u64::MAX)));
        let gone = self.log.dispensable(&floors.chain(gone_floors).collect(), self.config.keep_bytes);
        while gone.contains(&self.manifest.oldest_segment) {
            self.manifest.oldest_segment += 1;
        }
        self.manifest.version += 1;
        self.manifest.log_end = self.log.tail();
        let superseded = superseded(&self.manifest.cohorts, &cohorts);
        self.manifest.cohorts = cohorts;
        self.manifest.doubt_unknown = doubt_unknown;
        if planted(Bug::OldestNotForced) {
            self.log.released(&gone, self.manifest.oldest_segment);
        }
        let mut write = self.places.write(self.manifest.clone());
        write.release = gone;
        write.superseded = superseded;
        write.gone.clone_from(&self.gone);
        // Once: a replica that comes back has checkpoints again.
        write.gone.extend(leavers);
        write
    }

    /// The manifest is forced in both places, and the checkpoints it supersedes are removed: the segments that it
    /// leaves out may be recycled.
    ///
    /// # Panics
    /// When manifests finish in another order than they began.
    pub fn finish_manifest(&mut self, write: &ManifestWrite<F::File>) {
        assert!(write.manifest().version <= self.manifest.version, "this manifest began here");
        self.log.released(&write.release, write.manifest().oldest_segment);
    }

    /// The manifest that was begun last.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The log's state.
    #[must_use]
    pub fn log(&self) -> &LogWriter {
        &self.log
    }

    /// What must hold between any two steps; for tests and the simulator.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn invariants(&self) {
        self.log.invariants();
    }
}

/// The checkpoints that were named, where others are now.
fn superseded(
    before: &BTreeMap<CohortId, CohortManifest>,
    now: &BTreeMap<CohortId, CohortManifest>,
) -> BTreeMap<CohortId, Lsn> {
    let named = |(id, cohort): (&CohortId, &CohortManifest)| Some((*id, cohort.checkpoint?.lsn));
    let is_other = |(id, lsn): &(CohortId, Lsn)| {
        now.get(id).and_then(|cohort| cohort.checkpoint).is_some_and(|checkpoint| checkpoint.lsn != *lsn)
    };
    before.iter().filter_map(named).filter(is_other).collect()
}

#[cfg(test)]
mod tests;
