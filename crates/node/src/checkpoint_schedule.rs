//! Schedules checkpoints, memtable flushes, compactions and the removal of files, and the periodic housekeeping of
//! leaders (guarantees 3, 10 and 16). Checkpoints and flushes let the log be truncated.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Durability, Duration, Lsn, Member, Monotonic, Now, SharedMembership};
use bytes::Bytes;
use catalog::{CatalogCommand, NodeRecord, Standing};
use state_machine::interface::{Housekeeping, Past};
use state_machine::storage::{FileId, Leftovers, Outputs};
use store::manifest::CheckpointRef;

use crate::config::NodeConfig;
use crate::contract::{Action, CheckpointId, Lineage, ManifestId};
use crate::node::{Node, newer};
use crate::replica::{Replica, Written};
use crate::roster;
use crate::transfer::Arrived;

/// How long a cohort's checkpoints pause after the disk was full.
const NO_SPACE_PAUSE: Duration = Duration::from_millis(5_000);

/// All cohorts are checked this many times while the log grows by the lag that one cohort may have.
const LAG_CHECKS: u64 = 16;

/// A log unit gets a new checkpoint once the SSTables it has trimmed reach this fraction of the permitted checkpoint
/// lag. This frees their space soon after a trim, even without further appends.
const TRIMMED_PART: u64 = 16;

/// Decides when checkpoints are due, while examining as few cohorts as possible.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    last: CheckpointId,
    /// The node reports the disk as full until this time.
    pub(crate) full_until: Monotonic,
    /// The number of appended bytes at which all cohorts are checked for lag next.
    all_at: u64,
    /// Memtable bytes per cohort, for cohorts that have any.
    memtables: BTreeMap<CohortId, u64>,
    /// The same, ordered by size.
    by_size: BTreeSet<(u64, CohortId)>,
    /// Sum of all memtable bytes.
    memtables_bytes: u64,
    /// Cohorts with replaced SSTables that a manifest may still name.
    leftovers: BTreeSet<CohortId>,
    /// SSTables that no storage uses any more.
    removed: Leftovers,
}

impl Checkpoints {
    fn note_memtables(&mut self, id: CohortId, bytes: u64) {
        let before = self.memtables.insert(id, bytes).unwrap_or(0);
        if before != bytes {
            self.by_size.remove(&(before, id));
            self.by_size.insert((bytes, id));
            self.memtables_bytes = self.memtables_bytes - before + bytes;
        }
        if bytes == 0 {
            self.memtables.remove(&id);
            self.by_size.remove(&(0, id));
        }
    }

    /// Whether the total size of memtables requires writes to wait for the disk. The limit is twice the size at which
    /// flushes start, regardless of the size of any one memtable.
    pub(crate) fn are_memtables_full(&self, config: &NodeConfig) -> bool {
        self.memtables_bytes >= 2 * config.memtables_bytes
    }

    /// The cohort with the largest memtable.
    fn largest(&self) -> Option<CohortId> {
        self.by_size.last().map(|(_, id)| *id)
    }
}

impl Node {
    /// Starts the checkpoints that are due: for cohorts with a checkpoint so old that it retains much of the log, and
    /// for cohorts with large memtables. Examines cohorts with recent activity, and all cohorts periodically, because
    /// the checkpoint of an idle cohort ages as the node's log grows.
    pub(crate) fn begin_checkpoints(&mut self, settled: &BTreeSet<CohortId>, now: Now) {
        for id in settled {
            let replica = self.replicas.get(id);
            self.checkpoints.note_memtables(*id, replica.map_or(0, Replica::memtable_bytes));
            if replica.is_some_and(|replica| replica.state.storage().has_leftovers()) {
                self.checkpoints.leftovers.insert(*id);
            }
        }
        let largest =
            self.checkpoints.largest().filter(|_| self.checkpoints.memtables_bytes > self.config.memtables_bytes);
        let mut candidates: BTreeSet<CohortId> = settled.iter().copied().chain(largest).collect();
        if self.checkpoints.all_at <= self.outgoing.appended_bytes {
            self.checkpoints.all_at = self.outgoing.appended_bytes + self.config.checkpoint_log_bytes / LAG_CHECKS;
            candidates.extend(self.replicas.keys());
        }
        for id in candidates {
            if self.is_due(id, largest == Some(id), now) {
                self.begin_checkpoint(id);
            }
        }
    }

    fn is_due(&self, id: CohortId, is_largest: bool, now: Now) -> bool {
        let Some(replica) = self.replicas.get(&id) else { return false };
        let on_disk = &replica.on_disk;
        let busy = on_disk.writing.is_some() || on_disk.written.is_some() || replica.arrived.is_some();
        let is_held = !replica.unsettled.is_empty() && !planted(Bug::SplitUnnamed);
        if busy || is_held || on_disk.not_before > now.monotonic || !newer(replica.state.last_applied(), on_disk.lsn())
        {
            return false;
        }
        let behind = self.outgoing.appended_bytes - on_disk.mark;
        let log_bytes = self.config.checkpoint_log_bytes.max(replica.state.snapshot_bytes() as u64 / 4);
        let is_full = replica.state.storage().needs_flush();
        let reclaimable = || replica.state.reclaimable_bytes(on_disk.snapshot());
        let has_trimmed = || reclaimable() >= (self.config.checkpoint_log_bytes / TRIMMED_PART).max(1);
        behind >= log_bytes || is_full || is_largest || has_trimmed() || on_disk.is_wanted
    }

    fn begin_checkpoint(&mut self, id: CohortId) {
        let checkpoint = self.number_checkpoint();
        let replica = expected!(self.replicas.get_mut(&id), "only local replicas are due");
        let (lsn, timestamp) = (replica.state.last_applied(), replica.state.last_timestamp());
        let state = replica.state.snapshot();
        let flush = replica.state.storage_mut().flush(&state.keep());
        let membership = SharedMembership::clone(replica.cohort.membership_applied());
        replica.on_disk.writing = Some((checkpoint, state.clone(), membership));
        replica.on_disk.mark = self.outgoing.appended_bytes;
        replica.on_disk.is_wanted = false;
        self.counters.checkpoints += 1;
        self.counters.flushes += u64::from(flush.is_some());
        self.actions.push(Action::WriteCheckpoint {
            cohort: id,
            checkpoint,
            lsn,
            timestamp,
            state: Box::new(state),
            flush,
        });
    }

    pub(crate) fn number_checkpoint(&mut self) -> CheckpointId {
        self.checkpoints.last.0 += 1;
        self.checkpoints.last
    }

    pub(crate) fn checkpoint_written(
        &mut self,
        id: CohortId,
        written: CheckpointId,
        bytes: u64,
        flushed: Option<Outputs>,
        now: Now,
    ) {
        if flushed.is_some() {
            self.checkpoints.full_until = Monotonic(0);
        }
        let Some(replica) = self.replicas.get_mut(&id) else { return self.discard(flushed) };
        if let Some(arrived) = replica.arrived.as_mut().filter(|arrived| arrived.being_written == Some(written)) {
            arrived.written = Some(CheckpointRef { lsn: arrived.id.lsn, timestamp: arrived.timestamp, bytes });
            return self.install(id, now);
        }
        let Some((_, state, membership)) = replica.on_disk.writing.take_if(|(writing, ..)| *writing == written) else {
            return self.discard(flushed);
        };
        let checkpoint = CheckpointRef { lsn: state.last_applied(), timestamp: state.last_timestamp(), bytes };
        replica.on_disk.written = Some(Written { checkpoint, state, membership, flushed });
    }

    /// A checkpoint failed because the disk was full. Another is started after a pause.
    pub(crate) fn checkpoint_failed(&mut self, id: CohortId, failed: CheckpointId, now: Now) {
        self.disk_full(now);
        // The replica may have been removed since the checkpoint started.
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.on_disk.not_before = now.monotonic + NO_SPACE_PAUSE;
        if let Some(arrived) = replica.arrived.take_if(|arrived| arrived.being_written == Some(failed)) {
            return self.abandon(&arrived.files());
        }
        if replica.on_disk.writing.take_if(|(writing, ..)| *writing == failed).is_some() {
            replica.on_disk.is_wanted = true;
            replica.state.storage_mut().flush_failed();
        }
    }

    /// Names in the manifest only those checkpoints through which this node's own log is forced. A majority may have
    /// committed entries, and this node applied them, that its own disk does not hold yet (guarantee 3).
    pub(crate) fn name_checkpoints(&mut self, settled: &BTreeSet<CohortId>) {
        for id in settled {
            // The replica may have been removed in this step.
            let Some(replica) = self.replicas.quietly(*id) else { continue };
            let forced = replica.cohort.forced();
            let on_disk = &mut replica.on_disk;
            let is_forced = |written: &mut Written| written.checkpoint.lsn.sequence <= forced;
            let Some(Written { checkpoint, state, membership, flushed }) = on_disk.written.take_if(is_forced) else {
                continue;
            };
            if newer(checkpoint.lsn, on_disk.lsn()) {
                on_disk.checkpoint = Some((checkpoint, state));
                on_disk.membership = membership;
                let storage = replica.state.storage_mut();
                if let Some(flushed) = flushed {
                    storage.flushed(&flushed);
                }
                // Compactions may now drop more: old versions, and rows outside the range after a split.
                on_disk.may_compact = true;
                // After a drop of its table the storage has no files, although nothing was flushed.
                on_disk.sstables = storage.files().into();
                self.outgoing.manifest_for = Some(*id);
                self.outgoing.outbox.change_manifest();
            }
        }
        self.forget_gone();
    }

    /// Starts compactions where SSTables have changed and a compaction is due.
    pub(crate) fn begin_compactions(&mut self, settled: &BTreeSet<CohortId>, now: Now) {
        for id in settled {
            let Some(replica) = self.replicas.quietly(*id) else { continue };
            let on_disk = &mut replica.on_disk;
            if !on_disk.may_compact
                || on_disk.checkpoint.is_none()
                || on_disk.not_before > now.monotonic
                || replica.arrived.is_some()
            {
                continue;
            }
            on_disk.may_compact = false;
            let mut keep = on_disk.keep();
            if planted(Bug::CompactionAheadOfSplit) {
                keep.cells = replica.state.snapshot().keep().cells;
            }
            if let Some(job) = replica.state.storage_mut().compaction(&keep) {
                self.counters.compactions += 1;
                self.actions.push(Action::Compact { cohort: *id, lineage: replica.lineage, job });
            }
        }
    }

    pub(crate) fn compacted(&mut self, id: CohortId, lineage: Lineage, outputs: Option<Outputs>, now: Now) {
        let is_of_its_tree = |replica: &&mut Replica| replica.lineage == lineage;
        let Some(replica) = self.replicas.get_mut(&id).filter(is_of_its_tree) else { return self.discard(outputs) };
        let storage = replica.state.storage_mut();
        let on_disk = &mut replica.on_disk;
        on_disk.may_compact = true;
        match outputs {
            Some(outputs) => {
                storage.compacted(&outputs);
                on_disk.sstables = storage.files().into();
                self.outgoing.outbox.change_manifest();
            }
            None => {
                storage.compaction_failed();
                on_disk.not_before = now.monotonic + NO_SPACE_PAUSE;
            }
        }
    }

    /// Discards the outputs of a compaction after its input tree was replaced or removed.
    pub(crate) fn discard(&mut self, outputs: Option<Outputs>) {
        let files: Vec<FileId> = outputs.map(|outputs| outputs.made).unwrap_or_default();
        if !files.is_empty() {
            self.actions.push(Action::RemoveFiles { files });
        }
    }

    /// A tablet's table was dropped and its tree is empty. The manifest continues to name the old files together with
    /// the old checkpoint, until it names a checkpoint of the new state.
    pub(crate) fn rows_dropped(&mut self, id: CohortId) {
        let replica = expected!(self.replicas.get_mut(&id), "only a local replica applies entries");
        replica.on_disk.is_wanted = true;
        let unused = replica.begin_lineage();
        self.discard(unused);
    }

    /// A manifest is forced: SSTables that it no longer names may be removed once no read uses them.
    pub(crate) fn sstables_forced(&mut self, through: ManifestId) {
        self.drops.sstables_forced(through);
        for (_, replica) in self.replicas.all_quietly() {
            if let Some(files) = replica.on_disk.forced(through) {
                replica.state.storage_mut().forced(&files);
            }
        }
    }

    /// Removes the SSTables that no manifest names and no read uses.
    pub(crate) fn remove_sstables(&mut self) {
        self.checkpoints.leftovers.retain(|id| {
            let Some(replica) = self.replicas.quietly(*id) else { return false };
            let storage = replica.state.storage_mut();
            self.checkpoints.removed.take_in(storage.give_up());
            storage.has_leftovers()
        });
        self.checkpoints.removed.take_in(self.drops.give_up());
        let files = self.checkpoints.removed.removable();
        if !files.is_empty() {
            self.actions.push(Action::RemoveFiles { files });
        }
    }

    /// Installs a received state snapshot once it is on disk. If replicas split off here still depend on the current
    /// state, the installation waits until the manifest names them.
    pub(crate) fn install(&mut self, id: CohortId, now: Now) {
        let is_written = |replica: &Replica| replica.arrived.as_ref().is_some_and(|arrived| arrived.written.is_some());
        if !self.replicas.get(&id).is_some_and(is_written) || self.has_unnamed_children(id) {
            return;
        }
        let replica = expected!(self.replicas.get_mut(&id), "checked above");
        let arrived = expected!(replica.arrived.as_mut(), "checked above");
        let at = expected!(arrived.written.take(), "checked above");
        let (state, files) = (arrived.state.clone(), arrived.files());
        let membership = SharedMembership::clone(&arrived.membership);
        let shared = SharedMembership::clone(&membership);
        // With in-memory logs a later leader may have declared part of this state lost, and this replica may have
        // acknowledged entries that replaced that part (guarantee 11).
        let is_in_memory = replica.cohort.config().regime.durability() == Durability::Memory;
        // Under primary/backup replication an operator may have declared it lost.
        let is_of_lost = replica.cohort.configuration().is_some_and(|known| arrived.epoch < known.loss);
        let may_be_lost = is_in_memory && arrived.epoch != replica.cohort.promised().epoch || is_of_lost;
        if !may_be_lost && replica.cohort.install(at.lsn, at.timestamp, shared, now, &mut self.outgoing.outbox) {
            replica.on_disk.checkpoint = Some((at, state));
            replica.on_disk.sstables = files;
            replica.on_disk.membership = membership;
            let unused = replica.begin_lineage();
            self.discard(unused);
        } else if let Some(arrived) = replica.arrived.take() {
            self.abandon(&arrived.files());
        }
        self.drain(id, now);
    }

    /// The manifest names the received snapshot, so it is now the state of this replica.
    pub(crate) fn installed(&mut self, id: CohortId, lsn: Lsn) {
        let replica = expected!(self.replicas.get_mut(&id), "only a local replica is installed");
        let arrived =
            expected!(replica.arrived.take_if(|arrived| arrived.id.lsn == lsn), "an installed snapshot was received");
        let Arrived { from, id: whole, state, storage: arrived, .. } = *arrived;
        if state.last_timestamp() < replica.last_change {
            // Lost entries had these timestamps. Later entries may reuse them.
            replica.timestamp_history.clear();
        }
        replica.last_change = state.last_timestamp();
        replica.state.install(state, |storage| {
            storage.replace(arrived);
            storage.forced(&replica.on_disk.sstables);
        });
        replica.on_disk.mark = self.outgoing.appended_bytes;
        replica.on_disk.may_compact = true;
        self.reply_installed(id, from, whole);
        self.pending_requests.wake();
        self.cluster.has_work = true;
        self.hosting.has_work = true;
        self.configurations.has_work = true;
        self.logs.has_work = true;
    }

    /// Periodic proposals of a leader: the list of nodes (once), and the expiry of sessions and old versions. All
    /// cohorts are due at the same times, so that a thousand of them wake the node no more often than one.
    pub(crate) fn housekeeping(&mut self, id: CohortId, now: Now) {
        let is_due = |replica: &Replica| replica.housekeeping_at <= now.monotonic && replica.cohort.leads();
        if !self.replicas.get(&id).is_some_and(is_due) {
            return;
        }
        let commands = self.chores(id, now);
        let replica = expected!(self.replicas.get_mut(&id), "checked above");
        let interval = self.config.housekeeping.0.max(1);
        replica.housekeeping_at = Monotonic((now.monotonic.0 / interval + 1) * interval);
        for payload in commands {
            self.propose(id, payload, now);
        }
    }

    fn chores(&mut self, id: CohortId, now: Now) -> Vec<Bytes> {
        let replica = expected!(self.replicas.get_mut(&id), "checked above", Vec::new());
        if let Some(catalog) = replica.state.as_catalog() {
            if catalog.nodes().next().is_none() {
                let nodes = self.config.addresses.iter().map(node_record).collect();
                return vec![CatalogCommand::RegisterNodes { nodes }.encode()];
            }
            self.drops.has_work = true;
            self.splits.has_work = true;
            self.moves.has_work = true;
            let after = self.config.replace_after;
            let roster = (&self.cluster, self.checkpoints.is_disk_full(now));
            return roster::proposals(catalog, &replica.cohort, roster, after, now.monotonic);
        }
        let (retention, lifetime) = (replica.options.retention, self.config.session_lifetime);
        replica.timestamp_history.note(replica.last_change, now.monotonic, retention.max(lifetime));
        let unretained = replica.timestamp_history.before(retention, now.monotonic);
        let epoch = replica.cohort.promised().epoch;
        let past = Past {
            session_lifetime: replica.timestamp_history.before(lifetime, now.monotonic),
            retention: replica.holds.limit(unretained, epoch, self.config.hold_lifetime, now.monotonic),
        };
        let Housekeeping { commands, sessions_expired } = replica.state.housekeeping(past);
        self.counters.sessions_expired += sessions_expired;
        commands
    }
}

fn node_record((member, peer, grpc): &(Member, String, String)) -> NodeRecord {
    NodeRecord { member: *member, peer: peer.clone(), grpc: grpc.clone(), standing: Standing::Stays }
}

#[cfg(test)]
mod tests;
