//! Turns a client's write into an entry proposed by the leader (guarantees 1, 10 and 12).

use base::canary::{Bug, planted};
use base::{CohortId, Now};
use bytes::Bytes;
use state_machine::Failure;
use state_machine::interface::{Decision, Evaluated, Payload};
use store::sstable::Io;

use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::reads::ReadPath;
use crate::registry::Ask;
use crate::replica::{Proposal, Replica};
use crate::request_table::{Pending, ReplyTo, RequestState, RequestTable};
use crate::requests::RequestStep;
use crate::roster::Roster;
use crate::write_throttle::DiskAdmission;

/// The parts of a node with which the leader decides about a change.
#[derive(Debug)]
pub(crate) struct Writes<'a> {
    pub(crate) replica: &'a mut Replica,
    pub(crate) roster: &'a Roster,
    pub(crate) disk: DiskAdmission<'a>,
    pub(crate) requests: &'a mut RequestTable,
}

impl Writes<'_> {
    /// The next step of a change. This node leads the cohort, and its tablet owns the row.
    pub(crate) fn write(mut self, pending: &Pending, ask: &Ask, now: Now) -> RequestStep {
        let replica = self.replica;
        if self.roster.lacks_majority(replica, now.monotonic) {
            return RequestStep::AwaitMajority;
        }
        if replica.cohort.overloaded() {
            return RequestStep::Reply(Err(Failure::Overloaded("too many uncommitted bytes".to_owned())));
        }
        if planted(Bug::RefusalBeforeCommit)
            && let Some(failure) = hasty_refusal(replica, ask)
        {
            return RequestStep::Reply(Err(failure));
        }
        let lock = ask.lock();
        let (locked, is_exclusive) = (lock.map(|lock| lock.key.clone()), lock.is_some_and(|lock| lock.is_exclusive));
        if is_exclusive && !replica.cohort.is_open() {
            // Entries re-proposed by this leader are not applied yet, so the state can't decide a condition.
            return RequestStep::Wait(RequestState::Waiting);
        }
        // A change without a key, such as a drop, needs no space.
        if locked.is_some()
            && let Some(step) = self.disk.delay_or_refuse(replica, pending, ask.bytes(), now)
        {
            return step;
        }
        if let Some(key) = &locked
            && !replica.latches.enter(key, pending.id, is_exclusive && !planted(Bug::ConditionIgnoresUnderWay))
        {
            return RequestStep::Wait(RequestState::Latched);
        }
        match replica.state.propose(ask) {
            Payload::Decide(read) => RequestStep::Evaluate(read, ReadPath::leader(replica, locked)),
            Payload::Command(command) => RequestStep::Propose(command, locked),
            Payload::Refuse(failure) => {
                leave_row(replica, self.requests, locked.as_ref());
                RequestStep::Reply(Err(failure))
            }
        }
    }
}

/// The entry of a write to the row is applied, or will never be proposed: writes that wait for the row may be retried.
pub(crate) fn leave_row(replica: &mut Replica, requests: &mut RequestTable, row: Option<&Bytes>) {
    if let Some(row) = row {
        requests.unlatch(replica.latches.leave(row));
    }
}

impl Node {
    /// A leader without a majority does not propose: the write would be in doubt, although nothing need be written. A
    /// peer asks again.
    pub(crate) fn await_majority(&mut self, pending: Pending, cohort: CohortId) {
        match pending.origin {
            ReplyTo::Peer { node, request } => {
                self.send(node, Message::NotLeader { request, cohort, leader: None }, AT_ONCE, None);
            }
            _ => self.pending_requests.place(pending, RequestState::Waiting),
        }
    }

    /// Proposes the decision on a conditional write.
    pub(crate) fn propose_decided(
        &mut self,
        pending: Pending,
        cohort: CohortId,
        Decision { command, refusal }: Decision,
        row: Option<Bytes>,
        now: Now,
    ) {
        self.propose_for(pending, cohort, command, row.clone().filter(|_| refusal.is_none()), now);
        let (Some(row), Some(replica)) = (row, self.replicas.get_mut(&cohort)) else { return };
        self.pending_requests.unlatch(replica.latches.decided(&row));
        if refusal.is_some() {
            // It changes nothing that the waiting writes depend on.
            leave_row(replica, &mut self.pending_requests, Some(&row));
        }
    }

    /// Proposes the command of a change, which holds the latch of a row until the command is applied.
    pub(crate) fn propose_for(
        &mut self,
        pending: Pending,
        cohort: CohortId,
        command: Bytes,
        row: Option<Bytes>,
        now: Now,
    ) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let Some(lsn) = replica.cohort.propose(command, now, &mut self.outgoing.outbox) else {
            leave_row(replica, &mut self.pending_requests, row.as_ref());
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        replica.proposed.insert(lsn.sequence, Proposal { lsn, pending: pending.id, row });
        self.pending_requests.place(pending, RequestState::Proposed);
        self.drain(cohort, now);
    }
}

/// For a planted bug: refuses a conditional write from the local state without checking that this node still leads.
fn hasty_refusal(replica: &Replica, ask: &Ask) -> Option<Failure> {
    let Payload::Decide(read) = replica.state.propose(ask) else { return None };
    match read.answer(Io::Allowed) {
        Ok(Evaluated::Decided(Decision { refusal, .. })) => refusal,
        _ => None,
    }
}
