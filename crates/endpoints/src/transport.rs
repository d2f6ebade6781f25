//! The bytes of a connection: every read and write of a socket, and the handshake before the first of them, goes through
//! `Transport`. Connections with TLS will be another variant.

use std::io::{self, IoSlice, Read as _, Write as _};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;

/// A nonblocking socket, registered edge-triggered with a poll.
#[derive(Debug)]
pub enum Transport {
    /// Without encryption.
    Plain(TcpStream),
}

impl Transport {
    /// An accepted or dialed socket, to be read and written by the poll's thread.
    pub fn plain(mut stream: TcpStream, token: Token, registry: &Registry) -> io::Result<Self> {
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self::Plain(stream))
    }

    /// Advances the handshake. Until it is complete (true), the connection carries no bytes of its protocol, and this is
    /// called again when the socket is ready. After an error the connection must be closed.
    pub fn handshake(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
        }
    }

    /// The socket, for its options and addresses.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
        }
    }

    /// Reads into a buffer; 0 at the end of the stream, [`io::ErrorKind::WouldBlock`] if there is nothing to read now.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
        }
    }

    /// The same, appending to `buffer` within its capacity.
    pub fn read_into(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => Ok(rustix::io::read(&*stream, spare_capacity(buffer))?),
        }
    }

    /// Whether the socket has bytes to read. If that is not known: true.
    pub fn has_unread(&self) -> bool {
        match self {
            Self::Plain(stream) => rustix::io::ioctl_fionread(stream).map_or(true, |bytes| bytes > 0),
        }
    }

    /// Writes a prefix of the slices; [`io::ErrorKind::WouldBlock`] if the socket takes nothing now.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write_vectored(slices),
        }
    }

    /// Removes the socket from the poll, before it is closed.
    pub fn deregister(&mut self, registry: &Registry) {
        match self {
            // It fails only if the socket is not registered.
            Self::Plain(stream) => drop(registry.deregister(stream)),
        }
    }
}
