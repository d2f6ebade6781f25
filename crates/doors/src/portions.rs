//! Hands answers on to HTTP/2 in portions, and bounds what clients that take nothing hold of this node's memory, over
//! all connections together.
//!
//! HTTP/2 is given a message without a question of how much its client takes, and keeps it until the client has taken
//! it all: one of megabytes as well. So every answer's body goes through here. It gives out a portion at a time, in
//! memory of its own, and the next once most of what it gave out before has gone to the connection. What is left is
//! counted. When all together have much left, streams wait with their next large message ([`Room`]); and whatever of
//! nothing has been taken for a while is given up. Calls of their own can't wait: their answers are there. Where they
//! have left very much, those go that were touched longest ago. What was given up is reset if its client ever goes on,
//! with ENHANCE_YOUR_CALM: to gRPC's clients that is `RESOURCE_EXHAUSTED`, and nothing that they would try again
//! unasked.

use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::{Code, Status};

use crate::allowance::Share;
use crate::frames::IsStream;
use crate::limits::{ANSWER_IDLE_MAX, ANSWERS_LEFT_BYTES_MAX, ANSWERS_LEFT_IN_ALL_BYTES_MAX, PORTION_BYTES};

/// What is left of answers that have begun to leave, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portions(Arc<Mutex<Left>>);

#[derive(Debug, Default)]
struct Left {
    /// In memory for all of them.
    bytes: usize,
    /// The first was touched before all others.
    rests: BTreeMap<Turn, Rest>,
    /// Streams that wait with a large message.
    waiting: BTreeMap<Turn, Waker>,
    last: Turn,
}

/// The rest of a message.
#[derive(Debug)]
struct Rest {
    bytes: Bytes,
    /// As large as it was when it was whole, it stays in memory.
    whole: usize,
    touched: Instant,
    is_stream: bool,
}

/// Who came later has a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u64);

impl Portions {
    /// The same answer, in portions.
    pub(crate) fn of(&self, mut answer: Response<Body>) -> Response<Body> {
        let is_stream = answer.extensions().get::<IsStream>().is_some();
        let share = answer.extensions_mut().remove::<Share>();
        answer.map(|inner| Body::new(Portioned::new(inner, is_stream, self.clone(), share)))
    }

    /// Keeps the rest of a message.
    fn keep(&self, bytes: Bytes, whole: usize, is_stream: bool) -> Turn {
        let mut left = self.left();
        left.bytes += whole;
        let turn = left.turn();
        left.rests.insert(turn, Rest { bytes, whole, touched: Instant::now(), is_stream });
        let given_up = left.give_up();
        drop(left);
        drop(given_up);
        turn
    }

    /// The rest that was kept, unless it has been given up.
    fn take(&self, turn: Turn) -> Option<Rest> {
        let mut left = self.left();
        let rest = left.rests.remove(&turn)?;
        left.bytes -= rest.whole;
        let next = left.next_waiting();
        drop(left);
        next.into_iter().for_each(Waker::wake);
        Some(rest)
    }

    /// Nothing that holds this lock panics half-way.
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    fn turn(&mut self) -> Turn {
        self.last.0 += 1;
        self.last
    }

    fn is_full(&self) -> bool {
        self.bytes > ANSWERS_LEFT_BYTES_MAX
    }

    /// Gives up what has not been touched for long, as far as it is in the way.
    fn give_up(&mut self) -> Vec<Rest> {
        let mut given_up = Vec::new();
        while let Some(turn) = self.in_the_way()
            && let Some(rest) = self.rests.remove(&turn)
        {
            self.bytes -= rest.whole;
            given_up.push(rest);
        }
        if !given_up.is_empty() {
            tracing::debug!(answers = given_up.len(), "answers given up: their clients take nothing, and others wait");
        }
        given_up
    }

    /// What is to be given up first.
    fn in_the_way(&self) -> Option<Turn> {
        let is_idle = |(_, rest): &(&Turn, &Rest)| rest.touched.elapsed() > ANSWER_IDLE_MAX;
        let idle = || self.rests.first_key_value().filter(is_idle);
        // Streams have not begun so much together.
        let first_call = || self.rests.iter().find(|(_, rest)| !rest.is_stream);
        let found = match self.bytes {
            bytes if bytes > ANSWERS_LEFT_IN_ALL_BYTES_MAX => idle().or_else(first_call),
            _ if self.is_full() => idle(),
            _ => None,
        };
        found.map(|(turn, _)| *turn)
    }

    /// Who has waited longest, if it may look again.
    fn next_waiting(&mut self) -> Option<Waker> {
        if self.is_full() { None } else { self.waiting.pop_first().map(|(_, waker)| waker) }
    }
}

/// Whether a stream may begin another large message.
#[derive(Debug)]
pub(crate) struct Room {
    portions: Portions,
    waits: Option<Turn>,
}

impl Room {
    /// Of one stream.
    pub(crate) fn new(portions: Portions) -> Self {
        Self { portions, waits: None }
    }

    /// Whether a message may begin that has more than a portion. If not, the stream is woken when it may; it should
    /// look again now and then all the same: time makes room, too.
    pub(crate) fn is_there(&mut self, context: &Context<'_>) -> bool {
        let mut left = self.portions.left();
        let given_up = left.give_up();
        let is_full = left.is_full();
        if is_full {
            let turn = *self.waits.get_or_insert_with(|| left.turn());
            left.waiting.insert(turn, context.waker().clone());
        } else if let Some(turn) = self.waits.take() {
            left.waiting.remove(&turn);
        }
        // What came free may be enough for others, too.
        let next = left.next_waiting();
        drop(left);
        drop(given_up);
        next.into_iter().for_each(Waker::wake);
        !is_full
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(turn) = self.waits {
            self.portions.left().waiting.remove(&turn);
        }
    }
}

/// An answer's body.
struct Portioned {
    inner: Body,
    portions: Portions,
    is_stream: bool,
    /// What is left of the message that leaves.
    rest: Option<Turn>,
    /// What comes after it, where that was looked for.
    next: Option<Result<Frame<Bytes>, Status>>,
    on_its_way: Arc<OnItsWay>,
    /// Of what its connection may read ahead: given back with this.
    _share: Option<Share>,
}

impl Portioned {
    fn new(inner: Body, is_stream: bool, portions: Portions, share: Option<Share>) -> Self {
        Self { inner, portions, is_stream, rest: None, next: None, on_its_way: Arc::default(), _share: share }
    }

    /// The first bytes of what is left of a message that was as large. The others are kept.
    fn portion(&mut self, mut bytes: Bytes, whole: usize) -> Frame<Bytes> {
        if bytes.len() < whole || whole > PORTION_BYTES {
            // A slice would keep all of the message in memory.
            let first = Bytes::copy_from_slice(&bytes.split_to(PORTION_BYTES.min(bytes.len())));
            self.rest = (!bytes.is_empty()).then(|| self.portions.keep(bytes, whole, self.is_stream));
            bytes = first;
        }
        Frame::data(self.on_its_way.given(bytes))
    }

    /// The message of a call of its own begins to leave: what made it goes, with the memory that it shares with the
    /// message.
    fn finish_inner(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(Some(next)) = Pin::new(&mut self.inner).poll_frame(context) {
            if next.as_ref().is_ok_and(Frame::is_trailers) {
                self.inner = Body::empty();
            }
            self.next = Some(next);
        }
    }
}

impl http_body::Body for Portioned {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.on_its_way.is_much(context) {
            return Poll::Pending;
        }
        if let Some(turn) = this.rest.take() {
            let rest = this.portions.take(turn).ok_or_else(given_up);
            return Poll::Ready(Some(rest.map(|rest| this.portion(rest.bytes, rest.whole))));
        }
        let frame = match this.next.take() {
            Some(next) => next,
            None => match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(frame) => frame,
                None => return Poll::Ready(None),
            },
        };
        let frame = match frame?.into_data() {
            Ok(bytes) => {
                let whole = bytes.len();
                let portion = this.portion(bytes, whole);
                if this.rest.is_some() && !this.is_stream {
                    this.finish_inner(context);
                }
                portion
            }
            Err(frame) => frame,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.next.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for Portioned {
    fn drop(&mut self) {
        self.rest.take().and_then(|turn| self.portions.take(turn));
    }
}

/// The stream can't go on. REFUSED_STREAM would say that the call was never begun, and clients would make it again.
fn given_up() -> Status {
    let mut status = Status::new(Code::ResourceExhausted, "the client took nothing of the answer while others waited");
    status.set_source(Arc::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
    status
}

/// What HTTP/2 has of one answer, and has not written to the connection.
#[derive(Debug, Default)]
struct OnItsWay {
    bytes: AtomicUsize,
    /// Who is to be woken when there is less.
    waker: Mutex<Option<Waker>>,
}

impl OnItsWay {
    /// These bytes, counted as long as somebody has them.
    fn given(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        Bytes::from_owner(Given { bytes, of: Arc::clone(self) })
    }

    /// Whether it has so much that nothing more is to be given to it now. Then who asks is woken when it has less.
    fn is_much(&self, context: &Context<'_>) -> bool {
        let is_much = || self.bytes.load(Ordering::Acquire) > PORTION_BYTES;
        if !is_much() {
            return false;
        }
        *self.waker() = Some(context.waker().clone());
        // It may have gone meanwhile.
        is_much()
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A portion that was given to HTTP/2.
struct Given {
    bytes: Bytes,
    of: Arc<OnItsWay>,
}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let before = self.of.bytes.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        if before > PORTION_BYTES {
            let waker = mem::take(&mut *self.of.waker());
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests;
