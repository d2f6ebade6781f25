//! The coordination log, as the translation server uses it: appends, tails, following, snapshots. Requests go to the
//! node through its inbox, and answers come back through [`Completions`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::Monotonic;
use base::limits::LOG_READ_MAX;
use bytes::Bytes;
use coordination::entry::Position;
use coordination::server::{AppendId, Event, TailId};
use coordination::state::{Restorer, State};
use machine::Failure;
use mio::{Events, Poll};
use node::request::{Outcome, Request, Response};
use sharedlog::duplicates::Duplicates;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::snapshot::{Appended, Finder, Found, Keeper, There, Wanted, is_of_snapshot};
use sharedlog::validate::COORDINATION_LOG;
use sharedlog::{Batch, Run};

use super::super::clock;
use super::super::gateway::{Completions, MachineGateway};

/// Deadline of a request to the log: long enough for a reconfiguration of the log, so that an append is seldom repeated.
const DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of the log's creation, which nodes do not retransmit: it is idempotent, and repeated here.
const CREATE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum time that a read waits at the tail. A position whose writer has died is filled after this time.
const FOLLOW_WAIT: base::Duration = base::Duration::from_millis(500);
/// Bytes that one read returns, unless a single entry is larger.
const FOLLOW_BYTES: usize = 2 << 20;
/// Delay before a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// The creation of the log is reported as failing this often.
const REPORT: Duration = Duration::from_secs(10);
/// A restored snapshot is decoded in steps of this many bytes.
const RESTORE_BYTES: usize = 256 << 10;

/// The purpose of a request.
#[derive(Debug)]
enum Purpose {
    Append(AppendId),
    Tail(TailId),
    /// Reads from this position on.
    Follow(Position),
    /// A part of the snapshot with that number.
    Part {
        attempt: u64,
        part: usize,
    },
    Trim,
    /// The thread waits for it.
    Call,
}

/// The snapshot that is being written.
#[derive(Debug)]
struct Snapshot {
    attempt: u64,
    next: Position,
    keeper: Keeper,
    /// The piece after which the server waits to pass in the next one.
    wants_after: Option<u32>,
}

/// The result of the answers that have arrived.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) events: Vec<Event>,
    /// The log was found trimmed up to here. If the server has not applied that much, it must start again from a snapshot.
    pub(super) trimmed: Option<Position>,
}

/// The log's driver.
pub(super) struct Log {
    gateway: MachineGateway,
    completions: Arc<Completions>,
    last_number: u64,
    purposes: HashMap<u64, Purpose>,
    is_following: bool,
    /// Positions of the next read: as many as are likely to be written once the first is. At the tail, a read of one
    /// position takes one request to its unit.
    follow_count: u32,
    /// Size of the next read: larger after one entry did not fit.
    follow_bytes: usize,
    /// When the log is read again after a failure.
    follow_at: Monotonic,
    /// Snapshots begun.
    attempts: u64,
    snapshot: Option<Snapshot>,
}

impl Log {
    pub(super) fn new(gateway: MachineGateway, completions: Arc<Completions>) -> Self {
        Self {
            gateway,
            completions,
            last_number: 0,
            purposes: HashMap::new(),
            is_following: false,
            follow_count: 1,
            follow_bytes: FOLLOW_BYTES,
            follow_at: Monotonic(0),
            attempts: 0,
            snapshot: None,
        }
    }

    fn ask(&mut self, purpose: Purpose, request: LogRequest) {
        self.ask_within(DEADLINE, purpose, request);
    }

    fn ask_within(&mut self, deadline: Duration, purpose: Purpose, request: LogRequest) -> u64 {
        self.last_number += 1;
        self.purposes.insert(self.last_number, purpose);
        let deadline = clock::monotonic() + clock::duration(deadline);
        self.gateway.hand_in_from_thread(Request::Log(request), deadline, &self.completions, self.last_number);
        self.last_number
    }

    /// Creates the log if it does not exist, and returns the state of its newest snapshot, or else the empty state.
    /// Waits until the log is available. Requests of an earlier server are abandoned.
    pub(super) fn open(&mut self, poll: &mut Poll, copies: u32) -> io::Result<State> {
        self.purposes.clear();
        (self.is_following, self.follow_at, self.snapshot) = (false, Monotonic(0), None);
        let create = LogRequest::Create { name: COORDINATION_LOG.into(), stripes: 1, copies };
        self.until_done(poll, |log, poll| match log.restore(poll)? {
            Err(Failure::UnknownLog(_)) => match log.call(poll, create.clone(), CREATE_DEADLINE)? {
                Ok(_) | Err(Failure::Exists(_)) => log.restore(poll),
                Err(failure) => Ok(Err(failure)),
            },
            restored => Ok(restored),
        })
    }

    /// Repeats a call until it succeeds.
    fn until_done<T>(
        &mut self,
        poll: &mut Poll,
        mut call: impl FnMut(&mut Self, &mut Poll) -> io::Result<Result<T, Failure>>,
    ) -> io::Result<T> {
        let mut report_at = clock::monotonic() + clock::duration(REPORT);
        loop {
            match call(self, poll)? {
                Ok(done) => return Ok(done),
                Err(failure) if clock::monotonic() >= report_at => {
                    tracing::warn!(%failure, "ZooKeeper clients are not served yet: the log is not available");
                    report_at = clock::monotonic() + clock::duration(REPORT);
                }
                Err(_) => {}
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends a request and waits for its answer.
    fn call(&mut self, poll: &mut Poll, request: LogRequest, deadline: Duration) -> io::Result<Outcome> {
        let number = self.ask_within(deadline, Purpose::Call, request);
        let mut events = Events::with_capacity(16);
        loop {
            for (answered, outcome) in self.completions.take() {
                self.purposes.remove(&answered);
                if answered == number {
                    return Ok(outcome);
                }
            }
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    fn restore(&mut self, poll: &mut Poll) -> io::Result<Result<State, Failure>> {
        let first = match self.call(poll, read(sharedlog::Position(0), 1, base::Duration::ZERO), DEADLINE)? {
            Ok(Response::Log(LogResponse::Entries(entries))) => entries,
            Ok(_) => Vec::new(),
            Err(failure) => return Ok(Err(failure)),
        };
        let Some(Content::Trimmed { mark }) = first.first().map(|entry| &entry.content) else {
            return Ok(Ok(State::default()));
        };
        let mut finder = Finder::new(*mark);
        loop {
            let request = match finder.wants() {
                Wanted::Nothing => break,
                Wanted::Tail => LogRequest::Tail { log: COORDINATION_LOG.into() },
                Wanted::Read(Run { from, count, .. }) => read(from, count as u32, FOLLOW_WAIT),
            };
            match self.call(poll, request, DEADLINE)? {
                Ok(Response::Log(LogResponse::Tail(tail))) => finder.tail(tail),
                Ok(Response::Log(LogResponse::Entries(entries))) => finder.read(entries.into_iter().map(there)),
                Ok(_) => {}
                Err(failure) => return Ok(Err(failure)),
            }
        }
        match finder.found() {
            Found::Snapshot(snapshot) => Ok(decode(&snapshot.state)),
            Found::Nothing { mark } => {
                Ok(Err(Failure::Unavailable(format!("no snapshot found, and the log is trimmed below {mark}"))))
            }
        }
    }

    /// Appends an entry.
    pub(super) fn append(&mut self, append: AppendId, entry: Bytes) -> Option<Event> {
        match Batch::of(&[entry]) {
            Ok(batch) => {
                self.ask(Purpose::Append(append), append_request(batch));
                None
            }
            Err(error) => {
                tracing::error!(%error, "an entry of the coordination log is too large");
                Some(Event::AppendFailed { append })
            }
        }
    }

    /// Asks for the tail.
    pub(super) fn request_tail(&mut self, request: TailId) {
        self.ask(Purpose::Tail(request), LogRequest::Tail { log: COORDINATION_LOG.into() });
    }

    /// Reads from a position on, unless a read is in flight.
    pub(super) fn follow(&mut self, next: Position, now: Monotonic) {
        if self.is_following || now < self.follow_at {
            return;
        }
        self.is_following = true;
        self.follow_at = Monotonic(0);
        let from = sharedlog::Position(next.0);
        let log = COORDINATION_LOG.to_owned();
        let (count, wait, bytes) = (self.follow_count, FOLLOW_WAIT, self.follow_bytes);
        self.ask(Purpose::Follow(next), LogRequest::Read { log, from, count, wait, bytes });
    }

    /// When [`Self::follow`] has something to do though no answer has arrived.
    pub(super) fn next_timer(&self) -> Monotonic {
        if self.is_following || self.follow_at == Monotonic(0) { Monotonic::NEVER } else { self.follow_at }
    }

    /// Trims the log.
    pub(super) fn trim(&mut self, below: Position) {
        let before = sharedlog::Position(below.0);
        self.ask(Purpose::Trim, LogRequest::Trim { log: COORDINATION_LOG.into(), before });
    }

    /// Writes the next piece of a snapshot.
    pub(super) fn keep(&mut self, next: Position, index: u32, piece: &[u8], is_last: bool) -> Option<Event> {
        if index == 0 {
            self.attempts += 1;
            let keeper = Keeper::begin(sharedlog::Position(next.0), &Duplicates::default());
            self.snapshot = Some(Snapshot { attempt: self.attempts, next, keeper, wants_after: None });
        }
        let Some(snapshot) = self.snapshot.as_mut().filter(|snapshot| snapshot.next == next) else {
            return Some(Event::SnapshotFailed { next });
        };
        if let Err(error) = snapshot.keeper.push(piece) {
            tracing::warn!(%error, "the coordination log keeps growing");
            self.snapshot = None;
            return Some(Event::SnapshotFailed { next });
        }
        snapshot.wants_after = (!is_last).then_some(index);
        if is_last {
            snapshot.keeper.end();
        }
        self.go_on_with_snapshot()
    }

    fn go_on_with_snapshot(&mut self) -> Option<Event> {
        let mut appends = Vec::new();
        let snapshot = self.snapshot.as_mut()?;
        let (attempt, next) = (snapshot.attempt, snapshot.next);
        while let Some((part, batch)) = snapshot.keeper.next_append() {
            appends.push((Purpose::Part { attempt, part }, batch));
        }
        let event = if snapshot.keeper.kept_at().is_some() {
            self.snapshot = None;
            Some(Event::SnapshotKept { next })
        } else if snapshot.keeper.is_busy() {
            None
        } else {
            snapshot.wants_after.take().map(|index| Event::PieceKept { next, index })
        };
        for (purpose, batch) in appends {
            self.ask(purpose, append_request(batch));
        }
        event
    }

    /// Takes the answers that have arrived.
    pub(super) fn take(&mut self, now: Monotonic) -> Heard {
        let mut heard = Heard::default();
        for (number, outcome) in self.completions.take() {
            match self.purposes.remove(&number) {
                // Of an earlier server.
                None | Some(Purpose::Call) => {}
                Some(Purpose::Append(append)) => heard.events.push(match appended(&outcome) {
                    Appended::At(position) => Event::Appended { append, position: Position(position.0) },
                    _ => Event::AppendFailed { append },
                }),
                Some(Purpose::Tail(request)) => heard.events.push(match outcome {
                    Ok(Response::Log(LogResponse::Tail(tail))) => Event::Tail { request, tail: Position(tail.0) },
                    _ => Event::TailFailed { request },
                }),
                Some(Purpose::Follow(from)) => self.followed(from, outcome, now, &mut heard),
                Some(Purpose::Part { attempt, part }) => {
                    heard.events.extend(self.part_appended(attempt, part, appended(&outcome)));
                }
                // The next snapshot trims again.
                Some(Purpose::Trim) => {}
            }
        }
        heard
    }

    fn part_appended(&mut self, attempt: u64, part: usize, outcome: Appended) -> Option<Event> {
        let snapshot = self.snapshot.as_mut().filter(|snapshot| snapshot.attempt == attempt)?;
        let next = snapshot.next;
        if !matches!(outcome, Appended::At(_)) {
            // The server writes another one later.
            self.snapshot = None;
            return Some(Event::SnapshotFailed { next });
        }
        snapshot.keeper.appended(part, outcome);
        self.go_on_with_snapshot()
    }

    fn followed(&mut self, from: Position, outcome: Outcome, now: Monotonic, heard: &mut Heard) {
        self.is_following = false;
        let entries = match outcome {
            Ok(Response::Log(LogResponse::Entries(entries))) => entries,
            Ok(Response::Log(LogResponse::Larger)) => {
                self.follow_bytes = BATCH_BYTES_MAX;
                return;
            }
            _ => {
                self.follow_at = now + clock::duration(PAUSE);
                return;
            }
        };
        self.follow_bytes = FOLLOW_BYTES;
        let count = entries.len() as u32;
        let next_count = if count >= self.follow_count { 2 * count } else { count };
        self.follow_count = next_count.clamp(1, LOG_READ_MAX);
        for (LogEntry { position, content }, next) in entries.into_iter().zip(from.0..) {
            if let Content::Trimmed { mark } = content
                && mark > position
            {
                heard.trimmed = Some(Position(mark.0));
                return;
            }
            if position.0 != next {
                return;
            }
            heard.events.push(Event::Played { position: Position(next), entry: entry(content) });
        }
    }
}

fn append_request(batch: Batch) -> LogRequest {
    LogRequest::Append { log: COORDINATION_LOG.into(), batch, stamp: None }
}

fn read(from: sharedlog::Position, count: u32, wait: base::Duration) -> LogRequest {
    LogRequest::Read { log: COORDINATION_LOG.into(), from, count, wait, bytes: BATCH_BYTES_MAX }
}

fn appended(outcome: &Outcome) -> Appended {
    match outcome {
        Ok(Response::Log(LogResponse::Appended(position))) => Appended::At(*position),
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

fn there(LogEntry { position, content }: LogEntry) -> There {
    match content {
        Content::Data(data) => data.batch.records().map_or(There::Nothing, There::Records),
        Content::Trimmed { mark } if mark > position => There::TrimmedBelow(mark),
        Content::Trimmed { .. } | Content::Junk | Content::Lost => There::Nothing,
    }
}

fn decode(snapshot: &[u8]) -> Result<State, Failure> {
    let mut restorer = Restorer::default();
    let pushed = snapshot.chunks(RESTORE_BYTES).try_for_each(|piece| restorer.push(piece));
    let state = pushed.and_then(|()| restorer.finish());
    state.map_err(|error| Failure::Unavailable(format!("the snapshot can't be decoded: {error}")))
}
