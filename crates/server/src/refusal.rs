//! Converts a [`Failure`] to a gRPC status, or to its equivalent in a stream: a code for tools, a message for users, and
//! an [`Error`] for programs.

use api::common::error::Kind;
use api::common::{Error, Refusal};
use api::details;
use bytes::Bytes;
use state_machine::Failure;
use tonic::{Code, Status};

use crate::limits::{DETAIL_COLUMN_BYTES_MAX, MESSAGE_CHARACTERS_MAX};

/// The status that reports `failure`.
pub(crate) fn status(failure: &Failure) -> Status {
    details::status(code(failure), sentence(failure), &error(failure))
}

/// The same for a request in a stream.
pub(crate) fn streamed(failure: &Failure) -> Refusal {
    Refusal { code: code(failure) as i32, message: sentence(failure), error: Some(error(failure)) }
}

fn code(failure: &Failure) -> Code {
    match failure {
        Failure::VersionMismatch { .. } | Failure::UnknownSession(_) | Failure::Precondition(_) => {
            Code::FailedPrecondition
        }
        Failure::UnknownTable(_) | Failure::UnknownLog(_) => Code::NotFound,
        Failure::Invalid(_) => Code::InvalidArgument,
        Failure::Overloaded(_) | Failure::NoSpace(_) => Code::ResourceExhausted,
        Failure::Unavailable(_) => Code::Unavailable,
        Failure::Unknown(_) | Failure::MayLie { .. } => Code::Unknown,
        Failure::Exists(_) => Code::AlreadyExists,
        Failure::Aborted(_) => Code::Aborted,
        Failure::Damaged(_) => Code::DataLoss,
    }
}

fn error(failure: &Failure) -> Error {
    let of = |kind: Kind| Error { kind: kind.into(), ..Error::default() };
    match failure {
        Failure::VersionMismatch { column, expected, actual } => {
            Error { column: beginning(column), expected: expected.0, actual: actual.0, ..of(Kind::VersionMismatch) }
        }
        Failure::UnknownTable(table) => Error { table: shortened(table), ..of(Kind::UnknownTable) },
        Failure::UnknownLog(log) => Error { log: shortened(log), ..of(Kind::UnknownLog) },
        Failure::UnknownSession(session) => Error { session: session.0, ..of(Kind::UnknownSession) },
        Failure::Invalid(_) => of(Kind::Invalid),
        Failure::Overloaded(_) => of(Kind::Overloaded),
        Failure::Unavailable(_) => of(Kind::Unavailable),
        Failure::NoSpace(_) => of(Kind::NoSpace),
        Failure::Unknown(_) => of(Kind::OutcomeUnknown),
        Failure::MayLie { position } => Error { position: Some(*position), ..of(Kind::OutcomeUnknown) },
        Failure::Exists(_) => of(Kind::Exists),
        Failure::Precondition(_) | Failure::Damaged(_) => of(Kind::Precondition),
        Failure::Aborted(_) => of(Kind::Aborted),
    }
}

fn sentence(failure: &Failure) -> String {
    let sentence = shortened(&failure.to_string());
    if matches!(failure, Failure::Unknown(_)) { sentence + details::UNKNOWN_ADVICE } else { sentence }
}

/// The first bytes of a column's name, copied so that they do not keep a whole write in memory.
fn beginning(column: &Bytes) -> Bytes {
    Bytes::copy_from_slice(&column[..column.len().min(DETAIL_COLUMN_BYTES_MAX)])
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARACTERS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use base::Timestamp;
    use state_machine::ClientSessionId;

    use super::*;

    fn check(failure: &Failure, code: Code, kind: Kind) -> Error {
        let status = status(failure);
        assert_eq!(status.code(), code, "{failure}");
        let error = details::error(&status).expect("every refusal carries its error");
        assert_eq!(error.kind(), kind, "{failure}");
        error
    }

    #[test]
    fn failures_map_to_status_and_details() {
        let mismatch = Failure::VersionMismatch { column: "c".into(), expected: Timestamp(7), actual: Timestamp(9) };
        let error = check(&mismatch, Code::FailedPrecondition, Kind::VersionMismatch);
        assert_eq!((error.expected, error.actual, &error.column[..]), (7, 9, &b"c"[..]));

        let error = check(&Failure::UnknownTable("t".into()), Code::NotFound, Kind::UnknownTable);
        assert_eq!(error.table, "t");
        let error = check(&Failure::UnknownLog("l".into()), Code::NotFound, Kind::UnknownLog);
        assert_eq!(error.log, "l");
        let error = check(&Failure::UnknownSession(ClientSessionId(5)), Code::FailedPrecondition, Kind::UnknownSession);
        assert_eq!(error.session, 5);
        let error = check(&Failure::MayLie { position: 6 }, Code::Unknown, Kind::OutcomeUnknown);
        assert_eq!(error.position, Some(6));
        check(&Failure::Invalid("x".into()), Code::InvalidArgument, Kind::Invalid);
        check(&Failure::Overloaded("x".into()), Code::ResourceExhausted, Kind::Overloaded);
        check(&Failure::Unavailable("x".into()), Code::Unavailable, Kind::Unavailable);
        check(&Failure::NoSpace("x".into()), Code::ResourceExhausted, Kind::NoSpace);
        check(&Failure::Unknown("x".into()), Code::Unknown, Kind::OutcomeUnknown);
        check(&Failure::Exists("x".into()), Code::AlreadyExists, Kind::Exists);
        check(&Failure::Precondition("x".into()), Code::FailedPrecondition, Kind::Precondition);
        check(&Failure::Aborted("x".into()), Code::Aborted, Kind::Aborted);
    }

    #[test]
    fn refusal_fits_into_headers() {
        let column = Bytes::from(vec![0xfe; base::limits::COLUMN_BYTES_MAX]);
        let refused = Failure::VersionMismatch { column, expected: Timestamp(1), actual: Timestamp(2) };
        let status = status(&refused);
        assert!(status.message().len() + status.details().len() < 4 << 10);
    }
}
