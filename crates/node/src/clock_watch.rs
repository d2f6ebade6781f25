//! The wall clock as transactions need it: with a bound on its error that the clocks of the other nodes do not contradict
//! (Spanner, section 3; guarantee 18).
//!
//! Once a second, a node that knows such a bound sends its interval to every peer, and each replies with its own. True
//! time at the reply is in the peer's interval. It is not before the own interval as of the question, nor after the own
//! interval as of the reply's arrival. If the peer's interval contradicts that, one of the two clocks is outside of its
//! bound. A node whose interval is not confirmed by a majority of the nodes that it has compared itself with in the last
//! seconds, itself included, is an *outlier*.
//!
//! A node without a bound, and an outlier, must refuse transactions ([`Node::clock_refusal`]). This limits the damage of
//! a clock that is outside of its bound. It does not prevent it: an error below the sum of both bounds shows in no
//! comparison, and a greater one only in the next.

use std::collections::BTreeMap;

use base::{Duration, Interval, Monotonic, NodeId, Now};

use crate::config::ClockSource;
use crate::contract::Action;
use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::request::ClockStatus;

/// Interval of the comparisons with each peer.
const COMPARE_EVERY: Duration = Duration::from_millis(1_000);
/// How long a comparison counts: long enough that the loss of a few messages does not matter.
const RECENT: Duration = Duration::from_millis(5_000);

/// The last comparisons with the peers' clocks.
#[derive(Debug, Default)]
pub(crate) struct ClockWatch {
    peers: BTreeMap<NodeId, Comparison>,
    next_at: Monotonic,
    /// Whether the last reading had a bound.
    has_bound: bool,
    /// The bound of the last reading, if it was above the limit.
    excess: Option<Duration>,
    /// Whether this node was an outlier before the last questions.
    is_outlier: bool,
}

/// The comparison of this node's clock with a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Comparison {
    /// When this node asked.
    at: Monotonic,
    /// Nanoseconds between the two intervals; positive if the peer's clock is ahead. 0: both may contain true time.
    gap: i64,
}

/// A peer with a clock that contradicts this node's.
type Contradiction = (NodeId, i64);

/// The gap between this node's intervals, as of a question (`asked`) and of its reply's arrival (`now`), and the peer's
/// interval in that reply.
fn gap(asked: Interval, now: Interval, peer: Interval) -> i64 {
    if peer.earliest > now.latest {
        peer.earliest.0.saturating_sub(now.latest.0)
    } else if peer.latest < asked.earliest {
        peer.latest.0.saturating_sub(asked.earliest.0)
    } else {
        0
    }
}

impl ClockWatch {
    /// Removes a bound above the limit from a reading: waiting for it would take too long.
    pub(crate) fn admit(&mut self, now: Now, limit: Duration) -> Now {
        let uncertainty = now.uncertainty.filter(|uncertainty| *uncertainty <= limit);
        self.has_bound = uncertainty.is_some();
        self.excess = now.uncertainty.filter(|_| !self.has_bound);
        Now { uncertainty, ..now }
    }

    /// Time of the next comparison; `None` while there is nothing to compare.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        (self.has_bound || self.is_outlier).then_some(self.next_at)
    }

    /// The peer has restarted, possibly with its machine, or has left the cluster.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
    }

    /// Compares with the peers at once, because the clock's source or bound may have changed.
    pub(crate) fn hurry(&mut self) {
        self.next_at = Monotonic(0);
    }

    fn recent(&self, now: Monotonic) -> impl Iterator<Item = (NodeId, i64)> {
        let recent = self.peers.iter().filter(move |(_, last)| now.since(last.at) < RECENT);
        recent.map(|(peer, last)| (*peer, last.gap))
    }

    /// The peers with clocks that contradict this node's.
    fn contradictions(&self, now: Monotonic) -> Vec<Contradiction> {
        self.recent(now).filter(|(_, gap)| *gap != 0).collect()
    }

    /// The contradictions, if they make this node an outlier: it and the peers that agree are no majority.
    fn outlier(&self, now: Monotonic) -> Option<Vec<Contradiction>> {
        let contradictions = self.contradictions(now);
        let compared = 1 + self.recent(now).count();
        (2 * contradictions.len() >= compared).then_some(contradictions)
    }
}

impl Node {
    /// Why this node must not execute transactions at that time, as a message for clients and operators; `None` if it
    /// may. Either its wall clock has no bound, or the clocks of other nodes contradict it.
    #[must_use]
    pub fn clock_refusal(&self, now: Now) -> Option<String> {
        let limit = self.config.clock_uncertainty_max;
        let is_excess = |uncertainty: &Duration| *uncertainty > limit;
        let excess = self.clock_watch.excess.or_else(|| now.uncertainty.filter(is_excess));
        if let Some(excess) = excess {
            let excess = rounded(excess.0);
            return Some(format!(
                "the wall clock of node {} may be wrong by {excess}, more than clock_uncertainty_max = {limit}",
                self.cluster.me.node
            ));
        }
        if now.interval().is_none() {
            let (node, hint) = (self.cluster.me.node, self.config.clock.hint());
            return Some(format!("the error of the wall clock of node {node} has no known bound: {hint}"));
        }
        self.clock_watch.outlier(now.monotonic).map(|contradictions| self.outlier_text(&contradictions))
    }

    fn outlier_text(&self, contradictions: &[Contradiction]) -> String {
        let of_peer = |(peer, gap): &Contradiction| {
            let direction = if *gap > 0 { "ahead" } else { "behind" };
            format!("node {peer} is {direction} by at least {}", rounded(gap.unsigned_abs()))
        };
        let peers: Vec<String> = contradictions.iter().map(of_peer).collect();
        format!(
            "the wall clock of node {} is outside of its bound, or those of other nodes are: {}",
            self.cluster.me.node,
            peers.join(", ")
        )
    }

    /// Compares the clocks with all peers if that is due.
    pub(crate) fn on_clock_timer(&mut self, now: Now) {
        if self.clock_watch.next_at > now.monotonic {
            return;
        }
        self.clock_watch.next_at = now.monotonic + COMPARE_EVERY;
        if let Some(interval) = now.interval() {
            let peers: Vec<NodeId> = self.cluster.peers.keys().copied().collect();
            for peer in peers {
                self.send(peer, Message::CompareClocks { sent: now.monotonic, interval }, AT_ONCE, None);
            }
        }
        self.note_outlier(now);
    }

    pub(crate) fn clock_asked(&mut self, from: NodeId, sent: Monotonic, asked: Interval, now: Now) {
        self.send(from, Message::ClockReply { sent, asked, interval: now.interval() }, AT_ONCE, None);
    }

    /// Handles a peer's reply to the question that this node asked at `sent`, when its interval was `asked`.
    pub(crate) fn clock_replied(
        &mut self,
        from: NodeId,
        (sent, asked): (Monotonic, Interval),
        interval: Option<Interval>,
        now: Now,
    ) {
        // The sender may have been removed, and a delayed reply is older than the last one.
        let is_old = self.clock_watch.peers.get(&from).is_some_and(|last| last.at > sent);
        if is_old || sent > now.monotonic || !self.cluster.peers.contains_key(&from) {
            return;
        }
        match (now.interval(), interval) {
            (Some(own), Some(interval)) => {
                let gap = gap(asked, own, interval);
                self.counters.clock_contradictions += u64::from(gap != 0);
                self.clock_watch.peers.insert(from, Comparison { at: sent, gap });
            }
            _ => self.clock_watch.forget_peer(from),
        }
    }

    /// Reports when this node becomes an outlier, and when it ceases to be one: not with each reply, because the first
    /// one may be that of an outlier.
    fn note_outlier(&mut self, now: Now) {
        let outlier = self.clock_watch.outlier(now.monotonic);
        let was_outlier = std::mem::replace(&mut self.clock_watch.is_outlier, outlier.is_some());
        let what = match outlier {
            Some(contradictions) if !was_outlier => {
                format!("CLOCK ERROR: no transactions on this node: {}", self.outlier_text(&contradictions))
            }
            None if was_outlier => "the clocks of other nodes do not contradict this node's any more".to_owned(),
            _ => return,
        };
        self.actions.push(Action::Warn { what });
    }

    pub(crate) fn clock_status(&self, now: Now) -> ClockStatus {
        ClockStatus {
            source: self.config.clock,
            uncertainty: now.uncertainty,
            is_outlier: self.clock_watch.outlier(now.monotonic).is_some(),
            refusal: self.clock_refusal(now),
        }
    }

    /// The outlier as a problem of this node.
    pub(crate) fn clock_trouble(&self, now: Now) -> Option<String> {
        let outlier = self.clock_watch.outlier(now.monotonic)?;
        Some(format!("no transactions: {}", self.outlier_text(&outlier)))
    }

    /// The nodes with clocks that contradict this node's, if it leads the catalog and is no outlier itself.
    pub(crate) fn clock_contradictions(&self, now: Now) -> Vec<String> {
        let leads = self.led_catalog().is_some() && self.clock_watch.outlier(now.monotonic).is_none();
        let contradictions = if leads { self.clock_watch.contradictions(now.monotonic) } else { Vec::new() };
        let text = |(peer, gap): Contradiction| {
            let (direction, gap) = (if gap > 0 { "ahead" } else { "behind" }, rounded(gap.unsigned_abs()));
            format!(
                "the wall clock of node {peer} is outside of its bound: it is {direction} of that of node {} by at least \
                 {gap}",
                self.cluster.me.node
            )
        };
        contradictions.into_iter().map(text).collect()
    }
}

impl ClockSource {
    /// Advice for the operator if there is no bound.
    fn hint(self) -> &'static str {
        match self {
            Self::None => "its configuration has no source of a bound (clock = \"none\")",
            Self::Kernel => {
                "its kernel knows none (clock = \"kernel\"). Run a time daemon that measures it, chrony or ntpd, or set \
                 clock = \"configured\" with clock_uncertainty, or clock = \"host\" if all nodes run on one machine"
            }
            Self::Host | Self::Configured => "its clock shows a time that is out of range",
        }
    }
}

/// A duration in microseconds, rounded up.
fn rounded(nanoseconds: u64) -> Duration {
    Duration::from_micros(nanoseconds.div_ceil(1_000).min(u64::MAX / 1_000))
}

#[cfg(test)]
mod tests;
