//! Bounds the bytes of messages on their way in, over all connections together.
//!
//! gRPC gathers a message until it is whole. A thousand connections that each begin a large one and stop would fill the
//! memory, so every request's body goes through here: it is counted as it arrives, refused when all together hold too
//! much, and given up when it takes too long. A whole message leaves this account for the node's own: with its call, or
//! when the door of a stream says that it has one. Between two messages a stream may be silent for as long as it lives.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tablets::request::Failure;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tower::{Layer, Service};

use crate::deadline::Arrival;
use crate::limits::{ARRIVING_BYTES_MAX, MESSAGE_TIME_MAX};
use crate::refusal;

/// Bytes that are held now, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<AtomicUsize>);

impl Meter {
    /// Takes `bytes` into account; false if that were too many.
    fn take(&self, bytes: usize) -> bool {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= ARRIVING_BYTES_MAX;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for Meter {
    type Service = Metering<S>;

    fn layer(&self, inner: S) -> Metering<S> {
        Metering { inner, meter: self.clone() }
    }
}

/// What a request's body holds of the account. The door of a stream finds it among the request's extensions.
#[derive(Debug)]
pub(crate) struct Arriving {
    meter: Meter,
    /// Bytes taken into account, and not given back.
    held: AtomicUsize,
    /// Whether messages come one after the other, as long as both sides like.
    is_stream: AtomicBool,
}

impl Arriving {
    /// This is a stream's: silence before a message is none of our business.
    pub(crate) fn is_a_stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }

    /// A message of the stream has left the account. What had arrived of the next with it, less than an HTTP/2 frame,
    /// goes uncounted.
    pub(crate) fn message_taken(&self) {
        self.meter.release(self.held.swap(0, Ordering::Relaxed));
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = self.meter.take(bytes);
        if fits {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn may_be_silent(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed) && self.held.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.message_taken();
    }
}

/// A service whose requests are metered, and stamped with their [`Arrival`].
#[derive(Clone, Debug)]
pub(crate) struct Metering<S> {
    inner: S,
    meter: Meter,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Metering<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let meter = self.meter.clone();
        let arriving = Arc::new(Arriving { meter, held: AtomicUsize::new(0), is_stream: AtomicBool::new(false) });
        let mut request =
            request.map(|inner| Body::new(Metered { inner, arriving: Arc::clone(&arriving), patience: None }));
        request.extensions_mut().insert(Arrival(Instant::now()));
        request.extensions_mut().insert(arriving);
        self.inner.call(request)
    }
}

/// A request's body as it arrives.
struct Metered {
    inner: Body,
    arriving: Arc<Arriving>,
    /// Set when the body first lets us wait: most arrive with their headers.
    patience: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            if self.arriving.may_be_silent() {
                self.patience = None;
                return Poll::Pending;
            }
            ready!(self.patience.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIME_MAX))).as_mut().poll(context));
            return Poll::Ready(Some(Err(Status::cancelled("the message took too long to arrive"))));
        };
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if !self.arriving.take(bytes) {
                let failure = Failure::Overloaded("too many bytes are arriving at this node".into());
                return Poll::Ready(Some(Err(refusal::status(&failure))));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_counted() {
        let meter = Meter::default();
        assert!(meter.take(ARRIVING_BYTES_MAX));
        assert!(!meter.take(1));
        meter.release(1);
        assert!(meter.take(1));
    }
}
