//! Validation of log service requests, including requests that no client library would make.

use std::time::{Duration, Instant};

use api::log as message;
use api::log::append_answer::Answer;
use api::log::log_client::LogClient;
use api::log::log_entry::Content;
use base::limits::{LOG_POSITION_MAX, LOG_READ_MAX};
use bytes::Bytes;
use tonic::codegen::tokio_stream::{self, StreamExt as _};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::harness::{Cluster, runtime};

/// Limits of a batch, as in the service definition.
const BATCH_BYTES_MAX: usize = 4 << 20;
const RECORDS_MAX: usize = 65_536;
/// Framing of a batch with one record.
const RECORD_FRAMING: usize = 8;
/// Timeout of a response from a working node.
const SOON: Duration = Duration::from_secs(5);

/// A client of a node's log service.
pub(super) async fn log_client(cluster: &Cluster, node: u32) -> LogClient<Channel> {
    let address = format!("http://127.0.0.1:{}", cluster.grpc_port(node));
    let channel = Channel::from_shared(address).expect("an address").connect().await.expect("the port is open");
    LogClient::new(channel).max_decoding_message_size(64 << 20).max_encoding_message_size(64 << 20)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, says: &[&str]) {
    let status = answer.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status:?}");
    says.iter().for_each(|part| assert!(status.message().contains(part), "{part:?} is not said: {status:?}"));
}

fn append(log: &str, records: Vec<Bytes>) -> message::AppendRequest {
    message::AppendRequest { log: log.into(), records, ..Default::default() }
}

fn read(from: u64, count: u32) -> message::ReadRequest {
    message::ReadRequest { log: "l".into(), start: from, count, wait_ms: 0 }
}

fn zeros(bytes: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![0; bytes])]
}

#[test]
fn invalid_log_requests_are_rejected() {
    let cluster = Cluster::of(3);
    let pids = || cluster.nodes().map(|node| cluster.pid(node)).collect::<Vec<_>>();
    let before = pids();
    runtime().block_on(async {
        let mut client = log_client(&cluster, 1).await;
        creations(&mut client).await;
        names(&mut client).await;
        appends(&mut client).await;
        streamed_appends(&mut client).await;
        stamps(&mut client).await;
        reads(&mut client).await;
        subscriptions(&mut client).await;
        trims(&mut client).await;
        let position = client.append(append("l", zeros(1))).await.expect("a good append").into_inner().position;
        let entry = client.read(read(position, 1)).await.expect("a good read").into_inner().entries;
        assert_eq!(entry.len(), 1);
    });
    assert_eq!(pids(), before, "a node ended");
}

async fn creations(client: &mut LogClient<Channel>) {
    let mut create = async |stripes, copies| {
        let request = message::CreateLogRequest { log: "l".into(), stripes, copies };
        client.create_log(request).await.map(|answer| answer.into_inner().existed)
    };
    refused(create(17, 0).await, Code::InvalidArgument, &["17 stripes", "limit of 16"]);
    refused(create(u32::MAX, 0).await, Code::InvalidArgument, &["4294967295 stripes"]);
    refused(create(0, 6).await, Code::InvalidArgument, &["6 copies", "limit of 5"]);
    refused(create(0, u32::MAX).await, Code::InvalidArgument, &["4294967295 copies"]);
    refused(create(1, 4).await, Code::FailedPrecondition, &["4", "3"]);
    assert!(!create(0, 0).await.expect("as is usual"));
    assert!(create(0, 0).await.expect("it is there"));
    assert!(create(1, 2).await.expect("it is there, as that"));
    refused(create(2, 2).await, Code::AlreadyExists, &["log l", "1"]);
}

async fn names(client: &mut LogClient<Channel>) {
    let long = "n".repeat(129);
    let says: [(&str, &str); 8] = [
        ("", "the log's name is empty"),
        (" ", "contains ' '"),
        ("a/b", "contains '/'"),
        ("a\nb", r"contains '\n'"),
        ("журнал", "contains 'ж'"),
        ("\0", r"contains '\0'"),
        (&long, "129"),
        (&"n".repeat(1_000), "1000"),
    ];
    for (name, says) in says {
        let log = || name.to_owned();
        let code = Code::InvalidArgument;
        let create = message::CreateLogRequest { log: log(), stripes: 0, copies: 0 };
        refused(client.create_log(create).await, code, &[says]);
        refused(client.describe_log(message::DescribeLogRequest { log: log() }).await, code, &[says]);
        refused(client.append(append(name, zeros(1))).await, code, &[says]);
        refused(client.read(message::ReadRequest { log: log(), ..read(0, 1) }).await, code, &[says]);
        refused(client.tail(message::TailRequest { log: log() }).await, code, &[says]);
        refused(client.trim(message::TrimRequest { log: log(), before: 0 }).await, code, &[says]);
        refused(client.subscribe(message::SubscribeRequest { log: log(), start: 0 }).await, code, &[says]);
    }
    let (log, code, says) = (|| "m".to_owned(), Code::NotFound, ["no log named \"m\""]);
    refused(client.describe_log(message::DescribeLogRequest { log: log() }).await, code, &says);
    refused(client.append(append("m", zeros(1))).await, code, &says);
    refused(client.read(message::ReadRequest { log: log(), ..read(0, 1) }).await, code, &says);
    refused(client.tail(message::TailRequest { log: log() }).await, code, &says);
    refused(client.trim(message::TrimRequest { log: log(), before: 0 }).await, code, &says);
    refused(client.trim_position(message::TrimPositionRequest { log: log(), position: 0 }).await, code, &says);
    let subscription = client.subscribe(message::SubscribeRequest { log: log(), start: 0 }).await;
    refused(subscription.expect("it begins").into_inner().message().await, code, &says);
}

async fn appends(client: &mut LogClient<Channel>) {
    let largest = BATCH_BYTES_MAX - RECORD_FRAMING;
    refused(client.append(append("l", vec![])).await, Code::InvalidArgument, &["no record"]);
    let position = client.append(append("l", vec![Bytes::new()])).await.expect("an empty record").into_inner().position;
    let entries = client.read(read(position, 1)).await.expect("a read").into_inner().entries;
    assert!(matches!(&entries[0].content, Some(Content::Data(data)) if data.records == [Bytes::new()]));

    let position = client.append(append("l", zeros(largest))).await.expect("the largest").into_inner().position;
    let entries = client.read(read(position, 1)).await.expect("a read").into_inner().entries;
    assert!(matches!(&entries[0].content, Some(Content::Data(data)) if data.records[0].len() == largest));
    let says = ["a record of 4194297 bytes", "the limit of 4194296 bytes"];
    refused(client.append(append("l", zeros(largest + 1))).await, Code::InvalidArgument, &says);
    refused(client.append(append("l", zeros(BATCH_BYTES_MAX + 1))).await, Code::InvalidArgument, &says[1..]);
    // A message over the size limit is rejected before it is read completely.
    let answer = client.append(append("l", zeros(32 << 20))).await;
    assert!(matches!(answer.expect_err("too large").code(), Code::OutOfRange | Code::ResourceExhausted));

    client.append(append("l", vec![Bytes::new(); RECORDS_MAX])).await.expect("the most records");
    let many = |more| append("l", vec![Bytes::new(); RECORDS_MAX + more]);
    refused(
        client.append(many(1)).await,
        Code::InvalidArgument,
        &["65537 records", "the limit of 65536 records per append"],
    );
    refused(client.append(many(100_000)).await, Code::InvalidArgument, &["fields"]);
}

async fn streamed_appends(client: &mut LogClient<Channel>) {
    let largest = BATCH_BYTES_MAX - RECORD_FRAMING;
    let requests = [
        append("l", zeros(1)),
        append("l", vec![]),
        append("l", zeros(largest + 1)),
        append("m", zeros(1)),
        append("a b", zeros(1)),
        append("l", zeros(2)),
    ];
    let streamed = (0..).zip(requests).map(|(number, append)| message::StreamedAppend {
        number,
        deadline_ms: 5_000,
        append: Some(append),
    });
    let nothing = message::StreamedAppend { number: 6, deadline_ms: 0, append: None };
    let appends = streamed.chain([nothing]).collect();
    let batches = tokio_stream::iter([message::AppendStreamRequest { appends }]).chain(tokio_stream::pending());
    let mut answers = client.append_stream(batches).await.expect("a stream").into_inner();
    let mut told = std::collections::BTreeMap::new();
    while told.len() < 7 {
        let batch = tokio::time::timeout(SOON, answers.message()).await.expect("in time").expect("no end");
        for answer in batch.expect("no end").answers {
            let said = match answer.answer.expect("something") {
                Answer::Append(_) => "done".to_owned(),
                Answer::Refusal(refusal) => refusal.message,
            };
            told.insert(answer.number, said);
        }
    }
    let says =
        ["done", "no record", "4194296 bytes", "no log named \"m\"", "contains ' '", "done", "unknown kind of request"];
    for (number, says) in (0..).zip(says) {
        assert!(told[&number].contains(says), "{number}: {says:?} is not said: {told:?}");
    }
}

async fn stamps(client: &mut LogClient<Channel>) {
    let mut stamped = async |id, sequence| {
        let stamp = Some(message::Stamp { client: id, sequence });
        client
            .append(message::AppendRequest { stamp, ..append("l", zeros(1)) })
            .await
            .map(|answer| answer.into_inner().position)
    };
    refused(stamped(7, 0).await, Code::InvalidArgument, &["numbered from 1"]);
    refused(stamped(1 << 63, 1).await, Code::InvalidArgument, &["client 9223372036854775808 is reserved"]);
    let first = stamped(7, u64::MAX).await.expect("any sequence");
    assert_eq!(stamped(7, u64::MAX).await.expect("again"), first + 1, "it lies at another position");
}

async fn reads(client: &mut LogClient<Channel>) {
    let tail = client.tail(message::TailRequest { log: "l".into() }).await.expect("a tail").into_inner().position;
    let entries = async |client: &mut LogClient<Channel>, request| {
        client.read(request).await.map(|answer| answer.into_inner().entries.len())
    };
    assert_eq!(entries(client, read(tail, 1)).await.expect("beyond the tail"), 0);
    assert_eq!(entries(client, read(tail + 1_000_000, LOG_READ_MAX)).await.expect("far beyond the tail"), 0);
    assert_eq!(entries(client, read(LOG_POSITION_MAX - 1, 2)).await.expect("as far as can be"), 0);
    assert_eq!(entries(client, read(0, 0)).await.expect("0 is one"), 1);
    let says = ["1001 positions", "limit of 1000"];
    refused(entries(client, read(0, LOG_READ_MAX + 1)).await, Code::InvalidArgument, &says);
    refused(entries(client, read(0, u32::MAX)).await, Code::InvalidArgument, &["4294967295 positions"]);
    for beyond in [LOG_POSITION_MAX, u64::MAX] {
        refused(entries(client, read(beyond, 1)).await, Code::InvalidArgument, &["is out of range"]);
    }
    // A wait of weeks ends with the call's deadline.
    let mut call = tonic::Request::new(message::ReadRequest { wait_ms: u32::MAX, ..read(tail, 1) });
    call.set_timeout(Duration::from_secs(1));
    let began = Instant::now();
    let answer = client.read(call).await.map(|answer| answer.into_inner().entries.len());
    assert!(began.elapsed() < SOON, "{:?}: {answer:?}", began.elapsed());
    if let Err(status) = answer {
        assert!(matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    }
}

async fn subscriptions(client: &mut LogClient<Channel>) {
    let subscribe = |start| message::SubscribeRequest { log: "l".into(), start };
    refused(client.subscribe(subscribe(u64::MAX)).await, Code::InvalidArgument, &["is out of range"]);
    // Beyond the tail it waits, and sends heartbeats.
    let mut waits = client.subscribe(subscribe(1_000_000)).await.expect("it begins").into_inner();
    let told = tokio::time::timeout(SOON, waits.message()).await.expect("in time").expect("no end").expect("no end");
    assert!(told.entries.is_empty() && told.next == 1_000_000, "{told:?}");
}

async fn trims(client: &mut LogClient<Channel>) {
    let tail = client.tail(message::TailRequest { log: "l".into() }).await.expect("a tail").into_inner().position;
    let trim = async |client: &mut LogClient<Channel>, before| {
        client.trim(message::TrimRequest { log: "l".into(), before }).await.map(|_| ())
    };
    let only = async |client: &mut LogClient<Channel>, position| {
        client.trim_position(message::TrimPositionRequest { log: "l".into(), position }).await.map(|_| ())
    };
    refused(trim(client, tail + 1).await, Code::FailedPrecondition, &["the log ends at position"]);
    refused(trim(client, u64::MAX).await, Code::InvalidArgument, &["is out of range"]);
    refused(only(client, tail).await, Code::FailedPrecondition, &["the log ends at position"]);
    refused(only(client, LOG_POSITION_MAX).await, Code::InvalidArgument, &["is out of range"]);
    refused(only(client, u64::MAX).await, Code::InvalidArgument, &["is out of range"]);
    let first = async |client: &mut LogClient<Channel>, from| {
        let entries = client.read(read(from, 2)).await.expect("a read").into_inner().entries;
        entries.first().and_then(|entry| entry.content.clone())
    };
    trim(client, 0).await.expect("nothing");
    assert!(matches!(first(client, 0).await, Some(Content::Data(_))));
    trim(client, 2).await.expect("two positions");
    trim(client, 1).await.expect("done before");
    only(client, 0).await.expect("done before");
    only(client, tail - 1).await.expect("the last");
    only(client, tail - 1).await.expect("done before");
    assert!(matches!(first(client, 0).await, Some(Content::Trimmed(trimmed)) if trimmed.before == 2));
    assert!(matches!(first(client, tail - 1).await, Some(Content::Trimmed(trimmed)) if trimmed.before == 2));
    trim(client, tail).await.expect("all of it");
    trim(client, tail).await.expect("done before");
    assert!(matches!(first(client, tail - 1).await, Some(Content::Trimmed(trimmed)) if trimmed.before == tail));
    assert_eq!(client.append(append("l", zeros(1))).await.expect("it goes on").into_inner().position, tail);
}
