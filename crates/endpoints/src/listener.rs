//! Listening sockets: binding, and accepting with a pause when the process has no file descriptors left.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use base::{Duration, Monotonic};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::throttle::Throttle;

/// Delay after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds the address without listening: connections are refused until the endpoint serves, so clients try another node.
pub fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// The address of a bound socket, with the port that was chosen if none was given.
pub fn address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(address).map_err(io::Error::from)
}

/// A listening socket, registered with a poll.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// What is accepted, for log messages.
    what: &'static str,
    /// There may be pending connections that the poll will not report again.
    is_ready: bool,
    accept_at: Monotonic,
}

impl Listener {
    /// A nonblocking listener for `what`, such as "a ZooKeeper client".
    pub fn new(mut socket: TcpListener, what: &'static str, token: Token, registry: &Registry) -> io::Result<Self> {
        registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Self { socket, what, is_ready: true, accept_at: Monotonic(0) })
    }

    /// The poll has reported the socket, or may have without notice.
    pub fn note(&mut self) {
        self.is_ready = true;
    }

    /// When [`Self::accept`] may return a connection that the poll will not report.
    pub fn next_timer(&self) -> Monotonic {
        if self.is_ready { self.accept_at } else { Monotonic::NEVER }
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next pending connection.
    pub fn accept(&mut self, throttle: &mut Throttle, now: Monotonic) -> Option<(TcpStream, SocketAddr)> {
        while self.is_ready && self.accept_at <= now {
            match self.socket.accept() {
                Ok(accepted) => return Some(accepted),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_ready = false,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Too many open files. The connections stay in the socket's queue.
                Err(error) => {
                    self.accept_at = now + ACCEPT_PAUSE;
                    if let Some(suppressed) = throttle.admit(0, "accept", now) {
                        tracing::warn!(%error, suppressed, "can't accept {}", self.what);
                    }
                }
            }
        }
        None
    }
}
