//! Why a request was not done, and the codec of that between nodes.

use base::Timestamp;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::sessions::SessionId;
use crate::state_machine::Wire;

/// What a request came to.
pub type Outcome<R> = Result<R, Failure>;

/// Why a request was not done, or is not known to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// A condition was not met; nothing was written.
    #[error("version mismatch on column \"{}\": expected {expected}, actual {actual}", base::shown(column))]
    VersionMismatch {
        /// The first column whose condition was not met.
        column: Bytes,
        /// The version asked for.
        expected: Timestamp,
        /// The version it has; 0 if it is absent.
        actual: Timestamp,
    },
    /// There is no such table.
    #[error("no table named {0:?}")]
    UnknownTable(String),
    /// There is no such log.
    #[error("no log named {0:?}")]
    UnknownLog(String),
    /// What was to be created is there, and is not what was asked for; nothing was done.
    #[error("{0}")]
    Exists(String),
    /// The session is unknown or has expired; the write was not executed *by this request*. For a retry the outcome of
    /// the first try is unknown.
    #[error("session {id} is unknown or has expired", id = .0.0)]
    UnknownSession(SessionId),
    /// The request breaks a limit or a rule of form; nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// Too much is under way; nothing was done; try again later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// No leader could be reached in time; nothing was done.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// This attempt may have appended the batch. A retry may append it a second time; if both carry the same stamp,
    /// readers deliver it once.
    #[error("the batch may lie in the log, at position {position}")]
    MayLie {
        /// The position that this attempt was given.
        position: u64,
    },
    /// The write may have been done or may yet be; only a retry with the same session stamp tells.
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
            UNKNOWN_SESSION => Self::UnknownSession(SessionId(input.u64()?)),
            UNKNOWN_TABLE => Self::UnknownTable(text(input)?),
            INVALID => Self::Invalid(text(input)?),
            OVERLOADED => Self::Overloaded(text(input)?),
            UNAVAILABLE => Self::Unavailable(text(input)?),
            UNKNOWN => Self::Unknown(text(input)?),
            EXISTS => Self::Exists(text(input)?),
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

/// The refusal of a request that breaks a rule of form or a limit.
#[must_use]
pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::Invalid(message.into())
}
