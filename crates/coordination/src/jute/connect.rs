//! The first frame of a connection, and its reply. Neither has a header.

use super::{DecodeError, Reader, Record, Writer};

/// Bytes of a session's password.
pub const PASSWORD_BYTES: usize = 16;

/// A session's password, required to move the session to another connection.
pub type Password = [u8; PASSWORD_BYTES];

/// Opens a session, or moves one to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest<'a> {
    /// Always 0.
    pub protocol_version: i32,
    /// The newest zxid that the client has seen.
    pub last_zxid_seen: i64,
    /// The requested session timeout in milliseconds.
    pub timeout_ms: i32,
    /// 0 to open a session.
    pub session: i64,
    /// Sixteen zeros, or nothing, to open a session.
    pub password: Option<&'a [u8]>,
    /// Whether the client accepts a server that is read-only. Clients before 3.4 end their request without it.
    pub read_only: Option<bool>,
}

impl<'a> Record<'a> for ConnectRequest<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            protocol_version: Record::decode(reader)?,
            last_zxid_seen: Record::decode(reader)?,
            timeout_ms: Record::decode(reader)?,
            session: Record::decode(reader)?,
            password: Record::decode(reader)?,
            read_only: if reader.rest().is_empty() { None } else { Some(Record::decode(reader)?) },
        })
    }

    fn encode(&self, writer: &mut Writer) {
        self.protocol_version.encode(writer);
        self.last_zxid_seen.encode(writer);
        self.timeout_ms.encode(writer);
        self.session.encode(writer);
        self.password.encode(writer);
        if let Some(read_only) = self.read_only {
            read_only.encode(writer);
        }
    }
}

/// The reply to a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The negotiated timeout in milliseconds; 0 if there is no such session, or it has expired.
    pub timeout_ms: i32,
    /// The session; 0 if there is none.
    pub session: i64,
    /// Its password; zeros if there is none.
    pub password: Password,
    /// Whether the server is read-only. Omitted if the request omits it.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// The reply for an unknown or expired session.
    #[must_use]
    pub const fn expired(read_only: Option<bool>) -> Self {
        Self { timeout_ms: 0, session: 0, password: [0; PASSWORD_BYTES], read_only }
    }
}

impl<'a> Record<'a> for ConnectResponse {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let _protocol_version = i32::decode(reader)?;
        let timeout_ms = Record::decode(reader)?;
        let session = Record::decode(reader)?;
        let password: Option<&[u8]> = Record::decode(reader)?;
        let password = password.unwrap_or_default();
        let length = i32::try_from(password.len()).unwrap_or(i32::MAX);
        let password = Password::try_from(password)
            .map_err(|_| DecodeError::Invalid { what: "password length", value: length })?;
        let read_only = if reader.rest().is_empty() { None } else { Some(Record::decode(reader)?) };
        Ok(Self { timeout_ms, session, password, read_only })
    }

    fn encode(&self, writer: &mut Writer) {
        0_i32.encode(writer);
        self.timeout_ms.encode(writer);
        self.session.encode(writer);
        Some(&self.password[..]).encode(writer);
        if let Some(read_only) = self.read_only {
            read_only.encode(writer);
        }
    }
}
