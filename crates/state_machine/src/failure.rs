//! The errors of requests, and their encoding between nodes.

use base::Timestamp;
use base::codec::Text;
use bytes::Bytes;

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
    /// The transaction was aborted, because another one changed what it had read, or had priority; nothing was written.
    /// The whole transaction may be tried again.
    #[error("transaction aborted: {0}")]
    Aborted(String),
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
    /// The leader's disk is full; nothing was done. Retries fail until there is space.
    #[error("unavailable: {0}")]
    NoSpace(String),
    /// The data is damaged on every replica, or on the one that was asked; nothing was done.
    #[error("damaged: {0}")]
    Damaged(String),
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

base::wire! {
    enum Failure, "failure" {
        1 => VersionMismatch { column, expected, actual },
        2 => UnknownSession(session),
        3 => UnknownTable(table as Text("failure")),
        4 => Invalid(message as Text("failure")),
        5 => Overloaded(message as Text("failure")),
        6 => Unavailable(message as Text("failure")),
        7 => Unknown(message as Text("failure")),
        8 => Exists(message as Text("failure")),
        9 => UnknownLog(log as Text("failure")),
        10 => MayLie { position },
        11 => Precondition(message as Text("failure")),
        12 => Aborted(message as Text("failure")),
        13 => NoSpace(message as Text("failure")),
        14 => Damaged(message as Text("failure")),
    }
}

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

/// Checks that the versions which a read at a timestamp needs are kept (guarantee 16).
///
/// # Errors
/// [`Failure::Precondition`] if the timestamp is below the watermark.
pub fn check_kept(at: Timestamp, watermark: Timestamp) -> Result<(), Failure> {
    if at < watermark {
        return Err(precondition(format!("timestamp {at} is before {watermark}, the oldest readable one")));
    }
    Ok(())
}
