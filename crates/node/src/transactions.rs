//! Carries out the actions of the machine of transactions over several ranges (`tablets::two_phase`; guarantee 18): routes
//! its requests, and returns the replies.

use base::{CohortId, Duration, Monotonic, Now, PRIORITY};
use catalog::CatalogRequest;
use state_machine::Failure;
use tablets::transaction::CONFLICT;

use crate::message::Query;
use crate::node::{Node, catalog_of};
use crate::registry::{
    AnyMachine, Call, Destination, ReplyTag, Response, TwoPhase, TwoPhaseAction, tablet_outcome, unanswerable,
};
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::request::{Outcome, TransactionCounts};
use crate::request_table::{Pending, PendingId, ReplyTo, RequestState, Target};

#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) machine: TwoPhase,
    /// Replies to the machine's requests.
    pub(crate) answers: Vec<(ReplyTag, Outcome)>,
    pub(crate) counts: TransactionCounts,
}

impl Transactions {
    pub(crate) fn new(in_doubt: Duration) -> Self {
        Self { machine: TwoPhase::new(in_doubt), answers: Vec::new(), counts: Default::default() }
    }

    /// A transaction that this node drove has ended.
    fn count(&mut self, failure: Option<&Failure>) {
        let counts = &mut self.counts;
        let count = match failure {
            None => &mut counts.committed,
            Some(Failure::Aborted(reason)) if reason == PRIORITY => &mut counts.aborted_by_priority,
            Some(Failure::Aborted(reason)) if reason == CONFLICT => &mut counts.aborted_by_conflict,
            Some(Failure::Aborted(_) | Failure::Unavailable(_)) => &mut counts.aborted,
            Some(Failure::Unknown(_)) => &mut counts.unknown,
            Some(_) => &mut counts.refused,
        };
        *count += 1;
    }

    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.machine.next_timer()
    }
}

/// The state of a cohort, if this node leads it and holds the locks of its prepared transactions.
fn led_state(replicas: &Replicas, cohort: CohortId) -> Option<&AnyMachine> {
    let replica: &Replica = replicas.get(&cohort)?;
    replica.holds_prepared.then_some(&replica.state)
}

impl Node {
    /// Begins to commit a transaction.
    pub(crate) fn drive(&mut self, pending: Pending, now: Now) {
        let Query::Transaction(request) = &pending.query else {
            return self.respond(pending, Err(unanswerable()), None);
        };
        let (call, map) = (Call(pending.id.0), catalog_of(&self.replicas));
        match self.transactions.machine.start(call, request, map, pending.deadline, now.monotonic) {
            Ok(()) => {
                self.pending_requests.place(pending, RequestState::Driven);
                self.act_on_transactions(now);
            }
            // The local copy of the catalog may lack it.
            Err(Failure::UnknownTable(table)) => {
                self.look_up(pending, Query::Machine(CatalogRequest::FindTable(table).into()), now);
            }
            Err(failure) => self.respond(pending, Err(failure), None),
        }
    }

    /// The deadline of a client's transaction has passed.
    pub(crate) fn cancel_transaction(&mut self, id: PendingId) {
        self.transactions.machine.cancelled(Call(id.0));
    }

    /// Passes replies and decisions to the machine.
    pub(crate) fn run_transactions(&mut self, now: Now) -> bool {
        let answers = std::mem::take(&mut self.transactions.answers);
        let decided = self.transactions.machine.take_decided();
        let has_work = !decided.is_empty() || !answers.is_empty();
        for (tag, outcome) in answers {
            let (outcome, map) = (tablet_outcome(outcome), catalog_of(&self.replicas));
            self.transactions.machine.answered(tag, outcome, map, now.monotonic);
            self.counters.doubts_resolved = self.transactions.machine.doubts_resolved();
            self.act_on_transactions(now);
        }
        for (cohort, transaction) in decided {
            let tablet = led_state(&self.replicas, cohort).and_then(AnyMachine::as_tablet);
            self.transactions.machine.announce(cohort, transaction, tablet, now.monotonic);
            self.act_on_transactions(now);
        }
        has_work
    }

    pub(crate) fn on_transaction_timer(&mut self, now: Now) {
        for cohort in self.transactions.machine.take_due(now.monotonic) {
            let tablet = led_state(&self.replicas, cohort).and_then(AnyMachine::as_tablet);
            self.transactions.machine.check(cohort, tablet, now.monotonic);
            self.act_on_transactions(now);
        }
    }

    /// A split or a drop waits for the prepared transactions of a range.
    pub(crate) fn hurry_transactions(&mut self, cohort: CohortId, now: Now) {
        let tablet = led_state(&self.replicas, cohort).and_then(AnyMachine::as_tablet);
        self.transactions.machine.hurry(cohort, tablet, now.monotonic);
    }

    fn act_on_transactions(&mut self, now: Now) {
        for action in self.transactions.machine.take_actions() {
            match action {
                TwoPhaseAction::Send { to, request, deadline, tag } => {
                    let target = match to {
                        Destination::Cohort(cohort) => Target::Cohort(cohort),
                        Destination::Table(table) => Target::Table(table),
                    };
                    let origin = tag.map_or(ReplyTo::Nobody, ReplyTo::TwoPhase);
                    self.begin(origin, deadline, target, Query::Machine(request.into()), now);
                }
                TwoPhaseAction::Reply { call, outcome } => {
                    self.transactions.count(outcome.as_ref().err());
                    self.complete(PendingId(call.0), outcome.map(Response::from), None);
                }
                TwoPhaseAction::Propose { cohort, command } => self.propose(cohort, command, now),
            }
        }
    }

    /// The transactions that this node drives, those that are prepared or decided in its replicas, and latches that
    /// are held: for the simulator.
    #[must_use]
    pub fn transactions_left(&self) -> Vec<String> {
        let driven = self.transactions.machine.driven().map(|coordinator| format!("drives {coordinator:?}"));
        let in_replicas = self.replicas.iter().flat_map(|(cohort, replica)| {
            let left = replica.state.as_tablet().into_iter().flat_map(|tablet| tablet.transactions_left());
            let latches = (!replica.latches.is_empty()).then(|| "holds latches".to_owned());
            left.chain(latches).map(move |what| format!("cohort {cohort} {what}"))
        });
        driven.chain(in_replicas).collect()
    }
}

#[cfg(test)]
mod tests;
