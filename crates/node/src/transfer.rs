//! Catch-up by whole state: for a replica that lacks what the log holds no more (guarantee 9).
//!
//! The leader freezes its applied state and sends it part by part, each after the one before was acknowledged. The
//! follower writes it as a checkpoint; the manifest names it; only then is the log cut and the state its own.

use std::collections::BTreeMap;

use base::{CohortId, Duration, Epoch, Lsn, Monotonic, NodeId, Now, Timestamp};
use bytes::Bytes;
use tablets::State;

use crate::contract::{Action, CheckpointSource};
use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::replica::{Arrived, Incoming};

/// After so long without an acknowledgement a part is sent again.
const RESEND: Duration = Duration::from_millis(500);
/// After so many sendings of one part in vain the transfer is given up; the follower's answers start another. Writing a
/// large state as a checkpoint takes its time before the last part is acknowledged as installed.
const SENDINGS_MAX: u32 = 60;

/// A part of a whole state.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) epoch: Epoch,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) bytes: Bytes,
}

/// The transfers that this node's leaders have under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(CohortId, NodeId), Transfer>,
}

#[derive(Clone, Debug)]
struct Transfer {
    lsn: Lsn,
    timestamp: Timestamp,
    chunks: Vec<Bytes>,
    acknowledged: u32,
    resend_at: Monotonic,
    sendings: u32,
}

impl Transfers {
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.under_way.values().map(|transfer| transfer.resend_at).min()
    }

    pub(crate) fn forget_cohort(&mut self, cohort: CohortId) {
        self.under_way.retain(|(of, _), _| *of != cohort);
    }

    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.under_way.retain(|(_, to), _| *to != peer);
    }
}

impl Node {
    pub(crate) fn begin_transfer(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let Some(replica) = self.replicas.get(&cohort) else { return };
        let transfer = Transfer {
            lsn: replica.state.last_applied(),
            timestamp: replica.state.last_timestamp(),
            chunks: replica.state.snapshot().chunks().collect(),
            acknowledged: 0,
            resend_at: now.monotonic,
            sendings: 0,
        };
        self.counters.state_catch_ups += 1;
        self.transfers.under_way.insert((cohort, peer), transfer);
        self.send_part(cohort, peer, now);
    }

    fn send_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, peer)) else { return };
        let Some(replica) = self.replicas.get(&cohort) else { return };
        transfer.resend_at = now.monotonic + RESEND;
        transfer.sendings += 1;
        let count = u32::try_from(transfer.chunks.len()).unwrap_or(u32::MAX);
        // While the follower installs, the last part is sent again to ask how far it is.
        let index = transfer.acknowledged.min(count.saturating_sub(1));
        let Some(bytes) = transfer.chunks.get(index as usize).cloned() else { return };
        let epoch = replica.cohort.promised().epoch;
        let (lsn, timestamp) = (transfer.lsn, transfer.timestamp);
        self.send(peer, Message::StateChunk { cohort, epoch, lsn, timestamp, index, count, bytes }, AT_ONCE, None);
    }

    pub(crate) fn resend_transfers(&mut self, now: Now) {
        let due = |transfer: &Transfer| transfer.resend_at <= now.monotonic;
        let keys: Vec<(CohortId, NodeId)> =
            self.transfers.under_way.iter().filter(|(_, transfer)| due(transfer)).map(|(key, _)| *key).collect();
        for (cohort, peer) in keys {
            let spent = self.transfers.under_way.get(&(cohort, peer)).is_some_and(|t| t.sendings >= SENDINGS_MAX);
            if spent {
                self.end_transfer(cohort, peer, None, now);
            } else {
                self.send_part(cohort, peer, now);
            }
        }
    }

    fn end_transfer(&mut self, id: CohortId, peer: NodeId, lsn: Option<Lsn>, now: Now) {
        self.transfers.under_way.remove(&(id, peer));
        self.with_cohort(id, now, |cohort, out| cohort.state_sent(peer, lsn, now, out));
    }

    pub(crate) fn chunk_acknowledged(
        &mut self,
        from: NodeId,
        cohort: CohortId,
        lsn: Lsn,
        received: u32,
        installed: bool,
        now: Now,
    ) {
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, from)) else { return };
        if transfer.lsn != lsn {
            return;
        }
        if installed {
            return self.end_transfer(cohort, from, Some(lsn), now);
        }
        // A follower that restarted has nothing: it says so, and we start over.
        if received != transfer.acknowledged && (received as usize) <= transfer.chunks.len() {
            transfer.acknowledged = received;
            transfer.sendings = 0;
            if (received as usize) < transfer.chunks.len() {
                self.send_part(cohort, from, now);
            }
        }
    }

    pub(crate) fn chunk_received(&mut self, from: NodeId, id: CohortId, part: Part) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let follows = replica.cohort.leader() == Some(from) && replica.cohort.promised().epoch == part.epoch;
        let lsn = part.lsn;
        if replica.cohort.applied() >= lsn.sequence {
            return self.reply_installed(id, from, lsn);
        }
        if !follows || replica.arrived.is_some() || part.count == 0 {
            return;
        }
        let same = replica
            .incoming
            .as_ref()
            .is_some_and(|incoming| incoming.lsn == lsn && incoming.from == from && incoming.count == part.count);
        if !same {
            let (timestamp, count) = (part.timestamp, part.count);
            replica.incoming = Some(Incoming { from, lsn, timestamp, count, chunks: Vec::new() });
        }
        let Some(incoming) = replica.incoming.as_mut() else { return };
        if part.index as usize == incoming.chunks.len() {
            incoming.chunks.push(part.bytes);
        }
        let received = u32::try_from(incoming.chunks.len()).unwrap_or(u32::MAX);
        let whole = received == incoming.count;
        self.send(from, Message::StateReply { cohort: id, lsn, received, installed: false }, AT_ONCE, None);
        if whole {
            self.whole_state_received(id);
        }
    }

    fn whole_state_received(&mut self, id: CohortId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Some(Incoming { from, lsn, timestamp, chunks, .. }) = replica.incoming.take() else { return };
        match State::load(id, &chunks) {
            Ok(state) if state.last_applied() == lsn => {
                replica.arrived = Some(Box::new(Arrived { from, lsn, timestamp, state }));
                let state = CheckpointSource::Received(chunks);
                self.actions.push(Action::WriteCheckpoint { cohort: id, lsn, timestamp, state });
            }
            // The leader will start over; what came was another state than it said.
            Ok(_) | Err(_) => {}
        }
    }

    pub(crate) fn reply_installed(&mut self, id: CohortId, to: NodeId, lsn: Lsn) {
        let Some(replica) = self.replicas.get(&id) else { return };
        // Not before the manifest that names it is forced, which it is: the log's cut comes after it.
        let received = u32::MAX;
        let installed = replica.cohort.applied() >= lsn.sequence;
        self.send(to, Message::StateReply { cohort: id, lsn, received, installed }, AT_ONCE, None);
    }
}
