//! One or two servers on a log in memory.

use std::collections::VecDeque;

use base::Timestamp;

use super::*;
use crate::jute::{
    AclRecord, AddWatch, AuthPacket, CheckVersion, ConnectRequest, ConnectResponse, Create, CreateKind, DataReply,
    Delete, GetAcl, GetEphemerals, IdRecord, MultiResult, Operation, Operations, PathAndWatch, ReadOperation, Reader,
    Reconfig, Request, Sequence, SetData, SetWatches, StatReply, Sync, op,
};
use crate::{ErrorCode, state};

const OPEN: &[AclRecord<'static>] =
    &[AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
const MS: u64 = 1_000_000;
const TIMEOUT_MS: u64 = 4_000;

pub(super) fn config(nonce: u128) -> Config {
    Config {
        nonce,
        session_timeout_min: Duration::from_millis(TIMEOUT_MS),
        session_timeout_max: Duration::from_millis(10 * TIMEOUT_MS),
        tick: Duration::from_millis(400),
        batches_in_flight: 3,
        linearizable_reads: false,
        read_only_after: Some(Duration::from_millis(5_000)),
        super_digest: Some(acl::digest("super:secret")),
        collect_every: Duration::from_millis(1_000),
        collect_unused_after: None,
        snapshot_after_bytes: None,
    }
}

/// A received reply: xid, zxid, error, body.
type Received = (i32, i64, i32, Vec<u8>);

/// Servers on a log that completes appends immediately, unless it is stalled.
struct Bench {
    servers: Vec<Server>,
    log: Vec<Bytes>,
    stalled: Option<VecDeque<(usize, AppendId, Bytes)>>,
    received: BTreeMap<ConnectionId, Vec<Bytes>>,
    closed: BTreeSet<ConnectionId>,
    paused: BTreeSet<ConnectionId>,
    now: u64,
    appends: usize,
    tails: usize,
    kept: Vec<Bytes>,
    /// Snapshot pieces that the driver received and does not acknowledge.
    withheld: Option<Vec<(Position, u32)>>,
    trimmed: Option<Position>,
}

impl Bench {
    fn new(servers: u128) -> Self {
        Self::with((1..=servers).map(config).collect())
    }

    fn with(configs: Vec<Config>) -> Self {
        let now = Now { monotonic: Monotonic(0), wall: Timestamp(0), uncertainty: None };
        let servers = configs.into_iter().map(|config| Server::new(config, State::default(), now)).collect();
        let mut bench = Self {
            servers,
            log: Vec::new(),
            stalled: None,
            received: BTreeMap::new(),
            closed: BTreeSet::new(),
            paused: BTreeSet::new(),
            now: 0,
            appends: 0,
            tails: 0,
            kept: Vec::new(),
            withheld: None,
            trimmed: None,
        };
        bench.settle();
        bench
    }

    fn now(&self) -> Now {
        Now { monotonic: Monotonic(self.now), wall: Timestamp(i64::try_from(self.now).unwrap()), uncertainty: None }
    }

    fn event(&mut self, server: usize, event: Event) {
        let now = self.now();
        self.servers[server].handle(event, now);
        self.settle();
    }

    /// Ends turns until the server has no more actions.
    fn settle(&mut self) {
        let mut busy = true;
        while std::mem::take(&mut busy) {
            for server in 0..self.servers.len() {
                let now = self.now();
                for action in self.servers[server].end_turn(now) {
                    busy = true;
                    self.act(server, action);
                }
            }
        }
    }

    fn act(&mut self, server: usize, action: Action) {
        let now = self.now();
        match action {
            Action::Send { connection, frame } => self.received.entry(connection).or_default().push(frame),
            Action::Close { connection } => drop(self.closed.insert(connection)),
            Action::Pause { connection } => drop(self.paused.insert(connection)),
            Action::Resume { connection } => drop(self.paused.remove(&connection)),
            Action::Append { append, entry } => match &mut self.stalled {
                Some(stalled) => stalled.push_back((server, append, entry)),
                None => self.append(server, append, &entry),
            },
            Action::RequestTail { request } => {
                self.tails += 1;
                let tail = Position(self.log.len() as u64);
                self.servers[server].handle(Event::Tail { request, tail }, now);
            }
            Action::KeepPiece { next, index, .. } if self.withheld.is_some() => {
                self.withheld.as_mut().unwrap().push((next, index));
            }
            Action::KeepPiece { next, index, piece, is_last } => {
                self.kept.push(piece);
                let event = if is_last { Event::SnapshotKept { next } } else { Event::PieceKept { next, index } };
                self.servers[server].handle(event, now);
            }
            Action::Trim { below } => self.trimmed = Some(below),
            Action::SetTimer(at) if at <= now.monotonic => self.servers[server].handle(Event::Timer, now),
            Action::SetTimer(_) => {}
        }
    }

    fn append(&mut self, server: usize, append: AppendId, entry: &Bytes) {
        self.appends += 1;
        let (now, position) = (self.now(), Position(self.log.len() as u64));
        self.log.push(entry.clone());
        self.servers[server].handle(Event::Appended { append, position }, now);
        for server in &mut self.servers {
            server.handle(Event::Played { position, entry: Some(entry.clone()) }, now);
        }
    }

    /// The next position is a hole.
    fn skip(&mut self) {
        let (now, position) = (self.now(), Position(self.log.len() as u64));
        self.log.push(Bytes::new());
        for server in &mut self.servers {
            server.handle(Event::Played { position, entry: None }, now);
        }
        self.settle();
    }

    fn go_on(&mut self) {
        for (server, append, entry) in self.stalled.take().into_iter().flatten() {
            self.append(server, append, &entry);
        }
        self.settle();
    }

    /// Advances the time, tick by tick.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.now += 100 * MS;
            for server in 0..self.servers.len() {
                self.event(server, Event::Timer);
            }
        }
    }

    fn raw(&mut self, server: usize, connection: u64, frame: Bytes) {
        self.event(server, Event::Frame { connection: ConnectionId(connection), frame });
    }

    fn send(&mut self, server: usize, connection: u64, xid: i32, request: Request<'_>) {
        self.raw(server, connection, request.to_frame(xid).slice(4..));
    }

    fn dial(&mut self, server: usize, connection: u64) {
        let password = [u8::try_from(connection).unwrap(); 16];
        let address = "127.0.0.1".parse().unwrap();
        self.event(server, Event::Connected { connection: ConnectionId(connection), address, password });
    }

    fn greet(&mut self, server: usize, connection: u64, request: &ConnectRequest<'_>) -> Option<ConnectResponse> {
        self.dial(server, connection);
        let frame = jute::Writer::new().frame(|writer| request.encode(writer));
        self.raw(server, connection, frame.slice(4..));
        let frames = std::mem::take(self.received.entry(ConnectionId(connection)).or_default());
        frames.first().map(|frame| ConnectResponse::decode(&mut Reader::new(&frame[4..])).unwrap())
    }

    fn open(&mut self, server: usize, connection: u64) -> ConnectResponse {
        self.greet(server, connection, &request(0, None)).unwrap()
    }

    fn received(&mut self, connection: u64) -> Vec<Received> {
        let frames = std::mem::take(self.received.entry(ConnectionId(connection)).or_default());
        let decode = |frame: Bytes| {
            let mut reader = Reader::new(&frame[4..]);
            let header = ReplyHeader::decode(&mut reader).unwrap();
            (header.xid, header.zxid, header.err, reader.rest().to_vec())
        };
        frames.into_iter().map(decode).collect()
    }

    /// Sends one request and returns the error or the body of the reply.
    fn ask(&mut self, connection: u64, request: Request<'_>) -> Result<Vec<u8>, i32> {
        self.send(0, connection, 5, request);
        let (xid, _, err, body) = self.received(connection).pop().expect("a reply");
        assert_eq!(xid, 5);
        if err == 0 { Ok(body) } else { Err(err) }
    }

    fn is_closed(&self, connection: u64) -> bool {
        self.closed.contains(&ConnectionId(connection))
    }
}

fn request(session: i64, password: Option<&[u8]>) -> ConnectRequest<'_> {
    ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 4_000,
        session,
        password,
        read_only: Some(false),
    }
}

fn create(path: &str, flags: i32) -> Request<'_> {
    let acl = Sequence::of(OPEN);
    Request::Create(Create { kind: CreateKind::Create, path, data: Some(b"d"), acl, flags, ttl_ms: None })
}

fn get(path: &str, watch: bool) -> Request<'_> {
    Request::GetData(PathAndWatch { path, watch })
}

fn set(path: &str) -> Request<'_> {
    Request::SetData(SetData { path, data: Some(b"new"), version: -1 })
}

fn digest(auth: &[u8]) -> Request<'_> {
    Request::Auth(AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(auth) })
}

fn code(error: ErrorCode) -> Result<Vec<u8>, i32> {
    Err(error.code())
}

fn encoded<'a>(record: &impl Record<'a>) -> Vec<u8> {
    let mut writer = jute::Writer::new();
    record.encode(&mut writer);
    writer.take().to_vec()
}

fn event(kind: EventType, path: &str) -> Vec<u8> {
    encoded(&WatcherEvent::of(kind, path))
}

#[test]
fn session_writes_and_reads() {
    let mut bench = Bench::new(1);
    let response = bench.open(0, 1);
    assert_eq!(response.timeout_ms, 4_000);
    assert_eq!((response.session, response.password, response.read_only), ((1 << 56) + 1, [1; 16], Some(false)));
    assert_eq!(bench.ask(1, create("/a", 1)), Ok(encoded(&jute::PathReply { path: "/a" })));
    let body = bench.ask(1, get("/a", false)).unwrap();
    let reply = DataReply::decode(&mut Reader::new(&body)).unwrap();
    assert_eq!((reply.data, reply.stat.ephemeral_owner, reply.stat.czxid), (Some(&b"d"[..]), response.session, 2));
    assert_eq!(bench.ask(1, create("/a", 1)), code(ErrorCode::NodeExists));
    assert_eq!(bench.ask(1, get("/none", false)), code(ErrorCode::NoNode));
    let paths = bench.ask(1, Request::GetEphemerals(GetEphemerals { prefix: None })).unwrap();
    assert_eq!(paths, encoded(&jute::ChildrenReply { children: Sequence::of(&["/a"]) }));
    assert_eq!(bench.ask(1, Request::CloseSession), Ok(Vec::new()));
    assert!(bench.is_closed(1));
    assert!(bench.servers[0].state().tree().get("/a").is_none());
}

/// Replies are in the order of the requests, and a read sees earlier writes of its session and no later ones.
#[test]
fn pipelined_requests_keep_order() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.send(0, 1, 1, get("/a", false));
    bench.send(0, 1, 2, create("/a", 0));
    bench.send(0, 1, 3, get("/a", false));
    bench.send(0, 1, 4, Request::Delete(Delete { path: "/a", version: -1 }));
    bench.send(0, 1, 5, get("/a", false));
    bench.send(0, 1, -2, Request::Ping);
    // A ping overtakes other requests.
    let replies: Vec<_> = bench.received(1).into_iter().map(|(xid, _, err, _)| (xid, err)).collect();
    assert_eq!(replies, [(1, -101), (-2, 0)]);
    bench.go_on();
    let replies: Vec<_> = bench.received(1).into_iter().map(|(xid, zxid, err, _)| (xid, zxid, err)).collect();
    assert_eq!(replies, [(2, 2, 0), (3, 2, 0), (4, 3, 0), (5, 3, -101)]);
}

#[test]
fn concurrent_writes_form_batches() {
    let mut bench = Bench::new(1);
    for connection in 1..=20 {
        bench.open(0, connection);
    }
    bench.stalled = Some(VecDeque::new());
    for connection in 1..=20 {
        bench.send(0, connection, 1, create("/s-", 2));
    }
    // Three batches are in flight; the others wait.
    assert_eq!(bench.stalled.as_ref().unwrap().len(), 3);
    let before = bench.appends;
    bench.go_on();
    assert_eq!(bench.appends, before + 4);
    assert_eq!(bench.servers[0].state().tree().get("/").unwrap().children().len(), 21);
}

#[test]
fn watch_event_precedes_changed_reply() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.open(0, 2);
    bench.send(0, 1, 1, Request::Exists(PathAndWatch { path: "/a", watch: true }));
    bench.send(0, 1, 2, Request::GetChildren(PathAndWatch { path: "/", watch: true }));
    bench.received(1);
    bench.ask(2, create("/a", 0)).unwrap();
    bench.send(0, 1, 3, get("/a", true));
    let received = bench.received(1);
    let frames: Vec<_> = received.iter().map(|(xid, zxid, ..)| (*xid, *zxid)).collect();
    assert_eq!(frames, [(-1, 3), (-1, 3), (3, 3)]);
    assert_eq!(received[0].3, event(EventType::Created, "/a"));
    assert_eq!(received[1].3, event(EventType::ChildrenChanged, "/"));
    // A client gets events about its own changes, too.
    bench.send(0, 1, 4, set("/a"));
    let received = bench.received(1);
    assert_eq!(received.iter().map(|reply| reply.0).collect::<Vec<_>>(), [-1, 4]);
    assert_eq!(received[0].3, event(EventType::DataChanged, "/a"));
}

#[test]
fn watch_events_need_read_permission() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.open(0, 2);
    bench.ask(1, Request::AddWatch(AddWatch { path: "/", mode: 1 })).unwrap();
    let acl = [AclRecord { perms: 31, id: IdRecord { scheme: Some("digest"), id: Some("joe:x") } }];
    let secret = Create {
        kind: CreateKind::Create,
        path: "/secret",
        data: None,
        acl: Sequence::of(&acl),
        flags: 0,
        ttl_ms: None,
    };
    bench.ask(2, Request::Create(secret)).unwrap();
    bench.ask(2, create("/public", 0)).unwrap();
    let events: Vec<_> = bench.received(1).into_iter().map(|(.., body)| body).collect();
    assert_eq!(events, [event(EventType::Created, "/public")]);
    assert_eq!(bench.ask(2, get("/secret", false)), code(ErrorCode::NoAuth));
}

#[test]
fn watches_restored_on_other_server() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    for path in ["/same", "/set", "/gone", "/parent"] {
        bench.ask(1, create(path, 0)).unwrap();
    }
    let seen = bench.servers[0].state().zxid();
    bench.ask(1, set("/set")).unwrap();
    bench.ask(1, Request::Delete(Delete { path: "/gone", version: -1 })).unwrap();
    bench.ask(1, create("/parent/child", 0)).unwrap();
    let set_watches = SetWatches {
        relative_zxid: seen,
        data: Sequence::of(&["/same", "/set", "/gone"]),
        exist: Sequence::of(&["/none", "/same"]),
        child: Sequence::of(&["/same", "/parent", "/gone"]),
    };
    bench.send(0, 1, -8, Request::SetWatches(set_watches));
    let received = bench.received(1);
    let bodies: Vec<_> = received.iter().map(|(.., body)| body.clone()).collect();
    let expected = [
        event(EventType::DataChanged, "/set"),
        event(EventType::Deleted, "/gone"),
        event(EventType::Created, "/same"),
        event(EventType::ChildrenChanged, "/parent"),
        event(EventType::Deleted, "/gone"),
        Vec::new(),
    ];
    assert_eq!(bodies, expected);
    assert_eq!((received[0].0, received[0].1, received[5].0), (-1, -1, -8));
    assert_eq!(bench.servers[0].watches().count(), 3);
}

#[test]
fn multi_requests_and_results() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let Request::Create(make) = create("/a", 0) else { panic!() };
    let operations = [
        Operation::Create(make),
        Operation::Create(Create { kind: CreateKind::Create2, path: "/a/b", ..make }),
        Operation::Check(CheckVersion { path: "/a", version: 0 }),
        Operation::Delete(Delete { path: "/a/b", version: 0 }),
    ];
    let body = bench.ask(1, Request::Multi(Operations::of(&operations))).unwrap();
    let mut reader = Reader::new(&body);
    let results: Vec<_> = std::iter::from_fn(|| MultiResult::decode_next(&mut reader).unwrap()).collect();
    assert!(matches!(
        results[..],
        [MultiResult::Create(_), MultiResult::Create2(_), MultiResult::Check, MultiResult::Delete]
    ));
    let body = bench.ask(1, Request::Multi(Operations::of(&operations[..2]))).unwrap();
    let mut reader = Reader::new(&body);
    let results: Vec<_> = std::iter::from_fn(|| MultiResult::decode_next(&mut reader).unwrap()).collect();
    let error = |err| MultiResult::Error(jute::ErrorReply { err });
    assert_eq!(results, [error(-110), error(-2)]);
    let reads = [
        ReadOperation::GetChildren(PathAndWatch { path: "/", watch: false }),
        ReadOperation::GetData(PathAndWatch { path: "/none", watch: false }),
    ];
    let body = bench.ask(1, Request::MultiRead(Operations::of(&reads))).unwrap();
    let mut reader = Reader::new(&body);
    let results: Vec<_> = std::iter::from_fn(|| MultiResult::decode_next(&mut reader).unwrap()).collect();
    let children = jute::ChildrenReply { children: Sequence::of(&["a", "zookeeper"]) };
    assert_eq!(results, [MultiResult::GetChildren(children), error(-101)]);
}

/// One short request may read a large node many times.
#[test]
fn multi_read_reply_limit() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let data = vec![7; 1_000_000];
    let Request::Create(make) = create("/big", 0) else { panic!() };
    bench.ask(1, Request::Create(Create { data: Some(&data), ..make })).unwrap();
    let read = ReadOperation::GetData(PathAndWatch { path: "/big", watch: false });
    let mut multi_read = |count| bench.ask(1, Request::MultiRead(Operations::of(&vec![read; count])));
    assert!(multi_read(4).unwrap().len() > 4_000_000);
    assert_eq!(multi_read(5), code(ErrorCode::Marshalling));
    assert_eq!(multi_read(2_200), code(ErrorCode::Marshalling));
    assert!(bench.ask(1, get("/big", false)).is_ok());
}

#[test]
fn client_authentication() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.send(0, 1, -4, digest(b"joe:secret"));
    assert_eq!(bench.received(1), [(-4, 0, 0, Vec::new())]);
    let ids =
        [jute::ClientInfo { scheme: "ip", user: "127.0.0.1" }, jute::ClientInfo { scheme: "digest", user: "joe" }];
    let who = encoded(&jute::WhoAmIReply { clients: Sequence::of(&ids) });
    assert_eq!(bench.ask(1, Request::WhoAmI), Ok(who));
    let own = [AclRecord { perms: 31, id: IdRecord { scheme: Some("auth"), id: Some("") } }];
    let Request::Create(make) = create("/joe", 0) else { panic!() };
    bench.ask(1, Request::Create(Create { acl: Sequence::of(&own), ..make })).unwrap();
    bench.open(0, 2);
    assert_eq!(bench.ask(2, set("/joe")), code(ErrorCode::NoAuth));
    assert_eq!(bench.ask(2, Request::GetAcl(GetAcl { path: "/joe" })), code(ErrorCode::NoAuth));
    bench.send(0, 2, -4, digest(b"super:secret"));
    bench.received(2);
    bench.ask(2, set("/joe")).unwrap();
    let unknown = Request::Auth(AuthPacket { kind: 0, scheme: Some("nonsense"), auth: None });
    bench.send(0, 2, -4, unknown);
    assert_eq!(bench.received(2), [(-4, 0, ErrorCode::AuthFailed.code(), Vec::new())]);
    assert!(bench.is_closed(2));
}

/// Identities are part of each batch with a request of the connection.
#[test]
fn identity_count_limit() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    // Each byte becomes three.
    bench.send(0, 1, -4, digest(&[0xff; 1_000_000]));
    assert_eq!(bench.received(1), [(-4, 0, ErrorCode::AuthFailed.code(), Vec::new())]);
    assert!(bench.is_closed(1));
    bench.open(0, 2);
    for number in 0..64 {
        bench.send(0, 2, -4, digest(format!("user{number}:secret").as_bytes()));
    }
    let results: Vec<i32> = bench.received(2).into_iter().map(|(.., err, _)| err).collect();
    assert_eq!(results, [&[0; 63][..], &[ErrorCode::AuthFailed.code()]].concat());
    assert!(bench.is_closed(2));
}

/// Many connections with large identities and large requests: no entry exceeds the log's limit.
#[test]
fn batch_size_limit_under_load() {
    let mut bench = Bench::new(1);
    let name = "n".repeat(500);
    for connection in 1..=100 {
        bench.open(0, connection);
        for number in 0..7 {
            let auth = format!("{name}{connection}-{number}:secret");
            bench.send(0, connection, -4, digest(auth.as_bytes()));
        }
        assert!(!bench.is_closed(connection));
    }
    bench.ask(1, create("/a", 0)).unwrap();
    bench.stalled = Some(VecDeque::new());
    let data = vec![7; crate::limits::FRAME_BYTES_MAX - 100];
    for connection in 1..=100 {
        let data = if connection % 10 == 0 { &data[..] } else { b"small" };
        bench.send(0, connection, 1, Request::SetData(SetData { path: "/a", data: Some(data), version: -1 }));
    }
    bench.go_on();
    let largest = bench.log.iter().map(Bytes::len).max().unwrap();
    assert!((1 << 20..=crate::limits::ENTRY_BYTES_MAX).contains(&largest), "{largest}");
    for connection in 1..=100 {
        let received = bench.received(connection);
        assert_eq!(received.last().map(|reply| (reply.0, reply.2)), Some((1, 0)));
    }
}

#[test]
fn oversized_request_closes_connection() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.ask(1, create("/a", 0)).unwrap();
    let set = |data| Request::SetData(SetData { path: "/a", data: Some(data), version: -1 });
    let others = set(&[]).to_frame(1).len() - 4;
    let data = vec![7; crate::limits::FRAME_BYTES_MAX + 1 - others];
    bench.ask(1, set(&data[1..])).unwrap();
    bench.send(0, 1, 6, set(&data));
    assert!(bench.is_closed(1));
    assert_eq!(bench.received(1), []);
}

/// Clients ignore errors of requests with a reserved xid.
#[test]
fn invalid_request_with_reserved_xid_closes_connection() {
    let header = |xid: i32, op: i32| encoded(&jute::RequestHeader { xid, op });
    for (connection, (xid, operation)) in
        (1..).zip([(-8, op::SET_WATCHES), (-8, op::SET_WATCHES2), (-4, op::AUTH), (3, op::AUTH), (-2, 999)])
    {
        let mut bench = Bench::new(1);
        bench.open(0, connection);
        bench.raw(0, connection, [header(xid, operation), vec![0]].concat().into());
        assert!(bench.is_closed(connection), "{xid} {operation}");
        assert_eq!(bench.received(connection), []);
    }
    // A ping has no record.
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.raw(0, 1, [header(-2, op::PING), vec![0]].concat().into());
    assert_eq!(bench.received(1)[0].0, -2);
    bench.raw(0, 1, header(7, op::SASL).into());
    assert_eq!(bench.received(1)[0].2, ErrorCode::AuthFailed.code());
    assert!(bench.is_closed(1));
}

#[test]
fn invalid_request_keeps_connection() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let header = |op: i32| encoded(&jute::RequestHeader { xid: 5, op });
    for (bytes, error) in [
        (header(999), ErrorCode::Unimplemented),
        (header(op::CHECK), ErrorCode::Unimplemented),
        (header(op::CREATE), ErrorCode::Marshalling),
        ([header(op::GET_DATA), vec![0, 0, 0, 9, b'/']].concat(), ErrorCode::Marshalling),
    ] {
        bench.raw(0, 1, bytes.into());
        assert_eq!(bench.received(1)[0].2, error.code());
    }
    let reconfig = Reconfig { joining: None, leaving: None, members: None, config: -1 };
    assert_eq!(bench.ask(1, Request::Reconfig(reconfig)), code(ErrorCode::ReconfigDisabled));
    assert_eq!(bench.ask(1, Request::AddWatch(AddWatch { path: "/", mode: 2 })), code(ErrorCode::Marshalling));
    assert!(!bench.is_closed(1));
    bench.raw(0, 1, Bytes::from_static(b"short"));
    assert!(bench.is_closed(1));
    bench.dial(0, 2);
    bench.raw(0, 2, Bytes::from_static(b"not a greeting"));
    assert!(bench.is_closed(2));
    assert!(bench.greet(0, 3, &ConnectRequest { protocol_version: 1, ..request(0, None) }).is_none());
    assert!(bench.is_closed(3));
}

#[test]
fn session_moves_between_servers() {
    let mut bench = Bench::new(2);
    let session = bench.open(0, 1);
    bench.ask(1, create("/e", 1)).unwrap();
    let wrong = bench.greet(1, 2, &request(session.session, Some(&[9; 16]))).unwrap();
    assert_eq!(wrong, ConnectResponse::expired(Some(false)));
    assert!(bench.is_closed(2) && !bench.is_closed(1));
    let moved = bench.greet(1, 3, &request(session.session, Some(&session.password))).unwrap();
    assert_eq!((moved.session, moved.password), (session.session, session.password));
    assert!(bench.is_closed(1));
    bench.send(1, 3, 1, get("/e", false));
    assert_eq!(bench.received(3)[0].2, 0);
    // Moves back to the same server.
    assert!(bench.greet(0, 4, &request(session.session, Some(&session.password))).is_some());
    assert!(bench.greet(0, 5, &request(session.session, Some(&session.password))).is_some());
    assert!(bench.is_closed(3) && bench.is_closed(4) && !bench.is_closed(5));
    let unknown = bench.greet(0, 6, &request(77, Some(&session.password))).unwrap();
    assert_eq!(unknown, ConnectResponse::expired(Some(false)));
    assert!(bench.greet(0, 7, &ConnectRequest { last_zxid_seen: 1_000, ..request(0, None) }).is_none());
    assert!(bench.is_closed(7));
}

#[test]
fn only_silent_sessions_expire() {
    let mut bench = Bench::new(2);
    bench.open(0, 1);
    bench.open(0, 2);
    bench.ask(1, create("/one", 1)).unwrap();
    bench.ask(2, create("/two", 1)).unwrap();
    for _ in 0..10 {
        bench.pass(1_300);
        bench.send(0, 2, -2, Request::Ping);
    }
    let tree = bench.servers[1].state().tree();
    assert_eq!((tree.get("/one").is_none(), tree.get("/two").is_some()), (true, true));
    assert!(bench.is_closed(1) && !bench.is_closed(2));
    assert_eq!(bench.received(2).len(), 10);
}

/// While the log is stalled no session expires, and a server that cannot touch a session stops replying.
#[test]
fn stalled_log_expires_no_sessions() {
    let mut bench = Bench::new(2);
    let session = bench.open(0, 1);
    bench.ask(1, create("/one", 1)).unwrap();
    bench.stalled = Some(VecDeque::new());
    bench.pass(1_500);
    bench.send(0, 1, -2, Request::Ping);
    assert_eq!(bench.received(1).len(), 1);
    bench.pass(1_000);
    bench.send(0, 1, -2, Request::Ping);
    bench.send(0, 1, 1, get("/one", false));
    assert_eq!(bench.received(1).len(), 0);
    assert!(!bench.is_closed(1));
    bench.pass(20_000);
    assert!(bench.is_closed(1));
    bench.go_on();
    assert!(bench.servers[1].state().tree().get("/one").is_some());
    bench.pass(1_000);
    assert!(bench.greet(1, 2, &request(session.session, Some(&session.password))).is_some());
}

#[test]
fn ping_reply_precedes_held_replies() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.pass(1_500);
    bench.send(0, 1, 1, create("/a", 0));
    bench.pass(800);
    bench.send(0, 1, -2, Request::Ping);
    bench.send(0, 1, 2, get("/a", false));
    assert_eq!(bench.received(1), []);
    bench.go_on();
    assert_eq!(bench.received(1).iter().map(|reply| reply.0).collect::<Vec<_>>(), [-2, 1, 2]);
}

#[test]
fn read_only_mode_on_stalled_log() {
    let mut bench = Bench::new(1);
    let session = bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.pass(3_000);
    // The connection waits for an entry in the log.
    let accepting = ConnectRequest { read_only: Some(true), ..request(0, None) };
    assert_eq!(bench.greet(0, 2, &accepting), None);
    bench.pass(5_000);
    assert!(bench.servers[0].is_read_only());
    let frames = std::mem::take(bench.received.get_mut(&ConnectionId(2)).unwrap());
    let response = ConnectResponse::decode(&mut Reader::new(&frames[0][4..])).unwrap();
    assert_eq!((response.read_only, response.session), (Some(true), (2 << 56) + 2));
    assert!(bench.greet(0, 3, &request(0, None)).is_none());
    assert!(bench.is_closed(3));
    let old = ConnectRequest { read_only: Some(true), ..request(session.session, Some(&session.password)) };
    assert_eq!(bench.greet(0, 4, &old).unwrap().session, session.session);
    assert_eq!(bench.ask(2, create("/a", 0)), code(ErrorCode::NotReadOnly));
    assert_eq!(bench.ask(2, Request::Sync(Sync { path: "/" })), code(ErrorCode::NotReadOnly));
    assert!(bench.ask(2, get("/", false)).is_ok());
    bench.pass(10_000);
    bench.send(0, 4, -2, Request::Ping);
    assert_eq!(bench.received(4).len(), 1);
    bench.go_on();
    assert!(!bench.servers[0].is_read_only());
    assert!(bench.is_closed(2) && bench.is_closed(4));
}

#[test]
fn stalled_connect_times_out_at_half() {
    let mut bench = Bench::new(1);
    let session = bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    assert_eq!(bench.greet(0, 2, &request(0, None)), None);
    assert_eq!(bench.greet(0, 3, &request(session.session, Some(&session.password))), None);
    bench.pass(1_500);
    assert!(!bench.is_closed(2) && !bench.is_closed(3));
    bench.pass(1_000);
    assert!(bench.is_closed(2) && bench.is_closed(3));
    // The entry may be in the log: the session is where the client left it, and can move again.
    bench.go_on();
    let moved = bench.greet(0, 4, &request(session.session, Some(&session.password))).unwrap();
    assert_eq!(moved.session, session.session);
}

#[test]
fn closes_read_only_sessions() {
    let mut bench = Bench::new(1);
    let session = bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.pass(6_000);
    let accepting = ConnectRequest { read_only: Some(true), ..request(0, None) };
    assert!(bench.greet(0, 2, &accepting).is_some());
    let old = ConnectRequest { read_only: Some(true), ..request(session.session, Some(&session.password)) };
    assert!(bench.greet(0, 3, &old).is_some());
    for connection in [2, 3] {
        bench.send(0, connection, 7, Request::CloseSession);
    }
    // The session still exists in the log, so no reply may confirm that it is closed.
    assert_eq!((bench.received(2).len(), bench.received(3).len()), (1, 0));
    assert!(bench.is_closed(2) && bench.is_closed(3));
    assert!(bench.servers[0].state().session(crate::entry::SessionId(session.session)).is_some());
}

#[test]
fn idle_server_detects_stalled_log() {
    let mut bench = Bench::new(1);
    bench.stalled = Some(VecDeque::new());
    bench.pass(10_000);
    assert!(!bench.servers[0].is_read_only(), "no appends without sessions");
    bench.servers[0].probe_log();
    bench.settle();
    bench.pass(6_000);
    assert!(bench.servers[0].is_read_only());
    bench.go_on();
    assert!(!bench.servers[0].is_read_only());
}

#[test]
fn blocked_join_disconnects_clients() {
    let mut bench = Bench::new(1);
    let now = bench.now();
    bench.stalled = Some(VecDeque::new());
    bench.servers[0] = Server::new(config(2), State::default(), now);
    bench.settle();
    let accepting = ConnectRequest { read_only: Some(true), ..request(0, None) };
    assert!(bench.greet(0, 1, &accepting).is_none());
    bench.pass(6_000);
    assert!(bench.is_closed(1) && !bench.servers[0].is_read_only());
}

#[test]
fn counts_latencies_and_batches() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    assert!(bench.ask(1, get("/", false)).is_ok());
    bench.stalled = Some(VecDeque::new());
    bench.send(0, 1, 6, create("/a", 0));
    bench.send(0, 1, 7, get("/a", false));
    bench.pass(300);
    bench.go_on();
    assert_eq!(bench.received(1).len(), 2);
    let &Statistics { reads, writes, batches, items, batch_bytes, connects, .. } = bench.servers[0].statistics();
    assert_eq!((reads.count, reads.min.as_millis(), reads.max.as_millis()), (2, 0, 300));
    assert_eq!((writes.count, writes.max.as_millis(), connects), (2, 300, 1));
    assert_eq!((reads.merged(writes).count, reads.mean_ms()), (4, 150.0));
    assert_eq!((batches, items), (2, 2));
    assert!(batch_bytes.min <= batch_bytes.last && batch_bytes.last <= batch_bytes.max);
    bench.send(0, 1, -2, Request::Ping);
    let client = bench.servers[0].clients().next().unwrap().statistics;
    assert_eq!((client.latency.count, client.last_xid, client.last.unwrap().op), (5, Some(7), op::PING));
    bench.servers[0].reset_statistics();
    bench.servers[0].reset_client_statistics();
    assert_eq!(*bench.servers[0].statistics(), Statistics::default());
    assert_eq!(bench.servers[0].clients().next().unwrap().statistics, ClientStatistics::default());
}

#[test]
fn sync_waits_for_tail_and_blocks_writes() {
    let mut bench = Bench::new(2);
    bench.open(0, 1);
    let tails = bench.tails;
    bench.send(0, 1, 1, Request::Sync(Sync { path: "/x" }));
    assert_eq!(bench.tails, tails + 1);
    assert_eq!(bench.received(1)[0].3, encoded(&jute::PathReply { path: "/x" }));
    // A tail that is not reached yet.
    let now = bench.now();
    let frame = |xid, request: Request<'_>| Event::Frame {
        connection: ConnectionId(1),
        frame: request.to_frame(xid).slice(4..),
    };
    bench.servers[0].handle(frame(2, Request::Sync(Sync { path: "/" })), now);
    bench.servers[0].handle(frame(3, create("/a", 0)), now);
    bench.servers[0].handle(frame(4, get("/a", false)), now);
    let actions = bench.servers[0].end_turn(now);
    let [Action::RequestTail { request }, ..] = actions[..] else { panic!("{actions:?}") };
    assert!(!actions.iter().any(|action| matches!(action, Action::Append { .. })));
    let tail = bench.servers[0].state().next();
    bench.servers[0].handle(Event::Tail { request, tail: tail.next() }, now);
    bench.settle();
    assert_eq!(bench.received(1), []);
    bench.skip();
    assert_eq!(bench.received(1).iter().map(|reply| (reply.0, reply.2)).collect::<Vec<_>>(), [(2, 0), (3, 0), (4, 0)]);
}

#[test]
fn linearizable_reads_share_tail() {
    let mut bench = Bench::with(vec![Config { linearizable_reads: true, ..config(1) }]);
    bench.open(0, 1);
    bench.open(0, 2);
    let (now, tails) = (bench.now(), bench.tails);
    for connection in [1, 2] {
        let frame = get("/", false).to_frame(1).slice(4..);
        bench.servers[0].handle(Event::Frame { connection: ConnectionId(connection), frame }, now);
    }
    bench.settle();
    assert_eq!(bench.tails, tails + 1);
    assert_eq!((bench.received(1).len(), bench.received(2).len()), (1, 1));
}

#[test]
fn collects_containers_and_ttl_nodes() {
    let mut bench = Bench::new(2);
    bench.open(0, 1);
    let Request::Create(make) = create("/t", 5) else { panic!() };
    bench.ask(1, Request::Create(Create { kind: CreateKind::Ttl, ttl_ms: Some(2_000), ..make })).unwrap();
    let container = Create { kind: CreateKind::Container, path: "/c", flags: 4, ..make };
    bench.ask(1, Request::Create(container)).unwrap();
    bench.ask(1, Request::Create(Create { path: "/unused", ..container })).unwrap();
    bench.ask(1, create("/c/x", 0)).unwrap();
    let wait = |bench: &mut Bench| {
        bench.pass(1_300);
        bench.send(0, 1, -2, Request::Ping);
        let tree = bench.servers[1].state().tree();
        [tree.get("/t"), tree.get("/c"), tree.get("/unused")].map(|node| node.is_some())
    };
    assert_eq!(wait(&mut bench), [true, true, true]);
    assert_eq!([wait(&mut bench), wait(&mut bench), wait(&mut bench)][2], [false, true, true]);
    bench.send(0, 1, 1, Request::Delete(Delete { path: "/c/x", version: -1 }));
    assert_eq!([wait(&mut bench), wait(&mut bench)][1], [false, false, true]);
}

#[test]
fn server_starts_from_snapshot() {
    let mut bench = Bench::with(vec![Config { snapshot_after_bytes: Some(2_000), ..config(1) }]);
    bench.open(0, 1);
    while bench.trimmed.is_none() {
        bench.ask(1, create("/s-", 2)).unwrap();
    }
    let below = bench.trimmed.unwrap();
    let mut restorer = state::Restorer::default();
    bench.kept.iter().for_each(|piece| restorer.push(piece).unwrap());
    let now = bench.now();
    let mut server = Server::new(config(7), restorer.finish().unwrap(), now);
    assert_eq!(server.state().next(), below);
    let at = usize::try_from(below.0).unwrap();
    for (position, entry) in (below.0..).zip(&bench.log[at..]) {
        server.handle(Event::Played { position: Position(position), entry: Some(entry.clone()) }, now);
    }
    assert_eq!(server.state().zxid(), bench.servers[0].state().zxid());
    assert!(bench.servers[0].state().log_bytes() < 2_000);
}

#[test]
fn slow_consumer_backpressure() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.event(0, Event::OutputFull { connection: ConnectionId(1) });
    assert!(bench.paused.contains(&ConnectionId(1)));
    bench.send(0, 1, 1, get("/", false));
    bench.send(0, 1, 2, create("/a", 0));
    assert_eq!(bench.received(1), []);
    bench.event(0, Event::OutputDrained { connection: ConnectionId(1) });
    let received = bench.received(1);
    assert_eq!(received.iter().map(|reply| reply.0).collect::<Vec<_>>(), [1, 2]);
    // The read precedes the write.
    assert_eq!(DataReply::decode(&mut Reader::new(&received[0].3)).unwrap().stat.num_children, 1);
    assert!(bench.paused.is_empty());
}

/// Many reads of a large node are queued at once: each turn answers some, so the driver can report a full buffer in
/// between.
#[test]
fn turn_output_limit() {
    let mut bench = Bench::new(1);
    let data = vec![7; 2_000];
    for connection in 1..=3 {
        bench.open(0, connection);
    }
    let Request::Create(make) = create("/big", 0) else { panic!() };
    bench.ask(1, Request::Create(Create { data: Some(&data), ..make })).unwrap();
    let now = bench.now();
    for connection in 1..=3 {
        for xid in 1..=10 {
            let request = if xid == 8 { set("/big") } else { get("/big", false) };
            let frame = request.to_frame(xid).slice(4..);
            bench.servers[0].handle(Event::Frame { connection: ConnectionId(connection), frame }, now);
        }
    }
    for turn in 0.. {
        if turn == 4 {
            bench.servers[0].handle(Event::OutputFull { connection: ConnectionId(2) }, now);
        }
        let actions = bench.servers[0].end_turn(now);
        if actions.is_empty() {
            break;
        }
        let sent = actions.iter().map(|action| if let Action::Send { frame, .. } = action { frame.len() } else { 0 });
        assert!(sent.sum::<usize>() < crate::limits::TURN_BYTES + 2_200);
        for action in actions {
            bench.act(0, action);
        }
    }
    let xids = |received: Vec<Received>| received.iter().map(|reply| reply.0).collect::<Vec<_>>();
    let all: Vec<i32> = (1..=10).collect();
    let first = bench.received(1);
    // The reads see the session's earlier write.
    assert_eq!((first[6].3.len() > 2_000, first[9].3.len() < 200), (true, true));
    assert_eq!((xids(first), xids(bench.received(3))), (all.clone(), all.clone()));
    let some = xids(bench.received(2));
    assert!((2..7).contains(&some.len()), "{some:?}");
    bench.event(0, Event::OutputDrained { connection: ConnectionId(2) });
    assert_eq!([some, xids(bench.received(2))].concat(), all);
}

#[test]
fn full_queue_stops_reading() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    for xid in 0..2_048 {
        assert!(bench.paused.is_empty(), "{xid}");
        bench.send(0, 1, xid, create("/s-", 2));
    }
    assert!(!bench.paused.is_empty());
    bench.go_on();
    assert!(bench.paused.is_empty());
    assert_eq!(bench.received(1).len(), 2_048);
}

#[test]
fn retries_failed_appends() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.send(0, 1, 1, create("/a", 0));
    let (server, append, entry) = bench.stalled.take().unwrap().pop_front().unwrap();
    bench.event(server, Event::AppendFailed { append });
    assert_eq!(bench.received(1), []);
    bench.now += 30 * MS;
    bench.event(0, Event::Timer);
    assert_eq!(bench.received(1).len(), 1);
    // The first attempt is in the log as well.
    let position = Position(bench.log.len() as u64);
    bench.log.push(entry.clone());
    bench.event(0, Event::Played { position, entry: Some(entry) });
    assert_eq!(bench.servers[0].state().tree().get("/").unwrap().children().len(), 2);
    assert_eq!(
        bench.ask(1, set("/a")).map(|body| StatReply::decode(&mut Reader::new(&body)).unwrap().stat.version),
        Ok(1)
    );
}

/// A failed append is in the log, at a position that the server does not know, ahead of its retry.
#[test]
fn plays_duplicates_of_own_appends() {
    let mut bench = Bench::new(2);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.send(0, 1, 1, create("/a", 0));
    let (_, append, entry) = bench.stalled.take().unwrap().pop_front().unwrap();
    let (now, first) = (bench.now(), Position(bench.log.len() as u64));
    bench.log.extend([entry.clone(), entry.clone()]);
    bench.event(0, Event::AppendFailed { append });
    bench.event(0, Event::Appended { append, position: first.next() });
    assert_eq!(bench.received(1), []);
    for position in [first, first.next()] {
        for server in &mut bench.servers {
            server.handle(Event::Played { position, entry: Some(entry.clone()) }, now);
        }
    }
    bench.settle();
    assert_eq!(bench.received(1).len(), 1);
    bench.ask(1, set("/a")).unwrap();
    assert!(bench.servers.iter().all(|server| server.state().next() == Position(bench.log.len() as u64)));
}

#[test]
fn duplicate_join_counts_once() {
    let now = Now { monotonic: Monotonic(0), wall: Timestamp(0), uncertainty: None };
    let mut server = Server::new(config(1), State::default(), now);
    let actions = server.end_turn(now);
    let [Action::Append { append, entry }, ..] = &actions[..] else { panic!("{actions:?}") };
    server.handle(Event::Appended { append: *append, position: Position(1) }, now);
    for position in [0, 1].map(Position) {
        server.handle(Event::Played { position, entry: Some(entry.clone()) }, now);
    }
    assert_eq!((server.id(), server.state().next()), (Some(ServerId(0)), Position(2)));
}

#[test]
fn rejoin_plays_appends_in_flight() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    bench.stalled = Some(VecDeque::new());
    bench.send(0, 1, 1, create("/a", 0));
    for _ in 0..=crate::limits::INACTIVE_POSITIONS_MAX {
        bench.skip();
    }
    assert!(bench.is_closed(1));
    // The batch of the removed server, then the join entry.
    bench.go_on();
    bench.open(0, 2);
    assert_eq!(bench.ask(2, get("/a", false)), code(ErrorCode::NoNode));
    assert_eq!(bench.servers[0].state().next(), Position(bench.log.len() as u64));
}

#[test]
fn ignores_events_of_cancelled_snapshot() {
    let mut bench = Bench::with(vec![Config { snapshot_after_bytes: Some(2_000), ..config(1) }]);
    bench.open(0, 1);
    bench.withheld = Some(Vec::new());
    let mut begun = Vec::new();
    for _ in 0..2 {
        while bench.withheld.as_ref().unwrap().is_empty() {
            bench.ask(1, create("/s-", 2)).unwrap();
        }
        let pieces = bench.withheld.as_mut().unwrap();
        begun.push(pieces.remove(0));
        // Another server's snapshot is newer: this one is cancelled.
        if begun.len() == 1 {
            let (now, position) = (bench.now(), Position(bench.log.len() as u64));
            let items = vec![Item::SnapshotKept { next: position.next() }];
            let join = Entry::Join { nonce: 9 }.encode();
            let server = ServerId(position.0);
            let batch = Batch { server, number: 1, time_ms: 0, identities: Vec::new(), items };
            for (position, entry) in [(position, join), (position.next(), batch.encode())] {
                bench.log.push(entry.clone());
                bench.servers[0].handle(Event::Played { position, entry: Some(entry) }, now);
            }
        }
    }
    let [(first, 0), (second, 0)] = begun[..] else { panic!("{begun:?}") };
    assert!(first < second);
    bench.event(0, Event::PieceKept { next: first, index: 0 });
    bench.event(0, Event::SnapshotKept { next: first });
    bench.event(0, Event::SnapshotFailed { next: first });
    assert_eq!((bench.trimmed, bench.withheld.as_ref().unwrap().len()), (None, 0));
    bench.event(0, Event::PieceKept { next: second, index: 0 });
    // A duplicate acknowledgement of a piece counts once.
    bench.event(0, Event::PieceKept { next: second, index: 0 });
    assert_eq!(bench.withheld.as_ref().unwrap()[..], [(second, 1)]);
    bench.event(0, Event::SnapshotKept { next: second });
    assert_eq!(bench.trimmed, Some(second));
}

/// A state that is too large for a snapshot must not fill the log with parts.
#[test]
fn failed_snapshot_backoff() {
    let mut bench = Bench::with(vec![Config { snapshot_after_bytes: Some(2_000), ..config(1) }]);
    bench.open(0, 1);
    bench.withheld = Some(Vec::new());
    let mut begun = Vec::new();
    while begun.len() < 12 {
        bench.ask(1, create("/s-", 2)).unwrap();
        bench.pass(1_000);
        if let Some((next, 0)) = bench.withheld.as_mut().unwrap().pop() {
            begun.push(bench.now);
            bench.event(0, Event::SnapshotFailed { next });
        }
    }
    let delays: Vec<u64> = begun.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000 / MS).collect();
    assert!(delays[0] <= 10 && delays.is_sorted(), "{delays:?}");
    assert!((595..=605).contains(&delays[10]), "{delays:?}");
}

#[test]
fn removed_server_rejoins() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let before = bench.servers[0].id();
    for _ in 0..=crate::limits::INACTIVE_POSITIONS_MAX {
        bench.skip();
    }
    assert!(bench.is_closed(1));
    assert_ne!(bench.servers[0].id(), before);
    bench.open(0, 2);
    bench.ask(2, create("/a", 0)).unwrap();
}

/// Invalid frames affect only their own connection.
#[test]
fn invalid_frame_affects_only_sender() {
    let mut random = base::SplitMix64::new(11);
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let own = OPEN[0];
    let Request::Create(make) = create("/a/b", 3) else { panic!() };
    let operations = [Operation::Create(make), Operation::Check(CheckVersion { path: "/a", version: 0 })];
    let set_watches = SetWatches {
        relative_zxid: -1,
        data: Sequence::of(&["/a", "x"]),
        exist: Sequence::of(&[""]),
        child: Sequence::of(&["/", "//"]),
    };
    let acl = [own];
    let requests = [
        Request::Create(make),
        Request::Multi(Operations::of(&operations)),
        Request::SetWatches(set_watches),
        Request::SetAcl(jute::SetAcl { path: "/", acl: Sequence::of(&acl), version: -1 }),
        Request::Auth(AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(b"a:b") }),
        Request::GetEphemerals(GetEphemerals { prefix: Some("/a") }),
        get("/a", true),
        Request::CloseSession,
    ];
    for connection in 2..250 {
        let id = ConnectionId(connection);
        let address = "::1".parse().unwrap();
        bench.event(0, Event::Connected { connection: id, address, password: [3; 16] });
        let greeting = jute::Writer::new().frame(|writer| request(0, None).encode(writer)).slice(4..);
        let mut frames = vec![greeting];
        for _ in 0..12 {
            let request = requests[random.below(requests.len() as u64) as usize];
            frames.push(request.to_frame(random.draw() as i32).slice(4..));
        }
        for frame in frames {
            let mut bytes = frame.to_vec();
            if random.chance(300_000) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.draw() as u8;
                bytes.truncate(1 + random.below(2 * bytes.len() as u64) as usize);
            }
            bench.event(0, Event::Frame { connection: id, frame: bytes.into() });
        }
        bench.event(0, Event::Disconnected { connection: id });
    }
    assert_eq!(bench.servers[0].clients().len(), 1);
    assert_eq!(bench.servers[0].watches().count(), 0);
    assert!(bench.ask(1, get("/", false)).is_ok());
}

#[test]
fn disconnect_removes_many_watches() {
    let mut bench = Bench::new(1);
    bench.open(0, 1);
    let paths: Vec<String> = (0..20_000).map(|number| format!("/watched/{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let none = Sequence::of(&[]);
    let set = SetWatches { relative_zxid: 0, data: none, exist: Sequence::of(&paths), child: none };
    bench.send(0, 1, -8, Request::SetWatches(set));
    assert_eq!(bench.servers[0].watches().count(), 20_000);
    bench.event(0, Event::Disconnected { connection: ConnectionId(1) });
    assert_eq!(bench.servers[0].watches().count(), 0);
}

#[test]
fn watched_path_byte_limit() {
    let mut bench = Bench::new(1);
    for connection in 1..=2 {
        bench.open(0, connection);
    }
    let paths: Vec<String> = (0..12).map(|number| format!("/{number}{}", "x".repeat(99_000))).collect();
    for (connection, path) in [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1].into_iter().zip(&paths) {
        bench.send(0, connection, 1, Request::Exists(PathAndWatch { path, watch: true }));
    }
    // The second client's second watch exceeds the limit, and the first client has the most watches.
    assert_eq!((bench.is_closed(1), bench.is_closed(2)), (true, false));
    assert_eq!(bench.servers[0].watches().count(), 2);
}
