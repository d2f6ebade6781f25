//! The calls in progress, their outstanding attempts, and their timers.

use std::collections::{BTreeMap, BTreeSet};

use base::Monotonic;
use bytes::Bytes;

use crate::attempts::Attempts;
use crate::seen::CohortLsn;
use crate::{Ask, AttemptId, CallId, Effect, Link, ScanStart, Stamp};

/// The purpose of a call.
#[derive(Clone, Debug)]
pub(crate) enum Task<Q> {
    Ask(Ask<Q>),
    /// Opens a session for which writes in a table wait.
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

    /// The position where it begins, if it is a read that any replica may answer.
    pub(crate) fn anywhere(&self) -> Option<&ScanStart> {
        match self {
            Self::Ask(ask) => ask.anywhere.as_ref(),
            Self::OpenSession { .. } => None,
        }
    }
}

/// The event that a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedEvent {
    /// A session, or space in its window.
    Session,
    /// A connection to this endpoint.
    Connection(usize),
    /// The response to its latest attempt. The timeout is prolonged once if the endpoint answers other requests.
    Response { attempt: AttemptId, is_prolonged: bool },
    /// The end of a pause.
    Pause,
}

#[derive(Clone, Debug)]
pub(crate) struct Call<Q> {
    pub(crate) task: Task<Q>,
    pub(crate) deadline: Monotonic,
    pub(crate) attempts: Attempts,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) awaited: AwaitedEvent,
    /// Outstanding attempts, including earlier ones that may still be answered.
    pub(crate) flying: Vec<AttemptId>,
    /// The endpoint of the last failed attempt.
    pub(crate) avoided: Option<usize>,
    /// The state that a read requires, after a response was older than the state seen of the same cohort.
    pub(crate) insists: Option<CohortLsn>,
    /// When its timer fires.
    alarm: Monotonic,
}

impl<Q> Call<Q> {
    pub(crate) fn new(task: Task<Q>, deadline: Monotonic, attempts: Attempts) -> Self {
        Self {
            task,
            deadline,
            attempts,
            stamp: None,
            awaited: AwaitedEvent::Pause,
            flying: Vec::new(),
            avoided: None,
            insists: None,
            alarm: Monotonic::NEVER,
        }
    }

    /// Whether its stamp is of a session that its caller has opened, so that no other one can replace it.
    pub(crate) fn has_own_session(&self) -> bool {
        matches!(&self.task, Task::Ask(Ask { stamp: Some(_), .. }))
    }

    /// Whether an attempt may have been executed, without a known outcome. `except` is the attempt about to be sent.
    pub(crate) fn is_in_doubt(&self, except: Option<AttemptId>) -> bool {
        let changes = matches!(&self.task, Task::Ask(ask) if ask.effect != Effect::Reads);
        self.attempts.is_in_doubt() || changes && self.flying.iter().any(|attempt| Some(*attempt) != except)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) call: CallId,
    pub(crate) link: Link,
    pub(crate) sent_at: Monotonic,
    /// The latest seen state that the request carried.
    pub(crate) seen: Option<CohortLsn>,
}

/// All calls in progress.
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

    /// Ends a call, and forgets its outstanding attempts.
    pub(crate) fn remove(&mut self, id: CallId) -> Option<Call<Q>> {
        let call = self.by_id.remove(&id)?;
        self.alarms.remove(&(call.alarm, id));
        for attempt in &call.flying {
            self.flying.remove(attempt);
        }
        Some(call)
    }

    /// Sets a call's timer, at the latest to its deadline.
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

    /// Takes a call with an expired timer, and clears the timer.
    pub(crate) fn take_alarm(&mut self, now: Monotonic) -> Option<CallId> {
        let (_, id) = self.alarms.first().filter(|(at, _)| *at <= now).copied()?;
        self.alarms.pop_first();
        if let Some(call) = self.by_id.get_mut(&id) {
            call.alarm = Monotonic::NEVER;
        }
        Some(id)
    }

    /// Records that a request is sent.
    pub(crate) fn fly(&mut self, id: CallId, link: Link, seen: Option<CohortLsn>, now: Monotonic) -> AttemptId {
        self.numbers += 1;
        let attempt = AttemptId(self.numbers);
        self.flying.insert(attempt, Flying { call: id, link, sent_at: now, seen });
        if let Some(call) = self.by_id.get_mut(&id) {
            call.flying.push(attempt);
            call.awaited = AwaitedEvent::Response { attempt, is_prolonged: false };
        }
        attempt
    }

    pub(crate) fn flying(&self, attempt: AttemptId) -> Option<Flying> {
        self.flying.get(&attempt).copied()
    }

    pub(crate) fn land(&mut self, attempt: AttemptId) -> Option<Flying> {
        let flying = self.flying.remove(&attempt)?;
        if let Some(call) = self.by_id.get_mut(&flying.call) {
            call.flying.retain(|other| *other != attempt);
        }
        Some(flying)
    }

    /// The outstanding attempts over a connection.
    pub(crate) fn over(&self, link: Link) -> Vec<AttemptId> {
        self.flying.iter().filter(|(_, flying)| flying.link == link).map(|(attempt, _)| *attempt).collect()
    }

    pub(crate) fn invariants(&self) {
        for (id, call) in &self.by_id {
            assert!(self.alarms.contains(&(call.alarm, *id)), "call {id:?} has no timer");
            assert!(call.alarm <= call.deadline, "the timer of call {id:?} is after its deadline");
            for attempt in &call.flying {
                assert_eq!(
                    self.flying.get(attempt).map(|flying| flying.call),
                    Some(*id),
                    "an attempt belongs to another call"
                );
            }
            if let AwaitedEvent::Response { attempt, .. } = call.awaited {
                assert!(call.flying.contains(&attempt), "call {id:?} waits for a response without an attempt");
            }
        }
        assert_eq!(self.alarms.len(), self.by_id.len(), "a timer has no call");
        assert_eq!(
            self.flying.len(),
            self.by_id.values().map(|call| call.flying.len()).sum(),
            "an attempt has no call"
        );
    }
}
