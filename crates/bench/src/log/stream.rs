//! One stream with many concurrent reads. It uses the gRPC API directly, because the client library sends each read as a
//! separate call.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use api::frugal::STREAM_BATCH_MAX;
use api::log::log_client::LogClient;
use api::log::{ReadAnswer, ReadRequest, ReadStreamRequest, ReadStreamResponse, StreamedRead, read_answer};
use terminal::Stop;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::target::OPERATION_TIME_MAX;

/// Reads per message: the server's limit.
const MESSAGE_READS_MAX: usize = STREAM_BATCH_MAX;
/// Concurrent reads on one stream: the server's limit.
pub(crate) const READS_MAX: usize = 2 * MESSAGE_READS_MAX;
/// HTTP/2 flow control windows, as in the client library.
const WINDOW_BYTES: u32 = 16 << 20;

/// A stream of reads, with at most one in flight per reader.
pub(crate) struct ReadStream {
    log: String,
    requests: UnboundedSender<StreamedRead>,
    waiting: Rc<RefCell<Waiting>>,
    /// Aborted when this is dropped.
    _answers: JoinSet<()>,
}

/// By reader number; empty once the stream has ended.
type Waiting = Vec<Option<oneshot::Sender<Option<read_answer::Answer>>>>;

impl ReadStream {
    /// Opens a stream to a node, for this number of readers.
    pub(crate) async fn open(endpoint: &str, log: &str, readers: usize) -> Result<Self, Stop> {
        let unavailable =
            |error: &dyn std::fmt::Display| Stop::from(sdk::Error::Unavailable(format!("{endpoint}: {error}")));
        let target = Endpoint::from_shared(format!("http://{endpoint}")).map_err(|error| unavailable(&error))?;
        let target = target.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let channel = target.tcp_nodelay(true).connect().await.map_err(|error| unavailable(&error))?;
        let (requests, queue) = mpsc::unbounded_channel();
        let answers = LogClient::new(channel).read_stream(Feed(queue)).await.map_err(|status| unavailable(&status))?;
        let waiting: Waiting = (0..readers).map(|_| None).collect();
        let waiting = Rc::new(RefCell::new(waiting));
        let mut task = JoinSet::new();
        task.spawn_local(hand_out(answers.into_inner(), Rc::clone(&waiting)));
        Ok(Self { log: log.to_owned(), requests, waiting, _answers: task })
    }

    /// Reads one position for a reader.
    pub(crate) async fn read(&self, reader: usize, position: u64) -> Result<read_answer::Answer, sdk::Error> {
        let ended = || sdk::Error::Unavailable("the stream has ended".to_owned());
        let (sender, response) = oneshot::channel();
        *self.waiting.borrow_mut().get_mut(reader).ok_or_else(ended)? = Some(sender);
        let read = ReadRequest { log: self.log.clone(), start: position, count: 1, wait_ms: 0 };
        let deadline_ms = OPERATION_TIME_MAX.as_millis() as u32;
        let sent = self.requests.send(StreamedRead { number: reader as u64, deadline_ms, read: Some(read) });
        sent.map_err(|_| ended())?;
        response.await.ok().flatten().ok_or_else(ended)
    }
}

/// Passes each response to its reader.
async fn hand_out(mut answers: Streaming<ReadStreamResponse>, waiting: Rc<RefCell<Waiting>>) {
    while let Ok(Some(message)) = answers.message().await {
        for ReadAnswer { number, answer } in message.answers {
            if let Some(sender) = waiting.borrow_mut().get_mut(number as usize).and_then(Option::take) {
                // The reader may have been canceled at the end of a run.
                let _ = sender.send(answer);
            }
        }
    }
    waiting.borrow_mut().clear();
}

/// The request messages: each contains all reads queued when gRPC can send.
struct Feed(UnboundedReceiver<StreamedRead>);

impl Stream for Feed {
    type Item = ReadStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadStreamRequest>> {
        let mut reads = Vec::new();
        let count = ready!(self.0.poll_recv_many(context, &mut reads, MESSAGE_READS_MAX));
        Poll::Ready((count > 0).then_some(ReadStreamRequest { reads }))
    }
}
