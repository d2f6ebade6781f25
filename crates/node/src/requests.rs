//! Routes requests from an endpoint or another node to the leader that decides them, and returns the replies
//! (guarantees 10 and 12).
//!
//! Every request gets exactly one reply: the decision of the log, a leader's read under its lease, "nothing was done",
//! or "unknown". A request that may have reached a log is never reported as not done.

use base::limits::{DEADLINE_MAX, REQUESTS_IN_FLIGHT_MAX, WAITS_IN_FLIGHT_MAX};
use base::{CohortId, Duration, Monotonic, NodeId, Now, Timestamp};
use bytes::Bytes;
use catalog::{CatalogRequest, TableRecord};
use sharedlog::request::LogRequest;
use state_machine::failure::precondition;
use state_machine::interface::ReadStep;
use state_machine::{Consistency, Failure, KeyOwner, Locks, Ownership};

use crate::contract::{Action, ReplyDestination, RequestId};
use crate::holds::record_hold;
use crate::mending::Step;
use crate::message::{Message, Query};
use crate::node::{AT_ONCE, Node};
use crate::reads::{ReadPath, check_read_index, read_and_lock, read_as_leader, read_here};
use crate::registry::{Ask, Read, unanswerable};
use crate::replica::Replica;
use crate::request::{Outcome, Request, Response, validate};
use crate::request_table::{Pending, PendingId, ReplyTo, RequestState, Target};
use crate::write_throttle::DiskAdmission;
use crate::writes::Writes;

/// Time after which the reply to a forwarded request is overdue: the node may have failed, or the request was lost with
/// a connection. Doubles with each attempt of a request, so that retries do not overload a slow leader.
const ANSWER_OVERDUE: Duration = Duration::from_millis(500);
/// Maximum number of doublings.
const DOUBLINGS_MAX: u32 = 4;

/// One of this many attempts goes to the next member in rotation, regardless of the presumed leader.
const ASKED_IN_TURN: u32 = 4;
/// A replica without a known leader for this long may have been removed without receiving that entry. A failed leader
/// is replaced sooner.
const ALONE: Duration = Duration::from_millis(1_500);

/// The next step of a request, as decided by the replica that it was routed to. [`Node::proceed`] takes it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is passed once and never stored")]
pub(crate) enum RequestStep {
    /// Reply with an outcome that remains valid.
    Reply(Outcome),
    /// Reply with the outcome of a read, if it is still valid.
    ReplyRead(Outcome, ReadPath),
    /// Wait in this state.
    Wait(RequestState),
    /// Wait in this state for a lock of another transaction, or for an earlier change.
    AwaitLock(RequestState),
    /// Wait for a lease.
    AwaitLease,
    /// Wait for a connection to a majority.
    AwaitMajority,
    /// Wait for the transactions over several ranges that are in progress in this range.
    AwaitTransactions,
    /// Wait for the log to reach this timestamp.
    AwaitTimestamp(Timestamp),
    /// Another cohort owns the request's first key position.
    Elsewhere,
    /// Take the next step of the membership's plan.
    CarryPlanOn,
    /// Hand the leadership over to this node.
    HandOver(NodeId),
    /// Read once a read-index check has completed.
    CheckReadIndex,
    Evaluate(Read, ReadPath),
    /// Propose the command of a change that holds these latches.
    Propose(Bytes, Locks),
}

impl Node {
    pub(crate) fn request(&mut self, id: RequestId, deadline: Monotonic, request: Request, now: Now) {
        let refusal = self.refusal(&request);
        if let Some(failure) = refusal {
            self.actions.push(Action::Reply { to: id, outcome: Err(failure), valid_until: None });
            return;
        }
        let catalog = Target::Cohort(CohortId::CATALOG);
        let (target, query) = match request {
            Request::Status => {
                let status = Ok(Response::Status(Box::new(self.status(now))));
                self.actions.push(Action::Reply { to: id, outcome: status, valid_until: None });
                return;
            }
            Request::Clock => {
                let refusal = self.clock_refusal(now).map(precondition);
                let clock = refusal.map_or_else(|| now.interval().map(Response::Clock).ok_or_else(no_clock), Err);
                self.actions.push(Action::Reply { to: id, outcome: clock, valid_until: None });
                return;
            }
            Request::Lead { cohort, node } => (Target::Cohort(cohort), Query::Lead(node)),
            Request::Transaction(request) => (Target::Transaction, Query::Transaction(request)),
            Request::Catalog(request) => (catalog, Query::Machine(request.into())),
            Request::Log(LogRequest::Create { name, stripes, copies }) => {
                (catalog, self.create_log(name, stripes, copies))
            }
            Request::Log(LogRequest::Drop { name, force }) => (catalog, Self::drop_log(name, force)),
            Request::Log(LogRequest::List) => (catalog, Query::Machine(CatalogRequest::ListLogs.into())),
            Request::Log(LogRequest::Describe { name }) => {
                (catalog, Query::Machine(CatalogRequest::DescribeLog(name).into()))
            }
            Request::Log(request) => (Target::Log(request.log().unwrap_or_default().to_owned()), Query::Log(request)),
            Request::Table { table, request } => (Target::Table(table), Query::Machine(request)),
        };
        self.begin(ReplyTo::Client(id), deadline, target, query, now);
    }

    fn refusal(&self, request: &Request) -> Option<Failure> {
        if let Err(failure) = validate(request) {
            return Some(failure);
        }
        if let Request::Log(LogRequest::Create { name, .. }) = request
            && let Err(failure) = self.may_be_named(name)
        {
            return Some(failure);
        }
        if self.is_stopping() {
            return Some(Failure::Unavailable("the node is stopping".to_owned()));
        }
        let full = self.pending_requests.of_clients() >= REQUESTS_IN_FLIGHT_MAX + WAITS_IN_FLIGHT_MAX;
        full.then(|| Failure::Overloaded("too many requests in progress".to_owned()))
    }

    /// Whether a log may be created under that name. An existing log keeps its name, so creating it again reports that
    /// it exists.
    fn may_be_named(&self, log: &str) -> Result<(), Failure> {
        let is_there = self.catalog().log(log).is_some();
        if is_there { Ok(()) } else { sharedlog::validate::new_log_name(log) }
    }

    pub(crate) fn begin(&mut self, origin: ReplyTo, deadline: Monotonic, target: Target, query: Query, now: Now) {
        let deadline = deadline.min(now.monotonic + DEADLINE_MAX);
        let id = PendingId(self.pending_requests.number());
        self.route(Pending::new(id, origin, (now.monotonic, deadline), target, query), now);
    }

    /// Advances a request, or makes it wait.
    pub(crate) fn route(&mut self, mut pending: Pending, now: Now) {
        if pending.is_too_late(now.monotonic) && !pending.is_queued() {
            return self.give_up(pending, NO_LEADER);
        }
        if let ReplyTo::Mending(Step::Read(..)) = pending.origin {
            // Only the member that was asked can answer it.
            return self.give_up(pending, "the member has not answered");
        }
        let cohort = match &pending.target {
            Target::Cohort(cohort) => *cohort,
            Target::Table(table) => match self.cohort_in_map(table, &pending) {
                Some(cohort) => cohort,
                None => return self.look_up_table(pending, now),
            },
            Target::Log(_) => return self.put_to_log(pending, now),
            Target::Transaction => return self.drive(pending, now),
        };
        pending.cohort = Some(cohort);
        match self.step_here(&pending, cohort, now) {
            Some(step) => self.proceed(pending, cohort, step, now),
            None => self.send_on(pending, cohort, now),
        }
    }

    /// The next step of a request at the local replica. `None` if another node must take it.
    fn step_here(&mut self, pending: &Pending, cohort: CohortId, now: Now) -> Option<RequestStep> {
        let needs_clock = pending.query.ask().is_some_and(Ask::needs_clock);
        let clock = if needs_clock { self.clock_refusal(now) } else { None };
        // A step that changes the cohort touches the replica.
        let replica = self.replicas.quietly(cohort)?;
        if let Some(step) = read_here(replica, pending, now) {
            return Some(step);
        }
        if !replica.cohort.leads() {
            return None;
        }
        if needs_clock && replica.state.ownership() == Some(&Ownership::Unassigned) {
            // A part of a transaction is sent to a cohort, so it has no position.
            return Some(RequestStep::Wait(RequestState::Waiting));
        }
        // According to its own log, the tablet must own the request's first key position (guarantee 19).
        Some(match (replica.state.owner_of(pending.query.position().as_ref()), &pending.query) {
            (KeyOwner::Unassigned, _) => RequestStep::Wait(RequestState::Waiting),
            (KeyOwner::Other, _) => RequestStep::Elsewhere,
            (KeyOwner::This, Query::Plan(_)) => RequestStep::CarryPlanOn,
            (KeyOwner::This, Query::Lead(node)) => RequestStep::HandOver(*node),
            (KeyOwner::This, Query::Machine(ask)) if !ask.reads() => {
                let disk = DiskAdmission {
                    node: self.cluster.me.node,
                    config: &self.config,
                    checkpoints: &self.checkpoints,
                    counters: &mut self.counters,
                };
                let requests = &mut self.pending_requests;
                Writes { replica, roster: &self.cluster, disk, requests, clock }.write(pending, ask, now)
            }
            (KeyOwner::This, Query::Machine(ask)) if ask.unlocks().is_some() => {
                let is_news = ask.unlocks().is_some_and(|owner| replica.read_locks.release(owner, now.monotonic));
                if is_news {
                    self.pending_requests.wake();
                }
                match replica.state.read(ask) {
                    ReadStep::Answer(outcome) => RequestStep::Reply(outcome),
                    ReadStep::Evaluate(_) => RequestStep::Reply(Err(unanswerable())),
                }
            }
            (KeyOwner::This, Query::Machine(ask)) if ask.consistency().locks_for().is_some() => {
                read_and_lock(replica, &self.cluster, pending, ask, now)
            }
            (KeyOwner::This, Query::Machine(ask)) => match record_hold(replica, ask, self.config.hold_lifetime, now) {
                Err(failure) => RequestStep::Reply(Err(failure)),
                Ok(()) if !self.config.timing.leases => check_read_index(replica),
                Ok(()) => read_as_leader(replica, pending, ask, now),
            },
            (KeyOwner::This, Query::Log(_) | Query::Transaction(_)) => RequestStep::Reply(Err(unanswerable())),
        })
    }

    pub(crate) fn proceed(&mut self, mut pending: Pending, cohort: CohortId, step: RequestStep, now: Now) {
        match step {
            RequestStep::Reply(outcome) => self.respond(pending, outcome, None),
            RequestStep::ReplyRead(outcome, path) => self.reply_read(pending, cohort, outcome, path, now),
            RequestStep::Wait(state) => self.pending_requests.place(pending, state),
            RequestStep::AwaitLock(state) => {
                self.transactions.counts.lock_waits += u64::from(!std::mem::replace(&mut pending.awaited_lock, true));
                self.pending_requests.place(pending, state);
            }
            RequestStep::AwaitLease => self.await_lease(pending),
            RequestStep::AwaitMajority => self.await_majority(pending, cohort),
            RequestStep::AwaitTransactions => {
                self.hurry_transactions(cohort, now);
                self.pending_requests.place(pending, RequestState::Waiting);
            }
            RequestStep::AwaitTimestamp(moment) => self.advance_log(pending, cohort, moment, now),
            RequestStep::Elsewhere => self.elsewhere(pending, now),
            RequestStep::CarryPlanOn => self.carry_plan_on(pending, cohort, now),
            RequestStep::HandOver(node) => self.hand_over(pending, cohort, node, now),
            RequestStep::CheckReadIndex => self.read_by_index(pending, cohort, now),
            RequestStep::Evaluate(read, path) => self.evaluate(pending, cohort, read, path, now),
            RequestStep::Propose(command, locks) => self.propose_for(pending, cohort, command, (locks, false), now),
        }
    }

    /// Hands the leadership of a cohort over, and waits until the other node has it.
    fn hand_over(&mut self, pending: Pending, cohort: CohortId, node: NodeId, now: Now) {
        if node == self.cluster.me.node {
            return self.respond(pending, Ok(Response::PlanDone), None);
        }
        let is_voter =
            |replica: &Replica| replica.cohort.membership().voters().iter().any(|member| member.node == node);
        if !self.replicas.get(&cohort).is_some_and(is_voter) {
            let why = format!("node {node} has no replica of cohort {cohort} that votes");
            return self.respond(pending, Err(precondition(why)), None);
        }
        self.with_cohort(cohort, now, |cohort, out| _ = cohort.hand_to(node, now, out));
        // The next leader answers. If the node could not take over yet, it is tried again.
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// Sends a request to the leader, or to a node that may know the leader.
    fn send_on(&mut self, pending: Pending, cohort: CohortId, now: Now) {
        if let ReplyTo::Peer { node, request } = pending.origin {
            // This is the replica's own knowledge, not a guess: two nodes without knowledge would redirect to each
            // other forever.
            let leader = self.replicas.get(&cohort).and_then(|replica| replica.cohort.leader());
            return self.send(node, Message::NotLeader { request, cohort, leader }, AT_ONCE, None);
        }
        if pending.is_too_late(now.monotonic) {
            return self.give_up(pending, NO_LEADER);
        }
        // A request that is forwarded to a node without a connection would be lost, and its outcome in doubt.
        let is_reachable = |leader: &NodeId| *leader != self.cluster.me.node && self.cluster.is_connected(*leader);
        match self.leader_of(cohort, &pending, now).filter(is_reachable) {
            Some(leader) => self.forward(pending, cohort, leader, now),
            None => self.pending_requests.place(pending, RequestState::Waiting),
        }
    }

    /// The cohort that owns the query's first key position, according to the local map. If that cohort replied that it
    /// does not own it and its range is being split, returns the new cohort.
    fn cohort_in_map(&self, table: &str, pending: &Pending) -> Option<CohortId> {
        let catalog = self.catalog();
        let table: &TableRecord = if is_for_remnant(pending) { catalog.remnant(table) } else { catalog.table(table) }?;
        let position = pending.query.position()?;
        let cohort = table.at(&position).cohort;
        let is_refused = pending.refused_by == Some(cohort);
        let split_off = if is_refused { table.split_off_at(&position) } else { None };
        Some(split_off.unwrap_or(cohort))
    }

    /// The node to send a request to: the leader known to the local replica or from a redirect, otherwise a member.
    /// This knowledge may stay stale: members may not know a new node yet, and a removed replica does not receive its
    /// own removal through the log. Repeatable requests therefore go to another member every few attempts.
    fn leader_of(&self, cohort: CohortId, pending: &Pending, now: Now) -> Option<NodeId> {
        let is_in_turn = pending.is_repeatable() && pending.asked % ASKED_IN_TURN == ASKED_IN_TURN - 1;
        if let Some(member) = self.member_in_turn(cohort, pending).filter(|_| is_in_turn) {
            return Some(member);
        }
        if let Some(replica) = self.replicas.get(&cohort) {
            let (leader, membership) = (replica.cohort.leader(), replica.cohort.membership());
            let is_alone = replica.alone_since.is_some_and(|since| now.monotonic.since(since) > ALONE);
            let will_know =
                membership.is_voter(self.cluster.me) && !is_alone && !matches!(pending.origin, ReplyTo::Move(..));
            if leader.is_some_and(|leader| self.cluster.is_connected(leader)) || will_know {
                return leader;
            }
        }
        let is_for_anyone = pending.is_for_any_member();
        let known_leader =
            self.cluster.routes.get(&cohort).filter(|leader| !is_for_anyone && self.cluster.is_connected(**leader));
        known_leader.copied().or_else(|| self.member_in_turn(cohort, pending))
    }

    /// A member of the cohort, current or planned, according to the map.
    fn member_in_turn(&self, cohort: CohortId, pending: &Pending) -> Option<NodeId> {
        let catalog = self.catalog();
        let everyone: Vec<NodeId> = match catalog.part_of(cohort) {
            Some(part) => part.members.iter().chain(part.leaving).map(|member| member.node).collect(),
            None => vec![catalog.unit_of(cohort)?.1.node],
        };
        let others: Vec<NodeId> = everyone
            .into_iter()
            .filter(|node| *node != self.cluster.me.node && self.cluster.is_connected(*node))
            .collect();
        self.member_to_ask(&others, pending)
    }

    /// A different member for each attempt. Members that left a request unanswered are tried again only if all did.
    fn member_to_ask(&self, members: &[NodeId], pending: &Pending) -> Option<NodeId> {
        let turn = usize::try_from(pending.id.0.wrapping_add(u64::from(pending.asked))).unwrap_or(0);
        let in_turn = || members.iter().cycle().skip(turn % members.len().max(1)).take(members.len());
        let is_silent = |node: &NodeId| self.cluster.peers.get(node).is_some_and(|peer| peer.silent);
        in_turn().find(|node| !is_silent(node)).or_else(|| in_turn().next()).copied()
    }

    pub(crate) fn forward(&mut self, pending: Pending, cohort: CohortId, leader: NodeId, now: Now) {
        let patience = pending.deadline.since(now.monotonic);
        let query = pending.query.clone();
        let overdue = Duration(ANSWER_OVERDUE.0 << pending.unanswered.min(DOUBLINGS_MAX));
        let request = self.pending_requests.number();
        self.pending_requests.forward(pending, leader, request, now.monotonic + overdue);
        self.send(leader, Message::Forward { cohort, request, patience, query }, AT_ONCE, None);
    }

    /// Asks the catalog leader whether a table exists, because the local copy lacks it or a tablet reported the copy to
    /// be stale. If the table exists, the local copy will eventually include it.
    fn look_up_table(&mut self, pending: Pending, now: Now) {
        match &pending.target {
            Target::Table(table) => {
                let table = table.clone();
                let request = match is_for_remnant(&pending) {
                    true => CatalogRequest::FindRemnant(table),
                    false => CatalogRequest::FindTable(table),
                };
                let query = Query::Machine(request.into());
                self.look_up(pending, query, now);
            }
            _ => self.pending_requests.place(pending, RequestState::Waiting),
        }
    }

    /// Asks the catalog leader whether the target of a request exists.
    pub(crate) fn look_up(&mut self, pending: Pending, query: Query, now: Now) {
        let (id, deadline) = (pending.id, pending.deadline);
        self.pending_requests.place(pending, RequestState::LookingUp);
        self.begin(ReplyTo::Lookup(id), deadline, Target::Cohort(CohortId::CATALOG), query, now);
    }

    fn looked_up(&mut self, id: PendingId, outcome: Outcome, valid_until: Option<Monotonic>) {
        match outcome {
            Err(failure @ (Failure::UnknownTable(_) | Failure::UnknownLog(_))) => {
                self.complete(id, Err(failure), valid_until);
            }
            _ => self.pending_requests.retry(id),
        }
    }

    /// The tablet led by this node does not own the key position: the origin must consult the map again.
    fn elsewhere(&mut self, pending: Pending, now: Now) {
        match pending.origin {
            ReplyTo::Peer { node, request } => self.send(node, Message::ElsewhereNow { request }, AT_ONCE, None),
            _ => self.reroute(pending, now),
        }
    }

    /// Reroutes a request that was sent to a cohort without its first key position. If the local map shows a split in
    /// progress, the request goes to the new cohort. Otherwise the local copy is stale. A request addressed to a cohort
    /// by number is sent to it again.
    fn reroute(&mut self, mut pending: Pending, now: Now) {
        pending.refused_by = pending.cohort;
        let Target::Table(table) = &pending.target else {
            return self.pending_requests.place(pending, RequestState::Waiting);
        };
        let is_split_off = |cohort: CohortId| pending.cohort.is_some_and(|refused_by| refused_by < cohort);
        match self.cohort_in_map(table, &pending).filter(|cohort| is_split_off(*cohort)) {
            Some(_) => self.route(pending, now),
            None => self.look_up_table(pending, now),
        }
    }

    /// The leader replied that its tablet does not own the key position.
    pub(crate) fn redirected(&mut self, from: NodeId, request: u64, now: Now) {
        if let Some(pending) = self.pending_requests.take_asked(from, request) {
            self.reroute(pending, now);
        }
    }

    /// Replies to a request that waits in the table.
    pub(crate) fn complete(&mut self, id: PendingId, outcome: Outcome, valid_until: Option<Monotonic>) {
        // Its deadline may have passed, so that it already has a reply.
        if let Some(pending) = self.pending_requests.take(id) {
            self.respond(pending, outcome, valid_until);
        }
    }

    /// Replies to a request.
    #[expect(clippy::needless_pass_by_value, reason = "a reply consumes its request")]
    pub(crate) fn respond(&mut self, pending: Pending, outcome: Outcome, valid_until: Option<Monotonic>) {
        let outcome = if pending.is_in_doubt() { in_doubt(outcome) } else { outcome };
        match pending.origin {
            ReplyTo::Client(to) => self.actions.push(Action::Reply { to, outcome, valid_until }),
            ReplyTo::Peer { node, request } => {
                self.send(node, Message::Answer { request, outcome }, AT_ONCE, valid_until);
            }
            ReplyTo::Controller(log, epoch) => self.logs.command_answered(log, epoch, outcome),
            ReplyTo::Lookup(parent) => self.looked_up(parent, outcome, valid_until),
            ReplyTo::Drop(cohort) => self.drop_answered(cohort, &outcome),
            ReplyTo::Split(child) => self.split_answered(child, &outcome),
            ReplyTo::Move(cohort, plan) => self.plan_answered(cohort, plan, &outcome),
            ReplyTo::Petition(cohort) => self.petition_answered(cohort),
            ReplyTo::TwoPhase(tag) => self.transactions.answers.push((tag, outcome)),
            ReplyTo::Mending(step) => self.mending.answered(step, outcome),
            ReplyTo::Nobody => {}
        }
    }

    /// Fails a request without a result: the outcome is unknown if it may have reached a log, otherwise nothing was
    /// done.
    pub(crate) fn give_up(&mut self, pending: Pending, why: &str) {
        let may_be_there = matches!(
            pending.place,
            RequestState::Forwarded(..) | RequestState::Proposed | RequestState::AtLog | RequestState::Driven
        );
        let unknown = may_be_there && !pending.query.reads();
        let failure = if unknown { Failure::Unknown(why.to_owned()) } else { Failure::Unavailable(why.to_owned()) };
        self.respond(pending, Err(failure), None);
    }

    fn overdue(&mut self, pending: Pending, now: Now) {
        if let (Consistency::ForUpdate(owner), Some(ask)) = (pending.query.consistency(), pending.query.ask())
            && pending.place == RequestState::Waiting
            && let Some(replica) = pending.cohort.and_then(|cohort| self.replicas.get(&cohort))
            && replica.read_locks.is_claimed(owner, &ask.locks())
        {
            let why = "another transaction is about to change the row, and has not ended in time".to_owned();
            return self.respond(pending, Err(Failure::Aborted(why)), None);
        }
        match pending.place {
            RequestState::Driven => self.cancel_transaction(pending.id),
            RequestState::Latched => self.leave_latch_queue(&pending),
            _ => {}
        }
        let why = match pending.query.consistency() {
            Consistency::Timeline { .. } => {
                "no replica has caught up with the client's position, or no leader is known".to_owned()
            }
            Consistency::At(_) => "the range's log has not reached the timestamp".to_owned(),
            _ if pending.place == RequestState::AtLog => "no reply from the log".to_owned(),
            _ => self.no_result(&pending, now),
        };
        self.give_up(pending, &why);
    }

    /// A request that waits for latches has ended: others need not queue behind it.
    fn leave_latch_queue(&mut self, pending: &Pending) {
        if let Some(replica) = pending.cohort.and_then(|cohort| self.replicas.get_mut(&cohort)) {
            self.pending_requests.unlatch(replica.latches.cancel(pending.id));
        }
    }

    /// The driver found that the lease had expired before it sent the reply, so the result is discarded.
    pub(crate) fn reply_expired(&mut self, destination: ReplyDestination) {
        self.counters.lease_expiries += 1;
        let outcome = Err(Failure::Unavailable("the leader's lease expired before the reply was sent".to_owned()));
        match destination {
            ReplyDestination::Client(to) => self.actions.push(Action::Reply { to, outcome, valid_until: None }),
            ReplyDestination::Forwarded { node, request } => {
                self.send(node, Message::Answer { request, outcome }, AT_ONCE, None);
            }
        }
    }

    pub(crate) fn forwarded(
        &mut self,
        from: NodeId,
        cohort: CohortId,
        request: u64,
        patience: Duration,
        query: Query,
        now: Now,
    ) {
        if self.is_stopping() || self.pending_requests.of_peers() >= REQUESTS_IN_FLIGHT_MAX {
            let outcome = Err(Failure::Overloaded("the leader has too many requests in progress".to_owned()));
            return self.send(from, Message::Answer { request, outcome }, AT_ONCE, None);
        }
        let deadline = now.monotonic + patience.min(DEADLINE_MAX);
        self.begin(ReplyTo::Peer { node: from, request }, deadline, Target::Cohort(cohort), query, now);
    }

    pub(crate) fn answered(&mut self, from: NodeId, request: u64, outcome: Outcome) {
        if let Some(pending) = self.pending_requests.take_asked(from, request) {
            self.respond(pending, outcome, None);
        }
    }

    pub(crate) fn not_leader(&mut self, from: NodeId, request: u64, cohort: CohortId, leader: Option<NodeId>) {
        // The reply to an earlier attempt, or a late one.
        let Some(pending) = self.pending_requests.take_asked(from, request) else { return };
        match leader.filter(|leader| *leader != self.cluster.me.node) {
            Some(leader) => self.cluster.routes.insert(cohort, leader),
            None => self.cluster.routes.remove(&cohort),
        };
        if leader.is_some_and(|leader| leader != from) && !self.replicas.contains_key(&cohort) {
            self.pending_requests.wake();
        }
        self.pending_requests.place(pending, RequestState::Waiting);
    }

    /// Retries the requests that may be able to advance.
    pub(crate) fn run_requests(&mut self, now: Now) -> bool {
        let ready = self.pending_requests.take_ready(now.monotonic);
        let has_work = !ready.is_empty();
        for id in ready {
            // It may have been completed while another one was handled.
            if let Some(pending) = self.pending_requests.take(id) {
                self.route(pending, now);
            }
        }
        has_work
    }

    pub(crate) fn on_request_timer(&mut self, now: Now) {
        while let Some(pending) = self.pending_requests.take_overdue(now.monotonic) {
            self.overdue(pending, now);
        }
        while let Some(pending) = self.pending_requests.take_unanswered(now.monotonic) {
            self.forward_unanswered(pending);
        }
        while let Some(pending) = self.pending_requests.take_turn(now.monotonic) {
            self.route(pending, now);
        }
    }

    /// A node did not reply in time. Others may know another leader, and the request may never have arrived.
    fn forward_unanswered(&mut self, pending: Pending) {
        if let RequestState::Forwarded(node, _) = pending.place {
            if let Some(peer) = self.cluster.peers.get_mut(&node) {
                peer.silent = true;
            }
            if let Some(cohort) = pending.cohort
                && self.cluster.routes.get(&cohort) == Some(&node)
            {
                self.cluster.routes.remove(&cohort);
            }
        }
        if pending.is_repeatable() {
            self.pending_requests.ask_again(pending);
            self.pending_requests.wake();
        } else {
            // It waits for this reply until its deadline.
            let place = pending.place;
            self.pending_requests.place(pending, place);
        }
    }

    /// A cohort has a new leader: requests forwarded to the old one are repeated if possible, otherwise their outcome
    /// is unknown.
    pub(crate) fn routes_changed(&mut self, now: Now) {
        let mut changed = Vec::new();
        let touched: Vec<CohortId> = self.replicas.touched().collect();
        for id in touched {
            let Some(replica) = self.replicas.quietly(id) else { continue };
            let leader = replica.cohort.leader();
            match leader {
                Some(_) => replica.alone_since = None,
                None => _ = replica.alone_since.get_or_insert(now.monotonic),
            }
            if leader.is_some() && leader != replica.leader_seen {
                replica.leader_seen = leader;
                changed.push((id, leader));
            }
        }
        for (id, leader) in changed {
            self.pending_requests.wake();
            for pending in self.pending_requests.forwarded_to(|cohort, node| cohort == id && Some(node) != leader) {
                self.ask_elsewhere(pending);
            }
        }
    }

    /// A peer has a new process, which does not know the requests forwarded to the old one.
    pub(crate) fn peer_lost_requests(&mut self, peer: NodeId) {
        for pending in self.pending_requests.forwarded_to(|_, node| node == peer) {
            self.ask_elsewhere(pending);
        }
        self.transfers.forget_peer(peer);
    }

    fn ask_elsewhere(&mut self, id: PendingId) {
        let Some(pending) = self.pending_requests.take(id) else { return };
        if pending.is_repeatable() {
            self.pending_requests.ask_again(pending);
            self.pending_requests.wake();
        } else {
            self.give_up(pending, "the leader changed before it replied");
        }
    }
}

const NO_LEADER: &str = "no leader in time";

/// Why this node does not tell the time.
pub(crate) fn no_clock() -> Failure {
    precondition("the error of this node's clock has no bound")
}

/// Whether a table that is being dropped still answers the request.
fn is_for_remnant(pending: &Pending) -> bool {
    pending.query.ask().is_some_and(Ask::is_for_remnant)
}

/// The outcome to report for a write that was forwarded twice, the first time without a reply. Only a result from the
/// session table covers both attempts. "Nothing was done" is valid for the second attempt alone.
fn in_doubt(outcome: Outcome) -> Outcome {
    match outcome {
        Ok(_) | Err(Failure::VersionMismatch { .. } | Failure::Aborted(_) | Failure::Unknown(_)) => outcome,
        Err(Failure::Unavailable(reason) | Failure::NoSpace(reason)) => {
            Err(Failure::Unknown(format!("an earlier attempt got no reply; {reason}")))
        }
        Err(failure) => {
            Err(Failure::Unknown(format!("an earlier attempt got no reply; the last one failed: {failure}")))
        }
    }
}

#[cfg(test)]
mod tests;
