//! Replacing a projection (CORFU, section 3.4; guarantee 20).
//!
//! All units are sealed, or as many as answer: at least one of every chain, or nothing may be installed, since a writer
//! of the old projection could go on where none is. What the sealed ones hold tells where the log ends: every append
//! that was complete lies on all units of its chain, so on a sealed one. The successor keeps sealed units only, but for
//! chains of older, closed extents where none answers: those stay as they are. Extents that were trimmed go. New units,
//! which begin empty, stand in a new extent from that end on; a unit that says at its seal that it holds all of an
//! older stripe joins the chain of that stripe, too ([`copier`](crate::copier)).
//!
//! Between the sealing and the proposal the lease of the sequencer that is replaced ends
//! ([`sequencer`](crate::sequencer)).
//!
//! Any number of nodes may do this at one time: sealing hurts nobody twice, and of the projections that are proposed
//! one is installed, since that is a compare-and-set on the epoch.

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

/// What a recovery is to come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The sequencer of the successor.
    pub sequencer: SequencerId,
    /// Units that are not to stand in it, whether they answer or not, if their chains have others: they are slow or
    /// full.
    pub leave_out: BTreeSet<UnitId>,
    /// Units that are to go once each of their chains has as many others as it should: their nodes leave.
    pub leaving: BTreeSet<UnitId>,
    /// Units that have not begun, with higher numbers than any that stood in a projection of the log, to stand in for
    /// those that are missing, the best first.
    pub spares: Vec<UnitId>,
    /// Where units are: those of the projection that is replaced, and the spares. Two of one node don't share a chain;
    /// a spare whose place isn't told stands in none.
    pub homes: Homes,
    /// Units that an operator declares lost, with their disks. A chain that has no other is given up: what it held
    /// reads as lost from then on, and nothing brings it back.
    pub lost: BTreeSet<UnitId>,
    /// The successor does not begin below this: where chains are given up, an end of the log that somebody remembers.
    pub at_least: Position,
    /// Chains that the log should have. A further one is made only when it is full from its beginning.
    pub stripes: usize,
    /// How many positions in a row are of one chain, where there are several.
    pub width: u64,
    /// Units that a chain should have.
    pub copies: usize,
}

/// How long a recovery waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For an answer, before it is asked again.
    pub again: Duration,
    /// For units that don't answer, once every chain that is written to has one that did.
    pub patience: Duration,
    /// For new units to begin.
    pub beginning: Duration,
    /// For everything.
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

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a unit; [`Recovery::answered`] may follow.
    Ask {
        /// Names the answer.
        ask: AskId,
        /// The unit.
        unit: UnitId,
        /// What it is asked.
        request: Request,
    },
    /// Put this in the place of the projection whose epoch is one less, if that is the newest; [`Recovery::verdict`]
    /// may follow.
    Propose(Projection),
    /// Call [`Recovery::timer`] at this time.
    SetTimer(Monotonic),
    /// It has come to its end.
    Done(Ended),
}

/// What a recovery came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its projection is installed.
    Installed(Projection),
    /// Another one is.
    Lost,
    /// Some chain had no unit that could be sealed, or nobody took the proposal, in time. Nothing is known to be
    /// installed.
    OutOfTime,
    /// No projection may follow: there would be too many extents, or it was refused.
    NoSuccessor,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This is the newest projection now: the one that was proposed, or another.
    Newest(Projection),
    /// It was refused, since these of its units are there no more.
    UnitsGone(Vec<UnitId>),
    /// It was refused, and would be again.
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
    /// Since then every chain that positions may be written to has a unit that is sealed.
    sealed_at: Option<Monotonic>,
    asks: AskId,
    asked: BTreeMap<AskId, UnitId>,
    /// What sealed units said.
    reports: BTreeMap<UnitId, Report>,
    /// Units that are not waited for any longer.
    unawaited: BTreeSet<UnitId>,
    /// New units that have begun.
    begun: BTreeSet<UnitId>,
    again_at: Monotonic,
    actions: Vec<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Sealing,
    /// New units begin, by that time.
    Beginning {
        successor: Projection,
        until: Monotonic,
    },
    Proposing(Projection),
    Ended,
}

impl Recovery {
    /// Begins to replace a projection.
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

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The epoch of the projection that is to be replaced.
    #[must_use]
    pub fn epoch(&self) -> ProjectionEpoch {
        self.old.epoch
    }

    /// Whether it has come to its end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// These units are not to be waited for any longer, where each of their chains has another that has answered. One
    /// that answers all the same before the others have stays.
    pub fn await_no_more(&mut self, units: &BTreeSet<UnitId>, now: Monotonic) {
        if self.stage == Stage::Sealing && !units.is_subset(&self.unawaited) {
            self.unawaited.extend(units);
            self.build_if_answered(now);
        }
    }

    /// Units of the projection that is replaced that were to stay, and have not answered.
    #[must_use]
    pub fn unanswered(&self) -> Vec<UnitId> {
        let is_missed = |unit: &UnitId| !self.has_answered(*unit) && !self.plan.leave_out.contains(unit);
        self.old.units().into_iter().filter(is_missed).collect()
    }

    /// Units of the projection that is replaced that have been sealed and surely stay, and those of what is proposed,
    /// if anything is by now.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn counts_on(&self) -> (BTreeSet<UnitId>, Option<&Projection>) {
        let successor = match &self.stage {
            Stage::Beginning { successor, .. } | Stage::Proposing(successor) => Some(successor),
            Stage::Sealing | Stage::Ended => None,
        };
        let stay = self.reports.keys().copied().filter(|unit| !self.goes(*unit));
        (stay.collect(), successor)
    }

    /// The projection that is to be replaced.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn replaces(&self) -> &Projection {
        &self.old
    }

    /// A unit has answered.
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

    /// A unit that has answered needn't be waited for, nor one that is to be left out, or is lost.
    fn has_answered(&self, unit: UnitId) -> bool {
        let is_unawaited = || self.unawaited.contains(&unit) && self.has_others(unit, 1);
        self.reports.contains_key(&unit) || self.plan.lost.contains(&unit) || self.is_left_out(unit) || is_unawaited()
    }

    /// Whether a unit is sealed, and knows of nothing that it has lost.
    fn is_sound(&self, unit: UnitId) -> bool {
        self.reports.get(&unit).is_some_and(|report| report.damaged == 0)
    }

    /// Whether no unit of a chain is sealed.
    fn is_silent(&self, chain: &[UnitId]) -> bool {
        chain.iter().all(|unit| !self.reports.contains_key(unit))
    }

    /// Whether a chain is given up: nobody has answered, and all are declared lost.
    fn is_given_up(&self, chain: &[UnitId]) -> bool {
        self.is_silent(chain) && chain.iter().all(|unit| self.plan.lost.contains(unit))
    }

    /// Whether an extent that ends there had its end before our projection: its units were sealed when it got that, and
    /// nobody is given a position in it any more.
    fn is_closed(&self, end: Option<Position>) -> bool {
        end.is_some_and(|end| end <= self.old.start)
    }

    /// Whether a unit is to go, if that can be.
    fn goes(&self, unit: UnitId) -> bool {
        self.plan.leave_out.contains(&unit) || self.plan.leaving.contains(&unit)
    }

    /// Whether a unit is left out though it may answer: only where each of its chains has another that has.
    fn is_left_out(&self, unit: UnitId) -> bool {
        let least = match () {
            () if self.plan.leave_out.contains(&unit) => 1,
            () if self.plan.leaving.contains(&unit) => self.plan.copies,
            () => return false,
        };
        self.has_others(unit, least)
    }

    /// Whether each chain of a unit has so many that have answered and stay.
    fn has_others(&self, unit: UnitId, least: usize) -> bool {
        let has_others = |chain: &Vec<UnitId>| {
            let others = chain.iter().filter(|other| self.is_sound(**other) && !self.goes(**other));
            !chain.contains(&unit) || others.count() >= least
        };
        self.old.extents.iter().flat_map(|extent| &extent.chains).all(has_others)
    }

    /// Whether every chain that positions may still be written to has a unit that is sealed, or is given up. A chain of
    /// a closed extent needs none: as long as it stays as it is, all that is done to it goes down the same units, in
    /// whichever epoch.
    ///
    /// A unit that has lost something counts once nobody else has come for a long time: what it has lost is lost then.
    fn is_enough(&self, now: Monotonic) -> bool {
        let is_late = self.began_at + Duration(self.timing.limit.0 / 2) <= now;
        self.are_sealed(|unit| self.is_sound(unit) || is_late && self.reports.contains_key(&unit))
    }

    /// Whether each of those chains has a unit that counts, or is given up.
    fn are_sealed(&self, counts: impl Fn(UnitId) -> bool) -> bool {
        let is_sealed = |chain: &Vec<UnitId>| chain.iter().any(|unit| counts(*unit)) || self.is_given_up(chain);
        let open = self.old.bounded().filter(|(_, end)| !self.is_closed(*end));
        let mut chains = open.flat_map(|(extent, _)| &extent.chains);
        if planted(Bug::ChainUnsealed) { chains.any(is_sealed) } else { chains.all(is_sealed) }
    }

    /// Nothing is proposed before this: the sequencer that is replaced may hold a lease until then.
    fn not_before(&self) -> Monotonic {
        if planted(Bug::LeaseNotWaited) { self.began_at } else { self.sealed_at.unwrap_or(self.began_at) + LEASE_GRACE }
    }

    /// What stays: sealed units, but for those that are to be left out.
    fn stays(&self, unit: UnitId) -> bool {
        let is_sealed = self.reports.contains_key(&unit) && !self.is_left_out(unit);
        is_sealed || planted(Bug::ChainUnsealed) && self.is_alone_unsealed(unit)
    }

    /// Whether no unit of a chain of this one's is sealed.
    fn is_alone_unsealed(&self, unit: UnitId) -> bool {
        let mut chains = self.old.extents.iter().flat_map(|extent| &extent.chains);
        chains.any(|chain| chain.contains(&unit) && chain.iter().all(|unit| !self.reports.contains_key(unit)))
    }

    /// Where the log ends: above all that a sealed unit holds, and not below where it began.
    fn tail(&self) -> Position {
        let tails = self.reports.values().map(|report| report.tail.max(report.trimmed));
        tails.fold(self.old.start.max(self.plan.at_least), Position::max)
    }

    fn trimmed(&self) -> Position {
        self.reports.values().map(|report| report.trimmed).fold(Position(0), Position::max)
    }

    /// Makes the successor, and has its new units begin.
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

    /// What became of the proposal.
    pub fn verdict(&mut self, verdict: Verdict, now: Monotonic) {
        let Stage::Proposing(successor) = &self.stage else { return };
        match verdict {
            Verdict::Newest(newest) if newest.epoch < successor.epoch => {}
            Verdict::Newest(newest) if newest == *successor => self.end(Ended::Installed(newest)),
            Verdict::Newest(_) => self.end(Ended::Lost),
            Verdict::UnitsGone(gone) => {
                // An earlier proposal may be meant, with units that this one lacks.
                if self.new_units(successor).iter().any(|unit| gone.contains(unit)) {
                    self.plan.spares.retain(|spare| !gone.contains(spare));
                    self.build(now);
                }
            }
            Verdict::Unfit => self.end(Ended::NoSuccessor),
        }
    }

    fn end(&mut self, ended: Ended) {
        self.stage = Stage::Ended;
        self.actions.push(Action::Done(ended));
    }

    /// The time that [`Action::SetTimer`] named has come.
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
                // Without those that don't begin.
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

    /// Asks whoever has not answered yet.
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
        self.actions.push(Action::Ask { ask: self.asks, unit, request: Request::Command(command) });
    }
}
