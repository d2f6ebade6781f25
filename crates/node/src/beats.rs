//! One heartbeat for all cohorts of a pair of nodes that are at rest (Spinnaker 4 and 7; guarantees 2, 3 and 14).
//!
//! What a leader would say to a follower at rest is a function of the epoch and the last LSN (`replication`, `rest`).
//! So a node keeps, for each other node, the list of the cohorts that it leads and that are at rest there. Every
//! heartbeat interval it sends one [`Message::Beat`], which names that list. The list itself is sent along until the
//! other node answers that it has it. The answer names the cohorts that it does *not* vouch for, which are none as a
//! rule.
//!
//! A beat stands for the heartbeats of the cohorts in its list, and its answer for theirs:
//! * a list has a number, which it keeps for the life of the process; a list that changed is another;
//! * an answer counts for the cohorts of the list that it names, in the epochs that the list names, from the moment at
//!   which the beat was sent;
//! * who is in a list and not vouched for, or gets no answer for a lease, is sent heartbeats of its own again.
//!
//! How old a follower's state may be it learns from beats, too (guarantee 15; `replication`, `staleness`): an answer
//! shows the follower's clock, and when it comes in, the leader sees of which cohorts of the list it holds the lease,
//! with nothing committed that the list doesn't name. The next beat of that list says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{CohortId, Monotonic, NodeId, Now};
use replication::{Durable, ManifestId, Rest};

use crate::message::{Beaten, Heard, List, ListId, Message};
use crate::node::{AT_ONCE, Node};
use crate::replica::Replica;

/// Lists that an answer may still be under way for. One more is made by each beat at most, so that they go back further
/// than a lease with the default times.
const LISTS_MAX: usize = 8;

/// The beats to and from every other node.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    /// What this node tells each other one.
    told: BTreeMap<NodeId, Told>,
    /// The newest list that each other node's present process has told this one.
    heard: BTreeMap<NodeId, (ListId, List)>,
    last: ListId,
    next_at: Monotonic,
}

#[derive(Debug, Default)]
struct Told {
    /// The cohorts that we lead and that are at rest there.
    resting: BTreeMap<CohortId, Rest>,
    has_changed: bool,
    /// The newest last.
    lists: VecDeque<(ListId, List)>,
    /// The newest that it has answered to have.
    known: ListId,
    /// When the newest beat that was answered was sent; before the first, when the beats began.
    answered: Monotonic,
    /// What that answer tells of a list.
    heard: Option<(ListId, Heard)>,
}

impl Told {
    /// Notes whether a cohort is at rest there.
    fn note(&mut self, cohort: CohortId, rest: Option<Rest>, now: Monotonic) {
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

impl Beats {
    /// The peer's process is a new one: it has been told nothing, and what its earlier one told is void.
    pub(crate) fn peer_restarted(&mut self, peer: NodeId) {
        self.heard.remove(&peer);
        if let Some(told) = self.told.get_mut(&peer) {
            told.known = ListId(0);
            // Its clock may begin anew with its machine.
            told.heard = None;
        }
    }

    /// The node has left.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.told.remove(&peer);
        self.heard.remove(&peer);
    }

    /// When the next beat is due, if there is one.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.told.values().any(|told| !told.resting.is_empty()).then_some(self.next_at)
    }

    /// The newest list for a peer, under a number of its own.
    fn present_list(&mut self, peer: NodeId) -> Option<(ListId, List)> {
        let told = self.told.get_mut(&peer)?;
        if std::mem::take(&mut told.has_changed) {
            self.last.0 += 1;
            told.lists.push_back((self.last, told.resting.iter().map(|(id, rest)| (*id, *rest)).collect()));
            if told.lists.len() > LISTS_MAX {
                told.lists.pop_front();
            }
        }
        told.lists.back().cloned()
    }
}

impl Node {
    /// Notes with whom a cohort is at rest.
    pub(crate) fn note_rest(&mut self, id: CohortId, now: Now) {
        let cohort = self.replicas.get(&id).map(|replica| &replica.cohort);
        for peer in self.cluster.peers.keys() {
            let rest = cohort.and_then(|cohort| cohort.rest_with(*peer));
            if rest.is_some() || self.beats.told.contains_key(peer) {
                self.beats.told.entry(*peer).or_default().note(id, rest, now.monotonic);
            }
        }
    }

    /// Sends each other node its beat, if it is time.
    pub(crate) fn on_beat_timer(&mut self, now: Now) {
        if self.beats.next_at > now.monotonic {
            return;
        }
        self.beats.next_at = now.monotonic + self.config.timing.heartbeat;
        let peers: Vec<NodeId> = self.beats.told.keys().copied().collect();
        for peer in peers {
            self.beat_to(peer, now);
        }
    }

    fn beat_to(&mut self, peer: NodeId, now: Now) {
        let Some(told) = self.beats.told.get(&peer).filter(|told| !told.resting.is_empty()) else { return };
        if told.answered + self.config.timing.lease <= now.monotonic {
            // Each is to find out for itself whether it has a majority still.
            let all: Vec<CohortId> = told.resting.keys().copied().collect();
            return self.rouse(peer, all, now);
        }
        let known = told.known;
        let (list, cohorts) =
            expected!(self.beats.present_list(peer), "what rests with a peer was noted, so there is a list");
        let heard = self.beats.told.get(&peer).and_then(|told| told.heard.as_ref());
        let heard = heard.filter(|(of, _)| *of == list).map(|(_, heard)| heard.clone());
        let cohorts = (list != known).then_some(cohorts);
        self.counters.beats += 1;
        self.send(peer, Message::Beat { list, cohorts, sent: now.monotonic, heard }, AT_ONCE, None);
    }

    /// Has cohorts ask that peer for votes by themselves.
    fn rouse(&mut self, peer: NodeId, cohorts: impl IntoIterator<Item = CohortId>, now: Now) {
        for id in cohorts {
            self.with_cohort(id, now, |cohort, _| cohort.rouse(peer, now));
            self.note_rest(id, now);
        }
    }

    /// A beat: vouches for every cohort of its list that is as the list says.
    pub(crate) fn beat_received(
        &mut self,
        from: NodeId,
        list: ListId,
        cohorts: Option<List>,
        (sent, heard): (Monotonic, Option<Heard>),
        now: Now,
    ) {
        if let Some(cohorts) = cohorts {
            self.beats.heard.insert(from, (list, cohorts));
        }
        let known = self.beats.heard.get(&from).filter(|(number, _)| *number == list).map(|(_, list)| Arc::clone(list));
        let at = now.monotonic;
        let Some(cohorts) = known else {
            return self.send(from, Message::BeatAnswer { list, sent, at, beaten: Beaten::UnknownList }, AT_ONCE, None);
        };
        // It may have left.
        let Some(sender) = self.cluster.member(from) else { return };
        let mut refused = Vec::new();
        let mut manifest = ManifestId(0);
        for (id, rest) in cohorts.iter() {
            let heard = heard.as_ref().filter(|heard| heard.except.binary_search(id).is_err()).map(|heard| heard.at);
            let vouch = |replica: &mut Replica| {
                Some((replica.cohort.vouch(sender, *rest, heard, now)?, replica.cohort.next_timer(now.monotonic)))
            };
            match self.replicas.quietly(*id).and_then(vouch) {
                // Nothing else waits for a vote renewed, or a younger age.
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

    /// The answer to a beat: a vote for every cohort of the list that it names, but for those refused.
    pub(crate) fn beat_answered(
        &mut self,
        from: NodeId,
        list: ListId,
        (sent, at): (Monotonic, Monotonic),
        beaten: Beaten,
        now: Now,
    ) {
        // It may have left.
        let Some(told) = self.beats.told.get_mut(&from) else { return };
        let Beaten::Vouched { refused } = beaten else {
            told.known = ListId(0);
            return;
        };
        // Of a list so old no answer counts any more.
        let Some(cohorts) = told.list(list) else { return };
        let heeded = |_: &CohortId| !planted(Bug::BeatRefusalsIgnored);
        let refused: BTreeSet<CohortId> = refused.into_iter().filter(heeded).collect();
        told.known = told.known.max(list);
        told.answered = told.answered.max(sent);
        let sent = if planted(Bug::BeatFromReceipt) { now.monotonic } else { sent };
        let mut except = Vec::new();
        for (id, rest) in cohorts.iter() {
            // A lease grows by it, and nothing waits for that.
            let mut vouched = |replica: &mut Replica| replica.cohort.vouched(from, *rest, (sent, at), now.monotonic);
            let is_refused = refused.contains(id);
            if is_refused || !self.replicas.quietly(*id).is_some_and(&mut vouched) {
                except.push(*id);
            }
        }
        if let Some(told) = self.beats.told.get_mut(&from) {
            // Where nobody has a lease, as without leases at all, there is nothing to tell.
            told.heard = (except.len() < cohorts.len()).then_some((list, Heard { at, except }));
        }
        let is_listed = |id: &CohortId| self.beats.told.get(&from).is_some_and(|told| told.resting.contains_key(id));
        let roused: Vec<CohortId> = refused.into_iter().filter(is_listed).collect();
        self.rouse(from, roused, now);
    }
}

#[cfg(test)]
mod tests;
