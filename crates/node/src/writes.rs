//! Turns a client's write into an entry proposed by the leader (guarantees 1, 10 and 12).

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Now, PRIORITY, Timestamp};
use bytes::Bytes;
use replication::COMMIT_WAIT_MAX;
use state_machine::failure::precondition;
use state_machine::interface::{Decision, Evaluated, Payload};
use state_machine::{Failure, Locks};
use store::sstable::Io;
use tablets::transaction::DRAINING;

use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::reads::ReadPath;
use crate::registry::Ask;
use crate::replica::{Proposal, Replica};
use crate::request_table::{Pending, RETRY, ReplyTo, RequestState, RequestTable};
use crate::requests::RequestStep;
use crate::roster::Roster;
use crate::write_throttle::DiskAdmission;

/// How long new transactions over several ranges are refused after an attempt of a split or a drop that waits for those
/// in progress. Longer than the interval between the attempts.
const DRAINS: Duration = Duration(5 * RETRY.0);

/// The parts of a node with which the leader decides about a change.
#[derive(Debug)]
pub(crate) struct Writes<'a> {
    pub(crate) replica: &'a mut Replica,
    pub(crate) roster: &'a Roster,
    pub(crate) disk: DiskAdmission<'a>,
    pub(crate) requests: &'a mut RequestTable,
    /// Why the clock permits no transaction now, if the change is one.
    pub(crate) clock: Option<String>,
}

impl Writes<'_> {
    /// The next step of a change. This node leads the cohort, and its machine owns the position where the request
    /// begins.
    pub(crate) fn write(mut self, pending: &Pending, ask: &Ask, now: Now) -> RequestStep {
        let replica = self.replica;
        if self.roster.lacks_quorum(replica, now.monotonic) {
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
        let locks = if replica.state.holds_locks_of(ask) { Locks::NONE } else { ask.locks() };
        if !locks.is_empty() && !replica.holds_prepared && !planted(Bug::PreparedLocksLate) {
            // Entries re-proposed by this leader are not applied yet: the state can neither decide a condition nor show
            // which transactions are prepared.
            return RequestStep::Wait(RequestState::Waiting);
        }
        if ask.needs_clock()
            && let Some(failure) = self.clock.map(precondition).or_else(|| clock_refusal(replica, ask.floor(), now))
        {
            return RequestStep::Reply(Err(failure));
        }
        if let Some(step) = self.disk.delay_or_refuse(replica, pending, ask.bytes(), now) {
            return step;
        }
        if locks.excludes_all() && replica.latches.have_owners() {
            // In the queue for latches, all later changes would wait behind it for other ranges.
            replica.drains_until = now.monotonic + DRAINS;
            return RequestStep::AwaitTransactions;
        }
        if locks.owner.is_some() && now.monotonic < replica.drains_until {
            return RequestStep::Reply(Err(Failure::Unavailable(DRAINING.to_owned())));
        }
        if !replica.read_locks.is_empty() {
            let owners = replica.read_locks.owners();
            replica.read_locks.forget_dead(|node| self.roster.is_alive(node, now.monotonic));
            if !replica.read_locks.give_way(&locks, ask.owner(), now.monotonic) {
                return match locks.owner {
                    None => RequestStep::AwaitLock(RequestState::Waiting),
                    Some(_) => RequestStep::Reply(Err(priority())),
                };
            }
            // Younger transactions that waited for its read locks may queue for its latches.
            if replica.read_locks.owners() < owners {
                self.requests.wake();
            }
        }
        if replica.latches.are_of_older(&locks) {
            return RequestStep::Reply(Err(priority()));
        }
        if !replica.latches.enter(&locks, pending.id) {
            return RequestStep::AwaitLock(RequestState::Latched);
        }
        match replica.state.propose(ask) {
            Payload::Decide(read) => RequestStep::Evaluate(read, ReadPath::leader(replica, locks)),
            Payload::Command(command) => RequestStep::Propose(command, locks),
            Payload::Refuse(failure) => {
                self.requests.unlatch(replica.latches.abandon(&locks));
                RequestStep::Reply(Err(failure))
            }
        }
    }
}

/// Why this leader cannot decide about a transaction.
fn clock_refusal(replica: &Replica, floor: Timestamp, now: Now) -> Option<Failure> {
    if !replica.cohort.config().waits {
        return Some(precondition(format!("table {} takes no part in transactions", replica.table)));
    }
    // The wrong time must not spread to other ranges.
    let latest = now.interval().map(|interval| interval.latest);
    let ahead = latest.map_or(0, |latest| floor.0.saturating_sub(latest.0));
    if u64::try_from(ahead).is_ok_and(|ahead| ahead > COMMIT_WAIT_MAX.0) {
        return Some(precondition(format!(
            "the clock of another range's leader is {} ms ahead of this one's, so one of them is wrong",
            ahead / 1_000_000
        )));
    }
    replica.cohort.ahead_of_clock(now).map(|ahead| {
        let seconds = ahead.as_millis() / 1_000;
        precondition(format!(
            "the log of a range of table {} is {seconds} s ahead of the clock, so a clock was wrong before; transactions \
             are possible once the clock has reached it",
            replica.table
        ))
    })
}

/// An older transaction has priority: this one must be tried again.
fn priority() -> Failure {
    Failure::Unavailable(PRIORITY.to_owned())
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
        Decision { command, refusal, keeps_locks }: Decision,
        locks: Locks,
        now: Now,
    ) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        // The lead may be lost with the proposal, so the latches are given up before. No other change takes them in
        // this step, and its entry would be a later one.
        let held = match refusal {
            // A refusal changes nothing that other changes depend on, so its entry needs no latches.
            Some(_) => {
                self.pending_requests.unlatch(replica.latches.abandon(&locks));
                Locks::NONE
            }
            None if keeps_locks => locks,
            None => {
                self.pending_requests.unlatch(replica.latches.decided(&locks));
                locks
            }
        };
        self.propose_for(pending, cohort, command, (held, keeps_locks), now);
    }

    /// Proposes the command of a change, which holds these latches until the command is applied, or longer.
    pub(crate) fn propose_for(
        &mut self,
        pending: Pending,
        cohort: CohortId,
        command: Bytes,
        (locks, keeps_locks): (Locks, bool),
        now: Now,
    ) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let (floor, commits) = (pending.query.floor(), pending.query.ask().is_some_and(Ask::needs_clock));
        let Some(lsn) = replica.cohort.propose_from(command, floor, now, &mut self.outgoing.outbox) else {
            let woken = if keeps_locks { replica.latches.abandon(&locks) } else { replica.latches.leave(&locks) };
            self.pending_requests.unlatch(woken);
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        replica.proposed.insert(lsn.sequence, Proposal { lsn, pending: pending.id, locks, keeps_locks, commits });
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
