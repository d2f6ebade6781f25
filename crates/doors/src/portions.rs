//! Hands answers on to HTTP/2 in portions, and bounds what clients that take nothing hold of this node's memory, over
//! all connections together.
//!
//! HTTP/2 is given a message without a question of how much its client takes, and keeps it until the client has taken
//! it all: one of megabytes as well. So every answer's body goes through here. It gives out a portion at a time, in
//! memory of its own, and the next once most of what it gave out before has gone to the connection. What is left is
//! counted. When much is left, streams wait with their next large message ([`Room`]); and whatever of nothing has been
//! taken for a while is given up. Streams whose client was not seen to take what comes ([`Taking`]) have room of their
//! own, and less time, so that those who take wait for none of them, nor they for these. Calls of their own can't wait:
//! their answers are there. Where they have left very much, those go that were touched longest ago. An answer of which
//! something was given up is reset, with ENHANCE_YOUR_CALM: to gRPC's clients that is `RESOURCE_EXHAUSTED`, and nothing
//! that they would try again unasked.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Response;

pub(crate) use left::{Portions, Room};

use crate::allowance::Share;
use crate::frames::IsStream;
use crate::limits::PORTION_BYTES;
use crate::taking::Taking;
use left::Turn;
use making::{Making, given_up};

mod kind;
mod left;
mod making;

impl Portions {
    /// The same answer, in portions.
    pub(crate) fn of(&self, mut answer: Response<Body>) -> Response<Body> {
        let stream = answer.extensions_mut().remove().map(|IsStream(taking)| taking);
        let share = answer.extensions_mut().remove::<Share>();
        answer.map(|inner| Body::new(Portioned::new(inner, stream, self.clone(), share)))
    }
}

/// An answer's body.
struct Portioned {
    portions: Portions,
    /// What is left of the message that leaves.
    rest: Option<Turn>,
    /// What comes after it, where that was looked for.
    next: Option<Result<Frame<Bytes>, Status>>,
    making: Arc<Making>,
    /// Among the streams that are open.
    number: Option<u64>,
    /// Of what its connection may read ahead: given back with this.
    _share: Option<Share>,
}

impl Portioned {
    fn new(inner: Body, stream: Option<Taking>, portions: Portions, share: Option<Share>) -> Self {
        let is_stream = stream.is_some();
        let making = Arc::new(Making::new(inner, stream));
        let number = is_stream.then(|| portions.opened(&making));
        Self { portions, rest: None, next: None, making, number, _share: share }
    }

    /// The first bytes of what is left of a message that was as large. The others are kept.
    fn portion(&mut self, mut bytes: Bytes, whole: usize) -> Frame<Bytes> {
        if bytes.len() < whole || whole > PORTION_BYTES {
            // A slice would keep all of the message in memory.
            let first = Bytes::copy_from_slice(&bytes.split_to(PORTION_BYTES.min(bytes.len())));
            self.rest = (!bytes.is_empty()).then(|| self.portions.keep(bytes, whole, &self.making));
            bytes = first;
        }
        Frame::data(self.making.on_its_way.given(bytes))
    }

    /// The message of a call of its own begins to leave: what made it goes, with the memory that it shares with the
    /// message.
    fn finish_inner(&mut self, context: &mut Context<'_>) {
        let mut inner = self.making.body();
        if let Poll::Ready(Some(next)) = Pin::new(&mut *inner).poll_frame(context) {
            if next.as_ref().is_ok_and(Frame::is_trailers) {
                *inner = Body::empty();
            }
            drop(inner);
            self.next = Some(next);
        }
    }
}

impl http_body::Body for Portioned {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.making.on_its_way.is_much(context) {
            return Poll::Pending;
        }
        let rest = this.rest.take().map(|turn| this.portions.take(turn));
        if this.making.on_its_way.has_ended() {
            return Poll::Ready(Some(Err(given_up())));
        }
        if let Some(rest) = rest {
            let rest = rest.ok_or_else(given_up);
            return Poll::Ready(Some(rest.map(|rest| this.portion(rest.bytes, rest.whole))));
        }
        let frame = match this.next.take() {
            Some(next) => next,
            None => match ready!(this.making.poll_frame(context)) {
                Some(frame) => frame,
                None => return Poll::Ready(None),
            },
        };
        let frame = match frame?.into_data() {
            Ok(bytes) => {
                let whole = bytes.len();
                let portion = this.portion(bytes, whole);
                if this.rest.is_some() && this.making.on_its_way.stream.is_none() {
                    this.finish_inner(context);
                }
                portion
            }
            Err(frame) => frame,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.rest.is_none() && self.next.is_none() && self.making.body().is_end_stream();
        // What was given up is to be reset, which takes another frame.
        is_over && !self.making.on_its_way.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for Portioned {
    fn drop(&mut self) {
        self.rest.take().and_then(|turn| self.portions.take(turn));
        self.number.into_iter().for_each(|number| self.portions.closed(number));
        self.making.on_its_way.dropped();
    }
}

#[cfg(test)]
mod tests;
