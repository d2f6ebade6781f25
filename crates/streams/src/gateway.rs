//! A gateway executes the requests of one NBD connection on the stripes of a disk.
//!
//! It is a deterministic machine: requests of the client, answers of stripes and a timer are its inputs, and it returns
//! calls of stripes and replies to the client as [`Action`]s. The driver carries each call to the stripe's leader (or,
//! for a read that any replica may answer, to the local replica), and returns its outcome.
//!
//! * *Changes* are cut into changes of whole blocks and parts of blocks, each in one stripe (`cut`). Per stripe, a
//!   bounded number of proposals is in progress. Changes that wait meanwhile are combined into one proposal of up to
//!   1 MiB (`lane`). Parts of blocks are completed by the stripe's leader under its latch, so two gateways can write
//!   different parts of one block at once.
//! * *Reads* are divided into calls of up to 1 MiB for each stripe, and put together (`assemble`). A repeated call goes to
//!   the leader: the replica that did not answer may be the problem.
//! * *Failures*: a call that fails, or is not answered in time, is repeated, with growing pauses. A proposal is repeated
//!   with the same stamp until its outcome is known, so the client is answered only then. Requests wait while a
//!   majority of replicas is lost, unless [`Settings::patience`] is set. They don't wait for space on a full disk: a
//!   client should know.
//!
//! Invariants:
//! * Every request is answered once, in any order.
//! * A change with an unknown outcome is never answered as failed, with one exception: its session ended meanwhile.
//!   The change was then executed before, or never will be, and the client receives an I/O error.
//! * Answers to abandoned calls are ignored: the call that replaced them has the same effect.
//! * Memory is bounded if the driver takes no more requests while [`Gateway::is_full`].
//!
//! When the connection ends before all requests are answered, nothing is sent or repeated any more: the client may have
//! attached the disk through another node, and overwritten its changes. Those that were sent are stopped by ending their
//! sessions ([`Gateway::close`]): once that is committed, they were executed before, or never will be. Before a driver lets
//! another client of this node change the disk, it waits until the gateway is idle.

use std::collections::{BTreeMap, VecDeque};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;
use state_machine::{Consistency, Failure};

pub use base::limits::nbd::{BYTES_MAX, REQUESTS_MAX};

mod assemble;
mod cut;
mod failures;
mod lane;
#[cfg(test)]
mod tests;

use crate::layout::{BLOCK_BYTES, Layout, StripeId};
use crate::nbd::{self, Command, Errno, Extent, Replies, Run};
use crate::stripe::request::{
    BlockExtent, BlockRun, BlockSpan, Claim, Holder, Outcome, READ_BLOCKS_MAX, StripeRequest, StripeResponse,
};
use cut::Change;
use failures::{REPLACED, UNAVAILABLE, error, is_of_disk, is_transient, pause, session_ended};
use lane::{Lane, ProposalNumber, Session, Waiting};

/// Maximum proposals in progress in one stripe. Further changes wait, and are combined.
const PROPOSALS_MAX: usize = 8;
/// Maximum calls of reads in progress.
const READS_MAX: usize = 64;
/// The pause before a call is repeated the first time; it doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause before a call is repeated.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How a gateway executes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The consistency level of reads: [`Consistency::Strong`] or [`Consistency::Anywhere`].
    pub reads: Consistency,
    /// A call without an answer is abandoned and repeated after this time. It exceeds the deadline with which the driver
    /// submits calls.
    pub call_timeout: Duration,
    /// How long a request waits for a stripe that is unavailable before it fails; none: for ever. A change that may have
    /// been executed is always waited for.
    pub patience: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { reads: Consistency::Strong, call_timeout: Duration::from_millis(15_000), patience: None }
    }
}

/// Identifies a call of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// An output of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Submit a request to the disk's table, and pass the outcome to [`Gateway::answered`].
    Call { call: CallId, request: StripeRequest },
    /// Send a reply to the client.
    Reply(Reply),
}

/// The state of an exclusive attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    InProgress,
    /// All stripes have recorded the holder.
    Attached,
    /// At least one stripe has refused the holder.
    Failed,
}

/// A reply to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The client's number of the request.
    pub cookie: u64,
    pub kind: RequestKind,
    /// When the request was submitted.
    pub since: Monotonic,
    /// The bytes that it concerned.
    pub bytes: u64,
    pub result: RequestResult,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    /// A write, a trim or a zeroing.
    Change,
    Other,
}

/// The result of a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// It is executed, and durable.
    Done,
    Read {
        offset: u64,
        /// Whether the reply must be in one chunk.
        is_whole: bool,
        runs: Vec<Run>,
    },
    /// The allocation from the first byte of the request on.
    Status(Vec<Extent>),
    Failed {
        errno: Errno,
        /// The reason, for people.
        message: String,
    },
}

impl Reply {
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self.result, RequestResult::Failed { .. })
    }

    pub fn encode(self, replies: Replies, out: &mut Vec<Bytes>) {
        match self.result {
            RequestResult::Done => replies.done(self.cookie, out),
            RequestResult::Read { offset, is_whole, runs } => replies.read(self.cookie, offset, is_whole, runs, out),
            RequestResult::Status(extents) => replies.block_status(self.cookie, &extents, out),
            RequestResult::Failed { errno, message } => replies.error(self.cookie, errno, &message, None, out),
        }
    }
}

/// Identifies a request of the client in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequestNumber(u64);

/// A request in progress.
#[derive(Debug)]
struct Pending {
    cookie: u64,
    since: Monotonic,
    bytes: u64,
    work: Work,
    /// Changes or calls that are not finished.
    left: usize,
    failure: Option<(Errno, String)>,
}

#[derive(Debug)]
enum Work {
    Change,
    Read { offset: u64, length: u64, is_whole: bool, parts: Vec<ReadPart> },
    Status { offset: u64, length: u64, is_single: bool, parts: Vec<ReadPart> },
}

/// A call that a read or a query of the allocation needs.
#[derive(Debug)]
struct ReadPart {
    span: BlockSpan,
    failures: u32,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Nothing,
    Runs(Vec<BlockRun>),
    Extents(Vec<BlockExtent>),
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Session(StripeId),
    Proposal(StripeId, ProposalNumber),
    /// The end of the lane's session, after the connection ended.
    End(StripeId),
    Part(RequestNumber, usize),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    target: Target,
    timer: TimerKey,
}

type TimerKey = (Monotonic, u64);

#[derive(Clone, Copy, Debug)]
enum Timer {
    GiveUp(CallId),
    Repeat(Target),
}

/// The requests of one connection to a disk.
#[derive(Debug)]
pub struct Gateway {
    layout: Layout,
    settings: Settings,
    lanes: Vec<Lane>,
    requests: BTreeMap<RequestNumber, Pending>,
    bytes: u64,
    /// Calls of reads that wait because too many are in progress.
    reads_waiting: VecDeque<(RequestNumber, usize)>,
    reads_called: usize,
    calls: BTreeMap<CallId, Call>,
    timers: BTreeMap<TimerKey, Timer>,
    /// The last number given to a request, a call or a timer.
    last_number: u64,
    actions: Vec<Action>,
    /// The name under which the client has attached the disk exclusively.
    holder: Option<String>,
    is_closed: bool,
}

impl Gateway {
    /// A gateway for a new connection that shares the disk with others.
    #[must_use]
    pub fn new(layout: Layout, settings: Settings) -> Self {
        Self {
            layout,
            settings,
            lanes: (0..layout.stripes()).map(|stripe| Lane::new(StripeId(stripe))).collect(),
            requests: BTreeMap::new(),
            bytes: 0,
            reads_waiting: VecDeque::new(),
            reads_called: 0,
            calls: BTreeMap::new(),
            timers: BTreeMap::new(),
            last_number: 0,
            actions: Vec::new(),
            holder: None,
            is_closed: false,
        }
    }

    /// Attaches the disk exclusively: once that is done ([`Self::attachment`]), no command of another client or of an earlier
    /// holder changes it. The client must send no request before.
    pub fn attach(&mut self, now: Monotonic, holder: String) {
        self.holder = Some(holder);
        for stripe in 0..self.layout.stripes() {
            self.lanes[usize::from(stripe)].is_decided = false;
            self.open_session(now, StripeId(stripe));
        }
    }

    /// Whether the driver should wait for replies before it submits another request.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.requests.len() >= REQUESTS_MAX || self.bytes >= BYTES_MAX
    }

    /// The state of an exclusive attachment; a shared one is always attached.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        let is_attached = |lane: &Lane| self.holder.is_none() || lane.generation.is_some();
        match () {
            () if !self.lanes.iter().all(|lane| lane.is_decided) => Attachment::InProgress,
            () if self.lanes.iter().all(is_attached) => Attachment::Attached,
            () => Attachment::Failed,
        }
    }

    /// Bytes of the requests in progress, written or to be read.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether no request and no change is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.lanes.iter().all(|lane| lane.proposals.is_empty())
    }

    /// When [`Gateway::timer`] must be called next.
    #[must_use]
    pub fn timer_at(&self) -> Monotonic {
        self.timers.first_key_value().map_or(Monotonic::NEVER, |((at, _), _)| *at)
    }

    /// The actions since the last call, in order.
    #[must_use]
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Executes a request of the client, which the codec has checked.
    pub fn submit(&mut self, now: Monotonic, request: nbd::Request) {
        let nbd::Request { cookie, offset, length, command } = request;
        let length = u64::from(length);
        match command {
            // Every change is durable when it is answered, and data is cached as it is read.
            Command::Flush | Command::Cache => self.reply(cookie, RequestKind::Other, (now, 0), RequestResult::Done),
            Command::Write(data) => {
                let changes = cut::write(&self.layout, offset, &data);
                self.change(now, cookie, length, changes);
            }
            Command::Trim => {
                let changes = cut::zero(&self.layout, offset, length, false, true);
                self.change(now, cookie, 0, changes);
            }
            Command::WriteZeroes { keeps_allocated, .. } => {
                let changes = cut::zero(&self.layout, offset, length, keeps_allocated, false);
                self.change(now, cookie, 0, changes);
            }
            Command::Read { is_whole } => {
                let parts = self.parts(offset, length, READ_BLOCKS_MAX);
                self.look_up(now, cookie, length, Work::Read { offset, length, is_whole, parts });
            }
            Command::BlockStatus { is_single } => {
                let parts = self.parts(offset, length, u64::MAX);
                self.look_up(now, cookie, 0, Work::Status { offset, length, is_single, parts });
            }
        }
    }

    fn change(&mut self, now: Monotonic, cookie: u64, bytes: u64, changes: Vec<(StripeId, Change)>) {
        if changes.is_empty() {
            return self.reply(cookie, RequestKind::Change, (now, bytes), RequestResult::Done);
        }
        let request = self.begin(now, cookie, bytes, Work::Change, changes.len());
        let mut touched: Vec<StripeId> = Vec::new();
        for (stripe, change) in changes {
            if let Some(lane) = self.lanes.get_mut(usize::from(stripe.0)) {
                lane.waiting.push_back(Waiting { request, change });
                if touched.last() != Some(&stripe) {
                    touched.push(stripe);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for stripe in touched {
            self.propose(now, stripe);
        }
    }

    /// The blocks of each stripe that contain these bytes, in calls of at most `limit` blocks.
    fn parts(&self, offset: u64, length: u64, limit: u64) -> Vec<ReadPart> {
        let mut parts = Vec::new();
        for stripe in (0..self.layout.stripes()).map(StripeId) {
            let (start, end) = self.layout.local(stripe, offset, length);
            let (mut first, last) = (start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
            while start < end && first < last {
                let count = (last - first).min(limit);
                let span = BlockSpan { stripe, first, count };
                parts.push(ReadPart { span, failures: 0, found: Found::Nothing });
                first += count;
            }
        }
        parts
    }

    fn look_up(&mut self, now: Monotonic, cookie: u64, bytes: u64, work: Work) {
        let (Work::Read { parts, .. } | Work::Status { parts, .. }) = &work else { return };
        let count = parts.len();
        let request = self.begin(now, cookie, bytes, work, count);
        self.reads_waiting.extend((0..count).map(|part| (request, part)));
        self.call_reads(now);
    }

    fn begin(&mut self, now: Monotonic, cookie: u64, bytes: u64, work: Work, left: usize) -> RequestNumber {
        let request = RequestNumber(self.number());
        self.bytes += bytes;
        self.requests.insert(request, Pending { cookie, since: now, bytes, work, left, failure: None });
        request
    }

    /// The outcome of a call. Outcomes of abandoned calls are ignored.
    pub fn answered(&mut self, now: Monotonic, call: CallId, outcome: Outcome) {
        let Some(Call { target, timer }) = self.calls.remove(&call) else { return };
        self.timers.remove(&timer);
        self.settle(now, target, outcome);
    }

    /// The time of [`Gateway::timer_at`] has come.
    pub fn timer(&mut self, now: Monotonic) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Timer::Repeat(target) => self.repeat(now, target),
                Timer::GiveUp(call) => {
                    if let Some(Call { target, .. }) = self.calls.remove(&call) {
                        self.settle(now, target, Err(Failure::Unknown("no answer in time".to_owned())));
                    }
                }
            }
        }
    }

    /// The connection has ended: nothing more is sent to the client, and its requests are abandoned. Changes that were sent
    /// are stopped by the end of their sessions. The driver keeps the gateway until it is idle.
    pub fn close(&mut self, now: Monotonic) {
        self.is_closed = true;
        self.reads_waiting.clear();
        self.requests.clear();
        self.bytes = 0;
        self.calls.clear();
        self.timers.clear();
        self.reads_called = 0;
        self.actions.clear();
        for stripe in 0..self.lanes.len() {
            let lane = &mut self.lanes[stripe];
            lane.waiting.clear();
            match lane.session {
                Session::Open(_) if !lane.proposals.is_empty() => self.end_session(now, StripeId(stripe as u16)),
                // Proposals of earlier sessions, which have ended.
                Session::Open(_) | Session::None | Session::Opening => lane.give_up(),
            }
        }
    }

    fn end_session(&mut self, now: Monotonic, stripe: StripeId) {
        let Some(Lane { session: Session::Open(session), .. }) = self.lane(stripe) else { return };
        let end = StripeRequest::EndSession { stripe, session: *session };
        self.call(now, Target::End(stripe), end);
    }

    fn end_answered(&mut self, now: Monotonic, stripe: StripeId, outcome: &Outcome) {
        let Some(lane) = self.lane(stripe) else { return };
        match outcome {
            Err(failure) if is_transient(failure) => {
                lane.failures += 1;
                let pause = pause(lane.failures);
                self.repeat_later(now, pause, Target::End(stripe));
            }
            // Otherwise the disk was deleted.
            Ok(_) | Err(_) => lane.give_up(),
        }
    }

    /// Handles the outcome of a call.
    fn settle(&mut self, now: Monotonic, target: Target, outcome: Outcome) {
        match target {
            Target::Session(stripe) => self.session_answered(now, stripe, outcome),
            Target::Proposal(stripe, proposal) => self.proposal_answered(now, stripe, proposal, outcome),
            Target::End(stripe) => self.end_answered(now, stripe, &outcome),
            Target::Part(request, part) => {
                self.reads_called -= 1;
                self.part_answered(now, request, part, outcome);
                self.call_reads(now);
            }
        }
    }

    fn repeat(&mut self, now: Monotonic, target: Target) {
        match target {
            Target::Session(stripe) => self.open_session(now, stripe),
            Target::Proposal(stripe, proposal) => self.send(now, stripe, proposal),
            Target::End(stripe) => self.end_session(now, stripe),
            Target::Part(request, part) => {
                self.reads_waiting.push_back((request, part));
                self.call_reads(now);
            }
        }
    }

    fn lane(&mut self, stripe: StripeId) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(stripe.0))
    }

    /// Proposes waiting changes of a stripe, as far as possible.
    fn propose(&mut self, now: Monotonic, stripe: StripeId) {
        loop {
            let Some(lane) = self.lane(stripe) else { return };
            if lane.waiting.is_empty() || lane.proposals.len() >= PROPOSALS_MAX {
                return;
            }
            match lane.session {
                Session::Opening => return,
                Session::None => return self.open_session(now, stripe),
                Session::Open(_) => {}
            }
            let Some(proposal) = lane.combine() else { return };
            self.send(now, stripe, proposal);
        }
    }

    fn open_session(&mut self, now: Monotonic, stripe: StripeId) {
        let holder = self.holder.clone();
        if let Some(lane) = self.lane(stripe) {
            lane.session = Session::Opening;
            let claim = match (holder, lane.generation) {
                (None, _) => Claim::Shared,
                (Some(name), None) => Claim::Attach(name),
                (Some(name), Some(generation)) => Claim::Hold(Holder { name, generation }),
            };
            self.call(now, Target::Session(stripe), StripeRequest::OpenSession { stripe, claim });
        }
    }

    fn session_answered(&mut self, now: Monotonic, stripe: StripeId, outcome: Outcome) {
        let Some(lane) = self.lane(stripe) else { return };
        lane.is_decided |= !outcome.as_ref().is_err_and(is_transient);
        match outcome {
            Ok(StripeResponse::SessionOpened { session, generation }) if !lane.opened(session, generation) => {
                self.fail_unsent(stripe, Errno::Io, REPLACED, |_| true);
            }
            Ok(StripeResponse::SessionOpened { .. }) => {
                let unsent: Vec<ProposalNumber> =
                    lane.proposals.iter().filter(|(_, it)| it.stamp.is_none()).map(|(number, _)| *number).collect();
                for proposal in unsent {
                    self.send(now, stripe, proposal);
                }
                self.propose(now, stripe);
            }
            Err(failure) if is_transient(&failure) => {
                lane.failures += 1;
                let pause = pause(lane.failures);
                self.repeat_later(now, pause, Target::Session(stripe));
                self.give_up_waiting(now, stripe);
            }
            other => {
                lane.session = Session::None;
                let (errno, message) = error(other);
                self.fail_unsent(stripe, errno, &message, |_| true);
            }
        }
    }

    /// Fails the changes of a stripe that were never sent and have waited longer than they may.
    fn give_up_waiting(&mut self, now: Monotonic, stripe: StripeId) {
        let Some(patience) = self.settings.patience else { return };
        let expired: Vec<RequestNumber> = self
            .requests
            .iter()
            .filter(|(_, pending)| now.since(pending.since) >= patience)
            .map(|(request, _)| *request)
            .collect();
        self.fail_unsent(stripe, Errno::Io, UNAVAILABLE, |request| expired.binary_search(&request).is_ok());
    }

    /// Fails changes of a stripe that were never sent.
    fn fail_unsent(&mut self, stripe: StripeId, errno: Errno, message: &str, which: impl Fn(RequestNumber) -> bool) {
        let Some(lane) = self.lane(stripe) else { return };
        let (failed, kept) = lane.waiting.drain(..).partition::<Vec<_>, _>(|waiting| which(waiting.request));
        lane.waiting = kept.into();
        let unsent = |proposal: &lane::Proposal| {
            proposal.stamp.is_none() && proposal.changes.iter().all(|change| which(change.request))
        };
        let proposals: Vec<_> = lane.proposals.iter().filter(|(_, it)| unsent(it)).map(|(number, _)| *number).collect();
        let mut failed: Vec<Waiting> = failed;
        for proposal in proposals {
            failed.extend(lane.finish(proposal));
        }
        for Waiting { request, .. } in failed {
            self.finish_part(request, Some((errno, message.to_owned())));
        }
    }

    /// Sends a proposal, or arranges for it to be sent later.
    fn send(&mut self, now: Monotonic, stripe: StripeId, proposal: ProposalNumber) {
        let Some(lane) = self.lane(stripe) else { return };
        if let Some(write) = lane.write(proposal) {
            return self.call(now, Target::Proposal(stripe, proposal), StripeRequest::Write(write));
        }
        match lane.session {
            Session::None => self.open_session(now, stripe),
            // It is sent once the session is open.
            Session::Opening => {}
            // The session's window is full.
            Session::Open(_) => self.repeat_later(now, PAUSE_MIN, Target::Proposal(stripe, proposal)),
        }
    }

    fn proposal_answered(&mut self, now: Monotonic, stripe: StripeId, number: ProposalNumber, outcome: Outcome) {
        let patience = self.settings.patience;
        let oldest = self.lane(stripe).and_then(|lane| {
            let changes = &lane.proposals.get(&number)?.changes;
            changes.iter().map(|change| change.request).min()
        });
        let since = oldest.and_then(|request| self.requests.get(&request)).map_or(now, |pending| pending.since);
        let Some(lane) = self.lane(stripe) else { return };
        let session = lane.session;
        let Some(proposal) = lane.proposals.get_mut(&number) else { return };
        let failure = match outcome {
            Ok(StripeResponse::Written) => None,
            Err(Failure::Unknown(_)) if planted(Bug::DiskUnknownIsDone) => None,
            Err(Failure::UnknownSession(id)) => {
                if session == Session::Open(id) {
                    lane.session = Session::None;
                }
                if !proposal.may_be_executed {
                    // No attempt of it was executed, so it may have a new stamp.
                    proposal.stamp = None;
                    return self.send(now, stripe, number);
                }
                Some((Errno::Io, session_ended(id)))
            }
            // A full or damaged disk refuses an attempt, but an earlier one may have been executed.
            Err(failure) if is_transient(&failure) || is_of_disk(&failure) && proposal.may_be_executed => {
                proposal.failures += 1;
                proposal.may_be_executed |= matches!(failure, Failure::Unknown(_) | Failure::MayLie { .. });
                let is_over = patience.is_some_and(|patience| now.since(since) >= patience);
                if proposal.may_be_executed || !is_over {
                    let pause = pause(proposal.failures);
                    self.repeat_later(now, pause, Target::Proposal(stripe, number));
                    return self.give_up_waiting(now, stripe);
                }
                Some((Errno::Io, UNAVAILABLE.to_owned()))
            }
            other => Some(error(other)),
        };
        for Waiting { request, .. } in lane.finish(number) {
            self.finish_part(request, failure.clone());
        }
        self.propose(now, stripe);
    }

    /// Calls waiting reads, as far as the limit allows.
    fn call_reads(&mut self, now: Monotonic) {
        while self.reads_called < READS_MAX
            && let Some((request, part)) = self.reads_waiting.pop_front()
        {
            let reads = self.settings.reads;
            let consistency = |part: &ReadPart| if part.failures == 0 { reads } else { Consistency::Strong };
            let call = match self.requests.get(&request).map(|pending| &pending.work) {
                Some(Work::Read { parts, .. }) => parts.get(part).map(|part| {
                    let (consistency, blocks) = (consistency(part), part.span);
                    StripeRequest::Read { consistency, blocks }
                }),
                Some(Work::Status { parts, .. }) => parts.get(part).map(|part| {
                    let (consistency, blocks) = (consistency(part), part.span);
                    StripeRequest::Status { consistency, blocks }
                }),
                Some(Work::Change) | None => None,
            };
            if let Some(call) = call {
                self.reads_called += 1;
                self.call(now, Target::Part(request, part), call);
            }
        }
    }

    fn part_answered(&mut self, now: Monotonic, request: RequestNumber, number: usize, outcome: Outcome) {
        let (patience, reads) = (self.settings.patience, self.settings.reads);
        let Some(pending) = self.requests.get_mut(&request) else { return };
        let is_over = patience.is_some_and(|patience| now.since(pending.since) >= patience);
        let (Work::Read { parts, .. } | Work::Status { parts, .. }) = &mut pending.work else { return };
        let Some(part) = parts.get_mut(number) else { return };
        let failure = match outcome {
            Ok(StripeResponse::Runs(runs)) => {
                part.found = Found::Runs(runs);
                None
            }
            Ok(StripeResponse::Extents(extents)) => {
                part.found = Found::Extents(extents);
                None
            }
            Err(failure) if is_transient(&failure) && !is_over => {
                part.failures += 1;
                let pause = pause(part.failures);
                return self.repeat_later(now, pause, Target::Part(request, number));
            }
            Err(failure) if is_transient(&failure) => Some((Errno::Io, UNAVAILABLE.to_owned())),
            // The leader has it, or can get it.
            Err(Failure::Damaged(_)) if part.failures == 0 && reads == Consistency::Anywhere => {
                part.failures = 1;
                return self.repeat_later(now, Duration::ZERO, Target::Part(request, number));
            }
            other => Some(error(other)),
        };
        self.finish_part(request, failure);
    }

    /// A part of a request is done. If it was the last one, the request is answered.
    fn finish_part(&mut self, request: RequestNumber, failure: Option<(Errno, String)>) {
        let Some(pending) = self.requests.get_mut(&request) else { return };
        pending.left -= 1;
        if pending.failure.is_none() {
            pending.failure = failure;
        }
        if pending.left > 0 {
            return;
        }
        let Some(pending) = self.requests.remove(&request) else { return };
        self.bytes -= pending.bytes;
        let kind = match &pending.work {
            Work::Change => RequestKind::Change,
            Work::Read { .. } => RequestKind::Read,
            Work::Status { .. } => RequestKind::Other,
        };
        let result = match pending.failure {
            Some((errno, message)) => RequestResult::Failed { errno, message },
            None => self.result(pending.work),
        };
        self.reply(pending.cookie, kind, (pending.since, pending.bytes), result);
    }

    fn result(&self, work: Work) -> RequestResult {
        let layout = &self.layout;
        let found = match work {
            Work::Change => Some(RequestResult::Done),
            Work::Read { offset, length, is_whole, parts } => {
                let answers = parts.into_iter().filter_map(|part| match part.found {
                    Found::Runs(runs) => Some((part.span.stripe, runs)),
                    Found::Extents(_) | Found::Nothing => None,
                });
                let runs = assemble::runs(layout, offset, length, answers);
                runs.map(|runs| RequestResult::Read { offset, is_whole, runs })
            }
            Work::Status { offset, length, is_single, parts } => {
                let answers = parts.into_iter().filter_map(|part| match part.found {
                    Found::Extents(extents) => Some((part.span.stripe, extents)),
                    Found::Runs(_) | Found::Nothing => None,
                });
                let extents = assemble::extents(layout, offset, length, answers);
                extents.map(|mut extents| {
                    extents.truncate(if is_single { 1 } else { usize::MAX });
                    RequestResult::Status(extents)
                })
            }
        };
        let incomplete =
            || RequestResult::Failed { errno: Errno::Io, message: "incomplete answer of a stripe".to_owned() };
        found.unwrap_or_else(incomplete)
    }

    fn reply(&mut self, cookie: u64, kind: RequestKind, (since, bytes): (Monotonic, u64), result: RequestResult) {
        if !self.is_closed {
            self.actions.push(Action::Reply(Reply { cookie, kind, since, bytes, result }));
        }
    }

    fn call(&mut self, now: Monotonic, target: Target, request: StripeRequest) {
        let call = CallId(self.number());
        let timer = self.schedule(now, self.settings.call_timeout, Timer::GiveUp(call));
        self.calls.insert(call, Call { target, timer });
        self.actions.push(Action::Call { call, request });
    }

    fn repeat_later(&mut self, now: Monotonic, pause: Duration, target: Target) {
        self.schedule(now, pause, Timer::Repeat(target));
    }

    fn schedule(&mut self, now: Monotonic, after: Duration, timer: Timer) -> TimerKey {
        let key = (now + after, self.number());
        self.timers.insert(key, timer);
        key
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn invariants(&self) {
        self.lanes.iter().for_each(Lane::invariants);
        assert_eq!(self.bytes, self.requests.values().map(|pending| pending.bytes).sum::<u64>(), "bytes are counted");
        let reads = self.calls.values().filter(|call| matches!(call.target, Target::Part(..))).count();
        assert_eq!(reads, self.reads_called, "calls of reads are counted");
        assert!(self.calls.values().all(|call| self.timers.contains_key(&call.timer)), "each call has its timer");
    }
}
