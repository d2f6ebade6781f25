//! A connection that another node dialed, on which this node only receives. Until its hello is accepted the peer is
//! untrusted: short frames, small buffers, a short timeout.

use base::{Boot, Monotonic, NodeId};
use bytes::Bytes;

use super::connection::{Closed, Connection, ReadState};
use super::dial::HANDSHAKE_TIMEOUT;
use super::handshake::Handshake;
use crate::frames::{Frame, FrameError, Refusal};

/// The result of a frame on an accepted connection.
#[derive(Debug)]
pub(super) enum PeerInput {
    /// A member has introduced itself.
    Joined(NodeId),
    /// A message from a member.
    Message { from: NodeId, boot: Boot, body: Bytes },
    /// The connection was refused, and the peer notified.
    Refused { node: NodeId, refusal: Refusal },
    /// The peer refuses this node.
    RefusedBy(Refusal),
}

#[derive(Debug)]
pub(super) struct Accepted {
    connection: Connection,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unverified {
        until: Monotonic,
    },
    Member {
        node: NodeId,
        boot: Boot,
    },
    /// Closed as soon as the refusal is sent.
    Refused {
        until: Monotonic,
    },
}

impl Accepted {
    pub(super) fn new(connection: Connection, now: Monotonic) -> Self {
        Self { connection, state: State::Unverified { until: now + HANDSHAKE_TIMEOUT } }
    }

    pub(super) fn is_unverified(&self) -> bool {
        !matches!(self.state, State::Member { .. })
    }

    /// The member on the other side.
    pub(super) fn member(&self) -> Option<NodeId> {
        match self.state {
            State::Member { node, .. } => Some(node),
            _ => None,
        }
    }

    /// When it times out.
    pub(super) fn deadline(&self) -> Monotonic {
        match self.state {
            State::Unverified { until } | State::Refused { until } => until,
            State::Member { .. } => Monotonic::NEVER,
        }
    }

    /// The socket is writable again; true once a refused connection has sent everything.
    pub(super) fn writable(&mut self) -> Result<bool, Closed> {
        self.connection.unblock();
        self.flush()
    }

    /// Writes pending data; true once a refused connection has sent everything.
    pub(super) fn flush(&mut self) -> Result<bool, Closed> {
        self.connection.flush()?;
        Ok(matches!(self.state, State::Refused { .. }) && self.connection.is_flushed())
    }

    pub(super) fn read(&mut self, frames: &mut Vec<Bytes>) -> Result<ReadState, Closed> {
        self.connection.read(frames)
    }

    pub(super) fn frame(&mut self, frame: Bytes, handshake: &mut Handshake) -> Result<Option<PeerInput>, Closed> {
        match (Frame::decode(frame)?, self.state) {
            (Frame::Message(body), State::Member { node, boot }) => {
                // A message of an earlier process of the sender is dropped.
                Ok(handshake.is_newest(node, boot).then_some(PeerInput::Message { from: node, boot, body }))
            }
            (Frame::Hello(hello), State::Unverified { until }) => match handshake.judge(&hello) {
                Ok(()) => {
                    self.state = State::Member { node: hello.node, boot: hello.starts.newest().boot };
                    self.connection.trust();
                    handshake.hello(hello.node).encode(self.connection.output());
                    Ok(Some(PeerInput::Joined(hello.node)))
                }
                Err(refusal) => {
                    self.state = State::Refused { until };
                    refusal.encode(self.connection.output());
                    Ok(Some(PeerInput::Refused { node: hello.node, refusal }))
                }
            },
            (Frame::Refusal(refusal), State::Member { node, .. }) if refusal.node == node => {
                Ok(Some(PeerInput::RefusedBy(refusal)))
            }
            (_, State::Refused { .. }) => Ok(None),
            // A refusal from an unverified peer is ignored.
            (Frame::Refusal(_), State::Unverified { .. } | State::Member { .. })
            | (Frame::Message(_), State::Unverified { .. })
            | (Frame::Hello(_), State::Member { .. }) => Err(FrameError::Magic.into()),
        }
    }
}
