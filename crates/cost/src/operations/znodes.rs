//! A translation server in one of the nodes, with one client.

use std::net::Ipv4Addr;

use base::{Duration, Monotonic};
use bytes::Bytes;
use coordination::jute::{
    AclRecord, ConnectRequest, Create, CreateKind, Frames, IdRecord, PathAndWatch, Reader, Record as _, ReplyHeader,
    Request as ZooKeeperRequest, Sequence, SetData, Writer,
};
use coordination::log_port::{LogPort, Output, Playback};
use coordination::server::{Action, Config, ConnectionId, Event, Server};
use node::contract::RequestId;
use node::request::{Request, Response};
use state_machine::Failure;

use super::{Run, value};
use crate::cluster::Cluster;

const NODE: usize = 0;
const CLIENT: ConnectionId = ConnectionId(1);
const PATH: &str = "/node";
/// The bytes of the znode.
const DATA_BYTES: usize = 512;
/// Longer than a measurement, so that the client need not ping.
const SESSION_TIMEOUT: Duration = Duration::from_millis(40_000);
const FRAME_BYTES_MAX: usize = 1 << 20;

struct Endpoint {
    cluster: Cluster,
    port: LogPort,
    /// None while the log is being opened.
    server: Option<Server>,
    /// The port's requests in progress, with its numbers.
    requests: Vec<(RequestId, u64)>,
    timer: Monotonic,
    /// The client's bytes.
    input: Frames,
    /// The frames for the client.
    output: Vec<Bytes>,
    xid: i32,
}

fn config() -> Config {
    Config {
        nonce: 1,
        session_timeout_min: SESSION_TIMEOUT,
        session_timeout_max: SESSION_TIMEOUT,
        tick: SESSION_TIMEOUT.percent(10),
        batches_in_flight: 3,
        linearizable_reads: false,
        read_only_after: Some(Duration::from_millis(5_000)),
        super_digest: None,
        collect_every: Duration::from_millis(10_000),
        collect_unused_after: None,
        snapshot_after_bytes: Some(64 << 20),
    }
}

impl Endpoint {
    fn new() -> Self {
        let cluster = Cluster::start();
        let now = cluster.now();
        let mut endpoint = Self {
            port: LogPort::new(3, Playback::Push, now.monotonic),
            server: None,
            cluster,
            requests: Vec::new(),
            timer: Monotonic::NEVER,
            input: Frames::new(FRAME_BYTES_MAX),
            output: Vec::new(),
            xid: 0,
        };
        endpoint.hear_of_log();
        while endpoint.server.is_none() {
            endpoint.proceed();
        }
        endpoint.connect();
        endpoint
    }

    fn connect(&mut self) {
        let address = Ipv4Addr::LOCALHOST.into();
        self.handle(Event::Connected { connection: CLIENT, address, password: [1; 16] });
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: i32::try_from(SESSION_TIMEOUT.as_millis()).expect("it is short"),
            session: 0,
            password: None,
            read_only: Some(false),
        };
        self.send(&Writer::new().frame(|writer| request.encode(writer)));
        let open = [AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
        let acl = Sequence::of(&open);
        let data = value(DATA_BYTES);
        let create = Create { kind: CreateKind::Create, path: PATH, data: Some(&data), acl, flags: 0, ttl_ms: None };
        self.must(&ZooKeeperRequest::Create(create));
    }

    /// Executes a request, which must succeed.
    fn must(&mut self, request: &ZooKeeperRequest) {
        self.xid += 1;
        let reply = self.send(&request.to_frame(self.xid));
        let header = ReplyHeader::decode(&mut Reader::new(&reply[4..])).expect("a reply");
        assert_eq!((header.xid, header.err), (self.xid, 0));
    }

    /// Sends bytes of the client, and waits for the reply.
    fn send(&mut self, bytes: &[u8]) -> Bytes {
        self.input.push(bytes);
        while let Some(frame) = self.input.next().expect("a short frame") {
            self.handle(Event::Frame { connection: CLIENT, frame });
        }
        self.end_turn();
        while self.output.is_empty() {
            self.proceed();
        }
        self.output.pop().expect("there is a reply")
    }

    fn handle(&mut self, event: Event) {
        let now = self.cluster.now();
        self.server.as_mut().expect("the log is open").handle(event, now);
    }

    /// Handles what happens next.
    fn proceed(&mut self) {
        if !self.cluster.turn() {
            self.cluster.idle_until(self.timer.min(self.port.next_timer()));
        }
        let now = self.cluster.now();
        let mut has_changed = false;
        let mut waiting = std::mem::take(&mut self.requests);
        waiting.retain(|(id, number)| {
            let Some(outcome) = self.cluster.take_reply(*id) else { return true };
            let answer = outcome.and_then(|response| match response {
                Response::Log(response) => Ok(response),
                other => Err(Failure::Unavailable(format!("unexpected {other:?}"))),
            });
            self.port.answered(*number, answer, now.monotonic);
            has_changed = true;
            false
        });
        // Requests that the answers caused are not made yet.
        self.requests = waiting;
        if self.port.next_timer() <= now.monotonic {
            self.port.timer(now.monotonic);
            has_changed = true;
        }
        if self.timer <= now.monotonic {
            self.timer = Monotonic::NEVER;
            self.handle(Event::Timer);
            has_changed = true;
        }
        if has_changed {
            self.end_turn();
        }
    }

    /// Executes the server's actions, until the port has no more news.
    fn end_turn(&mut self) {
        loop {
            let now = self.cluster.now();
            let Some(server) = &mut self.server else {
                self.hear_of_log();
                return;
            };
            for action in server.end_turn(now) {
                match action {
                    Action::Send { frame, .. } => self.output.push(frame),
                    Action::Close { .. } => panic!("the client is disconnected"),
                    Action::Pause { .. } | Action::Resume { .. } => {}
                    Action::SetTimer(at) => self.timer = at,
                    action => self.port.act(action, now.monotonic),
                }
            }
            self.port.follow(server.state().next(), server.waits_for_log(), now.monotonic);
            if !self.hear_of_log() {
                return;
            }
        }
    }

    /// Passes the port's outputs on. Returns whether the server has news.
    fn hear_of_log(&mut self) -> bool {
        let mut has_news = false;
        for output in self.port.take_outputs() {
            match output {
                Output::Request { number, deadline, request } => {
                    let id = self.cluster.submit(NODE, deadline, Request::Log(request));
                    self.requests.push((id, number));
                    continue;
                }
                Output::Opened(state) => self.server = Some(Server::new(config(), *state, self.cluster.now())),
                Output::Event(event) => self.handle(event),
                Output::Trimmed(_) | Output::NotOpened(_) => {}
                Output::SnapshotFailed(reason) => panic!("no snapshot: {reason}"),
            }
            has_news = true;
        }
        has_news
    }
}

pub(super) fn set() -> Run {
    let (mut endpoint, data) = (Endpoint::new(), value(DATA_BYTES));
    Box::new(move || endpoint.must(&ZooKeeperRequest::SetData(SetData { path: PATH, data: Some(&data), version: -1 })))
}

pub(super) fn get() -> Run {
    let mut endpoint = Endpoint::new();
    Box::new(move || endpoint.must(&ZooKeeperRequest::GetData(PathAndWatch { path: PATH, watch: false })))
}
