//! Generation numbers for replicas that are removed from a node and return to it within one process (guarantee 8).
//!
//! A returning replica has forgotten the acknowledgements of its predecessor. Messages still in transit to or from the
//! predecessor must be ignored: its acknowledgements cover entries that are no longer held, and a commit point
//! addressed to it would end the successor's doubt too early (guarantee 7). Boot numbers protect against this across
//! process restarts, and generations within a process. Messages between replicas carry both generations. First
//! generations, by far the most common, are implicit.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, NodeId, Now};

use crate::message::{Message, ReplicaGeneration};
use crate::node::{AT_ONCE, Node};

/// The current generations of replicas. A missing entry means the first generation.
#[derive(Debug, Default)]
pub(crate) struct ReplicaGenerations {
    ours: BTreeMap<CohortId, ReplicaGeneration>,
    theirs: BTreeMap<(NodeId, CohortId), ReplicaGeneration>,
}

impl ReplicaGenerations {
    /// The replica on this node was removed.
    pub(crate) fn end(&mut self, cohort: CohortId) {
        self.ours.entry(cohort).or_default().0 += 1;
    }

    /// The cohort no longer exists.
    pub(crate) fn forget_cohort(&mut self, id: CohortId) {
        self.ours.remove(&id);
        self.theirs.retain(|(_, cohort), _| *cohort != id);
    }

    /// A peer has a new process.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.theirs.retain(|(node, _), _| *node != peer);
    }

    fn ours(&self, cohort: CohortId) -> ReplicaGeneration {
        self.ours.get(&cohort).copied().unwrap_or_default()
    }

    fn theirs(&self, peer: NodeId, cohort: CohortId) -> ReplicaGeneration {
        self.theirs.get(&(peer, cohort)).copied().unwrap_or_default()
    }

    /// Adds the generations to an outgoing message, unless both are the first.
    pub(crate) fn named(&self, to: NodeId, message: Message) -> Message {
        let Some(cohort) = message.is_between_replicas() else { return message };
        let (from, to) = (self.ours(cohort), self.theirs(to, cohort));
        if (from, to) == (ReplicaGeneration::FIRST, ReplicaGeneration::FIRST) {
            return message;
        }
        Message::OfGenerations { from, to, message: Box::new(message) }
    }
}

impl Node {
    /// Returns the message if it is between current generations. If it is for a removed replica, this node informs the
    /// sender of the current generation.
    pub(crate) fn current_only(&mut self, peer: NodeId, message: Message, now: Now) -> Option<Message> {
        let (from, to, message) = match message {
            Message::OfGenerations { from, to, message } => (from, to, *message),
            Message::Generation { cohort, generation } => {
                self.learn_generation(peer, cohort, generation, now);
                return None;
            }
            message => (ReplicaGeneration::FIRST, ReplicaGeneration::FIRST, message),
        };
        let Some(cohort) = message.is_between_replicas().filter(|_| !planted(Bug::FormerLifeHeard)) else {
            return Some(message);
        };
        self.learn_generation(peer, cohort, from, now);
        if from < self.hosting.generations.theirs(peer, cohort) {
            return None;
        }
        let generation = self.hosting.generations.ours(cohort);
        if to == generation {
            return Some(message);
        }
        if self.replicas.contains_key(&cohort) {
            self.send(peer, Message::Generation { cohort, generation }, AT_ONCE, None);
        }
        None
    }

    fn learn_generation(&mut self, peer: NodeId, cohort: CohortId, generation: ReplicaGeneration, now: Now) {
        if generation > self.hosting.generations.theirs(peer, cohort) {
            self.hosting.generations.theirs.insert((peer, cohort), generation);
            self.with_cohort(cohort, now, |cohort, _| cohort.peer_restarted(peer));
        }
    }
}

#[cfg(test)]
mod tests;
