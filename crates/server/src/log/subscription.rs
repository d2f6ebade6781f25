//! Subscriptions: the entries of a log, delivered to one client as the log grows.
//!
//! A task prefetches [`PREFETCH_BYTES`], or one large entry. Before each read below the log's tail it reserves memory. It
//! waits for memory only while it has no other read in flight, which prevents deadlocks between subscriptions. A read at
//! the tail never waits for memory: if memory is short, it requests a tiny size.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::log::{self as message, SubscribeResponse};
use base::budget::Reservation;
use base::limits::LOG_READ_MAX;
use node::request::{Outcome, Request, Response};
use sharedlog::Position;
use sharedlog::duplicates::Duplicates;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use state_machine::Failure;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::Status;

use super::translate::{after, entry, entry_bytes, repeated};
use crate::columns::{RpcResult, unexpected};
use crate::deadline::no_answer;
use crate::flow_control::call::{Call, HandedOver};
use crate::flow_control::{Connection, Held, SMALL_BYTES};
use crate::limits::{
    PREFETCH_BYTES, PREFETCH_READ_BYTES, READ_BYTES_MAX, STREAM_MESSAGE_BYTES, STREAM_SWEEP, SUBSCRIPTION_PAUSE,
    SUBSCRIPTION_PAUSE_MIN, SUBSCRIPTION_READ_TIME, SUBSCRIPTION_SILENCE, SUBSCRIPTION_WAIT,
};
use crate::stream::{Begun, StreamSlot, Streams, stopping};
use crate::{Gateway, Observer, refusal};

/// Assumed size of an entry before any was read.
const USUAL_ENTRY_BYTES: usize = 16 << 10;
/// Minimum size of a read.
const LEAST_BYTES: usize = 4 << 10;
/// If one read at the tail returns this many entries, the log may have grown far beyond the known tail.
const AT_TAIL_MANY: u32 = 16;

/// A message and its memory.
type Delivery = (SubscribeResponse, Option<Reservation>);

/// The stream of a subscription, polled by the server.
struct Subscription {
    deliveries: mpsc::Receiver<Result<Delivery, Status>>,
    observer: Arc<Observer>,
    _task: Task<()>,
    _slot: StreamSlot,
}

/// A task that is aborted when this is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a subscription at a position, unless the node has too many streams.
pub(super) fn begin<G: Gateway>(
    gateway: Arc<G>,
    streams: &Streams,
    call: &Call,
    log: String,
    from: Position,
) -> RpcResult<HandedOver<SubscribeResponse>> {
    let follower = Follower {
        gateway,
        connection: Arc::clone(&call.connection),
        log,
        next: from,
        seen: Duplicates::default(),
        seen_memory: call.connection.responses.charge(0),
        next_read: from,
        tail: Position(0),
        ahead: VecDeque::new(),
        entry_bytes: USUAL_ENTRY_BYTES,
        larger_at: None,
        at_tail: 4,
        wants_tail: true,
        may_wait: true,
        delivered_at: Instant::now(),
    };
    let first = follower.request(from, 1, 0);
    node::request::validate(&first).map_err(|failure| refusal::status(&failure))?;
    let Begun { closing, observer, slot } = streams.begun()?;
    let (sender, deliveries) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let ended = tokio::select! {
            ended = follower.follow(&sender) => ended,
            () = closing => stopping(),
        };
        let _ = sender.send(Err(ended)).await;
    });
    Ok(call.stream(Subscription { deliveries, observer, _task: Task(task), _slot: slot }))
}

impl Stream for Subscription {
    type Item = Result<SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // From now on the message is counted as part of the response.
        let delivery = self.deliveries.poll_recv(context).map_ok(|(message, _room)| message);
        if let Poll::Ready(Some(Ok(message))) = &delivery {
            self.observer.calls.subscribed(message.entries.len());
        }
        delivery
    }
}

/// Reads a log and delivers its entries.
struct Follower<G> {
    gateway: Arc<G>,
    connection: Arc<Connection>,
    log: String,
    /// The next position to deliver.
    next: Position,
    /// The stamps of delivered entries.
    seen: Duplicates,
    /// Memory reserved for `seen`.
    seen_memory: Reservation,
    /// The next position to read.
    next_read: Position,
    /// The highest known tail: positions below it are assigned.
    tail: Position,
    /// Reads in flight below the tail, in the order of positions.
    ahead: VecDeque<Ahead>,
    /// Recent size of an entry.
    entry_bytes: usize,
    /// The position of an entry that was larger than its read.
    larger_at: Option<Position>,
    /// Number of positions to read at the tail: the number likely to be written once the first one is.
    at_tail: u32,
    /// Whether to look up the tail next, because it may be beyond the known one.
    wants_tail: bool,
    /// Whether reads may wait at the tail. False after the node rejected such a read: then the tail is polled.
    may_wait: bool,
    delivered_at: Instant,
}

/// A read in flight.
struct Ahead {
    from: Position,
    count: u32,
    room: Reservation,
    outcome: Task<Outcome>,
}

type Deliveries = mpsc::Sender<Result<Delivery, Status>>;

impl<G: Gateway> Follower<G> {
    /// Follows the log until an error occurs, and returns its status.
    async fn follow(mut self, out: &Deliveries) -> Status {
        loop {
            let step = if self.next < self.tail { self.read_ahead(out).await } else { self.read_tail(out).await };
            match step {
                Ok(()) => self.may_wait = true,
                Err(Failure::Overloaded(_)) => {
                    self.retreat();
                    self.may_wait = !self.may_wait;
                    sleep(SUBSCRIPTION_PAUSE).await;
                }
                Err(failure) => return refusal::status(&failure),
            }
        }
    }

    /// Delivers the result of the first read below the tail, with others in flight behind it.
    async fn read_ahead(&mut self, out: &Deliveries) -> Result<(), Failure> {
        while self.next_read < self.tail {
            let under_way = self.ahead.iter().map(|read| read.room.bytes().max(PREFETCH_READ_BYTES)).sum::<usize>();
            if !self.ahead.is_empty() && under_way + PREFETCH_READ_BYTES.max(self.entry_bytes) > PREFETCH_BYTES {
                break;
            }
            let fitting = (PREFETCH_READ_BYTES / self.entry_bytes.max(1)).clamp(1, LOG_READ_MAX as usize);
            let count = (self.tail.0 - self.next_read.0).min(fitting as u64) as u32;
            let Some(read) = self.read(self.next_read, count).await else { break };
            self.next_read = Position(self.next_read.0 + u64::from(read.count));
            self.ahead.push_back(read);
        }
        let Some(Ahead { from, count, mut room, mut outcome }) = self.ahead.pop_front() else { return Ok(()) };
        let outcome = (&mut outcome.0).await.unwrap_or_else(|_| Err(no_answer(false)))?;
        let Some(entries) = self.entries(from, outcome)? else {
            self.retreat();
            return Ok(());
        };
        room.shrink_to(entries.iter().map(entry_bytes).sum());
        if entries.is_empty() {
            // The known tail may be too high: positions assigned by a failed sequencer may be assigned again by its
            // successor.
            self.retreat();
            (self.tail, self.wants_tail) = (self.next, true);
            sleep(SUBSCRIPTION_PAUSE_MIN).await;
            return Ok(());
        }
        self.deliver(entries, room, out).await;
        self.ahead.retain(|read| read.end() > self.next);
        self.next_read = self.next_read.max(self.next);
        let end = Position(from.0 + u64::from(count));
        if self.next < end {
            // The read returned less than its range: read the rest.
            match self.read(self.next, (end.0 - self.next.0) as u32).await {
                Some(read) if read.end() == end => self.ahead.push_front(read),
                _ => self.retreat(),
            }
        }
        Ok(())
    }

    /// Waits at the tail and delivers new entries.
    async fn read_tail(&mut self, out: &Deliveries) -> Result<(), Failure> {
        if self.wants_tail {
            let request = Request::Log(LogRequest::Tail { log: self.log.clone() });
            let Response::Log(LogResponse::Tail(tail)) = self.ask(request, Held::of(&self.connection)).await? else {
                return Err(no_answer(false));
            };
            (self.tail, self.wants_tail) = (self.tail.max(tail), false);
            return Ok(());
        }
        let (room, held) = self.connection.try_tail_room(self.bytes(self.at_tail).min(PREFETCH_READ_BYTES)).unzip();
        let bytes = room.as_ref().map_or(SMALL_BYTES, Reservation::bytes);
        let held = held.unwrap_or_else(|| Held::of(&self.connection));
        let (from, asked_at) = (self.next, Instant::now());
        let outcome = self.ask(self.request(from, self.at_tail, bytes), held).await?;
        let Some(entries) = self.entries(from, outcome)? else { return Ok(()) };
        if entries.is_empty() {
            if self.delivered_at.elapsed() >= SUBSCRIPTION_SILENCE {
                self.delivered_at = Instant::now();
                // A keepalive. It is dropped if the client has not yet read the previous message.
                let _ = out.try_send(Ok((SubscribeResponse { entries: Vec::new(), next: from.0 }, None)));
            }
            if asked_at.elapsed() < SUBSCRIPTION_WAIT / 2 {
                sleep(SUBSCRIPTION_PAUSE_MIN).await;
            }
            return Ok(());
        }
        let count = entries.len() as u32;
        let is_full = count >= self.at_tail;
        self.wants_tail = is_full && count >= AT_TAIL_MANY;
        self.at_tail = if is_full { 2 * count } else { count }.clamp(1, LOG_READ_MAX);
        let room = room.unwrap_or_else(|| self.connection.responses.charge(0));
        self.deliver(entries, room, out).await;
        self.next_read = self.next;
        Ok(())
    }

    /// The entries that a read returned; none if the first is larger than the read.
    fn entries(&mut self, from: Position, outcome: Response) -> Result<Option<Vec<LogEntry>>, Failure> {
        match outcome {
            Response::Log(LogResponse::Entries(entries)) => {
                if !entries.is_empty() {
                    let average = entries.iter().map(entry_bytes).sum::<usize>() / entries.len();
                    self.entry_bytes = average.max((self.entry_bytes + average) / 2);
                }
                self.larger_at = None;
                Ok(Some(entries))
            }
            Response::Log(LogResponse::Larger) => {
                self.larger_at = Some(from);
                self.tail = self.tail.max(from.next());
                Ok(None)
            }
            other => Err(Failure::Unavailable(unexpected(&other).message().to_owned())),
        }
    }

    /// Delivers entries from the next position on, each once.
    async fn deliver(&mut self, entries: Vec<LogEntry>, mut room: Reservation, out: &Deliveries) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut entries = entries.into_iter().peekable();
        while let Some(mut next) = entries.next() {
            // One entry represents a whole trimmed range. Entries after a gap are read again.
            if after(&next) <= self.next {
                continue;
            }
            if next.position > self.next {
                break;
            }
            next.position = self.next;
            bytes += entry_bytes(&next);
            self.next = after(&next);
            batch.push(once(&mut self.seen, next));
            if entries.peek().is_none_or(|more| bytes + entry_bytes(more) > STREAM_MESSAGE_BYTES) {
                self.send(std::mem::take(&mut batch), std::mem::take(&mut bytes), &mut room, out).await;
            }
        }
        if !batch.is_empty() {
            self.send(batch, bytes, &mut room, out).await;
        }
        self.tail = self.tail.max(self.next);
        let bytes = self.seen.memory_bytes();
        self.seen_memory.shrink_to(bytes);
        self.seen_memory.grow(bytes - self.seen_memory.bytes());
    }

    /// Sends a message, with its part of the read's reservation.
    async fn send(&mut self, entries: Vec<api::log::LogEntry>, bytes: usize, room: &mut Reservation, out: &Deliveries) {
        room.shrink_to(room.bytes().saturating_sub(bytes));
        let of_message = self.connection.responses.charge(bytes);
        let message = SubscribeResponse { entries, next: self.next.0 };
        self.delivered_at = Instant::now();
        // If the subscription is gone, this task is aborted.
        let _ = out.send(Ok((message, Some(of_message)))).await;
    }

    /// Abandons all reads in flight. Their positions are read again.
    fn retreat(&mut self) {
        self.ahead.clear();
        self.next_read = self.next;
    }

    /// Starts a read. `None` if memory is short while other reads are in flight.
    async fn read(&self, from: Position, count: u32) -> Option<Ahead> {
        let is_larger = self.larger_at == Some(from);
        let (count, bytes) = if is_larger { (1, READ_BYTES_MAX) } else { (count, self.bytes(count)) };
        let (room, held) = if self.ahead.is_empty() {
            self.connection.read_room(bytes, count as usize).await
        } else {
            self.connection.try_read_room(bytes, count as usize)?
        };
        let (gateway, request) = (Arc::clone(&self.gateway), self.request(from, count, bytes));
        let outcome = Task(tokio::spawn(async move { submit(&*gateway, request, held).await }));
        Some(Ahead { from, count, room, outcome })
    }

    /// Size of a read of `count` entries: a quarter more than their recent size, because a short result costs another read.
    fn bytes(&self, count: u32) -> usize {
        (self.entry_bytes / 4).saturating_mul(5 * count as usize).clamp(LEAST_BYTES, READ_BYTES_MAX)
    }

    fn request(&self, from: Position, count: u32, bytes: usize) -> Request {
        let wait = if self.may_wait { SUBSCRIPTION_WAIT } else { Duration::ZERO };
        let wait = base::Duration::from_millis(wait.as_millis() as u64);
        Request::Log(LogRequest::Read { log: self.log.clone(), from, count, wait, bytes })
    }

    async fn ask(&self, request: Request, held: Held) -> Result<Response, Failure> {
        submit(&*self.gateway, request, held).await
    }
}

/// Delivers an entry, unless one with its stamp was delivered before (guarantee 20).
fn once(seen: &mut Duplicates, next: LogEntry) -> message::LogEntry {
    match &next.content {
        Content::Data(data) if !seen.is_first(data.stamp, next.position) => repeated(next.position),
        _ => entry(next),
    }
}

impl Ahead {
    fn end(&self) -> Position {
        Position(self.from.0 + u64::from(self.count))
    }
}

async fn submit<G: Gateway>(gateway: &G, request: Request, held: Held) -> Outcome {
    let deadline = SUBSCRIPTION_WAIT + SUBSCRIPTION_READ_TIME;
    let answer = timeout(deadline + STREAM_SWEEP, gateway.submit(request, deadline, held));
    answer.await.unwrap_or_else(|_| Err(no_answer(false)))
}
