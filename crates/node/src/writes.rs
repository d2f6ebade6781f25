//! Turns a client's write into an entry proposed by the leader (guarantees 1, 10 and 12).

use base::canary::{Bug, planted};
use base::{CohortId, Now};
use bytes::Bytes;
use state_machine::interface::{Decision, Evaluated, Payload};
use state_machine::{Failure, Locks};
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
    /// The next step of a change. This node leads the cohort, and its machine owns the position where the request
    /// begins.
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
        let locks = ask.locks();
        if locks.is_exclusive() && !replica.cohort.is_open() {
            // Entries re-proposed by this leader are not applied yet, so the state can't decide a condition.
            return RequestStep::Wait(RequestState::Waiting);
        }
        if let Some(step) = self.disk.delay_or_refuse(replica, pending, ask.bytes(), now) {
            return step;
        }
        if !replica.latches.enter(&locks, pending.id) {
            return RequestStep::Wait(RequestState::Latched);
        }
        match replica.state.propose(ask) {
            Payload::Decide(read) => RequestStep::Evaluate(read, ReadPath::leader(replica, locks)),
            Payload::Command(command) => RequestStep::Propose(command, locks),
            Payload::Refuse(failure) => {
                release(replica, self.requests, &locks);
                RequestStep::Reply(Err(failure))
            }
        }
    }
}

/// The entry of a change with these latches is applied, or will never be proposed: changes that wait for the latches
/// may be retried.
pub(crate) fn release(replica: &mut Replica, requests: &mut RequestTable, locks: &Locks) {
    requests.unlatch(replica.latches.leave(locks));
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
        locks: &Locks,
        now: Now,
    ) {
        // A refusal changes nothing that other changes depend on, so its entry needs no latches.
        let held = if refusal.is_none() { locks.clone() } else { Locks::None };
        self.propose_for(pending, cohort, command, held, now);
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        self.pending_requests.unlatch(replica.latches.decided(locks));
        if refusal.is_some() {
            release(replica, &mut self.pending_requests, locks);
        }
    }

    /// Proposes the command of a change, which holds these latches until the command is applied.
    pub(crate) fn propose_for(&mut self, pending: Pending, cohort: CohortId, command: Bytes, locks: Locks, now: Now) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let Some(lsn) = replica.cohort.propose(command, now, &mut self.outgoing.outbox) else {
            release(replica, &mut self.pending_requests, &locks);
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        replica.proposed.insert(lsn.sequence, Proposal { lsn, pending: pending.id, locks });
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
