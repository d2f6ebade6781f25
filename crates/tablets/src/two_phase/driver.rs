//! The driver of a transaction: prepares, decision and reply.

use std::collections::BTreeSet;

use base::canary::{Bug, planted};
use base::{CohortId, Monotonic, PRIORITY, UNREACHABLE};
use state_machine::range_map::RangeMap;
use state_machine::{Failure, LockOwner};

use super::division::divide;
use super::{Action, Asked, Call, Destination, TwoPhase};
use crate::request::{Outcome, TableRequest, TableResponse};
use crate::transaction::{
    Commit, Coordinator, DRAINING, Participant, Prepare, SPLIT, TransactionId, TransactionOutcome, TransactionPart,
    TransactionRequest,
};

/// A transaction that this node drives.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) coordinator: Coordinator,
    owner: LockOwner,
    part: TransactionPart,
    deadline: Monotonic,
    phase: Phase,
    /// Participants that have not replied to the prepare.
    awaited: BTreeSet<CohortId>,
    prepared: Vec<Participant>,
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

impl TwoPhase {
    /// Begins to commit a transaction: in one range, or with two phases in several. It ends with [`Action::Reply`] by the
    /// deadline, unless the node cancels it ([`TwoPhase::cancelled`]).
    ///
    /// # Errors
    /// Nothing was begun: a table takes no part in transactions, or is not in the map ([`Failure::UnknownTable`]).
    pub fn start(
        &mut self,
        call: Call,
        request: &TransactionRequest,
        map: &impl RangeMap,
        deadline: Monotonic,
        now: Monotonic,
    ) -> Result<(), Failure> {
        let (coordinator, mut parts) = divide(map, request)?;
        let TransactionRequest { stamp, table, key, owner, .. } = request;
        let (owner, part) = (*owner, parts.remove(&coordinator).unwrap_or_default());
        if planted(Bug::ReaderNotPrepared) {
            parts.retain(|_, part| !part.writes.is_empty());
        }
        let coordinator = Coordinator { table: table.clone(), key: key.clone(), stamp: *stamp };
        let driven = Driven {
            coordinator: coordinator.clone(),
            owner,
            part,
            deadline,
            phase: Phase::Preparing,
            awaited: parts.keys().copied().collect(),
            prepared: Vec::new(),
        };
        self.driven.insert(call, driven);
        if parts.is_empty() {
            self.commit(call);
            return Ok(());
        }
        // The rest of the time is for the decision.
        let until = now + deadline.since(now).percent(75);
        for (cohort, part) in parts {
            let prepare = Prepare { coordinator: coordinator.clone(), owner, part };
            let request = TableRequest::Prepare(Box::new(prepare));
            self.send(Destination::Cohort(cohort), request, until, Some(Asked::Prepare(call, cohort)));
        }
        Ok(())
    }

    /// The deadline of a client's transaction has passed: its outcome is unknown. Participants ask the coordinator.
    pub fn cancelled(&mut self, call: Call) {
        self.driven.remove(&call);
    }

    /// A participant has replied to a prepare.
    pub(super) fn prepare_answered(&mut self, call: Call, cohort: CohortId, outcome: Outcome, now: Monotonic) {
        // None if the transaction was cancelled.
        let Some(driven) = self.driven.get_mut(&call) else { return };
        driven.awaited.remove(&cohort);
        let failure = match outcome {
            Ok(TableResponse::Prepared { timestamp }) => {
                driven.prepared.push(Participant { cohort, prepared: timestamp });
                None
            }
            Ok(other) => Some(Failure::Invalid(format!("not a reply to a prepare: {other:?}"))),
            Err(failure) => Some(failure),
        };
        match (&driven.phase, failure) {
            (Phase::Preparing, Some(failure)) => self.abort(call, failure),
            (Phase::Preparing, None) if driven.awaited.is_empty() => self.commit(call),
            (Phase::Ended(_), _) => self.release_prepared(call, now),
            (Phase::Preparing | Phase::Committing | Phase::Aborting(_), _) => {}
        }
    }

    /// All participants have prepared: asks the coordinator to commit.
    fn commit(&mut self, call: Call) {
        let Some(driven) = self.driven.get_mut(&call) else { return };
        driven.phase = Phase::Committing;
        let Coordinator { table, key, stamp } = driven.coordinator.clone();
        let (owner, part, participants) = (driven.owner, std::mem::take(&mut driven.part), driven.prepared.clone());
        let deadline = driven.deadline;
        let request = TableRequest::Commit(Box::new(Commit { stamp, key, owner, part, participants }));
        self.send(Destination::Table(table), request, deadline, Some(Asked::Decide(call)));
    }

    /// The transaction cannot be committed as far as this driver knows: the coordinator decides.
    fn abort(&mut self, call: Call, failure: Failure) {
        let Some(driven) = self.driven.get_mut(&call) else { return };
        driven.phase = Phase::Aborting(failure);
        let Coordinator { table, key, stamp } = driven.coordinator.clone();
        let deadline = driven.deadline;
        let request = TableRequest::Abort { key, stamp };
        self.send(Destination::Table(table), request, deadline, Some(Asked::Decide(call)));
    }

    /// The coordinator has replied to a commit or an abort.
    pub(super) fn decision_answered(&mut self, call: Call, outcome: Outcome, now: Monotonic) {
        // None if the transaction was cancelled.
        let Some(driven) = self.driven.get_mut(&call) else { return };
        let is_alone = driven.prepared.is_empty() && driven.awaited.is_empty();
        match (std::mem::replace(&mut driven.phase, Phase::Ended(TransactionOutcome::Aborted)), outcome) {
            // Another driver was faster.
            (
                Phase::Committing | Phase::Aborting(_),
                Ok(TableResponse::Outcome(outcome @ TransactionOutcome::Committed { timestamp: version, .. })),
            ) => {
                driven.phase = Phase::Ended(outcome);
                self.reply(call, Ok(TableResponse::Written { version }));
                self.release_prepared(call, now);
            }
            (Phase::Committing, Ok(response)) => self.end(call, Ok(response)),
            (Phase::Committing, Err(failure @ Failure::Aborted(_))) => self.end_aborted(call, failure, now),
            // Nothing was done, and nothing else has to be undone.
            (Phase::Committing, Err(failure)) if is_alone && !matches!(failure, Failure::Unknown(_)) => {
                self.end(call, Err(failure));
            }
            (Phase::Committing, Err(failure)) => self.abort(call, failure),
            (Phase::Aborting(failure), Ok(TableResponse::Outcome(TransactionOutcome::Aborted))) => {
                self.end_aborted(call, failure, now);
            }
            (Phase::Aborting(failure), Ok(TableResponse::Outcome(_))) => {
                // An earlier attempt of the commit may have been executed before the session ended.
                if matches!(failure, Failure::Unknown(_)) {
                    let unknown = format!("{failure}; the coordinator does not know the transaction any more");
                    self.reply(call, Err(Failure::Unknown(unknown)));
                    return self.release_prepared(call, now);
                }
                let session = driven.coordinator.stamp.session;
                self.end_aborted(call, Failure::UnknownSession(session), now);
            }
            (Phase::Aborting(failure), other) => {
                let reason = other.err().map_or_else(String::new, |failure| format!(" ({failure})"));
                let unknown = format!("{failure}; the transaction's coordinator gave no outcome{reason}");
                self.end(call, Err(Failure::Unknown(unknown)));
            }
            (phase @ (Phase::Preparing | Phase::Ended(_)), _) => driven.phase = phase,
        }
    }

    fn reply(&mut self, call: Call, outcome: Outcome) {
        self.actions.push(Action::Reply { call, outcome });
    }

    /// Ends a transaction that is committed, or that the participants must resolve by queries.
    fn end(&mut self, call: Call, outcome: Outcome) {
        self.driven.remove(&call);
        self.reply(call, outcome);
    }

    /// Ends a transaction that is aborted for good.
    fn end_aborted(&mut self, call: Call, failure: Failure, now: Monotonic) {
        let failure = match failure {
            // Trying the transaction again does not help.
            Failure::Precondition(_)
            | Failure::Invalid(_)
            | Failure::NoSpace(_)
            | Failure::UnknownTable(_)
            | Failure::UnknownSession(_) => failure,
            Failure::Aborted(_) => failure,
            Failure::Unavailable(reason) if ![PRIORITY, DRAINING, SPLIT].contains(&reason.as_str()) => {
                Failure::Aborted(format!("{UNREACHABLE}: {reason}"))
            }
            Failure::Unavailable(reason) => Failure::Aborted(reason),
            Failure::Unknown(reason) => Failure::Aborted(format!("{UNREACHABLE}: {reason}")),
            other => Failure::Aborted(other.to_string()),
        };
        if let Some(driven) = self.driven.get_mut(&call) {
            driven.phase = Phase::Ended(TransactionOutcome::Aborted);
        }
        self.reply(call, Err(failure));
        self.release_prepared(call, now);
    }

    /// Sends an abort to the participants that have prepared and that the decision does not name. Those that have not
    /// replied yet receive it when they do. The coordinator informs the others.
    fn release_prepared(&mut self, call: Call, now: Monotonic) {
        let Some(driven) = self.driven.get_mut(&call) else { return };
        let transaction = TransactionId::from(&driven.coordinator.stamp);
        let mut prepared = std::mem::take(&mut driven.prepared);
        if let Phase::Ended(outcome) = &driven.phase {
            prepared.retain(|participant| outcome.of(*participant).is_none());
        }
        if driven.awaited.is_empty() {
            self.driven.remove(&call);
        }
        for participant in prepared {
            self.resolve_at(None, transaction, participant, None, now);
        }
    }
}
