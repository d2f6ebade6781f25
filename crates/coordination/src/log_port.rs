//! The coordination log as a translation server uses it: opening, appends, tails, following, snapshots, trimming.
//!
//! A machine without IO between a [`Server`](crate::server::Server) and a transport of log requests. The driver passes in
//! the server's actions about the log ([`LogPort::act`]), the answers to requests ([`LogPort::answered`]), the position to
//! read from ([`LogPort::follow`]) and the time ([`LogPort::timer`]), and carries out the outputs in order
//! ([`LogPort::take_outputs`]). Requests go to the node or, from a server without a node, over the network; every request
//! must be answered, at the latest soon after its deadline.
//!
//! *Opening* creates the log if there is none, and finds and decodes the newest snapshot. [`Output::Opened`] then has the
//! state from which the server starts. It is repeated until it succeeds.
//!
//! *Following* reads the log from the server's next position on, one read at a time. Positions are passed on in order and
//! without gaps. A read that fails is repeated from the server's next position. `following.rs` says when the log is read.
//!
//! *An append in doubt* is reported as failed. The server repeats it, and the state ignores the second copy of a batch.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;
use machine::Failure;
use sharedlog::Batch;
use sharedlog::request::{Content, LogRequest, LogResponse};
use sharedlog::snapshot::{Appended, is_of_snapshot};
use sharedlog::validate::COORDINATION_LOG;

use crate::entry::Position;
use crate::server::{Action, AppendId, Event, TailId};
use crate::state::State;

mod following;
mod opening;
mod snapshot;
#[cfg(test)]
mod tests;

pub use following::{ParsePlaybackError, Playback};

use following::Follower;
use opening::Opening;
use snapshot::Snapshots;

/// Deadline of a request to the log: long enough for a reconfiguration of the log, so that an append is seldom repeated.
const DEADLINE: Duration = Duration::from_millis(10_000);
/// Delay before a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// The result of a request to the log.
pub type Answer = Result<LogResponse, Failure>;

/// Output of the machine.
#[derive(Debug)]
pub enum Output {
    /// Send a request. Its answer goes to [`LogPort::answered`].
    Request {
        /// The request's number, never used before by this port.
        number: u64,
        /// When the request is given up.
        deadline: Monotonic,
        /// The request.
        request: LogRequest,
    },
    /// The log is open: start a server with this state, the newest snapshot or the empty state.
    Opened(Box<State>),
    /// The log could not be opened for a while. The port keeps trying.
    NotOpened(Failure),
    /// Pass this event to the server.
    Event(Event),
    /// The log was found trimmed below this position. A server that has not applied that much can't go on: call
    /// [`LogPort::open`] and replace the server. It may have passed the position meanwhile, with its own batches.
    Trimmed(Position),
    /// A snapshot could not be written. [`Event::SnapshotFailed`] follows; the server writes another one later.
    SnapshotFailed(String),
}

/// The purpose of a request.
#[derive(Debug)]
enum Purpose {
    /// The next step of opening the log.
    Open,
    Append(AppendId),
    Tail(TailId),
    /// Reads from this position on.
    Follow(Position),
    /// An append of the snapshot with that number.
    Snapshot {
        attempt: u64,
        part: usize,
    },
    Trim,
}

/// The port of one translation server, or of one after the other.
#[derive(Debug)]
pub struct LogPort {
    /// Copies of the log, if this port creates it.
    copies: u32,
    last_number: u64,
    purposes: BTreeMap<u64, Purpose>,
    opening: Option<Opening>,
    follower: Follower,
    snapshots: Snapshots,
    outputs: Vec<Output>,
}

impl LogPort {
    /// A port that begins to open the log. `copies`: of the log, if it does not exist yet.
    #[must_use]
    pub fn new(copies: u32, playback: Playback, now: Monotonic) -> Self {
        let mut port = Self {
            copies,
            last_number: 0,
            purposes: BTreeMap::new(),
            opening: None,
            follower: Follower::new(playback),
            snapshots: Snapshots::default(),
            outputs: Vec::new(),
        };
        port.open(now);
        port
    }

    /// Opens the log again, for another server. Outputs and answers for the earlier one are dropped.
    pub fn open(&mut self, now: Monotonic) {
        self.purposes.clear();
        self.outputs.clear();
        self.follower.restart();
        self.snapshots.cancel();
        self.begin_opening(now);
    }

    /// Takes the outputs so far, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// When [`Self::timer`] and [`Self::follow`] have something to do though no answer has arrived.
    #[must_use]
    pub fn next_timer(&self) -> Monotonic {
        self.opening.as_ref().map_or_else(|| self.follower.next_timer(), |opening| opening.retry_at)
    }

    /// Repeats what has failed, once it is due.
    pub fn timer(&mut self, now: Monotonic) {
        self.open_again(now);
    }

    /// Carries out an action of the server about the log. Others are the driver's.
    pub fn act(&mut self, action: Action, now: Monotonic) {
        debug_assert!(self.opening.is_none(), "there is no server while the log is opened");
        match action {
            Action::Append { append, entry } => match Batch::of(&[entry]) {
                Ok(batch) => self.ask(Purpose::Append(append), append_request(batch), now),
                Err(error) => {
                    debug_assert!(false, "the server's entries are smaller than a batch: {error}");
                    self.outputs.push(Output::Event(Event::AppendFailed { append }));
                }
            },
            Action::RequestTail { request } => {
                self.ask(Purpose::Tail(request), LogRequest::Tail { log: COORDINATION_LOG.into() }, now);
            }
            Action::KeepPiece { next, index, piece, is_last } => self.keep_piece(next, index, &piece, is_last, now),
            Action::Trim { below } => {
                let before = sharedlog::Position(below.0);
                self.ask(Purpose::Trim, LogRequest::Trim { log: COORDINATION_LOG.into(), before }, now);
            }
            Action::Send { .. }
            | Action::Close { .. }
            | Action::Pause { .. }
            | Action::Resume { .. }
            | Action::SetTimer(_) => debug_assert!(false, "the driver carries out actions about clients and timers"),
        }
    }

    /// Takes the answer to a request.
    pub fn answered(&mut self, number: u64, answer: Answer, now: Monotonic) {
        // Requests for an earlier server have no purpose.
        let Some(purpose) = self.purposes.remove(&number) else { return };
        let event = match purpose {
            Purpose::Open => return self.opening_answered(answer, now),
            Purpose::Follow(from) => return self.followed(from, answer, now),
            Purpose::Snapshot { attempt, part } => {
                return self.snapshot_appended(attempt, part, appended(&answer), now);
            }
            // The next snapshot trims again.
            Purpose::Trim => return,
            Purpose::Append(append) => match appended(&answer) {
                Appended::At(position) => Event::Appended { append, position: Position(position.0) },
                Appended::InDoubt(position) if planted(Bug::DoubtfulAppendDone) => {
                    Event::Appended { append, position: Position(position.0) }
                }
                Appended::InDoubt(_) | Appended::Failed => Event::AppendFailed { append },
            },
            Purpose::Tail(request) => match answer {
                Ok(LogResponse::Tail(tail)) => Event::Tail { request, tail: Position(tail.0) },
                _ => Event::TailFailed { request },
            },
        };
        self.outputs.push(Output::Event(event));
    }

    fn ask(&mut self, purpose: Purpose, request: LogRequest, now: Monotonic) {
        self.ask_within(DEADLINE, purpose, request, now);
    }

    fn ask_within(&mut self, deadline: Duration, purpose: Purpose, request: LogRequest, now: Monotonic) {
        self.last_number += 1;
        let number = self.last_number;
        self.purposes.insert(number, purpose);
        self.outputs.push(Output::Request { number, deadline: now + deadline, request });
    }
}

fn append_request(batch: Batch) -> LogRequest {
    LogRequest::Append { log: COORDINATION_LOG.into(), batch, stamp: None }
}

fn read(from: sharedlog::Position, count: u32, wait: Duration, bytes: usize) -> LogRequest {
    LogRequest::Read { log: COORDINATION_LOG.into(), from, count, wait, bytes }
}

fn appended(answer: &Answer) -> Appended {
    match answer {
        Ok(LogResponse::Appended(position)) => Appended::At(*position),
        Err(Failure::MayLie { position }) => Appended::InDoubt(sharedlog::Position(*position)),
        _ => Appended::Failed,
    }
}

/// The server's entry in a position; none for holes and for the log's own records.
fn entry(content: Content) -> Option<Bytes> {
    let Content::Data(data) = content else { return None };
    let mut records = data.batch.records().ok()?;
    if is_of_snapshot(&records) || records.len() != 1 { None } else { records.pop() }
}
