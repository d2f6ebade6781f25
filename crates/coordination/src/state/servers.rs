//! Deduplication and ordering of batches: the last applied batch of each server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};

use crate::entry::{Batch, Position, ServerId, write_count};
use crate::limits::{BATCHES_IN_FLIGHT_MAX, INACTIVE_POSITIONS_MAX, SERVERS_MAX};

/// Servers that have joined and were not removed.
#[derive(Debug, Default)]
pub(super) struct Servers {
    servers: BTreeMap<ServerId, ServerBatches>,
    /// Ordered by their last applied batch.
    by_activity: BTreeSet<(Position, ServerId)>,
}

#[derive(Debug)]
struct ServerBatches {
    /// The last batch that was applied.
    applied: u64,
    /// The position at which it was applied.
    active: Position,
    /// Reorder buffer: batches that precede their predecessor in the log.
    early: BTreeMap<u64, Arc<Batch>>,
}

impl Servers {
    pub(super) fn contains(&self, server: ServerId) -> bool {
        self.servers.contains_key(&server)
    }

    /// Adds a server. Returns the one removed for it at the limit.
    pub(super) fn join(&mut self, server: ServerId, position: Position) -> Option<ServerId> {
        let removed = (self.servers.len() >= SERVERS_MAX).then(|| self.remove_first()).flatten();
        self.servers.insert(server, ServerBatches { applied: 0, active: position, early: BTreeMap::new() });
        self.by_activity.insert((position, server));
        removed
    }

    /// Removes servers that were inactive for too long.
    pub(super) fn remove_inactive(&mut self, position: Position) -> Vec<ServerId> {
        let mut removed = Vec::new();
        while let Some((active, _)) = self.by_activity.first()
            && active.0 + INACTIVE_POSITIONS_MAX < position.0
        {
            removed.extend(self.remove_first());
        }
        removed
    }

    fn remove_first(&mut self) -> Option<ServerId> {
        let (_, server) = self.by_activity.pop_first()?;
        self.servers.remove(&server);
        Some(server)
    }

    /// The batches that become applicable with this one: none if it is a duplicate, precedes its predecessor, or
    /// belongs to an unknown server.
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
            servers.servers.insert(server, ServerBatches { applied, active, early });
            servers.by_activity.insert((active, server));
        }
        Ok(servers)
    }
}
