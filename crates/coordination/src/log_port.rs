//! The coordination log as a translation server uses it: opening, appends, tails, following, snapshots, trimming.
//!
//! A machine without IO between a [`Server`](crate::server::Server) and a transport of log requests. The driver passes
//! in the server's actions about the log ([`LogPort::act`]), the outcomes of requests ([`LogPort::answered`]), the
//! position to read from ([`LogPort::follow`]) and the time ([`LogPort::timer`]), and carries out the outputs in order
//! ([`LogPort::take_outputs`]). Requests go to the local node or, from a server without a node, over the network. The
//! driver must report an outcome for every request, at the latest soon after its deadline.
//!
//! *Opening* creates the log if it does not exist, and restores the newest snapshot. [`Output::Opened`] then provides
//! the state from which the server starts. Opening is retried until it succeeds.
//!
//! *Following* reads the log from the server's next position on, one read at a time. Positions are delivered in order
//! and without gaps. A failed read is retried from the server's next position. `following.rs` decides when to read.
//!
//! *An append with an unknown outcome* is reported as failed. The server retries it, and the state ignores the second
//! copy of a batch (deduplication).

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;
use sharedlog::Batch;
use sharedlog::request::{Content, LogRequest, LogResponse};
use sharedlog::snapshot::{Appended, is_of_snapshot};
use sharedlog::validate::COORDINATION_LOG;
use state_machine::Failure;

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

/// Deadline of a request to the log: longer than a reconfiguration of the log, so that appends are rarely retried.
const DEADLINE: Duration = Duration::from_millis(10_000);
/// Delay before a failed request is retried.
const PAUSE: Duration = Duration::from_millis(50);

/// The result of a request to the log.
pub type LogOutcome = Result<LogResponse, Failure>;

/// Output of the machine.
#[derive(Debug)]
pub enum Output {
    /// Send a request; [`LogPort::answered`] follows.
    Request {
        /// The request's number, unique within this port.
        number: u64,
        /// The request fails at this time.
        deadline: Monotonic,
        request: LogRequest,
    },
    /// The log is open: start a server with this state, the newest snapshot or the empty state.
    Opened(Box<State>),
    /// Opening keeps failing. The port continues to retry.
    NotOpened(Failure),
    /// Pass this event to the server.
    Event(Event),
    /// The log is trimmed below this position. If the server has not applied everything below it, call
    /// [`LogPort::open`] and replace the server. The server may have passed the position in the meantime, with its own
    /// batches.
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
    /// A read from this position on.
    Follow(Position),
    /// An append of the snapshot with that number.
    Snapshot {
        attempt: u64,
        part: usize,
    },
    Trim,
}

/// The log port of a translation server, and of its successors in the same process.
#[derive(Debug)]
pub struct LogPort {
    /// Number of copies, if this port creates the log.
    copies: u32,
    last_number: u64,
    purposes: BTreeMap<u64, Purpose>,
    opening: Option<Opening>,
    follower: Follower,
    snapshots: Snapshots,
    outputs: Vec<Output>,
}

impl LogPort {
    /// Creates a port that starts to open the log. `copies` is the number of copies if the log does not exist yet.
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

    /// Opens the log again for another server. Outputs and outcomes for the earlier server are dropped.
    pub fn open(&mut self, now: Monotonic) {
        self.purposes.clear();
        self.outputs.clear();
        self.follower.restart();
        self.snapshots.cancel();
        self.begin_opening(now);
    }

    /// Drains the outputs, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// When to call [`Self::timer`] and [`Self::follow`] next, if no outcome arrives before.
    #[must_use]
    pub fn next_timer(&self) -> Monotonic {
        self.opening.as_ref().map_or_else(|| self.follower.next_timer(), |opening| opening.retry_at)
    }

    /// Runs the retries that are due.
    pub fn timer(&mut self, now: Monotonic) {
        self.open_again(now);
    }

    /// Carries out an action of the server about the log. The driver carries out all others.
    pub fn act(&mut self, action: Action, now: Monotonic) {
        debug_assert!(self.opening.is_none(), "no server exists while the log is being opened");
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

    /// Handles the outcome of a request.
    pub fn answered(&mut self, number: u64, answer: LogOutcome, now: Monotonic) {
        // Outcomes of requests for an earlier server are dropped.
        let Some(purpose) = self.purposes.remove(&number) else { return };
        let event = match purpose {
            Purpose::Open => return self.opening_answered(answer, now),
            Purpose::Follow(from) => return self.followed(from, answer, now),
            Purpose::Snapshot { attempt, part } => {
                return self.snapshot_appended(attempt, part, appended(&answer), now);
            }
            // A failed trim is not retried: the next snapshot trims further.
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

fn appended(answer: &LogOutcome) -> Appended {
    match answer {
        Ok(LogResponse::Appended(position)) => Appended::At(*position),
        Err(Failure::MayLie { position }) => Appended::InDoubt(sharedlog::Position(*position)),
        _ => Appended::Failed,
    }
}

/// The server's entry at a position; `None` for holes and for the log's own records.
fn entry(content: Content) -> Option<Bytes> {
    let Content::Data(data) = content else { return None };
    let mut records = data.batch.records().ok()?;
    if is_of_snapshot(&records) || records.len() != 1 { None } else { records.pop() }
}
