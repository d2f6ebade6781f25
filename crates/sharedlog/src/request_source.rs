//! The machines that send requests to log units.

use base::codec::{DecodeError, Reader, Wire, Writer};

use crate::controller::{CopierId, Requester};
use crate::{AskId, ProjectionEpoch};

/// The machine that sent a request to a unit. The reply repeats it, so that the node can route the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSource {
    Client(AskId),
    /// The sequencer of an epoch.
    Sequencer(ProjectionEpoch, AskId),
    Controller(Requester, AskId),
    /// The hole fill of a sequencer's epoch.
    HoleFill(ProjectionEpoch, AskId),
    Follower(AskId),
}

/// All sources have the same length: those without a number have 0.
impl Wire for RequestSource {
    const BYTES_MIN: usize = 17;

    fn encode(&self, out: &mut Writer) {
        let (tag, number, ask) = match *self {
            Self::Client(ask) => (1, 0, ask),
            Self::Sequencer(epoch, ask) => (2, epoch.0, ask),
            Self::Controller(Requester::Recovery(epoch), ask) => (3, epoch.0, ask),
            Self::Controller(Requester::Copier(copier), ask) => (4, copier.0, ask),
            Self::HoleFill(epoch, ask) => (5, epoch.0, ask),
            Self::Follower(ask) => (6, 0, ask),
        };
        out.u8(tag);
        out.u64(number);
        out.u64(ask.0);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (tag, number, ask) = (input.u8()?, input.u64()?, AskId(input.u64()?));
        Ok(match tag {
            1 => Self::Client(ask),
            2 => Self::Sequencer(ProjectionEpoch(number), ask),
            3 => Self::Controller(Requester::Recovery(ProjectionEpoch(number)), ask),
            4 => Self::Controller(Requester::Copier(CopierId(number)), ask),
            5 => Self::HoleFill(ProjectionEpoch(number), ask),
            6 => Self::Follower(ask),
            tag => return Err(DecodeError::UnknownTag { what: "source of a log unit request", tag: tag.into() }),
        })
    }
}
