//! Requests in a stream: what gathers while one message is sent leaves with the next.

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

/// Bytes of a message of several requests.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Requests that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outgoing(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Streamed>,
    waker: Option<Waker>,
    is_closed: bool,
}

impl Outgoing {
    /// Begins a stream.
    pub(crate) async fn begin(channel: Channel) -> Result<(Arc<Self>, Streaming<StreamResponse>), Status> {
        let outgoing = Arc::new(Self::default());
        let answers = columns(channel).stream(Feed(Arc::clone(&outgoing))).await?.into_inner();
        Ok((outgoing, answers))
    }

    /// Sends a request; false if nothing can be sent any more.
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

    /// Ends the client's side.
    pub(crate) fn close(&self) {
        let waker = {
            let mut queue = self.queue();
            queue.is_closed = true;
            queue.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A queue is whole between any two of its calls, whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// As many as fit into a message.
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

/// What gRPC takes the messages from.
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
    /// Nobody takes messages any more.
    fn drop(&mut self) {
        self.0.close();
    }
}
