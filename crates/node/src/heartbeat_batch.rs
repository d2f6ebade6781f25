//! One batched heartbeat per pair of nodes for all idle cohorts (Spinnaker 4 and 7; guarantees 2, 3 and 14).
//!
//! The heartbeat of a leader to an idle follower is a function of the epoch and the last LSN (`replication`,
//! `quiescence`). Each node therefore keeps, for each peer, the list of cohorts that it leads and that are idle on that
//! peer. Every heartbeat interval it sends one [`Message::Beat`] that names the list by its number. The beat includes
//! the list itself until the peer confirms that it has it. The reply lists the cohorts for which the peer does *not*
//! confirm the state, usually none.
//!
//! A beat replaces the heartbeats of the cohorts in its list, and its reply replaces their replies:
//! * A list has a number, unique within the process. A changed list gets a new number.
//! * A reply counts for the cohorts of the list that it names, in the epochs of that list, as of the moment the beat
//!   was sent.
//! * A listed cohort that the peer refuses, or that gets no reply for the duration of a lease, returns to individual
//!   heartbeats.
//!
//! Batched heartbeats also bound the staleness of followers (guarantee 15; `replication`, `staleness`). A reply carries
//! the follower's clock. When it arrives, the leader determines for which listed cohorts it holds the lease and has
//! committed nothing beyond the list. The next beat of that list reports the result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{CohortId, Monotonic, NodeId, Now};
use replication::{Durable, ManifestId, Quiescence};

use crate::message::{Beaten, List, ListId, Message, PeerClock};
use crate::node::{AT_ONCE, Node};
use crate::replica::Replica;

/// Maximum number of lists for which a reply is still accepted. Each beat creates at most one list, so with the default
/// intervals these lists reach back further than a lease.
const LISTS_MAX: usize = 8;

/// Batched heartbeats to and from every peer.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatBatches {
    /// State of the beats that this node sends to each peer.
    peers: BTreeMap<NodeId, PeerState>,
    /// The newest list received from each peer's current process.
    received: BTreeMap<NodeId, (ListId, List)>,
    last: ListId,
    next_at: Monotonic,
}

#[derive(Debug, Default)]
struct PeerState {
    /// The cohorts that this node leads and that are idle on the peer.
    resting: BTreeMap<CohortId, Quiescence>,
    has_changed: bool,
    /// Ordered by age, newest last.
    lists: VecDeque<(ListId, List)>,
    /// The newest list that the peer has confirmed.
    known: ListId,
    /// Send time of the newest beat with a reply. Before the first reply: when the beats started.
    answered: Monotonic,
    /// The peer's clock in that reply, for the next beat of the same list.
    peer_clock: Option<(ListId, PeerClock)>,
}

impl PeerState {
    /// Records whether a cohort is idle on the peer.
    fn note(&mut self, cohort: CohortId, rest: Option<Quiescence>, now: Monotonic) {
        if self.resting.is_empty() {
            self.answered = now;
        }
        let before = match rest {
            Some(rest) => self.resting.insert(cohort, rest),
            None => self.resting.remove(&cohort),
        };
        self.has_changed |= before != rest;
    }

    fn list(&self, id: ListId) -> Option<List> {
        self.lists.iter().find(|(number, _)| *number == id).map(|(_, list)| Arc::clone(list))
    }
}

impl HeartbeatBatches {
    /// The peer has restarted: it has lost the lists of this node, and the lists of its previous process are invalid.
    pub(crate) fn peer_restarted(&mut self, peer: NodeId) {
        self.received.remove(&peer);
        if let Some(state) = self.peers.get_mut(&peer) {
            state.known = ListId(0);
            // A reboot of its machine may reset its clock.
            state.peer_clock = None;
        }
    }

    /// The node has been removed from the cluster.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
        self.received.remove(&peer);
    }

    /// When the next beat is due; `None` if no peer has an idle cohort.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.peers.values().any(|state| !state.resting.is_empty()).then_some(self.next_at)
    }

    /// Returns the newest list for a peer, and numbers it if it has changed.
    fn present_list(&mut self, peer: NodeId) -> Option<(ListId, List)> {
        let state = self.peers.get_mut(&peer)?;
        if std::mem::take(&mut state.has_changed) {
            self.last.0 += 1;
            state.lists.push_back((self.last, state.resting.iter().map(|(id, rest)| (*id, *rest)).collect()));
            if state.lists.len() > LISTS_MAX {
                state.lists.pop_front();
            }
        }
        state.lists.back().cloned()
    }
}

impl Node {
    /// Records on which peers a cohort is idle.
    pub(crate) fn note_rest(&mut self, id: CohortId, now: Now) {
        let cohort = self.replicas.get(&id).map(|replica| &replica.cohort);
        for peer in self.cluster.peers.keys() {
            let rest = cohort.and_then(|cohort| cohort.quiescence_with(*peer));
            if rest.is_some() || self.beats.peers.contains_key(peer) {
                self.beats.peers.entry(*peer).or_default().note(id, rest, now.monotonic);
            }
        }
    }

    /// Sends the beats to all peers if they are due.
    pub(crate) fn on_beat_timer(&mut self, now: Now) {
        if self.beats.next_at > now.monotonic {
            return;
        }
        self.beats.next_at = now.monotonic + self.config.timing.heartbeat;
        let peers: Vec<NodeId> = self.beats.peers.keys().copied().collect();
        for peer in peers {
            self.beat_to(peer, now);
        }
    }

    fn beat_to(&mut self, peer: NodeId, now: Now) {
        let Some(state) = self.beats.peers.get(&peer).filter(|state| !state.resting.is_empty()) else { return };
        if state.answered + self.config.timing.lease <= now.monotonic {
            // Each cohort must determine for itself whether it still has a majority.
            let all: Vec<CohortId> = state.resting.keys().copied().collect();
            return self.resume_heartbeats(peer, all, now);
        }
        let known = state.known;
        let (list, cohorts) = expected!(self.beats.present_list(peer), "a peer with idle cohorts has a list");
        let peer_clock = self.beats.peers.get(&peer).and_then(|state| state.peer_clock.as_ref());
        let peer_clock = peer_clock.filter(|(of, _)| *of == list).map(|(_, peer_clock)| peer_clock.clone());
        let cohorts = (list != known).then_some(cohorts);
        self.counters.beats += 1;
        self.send(peer, Message::Beat { list, cohorts, sent: now.monotonic, peer_clock }, AT_ONCE, None);
    }

    /// Returns cohorts to individual heartbeats with that peer.
    fn resume_heartbeats(&mut self, peer: NodeId, cohorts: impl IntoIterator<Item = CohortId>, now: Now) {
        for id in cohorts {
            self.with_cohort(id, now, |cohort, _| cohort.resume_heartbeats(peer, now));
            self.note_rest(id, now);
        }
    }

    /// Handles a beat: confirms every listed cohort with a state that matches the list.
    pub(crate) fn beat_received(
        &mut self,
        from: NodeId,
        list: ListId,
        cohorts: Option<List>,
        (sent, peer_clock): (Monotonic, Option<PeerClock>),
        now: Now,
    ) {
        if let Some(cohorts) = cohorts {
            self.beats.received.insert(from, (list, cohorts));
        }
        let known =
            self.beats.received.get(&from).filter(|(number, _)| *number == list).map(|(_, list)| Arc::clone(list));
        let at = now.monotonic;
        let Some(cohorts) = known else {
            return self.send(from, Message::BeatAnswer { list, sent, at, beaten: Beaten::UnknownList }, AT_ONCE, None);
        };
        // The sender may have been removed.
        let Some(sender) = self.cluster.member(from) else { return };
        let mut refused = Vec::new();
        let mut manifest = ManifestId(0);
        for (id, rest) in cohorts.iter() {
            let peer_clock = peer_clock
                .as_ref()
                .filter(|peer_clock| peer_clock.except.binary_search(id).is_err())
                .map(|peer_clock| peer_clock.at);
            let batched_heartbeat_received = |replica: &mut Replica| {
                Some((
                    replica.cohort.batched_heartbeat_received(sender, *rest, peer_clock, now)?,
                    replica.cohort.next_timer(now.monotonic),
                ))
            };
            let replica = if self.is_mute(*id, now) { None } else { self.replicas.quietly(*id) };
            match replica.and_then(batched_heartbeat_received) {
                // No other work waits for a renewed vote or a lower staleness bound.
                Some((promised, next)) => {
                    manifest = manifest.max(promised);
                    self.replicas.wake_at(*id, next);
                }
                None => refused.push(*id),
            }
        }
        let after = Durable { manifest, ..Durable::default() };
        self.send(from, Message::BeatAnswer { list, sent, at, beaten: Beaten::Vouched { refused } }, after, None);
    }

    /// Handles the reply to a beat: a lease vote for every cohort of the named list, except those refused.
    pub(crate) fn beat_answered(
        &mut self,
        from: NodeId,
        list: ListId,
        (sent, at): (Monotonic, Monotonic),
        beaten: Beaten,
        now: Now,
    ) {
        // The sender may have been removed.
        let Some(state) = self.beats.peers.get_mut(&from) else { return };
        let Beaten::Vouched { refused } = beaten else {
            state.known = ListId(0);
            return;
        };
        // Replies to lists older than those kept are ignored.
        let Some(cohorts) = state.list(list) else { return };
        let heeded = |_: &CohortId| !planted(Bug::BeatRefusalsIgnored);
        let refused: BTreeSet<CohortId> = refused.into_iter().filter(heeded).collect();
        state.known = state.known.max(list);
        state.answered = state.answered.max(sent);
        let sent = if planted(Bug::BeatFromReceipt) { now.monotonic } else { sent };
        let mut except = Vec::new();
        for (id, rest) in cohorts.iter() {
            // This extends a lease, and no other work waits for that.
            let mut batched_reply_received =
                |replica: &mut Replica| replica.cohort.batched_reply_received(from, *rest, (sent, at), now.monotonic);
            let is_refused = refused.contains(id);
            if is_refused || !self.replicas.quietly(*id).is_some_and(&mut batched_reply_received) {
                except.push(*id);
            }
        }
        if let Some(state) = self.beats.peers.get_mut(&from) {
            // If no cohort of the list has a lease (leases may be disabled), there is nothing to report.
            state.peer_clock = (except.len() < cohorts.len()).then_some((list, PeerClock { at, except }));
        }
        let is_listed = |id: &CohortId| self.beats.peers.get(&from).is_some_and(|state| state.resting.contains_key(id));
        let to_resume: Vec<CohortId> = refused.into_iter().filter(is_listed).collect();
        self.resume_heartbeats(from, to_resume, now);
    }
}

#[cfg(test)]
mod tests;
