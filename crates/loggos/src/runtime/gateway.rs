//! The gateway between the asynchronous servers and the machine's thread: requests go in through the inbox, responses
//! come back in batches. A turn of the machine's loop wakes the servers once, regardless of the number of responses.
//!
//! The number of unanswered requests is bounded here, and their bytes by the memory for clients (`Held::reserve`):
//! excess requests are refused immediately, with a definite outcome, instead of queueing until their deadline.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::Monotonic;
use base::limits::{REQUESTS_IN_FLIGHT_MAX, WAITS_IN_FLIGHT_MAX};
use machine::Failure;
use mio::Waker;
use node::request::{Outcome, Request};
use server::{Held, Replies, Ticketed};
use sharedlog::request::LogRequest;
use tokio::sync::{Notify, oneshot};

use super::clock;
use super::inbox::{Inbox, Input};
use super::views::Published;

/// A request for the machine.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) request: Request,
    pub(crate) deadline: Monotonic,
    pub(crate) ticket: Ticket,
}

/// The destination of a response, and the resources to release with it: the request's slot and its memory.
#[derive(Debug)]
pub(crate) struct Ticket {
    way: Way,
    /// Whether the machine was notified that the request is abandoned.
    is_told: bool,
    _share: Option<Share>,
    _held: Held,
}

/// How a response reaches the caller.
#[derive(Debug)]
enum Way {
    /// To a unary call.
    Call(oneshot::Sender<Outcome>),
    /// To a stream, with the request's ticket there.
    Stream(Arc<Replies>, u64),
    /// To another thread of this node, by the number that it gave the request.
    Thread(Arc<Completions>, u64),
}

impl Ticket {
    fn new(way: Way, share: Option<Share>, held: Held) -> Self {
        Self { way, is_told: false, _share: share, _held: held }
    }

    /// Whether the caller has abandoned the request. Returns true once.
    pub(crate) fn is_given_up(&mut self) -> bool {
        let is_gone = match &self.way {
            Way::Call(call) => call.is_closed(),
            Way::Stream(replies, _) => replies.are_given_up(),
            Way::Thread(..) => false,
        };
        is_gone && !std::mem::replace(&mut self.is_told, true)
    }

    fn answer(self, outcome: Outcome) {
        match self.way {
            // The caller may be gone.
            Way::Call(call) => drop(call.send(outcome)),
            Way::Stream(replies, ticket) => replies.give(ticket, outcome),
            Way::Thread(completions, number) => completions.post(number, outcome),
        }
    }
}

/// Answers to the requests of another thread of this node. They do not pass through the server's runtime.
#[derive(Debug)]
pub(crate) struct Completions {
    queue: Mutex<Vec<(u64, Outcome)>>,
    waker: Waker,
}

impl Completions {
    /// A queue; `waker` wakes the thread when it becomes non-empty.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { queue: Mutex::default(), waker }
    }

    /// Adds the answer to a request, from any thread.
    pub(crate) fn post(&self, number: u64, outcome: Outcome) {
        let was_empty = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push((number, outcome));
            queue.len() == 1
        };
        if was_empty && let Err(error) = self.waker.wake() {
            super::die(&format!("can't wake a thread for its answers: {error}"));
        }
    }

    /// Takes all answers, each with the number of its request.
    pub(crate) fn take(&self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is under way.
#[derive(Debug, Default)]
struct UnderWay {
    requests: AtomicUsize,
    /// Log reads that wait for an entry.
    waits: AtomicUsize,
}

impl UnderWay {
    fn of(&self, waits: bool) -> &AtomicUsize {
        if waits { &self.waits } else { &self.requests }
    }
}

#[derive(Debug)]
struct Share {
    under_way: Arc<UnderWay>,
    waits: bool,
}

impl Share {
    fn take(under_way: &Arc<UnderWay>, waits: bool) -> Result<Self, Failure> {
        let requests = under_way.of(waits).fetch_add(1, Ordering::Relaxed) + 1;
        // Created first, so that a refusal releases the slot.
        let share = Self { under_way: Arc::clone(under_way), waits };
        let (most, what) = match waits {
            false => (REQUESTS_IN_FLIGHT_MAX, "requests are under way on this node"),
            true => (WAITS_IN_FLIGHT_MAX, "reads of logs wait at this node for something to come"),
        };
        if requests > most {
            return Err(Failure::Overloaded(format!("{most} {what}")));
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.under_way.of(self.waits).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Responses on their way back.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: Mutex<Vec<(Ticket, Outcome)>>,
    gathered: Notify,
}

impl Answers {
    /// Queues the responses of a turn; `batch` is empty afterwards.
    pub(crate) fn post(&self, batch: &mut Vec<(Ticket, Outcome)>) {
        let is_of_thread = |(ticket, _): &mut (Ticket, Outcome)| matches!(ticket.way, Way::Thread(..));
        batch.extract_if(.., is_of_thread).for_each(|(ticket, outcome)| ticket.answer(outcome));
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

/// The servers' handle.
#[derive(Clone, Debug)]
pub(crate) struct MachineGateway {
    inbox: Arc<Inbox>,
    under_way: Arc<UnderWay>,
    views: Arc<Published>,
}

impl MachineGateway {
    pub(crate) fn new(inbox: Arc<Inbox>, views: Arc<Published>) -> Self {
        Self { inbox, under_way: Arc::default(), views }
    }

    /// Serves a read immediately, if that requires neither the machine nor the disk.
    pub(crate) fn read(&self, request: &Request) -> Option<Outcome> {
        self.views.read(request)
    }

    /// Submits a request. The response comes through the receiver, or never if the process ends first.
    pub(crate) fn hand_in(
        &self,
        request: Request,
        deadline: Monotonic,
        mut held: Held,
    ) -> Result<oneshot::Receiver<Outcome>, Failure> {
        let share = Share::take(&self.under_way, waits(&request))?;
        held.reserve(size(&request))?;
        let (answer, receiver) = oneshot::channel();
        let ticket = Ticket::new(Way::Call(answer), Some(share), held);
        self.inbox.post(Input::Request(Incoming { request, deadline, ticket }));
        Ok(receiver)
    }

    /// Hands in a request of another thread of this node, which bounds what it has under way itself. The answer goes to
    /// `completions` with that number, or never if the process ends first.
    pub(crate) fn hand_in_from_thread(
        &self,
        request: Request,
        deadline: Monotonic,
        completions: &Arc<Completions>,
        number: u64,
    ) {
        let ticket = Ticket::new(Way::Thread(Arc::clone(completions), number), None, Held::default());
        self.inbox.post(Input::Request(Incoming { request, deadline, ticket }));
    }

    /// Hands in what a message of a stream brought, as one input, but for what can be answered at once; deadlines count
    /// from `now`.
    pub(crate) fn hand_in_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>, now: Monotonic) {
        let mut incoming = Vec::with_capacity(batch.len());
        for Ticketed { ticket, request, deadline, mut held } in batch {
            if let Some(outcome) = self.read(&request) {
                replies.give(ticket, outcome);
                continue;
            }
            let share = Share::take(&self.under_way, waits(&request));
            match share.and_then(|share| held.reserve(size(&request)).map(|()| share)) {
                Err(failure) => replies.give(ticket, Err(failure)),
                Ok(share) => {
                    let ticket = Ticket::new(Way::Stream(Arc::clone(replies), ticket), Some(share), held);
                    incoming.push(Incoming { request, deadline: now + clock::duration(deadline), ticket });
                }
            }
        }
        if !incoming.is_empty() {
            self.inbox.post(Input::Requests(incoming));
        }
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
        let under_way = Arc::new(UnderWay::default());
        for (waits, most) in [(false, REQUESTS_IN_FLIGHT_MAX), (true, WAITS_IN_FLIGHT_MAX)] {
            let all: Vec<_> = (0..most).map(|_| Share::take(&under_way, waits).unwrap()).collect();
            assert!(matches!(Share::take(&under_way, waits), Err(Failure::Overloaded(_))));
            assert!(Share::take(&under_way, !waits).is_ok(), "they have places of their own");
            drop(all);
            assert_eq!(under_way.of(waits).load(Ordering::Relaxed), 0);
        }
    }
}
