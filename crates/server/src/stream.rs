//! Streams: one call with many pipelined requests. A [`Topic`] defines their messages.
//!
//! The server polls a [`Conversation`] for messages to send, and reads requests only while polled. This applies
//! backpressure: the server does not read from a client that reads no responses, and HTTP/2 flow control stops that
//! client. All requests of a message are submitted to the node together, except reads of logs that wait for memory. All
//! responses that are ready when the server can send are combined in one message.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use api::common::Refusal;
use base::budget::Reservation;
use node::request::{Outcome, Request};
use prost::Message as _;
use state_machine::Failure;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::columns::RpcResult;
use crate::deadline::{Deadline, no_answer};
use crate::flow_control::call::{Call, HandedOver};
use crate::flow_control::log_reads::LogRead;
use crate::flow_control::replies::{Replies, Reply};
use crate::flow_control::{Held, STREAMED_BYTES};
use crate::limits::{STREAM_MESSAGE_BYTES, STREAM_REQUESTS_MAX, STREAM_SWEEP, STREAMS_MAX};
use crate::{Gateway, Observer, Ticketed, refusal};

/// The messages of a kind of stream.
pub(crate) trait Topic: 'static {
    type RequestMessage: Send;
    /// The response to one request.
    type ItemResponse: prost::Message + Unpin;
    type ResponseMessage: prost::Message;

    /// The requests in a message, not yet validated.
    fn requests(message: Self::RequestMessage) -> Vec<Numbered>;

    /// The response to an executed request.
    fn answer(number: u64, outcome: Outcome) -> Result<Self::ItemResponse, Failure>;

    /// The response to a rejected request.
    fn refused(number: u64, refusal: Refusal) -> Self::ItemResponse;

    /// Combines responses in a message.
    fn response_message(answers: Vec<Self::ItemResponse>) -> Self::ResponseMessage;
}

/// One request of a stream.
#[derive(Debug)]
pub(crate) struct Numbered {
    /// The client's number for it.
    pub(crate) number: u64,
    /// The time until the deadline; 0 means the default.
    pub(crate) deadline_ms: u32,
    pub(crate) request: Result<Request, Failure>,
}

/// All streams of a server.
pub(crate) struct Streams {
    open: Arc<AtomicUsize>,
    observer: Arc<Observer>,
    closing: watch::Receiver<bool>,
}

impl Streams {
    /// Streams end when `closing` becomes true.
    pub(crate) fn new(observer: Arc<Observer>, closing: watch::Receiver<bool>) -> Self {
        Self { open: Arc::default(), observer, closing }
    }

    /// Starts a stream of requests, unless there are too many.
    pub(crate) fn begin<G: Gateway, T: Topic>(
        &self,
        gateway: &Arc<G>,
        request: tonic::Request<Streaming<T::RequestMessage>>,
    ) -> RpcResult<HandedOver<T::ResponseMessage>> {
        let call = Call::of(&request)?;
        let Begun { closing, observer, slot } = self.begun()?;
        Ok(call.stream(Conversation::<G, T> {
            gateway: Arc::clone(gateway),
            incoming: request.into_inner(),
            replies: Replies::new(&call.connection),
            room: call.connection.requests.charge(0),
            call: Arc::clone(&call),
            under_way: HashMap::new(),
            tickets: 0,
            log_reads: JoinSet::new(),
            answers: VecDeque::new(),
            ending: None,
            closing,
            sweep: None,
            observer,
            _slot: slot,
        }))
    }

    /// Starts a stream, unless there are too many.
    pub(crate) fn begun(&self) -> Result<Begun, Status> {
        let slot = StreamSlot::take(&self.open)?;
        let closing = Box::pin(until_shutdown(self.closing.clone()));
        Ok(Begun { closing, observer: Arc::clone(&self.observer), slot })
    }
}

/// The parts common to all streams.
pub(crate) struct Begun {
    /// Resolves when the server shuts down.
    pub(crate) closing: Closing,
    pub(crate) observer: Arc<Observer>,
    pub(crate) slot: StreamSlot,
}

pub(crate) type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The status of streams that end because the server shuts down.
pub(crate) fn stopping() -> Status {
    refusal::status(&Failure::Unavailable("the node is stopping".to_owned()))
}

/// Waits until the server shuts down.
pub(crate) async fn until_shutdown(mut closing: watch::Receiver<bool>) {
    // The sender is dropped only when the server has ended.
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

/// A slot for a stream.
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl StreamSlot {
    fn take(open: &Arc<AtomicUsize>) -> Result<Self, Status> {
        let before = open.fetch_add(1, Ordering::Relaxed);
        let slot = Self(Arc::clone(open));
        if before < STREAMS_MAX {
            return Ok(slot);
        }
        let failure = Failure::Overloaded(format!("stream limit reached ({STREAMS_MAX} on this node)"));
        Err(refusal::status(&failure))
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request without an outcome.
struct UnderWay {
    number: u64,
    /// When the server responds in the node's place.
    guard: Instant,
    changes: bool,
    read: Option<Box<ReadUnderWay>>,
}

/// A read of a log.
struct ReadUnderWay {
    read: LogRead,
    /// The node responds by then.
    deadline: Instant,
    /// Memory for its response. `None`: a separate task executes it.
    room: Option<Reservation>,
}

/// An answer that is not sent yet.
struct Ready<A> {
    answer: A,
    bytes: usize,
    _room: Option<Reservation>,
}

struct Conversation<G: Gateway, T: Topic> {
    gateway: Arc<G>,
    incoming: Streaming<T::RequestMessage>,
    call: Arc<Call>,
    replies: Arc<Replies>,
    /// Memory for all requests with answers not sent yet.
    room: Reservation,
    under_way: HashMap<u64, UnderWay>,
    tickets: u64,
    /// Log reads that wait for memory or for entries.
    log_reads: JoinSet<()>,
    answers: VecDeque<Ready<T::ItemResponse>>,
    /// No more requests are read; the stream ends with this once all are answered.
    ending: Option<Result<(), Status>>,
    closing: Closing,
    /// When to check for requests without an answer; `None` while none are in flight.
    sweep: Option<Pin<Box<Sleep>>>,
    observer: Arc<Observer>,
    _slot: StreamSlot,
}

impl<G: Gateway, T: Topic> Stream for Conversation<G, T> {
    type Item = Result<T::ResponseMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.read(context);
        this.collect(context);
        this.check_deadlines(context);
        if let Some(message) = this.message() {
            return Poll::Ready(Some(Ok(message)));
        }
        match &this.ending {
            Some(end) if this.under_way.is_empty() && this.answers.is_empty() => {
                let end = end.clone();
                this.ending = Some(Ok(()));
                Poll::Ready(end.err().map(Err))
            }
            _ => Poll::Pending,
        }
    }
}

impl<G: Gateway, T: Topic> Conversation<G, T> {
    /// Reads requests while there is room, and submits them.
    fn read(&mut self, context: &mut Context<'_>) {
        if self.ending.is_none() && self.closing.as_mut().poll(context).is_ready() {
            self.ending = Some(Err(stopping()));
        }
        while self.ending.is_none() && self.has_room() {
            match Pin::new(&mut self.incoming).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(message))) => {
                    self.call.message_taken();
                    self.hand_in(message);
                }
                Poll::Ready(Some(Err(status))) => self.ending = Some(Err(status)),
                Poll::Ready(None) => self.ending = Some(Ok(())),
            }
        }
    }

    fn has_room(&self) -> bool {
        let count = self.under_way.len() + self.answers.len();
        count < STREAM_REQUESTS_MAX && self.call.connection.requests.try_reserve(STREAMED_BYTES).is_some()
    }

    fn hand_in(&mut self, message: T::RequestMessage) {
        let requests = T::requests(message);
        self.room.grow(requests.len() * STREAMED_BYTES);
        let mut batch = Vec::with_capacity(requests.len());
        let now = Instant::now();
        for Numbered { number, deadline_ms, request } in requests {
            let admitted = request.and_then(|request| {
                node::request::validate_client(&request)?;
                self.call.connection.admit(&request, now)?;
                Ok(request)
            });
            match admitted {
                Err(failure) => self.answers.push_back(refused::<T>(number, &failure)),
                Ok(request) => {
                    let deadline = Deadline::of_streamed(deadline_ms);
                    self.tickets += 1;
                    let ticket = self.tickets;
                    let (guard, changes) = (now + deadline.guard, request.changes());
                    let (held, read) = match LogRead::of(&request) {
                        None => (Some((request, Held::of(&self.call.connection))), None),
                        Some(read) => {
                            let asked = read.try_ask(&self.call.connection);
                            let (held, room) = asked.map(|(request, room, held)| ((request, held), room)).unzip();
                            let read = ReadUnderWay { read, deadline: now + deadline.node, room };
                            (held, Some(Box::new(read)))
                        }
                    };
                    match held {
                        Some((request, held)) => {
                            batch.push(Ticketed { ticket, request, deadline: deadline.node, held });
                        }
                        None => read.iter().for_each(|read| self.carry_out(ticket, read)),
                    }
                    self.under_way.insert(ticket, UnderWay { number, guard, changes, read });
                }
            }
        }
        if !batch.is_empty() {
            self.gateway.submit_all(batch, &self.replies);
        }
    }

    /// Spawns a task that completes a read.
    fn carry_out(&mut self, ticket: u64, ReadUnderWay { read, deadline, .. }: &ReadUnderWay) {
        let (gateway, connection) = (Arc::clone(&self.gateway), Arc::clone(&self.call.connection));
        let (read, deadline, replies) = (read.clone(), *deadline, Arc::clone(&self.replies));
        self.log_reads.spawn(async move {
            let (outcome, _room) = read.carry_out(&*gateway, &connection, deadline).await;
            replies.give(ticket, outcome);
        });
    }

    /// Turns outcomes into answers.
    fn collect(&mut self, context: &Context<'_>) {
        while self.log_reads.try_join_next().is_some() {}
        loop {
            let replies = self.replies.take(context);
            if replies.is_empty() {
                return;
            }
            for Reply { ticket, outcome, bytes, room } in replies {
                // The server has already answered in the node's place.
                let Some(mut under_way) = self.under_way.remove(&ticket) else { continue };
                if let Some(read) = under_way.read.as_mut().filter(|read| read.room.is_some())
                    && read.read.needs_another_read(&outcome)
                {
                    read.room = None;
                    let read = under_way.read.as_deref().expect("it was checked above");
                    self.carry_out(ticket, read);
                    self.under_way.insert(ticket, under_way);
                    continue;
                }
                self.answers.push_back(match T::answer(under_way.number, outcome) {
                    Ok(answer) => Ready { answer, bytes, _room: room },
                    Err(failure) => refused::<T>(under_way.number, &failure),
                });
            }
        }
    }

    /// Responds in the node's place if it misses a deadline, which would be a bug. Also resumes reading when other streams
    /// have released memory.
    fn check_deadlines(&mut self, context: &mut Context<'_>) {
        if self.under_way.is_empty() && self.answers.is_empty() && self.has_room() {
            self.sweep = None;
            return;
        }
        while self.sweep.get_or_insert_with(|| Box::pin(sleep(STREAM_SWEEP))).as_mut().poll(context).is_ready() {
            self.sweep = None;
            let now = Instant::now();
            let answers = &mut self.answers;
            self.under_way.retain(|_, UnderWay { number, guard, changes, .. }| {
                let is_late = *guard <= now;
                if is_late {
                    answers.push_back(refused::<T>(*number, &no_answer(*changes)));
                }
                !is_late
            });
        }
    }

    /// The next message of answers, if any are ready.
    fn message(&mut self) -> Option<T::ResponseMessage> {
        let mut answers = Vec::with_capacity(self.answers.len());
        let mut bytes = 0;
        while let Some(next) = self.answers.front() {
            if bytes > 0 && bytes + next.bytes > STREAM_MESSAGE_BYTES {
                break;
            }
            bytes += next.bytes;
            // From here on the answer is accounted as part of the response.
            answers.extend(self.answers.pop_front().map(|ready| ready.answer));
        }
        if answers.is_empty() {
            return None;
        }
        self.room.shrink_to(self.room.bytes() - answers.len() * STREAMED_BYTES);
        self.observer.calls.streamed(answers.len());
        Some(T::response_message(answers))
    }
}

impl<G: Gateway, T: Topic> Drop for Conversation<G, T> {
    fn drop(&mut self) {
        self.replies.give_up();
    }
}

fn refused<T: Topic>(number: u64, failure: &Failure) -> Ready<T::ItemResponse> {
    let answer = T::refused(number, refusal::streamed(failure));
    Ready { bytes: answer.encoded_len(), answer, _room: None }
}
