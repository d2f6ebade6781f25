//! The reconfiguration controller of shared logs (CORFU, section 3.4; guarantee 20).
//!
//! It replaces the projection of a log that is blocked or under-replicated (`reconfiguration`), creates new units and
//! copies old extents to them (`re_replication`), and reports under-replicated logs. Its inputs are heartbeats, which
//! feed its failure detector, suspicions reported by clients, and nodes' reports of units that will never answer again.
//!
//! Every node runs a controller, because every node receives heartbeats all the time. Only one should lead: in the
//! product, the one on the node of the catalog's leader. Two concurrent leaders are safe, because a projection is
//! installed by compare-and-set on its epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{AwakeClock, Boot, DetectorConfig, Duration, FailureDetector, Member, Monotonic, NodeId};

use crate::client::{Error, LogReply};
use crate::recovery::{Homes, ProposalOutcome, Timing};
use crate::{AskId, LogId, Position, PositionRun, Projection, ProjectionEpoch, SequencerId, UnitId, copier, unit};

mod re_replication;
mod reconfiguration;
mod slow_units;
#[cfg(test)]
mod tests;
mod under_replication;

pub use re_replication::CopierId;
pub use under_replication::UnderReplication;

use re_replication::ReReplication;
use reconfiguration::{History, Reconfiguration};

/// Maximum units in doubt accepted from one node at a time: more than one disk has in practice. The node reports the
/// others again after some of these were replaced.
pub const UNITS_IN_DOUBT_MAX: usize = 4_096;

/// Timeouts and intervals of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Detects failed nodes. Recovery does not wait for the units of a suspected node, because appends must resume soon
    /// after a crash. A false suspicion is expensive: the node's units are removed from the log and copied again.
    pub detector: DetectorConfig,
    /// Upper bound of the time between two events of a running process. Longer gaps do not count as silence of other
    /// nodes.
    pub awake_step: Duration,
    /// A node that is silent for this time counts as failed, even if no client reports a suspicion.
    pub gone: Duration,
    /// Minimum time between two replacements of a log's projection while all its nodes are alive. Each replacement
    /// disrupts appends in flight and does not make a slow unit faster.
    pub pause: Duration,
    /// The same for a log that works and only lacks copies. Doubled while replacements change nothing.
    pub lazy_pause: Duration,
    /// Time for the registry to create or delete units before the request is repeated.
    pub naming: Duration,
    /// Time for live nodes to seal their units, and for new units to start.
    pub sealing: Duration,
    /// Minimum time between two suspicions of a unit on a live node that count separately ...
    pub slow_again: Duration,
    /// ... and the maximum time between them to count as consecutive.
    pub slow_within: Duration,
    /// How long a log avoids the units of a slow node.
    pub slow_for: Duration,
    /// Timeouts of each recovery. [`Config::sealing`] determines how long it waits for replies.
    pub recovery: Timing,
    /// Configuration of each copier.
    pub copier: copier::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Heartbeats arrive every 100 ms.
            detector: DetectorConfig::with_timeout(Duration::from_millis(250)),
            awake_step: Duration::from_millis(100),
            gone: Duration::from_millis(5_000),
            pause: Duration::from_millis(1_000),
            lazy_pause: Duration::from_millis(3_000),
            naming: Duration::from_millis(2_000),
            sealing: Duration::from_millis(1_000),
            slow_again: Duration::from_millis(1_000),
            // A pending call reports its suspicion at growing intervals, up to 4.2 s.
            slow_within: Duration::from_millis(10_000),
            slow_for: Duration::from_millis(30_000),
            recovery: Timing::default(),
            copier: copier::Config { window: 4, again: Duration::from_millis(500), failures: 8 },
        }
    }
}

/// A log as recorded in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    pub projection: Projection,
    /// Target number of chains.
    pub stripes: usize,
    /// Stripe width of new extents.
    pub width: u64,
    /// Target number of units per chain.
    pub copies: usize,
    /// Units in the projection and spare units, each with its disk.
    pub units: Homes,
    /// Units that an operator declared lost.
    pub lost: BTreeSet<UnitId>,
    /// Lower bound for the start of the next projection: an end of the log that an operator supplied.
    pub at_least: Position,
}

impl LogState {
    /// The log described by the projection.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.projection.log
    }

    fn member_of(&self, unit: UnitId) -> Option<Member> {
        self.units.0.get(&unit).copied()
    }

    /// Units that are not in the projection yet.
    fn spares(&self) -> Vec<(UnitId, Member)> {
        let standing = BTreeSet::from_iter(self.projection.units());
        let spares = self.units.0.iter().filter(|(unit, _)| !standing.contains(unit));
        spares.map(|(unit, member)| (*unit, *member)).collect()
    }

    fn chains(&self) -> impl Iterator<Item = &Vec<UnitId>> {
        self.projection.extents.iter().flat_map(|extent| &extent.chains)
    }
}

/// The registry's content: nodes and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Disks of nodes that stay in the cluster.
    pub staying: Vec<Member>,
    /// Disks of nodes that are being removed.
    pub leaving: Vec<Member>,
    /// All logs of the cluster.
    pub logs: BTreeMap<LogId, Arc<LogState>>,
}

/// The part of a controller that sent a request to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// The recovery that replaces the projection of this epoch.
    Recovery(ProjectionEpoch),
    /// A copier of older extents.
    Copier(CopierId),
}

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to a unit; [`Controller::answered`] may follow.
    Ask {
        log: LogId,
        /// Routes the reply within the controller.
        requester: Requester,
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: unit::Request,
    },
    /// Read these positions with a client of the log and fill empty ones immediately, as described for
    /// [`copier::Action::Read`]; [`Controller::read`] follows.
    Read {
        /// The log to read.
        log: LogId,
        /// The copier that needs the entries.
        copier: CopierId,
        /// The positions to read.
        run: PositionRun,
    },
    /// Install this projection if the newest one has the preceding epoch; [`Controller::verdict`] may follow.
    Propose(Projection),
    /// Have the registry create a unit on each of these nodes.
    AddUnits {
        /// The log that gets the units.
        log: LogId,
        /// The nodes that get a unit.
        nodes: Vec<NodeId>,
    },
    /// Have the registry delete units that are not in the projection.
    ForgetSpares {
        /// The log that has the units.
        log: LogId,
        /// The units to delete.
        units: Vec<UnitId>,
    },
}

/// Totals since the controller started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reconfigurations: u64,
    pub installed: u64,
    /// Replacements that lost the compare-and-set to another controller.
    pub superseded: u64,
    /// Replacements that timed out while sealing or proposing.
    pub timed_out: u64,
    /// Replacements that found no valid successor.
    pub no_successor: u64,
    pub copiers: u64,
    /// Copiers that completed all of their units.
    pub copied: u64,
    /// Units reported to be in doubt.
    pub units_in_doubt: u64,
}

/// Keeps the logs available while nodes fail and join.
///
/// Entry points take the current time, which never goes back, and queue [`Action`]s for [`Controller::take_actions`].
#[derive(Debug)]
pub struct Controller {
    me: SequencerId,
    config: Config,
    /// Measures the silence of other nodes only while this process runs.
    clock: AwakeClock,
    detector: FailureDetector<NodeId>,
    /// The newest process of each node from which a message arrived.
    processes: BTreeMap<NodeId, Boot>,
    /// `None` while another controller leads.
    cluster: Option<ClusterState>,
    /// Units that will never answer again, as reported by their nodes.
    in_doubt: BTreeSet<UnitId>,
    reconfigurations: BTreeMap<LogId, Reconfiguration>,
    history: BTreeMap<LogId, History>,
    re_replication: ReReplication,
    counters: Counters,
    actions: Vec<Action>,
}

impl Controller {
    /// Creates the controller of one process.
    #[must_use]
    pub fn new(me: SequencerId, config: Config) -> Self {
        Self {
            me,
            config,
            clock: AwakeClock::new(config.awake_step),
            detector: FailureDetector::new(config.detector),
            processes: BTreeMap::new(),
            cluster: None,
            in_doubt: BTreeSet::new(),
            reconfigurations: BTreeMap::new(),
            history: BTreeMap::new(),
            re_replication: ReReplication::default(),
            counters: Counters::default(),
            actions: Vec::new(),
        }
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Totals since the controller started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether this controller leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.cluster.is_some()
    }

    /// Records that the process handled an event, so it was running until now.
    pub fn awake(&mut self, now: Monotonic) {
        self.clock.event(now);
    }

    /// Records a message from a process of another node. Call [`Controller::awake`] first.
    pub fn message_received(&mut self, node: NodeId, boot: Boot) {
        let known = self.processes.entry(node).or_insert(boot);
        if boot > *known {
            *known = boot;
            self.detector.restarted(node);
        }
        self.detector.heartbeat(node, self.clock.time());
    }

    /// Removes a node that left the cluster.
    pub fn forget(&mut self, node: NodeId) {
        self.processes.remove(&node);
        self.detector.restarted(node);
    }

    /// Makes this controller the leader, or updates the leader's view of the registry. Call it on changes and
    /// periodically. It repairs logs that need it without waiting for a client's report.
    pub fn observe(&mut self, cluster: ClusterState, now: Monotonic) {
        let named: BTreeSet<UnitId> = cluster.logs.values().flat_map(|log| log.units.0.keys().copied()).collect();
        self.in_doubt.retain(|unit| named.contains(unit));
        self.re_replication.keep(&cluster);
        self.cluster = Some(cluster);
        self.check_logs(now);
        self.run(now);
    }

    /// Another controller leads. Recoveries under way continue; copiers stop.
    pub fn step_down(&mut self) {
        self.cluster = None;
        self.in_doubt.clear();
        self.re_replication.stop();
    }

    /// Records a node's report that units on its own disk are permanently in doubt. Units of other disks are ignored.
    /// Returns whether any unit is new; then call [`Controller::observe`] soon, after the reports that arrive together.
    pub fn units_in_doubt(&mut self, from: Member, units: &[UnitId]) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let reported: BTreeSet<UnitId> = units.iter().copied().take(UNITS_IN_DOUBT_MAX).collect();
        let named = cluster.logs.values().flat_map(|log| &log.units.0);
        let own = named.filter(|(_, member)| **member == from).map(|(unit, _)| *unit);
        let news: Vec<UnitId> = own.filter(|unit| reported.contains(unit) && !self.in_doubt.contains(unit)).collect();
        let is_news = !news.is_empty();
        self.counters.units_in_doubt += news.len() as u64;
        self.in_doubt.extend(news);
        is_news
    }

    /// Handles the reply of a unit.
    pub fn answered(&mut self, log: LogId, requester: Requester, ask: AskId, reply: unit::Reply, now: Monotonic) {
        match requester {
            Requester::Recovery(epoch) => {
                if let Some(recovery) = self.recovery(log, epoch) {
                    recovery.answered(ask, reply, now);
                }
            }
            Requester::Copier(id) => {
                if let Some(copier) = self.re_replication.copier(log, id) {
                    copier.answered(ask, reply, now);
                }
            }
        }
        self.run(now);
    }

    /// Handles the outcome of proposing the projection of that epoch.
    pub fn verdict(&mut self, log: LogId, epoch: ProjectionEpoch, verdict: ProposalOutcome, now: Monotonic) {
        if let Some(recovery) = self.recovery(log, ProjectionEpoch(epoch.0.saturating_sub(1))) {
            recovery.verdict(verdict, now);
            self.run(now);
        }
    }

    /// Handles the outcome of a read for a copier.
    pub fn read(
        &mut self,
        log: LogId,
        id: CopierId,
        run: PositionRun,
        outcome: Result<LogReply, Error>,
        now: Monotonic,
    ) {
        if let Some(copier) = self.re_replication.copier(log, id) {
            copier.read(run, outcome, now);
            self.run(now);
        }
    }

    /// The time at which [`Controller::timer`] must be called.
    #[must_use]
    pub fn next_timer(&self) -> Option<Monotonic> {
        let recoveries = self.reconfigurations.values().map(|reconfiguration| reconfiguration.at);
        recoveries.chain(self.re_replication.next_timer()).min().filter(|at| *at < Monotonic::NEVER)
    }

    /// Runs the timers that are due.
    pub fn timer(&mut self, now: Monotonic) {
        self.recovery_timers(now);
        self.re_replication.timer(now);
        self.run(now);
    }

    /// Runs recoveries and copiers until neither produces an action.
    fn run(&mut self, now: Monotonic) {
        while self.run_recoveries() || self.run_copiers(now) {}
    }

    /// The state of a log, unless its projection is being replaced or the registry's view of it is outdated.
    fn log(&self, id: LogId) -> Option<Arc<LogState>> {
        let log = self.cluster.as_ref()?.logs.get(&id)?;
        let is_current = !self.reconfigurations.contains_key(&id) && log.projection.epoch >= self.installed(id);
        is_current.then(|| log.clone())
    }

    /// Whether a node is not suspected.
    fn is_alive(&self, node: NodeId) -> bool {
        self.is_alive_within(node, self.config.detector.timeout)
    }

    /// Whether a node's silence is shorter than `time`, or than its detection timeout if that is longer.
    fn is_alive_within(&self, node: NodeId, time: Duration) -> bool {
        let now = self.clock.time();
        let is_alive = |silence| silence < time.max(self.detector.timeout(node, now));
        node == self.me.node || self.detector.silence(node, now).is_some_and(is_alive)
    }

    /// Whether a node's silence exceeds the base timeout, although earlier false suspicions extended its own timeout.
    /// The node may be dead, and a recovery that needs its units would block after it has sealed the others.
    fn is_overdue(&self, node: NodeId) -> bool {
        let silence = self.detector.silence(node, self.clock.time());
        silence.is_some_and(|silence| silence >= self.config.detector.timeout) && self.is_alive(node)
    }

    /// The current process of a live node.
    fn process_on(&self, node: NodeId) -> Option<SequencerId> {
        if node == self.me.node {
            return Some(self.me);
        }
        let boot = self.processes.get(&node).copied().filter(|boot| boot.0 > 0 && self.is_alive(node))?;
        Some(SequencerId { node, boot })
    }

    fn is_process(&self, process: SequencerId) -> bool {
        self.process_on(process.node) == Some(process)
    }

    /// Whether the disk's node stays in the cluster, is alive and is not overdue.
    fn stays_and_is_alive(&self, member: Member) -> bool {
        let stays = self.cluster.as_ref().is_some_and(|cluster| cluster.staying.contains(&member));
        stays && self.is_alive(member.node) && !self.is_overdue(member.node)
    }

    /// Whether a unit counts as a copy: its disk belongs to the cluster, and it is not in doubt.
    fn is_copy(&self, log: &LogState, unit: UnitId) -> bool {
        let is_there = |member: Member| {
            let cluster = self.cluster.as_ref();
            cluster.is_some_and(|cluster| cluster.staying.contains(&member) || cluster.leaving.contains(&member))
        };
        !self.in_doubt.contains(&unit) && log.member_of(unit).is_some_and(is_there)
    }

    /// Whether a log should continue without a unit: it is not a copy, or its node was silent for `time`.
    fn is_out(&self, log: &LogState, unit: UnitId, time: Duration) -> bool {
        let is_silent = |member: Member| !self.is_alive_within(member.node, time);
        !self.is_copy(log, unit) || log.member_of(unit).is_none_or(is_silent)
    }

    /// Target number of copies, limited by the number of nodes.
    fn copies(&self, log: &LogState) -> usize {
        let nodes = self.cluster.as_ref().map_or(0, |cluster| cluster.staying.len());
        log.copies.min(nodes).max(1)
    }

    /// Units on nodes that are being removed.
    fn leaving(&self, log: &LogState) -> BTreeSet<UnitId> {
        let Some(cluster) = &self.cluster else { return BTreeSet::new() };
        let leaving = log.units.0.iter().filter(|(_, member)| cluster.leaving.contains(member));
        leaving.map(|(unit, _)| *unit).collect()
    }

    /// Checks every log, starting after the log that was copied last.
    fn check_logs(&mut self, now: Monotonic) {
        let Some(cluster) = &self.cluster else { return };
        let (before, after): (Vec<_>, Vec<_>) =
            cluster.logs.keys().partition(|log| **log <= self.re_replication.last_log);
        for log in after.into_iter().chain(before) {
            if let Some(log) = self.log(log) {
                self.check_log(&log, now);
            }
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Controller {
    pub(crate) fn recoveries(&self) -> impl Iterator<Item = &crate::recovery::Recovery> {
        self.reconfigurations.values().map(|reconfiguration| &reconfiguration.recovery)
    }
}
