//! The bodies of answers that are streams: messages as gRPC frames them, each in memory of its own.
//!
//! The server's own bodies write all messages of a stream to one buffer and keep that, as large as the largest message
//! was, for as long as the stream is open: a client that takes no large message, or is told no other, keeps its memory
//! with it. So the doors' streams leave the handlers beside the answer ([`hand_over`]), and take the place of its body
//! ([`take_over`]).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use prost::Message;
use tokio_stream::{Empty, Stream, empty};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::{Code, Status};

use crate::limits::PORTION_BYTES;
use crate::taking::Taking;

/// What the handler of a stream answers: the stream itself is beside it.
pub(crate) type HandedOver<M> = Empty<Result<M, Status>>;

/// A stream's body, on its way to the answer that it belongs to.
#[derive(Clone)]
struct Handed {
    body: Arc<Mutex<Option<Body>>>,
    taking: Taking,
}

/// The answer of a handler has a body that asks for more only as its client takes what there is: that of this
/// connection.
#[derive(Clone, Debug)]
pub(crate) struct IsStream(pub(crate) Taking);

/// A stream of the door.
pub(crate) trait OfConnection {
    /// Of whose connection it is.
    fn taking(&self) -> &Taking;
}

/// An answer whose body will be this stream.
pub(crate) fn hand_over<M, S>(stream: S) -> tonic::Response<HandedOver<M>>
where
    M: Message + 'static,
    S: Stream<Item = Result<M, Status>> + OfConnection + Unpin + Send + 'static,
{
    let taking = stream.taking().clone();
    let body = Body::new(Frames { stream, ending: None, has_ended: false });
    let mut answer = tonic::Response::new(empty());
    answer.extensions_mut().insert(Handed { body: Arc::new(Mutex::new(Some(body))), taking });
    answer
}

/// Puts a stream that was handed over in the place of the answer's body.
pub(crate) fn take_over(mut answer: Response<Body>) -> Response<Body> {
    if let Some(Handed { body, taking }) = answer.extensions_mut().remove()
        && let Some(body) = body.lock().unwrap_or_else(PoisonError::into_inner).take()
    {
        *answer.body_mut() = body;
        answer.extensions_mut().insert(IsStream(taking));
    }
    answer
}

/// A stream as a body.
struct Frames<S> {
    stream: S,
    /// How the stream has ended, once what came before has been given out.
    ending: Option<Status>,
    has_ended: bool,
}

impl<M: Message, S: Stream<Item = Result<M, Status>> + Unpin> http_body::Body for Frames<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut gathered = BytesMut::new();
        while self.ending.is_none() && !self.has_ended && gathered.len() < PORTION_BYTES {
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => put(&message, &mut gathered),
                Poll::Ready(Some(Err(status))) => self.ending = Some(status),
                Poll::Ready(None) => self.ending = Some(Status::new(Code::Ok, "")),
                Poll::Pending if gathered.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if !gathered.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(gathered.freeze()))));
        }
        let trailers = self.ending.take().map(|status| {
            self.has_ended = true;
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
        });
        Poll::Ready(trailers)
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}

/// Appends a message: whether it is compressed, its length, and itself.
fn put(message: &impl Message, gathered: &mut BytesMut) {
    let length = message.encoded_len();
    gathered.reserve(5 + length);
    gathered.put_u8(0);
    gathered.put_u32(u32::try_from(length).expect("an answer is bounded far below 4 GiB"));
    message.encode(gathered).expect("there is room");
}
