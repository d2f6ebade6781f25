//! Garbage on any port closes that connection only, other clients are not affected, and memory stays bounded.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use base::SplitMix64;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};

use crate::harness::{Cluster, runtime, wait_for};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty HTTP/2 SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// Concurrent connections with garbage, on each of two ports.
const STRANGERS: usize = 1_100;
const RESIDENT_KIB_MAX: u64 = 256 << 10;
/// Timeout for a connection with garbage to be closed.
const CLOSED_PATIENCE: Duration = Duration::from_secs(15);
/// A connection that is not accepted within this time is refused: the system has retried twice by then.
const LET_IN_PATIENCE: Duration = Duration::from_secs(4);
/// File descriptors for both sides of twice that many connections.
const DESCRIPTORS: u64 = 8_192;

/// Sends bytes and waits until the server closes the connection.
#[track_caller]
fn is_closed(port: u16, what: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
    stream.set_read_timeout(Some(CLOSED_PATIENCE)).expect("a timeout");
    // It may be closed before all is sent.
    let _ = stream.write_all(bytes);
    let mut answer = [0; 4_096];
    loop {
        match stream.read(&mut answer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => return,
            Err(error) => panic!("{what} on port {port} is not answered with an end: {error}"),
        }
    }
}

fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| random.draw() as u8).collect()
}

/// A frame between nodes: length, checksum, payload.
fn frame(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_le_bytes(), &base::checksum(payload).to_le_bytes(), payload].concat()
}

fn send_garbage(cluster: &Cluster, node: u32) {
    let peers = cluster.peers_port(node);
    for seed in 0..20 {
        is_closed(peers, "random bytes", &random_bytes(seed, 4_096));
    }
    is_closed(peers, "an oversized frame", &[0xff; 64]);
    is_closed(peers, "an empty frame", &frame(&[]));
    is_closed(peers, "a frame of no kind", &frame(&[0xee, 1, 2, 3]));
    is_closed(peers, "a message before any hello", &frame(&[3, 0, 0, 0, 0]));
    is_closed(peers, "a hello of no protocol", &frame(&[[1].as_slice(), &[0x55; 80]].concat()));
    is_closed(peers, "a damaged frame", &[&frame(b"good until here")[..8], b"and then no more"].concat());
    is_closed(peers, "HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");

    let grpc = cluster.grpc_port(node);
    for seed in 0..20 {
        is_closed(grpc, "random bytes", &random_bytes(seed, 4_096));
    }
    is_closed(grpc, "HTTP/1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    is_closed(
        grpc,
        "an oversized frame",
        &[PREFACE, SETTINGS, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &[0; 4_096]].concat(),
    );
    is_closed(grpc, "random bytes after the preface", &[PREFACE, &random_bytes(7, 4_096)].concat());
    is_closed(grpc, "data of no stream", &[PREFACE, SETTINGS, &[0, 0, 1, 0, 0, 0, 0, 0, 1, 0]].concat());

    let http = cluster.http_port(node);
    for seed in 0..20 {
        is_closed(http, "random bytes", &random_bytes(seed, 4_096));
    }
    is_closed(http, "HTTP/2", PREFACE);
    is_closed(http, "half a request", b"GET / HTTP/1.1\r\nHost: x\r\n");
    is_closed(http, "endless headers", &[b"GET / HTTP/1.1\r\n".as_slice(), &[b'x'; 64 << 10]].concat());
}

/// Many concurrent connections with an incomplete beginning: as many as are accepted, up to a limit.
fn crowd(port: u16, bytes: &[u8]) -> Vec<TcpStream> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let connect = |_| {
        // Paced, because the listen queue is short, and overflowing it costs seconds.
        thread::sleep(Duration::from_millis(1));
        let mut stream = TcpStream::connect_timeout(&address, LET_IN_PATIENCE).ok()?;
        let _ = stream.set_nonblocking(true);
        let _ = stream.write(bytes);
        Some(stream)
    };
    (0..STRANGERS).map_while(connect).collect()
}

/// Writes until `is_over`; no write may fail.
fn write_on(cluster: &Cluster, is_over: &AtomicBool, written: &AtomicU32) {
    let table = cluster.client(1).table("t");
    runtime().block_on(async {
        while !is_over.load(Ordering::Relaxed) {
            let number = written.fetch_add(1, Ordering::Relaxed);
            let put = table.write(format!("{number:06}")).put("c", "v").send().await;
            put.unwrap_or_else(|error| panic!("write {number} failed while strangers talked garbage: {error}"));
        }
    });
}

/// Raises the descriptor limit of this process and its children.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    let raised = Rlimit { current: limit.current.map(|current| current.max(wanted)), ..limit };
    setrlimit(Resource::Nofile, raised).expect("a limit may be raised up to its maximum");
}

#[test]
fn garbage_closes_only_its_connection() {
    allow_descriptors();
    let cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    let pids = || cluster.nodes().map(|node| cluster.pid(node)).collect::<Vec<_>>();
    let before = pids();

    let (is_over, written) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| write_on(&cluster, &is_over, &written));
        let garbage = scope.spawn(|| {
            send_garbage(&cluster, 1);
            let begun_frame = [60_000_u32.to_le_bytes().as_slice(), &[0; 4], &[0x11; 30_000]].concat();
            let begun_headers = [PREFACE, SETTINGS, &[0, 0x3f, 0xff, 1, 0, 0, 0, 0, 1], &[0; 8_192]].concat();
            let peers = crowd(cluster.peers_port(1), &begun_frame);
            let clients = crowd(cluster.grpc_port(1), &begun_headers);
            let count = peers.len() + clients.len();
            thread::sleep(Duration::from_secs(2));
            let resident = cluster.memory_kib(1, "VmHWM:");
            assert!(count >= STRANGERS, "no crowd: {} at the peers' port, {} at gRPC's", peers.len(), clients.len());
            println!("{count} connections, {resident} KiB resident at most");
            assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB with {count} strangers");
            let during = written.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(500));
            assert!(written.load(Ordering::Relaxed) > during, "no write is done while the crowd is there");
            // A new client still gets in.
            cluster.columns(&["get", "t", "000000"]).ok();
        });
        let outcome = garbage.join();
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(pids(), before, "a node ended");
}

/// Most machines allow a process 1,024 file descriptors. Client connections cannot use those that a node needs for its
/// files and peers: with many clients connected, it still takes part in an election.
#[test]
fn client_crowd_keeps_reserved_descriptors() {
    allow_descriptors();
    let cluster = Cluster::with_descriptors(3, 1_024);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    let (_, leader) = cluster.leader("t").expect("a table that was written to has a leader");
    let crowded = 1 + leader % 3;
    let clients = crowd(cluster.grpc_port(crowded), &[PREFACE, SETTINGS].concat());
    assert!(clients.len() > 500, "no crowd: {}", clients.len());
    let _peers = crowd(cluster.peers_port(crowded), &[0; 4]);
    thread::sleep(Duration::from_millis(500));

    cluster.signal(leader, Signal::KILL);
    cluster.columns(&["put", "t", "k", "c", "w"]).ok();
    assert!(cluster.pid(crowded).is_some(), "the crowded node ended");
}

/// Connections that are refused at the ZooKeeper port are reported in the node's log, at most every 10 s each.
#[test]
fn refused_zookeeper_clients_are_logged_once() {
    allow_descriptors();
    let cluster = Cluster::with_descriptors(1, 1_024);
    let port = cluster.zookeeper_port(1);
    let warnings = |what: &str| {
        let log = fs::read_to_string(cluster.node_directory(1).join("log")).expect("the node's log");
        log.matches(what).count()
    };
    // A quarter of the descriptors that are not reserved.
    let connect = |_| TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
    let crowd: Vec<TcpStream> = (0..300).map(connect).collect();
    let limit = "ZooKeeper connections closed: limit reached";
    wait_for("a warning", Duration::from_secs(5), || (warnings(limit) > 0).then_some(()));
    drop(crowd);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(warnings(limit), 1);

    // Without a free descriptor, a connection waits until there is one.
    let pid = cluster.pid(1).expect("the node runs");
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).expect("a process has descriptors");
    let open: BTreeSet<String> = open.map(|fd| fd.expect("an entry").file_name().to_string_lossy().into()).collect();
    let first_free = (0..1_024).find(|fd| !open.contains(&fd.to_string())).expect("a free descriptor");
    let none_free = Rlimit { current: Some(first_free), maximum: Some(1_024) };
    let limits = prlimit(Some(pid), Resource::Nofile, none_free).expect("a process of this user");
    let mut waiting = connect(0);
    let refused = "can't accept a ZooKeeper client";
    wait_for("a warning", Duration::from_secs(5), || (warnings(refused) > 0).then_some(()));
    thread::sleep(Duration::from_secs(1));
    assert_eq!(warnings(refused), 1, "it is retried ten times in a second");
    prlimit(Some(pid), Resource::Nofile, limits).expect("a process of this user");
    waiting.write_all(b"ruok").expect("it is connected");
    waiting.set_read_timeout(Some(CLOSED_PATIENCE)).expect("a timeout");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).expect("it is accepted");
    assert_eq!(answer, "imok");
}
