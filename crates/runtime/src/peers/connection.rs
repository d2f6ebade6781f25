//! A socket with its buffers: frames in, frames out, without blocking.

use std::io;

use base::HostPort;
use base::codec::Writer;
use base::limits::PEER_MESSAGE_BYTES_MAX;
use bytes::Bytes;
use endpoints::output::OutputQueue;
use endpoints::transport::Transport;
use mio::net::TcpStream;
use mio::{Registry, Token};
use node::message::Message;
use state_machine::Failure;

use super::traffic::Traffic;
use crate::frames::{FrameBuffer, FrameError, encode_message};

/// Maximum number of bytes queued for one peer: the results of log reads in flight (36 MiB, `server/src/flow_control`),
/// those of other reads (24 MiB), and a reserve. The connection of a peer that lets more accumulate is closed; the
/// protocol retransmits messages that are still needed.
const OUTPUT_BYTES_MAX: usize = 96 << 20;
/// Above this, reads other than log reads fail instead of queueing their response, so that heavy reading through
/// another node does not close the connection between the two, which cohorts need. The last response may have the
/// maximum size.
const ANSWERS_WAIT_BYTES_MAX: usize = 24 << 20;
/// Responses up to this size are always queued: the limit on requests in flight bounds them to a few MiB.
const SHORT_ANSWER_BYTES: usize = 1 << 10;
/// Bytes read from one connection before the others have their turn.
const READ_TURN_BYTES: usize = 4 << 20;
/// The buffer for a turn's frames is reused, unless it was larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A turn's frames are written early when they exceed this.
const GATHERED_BYTES_MAX: usize = 16 << 20;

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    #[error("closed by the peer")]
    Ended,
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("{0}")]
    Garbage(#[from] FrameError),
    #[error("send buffer full (slow consumer): {0} bytes")]
    Congested(usize),
    #[error("timed out")]
    TimedOut,
    #[error("can't resolve {name}: {error}")]
    Unresolved { name: HostPort, error: io::Error },
}

/// Whether a read left data in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// No data is left; the poll will report readiness.
    Drained,
    /// There is more data, which the poll will not report.
    More,
}

/// A connection in either direction.
#[derive(Debug)]
pub(crate) struct Connection {
    transport: Transport,
    token: Token,
    input: FrameBuffer,
    /// Frames of this turn, written together.
    gathering: Writer,
    waiting: OutputQueue,
    /// The socket is not writable until the poll reports it.
    blocked: bool,
    /// The send buffer exceeded its limit: messages were dropped, and the connection will be closed.
    is_congested: bool,
    traffic: Traffic,
}

impl Connection {
    /// Registers `stream` with the poll.
    pub(crate) fn register(
        stream: TcpStream,
        token: Token,
        registry: &Registry,
        traffic: &Traffic,
    ) -> io::Result<Self> {
        Ok(Self {
            transport: Transport::plain(stream, token, registry)?,
            token,
            input: FrameBuffer::default(),
            gathering: Writer::by_reference(),
            waiting: OutputQueue::default(),
            blocked: false,
            is_congested: false,
            traffic: traffic.clone(),
        })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.transport.socket()
    }

    /// Marks the peer as a member.
    pub(crate) fn trust(&mut self) {
        self.input.trust();
    }

    /// The socket is writable again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Reads available data and appends the complete frames.
    pub(crate) fn read(&mut self, frames: &mut Vec<Bytes>) -> Result<ReadState, Closed> {
        if !self.transport.handshake()? {
            return Ok(ReadState::Drained);
        }
        let mut read = 0;
        while read < READ_TURN_BYTES {
            match self.input.read_by(|buffer| self.transport.read_into(buffer)) {
                Ok(0) => return Err(Closed::Ended),
                Ok(bytes) => {
                    read += bytes;
                    self.traffic.received.inc_by(bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadState::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            self.input.take_frames(frames)?;
        }
        Ok(ReadState::More)
    }

    /// Encodes a message for the next write. A message that exceeds the frame limit is dropped, and its size returned:
    /// the peer would close the connection with all its pending messages.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), usize> {
        // A turn may have any number of messages: they must not all accumulate before the first is written.
        if self.gathered_bytes() > GATHERED_BYTES_MAX && !self.is_congested {
            self.is_congested = !matches!(self.flush(), Ok(()));
        }
        if self.is_congested {
            return Ok(());
        }
        let (before, end) = (self.gathered_bytes(), self.gathering.len());
        encode_message(message, &mut self.gathering);
        let bytes = self.gathered_bytes() - before;
        let many_wait = self.waiting.bytes() + before > ANSWERS_WAIT_BYTES_MAX;
        if many_wait
            && bytes > SHORT_ANSWER_BYTES
            && let Some(refusal) = refusal_of(message)
        {
            self.gathering.truncate(end);
            encode_message(&refusal, &mut self.gathering);
        } else if bytes > PEER_MESSAGE_BYTES_MAX {
            self.gathering.truncate(end);
            return Err(bytes);
        }
        Ok(())
    }

    /// The buffer for the next frame.
    pub(crate) fn output(&mut self) -> &mut Writer {
        &mut self.gathering
    }

    /// Writes pending frames, as far as the socket accepts them.
    pub(crate) fn flush(&mut self) -> Result<(), Closed> {
        if !self.gathering.is_empty() {
            let copied = self.gathering.len();
            self.gathering.take_pieces(|piece| self.waiting.push(piece));
            if copied > KEPT_BYTES_MAX {
                self.gathering = Writer::by_reference();
            }
        }
        if !self.blocked && !self.waiting.is_empty() && self.transport.handshake()? {
            let before = self.waiting.bytes();
            let written = self.waiting.write(&mut self.transport);
            self.traffic.sent.inc_by((before - self.waiting.bytes()) as u64);
            self.blocked = !written?;
        }
        if self.is_congested || self.waiting.bytes() > OUTPUT_BYTES_MAX {
            return Err(Closed::Congested(self.waiting.bytes()));
        }
        Ok(())
    }

    /// Bytes of the frames of this turn.
    fn gathered_bytes(&self) -> usize {
        self.gathering.len() + self.gathering.kept_bytes()
    }

    /// Bytes pending to be written.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.bytes() + self.gathered_bytes()
    }

    /// Whether no bytes are pending.
    pub(crate) fn is_flushed(&self) -> bool {
        self.waiting.is_empty() && self.gathering.is_empty()
    }
}

/// The error that replaces the response to a read, which may be retried. Other requests may have taken effect, so an
/// error would be wrong (guarantee 12); log reads are limited separately.
fn refusal_of(message: &Message) -> Option<Message> {
    let Message::Answer { request, outcome: Ok(response) } = message else { return None };
    let failure = || Failure::Overloaded("response buffer of the requesting node is full (slow consumer)".to_owned());
    response.is_of_read().then(|| Message::Answer { request: *request, outcome: Err(failure()) })
}
