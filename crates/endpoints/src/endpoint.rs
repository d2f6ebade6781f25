//! The socket loop of an endpoint.
//!
//! A turn of the thread takes the node's responses, accepts connections, reads from all ready ones, has the protocol
//! execute the requests, and writes the output of each connection in one call. Sockets are edge-triggered: a connection
//! with unread bytes stays in `Connections::ready` until a read would block.
//!
//! What one client can take from the others is bounded here, for all protocols: connections (`ConnectionLimits`),
//! requests and bytes in a turn, time to greet and to be closed, and memory: input and output are charged to one budget,
//! and when it is exceeded, the connection that holds the most is closed. A protocol bounds the output of a connection
//! by its watermarks.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;

use base::budget::ByteBudget;
use base::limits::nbd::STALL;
use base::{Duration, Monotonic, Now};
use coordination::server::ConnectionId;
use mio::{Events, Poll, Token};

use crate::clock;
use crate::connections::{Client as _, ConnectionLimits, Connections};
use crate::listener::Listener;
use crate::protocol::{OutputChange, Protocol, Step};
use crate::throttle::Throttle;

/// The token that wakes the thread for responses of the node.
pub(crate) const COMPLETIONS: Token = Token(0);
const LISTENER: Token = Token(1);
/// Maximum number of events per poll.
const READY_MAX: usize = 1_024;
/// Maximum number of pending connections of the listening socket.
pub(crate) const BACKLOG: i32 = 1_024;
/// Connections accepted per turn.
const ACCEPTS_AT_ONCE: usize = 64;
/// Requests taken from one connection before the others have their turn.
const REQUESTS_AT_ONCE: usize = 512;
/// Bytes read from one connection before the others have their turn.
const READ_BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes read after which a turn ends, so that the protocol can pause connections.
const TURN_INPUT_BYTES: usize = 8 << 20;
/// Bytes of replies after which a turn ends, so that full output queues are noticed.
const TURN_OUTPUT_BYTES: usize = 4 << 20;
/// Maximum wait of the loop if requests end with their connection ([`Protocol::GIVES_UP`]): a longer one is a stall.
const BEAT: Duration = Duration::from_millis(100);
/// Interval of the search for clients that missed a timeout.
const SWEEP: Duration = Duration::from_millis(1_000);

/// An endpoint with its protocol.
pub(crate) struct Endpoint<P: Protocol> {
    poll: Poll,
    listener: Listener,
    throttle: Throttle,
    connections: Connections<P::Client>,
    protocol: P,
    buffer: Box<[u8]>,
    sweep_at: Monotonic,
    /// When the loop was last seen to run.
    ran_at: Monotonic,
}

/// Why a connection is not read any more in a turn.
enum Stop {
    /// It has no complete request, or waits for the protocol.
    Waits,
    /// The others have their turn.
    Yields,
    /// It is not needed any more.
    Closed,
}

/// The limits of a turn.
#[derive(Default)]
struct Turn {
    read: usize,
    is_over: bool,
}

/// Waits for sockets and responses, until a deadline.
pub(crate) fn wait(poll: &mut Poll, ready: &mut Events, deadline: Monotonic) -> io::Result<()> {
    let timeout = (deadline != Monotonic::NEVER).then(|| clock::span(deadline.since(clock::monotonic())));
    match poll.poll(ready, timeout) {
        Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

impl<P: Protocol> Endpoint<P> {
    /// Listens on a bound socket. `poll` wakes the thread for the node's responses by the token [`COMPLETIONS`]. `memory` is
    /// for the input and the output of all connections.
    pub(crate) fn listen(
        poll: Poll,
        socket: OwnedFd,
        limits: ConnectionLimits,
        memory: &ByteBudget,
        protocol: P,
    ) -> io::Result<Self> {
        rustix::net::listen(&socket, BACKLOG)?;
        let socket = mio::net::TcpListener::from_std(TcpListener::from(socket));
        let listener = Listener::new(socket, P::CLIENT, LISTENER, poll.registry())?;
        let connections = Connections::new(poll.registry().try_clone()?, limits, memory.clone());
        let (throttle, buffer) = (Throttle::default(), vec![0; P::READ_BYTES].into());
        let (sweep_at, ran_at) = (Monotonic(0), clock::monotonic());
        Ok(Self { poll, listener, throttle, connections, protocol, buffer, sweep_at, ran_at })
    }

    /// Serves clients until an error ends the endpoint.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut ready = Events::with_capacity(READY_MAX);
        loop {
            let deadline = self.next_timer();
            wait(&mut self.poll, &mut ready, deadline)?;
            self.turn(&ready)?;
        }
    }

    fn next_timer(&self) -> Monotonic {
        if !self.connections.ready.is_empty() {
            return Monotonic(0);
        }
        let is_empty = self.connections.is_empty();
        let sweep = if is_empty { Monotonic::NEVER } else { self.sweep_at };
        let beat = if is_empty || !P::GIVES_UP { Monotonic::NEVER } else { self.ran_at + BEAT };
        self.protocol.next_timer(&self.connections).min(self.listener.next_timer()).min(sweep).min(beat)
    }

    fn turn(&mut self, ready: &Events) -> io::Result<()> {
        let now = clock::now();
        self.close_after_stall(now.monotonic);
        for event in ready.iter().filter(|event| event.token() != COMPLETIONS) {
            self.note(event);
        }
        self.protocol.begin_turn(&mut self.connections, now);
        self.sweep(now);
        self.accept(now)?;
        self.read(clock::now());
        self.close_after_stall(clock::monotonic());
        self.protocol.end_turn(&mut self.connections);
        self.write(clock::monotonic());
        if self.protocol.after_turn(&mut self.connections, &mut self.poll)? {
            self.listener.note();
        }
        Ok(())
    }

    /// Records an event of the poll.
    fn note(&mut self, event: &mio::event::Event) {
        if event.token() == LISTENER {
            return self.listener.note();
        }
        let id = ConnectionId(event.token().0 as u64);
        let Some(connection) = self.connections.get_mut(id) else { return };
        let is_readable = event.is_readable() || event.is_read_closed() || event.is_error();
        connection.is_readable |= is_readable;
        connection.is_writable |= event.is_writable();
        let has_output = event.is_writable() && !connection.output.is_empty();
        if P::GIVES_UP && (event.is_read_closed() || event.is_error()) {
            discard_input(connection, &mut self.buffer);
            return self.remove(id);
        }
        if !connection.is_open {
            return self.open(id);
        }
        if has_output {
            self.connections.touch(id);
        }
        if is_readable {
            self.connections.queue(id);
        }
    }

    /// If the loop has stalled, closes the connections with requests that are not read or not answered.
    fn close_after_stall(&mut self, now: Monotonic) {
        let stall = now.since(std::mem::replace(&mut self.ran_at, now));
        if !P::GIVES_UP || stall < STALL || self.connections.is_empty() {
            return;
        }
        let has_requests = self.connections.iter().filter(|(_, connection)| connection.has_requests());
        let stalled: Vec<_> = has_requests.map(|(id, _)| id).collect();
        tracing::warn!(
            milliseconds = stall.0 / 1_000_000,
            connections = stalled.len(),
            "the thread of {} did not run: closing the connections with requests",
            P::NAME
        );
        for id in stalled {
            self.remove(id);
        }
    }

    /// Advances the handshake of a connection.
    fn open(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        match connection.transport.handshake() {
            Ok(false) => {}
            Ok(true) => {
                connection.is_open = true;
                if !connection.output.is_empty() {
                    self.connections.touch(id);
                }
                self.connections.queue(id);
            }
            Err(_) => self.remove(id),
        }
    }

    fn accept(&mut self, now: Now) -> io::Result<()> {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some((stream, address)) = self.listener.accept(&mut self.throttle, now.monotonic) else { break };
            if self.connections.is_above_limit(address.ip(), self.protocol.lost()) {
                // Dropping the stream closes the connection.
                self.connections.traffic.rejected += 1;
                if let Some(suppressed) = self.throttle.admit(0, "limit", now.monotonic) {
                    let ConnectionLimits { all, per_address } = self.connections.limits;
                    tracing::warn!(
                        all,
                        per_address,
                        suppressed,
                        "{} connections closed: limit reached (file descriptors limit it, too)",
                        P::NAME
                    );
                }
                continue;
            }
            let id = self.connections.next_id();
            // It may have been closed already.
            let Ok(transport) = self.connections.register(id, stream) else { continue };
            let (client, greeting) = self.protocol.connected(id, address, now)?;
            self.connections.add(id, transport, (client, address), now.monotonic);
            if let Some(connection) = self.connections.get_mut(id) {
                connection.push(greeting);
            }
            self.open(id);
        }
        Ok(())
    }

    /// Reads from all ready connections in turn.
    fn read(&mut self, now: Now) {
        let mut turn = Turn::default();
        for _ in 0..self.connections.ready.len() {
            if turn.is_over || turn.read >= TURN_INPUT_BYTES {
                break;
            }
            let Some(id) = self.connections.ready.pop_front() else { break };
            match self.read_one(id, &mut turn, now) {
                Stop::Waits => {}
                Stop::Yields => self.connections.queue(id),
                Stop::Closed => self.remove(id),
            }
            self.evict(now.monotonic);
        }
    }

    /// Takes the requests of one connection.
    fn read_one(&mut self, id: ConnectionId, turn: &mut Turn, now: Now) -> Stop {
        let Self { connections, protocol, buffer, .. } = self;
        let Connections { by_id, traffic, .. } = connections;
        let Some(connection) = by_id.get_mut(&id) else { return Stop::Waits };
        connection.is_queued = false;
        let (mut taken, mut read) = (0, 0);
        let stop = loop {
            if !connection.may_read() {
                break Stop::Waits;
            }
            if P::STOPS_READING_WHEN_FULL && connection.output.bytes() > P::OUTPUT_HIGH_BYTES {
                connection.is_full = true;
                break Stop::Waits;
            }
            turn.is_over |= protocol.output_bytes() >= TURN_OUTPUT_BYTES;
            if taken >= REQUESTS_AT_ONCE || read >= READ_BYTES_AT_ONCE || turn.is_over {
                break Stop::Yields;
            }
            let held = connection.client.held();
            let step = protocol.take(id, connection, now);
            match step {
                Step::Taken | Step::EndsTurn => {
                    taken += 1;
                    connection.received += 1;
                    traffic.received += 1;
                    traffic.received_bytes += (held - connection.client.held()) as u64;
                    turn.is_over |= step == Step::EndsTurn;
                    continue;
                }
                Step::NeedsInput if connection.is_readable => {}
                Step::NeedsInput | Step::Blocked => break Stop::Waits,
                Step::Invalid => break Stop::Closed,
            }
            let is_long = connection.client.long_input().is_some();
            let arrived = match connection.client.long_input() {
                Some(long) => connection.transport.read_into(long),
                None => connection.transport.read(buffer),
            };
            match arrived {
                Ok(0) => break Stop::Closed,
                Ok(count) => {
                    if !is_long {
                        connection.client.push(&buffer[..count], now.monotonic);
                    }
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break Stop::Closed,
            }
        };
        turn.read += read;
        connection.settle();
        let has_output = connection.closes_at.is_some() || !connection.output.is_empty();
        if has_output {
            connections.touch(id);
        }
        stop
    }

    /// Writes the output, and closes connections that have ended.
    fn write(&mut self, now: Monotonic) {
        for id in self.connections.take_dirty() {
            self.write_one(id, now);
        }
        self.evict(now);
    }

    fn write_one(&mut self, id: ConnectionId, now: Monotonic) {
        let Self { connections, protocol, .. } = self;
        let Some(connection) = connections.get_mut(id) else { return };
        // Output that the protocol withheld before it closed the connection is discarded: `may_send` would no longer
        // withhold it.
        if connection.closes_at.is_some_and(|at| at <= now || connection.is_withheld) {
            return self.remove(id);
        }
        connection.is_withheld = !protocol.may_send(id, now);
        if connection.is_withheld {
            return connections.touch(id);
        }
        if connection.is_open && connection.is_writable {
            match connection.output.write(&mut connection.transport) {
                Ok(is_writable) => connection.is_writable = is_writable,
                Err(_) => return self.remove(id),
            }
        }
        connection.settle();
        let bytes = connection.output.bytes();
        if connection.closes_at.is_some() && bytes == 0 && connection.client.is_idle() {
            self.remove(id);
        } else if bytes > P::OUTPUT_HIGH_BYTES && !connection.is_full {
            connection.is_full = true;
            protocol.output_changed(id, OutputChange::Full);
        } else if bytes <= P::OUTPUT_LOW_BYTES && connection.is_full {
            connection.is_full = false;
            protocol.output_changed(id, OutputChange::Drained);
            connections.queue(id);
        }
    }

    /// Closes the connections that hold the most, while all hold too much together.
    fn evict(&mut self, now: Monotonic) {
        while let Some((id, bytes)) = self.connections.largest_if_above_limit() {
            self.connections.traffic.dropped += 1;
            if let Some(connection) = self.connections.get(id)
                && let Some(suppressed) = self.throttle.admit(0, "memory", now)
            {
                tracing::warn!(
                    client = %connection.address,
                    bytes,
                    suppressed,
                    "closing the connection of {}: too much memory for incomplete requests and unread replies",
                    P::CLIENT
                );
            }
            self.remove(id);
        }
    }

    /// Closes connections that timed out.
    fn sweep(&mut self, now: Now) {
        if now.monotonic < self.sweep_at {
            return;
        }
        self.sweep_at = now.monotonic + SWEEP;
        let is_over = self.connections.iter().filter(|(_, connection)| {
            let is_silent = now.monotonic.since(connection.since) >= P::GREETING_TIMEOUT;
            is_silent && !connection.client.has_greeted() || connection.closes_at.is_some_and(|at| now.monotonic >= at)
        });
        for id in is_over.map(|(id, _)| id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        if let Some(client) = self.connections.remove(id) {
            self.protocol.disconnected(id, client);
        }
    }
}

/// Discards unread input before a close: the kernel resets a connection that is closed with unread bytes, and clients report
/// the reset as an error.
fn discard_input<C>(connection: &mut crate::connections::Connection<C>, buffer: &mut [u8]) {
    let mut left = READ_BYTES_AT_ONCE;
    while left > 0
        && let Ok(count @ 1..) = connection.transport.read(buffer)
    {
        left = left.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests;
