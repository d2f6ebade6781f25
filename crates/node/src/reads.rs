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
use base::{CohortId, Duration, Lsn, Monotonic, Now, Timestamp};
use bytes::Bytes;
use state_machine::interface::ReadStep;
use state_machine::{AsOf, Consistency, Failure, KeyOwner, LogPlace};

use crate::node::Node;
use crate::registry::View;
use crate::replica::Replica;
use crate::request::Outcome;
use crate::request_table::{PendingId, RequestState};

/// Maximum tolerated clock skew, far above the skew under a time service. A timestamp further ahead of the leader's
/// clock is in the future, and a read of it is rejected.
const CLOCKS_DIFFER: Duration = Duration::from_millis(10_000);

/// The basis on which a result is valid.
#[derive(Clone, Debug)]
pub(crate) enum ReadPath {
    /// This node led the cohort in the epoch in which the read started.
    Leader {
        /// The key locked for it, if it decides a write.
        locked: Option<Bytes>,
    },
    /// A read-index check.
    ReadIndex,
    /// The replica's own state at the time of the read, without further conditions.
    Replica(Box<AsOf>),
}

impl Node {
    /// Answers a read from the local replica, or makes it wait here. Returns false if another node must answer it.
    pub(crate) fn read_here(&mut self, id: PendingId, cohort: CohortId, now: Now) -> bool {
        let pending = expected!(self.pending_requests.get(id), "only pending requests are routed", true);
        let consistency = pending.query.consistency();
        let Some(replica) = self.replicas.get(&cohort) else { return false };
        let Some(ask) = pending.query.ask().filter(|_| consistency.is_for_any_replica()) else { return false };
        let Some(current) = replica.state.view() else { return false };
        match replica.state.owner_of(ask.position().as_ref()) {
            KeyOwner::This => {}
            KeyOwner::Unassigned => {
                self.pending_requests.place(id, RequestState::Waiting);
                return true;
            }
            KeyOwner::Other => {
                self.elsewhere(id, now);
                return true;
            }
        }
        if consistency == Consistency::Anywhere {
            if self.is_view_checked(id, cohort, now) {
                self.read_checked(id, cohort, now);
            }
            return true;
        }
        let view = match consistency {
            Consistency::Timeline { at_least, stale_ok } => {
                let (requirement, is_current) =
                    (ReadRequirement { cohort, at_least, stale_ok }, replica.cohort.is_current());
                let has_leader = replica.cohort.leader().is_some();
                let may = requirement.may_be_shown(replica.state.last_applied(), has_leader, is_current);
                may.then_some(current).ok_or(NotNow::Wait)
            }
            Consistency::At(moment) => current.at(moment).map_err(|failure| match failure {
                Failure::Invalid(_) | Failure::Precondition(_) => NotNow::Refuse(failure),
                _ if replica.cohort.leads() => NotNow::Advance(moment),
                _ => NotNow::Elsewhere,
            }),
            Consistency::Strong | Consistency::Anywhere => Err(NotNow::Elsewhere),
        };
        match view {
            Ok(view) => {
                let as_of = as_of(replica, &view, cohort, now.monotonic);
                let Some(read) = view.read(ask) else { return false };
                self.evaluate(id, cohort, read, ReadPath::Replica(Box::new(as_of)), now);
            }
            Err(NotNow::Wait) => self.pending_requests.place(id, RequestState::Waiting),
            Err(NotNow::Refuse(failure)) => self.complete(id, Err(failure), None),
            Err(NotNow::Advance(moment)) => self.advance_log(id, cohort, moment, now),
            Err(NotNow::Elsewhere) => return false,
        }
        true
    }

    /// Whether a read-index check that started after the read arrived has completed, and everything through its entry
    /// is applied. If not, the read waits, for a new check if the old one is no longer valid.
    pub(crate) fn is_view_checked(&mut self, id: PendingId, cohort: CohortId, now: Now) -> bool {
        let rests_on = self.pending_requests.get(id).and_then(|pending| pending.view_check);
        let rests_on = rests_on.filter(|(of, _)| *of == cohort).map(|(_, check)| check);
        let replica = expected!(self.replicas.get(&cohort), "the read was routed to a local replica", false);
        let checked = rests_on.and_then(|check| replica.cohort.checked(check));
        let holds = checked.is_none_or(|checked| replica.cohort.still_holds(checked));
        if let Some(checked) = checked.filter(|_| holds)
            && replica.cohort.has_applied(checked.stamp)
        {
            return true;
        }
        self.pending_requests.place(id, RequestState::Waiting);
        let mut rests_on = rests_on.filter(|_| holds);
        self.with_cohort(cohort, now, |cohort, out| {
            rests_on.get_or_insert_with(|| cohort.want_view(now, out));
            cohort.push_view(now, out);
        });
        if let Some(pending) = self.pending_requests.get_mut(id) {
            pending.view_check = rests_on.map(|check| (cohort, check));
        }
        false
    }

    /// Answers a read from a state at or past the entry of its read-index check.
    pub(crate) fn read_checked(&mut self, id: PendingId, cohort: CohortId, now: Now) {
        let pending = expected!(self.pending_requests.get(id), "the read waits for its read-index check");
        let replica = expected!(self.replicas.get(&cohort), "the read was routed to a local replica");
        let ask = expected!(pending.query.ask(), "reads go to a state machine");
        match replica.state.read(ask) {
            ReadStep::Answer(outcome) => self.checked_read_done(id, cohort, outcome),
            ReadStep::Evaluate(read) => self.evaluate(id, cohort, read, ReadPath::ReadIndex, now),
        }
    }

    /// Completes a checked read. The result reflects every write acknowledged before the check began.
    pub(crate) fn checked_read_done(&mut self, id: PendingId, cohort: CohortId, outcome: Outcome) {
        self.counters.checked_reads += 1;
        if let Some(replica) = self.replicas.get_mut(&cohort) {
            replica.reads += 1;
        }
        self.complete(id, outcome, None);
    }

    /// At the leader, proposes an entry to advance the log to the timestamp, if its clock has reached it. Waiting reads
    /// are retried until their deadlines.
    fn advance_log(&mut self, id: PendingId, cohort: CohortId, moment: Timestamp, now: Now) {
        self.pending_requests.place(id, RequestState::Waiting);
        let replica = expected!(self.replicas.get_mut(&cohort), "the read was routed to a local replica");
        // A wall clock that failed validation does not advance the log.
        let next = replica.cohort.next_timestamp(now.wall);
        if let Some(failure) = in_the_future(moment, next, now.wall) {
            return self.complete(id, Err(failure), None);
        }
        let is_under_way = replica.cohort.last_timestamp() >= moment;
        let has_come = moment <= next;
        if !is_under_way && has_come && replica.cohort.is_open() && !replica.cohort.overloaded() {
            replica.cohort.propose(Bytes::new(), now, &mut self.outgoing.outbox);
            self.drain(cohort, now);
        }
    }
}

/// Why a replica does not answer immediately.
enum NotNow {
    /// It may be able to answer later.
    Wait,
    /// The log must first reach this timestamp.
    Advance(Timestamp),
    /// No replica can answer.
    Refuse(Failure),
    /// Another replica may answer.
    Elsewhere,
}

/// The error for a timestamp in the future. Only a clock that would provide the next log timestamp can decide this: one
/// behind the log, or one that failed validation, can't.
fn in_the_future(moment: Timestamp, next: Timestamp, wall: Timestamp) -> Option<Failure> {
    let ahead = Duration(u64::try_from(moment.0.saturating_sub(wall.0)).unwrap_or(0));
    (next == wall && ahead > CLOCKS_DIFFER).then(|| {
        let seconds = ahead.as_millis() / 1_000;
        Failure::Precondition(format!(
            "timestamp {moment} is in the future: {seconds} s ahead of the leader's clock ({wall})"
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

fn as_of(replica: &Replica, view: &View, cohort: CohortId, now: Monotonic) -> AsOf {
    AsOf {
        place: LogPlace { cohort, lsn: replica.state.last_applied() },
        timestamp: view.timestamp(),
        age: replica.cohort.freshness().age(now),
        range: view.range().cloned().unwrap_or_default(),
    }
}
