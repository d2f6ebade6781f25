//! The reconfiguration controller of shared logs (CORFU, section 3.4; guarantee 20).
//!
//! It replaces projections where something keeps a log from going on, or where a log has fewer copies than it should
//! (`reconfiguration`), has new units named and old extents copied to them (`re_replication`), and reports what is
//! under-replicated. It decides by what it hears of nodes: its failure detector says which are silent, clients report
//! whom they suspect, and nodes report which of their units will never answer again.
//!
//! Every node has one, since each hears of the others all the time. One at a time is to lead: in the product that of the
//! catalog's leader. Two that lead at one time do no harm, because a projection is installed by compare-and-set on its
//! epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{AwakeClock, Boot, DetectorConfig, Duration, FailureDetector, Member, Monotonic, NodeId};

use crate::client::{Answer, Error};
use crate::recovery::{Homes, Timing, Verdict};
use crate::{AskId, LogId, Position, Projection, ProjectionEpoch, Run, SequencerId, UnitId, copier, unit};

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

/// Units in doubt that one node is believed of at one time, at most: more than one disk has in practice. The rest is
/// reported again once some of these were replaced.
pub const UNITS_IN_DOUBT_MAX: usize = 4_096;

/// How long a controller waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a node may be silent. Its units are not waited for then, since appends are to go on soon after it died.
    /// A false suspicion is dear: the node's units are left out, and copied anew.
    pub detector: DetectorConfig,
    /// A controller whose process runs takes an event after so much time, at the latest.
    pub awake_step: Duration,
    /// A node that is silent for so long is gone where no client reports that it misses it.
    pub gone: Duration,
    /// Between two replacements of a log's projection while all its nodes are heard of. Each costs appends in flight, and
    /// a slow unit becomes no faster by it.
    pub pause: Duration,
    /// The same where the log can go on, and only lacks copies.
    pub lazy_pause: Duration,
    /// For the registry to name or forget units, before it is asked again.
    pub naming: Duration,
    /// For seals of units whose nodes are heard of, and for new units to begin.
    pub sealing: Duration,
    /// Suspicions of one unit, though its node is heard of, count as a further one after so much time ...
    pub slow_again: Duration,
    /// ... and no later than this.
    pub slow_within: Duration,
    /// A log does without the units of a slow node for so long.
    pub slow_for: Duration,
    /// For each recovery. How long it waits for answers is [`Config::sealing`].
    pub recovery: Timing,
    /// For each copier.
    pub copier: copier::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Heartbeats come every 100 ms.
            detector: DetectorConfig::with_timeout(Duration::from_millis(250)),
            awake_step: Duration::from_millis(100),
            gone: Duration::from_millis(5_000),
            pause: Duration::from_millis(1_000),
            lazy_pause: Duration::from_millis(3_000),
            naming: Duration::from_millis(2_000),
            sealing: Duration::from_millis(1_000),
            slow_again: Duration::from_millis(1_000),
            // A call without an answer reports that at growing intervals, up to 4.2 s.
            slow_within: Duration::from_millis(10_000),
            slow_for: Duration::from_millis(30_000),
            recovery: Timing::default(),
            copier: copier::Config { window: 4, again: Duration::from_millis(500), failures: 8 },
        }
    }
}

/// A log, as the registry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The newest projection.
    pub projection: Projection,
    /// Chains that the log should have.
    pub stripes: usize,
    /// Positions in a row that are of one chain, in new extents.
    pub width: u64,
    /// Units that each chain should have.
    pub copies: usize,
    /// The units that stand in the projection, or may come to, each with its disk.
    pub units: Homes,
    /// Units that an operator declares lost, with their disks.
    pub lost: BTreeSet<UnitId>,
    /// No projection begins below this: an end of the log that an operator remembers.
    pub at_least: Position,
}

impl LogState {
    /// The log's number.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.projection.log
    }

    fn member_of(&self, unit: UnitId) -> Option<Member> {
        self.units.0.get(&unit).copied()
    }

    /// Units that stand in no projection yet.
    fn spares(&self) -> Vec<(UnitId, Member)> {
        let standing = BTreeSet::from_iter(self.projection.units());
        let spares = self.units.0.iter().filter(|(unit, _)| !standing.contains(unit));
        spares.map(|(unit, member)| (*unit, *member)).collect()
    }

    fn chains(&self) -> impl Iterator<Item = &Vec<UnitId>> {
        self.projection.extents.iter().flat_map(|extent| &extent.chains)
    }
}

/// What the registry knows: the nodes, and the logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The nodes' disks, but for those that are to leave.
    pub staying: Vec<Member>,
    /// Disks of nodes that are to leave, and have not left.
    pub leaving: Vec<Member>,
    /// The logs.
    pub logs: BTreeMap<LogId, Arc<LogState>>,
}

/// The part of a controller that asked a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// The replacement of the projection of that epoch.
    Recovery(ProjectionEpoch),
    /// A copier.
    Copier(CopierId),
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a unit; [`Controller::answered`] may follow.
    Ask {
        /// The log.
        log: LogId,
        /// Who asks.
        requester: Requester,
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: unit::Request,
    },
    /// Read these positions with a client of the log, and fill at once those where nothing is, as [`copier::Action::Read`]
    /// says; [`Controller::read`] follows.
    Read {
        /// The log.
        log: LogId,
        /// For whom.
        copier: CopierId,
        /// The positions.
        run: Run,
    },
    /// Put this in the place of the projection whose epoch is one less, if that is the newest; [`Controller::verdict`]
    /// may follow.
    Propose(Projection),
    /// Have the registry name a new unit on each of these nodes.
    AddUnits {
        /// The log.
        log: LogId,
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// Have the registry forget units that stand in no projection.
    ForgetSpares {
        /// The log.
        log: LogId,
        /// The units.
        units: Vec<UnitId>,
    },
}

/// What a controller has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Projections that it began to replace.
    pub reconfigurations: u64,
    /// Those that it replaced.
    pub installed: u64,
    /// Those that somebody else replaced.
    pub superseded: u64,
    /// Those that could not be sealed, or proposed, in time.
    pub timed_out: u64,
    /// Those that nothing can follow.
    pub no_successor: u64,
    /// Copiers that it began.
    pub copiers: u64,
    /// Those that made all their units whole.
    pub copied: u64,
    /// Units of which it was told that they are in doubt.
    pub units_in_doubt: u64,
}

/// Keeps the logs going while nodes come and go.
///
/// Entry points take the time, which never goes back, and leave [`Action`]s to be taken with
/// [`Controller::take_actions`].
#[derive(Debug)]
pub struct Controller {
    me: SequencerId,
    config: Config,
    /// Silence of others is counted while this process runs.
    clock: AwakeClock,
    detector: FailureDetector<NodeId>,
    /// The newest process of each node that was heard of.
    processes: BTreeMap<NodeId, Boot>,
    /// None while another controller leads.
    cluster: Option<ClusterState>,
    /// Units whose nodes say that they will never answer again.
    in_doubt: BTreeSet<UnitId>,
    reconfigurations: BTreeMap<LogId, Reconfiguration>,
    history: BTreeMap<LogId, History>,
    re_replication: ReReplication,
    counters: Counters,
    actions: Vec<Action>,
}

impl Controller {
    /// The controller of a process.
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

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// What it has done since it began.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether it leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.cluster.is_some()
    }

    /// The process takes an event, whichever: it runs.
    pub fn awake(&mut self, now: Monotonic) {
        self.clock.event(now);
    }

    /// A message of a node's process has come, after [`Controller::awake`].
    pub fn heard(&mut self, node: NodeId, boot: Boot) {
        let known = self.processes.entry(node).or_insert(boot);
        if boot > *known {
            *known = boot;
            self.detector.restarted(node);
        }
        self.detector.heartbeat(node, self.clock.time());
    }

    /// A node is none of the cluster's any more.
    pub fn forget(&mut self, node: NodeId) {
        self.processes.remove(&node);
        self.detector.restarted(node);
    }

    /// It leads, or goes on to, and the registry has this: to be called on changes, and every now and then. Logs that
    /// lack something are seen to, without waiting for a client to meet with it.
    pub fn observe(&mut self, cluster: ClusterState, now: Monotonic) {
        let named: BTreeSet<UnitId> = cluster.logs.values().flat_map(|log| log.units.0.keys().copied()).collect();
        self.in_doubt.retain(|unit| named.contains(unit));
        self.re_replication.keep(&cluster);
        self.cluster = Some(cluster);
        self.check_logs(now);
        self.run(now);
    }

    /// Another controller leads. What was begun goes on, but for copies.
    pub fn step_down(&mut self) {
        self.cluster = None;
        self.in_doubt.clear();
        self.re_replication.stop();
    }

    /// A node reports that units on its disk are in doubt for good. It is believed of its own alone. Whether any is news:
    /// then [`Controller::observe`] is to be called soon, once the reports of this moment have come.
    pub fn units_in_doubt(&mut self, from: Member, units: &[UnitId]) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let told: BTreeSet<UnitId> = units.iter().copied().take(UNITS_IN_DOUBT_MAX).collect();
        let named = cluster.logs.values().flat_map(|log| &log.units.0);
        let own = named.filter(|(_, member)| **member == from).map(|(unit, _)| *unit);
        let news: Vec<UnitId> = own.filter(|unit| told.contains(unit) && !self.in_doubt.contains(unit)).collect();
        let is_news = !news.is_empty();
        self.counters.units_in_doubt += news.len() as u64;
        self.in_doubt.extend(news);
        is_news
    }

    /// A unit has answered.
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

    /// What became of the proposed projection of that epoch.
    pub fn verdict(&mut self, log: LogId, epoch: ProjectionEpoch, verdict: Verdict, now: Monotonic) {
        if let Some(recovery) = self.recovery(log, ProjectionEpoch(epoch.0.saturating_sub(1))) {
            recovery.verdict(verdict, now);
            self.run(now);
        }
    }

    /// Positions that a copier needs were read.
    pub fn read(&mut self, log: LogId, id: CopierId, run: Run, outcome: Result<Answer, Error>, now: Monotonic) {
        if let Some(copier) = self.re_replication.copier(log, id) {
            copier.read(run, outcome, now);
            self.run(now);
        }
    }

    /// When [`Controller::timer`] is to be called.
    #[must_use]
    pub fn next_timer(&self) -> Option<Monotonic> {
        let recoveries = self.reconfigurations.values().map(|reconfiguration| reconfiguration.at);
        recoveries.chain(self.re_replication.next_timer()).min().filter(|at| *at < Monotonic::NEVER)
    }

    /// Time has passed.
    pub fn timer(&mut self, now: Monotonic) {
        self.recovery_timers(now);
        self.re_replication.timer(now);
        self.run(now);
    }

    /// Carries on until the machines of the parts want nothing more.
    fn run(&mut self, now: Monotonic) {
        while self.run_recoveries() || self.run_copiers(now) {}
    }

    /// A log, unless its projection is being replaced, or known to have been.
    fn log(&self, id: LogId) -> Option<Arc<LogState>> {
        let log = self.cluster.as_ref()?.logs.get(&id)?;
        let is_current = !self.reconfigurations.contains_key(&id) && log.projection.epoch >= self.installed(id);
        is_current.then(|| log.clone())
    }

    /// Whether a node is heard of.
    fn is_alive(&self, node: NodeId) -> bool {
        self.is_alive_within(node, self.config.detector.timeout)
    }

    /// Whether a node was heard of within that time, or within its timeout, if that is longer.
    fn is_alive_within(&self, node: NodeId, time: Duration) -> bool {
        let now = self.clock.time();
        let is_alive = |silence| silence < time.max(self.detector.timeout(node, now));
        node == self.me.node || self.detector.silence(node, now).is_some_and(is_alive)
    }

    /// Whether a node would be suspected by now, if there had not been false suspicions of it lately: it may well be
    /// dead, and a recovery that needs its units would keep waiting with all that it has sealed.
    fn is_overdue(&self, node: NodeId) -> bool {
        let silence = self.detector.silence(node, self.clock.time());
        silence.is_some_and(|silence| silence >= self.config.detector.timeout) && self.is_alive(node)
    }

    /// The process of a node that is heard of.
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

    /// Whether the node of a disk stays, and is heard of in time.
    fn stays_and_is_alive(&self, member: Member) -> bool {
        let stays = self.cluster.as_ref().is_some_and(|cluster| cluster.staying.contains(&member));
        stays && self.is_alive(member.node) && !self.is_overdue(member.node)
    }

    /// Whether a unit is a copy: its disk is one of the cluster's, and it is not in doubt.
    fn is_copy(&self, log: &LogState, unit: UnitId) -> bool {
        let is_there = |member: Member| {
            let cluster = self.cluster.as_ref();
            cluster.is_some_and(|cluster| cluster.staying.contains(&member) || cluster.leaving.contains(&member))
        };
        !self.in_doubt.contains(&unit) && log.member_of(unit).is_some_and(is_there)
    }

    /// Whether a log is to go on without a unit: it is no copy, or its node was silent for that time.
    fn is_out(&self, log: &LogState, unit: UnitId, time: Duration) -> bool {
        let is_silent = |member: Member| !self.is_alive_within(member.node, time);
        !self.is_copy(log, unit) || log.member_of(unit).is_none_or(is_silent)
    }

    /// Copies of each position that a log should have, and can.
    fn copies(&self, log: &LogState) -> usize {
        let nodes = self.cluster.as_ref().map_or(0, |cluster| cluster.staying.len());
        log.copies.min(nodes).max(1)
    }

    /// Units on nodes that are to leave.
    fn leaving(&self, log: &LogState) -> BTreeSet<UnitId> {
        let Some(cluster) = &self.cluster else { return BTreeSet::new() };
        let leaving = log.units.0.iter().filter(|(_, member)| cluster.leaving.contains(member));
        leaving.map(|(unit, _)| *unit).collect()
    }

    /// Looks after each log: first after that whose turn to be copied is next.
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
    /// The replacements under way.
    pub(crate) fn recoveries(&self) -> impl Iterator<Item = &crate::recovery::Recovery> {
        self.reconfigurations.values().map(|reconfiguration| &reconfiguration.recovery)
    }
}
