//! The client protocol of a log as a pure state machine: append, read, fill, trim, and query the tail.
//!
//! The machine has no socket and no clock. The driver passes in events with the current time, and carries out the
//! resulting [`Action`]s. Each call is a small machine of its own that states its next request (`task.rs`). This module
//! does the common part: routing, timeouts, retries, projections, deadlines.
//!
//! * *Append* (CORFU, section 3.3). Gets a position from the sequencer, then writes the entry down its chain, one unit
//!   after the other. A position is written only in the epoch in which it was handed out: in a newer epoch, an append
//!   that started later may already have completed above it. So after the projection was replaced, the old position is
//!   *resolved* first: it is completed if the entry was written, and otherwise filled with junk. Only then does the
//!   append take another position. A client that does not crash leaves no duplicate.
//! * *Fill* (`hole_fill.rs`). Writes junk to the head of the chain, or copies the head's entry down the chain.
//! * *Read*. Reads from the tail of the chain: an entry there is held by the whole chain.
//!
//! A call ends exactly once, at its deadline at the latest. [`Error::Unknown`] means that the append may have happened,
//! and at which position. Repeating it with the same stamp may append it twice; readers deliver the first entry of a
//! stamp ([`duplicates`](crate::duplicates)).

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, SplitMix64};

use crate::limits::BATCH_BYTES_MAX;
use crate::{AskId, Batch, ClientId, Position, PositionRun, Projection, ProjectionEpoch, Stamp};
use crate::{Data, sequencer, unit};
use task::{Next, Task, View};

mod append;
mod contract;
mod fetching;
mod hole_fill;
mod positions;
mod range_read;
mod read;
mod suspicion;
mod task;
#[cfg(test)]
mod tests;
mod trim;

pub use contract::{Action, Error, LogReply, ReadMany, Suspect, Timing, Token, Wait};

use append::Append;
use fetching::Fetching;
use range_read::RangeRead;
use read::Read;
use suspicion::Suspicions;
use task::Fill;
use trim::{Trim, TrimOne};

/// Identifies a caller's call or an internal one.
type CallId = u64;

/// A client of one log.
///
/// Entry points take the current time, which never goes back, and queue [`Action`]s for [`Client::take_actions`].
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    /// Sequence of the last stamp created by this client.
    last_stamp: u64,
    timing: Timing,
    jitter: SplitMix64,
    projection: Option<Projection>,
    /// The highest tail reported by the sequencer of that epoch.
    tail: Option<(ProjectionEpoch, Position)>,
    calls: BTreeMap<CallId, Call>,
    last_call: CallId,
    asks: BTreeMap<AskId, CallId>,
    last_ask: AskId,
    alarms: BTreeSet<(Monotonic, CallId)>,
    /// Appends that need a position, in order.
    awaiting_position: Vec<CallId>,
    /// The pending request for positions.
    position_request: Option<CallId>,
    /// Range reads to advance because one of their calls has ended.
    range_reads_to_advance: BTreeSet<CallId>,
    fetching: Option<Fetching>,
    suspicions: Suspicions,
    timer: Monotonic,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Call {
    owner: CallOwner,
    deadline: Monotonic,
    alarm: Monotonic,
    ask: Option<AskId>,
    /// The epoch of the last request.
    asked_in: ProjectionEpoch,
    failures: u32,
    /// The call waits for a projection newer than this epoch.
    outdated: Option<ProjectionEpoch>,
    task: Task,
}

/// The receiver of a call's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOwner {
    Caller(Token),
    /// The range read that started the call.
    Range(CallId),
    /// None: an internal call.
    Internal,
}

/// Consecutive failed requests before the target is reported as suspect.
const SUSPECT_AFTER: u32 = 2;

impl Client {
    /// Creates a client. `id` must be unique: it identifies the stamps of appends that arrive without one. `seed`
    /// drives the jitter of retries.
    #[must_use]
    pub fn new(id: ClientId, timing: Timing, seed: u64) -> Self {
        Self {
            id,
            last_stamp: 0,
            timing,
            jitter: SplitMix64::new(seed),
            projection: None,
            tail: None,
            calls: BTreeMap::new(),
            last_call: 0,
            asks: BTreeMap::new(),
            last_ask: AskId(0),
            alarms: BTreeSet::new(),
            awaiting_position: Vec::new(),
            position_request: None,
            range_reads_to_advance: BTreeSet::new(),
            fetching: None,
            suspicions: Suspicions::new(timing),
            timer: Monotonic::NEVER,
            actions: Vec::new(),
        }
    }

    /// Drains the queued actions, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The newest known projection.
    #[must_use]
    pub fn known(&self) -> Option<&Projection> {
        self.projection.as_ref()
    }

    /// Number of calls in progress, including internal ones.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Appends a batch as one entry at one position. Without `stamp`, the client creates one.
    pub fn append(&mut self, token: Token, batch: Batch, stamp: Option<Stamp>, deadline: Monotonic, now: Monotonic) {
        let stamp = stamp.unwrap_or_else(|| {
            self.last_stamp += 1;
            Stamp { client: self.id, sequence: self.last_stamp }
        });
        self.begin(token, Task::Append(Append::new(Data { stamp, batch })), deadline, now);
    }

    /// Reads a position. If it is unwritten, the read is repeated until `wait` has passed, and then fills it. With
    /// `None` the answer is [`LogReply::Unwritten`].
    pub fn read(
        &mut self,
        token: Token,
        position: Position,
        wait: Option<Duration>,
        deadline: Monotonic,
        now: Monotonic,
    ) {
        let wait = wait.map_or(Wait::No, Wait::First);
        let read = Read::new(position, wait, BATCH_BYTES_MAX, self.timing);
        self.begin(token, Task::Read(read), deadline, now);
    }

    /// Reads many positions. [`LogReply::Range`] contains, from the first position on, the answers that
    /// [`Client::read`] would give. It may end early at an unwritten or unavailable position, or at the size limit. If
    /// the first entry exceeds the limit, the answer is [`LogReply::Larger`]. At the deadline it contains the answers
    /// so far. The call fails only if the first position cannot be read.
    pub fn read_many(&mut self, token: Token, wanted: ReadMany, deadline: Monotonic, now: Monotonic) {
        let row = RangeRead::new(wanted, self.timing);
        self.begin(token, Task::Range(Box::new(row)), deadline, now);
    }

    /// Queries the tail: every append that has completed by now is below it. It may be lower than an earlier tail,
    /// because a new sequencer reuses positions that were handed out and never written.
    pub fn tail(&mut self, token: Token, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Tail(None), deadline, now);
    }

    /// Ensures that a position below the tail is written, with junk if necessary.
    pub fn fill(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Fill(Fill::new(position)), deadline, now);
    }

    /// Trims every position below `before`, which must not exceed the tail.
    pub fn trim(&mut self, token: Token, before: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Trim(Trim::new(before)), deadline, now);
    }

    /// Trims one position below the tail. A unit that is being copied may keep the entry: this call frees space, it
    /// does not guarantee that the entry is unreadable.
    pub fn trim_one(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::TrimOne(TrimOne::new(position)), deadline, now);
    }

    /// Cancels these calls: they end as at their deadlines.
    pub fn give_up(&mut self, tokens: &BTreeSet<Token>, now: Monotonic) {
        let is_among = |owner| matches!(owner, CallOwner::Caller(token) if tokens.contains(&token));
        let given_up: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| is_among(call.owner)).map(|(id, _)| *id).collect();
        given_up.into_iter().for_each(|id| self.out_of_time(id));
        self.settle(now);
    }

    fn begin(&mut self, token: Token, task: Task, deadline: Monotonic, now: Monotonic) {
        self.start(CallOwner::Caller(token), task, deadline, now);
        self.settle(now);
    }

    /// Starts a call with the next number.
    fn start(&mut self, owner: CallOwner, task: Task, deadline: Monotonic, now: Monotonic) {
        self.last_call += 1;
        let id = self.last_call;
        let call = Call {
            owner,
            deadline,
            alarm: Monotonic::NEVER,
            ask: None,
            asked_in: ProjectionEpoch(0),
            failures: 0,
            outdated: None,
            task,
        };
        self.calls.insert(id, call);
        self.set_alarm(id, deadline);
        self.advance(id, now);
    }

    /// Runs the work that every event may cause.
    fn settle(&mut self, now: Monotonic) {
        while let Some(id) = self.range_reads_to_advance.pop_first() {
            if self.calls.get(&id).is_some_and(|call| call.ask.is_none()) {
                self.advance(id, now);
            }
        }
        self.ask_positions(now);
        self.set_timer();
    }

    /// Handles the reply of a unit. A reply without a waiting call only counts as a sign of life.
    pub fn unit_answered(&mut self, ask: AskId, reply: unit::Reply, now: Monotonic) {
        if let Some(id) = self.landed(ask, now) {
            self.unit_replied(id, reply, now);
        }
        self.settle(now);
    }

    fn unit_replied(&mut self, id: CallId, reply: unit::Reply, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let reply = match reply {
            // A size-limited read of one position returns a list.
            unit::Reply::Many(one) if matches!(call.task, Task::Read(_)) && one.len() <= 1 => {
                one.into_iter().next().unwrap_or(unit::Reply::Many(Vec::new()))
            }
            reply => reply,
        };
        match reply {
            unit::Reply::Refused { sealed } => {
                call.failures = 0;
                if !call.task.ignores_seal() {
                    call.outdated = Some(sealed.max(call.asked_in));
                }
            }
            // Handled like a missing reply.
            unit::Reply::Unknown => {
                let suspect = call.task.asked_unit().map(Suspect::Unit);
                return self.failed(id, suspect, now);
            }
            reply => {
                if let (unit::Reply::Damaged, Some(unit)) = (&reply, call.task.asked_unit()) {
                    let suspect = Suspect::Unit(unit);
                    self.actions.push(Action::Suspect { epoch: call.asked_in, suspect });
                }
                call.failures = 0;
                call.task.unit_replied(reply);
            }
        }
        self.advance(id, now);
    }

    /// Handles the reply of the sequencer.
    pub fn sequencer_answered(&mut self, ask: AskId, reply: sequencer::Reply, now: Monotonic) {
        if let Some(id) = self.landed(ask, now) {
            self.heard_sequencer(id, reply, now);
        }
        self.settle(now);
    }

    fn heard_sequencer(&mut self, id: CallId, reply: sequencer::Reply, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let epoch = call.asked_in;
        match (reply, &mut call.task) {
            (sequencer::Reply::Refused { newest }, _) if newest > epoch => {
                call.outdated = Some(epoch);
                self.advance(id, now);
            }
            (sequencer::Reply::Refused { .. }, _) => self.failed(id, Some(Suspect::Sequencer), now),
            (sequencer::Reply::Positions { first, count }, Task::Asking(_, wanted)) if count > 0 => {
                let wanted = std::mem::take(wanted);
                let count = count.min(wanted.len() as u64) as usize;
                self.given(id, wanted, epoch, PositionRun::of(first, count), now);
            }
            (sequencer::Reply::Tail(tail), task) if !matches!(task, Task::Asking(..)) => {
                call.failures = 0;
                task.tail_replied(epoch, tail);
                self.note_tail(epoch, tail);
                self.advance(id, now);
            }
            _ => self.failed(id, None, now),
        }
    }

    /// Handles a projection from any source. Only a newer one has an effect: every call continues in it. Requests sent
    /// in the old epoch are abandoned, since their replies no longer prove anything; an unanswered write is in doubt
    /// from then on.
    pub fn projected(&mut self, projection: Projection, now: Monotonic) {
        if self.projection.as_ref().is_none_or(|known| known.epoch < projection.epoch) {
            self.suspicions.projected(self.projection.as_ref(), &projection);
            self.projection = Some(projection);
            self.fetching = None;
            let given = self.wait_for_positions();
            for id in self.calls.keys().copied().filter(|id| !given.contains(id)).collect::<Vec<_>>() {
                self.restart_call(id, now);
            }
        }
        self.settle(now);
    }

    /// Continues a call in a newer projection.
    fn restart_call(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if planted(Bug::OldTailCounts) && call.ask.is_some() && call.task.asked_unit().is_none() {
            return;
        }
        call.failures = 0;
        if let Some(ask) = call.ask.take() {
            self.asks.remove(&ask);
            call.task.unanswered();
        }
        self.advance(id, now);
    }

    /// Handles the timer set by [`Action::SetTimer`].
    pub fn timer(&mut self, now: Monotonic) {
        self.timer = Monotonic::NEVER;
        while let Some((at, id)) = self.alarms.first().copied().filter(|(at, _)| *at <= now) {
            self.alarms.remove(&(at, id));
            if let Some(call) = self.calls.get_mut(&id) {
                call.alarm = Monotonic::NEVER;
            }
            self.alarm(id, now);
        }
        if self.fetching.as_ref().is_some_and(|fetching| fetching.again_at <= now) {
            self.fetch_again(now);
        }
        self.settle(now);
    }

    fn alarm(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        // The target of the request; a newer projection may have replaced it.
        let suspect = call.ask.map(|_| call.task.target());
        match suspect {
            _ if call.deadline <= now => {
                self.suspect_silent(id, now);
                self.out_of_time(id);
            }
            Some(_) => self.failed(id, suspect, now),
            None => self.advance(id, now),
        }
    }

    /// Reports the targets of a call, or of a range read's calls, that have been silent for too long. Without this,
    /// calls with deadlines shorter than the reply timeout would never report a suspect.
    fn suspect_silent(&mut self, id: CallId, now: Monotonic) {
        let of_row = match self.calls.get(&id).map(|call| &call.task) {
            Some(Task::Range(row)) => row.calls().collect(),
            _ => Vec::new(),
        };
        let calls = of_row.into_iter().chain([id]).filter_map(|id| self.calls.get(&id));
        let waited_for = calls.filter(|call| call.ask.is_some()).map(|call| (call.asked_in, call.task.target()));
        let silent = waited_for.filter(|(_, target)| self.suspicions.is_silent(*target, now));
        let silent: BTreeSet<_> = silent.collect();
        silent.into_iter().for_each(|(epoch, suspect)| self.suspect(epoch, suspect));
    }

    /// Reports a suspect that blocks calls.
    fn suspect(&mut self, epoch: ProjectionEpoch, suspect: Suspect) {
        self.suspicions.suspect(suspect);
        self.actions.push(Action::Suspect { epoch, suspect });
    }

    /// Ends a call at its deadline. The calls of a range read share its deadline.
    fn out_of_time(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let of_row = if let Task::Range(row) = &call.task { row.calls().collect() } else { Vec::new() };
        of_row.into_iter().for_each(|id| self.out_of_time(id));
        let Some(call) = self.calls.get_mut(&id) else { return };
        let outcome = call.task.out_of_time();
        self.finish(id, outcome);
    }

    /// A request failed: it is repeated after a pause.
    fn failed(&mut self, id: CallId, suspect: Option<Suspect>, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(ask) = call.ask.take() {
            self.asks.remove(&ask);
            self.suspicions.abandoned(ask, call.task.target());
        }
        call.failures += 1;
        call.task.unanswered();
        let (failures, epoch) = (call.failures, call.asked_in);
        if let Some(suspect) = suspect
            && (failures >= SUSPECT_AFTER || self.suspicions.is_silent(suspect, now))
        {
            self.suspect(epoch, suspect);
        }
        self.actions.push(Action::Fetch);
        let pause = self.backoff(self.timing.pause, failures);
        self.set_alarm(id, now + pause);
    }

    /// Exponential backoff with a jitter of up to 25%.
    fn backoff(&mut self, first: Duration, failures: u32) -> Duration {
        let doubled = first.0.saturating_mul(1 << failures.min(5));
        Duration(doubled + self.jitter.below(doubled / 4 + 1))
    }

    /// Advances a call that has no pending request.
    fn advance(&mut self, id: CallId, now: Monotonic) {
        if self.is_in_vain(id) {
            self.position_request = None;
            self.end(id);
            return;
        }
        // The deadline wakes it in any case.
        self.set_alarm(id, Monotonic::NEVER);
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Some(projection) = &self.projection else { return self.fetch(now) };
        if call.outdated.is_some_and(|outdated| projection.epoch <= outdated) {
            return self.fetch(now);
        }
        call.outdated = None;
        let tail = self.tail.filter(|(epoch, _)| *epoch == projection.epoch).map(|(_, tail)| tail);
        let view = View { projection, tail, now, pause: self.timing.fetch };
        let epoch = projection.epoch;
        match call.task.next(&view) {
            Next::Unit(unit, request) => {
                let ask = self.asked(id, epoch, request.wait(), now);
                self.actions.push(Action::AskUnit { ask, unit, request });
            }
            Next::Sequencer(request) => {
                let sequencer = projection.sequencer;
                let ask = self.asked(id, epoch, Duration::ZERO, now);
                self.actions.push(Action::AskSequencer { ask, sequencer, request });
            }
            Next::Position => {
                call.asked_in = epoch;
                self.awaiting_position.push(id);
            }
            Next::Until(at) => {
                call.asked_in = epoch;
                self.set_alarm(id, at);
            }
            Next::Calls(tasks) => {
                let deadline = call.deadline;
                for task in tasks {
                    if let Some(Call { task: Task::Range(row), .. }) = self.calls.get_mut(&id) {
                        row.began(self.last_call + 1);
                    }
                    self.start(CallOwner::Range(id), task, deadline, now);
                }
            }
            Next::Done(outcome) => self.finish(id, outcome),
        }
    }

    /// Registers a request and its timeout. `held` is the time for which the unit may park it.
    fn asked(&mut self, id: CallId, epoch: ProjectionEpoch, held: Duration, now: Monotonic) -> AskId {
        self.last_ask.0 += 1;
        let ask = self.last_ask;
        self.asks.insert(ask, id);
        let failures = self.calls.get(&id).map_or(0, |call| call.failures);
        let patience = self.backoff(self.timing.answer, failures);
        if let Some(call) = self.calls.get_mut(&id) {
            call.ask = Some(ask);
            call.asked_in = epoch;
            self.suspicions.asked(call.task.target(), now + held);
        }
        self.set_alarm(id, now + held + patience);
        ask
    }

    fn landed(&mut self, ask: AskId, now: Monotonic) -> Option<CallId> {
        let Some(id) = self.asks.remove(&ask) else {
            self.suspicions.answered_late(ask, now);
            return None;
        };
        let call = self.calls.get_mut(&id)?;
        call.ask = None;
        self.suspicions.answered(call.task.target(), now);
        Some(id)
    }

    fn finish(&mut self, id: CallId, outcome: Result<LogReply, Error>) {
        let Some(call) = self.end(id) else { return };
        match call.owner {
            CallOwner::Caller(token) => self.actions.push(Action::Done { token, outcome }),
            CallOwner::Range(of) => {
                if let Some(Call { task: Task::Range(row), .. }) = self.calls.get_mut(&of) {
                    row.ended(id, call.task, outcome);
                    self.range_reads_to_advance.insert(of);
                }
            }
            CallOwner::Internal => {}
        }
    }

    fn end(&mut self, id: CallId) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        self.alarms.remove(&(call.alarm, id));
        if let Some(ask) = call.ask {
            self.asks.remove(&ask);
            self.suspicions.abandoned(ask, call.task.target());
        }
        if let Task::Range(row) = &call.task {
            row.calls().for_each(|id| {
                self.end(id);
            });
        }
        Some(call)
    }

    /// Wakes a call at `at`, or at its deadline if that is earlier.
    fn set_alarm(&mut self, id: CallId, at: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        self.alarms.remove(&(call.alarm, id));
        call.alarm = at.min(call.deadline);
        if call.alarm < Monotonic::NEVER {
            self.alarms.insert((call.alarm, id));
        }
    }

    fn set_timer(&mut self) {
        let fetch = self.fetching.as_ref().map(|fetching| fetching.again_at);
        let first = self.alarms.first().map(|(at, _)| *at).into_iter().chain(fetch).min();
        if let Some(first) = first
            && first < self.timer
        {
            self.timer = first;
            self.actions.push(Action::SetTimer(first));
        }
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        assert!(
            self.position_request.is_none_or(|id| self.calls.contains_key(&id)),
            "the pending position request is a call"
        );
        assert!(
            self.awaiting_position.is_empty() || self.position_request.is_some(),
            "positions are requested for waiting appends"
        );
        for (ask, id) in &self.asks {
            assert!(
                self.calls.get(id).is_some_and(|call| call.ask == Some(*ask)),
                "every pending request belongs to a call"
            );
        }
        for (id, call) in &self.calls {
            let has_alarm = call.alarm < Monotonic::NEVER && self.alarms.contains(&(call.alarm, *id));
            assert!(has_alarm || call.deadline == Monotonic::NEVER, "every call has an alarm");
        }
        let first = self.alarms.first().map_or(Monotonic::NEVER, |(at, _)| *at);
        assert!(self.timer <= first, "the timer is not later than the first alarm");
    }
}
