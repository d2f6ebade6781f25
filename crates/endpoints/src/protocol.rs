//! The interface between the loop of an `Endpoint` and a protocol. Dispatch is static: each
//! protocol has its own copy of the loop.

use std::io;
use std::net::SocketAddr;

use base::{Duration, Monotonic, Now};
use bytes::Bytes;
use coordination::server::ConnectionId;
use mio::Poll;

use crate::connections::{Client, Connection, Connections};

/// What became of the input of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A request was taken.
    Taken,
    /// The next request is incomplete.
    NeedsInput,
    /// No request can be taken now. The protocol resumes the connection ([`Connections::queue`]).
    Blocked,
    /// A request with a possibly long reply was taken: no others are taken in this turn.
    EndsTurn,
    /// The rest of the input is unusable: the connection is closed at once.
    Invalid,
}

/// A change of the output that waits for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputChange {
    /// More than [`Protocol::OUTPUT_HIGH_BYTES`] wait.
    Full,
    /// At most [`Protocol::OUTPUT_LOW_BYTES`] wait again.
    Drained,
}

/// The protocol of an endpoint, with everything that its connections share.
///
/// In a turn of the loop, the endpoint calls [`Self::begin_turn`], accepts connections, reads ([`Self::take`]), calls
/// [`Self::end_turn`], writes, and calls [`Self::after_turn`].
pub(crate) trait Protocol: Sized {
    type Client: Client;

    /// Its name, for log messages.
    const NAME: &'static str;
    /// A client, for log messages.
    const CLIENT: &'static str;
    /// Bytes read at once.
    const READ_BYTES: usize;
    const GREETING_TIMEOUT: Duration;
    /// High and low watermark of the output of a connection.
    const OUTPUT_HIGH_BYTES: usize;
    const OUTPUT_LOW_BYTES: usize;
    /// Whether a connection is not read while its output is above the high watermark. Otherwise the protocol itself
    /// holds replies back.
    const STOPS_READING_WHEN_FULL: bool;
    /// Whether no request is executed once its connection has ended, also if it ended while this process did not run: the
    /// client may have repeated the request elsewhere, and overwritten its effect.
    const GIVES_UP: bool = false;

    /// A client has connected. Returns its part of the connection, and the greeting to send, which may be empty.
    fn connected(&mut self, id: ConnectionId, address: SocketAddr, now: Now) -> io::Result<(Self::Client, Bytes)>;

    /// A connection is gone, for any reason but [`Connections::clear`].
    fn disconnected(&mut self, id: ConnectionId, client: Self::Client);

    /// Connections that are gone, and still take as much as one: they count for the limit.
    fn lost(&self) -> usize {
        0
    }

    /// Takes the next request of a connection, if it is complete.
    fn take(&mut self, id: ConnectionId, connection: &mut Connection<Self::Client>, now: Now) -> Step;

    fn output_changed(&mut self, _: ConnectionId, _: OutputChange) {}

    /// Bytes of output made since the turn began.
    fn output_bytes(&self) -> usize {
        0
    }

    /// Whether a connection may receive its output now. It is kept otherwise.
    fn may_send(&self, _: ConnectionId, _: Monotonic) -> bool {
        true
    }

    /// When the next turn must begin, at the latest.
    fn next_timer(&self, connections: &Connections<Self::Client>) -> Monotonic;

    /// Takes responses of the node, and handles timers.
    fn begin_turn(&mut self, connections: &mut Connections<Self::Client>, now: Now);

    /// Executes the requests that were taken in this turn.
    fn end_turn(&mut self, connections: &mut Connections<Self::Client>);

    /// Anything that can wait until the replies are sent. Returns whether it has waited for the poll, and may have missed
    /// events of it.
    fn after_turn(&mut self, _: &mut Connections<Self::Client>, _: &mut Poll) -> io::Result<bool> {
        Ok(false)
    }
}
