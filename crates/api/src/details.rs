//! An [`Error`] inside a gRPC status, as a `google.rpc.Status` in the trailer `grpc-status-details-bin`. This is gRPC's
//! convention, so that all gRPC libraries and `grpcurl` can decode it.

use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use crate::common::Error;
use crate::google::rpc;

/// The end of the message of a request with unknown outcome: advice for users of other clients than the SDK, which gives
/// its own.
pub const UNKNOWN_ADVICE: &str = "; retry with the same stamp, or read to find out";

/// The reason that a server gives in place of its node, which has not responded by the deadline. A client reports any
/// refusal of a node instead.
pub const NO_RESPONSE: &str = "the node did not respond in time";

/// The type URL of an [`Error`] in an `Any`.
const TYPE_URL: &str = "type.googleapis.com/loggos.common.v1.Error";

/// A status with `message` for users and `error` for programs.
#[must_use]
pub fn status(code: Code, message: String, error: &Error) -> Status {
    let any = Any { type_url: TYPE_URL.to_owned(), value: error.encode_to_vec() };
    let details = rpc::Status { code: code as i32, message: message.clone(), details: vec![any] };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The error in a status; none if another server or an unknown version created the status.
#[must_use]
pub fn error(status: &Status) -> Option<Error> {
    let details = rpc::Status::decode(status.details()).ok()?;
    let any = details.details.iter().find(|any| any.type_url == TYPE_URL)?;
    Error::decode(any.value.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::error::Kind;

    #[test]
    fn status_error_round_trip() {
        let sent = Error { kind: Kind::VersionMismatch.into(), expected: 7, actual: 9, ..Error::default() };
        let status = status(Code::FailedPrecondition, "version mismatch".into(), &sent);
        assert_eq!(error(&status), Some(sent));
    }

    #[test]
    fn foreign_status_has_no_error() {
        assert_eq!(error(&Status::internal("of a proxy")), None);
        let garbage = Status::with_details(Code::Internal, "", vec![0xff; 9].into());
        assert_eq!(error(&garbage), None);
    }
}
