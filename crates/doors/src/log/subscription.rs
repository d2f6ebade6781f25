//! A subscription: a log as it grows, told to one client.
//!
//! A task reads ahead of what the client takes: so many bytes ([`PREFETCH_BYTES`]), or one large entry. Each read below the
//! log's end has room before it is made, and the task waits for room only while it has no other read under way, so that no
//! two subscriptions wait for each other. A read that waits at the log's end reserves what is there at once, and makes do
//! with next to nothing otherwise.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::log::SubscribeResponse;
use base::budget::Reservation;
use base::limits::LOG_READ_MAX;
use machine::Failure;
use node::request::{Outcome, Request, Response};
use sharedlog::Position;
use sharedlog::request::{LogEntry, LogRequest, LogResponse};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::Status;

use super::translate::{after, entry, entry_bytes};
use crate::columns::{Answer, unexpected};
use crate::deadline::no_answer;
use crate::flow_control::call::{Call, HandedOver};
use crate::flow_control::{Connection, Held, SMALL_BYTES};
use crate::limits::{
    PREFETCH_BYTES, PREFETCH_READ_BYTES, READ_BYTES_MAX, STREAM_MESSAGE_BYTES, STREAM_SWEEP, SUBSCRIPTION_PAUSE,
    SUBSCRIPTION_PAUSE_MIN, SUBSCRIPTION_READ_TIME, SUBSCRIPTION_SILENCE, SUBSCRIPTION_WAIT,
};
use crate::stream::{Begun, Place, Streams, stopping};
use crate::{Gateway, Observer, refusal};

/// What an entry is taken to have before any was seen.
const USUAL_ENTRY_BYTES: usize = 16 << 10;
/// What a read asks for, at least.
const LEAST_BYTES: usize = 4 << 10;
/// Where so many entries came at once, at what was the log's end, there may be a lot more.
const AT_TAIL_MANY: u32 = 16;

/// A message and its room.
type Told = (SubscribeResponse, Option<Reservation>);

/// One subscription, as the server polls it.
struct Subscription {
    told: mpsc::Receiver<Result<Told, Status>>,
    observer: Arc<Observer>,
    _task: Task<()>,
    _place: Place,
}

/// A task that ends when this is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins a subscription from a position on, if there may be another.
pub(super) fn begin<G: Gateway>(
    gateway: Arc<G>,
    streams: &Streams,
    call: &Call,
    log: String,
    from: Position,
) -> Answer<HandedOver<SubscribeResponse>> {
    let follower = Follower {
        gateway,
        connection: Arc::clone(&call.connection),
        log,
        next: from,
        asked: from,
        tail: Position(0),
        ahead: VecDeque::new(),
        entry_bytes: USUAL_ENTRY_BYTES,
        larger_at: None,
        at_tail: 4,
        wants_tail: true,
        may_wait: true,
        told_at: Instant::now(),
    };
    let first = follower.request(from, 1, 0);
    node::request::validate(&first).map_err(|failure| refusal::status(&failure))?;
    let Begun { closing, observer, place } = streams.begun()?;
    let (sender, told) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let ended = tokio::select! {
            ended = follower.follow(&sender) => ended,
            () = closing => stopping(),
        };
        let _ = sender.send(Err(ended)).await;
    });
    Ok(call.stream(Subscription { told, observer, _task: Task(task), _place: place }))
}

impl Stream for Subscription {
    type Item = Result<SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // The message is counted as part of the response from now on.
        let told = self.told.poll_recv(context).map_ok(|(message, _room)| message);
        if let Poll::Ready(Some(Ok(message))) = &told {
            self.observer.calls.subscribed(message.entries.len());
        }
        told
    }
}

/// Reads a log, and tells of it.
struct Follower<G> {
    gateway: Arc<G>,
    connection: Arc<Connection>,
    log: String,
    /// The first position that was not told.
    next: Position,
    /// The first position that is not being read.
    asked: Position,
    /// Something lies below this, as far as known.
    tail: Position,
    /// Reads under way below the tail, in the order of positions.
    ahead: VecDeque<Ahead>,
    /// What an entry has, lately.
    entry_bytes: usize,
    /// The entry there has more bytes than were asked for.
    larger_at: Option<Position>,
    /// Positions that are read at the tail: as many as are likely to be there once the first is.
    at_tail: u32,
    /// The tail is to be asked for: there may be more than is known.
    wants_tail: bool,
    /// False after the node had no place for a read that waits.
    may_wait: bool,
    told_at: Instant,
}

/// A read under way.
struct Ahead {
    from: Position,
    count: u32,
    room: Reservation,
    outcome: Task<Outcome>,
}

type Teller = mpsc::Sender<Result<Told, Status>>;

impl<G: Gateway> Follower<G> {
    /// Follows the log until that fails, and says why.
    async fn follow(mut self, teller: &Teller) -> Status {
        loop {
            let step = if self.next < self.tail { self.read_ahead(teller).await } else { self.read_tail(teller).await };
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

    /// Tells what the first read below the tail brings, with others under way behind it.
    async fn read_ahead(&mut self, teller: &Teller) -> Result<(), Failure> {
        while self.asked < self.tail {
            let under_way = self.ahead.iter().map(|read| read.room.bytes().max(PREFETCH_READ_BYTES)).sum::<usize>();
            if !self.ahead.is_empty() && under_way + PREFETCH_READ_BYTES.max(self.entry_bytes) > PREFETCH_BYTES {
                break;
            }
            let fitting = (PREFETCH_READ_BYTES / self.entry_bytes.max(1)).clamp(1, LOG_READ_MAX as usize);
            let count = (self.tail.0 - self.asked.0).min(fitting as u64) as u32;
            let Some(read) = self.read(self.asked, count).await else { break };
            self.asked = Position(self.asked.0 + u64::from(read.count));
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
            sleep(SUBSCRIPTION_PAUSE_MIN).await;
        }
        self.tell(entries, room, teller).await;
        self.ahead.retain(|read| read.end() > self.next);
        self.asked = self.asked.max(self.next);
        let end = Position(from.0 + u64::from(count));
        if self.next < end {
            // The answer ended early.
            match self.read(self.next, (end.0 - self.next.0) as u32).await {
                Some(read) if read.end() == end => self.ahead.push_front(read),
                _ => self.retreat(),
            }
        }
        Ok(())
    }

    /// Tells what comes at the log's end, once something does.
    async fn read_tail(&mut self, teller: &Teller) -> Result<(), Failure> {
        if self.wants_tail {
            let request = Request::Log(LogRequest::Tail { log: self.log.clone() });
            let Response::Log(LogResponse::Tail(tail)) = self.ask(request, Held::of(&self.connection)).await? else {
                return Err(no_answer(false));
            };
            (self.tail, self.wants_tail) = (self.tail.max(tail), false);
            return Ok(());
        }
        let room = self.connection.responses.try_reserve(self.bytes(self.at_tail).min(PREFETCH_READ_BYTES));
        let bytes = room.as_ref().map_or(SMALL_BYTES, Reservation::bytes);
        let (from, asked_at) = (self.next, Instant::now());
        let outcome = self.ask(self.request(from, self.at_tail, bytes), Held::of(&self.connection)).await?;
        let Some(entries) = self.entries(from, outcome)? else { return Ok(()) };
        if entries.is_empty() {
            if self.told_at.elapsed() >= SUBSCRIPTION_SILENCE {
                self.told_at = Instant::now();
                // If the client doesn't take what there is, it needn't be told that there is nothing.
                let _ = teller.try_send(Ok((SubscribeResponse { entries: Vec::new(), next: from.0 }, None)));
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
        self.tell(entries, room, teller).await;
        self.asked = self.next;
        Ok(())
    }

    /// The entries that a read brought; none if the first is larger than it might be.
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

    /// Tells entries from the next position on, each once.
    async fn tell(&mut self, entries: Vec<LogEntry>, mut room: Reservation, teller: &Teller) {
        let (mut told, mut bytes) = (Vec::new(), 0);
        let mut entries = entries.into_iter().peekable();
        while let Some(mut next) = entries.next() {
            // What was trimmed together came as one entry; and what does not follow is read again.
            if after(&next) <= self.next {
                continue;
            }
            if next.position > self.next {
                break;
            }
            next.position = self.next;
            bytes += entry_bytes(&next);
            self.next = after(&next);
            told.push(entry(next));
            if entries.peek().is_none_or(|more| bytes + entry_bytes(more) > STREAM_MESSAGE_BYTES) {
                self.send(std::mem::take(&mut told), std::mem::take(&mut bytes), &mut room, teller).await;
            }
        }
        if !told.is_empty() {
            self.send(told, bytes, &mut room, teller).await;
        }
        self.tail = self.tail.max(self.next);
    }

    /// Hands a message on, with its part of what was reserved.
    async fn send(&mut self, entries: Vec<api::log::LogEntry>, bytes: usize, room: &mut Reservation, teller: &Teller) {
        room.shrink_to(room.bytes().saturating_sub(bytes));
        let of_message = self.connection.responses.charge(bytes);
        let message = SubscribeResponse { entries, next: self.next.0 };
        self.told_at = Instant::now();
        // If the subscription has gone this task ends.
        let _ = teller.send(Ok((message, Some(of_message)))).await;
    }

    /// Nothing is under way any more: what was not told is read again.
    fn retreat(&mut self) {
        self.ahead.clear();
        self.asked = self.next;
    }

    /// Begins a read. If others are under way there must be room for it at once.
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

    /// What so many entries have, a quarter more than lately: a short answer costs another read.
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
