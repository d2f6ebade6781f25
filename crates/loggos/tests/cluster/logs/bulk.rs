//! Reads of many entries by many clients that read all results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::log::{ReadRequest, ReadStreamRequest, StreamedRead, read_answer};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;
use tonic::codegen::tokio_stream;

use super::idle::append_and_read;
use super::input::log_client;
use crate::harness::{Cluster, runtime};

/// Connections, concurrent reads on each, and positions per read, of small entries.
const CONNECTIONS: usize = 24;
const READS: u64 = 100;
const COUNT: u32 = 1_000;
/// Timeout for all of them to complete.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum latency of small operations meanwhile. They once waited for all bulk reads, more than twice as long.
const SMALL_TIME_MAX: Duration = Duration::from_secs(5);

/// The results of the units exceed the output limit of a connection between nodes.
#[test]
fn bulk_reads_keep_peer_connections() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let log = cluster.client(2).with_deadline(PATIENCE).log("l");
        log.create().send().await.expect("a log");
        for number in 0..COUNT {
            let _ = log.append([Bytes::from(number.to_string())]).await.expect("an append");
        }
        let other = cluster.client(1).with_deadline(PATIENCE).log("other");
        other.create().send().await.expect("a log");
        // The first append activates the log's sequencer.
        let _ = other.append([Bytes::new()]).await.expect("an append");
        let is_over = Arc::new(AtomicBool::new(false));
        let small = tokio::spawn(append_and_read(other, Arc::clone(&is_over)));
        let began = Instant::now();
        let mut reading = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let client = log_client(&cluster, 1).await;
            reading.spawn(async move { timeout(PATIENCE, read_all(client)).await.expect("in time") });
        }
        let entries: usize = reading.join_all().await.into_iter().sum();
        is_over.store(true, Ordering::Relaxed);
        let of_small = small.await.expect("no panic");
        println!("{entries} entries in {:?}; an append and a read beside it: {of_small:?} at most", began.elapsed());
        assert!(of_small < SMALL_TIME_MAX, "{of_small:?}");
    });
    cluster.check_no_peer_was_given_up();
}

type Connection = api::log::log_client::LogClient<tonic::transport::Channel>;

/// Makes the reads in one stream and returns the number of entries. All clients share one thread: a stream that is not
/// polled for long may be reset to free memory, and the remaining reads are then retried.
async fn read_all(mut client: Connection) -> usize {
    let (mut told, mut entries) = (BTreeSet::new(), 0);
    while told.len() < READS as usize {
        let read = |number: u64| {
            let read = ReadRequest { log: "l".into(), start: 0, count: COUNT, wait_ms: 0 };
            StreamedRead { number, deadline_ms: PATIENCE.as_millis() as u32, read: Some(read) }
        };
        let reads = (0..READS).filter(|number| !told.contains(number)).map(read).collect();
        let message = tokio_stream::once(ReadStreamRequest { reads });
        let mut answers = client.read_stream(message).await.expect("a stream").into_inner();
        loop {
            let answers = match answers.message().await {
                Ok(Some(message)) => message.answers,
                Ok(None) => break,
                Err(status) if status.code() == Code::ResourceExhausted => break,
                Err(status) => panic!("{status}"),
            };
            for answer in answers {
                let Some(read_answer::Answer::Read(read)) = answer.answer else { panic!("{answer:?}") };
                assert!(!read.entries.is_empty() && told.insert(answer.number));
                entries += read.entries.len();
            }
        }
    }
    entries
}
