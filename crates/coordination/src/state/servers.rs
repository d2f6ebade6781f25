//! Which batches of which servers were applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};

use crate::entry::{Batch, Position, ServerId, write_count};
use crate::limits::{BATCHES_IN_FLIGHT_MAX, SERVERS_MAX, SILENT_POSITIONS_MAX};

/// The servers that have joined and were not forgotten.
#[derive(Debug, Default)]
pub(super) struct Servers {
    servers: BTreeMap<ServerId, Progress>,
    /// By when something of them was applied last.
    by_activity: BTreeSet<(Position, ServerId)>,
}

#[derive(Debug)]
struct Progress {
    /// The last batch that was applied.
    applied: u64,
    /// Where.
    active: Position,
    /// Batches that lie in the log before a predecessor.
    early: BTreeMap<u64, Arc<Batch>>,
}

impl Servers {
    pub(super) fn contains(&self, server: ServerId) -> bool {
        self.servers.contains_key(&server)
    }

    /// Adds a server. Returns the one that is forgotten for it, if there are too many.
    pub(super) fn join(&mut self, server: ServerId, position: Position) -> Option<ServerId> {
        let forgotten = (self.servers.len() >= SERVERS_MAX).then(|| self.forget_first()).flatten();
        self.servers.insert(server, Progress { applied: 0, active: position, early: BTreeMap::new() });
        self.by_activity.insert((position, server));
        forgotten
    }

    /// Forgets the servers that were silent for too long.
    pub(super) fn forget_silent(&mut self, position: Position) -> Vec<ServerId> {
        let mut forgotten = Vec::new();
        while let Some((active, _)) = self.by_activity.first()
            && active.0 + SILENT_POSITIONS_MAX < position.0
        {
            forgotten.extend(self.forget_first());
        }
        forgotten
    }

    fn forget_first(&mut self) -> Option<ServerId> {
        let (_, server) = self.by_activity.pop_first()?;
        self.servers.remove(&server);
        Some(server)
    }

    /// The batches that are applied now that this one lies in the log: none if it is a duplicate, comes before its
    /// predecessor, or is of a server that is not known.
    pub(super) fn admit(&mut self, batch: &Arc<Batch>, position: Position) -> Vec<Arc<Batch>> {
        let Some(progress) = self.servers.get_mut(&batch.server) else { return Vec::new() };
        if planted(Bug::DuplicateBatchApplied) && batch.number <= progress.applied {
            return vec![batch.clone()];
        }
        let last = progress.applied + BATCHES_IN_FLIGHT_MAX as u64;
        if batch.number <= progress.applied || batch.number > last {
            return Vec::new();
        }
        if planted(Bug::BatchOutOfOrder) {
            return if progress.early.insert(batch.number, batch.clone()).is_none() {
                vec![batch.clone()]
            } else {
                vec![]
            };
        }
        progress.early.insert(batch.number, batch.clone());
        let mut ready = Vec::new();
        while let Some(batch) = progress.early.remove(&(progress.applied + 1)) {
            progress.applied += 1;
            ready.push(batch);
        }
        if !ready.is_empty() {
            self.by_activity.remove(&(progress.active, batch.server));
            self.by_activity.insert((position, batch.server));
            progress.active = position;
        }
        ready
    }

    pub(super) fn write(&self, out: &mut Writer) {
        write_count(self.servers.len(), out);
        for (server, progress) in &self.servers {
            out.u64(server.0);
            out.u64(progress.applied);
            out.u64(progress.active.0);
            let early = if planted(Bug::SnapshotMissesEarlyBatch) { 0 } else { progress.early.len() };
            write_count(early, out);
            progress.early.values().take(early).for_each(|batch| batch.write(out));
        }
    }

    pub(super) fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut servers = Self::default();
        for _ in 0..reader.count(28)? {
            let server = ServerId(reader.u64()?);
            let applied = reader.u64()?;
            let active = Position(reader.u64()?);
            let mut early = BTreeMap::new();
            for _ in 0..reader.count(32)? {
                let batch = Batch::read(reader)?;
                early.insert(batch.number, Arc::new(batch));
            }
            servers.servers.insert(server, Progress { applied, active, early });
            servers.by_activity.insert((active, server));
        }
        Ok(servers)
    }
}
