//! Slow consumers and malformed calls of the log service: subscribers and readers that do not read must not delay
//! others, and memory stays bounded.
//!
//! `LOGGOS_LOGS_MIB` sets the amount of data appended.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::log::{ReadAnswer, ReadRequest, ReadStreamRequest, StreamedRead, SubscribeRequest, read_answer};
use bytes::Bytes;
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::codegen::tokio_stream;

use super::input::log_client;
use super::trouble::asked;
use crate::harness::{Cluster, runtime};

/// MiB appended by default.
const USUAL_MIB: u64 = 96;
/// Followers that do not read, on each of a few connections.
const FOLLOWERS: usize = 50;
const CONNECTIONS: usize = 4;
/// Reads of four entries with unread results, on each of a few connections.
const READS: u32 = 300;
const READERS: u32 = 3;
/// Connections that follow a log of the largest entries without reading: a node has memory for about thirty of them.
const STRANGERS: usize = 120;
const HUGE: u64 = 12;
/// Timeout for a follower that reads to receive everything.
const FOLLOWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Connections with waiting reads only: together more than a node permits.
const WAITERS: usize = 9;
const WAITS: u32 = 1_000;
/// Reads in a stream with results that far exceed the prefetch limit.
const TAKEN: u64 = 200;
const GIVEN_UP: usize = 400;
/// Twice the budget for clients: the allocator returns memory with a delay, and takes it in huge pages.
const RESIDENT_KIB_MAX: u64 = 1 << 20;
/// Maximum increase in memory over one follower, for entries of any size: unsent responses and reads in flight.
const RESIDENT_KIB_OF_MANY: u64 = 256 << 10;
/// Maximum latency of an append to the same log meanwhile, and of a read of several MiB.
const APPEND_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum latency of an append to, or a read of, another log.
const SMALL_TIME_MAX: Duration = Duration::from_secs(1);

fn peaks(cluster: &Cluster) -> Vec<u64> {
    cluster.nodes().map(|node| cluster.memory_kib(node, "VmHWM:")).collect()
}

async fn append_mib(log: &sdk::Log, mib: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0..mib {
        let began = Instant::now();
        log.append([Bytes::from(vec![number as u8; 1 << 20])]).await.expect("an append");
        longest = longest.max(began.elapsed());
    }
    longest
}

/// Appends to a log and reads it back, until `is_over`; returns the longest latency.
pub(super) async fn append_and_read(log: sdk::Log, is_over: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let position = log.append([Bytes::from_static(b"small")]).await.expect("an append");
        log.read(position, 1).await.expect("a read");
        longest = longest.max(began.elapsed());
        sleep(Duration::from_millis(5)).await;
    }
    longest
}

#[test]
fn slow_subscribers_bound_memory() {
    let cluster = Cluster::of(3);
    let mib = asked("LOGGOS_LOGS_MIB").unwrap_or(USUAL_MIB);
    runtime().block_on(async {
        let client = cluster.client(2).with_deadline(Duration::from_secs(20));
        let log = client.log("l");
        log.create().send().await.expect("a log");
        let mut alone = log_client(&cluster, 1).await;
        // The client never polls it for messages.
        let subscribe = || SubscribeRequest { log: "l".into(), start: 0 };
        let _one = alone.subscribe(subscribe()).await.expect("a subscription").into_inner();
        let longest = append_mib(&log, mib).await;
        println!("one follower that takes nothing, {mib} MiB: {:?} KiB, {longest:?} at most", peaks(&cluster));
        let of_one = peaks(&cluster);

        let other = cluster.client(1).with_deadline(Duration::from_secs(20)).log("other");
        other.create().send().await.expect("a log");
        let is_over = Arc::new(AtomicBool::new(false));
        let small = tokio::spawn(append_and_read(other, Arc::clone(&is_over)));
        let mut beginning = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let client = log_client(&cluster, 1).await;
            for _ in 0..FOLLOWERS {
                let mut client = client.clone();
                beginning.spawn(async move { client.subscribe(subscribe()).await });
            }
        }
        let idle = beginning.join_all().await;
        let longest_of_many = append_mib(&log, mib / 8).await;
        sleep(Duration::from_secs(2)).await;
        let of_many = peaks(&cluster);
        is_over.store(true, Ordering::Relaxed);
        let of_small = small.await.expect("no panic");
        println!("{} such followers: {of_many:?} KiB, {longest_of_many:?} at most", idle.len());
        println!("an append to another log, and a read of it: {of_small:?} at most");
        assert!(idle.iter().all(Result::is_ok), "a subscription is refused");

        // A follower that reads receives everything.
        let mut takes = cluster.client(1).with_deadline(Duration::from_secs(20)).log("l").subscribe(0);
        let mut heard = 0;
        while heard < mib + mib / 8 {
            let told = timeout(Duration::from_secs(20), takes.next()).await.expect("in time").expect("no end");
            heard += told.expect("an entry").records().len() as u64;
        }
        assert!(longest.max(longest_of_many) < APPEND_TIME_MAX, "{longest:?}, {longest_of_many:?}");
        assert!(of_small < SMALL_TIME_MAX, "{of_small:?}");
        let more = of_many.iter().zip(&of_one).map(|(of_many, of_one)| of_many.saturating_sub(*of_one));
        assert!(more.max() < Some(RESIDENT_KIB_OF_MANY), "{of_one:?}, {of_many:?}");
        assert!(of_one.iter().chain(&of_many).all(|peak| *peak < RESIDENT_KIB_MAX), "{of_one:?}, {of_many:?}");
    });
}

/// A connection to node 1, opened with these settings.
fn begun(cluster: &Cluster, settings: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.grpc_port(1))).expect("the port is open");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    stream.write_all(&[&preface[..], &frame(4, 0, 0, settings)].concat()).expect("it is taken");
    stream
}

/// A connection with maximum flow control windows.
fn takes_anything(cluster: &Cluster) -> TcpStream {
    let windows = [&[0, 4], &i32::MAX.to_be_bytes()[..]].concat();
    let window = (i32::MAX - 65_535).to_be_bytes();
    let mut stream = begun(cluster, &windows);
    stream.write_all(&frame(8, 0, 0, &window)).expect("it is taken");
    stream
}

/// How the unread reads are requested.
#[derive(Clone, Copy)]
enum How {
    Calls,
    WaitingCalls,
    Stream,
}

#[test]
fn slow_readers_bound_memory() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let large = cluster.client(1).with_deadline(Duration::from_secs(20)).log("l");
        large.create().send().await.expect("a log");
        append_mib(&large, 16).await;
        let other = cluster.client(1).with_deadline(Duration::from_secs(20)).log("other");
        other.create().send().await.expect("a log");
        let is_over = Arc::new(AtomicBool::new(false));
        let small = tokio::spawn(append_and_read(other, Arc::clone(&is_over)));
        let each = [How::Calls, How::WaitingCalls, How::Stream];
        let readers: Vec<TcpStream> = each
            .into_iter()
            .flat_map(|how| (0..READERS).map(move |_| how))
            .map(|how| reads_of_nobody(&cluster, how))
            .collect();
        let mut of_large = Duration::ZERO;
        for _ in 0..8 {
            let began = Instant::now();
            assert!(!large.read(3, 4).await.expect("a read").is_empty());
            of_large = of_large.max(began.elapsed());
            sleep(Duration::from_millis(500)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        let of_small = small.await.expect("no panic");
        let peaks = peaks(&cluster);
        println!(
            "{} times {READS} reads that nobody takes: {peaks:?} KiB; others took {of_small:?} at most",
            readers.len()
        );
        println!("and a read of four large entries {of_large:?}");
        assert!(of_small < SMALL_TIME_MAX && of_large < APPEND_TIME_MAX, "{of_small:?}, {of_large:?}");
        assert!(peaks.iter().all(|peak| *peak < RESIDENT_KIB_MAX), "{peaks:?}");
        // The server received the requests and has sent results.
        for mut reader in readers {
            assert!(is_answered(&mut reader) > 1 << 20);
        }
    });
}

/// Each has a few MiB of responses pending, together far more than the available memory. They are reset.
#[test]
fn buffer_pressure_resets_slow_consumers() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let log = cluster.client(1).with_deadline(Duration::from_secs(20)).log("l");
        log.create().send().await.expect("a log");
        for number in 0..HUGE {
            log.append([Bytes::from(vec![number as u8; 4_000_000])]).await.expect("an append");
        }
        let mut strangers: Vec<TcpStream> = (0..STRANGERS).map(|_| follows_twice(&cluster)).collect();
        sleep(Duration::from_millis(200)).await;
        let began = Instant::now();
        let mut takes = cluster.client(1).with_deadline(Duration::from_secs(20)).log("l").subscribe(0);
        for _ in 0..HUGE {
            takes.next().await.expect("no end").expect("an entry");
        }
        let of_follower = began.elapsed();
        let mut of_read = Duration::ZERO;
        for position in 0..HUGE {
            let began = Instant::now();
            assert_eq!(log.read(position, 1).await.expect("a read").len(), 1);
            of_read = of_read.max(began.elapsed());
        }
        let began = Instant::now();
        read_in_a_stream(&cluster, 2 * HUGE, HUGE).await;
        let of_stream = began.elapsed();
        let peaks = peaks(&cluster);
        println!("beside {STRANGERS} a follower took {of_follower:?}, a read {of_read:?}; {peaks:?} KiB");
        println!("and a stream of reads {of_stream:?}");
        let longest = of_follower.max(of_read).max(of_stream);
        assert!(longest < FOLLOWER_TIME_MAX, "{of_follower:?}, {of_read:?}, {of_stream:?}");
        assert!(peaks.iter().all(|peak| *peak < RESIDENT_KIB_MAX), "{peaks:?}");
        assert!(is_answered(&mut strangers[0]) > 1 << 20, "it was heard");
    });
}

/// A connection that follows the log twice without reading.
fn follows_twice(cluster: &Cluster) -> TcpStream {
    let mut stream = takes_anything(cluster);
    for number in [1, 3] {
        let request = SubscribeRequest { log: "l".into(), start: 0 };
        stream.write_all(&call("/loggos.log.v1.Log/Subscribe", number, &framed(&request), true)).expect("it is taken");
    }
    stream
}

/// A connection with reads that it does not consume. A small result comes first, independent of the others.
fn reads_of_nobody(cluster: &Cluster, how: How) -> TcpStream {
    let mut stream = takes_anything(cluster);
    let wait_ms = if matches!(how, How::WaitingCalls) { 1 } else { 0 };
    let reads = (0..READS).map(|number| {
        let (log, count) = if number == 0 { ("other", 1) } else { ("l", 4) };
        ReadRequest { log: log.into(), start: u64::from(number % 8), count, wait_ms }
    });
    if matches!(how, How::Stream) {
        let streamed = |(number, read)| StreamedRead { number, deadline_ms: 0, read: Some(read) };
        let request = ReadStreamRequest { reads: (0..).zip(reads).map(streamed).collect() };
        let call = call("/loggos.log.v1.Log/ReadStream", 1, &framed(&request), false);
        stream.write_all(&call).expect("it is taken");
        return stream;
    }
    for (number, read) in (0..).zip(reads) {
        let call = call("/loggos.log.v1.Log/Read", 2 * number + 1, &framed(&read), true);
        stream.write_all(&call).expect("it is taken");
    }
    stream
}

#[test]
fn canceled_waits_release_slots() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let other = cluster.client(1).with_deadline(Duration::from_secs(20)).log("other");
        other.create().send().await.expect("a log");
        let mut client = log_client(&cluster, 1).await;
        let mut wait = async |wait_ms| {
            let read = ReadRequest { log: "other".into(), start: 1 << 40, count: 1, wait_ms };
            timeout(Duration::from_millis(100), client.read(read)).await.map_or(Ok(()), |told| told.map(|_| ()))
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let small = tokio::spawn(append_and_read(other, Arc::clone(&is_over)));
        let mut waiters = Vec::new();
        for _ in 0..WAITERS {
            waiters.push(waits_of_nobody(&cluster));
            // This tests waiting reads, not bursts.
            sleep(Duration::from_millis(100)).await;
        }
        // At the limit, a further waiting read is refused, and nothing else.
        let began = Instant::now();
        while !wait(60_000).await.is_err_and(|status| status.code() == Code::ResourceExhausted) {
            assert!(began.elapsed() < Duration::from_secs(20), "so many may wait");
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_secs(1)).await;
        drop(waiters);
        let gone = Instant::now();
        while wait(60_000).await.is_err() {
            assert!(gone.elapsed() < Duration::from_secs(5), "those who are gone wait still");
            sleep(Duration::from_millis(20)).await;
        }
        println!("their places were free after {:?}", gone.elapsed());
        is_over.store(true, Ordering::Relaxed);
        let of_small = small.await.expect("no panic");
        println!("an append to another log, and a read of it: {of_small:?} at most");
        assert!(of_small < SMALL_TIME_MAX, "{of_small:?}");
    });
}

/// Requests without immediate memory are queued: a client that reads all results receives them, however many it
/// requests at once.
#[test]
fn large_read_stream_completes() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let log = cluster.client(2).with_deadline(Duration::from_secs(20)).log("l");
        log.create().send().await.expect("a log");
        append_mib(&log, 8).await;
        read_in_a_stream(&cluster, TAKEN, 8).await;
    });
}

/// Reads a log's first entries with `count` reads in one message: none is refused.
async fn read_in_a_stream(cluster: &Cluster, count: u64, of: u64) {
    let mut client = log_client(cluster, 1).await;
    let read = |number: u64| {
        let read = ReadRequest { log: "l".into(), start: number % of, count: 1, wait_ms: (number % 2) as u32 };
        StreamedRead { number, deadline_ms: 20_000, read: Some(read) }
    };
    let message = ReadStreamRequest { reads: (0..count).map(read).collect() };
    let mut answers = client.read_stream(tokio_stream::once(message)).await.expect("a stream").into_inner();
    let mut told = vec![false; count as usize];
    while let Some(message) = timeout(Duration::from_secs(20), answers.message()).await.expect("in time").expect("all")
    {
        for ReadAnswer { number, answer } in message.answers {
            let Some(read_answer::Answer::Read(read)) = answer else { panic!("{number} is refused: {answer:?}") };
            assert_eq!((read.entries.len(), read.entries[0].position), (1, number % of));
            assert!(!std::mem::replace(&mut told[number as usize], true), "{number} is answered twice");
        }
    }
    assert!(told.iter().all(|is_told| *is_told));
}

/// Bursts of canceled calls do not close their connection.
#[test]
fn canceled_calls_keep_connection() {
    let cluster = Cluster::of(1);
    runtime().block_on(async {
        cluster.client(1).log("l").create().send().await.expect("a log");
        let client = log_client(&cluster, 1).await;
        for _ in 0..5 {
            let mut waiting = JoinSet::new();
            for _ in 0..GIVEN_UP {
                let mut client = client.clone();
                let read = ReadRequest { log: "l".into(), start: 0, count: 1, wait_ms: 60_000 };
                waiting.spawn(async move { client.read(read).await });
            }
            sleep(Duration::from_millis(100)).await;
            waiting.shutdown().await;
            let read = ReadRequest { log: "l".into(), start: 0, count: 1, wait_ms: 0 };
            let told = timeout(SMALL_TIME_MAX, client.clone().read(read)).await.expect("in time").expect("an answer");
            assert!(told.into_inner().entries.is_empty());
        }
    });
}

/// A connection with reads that wait a minute for an entry that never comes.
fn waits_of_nobody(cluster: &Cluster) -> TcpStream {
    let mut stream = takes_anything(cluster);
    let read = ReadRequest { log: "other".into(), start: 1 << 40, count: 1, wait_ms: 60_000 };
    for number in 0..WAITS {
        let call = call("/loggos.log.v1.Log/Read", 2 * number + 1, &framed(&read), true);
        stream.write_all(&call).expect("it is taken");
    }
    stream
}

/// A message in gRPC framing.
fn framed(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The bytes of a call of the log service.
fn call(path: &str, stream: u32, body: &[u8], is_whole: bool) -> Vec<u8> {
    let mut block = Vec::new();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in headers {
        block.extend([0, name.len() as u8]);
        block.extend(name.bytes());
        block.push(value.len() as u8);
        block.extend(value.bytes());
    }
    [frame(1, 4, stream, &block), frame(0, u8::from(is_whole), stream, body)].concat()
}

/// Reads for a while; returns the number of bytes received.
fn is_answered(stream: &mut TcpStream) -> usize {
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let (mut answer, mut bytes) = ([0; 4_096], 0);
    while let Ok(read) = stream.read(&mut answer) {
        if read == 0 {
            break;
        }
        bytes += read;
    }
    bytes
}

#[test]
fn malformed_calls_are_rejected() {
    let cluster = Cluster::of(1);
    cluster.log(&["create", "l"]).ok();
    let nonsense = [0xff; 64];
    let message = |bytes: &[u8]| [&[0], &(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    let bodies: [(&str, Vec<u8>); 6] = [
        ("a message that ends too early", [&[0, 0, 0, 0, 100], &[1, 2, 3][..]].concat()),
        ("half a length", vec![0, 0]),
        ("no protobuf", message(&nonsense)),
        ("compressed, it says", [&[1], &message(&nonsense)[1..]].concat()),
        ("4 GiB, it says", vec![0, 0xff, 0xff, 0xff, 0xff]),
        ("nothing", vec![]),
    ];
    let calls = ["CreateLog", "Append", "AppendStream", "Read", "ReadStream", "Tail", "Trim", "Subscribe"];
    for call_name in calls {
        for (what, body) in &bodies {
            let path = format!("/loggos.log.v1.Log/{call_name}");
            let mut stranger = begun(&cluster, &[]);
            let _ = stranger.write_all(&call(&path, 1, body, true));
            let length = is_answered(&mut stranger);
            // SETTINGS and their acknowledgement alone take at most 60 bytes.
            assert!(length > 60, "{call_name} with {what} is answered with {length} bytes");
        }
    }
    let pid = cluster.pid(1);
    assert!(pid.is_some());
    assert_eq!(cluster.log(&["append", "l", "x"]).ok(), "0\n");
}
