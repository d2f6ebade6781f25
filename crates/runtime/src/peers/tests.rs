use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration as StdDuration, Instant};

use base::{ClusterId, CohortId, Incarnation, KeyRange, Member, ProcessStart, StartHistory, Timestamp};
use mio::{Events, Poll};
use node::request::Response;
use sharedlog::{Position, unit};
use state_machine::{ClientSessionId, Failure};
use tablets::TableResponse;
use tablets::request::Cell;

use super::*;
use crate::clock;

/// One node's sockets with their poll, driven manually.
struct End {
    poll: Poll,
    peers: Peers,
    received: Vec<Event>,
    connections: Vec<(NodeId, bool)>,
    names: Names,
    lookups: mpsc::Receiver<Resolved>,
}

/// The addresses that names resolve to.
type Names = Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>;

fn member(node: u32) -> Member {
    Member { node: NodeId(node), incarnation: Incarnation(u64::from(node) * 10) }
}

fn starts(nonces: &[u64]) -> StartHistory {
    let mut starts = StartHistory::default();
    nonces.iter().for_each(|nonce| starts.add(*nonce));
    starts
}

fn identity(node: u32) -> Identity {
    Identity {
        cluster: ClusterId(7),
        member: member(node),
        starts: starts(&[1]),
        peers: BTreeMap::new(),
        address: String::new(),
        members: vec![member(1), member(2)],
    }
}

impl End {
    fn turn(&mut self) {
        let mut ready = Events::with_capacity(64);
        self.poll.poll(&mut ready, Some(StdDuration::from_millis(2))).unwrap();
        let now = clock::monotonic();
        for event in &ready {
            self.peers.ready(event, now);
        }
        let mut events = Vec::new();
        self.peers.receive(now, &mut events);
        for event in events {
            match event {
                Event::PeerConnection { peer, is_open } => self.connections.push((peer, is_open)),
                event => self.received.push(event),
            }
        }
        for resolved in self.lookups.try_iter() {
            self.peers.resolved(resolved, now);
        }
        self.peers.tick(now);
        self.peers.flush(now);
    }
}

/// Two nodes that know each other's addresses; the second identifies itself as `second`.
fn pair(second: Identity) -> (End, End) {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let addresses: Vec<PeerAddress> = (1..)
        .zip(&listeners)
        .map(|(node, listener)| PeerAddress { node: NodeId(node), address: listener.local_addr().unwrap().into() })
        .collect();
    let [first_listener, second_listener] = listeners;
    let end = |listener, identity| {
        let poll = Poll::new().unwrap();
        let (names, (report, lookups)) = (Names::default(), mpsc::channel());
        let known = Arc::clone(&names);
        let lookup = move |name: &HostPort| {
            known.lock().unwrap().get(name.host()).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into())
        };
        let resolver = Resolver::new(lookup, move |resolved| _ = report.send(resolved));
        let registry = poll.registry().try_clone().unwrap();
        let traffic = Traffic::register(&prometheus::Registry::new()).unwrap();
        let peers = Peers::new(registry, listener, identity, &addresses, resolver, traffic).unwrap();
        End { poll, peers, received: Vec::new(), connections: Vec::new(), names, lookups }
    };
    (end(first_listener, identity(1)), end(second_listener, second))
}

fn until(what: &str, ends: &mut [&mut End], mut is_so: impl FnMut(&mut [&mut End]) -> bool) {
    let began = Instant::now();
    while !is_so(ends) {
        assert!(began.elapsed() < StdDuration::from_secs(20), "{what}");
        ends.iter_mut().for_each(|end| end.turn());
    }
}

fn message(request: u64) -> Message {
    Message::NotLeader { request, cohort: CohortId::CATALOG, leader: None }
}

#[test]
fn messages_arrive_in_order() {
    let (mut one, mut two) = pair(identity(2));
    // Not connected yet: dropped, as the protocol expects.
    one.peers.send(NodeId(2), &message(0));
    until("they connect", &mut [&mut one, &mut two], |ends| {
        ends.iter_mut().all(|end| end.peers.dials[0].open().is_some())
    });
    for request in 1..=100 {
        one.peers.send(NodeId(2), &message(request));
    }
    until("all arrive", &mut [&mut one, &mut two], |ends| ends[1].received.len() == 101);
    // The other's boot is reported first, before any of its messages, and once.
    let started =
        |event: &Event| matches!(event, Event::PeerStarted { start: ProcessStart { boot: Boot(1), nonce: 1 }, .. });
    assert!(started(&two.received[0]));
    for (request, event) in (1..).zip(&two.received[1..]) {
        let Event::Message { from, boot, message: received } = event else { panic!("a message was sent") };
        assert_eq!((*from, *boot, received), (NodeId(1), Boot(1), &message(request)));
    }
    assert!(one.received.len() == 1 && started(&one.received[0]));
}

/// A message of `length` bytes plus overhead.
fn chunk(length: usize) -> Message {
    Message::StateChunk {
        cohort: CohortId::CATALOG,
        epoch: base::Epoch(1),
        state: node::message::StateId { lsn: base::Lsn::ZERO, sstables: 0 },
        timestamp: base::Timestamp(0),
        index: 0,
        last: true,
        part: node::message::StatePart::Chunk(vec![7; length].into()),
    }
}

/// A peer that reads too slowly is disconnected; its pending output is bounded meanwhile.
#[test]
fn slow_peer_output_is_bounded() {
    let (mut one, mut two) = pair(identity(2));
    until("they connect", &mut [&mut one, &mut two], |ends| ends[0].peers.dials[0].open().is_some());
    for _ in 0..200 {
        one.peers.send(NodeId(2), &chunk(4 << 20));
    }
    let waiting = one.peers.dials[0].open().map(|connection| connection.waiting());
    assert!(waiting.is_some_and(|bytes| bytes <= 120 << 20), "{waiting:?}");
    one.peers.flush(clock::monotonic());
    assert!(one.peers.dials[0].open().is_none(), "the connection is closed");
    one.turn();
    assert_eq!(one.connections, [(NodeId(2), true), (NodeId(2), false)], "the machine is notified");
    until("they connect again", &mut [&mut one, &mut two], |ends| ends[0].peers.dials[0].open().is_some());
}

/// Heavy reading through a node does not close its connection to the leader. Short answers, and answers to requests
/// other than reads, are sent unchanged.
#[test]
fn read_replies_refused_above_buffer_limit() {
    const ROWS: u64 = 3_000;
    let (mut one, mut two) = pair(identity(2));
    until("they connect", &mut [&mut one, &mut two], |ends| ends[0].peers.dials[0].open().is_some());
    let row = |bytes| {
        Response::Tablet(TableResponse::row(vec![Cell {
            column: "c".into(),
            value: vec![7; bytes].into(),
            version: Timestamp(1),
        }]))
    };
    let of_unit = unit::Reply::Holes((1..=300).map(Position).collect());
    let session = Response::Tablet(TableResponse::SessionOpened {
        session: ClientSessionId(1),
        range: KeyRange { start: vec![7; 2_000].into(), end: None },
    });
    let true_always = [
        row(20),
        Response::Unit(Box::new(of_unit)),
        session,
        Response::Tablet(TableResponse::Written { version: Timestamp(1) }),
    ];
    let asked = (0..ROWS).map(|_| row(64 << 10)).chain(true_always.clone());
    for (request, response) in (0..).zip(asked) {
        one.peers.send(NodeId(2), &Message::Answer { request, outcome: Ok(response) });
    }
    one.peers.send(NodeId(2), &chunk(4 << 20));
    one.peers.flush(clock::monotonic());
    assert!(one.peers.dials[0].open().is_some(), "the connection stays open");
    let all = ROWS as usize + true_always.len() + 1;
    let is_message = |event: &&Event| matches!(event, Event::Message { .. });
    until("all are answered", &mut [&mut one, &mut two], |ends| {
        ends[1].received.iter().filter(is_message).count() == all
    });
    let answers: Vec<_> = two
        .received
        .into_iter()
        .filter_map(|event| match event {
            Event::Message { message: Message::Answer { outcome, .. }, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    let (rows, others) = answers.split_at(ROWS as usize);
    let refused = rows.iter().filter(|outcome| matches!(outcome, Err(Failure::Overloaded(_)))).count() as u64;
    assert!((1..ROWS).contains(&refused), "{refused} of {ROWS}");
    assert!(others.iter().cloned().eq(true_always.map(Ok)));
}

#[test]
fn oversized_message_is_dropped_alone() {
    let (mut one, mut two) = pair(identity(2));
    until("they connect", &mut [&mut one, &mut two], |ends| ends[0].peers.dials[0].open().is_some());
    one.peers.send(NodeId(2), &message(1));
    one.peers.send(NodeId(2), &chunk(base::limits::PEER_MESSAGE_BYTES_MAX));
    one.peers.send(NodeId(2), &chunk(base::limits::PEER_MESSAGE_BYTES_MAX - 100));
    one.peers.send(NodeId(2), &message(2));
    until("the others arrive", &mut [&mut one, &mut two], |ends| ends[1].received.len() == 4);
    assert!(one.peers.dials[0].open().is_some(), "the connection stays open");
}

#[test]
fn blank_node_gets_verdict_from_member() {
    let mut blank = identity(2);
    blank.member.incarnation = Incarnation(99);
    let (mut one, mut two) = pair(blank);
    until("the blank node is notified", &mut [&mut one, &mut two], |ends| ends[1].peers.verdict.is_some());
    let (kind, verdict) = two.peers.verdict().unwrap();
    assert_eq!(kind, RefusalKind::NotMember);
    assert!(verdict.contains("rejected by node 1") && verdict.contains("63"), "{verdict}");
    assert!(one.peers.verdict().is_none(), "the member keeps running");
    assert!(one.received.is_empty() && one.peers.dials[0].open().is_none());
}

#[test]
fn refuses_peer_of_other_cluster() {
    let mut stranger = identity(2);
    stranger.cluster = ClusterId(8);
    let (mut one, mut two) = pair(stranger);
    let began = Instant::now();
    while began.elapsed() < StdDuration::from_millis(300) {
        one.turn();
        two.turn();
    }
    for end in [&mut one, &mut two] {
        assert!(end.peers.verdict().is_none() && end.peers.dials[0].open().is_none() && end.received.is_empty());
    }
}

/// The peer's name does not resolve at first. Then it has two addresses, one of them wrong. Then the peer moves.
#[test]
fn redials_moved_peer() {
    let (mut one, mut two) = pair(identity(2));
    let address = two.peers.listener.address().unwrap();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one.peers.dials = vec![Dial::new(NodeId(2), "two:7101".parse().unwrap())];
    for _ in 0..20 {
        one.turn();
    }
    assert_eq!(one.connections.first(), Some(&(NodeId(2), false)));
    let moves = |one: &End, addresses: &[SocketAddr]| {
        one.names.lock().unwrap().insert("two".to_owned(), addresses.to_vec());
    };
    let is_connected = |ends: &mut [&mut End]| ends[0].peers.dials[0].open().is_some();
    moves(&one, &[unused, address]);
    until("the name is resolved", &mut [&mut one, &mut two], is_connected);

    // Its process ends, and another listens at another address.
    let moved = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    moved.set_nonblocking(true).unwrap();
    moves(&one, &[moved.local_addr().unwrap()]);
    let moved = mio::net::TcpListener::from_std(moved);
    two.peers.listener = Listener::new(moved, "a connection", LISTENER, two.poll.registry()).unwrap();
    two.peers.accepted.clear();
    until("it is noticed", &mut [&mut one, &mut two], |ends| !is_connected(ends));
    until("the name is resolved again", &mut [&mut one, &mut two], is_connected);

    // A name that stops to resolve keeps its last address.
    one.names.lock().unwrap().clear();
    two.peers.accepted.clear();
    until("it is noticed", &mut [&mut one, &mut two], |ends| !is_connected(ends));
    until("the last address is used", &mut [&mut one, &mut two], is_connected);
}

#[test]
fn connection_flood_keeps_member_links() {
    let (mut one, mut two) = pair(identity(2));
    let address = one.peers.listener.address().unwrap();
    let mut silent = Vec::new();
    for place in 0..300 {
        let mut stream = TcpStream::connect(address).unwrap();
        if place % 2 == 0 {
            let _ = stream.write_all(&[0xff; 2_000]);
        }
        silent.push(stream);
        if place % 50 == 0 {
            one.turn();
        }
    }
    until("the member connects", &mut [&mut one, &mut two], |ends| ends[1].peers.dials[0].open().is_some());
    assert!(one.peers.accepted.len() <= UNVERIFIED_MAX + 1);
    // Garbage closes the connection at its first frame.
    let garbage = &mut silent[298];
    garbage.set_read_timeout(Some(StdDuration::from_millis(50))).unwrap();
    until("the connection with garbage is closed", &mut [&mut one], |_| match garbage.read(&mut [0; 8]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    });
}
