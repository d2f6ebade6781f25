//! Log units: the requests to them, and their initialization.
//!
//! A request to a unit is a separate message, sent once. The requesting machine retransmits it if no reply arrives and
//! ignores duplicate replies, so neither side keeps a request table. A unit's node keeps only the requests in progress:
//! commands proposed to the unit's log, reads of the disk, reads that wait for an entry
//! ([`parked_reads`](super::parked_reads)), and, for a short time, requests that can't be executed yet.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::limits::REQUESTS_IN_FLIGHT_MAX;
use base::{Boot, CohortId, Duration, Lsn, Monotonic, NodeId, Now, Sequence};
use bytes::Bytes;
use catalog::cohort_of;
use sharedlog::log_unit::{Lookup, News, UnitResponse};
use sharedlog::unit::{Command, Reply, Request};
use sharedlog::{LogId, Position, Projection, ProjectionEpoch, RequestSource, UnitId};
use state_machine::ReadError;
use state_machine::interface::Evaluated;
use store::sstable::Io;

use super::feeds::Feeds;
use super::parked_reads::ParkedReads;
use crate::contract::{Action, EvaluationId};
use crate::message::Message;
use crate::node::{AT_ONCE, Node};
use crate::registry::Read;
use crate::request::Response;
use crate::request_table::RETRY;

/// How long a request that can't be executed yet is retried here. Client machines retransmit after this time.
const PARKED: Duration = Duration::from_millis(100);
/// Maximum number of requests that can't be executed yet.
const PARKED_MAX: usize = 1_024;

/// The destination of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitReplyTo {
    pub(crate) node: NodeId,
    pub(crate) boot: Boot,
    pub(crate) log: LogId,
    pub(crate) source: RequestSource,
}

/// A request to a unit of this node.
#[derive(Debug)]
pub(crate) struct UnitCall {
    pub(super) cohort: CohortId,
    pub(super) reply_to: UnitReplyTo,
    pub(super) request: Request,
    /// Until when it may be delayed: a read while there is no entry, any request while it can't be executed.
    pub(super) until: Monotonic,
}

/// The requests in progress at this node's units.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// Commands that were proposed to units' logs.
    proposed: BTreeMap<(CohortId, Sequence), (Lsn, UnitCall)>,
    /// Requests that wait for a read of the disk.
    pub(crate) lookups: BTreeMap<EvaluationId, UnitCall>,
    pub(super) parked_reads: ParkedReads,
    pub(super) feeds: Feeds,
    /// Requests that can't be executed yet.
    parked: Vec<UnitCall>,
    retry_at: Monotonic,
}

impl Units {
    pub(super) fn next_timer(&self) -> Option<Monotonic> {
        let retry = (!self.parked.is_empty()).then_some(self.retry_at);
        self.parked_reads.next_timer().into_iter().chain(retry).min()
    }

    /// Whether there are commands in units' logs that are not applied yet.
    pub(crate) fn any_proposed(&self) -> bool {
        !self.proposed.is_empty()
    }

    /// The replica of a unit no longer leads, or is removed.
    pub(crate) fn forget(&mut self, cohort: CohortId) {
        self.proposed.retain(|(of, _), _| *of != cohort);
        self.feeds.forget(cohort);
    }

    fn park(&mut self, call: UnitCall, now: Now) {
        if now.monotonic < call.until && self.parked.len() < PARKED_MAX {
            if self.parked.is_empty() {
                self.retry_at = now.monotonic + RETRY;
            }
            self.parked.push(call);
        }
    }
}

impl Node {
    /// Sends a request to a unit, which may be on this node. If the unit's node is not known yet, the request is
    /// dropped and retransmitted later.
    pub(super) fn ask_unit(&mut self, log: LogId, source: RequestSource, unit: UnitId, request: Request, now: Now) {
        let Some(cohort) = cohort_of(unit) else { return };
        let Some((_, member)) = self.catalog().unit_of(cohort) else { return };
        if member == self.cluster.me {
            let reply_to = UnitReplyTo { node: self.cluster.me.node, boot: self.cluster.boot, log, source };
            self.begin_unit_call(cohort, reply_to, request, now);
        } else {
            self.send(member.node, Message::ToUnit { log, unit, source, request }, AT_ONCE, None);
        }
    }

    /// Handles a request of another node to a unit that should be on this node.
    pub(crate) fn unit_asked(&mut self, unit: UnitId, reply_to: UnitReplyTo, request: Request, now: Now) {
        let Units { proposed, lookups, parked, .. } = &self.logs.units;
        let is_full = proposed.len() + lookups.len() + parked.len() >= REQUESTS_IN_FLIGHT_MAX;
        if let Some(cohort) = cohort_of(unit).filter(|_| !is_full && !self.is_stopping()) {
            self.begin_unit_call(cohort, reply_to, request, now);
        }
    }

    fn begin_unit_call(&mut self, cohort: CohortId, reply_to: UnitReplyTo, request: Request, now: Now) {
        let held_back = Some(request.wait()).filter(|wait| *wait > Duration::ZERO).unwrap_or(PARKED);
        self.run_unit_call(UnitCall { cohort, reply_to, request, until: now.monotonic + held_back }, now);
    }

    /// Answers a request from the applied state, or proposes it. The unit must have applied everything that its log
    /// held when this process started.
    fn run_unit_call(&mut self, call: UnitCall, now: Now) {
        let replica = self.replicas.get(&call.cohort).filter(|replica| replica.cohort.is_open());
        let Some(unit) = replica.and_then(|replica| replica.state.as_unit()) else {
            return self.logs.units.park(call, now);
        };
        match &call.request {
            // Only the unit's own node may report damage.
            Request::Command(command) if matches!(command.command(), Command::Damaged { .. }) => {
                self.reply(call.reply_to, Reply::Unknown);
            }
            request @ Request::Follow { .. } => match unit.decide(request) {
                Some(UnitResponse::Reply(Reply::Feed { .. })) => {
                    let has_room = self.logs.units.feeds.follow(call.cohort, call.reply_to, request, now.monotonic);
                    if !has_room {
                        self.reply(call.reply_to, Reply::Done);
                    }
                }
                Some(UnitResponse::Reply(refusal)) => self.reply(call.reply_to, refusal),
                _ => {}
            },
            request => match unit.decide(request) {
                Some(answer) => self.answer_unit_call(call, answer, now),
                None => self.log_command(call, now),
            },
        }
    }

    fn answer_unit_call(&mut self, call: UnitCall, answer: UnitResponse, now: Now) {
        match answer {
            UnitResponse::Lookup(lookup) => self.look_up_values(call, lookup, now),
            UnitResponse::Reply(reply) => {
                let may_wait = call.request.wait() > Duration::ZERO && now.monotonic < call.until;
                if may_wait && reply.each() == [Reply::Unwritten] && self.logs.units.parked_reads.has_room() {
                    self.logs.units.parked_reads.insert(call);
                } else {
                    self.reply(call.reply_to, reply);
                }
            }
        }
    }

    /// Proposes a command to the unit's log in the encoding of its writer.
    fn log_command(&mut self, call: UnitCall, now: Now) {
        let UnitCall { cohort, request: Request::Command(command), .. } = &call else { return };
        let (cohort, adds_values) =
            (*cohort, matches!(command.command(), Command::Write { .. } | Command::CopyMany { .. }));
        if adds_values && self.checkpoints.is_disk_full(now) {
            return;
        }
        let is_full = self.checkpoints.are_memtables_full(&self.config);
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        if adds_values && (is_full || replica.is_stalled(&self.config)) {
            self.counters.writes_stalled += 1;
            return self.logs.units.park(call, now);
        }
        match replica.cohort.propose(command.bytes().clone(), now, &mut self.outgoing.outbox) {
            Some(lsn) => {
                self.logs.units.proposed.insert((cohort, lsn.sequence), (lsn, call));
                self.drain(cohort, now);
            }
            None => self.logs.units.park(call, now),
        }
    }

    /// A unit has applied a command: replies to its writer, and to the reads parked for its entries.
    pub(crate) fn unit_applied(&mut self, cohort: CohortId, lsn: Lsn, answer: UnitResponse, now: Now) {
        let Some(replica) = self.replicas.get_mut(&cohort) else { return };
        let Some(unit) = replica.state.as_unit_mut() else { return };
        let News { stored, is_other } = unit.take_news();
        let proposed = self.logs.units.proposed.remove(&(cohort, lsn.sequence));
        if let Some((_, call)) = proposed.filter(|(of, _)| *of == lsn) {
            replica.writes += 1;
            self.answer_unit_call(call, answer, now);
        }
        if is_other || !stored.is_empty() {
            self.logs.units.feeds.touch(cohort);
        }
        for call in self.logs.units.parked_reads.take(cohort, &stored, is_other) {
            self.run_unit_call(call, now);
        }
    }

    /// Looks up values: immediately if they are in memory, otherwise by a read of the disk.
    fn look_up_values(&mut self, call: UnitCall, lookup: Lookup, now: Now) {
        let read = Read::Unit(lookup);
        match read.answer(Io::CacheOnly) {
            Err(ReadError::NotCached) => {
                let id = self.evaluations.number();
                self.logs.units.lookups.insert(id, call);
                self.counters.disk_reads += 1;
                self.actions.push(Action::Evaluate { id, read: Box::new(read) });
            }
            answer => self.values_found(&call, answer, now),
        }
    }

    /// Completes a lookup of values. A value that can't be read is recorded as damaged in the unit's own log. Another
    /// unit of the chain has a copy, and a reader that finds the copy restores the value.
    pub(crate) fn values_found(&mut self, call: &UnitCall, answer: Result<Evaluated<Response>, ReadError>, now: Now) {
        let cohort = call.cohort;
        let reply = match answer {
            Ok(Evaluated::Outcome(Ok(Response::Unit(reply)))) => *reply,
            Ok(_) => return debug_assert!(false, "a lookup returns a reply"),
            Err(error) => {
                self.counters.sstables_damaged += 1;
                let what = format!("log unit {cohort}: disk read failed: {error}");
                self.actions.push(Action::Warn { what });
                Reply::Damaged
            }
        };
        if reply.each().contains(&Reply::Damaged)
            && let Some(replica) = self.replicas.get_mut(&cohort)
        {
            let each = call.request.positions().into_iter().zip(reply.each());
            let is_noted = |position| replica.state.as_unit().is_some_and(|unit| unit.knows_damaged(position));
            let news: Vec<Position> =
                each.filter(|(at, reply)| **reply == Reply::Damaged && !is_noted(*at)).map(|(at, _)| at).collect();
            for position in news {
                let noted = Command::Damaged { position }.encode();
                replica.cohort.propose(noted, now, &mut self.outgoing.outbox);
            }
            self.drain(cohort, now);
        }
        self.reply(call.reply_to, reply);
    }

    pub(super) fn reply(&mut self, to: UnitReplyTo, reply: Reply) {
        let UnitReplyTo { node, boot, log, source } = to;
        if node == self.cluster.me.node {
            self.logs.replies.push_back((log, source, reply));
        } else {
            self.send(node, Message::FromUnit { log, to: boot, source, reply }, AT_ONCE, None);
        }
    }

    /// A unit of another node has replied to a process of this node.
    pub(crate) fn unit_replied(&mut self, log: LogId, to: Boot, source: RequestSource, reply: Reply) {
        if to == self.cluster.boot || planted(Bug::AnswerToFormerProcess) {
            self.logs.replies.push_back((log, source, reply));
        }
    }

    /// Replies "no entry" to parked reads with an expired wait.
    pub(super) fn await_timers(&mut self, now: Now) {
        while let Some(call) = self.logs.units.parked_reads.take_due(now.monotonic) {
            self.reply(call.reply_to, Reply::Unwritten);
        }
    }

    /// Retries requests that could not be executed, if the retry is due.
    pub(super) fn retry_unit_calls(&mut self, now: Now) {
        if self.logs.units.retry_at <= now.monotonic {
            for call in std::mem::take(&mut self.logs.units.parked) {
                self.run_unit_call(call, now);
            }
        }
    }

    /// Initializes an open unit if it belongs to its log's first projection, in the epoch before that projection. A
    /// recovery initializes all other units.
    pub(crate) fn found_unit(&mut self, id: CohortId, now: Now) {
        let Some(replica) = self.replicas.get(&id).filter(|replica| replica.cohort.is_open()) else { return };
        let Some(unit) = replica.state.as_unit() else { return };
        self.logs.units.retry_at = now.monotonic;
        if !unit.is_blank() {
            // It may have received stripes before it was open.
            self.logs.has_work = true;
            return;
        }
        let Some(payload) = self.beginning_of(UnitId(u64::from(id.0))) else { return };
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.cohort.propose(payload, now, &mut self.outgoing.outbox);
        }
    }

    /// Sends the units of this node their stripes in the newest projections. A unit represents positions of known
    /// stripes compactly.
    pub(super) fn assign_own_stripes(&mut self, now: Now) {
        let mut news: Vec<(CohortId, Bytes)> = Vec::new();
        for (_, log) in self.catalog().logs() {
            for (unit, _) in log.units.iter().filter(|(_, member)| *member == self.cluster.me) {
                let replica = cohort_of(*unit).and_then(|cohort| Some((cohort, self.replicas.get(&cohort)?)));
                let Some((cohort, replica)) = replica.filter(|(_, replica)| replica.cohort.is_open()) else { continue };
                let Some(state) = replica.state.as_unit().filter(|state| !state.is_blank()) else { continue };
                let mut stripes = log.projection.stripes_of(*unit);
                stripes.retain(|stripe| state.stripes().all(|assigned| assigned != *stripe));
                if !stripes.is_empty() {
                    news.push((cohort, Command::AssignStripes { stripes }.encode()));
                }
            }
        }
        for (cohort, payload) in news {
            self.propose(cohort, payload, now);
        }
    }

    /// The command that initializes a unit of a log's first projection; `None` for a unit that a recovery initializes.
    fn beginning_of(&self, unit: UnitId) -> Option<Bytes> {
        let mut logs = self.catalog().logs().map(|(_, log)| &log.projection);
        let is_its = |projection: &&Projection| projection.units().contains(&unit);
        let projection = logs.find(is_its).filter(|projection| projection.epoch == ProjectionEpoch(1))?;
        let extent = projection.last();
        let own = extent.chains.iter().enumerate().filter(|(_, chain)| chain.contains(&unit));
        let stripes = own.map(|(index, _)| extent.stripe(index)).collect();
        let (log, epoch, trimmed) = (projection.log, ProjectionEpoch(0), Position(0));
        Some(Command::Begin { disk: self.cluster.me.incarnation, log, epoch, trimmed, stripes }.encode())
    }
}
