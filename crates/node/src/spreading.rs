//! Spreads the lead of ranges over the nodes after a process has started: until then, others lead everything.
//!
//! Each node hands ranges that it leads to the voter that leads fewest, until none leads two fewer, as far as it knows from
//! its own replicas. A range is handed over once after a start, so a replica that cannot lead gets no further chance, and an
//! operator's choice (`loggos admin lead`) stands.

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Duration, Monotonic, NodeId, Now};

use crate::node::Node;
use crate::replica::Replica;

/// How long after a peer's start the first range is handed over: its replicas catch up first.
const SETTLE: Duration = Duration::from_millis(5_000);
/// Interval at which ranges are handed over.
const PAUSE: Duration = Duration::from_millis(500);
/// Ranges handed over at once.
const AT_A_TIME: usize = 4;
/// How long after a peer's start ranges are handed over.
const WINDOW: Duration = Duration::from_millis(120_000);

/// The ranges handed over since a peer has started.
#[derive(Debug, Default)]
pub(crate) struct Spreading {
    /// When the next ranges are handed over; none outside of the window.
    next_at: Option<Monotonic>,
    ends_at: Monotonic,
    tried: BTreeSet<CohortId>,
}

impl Spreading {
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.next_at
    }

    /// A peer has started.
    pub(crate) fn begin(&mut self, now: Now) {
        *self = Self {
            next_at: Some(now.monotonic + SETTLE),
            ends_at: now.monotonic + SETTLE + WINDOW,
            tried: BTreeSet::new(),
        };
    }
}

impl Node {
    /// Hands over a few ranges, if it is time.
    pub(crate) fn on_spreading_timer(&mut self, now: Now) {
        if self.spreading.next_at.is_none_or(|at| at > now.monotonic) {
            return;
        }
        let is_over = now.monotonic >= self.spreading.ends_at;
        self.spreading.next_at = (!is_over).then_some(now.monotonic + PAUSE);
        for _ in 0..AT_A_TIME {
            let Some((cohort, to)) = self.next_hand_over(now) else { return };
            self.spreading.tried.insert(cohort);
            self.with_cohort(cohort, now, |cohort, out| _ = cohort.hand_to(to, now, out));
        }
    }

    /// A range that this node leads, and a voter that leads at least two ranges fewer.
    fn next_hand_over(&self, now: Now) -> Option<(CohortId, NodeId)> {
        let ranges = || self.replicas.iter().filter(|(id, replica)| **id != CohortId::CATALOG && has_voters(replica));
        let mut led: BTreeMap<NodeId, usize> = BTreeMap::new();
        for leader in ranges().filter_map(|(_, replica)| replica.cohort.leader()) {
            *led.entry(leader).or_default() += 1;
        }
        let of = |node: NodeId| led.get(&node).copied().unwrap_or(0);
        let mine = of(self.cluster.me.node);
        ranges().filter(|(id, replica)| replica.cohort.is_open() && !self.spreading.tried.contains(id)).find_map(
            |(id, replica)| {
                let voters = replica.cohort.membership().voters().iter().map(|voter| voter.node);
                let can_lead = |node: &NodeId| of(*node) + 2 <= mine && self.has_space(*node, now);
                Some((*id, voters.filter(can_lead).min_by_key(|node| of(*node))?))
            },
        )
    }
}

fn has_voters(replica: &Replica) -> bool {
    replica.cohort.membership().voters().len() > 1
}
