use std::collections::VecDeque;
use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use base::Timestamp;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use node::request::{Outcome, Request, Response};
use sharedlog::Position;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use tablets::TableResponse;
use tablets::request::Cell;
use tonic::{Code, Status};

use super::log_reads::LogRead;
use super::replies::{Replies, Reply};
use super::*;
use crate::Ticketed;
use crate::limits::READ_BYTES_MAX;

const MIB: usize = 1 << 20;

/// A body of these messages.
struct Messages(VecDeque<Bytes>);

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|message| Ok(Frame::data(message))))
    }
}

fn message(bytes: usize, seed: u8) -> Bytes {
    (0..bytes).map(|place| (place % 251) as u8 ^ seed).collect()
}

fn response<const N: usize>(connection: &Arc<Connection>, messages: [Bytes; N]) -> (Arc<Call>, ResponseBody) {
    let call = Call::begin(connection).expect("there is room");
    let body = ResponseBody::new(Body::new(Messages(messages.into())), Arc::clone(&call));
    (call, body)
}

fn poll(body: &mut ResponseBody) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

/// A chunk, if there is one now.
fn chunk(body: &mut ResponseBody) -> Option<Bytes> {
    match poll(body) {
        Poll::Ready(Some(frame)) => Some(frame.expect("the response continues").into_data().expect("data")),
        Poll::Ready(None) | Poll::Pending => None,
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Half of the bytes for requests, half for responses.
fn halves(bytes: usize) -> ClientMemory {
    let [grpc_requests, grpc_responses] = [bytes / 2; 2].map(ByteBudget::new);
    ClientMemory::new(ClientBudgets { grpc_requests, grpc_responses, ..ClientBudgets::new(bytes) })
}

#[test]
fn response_chunking_and_accounting() {
    let memory = ClientMemory::new(ClientBudgets::new(64 * MIB));
    let connection = memory.connection();
    for bytes in [1, CHUNK_BYTES, CHUNK_BYTES + 1, 10 * CHUNK_BYTES + 7] {
        let messages = [message(bytes, 1), message(100, 2), message(bytes, 3)];
        let whole: Vec<u8> = messages.iter().flatten().copied().collect();
        let (call, mut body) = response(&connection, messages);
        let mut came = Vec::new();
        while let Some(chunk) = chunk(&mut body) {
            assert!(chunk.len() <= CHUNK_BYTES);
            assert!(
                chunk.len() <= SMALL_BYTES || memory.responses.used() >= chunk.len(),
                "unsent chunks are not counted"
            );
            came.extend_from_slice(&chunk);
        }
        assert!(came == whole, "{bytes} bytes");
        assert_eq!((memory.responses.used(), memory.requests.used()), (0, CALL_BYTES));
        drop((call, body));
        assert_eq!(memory.requests.used(), 0);
        assert!(lock(&connection.calls).1.is_empty());
    }
}

#[test]
fn transport_buffers_two_chunks() {
    let memory = ClientMemory::new(ClientBudgets::new(64 * MIB));
    let (_call, mut body) = response(&memory.connection(), [message(4 * CHUNK_BYTES, 0)]);
    let first = chunk(&mut body).expect("a first chunk");
    let second = chunk(&mut body).expect("a second chunk");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed));
    drop(first);
    assert!(woken.0.load(Ordering::Relaxed));
    let third = chunk(&mut body).expect("there is room again");
    assert!(poll(&mut body).is_pending());
    // HTTP/2 drops the body before the last chunks are written.
    drop(body);
    assert_eq!(memory.responses.used(), 2 * CHUNK_BYTES);
    drop((second, third));
    assert_eq!(memory.responses.used(), 0);
}

#[test]
fn resets_idle_response() {
    let memory = ClientMemory::new(ClientBudgets::new(64 * MIB));
    let (call, mut body) = response(&memory.connection(), [message(4 * CHUNK_BYTES, 0)]);
    let long_ago = || Instant::now().checked_sub(RESPONSE_IDLE_MAX).expect("the machine runs for longer");
    *lock(&call.progress_at) = long_ago();
    assert!(!call.reset_if_idle(), "HTTP/2 has no unsent chunks");
    let first = chunk(&mut body).expect("a first chunk");
    assert!(!call.reset_if_idle(), "it made progress recently");
    *lock(&call.progress_at) = long_ago();
    assert!(call.reset_if_idle() && !call.reset_if_idle());
    assert_eq!(memory.responses.used(), CHUNK_BYTES, "the rest was dropped");
    let Poll::Ready(Some(Err(status))) = poll(&mut body) else { panic!("not reset") };
    assert_eq!(status.code(), Code::ResourceExhausted);
    let source = status.source().and_then(|source| source.downcast_ref::<h2::Error>()).expect("a reason");
    assert_eq!(source.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
    drop(first);
    assert_eq!(memory.responses.used(), 0);
}

#[test]
fn counts_request_bytes_on_arrival() {
    let memory = halves(2 * MIB);
    let connection = memory.connection();
    let calls = [(); 2].map(|()| Call::begin(&connection).expect("there is room"));
    let [mut first, mut second] = calls.clone().map(|call| {
        let messages = VecDeque::from([message(MIB / 8, 0), message(MIB / 2, 0)]);
        RequestBody { inner: Body::new(Messages(messages)), call, patience: None }
    });
    let poll = |body: &mut RequestBody| Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
    let is_taken = |frame| matches!(frame, Poll::Ready(Some(Ok(_))));
    assert!(is_taken(poll(&mut first)) && is_taken(poll(&mut second)) && is_taken(poll(&mut first)));
    let Poll::Ready(Some(Err(refused))) = poll(&mut second) else { panic!("there is no room") };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(Held::of(&connection).reserve(MIB / 2).is_err());
    calls[0].message_taken();
    assert!(Held::of(&connection).reserve(MIB / 2).is_ok());
    let more: Vec<_> = std::iter::from_fn(|| Call::begin(&connection).ok()).collect();
    assert!(more.len() < MIB / CALL_BYTES, "the node has no room for another call");
    drop((calls, more, first, second));
    assert_eq!(memory.requests.used(), 0);
}

fn row(bytes: usize) -> Outcome {
    Ok(Response::Tablet(TableResponse::row(vec![Cell {
        column: "c".into(),
        value: vec![0; bytes].into(),
        version: Timestamp(1),
    }])))
}

#[test]
fn answers_without_memory_are_refused() {
    let memory = halves(2 * MIB);
    let replies = Replies::new(&memory.connection());
    let take = || replies.take(&Context::from_waker(Waker::noop()));
    replies.give(1, row(MIB - 1_024));
    replies.give(2, row(1_024));
    replies.give(3, Ok(Response::Tablet(TableResponse::Written { version: Timestamp(1) })));
    let taken: Vec<Reply> = take();
    assert!(taken[0].outcome.is_ok() && taken[2].outcome.is_ok());
    assert!(matches!(taken[1].outcome, Err(Failure::Overloaded(_))));
    drop(taken);
    replies.give(4, row(1_024));
    assert!(memory.responses.used() > 1_024);
    replies.give_up();
    replies.give(5, row(1_024));
    assert_eq!((memory.responses.used(), take().len()), (0, 0), "the stream has ended");
}

fn read_of(count: u32, wait_ms: u64) -> LogRead {
    let wait = base::Duration::from_millis(wait_ms);
    let request = LogRequest::Read { log: "l".into(), from: Position(7), count, wait, bytes: READ_BYTES_MAX };
    LogRead::of(&Request::Log(request)).expect("a read")
}

fn entries(count: u64) -> Outcome {
    let entry = |position| LogEntry { position: Position(7 + position), content: Content::Junk };
    Ok(Response::Log(LogResponse::Entries((0..count).map(entry).collect())))
}

const LARGER: Outcome = Ok(Response::Log(LogResponse::Larger));

#[test]
fn log_read_grows_request_on_demand() {
    let memory = ClientMemory::new(ClientBudgets::new(64 * MIB));
    let connection = memory.connection();
    let asked = |read: &LogRead| match read.try_ask(&connection).expect("there is room").0 {
        Request::Log(LogRequest::Read { count, bytes, .. }) => (count, bytes),
        other => panic!("{other:?}"),
    };
    let mut read = read_of(10, 500);
    assert!(read.try_ask(&connection).is_none(), "the read must wait for memory");
    assert!(read.needs_another_read(&entries(1)));
    assert_eq!(asked(&read), (10, 160 << 10));
    assert!(read.needs_another_read(&LARGER));
    assert_eq!(asked(&read), (10, READ_BYTES_MAX));
    assert!(!read.needs_another_read(&entries(3)) && !read.needs_another_read(&LARGER));
    assert!(
        !read_of(1, 500).needs_another_read(&entries(1)) && !read_of(10, 500).needs_another_read(&entries(0)),
        "the read is complete"
    );
    assert_eq!((memory.responses.used(), memory.log_reads.0.used()), (0, 0));
}

/// A node that answers reads on notification.
#[derive(Default)]
struct Slow(tokio::sync::Notify);

impl crate::Gateway for Slow {
    async fn submit(&self, _: Request, _: Duration, _held: Held) -> Outcome {
        self.0.notified().await;
        entries(1)
    }

    fn submit_all(&self, _: Vec<Ticketed>, _: &Arc<Replies>) {}
}

#[tokio::test]
async fn reads_wait_for_memory_in_order() {
    let memory = Arc::new(ClientMemory::new(ClientBudgets::new(256 * MIB)));
    let (connection, node) = (memory.connection(), Arc::new(Slow::default()));
    let deadline = Instant::now() + Duration::from_secs(10);
    let read = || {
        let (node, connection) = (Arc::clone(&node), Arc::clone(&connection));
        tokio::spawn(async move { read_of(1_000, 0).carry_out(&*node, &connection, deadline).await })
    };
    let reads: Vec<_> = (0..40).map(|_| read()).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let under_way = memory.log_reads.0.used();
    assert!(under_way > LOG_READS_BYTES_MAX / 2 && under_way <= LOG_READS_BYTES_MAX, "{under_way}");
    let late = read_of(1, 0).carry_out(&*node, &connection, Instant::now()).await;
    assert!(matches!(late.0, Err(Failure::Overloaded(_))), "it timed out in the queue");
    reads[39].abort();
    while memory.log_reads.0.used() > 0 {
        node.0.notify_waiters();
        tokio::task::yield_now().await;
    }
    for (number, read) in reads.into_iter().enumerate() {
        assert!(number == 39 || read.await.expect("no panic").0 == entries(1));
    }
    assert_eq!((memory.responses.used(), memory.log_reads.0.used()), (0, 0));
}

#[test]
fn sessions_of_one_connection_are_limited() {
    let connection = ClientMemory::new(ClientBudgets::new(64 * MIB)).connection();
    let open = Request::table("t", tablets::request::TableRequest::OpenSession { key: "k".into() });
    let now = Instant::now();
    let opened = |now| (0..2_000).take_while(|_| connection.admit(&open, now).is_ok()).count();
    assert_eq!(opened(now), 1_000);
    assert_eq!(opened(now + Duration::from_secs(1)), 10);
    assert!(connection.admit(&Request::Status, now).is_ok(), "other requests are not counted");
}
