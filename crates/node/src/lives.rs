//! Replicas that left a node and came back to it while its process went on (guarantee 8).
//!
//! Such a replica has forgotten what the one before it acknowledged. What is still on its way between that one and
//! others must count for nobody: an acknowledgement is of what is held no more, and a commit point that was told to the
//! one before would end the doubt of the one that came back too early (guarantee 7). A process that is restarted has a
//! number for that, its boot; the lives of a replica within a process have theirs. Messages between replicas say which
//! lives they are between; those between first lives, which are nearly all, do so by saying nothing.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{CohortId, NodeId, Now};

use crate::message::{Life, Message};
use crate::node::{AT_ONCE, Node};

/// Which lives replicas are in; the first, if nothing is said of one.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    ours: BTreeMap<CohortId, Life>,
    theirs: BTreeMap<(NodeId, CohortId), Life>,
}

impl Lives {
    /// The replica here has left.
    pub(crate) fn end(&mut self, cohort: CohortId) {
        self.ours.entry(cohort).or_default().0 += 1;
    }

    /// Nobody asks for the cohort any more.
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

    /// The message as it is sent: with the lives that it is between, unless both are the first.
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
    /// The message, if it is between the replicas of today. If it is for one that has left, its sender is told of the
    /// one that came back.
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
