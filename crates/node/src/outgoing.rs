//! Durable output: log records and the manifest, and the actions that wait for them to be forced.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Force, Monotonic, Now};
use replication::{ManifestId, Outbox, WriteId};
use store::manifest::CohortManifest;

use crate::contract::Action;
use crate::hosting::StoppedReplica;
use crate::node::Node;
use crate::stop::Stop;

/// The shared outbox of all cohorts, and the state of this node's appends.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) outbox: Outbox,
    /// Size of the log in bytes: found at the start plus appended since.
    pub(crate) appended_bytes: u64,
    /// Since when records have waited for a force, and none has ended.
    pub(crate) unforced_since: Option<Monotonic>,
    /// The log is forced through this record.
    pub(crate) log_forced_through: WriteId,
    /// Cohorts that wait for the log to be forced.
    pub(crate) awaiting_log: BTreeSet<CohortId>,
    /// Cohorts that wait for a manifest.
    pub(crate) awaiting_manifest: BTreeSet<CohortId>,
    /// Whether a manifest is being written. The next one waits: each contains all cohorts, so its cost does not depend on the number of changes.
    pub(crate) is_writing_manifest: bool,
    /// The cohort that the next manifest names a new checkpoint of (used by a planted bug).
    pub(crate) manifest_for: Option<CohortId>,
}

impl Outgoing {
    /// Notes a record for the log.
    pub(crate) fn appended(&mut self, bytes: usize, force: Force, now: Now) {
        self.appended_bytes += bytes as u64;
        if force == Force::Now {
            self.unforced_since.get_or_insert(now.monotonic);
        }
    }

    /// Whether a record has waited to be forced for this time, and none was.
    pub(crate) fn is_stuck_for(&self, time: Duration, now: Now) -> bool {
        self.unforced_since.is_some_and(|since| now.monotonic.since(since) >= time)
    }
}

impl Node {
    /// Records the forces that a cohort waits for.
    pub(crate) fn note_awaited(&mut self, id: CohortId) {
        let replica = expected!(self.replicas.get(&id), "only a local replica has output");
        if replica.cohort.awaits_log() {
            self.outgoing.awaiting_log.insert(id);
        }
        if replica.cohort.awaits_manifest() {
            self.outgoing.awaiting_manifest.insert(id);
        }
    }

    pub(crate) fn log_forced(&mut self, through: WriteId, now: Now) {
        self.outgoing.log_forced_through = through;
        self.outgoing.unforced_since = None;
        for id in std::mem::take(&mut self.outgoing.awaiting_log) {
            self.with_cohort(id, now, |cohort, out| cohort.log_forced(through, now, out));
        }
    }

    pub(crate) fn manifest_forced(&mut self, through: ManifestId, now: Now) {
        self.outgoing.is_writing_manifest = false;
        self.sstables_forced(through);
        self.doubts_forced(through);
        self.leavers_forced(through);
        for id in std::mem::take(&mut self.outgoing.awaiting_manifest) {
            self.with_cohort(id, now, |cohort, out| cohort.manifest_forced(through, now, out));
        }
    }

    /// Writes the manifest if its contents have changed, and no other is being written.
    pub(crate) fn write_manifest(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.outgoing.is_writing_manifest {
            return;
        }
        let Some(manifest) = self.outgoing.outbox.take_manifest() else { return };
        let doubt_unknown = self.hosting.doubt_unknown;
        self.replicas.all_quietly().for_each(|(_, replica)| replica.on_disk.name_sstables(manifest));
        self.drops.name_sstables(manifest);
        let (gone, peers) = (self.drops.forgotten.clone(), self.cluster.starts.clone());
        let kept = self.kept_logs(now);
        actions.push(Action::WriteManifest { manifest, cohorts: self.manifest(), peers, doubt_unknown, gone, kept });
        self.outgoing.manifest_for = None;
        self.outgoing.is_writing_manifest = true;
    }

    fn manifest(&self) -> BTreeMap<CohortId, CohortManifest> {
        // The last manifest of a clean stop carries the mark.
        let is_last = matches!(self.stop, Stop::Marking(..));
        let running = self.replicas.iter().map(|(id, replica)| (*id, replica.manifest(is_last)));
        let stopped = self.hosting.stopped.iter().map(|(id, StoppedReplica { manifest, .. })| {
            (*id, CohortManifest { whole: manifest.whole && is_last, ..manifest.clone() })
        });
        let mut cohorts: BTreeMap<CohortId, CohortManifest> = running.chain(stopped).collect();
        if planted(Bug::IdlePromiseForgotten) && self.outgoing.manifest_for.is_some() {
            for (_, manifest) in cohorts.iter_mut().filter(|(id, _)| Some(**id) != self.outgoing.manifest_for) {
                manifest.promised = base::Promise::default();
            }
        }
        cohorts
    }
}
