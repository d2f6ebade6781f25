//! Which nodes are heard of, as far as logs are concerned.
//!
//! A node that is silent for a quarter of a second is taken for gone: so appends go on soon after it is. Where nodes
//! have too little of a processor that is a mistake, and a dear one: the node's units are left out, and copied anew. So
//! each mistake about a process has it waited for twice as long, up to a bound (Chandra and Toueg, Unreliable failure
//! detectors for reliable distributed systems, JACM 43(2), 1996, figure 10). A node that stood still itself has heard
//! nobody meanwhile, and that says nothing of them: silence is counted while the node is awake.

use std::collections::BTreeSet;

use base::{Boot, Duration, Monotonic, NodeId, Now};

use crate::node::{Node, Peer};

/// A node that wasn't heard of for so long is silent: it is not waited for. Heartbeats come every 100 ms.
pub(super) const SILENT: Duration = Duration::from_millis(250);
/// Mistakes that count: the node is waited for eight times as long then.
const MISTAKES_MAX: u32 = 3;
/// What counted towards patience does so for this long; the one before it for as long again.
const MEMORY: Duration = Duration::from_millis(30_000);
/// Between two events of a node that is awake no more time goes by than this: heartbeats are sent.
const NAP: Duration = Duration::from_millis(100);

/// How often something has happened lately, up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lately {
    times: u32,
    /// The last time.
    at: Monotonic,
}

impl Lately {
    /// It has happened once more.
    pub(super) fn note(&mut self, max: u32, now: Monotonic) {
        *self = Self { times: self.times(now).saturating_add(1).min(max), at: now };
    }

    /// How often, as far as it still counts.
    pub(super) fn times(&self, now: Monotonic) -> u32 {
        let forgotten = now.since(self.at).0 / MEMORY.0;
        self.times.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }

    fn is_past(&self, pause: Duration, now: Monotonic) -> bool {
        self.times == 0 || now.since(self.at) > pause
    }
}

/// For how long this node has been awake.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Awake {
    time: Duration,
    at: Option<Monotonic>,
}

impl Awake {
    /// An event has come.
    pub(crate) fn event(&mut self, now: Monotonic) {
        let gone = self.at.map_or(Duration::ZERO, |at| now.since(at));
        self.time.0 += gone.0.min(NAP.0);
        self.at = Some(now);
    }
}

/// What was heard of a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hearing {
    /// When this node had been awake for so long.
    at: Option<Duration>,
    /// This process of the peer was taken for gone.
    given_up: Option<Boot>,
    /// ... though it wasn't.
    mistakes: Lately,
}

impl Hearing {
    /// A process of the peer was heard of.
    pub(crate) fn heard(&mut self, boot: Boot, is_new: bool, awake: Awake, now: Monotonic) {
        self.at = Some(awake.time);
        let given_up = self.given_up.take();
        if is_new {
            self.mistakes = Lately::default();
        } else if given_up == Some(boot) {
            self.mistakes.note(MISTAKES_MAX, now);
        }
    }

    fn is_within(&self, silent: Duration, awake: Awake, now: Monotonic) -> bool {
        self.silence(awake).is_some_and(|silence| silence < silent.max(Duration(SILENT.0 << self.mistakes.times(now))))
    }

    fn silence(&self, awake: Awake) -> Option<Duration> {
        self.at.map(|at| Duration(awake.time.0 - at.0))
    }
}

impl Node {
    /// Whether a node was heard of just now.
    pub(super) fn is_heard(&self, node: NodeId, now: Now) -> bool {
        self.is_heard_within(node, SILENT, now)
    }

    /// Whether a node was heard of within that time; one that was taken for gone by mistake has longer.
    pub(super) fn is_heard_within(&self, node: NodeId, silent: Duration, now: Now) -> bool {
        let is_recent = |peer: &Peer| peer.hearing.is_within(silent, self.awake, now.monotonic);
        node == self.me.node || self.peers.get(&node).is_some_and(is_recent)
    }

    /// Whether a node is silent, and waited for all the same: for 2 s at most.
    pub(super) fn is_waited_for(&self, node: NodeId, now: Now) -> bool {
        let is_silent = |peer: &Peer| peer.hearing.silence(self.awake).is_none_or(|silence| silence >= SILENT);
        self.peers.get(&node).is_some_and(is_silent) && self.is_heard(node, now)
    }

    /// Logs go on without what these nodes have of them, since they are silent. Whichever process is heard of again was
    /// not gone.
    pub(super) fn take_for_gone(&mut self, nodes: &BTreeSet<NodeId>) {
        for node in nodes {
            if let Some(peer) = self.peers.get_mut(node) {
                peer.hearing.given_up = Some(peer.boot);
            }
        }
    }

    /// A log goes on without what these nodes have of it, since they didn't answer in time. Several logs may meet with
    /// the same.
    pub(super) fn note_slow(&mut self, nodes: &BTreeSet<NodeId>, pause: Duration, now: Now) {
        for node in nodes {
            if let Some(peer) = self.peers.get_mut(node)
                && peer.hearing.mistakes.is_past(pause, now.monotonic)
            {
                peer.hearing.mistakes.note(MISTAKES_MAX, now.monotonic);
            }
        }
    }

    /// How often patience is doubled for the sake of the slowest of these nodes.
    pub(super) fn doublings(&self, nodes: &BTreeSet<NodeId>, now: Now) -> u32 {
        let mistakes = |node| self.peers.get(node).map_or(0, |peer| peer.hearing.mistakes.times(now.monotonic));
        nodes.iter().map(mistakes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
