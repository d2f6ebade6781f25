//! A subscription: a log as it grows, told to one client.
//!
//! As a [`Conversation`](crate::stream::Conversation) it works only while it is polled, which the server does while the
//! client takes what comes. What it has read ahead meanwhile is bounded ([`Ahead`], [`Replies`]).

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::log::SubscribeResponse;
use sharedlog::Position;
use tablets::request::{Failure, LogRequest, LogResponse, Outcome, Request, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::Status;

use super::ahead::{Ahead, Wanted, Wish};
use super::translate::{entry, entry_bytes};
use crate::columns::unexpected;
use crate::deadline::no_answer;
use crate::frames::OfConnection;
use crate::limits::{
    PORTION_BYTES, PROBE_TIME, READS_BYTES_MAX, STREAM_MESSAGE_BYTES, STREAM_SWEEP, SUBSCRIPTION_PAUSE,
    SUBSCRIPTION_PAUSE_MIN, SUBSCRIPTION_READ_TIME, SUBSCRIPTION_SILENCE, SUBSCRIPTION_WAIT, WAITING_READ_BYTES,
    WAITING_READS_BYTES_MAX,
};
use crate::portions::Room;
use crate::replies::{Owned, Replies, size};
use crate::strangers::Strangers;
use crate::stream::{Begun, Closing, Place, Streams, stopping};
use crate::taking::{Standing, Taking};
use crate::{Gateway, Observer, Ticketed, refusal};

/// Whether the client is seen to take something, where much waits that nobody takes: an empty message has left before
/// anything more is read for it. The server asks for what comes after a message only when HTTP/2 has taken that, but it
/// gathers small messages until there is none for the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Wanted,
    /// It is with the server.
    Sent,
    /// There was none after it.
    Gathered,
    /// The server has asked again, at that time. Soon it says nothing any more: others have used up what the connection
    /// takes.
    Taken(Instant),
}

/// One subscription.
pub(crate) struct Subscription<G> {
    gateway: Arc<G>,
    log: String,
    replies: Owned,
    /// For large messages that begin to leave.
    leaving: Room,
    strangers: Strangers,
    /// Of those, while its client wasn't seen to take anything when it read last.
    of_strangers: Option<OwnedSemaphorePermit>,
    ahead: Ahead,
    /// When each read was asked, by ticket.
    under_way: HashMap<u64, Instant>,
    /// A read has waited in vain since the client was told anything.
    is_idle: bool,
    told_at: Instant,
    probe: Probe,
    /// The server has asked since it was told that there is nothing for the moment: it holds no message, and asks when
    /// it is woken.
    has_asked: bool,
    /// Nothing more is read, and why.
    ending: Option<Status>,
    has_ended: bool,
    /// Nothing is asked before this.
    pause: Option<Pin<Box<Sleep>>>,
    /// When to look for reads that were left without an answer.
    sweep: Option<Pin<Box<Sleep>>>,
    closing: Closing,
    observer: Arc<Observer>,
    _place: Place,
}

impl<G: Gateway> Subscription<G> {
    /// A subscription from a position on, if there may be another.
    pub(crate) fn begin(
        gateway: Arc<G>,
        streams: &Streams,
        taking: &Taking,
        log: String,
        from: Position,
    ) -> Result<Self, Status> {
        let first = request(&log, Wanted::Read { from, count: 1, bytes: 0 });
        tablets::validate(&first).map_err(|failure| refusal::status(&failure))?;
        let Begun { replies, leaving, closing, observer, place } = streams.begun(taking)?;
        Ok(Self {
            gateway,
            log,
            replies,
            leaving,
            strangers: streams.strangers().clone(),
            of_strangers: None,
            ahead: Ahead::new(from),
            under_way: HashMap::new(),
            is_idle: false,
            told_at: Instant::now(),
            probe: Probe::Wanted,
            has_asked: false,
            ending: None,
            has_ended: false,
            pause: None,
            sweep: None,
            closing,
            observer,
            _place: place,
        })
    }

    /// Takes what the node has answered.
    fn collect(&mut self, context: &Context<'_>) {
        loop {
            let outcomes = self.replies.take(context);
            if outcomes.is_empty() {
                return;
            }
            for (ticket, outcome) in outcomes {
                let bytes = size(&outcome);
                match self.under_way.remove(&ticket) {
                    Some(asked_at) => self.answered(ticket, outcome, asked_at),
                    // The door has answered for the node.
                    None => self.replies.release(bytes),
                }
            }
        }
    }

    fn answered(&mut self, ticket: u64, outcome: Outcome, asked_at: Instant) {
        match outcome {
            Ok(Response::Log(LogResponse::Entries(entries))) => {
                if entries.is_empty() {
                    self.is_idle = true;
                    if asked_at.elapsed() < SUBSCRIPTION_WAIT / 2 {
                        self.pause(SUBSCRIPTION_PAUSE_MIN);
                    }
                }
                self.ahead.told(ticket, entries);
            }
            Ok(Response::Log(LogResponse::Larger)) => self.ahead.told_larger(ticket),
            Ok(Response::Log(LogResponse::Tail(tail))) => self.ahead.told_tail(ticket, tail),
            Ok(other) => self.ending = Some(unexpected(&other)),
            Err(Failure::Overloaded(_)) => {
                self.ahead.failed(ticket);
                self.ahead.retreat();
                self.pause(SUBSCRIPTION_PAUSE);
            }
            Err(failure) => self.ending = Some(refusal::status(&failure)),
        }
    }

    fn pause(&mut self, pause: Duration) {
        self.pause = Some(Box::pin(sleep(pause)));
    }

    /// Hands in what is to be read next, as far as there is room for what it brings; says whether more of that is
    /// wanted. With a message on its way to the client, who may not take it, there is no waiting for room: others would
    /// be held up by that.
    fn ask(&mut self, context: &mut Context<'_>, may_wait: bool) -> bool {
        let wants_room = self.may_ask(context) && self.ask_for_all(context, may_wait);
        if !wants_room || !may_wait {
            self.replies.leave_queue();
        }
        wants_room
    }

    fn may_ask(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return false;
            }
            self.pause = None;
        }
        if self.ending.is_some() {
            return false;
        }
        if self.replies.are_full() {
            // If it is full of what is not next, that goes.
            if self.ahead.front().is_none() {
                self.ahead.retreat();
            }
            if self.replies.of_all_are_full() {
                self.leaving.clear_all(Duration::ZERO);
            }
            return false;
        }
        let is_crowded = self.replies.are_crowded();
        if is_crowded && !matches!(self.probe, Probe::Taken(_)) {
            return false;
        }
        let is_held_back = self.replies.taking().has_much() && (is_crowded || self.leaving.is_crowded());
        if is_held_back {
            self.leaving.clear_own();
        }
        !is_held_back
    }

    fn ask_for_all(&mut self, context: &Context<'_>, may_wait: bool) -> bool {
        // What is read ahead for a client that takes nothing would wait behind what HTTP/2 has, and never begin to
        // leave.
        let is_unseen = self.replies.taking().standing() == Standing::Unseen;
        if is_unseen && !(self.has_asked && self.under_way.is_empty() && self.ahead.front().is_none()) {
            return false;
        }
        self.of_strangers = None;
        let (mut batch, mut wants_room) = (Vec::new(), false);
        loop {
            let mut taken = 0;
            let asked = self.ahead.ask(|wish| {
                let of_strangers = if is_unseen && !wish.waits { Some(self.strangers.take(wish.bytes)?) } else { None };
                let given = room(&self.replies, wish, context, may_wait);
                wants_room = given.is_none();
                let Given { bytes, taken: of_room } = given?;
                (self.of_strangers, taken) = (of_strangers, of_room);
                Some(bytes)
            });
            let Some((ticket, wanted)) = asked else { break };
            self.replies.keep(ticket, taken);
            self.under_way.insert(ticket, Instant::now());
            let is_last = is_unseen && wanted != Wanted::Tail;
            let deadline = SUBSCRIPTION_WAIT + SUBSCRIPTION_READ_TIME;
            batch.push(Ticketed { ticket, request: request(&self.log, wanted), deadline, held: None });
            if is_last {
                break;
            }
        }
        if !batch.is_empty() {
            self.probe = Probe::Wanted;
            self.gateway.submit_all(batch, self.replies.shared());
        }
        wants_room
    }

    /// The node always answers; this is for the day it doesn't. It also finds the room that other streams have made.
    fn look_for_silence(&mut self, context: &mut Context<'_>) {
        while self.sweep.get_or_insert_with(|| Box::pin(sleep(STREAM_SWEEP))).as_mut().poll(context).is_ready() {
            self.sweep = None;
            let guard = SUBSCRIPTION_WAIT + SUBSCRIPTION_READ_TIME + STREAM_SWEEP;
            if self.ending.is_none() && self.under_way.values().any(|asked_at| asked_at.elapsed() > guard) {
                self.ending = Some(refusal::status(&no_answer(false)));
            }
        }
    }

    /// An empty message, if it is to be seen whether the client takes any.
    fn probe(&mut self) -> Option<SubscribeResponse> {
        let is_old = |taken_at: Instant| taken_at.elapsed() > PROBE_TIME;
        let is_wanted = match self.probe {
            Probe::Wanted => true,
            Probe::Taken(at) => is_old(at),
            Probe::Sent | Probe::Gathered => false,
        };
        if is_wanted && self.replies.are_crowded() && self.under_way.is_empty() && self.ending.is_none() {
            self.probe = Probe::Sent;
            return Some(SubscribeResponse { entries: Vec::new(), next: self.ahead.next().0 });
        }
        self.probe = match self.probe {
            Probe::Sent => Probe::Gathered,
            Probe::Gathered => Probe::Taken(Instant::now()),
            probe => probe,
        };
        None
    }

    /// The next message: what is there, or that nothing was for a while.
    fn message(&mut self, context: &Context<'_>) -> Option<SubscribeResponse> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let is_room = self.ahead.front().is_some() && self.leaving.is_there(context);
        let most = if is_room { STREAM_MESSAGE_BYTES } else { PORTION_BYTES };
        while let Some(next) = self.ahead.front() {
            let more = entry_bytes(next);
            if bytes + more > most && (bytes > 0 || !is_room) {
                break;
            }
            bytes += more;
            entries.extend(self.ahead.take().map(entry));
        }
        self.replies.release(bytes + self.ahead.take_dropped());
        if self.under_way.is_empty() && self.ahead.front().is_none() {
            self.of_strangers = None;
        }
        if entries.is_empty() && !(self.is_idle && self.told_at.elapsed() >= SUBSCRIPTION_SILENCE) {
            return None;
        }
        (self.is_idle, self.told_at) = (false, Instant::now());
        self.observer.calls.subscribed(entries.len());
        Some(SubscribeResponse { entries, next: self.ahead.next().0 })
    }
}

/// What a read may bring.
struct Given {
    bytes: usize,
    /// Of the room of all streams.
    taken: usize,
}

/// Takes room for a read, if there is some.
fn room(replies: &Replies, wish: Wish, context: &Context<'_>, may_wait: bool) -> Option<Given> {
    let Wish { bytes, waits } = wish;
    let is_taken = if waits {
        replies.take_room_at_once(bytes, WAITING_READS_BYTES_MAX)
    } else if may_wait {
        replies.take_room(bytes, context)
    } else {
        replies.take_room_at_once(bytes, READS_BYTES_MAX)
    };
    match is_taken {
        true => Some(Given { bytes, taken: bytes }),
        // What waits may do so for long, and brings so little at most that nobody counts it.
        false if waits => Some(Given { bytes: bytes.min(WAITING_READ_BYTES), taken: 0 }),
        false => None,
    }
}

/// What the node is asked for.
fn request(log: &str, wanted: Wanted) -> Request {
    let log = log.to_owned();
    let wait = base::Duration::from_millis(SUBSCRIPTION_WAIT.as_millis() as u64);
    Request::Log(match wanted {
        Wanted::Read { from, count, bytes } => LogRequest::Read { log, from, count, wait, bytes },
        Wanted::Tail => LogRequest::Tail { log },
    })
}

impl<G> OfConnection for Subscription<G> {
    fn taking(&self) -> &Taking {
        self.replies.taking()
    }
}

impl<G> Drop for Subscription<G> {
    fn drop(&mut self) {
        // What is under way may keep the replies for a while.
        self.replies.leave_queue();
    }
}

impl<G: Gateway> Stream for Subscription<G> {
    type Item = Result<SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        if this.ending.is_none() && this.closing.as_mut().poll(context).is_ready() {
            this.ending = Some(stopping());
        }
        this.collect(context);
        let message = this.message(context).or_else(|| this.probe());
        let may_wait = message.is_none() && this.has_asked;
        this.has_asked = message.is_none();
        let wants_room = this.ask(context, may_wait);
        if message.is_none() && wants_room && !may_wait {
            // It may the next time, which comes once the last message has left.
            context.waker().wake_by_ref();
        }
        if let Some(message) = message {
            return Poll::Ready(Some(Ok(message)));
        }
        this.look_for_silence(context);
        if let Some(status) = this.ending.take() {
            this.has_ended = true;
            this.replies.leave_queue();
            return Poll::Ready(Some(Err(status)));
        }
        Poll::Pending
    }
}
