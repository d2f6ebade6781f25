//! The ZooKeeper endpoint: a thread that owns the clients' sockets and a translation server
//! ([`coordination::server::Server`]), so that reads never leave the thread (ZooKeeper-SL: Wei et al., LADIS 2013).
//!
//! A turn of the thread takes the log's responses, reads from all ready clients, ends the server's turn, executes its
//! actions, and writes each client's output in one call. All state is soft: at start the thread restores the newest
//! snapshot from the log and applies the rest before it listens.
//!
//! | file | contents |
//! |---|---|
//! | [`clients`] | sockets, framing, limits |
//! | [`transport`] | access to the coordination log through the node |
//! | [`remote`] | access to the coordination log over the network |
//! | [`commands`] | the four-letter commands |
//! | [`report`] | metrics and status for the commands, `/metrics` and the console |

mod clients;
mod commands;
mod remote;
mod report;
mod transport;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Duration, Monotonic, Now};
use coordination::log_port::{LogPort, Output as LogOutput, Playback};
use coordination::server::{Action, Config, ConnectionId, Event, Server};
use coordination::state::State;
use mio::{Events, Poll, Token, Waker};
use node::request::Response;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use server::zookeeper::Endpoint;
use sharedlog::validate::COORDINATION_COPIES;
use state_machine::Failure;

use super::config::ZooKeeper;
use super::gateway::Completions;
use super::{clock, descriptors, random};
use clients::{Clients, Input, Output};

pub(crate) use remote::RemoteTransport;
pub(crate) use transport::{LogTransport, NodeTransport};

const COMPLETIONS: Token = Token(0);
const LISTENER: Token = Token(1);
/// Maximum number of events per poll.
const READY_MAX: usize = 1_024;
/// Maximum number of pending connections of the listening socket.
const BACKLOG: i32 = 1_024;
/// Batches in flight. Each may leave a hole in the log if the server crashes.
const BATCHES_IN_FLIGHT: usize = 3;
/// Read-only mode begins when an append takes longer than this, which exceeds the time of a log reconfiguration.
const READ_ONLY_AFTER: Duration = Duration::from_millis(5_000);
/// Interval of the search for unused containers and TTL nodes.
const COLLECT_EVERY: Duration = Duration::from_millis(10_000);
/// Log size at which a snapshot is written.
const SNAPSHOT_AFTER_BYTES: u64 = 64 << 20;
/// Interval of the search for clients that missed a timeout.
const SWEEP: Duration = Duration::from_millis(1_000);
/// Interval at which metrics and status are published.
const PUBLISH_EVERY: Duration = Duration::from_millis(1_000);
/// Random bytes fetched at once.
const RANDOM_BYTES: usize = 4_096;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The node's number; `None` for a translation server without a node.
    pub(crate) node: Option<u32>,
    /// Number of founding nodes of the cluster; 0 for a translation server without a node.
    pub(crate) nodes: u32,
    pub(crate) address: SocketAddr,
    /// The shortest session timeout and the longest.
    pub(crate) session_timeout: [Duration; 2],
    pub(crate) super_digest: Option<String>,
    pub(crate) linearizable_reads: bool,
    pub(crate) playback: Playback,
    /// The enabled four-letter commands; all if `None`.
    pub(crate) commands: Option<Vec<String>>,
    pub(crate) connections_max: usize,
    pub(crate) connections_per_address: usize,
    /// Publishes the metrics and status, and provides the server's role.
    pub(crate) endpoint: Arc<Endpoint>,
}

impl Settings {
    /// Settings of an endpoint. `node` has the node's number and the number of founding nodes; `None` for a translation
    /// server without a node.
    pub(crate) fn new(zookeeper: &ZooKeeper, node: Option<(u32, u32)>, address: SocketAddr) -> Self {
        Self {
            node: node.map(|(node, _)| node),
            nodes: node.map_or(0, |(_, nodes)| nodes),
            address,
            session_timeout: zookeeper.session_timeout_ms().map(Duration::from_millis),
            super_digest: zookeeper.super_digest.clone(),
            linearizable_reads: zookeeper.linearizable_reads.unwrap_or(false),
            // The configuration was validated.
            playback: zookeeper.playback().unwrap_or_default(),
            commands: zookeeper.commands.clone(),
            connections_max: descriptors::for_endpoints().zookeeper,
            connections_per_address: zookeeper.connections_per_address.filter(|max| *max > 0).unwrap_or(usize::MAX),
            endpoint: Arc::new(if node.is_some() { Endpoint::default() } else { Endpoint::observer() }),
        }
    }

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

/// Binds the address without listening: connections are refused until the endpoint serves, so clients try another node.
pub(crate) fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// The address of a bound socket, with the port that was chosen if none was given.
pub(crate) fn address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(address).map_err(io::Error::from)
}

/// Starts the thread. `connect` creates the transport to the log, which returns responses through the given queue.
/// `listening` is called once clients can connect.
pub(crate) fn start<T: LogTransport + 'static>(
    socket: OwnedFd,
    settings: Settings,
    connect: impl FnOnce(Arc<Completions>) -> io::Result<T> + Send + 'static,
    listening: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    super::spawn("zookeeper", move || {
        if let Err(error) = serve(socket, settings, connect, listening) {
            super::die(&format!("ZooKeeper endpoint: {error}"));
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
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = mio::net::TcpListener::from_std(TcpListener::from(socket));
    let limits =
        clients::ConnectionLimits { all: settings.connections_max, per_address: settings.connections_per_address };
    let clients = Clients::new(poll.registry().try_clone()?, listener, LISTENER, limits)?;
    tracing::info!(address = %settings.address, "serving ZooKeeper clients");
    listening();
    let mut service = Service {
        started: clock::monotonic(),
        settings,
        clients,
        log,
        server,
        random,
        timer: Monotonic(0),
        sweep_at: Monotonic(0),
        publish_at: Monotonic(0),
        changes: Vec::new(),
        is_left_behind: false,
    };
    let mut ready = Events::with_capacity(READY_MAX);
    loop {
        service.wait(&mut poll, &mut ready)?;
        service.turn(&ready)?;
        if service.is_left_behind {
            service.restart(&mut poll)?;
        }
    }
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

/// Waits for sockets and responses, until a deadline.
pub(super) fn wait(poll: &mut Poll, ready: &mut Events, deadline: Monotonic) -> io::Result<()> {
    let timeout = (deadline != Monotonic::NEVER).then(|| clock::span(deadline.since(clock::monotonic())));
    match poll.poll(ready, timeout) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

struct Service {
    started: Monotonic,
    settings: Settings,
    clients: Clients,
    log: Log,
    server: Server,
    random: Random,
    timer: Monotonic,
    sweep_at: Monotonic,
    publish_at: Monotonic,
    /// Changes of output queues that the server has not been notified of.
    changes: Vec<(ConnectionId, Output)>,
    is_left_behind: bool,
}

impl Service {
    fn wait(&self, poll: &mut Poll, ready: &mut Events) -> io::Result<()> {
        let sweep = if self.clients.len() > 0 { self.sweep_at } else { Monotonic::NEVER };
        let timers = [self.timer, self.log.port.next_timer(), self.clients.next_timer(), sweep];
        let has_changes = !self.changes.is_empty();
        let deadline = if has_changes { Monotonic(0) } else { timers.into_iter().min().unwrap_or(Monotonic::NEVER) };
        wait(poll, ready, deadline)
    }

    fn turn(&mut self, ready: &Events) -> io::Result<()> {
        ready.iter().filter(|event| event.token() != COMPLETIONS).for_each(|event| self.clients.note(event));
        let now = clock::now();
        for (connection, change) in std::mem::take(&mut self.changes) {
            self.server.handle(change_event(connection, change), now);
        }
        self.log.take_answers(now.monotonic);
        self.log.port.timer(now.monotonic);
        self.hear_of_log(now);
        if self.timer <= now.monotonic {
            self.timer = Monotonic::NEVER;
            self.server.handle(Event::Timer, now);
        }
        self.sweep(now.monotonic);
        for (connection, address) in self.clients.accept(now.monotonic) {
            let password = self.random.take()?;
            self.server.handle(Event::Connected { connection, address: address.ip(), password }, now);
        }
        let commands = self.read();
        self.end_turn();
        for (connection, word) in commands {
            let answer = commands::answer(word, self);
            self.clients.send(connection, answer.into());
            self.clients.close(connection, now.monotonic);
        }
        let now = clock::monotonic();
        self.clients.flush(&self.server, now, &mut self.changes);
        // The server's own ticks are more frequent, so that this needs no timer.
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_EVERY;
            self.settings.endpoint.publish(Some(report::report(self)));
        }
        Ok(())
    }

    /// Passes the clients' frames to the server, and returns the four-letter commands.
    fn read(&mut self) -> Vec<(ConnectionId, [u8; 4])> {
        let now = clock::now();
        let mut commands = Vec::new();
        let Self { server, clients, .. } = self;
        clients.read(|connection, input| {
            match input {
                Input::Frame(frame) => server.handle(Event::Frame { connection, frame }, now),
                Input::Closed => server.handle(Event::Disconnected { connection }, now),
                Input::Command(word) => {
                    server.handle(Event::Disconnected { connection }, now);
                    commands.push((connection, word));
                }
            }
            server.output_bytes()
        });
        commands
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
    fn end_turn(&mut self) {
        let now = clock::now();
        loop {
            for action in self.server.end_turn(now) {
                match action {
                    Action::Send { connection, frame } => self.clients.send(connection, frame),
                    Action::Close { connection } => self.clients.close(connection, now.monotonic),
                    Action::Pause { connection } => self.clients.pause(connection),
                    Action::Resume { connection } => self.clients.resume(connection),
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

    fn sweep(&mut self, now: Monotonic) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        let closed = self.clients.sweep(now);
        self.changes.extend(closed.into_iter().map(|connection| (connection, Output::Closed)));
    }

    /// Restarts from the newest snapshot after the log was trimmed beyond the applied position. Clients reconnect.
    fn restart(&mut self, poll: &mut Poll) -> io::Result<()> {
        tracing::warn!(
            "the log was trimmed beyond the applied position: restarting from a snapshot, closing all clients"
        );
        self.settings.endpoint.publish(None);
        self.clients.close_all();
        self.changes.clear();
        // Frees the old tree before the new one is built.
        self.server = Server::new(self.settings.server(0), State::default(), clock::now());
        self.log.port.open(clock::monotonic());
        let state = self.log.open(poll)?;
        self.server = Server::new(self.settings.server(self.random.nonce()?), state, clock::now());
        (self.timer, self.is_left_behind) = (Monotonic(0), false);
        Ok(())
    }
}

fn change_event(connection: ConnectionId, change: Output) -> Event {
    match change {
        Output::Full => Event::OutputFull { connection },
        Output::Drained => Event::OutputDrained { connection },
        Output::Closed => Event::Disconnected { connection },
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
