//! What a call may come to instead of its answer, by what the caller can do about it.

use bytes::Bytes;

/// Why a call was not done, or is not known to be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A condition was not met; nothing was written. Read again, decide again.
    #[error("version mismatch")]
    Refused {
        /// The first column whose condition was not met (its first 256 bytes).
        column: Bytes,
        /// The version asked for.
        expected: i64,
        /// The version it has; 0 if it is absent.
        actual: i64,
    },
    /// There is no such table; nothing was done.
    #[error("{0}")]
    NotFound(String),
    /// What was to be created is there, and is not what was asked for; nothing was done.
    #[error("{0}")]
    Exists(String),
    /// The request breaks a limit or a rule of form; nothing was done, and never will be.
    #[error("{0}")]
    Invalid(String),
    /// No node could do it by the deadline; nothing was done. Try again later.
    #[error("{0}")]
    Unavailable(String),
    /// What was to be changed may have been, or may yet be. Read to find out.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
}
