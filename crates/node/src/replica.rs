//! A replica: the protocol and the state machine of one cohort on this node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::canary::{Bug, planted};
use base::{CohortId, KeyRange, Lsn, Member, Monotonic, NodeId, Sequence, SharedMembership, Timestamp};
use catalog::{Replication, TableOptions};
use replication::{Cohort, Config, ManifestId, Regime};
use state_machine::checkpoint::Keep;
use state_machine::storage::{FileRef, Outputs, StoredFile};
use state_machine::{Locks, Ownership};
use store::manifest::{CheckpointRef, CohortManifest};

use crate::config::NodeConfig;
use crate::contract::{CheckpointId, Lineage};
use crate::holds::Holds;
use crate::latches::Latches;
use crate::read_locks::ReadLocks;
use crate::registry::{self, AnyMachine, Snapshot};
use crate::request_table::PendingId;
use crate::timestamp_history::TimestampHistory;
use crate::transfer::{Arrived, Incoming};
use crate::views::ReadView;
use crate::write_throttle::WriteThrottle;

/// A cohort's protocol and state on this node.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) cohort: Cohort,
    pub(crate) state: AnyMachine,
    /// Identifies the current storage of the state.
    pub(crate) lineage: Lineage,
    /// The replica was removed and has returned within this process.
    pub(crate) has_returned: bool,
    /// The table's name; empty for the catalog.
    pub(crate) table: String,
    /// The range in the catalog's map, which the first leader assigns to the tablet.
    pub(crate) range: KeyRange,
    /// The options of its table, according to the catalog.
    pub(crate) options: TableOptions,
    /// Uncommitted proposals of this leader, and the requests that wait for them.
    pub(crate) proposed: BTreeMap<Sequence, Proposal>,
    /// Latches on the keys that these proposals lock.
    pub(crate) latches: Latches,
    /// This leader has applied everything from before its epoch, and has latched what prepared transactions lock.
    pub(crate) holds_prepared: bool,
    /// Until when new transactions over several ranges are refused, because a split or a drop waits for the present ones.
    pub(crate) drains_until: Monotonic,
    /// What transactions have read at this leader.
    pub(crate) read_locks: ReadLocks,
    /// What readers at timestamps need, known to this leader.
    pub(crate) holds: Holds,
    /// Throttles writes while compactions fall behind.
    pub(crate) throttle: WriteThrottle,
    pub(crate) on_disk: OnDisk,
    /// A state snapshot that is being received.
    pub(crate) incoming: Option<Incoming>,
    /// A received state snapshot that the manifest does not name yet.
    pub(crate) arrived: Option<Box<Arrived>>,
    /// Cohorts that split off from this replica and that its checkpoints must not pass yet.
    pub(crate) unsettled: Vec<CohortId>,
    /// The leader that requests were last routed to.
    pub(crate) leader_seen: Option<NodeId>,
    /// Since when no leader is known.
    pub(crate) alone_since: Option<Monotonic>,
    pub(crate) housekeeping_at: Monotonic,
    /// The timestamp of the last applied entry that a client requested.
    pub(crate) last_change: Timestamp,
    /// The history of `last_change`, also while this node follows: an election must not restart the idle times.
    pub(crate) timestamp_history: TimestampHistory,
    /// Number of writes that the log decided while this node led, since the start.
    pub(crate) writes: u64,
    /// Number of reads answered by the node machine since the start.
    pub(crate) reads: u64,
    /// Number of reads answered by other threads.
    pub(crate) reads_elsewhere: Arc<AtomicU64>,
    /// The view that other threads read.
    pub(crate) published: Option<Arc<ReadView>>,
}

/// A state snapshot from which another replica can continue.
#[derive(Debug)]
pub(crate) struct WholeState {
    /// The state without the rows.
    pub(crate) state: Snapshot,
    /// The files of its bulk data.
    pub(crate) files: ShippedFiles,
    pub(crate) membership: SharedMembership,
}

/// Files, each with the reference that a manifest has for it.
pub(crate) type ShippedFiles = Vec<(FileRef, Arc<dyn StoredFile>)>;

/// The durable state of a replica, and the writes in progress.
#[derive(Debug, Default)]
pub(crate) struct OnDisk {
    /// The checkpoint that the manifest names, and its state without the rows.
    pub(crate) checkpoint: Option<(CheckpointRef, Snapshot)>,
    /// The SSTables that the manifest names together with the checkpoint.
    pub(crate) sstables: Arc<[FileRef]>,
    /// The membership as of the checkpoint, or of the cohort's creation.
    pub(crate) membership: SharedMembership,
    /// The SSTables named by manifests in progress, where they differ from those of the preceding manifest.
    named: VecDeque<(ManifestId, Arc<[FileRef]>)>,
    named_last: Arc<[FileRef]>,
    /// The checkpoint being written.
    pub(crate) writing: Option<(CheckpointId, Snapshot, SharedMembership)>,
    /// A checkpoint on disk. The manifest names it once this node's own log is forced through it.
    pub(crate) written: Option<Written>,
    /// A newer checkpoint is requested.
    pub(crate) is_wanted: bool,
    /// Bytes appended by the whole node when the last checkpoint was taken.
    pub(crate) mark: u64,
    /// The SSTables have changed since the last check whether a compaction is due.
    pub(crate) may_compact: bool,
    /// The disk was full: no checkpoint starts before this time. 0: there is no pause.
    pub(crate) not_before: Monotonic,
}

/// A checkpoint on disk that no manifest names.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) checkpoint: CheckpointRef,
    pub(crate) state: Snapshot,
    pub(crate) membership: SharedMembership,
    /// The SSTable flushed from the memtable.
    pub(crate) flushed: Option<Outputs>,
}

/// An entry that a request waits for.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) lsn: Lsn,
    pub(crate) pending: PendingId,
    /// The latches that it holds until the entry is applied.
    pub(crate) locks: Locks,
    /// They stay until the state releases them.
    pub(crate) keeps_locks: bool,
    /// It commits a transaction.
    pub(crate) commits: bool,
}

impl OnDisk {
    /// The state named by a manifest found on disk.
    pub(crate) fn found(manifest: &CohortManifest, state: Option<Snapshot>, mark: u64) -> Self {
        Self {
            named_last: Arc::clone(&manifest.sstables),
            sstables: Arc::clone(&manifest.sstables),
            membership: Arc::clone(&manifest.membership),
            checkpoint: manifest.checkpoint.zip(state),
            mark,
            may_compact: true,
            ..Self::default()
        }
    }

    /// The last entry in the checkpoint that the manifest names.
    pub(crate) fn lsn(&self) -> Option<Lsn> {
        self.checkpoint.as_ref().map(|(at, _)| at.lsn)
    }

    /// The data that compactions must retain. A replica that starts from the checkpoint has its watermark and range,
    /// not newer ones. The files must therefore answer every read at or above that watermark (guarantees 16 and 19).
    pub(crate) fn keep(&self) -> Keep {
        self.checkpoint.as_ref().map_or_else(Keep::all, |(_, state)| state.keep())
    }

    /// The state of the checkpoint that the manifest names.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.checkpoint.as_ref().map(|(_, state)| state)
    }

    /// Returns true once, when the pause after a full disk ends.
    pub(crate) fn end_pause(&mut self, now: Monotonic) -> bool {
        let has_ended = self.not_before != Monotonic(0) && self.not_before <= now;
        if has_ended {
            self.not_before = Monotonic(0);
        }
        has_ended
    }

    /// Records that the next manifest names these SSTables.
    pub(crate) fn name_sstables(&mut self, manifest: ManifestId) {
        if !Arc::ptr_eq(&self.named_last, &self.sstables) {
            self.named_last = Arc::clone(&self.sstables);
            self.named.push_back((manifest, Arc::clone(&self.sstables)));
        }
    }

    /// A manifest is forced. If its SSTables differ from those before, returns all SSTables that a restart may find
    /// named: by this manifest, by those in progress, and by the next one.
    pub(crate) fn forced(&mut self, through: ManifestId) -> Option<Vec<FileRef>> {
        let mut newest = None;
        while let Some((_, sstables)) = self.named.pop_front_if(|(manifest, _)| *manifest <= through) {
            newest = Some(sstables);
        }
        let mut named = newest?.to_vec();
        if !planted(Bug::TableRemovedEarly) {
            let coming = self.named.iter().map(|(_, sstables)| sstables).chain([&self.sstables]);
            named.extend(coming.flat_map(|sstables| sstables.iter().copied()));
        }
        Some(named)
    }
}

impl Replica {
    /// When the replica needs attention next, if no event occurs before.
    pub(crate) fn next_moment(&self, now: Monotonic) -> Monotonic {
        let housekeeping = if self.cohort.leads() { self.housekeeping_at } else { Monotonic::NEVER };
        let pause = self.on_disk.not_before;
        let pause = if pause == Monotonic(0) { Monotonic::NEVER } else { pause };
        self.cohort.next_timer(now).min(housekeeping).min(pause)
    }

    /// Whether it started empty as a founding member and has received nothing since.
    pub(crate) fn has_nothing(&self) -> bool {
        let is_empty = self.on_disk.lsn().is_none() && self.state.last_applied() == Lsn::ZERO;
        is_empty && !self.cohort.doubtful()
    }

    /// Size of its memtables in bytes.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.state.pressure().memory_bytes
    }

    /// Whether writes must wait because the disk does not keep up.
    pub(crate) fn is_stalled(&self, config: &NodeConfig) -> bool {
        let pressure = self.state.pressure();
        pressure.is_stalled || pressure.memory_bytes >= config.memtable_bytes_max
    }

    /// Starts a new storage: a running flush or compaction of the old one is discarded. Returns the SSTables of a flush
    /// that had completed.
    pub(crate) fn begin_lineage(&mut self) -> Option<Outputs> {
        self.lineage.0 += 1;
        self.on_disk.writing = None;
        self.on_disk.written.take().and_then(|written| written.flushed)
    }

    /// The snapshot that the manifest names. `None` after an applied drop that the checkpoint does not include, because
    /// the rows are being deleted, and `None` if the checkpoint predates this replica's knowledge of the membership.
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

    /// The manifest entry of this replica. Only the last manifest of a clean stop states that everything acknowledged
    /// is durable.
    pub(crate) fn manifest(&self, is_last: bool) -> CohortManifest {
        CohortManifest {
            promised: self.cohort.promised(),
            checkpoint: self.on_disk.checkpoint.as_ref().map(|(at, _)| *at),
            sstables: Arc::clone(&self.on_disk.sstables),
            membership: SharedMembership::clone(&self.on_disk.membership),
            doubtful: self.cohort.doubtful(),
            is_retired: false,
            whole: is_last && self.cohort.leaves_whole(),
        }
    }
}

/// The protocol's configuration for a cohort on this node, which serves a range of a table with these options.
pub(crate) fn cohort_config(
    node: &NodeConfig,
    cohort: CohortId,
    options: &TableOptions,
    me: Member,
    origin: Lsn,
) -> Config {
    let seed = node.seed ^ (u64::from(cohort.0) << 32) ^ u64::from(me.node.0);
    let mut timing = node.timing;
    if cohort == CohortId::CATALOG {
        // Every node locates tables and ranges through its applied copy of the catalog, so commits must propagate
        // quickly.
        (timing.commit_period, timing.piggyback_commits) = (timing.heartbeat, true);
    }
    let (limits, declaration) = (node.limits, registry::declare_loss(options.kind));
    let regime = match options.replication() {
        Replication::Paxos => Regime::Vote(options.durability()),
        Replication::PrimaryBackup => Regime::Managed,
    };
    let waits = options.takes_part();
    Config { cohort, me, timing, limits, seed, origin, regime, waits, declaration }
}
