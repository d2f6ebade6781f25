//! Replaces a projection (CORFU, section 3.4; guarantee 20).
//!
//! A recovery seals all units, or as many as reply: at least one of every chain, because a writer of the old projection
//! could continue on a chain without a sealed unit. The reports of the sealed units determine the end of the log: a
//! completed append is on all units of its chain, and so on a sealed one. The successor keeps only sealed units, with
//! one exception: a chain of an older, closed extent where no unit replies stays unchanged. Extents that were trimmed
//! are dropped. New units, which are empty, join a new extent that starts at the end of the log. A unit that reports at
//! its seal that it holds all of an older stripe joins the chain of that stripe ([`copier`](crate::copier)).
//!
//! Between sealing and proposing, the recovery waits for the lease of the replaced sequencer to expire
//! ([`sequencer`](crate::sequencer)).
//!
//! Any number of nodes may run a recovery concurrently: sealing is idempotent, and of the proposed projections only one
//! is installed, by compare-and-set on the epoch.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::sequencer::LEASE_GRACE;
use crate::unit::{Command, Reply, Report, Request};
use crate::{AskId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};

mod placement;
mod successor;
#[cfg(test)]
mod tests;

pub use placement::Homes;
pub use successor::{Healing, healings};

/// The target of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The sequencer of the successor.
    pub sequencer: SequencerId,
    /// Slow or full units to leave out whether they reply or not, if their chains have others.
    pub leave_out: BTreeSet<UnitId>,
    /// Units on leaving nodes. They are removed once each of their chains has its target number of other units.
    pub leaving: BTreeSet<UnitId>,
    /// Empty units that can replace missing ones, best first. Their numbers are above those of all units in earlier
    /// projections.
    pub spares: Vec<UnitId>,
    /// Disks of the units of the old projection and of the spares. Units of one node do not share a chain. A spare
    /// without a known disk is not used.
    pub homes: Homes,
    /// Units that an operator declared lost. A chain without any other unit is abandoned: its entries read as lost from
    /// then on, permanently.
    pub lost: BTreeSet<UnitId>,
    /// Lower bound for the successor's start: an end of the log that an operator supplied because chains are abandoned.
    pub at_least: Position,
    /// Target number of chains. A further chain is added only with its full number of units.
    pub stripes: usize,
    /// Stripe width, if there are several chains.
    pub width: u64,
    /// Target number of units per chain.
    pub copies: usize,
}

/// Timeouts of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval between retransmissions of a request.
    pub again: Duration,
    /// How long to wait for the other units once every chain that is written to has a sealed unit.
    pub patience: Duration,
    /// How long to wait for new units to start.
    pub beginning: Duration,
    /// Total duration after which the recovery fails.
    pub limit: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            again: Duration::from_millis(50),
            patience: Duration::from_millis(150),
            beginning: Duration::from_millis(150),
            limit: Duration::from_millis(5_000),
        }
    }
}

/// An effect for the driver to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to a unit; [`Recovery::answered`] may follow.
    Ask {
        /// Matches the reply to the request.
        ask: AskId,
        unit: UnitId,
        /// The request to send.
        request: Request,
    },
    /// Install this projection if the newest one has the preceding epoch; [`Recovery::verdict`] may follow.
    Propose(Projection),
    /// Call [`Recovery::timer`] at this time.
    SetTimer(Monotonic),
    /// The recovery has ended.
    Done(Ended),
}

/// The outcome of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The proposed projection is installed.
    Installed(Projection),
    /// Another projection is installed.
    Lost,
    /// The limit passed: a chain had no unit that could be sealed, or the proposal was not answered. The proposal may
    /// have been installed.
    OutOfTime,
    /// No valid successor exists: too many extents, or the proposal was refused.
    NoSuccessor,
}

/// The outcome of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// The newest projection now: the proposed one or another.
    Newest(Projection),
    /// Refused, because these units no longer exist.
    UnitsGone(Vec<UnitId>),
    Unfit,
}

/// One attempt to replace one projection.
#[derive(Clone, Debug)]
pub struct Recovery {
    old: Projection,
    plan: Plan,
    timing: Timing,
    stage: Stage,
    began_at: Monotonic,
    /// When every chain that may be written to had a sealed unit.
    sealed_at: Option<Monotonic>,
    asks: AskId,
    asked: BTreeMap<AskId, UnitId>,
    /// Reports of sealed units.
    reports: BTreeMap<UnitId, Report>,
    /// Units that the recovery no longer waits for.
    unawaited: BTreeSet<UnitId>,
    /// New units that have started.
    begun: BTreeSet<UnitId>,
    again_at: Monotonic,
    actions: Vec<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Sealing,
    /// Waits until that time for new units to start.
    Beginning {
        successor: Projection,
        until: Monotonic,
    },
    Proposing(Projection),
    Ended,
}

impl Recovery {
    #[must_use]
    pub fn begin(old: Projection, plan: Plan, timing: Timing, now: Monotonic) -> Self {
        let mut recovery = Self {
            old,
            plan,
            timing,
            stage: Stage::Sealing,
            began_at: now,
            sealed_at: None,
            asks: AskId(0),
            asked: BTreeMap::new(),
            reports: BTreeMap::new(),
            unawaited: BTreeSet::new(),
            begun: BTreeSet::new(),
            again_at: now,
            actions: Vec::new(),
        };
        let newest = recovery.old.newest_unit;
        let known = BTreeSet::from_iter(recovery.old.units());
        let is_new = |unit: &UnitId| *unit > newest || planted(Bug::OldValuesReturn) && !known.contains(unit);
        recovery.plan.spares.retain(is_new);
        recovery.ask_again(now);
        recovery
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The epoch of the projection to replace.
    #[must_use]
    pub fn epoch(&self) -> ProjectionEpoch {
        self.old.epoch
    }

    /// Whether the recovery has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Stops waiting for these units, if each of their chains has another unit that has replied. A unit that still
    /// replies in time stays.
    pub fn stop_waiting_for(&mut self, units: &BTreeSet<UnitId>, now: Monotonic) {
        if self.stage == Stage::Sealing && !units.is_subset(&self.unawaited) {
            self.unawaited.extend(units);
            self.build_if_answered(now);
        }
    }

    /// Units of the old projection that should stay and have not replied.
    #[must_use]
    pub fn unanswered(&self) -> Vec<UnitId> {
        let is_missed = |unit: &UnitId| !self.has_answered(*unit) && !self.plan.leave_out.contains(unit);
        self.old.units().into_iter().filter(is_missed).collect()
    }

    /// Sealed units that certainly stay, and the successor if one was built.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn counts_on(&self) -> (BTreeSet<UnitId>, Option<&Projection>) {
        let successor = match &self.stage {
            Stage::Beginning { successor, .. } | Stage::Proposing(successor) => Some(successor),
            Stage::Sealing | Stage::Ended => None,
        };
        let stay = self.reports.keys().copied().filter(|unit| !self.goes(*unit));
        (stay.collect(), successor)
    }

    /// The projection to replace.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn replaces(&self) -> &Projection {
        &self.old
    }

    /// Handles the reply of a unit.
    pub fn answered(&mut self, ask: AskId, reply: Reply, now: Monotonic) {
        let Some(unit) = self.asked.remove(&ask) else { return };
        match (&self.stage, reply) {
            (Stage::Sealing, Reply::Sealed(report)) if report.sealed > self.old.epoch => self.end(Ended::Lost),
            (Stage::Sealing, Reply::Sealed(report)) => {
                self.reports.insert(unit, report);
                if self.sealed_at.is_none() && self.are_sealed(|unit| self.reports.contains_key(&unit)) {
                    self.sealed_at = Some(now);
                }
                self.build_if_answered(now);
            }
            (Stage::Beginning { .. }, Reply::Begun(report)) if report.sealed == self.old.epoch => {
                self.begun.insert(unit);
                self.propose_if_begun(now);
            }
            (Stage::Beginning { .. }, Reply::NotEmpty | Reply::Elsewhere | Reply::Begun(_)) => {
                self.plan.spares.retain(|spare| *spare != unit);
                self.build(now);
            }
            _ => {}
        }
    }

    fn build_if_answered(&mut self, now: Monotonic) {
        if self.old.units().iter().all(|unit| self.has_answered(*unit)) {
            self.build(now);
        }
    }

    /// Whether a unit needs no further wait: it has replied, is lost, or is left out.
    fn has_answered(&self, unit: UnitId) -> bool {
        let is_unawaited = || self.unawaited.contains(&unit) && self.has_others(unit, 1);
        self.reports.contains_key(&unit) || self.plan.lost.contains(&unit) || self.is_left_out(unit) || is_unawaited()
    }

    /// Whether a unit is sealed and knows of no damage.
    fn is_sound(&self, unit: UnitId) -> bool {
        self.reports.get(&unit).is_some_and(|report| report.damaged == 0)
    }

    /// Whether no unit of a chain is sealed.
    fn is_silent(&self, chain: &[UnitId]) -> bool {
        chain.iter().all(|unit| !self.reports.contains_key(unit))
    }

    /// Whether a chain is abandoned: no unit has replied, and all are declared lost.
    fn is_given_up(&self, chain: &[UnitId]) -> bool {
        self.is_silent(chain) && chain.iter().all(|unit| self.plan.lost.contains(unit))
    }

    /// Whether an extent with this end was already closed in the old projection: its units were sealed when it was
    /// closed, and none of its positions is handed out any more.
    fn is_closed(&self, end: Option<Position>) -> bool {
        end.is_some_and(|end| end <= self.old.start)
    }

    /// Whether a unit should be removed if possible.
    fn goes(&self, unit: UnitId) -> bool {
        self.plan.leave_out.contains(&unit) || self.plan.leaving.contains(&unit)
    }

    /// Whether a unit is left out even if it replies: only if each of its chains has another one that did.
    fn is_left_out(&self, unit: UnitId) -> bool {
        let least = match () {
            () if self.plan.leave_out.contains(&unit) => 1,
            () if self.plan.leaving.contains(&unit) => self.plan.copies,
            () => return false,
        };
        self.has_others(unit, least)
    }

    /// Whether each chain of a unit has at least `least` other sound units that stay.
    fn has_others(&self, unit: UnitId, least: usize) -> bool {
        let has_others = |chain: &Vec<UnitId>| {
            let others = chain.iter().filter(|other| self.is_sound(**other) && !self.goes(**other));
            !chain.contains(&unit) || others.count() >= least
        };
        self.old.extents.iter().flat_map(|extent| &extent.chains).all(has_others)
    }

    /// Whether every chain that may still be written to has a sealed unit or is abandoned. A chain of a closed extent
    /// needs none: while it stays unchanged, all writes in any epoch go down the same units.
    ///
    /// A unit with damage counts only after half of the limit without a better one: its damaged entries are then lost.
    fn is_enough(&self, now: Monotonic) -> bool {
        let is_late = self.began_at + Duration(self.timing.limit.0 / 2) <= now;
        self.are_sealed(|unit| self.is_sound(unit) || is_late && self.reports.contains_key(&unit))
    }

    /// Whether each of those chains has a unit that counts, or is abandoned.
    fn are_sealed(&self, counts: impl Fn(UnitId) -> bool) -> bool {
        let is_sealed = |chain: &Vec<UnitId>| chain.iter().any(|unit| counts(*unit)) || self.is_given_up(chain);
        let open = self.old.bounded().filter(|(_, end)| !self.is_closed(*end));
        let mut chains = open.flat_map(|(extent, _)| &extent.chains);
        if planted(Bug::ChainUnsealed) { chains.any(is_sealed) } else { chains.all(is_sealed) }
    }

    /// Earliest time of a proposal: the replaced sequencer may hold a lease until then.
    fn not_before(&self) -> Monotonic {
        if planted(Bug::LeaseNotWaited) { self.began_at } else { self.sealed_at.unwrap_or(self.began_at) + LEASE_GRACE }
    }

    /// Whether a unit stays: it is sealed and not left out.
    fn stays(&self, unit: UnitId) -> bool {
        let is_sealed = self.reports.contains_key(&unit) && !self.is_left_out(unit);
        is_sealed || planted(Bug::ChainUnsealed) && self.is_alone_unsealed(unit)
    }

    /// Whether one of the unit's chains has no sealed unit.
    fn is_alone_unsealed(&self, unit: UnitId) -> bool {
        let mut chains = self.old.extents.iter().flat_map(|extent| &extent.chains);
        chains.any(|chain| chain.contains(&unit) && chain.iter().all(|unit| !self.reports.contains_key(unit)))
    }

    /// The end of the log: above every position that a sealed unit holds, and not below the old start.
    fn tail(&self) -> Position {
        let tails = self.reports.values().map(|report| report.tail.max(report.trimmed));
        tails.fold(self.old.start.max(self.plan.at_least), Position::max)
    }

    fn trimmed(&self) -> Position {
        self.reports.values().map(|report| report.trimmed).fold(Position(0), Position::max)
    }

    /// Builds the successor and starts its new units.
    fn build(&mut self, now: Monotonic) {
        let Some(successor) = self.successor() else { return self.end(Ended::NoSuccessor) };
        let until = match self.stage {
            Stage::Beginning { until, .. } => until,
            _ => now + self.timing.beginning,
        };
        self.stage = Stage::Beginning { successor, until };
        self.asked.clear();
        self.propose_if_begun(now);
        if matches!(self.stage, Stage::Beginning { .. }) {
            self.ask_again(now);
        }
    }

    fn new_units(&self, successor: &Projection) -> Vec<UnitId> {
        let known = BTreeSet::from_iter(self.old.units());
        successor.units().into_iter().filter(|unit| !known.contains(unit)).collect()
    }

    fn propose_if_begun(&mut self, now: Monotonic) {
        let Stage::Beginning { successor, .. } = &self.stage else { return };
        if self.new_units(successor).iter().all(|unit| self.begun.contains(unit)) {
            self.stage = Stage::Proposing(successor.clone());
            self.asked.clear();
            self.ask_again(now);
        }
    }

    /// Handles the outcome of the proposal.
    pub fn verdict(&mut self, verdict: ProposalOutcome, now: Monotonic) {
        let Stage::Proposing(successor) = &self.stage else { return };
        match verdict {
            ProposalOutcome::Newest(newest) if newest.epoch < successor.epoch => {}
            ProposalOutcome::Newest(newest) if newest == *successor => self.end(Ended::Installed(newest)),
            ProposalOutcome::Newest(_) => self.end(Ended::Lost),
            ProposalOutcome::UnitsGone(gone) => {
                // The verdict may refer to an earlier proposal, with units that this one lacks.
                if self.new_units(successor).iter().any(|unit| gone.contains(unit)) {
                    self.plan.spares.retain(|spare| !gone.contains(spare));
                    self.build(now);
                }
            }
            ProposalOutcome::Unfit => self.end(Ended::NoSuccessor),
        }
    }

    fn end(&mut self, ended: Ended) {
        self.stage = Stage::Ended;
        self.actions.push(Action::Done(ended));
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        if self.has_ended() {
            return;
        }
        if self.began_at + self.timing.limit <= now {
            return self.end(Ended::OutOfTime);
        }
        match &self.stage {
            Stage::Sealing if self.began_at + self.timing.patience <= now && self.is_enough(now) => {
                return self.build(now);
            }
            Stage::Beginning { until, .. } if *until <= now => {
                // Continues without the units that did not start.
                self.plan.spares.retain(|spare| self.begun.contains(spare));
                return self.build(now);
            }
            _ => {}
        }
        if self.again_at <= now {
            self.ask_again(now);
        } else {
            self.actions.push(Action::SetTimer(self.again_at));
        }
    }

    /// Repeats the requests of the current stage.
    fn ask_again(&mut self, now: Monotonic) {
        self.again_at = now + self.timing.again;
        match self.stage.clone() {
            Stage::Sealing => {
                for unit in self.old.units() {
                    if !self.reports.contains_key(&unit) {
                        self.ask(unit, Command::Seal { epoch: self.old.epoch });
                    }
                }
            }
            Stage::Beginning { successor, .. } => {
                for unit in self.new_units(&successor) {
                    if !self.begun.contains(&unit) {
                        let stripes = successor.stripes_of(unit);
                        let disk = self.plan.homes.0.get(&unit).map(|home| home.incarnation).unwrap_or_default();
                        let (log, epoch, trimmed) = (self.old.log, self.old.epoch, self.trimmed());
                        self.ask(unit, Command::Begin { disk, log, epoch, trimmed, stripes });
                    }
                }
            }
            Stage::Proposing(successor) if self.not_before() <= now => {
                self.actions.push(Action::Propose(successor));
            }
            Stage::Proposing(_) => self.again_at = self.again_at.min(self.not_before()),
            Stage::Ended => return,
        }
        self.actions.push(Action::SetTimer(self.again_at));
    }

    fn ask(&mut self, unit: UnitId, command: Command) {
        self.asks.0 += 1;
        self.asked.insert(self.asks, unit);
        self.actions.push(Action::Ask { ask: self.asks, unit, request: Request::Command(command.into()) });
    }
}
