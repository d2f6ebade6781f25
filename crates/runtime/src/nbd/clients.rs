//! The clients' sockets, with the codec and the gateway of each.
//!
//! Sockets are edge-triggered: a client stays readable until a read would block. A client's next request is taken only
//! while its gateway has room and its output is not too long, so a slow client uses a bounded amount of memory.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _};
use std::net::SocketAddr;

use base::{Duration, Monotonic, Timestamp};
use bytes::{Bytes, BytesMut};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use streams::gateway::{Action, CallId, Gateway, Settings};
use streams::layout::Layout;
use streams::nbd::{self, INPUT_BYTES_MAX, Step};
use streams::stripe::request::{Outcome, StripeRequest};

use super::Disks;
use crate::output::OutputQueue;
use crate::throttle::Throttle;

/// First token of connections. Tokens are never reused.
const FIRST: usize = 16;
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 256;
/// Connections accepted per turn.
const ACCEPTS_AT_ONCE: usize = 16;
/// Delay after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout for a client to attach a disk.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(30_000);
/// Timeout for a connection that is being closed to receive its output.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(5_000);
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes read from one connection before the others have their turn.
const READ_TURN_BYTES: usize = 8 << 20;
/// Output of a connection above which no request of it is taken.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Data of the requests in progress of all connections together above which a connection has one request at a time.
const ALL_REQUEST_BYTES_MAX: u64 = 512 << 20;
/// Output of all connections together above which the connection with the most is closed.
const ALL_OUTPUT_BYTES_MAX: usize = 512 << 20;
/// Input of all connections together above which the connection with the most is closed.
const ALL_INPUT_BYTES_MAX: usize = 512 << 20;

/// A connection. After it was lost, it stays until its gateway is idle.
struct Client {
    /// None: it was lost.
    stream: Option<TcpStream>,
    address: SocketAddr,
    since: Monotonic,
    codec: nbd::Connection,
    input: BytesMut,
    /// Bytes of input that the next step needs.
    needed: usize,
    /// When the last bytes arrived.
    arrived: Monotonic,
    attached: Option<Attached>,
    output: OutputQueue,
    is_readable: bool,
    is_writable: bool,
    /// The client has ended its requests, or violated the protocol: the connection is closed once its requests are
    /// answered.
    is_ending: bool,
    /// When it is closed at the latest.
    closes_at: Option<Monotonic>,
}

struct Attached {
    disk: String,
    /// When the disk was created: a later one with its name is another disk.
    created: Timestamp,
    gateway: Gateway,
}

pub(super) struct Clients {
    registry: Registry,
    listener: TcpListener,
    listener_token: Token,
    is_accepting: bool,
    accept_at: Monotonic,
    throttle: Throttle,
    next: usize,
    by_token: BTreeMap<Token, Client>,
    buffer: Box<[u8]>,
    /// How gateways execute requests.
    settings: Settings,
    /// Some clients in the handshake need a newer list of disks.
    awaits_list: bool,
}

impl Clients {
    /// Serves a listening socket.
    pub(super) fn new(
        registry: Registry,
        mut listener: TcpListener,
        token: Token,
        settings: Settings,
    ) -> io::Result<Self> {
        registry.register(&mut listener, token, Interest::READABLE)?;
        Ok(Self {
            registry,
            listener,
            listener_token: token,
            is_accepting: true,
            accept_at: Monotonic(0),
            throttle: Throttle::default(),
            next: FIRST,
            by_token: BTreeMap::new(),
            buffer: vec![0; READ_BYTES].into(),
            settings,
            awaits_list: false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    pub(super) fn has_attached(&self) -> bool {
        self.by_token.values().any(|client| client.attached.is_some())
    }

    /// Whether a client in the handshake waits for a newer list of disks.
    pub(super) fn await_list(&self) -> bool {
        self.awaits_list
    }

    /// When a gateway has a timer, or there is work that the poll will not report.
    pub(super) fn next_timer(&self) -> Monotonic {
        if self.by_token.values().any(Client::may_read) {
            return Monotonic(0);
        }
        let timers = self.by_token.values().filter_map(|client| Some(client.attached.as_ref()?.gateway.timer_at()));
        let accept = if self.is_accepting { self.accept_at } else { Monotonic::NEVER };
        timers.min().unwrap_or(Monotonic::NEVER).min(accept)
    }

    /// Records an event of the poll.
    pub(super) fn note(&mut self, event: &mio::event::Event) {
        if event.token() == self.listener_token {
            self.is_accepting = true;
            return;
        }
        let Some(client) = self.by_token.get_mut(&event.token()) else { return };
        client.is_writable |= event.is_writable();
        client.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
    }

    pub(super) fn accept(&mut self, now: Monotonic) {
        for _ in 0..ACCEPTS_AT_ONCE {
            if !self.is_accepting || now < self.accept_at {
                return;
            }
            match self.listener.accept() {
                // Dropping the stream closes the connection.
                Ok(_) if self.by_token.len() >= CONNECTIONS_MAX => {
                    if let Some(suppressed) = self.throttle.admit(0, "limit", now) {
                        tracing::warn!(CONNECTIONS_MAX, suppressed, "NBD connections closed: limit reached");
                    }
                }
                Ok((stream, address)) => self.add(stream, address, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_accepting = false,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Too many open files. The connections stay in the listener's queue.
                Err(error) => {
                    self.accept_at = now + ACCEPT_PAUSE;
                    if let Some(suppressed) = self.throttle.admit(0, "accept", now) {
                        tracing::warn!(%error, suppressed, "can't accept an NBD client");
                    }
                }
            }
        }
    }

    fn add(&mut self, mut stream: TcpStream, address: SocketAddr, now: Monotonic) {
        let token = Token(self.next);
        self.next += 1;
        let _ = stream.set_nodelay(true);
        if self.registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE).is_err() {
            return;
        }
        let (codec, greeting) = nbd::Connection::new();
        let mut client = Client {
            stream: Some(stream),
            address,
            since: now,
            codec,
            input: BytesMut::new(),
            needed: 1,
            arrived: now,
            attached: None,
            output: OutputQueue::default(),
            is_readable: true,
            is_writable: true,
            is_ending: false,
            closes_at: None,
        };
        client.send([greeting]);
        self.by_token.insert(token, client);
    }

    /// Reads the input of all clients.
    pub(super) fn read(&mut self, now: Monotonic) {
        for client in self.by_token.values_mut() {
            client.read(&mut self.buffer, now);
        }
        let input = |client: &Client| client.input.len();
        if self.by_token.values().map(input).sum::<usize>() > ALL_INPUT_BYTES_MAX
            && let Some(client) = self.by_token.values_mut().max_by_key(|client| client.input.len())
        {
            tracing::warn!(client = %client.address, "closing an NBD connection: too much memory for incomplete requests");
            client.lose(&self.registry);
        }
    }

    /// Takes requests from the input of all clients.
    pub(super) fn advance(&mut self, disks: &Disks, now: Monotonic) {
        let resolving: Vec<String> = self.resolving().collect();
        let gateways = self.by_token.values().filter_map(|client| client.attached.as_ref());
        let mut held = gateways.map(|attached| attached.gateway.held_bytes()).sum();
        self.awaits_list = false;
        for client in self.by_token.values_mut() {
            self.awaits_list |= client.advance(disks, self.settings, &resolving, &mut held, now);
        }
    }

    /// The disks with changes of lost connections that are not resolved yet.
    fn resolving(&self) -> impl Iterator<Item = String> {
        let lost = self.by_token.values().filter(|client| client.stream.is_none());
        lost.filter_map(|client| Some(client.attached.as_ref()?.disk.clone()))
    }

    /// A newer list of disks is there.
    pub(super) fn listed(&mut self, disks: &Disks) {
        for client in self.by_token.values_mut() {
            let Some(attached) = &client.attached else { continue };
            match disks.get(&attached.disk) {
                Some(disk) if disk.created == attached.created => client.codec.resize(disk.bytes),
                Some(_) if client.stream.is_some() => {
                    tracing::info!(client = %client.address, disk = attached.disk, "closing an NBD connection: its disk was deleted");
                    client.lose(&self.registry);
                }
                // Its requests fail, and the connection stays.
                Some(_) | None => {}
            }
        }
    }

    /// Passes the outcome of a call to its gateway.
    pub(super) fn answered(&mut self, connection: Token, call: CallId, outcome: Outcome, now: Monotonic) {
        let client = self.by_token.get_mut(&connection);
        if let Some(attached) = client.and_then(|client| client.attached.as_mut()) {
            attached.gateway.answered(now, call, outcome);
        }
    }

    /// Carries out the actions of the gateways. Returns whether there were any.
    pub(super) fn act(
        &mut self,
        now: Monotonic,
        mut call: impl FnMut(Token, CallId, &str, StripeRequest) -> Option<Outcome>,
    ) -> bool {
        let mut has_acted = false;
        for (token, client) in &mut self.by_token {
            let Some(attached) = &mut client.attached else { continue };
            if attached.gateway.timer_at() <= now {
                attached.gateway.timer(now);
            }
            let replies = client.codec.replies();
            let mut out = Vec::new();
            for action in attached.gateway.take_actions() {
                has_acted = true;
                match action {
                    Action::Reply(reply) => reply.encode(replies, &mut out),
                    Action::Call { call: id, request } => {
                        if let Some(outcome) = call(*token, id, &attached.disk, request) {
                            attached.gateway.answered(now, id, outcome);
                        }
                    }
                }
            }
            client.send(out);
        }
        has_acted
    }

    /// Writes output, and removes connections that have ended.
    pub(super) fn flush(&mut self) {
        for client in self.by_token.values_mut() {
            let has_failed = client.write().is_err();
            let is_idle = client.attached.as_ref().is_none_or(|attached| attached.gateway.is_idle());
            let is_done = client.is_ending && is_idle && client.output.is_empty();
            if has_failed || is_done {
                client.lose(&self.registry);
            }
        }
        if self.by_token.values().map(|client| client.output.bytes()).sum::<usize>() > ALL_OUTPUT_BYTES_MAX
            && let Some(client) = self.by_token.values_mut().max_by_key(|client| client.output.bytes())
        {
            tracing::warn!(client = %client.address, "closing an NBD connection: too much memory for unread replies");
            client.lose(&self.registry);
        }
        let is_over = |client: &Client| {
            let is_idle = client.attached.as_ref().is_none_or(|attached| attached.gateway.is_idle());
            client.stream.is_none() && is_idle
        };
        self.by_token.retain(|_, client| !is_over(client));
    }

    /// Closes connections that timed out.
    pub(super) fn sweep(&mut self, now: Monotonic) {
        for client in self.by_token.values_mut() {
            let is_late = client.attached.is_none() && now.since(client.since) >= HANDSHAKE_TIMEOUT;
            if is_late || client.closes_at.is_some_and(|at| now >= at) {
                client.lose(&self.registry);
            }
        }
    }
}

impl Client {
    /// Whether there is input to read, and room for it.
    fn may_read(&self) -> bool {
        self.is_readable && self.stream.is_some() && !self.is_ending && self.input.len() < self.needed
    }

    fn read(&mut self, buffer: &mut [u8], now: Monotonic) {
        let mut read = 0;
        while self.may_read() && read < READ_TURN_BYTES {
            let Some(stream) = &mut self.stream else { return };
            match stream.read(buffer) {
                Ok(0) => {
                    // The requests in progress are executed, as far as that is possible before the connection is closed.
                    self.is_readable = false;
                    self.is_ending = true;
                    self.closes_at = Some(now + CLOSE_TIMEOUT);
                }
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    self.arrived = now;
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.is_readable = false;
                    self.is_ending = true;
                    self.closes_at = Some(now);
                }
            }
        }
    }

    /// Takes requests from the input. Returns whether it waits for a newer list of disks.
    /// `held` has the data of the requests in progress of all connections.
    fn advance(
        &mut self,
        disks: &Disks,
        settings: Settings,
        resolving: &[String],
        held: &mut u64,
        now: Monotonic,
    ) -> bool {
        let mut out = Vec::new();
        let mut awaits_list = false;
        while self.stream.is_some() && !self.is_ending && self.input.len() >= self.needed {
            match &self.attached {
                None if disks.as_of.is_none_or(|as_of| as_of < self.arrived) => {
                    awaits_list = true;
                    break;
                }
                Some(attached) if attached.gateway.is_full() || resolving.contains(&attached.disk) => break,
                Some(attached) if *held > ALL_REQUEST_BYTES_MAX && !attached.gateway.is_idle() => break,
                Some(_) | None => {}
            }
            if self.output.bytes() > OUTPUT_BYTES_MAX {
                break;
            }
            match self.codec.advance(&mut self.input, disks, &mut out) {
                Ok(Step::NeedsBytes(bytes)) => self.needed = bytes.min(INPUT_BYTES_MAX),
                Ok(Step::Continue) => self.needed = 1,
                Ok(Step::Attached { name, .. }) => {
                    self.needed = 1;
                    self.attach(&name, disks, settings, now);
                }
                Ok(Step::Request(request)) => {
                    self.needed = 1;
                    if let Some(attached) = &mut self.attached {
                        let before = attached.gateway.held_bytes();
                        attached.gateway.submit(now, request);
                        *held += attached.gateway.held_bytes().saturating_sub(before);
                    }
                }
                Ok(Step::Disconnect) => self.is_ending = true,
                Err(error) => {
                    tracing::info!(client = %self.address, %error, "closing an NBD connection");
                    self.is_ending = true;
                    self.closes_at = Some(now + CLOSE_TIMEOUT);
                }
            }
        }
        self.send(out);
        awaits_list
    }

    fn attach(&mut self, name: &str, disks: &Disks, settings: Settings, now: Monotonic) {
        let disk = match (name, &disks.all[..]) {
            ("", [only]) => Some(only),
            _ => disks.get(name),
        };
        let layout = disk.and_then(|disk| Layout::new(u16::try_from(disk.stripes).ok()?));
        let Some((disk, layout)) = disk.zip(layout) else {
            // The codec has found it in the same list.
            (self.is_ending, self.closes_at) = (true, Some(now));
            return;
        };
        tracing::info!(client = %self.address, disk = disk.name, "an NBD client has attached a disk");
        let (name, created) = (disk.name.clone(), disk.created);
        self.attached = Some(Attached { disk: name, created, gateway: Gateway::new(layout, settings) });
    }

    fn send(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        frames.into_iter().for_each(|frame| self.output.push(frame));
    }

    /// Writes as much as the socket accepts.
    fn write(&mut self) -> io::Result<()> {
        if let Some(stream) = self.stream.as_mut().filter(|_| self.is_writable) {
            self.is_writable = self.output.write(stream)?;
        }
        Ok(())
    }

    /// Closes the connection. Changes that may have been executed are resolved.
    fn lose(&mut self, registry: &Registry) {
        let Some(mut stream) = self.stream.take() else { return };
        let _ = registry.deregister(&mut stream);
        (self.input, self.output) = (BytesMut::new(), OutputQueue::default());
        if let Some(attached) = &mut self.attached {
            attached.gateway.close();
        }
    }
}
