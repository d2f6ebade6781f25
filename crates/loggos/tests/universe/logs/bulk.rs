//! Reads of many entries by many clients, who take them all.

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
use super::input::door;
use crate::harness::{Universe, runtime};

/// Connections, each with so many reads at one time of so many positions in a row, of small entries.
const CONNECTIONS: usize = 24;
const READS: u64 = 100;
const COUNT: u32 = 1_000;
/// All of them have all of it within this.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is small waits no longer beside them: it waited for all of it once, twice as long and more.
const SMALL_TIME_MAX: Duration = Duration::from_secs(5);

/// What units answer is more than may wait for a node.
#[test]
fn bulk_reads_hold_up_nobody_and_end_no_connection_between_nodes() {
    let universe = Universe::of(3);
    runtime().block_on(async {
        let log = universe.client(2).with_deadline(PATIENCE).log("l");
        log.create().await.expect("a log");
        for number in 0..COUNT {
            let _ = log.append([Bytes::from(number.to_string())]).await.expect("an append");
        }
        let other = universe.client(1).with_deadline(PATIENCE).log("other");
        other.create().await.expect("a log");
        // The first takes the log's sequencer into service.
        let _ = other.append([Bytes::new()]).await.expect("an append");
        let is_over = Arc::new(AtomicBool::new(false));
        let small = tokio::spawn(append_and_read(other, Arc::clone(&is_over)));
        let began = Instant::now();
        let mut reading = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let door = door(&universe, 1).await;
            reading.spawn(async move { timeout(PATIENCE, read_all(door)).await.expect("in time") });
        }
        let entries: usize = reading.join_all().await.into_iter().sum();
        is_over.store(true, Ordering::Relaxed);
        let of_small = small.await.expect("no panic");
        println!("{entries} entries in {:?}; an append and a read beside it: {of_small:?} at most", began.elapsed());
        assert!(of_small < SMALL_TIME_MAX, "{of_small:?}");
    });
    universe.check_no_peer_was_given_up();
}

type Door = api::log::log_client::LogClient<tonic::transport::Channel>;

/// Makes the reads in one stream, and takes what they bring; how many entries. All clients are one thread here: where one
/// of them isn't its turn for long, its stream may be ended for the sake of others, and it makes the rest anew.
async fn read_all(mut door: Door) -> usize {
    let (mut told, mut entries) = (BTreeSet::new(), 0);
    while told.len() < READS as usize {
        let read = |number: u64| {
            let read = ReadRequest { log: "l".into(), from: 0, count: COUNT, wait_ms: 0 };
            StreamedRead { number, deadline_ms: PATIENCE.as_millis() as u32, read: Some(read) }
        };
        let reads = (0..READS).filter(|number| !told.contains(number)).map(read).collect();
        let message = tokio_stream::once(ReadStreamRequest { reads });
        let mut answers = door.read_stream(message).await.expect("a stream").into_inner();
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
