//! Streams: one call with many requests, pipelined. What they ask and are answered is their [`Topic`]'s.
//!
//! A [`Conversation`] is what the server polls for messages to send, and it reads only while it is polled. So a client
//! that takes no answers is not read from either, and HTTP/2's windows have it wait. A message is read when there is
//! room for another, and all that is in it goes to the node at once, but for reads of logs, which have their
//! [`Pace`]. Whatever is answered by the time the server can send goes out in one message.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use api::columns::Refusal;
use prost::Message as _;
use tablets::request::{Failure, Outcome, Request};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::allowance::{Allowance, Common, Share};
use crate::deadline::{Deadline, no_answer};
use crate::frames::OfConnection;
use crate::limits::{
    ANSWER_IDLE_MAX, PORTION_BYTES, STREAM_MESSAGE_BYTES, STREAM_REQUESTS_MAX, STREAM_SWEEP, STREAMS_MAX,
};
use crate::meter::Arriving;
use crate::pace::Pace;
use crate::portions::{self, Portions};
use crate::reading::Waits;
use crate::replies::{Owned, Replies, size};
use crate::room::Room;
use crate::strangers::Strangers;
use crate::taking::Taking;
use crate::{Gateway, Observer, Ticketed, refusal};

/// What the requests of a stream are about: its messages, and what they mean.
pub(crate) trait Topic: 'static {
    /// A message with requests.
    type Asked: Send;
    /// What one request came to.
    type Answer: prost::Message + Unpin;
    /// A message with answers.
    type Told;

    /// The requests in a message, their limits as yet unchecked.
    fn requests(message: Self::Asked) -> Vec<Numbered>;

    /// What a request came to, good or not.
    fn answer(number: u64, outcome: Outcome) -> Result<Self::Answer, Failure>;

    /// The same of one that was refused.
    fn refused(number: u64, refusal: Refusal) -> Self::Answer;

    /// Answers that leave together.
    fn told(answers: Vec<Self::Answer>) -> Self::Told;
}

/// One request of a stream.
#[derive(Debug)]
pub(crate) struct Numbered {
    /// What the client calls it.
    pub(crate) number: u64,
    /// 0: it doesn't say.
    pub(crate) deadline_ms: u32,
    pub(crate) request: Result<Request, Failure>,
}

/// All streams of a door.
pub(crate) struct Streams {
    open: Arc<AtomicUsize>,
    /// Bytes of answers that wait for clients to take them.
    answer_bytes: Arc<AtomicUsize>,
    /// For what reads under way will bring.
    room: Arc<Room>,
    /// For reads that wait for something to come.
    waits: Waits,
    /// For what reads of logs read ahead.
    common: Common,
    /// For what subscriptions read whose client was not seen to take what comes.
    strangers: Strangers,
    portions: Portions,
    observer: Arc<Observer>,
    closing: watch::Receiver<bool>,
}

impl Streams {
    /// They end when `closing` says so.
    pub(crate) fn new(observer: Arc<Observer>, portions: Portions, closing: watch::Receiver<bool>) -> Self {
        let (open, answer_bytes, room, waits, common, strangers) = Default::default();
        Self { open, answer_bytes, room, waits, common, strangers, portions, observer, closing }
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(crate) fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Begins a stream, if there may be another.
    pub(crate) fn begin<G: Gateway, T: Topic>(
        &self,
        gateway: Arc<G>,
        mut call: tonic::Request<Streaming<T::Asked>>,
    ) -> Result<Conversation<G, T>, Status> {
        let allowance = Allowance::of(&call);
        let Begun { replies, leaving, closing, observer, place } = self.begun(allowance.taking())?;
        let arriving = call.extensions_mut().remove::<Arc<Arriving>>();
        arriving.iter().for_each(|arriving| arriving.is_a_stream());
        Ok(Conversation {
            gateway,
            incoming: call.into_inner(),
            arriving,
            replies,
            under_way: HashMap::new(),
            tickets: 0,
            pace: Pace::new(self.waits.clone(), allowance, self.common.clone()),
            answers: VecDeque::new(),
            leaving,
            ending: None,
            closing,
            sweep: None,
            observer,
            _place: place,
        })
    }

    /// What every stream has, if there may be another.
    pub(crate) fn begun(&self, taking: &Taking) -> Result<Begun, Status> {
        let place = Place::take(&self.open)?;
        let replies = Replies::new(Arc::clone(&self.answer_bytes), Arc::clone(&self.room), taking.clone());
        let replies = Owned::new(replies);
        let closing = Box::pin(told(self.closing.clone()));
        let leaving = portions::Room::new(self.portions.clone(), taking.clone());
        Ok(Begun { replies, leaving, closing, observer: Arc::clone(&self.observer), place })
    }
}

/// What every stream has.
pub(crate) struct Begun {
    pub(crate) replies: Owned,
    /// For large messages that begin to leave.
    pub(crate) leaving: portions::Room,
    /// Ends when the door is to close.
    pub(crate) closing: Closing,
    pub(crate) observer: Arc<Observer>,
    pub(crate) place: Place,
}

pub(crate) type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why streams end when the door closes.
pub(crate) fn stopping() -> Status {
    refusal::status(&Failure::Unavailable("the node is stopping".to_owned()))
}

/// Waits until the door is to close.
pub(crate) async fn told(mut closing: watch::Receiver<bool>) {
    // Whoever would tell is gone only when all is over.
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

/// One of the places for streams.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Result<Self, Status> {
        let before = open.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(open));
        if before < STREAMS_MAX {
            return Ok(place);
        }
        let failure = Failure::Overloaded(format!("{STREAMS_MAX} streams are open on this node"));
        Err(refusal::status(&failure))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that the node has not answered yet.
struct UnderWay {
    number: u64,
    /// From then on the door answers for the node.
    guard: Instant,
    changes: bool,
}

/// An answer that is in no message yet.
struct Ready<A> {
    answer: A,
    /// Bytes of what it shows.
    bytes: usize,
    /// Of what the connection may read ahead, until it has left.
    _share: Option<Share>,
}

/// Bytes that a stream is charged for each request, until its answer is in a message, beside what that shows: hundreds
/// of thousands with next to nothing in them may wait. It is in a table, and then in a row, which grow by doubling.
const fn place_bytes<A>() -> usize {
    2 * (size_of::<(u64, UnderWay)>() + size_of::<Ready<A>>())
}

/// One stream.
pub(crate) struct Conversation<G, T: Topic> {
    gateway: Arc<G>,
    incoming: Streaming<T::Asked>,
    arriving: Option<Arc<Arriving>>,
    replies: Owned,
    /// By ticket.
    under_way: HashMap<u64, UnderWay>,
    tickets: u64,
    /// The reads of logs among them.
    pace: Pace,
    answers: VecDeque<Ready<T::Answer>>,
    leaving: portions::Room,
    /// Nothing more is read: once all is answered the stream ends, and how.
    ending: Option<Result<(), Status>>,
    closing: Closing,
    /// When to look for requests that were left without an answer; none while nothing is under way.
    sweep: Option<Pin<Box<Sleep>>>,
    observer: Arc<Observer>,
    _place: Place,
}

impl<G: Gateway, T: Topic> Stream for Conversation<G, T> {
    type Item = Result<T::Told, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.read(context);
        this.collect(context);
        this.look_for_silence(context);
        this.go_on();
        if let Some(message) = this.message(context) {
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
    /// Reads while there is room, and hands in what it reads.
    fn read(&mut self, context: &mut Context<'_>) {
        if self.ending.is_none() && self.closing.as_mut().poll(context).is_ready() {
            self.ending = Some(Err(stopping()));
        }
        while self.ending.is_none() && self.has_room() {
            match Pin::new(&mut self.incoming).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(message))) => {
                    self.arriving.iter().for_each(|arriving| arriving.message_taken());
                    self.hand_in(message);
                }
                Poll::Ready(Some(Err(status))) => self.ending = Some(Err(status)),
                Poll::Ready(None) => self.ending = Some(Ok(())),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.under_way.len() + self.answers.len() < STREAM_REQUESTS_MAX && !self.replies.are_full()
    }

    fn hand_in(&mut self, message: T::Asked) {
        let requests = T::requests(message);
        self.replies.charge(requests.len() * place_bytes::<T::Answer>());
        let mut batch = Vec::with_capacity(requests.len());
        let now = Instant::now();
        for Numbered { number, deadline_ms, request } in requests {
            match request.and_then(|request| tablets::validate(&request).map(|()| request)) {
                Err(failure) => self.answers.push_back(refused::<T>(number, &failure, &self.replies)),
                Ok(request) => {
                    let deadline = Deadline::of_streamed(deadline_ms);
                    self.tickets += 1;
                    let under_way = UnderWay { number, guard: now + deadline.guard, changes: request.changes() };
                    self.under_way.insert(self.tickets, under_way);
                    let asked = Ticketed { ticket: self.tickets, request, deadline: deadline.node, held: None };
                    batch.extend(self.pace.take(asked, now));
                }
            }
        }
        if !batch.is_empty() {
            self.gateway.submit_all(batch, self.replies.shared());
        }
    }

    /// Hands in reads of logs for which there is room now: whose answers would not be refused.
    fn go_on(&mut self) {
        if self.replies.of_all_are_full() || self.pace.is_short() {
            self.leaving.clear_all(ANSWER_IDLE_MAX);
        }
        if self.replies.are_full() {
            return;
        }
        let now = Instant::now();
        let mut batch = Vec::new();
        while let Some(next) = self.pace.next(now) {
            match next {
                Ok(asked) => batch.push(asked),
                Err((ticket, failure)) => {
                    let read = self.under_way.remove(&ticket);
                    self.answers.extend(read.map(|of| refused::<T>(of.number, &failure, &self.replies)));
                }
            }
        }
        if !batch.is_empty() {
            self.gateway.submit_all(batch, self.replies.shared());
        }
    }

    /// Makes answers of the outcomes that have come.
    fn collect(&mut self, context: &Context<'_>) {
        loop {
            let outcomes = self.replies.take(context);
            if outcomes.is_empty() {
                return;
            }
            for (ticket, outcome) in outcomes {
                let bytes = size(&outcome);
                let Some((outcome, share)) = self.pace.heard(ticket, outcome) else {
                    self.replies.release(bytes);
                    continue;
                };
                match self.under_way.remove(&ticket) {
                    Some(UnderWay { number, .. }) => {
                        self.answers.push_back(ready::<T>(number, outcome, bytes, share, &self.replies));
                    }
                    // The door has answered for the node.
                    None => self.replies.release(bytes),
                }
            }
        }
    }

    /// The node always answers; this is for the day it doesn't. It also finds the room that other streams have made.
    fn look_for_silence(&mut self, context: &mut Context<'_>) {
        if self.under_way.is_empty() && self.answers.is_empty() && self.has_room() {
            self.sweep = None;
            return;
        }
        while self.sweep.get_or_insert_with(|| Box::pin(sleep(STREAM_SWEEP))).as_mut().poll(context).is_ready() {
            self.sweep = None;
            let now = Instant::now();
            let (answers, replies, pace) = (&mut self.answers, &*self.replies, &mut self.pace);
            let before = self.under_way.len();
            self.under_way.retain(|ticket, UnderWay { number, guard, changes }| {
                let is_late = *guard <= now;
                if is_late {
                    let failure = pace.forget(*ticket).unwrap_or_else(|| no_answer(*changes));
                    answers.push_back(refused::<T>(*number, &failure, replies));
                }
                !is_late
            });
            if self.under_way.len() < before {
                self.pace.tidy();
            }
        }
    }

    /// The next message of answers, if there are some and they may leave.
    fn message(&mut self, context: &Context<'_>) -> Option<T::Told> {
        let is_room = !self.answers.is_empty() && self.leaving.is_there(context);
        let most = if is_room { STREAM_MESSAGE_BYTES } else { PORTION_BYTES };
        let mut answers = Vec::with_capacity(self.answers.len());
        let mut bytes = 0;
        while let Some(next) = self.answers.front() {
            if bytes + next.bytes > most && (bytes > 0 || !is_room) {
                break;
            }
            bytes += next.bytes;
            answers.extend(self.answers.pop_front().map(|ready| ready.answer));
        }
        if answers.is_empty() {
            return None;
        }
        self.replies.release(bytes + answers.len() * place_bytes::<T::Answer>());
        self.observer.calls.streamed(answers.len());
        Some(T::told(answers))
    }
}

impl<G, T: Topic> OfConnection for Conversation<G, T> {
    fn taking(&self) -> &Taking {
        self.replies.taking()
    }
}

fn ready<T: Topic>(
    number: u64,
    outcome: Outcome,
    bytes: usize,
    share: Option<Share>,
    replies: &Replies,
) -> Ready<T::Answer> {
    match T::answer(number, outcome) {
        Ok(answer) => Ready { answer, bytes, _share: share },
        Err(failure) => {
            replies.release(bytes);
            refused::<T>(number, &failure, replies)
        }
    }
}

fn refused<T: Topic>(number: u64, failure: &Failure, replies: &Replies) -> Ready<T::Answer> {
    let answer = T::refused(number, refusal::streamed(failure));
    let bytes = answer.encoded_len();
    replies.charge(bytes);
    Ready { answer, bytes, _share: None }
}
