//! Background tasks: collecting unused containers and TTL nodes, and writing snapshots.
//!
//! Every server runs both. Duplicate work has no effect, and jitter makes it rare.

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, SplitMix64};

use super::{Action, Membership, Origin, Server};
use crate::entry::{Batch, Item, Position};
use crate::tree::{Kind, NodeRef};

/// Delay before a failed snapshot is retried, in ticks. It doubles with each failure, because each attempt may append
/// many parts.
const SNAPSHOT_RETRY_TICKS: u64 = 10;
const SNAPSHOT_RETRY_MAX: Duration = Duration::from_millis(600_000);
/// Maximum number of nodes collected at once, to leave room for client writes.
const COLLECTED_AT_ONCE_MAX: usize = 1_000;

/// Schedule of the collector.
#[derive(Debug)]
pub(super) struct Collector {
    next: Monotonic,
}

impl Collector {
    pub(super) const fn new(now: Monotonic) -> Self {
        Self { next: now }
    }
}

/// The snapshot in progress.
#[derive(Debug, Default)]
pub(super) struct Snapshotter {
    under_way: Option<UnderWay>,
    /// Failures since the last snapshot that succeeded.
    failures: u32,
    /// Back-off after a failed snapshot.
    not_before: Monotonic,
}

#[derive(Debug)]
struct UnderWay {
    /// It contains all positions below this one.
    next: Position,
    /// Number of pieces handed to the driver.
    pieces: u32,
    /// Whether the last of them ends the snapshot.
    is_complete: bool,
}

impl Server {
    pub(super) fn collect_if_due(&mut self) {
        let now = self.now.monotonic;
        if now < self.collector.next {
            return;
        }
        let jitter = SplitMix64::new(self.jitter_seed() ^ now.0).below(self.config.collect_every.0 / 4);
        self.collector.next = now + self.config.collect_every + Duration(jitter);
        let time_ms = Batch::time_of(self.now.wall);
        let tree = self.state.tree();
        let unused = tree.collectable().filter_map(|path| {
            let node = tree.get(path)?;
            let stat = node.stat();
            let item = Item::Collect { path: path.into(), mzxid: stat.mzxid, pzxid: stat.pzxid };
            is_unused(node, time_ms, self.config.collect_unused_after).then_some(item)
        });
        let unused: Vec<Item> = unused.take(COLLECTED_AT_ONCE_MAX).collect();
        for item in unused {
            self.batcher.gather(item, None, Origin::None);
        }
    }

    fn jitter_seed(&self) -> u64 {
        match self.membership {
            Membership::Member(id) => id.0,
            Membership::Joining { .. } => 0,
        }
    }

    /// Starts a snapshot once the log has grown enough since the last one.
    pub(super) fn begin_snapshot_if_due(&mut self) {
        let Some(limit) = self.config.snapshot_after_bytes else { return };
        // With jitter: servers begin at 1 to 2 times the limit.
        let limit = limit + SplitMix64::new(self.jitter_seed()).below(limit);
        let is_due = self.state.log_bytes() >= limit && self.now.monotonic >= self.snapshotter.not_before;
        if is_due && self.snapshotter.under_way.is_none() && self.id().is_some() {
            self.snapshotter.under_way = Some(UnderWay { next: self.state.next(), pieces: 0, is_complete: false });
            self.state.begin_snapshot();
            self.next_piece();
        }
    }

    fn next_piece(&mut self) {
        let Some(under_way) = &mut self.snapshotter.under_way else {
            return debug_assert!(false, "the callers check that a snapshot is in progress");
        };
        let Some(piece) = self.state.next_piece() else {
            return debug_assert!(false, "each piece is accepted once, and no piece follows the last one");
        };
        let (next, index, is_last) = (under_way.next, under_way.pieces, !self.state.has_piece());
        under_way.pieces += 1;
        under_way.is_complete = is_last;
        self.actions.push(Action::KeepPiece { next, index, piece, is_last });
    }

    /// Whether an event is about the snapshot in progress. A late event of a cancelled snapshot is not.
    fn is_in_progress(&self, next: Position) -> bool {
        let is_of = |snapshot: &UnderWay| snapshot.next == next || planted(Bug::LateSnapshotEventCounts);
        self.snapshotter.under_way.as_ref().is_some_and(is_of)
    }

    /// The driver requests the next piece.
    pub(super) fn piece_kept(&mut self, next: Position, index: u32) {
        let is_newest = |snapshot: &UnderWay| !snapshot.is_complete && snapshot.pieces == index + 1;
        if self.is_in_progress(next) && self.snapshotter.under_way.as_ref().is_some_and(is_newest) {
            self.next_piece();
        }
    }

    /// The snapshot and its pointer are durable: the log before it can be trimmed.
    pub(super) fn snapshot_kept(&mut self, next: Position) {
        if !self.is_in_progress(next) {
            return;
        }
        if let Some(UnderWay { next, .. }) = self.snapshotter.under_way.take() {
            self.snapshotter.failures = 0;
            self.state.end_snapshot();
            self.statistics.snapshots += 1;
            self.batcher.gather(Item::SnapshotKept { next }, None, Origin::None);
            self.actions.push(Action::Trim { below: next });
        }
    }

    pub(super) fn snapshot_failed(&mut self, next: Position) {
        if self.is_in_progress(next) {
            let snapshotter = &mut self.snapshotter;
            let delay = (SNAPSHOT_RETRY_TICKS * self.config.tick.0).saturating_mul(1 << snapshotter.failures.min(20));
            snapshotter.under_way = None;
            snapshotter.failures += 1;
            snapshotter.not_before = self.now.monotonic + Duration(delay).min(SNAPSHOT_RETRY_MAX);
            self.state.end_snapshot();
        }
    }

    /// A newer snapshot of another server makes this one superfluous.
    pub(super) fn other_snapshot_kept(&mut self, next: Position) {
        if self.snapshotter.under_way.as_ref().is_some_and(|under_way| under_way.next < next) {
            self.snapshotter.under_way = None;
            self.state.end_snapshot();
        }
    }
}

/// The conditions of ZooKeeper's container manager.
fn is_unused(node: NodeRef<'_>, time_ms: i64, unused_after: Option<Duration>) -> bool {
    let stat = node.stat();
    let age_ms = time_ms.saturating_sub(stat.mtime);
    if stat.num_children > 0 {
        return false;
    }
    match node.kind() {
        Kind::Container if node.created() > 0 => true,
        Kind::Container => {
            unused_after.is_some_and(|limit| age_ms > i64::try_from(limit.as_millis()).unwrap_or(i64::MAX))
        }
        Kind::Ttl { ttl_ms } => age_ms > ttl_ms,
        Kind::Persistent | Kind::Ephemeral(_) => false,
    }
}
