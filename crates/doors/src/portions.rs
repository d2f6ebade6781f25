//! Hands answers on to HTTP/2 in portions, and bounds what clients that take nothing hold of this node's memory, over all
//! connections together.
//!
//! HTTP/2 asks for more of an answer as soon as its client has room for a byte, and keeps what it is given until the client has
//! taken it all: a message of megabytes as well. So every answer's body goes through here. It gives out a portion at a time,
//! copied from what is left of the message, and the next once most of what it gave out before has gone to the connection. What is left
//! is counted. When all together have too much left, whoever has taken nothing for longest loses the rest of its message; its stream is
//! reset with REFUSED_STREAM if it ever goes on, which is `UNAVAILABLE` to gRPC's clients.

use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::{Code, Status};

use crate::frames::IsStream;
use crate::limits::{ANSWERS_LEFT_BYTES_MAX, PORTION_BYTES};

/// What is left of answers that have begun to leave, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portions(Arc<Mutex<Left>>);

#[derive(Debug, Default)]
struct Left {
    /// In memory for all of them.
    bytes: usize,
    /// The first has waited longest.
    rests: BTreeMap<Turn, Rest>,
    last: Turn,
}

/// The rest of a message.
#[derive(Debug)]
struct Rest {
    bytes: Bytes,
    /// As large as it was when it was whole, it stays in memory.
    whole: usize,
}

/// When a rest was last touched: later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u64);

impl Portions {
    /// The same answer, in portions.
    pub(crate) fn of(&self, answer: Response<Body>) -> Response<Body> {
        let is_stream = answer.extensions().get::<IsStream>().is_some();
        answer.map(|inner| Body::new(Portioned::new(inner, is_stream, self.clone())))
    }

    /// Keeps the rest of a message. Others that have waited longer may go for it.
    fn keep(&self, rest: Rest) -> Turn {
        let mut given_up = Vec::new();
        let mut left = self.left();
        left.bytes += rest.whole;
        left.last.0 += 1;
        let turn = left.last;
        left.rests.insert(turn, rest);
        while left.bytes > ANSWERS_LEFT_BYTES_MAX && left.rests.len() > 1 {
            let Some((_, rest)) = left.rests.pop_first() else { break };
            left.bytes -= rest.whole;
            given_up.push(rest);
        }
        drop(left);
        if !given_up.is_empty() {
            tracing::debug!(
                answers = given_up.len(),
                "answers given up: their clients have not taken them for longest"
            );
        }
        turn
    }

    /// The rest that was kept, unless it has been given up.
    fn take(&self, turn: Turn) -> Option<Rest> {
        let mut left = self.left();
        let rest = left.rests.remove(&turn)?;
        left.bytes -= rest.whole;
        Some(rest)
    }

    /// Nothing that holds this lock panics half-way.
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer's body.
struct Portioned {
    inner: Body,
    portions: Portions,
    is_stream: bool,
    /// What is left of the message that leaves.
    rest: Option<Turn>,
    /// What comes after it, if that is all.
    last: Option<Frame<Bytes>>,
    on_its_way: Arc<OnItsWay>,
}

impl Portioned {
    fn new(inner: Body, is_stream: bool, portions: Portions) -> Self {
        Self { inner, portions, is_stream, rest: None, last: None, on_its_way: Arc::default() }
    }

    /// The first bytes of what is left. The others are kept.
    fn portion(&mut self, Rest { mut bytes, whole }: Rest) -> Frame<Bytes> {
        if bytes.len() > PORTION_BYTES {
            // A slice would keep all of them in memory.
            let first = Bytes::copy_from_slice(&bytes.split_to(PORTION_BYTES));
            self.rest = Some(self.portions.keep(Rest { bytes, whole }));
            bytes = first;
        }
        Frame::data(self.on_its_way.given(bytes))
    }

    /// The one message of the answer begins to leave: what made it goes, with the memory that it shares with the message.
    fn finish_inner(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(Some(Ok(last))) = Pin::new(&mut self.inner).poll_frame(context)
            && last.is_trailers()
        {
            (self.inner, self.last) = (Body::empty(), Some(last));
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
            return Poll::Ready(Some(rest.map(|rest| this.portion(rest))));
        }
        if let Some(last) = this.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(context)?) else { return Poll::Ready(None) };
        let frame = match frame.into_data() {
            Ok(bytes) => {
                let whole = bytes.len();
                let portion = this.portion(Rest { bytes, whole });
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
        self.rest.is_none() && self.last.is_none() && self.inner.is_end_stream()
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

/// The stream can't go on.
fn given_up() -> Status {
    let mut status = Status::new(Code::Unavailable, "the client took too little of the answer while others waited");
    status.set_source(Arc::new(h2::Error::from(h2::Reason::REFUSED_STREAM)));
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
