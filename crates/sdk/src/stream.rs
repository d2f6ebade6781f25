//! Batches requests in a stream: requests that arrive while a message is being sent go into the next message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use api::columns::{StreamRequest, StreamResponse};
use api::frugal::{STREAM_BATCH_MAX, STREAM_FIELDS_MAX};
use tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::call::columns;
use crate::request::Streamed;

/// Maximum bytes of a message with several requests.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The queue of requests to send.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Streamed>,
    waker: Option<Waker>,
    is_closed: bool,
}

impl Outgoing {
    pub(crate) async fn begin(channel: Channel) -> Result<(Arc<Self>, Streaming<StreamResponse>), Status> {
        let outgoing = Arc::new(Self::default());
        let answers = columns(channel).stream(Feed(Arc::clone(&outgoing))).await?.into_inner();
        Ok((outgoing, answers))
    }

    /// Queues a request; false if the stream is closed.
    pub(crate) fn push(&self, request: Streamed) -> bool {
        let waker = {
            let mut queue = self.queue();
            if queue.is_closed {
                return false;
            }
            queue.requests.push_back(request);
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Closes the client's side.
    pub(crate) fn close(&self) {
        let waker = {
            let mut queue = self.queue();
            queue.is_closed = true;
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic cannot leave the queue in an inconsistent state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Takes the requests for the next message, within its limits.
    fn message(&mut self) -> StreamRequest {
        let mut requests = Vec::with_capacity(self.requests.len().min(STREAM_BATCH_MAX));
        let (mut bytes, mut fields) = (0, 0);
        while let Some(next) = self.requests.front() {
            bytes += next.bytes;
            fields += next.fields;
            let is_full = bytes > MESSAGE_BYTES_MAX || fields > STREAM_FIELDS_MAX || requests.len() == STREAM_BATCH_MAX;
            if is_full && !requests.is_empty() {
                break;
            }
            requests.extend(self.requests.pop_front().map(|streamed| streamed.request));
        }
        StreamRequest { requests }
    }
}

/// The source of messages for gRPC.
struct Feed(Arc<Outgoing>);

impl Stream for Feed {
    type Item = StreamRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamRequest>> {
        let mut queue = self.0.queue();
        if !queue.requests.is_empty() {
            return Poll::Ready(Some(queue.message()));
        }
        if queue.is_closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Feed {
    /// gRPC dropped the stream, so no more messages can be sent.
    fn drop(&mut self) {
        self.0.close();
    }
}
