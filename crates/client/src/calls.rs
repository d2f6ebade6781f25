//! The calls of a client that have not ended, their attempts under way, and when to look after which.

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;
use bytes::Bytes;

use crate::attempts::Attempts;
use crate::seen::Place as SeenPlace;
use crate::{Ask, AttemptId, CallId, Link, Position, Stamp};

/// What a call is for.
#[derive(Clone, Debug)]
pub(crate) enum Task<Q> {
    Ask(Ask<Q>),
    /// Opens the session that writes in a table wait for.
    OpenSession {
        table: String,
        key: Bytes,
    },
}

impl<Q> Task<Q> {
    pub(crate) fn table(&self) -> &str {
        match self {
            Self::Ask(ask) => &ask.table,
            Self::OpenSession { table, .. } => table,
        }
    }

    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Self::Ask(ask) => &ask.key,
            Self::OpenSession { key, .. } => key,
        }
    }

    /// Where it begins, if it is a read that any replica may answer.
    pub(crate) fn anywhere(&self) -> Option<&Position> {
        match self {
            Self::Ask(ask) => ask.anywhere.as_ref(),
            Self::OpenSession { .. } => None,
        }
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A session, or room in its window.
    Session,
    /// A connection to this endpoint.
    Connection(usize),
    /// The answer to its latest attempt. Its time is prolonged once, if the endpoint answers others.
    Answer { attempt: AttemptId, is_prolonged: bool },
    /// The end of a pause.
    Pause,
}

#[derive(Clone, Debug)]
pub(crate) struct Call<Q> {
    pub(crate) task: Task<Q>,
    pub(crate) deadline: Monotonic,
    pub(crate) attempts: Attempts,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) place: Place,
    /// Attempts that may still be answered.
    pub(crate) flying: Vec<AttemptId>,
    /// The endpoint that has just failed it.
    pub(crate) avoided: Option<usize>,
    /// A read was shown less than was seen of the same cohort elsewhere: it insists on that much.
    pub(crate) insists: Option<SeenPlace>,
    /// When to look after it.
    alarm: Monotonic,
}

impl<Q> Call<Q> {
    pub(crate) fn new(task: Task<Q>, deadline: Monotonic, attempts: Attempts) -> Self {
        Self {
            task,
            deadline,
            attempts,
            stamp: None,
            place: Place::Pause,
            flying: Vec::new(),
            avoided: None,
            insists: None,
            alarm: Monotonic::NEVER,
        }
    }
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) call: CallId,
    pub(crate) link: Link,
    pub(crate) sent_at: Monotonic,
    /// How far it said that the client has seen what it reads.
    pub(crate) seen: Option<SeenPlace>,
}

/// All calls that have not ended.
#[derive(Clone, Debug)]
pub(crate) struct Calls<Q> {
    by_id: BTreeMap<CallId, Call<Q>>,
    flying: BTreeMap<AttemptId, Flying>,
    alarms: BTreeSet<(Monotonic, CallId)>,
    numbers: u64,
}

impl<Q> Calls<Q> {
    pub(crate) fn new() -> Self {
        Self { by_id: BTreeMap::new(), flying: BTreeMap::new(), alarms: BTreeSet::new(), numbers: 0 }
    }

    pub(crate) fn insert(&mut self, call: Call<Q>) -> CallId {
        self.numbers += 1;
        let id = CallId(self.numbers);
        self.by_id.insert(id, call);
        id
    }

    pub(crate) fn get(&self, id: CallId) -> Option<&Call<Q>> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: CallId) -> Option<&mut Call<Q>> {
        self.by_id.get_mut(&id)
    }

    /// Ends a call: its attempts have nobody to be told to any more.
    pub(crate) fn remove(&mut self, id: CallId) -> Option<Call<Q>> {
        let call = self.by_id.remove(&id)?;
        self.alarms.remove(&(call.alarm, id));
        for attempt in &call.flying {
            self.flying.remove(attempt);
        }
        Some(call)
    }

    /// Has a call looked after at some time, by its deadline at the latest.
    pub(crate) fn set_alarm(&mut self, id: CallId, at: Monotonic) {
        let Some(call) = self.by_id.get_mut(&id) else { return };
        let at = at.min(call.deadline);
        if call.alarm != at {
            self.alarms.remove(&(call.alarm, id));
            self.alarms.insert((at, id));
            call.alarm = at;
        }
    }

    pub(crate) fn first_alarm(&self) -> Option<Monotonic> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// A call that is to be looked after by now. Its alarm is no more.
    pub(crate) fn take_alarm(&mut self, now: Monotonic) -> Option<CallId> {
        let (_, id) = self.alarms.first().filter(|(at, _)| *at <= now).copied()?;
        self.alarms.pop_first();
        if let Some(call) = self.by_id.get_mut(&id) {
            call.alarm = Monotonic::NEVER;
        }
        Some(id)
    }

    /// Notes that a call's request leaves.
    pub(crate) fn fly(&mut self, id: CallId, link: Link, seen: Option<SeenPlace>, now: Monotonic) -> AttemptId {
        self.numbers += 1;
        let attempt = AttemptId(self.numbers);
        self.flying.insert(attempt, Flying { call: id, link, sent_at: now, seen });
        if let Some(call) = self.by_id.get_mut(&id) {
            call.flying.push(attempt);
            call.place = Place::Answer { attempt, is_prolonged: false };
        }
        attempt
    }

    pub(crate) fn flying(&self, attempt: AttemptId) -> Option<Flying> {
        self.flying.get(&attempt).copied()
    }

    /// An attempt has come to its end.
    pub(crate) fn land(&mut self, attempt: AttemptId) -> Option<Flying> {
        let flying = self.flying.remove(&attempt)?;
        if let Some(call) = self.by_id.get_mut(&flying.call) {
            call.flying.retain(|other| *other != attempt);
        }
        Some(flying)
    }

    /// The attempts under way over a connection.
    pub(crate) fn over(&self, link: Link) -> Vec<AttemptId> {
        self.flying.iter().filter(|(_, flying)| flying.link == link).map(|(attempt, _)| *attempt).collect()
    }

    /// Checks what must always hold.
    pub(crate) fn invariants(&self) {
        for (id, call) in &self.by_id {
            assert!(self.alarms.contains(&(call.alarm, *id)), "every call is looked after: {id:?}");
            assert!(call.alarm <= call.deadline, "by its deadline: {id:?}");
            for attempt in &call.flying {
                assert_eq!(self.flying.get(attempt).map(|flying| flying.call), Some(*id), "an attempt is its call's");
            }
            if let Place::Answer { attempt, .. } = call.place {
                assert!(call.flying.contains(&attempt), "who waits for an answer has asked: {id:?}");
            }
        }
        assert_eq!(self.alarms.len(), self.by_id.len(), "no alarm is left over");
        assert_eq!(
            self.flying.len(),
            self.by_id.values().map(|call| call.flying.len()).sum(),
            "no attempt is left over"
        );
    }
}
