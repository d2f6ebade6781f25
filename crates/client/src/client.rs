//! The state machine of a client: its calls and their attempts.

use base::canary::{Bug, planted};
use base::{Duration, KeyRange, Monotonic, SplitMix64};

use crate::attempts::{Attempts, Next};
use crate::calls::{AwaitedEvent, Call, Calls, Flying, Task};
use crate::contract::AttemptResult;
use crate::endpoints::{Connection, Endpoints};
use crate::seen::{CohortLsn, SeenStates, Shown};
use crate::sessions::{Begun, ClientSessions};
use crate::{Action, Ask, AttemptId, CallId, Effect, Error, Fault, Link, NodeResponse, Pace, Sent, TimelineToken};

/// Minimum timeout of an attempt, unless the deadline is earlier.
const ATTEMPT_TIME_MIN: Duration = Duration::from_millis(10);
/// A connection without any response for this time, while an attempt is outstanding, is abandoned.
const LINK_SILENCE: Duration = Duration::from_millis(2_000);

/// A client of one cluster, with requests `Q` and responses `A`.
///
/// Every entry point takes the current time, which never decreases. The resulting [`Action`]s are returned by
/// [`Client::take_actions`].
#[derive(Debug)]
pub struct Client<Q, A> {
    endpoints: Endpoints,
    sessions: ClientSessions,
    seen: SeenStates,
    calls: Calls<Q>,
    jitter: SplitMix64,
    timer: Monotonic,
    actions: Vec<Action<Q, A>>,
}

impl<Q: Clone, A> Client<Q, A> {
    /// A client with `endpoints` endpoints. Each client needs its own seed, so that clients that fail together do not
    /// retry together.
    #[must_use]
    pub fn new(endpoints: usize, seed: u64) -> Self {
        Self {
            endpoints: Endpoints::new(endpoints),
            sessions: ClientSessions::default(),
            seen: SeenStates::default(),
            calls: Calls::new(),
            jitter: SplitMix64::new(seed),
            timer: Monotonic::NEVER,
            actions: Vec::new(),
        }
    }

    /// Returns the actions to carry out, in order.
    pub fn take_actions(&mut self) -> Vec<Action<Q, A>> {
        std::mem::take(&mut self.actions)
    }

    /// Prefers an endpoint until it fails.
    pub fn prefer(&mut self, endpoint: usize) {
        self.endpoints.prefer(endpoint);
    }

    /// Sets the endpoint that gets all reads that any node may answer, until it fails.
    pub fn set_nearest(&mut self, endpoint: usize) {
        self.endpoints.set_nearest(endpoint);
    }

    /// The preferred endpoint, for callers that send requests themselves.
    #[must_use]
    pub fn preferred(&self) -> usize {
        self.endpoints.preferred()
    }

    /// The endpoint of the first attempt of a request for the leader of a key.
    #[must_use]
    pub fn endpoint_of(&self, table: &str, key: &[u8]) -> usize {
        self.endpoints.choose(table, key, None)
    }

    /// Records the state that was read by a caller itself.
    pub fn has_seen(&mut self, table: &str, shown: Shown) {
        self.seen.note(table, shown);
    }

    /// Records that the node at an endpoint leads a range.
    pub fn leads(&mut self, endpoint: usize, table: &str, range: KeyRange) {
        self.endpoints.leads(endpoint, table, range);
    }

    /// The states that the client has seen of one table, or of all.
    #[must_use]
    pub fn token(&self, table: Option<&str>) -> TimelineToken {
        TimelineToken(self.seen.of(table))
    }

    /// Records the states that another client has seen. Timeline reads that begin later are not older.
    pub fn observe(&mut self, token: &TimelineToken) {
        for (table, shown) in token.0.all() {
            self.seen.note(table, shown.clone());
        }
    }

    pub fn begin(&mut self, ask: Ask<Q>, deadline: Monotonic, now: Monotonic) -> CallId {
        let attempts = Attempts::new(ask.effect, self.endpoints.count() as u32, deadline.since(now));
        let stamp = ask.stamp;
        let mut call = Call::new(Task::Ask(ask), deadline, attempts);
        call.stamp = stamp;
        let id = self.calls.insert(call);
        self.advance(id, now);
        self.set_timer();
        id
    }

    /// Abandons a call: its outcome is no longer of interest.
    pub fn abandon(&mut self, id: CallId, now: Monotonic) {
        self.end(id, now);
        self.set_timer();
    }

    /// Reports that a connection is open.
    pub fn connected(&mut self, link: Link, now: Monotonic) {
        let endpoint = self.endpoints.get_mut(link.endpoint);
        if endpoint.connection == Connection::Beginning(link) {
            endpoint.connection = Connection::There(link);
            for id in std::mem::take(&mut endpoint.waiting) {
                if self.calls.get(id).is_some_and(|call| call.awaited == AwaitedEvent::Connection(link.endpoint)) {
                    self.send(id, link, now);
                }
            }
        }
        self.set_timer();
    }

    /// Reports that a connection failed or was closed. Its outstanding attempts get no response.
    pub fn broken(&mut self, link: Link, reason: &str, now: Monotonic) {
        if self.endpoints.lose(link) {
            self.endpoints.pass_over(link.endpoint, now);
            for id in std::mem::take(&mut self.endpoints.get_mut(link.endpoint).waiting) {
                if self.calls.get(id).is_some_and(|call| call.awaited == AwaitedEvent::Connection(link.endpoint)) {
                    self.failed(id, link.endpoint, Fault::NotSent(reason.to_owned()), now);
                }
            }
        }
        for attempt in self.calls.over(link) {
            self.landed(attempt, Err(Fault::Lost(reason.to_owned())), now);
        }
        self.set_timer();
    }

    /// Reports the result of an attempt. A late response to a finished call is ignored.
    pub fn answered(&mut self, attempt: AttemptId, result: Result<NodeResponse<A>, Fault>, now: Monotonic) {
        if let Some(Flying { link, sent_at, call, .. }) = self.calls.flying(attempt) {
            match &result {
                // The connection may be the reason for the lost response.
                Err(Fault::Lost(_) | Fault::Silent) => {
                    self.endpoints.pass_over(link.endpoint, now);
                    self.leave(link);
                }
                Err(Fault::NotSent(_)) => {}
                Ok(_) => {
                    self.endpoints.responded(link.endpoint, now);
                    if self.calls.get(call).is_some_and(|call| pace(&call.task) == Pace::Prompt) {
                        self.endpoints.took(now.since(sent_at));
                    }
                }
                Err(_) => self.endpoints.responded(link.endpoint, now),
            }
            self.landed(attempt, result, now);
        }
        self.set_timer();
    }

    /// Reports that the time of [`Action::SetTimer`] has come.
    pub fn timer(&mut self, now: Monotonic) {
        self.timer = Monotonic::NEVER;
        while let Some(id) = self.calls.take_alarm(now) {
            self.alarm(id, now);
        }
        self.set_timer();
    }

    /// Checks the invariants between two steps.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn invariants(&self) {
        self.calls.invariants();
        assert!(
            self.calls.first_alarm().is_none_or(|first| self.timer <= first),
            "the timer is later than the first alarm"
        );
    }

    /// A timer that is too early is not changed: it fires without effect.
    fn set_timer(&mut self) {
        if let Some(first) = self.calls.first_alarm()
            && first < self.timer
        {
            self.timer = first;
            self.actions.push(Action::SetTimer(first));
        }
    }

    /// Takes the next step of a call.
    fn advance(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if let Task::Ask(ask) = &call.task
            && ask.effect.has_stamp()
            && call.stamp.is_none()
        {
            match self.sessions.begin(id, &ask.table, &ask.key) {
                Begun::Stamped(stamp) => call.stamp = Some(stamp),
                Begun::WindowFull => return self.wait(id, AwaitedEvent::Session, Monotonic::NEVER),
                Begun::NoSession => return self.wait_for_session(id, now),
            }
        }
        let endpoint = match &call.task {
            Task::Ask(Ask { anywhere: Some(_), .. }) => self.endpoints.choose_any(call.avoided, now),
            task => self.endpoints.choose(task.table(), task.key(), call.avoided),
        };
        match self.endpoints.get_mut(endpoint).connection {
            Connection::There(link) => self.send(id, link, now),
            Connection::Beginning(_) => self.wait_for_connection(id, endpoint, now),
            Connection::None => {
                let link = self.endpoints.new_link(endpoint);
                self.endpoints.get_mut(endpoint).connection = Connection::Beginning(link);
                self.actions.push(Action::Connect(link));
                self.wait_for_connection(id, endpoint, now);
            }
        }
    }

    fn wait(&mut self, id: CallId, awaited: AwaitedEvent, until: Monotonic) {
        if let Some(call) = self.calls.get_mut(id) {
            call.awaited = awaited;
        }
        self.calls.set_alarm(id, until);
    }

    fn wait_for_connection(&mut self, id: CallId, endpoint: usize, now: Monotonic) {
        self.endpoints.get_mut(endpoint).waiting.push(id);
        let time = self.attempt_time(id, now);
        self.wait(id, AwaitedEvent::Connection(endpoint), now + time);
    }

    fn wait_for_session(&mut self, id: CallId, now: Monotonic) {
        self.wait(id, AwaitedEvent::Session, Monotonic::NEVER);
        let Some(call) = self.calls.get(id) else { return };
        let (name, key, deadline) = (call.task.table().to_owned(), call.task.key().clone(), call.deadline);
        let table = self.sessions.table(&name);
        table.waiting.push(id);
        if table.opening.is_none() {
            let attempts = Attempts::new(Effect::Repeatable, self.endpoints.count() as u32, deadline.since(now));
            let opening =
                self.calls.insert(Call::new(Task::OpenSession { table: name.clone(), key }, deadline, attempts));
            self.sessions.table(&name).opening = Some(opening);
            self.advance(opening, now);
        }
    }

    /// The timeout of a call's next attempt at a silent endpoint. It is at most half of the remaining time.
    fn attempt_time(&mut self, id: CallId, now: Monotonic) -> Duration {
        let Some(call) = self.calls.get(id) else { return Duration::ZERO };
        let first = self.endpoints.patience(pace(&call.task), bytes(&call.task));
        // The minimum prevents ever shorter attempts before the deadline.
        let time = call.attempts.attempt_time(first).0.min(call.deadline.since(now).0 / 2).max(ATTEMPT_TIME_MIN.0);
        // Jitter, so that the attempts do not time out at the same moment.
        Duration(time + self.jitter.below(time / 8))
    }

    fn send(&mut self, id: CallId, link: Link, now: Monotonic) {
        self.new_stamp_for_retry(id);
        let time = self.attempt_time(id, now);
        let Some(call) = self.calls.get(id) else { return };
        let known = call.task.anywhere().and_then(|position| self.seen.at(call.task.table(), position));
        let seen = [known, call.insists].into_iter().flatten().max_by_key(|place| (place.cohort, place.lsn));
        let attempt = self.calls.fly(id, link, seen, now);
        let Some(call) = self.calls.get(id) else { return };
        let sent = match &call.task {
            Task::Ask(Ask { effect: Effect::OpensSession, table, key, .. }) => {
                Sent::OpenSession { table: table.clone(), key: key.clone() }
            }
            Task::Ask(ask) => {
                let in_doubt = call.is_in_doubt(Some(attempt));
                Sent::Request { request: ask.request.clone(), stamp: call.stamp, seen, in_doubt }
            }
            Task::OpenSession { table, key } => Sent::OpenSession { table: table.clone(), key: key.clone() },
        };
        let left = call.deadline.since(now);
        self.actions.push(Action::Send { link, attempt, time: left, sent });
        self.calls.set_alarm(id, now + time);
    }

    /// Only for a planted bug: uses a new stamp for a retry.
    fn new_stamp_for_retry(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(id).filter(|_| planted(Bug::RetryTakesNewStamp)) else { return };
        if let Some(old) = call.stamp.filter(|_| call.attempts.has_failed())
            && let Begun::Stamped(new) = self.sessions.begin(id, call.task.table(), call.task.key())
        {
            call.stamp = Some(new);
            self.sessions.end(old);
        }
    }

    /// Handles the result of an attempt. A failure counts only if it is of the latest attempt; a definite response
    /// counts from any attempt.
    fn landed(&mut self, attempt: AttemptId, result: AttemptResult<A>, now: Monotonic) {
        let Some(Flying { call: id, link, seen, .. }) = self.calls.land(attempt) else { return };
        let Some(call) = self.calls.get_mut(id) else { return };
        let is_latest = matches!(call.awaited, AwaitedEvent::Response { attempt: latest, .. } if latest == attempt);
        if let Ok(NodeResponse::Shown { shown, .. }) = &result
            && let Some(newer) = newer(&self.seen, call, seen, shown)
        {
            call.insists = Some(newer);
            if is_latest {
                self.advance(id, now);
            }
            return;
        }
        match result {
            Ok(answer) => self.done(id, answer, now),
            Err(fault @ (Fault::Definite(_) | Fault::UnknownSession)) => {
                // Outstanding attempts may still be executed.
                if !call.flying.is_empty() {
                    call.attempts.doubt();
                }
                self.failed(id, link.endpoint, fault, now);
            }
            Err(fault) if is_latest => self.failed(id, link.endpoint, fault, now),
            Err(fault) => call.attempts.note(&fault),
        }
    }

    fn done(&mut self, id: CallId, answer: NodeResponse<A>, now: Monotonic) {
        match answer {
            NodeResponse::Of(answer) => self.finish(id, Ok(answer), now),
            NodeResponse::Shown { answer, shown } => {
                if let Some(call) = self.calls.get(id) {
                    self.seen.note(call.task.table(), shown);
                }
                self.finish(id, Ok(answer), now);
            }
            NodeResponse::Session { session, range } => {
                let Some(call) = self.end(id, now) else { return };
                let Task::OpenSession { table, .. } = call.task else {
                    return self.actions.push(Action::Opened { call: id, session });
                };
                let mut woken = self.sessions.opened(&table, session, range);
                woken.append(&mut self.opening_ended(&table));
                self.wake(woken, now);
            }
        }
    }

    /// Decides how a call proceeds after a failed attempt.
    fn failed(&mut self, id: CallId, endpoint: usize, fault: Fault, now: Monotonic) {
        let is_mute = matches!(fault, Fault::NotSent(_) | Fault::Unavailable(_));
        let Some(call) = self.calls.get_mut(id) else { return };
        let fault = match fault {
            // Another attempt may be executed yet.
            Fault::NoSpace(reason) if !call.flying.is_empty() => Fault::Unavailable(reason),
            fault => fault,
        };
        let next = call.attempts.after(fault, call.deadline.since(now), &mut self.jitter);
        match next {
            Next::NewSession if call.has_own_session() => {
                let reason = "the session of the transaction's id has expired".to_owned();
                self.finish(id, Err(Error::Aborted(reason)), now);
            }
            Next::GiveUp(error) => self.finish(id, Err(error), now),
            Next::OutOfTime if call.flying.is_empty() => {
                let error = call.attempts.out_of_time(call.deadline.since(now));
                self.finish(id, Err(error), now);
            }
            // Until the deadline an outstanding attempt may be answered, or a node may report the cause.
            Next::OutOfTime => self.wait(id, AwaitedEvent::Pause, Monotonic::NEVER),
            Next::NewSession => {
                if let Some(stamp) = call.stamp.take() {
                    let table = call.task.table().to_owned();
                    let mut woken = self.sessions.end(stamp);
                    woken.append(&mut self.sessions.retire(&table, stamp.session));
                    self.wake(woken, now);
                }
                self.advance(id, now);
            }
            Next::Retry { pause, elsewhere } => {
                call.avoided = elsewhere.then_some(endpoint);
                if elsewhere && is_mute {
                    self.endpoints.pass_over(endpoint, now);
                }
                if pause == Duration::ZERO {
                    return self.advance(id, now);
                }
                self.wait(id, AwaitedEvent::Pause, now + pause);
            }
        }
    }

    /// Handles the timer of a call.
    fn alarm(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if call.deadline <= now {
            return self.overdue(id, now);
        }
        match call.awaited {
            AwaitedEvent::Session => self.calls.set_alarm(id, Monotonic::NEVER),
            AwaitedEvent::Pause => self.advance(id, now),
            AwaitedEvent::Connection(endpoint) => {
                self.failed(id, endpoint, Fault::NotSent("no connection in time".to_owned()), now);
            }
            AwaitedEvent::Response { attempt, is_prolonged } => self.unanswered(id, attempt, is_prolonged, now),
        }
    }

    /// Ends a call at its deadline.
    fn overdue(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get(id) else { return };
        let opening =
            if call.awaited == AwaitedEvent::Session { self.sessions.table(call.task.table()).opening } else { None };
        let of_opening = opening.and_then(|opening| self.calls.get(opening)).map(|opening| opening.attempts.clone());
        let Some(call) = self.calls.get_mut(id) else { return };
        if !call.flying.is_empty() {
            call.attempts.doubt();
        }
        if let Some(of_opening) = of_opening {
            call.attempts.note_of(&of_opening);
        }
        let error = call.attempts.out_of_time(Duration::ZERO);
        self.finish(id, Err(error), now);
    }

    /// Handles the timeout of an attempt. The call continues, and the attempt may still be answered.
    fn unanswered(&mut self, id: CallId, attempt: AttemptId, is_prolonged: bool, now: Monotonic) {
        let Some(Flying { link, sent_at, .. }) = self.calls.flying(attempt) else { return };
        let Some(call) = self.calls.get_mut(id) else { return };
        let is_silent = self.endpoints.is_silent_since(link.endpoint, sent_at);
        if !is_silent && !is_prolonged {
            call.awaited = AwaitedEvent::Response { attempt, is_prolonged: true };
            let time = call.attempts.attempt_time(self.endpoints.long_patience(bytes(&call.task)));
            return self.calls.set_alarm(id, (sent_at + time).max(now + Duration(1)));
        }
        // Such a call can't be repeated elsewhere. It waits as long as its endpoint is used for other calls.
        if !is_silent && is_once(&call.task) && self.endpoints.is_in_use(link) {
            let time = self.endpoints.long_patience(0);
            return self.calls.set_alarm(id, now + time);
        }
        if is_silent {
            self.endpoints.pass_over(link.endpoint, now);
            self.leave_if_silent(id, link, now);
        }
        self.failed(id, link.endpoint, Fault::Outstanding, now);
    }

    /// Abandons a connection that has been silent for too long.
    fn leave_if_silent(&mut self, id: CallId, link: Link, now: Monotonic) {
        let Some(call) = self.calls.get(id) else { return };
        let of_link = call.flying.iter().filter_map(|attempt| self.calls.flying(*attempt));
        let first = of_link.filter(|flying| flying.link == link).map(|flying| flying.sent_at).min();
        let is_long = |first: Monotonic| now.since(first) >= LINK_SILENCE;
        if first.is_some_and(|first| is_long(first) && self.endpoints.is_silent_since(link.endpoint, first)) {
            self.leave(link);
        }
    }

    /// Stops sending over a connection.
    fn leave(&mut self, link: Link) {
        if self.endpoints.lose(link) {
            self.actions.push(Action::Disconnect(link));
        }
    }

    /// Ends a call with its outcome. At the end of a call that opens a session, the waiting calls fail too if the error
    /// is permanent, and otherwise retry.
    fn finish(&mut self, id: CallId, outcome: Result<A, Error>, now: Monotonic) {
        let woken = match &outcome {
            Err(Error::OutcomeUnknown(_)) => self.keep_outcome(id),
            _ => Vec::new(),
        };
        let Some(call) = self.end(id, now) else { return };
        self.wake(woken, now);
        let in_doubt = call.is_in_doubt(None);
        let Task::OpenSession { table, .. } = call.task else {
            return self.actions.push(Action::Done { call: id, outcome, in_doubt, stamp: call.stamp });
        };
        let waiting = self.opening_ended(&table);
        match outcome {
            Err(error @ (Error::NotFound(_) | Error::Precondition(_) | Error::Invalid(_))) => {
                for id in waiting {
                    self.finish(id, Err(error.clone()), now);
                }
            }
            _ => {
                for id in &waiting {
                    if let Some(waiting) = self.calls.get_mut(*id) {
                        waiting.attempts.note_of(&call.attempts);
                    }
                }
                self.wake(waiting, now);
            }
        }
    }

    /// Closes the session of a commit with an unknown outcome, so that no later write acknowledges the commit. Returns the
    /// calls that waited for the session's window.
    fn keep_outcome(&mut self, id: CallId) -> Vec<CallId> {
        match self.calls.get(id) {
            Some(Call { task: Task::Ask(ask), stamp: Some(stamp), .. }) if ask.effect == Effect::Commits => {
                self.sessions.retire(&ask.table, stamp.session)
            }
            _ => Vec::new(),
        }
    }

    fn opening_ended(&mut self, table: &str) -> Vec<CallId> {
        let table = self.sessions.table(table);
        table.opening = None;
        std::mem::take(&mut table.waiting)
    }

    /// Resumes calls that waited for a session, unless their deadline has passed.
    fn wake(&mut self, ids: Vec<CallId>, now: Monotonic) {
        for id in ids {
            let waits = |call: &Call<Q>| call.awaited == AwaitedEvent::Session && call.deadline > now;
            if self.calls.get(id).is_some_and(waits) {
                self.advance(id, now);
            }
        }
    }

    /// Ends a call, and acknowledges its number in the session.
    fn end(&mut self, id: CallId, now: Monotonic) -> Option<Call<Q>> {
        let call = self.calls.remove(id)?;
        if let Some(stamp) = call.stamp {
            let woken = self.sessions.end(stamp);
            self.wake(woken, now);
        }
        Some(call)
    }
}

/// The state that a read must require from now on, if a response shows an older one that the attempt did not exclude
/// (guarantee 15).
fn newer<Q>(known: &SeenStates, call: &Call<Q>, required: Option<CohortLsn>, shown: &Shown) -> Option<CohortLsn> {
    let newer = known.newer(call.task.table(), call.task.anywhere()?, shown)?;
    let was_required = required.is_some_and(|required| required.cohort >= newer.cohort);
    // A read as of a timestamp always returns that state, regardless of its requirements. This condition prevents endless
    // retries between cohorts.
    let is_insisted = call.insists.is_some_and(|place| place.cohort > newer.cohort);
    (!was_required && !is_insisted).then_some(newer)
}

fn is_once<Q>(task: &Task<Q>) -> bool {
    matches!(task, Task::Ask(Ask { effect: Effect::AppendsOnce, .. }))
}

fn pace<Q>(task: &Task<Q>) -> Pace {
    match task {
        Task::Ask(ask) => ask.pace,
        Task::OpenSession { .. } => Pace::Prompt,
    }
}

fn bytes<Q>(task: &Task<Q>) -> usize {
    match task {
        Task::Ask(ask) => ask.bytes,
        Task::OpenSession { .. } => 0,
    }
}
