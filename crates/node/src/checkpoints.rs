//! When states are written as checkpoints, so that the log may go; and what a leader does now and then (guarantees 3,
//! 10 and 16).

use base::{CohortId, Lsn, Member, Now, Timestamp};
use bytes::Bytes;
use store::manifest::CheckpointRef;
use tablets::request::SessionId;
use tablets::{CatalogueCommand, Command, State, Tablet};

use crate::contract::Action;
use crate::node::{Node, newer};

impl Node {
    /// Begins the checkpoints that are due: of cohorts whose newest is so far back that it keeps much of the log.
    pub(crate) fn begin_checkpoints(&mut self) {
        let appended = self.outgoing.appended_bytes;
        for (id, replica) in &mut self.replicas {
            let due = self.config.checkpoint_log_bytes.max(replica.state.approximate_bytes() as u64 / 4);
            let busy = replica.writing.is_some() || replica.written.is_some() || replica.arrived.is_some();
            if busy || appended - replica.checkpoint_mark < due {
                continue;
            }
            let lsn = replica.state.last_applied();
            if !newer(lsn, replica.checkpoint.map(|at| at.lsn)) {
                continue;
            }
            let timestamp = replica.state.last_timestamp();
            replica.writing = Some((lsn, timestamp));
            replica.checkpoint_mark = appended;
            self.counters.checkpoints += 1;
            self.actions.push(Action::WriteCheckpoint { cohort: *id, lsn, timestamp, state: replica.state.snapshot() });
        }
    }

    pub(crate) fn checkpoint_written(&mut self, id: CohortId, lsn: Lsn, bytes: u64, now: Now) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let arrived = replica.arrived.as_ref().filter(|arrived| arrived.lsn == lsn).map(|arrived| arrived.timestamp);
        if let Some(timestamp) = arrived {
            return self.install(id, CheckpointRef { lsn, timestamp, bytes }, now);
        }
        let Some((_, timestamp)) = replica.writing.take_if(|(writing, _)| *writing == lsn) else { return };
        replica.written = Some(CheckpointRef { lsn, timestamp, bytes });
    }

    /// Has the manifest name the checkpoints that our own log is forced through, and no other: a majority may have
    /// committed, and we applied, what our own disk doesn't hold yet (guarantee 3).
    pub(crate) fn name_checkpoints(&mut self) {
        for (id, replica) in &mut self.replicas {
            let forced = replica.cohort.forced();
            let Some(written) = replica.written.take_if(|written| written.lsn.sequence <= forced) else { continue };
            if newer(written.lsn, replica.checkpoint.map(|at| at.lsn)) {
                replica.checkpoint = Some(written);
                self.manifest_for = Some(*id);
                self.outgoing.outbox.change_manifest();
            }
        }
    }

    fn install(&mut self, id: CohortId, at: CheckpointRef, now: Now) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if replica.cohort.install(at.lsn, at.timestamp, now, &mut self.outgoing.outbox) {
            replica.checkpoint = Some(at);
        } else {
            replica.arrived = None;
        }
        self.drain(id, now);
    }

    /// The manifest names the whole state that arrived: it is this replica's own now.
    pub(crate) fn installed(&mut self, id: CohortId, lsn: Lsn, now: Now) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Some(arrived) = replica.arrived.take() else { return };
        let arrived = *arrived;
        replica.last_change = arrived.state.last_timestamp();
        replica.state = arrived.state;
        replica.checkpoint_mark = self.outgoing.appended_bytes;
        self.reply_installed(id, arrived.from, lsn);
        self.retry_now = true;
        if let Err(error) = self.start_tables(now) {
            self.halt(error.to_string());
        }
    }

    /// What a leader proposes now and then: the nodes, once; sessions and old versions that may go.
    pub(crate) fn housekeeping(&mut self, now: Now) {
        let due: Vec<CohortId> = self
            .replicas
            .iter()
            .filter(|(_, replica)| replica.housekeeping_at <= now.monotonic && replica.cohort.leads())
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let commands = self.chores(id, now);
            let Some(replica) = self.replicas.get_mut(&id) else { continue };
            replica.housekeeping_at = now.monotonic + self.config.housekeeping;
            for payload in commands {
                replica.cohort.propose(payload, now, &mut self.outgoing.outbox);
            }
            self.drain(id, now);
        }
    }

    fn chores(&mut self, id: CohortId, now: Now) -> Vec<Bytes> {
        let Some(replica) = self.replicas.get_mut(&id) else { return Vec::new() };
        match &replica.state {
            State::Catalogue(catalogue) if catalogue.nodes().next().is_none() => {
                let nodes = self.config.addresses.iter().map(node_record).collect();
                vec![CatalogueCommand::RegisterNodes { nodes }.encode()]
            }
            State::Catalogue(_) => Vec::new(),
            State::Tablet(tablet) => {
                let (retention, lifetime) = (self.config.retention, self.config.session_lifetime);
                replica.moments.note(replica.last_change, now.monotonic, retention.max(lifetime));
                let unused = replica.moments.before(lifetime, now.monotonic).map(|moment| expiry(tablet, moment));
                let watermark = replica.moments.before(retention, now.monotonic).and_then(|at| watermark(tablet, at));
                let unused = unused.unwrap_or_default();
                self.counters.sessions_expired += unused.len() as u64;
                let expiry = (!unused.is_empty()).then_some(Command::ExpireSessions { sessions: unused });
                expiry.into_iter().chain(watermark).map(|command| command.encode()).collect()
            }
        }
    }
}

/// Sessions that were not used after that moment.
fn expiry(tablet: &Tablet, moment: Timestamp) -> Vec<(SessionId, Timestamp)> {
    tablet.sessions_unused_since(Timestamp(moment.0.saturating_add(1)))
}

/// The watermark that lets go of what was old at that moment. None if it is there already: a table that nobody writes to
/// must not keep three logs growing.
fn watermark(tablet: &Tablet, moment: Timestamp) -> Option<Command> {
    (moment > tablet.watermark()).then_some(Command::Watermark(moment))
}

fn node_record((member, peer, grpc): &(Member, String, String)) -> tablets::NodeRecord {
    tablets::NodeRecord { member: *member, peer: peer.clone(), grpc: grpc.clone() }
}

#[cfg(test)]
mod tests;
