//! The ZooKeeper endpoint: a thread that owns the clients' sockets and a translation server
//! (`coordination::server::Server`), so that reads never leave the thread (ZooKeeper-SL: Wei et al., LADIS 2013).
//!
//! All state is soft: at start the thread restores the newest snapshot from the log and applies the rest before it
//! listens. Frames for a slow consumer wait in its output queue; above `Protocol::OUTPUT_HIGH_BYTES` the server
//! withholds further frames until the queue has drained.
//!
//! | file | contents |
//! |---|---|
//! | `transport` | access to the coordination log through the node |
//! | `remote` | access to the coordination log over the network |
//! | `commands` | the four-letter commands |
//! | `report` | metrics and status for the commands, `/metrics` and the console |

mod commands;
mod remote;
mod report;
mod transport;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::budget::ByteBudget;
use base::limits::zookeeper::GREETING_TIMEOUT;
use base::{Duration, Monotonic, Now};
use bytes::{Bytes, BytesMut};
use coordination::jute::Frames;
use coordination::limits::FRAME_BYTES_MAX;
use coordination::log_port::{LogPort, Output as LogOutput, Playback};
use coordination::server::{Action, Config, ConnectionId, Event, Server};
use coordination::state::State;
use mio::{Events, Poll, Waker};
use node::request::Response;
use sharedlog::validate::COORDINATION_COPIES;
use state_machine::Failure;

use crate::connections::{self, Connection, ConnectionLimits, Connections};
use crate::endpoint::{COMPLETIONS, Endpoint, wait};
use crate::node::Completions;
use crate::protocol::{OutputChange, Protocol, Step};
use crate::{clock, process, random};

pub use remote::RemoteTransport;
pub use transport::{LogTransport, NodeTransport};

/// Batches in flight. Each may leave a hole in the log if the server crashes.
const BATCHES_IN_FLIGHT: usize = 3;
/// Read-only mode begins when an append takes longer than this, which exceeds the time of a log reconfiguration.
const READ_ONLY_AFTER: Duration = Duration::from_millis(5_000);
/// Interval of the search for unused containers and TTL nodes.
const COLLECT_EVERY: Duration = Duration::from_millis(10_000);
/// Log size at which a snapshot is written.
const SNAPSHOT_AFTER_BYTES: u64 = 64 << 20;
/// Interval at which metrics and status are published.
const PUBLISH_EVERY: Duration = Duration::from_millis(1_000);
/// Random bytes fetched at once.
const RANDOM_BYTES: usize = 4_096;

/// The settings of the endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's number; `None` for a translation server without a node.
    pub node: Option<u32>,
    /// Number of founding nodes of the cluster; 0 for a translation server without a node.
    pub nodes: u32,
    pub address: SocketAddr,
    /// The shortest session timeout and the longest.
    pub session_timeout: [Duration; 2],
    pub super_digest: Option<String>,
    pub linearizable_reads: bool,
    pub playback: Playback,
    /// The enabled four-letter commands; all if `None`.
    pub commands: Option<Vec<String>>,
    pub connections_max: usize,
    pub connections_per_address: usize,
    /// Memory for incomplete requests and unread replies.
    pub memory: ByteBudget,
    /// Publishes the metrics and status, and provides the server's role.
    pub endpoint: Arc<server::zookeeper::Endpoint>,
}

impl Settings {
    fn server(&self, nonce: u128) -> Config {
        let [session_timeout_min, session_timeout_max] = self.session_timeout;
        Config {
            nonce,
            session_timeout_min,
            session_timeout_max,
            tick: session_timeout_min.percent(10),
            batches_in_flight: BATCHES_IN_FLIGHT,
            linearizable_reads: self.linearizable_reads,
            read_only_after: Some(READ_ONLY_AFTER),
            super_digest: self.super_digest.clone(),
            collect_every: COLLECT_EVERY,
            collect_unused_after: None,
            snapshot_after_bytes: Some(SNAPSHOT_AFTER_BYTES),
        }
    }
}

/// Starts the thread. `connect` creates the transport to the log, which returns responses through the given queue.
/// `listening` is called once clients can connect.
pub fn start<T: LogTransport + 'static>(
    socket: OwnedFd,
    settings: Settings,
    connect: impl FnOnce(Arc<Completions>) -> io::Result<T> + Send + 'static,
    listening: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    process::spawn("zookeeper", move || {
        if let Err(error) = serve(socket, settings, connect, listening) {
            process::die(&format!("ZooKeeper endpoint: {error}"));
        }
    })?;
    Ok(())
}

fn serve<T: LogTransport + 'static>(
    socket: OwnedFd,
    settings: Settings,
    connect: impl FnOnce(Arc<Completions>) -> io::Result<T>,
    listening: impl FnOnce(),
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let completions = Arc::new(Completions::new(Waker::new(poll.registry(), COMPLETIONS)?));
    let transport = Box::new(connect(Arc::clone(&completions))?);
    let port = LogPort::new(settings.nodes.min(COORDINATION_COPIES), settings.playback, clock::monotonic());
    let mut log = Log { port, transport, completions };
    let mut random = Random::default();
    let state = log.open(&mut poll)?;
    let server = Server::new(settings.server(random.nonce()?), state, clock::now());
    let limits = ConnectionLimits { all: settings.connections_max, per_address: settings.connections_per_address };
    let (address, memory) = (settings.address, settings.memory.clone());
    let zookeeper = ZooKeeper {
        started: clock::monotonic(),
        settings,
        log,
        server,
        random,
        timer: Monotonic(0),
        publish_at: Monotonic(0),
        commands: Vec::new(),
        events: Vec::new(),
        is_left_behind: false,
    };
    let endpoint = Endpoint::listen(poll, socket, limits, &memory, zookeeper)?;
    tracing::info!(%address, "serving ZooKeeper clients");
    listening();
    endpoint.run()
}

/// The port to the log, with its transport.
struct Log {
    port: LogPort,
    transport: Box<dyn LogTransport>,
    completions: Arc<Completions>,
}

impl Log {
    /// Passes the received responses to the port.
    fn take_answers(&mut self, now: Monotonic) {
        for (number, outcome) in self.completions.take() {
            let answer = outcome.and_then(|response| match response {
                Response::Log(response) => Ok(response),
                other => Err(Failure::Unavailable(format!("unexpected response from the log: {other:?}"))),
            });
            self.port.answered(number, answer, now);
        }
    }

    /// Sends the port's requests, logs its warnings and returns its other outputs.
    fn send(&mut self) -> Vec<LogOutput> {
        let mut others = Vec::new();
        for output in self.port.take_outputs() {
            match output {
                LogOutput::Request { number, deadline, request } => self.transport.submit(number, deadline, request),
                LogOutput::NotOpened(failure) => {
                    tracing::warn!(%failure, "not serving ZooKeeper clients yet: the log is unavailable");
                }
                LogOutput::SnapshotFailed(reason) => {
                    tracing::warn!(reason, "can't write a snapshot of the znodes: the coordination log is not trimmed");
                }
                LogOutput::Opened(_) | LogOutput::Event(_) | LogOutput::Trimmed(_) => others.push(output),
            }
        }
        others
    }

    /// Waits until the log is open. Returns the state from which the server starts.
    fn open(&mut self, poll: &mut Poll) -> io::Result<State> {
        let mut events = Events::with_capacity(16);
        loop {
            for output in self.send() {
                if let LogOutput::Opened(state) = output {
                    return Ok(*state);
                }
            }
            wait(poll, &mut events, self.port.next_timer())?;
            let now = clock::monotonic();
            self.take_answers(now);
            self.port.timer(now);
        }
    }
}

/// A client's part of its connection.
#[derive(Debug)]
struct Client {
    /// The first bytes, until there are four: a command or the length of a frame.
    first: BytesMut,
    command: Option<[u8; 4]>,
    frames: Frames,
    /// Whether a whole frame has arrived.
    has_greeted: bool,
}

impl connections::Client for Client {
    fn push(&mut self, mut bytes: &[u8], _: Monotonic) {
        if self.first.len() < 4 {
            let missing = (4 - self.first.len()).min(bytes.len());
            self.first.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            let Some(first) = self.first.first_chunk::<4>() else { return };
            if first.iter().all(u8::is_ascii_lowercase) {
                self.command = Some(*first);
                return;
            }
            self.frames.push(first);
        }
        self.frames.push(bytes);
    }

    fn held(&self) -> usize {
        self.frames.held()
    }

    fn has_greeted(&self) -> bool {
        self.has_greeted
    }
}

/// The endpoint's protocol: the translation server, with its port to the log.
struct ZooKeeper {
    started: Monotonic,
    settings: Settings,
    log: Log,
    server: Server,
    random: Random,
    timer: Monotonic,
    publish_at: Monotonic,
    /// The four-letter commands of this turn.
    commands: Vec<(ConnectionId, [u8; 4])>,
    /// Events of connections for the server's next turn.
    events: Vec<Event>,
    is_left_behind: bool,
}

/// What the commands and the metrics show.
struct Service<'a> {
    started: Monotonic,
    settings: &'a Settings,
    clients: &'a mut Connections<Client>,
    server: &'a mut Server,
}

impl Protocol for ZooKeeper {
    type Client = Client;

    const NAME: &'static str = "ZooKeeper";
    const CLIENT: &'static str = "a ZooKeeper client";
    const READ_BYTES: usize = 64 << 10;
    const GREETING_TIMEOUT: Duration = GREETING_TIMEOUT;
    const OUTPUT_HIGH_BYTES: usize = 1 << 20;
    const OUTPUT_LOW_BYTES: usize = 256 << 10;
    const STOPS_READING_WHEN_FULL: bool = false;

    fn connected(&mut self, connection: ConnectionId, address: SocketAddr, now: Now) -> io::Result<(Client, Bytes)> {
        let password = self.random.take()?;
        self.server.handle(Event::Connected { connection, address: address.ip(), password }, now);
        let frames = Frames::new(FRAME_BYTES_MAX);
        Ok((Client { first: BytesMut::new(), command: None, frames, has_greeted: false }, Bytes::new()))
    }

    fn disconnected(&mut self, connection: ConnectionId, _: Client) {
        self.events.push(Event::Disconnected { connection });
    }

    fn take(&mut self, id: ConnectionId, connection: &mut Connection<Client>, now: Now) -> Step {
        let client = &mut connection.client;
        if let Some(word) = client.command.take() {
            self.server.handle(Event::Disconnected { connection: id }, now);
            self.commands.push((id, word));
            return Step::EndsTurn;
        }
        match client.frames.next() {
            Ok(Some(frame)) => {
                client.has_greeted = true;
                self.server.handle(Event::Frame { connection: id, frame }, now);
                Step::Taken
            }
            Ok(None) => Step::NeedsInput,
            Err(error) => {
                // Not for strangers, who could fill the log.
                if client.has_greeted {
                    let address = connection.address;
                    tracing::warn!(client = %address, %error, "closing the connection of a ZooKeeper client");
                }
                Step::Invalid
            }
        }
    }

    fn output_changed(&mut self, connection: ConnectionId, change: OutputChange) {
        self.events.push(match change {
            OutputChange::Full => Event::OutputFull { connection },
            OutputChange::Drained => Event::OutputDrained { connection },
        });
    }

    fn output_bytes(&self) -> usize {
        self.server.output_bytes()
    }

    fn may_send(&self, id: ConnectionId, now: Monotonic) -> bool {
        self.server.may_send(id, now)
    }

    fn next_timer(&self, _: &Connections<Client>) -> Monotonic {
        if self.events.is_empty() { self.timer.min(self.log.port.next_timer()) } else { Monotonic(0) }
    }

    fn begin_turn(&mut self, _: &mut Connections<Client>, now: Now) {
        self.events.drain(..).for_each(|event| self.server.handle(event, now));
        self.log.take_answers(now.monotonic);
        self.log.port.timer(now.monotonic);
        self.hear_of_log(now);
        if self.timer <= now.monotonic {
            self.timer = Monotonic::NEVER;
            self.server.handle(Event::Timer, now);
        }
    }

    fn end_turn(&mut self, clients: &mut Connections<Client>) {
        self.end_server_turn(clients);
        for (connection, word) in std::mem::take(&mut self.commands) {
            let answer = commands::answer(word, &mut self.service(clients));
            clients.send(connection, answer.into());
            clients.close(connection, clock::monotonic());
        }
    }

    fn after_turn(&mut self, clients: &mut Connections<Client>, poll: &mut Poll) -> io::Result<bool> {
        let now = clock::monotonic();
        // The server's own ticks are more frequent, so that this needs no timer.
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_EVERY;
            let report = report::report(&self.service(clients));
            self.settings.endpoint.publish(Some(report));
        }
        let is_left_behind = self.is_left_behind;
        if is_left_behind {
            self.restart(clients, poll)?;
        }
        Ok(is_left_behind)
    }
}

impl ZooKeeper {
    fn service<'a>(&'a mut self, clients: &'a mut Connections<Client>) -> Service<'a> {
        Service { started: self.started, settings: &self.settings, clients, server: &mut self.server }
    }

    /// Sends requests to the log, and passes the port's outputs to the server. Returns whether there were any.
    fn hear_of_log(&mut self, now: Now) -> bool {
        let outputs = self.log.send();
        let has_heard = !outputs.is_empty();
        for output in outputs {
            match output {
                LogOutput::Event(event) => self.server.handle(event, now),
                // The server may have passed the mark meanwhile, with its own batches.
                LogOutput::Trimmed(mark) => self.is_left_behind |= mark > self.server.state().next(),
                _ => debug_assert!(false, "unexpected output of an open log"),
            }
        }
        has_heard
    }

    /// Ends the server's turn and executes its actions. Outputs that the port produces immediately are handled in the
    /// same turn.
    fn end_server_turn(&mut self, clients: &mut Connections<Client>) {
        let now = clock::now();
        loop {
            for action in self.server.end_turn(now) {
                match action {
                    Action::Send { connection, frame } => clients.send(connection, frame),
                    Action::Close { connection } => clients.close(connection, now.monotonic),
                    Action::Pause { connection } => clients.pause(connection),
                    Action::Resume { connection } => clients.resume(connection),
                    Action::SetTimer(at) => self.timer = at,
                    action => self.log.port.act(action, now.monotonic),
                }
            }
            self.log.port.follow(self.server.state().next(), self.server.waits_for_log(), now.monotonic);
            if !self.hear_of_log(now) {
                return;
            }
        }
    }

    /// Restarts from the newest snapshot after the log was trimmed beyond the applied position. Clients reconnect.
    fn restart(&mut self, clients: &mut Connections<Client>, poll: &mut Poll) -> io::Result<()> {
        tracing::warn!(
            "the log was trimmed beyond the applied position: restarting from a snapshot, closing all clients"
        );
        self.settings.endpoint.publish(None);
        clients.clear();
        self.events.clear();
        // Frees the old tree before the new one is built.
        self.server = Server::new(self.settings.server(0), State::default(), clock::now());
        self.log.port.open(clock::monotonic());
        let state = self.log.open(poll)?;
        self.server = Server::new(self.settings.server(self.random.nonce()?), state, clock::now());
        (self.timer, self.is_left_behind) = (Monotonic(0), false);
        Ok(())
    }
}

/// A buffer of random bytes from the system.
#[derive(Default)]
struct Random(Vec<u8>);

impl Random {
    fn take(&mut self) -> io::Result<[u8; 16]> {
        loop {
            if let Some(taken) = self.0.last_chunk::<16>().copied() {
                self.0.truncate(self.0.len() - 16);
                return Ok(taken);
            }
            self.0 = random::bytes(RANDOM_BYTES)?;
        }
    }

    fn nonce(&mut self) -> io::Result<u128> {
        self.take().map(u128::from_le_bytes)
    }
}
