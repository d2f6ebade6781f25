//! Turns a client's write into an entry proposed by the leader (guarantees 1, 10 and 12).

use base::canary::{Bug, planted};
use base::{CohortId, Now};
use bytes::Bytes;
use state_machine::Failure;
use state_machine::interface::{Decision, Evaluated, Payload};
use store::sstable::Io;

use crate::message::{Message, Query};
use crate::node::{AT_ONCE, Node};
use crate::reads::ReadPath;
use crate::replica::{Proposal, Replica};
use crate::request_table::{PendingId, ReplyTo, RequestState};

impl Node {
    /// Proposes a write. This node leads the cohort, and its tablet owns the row.
    pub(crate) fn write(&mut self, id: PendingId, cohort: CohortId, now: Now) {
        let pending = expected!(self.pending_requests.get(id), "only pending requests are routed");
        if self.lacks_majority(cohort, now.monotonic) {
            return self.wait_for_majority(id, cohort);
        }
        let replica = expected!(self.replicas.get_mut(&cohort), "this node leads the cohort");
        if replica.cohort.overloaded() {
            let failure = Failure::Overloaded("too many uncommitted bytes".to_owned());
            return self.complete(id, Err(failure), None);
        }
        if planted(Bug::RefusalBeforeCommit)
            && let Some(failure) = hasty_refusal(replica, &pending.query)
        {
            return self.complete(id, Err(failure), None);
        }
        let lock = pending.query.lock();
        let (locked, is_exclusive) = (lock.map(|lock| lock.key.clone()), lock.is_some_and(|lock| lock.is_exclusive));
        if is_exclusive && !replica.cohort.is_open() {
            // Entries re-proposed by this leader are not applied yet, so the state can't decide a condition.
            return self.pending_requests.place(id, RequestState::Waiting);
        }
        // A change without a key, such as a drop, needs no space.
        if locked.is_some() && self.delay_or_refuse(id, cohort, now) {
            return;
        }
        let (Some(pending), Some(replica)) = (self.pending_requests.get(id), self.replicas.get_mut(&cohort)) else {
            return;
        };
        let ask = expected!(pending.query.ask(), "writes go to a state machine");
        if let Some(key) = &locked
            && !replica.latches.enter(key, id, is_exclusive && !planted(Bug::ConditionIgnoresUnderWay))
        {
            return self.pending_requests.place(id, RequestState::Latched);
        }
        match replica.state.propose(ask) {
            Payload::Decide(read) => self.evaluate(id, cohort, read, ReadPath::Leader { locked }, now),
            Payload::Command(command) => self.propose_for(id, cohort, command, locked, now),
            Payload::Refuse(failure) => {
                self.leave_row(cohort, locked.as_ref());
                self.complete(id, Err(failure), None);
            }
        }
    }

    /// A leader without a majority does not propose: the write would be in doubt, although nothing need be written. A
    /// peer asks again.
    fn wait_for_majority(&mut self, id: PendingId, cohort: CohortId) {
        let pending = expected!(self.pending_requests.get(id), "only pending requests are routed");
        match pending.origin {
            ReplyTo::Peer { node, request } => {
                self.pending_requests.remove(id);
                self.send(node, Message::NotLeader { request, cohort, leader: None }, AT_ONCE, None);
            }
            _ => self.pending_requests.place(id, RequestState::Waiting),
        }
    }

    /// Proposes the decision on a conditional write.
    pub(crate) fn propose_decided(
        &mut self,
        id: PendingId,
        cohort: CohortId,
        verdict: Decision,
        row: Option<&Bytes>,
        now: Now,
    ) {
        let Decision { command, refusal } = verdict;
        self.propose_for(id, cohort, command, row.filter(|_| refusal.is_none()).cloned(), now);
        if let (Some(replica), Some(row)) = (self.replicas.get_mut(&cohort), row) {
            self.pending_requests.unlatch(replica.latches.decided(row));
        }
        if refusal.is_some() {
            // It changes nothing that the waiting writes depend on.
            self.leave_row(cohort, row);
        }
    }

    pub(crate) fn propose_for(
        &mut self,
        id: PendingId,
        cohort: CohortId,
        payload: Bytes,
        row: Option<Bytes>,
        now: Now,
    ) {
        let replica = expected!(self.replicas.get_mut(&cohort), "this node leads the cohort");
        if self.pending_requests.get(id).is_none() {
            // The deadline passed during the read of the disk: nothing was done.
            return self.leave_row(cohort, row.as_ref());
        }
        let Some(lsn) = replica.cohort.propose(payload, now, &mut self.outgoing.outbox) else {
            self.leave_row(cohort, row.as_ref());
            return self.pending_requests.place(id, RequestState::Waiting);
        };
        replica.proposed.insert(lsn.sequence, Proposal { lsn, pending: id, row });
        self.pending_requests.place(id, RequestState::Proposed);
        self.drain(cohort, now);
    }

    /// The entry of a write to the row is applied: writes that wait for the row may be retried.
    pub(crate) fn leave_row(&mut self, cohort: CohortId, row: Option<&Bytes>) {
        if let (Some(replica), Some(row)) = (self.replicas.get_mut(&cohort), row) {
            self.pending_requests.unlatch(replica.latches.leave(row));
        }
    }

    /// The lead is lost, and with it the authority to decide.
    pub(crate) fn leave_all_rows(&mut self, cohort: CohortId) {
        let replica = expected!(self.replicas.get_mut(&cohort), "only a local replica loses its lead");
        for id in replica.latches.clear() {
            self.pending_requests.place(id, RequestState::Waiting);
        }
    }
}

/// For a planted bug: refuses a conditional write from the local state without checking that this node still leads.
fn hasty_refusal(replica: &Replica, query: &Query) -> Option<Failure> {
    let Payload::Decide(read) = replica.state.propose(query.ask()?) else { return None };
    match read.answer(Io::Allowed) {
        Ok(Evaluated::Decided(Decision { refusal, .. })) => refusal,
        _ => None,
    }
}
