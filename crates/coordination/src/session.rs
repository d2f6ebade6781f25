//! Sessions, as the state knows them.

use base::codec::{DecodeError, Reader, Writer};

use crate::entry::{MoveEpoch, Position, ServerId, SessionId, password};
use crate::jute::Password;

/// A client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// What moves it to another connection.
    pub password: Password,
    /// The negotiated timeout.
    pub timeout_ms: u32,
    /// The server that it is connected to, or was last.
    pub server: ServerId,
    /// Which of its connections counts.
    pub epoch: MoveEpoch,
    /// The last request of that connection.
    pub sequence: u64,
    /// The last entry in which something was heard of it.
    pub last_touch: Position,
}

/// Sessions are numbered from here: neither the mark of a container nor that of a TTL node is a session.
const FIRST: i64 = 1 << 56;

impl SessionId {
    /// The session that is opened after so many others.
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
