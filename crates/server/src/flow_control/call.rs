//! One call, from the first byte of its request to the last of its response.
//!
//! A request is counted as it arrives, because gRPC buffers it until it is complete. Then [`Held`](super::Held) counts the
//! decoded request.
//!
//! HTTP/2 buffers data until the client's flow control window allows sending it. So the body of a response returns one
//! chunk at a time, each in a separate allocation, with at most two chunks that are not written to the socket. A reset
//! drops the rest of the response and resets the HTTP/2 stream with ENHANCE_YOUR_CALM, which gRPC clients map to
//! `RESOURCE_EXHAUSTED`. The client receives it at once, or when it next opens its window.

use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use base::budget::{ByteBudget, Reservation};
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use prost::Message;
use state_machine::Failure;
use tokio::time::{Sleep, sleep};
use tokio_stream::{Empty, Stream, empty};
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

use super::{CALL_BYTES, CHUNK_BYTES, Connection, RESPONSE_IDLE_MAX, SMALL_BYTES, lock, no_room};
use crate::limits::MESSAGE_TIME_MAX;
use crate::refusal;

/// A call in progress. Its handler finds it among the request's extensions.
#[derive(Debug)]
pub(crate) struct Call {
    /// The key in its connection's `calls`.
    number: u64,
    pub(crate) connection: Arc<Connection>,
    /// Whether request and response are streams of messages, with pauses of any length between them.
    is_stream: AtomicBool,
    /// Memory for the call itself and for the message that is arriving.
    request: Mutex<Reservation>,
    response: Mutex<Outgoing>,
    /// Bytes of the response that HTTP/2 has not written to the socket.
    in_transport: AtomicUsize,
    /// When HTTP/2 last took or wrote a chunk.
    pub(super) progress_at: Mutex<Instant>,
    is_reset: AtomicBool,
    /// Woken when HTTP/2 has written a chunk, or on a reset.
    waker: Mutex<Option<Waker>>,
}

/// The rest of the response.
#[derive(Debug, Default)]
struct Outgoing {
    /// The source of messages.
    body: Option<Body>,
    /// The rest of a message.
    message: Bytes,
    /// Memory for the whole message until all of it was taken. For reads it is reserved before the message is encoded.
    room: Option<Reservation>,
}

/// Returned by handlers of streams; the call keeps the stream itself. tonic's own streaming bodies keep a buffer of the
/// size of their largest message.
pub(crate) type HandedOver<M> = Empty<Result<M, Status>>;

impl Call {
    pub(super) fn begin(connection: &Arc<Connection>) -> Result<Arc<Self>, Failure> {
        let room = connection.requests.try_reserve(CALL_BYTES).ok_or_else(no_room)?;
        let (last, calls) = &mut *lock(&connection.calls);
        *last += 1;
        let call = Arc::new(Self {
            number: *last,
            connection: Arc::clone(connection),
            is_stream: AtomicBool::new(false),
            request: Mutex::new(room),
            response: Mutex::default(),
            in_transport: AtomicUsize::new(0),
            progress_at: Mutex::new(Instant::now()),
            is_reset: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        calls.insert(*last, Arc::downgrade(&call));
        Ok(call)
    }

    /// The call of a request that came through flow control.
    pub(crate) fn of<T>(request: &tonic::Request<T>) -> Result<Arc<Self>, Status> {
        request.extensions().get().cloned().ok_or_else(|| Status::internal("the call was not counted"))
    }

    /// A message is complete and is counted elsewhere from now on. Up to one HTTP/2 frame of the next is not counted.
    pub(crate) fn message_taken(&self) {
        lock(&self.request).shrink_to(CALL_BYTES);
    }

    /// Reserves memory for a response.
    pub(crate) fn reserve_response(&self, bytes: usize) -> Result<(), Failure> {
        if bytes > SMALL_BYTES {
            self.hold_response(Some(self.connection.responses.try_reserve(bytes).ok_or_else(no_room)?));
        }
        Ok(())
    }

    /// Keeps the response's reservation until the response is sent.
    pub(crate) fn hold_response(&self, room: Option<Reservation>) {
        lock(&self.response).room = room;
    }

    /// Makes a stream the response.
    pub(crate) fn stream<M, S>(&self, stream: S) -> tonic::Response<HandedOver<M>>
    where
        M: Message + 'static,
        S: Stream<Item = Result<M, Status>> + Unpin + Send + 'static,
    {
        self.is_stream.store(true, Ordering::Relaxed);
        lock(&self.response).body = Some(Body::new(Frames(stream)));
        tonic::Response::new(empty())
    }

    /// Resets the response if HTTP/2 has unsent chunks of it and has made no progress; returns whether it did.
    pub(super) fn reset_if_idle(&self) -> bool {
        let is_waiting = self.in_transport.load(Ordering::Acquire) > 0 && !self.is_reset.load(Ordering::Acquire);
        let is_idle = is_waiting && lock(&self.progress_at).elapsed() >= RESPONSE_IDLE_MAX;
        if is_idle {
            self.is_reset.store(true, Ordering::Release);
            self.drop_response();
            self.wake();
        }
        is_idle
    }

    fn drop_response(&self) {
        // Dropped after the lock is released.
        let _response = mem::take(&mut *lock(&self.response));
    }

    fn given(self: &Arc<Self>, (bytes, room): (Bytes, Option<Reservation>)) -> Frame<Bytes> {
        self.in_transport.fetch_add(bytes.len(), Ordering::AcqRel);
        *lock(&self.progress_at) = Instant::now();
        Frame::data(Bytes::from_owner(InTransport { bytes, _room: room, of: Arc::clone(self) }))
    }

    /// Whether HTTP/2 has too many unsent chunks. If so, the caller is woken when it has written one.
    fn is_full(&self, context: &Context<'_>) -> bool {
        let is_full =
            || self.in_transport.load(Ordering::Acquire) > CHUNK_BYTES && !self.is_reset.load(Ordering::Acquire);
        if is_full() {
            self.note(context);
        }
        // A chunk may have been written meanwhile.
        is_full()
    }

    fn note(&self, context: &Context<'_>) {
        *lock(&self.waker) = Some(context.waker().clone());
    }

    fn wake(&self) {
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        lock(&self.connection.calls).1.remove(&self.number);
    }
}

impl Outgoing {
    /// The next chunk of the message and its memory. It is a copy: a slice would keep the whole message in memory.
    fn chunk(&mut self, responses: &ByteBudget) -> (Bytes, Option<Reservation>) {
        let is_whole = self.room.as_ref().is_none_or(|room| room.bytes() == self.message.len());
        if is_whole && self.message.len() <= CHUNK_BYTES {
            return (mem::take(&mut self.message), self.room.take());
        }
        let chunk = Bytes::copy_from_slice(&self.message.split_to(CHUNK_BYTES.min(self.message.len())));
        if self.message.is_empty() {
            (self.message, self.room) = Default::default();
        }
        let room = responses.charge(chunk.len());
        (chunk, Some(room))
    }
}

/// A chunk that is not written to the socket yet.
struct InTransport {
    bytes: Bytes,
    _room: Option<Reservation>,
    of: Arc<Call>,
}

impl AsRef<[u8]> for InTransport {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for InTransport {
    fn drop(&mut self) {
        *lock(&self.of.progress_at) = Instant::now();
        if self.of.in_transport.fetch_sub(self.bytes.len(), Ordering::AcqRel) > CHUNK_BYTES {
            self.of.wake();
        }
    }
}

/// A request's body as it arrives.
pub(super) struct RequestBody {
    pub(super) inner: Body,
    pub(super) call: Arc<Call>,
    /// Started when the body is first pending: most arrive with their headers.
    pub(super) patience: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            if self.call.is_stream.load(Ordering::Relaxed) && lock(&self.call.request).bytes() == CALL_BYTES {
                self.patience = None;
                return Poll::Pending;
            }
            ready!(self.patience.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIME_MAX))).as_mut().poll(context));
            return Poll::Ready(Some(Err(Status::cancelled("timed out receiving the message"))));
        };
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        if !lock(&self.call.request).try_grow(bytes) {
            return Poll::Ready(Some(Err(refusal::status(&no_room()))));
        }
        Poll::Ready(frame)
    }
}

/// A response's body as it leaves.
pub(super) struct ResponseBody(Arc<Call>);

impl ResponseBody {
    /// Uses the call's stream, or else the body that the handler returned.
    pub(super) fn new(made: Body, call: Arc<Call>) -> Self {
        lock(&call.response).body.get_or_insert(made);
        Self(call)
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let call = &self.0;
        if call.is_full(context) {
            return Poll::Pending;
        }
        let mut response = lock(&call.response);
        if call.is_reset.load(Ordering::Acquire) {
            let mut status = Status::new(
                Code::ResourceExhausted,
                "response reset: client memory is nearly full and the client reads nothing (slow consumer)",
            );
            status.set_source(Arc::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
            return Poll::Ready(Some(Err(status)));
        }
        let Outgoing { body: Some(body), message, .. } = &mut *response else { return Poll::Ready(None) };
        if message.is_empty() {
            // A reset drops the inner body, which would wake this task.
            call.note(context);
            let frame = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(bytes) => *message = bytes,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
            let is_counted = call.is_stream.load(Ordering::Relaxed) || message.len() > SMALL_BYTES;
            response.room = is_counted.then(|| call.connection.responses.charge(response.message.len()));
        }
        Poll::Ready(Some(Ok(call.given(response.chunk(&call.connection.responses)))))
    }

    fn is_end_stream(&self) -> bool {
        let Outgoing { body, message, .. } = &*lock(&self.0.response);
        // A reset is reported by another frame.
        message.is_empty() && body.as_ref().is_none_or(Body::is_end_stream) && !self.0.is_reset.load(Ordering::Acquire)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // Unsent chunks, and the stream itself, keep the call alive.
        self.0.drop_response();
    }
}

/// A stream as a body: messages as gRPC frames them.
struct Frames<S>(S);

impl<M: Message, S: Stream<Item = Result<M, Status>> + Unpin> http_body::Body for Frames<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let ending = match ready!(Pin::new(&mut self.0).poll_next(context)) {
            Some(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(framed(&message))))),
            Some(Err(status)) => status,
            None => Status::new(Code::Ok, ""),
        };
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(ending.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }
}

/// A message with gRPC's prefix: the compression flag and the length.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).expect("a response is bounded far below 4 GiB"));
    message.encode(&mut framed).expect("there is room");
    framed.freeze()
}
