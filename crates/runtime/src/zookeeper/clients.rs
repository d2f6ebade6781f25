//! The clients' sockets: accepting, framing, buffers with limits.
//!
//! Sockets are edge-triggered: a connection with unread bytes stays in [`Clients::ready`] until a read would block.
//! Frames for a slow consumer wait in its output queue. Above [`OUTPUT_HIGH_BYTES`] the server withholds further frames
//! until the queue has drained to [`OUTPUT_LOW_BYTES`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};

use base::{Duration, Monotonic};
use bytes::{Bytes, BytesMut};
use coordination::jute::Frames;
use coordination::limits::FRAME_BYTES_MAX;
use coordination::server::{ConnectionId, Server};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::output::OutputQueue;
use crate::throttle::Throttle;

/// First token of connections. Tokens are never reused.
const FIRST: usize = 16;
/// High and low watermark of an output queue: the server withholds frames above the one, and resumes below the other.
const OUTPUT_HIGH_BYTES: usize = 1 << 20;
const OUTPUT_LOW_BYTES: usize = 256 << 10;
/// Limit of the output queues of all connections together, above which the slowest consumers are disconnected.
const ALL_OUTPUT_BYTES_MAX: usize = 512 << 20;
/// Limit of the incomplete frames of all connections together, above which the connections with the most are closed.
const ALL_INPUT_BYTES_MAX: usize = 256 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Frames taken from one connection before the others have their turn.
const FRAMES_AT_ONCE: usize = 512;
/// The same in bytes.
const FRAME_BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes of frames after which a turn ends, so that the server can pause connections.
const TURN_INPUT_BYTES: usize = 8 << 20;
/// Bytes of replies after which a turn ends, so that full output queues are noticed.
const TURN_OUTPUT_BYTES: usize = 4 << 20;
/// Connections accepted per turn.
const ACCEPTS_AT_ONCE: usize = 64;
/// Delay after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout for a client to send its first complete frame.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_millis(10_000);
/// Timeout for a connection that is being closed to receive its pending output.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(5_000);

/// Input of a client.
#[derive(Debug)]
pub(super) enum Input {
    Frame(Bytes),
    /// An administrative command: the first four bytes of the connection.
    Command([u8; 4]),
    Closed,
}

/// A change of an output queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    Full,
    Drained,
    /// The connection was closed.
    Closed,
}

#[derive(Debug)]
pub(super) struct Client {
    stream: TcpStream,
    pub(super) address: SocketAddr,
    /// The first bytes, until there are four: a command or the length of a frame.
    first: BytesMut,
    frames: Frames,
    /// Whether a whole frame has arrived.
    has_greeted: bool,
    output: OutputQueue,
    is_readable: bool,
    /// Whether it is in [`Clients::ready`].
    is_queued: bool,
    is_paused: bool,
    is_full: bool,
    /// Whether the server did not allow the last write, because the session may have expired elsewhere.
    is_withheld: bool,
    /// If set, the connection is closed once its output is written, or at this time.
    closes_at: Option<Monotonic>,
    pub(super) since: Monotonic,
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// Counters of all connections since the start, or since they were reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Frames, and responses to commands.
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    /// Connections rejected because of a connection limit.
    pub(super) rejected: u64,
    /// Connections closed because they used the most memory when a limit was reached.
    pub(super) dropped: u64,
}

/// Limits of the number of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    pub(super) all: usize,
    /// Per client address (`maxClientCnxns`).
    pub(super) per_address: usize,
}

pub(super) struct Clients {
    registry: Registry,
    listener: TcpListener,
    listener_token: Token,
    /// Whether the listener may have pending connections that the poll will not report again.
    is_accepting: bool,
    accept_at: Monotonic,
    limits: ConnectionLimits,
    throttle: Throttle,
    by_address: BTreeMap<IpAddr, usize>,
    next: usize,
    by_id: BTreeMap<ConnectionId, Client>,
    /// Connections with unread bytes.
    ready: VecDeque<ConnectionId>,
    /// Connections with output to write.
    dirty: BTreeSet<ConnectionId>,
    input_bytes: usize,
    output_bytes: usize,
    buffer: Box<[u8]>,
    pub(super) traffic: Traffic,
}

impl Clients {
    /// Serves a listening socket.
    pub(super) fn new(
        registry: Registry,
        mut listener: TcpListener,
        token: Token,
        limits: ConnectionLimits,
    ) -> io::Result<Self> {
        registry.register(&mut listener, token, Interest::READABLE)?;
        Ok(Self {
            registry,
            listener,
            listener_token: token,
            is_accepting: true,
            accept_at: Monotonic(0),
            limits,
            throttle: Throttle::default(),
            by_address: BTreeMap::new(),
            next: FIRST,
            by_id: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: BTreeSet::new(),
            input_bytes: 0,
            output_bytes: 0,
            buffer: vec![0; READ_BYTES].into(),
            traffic: Traffic::default(),
        })
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Client> {
        self.by_id.get(&connection)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// When [`Self::accept`] or [`Self::read`] has work that the poll will not report.
    pub(super) fn next_timer(&self) -> Monotonic {
        match () {
            () if !self.ready.is_empty() => Monotonic(0),
            () if self.is_accepting => self.accept_at,
            () => Monotonic::NEVER,
        }
    }

    /// Records an event of the poll.
    pub(super) fn note(&mut self, event: &mio::event::Event) {
        if event.token() == self.listener_token {
            self.is_accepting = true;
            return;
        }
        let id = ConnectionId(event.token().0 as u64);
        let Some(client) = self.by_id.get_mut(&id) else { return };
        if event.is_writable() && !client.output.is_empty() {
            self.dirty.insert(id);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            client.is_readable = true;
            self.queue(id);
        }
    }

    /// Queues a connection to be read in its turn.
    fn queue(&mut self, id: ConnectionId) {
        if let Some(client) = self.by_id.get_mut(&id)
            && !client.is_paused
            && !std::mem::replace(&mut client.is_queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Accepts connections; returns the new ones.
    pub(super) fn accept(&mut self, now: Monotonic) -> Vec<(ConnectionId, SocketAddr)> {
        let mut accepted = Vec::new();
        for _ in 0..ACCEPTS_AT_ONCE {
            if !self.is_accepting || now < self.accept_at {
                break;
            }
            match self.listener.accept() {
                // Dropping the stream closes the connection: the limit is reached.
                Ok((_, address)) if self.is_above_limit(address.ip()) => {
                    self.traffic.rejected += 1;
                    if let Some(suppressed) = self.throttle.admit(0, "limit", now) {
                        let ConnectionLimits { all, per_address } = self.limits;
                        tracing::warn!(
                            all,
                            per_address,
                            suppressed,
                            "ZooKeeper connections closed: limit reached (file descriptors limit it, too)"
                        );
                    }
                }
                Ok((stream, address)) => accepted.extend(self.add(stream, address, now)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_accepting = false,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Too many open files. The connections stay in the listener's queue.
                Err(error) => {
                    self.accept_at = now + ACCEPT_PAUSE;
                    if let Some(suppressed) = self.throttle.admit(0, "accept", now) {
                        tracing::warn!(%error, suppressed, "can't accept a ZooKeeper client");
                    }
                }
            }
        }
        accepted
    }

    fn add(
        &mut self,
        mut stream: TcpStream,
        address: SocketAddr,
        now: Monotonic,
    ) -> Option<(ConnectionId, SocketAddr)> {
        let token = Token(self.next);
        self.next += 1;
        let _ = stream.set_nodelay(true);
        self.registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE).ok()?;
        let client = Client {
            stream,
            address,
            first: BytesMut::new(),
            frames: Frames::new(FRAME_BYTES_MAX),
            has_greeted: false,
            output: OutputQueue::default(),
            is_readable: false,
            is_queued: false,
            is_paused: false,
            is_full: false,
            is_withheld: false,
            closes_at: None,
            since: now,
            received: 0,
            sent: 0,
        };
        let id = ConnectionId(token.0 as u64);
        self.by_id.insert(id, client);
        *self.by_address.entry(address.ip()).or_default() += 1;
        Some((id, address))
    }

    fn is_above_limit(&self, address: IpAddr) -> bool {
        let of_address = self.by_address.get(&address).copied().unwrap_or_default();
        self.by_id.len() >= self.limits.all || of_address >= self.limits.per_address
    }

    /// Reads from all ready connections in turn and passes their input to `take`, which returns the bytes of output
    /// produced in this turn.
    pub(super) fn read(&mut self, mut take: impl FnMut(ConnectionId, Input) -> usize) {
        let (mut made, mut input) = (0, 0);
        for _ in 0..self.ready.len() {
            if made >= TURN_OUTPUT_BYTES || input >= TURN_INPUT_BYTES {
                break;
            }
            let Some(id) = self.ready.pop_front() else { break };
            if let Some(client) = self.by_id.get_mut(&id) {
                client.is_queued = false;
            }
            input += self.read_one(id, &mut made, &mut take);
        }
    }

    /// Takes frames of one connection, and returns their size.
    fn read_one(
        &mut self,
        id: ConnectionId,
        made: &mut usize,
        take: &mut impl FnMut(ConnectionId, Input) -> usize,
    ) -> usize {
        let (mut taken, mut bytes_taken) = (0, 0);
        loop {
            let Some(client) = self.by_id.get_mut(&id) else { return bytes_taken };
            if client.is_paused || client.closes_at.is_some() {
                return bytes_taken;
            }
            if taken >= FRAMES_AT_ONCE || bytes_taken >= FRAME_BYTES_AT_ONCE || *made >= TURN_OUTPUT_BYTES {
                self.queue(id);
                return bytes_taken;
            }
            let held = client.frames.held();
            match client.frames.next() {
                Ok(Some(frame)) => {
                    let bytes = held - client.frames.held();
                    self.input_bytes -= bytes;
                    bytes_taken += bytes;
                    client.has_greeted = true;
                    client.received += 1;
                    self.traffic.received += 1;
                    self.traffic.received_bytes += bytes as u64;
                    taken += 1;
                    *made = take(id, Input::Frame(frame));
                    continue;
                }
                Ok(None) if client.is_readable => {}
                Ok(None) => return bytes_taken,
                Err(error) => {
                    // Not for strangers, who could fill the log.
                    if client.has_greeted {
                        tracing::warn!(client = %client.address, %error, "closing the connection of a ZooKeeper client");
                    }
                    self.closed(id, made, take);
                    return bytes_taken;
                }
            }
            match client.stream.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let mut bytes = &self.buffer[..count];
                    if client.first.len() < 4 {
                        let missing = (4 - client.first.len()).min(count);
                        client.first.extend_from_slice(&bytes[..missing]);
                        bytes = &bytes[missing..];
                        let Some(first) = client.first.first_chunk::<4>().copied() else { continue };
                        if first.iter().all(u8::is_ascii_lowercase) {
                            self.traffic.received += 1;
                            take(id, Input::Command(first));
                            // The response may be long, so a command ends the turn.
                            *made = TURN_OUTPUT_BYTES;
                            return bytes_taken;
                        }
                        client.frames.push(&first);
                        self.input_bytes += 4;
                    }
                    let held = client.frames.held();
                    client.frames.push(bytes);
                    self.input_bytes += client.frames.held() - held;
                    if self.input_bytes > ALL_INPUT_BYTES_MAX
                        && let Some(largest) = self.largest(|client| client.frames.held())
                    {
                        self.traffic.dropped += 1;
                        self.closed(largest, made, take);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => client.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.closed(id, made, take);
        bytes_taken
    }

    fn closed(&mut self, id: ConnectionId, made: &mut usize, take: &mut impl FnMut(ConnectionId, Input) -> usize) {
        self.remove(id);
        *made = take(id, Input::Closed);
    }

    pub(super) fn send(&mut self, id: ConnectionId, frame: Bytes) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        self.output_bytes += frame.len();
        client.sent += 1;
        self.traffic.sent += 1;
        self.traffic.sent_bytes += frame.len() as u64;
        client.output.push(frame);
        self.dirty.insert(id);
    }

    /// Closes a connection after its pending output.
    pub(super) fn close(&mut self, id: ConnectionId, now: Monotonic) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.closes_at = Some(now + CLOSE_TIMEOUT);
            self.dirty.insert(id);
        }
    }

    /// Closes all connections at once.
    pub(super) fn close_all(&mut self) {
        for id in self.by_id.keys().copied().collect::<Vec<_>>() {
            self.remove(id);
        }
        self.ready.clear();
        self.dirty.clear();
        // Events of the listener may have been missed meanwhile.
        self.is_accepting = true;
    }

    /// Stops reading from a connection.
    pub(super) fn pause(&mut self, id: ConnectionId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.is_paused = true;
        }
    }

    /// Resumes reading from a connection.
    pub(super) fn resume(&mut self, id: ConnectionId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.is_paused = false;
            self.queue(id);
        }
    }

    /// Writes queued output, except to clients that the server must not send to now.
    pub(super) fn flush(&mut self, server: &Server, now: Monotonic, changes: &mut Vec<(ConnectionId, Output)>) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(client) = self.by_id.get_mut(&id) else { continue };
            // Output withheld because the session may have expired elsewhere is discarded: once the server has closed
            // the connection, `may_send` no longer withholds it.
            if client.is_withheld && client.closes_at.is_some() {
                self.remove(id);
                changes.push((id, Output::Closed));
                continue;
            }
            client.is_withheld = !server.may_send(id, now);
            if client.is_withheld {
                self.dirty.insert(id);
                continue;
            }
            let before = client.output.bytes();
            let written = client.output.write(&mut client.stream);
            self.output_bytes -= before - client.output.bytes();
            let is_done = client.closes_at.is_some() && client.output.is_empty();
            if written.is_err() || is_done {
                self.remove(id);
                changes.push((id, Output::Closed));
            } else if client.output.bytes() > OUTPUT_HIGH_BYTES && !client.is_full {
                client.is_full = true;
                changes.push((id, Output::Full));
            } else if client.output.bytes() <= OUTPUT_LOW_BYTES && client.is_full {
                client.is_full = false;
                changes.push((id, Output::Drained));
            }
        }
        while self.output_bytes > ALL_OUTPUT_BYTES_MAX
            && let Some(largest) = self.largest(|client| client.output.bytes())
        {
            self.traffic.dropped += 1;
            self.remove(largest);
            changes.push((largest, Output::Closed));
        }
    }

    /// The connection that uses the most memory.
    fn largest(&self, held: impl Fn(&Client) -> usize) -> Option<ConnectionId> {
        self.by_id.iter().max_by_key(|(_, client)| held(client)).map(|(id, _)| *id)
    }

    /// Resets the counters of each connection.
    pub(super) fn reset_statistics(&mut self) {
        self.by_id.values_mut().for_each(|client| (client.received, client.sent) = (0, 0));
    }

    /// Closes connections that timed out, and returns them.
    pub(super) fn sweep(&mut self, now: Monotonic) -> Vec<ConnectionId> {
        let is_over = |client: &Client| {
            client.closes_at.is_some_and(|at| now >= at)
                || !client.has_greeted && now.since(client.since) >= GREETING_TIMEOUT
        };
        let over: Vec<_> = self.by_id.iter().filter(|(_, client)| is_over(client)).map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.remove(*id));
        over
    }

    fn remove(&mut self, id: ConnectionId) {
        let Some(mut client) = self.by_id.remove(&id) else { return };
        self.input_bytes -= client.frames.held();
        self.output_bytes -= client.output.bytes();
        let _ = self.registry.deregister(&mut client.stream);
        if let Entry::Occupied(mut count) = self.by_address.entry(client.address.ip()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
