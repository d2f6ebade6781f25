//! Validation of requests about shared logs.

use base::limits::{LOG_COPIES_MAX, LOG_READ_MAX, LOG_STRIPES_MAX};
use state_machine::Failure;
use state_machine::limits::{check_name, refuse};

use crate::limits::POSITION_MAX;
use crate::request::LogRequest;
use crate::{ClientId, Position, Stamp};

/// The log of the coordination service. Clients may read it; only the service changes it.
pub const COORDINATION_LOG: &str = "zookeeper";
/// Copies of the coordination log, on clusters that have as many nodes.
pub const COORDINATION_COPIES: u32 = 3;

/// The gRPC metadata key of requests of translation servers, which may change the log of the coordination service. The
/// value does not matter. The key protects against accidents only: clients are not authenticated, so that any of them
/// can send it.
pub const TRANSLATION_SERVER_KEY: &str = "loggos-translation-server";

/// Refuses a client's request to change the log of the coordination service.
///
/// # Errors
/// [`Failure::Invalid`].
pub fn check_not_reserved(request: &LogRequest) -> Result<(), Failure> {
    if request.changes() && request.log() == Some(COORDINATION_LOG) {
        return refuse(format!("log {COORDINATION_LOG} is reserved for the coordination service"));
    }
    Ok(())
}

/// Refuses a translation server's request to change a log, unless it appends to the log of the coordination service or
/// trims it.
///
/// # Errors
/// [`Failure::Invalid`].
pub fn check_translation_server(request: &LogRequest) -> Result<(), Failure> {
    match request {
        LogRequest::Append { log, .. } | LogRequest::Trim { log, .. } if log == COORDINATION_LOG => Ok(()),
        request if !request.changes() => Ok(()),
        _ => refuse(format!("a translation server can only append to log {COORDINATION_LOG} and trim it")),
    }
}

/// Checks the form and the limits of a request about a log.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn validate(request: &LogRequest) -> Result<(), Failure> {
    request.log().map_or(Ok(()), |name| check_name("log", name))?;
    match request {
        LogRequest::List | LogRequest::Describe { .. } | LogRequest::Tail { .. } | LogRequest::Drop { .. } => Ok(()),
        LogRequest::Create { stripes, copies, .. } => {
            check_at_most("stripes", *stripes, LOG_STRIPES_MAX)?;
            check_at_most("copies per position", *copies, LOG_COPIES_MAX)
        }
        LogRequest::Append { batch, stamp, .. } => {
            if batch.is_empty() {
                return refuse("the append has no records");
            }
            stamp.map_or(Ok(()), check_stamp)
        }
        LogRequest::Read { from, count, .. } => {
            if *count == 0 {
                return refuse("the number of positions to read is 0");
            }
            check_at_most("positions per read", *count, LOG_READ_MAX)?;
            check_in_range(*from)
        }
        LogRequest::Trim { before, .. } => check_position(*before),
        LogRequest::TrimOne { position, .. } => check_in_range(*position),
    }
}

/// Checks the name of a log to be created. A name must be usable on a command line and in a path without quoting.
///
/// # Errors
/// [`Failure::Invalid`] with the violated rule.
pub fn new_log_name(name: &str) -> Result<(), Failure> {
    check_name("log", name)?;
    match name {
        "." | ".." => refuse(format!("invalid log name {name:?}: '.' and '..' are reserved")),
        _ if name.starts_with('-') => {
            refuse(format!("invalid log name {name:?}: it begins with '-', like a command-line option"))
        }
        _ => Ok(()),
    }
}

fn check_stamp(Stamp { client, sequence }: Stamp) -> Result<(), Failure> {
    match sequence {
        _ if client >= ClientId::FIRST_OF_NODES => {
            refuse(format!("client {client} is reserved: the highest number for callers is 2^63 - 1"))
        }
        0 => refuse(format!("invalid sequence 0 of client {client}: appends are numbered from 1")),
        _ => Ok(()),
    }
}

/// Checks a position that can hold an entry. `POSITION_MAX` itself cannot.
fn check_in_range(position: Position) -> Result<(), Failure> {
    if position.0 < POSITION_MAX { Ok(()) } else { refuse_position(position) }
}

fn check_position(position: Position) -> Result<(), Failure> {
    if position.0 <= POSITION_MAX {
        return Ok(());
    }
    refuse_position(position)
}

fn refuse_position(position: Position) -> Result<(), Failure> {
    refuse(format!("position {position} is out of range: the limit is {POSITION_MAX}"))
}

fn check_at_most(what: &str, count: u32, max: u32) -> Result<(), Failure> {
    if count <= max { Ok(()) } else { refuse(format!("{count} {what} exceed the limit of {max}")) }
}
