//! Classifies the gRPC status of a failed attempt. Loggos' servers put the error into the status's details. Any other
//! status (broken connection, proxy, other server) is classified by its code, and counts as lost if the outcome is
//! unclear.

use std::error::Error as _;

use api::common::Refusal;
use api::common::error::Kind;
use api::details::{NO_RESPONSE, UNKNOWN_ADVICE};
use client::{Error, Fault, Version};
use tonic::{Code, Status};

pub(crate) fn of(status: &Status) -> Fault {
    match api::details::error(status) {
        Some(error) => from_details(status.message().to_owned(), error),
        None => of_stranger(status),
    }
}

/// Classifies the failure of one request in a stream.
pub(crate) fn of_refusal(Refusal { code, message, error }: Refusal) -> Fault {
    match error {
        Some(error) => from_details(message, error),
        None => of_stranger(&Status::new(Code::from(code), message)),
    }
}

fn from_details(message: String, error: api::common::Error) -> Fault {
    match error.kind() {
        Kind::VersionMismatch => {
            let (expected, actual) = (Version::from_nanos(error.expected), Version::from_nanos(error.actual));
            Fault::Definite(Error::Refused { column: error.column, expected, actual })
        }
        Kind::UnknownTable | Kind::UnknownLog => Fault::Definite(Error::NotFound(message)),
        Kind::Exists => Fault::Definite(Error::Exists(message)),
        Kind::Precondition => Fault::Definite(Error::Precondition(message)),
        Kind::Aborted => Fault::Definite(Error::Aborted(reason(&message, "transaction aborted: "))),
        Kind::Invalid => Fault::Definite(Error::Invalid(message)),
        Kind::UnknownSession => Fault::UnknownSession,
        Kind::Overloaded => Fault::Overloaded(message),
        Kind::NoSpace => Fault::NoSpace(message),
        Kind::Unavailable => match reason(&message, "unavailable: ") {
            silent if silent == NO_RESPONSE => Fault::NodeSilent,
            why => Fault::Unavailable(why),
        },
        Kind::OutcomeUnknown | Kind::Unspecified => match reason(&message, "outcome unknown: ") {
            silent if silent == NO_RESPONSE => Fault::NodeSilent,
            why => Fault::Unknown(why),
        },
    }
}

/// Removes the prefix that the resulting error adds again, and the advice that it replaces.
fn reason(message: &str, what: &str) -> String {
    let reason = message.strip_prefix(what).unwrap_or(message);
    reason.strip_suffix(UNKNOWN_ADVICE).unwrap_or(reason).to_owned()
}

fn of_stranger(status: &Status) -> Fault {
    match status.code() {
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::PermissionDenied
        | Code::Unauthenticated => Fault::Definite(Error::Invalid(status.message().to_owned())),
        _ => Fault::Lost(with_causes(status)),
    }
}

/// The status's message and its causes, because "transport error" alone is not informative.
pub(crate) fn with_causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kind(kind: Kind) -> Fault {
        let error = api::common::Error { kind: kind.into(), expected: 7, actual: 9, ..Default::default() };
        of(&api::details::status(Code::Unknown, "why".into(), &error))
    }

    /// The server's message already contains the prefix that the error adds.
    #[test]
    fn strips_repeated_error_prefix() {
        let said = Error::OutcomeUnknown("why".to_owned()).to_string();
        assert_eq!(reason(&said, "outcome unknown: "), "why");
        assert_eq!(reason(&format!("{said}{UNKNOWN_ADVICE}"), "outcome unknown: "), "why");
    }

    #[test]
    fn server_without_answer_of_node_is_no_refusal() {
        let silent = |kind: Kind, message: String| {
            let error = api::common::Error { kind: kind.into(), ..Default::default() };
            of(&api::details::status(Code::Unknown, message, &error))
        };
        assert_eq!(silent(Kind::Unavailable, format!("unavailable: {NO_RESPONSE}")), Fault::NodeSilent);
        let unknown = format!("outcome unknown: {NO_RESPONSE}{UNKNOWN_ADVICE}");
        assert_eq!(silent(Kind::OutcomeUnknown, unknown), Fault::NodeSilent);
    }

    #[test]
    fn maps_error_kinds_to_faults() {
        let (expected, actual) = (Version::from_nanos(7), Version::from_nanos(9));
        let refused = Error::Refused { column: Default::default(), expected, actual };
        assert_eq!(of_kind(Kind::VersionMismatch), Fault::Definite(refused));
        assert_eq!(of_kind(Kind::UnknownTable), Fault::Definite(Error::NotFound("why".into())));
        assert_eq!(of_kind(Kind::UnknownLog), Fault::Definite(Error::NotFound("why".into())));
        assert_eq!(of_kind(Kind::Invalid), Fault::Definite(Error::Invalid("why".into())));
        assert_eq!(of_kind(Kind::Precondition), Fault::Definite(Error::Precondition("why".into())));
        assert_eq!(of_kind(Kind::Exists), Fault::Definite(Error::Exists("why".into())));
        assert_eq!(of_kind(Kind::UnknownSession), Fault::UnknownSession);
        assert_eq!(of_kind(Kind::Overloaded), Fault::Overloaded("why".into()));
        assert_eq!(of_kind(Kind::NoSpace), Fault::NoSpace("why".into()));
        assert_eq!(of_kind(Kind::Unavailable), Fault::Unavailable("why".into()));
        assert_eq!(of_kind(Kind::OutcomeUnknown), Fault::Unknown("why".into()));
    }

    #[test]
    fn proxy_unavailable_is_ambiguous() {
        assert_eq!(of(&Status::unavailable("a proxy's")), Fault::Lost("a proxy's".into()));
        assert!(matches!(of(&Status::out_of_range("too large")), Fault::Definite(Error::Invalid(_))));
    }
}
