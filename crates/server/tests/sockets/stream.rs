//! Streams of the columns service over a real socket, in front of an in-memory node.

use std::collections::BTreeMap;
use std::time::Duration;

use api::columns::columns_client::ColumnsClient;
use api::columns::streamed_answer::Answer;
use api::columns::streamed_request::Request;
use api::columns::{self as message, StreamRequest, StreamResponse, StreamedRequest};
use api::common::error::Kind;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::served::{Served, get, put};

/// Timeout of any operation.
const PATIENCE: Duration = Duration::from_secs(5);

/// The client side of a stream.
struct ClientStream {
    requests: Option<mpsc::UnboundedSender<StreamRequest>>,
    answers: Streaming<StreamResponse>,
}

impl ClientStream {
    async fn begin(columns: &mut ColumnsClient<Channel>) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let answers = columns.stream(UnboundedReceiverStream::new(receiver)).await.expect("a stream").into_inner();
        Self { requests: Some(requests), answers }
    }

    fn send(&self, requests: Vec<StreamedRequest>) {
        let requests = StreamRequest { requests };
        self.requests.as_ref().expect("it is not over").send(requests).expect("the stream is open");
    }

    fn end(&mut self) {
        self.requests = None;
    }

    async fn next(&mut self) -> Result<Option<StreamResponse>, Status> {
        timeout(PATIENCE, self.answers.message()).await.expect("an answer, or the end")
    }

    /// The next `count` answers, by number.
    async fn responses(&mut self, count: usize) -> BTreeMap<u64, Answer> {
        let mut responses = BTreeMap::new();
        while responses.len() < count {
            let message = self.next().await.expect("no end").expect("more answers");
            for answer in message.answers {
                responses.insert(answer.number, answer.answer.expect("an answer"));
            }
        }
        responses
    }
}

fn numbered(number: u64, request: Request) -> StreamedRequest {
    StreamedRequest { number, deadline_ms: 0, request: Some(request) }
}

fn kind(answer: &Answer) -> Kind {
    let Answer::Refusal(refusal) = answer else { panic!("{answer:?}") };
    refusal.error.as_ref().expect("details").kind()
}

#[tokio::test]
async fn streamed_requests_fail_independently() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut stream = ClientStream::begin(&mut columns).await;
    let refused = message::ConditionalPutRequest {
        table: "t".into(),
        key: "k".into(),
        column: "c".into(),
        value: "v".into(),
        version: 7,
        stamp: None,
    };
    stream.send(vec![
        numbered(5, Request::Put(put("a", "1"))),
        numbered(6, Request::Put(put("", "no key"))),
        numbered(7, Request::ConditionalPut(refused)),
        StreamedRequest { number: 8, deadline_ms: 0, request: None },
        numbered(9, Request::Get(message::GetRequest { table: "u".into(), ..get("a") })),
        numbered(10, Request::Put(put("b", "2"))),
    ]);
    let responses = stream.responses(6).await;
    assert!(matches!(responses[&5], Answer::Write(_)));
    assert_eq!(kind(&responses[&6]), Kind::Invalid);
    assert_eq!(kind(&responses[&7]), Kind::VersionMismatch);
    assert_eq!(kind(&responses[&8]), Kind::Invalid);
    assert_eq!(kind(&responses[&9]), Kind::UnknownTable);
    assert!(matches!(responses[&10], Answer::Write(_)));

    stream.send(vec![numbered(11, Request::Get(get("a"))), numbered(12, Request::Get(get("b")))]);
    let responses = stream.responses(2).await;
    let value = |number| match &responses[&number] {
        Answer::Get(row) => row.cells[0].value.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((value(11), value(12)), ("1".into(), "2".into()));
}

#[tokio::test]
async fn slow_streamed_request_does_not_block() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut stream = ClientStream::begin(&mut columns).await;
    stream.send(vec![numbered(1, Request::Get(get("slow"))), numbered(2, Request::Get(get("k")))]);
    assert!(stream.responses(1).await.contains_key(&2));
    stream.end();
    assert!(stream.responses(1).await.contains_key(&1));
    assert_eq!(stream.next().await.expect("a clean end"), None);
}

#[tokio::test]
async fn streamed_request_deadlines() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut stream = ClientStream::begin(&mut columns).await;
    let silent = StreamedRequest { deadline_ms: 300, ..numbered(1, Request::Get(get("silent"))) };
    stream.send(vec![silent, numbered(2, Request::Get(get("silent")))]);
    let responses = stream.responses(1).await;
    assert_eq!(kind(&responses[&1]), Kind::Unavailable);
}

#[tokio::test]
async fn oversized_message_ends_stream_in_order() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mutations = vec![message::Mutation::default(); 1 << 20];
    let write = message::WriteRequest { table: "t".into(), key: "k".into(), mutations, stamp: None };
    for too_much in [vec![StreamedRequest::default(); 1_025], vec![numbered(2, Request::Write(write))]] {
        let mut stream = ClientStream::begin(&mut columns).await;
        stream.send(vec![numbered(1, Request::Get(get("slow")))]);
        stream.send(too_much);
        assert!(stream.responses(1).await.contains_key(&1));
        let status = stream.next().await.expect_err("the stream's end");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert_eq!(api::details::error(&status).expect("details").kind(), Kind::Invalid);
    }
    columns.get(get("k")).await.expect("the connection lives on");
}

#[tokio::test]
async fn stream_backpressure_on_pending_requests() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut stream = ClientStream::begin(&mut columns).await;
    let batch = |from: u64, key: &str| {
        (from..from + 1_024).map(|number| numbered(number, Request::Get(get(key)))).collect::<Vec<_>>()
    };
    stream.send(batch(0, "slow"));
    stream.send(batch(1_024, "slow"));
    stream.send(vec![numbered(9_999, Request::Get(get("k")))]);
    // It would have been answered at once, had it been read.
    let first = stream.next().await.expect("no end").expect("answers");
    assert!(first.answers.iter().all(|answer| answer.number != 9_999), "it was read");
    let responses = stream.responses(2_049 - first.answers.len()).await;
    assert!(responses.contains_key(&9_999));
}

#[tokio::test]
async fn stalled_reader_backpressure() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    columns.put(put("large", vec![7; 1 << 20])).await.expect("a write");
    let mut stream = ClientStream::begin(&mut columns).await;
    for from in (0..20).map(|batch| batch * 1_000) {
        stream.send((from..from + 1_000).map(|number| numbered(number, Request::Get(get("large")))).collect());
    }
    // A separate connection, since flow control windows are per connection.
    let mut other = served.columns().await;
    for _ in 0..100 {
        other.get(get("k")).await.expect("other connections are unaffected");
    }
    // Requests refused for lack of memory report that, and the others succeed.
    let responses = stream.responses(20_000).await;
    let (rows, refusals): (Vec<_>, Vec<_>) = responses.values().partition(|answer| matches!(answer, Answer::Get(_)));
    assert!(!rows.is_empty());
    assert!(refusals.iter().all(|refusal| kind(refusal) == Kind::Overloaded));
}

#[tokio::test]
async fn shutdown_drains_requests_and_ends_streams() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut idle = ClientStream::begin(&mut columns).await;
    let mut busy = ClientStream::begin(&mut columns).await;
    busy.send(vec![numbered(1, Request::Get(get("slow"))), numbered(2, Request::Get(get("k")))]);
    assert!(busy.responses(1).await.contains_key(&2));
    served.close();
    assert!(busy.responses(1).await.contains_key(&1));
    for stream in [&mut idle, &mut busy] {
        let status = stream.next().await.expect_err("the stream's end");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

/// The memory for a request is released with its answer: nothing remains after a hundred times the limit.
#[tokio::test]
async fn stream_request_count_is_unlimited() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut stream = ClientStream::begin(&mut columns).await;
    for _ in 0..300 {
        let requests = (0..1_000).map(|number| {
            // Some are refused before they reach the node.
            numbered(number, Request::Get(get(if number % 10 == 0 { "" } else { "k" })))
        });
        stream.send(requests.collect());
        let responses = stream.responses(1_000).await;
        let refused = responses.values().filter(|answer| matches!(answer, Answer::Refusal(_)));
        assert_eq!(refused.map(kind).collect::<Vec<_>>(), vec![Kind::Invalid; 100]);
    }
}
