//! Requests that have no answer yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Boot, CohortId, Duration, Monotonic, NodeId};

use machine::Consistency;
use replication::CheckId;
use sharedlog::{LogId, ProjectionEpoch};

use crate::contract::RequestId;
use crate::message::Query;

/// How long requests that wait for a leader, a lease or the catalogue wait before they are tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// The node's own number for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingId(pub(crate) u64);

/// Who waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Door(RequestId),
    Peer {
        node: NodeId,
        request: u64,
    },
    /// A request of this node whose table isn't in the local catalogue.
    Lookup(PendingId),
    /// This node itself, which leads the catalogue: the cohort is to take a drop into its log.
    Drop(CohortId),
    /// This node itself, which leads the catalogue: a cohort is to take a split into its log, which gives that one a
    /// range.
    Split(CohortId),
    /// The controller of the shared logs; the epoch that it proposes a projection of, if it proposes one.
    Controller(LogId, Option<ProjectionEpoch>),
    /// This node itself, which leads the catalogue: the cohort is to carry out a plan of that number.
    Move(CohortId, u64),
}

/// Whom it is put to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Cohort(CohortId),
    /// The range of a table that holds the place where the query begins: to be found in the map each time, for the map
    /// may have changed.
    Table(String),
    /// The client machine of a shared log.
    Log(String),
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It waits for a leader, a lease or the catalogue.
    Waiting,
    /// Its tablet slows writes down: its turn comes at that moment.
    Paced(Monotonic),
    /// The catalogue's leader is being asked for its table.
    LookingUp,
    /// A node was asked that may lead, under a number of this very asking: an answer to an earlier one is no answer.
    Forwarded(NodeId, u64),
    /// A log's client machine has it.
    AtLog,
    /// Writes of its row come first.
    Latched,
    /// The disk is read for it.
    Evaluated,
    /// It is in our log.
    Proposed,
}

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) origin: Origin,
    pub(crate) deadline: Monotonic,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) place: Place,
    /// The cohort that it was last put to.
    pub(crate) cohort: Option<CohortId>,
    /// The cohort that last said that the place where it begins is another's.
    pub(crate) refused_by: Option<CohortId>,
    /// The view check of a cohort that it rests on.
    pub(crate) view_check: Option<(CohortId, CheckId)>,
    /// How many nodes were asked so far.
    pub(crate) asked: u32,
    /// How many of them may have taken it and never answered.
    pub(crate) unanswered: u32,
    /// When an answer that it waits for is overdue.
    overdue_at: Option<Monotonic>,
    /// Its turn came, where writes are slowed down. It has one.
    pub(crate) had_turn: bool,
}

impl Pending {
    pub(crate) fn new(origin: Origin, deadline: Monotonic, target: Target, query: Query) -> Self {
        let place = Place::Waiting;
        Self {
            origin,
            deadline,
            target,
            query,
            place,
            cohort: None,
            refused_by: None,
            view_check: None,
            asked: 0,
            unanswered: 0,
            overdue_at: None,
            had_turn: false,
        }
    }

    /// Whether another node may be asked though one that was asked before may have taken it: a read does no harm, and a
    /// write with a session's stamp is executed once at most (guarantee 10).
    pub(crate) fn is_repeatable(&self) -> bool {
        self.query.is_idempotent()
    }

    fn is_of_door(&self) -> bool {
        matches!(self.origin, Origin::Door(_))
    }

    fn is_of_peer(&self) -> bool {
        matches!(self.origin, Origin::Peer { .. })
    }

    /// Whether it is for any replica, not for the leader's.
    pub(crate) fn is_for_any_member(&self) -> bool {
        matches!(self.query.consistency(), Consistency::Timeline { .. } | Consistency::Anywhere)
    }

    /// Whether a node that never answered may have written it, or may yet.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unanswered > 0 && !self.query.reads()
    }
}

/// All of them, by number and by deadline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pendings {
    next: u64,
    by_id: BTreeMap<PendingId, Pending>,
    deadlines: BTreeSet<(Monotonic, PendingId)>,
    asked: BTreeMap<u64, PendingId>,
    /// Those that were forwarded, by the moment at which the answer is overdue.
    forwarded: BTreeSet<(Monotonic, PendingId)>,
    waiting: BTreeSet<PendingId>,
    /// Something changed that these may have waited for.
    is_woken: bool,
    /// When they are tried again in any case.
    retry_at: Monotonic,
    /// Writes that waited for their row and may try again.
    unlatched: VecDeque<PendingId>,
    /// Those whose changes of the map have begun and are to end: the drop of a table, or a split, by its new cohort.
    changes: BTreeMap<CohortId, Vec<PendingId>>,
    /// Those that are paced, by the moment of their turn.
    turns: BTreeSet<(Monotonic, PendingId)>,
    /// How many are of doors.
    of_doors: usize,
    /// How many are of peers.
    of_peers: usize,
}

impl Pendings {
    /// No request yet, in this start of the node: numbers never come again in a later one, so that an answer to an
    /// earlier process's request can't be taken for an answer to this one's.
    pub(crate) fn new(boot: Boot) -> Self {
        Self { next: boot.0 << 40, ..Self::default() }
    }

    pub(crate) fn insert(&mut self, pending: Pending) -> PendingId {
        self.next += 1;
        let id = PendingId(self.next);
        self.deadlines.insert((pending.deadline, id));
        self.of_doors += usize::from(pending.is_of_door());
        self.of_peers += usize::from(pending.is_of_peer());
        self.by_id.insert(id, pending);
        id
    }

    pub(crate) fn get(&self, id: PendingId) -> Option<&Pending> {
        self.by_id.get(&id)
    }

    /// To note something of it; where it is changes by [`Self::place`] alone.
    pub(crate) fn get_mut(&mut self, id: PendingId) -> Option<&mut Pending> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: PendingId) -> Option<Pending> {
        let pending = self.by_id.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        self.waiting.remove(&id);
        self.of_doors -= usize::from(pending.is_of_door());
        self.of_peers -= usize::from(pending.is_of_peer());
        if let Place::Forwarded(_, number) = pending.place {
            self.asked.remove(&number);
        }
        if let Place::Paced(turn) = pending.place {
            self.turns.remove(&(turn, id));
        }
        if let Some(at) = pending.overdue_at {
            self.forwarded.remove(&(at, id));
        }
        Some(pending)
    }

    pub(crate) fn place(&mut self, id: PendingId, place: Place) {
        if let Some(pending) = self.by_id.get_mut(&id) {
            if let Place::Forwarded(_, number) = pending.place {
                self.asked.remove(&number);
            }
            if let Place::Forwarded(_, number) = place {
                self.asked.insert(number, id);
            }
            if let Place::Paced(turn) = pending.place {
                self.turns.remove(&(turn, id));
            }
            if let Place::Paced(turn) = place {
                self.turns.insert((turn, id));
            }
            if let Some(at) = pending.overdue_at.take() {
                self.forwarded.remove(&(at, id));
            }
            pending.place = place;
            if place == Place::Waiting {
                self.waiting.insert(id);
            } else {
                self.waiting.remove(&id);
            }
        }
    }

    /// A node is being asked; its answer is overdue at that moment.
    pub(crate) fn forward(&mut self, id: PendingId, node: NodeId, number: u64, overdue_at: Monotonic) {
        self.place(id, Place::Forwarded(node, number));
        if let Some(pending) = self.by_id.get_mut(&id) {
            pending.asked += 1;
            pending.overdue_at = Some(overdue_at);
            self.forwarded.insert((overdue_at, id));
        }
    }

    /// Takes one whose answer is overdue. It is told once of each asking.
    pub(crate) fn take_unanswered(&mut self, now: Monotonic) -> Option<PendingId> {
        let first = *self.forwarded.first().filter(|(at, _)| *at <= now)?;
        self.forwarded.remove(&first);
        let (_, id) = first;
        if let Some(pending) = self.by_id.get_mut(&id) {
            pending.overdue_at = None;
        }
        Some(id)
    }

    /// Takes one whose turn has come.
    pub(crate) fn take_turn(&mut self, now: Monotonic) -> Option<PendingId> {
        let (_, id) = *self.turns.first().filter(|(turn, _)| *turn <= now)?;
        self.place(id, Place::Waiting);
        if let Some(pending) = self.by_id.get_mut(&id) {
            pending.had_turn = true;
        }
        Some(id)
    }

    /// When the next request is overdue, unanswered, or to be tried.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        let first = |of: &BTreeSet<(Monotonic, PendingId)>| of.first().map(|(at, _)| *at);
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at);
        [first(&self.deadlines), first(&self.forwarded), first(&self.turns), retry].into_iter().flatten().min()
    }

    /// The change that it asks for has begun: it waits for its end.
    pub(crate) fn await_change(&mut self, of: CohortId, id: PendingId) {
        self.changes.entry(of).or_default().push(id);
    }

    /// Those that waited for the end of a change.
    pub(crate) fn change_ended(&mut self, of: CohortId) -> Vec<PendingId> {
        self.changes.remove(&of).unwrap_or_default()
    }

    /// All that wait for the end of a change.
    pub(crate) fn take_changes(&mut self) -> Vec<PendingId> {
        std::mem::take(&mut self.changes).into_values().flatten().collect()
    }

    /// Something changed that requests may wait for.
    pub(crate) fn wake(&mut self) {
        self.is_woken = true;
    }

    /// Writes that waited for their row may try again, in that order.
    pub(crate) fn unlatch(&mut self, writes: VecDeque<PendingId>) {
        self.unlatched.extend(writes);
    }

    /// Those that are to be tried now: such as waited for their row come first.
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

    /// It is to be asked again, though the node that was asked last may have taken it.
    pub(crate) fn ask_again(&mut self, id: PendingId) {
        self.place(id, Place::Waiting);
        if let Some(pending) = self.by_id.get_mut(&id) {
            pending.unanswered += 1;
        }
    }

    /// A number for asking another node.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The request that a node was asked under that number, if it still waits for that answer.
    pub(crate) fn asked(&self, node: NodeId, number: u64) -> Option<PendingId> {
        let id = *self.asked.get(&number)?;
        (self.by_id.get(&id)?.place == Place::Forwarded(node, number)).then_some(id)
    }

    /// Those that were forwarded to a node for a cohort.
    pub(crate) fn forwarded_to(&self, chosen: impl Fn(CohortId, NodeId) -> bool) -> Vec<PendingId> {
        let is_chosen = |pending: &Pending| match (pending.cohort, pending.place) {
            (Some(cohort), Place::Forwarded(node, _)) => chosen(cohort, node),
            _ => false,
        };
        self.by_id.iter().filter(|(_, pending)| is_chosen(pending)).map(|(id, _)| *id).collect()
    }

    /// One whose deadline has passed.
    pub(crate) fn overdue(&self, now: Monotonic) -> Option<PendingId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    pub(crate) fn any_proposed(&self) -> bool {
        self.by_id.values().any(|pending| pending.place == Place::Proposed)
    }

    pub(crate) fn ids(&self) -> Vec<PendingId> {
        self.by_id.keys().copied().collect()
    }

    /// How many are of doors.
    pub(crate) fn of_doors(&self) -> usize {
        self.of_doors
    }

    /// How many are of peers.
    pub(crate) fn of_peers(&self) -> usize {
        self.of_peers
    }

    /// Those of a door's requests that logs' client machines have.
    pub(crate) fn at_logs(&self, requests: &BTreeSet<RequestId>) -> impl Iterator<Item = (PendingId, &Pending)> {
        let is_among = |origin| matches!(origin, Origin::Door(request) if requests.contains(&request));
        let at_logs =
            self.by_id.iter().filter(move |(_, pending)| pending.place == Place::AtLog && is_among(pending.origin));
        at_logs.map(|(id, pending)| (*id, pending))
    }

    /// Checks what must hold between any two steps.
    pub(crate) fn invariants(&self) {
        let all = || self.by_id.values();
        assert_eq!(self.of_doors, all().filter(|pending| pending.is_of_door()).count(), "requests of doors");
        assert_eq!(self.of_peers, all().filter(|pending| pending.is_of_peer()).count(), "requests of peers");
    }
}
