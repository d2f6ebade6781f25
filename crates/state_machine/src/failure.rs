//! The errors of requests, and their encoding between nodes.

use base::Timestamp;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::interface::Wire;
use crate::sessions::ClientSessionId;

/// The result of a request.
pub type Outcome<R> = Result<R, Failure>;

/// Why a request was not executed, or is not known to be executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// A condition was not met; nothing was written.
    #[error("version mismatch on column \"{}\": expected {expected}, actual {actual}", base::shown(column))]
    VersionMismatch {
        /// The first column with an unmet condition.
        column: Bytes,
        /// The expected version.
        expected: Timestamp,
        /// The actual version; 0 if the column is absent.
        actual: Timestamp,
    },
    /// No table has this name.
    #[error("no table named {0:?}")]
    UnknownTable(String),
    /// No log has this name.
    #[error("no log named {0:?}")]
    UnknownLog(String),
    /// The object to create exists with different properties; nothing was done.
    #[error("{0}")]
    Exists(String),
    /// The current state does not permit the request; nothing was done. A retry fails until the state changes.
    #[error("{0}")]
    Precondition(String),
    /// The session is unknown or has expired. *This* request did not execute the write. For a retry, the outcome of the
    /// first attempt is unknown.
    #[error("session {id} is unknown or has expired", id = .0.0)]
    UnknownSession(ClientSessionId),
    /// The request exceeds a limit or is malformed; nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// A resource limit is reached, such as that on requests in progress; nothing was done; retry later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// No leader was reachable in time; nothing was done.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// This attempt may have appended the batch. A retry may append it a second time; if both carry the same stamp,
    /// readers deliver it once.
    #[error("outcome unknown: the batch may be in the log at position {position}")]
    MayLie {
        /// The position assigned to this attempt.
        position: u64,
    },
    /// The write may have been executed or may yet be. Only a retry with the same session stamp returns its outcome.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

impl Wire for Failure {
    fn encode(&self, out: &mut Writer) {
        let (tag, message) = match self {
            Self::VersionMismatch { column, expected, actual } => {
                out.u8(VERSION_MISMATCH);
                out.bytes(column);
                out.i64(expected.0);
                out.i64(actual.0);
                return;
            }
            Self::UnknownSession(session) => {
                out.u8(UNKNOWN_SESSION);
                out.u64(session.0);
                return;
            }
            Self::MayLie { position } => {
                out.u8(MAY_LIE);
                out.u64(*position);
                return;
            }
            Self::UnknownTable(table) => (UNKNOWN_TABLE, table),
            Self::UnknownLog(log) => (UNKNOWN_LOG, log),
            Self::Invalid(message) => (INVALID, message),
            Self::Overloaded(message) => (OVERLOADED, message),
            Self::Unavailable(message) => (UNAVAILABLE, message),
            Self::Unknown(message) => (UNKNOWN, message),
            Self::Exists(message) => (EXISTS, message),
            Self::Precondition(message) => (PRECONDITION, message),
        };
        out.u8(tag);
        out.bytes(message.as_bytes());
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let text = |input: &mut Reader| input.text("failure");
        Ok(match input.u8()? {
            VERSION_MISMATCH => Self::VersionMismatch {
                column: input.bytes()?,
                expected: Timestamp(input.i64()?),
                actual: Timestamp(input.i64()?),
            },
            UNKNOWN_SESSION => Self::UnknownSession(ClientSessionId(input.u64()?)),
            UNKNOWN_TABLE => Self::UnknownTable(text(input)?),
            INVALID => Self::Invalid(text(input)?),
            OVERLOADED => Self::Overloaded(text(input)?),
            UNAVAILABLE => Self::Unavailable(text(input)?),
            UNKNOWN => Self::Unknown(text(input)?),
            EXISTS => Self::Exists(text(input)?),
            PRECONDITION => Self::Precondition(text(input)?),
            UNKNOWN_LOG => Self::UnknownLog(text(input)?),
            MAY_LIE => Self::MayLie { position: input.u64()? },
            tag => return Err(DecodeError::UnknownTag { what: "failure", tag: u64::from(tag) }),
        })
    }
}

const VERSION_MISMATCH: u8 = 1;
const UNKNOWN_SESSION: u8 = 2;
const UNKNOWN_TABLE: u8 = 3;
const INVALID: u8 = 4;
const OVERLOADED: u8 = 5;
const UNAVAILABLE: u8 = 6;
const UNKNOWN: u8 = 7;
const EXISTS: u8 = 8;
const UNKNOWN_LOG: u8 = 9;
const MAY_LIE: u8 = 10;
const PRECONDITION: u8 = 11;

/// [`Failure::Invalid`] with this message.
#[must_use]
pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::Invalid(message.into())
}

/// [`Failure::Precondition`] with this message.
#[must_use]
pub fn precondition(message: impl Into<String>) -> Failure {
    Failure::Precondition(message.into())
}
