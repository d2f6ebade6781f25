//! The connection that this node dials to another and sends on; it only ever receives a hello or a refusal there.

use std::io;
use std::net::SocketAddr;

use base::{Duration, HostPort, Monotonic, NodeId};
use bytes::Bytes;
use mio::net::TcpStream;
use mio::{Registry, Token};
use rustix::net::sockopt;

use super::connection::{Closed, Connection};
use super::handshake::Handshake;
use super::traffic::Traffic;
use crate::frames::{Frame, FrameError, Refusal};

/// Delay after a first failure; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Maximum delay: a restarted node is reconnected within half a second.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// A lookup of a host name that has no result after this time counts as failed.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(2_000);
/// A connection that is not open after this time is closed.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(5_000);
/// A connection with data unacknowledged for this long is closed: after a partition, a new connection is established
/// sooner than the old one would retransmit.
const UNACKNOWLEDGED_MS: u32 = 3_000;

/// The result of input on a dialed connection.
#[derive(Debug)]
pub(super) enum Dialled {
    Quiet,
    /// The peer has introduced itself and is the expected one.
    Opened,
    /// The peer refuses this node.
    RefusedBy(Refusal),
    /// The peer is not the expected one.
    Refused(Refusal),
}

/// What is due for a peer that is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialStep {
    /// Look up its host name.
    Resolve,
    Connect(SocketAddr),
}

/// A peer, from this node's side.
#[derive(Debug)]
pub(super) struct Dial {
    to: NodeId,
    address: HostPort,
    /// The last result of a lookup of the host name: used while the name does not resolve.
    resolved: Vec<SocketAddr>,
    /// Number of connection attempts, which take the addresses in turn.
    attempts: usize,
    /// A lookup is in progress, possibly for longer than its timeout.
    is_resolving: bool,
    state: State,
    backoff: Duration,
}

#[derive(Debug)]
enum State {
    Waiting {
        until: Monotonic,
    },
    /// The host name is being resolved.
    Resolving {
        until: Monotonic,
    },
    Connecting {
        connection: Connection,
        until: Monotonic,
    },
    /// Our hello is sent; theirs is awaited.
    Greeting {
        connection: Connection,
        until: Monotonic,
    },
    Open {
        connection: Connection,
    },
}

impl Dial {
    pub(super) fn new(to: NodeId, address: HostPort) -> Self {
        let state = State::Waiting { until: Monotonic(0) };
        Self { to, address, resolved: Vec::new(), attempts: 0, is_resolving: false, state, backoff: BACKOFF_MIN }
    }

    pub(super) fn to(&self) -> NodeId {
        self.to
    }

    /// The connection, if it may carry messages.
    pub(super) fn open(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Open { connection } => Some(connection),
            _ => None,
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Waiting { .. } | State::Resolving { .. } => None,
            State::Connecting { connection, .. } | State::Greeting { connection, .. } | State::Open { connection } => {
                Some(connection)
            }
        }
    }

    pub(super) fn has_token(&mut self, token: Token) -> bool {
        self.connection().is_some_and(|connection| connection.token() == token)
    }

    /// When [`Dial::tick`] next has work.
    pub(super) fn deadline(&self) -> Monotonic {
        match &self.state {
            State::Waiting { until }
            | State::Resolving { until }
            | State::Connecting { until, .. }
            | State::Greeting { until, .. } => *until,
            State::Open { .. } => Monotonic::NEVER,
        }
    }

    /// The next step, if one is due; an error if the connection attempt timed out.
    pub(super) fn tick(&self, now: Monotonic) -> Result<Option<DialStep>, Closed> {
        match &self.state {
            State::Waiting { until } if *until <= now => Ok(Some(match self.address.ip() {
                Some(ip) => DialStep::Connect((ip, self.address.port()).into()),
                None => DialStep::Resolve,
            })),
            State::Resolving { until } if *until <= now => match self.next_address() {
                Some(address) => Ok(Some(DialStep::Connect(address))),
                None => Err(self.unresolved(io::ErrorKind::TimedOut.into())),
            },
            State::Connecting { until, .. } | State::Greeting { until, .. } if *until <= now => Err(Closed::TimedOut),
            _ => Ok(None),
        }
    }

    /// An address found by the last lookup.
    fn next_address(&self) -> Option<SocketAddr> {
        self.resolved.get(self.attempts % self.resolved.len().max(1)).copied()
    }

    fn unresolved(&self, error: io::Error) -> Closed {
        Closed::Unresolved { name: self.address.clone(), error }
    }

    /// Waits for a lookup. Returns the name to look up, unless an earlier lookup is still in progress.
    pub(super) fn resolve(&mut self, now: Monotonic) -> Option<HostPort> {
        self.state = State::Resolving { until: now + RESOLVE_TIMEOUT };
        (!std::mem::replace(&mut self.is_resolving, true)).then(|| self.address.clone())
    }

    /// Handles the result of a lookup. Returns the address to connect to now, if any.
    pub(super) fn resolved(&mut self, found: io::Result<Vec<SocketAddr>>) -> Result<Option<SocketAddr>, Closed> {
        self.is_resolving = false;
        let failure = match found {
            Ok(addresses) => {
                self.resolved = addresses;
                None
            }
            Err(error) => Some(error),
        };
        if !matches!(self.state, State::Resolving { .. }) {
            return Ok(None);
        }
        match (self.next_address(), failure) {
            (None, Some(error)) => Err(self.unresolved(error)),
            (address, _) => Ok(address),
        }
    }

    pub(super) fn start(
        &mut self,
        address: SocketAddr,
        token: Token,
        (registry, traffic): (&Registry, &Traffic),
        now: Monotonic,
    ) -> io::Result<()> {
        self.attempts += 1;
        let stream = TcpStream::connect(address)?;
        let connection = Connection::register(stream, token, registry, traffic)?;
        self.state = State::Connecting { connection, until: now + HANDSHAKE_TIMEOUT };
        Ok(())
    }

    /// The socket is writable: the connection is established, or failed, or accepts more data.
    pub(super) fn writable(&mut self, handshake: &Handshake) -> Result<(), Closed> {
        if let Some(connection) = self.connection() {
            connection.unblock();
        }
        if let State::Connecting { connection, .. } = &mut self.state {
            if let Some(error) = connection.stream().take_error()? {
                return Err(error.into());
            }
            match connection.stream().peer_addr() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            connection.stream().set_nodelay(true)?;
            sockopt::set_tcp_user_timeout(connection.stream(), UNACKNOWLEDGED_MS).map_err(io::Error::from)?;
            handshake.hello(self.to).encode(connection.output());
            self.greet();
        }
        match self.connection() {
            Some(connection) => connection.flush(),
            None => Ok(()),
        }
    }

    fn greet(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Waiting { until: Monotonic::NEVER });
        self.state = match state {
            State::Connecting { connection, until } => State::Greeting { connection, until },
            other => other,
        };
    }

    /// The socket is readable.
    pub(super) fn readable(&mut self, handshake: &mut Handshake) -> Result<Dialled, Closed> {
        let mut frames = Vec::new();
        let read = match &mut self.state {
            // A failure is reported when the socket is writable.
            State::Waiting { .. } | State::Resolving { .. } | State::Connecting { .. } => return Ok(Dialled::Quiet),
            State::Greeting { connection, .. } | State::Open { connection } => connection.read(&mut frames),
        };
        // A refusal precedes the end of the connection, so frames are handled before the read error.
        match frames.into_iter().next() {
            Some(frame) => self.frame(frame, handshake),
            None => read.map(|_| Dialled::Quiet),
        }
    }

    fn frame(&mut self, frame: Bytes, handshake: &mut Handshake) -> Result<Dialled, Closed> {
        match Frame::decode(frame)? {
            Frame::Refusal(refusal) => Ok(Dialled::RefusedBy(refusal)),
            Frame::Hello(hello) if matches!(self.state, State::Greeting { .. }) => {
                if hello.node != self.to {
                    tracing::warn!(expected = %self.to, found = %hello.node, address = %self.address, "wrong node at address");
                    return Err(FrameError::Magic.into());
                }
                match handshake.judge(&hello) {
                    Ok(()) => Ok(self.opened()),
                    Err(refusal) => Ok(self.refuse(refusal)),
                }
            }
            Frame::Hello(_) | Frame::Message(_) => Err(FrameError::Magic.into()),
        }
    }

    fn opened(&mut self) -> Dialled {
        let state = std::mem::replace(&mut self.state, State::Waiting { until: Monotonic::NEVER });
        self.state = match state {
            State::Greeting { connection, .. } => State::Open { connection },
            other => other,
        };
        self.backoff = BACKOFF_MIN;
        Dialled::Opened
    }

    /// Sends a refusal on a best-effort basis; the connection is closed next.
    fn refuse(&mut self, refusal: Refusal) -> Dialled {
        if let Some(connection) = self.connection() {
            refusal.encode(connection.output());
            let _ = connection.flush();
        }
        Dialled::Refused(refusal)
    }

    /// Closes the connection, to dial again after a delay.
    pub(super) fn fail(&mut self, now: Monotonic) {
        self.state = State::Waiting { until: now + self.backoff };
        self.backoff = Duration((self.backoff.0 * 2).min(BACKOFF_MAX.0));
    }
}
