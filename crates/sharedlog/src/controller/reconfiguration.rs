//! Decides when to replace a projection, and by which one.
//!
//! A client that gets no reply reports a suspect. If the suspect's node is silent, a recovery without its units starts
//! at once. If the sequencer's process is gone, the recovery chooses another one. A unit that is suspected repeatedly
//! although its node is alive is slow and is left out too, and so is a unit that its own node reports to be in doubt.
//! If a chain has too few units, new ones are created on other nodes, and the next recovery adds them.

use std::collections::{BTreeMap, BTreeSet};

use base::{Backoff, Duration, Member, Monotonic, NodeId};

use super::slow_units::SlowUnit;
use super::{Action, Controller, LogState, Requester};
use crate::client::Suspect;
use crate::recovery::{self, Ended, Homes, Plan, Recovery, Timing};
use crate::{LogId, ProjectionEpoch, SequencerId, UnitId};

/// Maximum doublings of the pause between replacements that change nothing.
const VAIN_DOUBLINGS_MAX: u32 = 5;

/// A replacement under way.
#[derive(Debug)]
pub(super) struct Reconfiguration {
    pub(super) recovery: Recovery,
    /// Disks of the log's units when it started.
    homes: Homes,
    pub(super) at: Monotonic,
}

/// Past decisions about a log.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Highest epoch known to be installed. The registry's view may lag behind.
    installed: ProjectionEpoch,
    /// Start of the last replacement.
    began: Option<Monotonic>,
    /// Last requests to the registry to create units and to delete spares.
    named: Option<Monotonic>,
    forgotten: Option<Monotonic>,
    /// Scales the pause after replacements with a live suspect. If all nodes are slow, replacing the projection does
    /// not help.
    backoff: Backoff,
    slow: BTreeMap<NodeId, SlowUnit>,
    /// Number of consecutive replacements without a client's report that left the log with these units.
    in_vain: (u32, Vec<UnitId>),
}

impl Controller {
    pub(super) fn recovery(&mut self, log: LogId, epoch: ProjectionEpoch) -> Option<&mut Recovery> {
        let recovery = self.reconfigurations.get_mut(&log).map(|reconfiguration| &mut reconfiguration.recovery);
        recovery.filter(|recovery| recovery.epoch() == epoch)
    }

    pub(super) fn installed(&self, log: LogId) -> ProjectionEpoch {
        self.history.get(&log).map(|history| history.installed).unwrap_or_default()
    }

    /// Handles a client's report of the suspect that blocks it in the projection of that epoch.
    pub fn suspected(&mut self, id: LogId, epoch: ProjectionEpoch, suspect: Suspect, now: Monotonic) {
        let Some(log) = self.log(id).filter(|log| log.projection.epoch == epoch) else { return };
        let (is_gone, can_go, node) = match suspect {
            Suspect::Projection => (true, true, None),
            Suspect::Sequencer => {
                let sequencer = log.projection.sequencer;
                (!self.is_process(sequencer), true, Some(sequencer.node))
            }
            Suspect::Unit(unit) => {
                let is_gone = self.is_out(&log, unit, self.config.detector.timeout);
                // A unit of the last extent is left out in any case, because it blocks appends.
                let is_written_to = log.projection.last().units().any(|other| other == unit);
                let can_go = is_written_to || self.has_stand_ins(&log, unit);
                (is_gone, can_go, log.member_of(unit).map(|member| member.node))
            }
        };
        if is_gone && can_go {
            self.reconfigure(&log, now);
        } else if let Some(node) = node.filter(|node| !self.is_overdue(*node)) {
            self.suspected_though_alive(&log, suspect, node, now);
        }
        self.run(now);
    }

    /// Handles a suspicion although the suspect's node is alive. The projection is replaced after a pause, and for a
    /// unit only once it counts as slow.
    fn suspected_though_alive(&mut self, log: &LogState, suspect: Suspect, node: NodeId, now: Monotonic) {
        let (config, history) = (self.config, self.history.entry(log.id()).or_default());
        let is_unit = matches!(suspect, Suspect::Unit(_));
        if is_unit {
            history.slow.entry(node).or_default().suspected(&config, now);
        }
        let pause = history.backoff.scale(config.pause, &config.detector, now);
        let is_due = (!is_unit || self.is_slow_on(log.id(), node, now)) && self.had_pause(log.id(), pause, now);
        if is_due && self.reconfigure(log, now) {
            let history = self.history.entry(log.id()).or_default();
            history.backoff.double(&config.detector, now);
        }
    }

    /// Whether each chain that contains the unit has another available unit.
    fn has_stand_ins(&self, log: &LogState, unit: UnitId) -> bool {
        let is_in = |other: &UnitId| *other != unit && !self.is_out(log, *other, self.config.detector.timeout);
        log.chains().all(|chain| !chain.contains(&unit) || chain.iter().any(is_in))
    }

    /// Whether a recovery of the log would not depend on an overdue node.
    fn depends_on_no_overdue_node(&self, log: &LogState) -> bool {
        log.units.of(log.projection.units()).all(|node| !self.is_overdue(node))
    }

    fn had_pause(&self, log: LogId, pause: Duration, now: Monotonic) -> bool {
        let began = self.history.get(&log).and_then(|history| history.began);
        began.is_none_or(|began| now.since(began) > pause)
    }

    fn is_slow_on(&self, log: LogId, node: NodeId, now: Monotonic) -> bool {
        let slow = self.history.get(&log).and_then(|history| history.slow.get(&node));
        slow.is_some_and(|unit| unit.is_slow(&self.config, now))
    }

    /// Starts a recovery if the log can be sealed. Returns whether it did.
    fn reconfigure(&mut self, log: &LogState, now: Monotonic) -> bool {
        if !self.can_be_sealed(log) {
            return false;
        }
        let old = log.projection.clone();
        let nodes: BTreeSet<NodeId> = log.units.of(old.units()).chain([old.sequencer.node]).collect();
        let (alive, silent): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| self.is_alive(*node));
        silent.into_iter().for_each(|node| self.detector.suspect(node));
        let is_slow = |unit| log.member_of(unit).is_some_and(|member| self.is_slow_on(log.id(), member.node, now));
        let is_out = |unit: &UnitId| self.is_out(log, *unit, self.config.detector.timeout) || is_slow(*unit);
        let leave_out: BTreeSet<UnitId> = old.units().into_iter().filter(is_out).collect();
        let leaving = self.leaving(log);
        let is_fit = |(spare, member): &(UnitId, Member)| {
            !is_out(spare) && !leaving.contains(spare) && !self.is_overdue(member.node)
        };
        let spares = log.spares().into_iter().filter(is_fit).map(|(spare, _)| spare).collect();
        let plan = Plan {
            sequencer: self.next_sequencer(log),
            leave_out,
            leaving,
            spares,
            homes: log.units.clone(),
            lost: log.lost.clone(),
            at_least: log.at_least,
            stripes: log.stripes,
            width: log.width,
            copies: self.copies(log),
        };
        let time = self.clock.time();
        let doublings = alive.into_iter().map(|node| self.detector.doublings(node, time)).max().unwrap_or(0);
        let (sealing, recovery) = (self.config.sealing, self.config.recovery);
        let patience = Duration(sealing.0 << doublings);
        let limit = Duration(recovery.limit.0 + 2 * (patience.0 - sealing.0));
        let timing = Timing { patience, beginning: sealing, limit, ..recovery };
        let recovery = Recovery::begin(old, plan, timing, now);
        let reconfiguration = Reconfiguration { recovery, homes: log.units.clone(), at: Monotonic::NEVER };
        self.reconfigurations.insert(log.id(), reconfiguration);
        self.history.entry(log.id()).or_default().began = Some(now);
        self.counters.reconfigurations += 1;
        true
    }

    /// Keeps the sequencer if its process is alive. Otherwise chooses a live node with a unit of the log: the one of
    /// the head if there is one chain, so that an append takes fewer hops; otherwise preferably not this one, so that
    /// one crash does not take both the sequencer and the controller.
    fn next_sequencer(&self, log: &LogState) -> SequencerId {
        let old = log.projection.sequencer;
        if self.is_process(old) {
            return old;
        }
        if let [chain] = &log.projection.last().chains[..] {
            let mut units = chain.iter().filter_map(|unit| log.units.0.get(unit));
            let head = units.find(|member| self.stays_and_is_alive(**member));
            if let Some(process) = head.and_then(|member| self.process_on(member.node)) {
                return process;
            }
        }
        let nodes = log.units.0.values().filter(|member| self.stays_and_is_alive(**member));
        let processes = nodes.filter_map(|member| self.process_on(member.node));
        processes.filter(|process| *process != self.me).min_by_key(|process| process.node).unwrap_or(self.me)
    }

    /// Carries out the recoveries' actions. Returns whether there were any.
    pub(super) fn run_recoveries(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut is_any = false;
        for (log, Reconfiguration { recovery, at, .. }) in &mut self.reconfigurations {
            let requester = Requester::Recovery(recovery.epoch());
            for action in recovery.take_actions() {
                is_any = true;
                match action {
                    recovery::Action::Ask { ask, unit, request } => {
                        self.actions.push(Action::Ask { log: *log, requester, ask, unit, request });
                    }
                    recovery::Action::Propose(projection) => self.actions.push(Action::Propose(projection)),
                    recovery::Action::SetTimer(time) => *at = time,
                    recovery::Action::Done(outcome) => ended.push((*log, outcome)),
                }
            }
        }
        for (log, outcome) in ended {
            let ended = self.reconfigurations.remove(&log);
            if let (Some(ended), Ended::Installed(_) | Ended::Lost) = (&ended, &outcome) {
                let history = self.history.entry(log).or_default();
                history.installed = history.installed.max(ended.recovery.epoch().next());
            }
            *match outcome {
                Ended::Installed(_) => &mut self.counters.installed,
                Ended::Lost => &mut self.counters.superseded,
                Ended::OutOfTime => &mut self.counters.timed_out,
                Ended::NoSuccessor => &mut self.counters.no_successor,
            } += 1;
            if let (Some(Reconfiguration { recovery, homes, .. }), Ended::Installed(_)) = (ended, outcome) {
                // These nodes replied too late. The detector extends their timeouts once, even if several logs report
                // the same delay.
                let (time, late) = (self.clock.time(), BTreeSet::from_iter(homes.of(recovery.unanswered())));
                late.into_iter().for_each(|node| self.detector.too_late(node, self.config.sealing, time));
            }
        }
        is_any
    }

    pub(super) fn recovery_timers(&mut self, now: Monotonic) {
        let due = self.reconfigurations.iter().filter(|(_, reconfiguration)| reconfiguration.at <= now);
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.await_silent_no_more(id, now);
            if let Some(Reconfiguration { recovery, at, .. }) = self.reconfigurations.get_mut(&id) {
                *at = Monotonic::NEVER;
                recovery.timer(now);
            }
        }
    }

    /// Stops waiting for units on nodes that became silent after the recovery started.
    fn await_silent_no_more(&mut self, id: LogId, now: Monotonic) {
        let Some(Reconfiguration { recovery, homes, .. }) = self.reconfigurations.get(&id) else { return };
        let mut silent = BTreeSet::from_iter(recovery.unanswered());
        silent.retain(|unit| homes.of([*unit]).any(|node| !self.is_alive(node)));
        if silent.is_empty() || !self.leads() {
            return;
        }
        let nodes: Vec<NodeId> = homes.of(silent.iter().copied()).collect();
        nodes.into_iter().for_each(|node| self.detector.suspect(node));
        if let Some(Reconfiguration { recovery, .. }) = self.reconfigurations.get_mut(&id) {
            recovery.stop_waiting_for(&silent, now);
        }
    }

    /// A copier has completed: starts a recovery that adds the copied units. If it cannot start now, a later copier
    /// asks the units whether they are still complete.
    pub(super) fn copied(&mut self, id: LogId, now: Monotonic) {
        if let Some(log) = self.log(id)
            && self.depends_on_no_overdue_node(&log)
        {
            self.reconfigure(&log, now);
        }
    }

    /// Repairs a log that lacks units or has obsolete ones.
    pub(super) fn check_log(&mut self, log: &LogState, now: Monotonic) {
        let id = log.id();
        let leaving = self.leaving(log);
        // These do not count as copies, even while they are still in the projection.
        let in_doubt = log.units.0.keys().copied().filter(|unit| self.in_doubt.contains(unit));
        let going: BTreeSet<UnitId> = leaving.iter().chain(&log.lost).copied().chain(in_doubt).collect();
        self.re_replicate(log, &going, now);
        let wanted = self.wanted_homes(log, &going, now);
        let is_fit = |(unit, _): &(UnitId, Member)| !self.is_out(log, *unit, self.config.detector.timeout);
        let spares: BTreeSet<NodeId> = log.spares().into_iter().filter(is_fit).map(|(_, home)| home.node).collect();
        let lacking: Vec<NodeId> = wanted.iter().copied().filter(|node| !spares.contains(node)).collect();
        let has_spares = lacking.is_empty();
        self.change_units(log, lacking, now);
        let sequencer = log.projection.sequencer;
        let is_replaced = self.process_on(sequencer.node).is_some_and(|process| process != sequencer);
        let is_of_use = !wanted.is_empty() && has_spares || self.can_do_without(log, &leaving);
        if is_replaced && self.had_pause(id, self.config.pause, now) {
            self.reconfigure(log, now);
        } else if !is_of_use {
            self.history.entry(id).or_default().in_vain.0 = 0;
        } else if self.can_be_sealed(log) && self.depends_on_no_overdue_node(log) {
            self.reconfigure_lazily(log, now);
        }
    }

    /// Asks the registry to create units on nodes, and to delete spares in doubt, which can never join the log. Does
    /// nothing while an earlier request is recent.
    fn change_units(&mut self, log: &LogState, nodes: Vec<NodeId>, now: Monotonic) {
        let (id, naming, history) = (log.id(), self.config.naming, self.history.entry(log.id()).or_default());
        let is_due = |asked: Option<Monotonic>| asked.is_none_or(|asked| now.since(asked) > naming);
        if !nodes.is_empty() && is_due(history.named) {
            history.named = Some(now);
            self.actions.push(Action::AddUnits { log: id, nodes });
        }
        let spares = log.spares().into_iter().map(|(unit, _)| unit);
        let units: Vec<UnitId> = spares.filter(|unit| self.in_doubt.contains(unit)).collect();
        if !units.is_empty() && is_due(history.forgotten) {
            history.forgotten = Some(now);
            self.actions.push(Action::ForgetSpares { log: id, units });
        }
    }

    /// Whether every chain of the last extent has an available unit or is declared lost. Otherwise a recovery could not
    /// finish, and the units that it sealed would be unreadable.
    fn can_be_sealed(&self, log: &LogState) -> bool {
        let is_in = |unit: &UnitId| !self.is_out(log, *unit, self.config.detector.timeout);
        let is_lost = |chain: &[UnitId]| chain.iter().all(|unit| log.lost.contains(unit));
        log.projection.last().chains.iter().all(|chain| chain.iter().any(is_in) || is_lost(chain))
    }

    /// Replaces the projection of a log that works. The pause doubles while replacements change nothing.
    fn reconfigure_lazily(&mut self, log: &LogState, now: Monotonic) {
        let (config, history) = (self.config, self.history.entry(log.id()).or_default());
        let units = log.projection.units();
        let times = if history.in_vain.1 == units { history.in_vain.0 } else { 0 };
        let pause =
            if times == 0 { config.pause } else { Duration(config.lazy_pause.0 << times.min(VAIN_DOUBLINGS_MAX)) };
        if self.had_pause(log.id(), pause, now) {
            self.history.entry(log.id()).or_default().in_vain = (times + 1, units);
            self.reconfigure(log, now);
        }
    }

    /// Whether the projection contains a unit that should and can be removed: a failed unit if each of its chains has
    /// another one, a leaving unit if each chain keeps its target number, and a lost unit always.
    fn can_do_without(&self, log: &LogState, leaving: &BTreeSet<UnitId>) -> bool {
        let units = log.projection.units();
        let is_out = |unit: &UnitId| self.is_out(log, *unit, self.config.gone);
        let out: BTreeSet<UnitId> = units.iter().copied().filter(is_out).collect();
        let has_others = |unit: &UnitId, least: usize| {
            let stays = |other: &&UnitId| !out.contains(other) && !leaving.contains(other);
            log.chains().all(|chain| !chain.contains(unit) || chain.iter().filter(stays).count() >= least)
        };
        out.iter().any(|unit| has_others(unit, 1))
            || units.iter().any(|unit| leaving.contains(unit) && has_others(unit, self.copies(log)))
            || units.iter().any(|unit| log.lost.contains(unit))
    }

    /// Nodes that need a new unit for the newest extent: one per missing unit of each chain, as far as there are nodes,
    /// and a full set for each missing chain. Units in `going` count as missing.
    fn wanted_homes(&self, log: &LogState, going: &BTreeSet<UnitId>, now: Monotonic) -> Vec<NodeId> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let is_fit = |node: &NodeId| self.is_alive(*node) && !self.is_slow_on(log.id(), *node, now);
        let nodes: Vec<NodeId> = cluster.staying.iter().map(|member| member.node).filter(is_fit).collect();
        let on = |unit: &UnitId| log.member_of(*unit).map(|member| member.node);
        let copies = self.copies(log);
        let mut wanted = Vec::new();
        let chains = &log.projection.last().chains;
        for turn in 0..chains.len().max(log.stripes) {
            let chain = chains.get(turn).map_or(&[][..], Vec::as_slice);
            let stay: Vec<UnitId> = chain.iter().copied().filter(|unit| !going.contains(unit)).collect();
            let taken: BTreeSet<NodeId> = stay.iter().filter_map(on).collect();
            let free = nodes.iter().cycle().skip(turn).take(nodes.len()).filter(|node| !taken.contains(node));
            let free: Vec<NodeId> = free.copied().take(copies.saturating_sub(stay.len())).collect();
            // A new chain is created only if it is full.
            if turn < chains.len() || free.len() == copies {
                wanted.extend(free);
            }
        }
        wanted
    }
}
