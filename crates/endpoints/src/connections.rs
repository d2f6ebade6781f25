//! The connections of an endpoint, with their input, their output and the account of both.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};

use base::budget::{ByteBudget, Reservation};
use base::{Duration, Monotonic};
use bytes::Bytes;
use coordination::server::ConnectionId;
use mio::net::TcpStream;
use mio::{Registry, Token};

use crate::output::OutputQueue;
use crate::transport::Transport;

/// First number of connections, which is also the token. Numbers are never reused.
const FIRST: u64 = 16;
/// Time for a connection that is being closed to finish its requests and to receive its output.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_millis(5_000);

/// The protocol's part of a connection. It holds the input that was received and is not taken yet.
pub(crate) trait Client {
    /// Adds received bytes.
    fn push(&mut self, bytes: &[u8], now: Monotonic);

    /// A buffer with room for the rest of a long request and nothing else, which is read into instead: its content need
    /// not be copied then.
    fn long_input(&mut self) -> Option<&mut Vec<u8>> {
        None
    }

    /// Bytes of input held.
    fn held(&self) -> usize;

    /// Whether it has completed the first exchange of its protocol, for which its time is limited.
    fn has_greeted(&self) -> bool;

    /// Whether no request of it is in progress: a connection that is being closed waits for that.
    fn is_idle(&self) -> bool {
        true
    }
}

/// A connection. `client` is the protocol's part.
#[derive(Debug)]
pub(crate) struct Connection<C> {
    pub(crate) client: C,
    pub(crate) address: SocketAddr,
    pub(crate) since: Monotonic,
    /// Requests received, and frames sent.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(super) transport: Transport,
    /// Whether the handshake of the transport is complete.
    pub(super) is_open: bool,
    pub(super) output: OutputQueue,
    /// The bytes that the input and the output hold. Updated once for each turn that reads or writes the connection.
    buffered: Reservation,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Whether it is in [`Connections::ready`].
    pub(super) is_queued: bool,
    /// Whether it is in [`Connections::dirty`].
    is_dirty: bool,
    is_paused: bool,
    pub(super) is_full: bool,
    /// Whether the protocol did not allow the last write.
    pub(super) is_withheld: bool,
    /// If set, it is not read any more, and closed once its requests are finished and its output is written, or at this
    /// time.
    pub(super) closes_at: Option<Monotonic>,
}

impl<C: Client> Connection<C> {
    pub(super) fn may_read(&self) -> bool {
        self.is_open && !self.is_paused && self.closes_at.is_none()
    }

    /// Whether it has requests that are not read or not answered.
    pub(super) fn has_requests(&self) -> bool {
        self.client.held() > 0 || !self.client.is_idle() || self.transport.has_unread()
    }

    /// Closes it after its requests in progress and its output, at `at` at the latest.
    pub(crate) fn close(&mut self, at: Monotonic) {
        self.closes_at = Some(at);
    }

    /// Adds output. It is written at the end of the turn.
    pub(crate) fn push(&mut self, frame: Bytes) {
        self.output.push(frame);
    }

    /// Charges the budget for the input and the output held.
    pub(super) fn settle(&mut self) {
        self.buffered.set_to(self.client.held() + self.output.bytes());
    }
}

/// Counters of all connections since the start, or since they were reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Frames, and responses to commands.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    /// Connections rejected because of a connection limit.
    pub(crate) rejected: u64,
    /// Connections closed because they used the most memory when a limit was reached.
    pub(crate) dropped: u64,
}

/// Limits of the number of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) all: usize,
    /// Per client address.
    pub(crate) per_address: usize,
}

/// All connections of an endpoint.
#[derive(Debug)]
pub(crate) struct Connections<C> {
    pub(super) registry: Registry,
    pub(super) limits: ConnectionLimits,
    by_address: BTreeMap<IpAddr, usize>,
    next: u64,
    pub(super) by_id: BTreeMap<ConnectionId, Connection<C>>,
    /// Connections with input that was not read or not taken.
    pub(super) ready: VecDeque<ConnectionId>,
    /// Connections with output to write, or to be closed.
    pub(super) dirty: Vec<ConnectionId>,
    /// Memory for the input and the output of all connections. Input that has arrived is charged in any case; then the
    /// connection with the most is closed.
    budget: ByteBudget,
    pub(crate) traffic: Traffic,
}

impl<C: Client> Connections<C> {
    pub(super) fn new(registry: Registry, limits: ConnectionLimits, budget: ByteBudget) -> Self {
        Self {
            registry,
            limits,
            by_address: BTreeMap::new(),
            next: FIRST,
            by_id: BTreeMap::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            budget,
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<C>> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<C>> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection<C>)> {
        self.by_id.iter().map(|(id, connection)| (*id, connection))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Connection<C>)> {
        self.by_id.iter_mut().map(|(id, connection)| (*id, connection))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Whether a further connection would be above a limit, with `lost` that are gone.
    pub(super) fn is_above_limit(&self, address: IpAddr, lost: usize) -> bool {
        let of_address = self.by_address.get(&address).copied().unwrap_or_default();
        self.by_id.len() + lost >= self.limits.all || of_address >= self.limits.per_address
    }

    /// The number of the next connection.
    pub(super) fn next_id(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId(self.next)
    }

    pub(super) fn register(&self, id: ConnectionId, stream: TcpStream) -> io::Result<Transport> {
        // It only affects latency.
        let _ = stream.set_nodelay(true);
        Transport::plain(stream, Token(id.0 as usize), &self.registry)
    }

    pub(super) fn add(
        &mut self,
        id: ConnectionId,
        transport: Transport,
        (client, address): (C, SocketAddr),
        now: Monotonic,
    ) {
        let connection = Connection {
            client,
            address,
            since: now,
            received: 0,
            sent: 0,
            transport,
            is_open: false,
            output: OutputQueue::default(),
            buffered: self.budget.charge(0),
            is_readable: false,
            is_writable: true,
            is_queued: false,
            is_dirty: false,
            is_paused: false,
            is_full: false,
            is_withheld: false,
            closes_at: None,
        };
        self.by_id.insert(id, connection);
        *self.by_address.entry(address.ip()).or_default() += 1;
    }

    /// Removes a connection, and returns the protocol's part.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<C> {
        let mut connection = self.by_id.remove(&id)?;
        connection.transport.deregister(&self.registry);
        if let Entry::Occupied(mut count) = self.by_address.entry(connection.address.ip()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(connection.client)
    }

    /// Queues a connection to be read in its turn.
    pub(crate) fn queue(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id)
            && !connection.is_paused
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Has the output written at the end of this turn, and the connection closed if that is due.
    pub(crate) fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// Begins to write the output of the connections that have any.
    pub(super) fn take_dirty(&mut self) -> Vec<ConnectionId> {
        let dirty = std::mem::take(&mut self.dirty);
        for id in &dirty {
            if let Some(connection) = self.by_id.get_mut(id) {
                connection.is_dirty = false;
            }
        }
        dirty
    }

    pub(crate) fn send(&mut self, id: ConnectionId, frame: Bytes) {
        let Some(connection) = self.by_id.get_mut(&id) else { return };
        connection.sent += 1;
        self.traffic.sent += 1;
        self.traffic.sent_bytes += frame.len() as u64;
        connection.output.push(frame);
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Closes a connection after its pending output.
    pub(crate) fn close(&mut self, id: ConnectionId, now: Monotonic) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.close(now + CLOSE_TIMEOUT);
            self.touch(id);
        }
    }

    /// Closes a connection at the end of this turn.
    pub(crate) fn abort(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.close(Monotonic(0));
            self.touch(id);
        }
    }

    /// Stops reading from a connection.
    pub(crate) fn pause(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.is_paused = true;
        }
    }

    /// Resumes reading from a connection.
    pub(crate) fn resume(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.is_paused = false;
            self.queue(id);
        }
    }

    /// Closes all connections at once, without notice to the protocol.
    pub(crate) fn clear(&mut self) {
        for id in self.by_id.keys().copied().collect::<Vec<_>>() {
            self.remove(id);
        }
        self.ready.clear();
        self.dirty.clear();
    }

    /// Resets the counters of each connection.
    pub(crate) fn reset_statistics(&mut self) {
        self.by_id.values_mut().for_each(|connection| (connection.received, connection.sent) = (0, 0));
    }

    /// Bytes of input and output of all connections.
    #[cfg(test)]
    pub(super) fn buffered_bytes(&self) -> usize {
        self.budget.used()
    }

    /// The connection to close because all hold too much, with its bytes.
    pub(super) fn largest_if_above_limit(&self) -> Option<(ConnectionId, usize)> {
        if !self.budget.is_exceeded() {
            return None;
        }
        let held = self.by_id.iter().map(|(id, connection)| (*id, connection.buffered.bytes()));
        held.max_by_key(|(_, bytes)| *bytes)
    }
}
