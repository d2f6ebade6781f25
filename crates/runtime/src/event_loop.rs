//! The machine's thread: gathers events, lets the machine decide, and executes its actions in order.
//!
//! One turn of the loop:
//! 1. wait for a socket, the inbox or a timer;
//! 2. step the machine with all events, then let it settle; responses are sent early if no other action precedes them;
//! 3. execute the actions; messages that must wait for a force are parked (`super::parked`);
//! 4. submit the gathered records to the log thread, if that is idle; write each peer's messages in one call; pass the
//!    responses to the servers.
//!
//! So a busy node has large turns and an idle one short ones, and no timer delays work to form batches.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use base::Monotonic;
use mio::{Events, Poll, Token};
use node::Node;
use node::contract::{Action, Durable, Event, ReplyDestination, RequestId};
use node::message::Message;
use node::request::Outcome;
use store::checkpoint::CheckpointMeta;

use super::clock::{self, Clock};
use super::disk::{Disk, NextManifest};
use super::frames::RefusalKind;
use super::gateway::{Incoming, Responses, Ticket};
use super::inbox::{Inbox, Input};
use super::parked::{Parcel, Parked};
use super::peers::Peers;
use super::sstables::{Change, CheckpointJob, PartRead};
use super::views::Published;

/// The token that wakes this thread for its inbox.
pub(crate) const INBOX: Token = Token(0);
/// Interval of the search for abandoned reads.
const SWEEP: base::Duration = base::Duration::from_millis(250);
/// Number of responses that are sent before the end of the turn. With 64 log reads in flight, portions of 16 gave 50 %
/// more responses per second than portions of 64, ...
const ANSWERS_AHEAD_MIN: usize = 16;
/// ... but in a turn with many events the portion is the number of events divided by this: each portion wakes other
/// threads, and with 512 reads in flight portions of 16 cost a tenth of the throughput.
const ANSWERS_AHEAD_PORTIONS: usize = 4;
/// Maximum number of sockets reported by one wait.
const READY_MAX: usize = 256;

/// How the machine ended.
#[derive(Debug)]
pub(crate) enum End {
    Stopped,
    Halted(String),
    /// The node has left the cluster.
    Left(String),
    /// The disk was rolled back to an older copy.
    RolledBack(String),
}

/// The machine and everything owned by its thread.
pub(crate) struct Machine {
    node: Node,
    clock: Clock,
    poll: Poll,
    peers: Peers,
    disk: Disk,
    inbox: Arc<Inbox>,
    responses: Arc<Responses>,
    views: Arc<Published>,
    parked: Parked,
    /// Parked messages that are ready to be sent.
    leaving: Vec<Parcel>,
    timer: Monotonic,
    /// The servers' unanswered requests.
    waiting: HashMap<RequestId, Ticket>,
    requests: u64,
    /// When to look for abandoned requests.
    sweep_at: Monotonic,
    // Buffers of one turn, reused.
    inputs: Vec<Input>,
    events: Vec<Event>,
    actions: Vec<Action>,
    expired: Vec<ReplyDestination>,
    answered: Vec<(Ticket, Outcome)>,
}

impl Machine {
    /// Assembles the parts; `first` contains the machine's initial actions.
    pub(crate) fn new(
        (node, clock): (Node, Clock),
        first: Vec<Action>,
        poll: Poll,
        peers: Peers,
        disk: Disk,
        inbox: Arc<Inbox>,
        (responses, views): (Arc<Responses>, Arc<Published>),
    ) -> Self {
        Self {
            node,
            clock,
            poll,
            peers,
            disk,
            inbox,
            responses,
            views,
            parked: Parked::default(),
            leaving: Vec::new(),
            // Due immediately, so that the first turn executes the initial actions.
            timer: Monotonic(0),
            waiting: HashMap::new(),
            requests: 0,
            sweep_at: Monotonic(0),
            inputs: Vec::new(),
            events: Vec::new(),
            actions: first,
            expired: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Runs until the machine ends.
    pub(crate) fn run(mut self) -> End {
        let mut ready = Events::with_capacity(READY_MAX);
        loop {
            if let Err(error) = self.wait(&mut ready) {
                return End::Halted(format!("can't poll sockets: {error}"));
            }
            if let Some(end) = self.turn(&ready) {
                return end;
            }
        }
    }

    fn wait(&mut self, ready: &mut Events) -> io::Result<()> {
        let sweep = if self.waiting.is_empty() { Monotonic::NEVER } else { self.sweep_at };
        let deadline = self.timer.min(self.peers.deadline()).min(self.disk.deadline()).min(sweep);
        let timeout = (deadline != Monotonic::NEVER).then(|| clock::span(deadline.since(clock::monotonic())));
        match self.poll.poll(ready, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn turn(&mut self, ready: &Events) -> Option<End> {
        self.gather(ready);
        if let Some((kind, reason)) = self.peers.verdict() {
            return Some(match kind {
                RefusalKind::Left => End::Left(reason),
                RefusalKind::RolledBack => End::RolledBack(reason),
                _ => End::Halted(reason),
            });
        }
        let mut end = None;
        while end.is_none() && !self.events.is_empty() {
            self.decide();
            // After the machine has been notified of peers' new processes, which may be the receivers.
            for parcel in std::mem::take(&mut self.leaving) {
                self.deliver(&parcel);
            }
            end = self.carry_out();
            let expired = self.expired.drain(..);
            self.events.extend(expired.map(|destination| Event::ReplyExpired { destination }));
        }
        if matches!(end, Some(End::Halted(_))) {
            // A halted machine sends nothing more. Responses that were sent early belong to earlier steps.
            return end;
        }
        let now = clock::monotonic();
        self.disk.pump(now);
        self.peers.flush(now);
        self.responses.post(&mut self.answered);
        end
    }

    /// Converts all inputs into events.
    fn gather(&mut self, ready: &Events) {
        let now = clock::monotonic();
        for event in ready.iter().filter(|event| event.token() != INBOX) {
            self.peers.ready(event, now);
        }
        self.peers.receive(now, &mut self.events);
        self.peers.tick(now);
        let mut inputs = std::mem::take(&mut self.inputs);
        self.inbox.take(&mut inputs);
        for input in inputs.drain(..) {
            self.input(input, now);
        }
        self.inputs = inputs;
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP;
            self.sweep();
        }
        if self.timer <= now {
            self.timer = Monotonic::NEVER;
            self.events.push(Event::Timer);
        }
    }

    /// Makes the machine abandon reads of disconnected callers, to free their slots.
    fn sweep(&mut self) {
        let gone = self.waiting.iter_mut().filter_map(|(id, ticket)| ticket.take_abandoned().then_some(*id));
        let requests: BTreeSet<RequestId> = gone.collect();
        if !requests.is_empty() {
            self.events.push(Event::GivenUp { requests });
        }
    }

    fn input(&mut self, input: Input, now: Monotonic) {
        match input {
            Input::Request(incoming) => self.request(incoming),
            Input::Requests(all) => all.into_iter().for_each(|incoming| self.request(incoming)),
            Input::BatchForced(batch) => {
                let through = self.disk.batch_forced(batch, now);
                self.leaving.extend(self.parked.log_forced(through));
                self.events.push(Event::LogForced { through });
            }
            Input::ManifestForced(through, write) => {
                self.disk.manifest_forced(&write);
                self.leaving.extend(self.parked.manifest_forced(through));
                self.events.push(Event::ManifestForced { through });
            }
            Input::Done(event) => self.events.push(event),
            Input::SegmentDone(job) => self.disk.segment_done(job, now),
            Input::Resolved(resolved) => self.peers.resolved(resolved, now),
            Input::Stop => self.events.push(Event::Stop),
        }
    }

    fn request(&mut self, incoming: Incoming) {
        if incoming.start_by != Monotonic::NEVER && clock::monotonic() > incoming.start_by {
            return incoming.refuse("the node did not run for a while");
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        let Incoming { request, deadline, ticket, .. } = incoming;
        self.waiting.insert(id, ticket);
        self.events.push(Event::Request { id, deadline, request });
    }

    /// Steps the machine with each event, with the clock read after the event arrived, since the grace period of a vote
    /// starts then (guarantee 2).
    fn decide(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let portion = ANSWERS_AHEAD_MIN.max(events.len() / ANSWERS_AHEAD_PORTIONS);
        let mut is_nothing_else = true;
        for event in events.drain(..) {
            self.node.step(self.clock.now(), event, &mut self.actions);
            if is_nothing_else && self.actions.len() >= portion {
                is_nothing_else = self.answer_ahead();
            }
        }
        self.events = events;
        self.node.settle(self.clock.now(), &mut self.actions);
    }

    /// Sends responses to the servers early, unless other actions precede them, so that the servers and their clients
    /// work in parallel with the machine.
    fn answer_ahead(&mut self) -> bool {
        if !self.actions.iter().all(|action| matches!(action, Action::Reply { .. })) {
            return false;
        }
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            if let Action::Reply { to, outcome, valid_until } = action {
                self.reply(to, outcome, valid_until);
            }
        }
        self.actions = actions;
        self.responses.post(&mut self.answered);
        true
    }

    fn carry_out(&mut self) -> Option<End> {
        let mut actions = std::mem::take(&mut self.actions);
        let mut end = None;
        for action in actions.drain(..) {
            end = self.carry_out_one(action);
            if end.is_some() {
                break;
            }
        }
        self.actions = actions;
        end
    }

    fn carry_out_one(&mut self, action: Action) -> Option<End> {
        match action {
            Action::Publish { cohort, view } => self.views.publish(cohort, view),
            Action::Append { write, record, force } => self.disk.append(write, record, force),
            Action::WriteManifest { manifest, cohorts, peers, doubt_unknown, gone, kept } => {
                self.disk.write_manifest(NextManifest { manifest, cohorts, peers, doubt_unknown, gone, kept });
            }
            Action::Send { to, message, after, valid_until } => {
                self.send(Parcel { to, message, valid_until }, after);
            }
            Action::Reply { to, outcome, valid_until } => self.reply(to, outcome, valid_until),
            Action::SetTimer { at } => self.timer = at,
            Action::ReadLog { id, cohort, from, bytes } => {
                if !self.disk.read_log(id, cohort, from, bytes) {
                    self.inbox.post(Input::Done(Event::LogRead { id, entries: None }));
                }
            }
            Action::WriteCheckpoint { cohort, checkpoint, lsn, timestamp, state, flush } => {
                let meta = CheckpointMeta { cohort, lsn, timestamp };
                self.disk.sstables().checkpoint(CheckpointJob { checkpoint, meta, state: *state, flush });
            }
            Action::Compact { cohort, lineage, job } => self.disk.sstables().compact(cohort, lineage, job),
            Action::Evaluate { id, read } => self.disk.sstables().evaluate(id, *read),
            Action::ReadFile { id, file, offset, bytes, verify } => {
                self.disk.sstables().read(PartRead { id, file, offset, bytes, verify });
            }
            Action::WriteFile { file, offset, bytes } => {
                self.disk.sstables().change(Change::Write { file, offset, bytes });
            }
            Action::AdoptFiles { cohort, arrival, adoption } => {
                self.disk.sstables().change(Change::Adopt { cohort, arrival, adoption });
            }
            Action::RemoveFiles { files } => self.disk.sstables().change(Change::Remove { files }),
            Action::Warn { what } => tracing::warn!("{what}"),
            Action::Inform { what } => tracing::info!("{what}"),
            Action::Know { roster } => self.peers.update_roster(&roster, clock::monotonic()),
            Action::Stopped => return Some(End::Stopped),
            Action::Halt { reason } => return Some(End::Halted(reason)),
        }
        None
    }

    fn send(&mut self, parcel: Parcel, after: Durable) {
        if let Some(parcel) = self.parked.park(parcel, after) {
            self.deliver(&parcel);
        }
    }

    fn deliver(&mut self, parcel: &Parcel) {
        if is_expired(parcel.valid_until) {
            match answer_in(parcel) {
                Some(answer) => self.expired.push(answer),
                None => tracing::error!(to = %parcel.to, "dropped an expired message that is not a response"),
            }
            return;
        }
        self.peers.send(parcel.to, &parcel.message);
    }

    fn reply(&mut self, to: RequestId, outcome: Outcome, valid_until: Option<Monotonic>) {
        if is_expired(valid_until) {
            self.expired.push(ReplyDestination::Client(to));
        } else if let Some(ticket) = self.waiting.remove(&to) {
            self.answered.push((ticket, outcome));
        } else {
            tracing::error!(request = to.0, "response to an unknown request");
        }
    }
}

/// Whether a response is no longer valid. The clock is read after the machine has answered: the data that it read was
/// then still under its lease (guarantees 12 and 14).
fn is_expired(valid_until: Option<Monotonic>) -> bool {
    valid_until.is_some_and(|until| clock::monotonic() > until)
}

/// The response that a message carries to another node's server.
fn answer_in(parcel: &Parcel) -> Option<ReplyDestination> {
    match &parcel.message {
        Message::Answer { request, .. } => Some(ReplyDestination::Forwarded { node: parcel.to, request: *request }),
        _ => None,
    }
}
