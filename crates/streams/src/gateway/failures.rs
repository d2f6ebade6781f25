//! Maps failures of calls to stripes to retries and to errors of the client's request.

use base::Duration;
use state_machine::{ClientSessionId, Failure};

use super::{PAUSE_MAX, PAUSE_MIN};
use crate::nbd::Errno;
use crate::stripe::request::Outcome;

/// The message of a request that may not wait any longer.
pub(super) const UNAVAILABLE: &str = "a stripe of the disk has no leader or no majority";

/// The message of a change of a disk that does not exist any more.
pub(super) const REPLACED: &str = "the disk was deleted, and another one has its name";

pub(super) fn session_ended(session: ClientSessionId) -> String {
    format!("session {} ended before the outcome was known: the write was executed before, or never will be", session.0)
}

/// Whether another attempt may succeed.
pub(super) fn is_transient(failure: &Failure) -> bool {
    matches!(failure, Failure::Unavailable(_) | Failure::Overloaded(_) | Failure::Unknown(_) | Failure::MayLie { .. })
}

/// Whether the disk does not permit it.
pub(super) fn is_of_disk(failure: &Failure) -> bool {
    matches!(failure, Failure::NoSpace(_) | Failure::Damaged(_))
}

/// The error for a client from an outcome that another attempt will not change.
pub(super) fn error(outcome: Outcome) -> (Errno, String) {
    match outcome {
        Err(Failure::UnknownTable(_)) => (Errno::Io, "the disk was deleted".to_owned()),
        Err(Failure::NoSpace(message)) => (Errno::NoSpace, message),
        // Another client holds the disk.
        Err(Failure::Precondition(message)) => (Errno::NotPermitted, message),
        Err(failure) => (Errno::Io, failure.to_string()),
        Ok(_) => (Errno::Io, "unexpected answer of a stripe".to_owned()),
    }
}

/// The pause after the nth failure.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = PAUSE_MIN.0.saturating_mul(1 << failures.saturating_sub(1).min(16));
    Duration(doubled.min(PAUSE_MAX.0))
}
