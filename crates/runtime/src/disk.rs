//! The store as used by the machine's thread. IO runs on other threads, so that this one never waits for a disk.
//!
//! The next batch is sent to the log thread as soon as the previous one is forced. When the log has been idle for a
//! while, an echo names the last batch, so that its loss to damage can be distinguished from a torn write (guarantee
//! 7).
//!
//! On a full disk the node keeps running: the lanes of checkpoints and segments retry until space is available. The log
//! writes only into prepared segments, so it runs out of segments: appends wait, reads continue.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use base::{CohortId, Duration, Force, Monotonic, NodeId, ProcessStart, Record, Sequence};
use node::contract::{Event, ManifestId, ReadId, WriteId};
use prometheus::IntCounter;
use store::Store;
use store::log::{Batch, ReadPlan, SegmentJob};
use store::manifest::{CohortManifest, ManifestWrite};

use super::budget::Budget;
use super::disk_metrics::DiskMetrics;
use super::files::{OsFile, OsFiles};
use super::inbox::{Inbox, Input};
use super::job_thread::{JobThread, retry_while_disk_full};
use super::log_thread::LogThread;
use super::sstables::{SstableFiles, SstableLanes};

/// Idle time after the last batch until an echo names it.
const ECHO_AFTER: Duration = Duration::from_millis(10);
/// Delay before records without an urgent force are forced, unless an urgent one forces them earlier.
const DEFERRED_FORCE_DELAY: Duration = Duration::from_millis(100);

type ManifestJob = (ManifestId, Box<ManifestWrite<OsFile>>);

/// The contents of the next manifest.
#[derive(Debug)]
pub(crate) struct NextManifest {
    pub(crate) manifest: ManifestId,
    pub(crate) cohorts: BTreeMap<CohortId, CohortManifest>,
    pub(crate) peers: BTreeMap<NodeId, ProcessStart>,
    pub(crate) doubt_unknown: bool,
    pub(crate) gone: BTreeSet<CohortId>,
    pub(crate) kept: BTreeMap<CohortId, Sequence>,
}

/// The store, and the threads that perform its IO.
#[derive(Debug)]
pub(crate) struct Disk {
    store: Store<OsFiles>,
    log: LogThread,
    manifests: JobThread<ManifestJob>,
    /// Whether a manifest is being written, and the newest one requested after it. A manifest is complete, so
    /// intermediate ones are skipped: hundreds of promises at once cost no more than two forces each.
    writes_manifest: bool,
    next_manifest: Option<NextManifest>,
    segments: JobThread<SegmentJob>,
    reads: JobThread<(ReadId, ReadPlan)>,
    sstables: SstableLanes,
    /// When an echo must name the log's last batch, unless another batch does first.
    echo_at: Monotonic,
    /// When deferred records must be forced.
    deferred_force_at: Monotonic,
    metrics: DiskMetrics,
}

impl Disk {
    /// Takes ownership of an open store and starts its threads.
    pub(crate) fn start(
        store: Store<OsFiles>,
        sstables: &SstableFiles,
        budget: &Arc<Budget>,
        inbox: &Arc<Inbox>,
        metrics: DiskMetrics,
    ) -> io::Result<Self> {
        let files = store.files().clone();
        let mut disk = Self {
            log: LogThread::start(Arc::clone(inbox), metrics.clone())?,
            manifests: manifest_lane(files.clone(), Arc::clone(inbox), metrics.manifests.clone())?,
            writes_manifest: false,
            next_manifest: None,
            segments: segment_lane(files.clone(), Arc::clone(inbox))?,
            reads: read_lane(files.clone(), Arc::clone(inbox))?,
            sstables: SstableLanes::start(sstables, store.owner(), budget, inbox)?,
            // The last batch found by recovery may not be named yet.
            echo_at: Monotonic(0),
            deferred_force_at: Monotonic::NEVER,
            metrics,
            store,
        };
        // After a start on a full disk, segments may still have to be prepared.
        disk.next_segment_job();
        Ok(disk)
    }

    pub(crate) fn append(&mut self, write: WriteId, record: Record, force: Force) {
        self.metrics.appended_records.inc();
        self.metrics.appended_bytes.inc_by(record.size() as u64);
        if let Err(error) = self.store.append(write.0, record, force) {
            super::die(&format!("a record exceeds the limits of the log: {error}"));
        }
    }

    /// Writes a manifest to both places, as soon as the previous one is written.
    pub(crate) fn write_manifest(&mut self, next: NextManifest) {
        self.next_manifest = Some(next);
        self.begin_manifest();
    }

    fn begin_manifest(&mut self) {
        if self.writes_manifest {
            return;
        }
        if let Some(NextManifest { manifest, cohorts, peers, doubt_unknown, gone, kept }) = self.next_manifest.take() {
            self.writes_manifest = true;
            self.store.let_go(gone);
            self.store.keep_logs(kept);
            self.store.know_peers(peers);
            let write = Box::new(self.store.begin_manifest(cohorts, doubt_unknown));
            self.manifests.put((manifest, write));
        }
    }

    /// The threads for SSTables and checkpoints.
    pub(crate) fn sstables(&self) -> &SstableLanes {
        &self.sstables
    }

    /// Reads from the log; false if the log is known not to hold the first entry.
    pub(crate) fn read_log(&self, id: ReadId, cohort: CohortId, from: Sequence, bytes: usize) -> bool {
        let plan = self.store.plan_read(cohort, from, bytes);
        plan.map(|plan| self.reads.put((id, plan))).is_some()
    }

    /// Handles a forced batch. Returns the last durable record.
    pub(crate) fn batch_forced(&mut self, batch: Batch, now: Monotonic) -> WriteId {
        let through = self.store.forced();
        self.store.recycle(batch);
        self.echo_at = now + ECHO_AFTER;
        WriteId(through)
    }

    /// Handles a manifest forced in both places: segments that it no longer names may be recycled.
    pub(crate) fn manifest_forced(&mut self, write: &ManifestWrite<OsFile>) {
        self.store.finish_manifest(write);
        self.writes_manifest = false;
        self.begin_manifest();
        self.next_segment_job();
    }

    /// Handles a segment that was prepared or removed.
    pub(crate) fn segment_done(&mut self, job: SegmentJob, now: Monotonic) {
        self.store.segment_done(job);
        // An echo may have waited for it.
        self.echo_at = self.echo_at.min(now + ECHO_AFTER);
        self.next_segment_job();
    }

    /// When [`Disk::pump`] next has work without another event.
    pub(crate) fn deadline(&self) -> Monotonic {
        if self.store.is_idle() { self.echo_at.min(self.deferred_force_at) } else { Monotonic::NEVER }
    }

    /// Submits the gathered records to the log thread, if that is idle.
    pub(crate) fn pump(&mut self, now: Monotonic) {
        if !self.store.is_idle() {
            return;
        }
        self.schedule_deferred_force(now);
        let batch = match self.store.next_batch() {
            Some(batch) => Some(batch),
            None if self.echo_at <= now => {
                self.echo_at = Monotonic::NEVER;
                self.store.echo()
            }
            None => None,
        };
        let Some(batch) = batch else { return };
        match self.store.batch_file(batch.segment) {
            Ok(segment) => self.log.force(batch, segment),
            Err(error) => super::die(&format!("can't open the log segment: {error}")),
        }
        self.next_segment_job();
    }

    /// Records with a deferred force wait once for [`DEFERRED_FORCE_DELAY`], and are then forced.
    fn schedule_deferred_force(&mut self, now: Monotonic) {
        if !self.store.has_time() {
            self.deferred_force_at = Monotonic::NEVER;
        } else if self.deferred_force_at == Monotonic::NEVER {
            self.deferred_force_at = now + DEFERRED_FORCE_DELAY;
        } else if self.deferred_force_at <= now {
            self.deferred_force_at = Monotonic::NEVER;
            self.store.hurry();
        }
    }

    fn next_segment_job(&mut self) {
        if let Some(job) = self.store.segment_job() {
            self.segments.put(job);
        }
    }
}

fn manifest_lane(files: OsFiles, inbox: Arc<Inbox>, written: IntCounter) -> io::Result<JobThread<ManifestJob>> {
    JobThread::start("manifests", move |(id, write): ManifestJob| {
        // A larger cluster may need more space for the manifest. Until there is space, the other copy is intact.
        for place in 0..store::manifest::PLACES.len() {
            retry_while_disk_full("the manifest", &inbox, || write.write_place(place));
        }
        written.inc();
        // Promises wait for the force, but not for the removal of old files.
        inbox.post(Input::ManifestForced(id, write.clone()));
        if let Err(error) = write.remove_superseded(&files) {
            super::die(&format!("can't remove an old checkpoint: {error}"));
        }
    })
}

fn segment_lane(files: OsFiles, inbox: Arc<Inbox>) -> io::Result<JobThread<SegmentJob>> {
    JobThread::start("segments", move |job: SegmentJob| {
        retry_while_disk_full("a log segment", &inbox, || job.execute(&files));
        inbox.post(Input::SegmentDone(job));
    })
}

fn read_lane(files: OsFiles, inbox: Arc<Inbox>) -> io::Result<JobThread<(ReadId, ReadPlan)>> {
    JobThread::start("reads", move |(id, plan): (ReadId, ReadPlan)| {
        let entries = plan.execute(&files).unwrap_or_else(|error| {
            tracing::error!(%error, "can't read from the log");
            None
        });
        inbox.post(Input::Done(Event::LogRead { id, entries }));
    })
}

#[cfg(test)]
mod tests;
