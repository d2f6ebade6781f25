//! Errors of calls, by how the caller can react.

use bytes::Bytes;

use crate::{TransactionId, Version};

/// Why a call was not executed, or is not known to be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A condition was not met; nothing was written. Read again to decide.
    #[error("version mismatch")]
    Refused {
        /// The first column with an unmet condition (its first 256 bytes).
        column: Bytes,
        expected: Version,
        /// The actual version; [`Version::ABSENT`] if the column is absent.
        actual: Version,
    },
    /// The table or log does not exist; nothing was done.
    #[error("{0}")]
    NotFound(String),
    /// The object to create exists with different properties; nothing was done.
    #[error("{0}")]
    Exists(String),
    /// The current state does not permit the request, such as a move to a node that does not exist; nothing was done. A
    /// retry fails until the state changes.
    #[error("{0}")]
    Precondition(String),
    /// The request exceeds a limit or is malformed; nothing was done, and a retry fails too.
    #[error("{0}")]
    Invalid(String),
    /// No node could execute it before the deadline; nothing was done. Retry later.
    #[error("{0}")]
    Unavailable(String),
    /// The disk of the leader is full, and it could hand the range to no replica with space; nothing was done.
    #[error("{0}")]
    NoSpace(String),
    /// The transaction was aborted, because another one changed a row that it had read, or had priority; nothing was
    /// written. Try the whole transaction again.
    #[error("transaction aborted: {0}")]
    Aborted(String),
    /// The change may have been executed, or may yet be. Read to find out.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// The transaction may be committed, or may yet be. Ask for its outcome later.
    #[error("outcome unknown: {reason}")]
    CommitUnknown {
        /// Why it is unknown.
        reason: String,
        transaction: Box<TransactionId>,
    },
}

impl Error {
    /// Whether the same call may succeed later, and may be repeated without a duplicate: nothing was done.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the change may have been executed, or may yet be. After any other error nothing was written.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown(_) | Self::CommitUnknown { .. })
    }
}
