//! Translation servers and ZooKeeper clients (guarantees 21, 22 and 28).
//!
//! Each node has a server and its port to the coordination log, like the endpoint's thread in the product; both live as
//! long as the node's process. Clients connect to any node. They and their checks are those of [`coordination::model`].
//!
//! * A position of the log has the same content for all servers, and for the server that appended it. So an
//!   acknowledged write is never lost, and all servers have equal states at equal positions.
//! * Nothing is trimmed before a snapshot is durable.
//! * Once faults have ended, all clients make progress. When half of them leave, exactly their sessions end.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Monotonic, NodeId, SplitMix64};
use bytes::Bytes;
use coordination::entry::{Position, SessionId};
use coordination::log_port::{LogOutcome, LogPort, Output, Playback};
use coordination::model::{Clients, Network, Time};
use coordination::server::{Action, AppendId, Config, ConnectionId, Event, Server};
use node::contract::{self, RequestId};
use node::request::{Outcome, Request, Response};
use sharedlog::request::{LogRequest, LogResponse};
use sharedlog::snapshot::is_of_snapshot;
use state_machine::Failure;

use super::events::{Generation, Happening};
use super::{MILLISECOND, World};

/// Longer than most leader changes, so that sessions outlive some faults and not others.
const TIMEOUT: Duration = Duration::from_millis(1_500);
const TICK: Duration = Duration::from_millis(150);
/// Small, so that the log is trimmed several times.
const SNAPSHOT_AFTER_BYTES: u64 = 6_000;
/// Replies that each client must receive after faults have ended.
const GET_ON: u64 = 20;

/// An input of a translation server.
#[derive(Debug)]
pub(crate) enum Input {
    Client(Event),
    /// The answer to a request to the log.
    Answer {
        number: u64,
        answer: LogOutcome,
    },
    Timer(u64),
    PortTimer(u64),
}

/// The endpoint of one node.
struct Endpoint {
    port: LogPort,
    /// None while the log is being opened.
    server: Option<Server>,
    timer: u64,
    port_timer: u64,
    port_timer_at: Monotonic,
    /// The server's appends without a known position.
    appends: BTreeMap<AppendId, Bytes>,
    /// Requests that append the snapshot in progress, and how many of them have succeeded.
    snapshot_appends: BTreeSet<u64>,
    snapshot_appended: usize,
    /// The last position at which the state was compared.
    compared_at: Position,
}

/// A connection; each direction is FIFO.
struct Link {
    client: usize,
    node: NodeId,
    generation: Generation,
    to_server: Time,
    to_client: Time,
}

pub(crate) struct ZooKeeper {
    count: usize,
    clients: Clients,
    random: SplitMix64,
    has_linearizable_reads: bool,
    endpoints: BTreeMap<NodeId, Endpoint>,
    links: BTreeMap<ConnectionId, Link>,
    connections: u64,
    asked: BTreeMap<RequestId, (NodeId, Generation, u64)>,
    /// The content of each position, as first seen by a server.
    contents: BTreeMap<u64, Option<Bytes>>,
    /// Positions below were applied by the spectator.
    settled: u64,
    /// Replies before faults ended.
    done: Vec<u64>,
}

fn clients(count: usize, has_linearizable_reads: bool, seed: u64) -> Clients {
    Clients::new(count, TIMEOUT, TICK, has_linearizable_reads, seed)
}

impl ZooKeeper {
    pub(crate) fn new(count: u32, seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x2007_11b5_0000);
        let has_linearizable_reads = random.chance(200_000);
        let count = count as usize;
        Self {
            count,
            clients: clients(count, has_linearizable_reads, random.draw()),
            random,
            has_linearizable_reads,
            endpoints: BTreeMap::new(),
            links: BTreeMap::new(),
            connections: 0,
            asked: BTreeMap::new(),
            contents: BTreeMap::new(),
            settled: 0,
            done: Vec::new(),
        }
    }

    /// Whether each client has received replies since faults ended.
    pub(crate) fn has_got_on(&self) -> bool {
        self.clients.done().iter().zip(&self.done).all(|(done, before)| *done >= before + GET_ON)
    }

    pub(crate) fn waiting_for(&self) -> String {
        if self.count == 0 {
            return String::new();
        }
        let done = self.clients.done();
        let clients = (0..self.count).map(|id| format!("{} done, {}", done[id], self.clients.describe(id)));
        let servers = self.endpoints.iter().map(|(node, endpoint)| {
            let at = endpoint.server.as_ref().map(|server| server.state().next());
            format!("server {node} at {at:?}, {:?}", endpoint.port)
        });
        let sessions = self.clients.checks.spectator().sessions().map(|(id, _)| id).collect::<Vec<_>>();
        let lines: Vec<_> = clients.chain(servers).chain([format!("sessions {sessions:?}")]).collect();
        lines.join("\n")
    }

    /// A server has learned the content of a position.
    fn observe(&mut self, position: Position, content: Option<&Bytes>) {
        let known = self.contents.entry(position.0).or_insert_with(|| content.cloned());
        if known.as_ref() != content {
            let (known, found) = (known.as_ref().map(Bytes::len), content.map(Bytes::len));
            self.clients
                .checks
                .violated(format!("the entry at {position:?} changed from {known:?} to {found:?} bytes"));
        }
        while let Some(content) = self.contents.get(&self.settled) {
            self.clients.settle(content.as_ref(), None);
            self.settled += 1;
        }
    }

    /// Mostly short, sometimes long.
    fn latency(&mut self) -> Time {
        let longest = if self.random.chance(30_000) { 20 * MILLISECOND } else { MILLISECOND / 2 };
        MILLISECOND / 20 + self.random.below(longest)
    }

    fn config(&mut self) -> Config {
        Config {
            nonce: u128::from(self.random.draw()),
            session_timeout_min: TIMEOUT,
            session_timeout_max: TIMEOUT,
            tick: TICK,
            batches_in_flight: 1 + self.random.below(4) as usize,
            linearizable_reads: self.has_linearizable_reads,
            read_only_after: self.random.chance(500_000).then_some(Duration::from_millis(1_000)),
            super_digest: None,
            collect_every: Duration::from_millis(500),
            collect_unused_after: None,
            snapshot_after_bytes: Some(SNAPSHOT_AFTER_BYTES),
        }
    }

    fn playback(&mut self) -> Playback {
        match self.random.below(4) {
            0 => Playback::Interval(Duration::from_millis(10)),
            1 => Playback::Adaptive,
            _ => Playback::Push,
        }
    }
}

impl Endpoint {
    fn new(port: LogPort) -> Self {
        Self {
            port,
            server: None,
            timer: 0,
            port_timer: 0,
            port_timer_at: Monotonic::NEVER,
            appends: BTreeMap::new(),
            snapshot_appends: BTreeSet::new(),
            snapshot_appended: 0,
            compared_at: Position(0),
        }
    }
}

impl Network for World {
    fn time(&self) -> Time {
        self.now
    }

    fn dial(&mut self, client: usize) -> ConnectionId {
        let node = self.any_node();
        let zookeeper = &mut self.zookeeper;
        zookeeper.connections += 1;
        let connection = ConnectionId(zookeeper.connections);
        if zookeeper.endpoints.get(&node).is_none_or(|endpoint| endpoint.server.is_none()) {
            let at = self.now + zookeeper.latency();
            self.queue.put(at, Happening::ZooKeeperFrame { client, connection, frame: None });
            return connection;
        }
        let (generation, now) = (self.generation(node), self.now);
        let link = Link { client, node, generation, to_server: now, to_client: now };
        self.zookeeper.links.insert(connection, link);
        let mut password = [0; 16];
        password[..8].copy_from_slice(&connection.0.to_be_bytes());
        let address = core::net::Ipv4Addr::LOCALHOST.into();
        self.send_to_endpoint(connection, Event::Connected { connection, address, password });
        connection
    }

    fn send_frame(&mut self, connection: ConnectionId, frame: &Bytes) {
        self.send_to_endpoint(connection, Event::Frame { connection, frame: frame.slice(4..) });
    }

    fn hang_up(&mut self, connection: ConnectionId) {
        self.send_to_endpoint(connection, Event::Disconnected { connection });
        self.zookeeper.links.remove(&connection);
    }
}

impl World {
    pub(crate) fn begin_zookeeper(&mut self) {
        for client in 0..self.zookeeper.count {
            self.queue.put(
                self.now + SplitMix64::new(client as u64).below(MILLISECOND),
                Happening::ZooKeeperClient { client },
            );
        }
    }

    /// A node's process has started.
    pub(crate) fn start_endpoint(&mut self, node: NodeId) {
        if self.zookeeper.count == 0 {
            return;
        }
        let now = self.hosts[&node].clocks.monotonic(self.now);
        let playback = self.zookeeper.playback();
        let endpoint = Endpoint::new(LogPort::new(self.options.nodes.min(3), playback, now));
        self.zookeeper.endpoints.insert(node, endpoint);
        let generation = self.generation(node);
        // Sends the first request.
        self.queue.put(self.now, Happening::Translation { node, generation, input: Box::new(Input::PortTimer(0)) });
    }

    /// A node's process has ended, and its connections with it.
    pub(crate) fn end_endpoint(&mut self, node: NodeId) {
        self.zookeeper.endpoints.remove(&node);
        self.zookeeper.asked.retain(|_, (at, ..)| *at != node);
        self.break_links(node);
    }

    /// Most clients get a connection reset, others must time out.
    fn break_links(&mut self, node: NodeId) {
        let of_node = |(_, link): &(&ConnectionId, &Link)| link.node == node;
        let links = self.zookeeper.links.iter().filter(of_node);
        let broken: Vec<_> = links.map(|(connection, link)| (*connection, link.client)).collect();
        for (connection, client) in broken {
            self.zookeeper.links.remove(&connection);
            if self.zookeeper.random.chance(700_000) {
                let at = self.now + self.zookeeper.latency();
                self.queue.put(at, Happening::ZooKeeperFrame { client, connection, frame: None });
            }
        }
    }

    fn send_to_endpoint(&mut self, connection: ConnectionId, event: Event) {
        let delay = self.zookeeper.latency();
        let Some(link) = self.zookeeper.links.get_mut(&connection) else { return };
        link.to_server = link.to_server.max(self.now + delay) + 1;
        let (node, generation) = (link.node, link.generation);
        let input = Box::new(Input::Client(event));
        self.queue.put(link.to_server, Happening::Translation { node, generation, input });
    }

    fn send_to_zookeeper_client(&mut self, connection: ConnectionId, frame: Option<Bytes>) {
        let delay = self.zookeeper.latency();
        let Some(link) = self.zookeeper.links.get_mut(&connection) else { return };
        link.to_client = link.to_client.max(self.now + delay) + 1;
        let (client, at) = (link.client, link.to_client);
        if frame.is_none() {
            self.zookeeper.links.remove(&connection);
        }
        self.queue.put(at, Happening::ZooKeeperFrame { client, connection, frame });
    }

    fn with_zookeeper_clients(&mut self, act: impl FnOnce(&mut Clients, &mut Self)) {
        let mut taken = std::mem::replace(&mut self.zookeeper.clients, clients(0, false, 0));
        act(&mut taken, self);
        self.zookeeper.clients = taken;
        self.note_zookeeper();
    }

    fn note_zookeeper(&mut self) {
        let checks = &mut self.zookeeper.clients.checks;
        checks.time = self.now;
        if let Some(violation) = checks.violation.take() {
            self.violate(&format!("ZooKeeper, {violation}"));
        }
    }

    pub(crate) fn zookeeper_client(&mut self, client: usize) {
        self.with_zookeeper_clients(|clients, world| clients.step(client, world));
        let pause = MILLISECOND + self.zookeeper.random.below(10 * MILLISECOND);
        self.queue.put(self.now + pause, Happening::ZooKeeperClient { client });
    }

    pub(crate) fn zookeeper_frame(&mut self, client: usize, connection: ConnectionId, frame: Option<&Bytes>) {
        self.with_zookeeper_clients(|clients, world| clients.hears(client, connection, frame, world));
    }

    /// A node's response to its endpoint; returns false if the request was not the endpoint's.
    pub(crate) fn endpoint_answered(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let Some((node, generation, number)) = self.zookeeper.asked.remove(&id) else { return false };
        let answer = match outcome {
            Ok(Response::Log(response)) => Ok(response.clone()),
            Ok(other) => Err(Failure::Unavailable(format!("{other:?}"))),
            Err(failure) => Err(failure.clone()),
        };
        let at = self.now + self.zookeeper.random.below(MILLISECOND / 10);
        let input = Box::new(Input::Answer { number, answer });
        self.queue.put(at, Happening::Translation { node, generation, input });
        true
    }

    /// A turn of an endpoint.
    pub(crate) fn translate(&mut self, node: NodeId, input: Input) {
        let Some(mut endpoint) = self.zookeeper.endpoints.remove(&node) else { return };
        let now = self.hosts[&node].clocks.now(self.now);
        self.zookeeper.clients.checks.time = self.now;
        match input {
            Input::Client(event) => {
                if let Some(server) = &mut endpoint.server {
                    server.handle(event, now);
                }
            }
            Input::Answer { number, answer } => {
                let is_appended = matches!(answer, Ok(LogResponse::Appended(_)));
                if is_appended && endpoint.snapshot_appends.remove(&number) {
                    endpoint.snapshot_appended += 1;
                }
                endpoint.port.answered(number, answer, now.monotonic);
            }
            Input::Timer(number) => {
                if let Some(server) = endpoint.server.as_mut().filter(|_| number == endpoint.timer) {
                    server.handle(Event::Timer, now);
                }
            }
            Input::PortTimer(number) => {
                if number == endpoint.port_timer {
                    endpoint.port_timer_at = Monotonic::NEVER;
                    endpoint.port.timer(now.monotonic);
                }
            }
        }
        let mut requests = Vec::new();
        while self.endpoint_turn(node, &mut endpoint, &mut requests) {}
        let at = endpoint.port.next_timer();
        let generation = self.generation(node);
        if at != endpoint.port_timer_at {
            endpoint.port_timer += 1;
            endpoint.port_timer_at = at;
            if at != Monotonic::NEVER {
                let time = self.hosts[&node].clocks.true_time(at, self.now);
                let input = Box::new(Input::PortTimer(endpoint.port_timer));
                self.queue.put(time, Happening::Translation { node, generation, input });
            }
        }
        self.zookeeper.endpoints.insert(node, endpoint);
        self.note_zookeeper();
        for (number, deadline, request) in requests {
            let is_up = self.hosts[&node].is_live(generation);
            if !is_up {
                return;
            }
            let id = self.libraries.number();
            self.zookeeper.asked.insert(id, (node, generation, number));
            let request = Request::Log(request);
            if self.hosts[&node].paused {
                // The inbox of the node's thread, which was paused by an earlier request.
                let (request, is_at_endpoint) = (Box::new(request), false);
                let happening = Happening::Request { node, generation, id, deadline, request, is_at_endpoint };
                self.queue.put(self.now, happening);
            } else {
                self.step(node, contract::Event::Request { id, deadline, request });
            }
        }
    }

    /// Passes the port's outputs to the server, and the server's actions to the port. Returns whether there may be
    /// more.
    fn endpoint_turn(
        &mut self,
        node: NodeId,
        endpoint: &mut Endpoint,
        requests: &mut Vec<(u64, Monotonic, LogRequest)>,
    ) -> bool {
        let now = self.hosts[&node].clocks.now(self.now);
        let generation = self.generation(node);
        let outputs = endpoint.port.take_outputs();
        let has_outputs = !outputs.is_empty();
        let mut trimmed = None;
        for output in outputs {
            match output {
                Output::Request { number, deadline, request } => {
                    if is_snapshot_append(&request) {
                        endpoint.snapshot_appends.insert(number);
                    }
                    requests.push((number, deadline, request));
                }
                Output::Opened(state) => {
                    self.zookeeper.clients.checks.state(&state);
                    self.count(if state.next() > Position(0) {
                        "znodes restored"
                    } else {
                        "znodes replayed from the start"
                    });
                    endpoint.appends.clear();
                    endpoint.server = Some(Server::new(self.zookeeper.config(), *state, now));
                }
                Output::Event(event) => {
                    match &event {
                        Event::Played { position, entry } => self.zookeeper.observe(*position, entry.as_ref()),
                        Event::Appended { append, position } => {
                            let entry = endpoint.appends.remove(append);
                            self.zookeeper.observe(*position, entry.as_ref());
                        }
                        Event::AppendFailed { .. } => self.count("batch appends retried"),
                        _ => {}
                    }
                    if let Some(server) = &mut endpoint.server {
                        server.handle(event, now);
                    }
                }
                Output::Trimmed(mark) => trimmed = Some(mark),
                Output::NotOpened(_) => self.count("coordination log unavailable"),
                Output::SnapshotFailed(_) => self.count("znode snapshots failed"),
            }
        }
        let Some(server) = &mut endpoint.server else { return has_outputs };
        if trimmed.is_some_and(|mark| mark > server.state().next()) {
            self.count("servers behind a trim");
            endpoint.server = None;
            endpoint.port.open(now.monotonic);
            self.break_links(node);
            return true;
        }
        let actions = server.end_turn(now);
        let (next, is_awaited) = (server.state().next(), server.waits_for_log());
        if std::mem::replace(&mut endpoint.compared_at, next) != next {
            self.zookeeper.clients.checks.state(server.state());
        }
        for action in actions {
            match action {
                Action::Send { connection, frame } => self.send_to_zookeeper_client(connection, Some(frame)),
                Action::Close { connection } => self.send_to_zookeeper_client(connection, None),
                Action::Pause { .. } | Action::Resume { .. } => {}
                Action::SetTimer(at) => {
                    endpoint.timer += 1;
                    if at != Monotonic::NEVER {
                        let time = self.hosts[&node].clocks.true_time(at, self.now);
                        let input = Box::new(Input::Timer(endpoint.timer));
                        self.queue.put(time, Happening::Translation { node, generation, input });
                    }
                }
                action => {
                    self.check_action(endpoint, &action);
                    endpoint.port.act(action, now.monotonic);
                }
            }
        }
        endpoint.port.follow(next, is_awaited, now.monotonic);
        has_outputs
    }

    fn check_action(&mut self, endpoint: &mut Endpoint, action: &Action) {
        match action {
            Action::Append { append, entry } => {
                endpoint.appends.insert(*append, entry.clone());
            }
            Action::KeepPiece { index: 0, .. } => {
                endpoint.snapshot_appends.clear();
                endpoint.snapshot_appended = 0;
            }
            Action::Trim { below } => {
                // A part and the pointer, at least.
                if !endpoint.snapshot_appends.is_empty() || endpoint.snapshot_appended < 2 {
                    self.violate(&format!("the log was trimmed below {below:?} before a snapshot was durable"));
                }
                self.count("trims after znode snapshots");
            }
            _ => {}
        }
    }

    /// Whether every server serves, and its sessions are those of the clients that stayed. A node with a blank disk is
    /// refused by the others.
    fn is_zookeeper_settled(&self) -> bool {
        let sessions = self.zookeeper.clients.sessions();
        let has_those = |server: &Server| server.state().sessions().map(|(id, _)| id.0).eq(sessions.keys().copied());
        let mut served = self.zookeeper.endpoints.iter().filter(|(node, _)| !self.hosts[node].is_foreign());
        sessions.len() == self.zookeeper.count.div_ceil(2)
            && served.all(|(_, endpoint)| endpoint.server.as_ref().is_some_and(has_those))
    }

    /// After faults have ended: all clients make progress, and when half of them leave, exactly their sessions end.
    pub(crate) fn finish_zookeeper(&mut self) {
        if self.zookeeper.count == 0 {
            return;
        }
        self.zookeeper.done = self.zookeeper.clients.done();
        self.play_until_all("ZooKeeper clients made progress", |world| world.zookeeper.has_got_on());
        self.with_zookeeper_clients(Clients::quiet);
        self.play_until_all("sessions of lost clients ended", Self::is_zookeeper_settled);
        let spectator = self.zookeeper.clients.checks.spectator();
        let sessions: BTreeSet<SessionId> = spectator.sessions().map(|(id, _)| id).collect();
        if self.violation.is_none() && spectator.tree().owners().any(|owner| !sessions.contains(&SessionId(owner))) {
            self.violate("an ephemeral node outlived its session");
        }
        self.zookeeper.clients.checks.finish();
        self.note_zookeeper();
        for (what, times) in std::mem::take(&mut self.zookeeper.clients.checks.counters) {
            let what = match what {
                "writes" => "ZooKeeper writes",
                "reads after a sync" => "ZooKeeper synced reads",
                "events" => "ZooKeeper events",
                "expiries" => "ZooKeeper sessions expired",
                "moves" => "ZooKeeper sessions moved",
                "locks" => "ZooKeeper locks",
                _ => continue,
            };
            *self.counters.entry(what).or_default() += times;
        }
    }
}

fn is_snapshot_append(request: &LogRequest) -> bool {
    let LogRequest::Append { batch, .. } = request else { return false };
    batch.records().is_ok_and(|records| is_of_snapshot(&records))
}
