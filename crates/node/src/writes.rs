//! From a client's write to the entry that its leader proposes for it (guarantees 1, 10 and 12).

use base::canary::{Bug, planted};
use base::{CohortId, Now};
use bytes::Bytes;
use tablets::request::{Failure, Write};
use tablets::{Command, State};

use crate::message::Query;
use crate::node::Node;
use crate::pending::{PendingId, Place};
use crate::replica::{Proposal, Replica};

impl Node {
    /// We lead the cohort, and its log is to decide.
    pub(crate) fn write(&mut self, id: PendingId, cohort: CohortId, now: Now) {
        let Some(pending) = self.pendings.get(id) else { return };
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        if replica.cohort.overloaded() {
            let failure = Failure::Overloaded("too many bytes wait to be committed".to_owned());
            return self.complete(id, Err(failure), None);
        }
        if planted(Bug::RefusalBeforeCommit)
            && let Some(failure) = hasty_refusal(replica, &pending.query)
        {
            return self.complete(id, Err(failure), None);
        }
        let is_conditional = pending.query.write().is_some_and(Write::is_conditional);
        if is_conditional && !replica.cohort.is_open() {
            // What this leader re-proposed is not applied yet: the state does not decide anything.
            return self.pendings.place(id, Place::Waiting);
        }
        let mut row = pending.query.row().cloned();
        if let Some(row) = &row
            && !replica.latches.enter(row, id, is_conditional && !planted(Bug::ConditionIgnoresUnderWay))
        {
            return self.pendings.place(id, Place::Latched);
        }
        let Some(payload) = payload(&replica.state, pending.query.clone()) else {
            let failure = Failure::Invalid("this cohort's log can't carry that".to_owned());
            self.leave_row(cohort, row.as_ref());
            return self.complete(id, Err(failure), None);
        };
        let Payload { bytes, writes } = payload;
        let Some(lsn) = replica.cohort.propose(bytes, now, &mut self.outgoing.outbox) else {
            return self.leave_row(cohort, row.as_ref());
        };
        if !writes {
            // A refusal changes nothing that whoever waits would look at.
            let row = row.take();
            self.leave_row(cohort, row.as_ref());
        }
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        replica.proposed.insert(lsn.sequence, Proposal { lsn, pending: id, row });
        self.pendings.place(id, Place::Proposed);
        self.drain(cohort, now);
    }

    /// The entry that was proposed for a write of the row is applied: those who wait for the row may try again.
    pub(crate) fn leave_row(&mut self, cohort: CohortId, row: Option<&Bytes>) {
        if let (Some(replica), Some(row)) = (self.replicas.get_mut(&cohort), row) {
            self.unlatched.extend(replica.latches.leave(row));
        }
    }

    /// The lead is lost, and with it the right to decide.
    pub(crate) fn leave_all_rows(&mut self, cohort: CohortId) {
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        for id in replica.latches.clear() {
            self.pendings.place(id, Place::Waiting);
        }
    }

    /// Tries those that waited for a row again.
    pub(crate) fn retry_unlatched(&mut self, now: Now) {
        while !self.unlatched.is_empty() {
            for id in std::mem::take(&mut self.unlatched) {
                self.route(id, now);
            }
        }
    }
}

/// What an entry is to carry.
struct Payload {
    bytes: Bytes,
    /// Whether it changes rows.
    writes: bool,
}

/// What the entry for a query carries; nothing if it is not for this cohort's log.
fn payload(state: &State, query: Query) -> Option<Payload> {
    let (bytes, writes) = match (state, query) {
        (State::Tablet(tablet), Query::Write(write)) => {
            let command = tablet.decide(write);
            (command.encode(), !matches!(command, Command::Refuse { .. }))
        }
        (State::Tablet(_), Query::Command(command)) => (command.encode(), true),
        (State::Catalogue(_), Query::Catalogue(command)) => (command.encode(), true),
        _ => return None,
    };
    Some(Payload { bytes, writes })
}

/// What a leader must not do: refuse a conditional write from its state alone, whether it still leads or not.
fn hasty_refusal(replica: &Replica, query: &Query) -> Option<Failure> {
    let tablet = replica.state.as_tablet()?;
    match tablet.decide(query.write()?.clone()) {
        Command::Refuse { mismatch, .. } => Some(mismatch.into()),
        _ => None,
    }
}
