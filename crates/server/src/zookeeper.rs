//! State shared between the ZooKeeper endpoint and the other servers of a node. The endpoint's thread publishes a
//! [`Report`] about once a second for metrics, status and console. In return it reads the role of its node and the tail
//! of the log here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::NodeId;
use node::request::{Request, Response, Status};
use sharedlog::Position;
use sharedlog::request::{LogRequest, LogResponse};
use sharedlog::validate::COORDINATION_LOG;
use tokio::time::sleep;

use crate::{Gateway, Held, observer};

/// Interval at which the log's tail is looked up.
const TAIL_INTERVAL: Duration = Duration::from_secs(2);
/// Deadline of a lookup.
const TAIL_DEADLINE: Duration = Duration::from_secs(1);
/// Interval at which the role is determined.
const ROLE_INTERVAL: Duration = Duration::from_secs(1);
/// The same until clients are served and the sequencer is known, so that monitoring tools find a leader at once.
const FIRST_ROLE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of recorded tails. Later tails are not recorded until playback has reached earlier ones.
const TAILS_MAX: usize = 64;

/// Shared between the endpoint's thread and the other servers.
#[derive(Debug, Default)]
pub struct Endpoint {
    report: Mutex<Option<Arc<Report>>>,
    surroundings: Mutex<Surroundings>,
}

/// The role of a server in ZooKeeper's words. All servers are equal here, but tools expect exactly one leader: the node
/// of the log's sequencer. While no node of the cluster is known to have it, this is the first node that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node of the log's sequencer.
    Leader,
    Follower,
    /// The only node of a cluster.
    Standalone,
    /// A server without a copy of the log.
    Observer,
}

impl Role {
    /// The role as the mode that `srvr` and `mntr` print.
    #[must_use]
    pub const fn mode(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Standalone => "standalone",
            Self::Observer => "observer",
        }
    }
}

/// The last known state of the cluster.
#[derive(Debug, Default)]
struct Surroundings {
    role: Option<Role>,
    role_since: Option<Instant>,
    nodes: usize,
    others_alive: usize,
    /// Problems of the node, as messages for operators.
    problems: Vec<String>,
    /// Tails that playback has not reached, with the times at which they were looked up.
    tails: VecDeque<(Position, Instant)>,
}

/// How far playback is behind the log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lag {
    /// Positions below the newest known tail that were not applied.
    pub positions: u64,
    /// Age of the oldest known tail that was not reached, in seconds.
    pub seconds: f64,
}

/// Figures of the endpoint at one instant.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The mode that `srvr` prints.
    pub mode: &'static str,
    /// Sessions of the whole service.
    pub sessions: u64,
    /// Znodes of the tree.
    pub znodes: u64,
    /// Watches of this server's clients.
    pub watches: u64,
    /// Clients of this server.
    pub connections: u64,
    /// Their requests without a reply.
    pub outstanding_requests: u64,
    /// Mean latency in milliseconds, since the statistics were reset.
    pub mean_latency_ms: f64,
    /// How far it is behind the log.
    pub lag: Lag,
    /// Metrics, under names that are unique among all metrics of a node.
    pub metrics: Vec<Metric>,
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in `/metrics`.
    pub name: &'static str,
    /// Its meaning, as one sentence.
    pub help: &'static str,
    pub value: Value,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// An integer that may increase or decrease.
    Gauge(u64),
    /// A floating-point gauge.
    Real(f64),
    /// An integer that only increases, until the process is restarted or an operator resets it (`srst`).
    Counter(u64),
}

impl Endpoint {
    /// An endpoint without a local copy of the log, which never looks up the cluster.
    #[must_use]
    pub fn observer() -> Self {
        let endpoint = Self::default();
        endpoint.surroundings().set_role(Role::Observer, Instant::now());
        endpoint
    }

    /// Publishes the figures; none while no clients are served.
    pub fn publish(&self, report: Option<Report>) {
        let report = report.map(Arc::new);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// The newest figures; none while no clients are served.
    #[must_use]
    pub fn report(&self) -> Option<Arc<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn surroundings(&self) -> MutexGuard<'_, Surroundings> {
        self.surroundings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The role of this server and since when it has it; none until it is known.
    #[must_use]
    pub fn role(&self) -> Option<(Role, Instant)> {
        let surroundings = self.surroundings();
        surroundings.role.zip(surroundings.role_since)
    }

    /// Nodes of the cluster, and how many others are alive; zero until they are known.
    #[must_use]
    pub fn nodes(&self) -> (usize, usize) {
        let surroundings = self.surroundings();
        (surroundings.nodes, surroundings.others_alive)
    }

    /// Problems of the node, such as a full disk, as messages for operators.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.surroundings().problems.clone()
    }

    /// How far a server that has applied all positions below `next` is behind the log.
    #[must_use]
    pub fn lag(&self, next: Position, now: Instant) -> Lag {
        self.surroundings().lag(next, now)
    }

    /// Looks up the cluster and the log periodically.
    pub(crate) async fn watch<G: Gateway>(&self, gateway: &G) {
        tokio::join!(self.watch_role(gateway), self.watch_tail(gateway));
    }

    async fn watch_role<G: Gateway>(&self, gateway: &G) {
        loop {
            let is_serving = self.report().is_some();
            // A role that cannot be looked up is kept.
            let is_settled = match observer::status(gateway).await {
                Ok(status) => self.note_status(&status) && is_serving,
                Err(_) => false,
            };
            sleep(if is_settled { ROLE_INTERVAL } else { FIRST_ROLE_INTERVAL }).await;
        }
    }

    async fn watch_tail<G: Gateway>(&self, gateway: &G) {
        loop {
            // Before clients are served, the log may not exist.
            if self.report().is_some() {
                let (began, log) = (Instant::now(), COORDINATION_LOG.to_owned());
                let tail = gateway.submit(Request::Log(LogRequest::Tail { log }), TAIL_DEADLINE, Held::default());
                if let Ok(Response::Log(LogResponse::Tail(tail))) = tail.await {
                    self.surroundings().note_tail(tail, began);
                }
            }
            sleep(TAIL_INTERVAL).await;
        }
    }

    /// Determines the role from the local catalog. Returns whether the sequencer's node is known.
    fn note_status(&self, status: &Status) -> bool {
        let own = NodeId(status.node);
        let nodes: Vec<(NodeId, bool)> = status.nodes.iter().map(|node| (NodeId(node.node), node.alive)).collect();
        let sequencer = status.catalog.0.log(COORDINATION_LOG).map(|log| log.projection.sequencer.node);
        let mut surroundings = self.surroundings();
        surroundings.problems.clone_from(&status.troubles);
        surroundings.others_alive = nodes.iter().filter(|(node, alive)| *alive && *node != own).count();
        surroundings.note_role(own, &nodes, sequencer, Instant::now())
    }
}

impl Surroundings {
    /// `nodes` has each node of the cluster and whether it is alive. Returns whether the sequencer is on one of them.
    fn note_role(&mut self, own: NodeId, nodes: &[(NodeId, bool)], sequencer: Option<NodeId>, now: Instant) -> bool {
        let sequencer = sequencer.filter(|sequencer| nodes.iter().any(|(node, _)| node == sequencer));
        let first_alive = || nodes.iter().filter(|(_, alive)| *alive).map(|(node, _)| *node).min();
        let role = match sequencer.or_else(first_alive) {
            _ if nodes.len() <= 1 => Role::Standalone,
            Some(leader) if leader == own => Role::Leader,
            _ => Role::Follower,
        };
        self.set_role(role, now);
        self.nodes = nodes.len();
        sequencer.is_some()
    }

    fn set_role(&mut self, role: Role, now: Instant) {
        if self.role.replace(role) != Some(role) {
            self.role_since = Some(now);
        }
    }

    fn note_tail(&mut self, tail: Position, at: Instant) {
        // A new sequencer may assign unwritten positions again.
        self.tails.retain(|(noted, _)| *noted <= tail);
        if self.tails.len() < TAILS_MAX {
            self.tails.push_back((tail, at));
        }
    }

    fn lag(&mut self, next: Position, now: Instant) -> Lag {
        while self.tails.front().is_some_and(|(tail, _)| *tail <= next) {
            self.tails.pop_front();
        }
        let (Some((_, oldest)), Some((newest, _))) = (self.tails.front(), self.tails.back()) else {
            return Lag::default();
        };
        let positions = newest.0.saturating_sub(next.0);
        Lag { positions, seconds: now.saturating_duration_since(*oldest).as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_age_of_oldest_unreached_tail() {
        let (mut surroundings, start) = (Surroundings::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(surroundings.lag(Position(0), at(0)), Lag::default());
        surroundings.note_tail(Position(10), at(0));
        surroundings.note_tail(Position(30), at(2));
        assert_eq!(surroundings.lag(Position(9), at(3)), Lag { positions: 21, seconds: 3.0 });
        assert_eq!(surroundings.lag(Position(10), at(3)), Lag { positions: 20, seconds: 1.0 });
        assert_eq!(surroundings.lag(Position(30), at(3)), Lag::default());
    }

    #[test]
    fn sequencer_node_reports_leader() {
        let (mut surroundings, now) = (Surroundings::default(), Instant::now());
        let nodes = [1, 2, 3].map(|node| (NodeId(node), true));
        assert!(surroundings.note_role(NodeId(1), &nodes[..1], Some(NodeId(1)), now));
        assert_eq!(surroundings.role, Some(Role::Standalone));
        surroundings.note_role(NodeId(1), &nodes, Some(NodeId(2)), now);
        assert_eq!(surroundings.role, Some(Role::Follower));
        let later = now + Duration::from_secs(1);
        surroundings.note_role(NodeId(1), &nodes, Some(NodeId(1)), later);
        surroundings.note_role(NodeId(1), &nodes, Some(NodeId(1)), later + Duration::from_secs(1));
        assert_eq!((surroundings.role, surroundings.role_since), (Some(Role::Leader), Some(later)));
    }

    /// Also while the log is unknown, or its sequencer's node has left.
    #[test]
    fn exactly_one_leader() {
        let nodes = [(NodeId(2), false), (NodeId(3), true), (NodeId(5), true)];
        for sequencer in [None, Some(NodeId(1)), Some(NodeId(5))] {
            let leaders = [NodeId(3), NodeId(5)].into_iter().filter(|own| {
                let mut surroundings = Surroundings::default();
                let is_known = surroundings.note_role(*own, &nodes, sequencer, Instant::now());
                assert_eq!(is_known, sequencer == Some(NodeId(5)));
                surroundings.role == Some(Role::Leader)
            });
            let expected = if sequencer == Some(NodeId(5)) { NodeId(5) } else { NodeId(3) };
            assert_eq!(leaders.collect::<Vec<_>>(), [expected]);
        }
    }
}
