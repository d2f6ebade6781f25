//! When states are written as checkpoints and memtables as tables, so that the log may go; when tables are compacted
//! and when they are removed; and what a leader does now and then (guarantees 3, 10 and 16).

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Durability, Duration, Lsn, Member, Monotonic, Now, SharedMembership};
use bytes::Bytes;
use catalog::{Catalog, CatalogCommand, NodeRecord, Standing};
use machine::state_machine::{Housekeeping, Past};
use machine::storage::{FileId, Leftovers, Outputs};
use store::manifest::CheckpointRef;

use crate::config::NodeConfig;
use crate::contract::{Action, CheckpointId, Lineage, ManifestId};
use crate::node::{Node, newer};
use crate::registry::AnyMachine;
use crate::replica::{Replica, Written};
use crate::roster;
use crate::transfer::Arrived;

/// How long nothing is written of a cohort after there was no room for it.
const NO_SPACE_PAUSE: Duration = Duration::from_millis(5_000);

/// Every cohort is looked at so many times while the log grows by as much as one may fall back.
const LOOKS_AT_LAG: u64 = 16;

/// A unit of a log that has trimmed tables of such a part of as much log as a checkpoint may be behind gets a new one:
/// their space is given back soon after the trim, whether or not more is appended.
const TRIMMED_PART: u64 = 16;

/// When checkpoints are due: what is looked for at no more cohorts than need be.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    last: CheckpointId,
    /// Until then the disk is said to be full.
    pub(crate) full_until: Monotonic,
    /// How much the node must have appended before all cohorts are asked how far they have fallen back.
    all_at: u64,
    /// Bytes of memtables, of every cohort that has any, ...
    memtables: BTreeMap<CohortId, u64>,
    /// ... in the order of their sizes, ...
    by_size: BTreeSet<(u64, CohortId)>,
    /// ... and of all.
    memtables_bytes: u64,
    /// Cohorts with tables whose place others took, but which a manifest may still name.
    leftovers: BTreeSet<CohortId>,
    /// Tables that no storage has any more.
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

    /// Whether all memtables together have so much that writes wait for the disk: twice that from which on they are
    /// flushed, whatever each of them has.
    pub(crate) fn are_memtables_full(&self, config: &NodeConfig) -> bool {
        self.memtables_bytes >= 2 * config.memtables_bytes
    }

    /// The cohort whose memtables are the largest.
    fn largest(&self) -> Option<CohortId> {
        self.by_size.last().map(|(_, id)| *id)
    }
}

impl Node {
    /// Begins the checkpoints that are due: of cohorts whose newest is so far back that it keeps much of the log, and
    /// of those whose memtables take much memory. Looks at those to which something has happened, and now and then at
    /// all: the others only fall back as the whole log grows.
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
            self.checkpoints.all_at = self.outgoing.appended_bytes + self.config.checkpoint_log_bytes / LOOKS_AT_LAG;
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
        let replica = expected!(self.replicas.get_mut(&id), "only replicas that are here are due");
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

    /// There was no room for a checkpoint: another is begun after a while.
    pub(crate) fn checkpoint_failed(&mut self, id: CohortId, failed: CheckpointId, now: Now) {
        self.disk_full(now);
        // It may have left since the checkpoint was begun.
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

    /// Has the manifest name the checkpoints that our own log is forced through, and no other: a majority may have
    /// committed, and we applied, what our own disk doesn't hold yet (guarantee 3).
    pub(crate) fn name_checkpoints(&mut self, settled: &BTreeSet<CohortId>) {
        for id in settled {
            // It may have left in this very step.
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
                // There may be more that compactions may let go, too: old versions, and what was split off.
                on_disk.may_compact = true;
                // Of a machine whose table was dropped none are left, though there was nothing to flush.
                on_disk.tables = storage.files().into();
                self.outgoing.manifest_for = Some(*id);
                self.outgoing.outbox.change_manifest();
            }
        }
        self.forget_gone();
    }

    /// Begins compactions where tables have changed and want one.
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
                on_disk.tables = storage.files().into();
                self.outgoing.outbox.change_manifest();
            }
            None => {
                storage.compaction_failed();
                on_disk.not_before = now.monotonic + NO_SPACE_PAUSE;
            }
        }
    }

    /// Another tree took the place of the one that these tables were made of, or it is gone: they are of no use.
    pub(crate) fn discard(&mut self, outputs: Option<Outputs>) {
        let files: Vec<FileId> = outputs.map(|outputs| outputs.made).unwrap_or_default();
        if !files.is_empty() {
            self.actions.push(Action::RemoveFiles { files });
        }
    }

    /// A tablet's table is dropped, and nothing is left in its tree. The manifest goes on to name the tables that were
    /// in it, beside the checkpoint of which they are the rows, until it names a checkpoint of what is left.
    pub(crate) fn rows_dropped(&mut self, id: CohortId) {
        let replica = expected!(self.replicas.get_mut(&id), "an entry was applied by it");
        replica.on_disk.is_wanted = true;
        let unused = replica.begin_lineage();
        self.discard(unused);
    }

    /// A manifest is forced: tables that it names no more may go, once nobody reads them.
    pub(crate) fn tables_forced(&mut self, through: ManifestId) {
        self.drops.tables_forced(through);
        for (_, replica) in self.replicas.all_quietly() {
            if let Some(files) = replica.on_disk.forced(through) {
                replica.state.storage_mut().forced(&files);
            }
        }
    }

    /// Removes the tables that nobody names or reads.
    pub(crate) fn remove_tables(&mut self) {
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

    /// Has the whole state that arrived take the place of ours, once it is on disk. What was split off here rests on
    /// ours until the manifest names it: then this waits.
    pub(crate) fn install(&mut self, id: CohortId, now: Now) {
        let is_written = |replica: &Replica| replica.arrived.as_ref().is_some_and(|arrived| arrived.written.is_some());
        if !self.replicas.get(&id).is_some_and(is_written) || self.has_unnamed_children(id) {
            return;
        }
        let replica = expected!(self.replicas.get_mut(&id), "it was looked at just now");
        let arrived = expected!(replica.arrived.as_mut(), "it was looked at just now");
        let at = expected!(arrived.written.take(), "it was looked at just now");
        let (state, files) = (arrived.state.clone(), arrived.files());
        let membership = SharedMembership::clone(&arrived.membership);
        let shared = SharedMembership::clone(&membership);
        // Where logs are in main memory, a later leader may have declared some of it lost, and we may have acknowledged
        // what came in its place (guarantee 11).
        let is_in_memory = replica.cohort.config().durability == Durability::Memory;
        let may_be_lost = is_in_memory && arrived.epoch != replica.cohort.promised().epoch;
        if !may_be_lost && replica.cohort.install(at.lsn, at.timestamp, shared, now, &mut self.outgoing.outbox) {
            replica.on_disk.checkpoint = Some((at, state));
            replica.on_disk.tables = files;
            replica.on_disk.membership = membership;
            let unused = replica.begin_lineage();
            self.discard(unused);
        } else if let Some(arrived) = replica.arrived.take() {
            self.abandon(&arrived.files());
        }
        self.drain(id, now);
    }

    /// The manifest names the whole state that arrived: it is this replica's own now.
    pub(crate) fn installed(&mut self, id: CohortId, lsn: Lsn) {
        let replica = expected!(self.replicas.get_mut(&id), "a replica says so of itself");
        let arrived =
            expected!(replica.arrived.take_if(|arrived| arrived.id.lsn == lsn), "what is installed has arrived");
        let Arrived { from, id: whole, state, storage: arrived, .. } = *arrived;
        replica.last_change = state.last_timestamp();
        let placeholder = AnyMachine::Catalog(Box::new(Catalog::empty()));
        let mut storage = std::mem::replace(&mut replica.state, placeholder).into_storage();
        storage.replace(arrived);
        storage.forced(&replica.on_disk.tables);
        replica.state = state.into_machine(storage);
        replica.on_disk.mark = self.outgoing.appended_bytes;
        replica.on_disk.may_compact = true;
        self.reply_installed(id, from, whole);
        self.pendings.wake();
        self.cluster.has_work = true;
        self.hosting.has_work = true;
        self.logs.has_work = true;
    }

    /// What a leader proposes now and then, if it is time: the nodes, once; sessions and old versions that may go. All
    /// cohorts have it at the same moments, so that a thousand of them wake a node as often as one.
    pub(crate) fn housekeeping(&mut self, id: CohortId, now: Now) {
        let is_due = |replica: &Replica| replica.housekeeping_at <= now.monotonic && replica.cohort.leads();
        if !self.replicas.get(&id).is_some_and(is_due) {
            return;
        }
        let commands = self.chores(id, now);
        let replica = expected!(self.replicas.get_mut(&id), "it was looked at just now");
        let interval = self.config.housekeeping.0.max(1);
        replica.housekeeping_at = Monotonic((now.monotonic.0 / interval + 1) * interval);
        for payload in commands {
            self.propose(id, payload, now);
        }
    }

    fn chores(&mut self, id: CohortId, now: Now) -> Vec<Bytes> {
        let replica = expected!(self.replicas.get_mut(&id), "it was looked at just now", Vec::new());
        if let Some(catalog) = replica.state.as_catalog() {
            if catalog.nodes().next().is_none() {
                let nodes = self.config.addresses.iter().map(node_record).collect();
                return vec![CatalogCommand::RegisterNodes { nodes }.encode()];
            }
            self.drops.has_work = true;
            self.splits.has_work = true;
            self.moves.has_work = true;
            return roster::proposals(catalog, &replica.cohort, &self.cluster.peers, now.monotonic);
        }
        let (retention, lifetime) = (replica.retention, self.config.session_lifetime);
        replica.moments.note(replica.last_change, now.monotonic, retention.max(lifetime));
        let past = Past {
            session_lifetime: replica.moments.before(lifetime, now.monotonic),
            retention: replica.moments.before(retention, now.monotonic),
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
