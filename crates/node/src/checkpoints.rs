//! When states are written as checkpoints, so that the log may go; and what a leader does now and then (guarantees 3,
//! 10 and 16).

use base::{CohortId, Lsn, Member, Now, Timestamp};
use store::manifest::CheckpointRef;
use tablets::{CatalogueCommand, Command, State};

use crate::contract::{Action, CheckpointSource};
use crate::node::{Node, newer};

impl Node {
    /// Begins the checkpoints that are due: of cohorts whose newest is so far back that it keeps much of the log. A
    /// checkpoint holds only entries that our own log has forced (guarantee 3).
    pub(crate) fn begin_checkpoints(&mut self) {
        let appended = self.outgoing.appended_bytes;
        for (id, replica) in &mut self.replicas {
            let due = self.config.checkpoint_log_bytes.max(replica.state.approximate_bytes() as u64 / 4);
            if replica.writing.is_some() || replica.arrived.is_some() || appended - replica.checkpoint_mark < due {
                continue;
            }
            let lsn = replica.state.last_applied();
            if replica.cohort.applied() > replica.cohort.forced() || !newer(lsn, replica.checkpoint.map(|at| at.lsn)) {
                continue;
            }
            let timestamp = replica.state.last_timestamp();
            replica.writing = Some((lsn, timestamp));
            replica.checkpoint_mark = appended;
            self.counters.checkpoints += 1;
            self.actions.push(Action::WriteCheckpoint {
                cohort: *id,
                lsn,
                timestamp,
                state: CheckpointSource::Own(replica.state.snapshot()),
            });
        }
    }

    pub(crate) fn checkpoint_written(&mut self, id: CohortId, lsn: Lsn, bytes: u64, now: Now) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let arrived = replica.arrived.as_ref().filter(|arrived| arrived.lsn == lsn).map(|arrived| arrived.timestamp);
        if let Some(timestamp) = arrived {
            return self.install(id, CheckpointRef { lsn, timestamp, bytes }, now);
        }
        let Some((_, timestamp)) = replica.writing.take_if(|(writing, _)| *writing == lsn) else { return };
        if newer(lsn, replica.checkpoint.map(|at| at.lsn)) {
            replica.checkpoint = Some(CheckpointRef { lsn, timestamp, bytes });
            self.manifest_for = Some(id);
            self.outgoing.outbox.change_manifest();
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
            let commands = self.chores(id);
            let Some(replica) = self.replicas.get_mut(&id) else { continue };
            replica.housekeeping_at = now.monotonic + self.config.housekeeping;
            for payload in commands {
                replica.cohort.propose(payload, now, &mut self.outgoing.outbox);
            }
            self.drain(id, now);
        }
    }

    fn chores(&mut self, id: CohortId) -> Vec<bytes::Bytes> {
        let Some(replica) = self.replicas.get(&id) else { return Vec::new() };
        match &replica.state {
            State::Catalogue(catalogue) if catalogue.nodes().next().is_none() => {
                let nodes = self.config.addresses.iter().map(node_record).collect();
                vec![CatalogueCommand::RegisterNodes { nodes }.encode()]
            }
            State::Catalogue(_) => Vec::new(),
            State::Tablet(tablet) => {
                let before = |span: base::Duration| {
                    let span = i64::try_from(span.0).unwrap_or(i64::MAX);
                    Timestamp(tablet.last_timestamp().0.saturating_sub(span))
                };
                let mut commands = Vec::new();
                let sessions = tablet.sessions_unused_since(before(self.config.session_lifetime));
                if !sessions.is_empty() {
                    self.counters.sessions_expired += sessions.len() as u64;
                    commands.push(Command::ExpireSessions { sessions }.encode());
                }
                let watermark = before(self.config.retention);
                let step = i64::try_from(self.config.housekeeping.0).unwrap_or(i64::MAX);
                if watermark.0 > tablet.watermark().0.saturating_add(step) {
                    commands.push(Command::Watermark(watermark).encode());
                }
                commands
            }
        }
    }
}

fn node_record((member, peer, grpc): &(Member, String, String)) -> tablets::NodeRecord {
    tablets::NodeRecord { member: *member, peer: peer.clone(), grpc: grpc.clone() }
}
