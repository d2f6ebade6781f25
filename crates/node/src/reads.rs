//! Reads that a replica answers from its own state, whoever leads (Spinnaker, sections 3 and 5; guarantees 13, 15 and
//! 16).
//!
//! A *timeline* read shows the rows as this replica has applied them, and says how old that may be. It waits while the
//! replica may show less than the client has seen: after a restart until it has come as far as the leader, and always
//! until it has come as far as the client says. It also waits while no leader is known, unless the client will do with
//! what there is.
//!
//! A strong read *anywhere* is answered once a view check has told through which entry, and that is applied
//! (`replication`'s `view`; Gaios, 3.3.2). Where leases are off the leader answers all strong reads so.
//!
//! A read *at a moment* shows the rows as of a timestamp of the log. Timestamps grow along the log, so that whoever has
//! applied an entry with that timestamp or a later one has all that counts. If the log has not come so far, the leader
//! has it do so: an entry without a command has the timestamp of its proposal. A moment that is far ahead of its clock
//! it refuses.

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Lsn, Monotonic, Now, Timestamp};
use bytes::Bytes;
use machine::state_machine::Reading;
use machine::{AsOf, Consistency, Failure, LogPlace, Standing};

use crate::node::Node;
use crate::pending::{PendingId, Place};
use crate::registry::View;
use crate::replica::Replica;
use crate::request::Outcome;

/// By so much clocks may differ that a time service keeps, and far more: a moment further ahead of the leader's is in
/// the future, and nobody waits for it.
const CLOCKS_DIFFER: Duration = Duration::from_millis(10_000);

/// What an answer from rows rests on.
#[derive(Clone, Debug)]
pub(crate) enum Grounds {
    /// On our leading the cohort, in the reign in which it was asked.
    Lead {
        /// The key that is locked for it, if a change is to be decided.
        locked: Option<Bytes>,
    },
    /// On a view check.
    Checked,
    /// On the state that the replica had, and on nothing else.
    Own(Box<AsOf>),
}

impl Node {
    /// Answers a read from this node's own replica, or has it wait here. Says false if it is another's to answer.
    pub(crate) fn read_here(&mut self, id: PendingId, cohort: CohortId, now: Now) -> bool {
        let pending = expected!(self.pendings.get(id), "requests are routed that have no answer", true);
        let consistency = pending.query.consistency();
        let Some(replica) = self.replicas.get(&cohort) else { return false };
        let Some(ask) = pending.query.ask().filter(|_| consistency.is_for_any_replica()) else { return false };
        let Some(current) = replica.state.view() else { return false };
        match replica.state.standing(ask.position().as_ref()) {
            Standing::Owned => {}
            Standing::NotYet => {
                self.pendings.place(id, Place::Waiting);
                return true;
            }
            Standing::Elsewhere => {
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
                let (seen, is_current) = (Seen { cohort, at_least, stale_ok }, replica.cohort.is_current());
                let has_leader = replica.cohort.leader().is_some();
                let may = seen.may_be_shown(replica.state.last_applied(), has_leader, is_current);
                may.then_some(current).ok_or(NotNow::Wait)
            }
            Consistency::At(moment) => current.at(moment).map_err(|failure| match failure {
                Failure::Invalid(_) => NotNow::Refuse(failure),
                _ if replica.cohort.leads() => NotNow::Advance(moment),
                _ => NotNow::Elsewhere,
            }),
            Consistency::Strong | Consistency::Anywhere => Err(NotNow::Elsewhere),
        };
        match view {
            Ok(view) => {
                let as_of = as_of(replica, &view, cohort, now.monotonic);
                let Some(read) = view.read(ask) else { return false };
                self.evaluate(id, cohort, read, Grounds::Own(Box::new(as_of)), now);
            }
            Err(NotNow::Wait) => self.pendings.place(id, Place::Waiting),
            Err(NotNow::Refuse(failure)) => self.complete(id, Err(failure), None),
            Err(NotNow::Advance(moment)) => self.advance_log(id, cohort, moment, now),
            Err(NotNow::Elsewhere) => return false,
        }
        true
    }

    /// Whether a view check that began after the read had come has ended, and all through its stamp is applied. If not,
    /// the read waits, for a newer check if the old one holds no more.
    pub(crate) fn is_view_checked(&mut self, id: PendingId, cohort: CohortId, now: Now) -> bool {
        let rests_on = self.pendings.get(id).and_then(|pending| pending.view_check);
        let rests_on = rests_on.filter(|(of, _)| *of == cohort).map(|(_, check)| check);
        let replica = expected!(self.replicas.get(&cohort), "the read was put to it", false);
        let checked = rests_on.and_then(|check| replica.cohort.checked(check));
        let holds = checked.is_none_or(|checked| replica.cohort.still_holds(checked));
        if let Some(checked) = checked.filter(|_| holds)
            && replica.cohort.has_applied(checked.stamp)
        {
            return true;
        }
        self.pendings.place(id, Place::Waiting);
        let mut rests_on = rests_on.filter(|_| holds);
        self.with_cohort(cohort, now, |cohort, out| {
            rests_on.get_or_insert_with(|| cohort.want_view(now, out));
            cohort.push_view(now, out);
        });
        if let Some(pending) = self.pendings.get_mut(id) {
            pending.view_check = rests_on.map(|check| (cohort, check));
        }
        false
    }

    /// Answers a read from the state through the stamp of its view check, or further.
    pub(crate) fn read_checked(&mut self, id: PendingId, cohort: CohortId, now: Now) {
        let pending = expected!(self.pendings.get(id), "a read waits for its view check");
        let replica = expected!(self.replicas.get(&cohort), "the read was put to it");
        let ask = expected!(pending.query.ask(), "what is read is asked of a machine");
        match replica.state.read(ask) {
            Reading::Answer(outcome) => self.checked_read_done(id, cohort, outcome),
            Reading::Evaluate(read) => self.evaluate(id, cohort, read, Grounds::Checked, now),
        }
    }

    /// What was read shows all that was acknowledged before the check began, whatever has happened since.
    pub(crate) fn checked_read_done(&mut self, id: PendingId, cohort: CohortId, outcome: Outcome) {
        self.counters.checked_reads += 1;
        if let Some(replica) = self.replicas.get_mut(&cohort) {
            replica.reads += 1;
        }
        self.complete(id, outcome, None);
    }

    /// We lead, and the log has not come to that moment: an entry takes it there, if our clock has come so far. Whoever
    /// waits tries again, until the deadline.
    fn advance_log(&mut self, id: PendingId, cohort: CohortId, moment: Timestamp, now: Now) {
        self.pendings.place(id, Place::Waiting);
        let replica = expected!(self.replicas.get_mut(&cohort), "the read was put to it");
        // A clock that is not believed takes the log nowhere, whatever it shows.
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

/// Why a replica does not answer at once.
enum NotNow {
    /// It may come to.
    Wait,
    /// The log is to come to that moment first.
    Advance(Timestamp),
    /// Nobody will.
    Refuse(Failure),
    /// Others may.
    Elsewhere,
}

/// Why nobody waits for a moment, if that is so. Only a clock by which the log would go on now can tell: one that the
/// log is ahead of, or that is not believed, does not know what is to come.
fn in_the_future(moment: Timestamp, next: Timestamp, wall: Timestamp) -> Option<Failure> {
    let ahead = Duration(u64::try_from(moment.0.saturating_sub(wall.0)).unwrap_or(0));
    (next == wall && ahead > CLOCKS_DIFFER).then(|| {
        let seconds = ahead.as_millis() / 1_000;
        let clock = format!("{seconds} s ahead of {wall}, which the clock of the range's leader shows");
        Failure::Invalid(format!("the moment {moment} lies in the future, {clock}"))
    })
}

/// How far a client has seen a range, and whether it insists on a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The cohort that is asked.
    pub(crate) cohort: CohortId,
    pub(crate) at_least: Option<LogPlace>,
    pub(crate) stale_ok: bool,
}

impl Seen {
    /// Whether a replica may show it its own state.
    ///
    /// A place may be of another cohort's log. Cohorts are numbered as they come to be, and one that comes to be later
    /// goes on from what was there. So a client that has seen the range of a later cohort has seen more than is kept
    /// here, though our map says that the row is here; and what it has seen of an earlier one is kept here.
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
