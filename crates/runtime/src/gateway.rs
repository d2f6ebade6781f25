//! The gateway between the asynchronous servers and the machine's thread: requests go in through the inbox, responses
//! come back in batches. A turn of the machine's loop wakes the servers once, regardless of the number of responses.
//!
//! The number of unanswered requests is bounded here, and their bytes by the memory for clients (`Held::reserve`):
//! excess requests are rejected immediately, with a definite outcome, instead of queueing until their deadline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::Monotonic;
use base::limits::{REQUESTS_IN_FLIGHT_MAX, WAITS_IN_FLIGHT_MAX};
use endpoints::node::{Completions, LocalMachine};
use node::request::{Outcome, Request};
use server::{Held, Replies, Ticketed};
use sharedlog::request::LogRequest;
use state_machine::Failure;
use tokio::sync::{Notify, oneshot};

use super::clock;
use super::inbox::{Inbox, Input};
use super::views::Published;

/// A request for the machine.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) request: Request,
    pub(crate) deadline: Monotonic,
    /// When it must reach the machine ([`Request::start_within`]).
    pub(crate) start_by: Monotonic,
    pub(crate) ticket: Ticket,
}

impl Incoming {
    /// A request that its client made at `asked`.
    fn new(request: Request, (asked, deadline): (Monotonic, Monotonic), ticket: Ticket) -> Self {
        let start_by = request.start_within().map_or(Monotonic::NEVER, |within| asked + within);
        Self { request, deadline, start_by, ticket }
    }

    /// Refuses a request that the machine did not receive.
    pub(crate) fn refuse(self, why: &str) {
        self.ticket.answer(Err(Failure::Unavailable(why.to_owned())));
    }
}

/// The destination of a response, and the resources that are released with it: the slot and the memory of the request.
#[derive(Debug)]
pub(crate) struct Ticket {
    reply_to: ReplyTo,
    /// Whether the machine was notified that the request is abandoned.
    is_abandoned: bool,
    _slot: Option<Slot>,
    _held: Held,
}

/// How a response reaches the caller.
#[derive(Debug)]
enum ReplyTo {
    /// To a unary call.
    Call(oneshot::Sender<Outcome>),
    /// To a call on another runtime of this node, without the task of the servers' runtime.
    Direct(oneshot::Sender<Outcome>),
    /// To a stream, with the stream's ticket of the request.
    Stream(Arc<Replies>, u64),
    /// To another thread of this node, with its number of the request.
    Thread(Arc<Completions>, u64),
}

impl Ticket {
    fn new(reply_to: ReplyTo, slot: Option<Slot>, held: Held) -> Self {
        Self { reply_to, is_abandoned: false, _slot: slot, _held: held }
    }

    /// Whether the caller has abandoned the request. Returns true only once.
    pub(crate) fn take_abandoned(&mut self) -> bool {
        let is_gone = match &self.reply_to {
            ReplyTo::Call(call) | ReplyTo::Direct(call) => call.is_closed(),
            ReplyTo::Stream(replies, _) => replies.are_given_up(),
            ReplyTo::Thread(..) => false,
        };
        is_gone && !std::mem::replace(&mut self.is_abandoned, true)
    }

    fn answer(self, outcome: Outcome) {
        match self.reply_to {
            // The caller may have disconnected.
            ReplyTo::Call(call) | ReplyTo::Direct(call) => drop(call.send(outcome)),
            ReplyTo::Stream(replies, ticket) => replies.give(ticket, outcome),
            ReplyTo::Thread(completions, number) => completions.post(number, outcome),
        }
    }
}

/// Numbers of requests in flight.
#[derive(Debug, Default)]
struct InFlight {
    requests: AtomicUsize,
    /// Log reads that wait for an entry.
    waits: AtomicUsize,
}

impl InFlight {
    fn of(&self, waits: bool) -> &AtomicUsize {
        if waits { &self.waits } else { &self.requests }
    }
}

#[derive(Debug)]
struct Slot {
    in_flight: Arc<InFlight>,
    waits: bool,
}

impl Slot {
    fn take(in_flight: &Arc<InFlight>, waits: bool) -> Result<Self, Failure> {
        let requests = in_flight.of(waits).fetch_add(1, Ordering::Relaxed) + 1;
        // Created first, so that a refusal releases the slot.
        let slot = Self { in_flight: Arc::clone(in_flight), waits };
        let (most, what) = match waits {
            false => (REQUESTS_IN_FLIGHT_MAX, "too many requests in flight on this node"),
            true => (WAITS_IN_FLIGHT_MAX, "too many waiting log reads on this node"),
        };
        if requests > most {
            return Err(Failure::Overloaded(format!("{what} (limit {most})")));
        }
        Ok(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.of(self.waits).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Responses to be delivered.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    queue: Mutex<Vec<(Ticket, Outcome)>>,
    gathered: Notify,
}

impl Responses {
    /// Queues the responses of a turn; `batch` is empty afterwards.
    pub(crate) fn post(&self, batch: &mut Vec<(Ticket, Outcome)>) {
        let bypasses =
            |(ticket, _): &mut (Ticket, Outcome)| matches!(ticket.reply_to, ReplyTo::Thread(..) | ReplyTo::Direct(_));
        batch.extract_if(.., bypasses).for_each(|(ticket, outcome)| ticket.answer(outcome));
        if !batch.is_empty() {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner).append(batch);
            self.gathered.notify_one();
        }
    }

    /// Delivers responses forever: a task of the servers' runtime.
    pub(crate) async fn deliver(self: Arc<Self>) {
        loop {
            self.gathered.notified().await;
            let batch = std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner));
            for (ticket, outcome) in batch {
                ticket.answer(outcome);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct MachineGateway {
    inbox: Arc<Inbox>,
    in_flight: Arc<InFlight>,
    views: Arc<Published>,
    /// Whether its callers run on the servers' runtime.
    is_of_servers: bool,
}

impl MachineGateway {
    pub(crate) fn new(inbox: Arc<Inbox>, views: Arc<Published>) -> Self {
        Self { inbox, in_flight: Arc::default(), views, is_of_servers: true }
    }

    /// The gateway for another runtime of this node, which responses then reach directly.
    #[cfg(feature = "sql")]
    pub(crate) fn for_other_runtime(&self) -> Self {
        Self { is_of_servers: false, ..self.clone() }
    }

    /// Submits a request. The response comes through the receiver, or never if the process halts first.
    pub(crate) fn enqueue(
        &self,
        request: Request,
        deadline: Monotonic,
        mut held: Held,
    ) -> Result<oneshot::Receiver<Outcome>, Failure> {
        let slot = Slot::take(&self.in_flight, waits(&request))?;
        held.reserve(size(&request))?;
        let (answer, receiver) = oneshot::channel();
        let reply_to = if self.is_of_servers { ReplyTo::Call(answer) } else { ReplyTo::Direct(answer) };
        let ticket = Ticket::new(reply_to, Some(slot), held);
        // No server's request has to start soon.
        self.inbox.post(Input::Request(Incoming::new(request, (deadline, deadline), ticket)));
        Ok(receiver)
    }

    /// Submits the requests of a stream message as one input, except those that can be answered immediately. Deadlines
    /// are relative to `now`.
    pub(crate) fn enqueue_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>, now: Monotonic) {
        let mut incoming = Vec::with_capacity(batch.len());
        for Ticketed { ticket, request, deadline, mut held } in batch {
            if let Some(outcome) = self.read(&request) {
                replies.give(ticket, outcome);
                continue;
            }
            let slot = Slot::take(&self.in_flight, waits(&request));
            match slot.and_then(|slot| held.reserve(size(&request)).map(|()| slot)) {
                Err(failure) => replies.give(ticket, Err(failure)),
                Ok(slot) => {
                    let ticket = Ticket::new(ReplyTo::Stream(Arc::clone(replies), ticket), Some(slot), held);
                    incoming.push(Incoming::new(request, (now, now + clock::duration(deadline)), ticket));
                }
            }
        }
        if !incoming.is_empty() {
            self.inbox.post(Input::Requests(incoming));
        }
    }
}

impl LocalMachine for MachineGateway {
    fn read(&self, request: &Request) -> Option<Outcome> {
        self.views.read(request)
    }

    fn should_read_here(&self, request: &Request) -> bool {
        self.views.should_read_here(request)
    }

    fn submit(&self, request: Request, times: (Monotonic, Monotonic), completions: &Arc<Completions>, number: u64) {
        let ticket = Ticket::new(ReplyTo::Thread(Arc::clone(completions), number), None, Held::default());
        self.inbox.post(Input::Request(Incoming::new(request, times, ticket)));
    }
}

/// Whether a request is a log read that waits for an entry.
fn waits(request: &Request) -> bool {
    matches!(request, Request::Log(LogRequest::Read { wait, .. }) if *wait > base::Duration::ZERO)
}

/// Approximate memory of a request in bytes.
fn size(request: &Request) -> usize {
    const FIXED: usize = 256;
    FIXED + request.held_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_overload_and_releases_slots() {
        let in_flight = Arc::new(InFlight::default());
        for (waits, most) in [(false, REQUESTS_IN_FLIGHT_MAX), (true, WAITS_IN_FLIGHT_MAX)] {
            let all: Vec<_> = (0..most).map(|_| Slot::take(&in_flight, waits).unwrap()).collect();
            assert!(matches!(Slot::take(&in_flight, waits), Err(Failure::Overloaded(_))));
            assert!(Slot::take(&in_flight, !waits).is_ok(), "waiting reads have a separate limit");
            drop(all);
            assert_eq!(in_flight.of(waits).load(Ordering::Relaxed), 0);
        }
    }
}
