//! A replica: the protocol and the state machine of one cohort on this node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::canary::{Bug, planted};
use base::{
    CohortId, Durability, Duration, KeyRange, Lsn, Member, Monotonic, NodeId, Sequence, SharedMembership, Timestamp,
};
use bytes::Bytes;
use machine::Ownership;
use machine::checkpoint::Keep;
use machine::state_machine::Kind;
use machine::storage::{FileRef, Outputs, StoredFile};
use replication::{Cohort, Config, ManifestId};
use store::manifest::{CheckpointRef, CohortManifest};

use crate::brake::Brake;
use crate::config::NodeConfig;
use crate::contract::{CheckpointId, Lineage};
use crate::latches::Latches;
use crate::moments::Moments;
use crate::pending::PendingId;
use crate::registry::{self, AnyMachine, Snapshot};
use crate::transfer::{Arrived, Incoming};
use crate::views::ReadView;

/// A cohort's protocol and state on this node.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) cohort: Cohort,
    pub(crate) state: AnyMachine,
    /// Counts the storages that the state had.
    pub(crate) lineage: Lineage,
    /// It had left, and has come back with this process.
    pub(crate) has_returned: bool,
    /// The table's name; empty for the catalogue.
    pub(crate) table: String,
    /// The range that the catalogue's map gives it: what its first leader tells it.
    pub(crate) range: KeyRange,
    /// How long old versions of its table are kept, as the catalogue says.
    pub(crate) retention: Duration,
    /// Our own proposals that aren't committed yet, and who waits for them.
    pub(crate) proposed: BTreeMap<Sequence, Proposal>,
    /// The rows that they write.
    pub(crate) latches: Latches,
    /// How fast rows are written, where compactions don't keep up.
    pub(crate) brake: Brake,
    pub(crate) on_disk: OnDisk,
    /// A whole state that is arriving.
    pub(crate) incoming: Option<Incoming>,
    /// A whole state on its way into the manifest.
    pub(crate) arrived: Option<Box<Arrived>>,
    /// Cohorts that were split off it here, and that our checkpoint may not pass yet.
    pub(crate) unsettled: Vec<CohortId>,
    /// The leader that requests were last routed by.
    pub(crate) leader_seen: Option<NodeId>,
    /// Since when it knows of none.
    pub(crate) alone_since: Option<Monotonic>,
    pub(crate) housekeeping_at: Monotonic,
    /// The timestamp of the last entry applied that a client asked for.
    pub(crate) last_change: Timestamp,
    /// While we lead: when `last_change` was what.
    pub(crate) moments: Moments,
    /// Requests to change something that the log decided while we led, ...
    pub(crate) writes: u64,
    /// ... and reads answered, since the start, ...
    pub(crate) reads: u64,
    /// ... those that other threads answered not among them.
    pub(crate) reads_elsewhere: Arc<AtomicU64>,
    /// What other threads see of it.
    pub(crate) published: Option<Arc<ReadView>>,
}

/// All that another replica needs to go on from.
#[derive(Debug)]
pub(crate) struct WholeState {
    /// The state but for the rows.
    pub(crate) state: Snapshot,
    /// The files that hold its bulk data.
    pub(crate) files: ShippedFiles,
    pub(crate) membership: SharedMembership,
}

/// Files, each with the name that a manifest has for it.
pub(crate) type ShippedFiles = Vec<(FileRef, Arc<dyn StoredFile>)>;

/// What the disk has of a replica's state, and what is on its way there.
#[derive(Debug, Default)]
pub(crate) struct OnDisk {
    /// The checkpoint that the manifest names, and the state that it holds but for the rows.
    pub(crate) checkpoint: Option<(CheckpointRef, Snapshot)>,
    /// The tables that the manifest names beside it.
    pub(crate) tables: Arc<[FileRef]>,
    /// The membership as of the checkpoint, or of the cohort's creation.
    pub(crate) membership: SharedMembership,
    /// The tables that the manifests on their way name, where they are others than the manifest before names.
    named: VecDeque<(ManifestId, Arc<[FileRef]>)>,
    named_last: Arc<[FileRef]>,
    /// The checkpoint that is being written.
    pub(crate) writing: Option<(CheckpointId, Snapshot, SharedMembership)>,
    /// A checkpoint that is on disk, for the manifest to name once our own log is forced through it.
    pub(crate) written: Option<Written>,
    /// Somebody waits for a newer checkpoint.
    pub(crate) is_wanted: bool,
    /// How much the whole node had appended when the last checkpoint was taken.
    pub(crate) mark: u64,
    /// The tables have changed since it was last asked whether they want a compaction.
    pub(crate) may_compact: bool,
    /// Nothing is begun before: there was no room. 0: there was.
    pub(crate) not_before: Monotonic,
}

/// A checkpoint that is on disk and that no manifest names.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) checkpoint: CheckpointRef,
    pub(crate) state: Snapshot,
    pub(crate) membership: SharedMembership,
    /// The table of what was in the memtable.
    pub(crate) flushed: Option<Outputs>,
}

/// An entry that a request waits for.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) lsn: Lsn,
    pub(crate) pending: PendingId,
    /// The row that it writes, if it writes one.
    pub(crate) row: Option<Bytes>,
}

impl OnDisk {
    /// What a manifest that was found on the disk names.
    pub(crate) fn found(manifest: &CohortManifest, state: Option<Snapshot>, mark: u64) -> Self {
        Self {
            named_last: Arc::clone(&manifest.tables),
            tables: Arc::clone(&manifest.tables),
            membership: Arc::clone(&manifest.membership),
            checkpoint: manifest.checkpoint.zip(state),
            mark,
            may_compact: true,
            ..Self::default()
        }
    }

    /// Through which entry the checkpoint goes that the manifest names.
    pub(crate) fn lsn(&self) -> Option<Lsn> {
        self.checkpoint.as_ref().map(|(at, _)| at.lsn)
    }

    /// What compactions may not let go of. A replica that starts from the checkpoint has its watermark and its range, not
    /// newer ones, so the files beside it must hold all that a read at or above that watermark can tell (guarantees 16
    /// and 19).
    pub(crate) fn keep(&self) -> Keep {
        self.checkpoint.as_ref().map_or_else(Keep::all, |(_, state)| state.keep())
    }

    /// The state in the checkpoint that the manifest names.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.checkpoint.as_ref().map(|(_, state)| state)
    }

    /// Says, once, that there may be room again.
    pub(crate) fn end_pause(&mut self, now: Monotonic) -> bool {
        let has_ended = self.not_before != Monotonic(0) && self.not_before <= now;
        if has_ended {
            self.not_before = Monotonic(0);
        }
        has_ended
    }

    /// The manifest in the making names these tables.
    pub(crate) fn name_tables(&mut self, manifest: ManifestId) {
        if !Arc::ptr_eq(&self.named_last, &self.tables) {
            self.named_last = Arc::clone(&self.tables);
            self.named.push_back((manifest, Arc::clone(&self.tables)));
        }
    }

    /// A manifest is forced. If the tables that it names are others than before, gives those that a start may find
    /// named from now on: by it, by the manifests that are on their way, and by the next one.
    pub(crate) fn forced(&mut self, through: ManifestId) -> Option<Vec<FileRef>> {
        let mut newest = None;
        while let Some((_, tables)) = self.named.pop_front_if(|(manifest, _)| *manifest <= through) {
            newest = Some(tables);
        }
        let mut named = newest?.to_vec();
        if !planted(Bug::TableRemovedEarly) {
            let coming = self.named.iter().map(|(_, tables)| tables).chain([&self.tables]);
            named.extend(coming.flat_map(|tables| tables.iter().copied()));
        }
        Some(named)
    }
}

impl Replica {
    /// When something is to be done about it next, unless something happens to it before.
    pub(crate) fn next_moment(&self, now: Monotonic) -> Monotonic {
        let housekeeping = if self.cohort.leads() { self.housekeeping_at } else { Monotonic::NEVER };
        let pause = self.on_disk.not_before;
        let pause = if pause == Monotonic(0) { Monotonic::NEVER } else { pause };
        self.cohort.next_timer(now).min(housekeeping).min(pause)
    }

    /// Whether it has begun with nothing, as a member from the beginning, and has been given nothing since.
    pub(crate) fn has_nothing(&self) -> bool {
        let is_empty = self.on_disk.lsn().is_none() && self.state.last_applied() == Lsn::ZERO;
        is_empty && !self.cohort.doubtful()
    }

    /// Bytes of its memtables.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.state.pressure().memory_bytes
    }

    /// Whether the disk doesn't keep up with what is written: then writes wait.
    pub(crate) fn is_stalled(&self, config: &NodeConfig) -> bool {
        let pressure = self.state.pressure();
        pressure.is_stalled || pressure.memory_bytes >= config.memtable_bytes_max
    }

    /// Another tree takes the place of the one it has: a flush or a compaction that is under way comes to nothing.
    /// Gives the tables of one that had come to its end.
    pub(crate) fn begin_lineage(&mut self) -> Option<Outputs> {
        self.lineage.0 += 1;
        self.on_disk.writing = None;
        self.on_disk.written.take().and_then(|written| written.flushed)
    }

    /// The state that the manifest names. None also while its rows are on their way out, since a drop was applied that
    /// the checkpoint doesn't know of; and if it was written before this replica knew who the members are.
    pub(crate) fn whole_state(&self) -> Option<WholeState> {
        let (_, state) = self.on_disk.checkpoint.as_ref().filter(|_| !self.on_disk.membership.is_empty())?;
        let is_dropped = self.state.ownership() == Some(&Ownership::Dropped);
        let has_data = state.is_dropped() || !is_dropped;
        has_data.then(|| WholeState {
            state: state.clone(),
            files: self.state.storage().ship(),
            membership: self.on_disk.membership.clone(),
        })
    }

    /// What the manifest must hold of it. Only the last one of a clean stop says that it leaves all it acknowledged
    /// behind.
    pub(crate) fn manifest(&self, is_last: bool) -> CohortManifest {
        CohortManifest {
            promised: self.cohort.promised(),
            checkpoint: self.on_disk.checkpoint.as_ref().map(|(at, _)| *at),
            tables: Arc::clone(&self.on_disk.tables),
            membership: SharedMembership::clone(&self.on_disk.membership),
            doubtful: self.cohort.doubtful(),
            is_retired: false,
            whole: is_last && self.cohort.leaves_whole(),
        }
    }
}

/// The protocol's configuration for a cohort on this node.
pub(crate) fn cohort_config(
    node: &NodeConfig,
    cohort: CohortId,
    kind: Kind,
    me: Member,
    origin: Lsn,
    durability: Durability,
) -> Config {
    let seed = node.seed ^ (u64::from(cohort.0) << 32) ^ u64::from(me.node.0);
    let mut timing = node.timing;
    if cohort == CohortId::CATALOGUE {
        // Every node finds tables and their ranges by what it has applied of the catalogue.
        (timing.commit_period, timing.piggyback_commits) = (timing.heartbeat, true);
    }
    let (limits, declaration) = (node.limits, registry::declare_loss(kind));
    Config { cohort, me, timing, limits, seed, origin, durability, declaration }
}
