//! The ZooKeeper endpoint: a thread that owns the clients' sockets and a translation server
//! ([`coordination::server::Server`]), so that reads never leave the thread (ZooKeeper-SL: Wei et al., LADIS 2013).
//!
//! A turn of the thread takes the log's answers, reads from all ready clients, ends the server's turn, carries out its
//! actions, and writes each client's output in one call. All state is soft: a node that starts restores the newest
//! snapshot from the log and plays the rest before it listens.
//!
//! | file | contents |
//! |---|---|
//! | [`clients`] | sockets, framing, limits |
//! | [`log`] | the coordination log: appends, following, snapshots |
//! | [`commands`] | the four-letter commands |

mod clients;
mod commands;
mod log;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::{Duration, Monotonic};
use coordination::server::{Action, Config, ConnectionId, Event, Server};
use coordination::state::State;
use mio::{Events, Poll, Token, Waker};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::gateway::{Completions, MachineGateway};
use super::{clock, random};
use clients::{Clients, Input, Output};
use log::{Heard, Log};

const COMPLETIONS: Token = Token(0);
const LISTENER: Token = Token(1);
/// Events that one wait reports.
const READY_MAX: usize = 1_024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1_024;
/// Copies of the log, unless the cluster has fewer nodes.
const COPIES: u32 = 3;
/// Batches in flight: a further one costs a hole in the log if its server dies.
const BATCHES_IN_FLIGHT: usize = 3;
/// Read-only mode begins when an append takes longer, which a reconfiguration of the log does not.
const READ_ONLY_AFTER: Duration = Duration::from_millis(5_000);
/// Interval of the search for unused containers and TTL nodes.
const COLLECT_EVERY: Duration = Duration::from_millis(10_000);
/// Log size at which a snapshot is written.
const SNAPSHOT_AFTER_BYTES: u64 = 64 << 20;
/// Interval of the search for clients that missed a timeout.
const SWEEP: Duration = Duration::from_millis(1_000);
/// Random bytes fetched at once.
const RANDOM_BYTES: usize = 4_096;

/// The endpoint's settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) node: u32,
    /// Nodes that the cluster was formed of.
    pub(crate) nodes: u32,
    pub(crate) address: SocketAddr,
    /// The shortest session timeout and the longest.
    pub(crate) session_timeout: [Duration; 2],
    /// The administrator's `name:digest`.
    pub(crate) super_digest: Option<String>,
    pub(crate) linearizable_reads: bool,
    /// The four-letter commands that are answered; all, if none are named.
    pub(crate) commands: Option<Vec<String>>,
    pub(crate) connections_max: usize,
    /// Of one client address.
    pub(crate) connections_per_address: usize,
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

/// Reserves the address. Connections are refused until the endpoint serves, so that clients try another node.
pub(crate) fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Starts the thread.
pub(crate) fn start(socket: OwnedFd, settings: Settings, gateway: MachineGateway) -> io::Result<()> {
    super::spawn("zookeeper", move || {
        if let Err(error) = serve(socket, settings, gateway) {
            super::die(&format!("the ZooKeeper endpoint: {error}"));
        }
    })?;
    Ok(())
}

fn serve(socket: OwnedFd, settings: Settings, gateway: MachineGateway) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let completions = Arc::new(Completions::new(Waker::new(poll.registry(), COMPLETIONS)?));
    let mut log = Log::new(gateway, completions);
    let mut random = Random::default();
    let copies = settings.nodes.min(COPIES);
    let state = log.open(&mut poll, copies)?;
    let server = Server::new(settings.server(random.nonce()?), state, clock::now());
    rustix::net::listen(&socket, BACKLOG)?;
    let listener = mio::net::TcpListener::from_std(TcpListener::from(socket));
    let limits =
        clients::ConnectionLimits { all: settings.connections_max, per_address: settings.connections_per_address };
    let clients = Clients::new(poll.registry().try_clone()?, listener, LISTENER, limits)?;
    tracing::info!(address = %settings.address, znodes = server.state().tree().node_count(), "ZooKeeper clients are served");
    let mut service = Service {
        started: clock::monotonic(),
        settings,
        clients,
        log,
        server,
        random,
        timer: Monotonic(0),
        sweep_at: Monotonic(0),
        changes: Vec::new(),
        is_left_behind: false,
    };
    let mut ready = Events::with_capacity(READY_MAX);
    loop {
        service.wait(&mut poll, &mut ready)?;
        service.turn(&ready)?;
        if service.is_left_behind {
            service.restart(&mut poll, copies)?;
        }
    }
}

/// The thread's state.
struct Service {
    started: Monotonic,
    settings: Settings,
    clients: Clients,
    log: Log,
    server: Server,
    random: Random,
    timer: Monotonic,
    sweep_at: Monotonic,
    /// Changes of output queues that the server has not been notified of.
    changes: Vec<(ConnectionId, Output)>,
    is_left_behind: bool,
}

impl Service {
    fn wait(&self, poll: &mut Poll, ready: &mut Events) -> io::Result<()> {
        let sweep = if self.clients.len() > 0 { self.sweep_at } else { Monotonic::NEVER };
        let timers = [self.timer, self.log.next_timer(), self.clients.next_timer(), sweep];
        let has_changes = !self.changes.is_empty();
        let deadline = if has_changes { Monotonic(0) } else { timers.into_iter().min().unwrap_or(Monotonic::NEVER) };
        let timeout = (deadline != Monotonic::NEVER).then(|| clock::span(deadline.since(clock::monotonic())));
        match poll.poll(ready, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn turn(&mut self, ready: &Events) -> io::Result<()> {
        ready.iter().filter(|event| event.token() != COMPLETIONS).for_each(|event| self.clients.note(event));
        let now = clock::now();
        for (connection, change) in std::mem::take(&mut self.changes) {
            self.server.handle(change_event(connection, change), now);
        }
        let Heard { events, trimmed } = self.log.take(now.monotonic);
        events.into_iter().for_each(|event| self.server.handle(event, now));
        // The server may have passed the mark meanwhile, with its own batches.
        self.is_left_behind = trimmed.is_some_and(|mark| mark.0 > self.server.state().next().0);
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
        self.end_turn()?;
        for (connection, word) in commands {
            let answer = commands::answer(word, self);
            self.clients.send(connection, answer.into());
            self.clients.close(connection, now.monotonic);
        }
        let now = clock::monotonic();
        self.log.follow(self.server.state().next(), now);
        self.clients.flush(&self.server, now, &mut self.changes);
        Ok(())
    }

    /// Hands the clients' frames to the server. Returns the four-letter commands.
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

    /// Ends the server's turn and carries out its actions. If one fails at once, the server handles that in the same turn.
    fn end_turn(&mut self) -> io::Result<()> {
        let now = clock::now();
        let mut actions = VecDeque::from(self.server.end_turn(now));
        while let Some(action) = actions.pop_front() {
            let failed = match action {
                Action::Send { connection, frame } => {
                    self.clients.send(connection, frame);
                    None
                }
                Action::Close { connection } => {
                    self.clients.close(connection, now.monotonic);
                    None
                }
                Action::Pause { connection } => {
                    self.clients.pause(connection);
                    None
                }
                Action::Resume { connection } => {
                    self.clients.resume(connection);
                    None
                }
                Action::SetTimer(at) => {
                    self.timer = at;
                    None
                }
                Action::Append { append, entry } => self.log.append(append, entry),
                Action::RequestTail { request } => {
                    self.log.request_tail(request);
                    None
                }
                Action::KeepPiece { next, index, piece, is_last } => self.log.keep(next, index, &piece, is_last),
                Action::Trim { below } => {
                    self.log.trim(below);
                    None
                }
            };
            if let Some(event) = failed {
                self.server.handle(event, now);
                actions.extend(self.server.end_turn(now));
            }
        }
        Ok(())
    }

    fn sweep(&mut self, now: Monotonic) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        let closed = self.clients.sweep(now);
        self.changes.extend(closed.into_iter().map(|connection| (connection, Output::Closed)));
    }

    /// The log was trimmed beyond the applied position: starts from the newest snapshot. Clients reconnect.
    fn restart(&mut self, poll: &mut Poll, copies: u32) -> io::Result<()> {
        tracing::warn!("the log was trimmed beyond the applied position: ZooKeeper clients have to reconnect");
        self.clients.close_all();
        self.changes.clear();
        // Frees the old tree before the new one is built.
        self.server = Server::new(self.settings.server(0), State::default(), clock::now());
        let state = self.log.open(poll, copies)?;
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

/// Random bytes of the system, fetched many at a time.
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
