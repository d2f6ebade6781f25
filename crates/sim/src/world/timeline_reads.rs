//! Reads that replicas serve from their own state, and checks of the responses (guarantees 15 and 16). A client never
//! goes backwards in a range. Every write that was acknowledged longer ago than the reported age is visible. The result
//! is what every replica has at that timestamp. A read at a timestamp is refused only if that is below a watermark.
//!
//! Half of the clients use their library, which carries the position that they have seen from node to node. The others
//! keep to one node, and are checked against what that node's own replicas have returned: while it has no replica of a
//! range, it forwards to other nodes in turn.

use std::collections::BTreeMap;

use base::{CohortId, KeyRange, NodeId, Sequence, Timestamp};
use bytes::Bytes;
use node::registry::AnyMachine;
use node::request::{Outcome, Response};
use state_machine::interface::{Evaluated, Read as _, View as _};
use state_machine::{AsOf, Consistency, Failure, LogPlace};
use store::sstable::Io;
use tablets::Question;
use tablets::request::{Scan, TableRequest};

use super::clients::Clients;
use super::{TrueTime, World};

/// Maximum distance of a requested timestamp into the future, in nanoseconds.
const AHEAD: u64 = 500_000_000;

/// A timeline read or a read at a timestamp.
#[derive(Clone, Debug)]
pub(crate) struct TimelineRead {
    pub(crate) question: Question,
    pub(crate) consistency: Consistency,
    /// The node to send it to, if that is fixed.
    pub(crate) node: Option<NodeId>,
    /// When it was last sent.
    pub(crate) asked: TrueTime,
}

/// Observations of clients that these reads are checked against.
#[derive(Default)]
pub(crate) struct Known {
    /// The position and range seen, by client, fixed node, and cohort.
    seen: BTreeMap<(u32, Option<NodeId>, CohortId), (LogPlace, KeyRange)>,
    /// Acknowledged writes: time, key and version.
    acknowledged: Vec<(TrueTime, Bytes, Timestamp)>,
}

impl Known {
    pub(super) fn acknowledged(&mut self, now: TrueTime, key: Bytes, version: Timestamp) {
        self.acknowledged.push((now, key, version));
    }

    /// Records that a client has observed the states seen by another client through its library.
    fn observed(&mut self, from: u32, to: u32) {
        let of = |id| (id, None, CohortId(0))..=(id, None, CohortId(u32::MAX));
        let states: Vec<_> = self.seen.range(of(from)).map(|((.., cohort), state)| (*cohort, state.clone())).collect();
        for (cohort, (place, range)) in states {
            let known = self.seen.entry((to, None, cohort)).or_insert_with(|| (place, range.clone()));
            if place.lsn > known.0.lsn {
                *known = (place, range);
            }
        }
    }

    /// A cohort that was split off later, of which the client has seen a range that includes the position of this read.
    fn split_off(&self, client: u32, timeline_read: &TimelineRead, cohort: CohortId) -> Option<CohortId> {
        let place = |cohort| (client, timeline_read.node, CohortId(cohort));
        let mut seen = self.seen.range(place(cohort.0 + 1)..=place(u32::MAX));
        let position = timeline_read.question.position();
        seen.find(|(_, (_, range))| position.is_in(range)).map(|((.., later), _)| *later)
    }
}

impl TimelineRead {
    pub(super) fn request(&self) -> TableRequest {
        let consistency = self.consistency;
        match self.question.clone() {
            Question::Scan(scan) => TableRequest::Scan { scan, consistency },
            Question::Get { key, columns } => TableRequest::Get { key, columns, consistency },
            Question::Decide(_) | Question::Commit(_) | Question::Prepare(_) | Question::Prepared { .. } => {
                unreachable!("a timeline read is not a write")
            }
        }
    }

    /// Whether it goes through the library, which carries the position.
    pub(super) fn carries_position(&self) -> bool {
        self.node.is_none()
    }
}

impl Clients {
    /// The next such read of a client.
    pub(super) fn next_timeline_read(&mut self, id: u32, key: Bytes, nodes: u32) -> TimelineRead {
        let keeps_to_a_node = id % 2 == 1;
        let node = keeps_to_a_node.then(|| NodeId(id % nodes + 1));
        let consistency = match self.random.below(4) {
            0 => Consistency::At(self.moment_to_read()),
            _ => Consistency::Timeline { at_least: None, stale_ok: self.random.below(4) == 0 },
        };
        let question = match self.random.below(5) {
            0 => Question::Scan(Scan { continuation: Some(key), ..Scan::default() }),
            _ => Question::Get { key, columns: tablets::request::Columns::default() },
        };
        TimelineRead { question, consistency, node, asked: 0 }
    }

    /// Repeats timeline reads, to detect ones that go backwards.
    pub(super) fn repeat_timeline_read(&mut self, timeline_read: &TimelineRead) -> Option<TimelineRead> {
        let is_timeline = matches!(timeline_read.consistency, Consistency::Timeline { .. });
        let again = is_timeline && !self.is_ending && self.random.below(3) > 0;
        again.then(|| timeline_read.clone())
    }

    /// A timestamp near the last writes, or in the future.
    fn moment_to_read(&mut self) -> Timestamp {
        let known = &self.known.acknowledged;
        let back = self.random.below(20) as usize;
        let base = known.len().checked_sub(back + 1).map_or(Timestamp(0), |place| known[place].2);
        let ahead = if self.random.below(3) == 0 { self.random.below(AHEAD) } else { self.random.below(2) };
        Timestamp(base.0.saturating_add_unsigned(ahead))
    }
}

impl World {
    /// Passes the states seen by another library to the library of a client that is about to read.
    pub(super) fn observe_token(&mut self, id: u32) {
        self.count("timeline tokens");
        for other in self.libraries.pass_token(id, self.options.clients) {
            self.clients.known.observed(other, id);
        }
    }

    /// Checks the response to such a read.
    pub(super) fn timeline_read_answered(&mut self, id: u32, timeline_read: &TimelineRead, outcome: &Outcome) {
        let wrong = match (outcome, timeline_read.consistency) {
            (Ok(Response::Dated { response, as_of }), _) => self.judge(id, timeline_read, response, as_of),
            (Err(Failure::Precondition(_)), Consistency::At(moment)) => {
                self.count("timestamps rejected");
                (!self.is_lossy() && self.is_kept(moment) && !self.is_ahead(moment)).then(|| {
                    format!("timestamp {moment} was rejected, although it is above every watermark and not ahead of any clock")
                })
            }
            (Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_) | Failure::Unknown(_)), _) => {
                None
            }
            _ => Some("unexpected outcome".to_owned()),
        };
        if let Some(wrong) = wrong {
            self.violate(&format!("{wrong}: client {id} sent {timeline_read:?}, outcome {outcome:?}"));
        }
    }

    fn judge(&mut self, id: u32, timeline_read: &TimelineRead, response: &Response, as_of: &AsOf) -> Option<String> {
        let wrong = match timeline_read.consistency {
            Consistency::At(_) => {
                self.count("reads at timestamps");
                None
            }
            _ => {
                self.count("timeline reads");
                let wrong = self.is_behind_client(id, timeline_read, as_of);
                wrong.or_else(|| if self.is_lossy() { None } else { self.exceeds_reported_age(timeline_read, as_of) })
            }
        };
        // State that was lost cannot be compared.
        wrong
            .or_else(|| if self.is_lossy() { None } else { self.differs_from_replicas(timeline_read, response, as_of) })
    }

    fn is_behind_client(&mut self, id: u32, timeline_read: &TimelineRead, as_of: &AsOf) -> Option<String> {
        let stale_ok = matches!(timeline_read.consistency, Consistency::Timeline { stale_ok: true, .. });
        let place = as_of.place;
        if timeline_read.node.is_some_and(|node| !self.has_applied(node, place)) {
            return None;
        }
        let may_go_back = timeline_read.node.is_some() && stale_ok;
        let later = self.clients.known.split_off(id, timeline_read, place.cohort);
        let (seen, range) = self
            .clients
            .known
            .seen
            .entry((id, timeline_read.node, place.cohort))
            .or_insert_with(|| (place, KeyRange::default()));
        let before = seen.lsn;
        seen.lsn = seen.lsn.max(place.lsn);
        range.clone_from(&as_of.range);
        if may_go_back {
            return None;
        }
        let is_behind = before > place.lsn;
        is_behind.then(|| format!("the client has already seen {before}")).or_else(|| {
            later.map(|later| format!("the client has already seen it in cohort {later}, which was split off later"))
        })
    }

    /// Whether the node's own replica has applied the position.
    fn has_applied(&self, node: NodeId, place: LogPlace) -> bool {
        let process = self.hosts.get(&node).and_then(|machine| machine.process.as_ref());
        let mut replicas = process.into_iter().flat_map(|process| process.node.replicas());
        let has_come = |state: &AnyMachine| state.last_applied().sequence >= place.lsn.sequence;
        replicas.any(|(cohort, _, state)| cohort == place.cohort && has_come(state))
    }

    fn exceeds_reported_age(&mut self, timeline_read: &TimelineRead, as_of: &AsOf) -> Option<String> {
        let since = timeline_read.asked.saturating_sub(as_of.age?.0);
        self.count("ages reported");
        let acknowledged = self.clients.known.acknowledged.iter();
        let of_range = acknowledged.take_while(|(at, ..)| *at < since).filter(|(_, key, _)| as_of.range.contains(key));
        let newest = of_range.map(|(.., version)| *version).max()?;
        let lacks = newest > as_of.timestamp;
        lacks.then(|| {
            format!("version {newest} is missing although it was acknowledged longer ago than the reported age")
        })
    }

    /// Compares the response with every replica that has applied the position and retained the timestamp.
    fn differs_from_replicas(
        &mut self,
        timeline_read: &TimelineRead,
        response: &Response,
        as_of: &AsOf,
    ) -> Option<String> {
        let mut compared = 0;
        let mut wrong = None;
        let processes = self.hosts.iter().filter_map(|(id, machine)| Some((id, machine.process.as_ref()?)));
        for (node, process) in processes {
            let replica = process.node.replicas().find(|(cohort, ..)| *cohort == as_of.place.cohort);
            let Some((_, _, AnyMachine::Tablet(tablet))) = replica else { continue };
            if tablet.last_applied().sequence < as_of.place.lsn.sequence.max(Sequence(1)) {
                continue;
            }
            let Ok(view) = tablet.view_now().at(as_of.timestamp) else { continue };
            // A range that was split since may return less of a scan.
            if view.range() != Some(&as_of.range) {
                continue;
            }
            let evaluation = tablets::Evaluation { view, question: timeline_read.question.clone(), waits: false };
            // A corrupt SSTable cannot be read, and a range that has moved is absent.
            let Ok(Evaluated::Outcome(Ok(other))) = evaluation.answer(Io::Allowed) else { continue };
            compared += 1;
            if Response::Tablet(other.clone()) != *response {
                wrong = Some(format!("node {node} returns {other:?} at {}", as_of.timestamp));
            }
        }
        if compared > 0 {
            self.count("timeline reads compared");
        }
        wrong
    }

    /// Whether the timestamp was ahead of some machine's clock when it was requested.
    fn is_ahead(&self, moment: Timestamp) -> bool {
        self.hosts.values().any(|machine| moment > machine.clocks.least_wall(self.now))
    }

    /// Whether every replica of every table still serves the timestamp.
    fn is_kept(&self, moment: Timestamp) -> bool {
        let mut processes = self.hosts.values().map(|machine| machine.process.as_ref());
        processes.all(|process| {
            process.is_some_and(|process| {
                let mut tablets = process.node.replicas().filter_map(|(_, _, state)| state.as_tablet());
                tablets.all(|tablet| tablet.watermark() <= moment)
            })
        })
    }
}
