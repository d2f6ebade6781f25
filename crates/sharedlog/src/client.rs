//! What a client of a log must do right, as a pure machine: appends, reads, fills, trims, and asking for the tail.
//!
//! The machine knows no socket and no clock. Whoever drives it hands in what happened with a time, and carries out the
//! [`Action`]s that come of it. Each call is a small machine of its own that says what it needs next (`task.rs`); this machine
//! does what is common to all: who is asked, time-outs, retries, projections, deadlines.
//!
//! * *Append* (CORFU, section 3.3). A position from the sequencer, then the entry down its chain, one unit after the other.
//!   A position is written in the epoch it was given in, or not at all: in a newer one an append that began later might
//!   already lie above it. So where a projection was replaced, the old position is *resolved* first: if it was written, it is
//!   completed, else it is junk. Only then another is taken. A client that lives leaves no duplicate.
//! * *Fill* (`filling.rs`). Junk to the head of the chain, or what the head holds down the chain.
//! * *Read*. From the tail of the chain: what is there, the whole chain holds.
//!
//! A call ends once, by its deadline. [`Error::Unknown`] says that an append may have been made, and from which position on it
//! may lie: whoever tries again, with the same stamp, hands that in as `since`, so that readers know where to look for the
//! first one.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Monotonic, SplitMix64};

use crate::{AskId, Batch, ClientId, Position, Projection, ProjectionEpoch, Stamp};
use crate::{Data, sequencer, unit};
use task::{Next, Task, View};

mod append;
mod contract;
mod fetching;
mod filling;
mod positions;
mod read;
mod task;
#[cfg(test)]
mod tests;
mod trim;

pub use contract::{Action, Answer, Error, Suspect, Timing, Token};

use append::Append;
use fetching::Fetching;
use read::Read;
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
    /// The last stamp that was given to an append without one.
    last_sequence: u64,
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
    fetching: Option<Fetching>,
    timer: Monotonic,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Call {
    /// None: an errand of the machine's own.
    token: Option<Token>,
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

/// Askings in a row that come to nothing before somebody is suspected.
const SUSPECT_AFTER: u32 = 2;

impl Client {
    /// A client. Its number is its own: appends without a stamp are stamped with it. Its seed spreads retries.
    #[must_use]
    pub fn new(id: ClientId, timing: Timing, seed: u64) -> Self {
        Self {
            id,
            last_sequence: 0,
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
            fetching: None,
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

    /// Appends a batch: one entry, at one position, however many records. `since` says that another process may have
    /// appended it under the same stamp, there or after.
    pub fn append(
        &mut self,
        token: Token,
        batch: Batch,
        stamp: Option<Stamp>,
        since: Option<Position>,
        deadline: Monotonic,
        now: Monotonic,
    ) {
        let stamp = stamp.unwrap_or_else(|| {
            self.last_sequence += 1;
            Stamp { client: self.id, sequence: self.last_sequence }
        });
        self.begin(Some(token), Task::Append(Append::new(Data { stamp, since, batch })), deadline, now);
    }

    /// Reads a position. If nothing is there, it looks again until `wait` has passed, and then fills it; with none it says
    /// so. With `look_back` an entry that may be a duplicate is compared with those before it.
    pub fn read(
        &mut self,
        token: Token,
        position: Position,
        wait: Option<Duration>,
        look_back: bool,
        deadline: Monotonic,
        now: Monotonic,
    ) {
        let read = Read::new(position, wait, look_back, self.timing);
        self.begin(Some(token), Task::Read(read), deadline, now);
    }

    /// Asks for the tail: every append that has ended by now lies below. It may be lower than an earlier one: positions that
    /// were given out and never written are given out again by another sequencer.
    pub fn tail(&mut self, token: Token, deadline: Monotonic, now: Monotonic) {
        self.begin(Some(token), Task::Tail(None), deadline, now);
    }

    /// Sees to it that something lies at a position below the tail.
    pub fn fill(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(Some(token), Task::Fill(Fill::new(position)), deadline, now);
    }

    /// Gives up everything below a position, which is not above the tail.
    pub fn trim(&mut self, token: Token, before: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(Some(token), Task::Trim(Trim::new(before)), deadline, now);
    }

    /// Gives up what lies at one position below the tail. A unit that is copied meanwhile may keep it: this gives room back,
    /// it does not hide anything.
    pub fn trim_one(&mut self, token: Token, position: Position, deadline: Monotonic, now: Monotonic) {
        self.begin(Some(token), Task::TrimOne(TrimOne::new(position)), deadline, now);
    }

    fn begin(&mut self, token: Option<Token>, task: Task, deadline: Monotonic, now: Monotonic) {
        self.last_call += 1;
        let id = self.last_call;
        let call = Call {
            token,
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
        self.ask_positions(now);
        self.set_timer();
    }

    /// A unit has answered. An answer that nobody waits for is let go.
    pub fn unit_answered(&mut self, ask: AskId, reply: unit::Reply, now: Monotonic) {
        if let Some(id) = self.landed(ask) {
            self.heard_unit(id, reply, now);
        }
        self.ask_positions(now);
        self.set_timer();
    }

    fn heard_unit(&mut self, id: CallId, reply: unit::Reply, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        match reply {
            unit::Reply::Refused { sealed } => {
                call.failures = 0;
                if !call.task.heeds_no_seal() {
                    call.outdated = Some(sealed.max(call.asked_in));
                }
            }
            // As good as no answer; others may have the entry.
            unit::Reply::Unknown | unit::Reply::Damaged => {
                let suspect = call.task.asked_unit().map(Suspect::Unit);
                return self.failed(id, suspect, now);
            }
            reply => {
                call.failures = 0;
                call.task.heard_unit(reply);
            }
        }
        self.advance(id, now);
    }

    /// The sequencer has answered.
    pub fn sequencer_answered(&mut self, ask: AskId, reply: sequencer::Reply, now: Monotonic) {
        if let Some(id) = self.landed(ask) {
            self.heard_sequencer(id, reply, now);
        }
        self.ask_positions(now);
        self.set_timer();
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
            (sequencer::Reply::Positions { first, count }, Task::Asking(tokens)) if count > 0 => {
                let tokens = std::mem::take(tokens);
                self.given(id, tokens, epoch, first, count, now);
            }
            (sequencer::Reply::Tail(tail), task) if !matches!(task, Task::Asking(_)) => {
                call.failures = 0;
                task.heard_tail(tail);
                self.note_tail(epoch, tail);
                self.advance(id, now);
            }
            _ => self.failed(id, None, now),
        }
    }

    /// A projection has come, from whomever. Only a newer one counts.
    pub fn projected(&mut self, projection: Projection, now: Monotonic) {
        if self.projection.as_ref().is_none_or(|known| known.epoch < projection.epoch) {
            self.projection = Some(projection);
            self.fetching = None;
            let waiting = self.calls.iter().filter(|(_, call)| call.ask.is_none()).map(|(id, _)| *id);
            for id in waiting.collect::<Vec<_>>() {
                if self.calls.get(&id).is_some_and(|call| call.outdated.is_some() || call.asked_in.0 == 0) {
                    self.advance(id, now);
                }
            }
        }
        self.ask_positions(now);
        self.set_timer();
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
        self.ask_positions(now);
        self.set_timer();
    }

    fn alarm(&mut self, id: CallId, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if call.deadline <= now {
            let outcome = Err(call.task.out_of_time());
            return self.finish(id, outcome);
        }
        if call.ask.is_some() {
            // Whom it was that didn't answer; a newer projection may have another in his place.
            let suspect = match call.task.asked_unit() {
                Some(unit) => Suspect::Unit(unit),
                None => Suspect::Sequencer,
            };
            return self.failed(id, Some(suspect), now);
        }
        self.advance(id, now);
    }

    /// What was asked came to nothing: it is asked again after a while.
    fn failed(&mut self, id: CallId, suspect: Option<Suspect>, now: Monotonic) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some(ask) = call.ask.take() {
            self.asks.remove(&ask);
        }
        call.failures += 1;
        call.task.unanswered();
        let (failures, epoch) = (call.failures, call.asked_in);
        if failures >= SUSPECT_AFTER
            && let Some(suspect) = suspect
        {
            self.actions.push(Action::Suspect { epoch, suspect });
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
        let view = View { projection, tail, now };
        let epoch = projection.epoch;
        match call.task.next(&view) {
            Next::Unit(unit, request) => {
                let ask = self.asked(id, epoch, now);
                self.actions.push(Action::AskUnit { ask, unit, request });
            }
            Next::Sequencer(request) => {
                let sequencer = projection.sequencer;
                let ask = self.asked(id, epoch, now);
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
            Next::Done(outcome) => self.finish(id, outcome),
        }
    }

    /// Notes that something is asked, and how long an answer may take.
    fn asked(&mut self, id: CallId, epoch: ProjectionEpoch, now: Monotonic) -> AskId {
        self.last_ask.0 += 1;
        let ask = self.last_ask;
        self.asks.insert(ask, id);
        let failures = self.calls.get(&id).map_or(0, |call| call.failures);
        let patience = self.backoff(self.timing.answer, failures);
        if let Some(call) = self.calls.get_mut(&id) {
            call.ask = Some(ask);
            call.asked_in = epoch;
        }
        self.set_alarm(id, now + patience);
        ask
    }

    fn landed(&mut self, ask: AskId) -> Option<CallId> {
        let id = self.asks.remove(&ask)?;
        let call = self.calls.get_mut(&id)?;
        call.ask = None;
        Some(id)
    }

    fn finish(&mut self, id: CallId, outcome: Result<Answer, Error>) {
        if let Some(call) = self.end(id)
            && let Some(token) = call.token
        {
            self.actions.push(Action::Done { token, outcome });
        }
    }

    fn end(&mut self, id: CallId) -> Option<Call> {
        let call = self.calls.remove(&id)?;
        self.alarms.remove(&(call.alarm, id));
        if let Some(ask) = call.ask {
            self.asks.remove(&ask);
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
