//! Reasons for the failure of an attempt, classified by the reaction to them.

use base::{DEADLOCK, PRIORITY, UNREACHABLE};
use sdk::Error;
use sql::{SqlError, sqlstate};

use crate::transaction::read_only;

/// Why an attempt to execute a statement failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Sql(SqlError),
    /// Another transaction interfered. Another attempt may succeed.
    Conflict(String),
    /// The schema has changed. Another attempt needs the new version.
    Stale,
    /// It needs the id of its transaction, and therefore one that is committed.
    NeedsId,
    /// It needs more than one read, which must be of one moment.
    NeedsSnapshot,
    /// It reads more rows than it can without a planner.
    NeedsPlanner,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Failure {}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        if error.sqlstate == sqlstate::SERIALIZATION_FAILURE {
            return Self::Conflict(error.detail.unwrap_or(error.message));
        }
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Aborted(reason) => Self::Conflict(reason),
            error => Self::Sql(of_client(error)),
        }
    }
}

/// The failure of a write that only prepares a transaction, such as the reservation of identifiers. Even if its outcome
/// is unknown, nothing of the transaction is committed, so another attempt may succeed.
pub(crate) fn of_preparation(error: Error) -> Failure {
    if error.is_outcome_unknown() { Failure::Conflict(error.to_string()) } else { error.into() }
}

/// The error for the client, if there is no other attempt.
impl From<Failure> for SqlError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) => error,
            Failure::Conflict(reason) => conflict(&reason),
            Failure::Stale => conflict("the schema was changed"),
            Failure::NeedsId => read_only("pg_current_xact_id()"),
            Failure::NeedsSnapshot => Self::new(sqlstate::INTERNAL_ERROR, "a second read outside of a transaction"),
            Failure::NeedsPlanner => Self::new(sqlstate::INTERNAL_ERROR, "too many rows without a planner"),
        }
    }
}

/// SQLSTATE of a deadlock.
const DEADLOCK_DETECTED: &str = "40P01";

/// Whether the client should repeat the transaction.
pub(crate) fn is_conflict(error: &SqlError) -> bool {
    error.sqlstate == sqlstate::SERIALIZATION_FAILURE || error.sqlstate == DEADLOCK_DETECTED
}

fn conflict(reason: &str) -> SqlError {
    if reason.starts_with(DEADLOCK) {
        return SqlError::new(DEADLOCK_DETECTED, DEADLOCK)
            .with_detail(reason)
            .with_hint("The transaction might succeed if retried.");
    }
    if reason.starts_with(UNREACHABLE) {
        return SqlError::new("08006", "no replica of the data can be reached; nothing was committed")
            .with_detail(reason);
    }
    SqlError::new(sqlstate::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail(reason)
        .with_hint("The transaction might succeed if retried.")
}

/// The error of a call. Its SQLSTATE determines the client's reaction: with 40001 to repeat the transaction, with 40003
/// to ask for the outcome, with 08006 to use another node.
pub(crate) fn of_client(error: Error) -> SqlError {
    match error {
        Error::Aborted(reason) => conflict(&reason),
        Error::CommitUnknown { reason, transaction } => {
            let error = SqlError::new("40003", "the outcome of the commit is unknown");
            let hint = format!(
                "SELECT pg_xact_status('{transaction}') says whether it is committed, and otherwise aborts it. A read may \
                 come too early."
            );
            error.with_detail(reason).with_hint(hint)
        }
        Error::OutcomeUnknown(reason) => {
            SqlError::new("40003", "the outcome of the statement is unknown").with_detail(reason)
        }
        Error::Unavailable(reason) if reason.contains(PRIORITY) => conflict(&reason),
        Error::Unavailable(reason) => {
            SqlError::new("08006", "no replica of the data can be reached").with_detail(reason)
        }
        Error::NoSpace(reason) => {
            SqlError::new("53100", "could not write: no space left on device").with_detail(reason)
        }
        Error::NotFound(reason) => SqlError::new("3D000", "the database does not exist").with_detail(reason),
        Error::Invalid(reason) => SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, reason),
        Error::Precondition(reason) => SqlError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, reason),
        Error::Exists(reason) => SqlError::new("42P04", reason),
        other => SqlError::new(sqlstate::INTERNAL_ERROR, other.to_string()),
    }
}
