//! Reads that a replica answers from its own state, as leader or follower (Spinnaker, sections 3 and 5; guarantees 13,
//! 15 and 16).
//!
//! A *timeline* read returns the rows as applied by this replica, with a bound on their staleness. It waits while the
//! replica may be behind the state that the client has seen: after a restart until the replica has caught up with the
//! leader, and always until it has applied the LSN in the request. It also waits while no leader is known, unless the
//! client accepts stale data.
//!
//! A strong read *anywhere* is answered once a read-index check has returned an entry and the replica has applied it
//! (`replication`'s `read_index`; Gaios, 3.3.2). If leases are disabled, the leader answers all strong reads this way.
//!
//! A *snapshot* read returns the rows as of a timestamp of the log. Timestamps grow along the log, so a replica that
//! has applied an entry with that timestamp or a later one has all relevant entries. If the log is behind the
//! timestamp, the leader proposes an empty entry to advance it. The leader rejects timestamps far ahead of its clock.

use base::canary::{Bug, planted};
use base::{CohortId, DEADLOCK, Duration, Epoch, Lsn, Monotonic, Now, OVERTAKEN, Timestamp};
use bytes::Bytes;
use state_machine::interface::{Awaited, ReadStep};
use state_machine::{AsOf, Consistency, Failure, KeyOwner, LockKeys, LockMode, Locks, LogPlace};

use crate::node::Node;
use crate::read_locks::{Claim, Loss};
use crate::registry::{Ask, View};
use crate::replica::{Proposal, Replica};
use crate::request::Outcome;
use crate::request_table::{Pending, ReplyTo, RequestState};
use crate::requests::RequestStep;
use crate::roster::Roster;
use crate::views::dated;

/// Maximum tolerated clock skew, far above the skew under a time service. A timestamp further ahead of the leader's
/// clock is in the future, and a read of it is rejected.
const CLOCKS_DIFFER: Duration = Duration::from_millis(10_000);

/// The basis on which a result is valid.
#[derive(Clone, Debug)]
pub(crate) enum ReadPath {
    /// This node led the cohort when the read started.
    Leader {
        /// The epoch at that time.
        epoch: Epoch,
        /// The latches held for it, if it decides a change.
        locks: Locks,
        /// The state to name in the response, for a read of a transaction.
        as_of: Option<Box<AsOf>>,
    },
    /// A read-index check.
    ReadIndex {
        /// The state to name in the response, for a read of a transaction.
        as_of: Option<Box<AsOf>>,
    },
    /// The replica's own state at the time of the read, without further conditions.
    Replica(Box<AsOf>),
}

impl ReadPath {
    /// The path of a read that starts at the leader.
    pub(crate) fn leader(replica: &Replica, locks: Locks) -> Self {
        Self::Leader { epoch: replica.cohort.promised().epoch, locks, as_of: None }
    }
}

/// The next step of a read that any replica may answer, at this replica. `None` if another node must answer it.
pub(crate) fn read_here(replica: &Replica, pending: &Pending, now: Now) -> Option<RequestStep> {
    let ask = pending.query.ask().filter(|ask| ask.consistency().is_for_any_replica())?;
    let current = replica.state.view()?;
    match replica.state.owner_of(ask.position().as_ref()) {
        KeyOwner::This => {}
        KeyOwner::Unassigned => return Some(RequestStep::Wait(RequestState::Waiting)),
        KeyOwner::Other => return Some(RequestStep::Elsewhere),
    }
    let cohort = replica.cohort.config().cohort;
    let view = match ask.consistency() {
        Consistency::Strong | Consistency::StrongAsOf | Consistency::Locking(_) | Consistency::ForUpdate(_) => {
            return None;
        }
        Consistency::Anywhere => return Some(check_read_index(replica)),
        Consistency::Timeline { at_least, stale_ok } => {
            let (requirement, is_current) =
                (ReadRequirement { cohort, at_least, stale_ok }, replica.cohort.is_current());
            let has_leader = replica.cohort.leader().is_some();
            if !requirement.may_be_shown(replica.state.last_applied(), has_leader, is_current) {
                return Some(RequestStep::Wait(RequestState::Waiting));
            }
            current
        }
        Consistency::At(moment) => match current.at(moment) {
            Ok(view) => view,
            Err(failure @ (Failure::Invalid(_) | Failure::Precondition(_))) => {
                return Some(RequestStep::Reply(Err(failure)));
            }
            Err(_) => return replica.cohort.leads().then_some(RequestStep::AwaitTimestamp(moment)),
        },
    };
    let as_of = as_of(replica, &view, cohort, now.monotonic);
    Some(RequestStep::Evaluate(view.read(ask)?, ReadPath::Replica(Box::new(as_of))))
}

/// A read by read index asks a majority. Under primary/backup replication, only the primary can answer a current read,
/// because a majority may consist of members of an earlier configuration.
pub(crate) fn check_read_index(replica: &Replica) -> RequestStep {
    if !replica.cohort.is_managed() {
        return RequestStep::CheckReadIndex;
    }
    let reason = "a table with primary/backup replication answers no read at any replica by read index: read at its \
                  primary (strong), at a replica as of its own state (timeline), or as of a timestamp";
    RequestStep::Reply(Err(Failure::Precondition(reason.to_owned())))
}

/// Reads the applied state at the leader. The reply may be sent only while the lease is valid, by a clock read after
/// this.
pub(crate) fn read_as_leader(replica: &Replica, pending: &Pending, ask: &Ask, now: Now) -> RequestStep {
    if replica.cohort.lease_end(now.monotonic).is_none() {
        return RequestStep::AwaitLease;
    }
    let epoch = replica.cohort.promised().epoch;
    read_by(replica, pending, ask, now, |as_of| ReadPath::Leader { epoch, locks: Locks::NONE, as_of })
}

/// Reads for a transaction at the leader: waits for changes in progress of these keys, and locks them.
pub(crate) fn read_and_lock(
    replica: &mut Replica,
    roster: &Roster,
    pending: &Pending,
    ask: &Ask,
    now: Now,
) -> RequestStep {
    if !replica.holds_prepared {
        return RequestStep::Wait(RequestState::Waiting);
    }
    if replica.cohort.config().timing.leases && replica.cohort.lease_end(now.monotonic).is_none() {
        return RequestStep::AwaitLease;
    }
    let locks = ask.locks();
    // Waiting for changes in progress only saves a commit that would fail.
    let is_of_keys = locks.spans().iter().all(|span| matches!(span.keys, LockKeys::Key(_)));
    if is_of_keys && !replica.latches.pass(&locks, pending.id) {
        return RequestStep::AwaitLock(RequestState::Latched);
    }
    if let Some(owner) = ask.owner() {
        let node = if let ReplyTo::Peer { node, .. } = pending.origin { node } else { roster.me.node };
        if let Consistency::ForUpdate(_) = ask.consistency() {
            replica.read_locks.forget_dead(|node| roster.is_alive(node, now.monotonic));
            match replica.read_locks.claim(owner, node, &locks, now.monotonic) {
                Claim::Granted => {}
                Claim::Waits => return RequestStep::AwaitLock(RequestState::Waiting),
                Claim::Lost(loss) => return RequestStep::Reply(Err(lost(loss))),
            }
        }
        replica.read_locks.add(owner, node, &locks, now.monotonic);
    }
    // With its locks, no younger transaction begins a change. It waits once for those in the log, which would make the
    // commit fail.
    if !is_of_keys
        && pending.place != RequestState::Latched
        && let Some(key) = newest_change(replica, &locks)
        && !replica.latches.pass(&Locks::key(key, LockMode::Shared), pending.id)
    {
        return RequestStep::Wait(RequestState::Latched);
    }
    // A single read of a transaction without writes is not validated, so that it must be strong.
    if !replica.cohort.config().timing.leases {
        return check_read_index(replica);
    }
    let epoch = replica.cohort.promised().epoch;
    read_by(replica, pending, ask, now, |as_of| ReadPath::Leader { epoch, locks: Locks::NONE, as_of })
}

/// A key of the newest unapplied change of any of these keys.
fn newest_change(replica: &Replica, locks: &Locks) -> Option<Bytes> {
    let changed = |proposal: &Proposal| {
        let meets = |keys: &&LockKeys| locks.spans().iter().any(|span| keys.meets(&span.keys));
        proposal.locks.changed().find(meets).and_then(|keys| match keys {
            LockKeys::Key(key) => Some(key.clone()),
            LockKeys::Range(_) => None,
        })
    };
    replica.proposed.values().rev().find_map(changed)
}

/// The answer to a transaction that has lost its locks.
fn lost(loss: Loss) -> Failure {
    Failure::Aborted(match loss {
        Loss::Conflict => OVERTAKEN.to_owned(),
        Loss::Deadlock => format!("{DEADLOCK}: another transaction waits for this one, which waits for it"),
    })
}

/// Whether a leader's view contains everything that was acknowledged.
pub(crate) fn is_whole(view: &View) -> bool {
    view.is_settled() || planted(Bug::StrongAsOfWhilePrepared)
}

/// Reads the applied state; if the read has waited for prepared transactions, as of the timestamp that was fixed for it.
/// The response names the state for a read of a transaction.
fn read_by(
    replica: &Replica,
    pending: &Pending,
    ask: &Ask,
    now: Now,
    path: impl FnOnce(Option<Box<AsOf>>) -> ReadPath,
) -> RequestStep {
    let cohort = replica.cohort.config().cohort;
    let fixed = pending.unresolved.and_then(|unresolved| unresolved.fixed(cohort, replica.cohort.promised().epoch));
    let fixed = fixed.and_then(|moment| replica.state.view()?.at(moment).ok());
    let step = match fixed.as_ref().and_then(|view| view.read(ask)) {
        Some(read) => ReadStep::Evaluate(read),
        None => replica.state.read(ask),
    };
    let is_fixed = fixed.is_some();
    let as_of_view = || Some(Box::new(as_of(replica, &fixed.or_else(|| replica.state.view())?, cohort, now.monotonic)));
    let states_moment = match ask.consistency() {
        // The response states a moment that contains everything that was acknowledged. An acknowledged transaction is
        // applied, or still prepared.
        Consistency::StrongAsOf => !is_fixed && replica.state.view().is_some_and(|view| is_whole(&view)),
        _ => ask.owner().is_some(),
    };
    let path = path(if states_moment { as_of_view() } else { None });
    match step {
        ReadStep::Answer(outcome) => RequestStep::ReplyRead(outcome, path),
        ReadStep::Evaluate(read) => RequestStep::Evaluate(read, path),
    }
}

/// A read that waits for prepared transactions. Without a limit, it would wait for ever in a range where transactions
/// overlap each other. Two timestamps limit the wait, each that of the last applied entry at some attempt.
///
/// The first attempt notes one. The read must show the transactions prepared until then, because they may be committed
/// and acknowledged. Once all of these are resolved, the next attempt fixes the second timestamp, which is not below any
/// of their commit timestamps, and from then on the read is tried as of it: transactions that are prepared later have
/// higher timestamps. Those that were prepared between the two attempts are waited for, because they may be committed at
/// or below the second timestamp.
///
/// Both count only in one epoch: a lease that is valid for the reply then covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unresolved {
    cohort: CohortId,
    epoch: Epoch,
    at: Timestamp,
    is_fixed: bool,
}

impl Unresolved {
    /// The state after an attempt that found unresolved transactions.
    fn next(before: Option<Self>, cohort: CohortId, epoch: Epoch, Awaited { at, first }: Awaited) -> Self {
        let begun = Self { cohort, epoch, at, is_fixed: planted(Bug::ReadFixedEarly) };
        match before.filter(|before| (before.cohort, before.epoch) == (cohort, epoch)) {
            // The versions of the fixed timestamp were not kept.
            Some(before) if before.is_fixed && before.at != at => begun,
            Some(before) if !before.is_fixed && first > before.at => Self { is_fixed: true, ..begun },
            Some(before) => before,
            None => begun,
        }
    }

    /// The timestamp as of which the read is tried, if it is fixed.
    fn fixed(self, cohort: CohortId, epoch: Epoch) -> Option<Timestamp> {
        (self.is_fixed && (self.cohort, self.epoch) == (cohort, epoch)).then_some(self.at)
    }
}

impl Node {
    /// Answers a strong read once a read-index check that started after the read arrived has completed, and everything
    /// through its entry is applied. Until then the read waits, for a new check if the old one is no longer valid. The
    /// result reflects every write acknowledged before the check began.
    pub(crate) fn read_by_index(&mut self, mut pending: Pending, cohort: CohortId, now: Now) {
        let (Some(replica), Some(ask)) = (self.replicas.get(&cohort), pending.query.ask()) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let rests_on = pending.view_check.filter(|(of, _)| *of == cohort).map(|(_, check)| check);
        let checked = rests_on.and_then(|check| replica.cohort.checked(check));
        let holds = checked.is_none_or(|checked| replica.cohort.still_holds(checked));
        if let Some(checked) = checked.filter(|_| holds)
            && replica.cohort.has_applied(checked.stamp)
        {
            let step = read_by(replica, &pending, ask, now, |as_of| ReadPath::ReadIndex { as_of });
            return self.proceed(pending, cohort, step, now);
        }
        let mut rests_on = rests_on.filter(|_| holds);
        self.with_cohort(cohort, now, |cohort, out| {
            rests_on.get_or_insert_with(|| cohort.want_view(now, out));
            cohort.push_view(now, out);
        });
        pending.view_check = rests_on.map(|check| (cohort, check));
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// A read depends on prepared transactions, and is tried again.
    pub(crate) fn await_transactions(&mut self, mut pending: Pending, cohort: CohortId, awaited: Awaited) {
        if let Some(replica) = self.replicas.get(&cohort) {
            let epoch = replica.cohort.promised().epoch;
            pending.unresolved = Some(Unresolved::next(pending.unresolved, cohort, epoch, awaited));
        }
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// Completes a read. That of a leader may be answered while the lease of the same epoch is valid. Later changes
    /// don't invalidate the others.
    pub(crate) fn reply_read(
        &mut self,
        pending: Pending,
        cohort: CohortId,
        outcome: Outcome,
        path: ReadPath,
        now: Now,
    ) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        replica.reads += 1;
        match path {
            ReadPath::Leader { as_of, .. } => {
                let outcome = dated_if(outcome, as_of);
                match replica.cohort.lease_end(now.monotonic) {
                    _ if planted(Bug::LeaseCheckedBefore) => self.respond(pending, outcome, None),
                    None => self.await_lease(pending),
                    Some(end) => self.respond(pending, outcome, Some(end)),
                }
            }
            ReadPath::ReadIndex { as_of } => {
                self.counters.checked_reads += 1;
                self.respond(pending, dated_if(outcome, as_of), None);
            }
            ReadPath::Replica(as_of) => self.respond(pending, dated(outcome, *as_of), None),
        }
    }

    pub(crate) fn await_lease(&mut self, pending: Pending) {
        self.counters.lease_expiries += 1;
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// At the leader, proposes an entry to advance the log to the timestamp, if its clock has reached it. Waiting reads
    /// are retried until their deadlines.
    pub(crate) fn advance_log(&mut self, pending: Pending, cohort: CohortId, moment: Timestamp, now: Now) {
        let Some(replica) = self.replicas.get_mut(&cohort) else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        // A wall clock that failed validation does not advance the log.
        let (next, reading) = (replica.cohort.next_timestamp(now), replica.cohort.reading(now));
        if let Some(failure) = in_the_future(moment, next, reading) {
            return self.respond(pending, Err(failure), None);
        }
        self.pending_requests.place(pending, RequestState::Waiting);
        let is_under_way = replica.cohort.last_timestamp() >= moment;
        let has_come = moment <= next;
        if !is_under_way && has_come && replica.cohort.is_open() && !replica.cohort.overloaded() {
            replica.cohort.propose(Bytes::new(), now, &mut self.outgoing.outbox);
            self.drain(cohort, now);
        }
    }
}

/// The error for a timestamp in the future. Only a clock that would provide the next log timestamp can decide this: one
/// behind the log, or one that failed validation, can't.
pub(crate) fn in_the_future(moment: Timestamp, next: Timestamp, reading: Timestamp) -> Option<Failure> {
    let ahead = Duration(u64::try_from(moment.0.saturating_sub(reading.0)).unwrap_or(0));
    (next == reading && ahead > CLOCKS_DIFFER).then(|| {
        let seconds = ahead.as_millis() / 1_000;
        Failure::Precondition(format!(
            "timestamp {moment} is in the future: {seconds} s ahead of the leader's clock ({reading})"
        ))
    })
}

/// The log position that a client has seen, and whether it requires a known leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRequirement {
    /// The cohort that is read.
    pub(crate) cohort: CohortId,
    pub(crate) at_least: Option<LogPlace>,
    pub(crate) stale_ok: bool,
}

impl ReadRequirement {
    /// Whether a replica may show the client its own state.
    ///
    /// The position may be in another cohort's log. Cohort numbers grow with creation, and a later cohort continues
    /// from the state of an earlier one. A client that has seen a later cohort has thus seen more than this replica
    /// holds, even if the local map assigns the row to this replica. State seen in an earlier cohort is included here.
    pub(crate) fn may_be_shown(&self, applied: Lsn, has_leader: bool, is_current: bool) -> bool {
        let is_here = self.at_least.is_none_or(|place| match place.cohort {
            other if other == self.cohort => place.lsn <= applied,
            other => other < self.cohort,
        });
        let may_go_back = planted(Bug::TimelineGoesBack);
        is_here && (may_go_back || if has_leader { is_current } else { self.stale_ok })
    }
}

fn dated_if(outcome: Outcome, as_of: Option<Box<AsOf>>) -> Outcome {
    match as_of {
        Some(as_of) => dated(outcome, *as_of),
        None => outcome,
    }
}

fn as_of(replica: &Replica, view: &View, cohort: CohortId, now: Monotonic) -> AsOf {
    AsOf {
        place: LogPlace { cohort, lsn: replica.state.last_applied() },
        timestamp: view.timestamp(),
        age: replica.cohort.freshness().age(now),
        range: view.range().cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait begins anew in another epoch or cohort, and when the versions of the fixed timestamp were not kept.
    #[test]
    fn fixed_timestamp_counts_in_one_epoch() {
        let (cohort, epoch) = (CohortId(5), Epoch(3));
        let found = |at, first| Awaited { at: Timestamp(at), first: Timestamp(first) };
        let next = |before, at, first| Unresolved::next(before, cohort, epoch, found(at, first));
        let first = next(None, 10, 4);
        let waits = next(Some(first), 20, 10);
        assert_eq!((waits, waits.fixed(cohort, epoch)), (first, None), "one of the first ones is not resolved");
        let fixed = next(Some(waits), 30, 11);
        assert_eq!(fixed.fixed(cohort, epoch), Some(Timestamp(30)));
        assert_eq!(next(Some(fixed), 30, 11), fixed);
        assert_eq!(next(Some(fixed), 40, 31), next(None, 40, 31));
        for (cohort, epoch) in [(CohortId(6), epoch), (cohort, Epoch(4))] {
            assert_eq!(fixed.fixed(cohort, epoch), None);
            assert!(!Unresolved::next(Some(fixed), cohort, epoch, found(30, 11)).is_fixed);
            assert!(!Unresolved::next(Some(first), cohort, epoch, found(30, 11)).is_fixed);
        }
    }
}
