//! The driver's interface to an open data directory.
//!
//! [`Store`] is the state, owned by the machine's thread. IO leaves it as objects that run elsewhere and are returned
//! when done: [`Batch`], [`ManifestWrite`], [`SegmentJob`], [`ReadPlan`].

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Boot, CohortId, Force, Lsn, NodeId, ProcessStart, Record, Sequence, StartHistory};

use crate::error::{RecordTooLarge, StoreError};
use crate::files::{FileError, Files, OpenOptions};
use crate::identity::{Identity, Owner};
use crate::log::{self, Batch, LogWriter, ReadPlan, SegmentJob};
use crate::manifest::{CohortManifest, Manifest, ManifestWrite, Places};
use crate::tree;

/// Configuration of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a log segment, a multiple of 4096. Fixed at formatting: [`crate::open`] uses the existing value. A
    /// record must fit in one segment.
    pub segment_bytes: u64,
    /// Bytes of log kept for lagging replicas even if checkpoints cover them.
    pub keep_bytes: u64,
    /// Number of segments prepared in advance.
    pub segments_ahead: u64,
    /// Sizes for the tablets' trees.
    pub tree: tree::Config,
    /// Size in bytes of the block cache shared by all SSTables.
    pub cache_bytes: u64,
    /// Bytes of flushed memtables kept in memory.
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
    /// Removed cohorts, with no data needed.
    gone: BTreeSet<CohortId>,
    /// Entries after which the log of a cohort is kept.
    kept: BTreeMap<CohortId, Sequence>,
    /// Open segment files for batches.
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
        Self {
            files,
            config,
            identity,
            manifest,
            places,
            log,
            gone: BTreeSet::new(),
            kept: BTreeMap::new(),
            segments: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn files(&self) -> &F {
        &self.files
    }

    /// The identity of the disk.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The owner recorded in every file, as needed by [`crate::checkpoint::write_checkpoint`].
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.identity.owner()
    }

    /// This start, and the ones before it.
    #[must_use]
    pub fn starts(&self) -> &StartHistory {
        &self.manifest.starts
    }

    /// The number of this start.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.manifest.starts.newest().boot
    }

    /// Appends a record with its number; see [`LogWriter::append`].
    ///
    /// # Errors
    /// When the record does not fit in a segment.
    pub fn append(&mut self, write: u64, record: Record, force: Force) -> Result<(), RecordTooLarge> {
        self.log.append(write, record, force)
    }

    /// Whether no batch is in flight, so that another may be built.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.log.is_idle()
    }

    /// The next batch, if a force is requested and its segment is prepared; see [`LogWriter::next_batch`].
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.log.next_batch()
    }

    /// Whether a force is requested soon but not now; see [`LogWriter::has_time`].
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.log.has_time()
    }

    /// Turns requests to force soon into requests to force now.
    pub fn hurry(&mut self) {
        self.log.hurry();
    }

    /// A batch that confirms the last one, unless a later batch already does; see [`LogWriter::echo`].
    pub fn echo(&mut self) -> Option<Batch> {
        self.log.echo()
    }

    /// The file of a segment, for a batch.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn batch_file(&mut self, segment: u64) -> Result<F::File, FileError> {
        self.segments.retain(|number, _| *number >= segment);
        if let Some(file) = self.segments.get(&segment) {
            return Ok(file.clone());
        }
        let file = self.files.open(&log::segment_path(segment), OpenOptions::DIRECT)?;
        self.segments.insert(segment, file.clone());
        Ok(file)
    }

    /// The batch in flight is forced. Returns the last append that it covers.
    pub fn forced(&mut self) -> u64 {
        self.log.forced()
    }

    /// Returns a forced batch for reuse of its memory.
    pub fn recycle(&mut self, batch: Batch) {
        self.log.recycle(batch);
    }

    /// A plan to read entries of a cohort; see [`LogWriter::plan_read`].
    #[must_use]
    pub fn plan_read(&self, cohort: CohortId, from: Sequence, bytes: usize) -> Option<ReadPlan> {
        self.log.plan_read(cohort, from, bytes)
    }

    /// The next job for a segment file, if any. Ask after each batch and each manifest. At most one job is in progress.
    pub fn segment_job(&mut self) -> Option<SegmentJob> {
        let current = self.log.current_segment();
        self.log.segments_mut().next_job(current, self.config.segments_ahead.max(1))
    }

    pub fn segment_done(&mut self, job: SegmentJob) {
        self.log.segments_mut().job_done(job);
    }

    /// A job failed for lack of space ([`FileErrorKind::NoSpace`]); it will be issued again.
    ///
    /// [`FileErrorKind::NoSpace`]: crate::files::FileErrorKind::NoSpace
    pub(crate) fn segment_postponed(&mut self, job: SegmentJob) {
        self.log.segments_mut().job_postponed(job);
    }

    /// Declares all data of these cohorts unneeded, including their records in the log: the next manifest, which must
    /// not name them, releases their segments and checkpoints. Must be repeated after each start.
    pub fn let_go(&mut self, cohorts: BTreeSet<CohortId>) {
        self.gone = cohorts;
    }

    /// The log of these cohorts is kept after the given entries, although their checkpoints contain more.
    pub fn keep_logs(&mut self, kept: BTreeMap<CohortId, Sequence>) {
        self.kept = kept;
    }

    /// Sets the newest start of each peer that the next manifest names.
    pub fn know_peers(&mut self, peers: BTreeMap<NodeId, ProcessStart>) {
        self.manifest.peers = peers;
    }

    /// Starts to write a manifest with this state of the cohorts. It also advances the log's oldest segment as far as
    /// its checkpoints allow.
    pub fn begin_manifest(
        &mut self,
        cohorts: BTreeMap<CohortId, CohortManifest>,
        doubt_unknown: bool,
    ) -> ManifestWrite<F::File> {
        let floor = |(id, cohort): (&CohortId, &CohortManifest)| {
            let checkpoint = cohort.checkpoint?.lsn.sequence;
            Some((*id, self.kept.get(id).map_or(checkpoint, |kept| checkpoint.min(*kept))))
        };
        let floors = cohorts.iter().filter_map(floor);
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
        // Only once, because a replica that returns has checkpoints again.
        write.gone.extend(leavers);
        write
    }

    /// The manifest is forced in both places, and superseded checkpoints are removed: released segments may be
    /// recycled.
    ///
    /// # Panics
    /// When manifests finish in another order than they started.
    pub fn finish_manifest(&mut self, write: &ManifestWrite<F::File>) {
        assert!(write.manifest().version <= self.manifest.version, "manifests finish in the order of their versions");
        self.log.released(&write.release, write.manifest().oldest_segment);
    }

    /// The newest manifest, written or in progress.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The state of the log.
    #[must_use]
    pub fn log(&self) -> &LogWriter {
        &self.log
    }

    /// Checks the invariants; for tests and the simulator.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        self.log.invariants();
    }
}

/// Checkpoints that the new manifest replaces.
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
