//! The replicated session record.

use base::codec::{DecodeError, Reader, Writer};

use crate::entry::{MoveEpoch, Position, ServerId, SessionId, password};
use crate::jute::Password;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Required to move the session to another connection.
    pub password: Password,
    pub timeout_ms: u32,
    /// The server of its current or last connection.
    pub server: ServerId,
    /// The number of its current connection; requests of earlier ones are rejected.
    pub epoch: MoveEpoch,
    /// The sequence number of the last applied request of that connection.
    pub sequence: u64,
    /// The position of the last entry that shows activity of the client.
    pub last_touch: Position,
}

/// Session ids start here, apart from the owner values that mark containers and TTL nodes.
const FIRST: i64 = 1 << 56;

impl SessionId {
    /// The id of the `opened`-th session.
    pub(crate) fn nth(opened: u64) -> Self {
        Self(FIRST + i64::try_from(opened).unwrap_or(0))
    }
}

impl Session {
    pub(crate) fn write(&self, id: SessionId, out: &mut Writer) {
        out.i64(id.0);
        out.raw(&self.password);
        out.u32(self.timeout_ms);
        out.u64(self.server.0);
        out.u32(self.epoch.0);
        out.u64(self.sequence);
        out.u64(self.last_touch.0);
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<(SessionId, Self), DecodeError> {
        let id = SessionId(reader.i64()?);
        Ok((
            id,
            Self {
                password: password(reader)?,
                timeout_ms: reader.u32()?,
                server: ServerId(reader.u64()?),
                epoch: MoveEpoch(reader.u32()?),
                sequence: reader.u64()?,
                last_touch: Position(reader.u64()?),
            },
        ))
    }
}
