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

use crate::message::{Life, Message};
use crate::node::{AT_ONCE, Node};

/// The current generations of replicas. A missing entry means the first generation.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    ours: BTreeMap<CohortId, Life>,
    theirs: BTreeMap<(NodeId, CohortId), Life>,
}

impl Lives {
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

    fn ours(&self, cohort: CohortId) -> Life {
        self.ours.get(&cohort).copied().unwrap_or_default()
    }

    fn theirs(&self, peer: NodeId, cohort: CohortId) -> Life {
        self.theirs.get(&(peer, cohort)).copied().unwrap_or_default()
    }

    /// Adds the generations to an outgoing message, unless both are the first.
    pub(crate) fn named(&self, to: NodeId, message: Message) -> Message {
        let Some(cohort) = message.is_between_replicas() else { return message };
        let (from, to) = (self.ours(cohort), self.theirs(to, cohort));
        if (from, to) == (Life::FIRST, Life::FIRST) {
            return message;
        }
        Message::OfLives { from, to, message: Box::new(message) }
    }
}

impl Node {
    /// Returns the message if it is between current generations. If it is for a removed replica, this node informs the
    /// sender of the current generation.
    pub(crate) fn of_the_living(&mut self, peer: NodeId, message: Message, now: Now) -> Option<Message> {
        let (from, to, message) = match message {
            Message::OfLives { from, to, message } => (from, to, *message),
            Message::Life { cohort, life } => {
                self.learn_life(peer, cohort, life, now);
                return None;
            }
            message => (Life::FIRST, Life::FIRST, message),
        };
        let Some(cohort) = message.is_between_replicas().filter(|_| !planted(Bug::FormerLifeHeard)) else {
            return Some(message);
        };
        self.learn_life(peer, cohort, from, now);
        if from < self.hosting.lives.theirs(peer, cohort) {
            return None;
        }
        let life = self.hosting.lives.ours(cohort);
        if to == life {
            return Some(message);
        }
        if self.replicas.contains_key(&cohort) {
            self.send(peer, Message::Life { cohort, life }, AT_ONCE, None);
        }
        None
    }

    fn learn_life(&mut self, peer: NodeId, cohort: CohortId, life: Life, now: Now) {
        if life > self.hosting.lives.theirs(peer, cohort) {
            self.hosting.lives.theirs.insert((peer, cohort), life);
            self.with_cohort(cohort, now, |cohort, _| cohort.peer_restarted(peer));
        }
    }
}

#[cfg(test)]
mod tests;
