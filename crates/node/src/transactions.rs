//! Transactions over several ranges: two-phase commit, and the recovery of transactions after a failure
//! (`tablets::transaction`; Spanner, section 4.2.1; guarantee 18).
//!
//! Three roles, which may be on different nodes:
//! * The *driver* is the node that received the client's commit. It divides the transaction by range, sends a prepare to
//!   each participant, and then a commit to the coordinator. If a step fails, it sends an abort to the coordinator. The
//!   reply contains a definite outcome, even if the commit or another driver was faster. No other node depends on state
//!   of the driver.
//! * The *coordinator's leader* sends the decision to the participants until all have resolved the transaction, and then
//!   removes its record. A new leader starts from the first participant.
//! * A *participant's leader* queries the coordinator about a transaction that stays prepared for too long, because its
//!   driver and the coordinator's leader may have failed. The query aborts a transaction without an outcome.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Monotonic, Now, Timestamp};
use catalog::Catalog;
use state_machine::failure::precondition;
use state_machine::{Failure, KeyPosition, LockKeys, LockOwner};
use tablets::Command;
use tablets::tablet::transactions::TransactionDecided;
use tablets::transaction::{
    Commit, Coordinator, Participant, Prepare, ReadSpan, TransactionId, TransactionOutcome, TransactionPart,
};
use tablets::{TableRequest, TableResponse, Tablet};

use crate::message::Query;
use crate::node::Node;
use crate::registry::KindEvent;
use crate::replica::Replica;
use crate::request::{Outcome, Response, TransactionRequest};
use crate::request_table::{Pending, PendingId, ReplyTo, RequestState, Target};

/// Interval between checks of the prepared and decided transactions of the cohorts that this node leads.
const LOOK: Duration = Duration::from_millis(500);
/// Deadline of a request to another range after the decision; it is repeated.
const PATIENCE: Duration = Duration::from_millis(3_000);
/// How long a split or a drop waits for a prepared transaction before the range queries the coordinator, which aborts a
/// transaction without an outcome.
const HURRY: Duration = Duration::from_millis(250);

/// Maximum reads of several keys of one transaction, counted in each range.
const SPANS_MAX: usize = 20_000;

/// The transactions that this node drives, and those that it resolves as a leader.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    driven: BTreeMap<PendingId, Driven>,
    /// Transactions decided by cohorts that this node leads, with the participants that have not resolved them, and
    /// whether a request to each is in progress.
    unresolved: BTreeMap<(CohortId, TransactionId), BTreeMap<CohortId, bool>>,
    /// Transactions that all participants have resolved, until they are forgotten.
    resolved: BTreeMap<CohortId, BTreeSet<TransactionId>>,
    /// Prepared transactions of cohorts that this node leads, with the queries about them.
    prepared: BTreeMap<(CohortId, TransactionId), DoubtQuery>,
    /// Cohorts led by this node with prepared or decided transactions.
    watched: BTreeSet<CohortId>,
    look_at: Monotonic,
    /// Decisions to send to their participants.
    decided: Vec<(CohortId, TransactionId)>,
    /// Replies to requests of this component.
    pub(crate) answers: Vec<(ReplyTo, Outcome)>,
}

/// A transaction that this node drives.
#[derive(Debug)]
struct Driven {
    coordinator: Coordinator,
    owner: LockOwner,
    part: TransactionPart,
    deadline: Monotonic,
    phase: Phase,
    /// Participants that have not replied to the prepare.
    awaited: BTreeSet<CohortId>,
    prepared: Vec<Participant>,
}

/// A query to the coordinator of a prepared transaction.
#[derive(Clone, Copy, Debug)]
struct DoubtQuery {
    /// The time of the next one.
    at: Monotonic,
    was_sent: bool,
}

#[derive(Debug)]
enum Phase {
    Preparing,
    /// The commit was sent to the coordinator.
    Committing,
    /// An abort was sent to the coordinator, for this reason.
    Aborting(Failure),
    /// The client has received the outcome. Participants that the outcome does not name receive an abort.
    Ended(TransactionOutcome),
}

/// A transaction by range.
type Parts = BTreeMap<CohortId, TransactionPart>;

impl Transactions {
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        (!self.watched.is_empty()).then_some(self.look_at)
    }

    /// A cohort led by this node has prepared or decided transactions.
    fn watch(&mut self, cohort: CohortId, now: Monotonic) {
        if self.watched.is_empty() {
            self.look_at = now + LOOK;
        }
        self.watched.insert(cohort);
    }
}

impl Node {
    /// Begins to commit a transaction: in one range, or with two phases in several.
    pub(crate) fn drive(&mut self, pending: Pending, now: Now) {
        let Query::Transaction(request) = &pending.query else {
            return self.respond(pending, Err(crate::registry::unanswerable()), None);
        };
        let (coordinator, mut parts) = match divide(self.catalog(), request) {
            Ok(divided) => divided,
            Err(failure @ Failure::UnknownTable(_)) => return self.look_up_tables(pending, failure, now),
            Err(failure) => return self.respond(pending, Err(failure), None),
        };
        let TransactionRequest { stamp, table, key, owner, .. } = &**request;
        let (owner, part) = (*owner, parts.remove(&coordinator).unwrap_or_default());
        if planted(Bug::ReaderNotPrepared) {
            parts.retain(|_, part| !part.writes.is_empty());
        }
        let coordinator = Coordinator { table: table.clone(), key: key.clone(), stamp: *stamp };
        let (id, deadline) = (pending.id, pending.deadline);
        let driven = Driven {
            coordinator: coordinator.clone(),
            owner,
            part,
            deadline,
            phase: Phase::Preparing,
            awaited: parts.keys().copied().collect(),
            prepared: Vec::new(),
        };
        self.pending_requests.place(pending, RequestState::Driven);
        self.transactions.driven.insert(id, driven);
        if parts.is_empty() {
            return self.commit_driven(id, now);
        }
        // The rest of the time is for the decision.
        let patience = deadline.since(now.monotonic);
        let until = now.monotonic + patience.percent(75);
        for (cohort, part) in parts {
            let prepare = Prepare { coordinator: coordinator.clone(), owner, part };
            let query = Query::Machine(TableRequest::Prepare(Box::new(prepare)).into());
            self.begin(ReplyTo::Prepared(id, cohort), until, Target::Cohort(cohort), query, now);
        }
    }

    /// A table is not in the local catalog: asks the catalog's leader whether it exists.
    fn look_up_tables(&mut self, pending: Pending, failure: Failure, now: Now) {
        let Failure::UnknownTable(table) = failure else { return self.respond(pending, Err(failure), None) };
        let query = Query::Machine(catalog::CatalogRequest::FindTable(table).into());
        self.look_up(pending, query, now);
    }

    /// A participant has replied to a prepare.
    fn prepare_answered(&mut self, id: PendingId, cohort: CohortId, outcome: Outcome, now: Now) {
        // None if the client's deadline has passed: the participant asks the coordinator.
        let Some(driven) = self.transactions.driven.get_mut(&id) else { return };
        driven.awaited.remove(&cohort);
        let failure = match outcome {
            Ok(Response::Tablet(TableResponse::Prepared { timestamp })) => {
                driven.prepared.push(Participant { cohort, prepared: timestamp });
                None
            }
            Ok(_) => Some(crate::registry::unanswerable()),
            Err(failure) => Some(failure),
        };
        match (&driven.phase, failure) {
            (Phase::Preparing, Some(failure)) => self.abort_driven(id, failure, now),
            (Phase::Preparing, None) if driven.awaited.is_empty() => self.commit_driven(id, now),
            (Phase::Ended(_), _) => self.release_prepared(id, now),
            (Phase::Preparing | Phase::Committing | Phase::Aborting(_), _) => {}
        }
    }

    /// All participants have prepared: asks the coordinator to commit.
    fn commit_driven(&mut self, id: PendingId, now: Now) {
        let driven = expected!(self.transactions.driven.get_mut(&id), "the caller has it");
        driven.phase = Phase::Committing;
        let Coordinator { table, key, stamp } = driven.coordinator.clone();
        let (owner, part, participants) = (driven.owner, std::mem::take(&mut driven.part), driven.prepared.clone());
        let deadline = driven.deadline;
        let commit = Commit { stamp, key, owner, part, participants };
        let query = Query::Machine(TableRequest::Commit(Box::new(commit)).into());
        self.begin(ReplyTo::Decided(id), deadline, Target::Table(table), query, now);
    }

    /// The transaction cannot be committed as far as this driver knows: the coordinator decides.
    fn abort_driven(&mut self, id: PendingId, failure: Failure, now: Now) {
        let driven = expected!(self.transactions.driven.get_mut(&id), "the caller has it");
        driven.phase = Phase::Aborting(failure);
        let Coordinator { table, key, stamp } = driven.coordinator.clone();
        let deadline = driven.deadline;
        let query = Query::Machine(TableRequest::Abort { key, stamp }.into());
        self.begin(ReplyTo::Decided(id), deadline, Target::Table(table), query, now);
    }

    /// The coordinator has replied to a commit or an abort.
    fn decision_answered(&mut self, id: PendingId, outcome: Outcome, now: Now) {
        // None if the client's deadline has passed.
        let Some(driven) = self.transactions.driven.get_mut(&id) else { return };
        let is_alone = driven.prepared.is_empty() && driven.awaited.is_empty();
        match (std::mem::replace(&mut driven.phase, Phase::Ended(TransactionOutcome::Aborted)), outcome) {
            // Another driver was faster.
            (
                Phase::Committing | Phase::Aborting(_),
                Ok(Response::Tablet(TableResponse::Outcome(
                    outcome @ TransactionOutcome::Committed { timestamp: version, .. },
                ))),
            ) => {
                driven.phase = Phase::Ended(outcome);
                self.complete(id, Ok(Response::Tablet(TableResponse::Written { version })), None);
                self.release_prepared(id, now);
            }
            (Phase::Committing, Ok(response)) => self.driven_committed(id, Ok(response)),
            (Phase::Committing, Err(failure @ Failure::Aborted(_))) => self.driven_aborted(id, failure, now),
            // Nothing was done, and nothing else has to be undone.
            (Phase::Committing, Err(failure)) if is_alone && !matches!(failure, Failure::Unknown(_)) => {
                self.driven_committed(id, Err(failure));
            }
            (Phase::Committing, Err(failure)) => self.abort_driven(id, failure, now),
            (Phase::Aborting(failure), Ok(Response::Tablet(TableResponse::Outcome(TransactionOutcome::Aborted)))) => {
                self.driven_aborted(id, failure, now);
            }
            (Phase::Aborting(failure), Ok(Response::Tablet(TableResponse::Outcome(_)))) => {
                // An earlier attempt of the commit may have been executed before the session ended.
                if matches!(failure, Failure::Unknown(_)) {
                    let unknown = format!("{failure}; the coordinator does not know the transaction any more");
                    self.complete(id, Err(Failure::Unknown(unknown)), None);
                    return self.release_prepared(id, now);
                }
                let session = driven.coordinator.stamp.session;
                self.driven_aborted(id, Failure::UnknownSession(session), now);
            }
            (Phase::Aborting(failure), other) => {
                let reason = other.err().map_or_else(String::new, |failure| format!(" ({failure})"));
                let unknown = format!("{failure}; the transaction's coordinator gave no outcome{reason}");
                self.driven_committed(id, Err(Failure::Unknown(unknown)));
            }
            (phase @ (Phase::Preparing | Phase::Ended(_)), _) => driven.phase = phase,
        }
    }

    /// Ends a transaction that is committed, or that the participants must resolve by queries.
    fn driven_committed(&mut self, id: PendingId, outcome: Outcome) {
        self.transactions.driven.remove(&id);
        self.complete(id, outcome, None);
    }

    /// Ends a transaction that is aborted for good.
    fn driven_aborted(&mut self, id: PendingId, failure: Failure, now: Now) {
        let failure = match failure {
            // Trying the transaction again does not help.
            Failure::Precondition(_) | Failure::Invalid(_) | Failure::UnknownTable(_) | Failure::UnknownSession(_) => {
                failure
            }
            Failure::Aborted(_) => failure,
            Failure::Unavailable(reason) | Failure::NoSpace(reason) => Failure::Aborted(reason),
            other => Failure::Aborted(other.to_string()),
        };
        if let Some(driven) = self.transactions.driven.get_mut(&id) {
            driven.phase = Phase::Ended(TransactionOutcome::Aborted);
        }
        self.complete(id, Err(failure), None);
        self.release_prepared(id, now);
    }

    /// Sends an abort to the participants that have prepared and that the decision does not name. Those that have not
    /// replied yet receive it when they do. The coordinator informs the others.
    fn release_prepared(&mut self, id: PendingId, now: Now) {
        let Some(driven) = self.transactions.driven.get_mut(&id) else { return };
        let transaction = TransactionId::from(&driven.coordinator.stamp);
        let mut prepared = std::mem::take(&mut driven.prepared);
        if let Phase::Ended(outcome) = &driven.phase {
            prepared.retain(|participant| outcome.of(*participant).is_none());
        }
        if driven.awaited.is_empty() {
            self.transactions.driven.remove(&id);
        }
        for participant in prepared {
            self.resolve_at(ReplyTo::Nobody, transaction, participant, None, now);
        }
    }

    fn resolve_at(
        &mut self,
        origin: ReplyTo,
        transaction: TransactionId,
        Participant { cohort, prepared }: Participant,
        committed: Option<Timestamp>,
        now: Now,
    ) {
        let query = Query::Machine(TableRequest::Resolve { transaction, prepared, committed }.into());
        self.begin(origin, now.monotonic + PATIENCE, Target::Cohort(cohort), query, now);
    }

    /// The deadline of a client's transaction has passed.
    pub(crate) fn forget_driven(&mut self, id: PendingId) {
        self.transactions.driven.remove(&id);
    }

    /// An entry prepared or decided a transaction in a cohort that this node leads.
    pub(crate) fn on_transaction(&mut self, cohort: CohortId, event: Option<&KindEvent>, now: Now) {
        if let Some(KindEvent::Tablet(TransactionDecided(transaction))) = event {
            self.transactions.decided.push((cohort, *transaction));
        }
        self.transactions.watch(cohort, now.monotonic);
    }

    /// Handles replies, and sends decisions to participants.
    pub(crate) fn run_transactions(&mut self, now: Now) -> bool {
        let answers = std::mem::take(&mut self.transactions.answers);
        let decided = std::mem::take(&mut self.transactions.decided);
        let has_work = !decided.is_empty() || !answers.is_empty();
        for (origin, outcome) in answers {
            match origin {
                ReplyTo::Prepared(id, cohort) => self.prepare_answered(id, cohort, outcome, now),
                ReplyTo::Decided(id) => self.decision_answered(id, outcome, now),
                ReplyTo::Resolved(cohort, transaction, participant) => {
                    self.resolve_answered((cohort, transaction, participant), &outcome);
                }
                ReplyTo::InDoubt(transaction, participant) => {
                    self.doubt_answered(transaction, participant, outcome, now);
                }
                _ => debug_assert!(false, "a reply to another component"),
            }
        }
        for (cohort, transaction) in decided {
            self.tell_participants(cohort, transaction, now);
        }
        has_work
    }

    /// The transactions that this node drives, those that are prepared or decided in its replicas, and latches that
    /// are held: for the simulator.
    #[must_use]
    pub fn transactions_left(&self) -> Vec<String> {
        let driven = self.transactions.driven.values().map(|driven| format!("drives {:?}", driven.coordinator));
        let in_replicas = self.replicas.iter().flat_map(|(cohort, replica)| {
            let tablet = replica.state.as_tablet();
            let prepared = tablet.into_iter().flat_map(|tablet| tablet.prepared().keys());
            let decided = tablet.into_iter().flat_map(|tablet| tablet.decided().keys());
            let latches = (!replica.latches.is_empty()).then(|| format!("cohort {cohort} holds latches"));
            let prepared = prepared.map(move |id| format!("cohort {cohort} has prepared {id:?}"));
            prepared.chain(decided.map(move |id| format!("cohort {cohort} has decided {id:?}"))).chain(latches)
        });
        driven.chain(in_replicas).collect()
    }

    fn led_tablet(&self, cohort: CohortId) -> Option<&Tablet> {
        let replica: &Replica = self.replicas.get(&cohort)?;
        replica.state.as_tablet().filter(|_| replica.holds_prepared)
    }

    fn tell_participants(&mut self, cohort: CohortId, transaction: TransactionId, now: Now) {
        let Some(decided) = self.led_tablet(cohort).and_then(|tablet| tablet.decided().get(&transaction)).cloned()
        else {
            return;
        };
        // The commit was repeated.
        let is_resolved = |resolved: &BTreeSet<TransactionId>| resolved.contains(&transaction);
        if self.transactions.resolved.get(&cohort).is_some_and(is_resolved)
            || self.transactions.unresolved.contains_key(&(cohort, transaction))
        {
            return;
        }
        let all = decided.participants.iter().map(|participant| (participant.cohort, true)).collect();
        self.transactions.unresolved.insert((cohort, transaction), all);
        if planted(Bug::DecisionForgottenEarly) {
            self.propose(cohort, Command::Forget { transactions: vec![transaction] }.encode(), now);
        }
        for participant in &decided.participants {
            let origin = ReplyTo::Resolved(cohort, transaction, participant.cohort);
            self.resolve_at(origin, transaction, *participant, Some(decided.timestamp), now);
        }
    }

    /// A participant has resolved a transaction, or gave no reply.
    fn resolve_answered(
        &mut self,
        (cohort, transaction, participant): (CohortId, TransactionId, CohortId),
        outcome: &Outcome,
    ) {
        let is_resolved = outcome.is_ok() || self.catalog().is_gone(participant);
        let Some(unresolved) = self.transactions.unresolved.get_mut(&(cohort, transaction)) else { return };
        if !is_resolved {
            // The next check sends the decision again.
            unresolved.insert(participant, false);
            return;
        }
        unresolved.remove(&participant);
        if unresolved.is_empty() {
            self.transactions.unresolved.remove(&(cohort, transaction));
            self.transactions.resolved.entry(cohort).or_default().insert(transaction);
        }
    }

    /// Checks the prepared and decided transactions of the cohorts that this node leads.
    pub(crate) fn on_transaction_timer(&mut self, now: Now) {
        if self.transactions.next_timer().is_none_or(|at| at > now.monotonic) {
            return;
        }
        self.transactions.look_at = now.monotonic + LOOK;
        for cohort in self.transactions.watched.clone() {
            self.look_after(cohort, now);
        }
    }

    fn look_after(&mut self, cohort: CohortId, now: Now) {
        let in_doubt = self.config.in_doubt;
        let Some(tablet) = self.led_tablet(cohort).filter(|it| !it.prepared().is_empty() || !it.decided().is_empty())
        else {
            self.transactions.watched.remove(&cohort);
            self.transactions.unresolved.retain(|(of, _), _| *of != cohort);
            self.transactions.prepared.retain(|(of, _), _| *of != cohort);
            self.transactions.resolved.remove(&cohort);
            return;
        };
        let known = self.transactions.resolved.get(&cohort);
        let is_resolved = |id: &TransactionId| known.is_some_and(|resolved| resolved.contains(id));
        let (resolved, decided): (Vec<TransactionId>, Vec<TransactionId>) =
            tablet.decided().keys().copied().partition(is_resolved);
        let prepared: Vec<(TransactionId, Coordinator, Timestamp)> =
            tablet.prepared().iter().map(|(id, it)| (*id, it.coordinator.clone(), it.timestamp)).collect();
        let still: BTreeSet<TransactionId> = prepared.iter().map(|(id, ..)| *id).collect();
        self.transactions.prepared.retain(|(of, id), _| *of != cohort || still.contains(id));
        self.transactions.resolved.remove(&cohort);
        if !resolved.is_empty() {
            self.transactions.resolved.insert(cohort, resolved.iter().copied().collect());
            self.propose(cohort, Command::Forget { transactions: resolved }.encode(), now);
        }
        // A split gives decisions to another range.
        self.transactions.unresolved.retain(|(of, id), _| *of != cohort || decided.binary_search(id).is_ok());
        for (transaction, coordinator, timestamp) in prepared {
            let later = DoubtQuery { at: now.monotonic + in_doubt, was_sent: false };
            let query = self.transactions.prepared.entry((cohort, transaction)).or_insert(later);
            if query.at > now.monotonic {
                continue;
            }
            *query = DoubtQuery { was_sent: true, ..later };
            let participant = Participant { cohort, prepared: timestamp };
            if planted(Bug::DoubtMeansAbort) {
                self.resolve_at(ReplyTo::Nobody, transaction, participant, None, now);
                continue;
            }
            let Coordinator { table, key, stamp } = coordinator;
            let query = Query::Machine(TableRequest::Abort { key, stamp }.into());
            let origin = ReplyTo::InDoubt(transaction, participant);
            self.begin(origin, now.monotonic + PATIENCE, Target::Table(table), query, now);
        }
        for transaction in decided {
            if !self.transactions.unresolved.contains_key(&(cohort, transaction)) {
                self.tell_participants(cohort, transaction, now);
            } else {
                self.tell_again(cohort, transaction, now);
            }
        }
    }

    /// A split or a drop waits for the prepared transactions of a range: asks their coordinators sooner.
    pub(crate) fn hurry_transactions(&mut self, cohort: CohortId, now: Now) {
        let Some(tablet) = self.led_tablet(cohort) else { return };
        let prepared: Vec<TransactionId> = tablet.prepared().keys().copied().collect();
        let soon = DoubtQuery { at: now.monotonic + HURRY, was_sent: false };
        for transaction in prepared {
            let query = self.transactions.prepared.entry((cohort, transaction)).or_insert(soon);
            if !query.was_sent {
                query.at = soon.at.min(query.at);
                self.transactions.look_at = query.at.min(self.transactions.look_at);
            }
        }
    }

    /// Repeats a decision to the participants that have not resolved it, unless a request to them is in progress. A
    /// repetition has no effect.
    fn tell_again(&mut self, cohort: CohortId, transaction: TransactionId, now: Now) {
        let Some(decided) = self.led_tablet(cohort).and_then(|tablet| tablet.decided().get(&transaction)).cloned()
        else {
            return;
        };
        for participant in &decided.participants {
            let Some(left) = self.transactions.unresolved.get_mut(&(cohort, transaction)) else { return };
            let Some(is_asked) = left.get_mut(&participant.cohort).filter(|is_asked| !**is_asked) else { continue };
            *is_asked = true;
            let origin = ReplyTo::Resolved(cohort, transaction, participant.cohort);
            self.resolve_at(origin, transaction, *participant, Some(decided.timestamp), now);
        }
    }

    /// The coordinator has replied to a participant's query.
    fn doubt_answered(&mut self, transaction: TransactionId, participant: Participant, outcome: Outcome, now: Now) {
        let committed = match outcome {
            Ok(Response::Tablet(TableResponse::Outcome(outcome))) => outcome.of(participant),
            // A table is dropped only when no participant needs a decision of it any more.
            Err(Failure::UnknownTable(_)) => None,
            // The query is repeated.
            _ => return,
        };
        self.counters.doubts_resolved += 1;
        self.resolve_at(ReplyTo::Nobody, transaction, participant, committed, now);
    }
}

/// Divides a transaction by range, according to the map. Returns the coordinator's cohort and the parts.
///
/// # Errors
/// A table does not exist, or takes no part in transactions.
fn divide(catalog: &Catalog, request: &TransactionRequest) -> Result<(CohortId, Parts), Failure> {
    let find = |name: &str| {
        let table = catalog.table(name).ok_or_else(|| Failure::UnknownTable(name.to_owned()))?;
        if !table.options.takes_part() {
            return Err(precondition(format!("table {name} takes no part in transactions")));
        }
        Ok(table)
    };
    let mut spans = 0_usize;
    let coordinator = find(&request.table)?.at(&KeyPosition::At(request.key.clone())).cohort;
    let mut parts = Parts::new();
    for (name, part) in &request.parts {
        let table = find(name)?;
        // What was read is gone.
        if part.reads.iter().any(|read| read.seen < table.created) {
            return Err(Failure::Aborted(format!("table {name} was created after the transaction has read it")));
        }
        for change in &part.writes {
            let cohort = table.at(&KeyPosition::At(change.key.clone())).cohort;
            parts.entry(cohort).or_default().writes.push(change.clone());
        }
        for ReadSpan { range, seen } in &part.reads {
            if let LockKeys::Key(key) = LockKeys::of(range) {
                let cohort = table.at(&KeyPosition::At(key)).cohort;
                parts.entry(cohort).or_default().reads.push(ReadSpan { range: range.clone(), seen: *seen });
                continue;
            }
            for (own, record) in table.ranges() {
                if let Some(range) = own.intersection(range) {
                    spans += 1;
                    if spans > SPANS_MAX {
                        let what =
                            "the transaction has read too many keys in too many ranges: read them at once, or less";
                        return Err(Failure::Invalid(what.to_owned()));
                    }
                    parts.entry(record.cohort).or_default().reads.push(ReadSpan { range, seen: *seen });
                }
            }
        }
    }
    Ok((coordinator, parts))
}

#[cfg(test)]
mod tests;
