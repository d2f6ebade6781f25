//! Catch-up by whole state: for a replica that lacks what the log holds no more (guarantee 9).
//!
//! The leader freezes its applied state and sends it part by part, each made when the one before is acknowledged. The
//! follower makes a state of the parts as they come, writes it as a checkpoint; the manifest names it; only then is the
//! log cut and the state its own.
//!
//! Neither side does more at once than one part takes (1 MiB, or one record): a large state must not hold up the other
//! cohorts of a node past their leases. One thing is not cut up: the follower lets go of the state that it replaces at
//! one go, which takes as long as that state is large. While it arrives, a follower holds both.

use std::collections::BTreeMap;

use base::{CohortId, Duration, Epoch, Lsn, Monotonic, NodeId, Now, Timestamp};
use bytes::Bytes;
use tablets::{Chunks, Snapshot};

use crate::contract::Action;
use crate::message::Message;
use crate::node::{AT_ONCE, Node};

/// After so long without an acknowledgement a part is sent again.
const RESEND: Duration = Duration::from_millis(500);
/// After so many sendings of one part without any answer the transfer is given up; the follower's answers to proposals
/// start another.
const SENDINGS_MAX: u32 = 60;

/// A part of a whole state.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) epoch: Epoch,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) index: u32,
    pub(crate) last: bool,
    pub(crate) bytes: Bytes,
}

/// The transfers that this node's leaders have under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(CohortId, NodeId), Transfer>,
}

#[derive(Clone, Debug)]
struct Transfer {
    state: Snapshot,
    /// What follows the part under way.
    chunks: Chunks,
    /// The part under way, and its number. The last one stays until the state is installed.
    part: Bytes,
    index: u32,
    resend_at: Monotonic,
    sendings: u32,
}

impl Transfer {
    fn new(state: Snapshot) -> Self {
        let chunks = state.chunks();
        let mut transfer = Self { state, chunks, part: Bytes::new(), index: 0, resend_at: Monotonic(0), sendings: 0 };
        transfer.start_over();
        transfer
    }

    fn start_over(&mut self) {
        self.chunks = self.state.chunks();
        self.part = self.chunks.next().unwrap_or_default();
        self.index = 0;
    }

    /// The follower has so many parts. Says whether another one is to be sent for it.
    fn acknowledged(&mut self, received: u32) -> bool {
        self.sendings = 0;
        if received > self.index
            && let Some(part) = self.chunks.next()
        {
            self.part = part;
            self.index += 1;
            return true;
        }
        // A follower that restarted has nothing, and says so.
        let has_lost_all = received == 0 && self.index > 0;
        if has_lost_all {
            self.start_over();
        }
        has_lost_all
    }
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
        self.counters.state_catch_ups += 1;
        self.transfers.under_way.insert((cohort, peer), Transfer::new(replica.state.snapshot()));
        self.send_part(cohort, peer, now);
    }

    fn send_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, peer)) else { return };
        let Some(replica) = self.replicas.get(&cohort) else { return };
        transfer.resend_at = now.monotonic + RESEND;
        transfer.sendings += 1;
        let epoch = replica.cohort.promised().epoch;
        let (lsn, timestamp) = (transfer.state.last_applied(), transfer.state.last_timestamp());
        let (index, last, bytes) = (transfer.index, transfer.chunks.is_at_end(), transfer.part.clone());
        self.send(peer, Message::StateChunk { cohort, epoch, lsn, timestamp, index, last, bytes }, AT_ONCE, None);
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
        if installed {
            // Perhaps another state than the one being sent: an earlier leader's. What it lacks now is to be seen.
            return self.end_transfer(cohort, from, Some(lsn), now);
        }
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, from)) else { return };
        if transfer.state.last_applied() == lsn && transfer.acknowledged(received) {
            self.send_part(cohort, from, now);
        }
    }

    pub(crate) fn chunk_received(&mut self, from: NodeId, id: CohortId, part: &Part) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let follows = replica.cohort.leader() == Some(from) && replica.cohort.promised().epoch == part.epoch;
        let lsn = part.lsn;
        if replica.cohort.applied() >= lsn.sequence {
            return self.reply_installed(id, from, lsn);
        }
        let received = match &replica.arrived {
            // It is being installed, or another is and this one's turn comes after: the leader is to be patient.
            Some(arrived) => {
                if arrived.lsn == lsn {
                    arrived.parts
                } else {
                    0
                }
            }
            None if follows => replica.take_part(from, part),
            None => return,
        };
        self.send(from, Message::StateReply { cohort: id, lsn, received, installed: false }, AT_ONCE, None);
        self.write_arrived(id);
    }

    /// Has the state that is here in whole written as a checkpoint.
    fn write_arrived(&mut self, id: CohortId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Some(arrived) = replica.arrived.as_mut().filter(|arrived| !arrived.is_being_written) else { return };
        arrived.is_being_written = true;
        let (lsn, timestamp) = (arrived.lsn, arrived.timestamp);
        let state = arrived.state.snapshot();
        self.actions.push(Action::WriteCheckpoint { cohort: id, lsn, timestamp, state });
    }

    pub(crate) fn reply_installed(&mut self, id: CohortId, to: NodeId, lsn: Lsn) {
        let Some(replica) = self.replicas.get(&id) else { return };
        // Not before the manifest that names it is forced, which it is: the log's cut comes after it.
        let received = u32::MAX;
        let installed = replica.cohort.applied() >= lsn.sequence;
        self.send(to, Message::StateReply { cohort: id, lsn, received, installed }, AT_ONCE, None);
    }
}

#[cfg(test)]
mod tests;
