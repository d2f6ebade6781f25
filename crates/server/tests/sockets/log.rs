//! The log service over a real socket, in front of an in-memory node.

use std::time::Duration;

use api::common::error::Kind;
use api::log::log_client::LogClient;
use api::log::log_entry::Content;
use api::log::{self as message, AppendStreamRequest, StreamedAppend, append_answer};
use bytes::Bytes;
use sharedlog::validate::{COORDINATION_LOG, TRANSLATION_SERVER_KEY};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::served::Served;

/// Timeout of any operation.
const PATIENCE: Duration = Duration::from_secs(5);

fn append(records: &[&'static str]) -> message::AppendRequest {
    let records = records.iter().map(|record| Bytes::from_static(record.as_bytes())).collect();
    message::AppendRequest { log: "l".into(), records, ..Default::default() }
}

async fn append_many(log: &mut LogClient<Channel>, count: u64) {
    let appends = |from: u64| {
        let append = |number| StreamedAppend { number, deadline_ms: 0, append: Some(append(&["r"])) };
        AppendStreamRequest { appends: (from..(from + 100).min(count)).map(append).collect() }
    };
    let messages: Vec<_> = (0..count).step_by(100).map(appends).collect();
    let mut answers = log.append_stream(tokio_stream::iter(messages)).await.expect("a stream").into_inner();
    let mut responses = 0;
    while let Some(message) = answers.message().await.expect("no refusal") {
        responses += message.answers.len() as u64;
        for answer in message.answers {
            assert!(matches!(answer.answer, Some(append_answer::Answer::Append(_))), "{answer:?}");
        }
    }
    assert_eq!(responses, count);
}

async fn subscribe(log: &mut LogClient<Channel>, from: u64) -> Streaming<message::SubscribeResponse> {
    let request = message::SubscribeRequest { log: "l".into(), start: from };
    log.subscribe(request).await.expect("a subscription").into_inner()
}

async fn next(entries: &mut Streaming<message::SubscribeResponse>) -> message::SubscribeResponse {
    timeout(PATIENCE, entries.message()).await.expect("in time").expect("no end").expect("a message")
}

/// All entries from one position to another, in order and without gaps.
async fn entries_until(
    entries: &mut Streaming<message::SubscribeResponse>,
    from: u64,
    to: u64,
) -> Vec<message::LogEntry> {
    let (mut at, mut received) = (from, Vec::new());
    while at < to {
        let message = next(entries).await;
        for entry in message.entries {
            assert_eq!(entry.position, at);
            at = match &entry.content {
                Some(Content::Trimmed(trimmed)) => trimmed.before.max(at + 1),
                _ => at + 1,
            };
            received.push(entry);
        }
        assert_eq!(message.next, at);
    }
    received
}

#[tokio::test]
async fn append_read_round_trip() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let stamp = Some(message::Stamp { client: 7, sequence: 1 });
    let first = log.append(message::AppendRequest { stamp, ..append(&["a", ""]) }).await.expect("an append");
    assert_eq!(first.into_inner().position, 0);
    log.append(append(&["b"])).await.expect("an append");
    let read = message::ReadRequest { log: "l".into(), start: 0, count: 9, wait_ms: 0 };
    let entries = log.read(read.clone()).await.expect("a read").into_inner().entries;
    assert_eq!(entries.len(), 2);
    let Some(Content::Data(data)) = &entries[0].content else { panic!("{entries:?}") };
    assert_eq!((&data.records[..], data.stamp), (&["a".into(), Bytes::new()][..], stamp));
    assert_eq!(log.tail(message::TailRequest { log: "l".into() }).await.expect("a tail").into_inner().position, 2);

    log.trim_position(message::TrimPositionRequest { log: "l".into(), position: 1 }).await.expect("a trim");
    log.trim(message::TrimRequest { log: "l".into(), before: 1 }).await.expect("a trim");
    let entries = log.read(read).await.expect("a read").into_inner().entries;
    let marks: Vec<_> = entries.iter().map(|entry| (entry.position, entry.content.clone())).collect();
    let trimmed = |before| Some(Content::Trimmed(message::Trimmed { before }));
    assert_eq!(marks, [(0, trimmed(1)), (1, trimmed(0))]);
}

/// The node of this test has no coordination log, so a request that passes the check fails as one of an unknown log.
#[tokio::test]
async fn coordination_log_rejects_other_writers() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let mut code = async |name: &str, key: Option<&'static str>| {
        let mut request = tonic::Request::new(message::AppendRequest { log: name.into(), ..append(&["r"]) });
        if let Some(key) = key {
            request.metadata_mut().insert(key, "1".parse().expect("a value"));
        }
        log.append(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    let key = Some(TRANSLATION_SERVER_KEY);
    assert_eq!(code(COORDINATION_LOG, None).await, Code::InvalidArgument);
    assert_eq!(code(COORDINATION_LOG, key).await, Code::NotFound);
    assert_eq!(code("l", None).await, Code::Ok);
    assert_eq!(code("l", key).await, Code::InvalidArgument);
}

#[tokio::test]
async fn invalid_append_error_kinds() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let mut check = async |request: message::AppendRequest, code: Code, kind: Kind| {
        let status = log.append(request).await.expect_err("a refusal");
        assert_eq!(status.code(), code, "{status}");
        assert_eq!(api::details::error(&status).expect("details").kind(), kind);
        status.message().to_owned()
    };
    check(append(&[]), Code::InvalidArgument, Kind::Invalid).await;
    check(message::AppendRequest { log: "a/b".into(), ..append(&["r"]) }, Code::InvalidArgument, Kind::Invalid).await;
    let unknown = message::AppendRequest { log: "m".into(), ..append(&["r"]) };
    assert!(check(unknown, Code::NotFound, Kind::UnknownLog).await.contains("\"m\""));
    let many = message::AppendRequest { records: vec![Bytes::new(); 65_537], ..append(&[]) };
    assert!(
        check(many, Code::InvalidArgument, Kind::Invalid)
            .await
            .contains("exceed the limit of 65536 records per append")
    );
    let countless = message::AppendRequest { records: vec![Bytes::new(); 1 << 20], ..append(&[]) };
    assert!(check(countless, Code::InvalidArgument, Kind::Invalid).await.contains("65552 fields"));

    let far = message::ReadRequest { log: "l".into(), start: u64::MAX, count: 1, wait_ms: 0 };
    assert_eq!(log.read(far).await.expect_err("a refusal").code(), Code::InvalidArgument);
    let unknown = message::SubscribeRequest { log: "m".into(), start: 0 };
    let mut entries = log.subscribe(unknown).await.expect("a subscription").into_inner();
    assert_eq!(entries.message().await.expect_err("a refusal").code(), Code::NotFound);
}

/// Reads return the content of each position; a subscription delivers each stamp once from its start.
#[tokio::test]
async fn subscription_deduplicates_stamps() {
    let served = Served::start().await;
    let mut log = served.log().await;
    for sequence in [1, 2, 1, 3, 2] {
        let stamp = Some(message::Stamp { client: 7, sequence });
        log.append(message::AppendRequest { stamp, ..append(&["r"]) }).await.expect("an append");
    }
    let is_data = |entry: &message::LogEntry| match entry.content {
        Some(Content::Data(_)) => true,
        Some(Content::Repeated(_)) => false,
        _ => panic!("{entry:?}"),
    };
    let read = message::ReadRequest { log: "l".into(), start: 0, count: 9, wait_ms: 0 };
    let entries = log.read(read).await.expect("a read").into_inner().entries;
    assert!(entries.iter().all(is_data));
    for (from, delivered) in [(0, vec![true, true, false, true, false]), (1, vec![true, true, true, false])] {
        let mut entries = subscribe(&mut log, from).await;
        let received = entries_until(&mut entries, from, 5).await;
        assert_eq!(received.iter().map(is_data).collect::<Vec<_>>(), delivered);
    }
}

#[tokio::test]
async fn subscription_catches_up_then_follows() {
    let served = Served::start().await;
    let mut log = served.log().await;
    append_many(&mut log, 5_000).await;
    log.trim(message::TrimRequest { log: "l".into(), before: 1_000 }).await.expect("a trim");
    let mut entries = subscribe(&mut log, 10).await;
    let received = entries_until(&mut entries, 10, 5_000).await;
    assert_eq!(received[0].content, Some(Content::Trimmed(message::Trimmed { before: 1_000 })));
    assert_eq!(received.len(), 4_001, "a trimmed range is one entry");
    for position in 5_000..5_010 {
        log.append(append(&["late"])).await.expect("an append");
        assert_eq!(entries_until(&mut entries, position, position + 1).await.len(), 1);
    }
}

#[tokio::test]
async fn idle_subscription_sends_keepalive() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let mut entries = subscribe(&mut log, 3).await;
    for _ in 0..2 {
        assert_eq!(next(&mut entries).await, message::SubscribeResponse { entries: vec![], next: 3 });
    }
    append_many(&mut log, 5).await;
    assert_eq!(entries_until(&mut entries, 3, 5).await.len(), 2);
}

#[tokio::test]
async fn stalled_subscriber_stops_log_reads() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let large = message::AppendRequest { records: vec![vec![7; 64 << 10].into()], ..append(&[]) };
    for _ in 0..500 {
        log.append(large.clone()).await.expect("an append");
    }
    let _entries = subscribe(&mut log, 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = served.log_reads();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(served.log_reads(), before);
    assert!(before < 40, "{before} reads of 8 entries each");
}

/// The entries together exceed both the response memory and the limit of reads in flight.
#[tokio::test]
async fn stalled_subscribers_starve_no_others() {
    let served = Served::start().await;
    let mut log = served.log().await;
    let large = message::AppendRequest { records: vec![vec![7; 3 << 20].into()], ..append(&[]) };
    for _ in 0..8 {
        log.append(large.clone()).await.expect("an append");
    }
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut log = served.log().await;
        for _ in 0..20 {
            idle.push(subscribe(&mut log, 0).await);
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut alone = served.log().await;
    let mut takes = subscribe(&mut alone, 0).await;
    assert_eq!(entries_until(&mut takes, 0, 8).await.len(), 8);
    let read = message::ReadRequest { log: "l".into(), start: 0, count: 9, wait_ms: 0 };
    assert_eq!(
        timeout(PATIENCE, alone.read(read)).await.expect("in time").expect("a read").into_inner().entries.len(),
        1
    );
}

/// Each on its own connection: their messages would take 60 MiB of the 32 MiB available.
#[tokio::test]
async fn memory_pressure_resets_idle_subscribers() {
    let served = Served::with_client_memory(64 << 20).await;
    let mut log = served.log().await;
    log.append(message::AppendRequest { records: vec![vec![7; 3 << 20].into()], ..append(&[]) })
        .await
        .expect("an append");
    let mut idle = Vec::new();
    // The default initial HTTP/2 window.
    let endpoint = served.endpoint().initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    for _ in 0..20 {
        let channel = endpoint.connect().await.expect("the endpoint is open");
        let mut log = LogClient::new(channel).max_decoding_message_size(64 << 20);
        idle.push((subscribe(&mut log, 0).await, log));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Most must wait until other subscribers have been idle for a while.
    let mut takes = subscribe(&mut log, 0).await;
    assert_eq!(entries_until(&mut takes, 0, 1).await.len(), 1);
    let reset = timeout(PATIENCE, idle[0].0.message())
        .await
        .expect("in time")
        .map(drop)
        .expect_err("the slowest consumer is reset");
    assert_eq!(reset.code(), Code::ResourceExhausted, "{reset}");
}

#[tokio::test]
async fn a_closing_local_read_ends_its_subscriptions() {
    let served = Served::start().await;
    let mut log = served.log().await;
    append_many(&mut log, 1).await;
    let mut entries = subscribe(&mut log, 0).await;
    entries_until(&mut entries, 0, 1).await;
    served.close();
    let ended = timeout(PATIENCE, async {
        loop {
            if let Err(status) = entries.message().await {
                return status;
            }
        }
    });
    assert_eq!(ended.await.expect("in time").code(), Code::Unavailable);
}
