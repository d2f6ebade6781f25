//! The table of requests in progress.
//!
//! A request is either in this table, where it waits for one event, or owned by the code that advances it. That code
//! consumes it: it replies, sends the request on, or returns it to the table. Each request therefore gets one reply.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Boot, CohortId, Duration, Monotonic, NodeId};

use replication::CheckId;
use sharedlog::{LogId, ProjectionEpoch};
use state_machine::Consistency;

use crate::contract::RequestId;
use crate::mending::Step;
use crate::message::Query;
use crate::reads::Unresolved;
use crate::registry::{Ask, ReplyTag};

/// Retry interval of requests that wait for a leader, a lease or the catalog.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// The node's own number for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingId(pub(crate) u64);

/// The origin of a request, which gets the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTo {
    Client(RequestId),
    Peer {
        node: NodeId,
        request: u64,
    },
    /// A request of this node for a table that is not in the local catalog.
    Lookup(PendingId),
    /// This node as the catalog leader: the cohort is to append a drop to its log.
    Drop(CohortId),
    /// This node as the catalog leader: the parent of this cohort is to append a split to its log, which gives this
    /// cohort its range.
    Split(CohortId),
    /// The controller of the shared logs, with the epoch of the projection that it proposes, if any.
    Controller(LogId, Option<ProjectionEpoch>),
    /// This node as the catalog leader: the cohort is to carry out the plan of that number.
    Move(CohortId, u64),
    /// A replica of this cohort on this node: the catalog is to install a configuration.
    Petition(CohortId),
    /// The machine of transactions over several ranges.
    TwoPhase(ReplyTag),
    /// This node mends or verifies blocks.
    Mending(Step),
    /// Nobody waits for the reply.
    Nobody,
}

/// The destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Cohort(CohortId),
    /// The range of a table that holds the query's first key position. It is looked up for each attempt, because the
    /// map may change.
    Table(String),
    /// The client machine of a shared log.
    Log(String),
    /// The ranges of a transaction.
    Transaction,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// Waits for a leader, a lease or the catalog.
    Waiting,
    /// Delayed by the write throttle until this time.
    Paced(Monotonic),
    /// Waits for a reply of the catalog leader about its table.
    LookingUp,
    /// Forwarded to a possible leader under this number. Each attempt has its own number, so late replies are
    /// recognized.
    Forwarded(NodeId, u64),
    /// Passed to a log's client machine.
    AtLog,
    /// A transaction, with requests to its ranges in progress.
    Driven,
    /// Waits for earlier changes of its keys.
    Latched,
    /// Waits for a read of the disk.
    Evaluated,
    /// Appended to the log of this node as a proposal.
    Proposed,
}

#[derive(Debug)]
#[must_use = "a request that is dropped gets no reply"]
pub(crate) struct Pending {
    pub(crate) id: PendingId,
    pub(crate) origin: ReplyTo,
    pub(crate) deadline: Monotonic,
    /// The request is sent to no node after this time ([`Request::start_within`](state_machine::interface::Request)).
    start_by: Monotonic,
    pub(crate) target: Target,
    pub(crate) query: Query,
    /// The event that it waits for or, outside the table, last waited for. Set by [`RequestTable::place`].
    pub(crate) place: RequestState,
    /// The cohort that it was last routed to.
    pub(crate) cohort: Option<CohortId>,
    /// The cohort that last replied that it does not own the request's first key position.
    pub(crate) refused_by: Option<CohortId>,
    /// The cohort and read-index check that the read depends on.
    pub(crate) view_check: Option<(CohortId, CheckId)>,
    /// The read waits for prepared transactions.
    pub(crate) unresolved: Option<Unresolved>,
    /// Number of nodes asked so far.
    pub(crate) asked: u32,
    /// Number of those that may have accepted it and never replied.
    pub(crate) unanswered: u32,
    /// When the awaited reply is overdue.
    overdue_at: Option<Monotonic>,
    /// The write throttle has already delayed it; it is not delayed twice.
    pub(crate) had_turn: bool,
    /// It has waited for a lock.
    pub(crate) awaited_lock: bool,
}

impl Pending {
    pub(crate) fn new(
        id: PendingId,
        origin: ReplyTo,
        (begun, deadline): (Monotonic, Monotonic),
        target: Target,
        query: Query,
    ) -> Self {
        let place = RequestState::Waiting;
        let within = query.ask().and_then(Ask::start_within).filter(|_| matches!(origin, ReplyTo::Client(_)));
        Self {
            id,
            origin,
            deadline,
            start_by: within.map_or(Monotonic::NEVER, |within| begun + within),
            target,
            query,
            place,
            cohort: None,
            refused_by: None,
            view_check: None,
            unresolved: None,
            asked: 0,
            unanswered: 0,
            overdue_at: None,
            had_turn: false,
            awaited_lock: false,
        }
    }

    /// Whether it may be sent to another node although an earlier one may have accepted it. A read is harmless, and a
    /// write with a session's stamp is executed at most once (guarantee 10).
    pub(crate) fn is_repeatable(&self) -> bool {
        self.query.is_idempotent()
    }

    /// Whether it must not be sent to a leader any more.
    pub(crate) fn is_too_late(&self, now: Monotonic) -> bool {
        now > self.start_by
    }

    /// Whether this node has queued it as the leader.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.place, RequestState::Paced(_) | RequestState::Latched)
    }

    fn is_of_client(&self) -> bool {
        matches!(self.origin, ReplyTo::Client(_))
    }

    fn is_of_peer(&self) -> bool {
        matches!(self.origin, ReplyTo::Peer { .. })
    }

    /// Whether any replica may answer it, not only the leader.
    pub(crate) fn is_for_any_member(&self) -> bool {
        matches!(self.query.consistency(), Consistency::Timeline { .. } | Consistency::Anywhere)
    }

    /// Whether a node that never replied may have executed it, or may still do so.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unanswered > 0 && !self.query.reads()
    }
}

/// The requests that wait, indexed by number and by deadline.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    next: u64,
    by_id: BTreeMap<PendingId, Pending>,
    deadlines: BTreeSet<(Monotonic, PendingId)>,
    asked: BTreeMap<u64, PendingId>,
    /// Forwarded requests, by the time at which the reply is overdue.
    forwarded: BTreeSet<(Monotonic, PendingId)>,
    waiting: BTreeSet<PendingId>,
    /// An event occurred that waiting requests may depend on.
    is_woken: bool,
    /// When waiting requests are retried in any case.
    retry_at: Monotonic,
    /// Changes that waited for latches and may be retried.
    unlatched: VecDeque<PendingId>,
    /// Requests that wait for a map change to complete: the drop of a table, or a split, by its new cohort.
    changes: BTreeMap<CohortId, Vec<PendingId>>,
    /// Throttled writes, by the time of their slot.
    turns: BTreeSet<(Monotonic, PendingId)>,
    /// Number of requests from endpoints of this node.
    of_clients: usize,
    /// Number of requests from peers.
    of_peers: usize,
}

impl RequestTable {
    /// Creates an empty table. The boot is part of each request number, so numbers are not reused after a restart and a
    /// reply to an earlier process can't be mistaken for a reply to this one.
    pub(crate) fn new(boot: Boot) -> Self {
        Self { next: boot.0 << 40, ..Self::default() }
    }

    /// Returns a request to the table, where it waits.
    pub(crate) fn place(&mut self, mut pending: Pending, place: RequestState) {
        debug_assert!(pending.overdue_at.is_none(), "only a forwarded request awaits a reply");
        let id = pending.id;
        match place {
            RequestState::Waiting => _ = self.waiting.insert(id),
            RequestState::Forwarded(_, number) => _ = self.asked.insert(number, id),
            RequestState::Paced(turn) => _ = self.turns.insert((turn, id)),
            _ => {}
        }
        pending.place = place;
        self.deadlines.insert((pending.deadline, id));
        self.of_clients += usize::from(pending.is_of_client());
        self.of_peers += usize::from(pending.is_of_peer());
        self.by_id.insert(id, pending);
    }

    /// Takes a request out of the table. `None` if it has been answered.
    pub(crate) fn take(&mut self, id: PendingId) -> Option<Pending> {
        let mut pending = self.by_id.remove(&id)?;
        match pending.place {
            RequestState::Waiting => _ = self.waiting.remove(&id),
            RequestState::Forwarded(_, number) => _ = self.asked.remove(&number),
            RequestState::Paced(turn) => _ = self.turns.remove(&(turn, id)),
            _ => {}
        }
        if let Some(at) = pending.overdue_at.take() {
            self.forwarded.remove(&(at, id));
        }
        self.deadlines.remove(&(pending.deadline, id));
        self.of_clients -= usize::from(pending.is_of_client());
        self.of_peers -= usize::from(pending.is_of_peer());
        Some(pending)
    }

    /// The event that a request waited for has occurred, or will not: the request is retried soon.
    pub(crate) fn retry(&mut self, id: PendingId) {
        if let Some(pending) = self.take(id) {
            self.place(pending, RequestState::Waiting);
        }
    }

    /// Places a request that is forwarded to a node under that number. Its reply will be overdue at that time.
    pub(crate) fn forward(&mut self, mut pending: Pending, node: NodeId, number: u64, overdue_at: Monotonic) {
        let id = pending.id;
        pending.asked += 1;
        self.place(pending, RequestState::Forwarded(node, number));
        if let Some(pending) = self.by_id.get_mut(&id) {
            pending.overdue_at = Some(overdue_at);
            self.forwarded.insert((overdue_at, id));
        }
    }

    /// Takes one request with an overdue reply. It is no longer overdue when it is placed again.
    pub(crate) fn take_unanswered(&mut self, now: Monotonic) -> Option<Pending> {
        let (_, id) = *self.forwarded.first().filter(|(at, _)| *at <= now)?;
        self.take(id)
    }

    /// Takes one throttled write that has reached its slot.
    pub(crate) fn take_turn(&mut self, now: Monotonic) -> Option<Pending> {
        let (_, id) = *self.turns.first().filter(|(turn, _)| *turn <= now)?;
        let pending = self.take(id)?;
        Some(Pending { had_turn: true, ..pending })
    }

    /// When the next deadline, overdue reply, slot or retry is due.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        let first = |of: &BTreeSet<(Monotonic, PendingId)>| of.first().map(|(at, _)| *at);
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at);
        [first(&self.deadlines), first(&self.forwarded), first(&self.turns), retry].into_iter().flatten().min()
    }

    /// The change that the request asks for has begun: the request waits until the change completes.
    pub(crate) fn await_change(&mut self, of: CohortId, id: PendingId) {
        self.changes.entry(of).or_default().push(id);
    }

    /// Removes and returns the requests that waited for a change.
    pub(crate) fn change_ended(&mut self, of: CohortId) -> Vec<PendingId> {
        self.changes.remove(&of).unwrap_or_default()
    }

    /// Removes and returns all requests that wait for changes.
    pub(crate) fn take_changes(&mut self) -> Vec<PendingId> {
        std::mem::take(&mut self.changes).into_values().flatten().collect()
    }

    /// An event occurred that requests may wait for.
    pub(crate) fn wake(&mut self) {
        self.is_woken = true;
    }

    /// Queues changes that waited for latches, in that order, for a retry.
    pub(crate) fn unlatch(&mut self, changes: VecDeque<PendingId>) {
        self.unlatched.extend(changes);
    }

    /// Returns the requests to try now. Changes that waited for latches come first.
    pub(crate) fn take_ready(&mut self, now: Monotonic) -> Vec<PendingId> {
        if !self.unlatched.is_empty() {
            return std::mem::take(&mut self.unlatched).into();
        }
        if !std::mem::take(&mut self.is_woken) && (self.waiting.is_empty() || now < self.retry_at) {
            return Vec::new();
        }
        self.retry_at = now + RETRY;
        self.waiting.iter().copied().collect()
    }

    /// Places a request for a retry, although the last node may have accepted it.
    pub(crate) fn ask_again(&mut self, mut pending: Pending) {
        pending.unanswered += 1;
        self.place(pending, RequestState::Waiting);
    }

    /// A new number for a request, or for forwarding one.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes the request forwarded to a node under that number, if it still waits for that reply.
    pub(crate) fn take_asked(&mut self, node: NodeId, number: u64) -> Option<Pending> {
        let id = *self.asked.get(&number)?;
        let is_asked = self.by_id.get(&id)?.place == RequestState::Forwarded(node, number);
        if is_asked { self.take(id) } else { None }
    }

    /// The requests forwarded to a node for a cohort.
    pub(crate) fn forwarded_to(&self, chosen: impl Fn(CohortId, NodeId) -> bool) -> Vec<PendingId> {
        let is_chosen = |pending: &Pending| match (pending.cohort, pending.place) {
            (Some(cohort), RequestState::Forwarded(node, _)) => chosen(cohort, node),
            _ => false,
        };
        self.by_id.iter().filter(|(_, pending)| is_chosen(pending)).map(|(id, _)| *id).collect()
    }

    /// Takes one request past its deadline.
    pub(crate) fn take_overdue(&mut self, now: Monotonic) -> Option<Pending> {
        let (_, id) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.take(id)
    }

    pub(crate) fn any_proposed(&self) -> bool {
        self.by_id.values().any(|pending| pending.place == RequestState::Proposed)
    }

    pub(crate) fn ids(&self) -> Vec<PendingId> {
        self.by_id.keys().copied().collect()
    }

    /// Number of requests from endpoints of this node.
    pub(crate) fn of_clients(&self) -> usize {
        self.of_clients
    }

    /// Number of requests from peers.
    pub(crate) fn of_peers(&self) -> usize {
        self.of_peers
    }

    /// Requests of an endpoint that are at logs' client machines.
    pub(crate) fn at_logs(&self, requests: &BTreeSet<RequestId>) -> impl Iterator<Item = (PendingId, &Pending)> {
        let is_among = |origin| matches!(origin, ReplyTo::Client(request) if requests.contains(&request));
        let at_logs = self
            .by_id
            .iter()
            .filter(move |(_, pending)| pending.place == RequestState::AtLog && is_among(pending.origin));
        at_logs.map(|(id, pending)| (*id, pending))
    }

    /// Checks the invariants that hold between any two steps.
    pub(crate) fn invariants(&self) {
        let all = || self.by_id.values();
        assert_eq!(self.of_clients, all().filter(|pending| pending.is_of_client()).count(), "count of client requests");
        assert_eq!(self.of_peers, all().filter(|pending| pending.is_of_peer()).count(), "count of peer requests");
    }
}
