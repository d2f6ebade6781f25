//! Messages of clients. Decoding checks all lengths, so that no message causes a panic.

use bytes::{Buf as _, Bytes, BytesMut};
use sql::{SqlError, sqlstate};

/// Maximum bytes of messages with a statement, parameters or rows.
const LARGE_MAX: usize = 64 << 20;
/// Maximum bytes of other messages.
const SMALL_MAX: usize = 64 << 10;

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Query(String),
    Parse { name: String, text: String, types: Vec<u32> },
    Bind(Bind),
    Describe { is_portal: bool, name: String },
    Execute { portal: String, rows: usize },
    Close { is_portal: bool, name: String },
    Flush,
    Sync,
    Terminate,
    CopyData(Bytes),
    CopyDone,
    CopyFail(String),
}

/// The parameters of a statement.
#[derive(Debug, PartialEq, Eq)]
pub struct Bind {
    pub portal: String,
    pub statement: String,
    /// The formats of the parameters: none for text, one for all, or one for each.
    pub formats: Vec<i16>,
    pub parameters: Vec<Option<Bytes>>,
    /// The formats of the results, likewise.
    pub results: Vec<i16>,
}

fn invalid() -> SqlError {
    SqlError::new(sqlstate::PROTOCOL_VIOLATION, "invalid message format")
}

/// The length of the message that begins with these 5 bytes, without them.
///
/// # Errors
/// The type is unknown, or the length is beyond its limit: the connection cannot continue.
pub fn length(header: [u8; 5]) -> Result<usize, SqlError> {
    let [kind, a, b, c, d] = header;
    let max = match kind {
        b'Q' | b'P' | b'B' | b'd' => LARGE_MAX,
        b'D' | b'E' | b'C' | b'H' | b'S' | b'X' | b'c' | b'f' | b'p' => SMALL_MAX,
        _ => {
            let message = format!("invalid frontend message type {kind}");
            return Err(SqlError::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
    };
    let length = usize::try_from(i32::from_be_bytes([a, b, c, d])).ok().and_then(|length| length.checked_sub(4));
    length.filter(|length| *length <= max).ok_or_else(|| {
        let message = format!("invalid message length; the maximum is {max} bytes");
        SqlError::new(sqlstate::PROTOCOL_VIOLATION, message)
    })
}

impl Message {
    /// Decodes the body of a message of this type.
    ///
    /// # Errors
    /// 08P01 for an invalid body; 22021 for text that is not UTF-8.
    pub fn decode(kind: u8, body: BytesMut) -> Result<Self, SqlError> {
        let mut body = Body(body.freeze());
        let message = match kind {
            b'Q' => Self::Query(body.text()?),
            b'P' => {
                let (name, text) = (body.text()?, body.text()?);
                let types = body.list(|body| body.u32())?;
                Self::Parse { name, text, types }
            }
            b'B' => {
                let (portal, statement) = (body.text()?, body.text()?);
                let formats = body.list(Body::format)?;
                let parameters = body.list(Body::value)?;
                let results = body.list(Body::format)?;
                Self::Bind(Bind { portal, statement, formats, parameters, results })
            }
            b'D' => Self::Describe { is_portal: body.is_portal()?, name: body.text()? },
            b'C' => Self::Close { is_portal: body.is_portal()?, name: body.text()? },
            b'E' => {
                let portal = body.text()?;
                // 0 and less mean all rows.
                let rows = i32::from_be_bytes(body.u32()?.to_be_bytes());
                Self::Execute { portal, rows: usize::try_from(rows).unwrap_or(0) }
            }
            b'H' => Self::Flush,
            b'S' => Self::Sync,
            b'X' => Self::Terminate,
            b'd' => return Ok(Self::CopyData(body.0)),
            b'c' => Self::CopyDone,
            b'f' => Self::CopyFail(body.text()?),
            // A password, which the server has not requested.
            _ => return Err(invalid()),
        };
        if body.0.is_empty() { Ok(message) } else { Err(invalid()) }
    }
}

/// The rest of a body.
struct Body(Bytes);

impl Body {
    fn u16(&mut self) -> Result<u16, SqlError> {
        self.0.try_get_u16().map_err(|_| invalid())
    }

    fn u32(&mut self) -> Result<u32, SqlError> {
        self.0.try_get_u32().map_err(|_| invalid())
    }

    fn text(&mut self) -> Result<String, SqlError> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(invalid)?;
        let text = self.0.split_to(end);
        self.0.advance(1);
        let invalid = |_| {
            let message = "invalid byte sequence for encoding \"UTF8\"";
            SqlError::new(sqlstate::CHARACTER_NOT_IN_REPERTOIRE, message)
        };
        std::str::from_utf8(&text).map(str::to_owned).map_err(invalid)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, SqlError>) -> Result<Vec<T>, SqlError> {
        let count = self.u16()?;
        (0..count).map(|_| item(self)).collect()
    }

    fn format(&mut self) -> Result<i16, SqlError> {
        match self.u16()? {
            0 => Ok(0),
            1 => Ok(1),
            other => {
                let message = format!("unsupported format code: {other}");
                Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message))
            }
        }
    }

    fn value(&mut self) -> Result<Option<Bytes>, SqlError> {
        let length = self.u32()?;
        if length == u32::MAX {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| invalid())?;
        if length > self.0.len() {
            return Err(invalid());
        }
        Ok(Some(self.0.split_to(length)))
    }

    fn is_portal(&mut self) -> Result<bool, SqlError> {
        match self.0.try_get_u8() {
            Ok(b'P') => Ok(true),
            Ok(b'S') => Ok(false),
            _ => Err(invalid()),
        }
    }
}
