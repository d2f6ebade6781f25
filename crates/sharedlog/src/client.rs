//! What a client of a log must do right, as a pure machine: appends, reads, fills, trims, and asking for the tail.
//!
//! The machine knows no socket and no clock. Whoever drives it hands in what happened with a time, and carries out the
//! [`Action`]s that come of it. Each call is a small machine of its own that says what it needs next (`task.rs`); this
//! machine does what is common to all: who is asked, time-outs, retries, projections, deadlines.
//!
//! * *Append* (CORFU, section 3.3). A position from the sequencer, then the entry down its chain, one unit after the other.
//!   A position is written in the epoch it was given in, or not at all: in a newer one an append that began later might
//!   already lie above it. So where a projection was replaced, the old position is *resolved* first: if it was written, it is
//!   completed, else it is junk. Only then another is taken. A client that lives leaves no duplicate.
//! * *Fill* (`filling.rs`). Junk to the head of the chain, or what the head holds down the chain.
//! * *Read*. From the tail of the chain: what is there, the whole chain holds.
//!
//! A call ends once, by its deadline. [`Error::Unknown`] says that an append may have been made, and where. Appending it again
//! under the same stamp may append it twice: readers deliver the first entry of a stamp
//! ([`duplicates`](crate::duplicates)).

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic, SplitMix64};

use crate::limits::BATCH_BYTES_MAX;
use crate::{AskId, Batch, ClientId, Position, Projection, ProjectionEpoch, Run, Stamp};
use crate::{Data, sequencer, unit};
use task::{Next, Task, View};

mod append;
mod contract;
mod fetching;
mod filling;
mod positions;
mod read;
mod row;
mod suspicion;
mod task;
#[cfg(test)]
mod tests;
mod trim;

pub use contract::{Action, Answer, Error, ReadMany, Suspect, Timing, Token, Wait};

use append::Append;
use fetching::Fetching;
use read::Read;
use row::Row;
use suspicion::Suspicions;
use task::Fill;
use trim::{Trim, TrimOne};

/// A call or an errand of the machine's own.
type CallId = u64;

/// A client of one log.
///
/// Every entry point takes the time, which never goes back, and leaves [`Action`]s to be taken with
/// [`Client::take_actions`].
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    /// The sequence of the last stamp of its own.
    last_stamp: u64,
    timing: Timing,
    jitter: SplitMix64,
    projection: Option<Projection>,
    /// The highest tail that a sequencer of that epoch told.
    tail: Option<(ProjectionEpoch, Position)>,
    calls: BTreeMap<CallId, Call>,
    last_call: CallId,
    asks: BTreeMap<AskId, CallId>,
    last_ask: AskId,
    alarms: BTreeSet<(Monotonic, CallId)>,
    /// Appends that want a position, in their order.
    wanting: Vec<CallId>,
    /// The appends that the asking under way is for.
    asking: Option<CallId>,
    /// Rows that go on with what a call of theirs has come to.
    going_on: BTreeSet<CallId>,
    fetching: Option<Fetching>,
    suspicions: Suspicions,
    timer: Monotonic,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Call {
    whose: Whose,
    deadline: Monotonic,
    alarm: Monotonic,
    ask: Option<AskId>,
    /// The epoch of what was asked last.
    asked_in: ProjectionEpoch,
    /// Askings in a row that came to nothing.
    failures: u32,
    /// It waits for a newer projection than this.
    outdated: Option<ProjectionEpoch>,
    task: Task,
}

/// Whom the end of a call is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The caller.
    Caller(Token),
    /// The row that it is read for.
    Row(CallId),
    /// Nobody: it is an errand of the machine's own.
    Nobody,
}

/// Askings in a row that come to nothing before somebody is suspected.
const SUSPECT_AFTER: u32 = 2;

impl Client {
    /// A client. Its number is its own: appends without a stamp are stamped with it. Its seed spreads retries.
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
            wanting: Vec::new(),
            asking: None,
            going_on: BTreeSet::new(),
            fetching: None,
            suspicions: Suspicions::new(timing),
            timer: Monotonic::NEVER,
            actions: Vec::new(),
        }
    }

    /// What is to be done, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The newest projection that it knows.
    #[must_use]
    pub fn known(&self) -> Option<&Projection> {
        self.projection.as_ref()
    }

    /// Calls under way, and errands of its own.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Appends a batch: one entry, at one position, however many records. Without a stamp it gets one of the machine's own.
    pub fn append(&mut self, token: Token, batch: Batch, stamp: Option<Stamp>, deadline: Monotonic, now: Monotonic) {
        let stamp = stamp.unwrap_or_else(|| {
            self.last_stamp += 1;
            Stamp { client: self.id, sequence: self.last_stamp }
        });
        self.begin(token, Task::Append(Append::new(Data { stamp, batch })), deadline, now);
    }

    /// Reads a position. If nothing is there, it looks again until `wait` has passed, and then fills it; with none it
    /// says so.
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

    /// Reads many positions: [`Answer::Row`] has, from the first on, what [`Client::read`] of each would have come to.
    /// It may end before they do, where something is not there yet or can't be read just now, or where there is enough
    /// of it; where the first has too many bytes, it is [`Answer::Larger`]. By its deadline it tells what it has. It
    /// fails only if its first position can't be read.
    pub fn read_many(&mut self, token: Token, wanted: ReadMany, deadline: Monotonic, now: Monotonic) {
        let row = Row::new(wanted, self.timing);
        self.begin(token, Task::Row(Box::new(row)), deadline, now);
    }

    /// Asks for the tail: every append that has ended by now lies below. It may be lower than an earlier one: positions
    /// that were given out and never written are given out again by another sequencer.
    pub fn tail(&mut self, token: Token, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Tail(None), deadline, now);
    }

    /// Sees to it that something lies at a position below the tail.
    pub fn fill(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Fill(Fill::new(position)), deadline, now);
    }

    /// Gives up everything below a position, which is not above the tail.
    pub fn trim(&mut self, token: Token, before: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::Trim(Trim::new(before)), deadline, now);
    }

    /// Gives up what lies at one position below the tail. A unit that is copied meanwhile may keep it: this gives room
    /// back, it does not hide anything.
    pub fn trim_one(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(token, Task::TrimOne(TrimOne::new(position)), deadline, now);
    }

    /// Nobody waits for these calls any more: they end as at their deadlines.
    pub fn give_up(&mut self, tokens: &BTreeSet<Token>, now: Monotonic) {
        let is_among = |whose| matches!(whose, Whose::Caller(token) if tokens.contains(&token));
        let given_up: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| is_among(call.whose)).map(|(id, _)| *id).collect();
        given_up.into_iter().for_each(|id| self.out_of_time(id));
        self.settle(now);
    }

    fn begin(&mut self, token: Token, task: Task, deadline: Monotonic, now: Monotonic) {
        self.start(Whose::Caller(token), task, deadline, now);
        self.settle(now);
    }

    /// Starts a call, under the next number.
    fn start(&mut self, whose: Whose, task: Task, deadline: Monotonic, now: Monotonic) {
        self.last_call += 1;
        let id = self.last_call;
        let call = Call {
            whose,
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

    /// What follows whatever has happened.
    fn settle(&mut self, now: Monotonic) {
        while let Some(id) = self.going_on.pop_first() {
            if self.calls.get(&id).is_some_and(|call| call.ask.is_none()) {
                self.advance(id, now);
            }
        }
        self.ask_positions(now);
        self.set_timer();
    }

    /// A unit has answered. An answer that nobody waits for is let go.
    pub fn unit_answered(&mut self, ask: AskId, reply: unit::Reply, now: Monotonic) {
        if let Some(id) = self.landed(ask, now) {
            self.heard_unit(id, reply, now);
        }
        self.settle(now);
    }

    fn heard_unit(&mut self, id: CallId, reply: unit::Reply, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let reply = match reply {
            // A read of one position with no more than so many bytes.
            unit::Reply::Many(one) if matches!(call.task, Task::Read(_)) && one.len() <= 1 => {
                one.into_iter().next().unwrap_or(unit::Reply::Many(Vec::new()))
            }
            reply => reply,
        };
        match reply {
            unit::Reply::Refused { sealed } => {
                call.failures = 0;
                if !call.task.heeds_no_seal() {
                    call.outdated = Some(sealed.max(call.asked_in));
                }
            }
            // As good as no answer.
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
                call.task.heard_unit(reply);
            }
        }
        self.advance(id, now);
    }

    /// The sequencer has answered.
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
                self.given(id, wanted, epoch, Run::of(first, count), now);
            }
            (sequencer::Reply::Tail(tail), task) if !matches!(task, Task::Asking(..)) => {
                call.failures = 0;
                task.heard_tail(epoch, tail);
                self.note_tail(epoch, tail);
                self.advance(id, now);
            }
            _ => self.failed(id, None, now),
        }
    }

    /// A projection has come, from whomever. Only a newer one counts: with it every call goes on at once. What was
    /// asked in the older one is let go: its answers say nothing any more, but for a write, which is in doubt from now
    /// on.
    pub fn projected(&mut self, projection: Projection, now: Monotonic) {
        if self.projection.as_ref().is_none_or(|known| known.epoch < projection.epoch) {
            self.suspicions.projected(self.projection.as_ref(), &projection);
            self.projection = Some(projection);
            self.fetching = None;
            let given = self.wait_for_positions();
            for id in self.calls.keys().copied().filter(|id| !given.contains(id)).collect::<Vec<_>>() {
                self.begin_anew(id, now);
            }
        }
        self.settle(now);
    }

    /// Has a call go on in a newer projection.
    fn begin_anew(&mut self, id: CallId, now: Monotonic) {
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

    /// The time that [`Action::SetTimer`] named has come.
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
        // Whom it was that didn't answer; a newer projection may have another in his place.
        let suspect = call.ask.map(|_| call.task.whom());
        match suspect {
            _ if call.deadline <= now => {
                self.suspect_silent(id, now);
                self.out_of_time(id);
            }
            Some(_) => self.failed(id, suspect, now),
            None => self.advance(id, now),
        }
    }

    /// Reports who has been silent for long, of those that a call waits for, or its calls if it is a row: all calls may
    /// be shorter than the time that an answer is waited for.
    fn suspect_silent(&mut self, id: CallId, now: Monotonic) {
        let of_row = match self.calls.get(&id).map(|call| &call.task) {
            Some(Task::Row(row)) => row.calls().collect(),
            _ => Vec::new(),
        };
        let calls = of_row.into_iter().chain([id]).filter_map(|id| self.calls.get(&id));
        let waited_for = calls.filter(|call| call.ask.is_some()).map(|call| (call.asked_in, call.task.whom()));
        let silent = waited_for.filter(|(_, whom)| self.suspicions.is_silent(*whom, now));
        let silent: BTreeSet<_> = silent.collect();
        silent.into_iter().for_each(|(epoch, suspect)| self.suspect(epoch, suspect));
    }

    /// Reports who keeps calls from going on.
    fn suspect(&mut self, epoch: ProjectionEpoch, suspect: Suspect) {
        self.suspicions.suspect(suspect);
        self.actions.push(Action::Suspect { epoch, suspect });
    }

    /// A call's deadline has come; that of its calls, if it is a row, is the same.
    fn out_of_time(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let of_row = if let Task::Row(row) = &call.task { row.calls().collect() } else { Vec::new() };
        of_row.into_iter().for_each(|id| self.out_of_time(id));
        let Some(call) = self.calls.get_mut(&id) else { return };
        let outcome = call.task.out_of_time();
        self.finish(id, outcome);
    }

    /// What was asked came to nothing: it is asked again after a while.
    fn failed(&mut self, id: CallId, suspect: Option<Suspect>, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(ask) = call.ask.take() {
            self.asks.remove(&ask);
            self.suspicions.gave_up(ask, call.task.whom());
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

    /// Twice as long each time, spread by up to a quarter.
    fn backoff(&mut self, first: Duration, failures: u32) -> Duration {
        let doubled = first.0.saturating_mul(1 << failures.min(5));
        Duration(doubled + self.jitter.below(doubled / 4 + 1))
    }

    /// Brings a call one step on that waits for no answer.
    fn advance(&mut self, id: CallId, now: Monotonic) {
        if self.is_in_vain(id) {
            self.asking = None;
            self.end(id);
            return;
        }
        // By its deadline it is woken in any case.
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
                self.wanting.push(id);
            }
            Next::Until(at) => {
                call.asked_in = epoch;
                self.set_alarm(id, at);
            }
            Next::Calls(tasks) => {
                let deadline = call.deadline;
                for task in tasks {
                    if let Some(Call { task: Task::Row(row), .. }) = self.calls.get_mut(&id) {
                        row.began(self.last_call + 1);
                    }
                    self.start(Whose::Row(id), task, deadline, now);
                }
            }
            Next::Done(outcome) => self.finish(id, outcome),
        }
    }

    /// Notes that something is asked, and how long an answer may take; it may be held back for a while.
    fn asked(&mut self, id: CallId, epoch: ProjectionEpoch, held: Duration, now: Monotonic) -> AskId {
        self.last_ask.0 += 1;
        let ask = self.last_ask;
        self.asks.insert(ask, id);
        let failures = self.calls.get(&id).map_or(0, |call| call.failures);
        let patience = self.backoff(self.timing.answer, failures);
        if let Some(call) = self.calls.get_mut(&id) {
            call.ask = Some(ask);
            call.asked_in = epoch;
            self.suspicions.asked(call.task.whom(), now + held);
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
        self.suspicions.answered(call.task.whom(), now);
        Some(id)
    }

    fn finish(&mut self, id: CallId, outcome: Result<Answer, Error>) {
        let Some(call) = self.end(id) else { return };
        match call.whose {
            Whose::Caller(token) => self.actions.push(Action::Done { token, outcome }),
            Whose::Row(of) => {
                if let Some(Call { task: Task::Row(row), .. }) = self.calls.get_mut(&of) {
                    row.ended(id, call.task, outcome);
                    self.going_on.insert(of);
                }
            }
            Whose::Nobody => {}
        }
    }

    fn end(&mut self, id: CallId) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        self.alarms.remove(&(call.alarm, id));
        if let Some(ask) = call.ask {
            self.asks.remove(&ask);
            self.suspicions.gave_up(ask, call.task.whom());
        }
        if let Task::Row(row) = &call.task {
            row.calls().for_each(|id| {
                self.end(id);
            });
        }
        Some(call)
    }

    /// Wakes a call at a time, or at its deadline if that is sooner.
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

    /// Checks what must hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.asking.is_none_or(|id| self.calls.contains_key(&id)), "the asking under way is there");
        assert!(self.wanting.is_empty() || self.asking.is_some(), "who wants a position has one asked for");
        for (ask, id) in &self.asks {
            assert!(self.calls.get(id).is_some_and(|call| call.ask == Some(*ask)), "an asking is a call's");
        }
        for (id, call) in &self.calls {
            let has_alarm = call.alarm < Monotonic::NEVER && self.alarms.contains(&(call.alarm, *id));
            assert!(has_alarm || call.deadline == Monotonic::NEVER, "a call is woken by its deadline");
        }
        let first = self.alarms.first().map_or(Monotonic::NEVER, |(at, _)| *at);
        assert!(self.timer <= first, "the timer is set for the first alarm");
    }
}
