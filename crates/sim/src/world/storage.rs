//! Disk IO of a process: batches, manifests and segments in flight, each of which takes time and may fail.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, NodeId};
use node::contract::{Event, ManifestId, WriteId};
use store::files::FileErrorKind;
use store::log::Batch;
use store::manifest::CohortManifest;

use super::events::{Happening, ManifestStep};
use super::process::Process;
use super::{MILLISECOND, TrueTime, World};

/// The log rewrites the identity of its last batch after being idle for this long (guarantee 7).
const ECHO_AFTER: TrueTime = 10 * MILLISECOND;
/// Slowdown of a slow manifest write.
const MANIFESTS_SLOWED: u64 = 100;
/// Delay before a write that found no disk space is retried.
const ROOM_PAUSE: TrueTime = 100 * MILLISECOND;

impl World {
    /// Submits the log's next batch if the disk is idle, and prepares the next segment.
    pub(super) fn begin_io(&mut self, id: NodeId) {
        let generation = self.generation(id);
        let now = self.now;
        let force = now + 50_000 + self.random.below(self.options.force_time);
        let Some(process) = self.process(id) else { return };
        let mut job = process.unmade.take().or_else(|| process.store.segment_job());
        let (mut failed, mut waits) = (false, false);
        if let Some(wanted) = job {
            match wanted.execute(process.store.files()) {
                Ok(()) => {}
                Err(error) if error.kind == FileErrorKind::NoSpace => {
                    process.unmade = job.take();
                    waits = !std::mem::replace(&mut process.wants_room, true);
                }
                Err(_) => failed = true,
            }
        }
        let batch = if process.batch.is_none() { process.store.next_batch() } else { None };
        let writes = batch.is_some();
        let may_wait = !writes && process.store.has_time() && !std::mem::replace(&mut process.will_hurry, true);
        if let Some(batch) = batch {
            failed |= !process.write(batch);
        }
        if failed {
            return self.disk_failed(id);
        }
        if waits {
            self.step(id, Event::DiskFull);
            self.queue.put(now + ROOM_PAUSE, Happening::RoomWanted { node: id, generation });
        }
        if let Some(job) = job {
            if job.recycles() {
                self.count("segments reused");
            }
            self.queue.put(now + MILLISECOND, Happening::Segment { node: id, generation, job });
        }
        if may_wait {
            self.queue.put(now + self.options.force_soon, Happening::Hurry { node: id, generation });
        }
        if writes {
            self.queue.put(force, Happening::LogForced { node: id, generation });
        }
    }

    pub(super) fn log_forced(&mut self, id: NodeId) {
        let generation = self.generation(id);
        let now = self.now;
        let Some(process) = self.process(id) else { return };
        let Some((_, file)) = process.batch.take() else { return };
        let mut forced = store::files::File::sync(&file).is_ok();
        if !forced && planted(Bug::ForceRetried) {
            forced = store::files::File::sync(&file).is_ok();
        }
        if !forced && !planted(Bug::CompletionAfterError) {
            return self.disk_failed(id);
        }
        let through = process.store.forced();
        process.forced.log = WriteId(through);
        let batches = process.batches;
        let tail = process.store.log().tail();
        if let Some(machine) = self.hosts.get_mut(&id) {
            machine.log.forced_through(tail);
        }
        self.count("log forces");
        self.queue.put(now + ECHO_AFTER, Happening::Echo { node: id, generation, batches });
        self.release_parked(id);
        self.step(id, Event::LogForced { through: WriteId(through) });
    }

    /// Records that could be forced later are now due.
    pub(super) fn hurry(&mut self, id: NodeId) {
        let Some(process) = self.process(id) else { return };
        process.will_hurry = false;
        process.store.hurry();
        self.begin_io(id);
    }

    pub(super) fn echo(&mut self, id: NodeId, batches: u64) {
        let generation = self.generation(id);
        let force = self.now + 50_000 + self.random.below(self.options.force_time);
        let Some(process) = self.process(id) else { return };
        if process.batches != batches || process.batch.is_some() {
            return;
        }
        let Some(batch) = process.store.echo() else { return };
        if process.write(batch) {
            self.count("echoes");
            self.queue.put(force, Happening::LogForced { node: id, generation });
        } else {
            self.disk_failed(id);
        }
    }

    /// A disk error ends the process (guarantee 25).
    pub(super) fn disk_failed(&mut self, id: NodeId) {
        self.count("disk failures");
        self.end(id, true);
        self.restart_later(id);
    }

    pub(super) fn begin_manifest(
        &mut self,
        id: NodeId,
        manifest: ManifestId,
        cohorts: BTreeMap<CohortId, CohortManifest>,
        doubt_unknown: bool,
    ) {
        let Some(process) = self.process(id) else { return };
        let before = &process.store.manifest().cohorts;
        let promises = cohorts.iter().any(|(id, cohort)| before.get(id).is_none_or(|b| b.promised != cohort.promised));
        let write = process.store.begin_manifest(cohorts, doubt_unknown);
        process.manifests.push_back((manifest, write));
        if process.manifests.len() == 1 {
            self.manifest_later(id, ManifestStep::First);
        }
        if promises && !self.healed && self.random.chance(self.options.crash_at_manifest) {
            let span = self.random.below(3 * self.options.force_time);
            self.queue.put(self.now + span, Happening::PowerLoss { node: id });
        }
    }

    fn manifest_later(&mut self, id: NodeId, step: ManifestStep) {
        let generation = self.generation(id);
        let is_slow = !self.healed && self.random.chance(self.options.slow_manifests);
        let longest = if is_slow { MANIFESTS_SLOWED } else { 1 } * self.options.force_time;
        let at = self.now + 50_000 + self.random.below(longest);
        self.queue.put(at, Happening::Manifest { node: id, generation, step });
    }

    pub(super) fn manifest_step(&mut self, id: NodeId, step: ManifestStep) {
        let early = planted(Bug::PromiseInOnePlace);
        let Some(process) = self.process(id) else { return };
        let Some((manifest, write)) = process.manifests.front().cloned() else { return };
        let place = usize::from(step == ManifestStep::Second);
        let written = write.write_place(place);
        if written.as_ref().is_err_and(|error| error.kind == FileErrorKind::NoSpace) {
            return self.manifest_later(id, step);
        }
        let mut failed = written.is_err();
        if step == ManifestStep::Second {
            failed |= write.remove_superseded(process.store.files()).is_err();
        }
        if failed {
            return self.disk_failed(id);
        }
        if step == ManifestStep::First {
            self.manifest_later(id, ManifestStep::Second);
        } else {
            process.store.finish_manifest(&write);
            process.manifests.pop_front();
            if !process.manifests.is_empty() {
                self.manifest_later(id, ManifestStep::First);
            }
        }
        if early == (step == ManifestStep::First) {
            self.manifest_forced(id, manifest);
        }
    }

    fn manifest_forced(&mut self, id: NodeId, manifest: ManifestId) {
        let Some(process) = self.process(id) else { return };
        process.forced.manifest = manifest;
        self.release_parked(id);
        self.step(id, Event::ManifestForced { through: manifest });
    }

    fn release_parked(&mut self, id: NodeId) {
        let Some(process) = self.process(id) else { return };
        let parked = std::mem::take(&mut process.parked);
        let (free, parked): (Vec<_>, Vec<_>) = parked.into_iter().partition(|(after, ..)| process.is_forced(*after));
        process.parked = parked;
        for (_, to, message, valid_until) in free {
            self.send_valid(id, to, &message, valid_until);
        }
    }
}

impl Process {
    fn write(&mut self, batch: Batch) -> bool {
        let Ok(file) = self.store.batch_file(batch.segment) else { return false };
        if store::files::File::write_at(&file, batch.offset, &batch.bytes).is_err() {
            return false;
        }
        self.batches += 1;
        self.batch = Some((batch, file));
        true
    }
}
