//! Connections between nodes, on the machine's own thread.
//!
//! Every node dials every other and sends on the connection that it dialed; on accepted connections it only reads. So
//! the two directions between a pair are two connections, and simultaneous dials need no rule. A message for a peer
//! that is not connected is dropped: the replication protocol retransmits the messages that are still needed.
//!
//! An untrusted client can open `UNVERIFIED_MAX` connections, each with a buffer for at most
//! `crate::frames::UNVERIFIED_FRAME_BYTES_MAX`, for five seconds. A further one replaces the oldest, so that
//! a flood does not keep out a member, which sends its hello immediately.

pub(crate) mod accepted;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use base::codec::Wire as _;
use base::{Boot, HostPort, Monotonic, NodeId};
use bytes::Bytes;
use catalog::{NodeRecord, Standing};
use endpoints::listener::Listener;
use endpoints::throttle::Throttle;
use mio::net::TcpListener;
use mio::{Registry, Token};
use node::contract::Event;
use node::message::Message;

use self::accepted::{Accepted, PeerInput};
use self::connection::{Closed, Connection, ReadState};
use self::dial::{Dial, DialStep, Dialled};
use self::handshake::{Handshake, Identity};
use self::traffic::Traffic;
use super::frames::{Refusal, RefusalKind};
use super::resolver::{Resolved, Resolver};

/// The token of the listening socket; connections use tokens from [`FIRST_CONNECTION`] on, each once.
const LISTENER: Token = Token(1);
const FIRST_CONNECTION: usize = 16;
/// Maximum number of unverified connections.
const UNVERIFIED_MAX: usize = 128;
/// Connections accepted before the members have their turn.
const ACCEPT_TURN: usize = 64;
/// Characters logged of a refusal from a peer.
const LOGGED_CHARACTERS: usize = 400;

/// The address of a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerAddress {
    pub(crate) node: NodeId,
    pub(crate) address: HostPort,
}

/// All connections to and from other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    registry: Registry,
    listener: Listener,
    own: NodeId,
    handshake: Handshake,
    dials: Vec<Dial>,
    accepted: BTreeMap<Token, Accepted>,
    /// Accepted connections with data that the poll will not report again.
    unread: BTreeSet<Token>,
    next_token: usize,
    verdict: Option<(RefusalKind, String)>,
    throttle: Throttle,
    frames: Vec<Bytes>,
    /// Changes of the dialed connections that the machine was not notified of yet.
    changes: Vec<(NodeId, bool)>,
    resolver: Resolver,
    traffic: Traffic,
    /// Addresses that precede those in the roster; also of nodes that are not members yet.
    addresses: Vec<PeerAddress>,
}

impl Peers {
    /// Takes ownership of a listening socket.
    pub(crate) fn new(
        registry: Registry,
        listener: std::net::TcpListener,
        identity: Identity,
        addresses: &[PeerAddress],
        resolver: Resolver,
        traffic: Traffic,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = Listener::new(TcpListener::from_std(listener), "a connection", LISTENER, &registry)?;
        let own = identity.member.node;
        let members = &identity.members;
        let is_dialed = |peer: &&PeerAddress| peer.node != own && members.iter().any(|member| member.node == peer.node);
        let dials = addresses.iter().filter(is_dialed).map(|peer| Dial::new(peer.node, peer.address.clone())).collect();
        Ok(Self {
            registry,
            listener,
            own,
            handshake: Handshake::new(identity),
            dials,
            addresses: addresses.to_vec(),
            accepted: BTreeMap::new(),
            unread: BTreeSet::new(),
            next_token: FIRST_CONNECTION,
            verdict: None,
            throttle: Throttle::default(),
            frames: Vec::new(),
            changes: Vec::new(),
            resolver,
            traffic,
        })
    }

    /// Why this node must exit, if a member reports that its disk is not the one known to the cluster.
    pub(crate) fn verdict(&mut self) -> Option<(RefusalKind, String)> {
        self.verdict.take()
    }

    /// When [`Peers::tick`] next has work; immediately if there is input that the poll will not report.
    pub(crate) fn deadline(&self) -> Monotonic {
        if !self.unread.is_empty() || !self.changes.is_empty() {
            return Monotonic(0);
        }
        let dials = self.dials.iter().map(Dial::deadline);
        let unverified = self.accepted.values().map(Accepted::deadline);
        dials.chain(unverified).min().unwrap_or(Monotonic::NEVER).min(self.listener.next_timer())
    }

    /// Handles a poll event of a socket.
    pub(crate) fn ready(&mut self, event: &mio::event::Event, now: Monotonic) {
        let token = event.token();
        if token == LISTENER {
            self.listener.note();
        } else if let Some(index) = self.dials.iter_mut().position(|dial| dial.has_token(token)) {
            self.dial_ready(index, event, now);
        } else if let Some(accepted) = self.accepted.get_mut(&token) {
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.unread.insert(token);
            }
            if event.is_writable() {
                let done = accepted.writable();
                self.flushed(token, done, now);
            }
        }
    }

    /// Accepts connections, reads and decodes available data, and appends the messages to `events`.
    pub(crate) fn receive(&mut self, now: Monotonic, events: &mut Vec<Event>) {
        self.accept(now);
        self.report_starts(events);
        let changes = self.changes.drain(..);
        events.extend(changes.map(|(peer, is_open)| Event::PeerConnection { peer, is_open }));
        for token in std::mem::take(&mut self.unread) {
            self.read(token, now, events);
        }
    }

    /// A peer's new process: acknowledgements of its earlier process are void (guarantee 7). Or a process that was
    /// rejected, because its disk was rolled back (guarantee 6).
    fn report_starts(&mut self, events: &mut Vec<Event>) {
        let started = self.handshake.take_started();
        events.extend(self.handshake.take_rolled_back().into_iter().map(|peer| Event::PeerRolledBack { peer }));
        for (from, start) in started {
            events.push(Event::PeerStarted { from, start });
            let address = self.handshake.address_of(from.node).and_then(|address| address.parse().ok());
            if let Some(address) = address {
                self.dial(PeerAddress { node: from.node, address });
            }
        }
    }

    /// Updates the roster from the machine.
    pub(crate) fn update_roster(&mut self, roster: &[NodeRecord], now: Monotonic) {
        let (left, current): (Vec<&NodeRecord>, Vec<&NodeRecord>) =
            roster.iter().partition(|node| node.standing == Standing::Left);
        let left: BTreeSet<NodeId> = left.iter().map(|node| node.member.node).collect();
        for node in &current {
            if let Ok(address) = node.peer.parse() {
                self.dial(PeerAddress { node: node.member.node, address });
            }
        }
        self.handshake.update_roster(current.iter().map(|node| node.member), left.iter().copied());
        self.dials.retain(|dial| !left.contains(&dial.to()));
        let gone = |accepted: &Accepted| accepted.member().is_some_and(|member| left.contains(&member));
        let gone = self.accepted.iter().filter(|(_, accepted)| gone(accepted)).map(|(token, _)| *token);
        for token in gone.collect::<Vec<_>>() {
            self.close(token, &Closed::Ended, now);
        }
    }

    /// Dials a node from now on, unless it is dialed already: a configured address takes precedence.
    fn dial(&mut self, peer: PeerAddress) {
        if peer.node != self.own && self.dials.iter().all(|dial| dial.to() != peer.node) {
            let known = self.addresses.iter().find(|known| known.node == peer.node);
            let address = known.map_or(peer.address, |known| known.address.clone());
            self.dials.push(Dial::new(peer.node, address));
        }
    }

    /// Handles the result of a lookup of a peer's host name.
    pub(crate) fn resolved(&mut self, Resolved { node, addresses }: Resolved, now: Monotonic) {
        // The peer may have been removed.
        let Some(index) = self.dials.iter().position(|dial| dial.to() == node) else { return };
        match self.dials[index].resolved(addresses) {
            Ok(None) => {}
            Ok(Some(address)) => self.connect(index, address, now),
            Err(closed) => self.dial_failed(index, &closed, now),
        }
    }

    fn connect(&mut self, index: usize, address: SocketAddr, now: Monotonic) {
        let token = self.token();
        if let Err(error) = self.dials[index].start(address, token, (&self.registry, &self.traffic), now) {
            self.dial_failed(index, &error.into(), now);
        }
    }

    fn resolve(&mut self, index: usize, now: Monotonic) {
        let dial = &mut self.dials[index];
        let (to, name) = (dial.to(), dial.resolve(now));
        if let Some(Err(error)) = name.map(|name| self.resolver.begin(to, name))
            && let Err(closed) = self.dials[index].resolved(Err(error))
        {
            self.dial_failed(index, &closed, now);
        }
    }

    /// Dials peers that are due, and closes connections that timed out.
    pub(crate) fn tick(&mut self, now: Monotonic) {
        for index in 0..self.dials.len() {
            match self.dials[index].tick(now) {
                Ok(None) => {}
                Ok(Some(DialStep::Resolve)) => self.resolve(index, now),
                Ok(Some(DialStep::Connect(address))) => self.connect(index, address, now),
                Err(closed) => self.dial_failed(index, &closed, now),
            }
        }
        let late = self.accepted.iter().filter(|(_, accepted)| accepted.deadline() <= now);
        for token in late.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.close(token, &Closed::TimedOut, now);
        }
    }

    /// Queues a message for the write at the end of this turn; drops it if the node is not connected.
    pub(crate) fn send(&mut self, to: NodeId, message: &Message) {
        let dial = self.dials.iter_mut().find(|dial| dial.to() == to);
        if let Some(connection) = dial.and_then(Dial::open)
            && let Err(bytes) = connection.send(message)
        {
            tracing::error!(peer = %to, bytes, "dropped a message that exceeds the frame limit");
        }
    }

    /// Writes the messages queued in this turn, in one call per peer.
    pub(crate) fn flush(&mut self, now: Monotonic) {
        for index in 0..self.dials.len() {
            let flushed = self.dials[index].open().map_or(Ok(()), Connection::flush);
            if let Err(closed) = flushed {
                self.dial_failed(index, &closed, now);
            }
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn dial_ready(&mut self, index: usize, event: &mio::event::Event, now: Monotonic) {
        let dial = &mut self.dials[index];
        let to = dial.to();
        if event.is_writable()
            && let Err(closed) = dial.writable(&self.handshake)
        {
            return self.dial_failed(index, &closed, now);
        }
        if !(event.is_readable() || event.is_read_closed() || event.is_error()) {
            return;
        }
        match dial.readable(&mut self.handshake) {
            Ok(Dialled::Quiet) => {}
            Ok(Dialled::Opened) => {
                tracing::info!(peer = %to, "connected");
                self.changes.push((to, true));
            }
            Ok(Dialled::RefusedBy(refusal)) => {
                self.refused_by(&refusal, now);
                self.dials[index].fail(now);
                self.changes.push((to, false));
            }
            Ok(Dialled::Refused(refusal)) => {
                self.refused(to, &refusal, now);
                self.dials[index].fail(now);
                self.changes.push((to, false));
            }
            Err(closed) => self.dial_failed(index, &closed, now),
        }
    }

    fn dial_failed(&mut self, index: usize, closed: &Closed, now: Monotonic) {
        let dial = &mut self.dials[index];
        let (to, was_open) = (dial.to(), dial.open().is_some());
        dial.fail(now);
        self.changes.push((to, false));
        if was_open {
            tracing::info!(peer = %to, reason = %closed, "disconnected");
        } else if let Some(suppressed) = self.throttle.admit(to.0, "dial", now) {
            tracing::info!(peer = %to, reason = %closed, suppressed, "can't connect");
        }
    }

    fn accept(&mut self, now: Monotonic) {
        for _ in 0..ACCEPT_TURN {
            let Some((stream, _)) = self.listener.accept(&mut self.throttle, now) else { return };
            self.admit(stream, now);
        }
    }

    fn admit(&mut self, stream: mio::net::TcpStream, now: Monotonic) {
        let unverified = self.accepted.iter().filter(|(_, accepted)| accepted.is_unverified());
        if unverified.count() >= UNVERIFIED_MAX {
            // Tokens increase, so the first unverified connection is the oldest.
            let oldest = self.accepted.iter().find(|(_, accepted)| accepted.is_unverified()).map(|(token, _)| *token);
            if let Some(token) = oldest {
                self.close(token, &Closed::TimedOut, now);
            }
        }
        let token = self.token();
        let connection = stream.set_nodelay(true);
        let connection = connection.and_then(|()| Connection::register(stream, token, &self.registry, &self.traffic));
        match connection {
            Ok(connection) => {
                self.accepted.insert(token, Accepted::new(connection, now));
            }
            Err(error) => tracing::debug!(%error, "an accepted connection was already closed"),
        }
    }

    fn read(&mut self, token: Token, now: Monotonic, events: &mut Vec<Event>) {
        let Some(accepted) = self.accepted.get_mut(&token) else { return };
        let mut frames = std::mem::take(&mut self.frames);
        let mut reading = accepted.read(&mut frames);
        for frame in frames.drain(..) {
            if let Err(closed) = self.frame(token, frame, now, events) {
                reading = Err(closed);
                break;
            }
        }
        self.frames = frames;
        match reading {
            Ok(ReadState::Drained) => {}
            Ok(ReadState::More) => {
                self.unread.insert(token);
            }
            Err(closed) => self.close(token, &closed, now),
        }
    }

    fn frame(&mut self, token: Token, frame: Bytes, now: Monotonic, events: &mut Vec<Event>) -> Result<(), Closed> {
        let Some(accepted) = self.accepted.get_mut(&token) else { return Ok(()) };
        match accepted.frame(frame, &mut self.handshake)? {
            None => Ok(()),
            Some(PeerInput::Message { from, boot, body }) => message(from, boot, body, events),
            Some(PeerInput::RefusedBy(refusal)) => {
                self.refused_by(&refusal, now);
                Err(Closed::Ended)
            }
            Some(PeerInput::Joined(node)) => {
                self.report_starts(events);
                let Some(accepted) = self.accepted.get_mut(&token) else { return Ok(()) };
                let flushed = accepted.flush();
                self.flushed(token, flushed, now);
                self.close_others_of(node, token, now);
                Ok(())
            }
            Some(PeerInput::Refused { node, refusal }) => {
                let flushed = accepted.flush();
                self.refused(node, &refusal, now);
                self.flushed(token, flushed, now);
                Ok(())
            }
        }
    }

    /// A member that reconnects has abandoned its earlier connection.
    fn close_others_of(&mut self, node: NodeId, but: Token, now: Monotonic) {
        let others = self.accepted.iter().filter(|(token, accepted)| **token != but && accepted.member() == Some(node));
        for token in others.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.close(token, &Closed::Ended, now);
        }
    }

    fn flushed(&mut self, token: Token, flushed: Result<bool, Closed>, now: Monotonic) {
        match flushed {
            Ok(false) => {}
            Ok(true) => self.close(token, &Closed::Ended, now),
            Err(closed) => self.close(token, &closed, now),
        }
    }

    fn close(&mut self, token: Token, closed: &Closed, now: Monotonic) {
        self.unread.remove(&token);
        let Some(accepted) = self.accepted.remove(&token) else { return };
        match accepted.member() {
            Some(node) => tracing::info!(peer = %node, reason = %closed, "connection from a peer closed"),
            None => {
                if let Some(suppressed) = self.throttle.admit(0, "unverified", now) {
                    tracing::info!(reason = %closed, suppressed, "connection from an unverified peer closed");
                }
            }
        }
    }

    fn refused(&mut self, node: NodeId, refusal: &Refusal, now: Monotonic) {
        if let Some(suppressed) = self.throttle.admit(0, "refused", now) {
            tracing::warn!(peer = %node, reason = %refusal.reason, suppressed, "rejected a peer");
        }
    }

    fn refused_by(&mut self, refusal: &Refusal, now: Monotonic) {
        if self.verdict.is_none() {
            self.verdict = self.handshake.verdict(refusal);
        }
        if let Some(suppressed) = self.throttle.admit(0, "refused by", now) {
            let reason: String = refusal.reason.chars().take(LOGGED_CHARACTERS).collect();
            tracing::warn!(peer = %refusal.node, ?reason, suppressed, "rejected by a peer");
        }
    }
}

fn message(from: NodeId, boot: Boot, body: Bytes, events: &mut Vec<Event>) -> Result<(), Closed> {
    let message = Message::from_bytes(body).map_err(super::frames::FrameError::from)?;
    events.push(Event::Message { from, boot, message });
    Ok(())
}

#[cfg(test)]
mod tests;
