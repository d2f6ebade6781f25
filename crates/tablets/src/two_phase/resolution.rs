//! The tasks of the leaders of a transaction's ranges after its prepare and its decision.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Monotonic, Timestamp};
use state_machine::Failure;

use super::{Action, Asked, Destination, PATIENCE, TwoPhase};
use crate::command::Command;
use crate::request::{Outcome, TableRequest, TableResponse};
use crate::tablet::Tablet;
use crate::tablet::transactions::TransactionDecided;
use crate::transaction::{Coordinator, Participant, TransactionId};

/// Interval between checks of the prepared and decided transactions of the cohorts that this node leads.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a split or a drop waits for a prepared transaction before the range queries the coordinator, which aborts a
/// transaction without an outcome.
const HURRY: Duration = Duration::from_millis(250);

/// The transactions that this node resolves as a leader.
#[derive(Debug)]
pub(super) struct Resolution {
    in_doubt: Duration,
    /// Transactions decided by cohorts that this node leads, with the participants that have not resolved them, and
    /// whether a request to each is in progress.
    unresolved: BTreeMap<(CohortId, TransactionId), BTreeMap<CohortId, bool>>,
    /// Transactions that all participants have resolved, until they are forgotten.
    resolved: BTreeMap<CohortId, BTreeSet<TransactionId>>,
    /// Prepared transactions of cohorts that this node leads, with the queries about them.
    prepared: BTreeMap<(CohortId, TransactionId), DoubtQuery>,
    /// Cohorts led by this node with prepared or decided transactions.
    watched: BTreeSet<CohortId>,
    check_at: Monotonic,
    /// Decisions to send to their participants.
    decided: Vec<(CohortId, TransactionId)>,
    doubts_resolved: u64,
}

/// A query to the coordinator of a prepared transaction.
#[derive(Clone, Copy, Debug)]
struct DoubtQuery {
    /// The time of the next one.
    at: Monotonic,
    was_sent: bool,
}

impl Resolution {
    pub(super) fn new(in_doubt: Duration) -> Self {
        Self {
            in_doubt,
            unresolved: BTreeMap::new(),
            resolved: BTreeMap::new(),
            prepared: BTreeMap::new(),
            watched: BTreeSet::new(),
            check_at: Monotonic(0),
            decided: Vec::new(),
            doubts_resolved: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let is_unwatched = self.watched.is_empty() && self.prepared.is_empty() && self.decided.is_empty();
        is_unwatched && self.unresolved.is_empty() && self.resolved.is_empty()
    }

    /// A participant has resolved a transaction, or gave no reply.
    pub(super) fn resolve_answered(
        &mut self,
        cohort: CohortId,
        transaction: TransactionId,
        participant: CohortId,
        is_resolved: bool,
    ) {
        let Some(unresolved) = self.unresolved.get_mut(&(cohort, transaction)) else { return };
        if !is_resolved {
            // The next check sends the decision again.
            unresolved.insert(participant, false);
            return;
        }
        unresolved.remove(&participant);
        if unresolved.is_empty() {
            self.unresolved.remove(&(cohort, transaction));
            self.resolved.entry(cohort).or_default().insert(transaction);
        }
    }

    /// The cohort has no transactions any more, or this node does not lead it.
    fn forget(&mut self, cohort: CohortId) {
        self.watched.remove(&cohort);
        self.unresolved.retain(|(of, _), _| *of != cohort);
        self.prepared.retain(|(of, _), _| *of != cohort);
        self.resolved.remove(&cohort);
    }
}

impl TwoPhase {
    /// When [`TwoPhase::take_due`] has cohorts to check.
    #[must_use]
    pub fn next_timer(&self) -> Option<Monotonic> {
        (!self.resolution.watched.is_empty()).then_some(self.resolution.check_at)
    }

    /// An entry prepared or decided a transaction in a cohort that this node leads, or this node begins to lead a cohort.
    pub fn applied(&mut self, cohort: CohortId, decided: Option<TransactionDecided>, now: Monotonic) {
        if let Some(TransactionDecided(transaction)) = decided {
            self.resolution.decided.push((cohort, transaction));
        }
        if self.resolution.watched.is_empty() {
            self.resolution.check_at = now + CHECK_INTERVAL;
        }
        self.resolution.watched.insert(cohort);
    }

    /// Drains the decisions since the last call, each to be passed to [`TwoPhase::announce`] with the cohort's tablet.
    pub fn take_decided(&mut self) -> Vec<(CohortId, TransactionId)> {
        std::mem::take(&mut self.resolution.decided)
    }

    /// Sends a decision to its participants.
    pub fn announce(&mut self, cohort: CohortId, transaction: TransactionId, tablet: Option<&Tablet>, now: Monotonic) {
        let Some(decided) = tablet.and_then(|tablet| tablet.decided().get(&transaction)) else { return };
        // The commit was repeated.
        let is_resolved = |resolved: &BTreeSet<TransactionId>| resolved.contains(&transaction);
        if self.resolution.resolved.get(&cohort).is_some_and(is_resolved)
            || self.resolution.unresolved.contains_key(&(cohort, transaction))
        {
            return;
        }
        let all = decided.participants.iter().map(|participant| (participant.cohort, true)).collect();
        self.resolution.unresolved.insert((cohort, transaction), all);
        if planted(Bug::DecisionForgottenEarly) {
            self.forget_decisions(cohort, vec![transaction]);
        }
        for participant in &decided.participants {
            let tag = Some(Asked::Resolve(cohort, transaction, participant.cohort));
            self.resolve_at(tag, transaction, *participant, Some(decided.timestamp), now);
        }
    }

    /// Repeats a decision to the participants that have not resolved it, unless a request to them is in progress. A
    /// repetition has no effect.
    fn announce_again(&mut self, cohort: CohortId, transaction: TransactionId, tablet: &Tablet, now: Monotonic) {
        let Some(decided) = tablet.decided().get(&transaction) else { return };
        for participant in &decided.participants {
            let Some(left) = self.resolution.unresolved.get_mut(&(cohort, transaction)) else { return };
            let Some(is_asked) = left.get_mut(&participant.cohort).filter(|is_asked| !**is_asked) else { continue };
            *is_asked = true;
            let tag = Some(Asked::Resolve(cohort, transaction, participant.cohort));
            self.resolve_at(tag, transaction, *participant, Some(decided.timestamp), now);
        }
    }

    /// The cohorts to check now, each to be passed to [`TwoPhase::check`] with its tablet.
    pub fn take_due(&mut self, now: Monotonic) -> BTreeSet<CohortId> {
        if self.next_timer().is_none_or(|at| at > now) {
            return BTreeSet::new();
        }
        self.resolution.check_at = now + CHECK_INTERVAL;
        self.resolution.watched.clone()
    }

    /// Checks the prepared and decided transactions of a cohort.
    pub fn check(&mut self, cohort: CohortId, tablet: Option<&Tablet>, now: Monotonic) {
        let Some(tablet) = tablet.filter(|it| !it.prepared().is_empty() || !it.decided().is_empty()) else {
            return self.resolution.forget(cohort);
        };
        let known = self.resolution.resolved.get(&cohort);
        let is_resolved = |id: &TransactionId| known.is_some_and(|resolved| resolved.contains(id));
        let (resolved, decided): (Vec<TransactionId>, Vec<TransactionId>) =
            tablet.decided().keys().copied().partition(is_resolved);
        let prepared: Vec<(TransactionId, Coordinator, Timestamp)> =
            tablet.prepared().iter().map(|(id, it)| (*id, it.coordinator.clone(), it.timestamp)).collect();
        self.resolution.prepared.retain(|(of, id), _| *of != cohort || tablet.prepared().contains_key(id));
        self.resolution.resolved.remove(&cohort);
        if !resolved.is_empty() {
            self.resolution.resolved.insert(cohort, resolved.iter().copied().collect());
            self.forget_decisions(cohort, resolved);
        }
        // A split gives decisions to another range.
        self.resolution.unresolved.retain(|(of, id), _| *of != cohort || decided.binary_search(id).is_ok());
        for (transaction, coordinator, timestamp) in prepared {
            self.ask_if_in_doubt(transaction, coordinator, Participant { cohort, prepared: timestamp }, now);
        }
        for transaction in decided {
            if !self.resolution.unresolved.contains_key(&(cohort, transaction)) {
                self.announce(cohort, transaction, Some(tablet), now);
            } else {
                self.announce_again(cohort, transaction, tablet, now);
            }
        }
    }

    /// Asks the coordinator of a transaction that has been prepared for long.
    fn ask_if_in_doubt(
        &mut self,
        transaction: TransactionId,
        Coordinator { table, key, stamp }: Coordinator,
        participant: Participant,
        now: Monotonic,
    ) {
        let later = DoubtQuery { at: now + self.resolution.in_doubt, was_sent: false };
        let query = self.resolution.prepared.entry((participant.cohort, transaction)).or_insert(later);
        if query.at > now {
            return;
        }
        *query = DoubtQuery { was_sent: true, ..later };
        if planted(Bug::DoubtMeansAbort) {
            return self.resolve_at(None, transaction, participant, None, now);
        }
        let request = TableRequest::Abort { key, stamp };
        let tag = Some(Asked::InDoubt(transaction, participant));
        self.send(Destination::Table(table), request, now + PATIENCE, tag);
    }

    /// A split or a drop waits for the prepared transactions of a range: asks their coordinators sooner.
    pub fn hurry(&mut self, cohort: CohortId, tablet: Option<&Tablet>, now: Monotonic) {
        let Some(tablet) = tablet else { return };
        let soon = DoubtQuery { at: now + HURRY, was_sent: false };
        let Resolution { prepared, check_at, .. } = &mut self.resolution;
        for transaction in tablet.prepared().keys() {
            let query = prepared.entry((cohort, *transaction)).or_insert(soon);
            if !query.was_sent {
                query.at = soon.at.min(query.at);
                *check_at = query.at.min(*check_at);
            }
        }
    }

    /// The coordinator has replied to a participant's query.
    pub(super) fn doubt_answered(
        &mut self,
        transaction: TransactionId,
        participant: Participant,
        outcome: &Outcome,
        now: Monotonic,
    ) {
        let committed = match outcome {
            Ok(TableResponse::Outcome(outcome)) => outcome.of(participant),
            // A table is dropped only when no participant needs a decision of it any more.
            Err(Failure::UnknownTable(_)) => None,
            // The query is repeated.
            _ => return,
        };
        self.resolution.doubts_resolved += 1;
        self.resolve_at(None, transaction, participant, committed, now);
    }

    /// Number of prepared transactions that learned their outcome by asking the coordinator.
    #[must_use]
    pub fn doubts_resolved(&self) -> u64 {
        self.resolution.doubts_resolved
    }

    fn forget_decisions(&mut self, cohort: CohortId, transactions: Vec<TransactionId>) {
        self.actions.push(Action::Propose { cohort, command: Command::Forget { transactions }.encode() });
    }
}
