//! The server's side of the Network Block Device protocol (`doc/proto.md` of the NBD project), without sockets.
//!
//! A connection begins with a fixed newstyle *handshake*, in which the client negotiates options and selects an
//! export. The *transmission* follows: requests, and replies in any order. [`Connection`] is both: it takes bytes from
//! a buffer that the driver fills, and yields one [`Step`] at a time. The driver passes requests on, and encodes their
//! replies with [`Connection::replies`].
//!
//! Invariants:
//! * No input causes a panic. What violates the protocol beyond repair is an [`NbdError`]: the driver sends the replies
//!   that are due, and closes this connection alone.
//! * The connection itself stores nothing that a client sends except the name of an export. It asks for at most
//!   [`INPUT_BYTES_MAX`] bytes in the buffer ([`Step::NeedsBytes`]), and no length from a client is allocated.
//! * A step answers at most one option or request. So a driver with a limit on unsent replies can stop between steps.
//! * A request is yielded only if it is valid for its export: in range, with flags that its command has, and not a
//!   change of a read-only export. All others are answered here.
//!
//! Not supported: TLS (refused by policy) and extended headers (unknown options are refused, and the negotiation goes
//! on).

use bytes::{Bytes, BytesMut};

pub use base::limits::nbd::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX};

mod constants;
mod handshake;
mod reply;
#[cfg(test)]
mod tests;
mod transmission;

pub use reply::{BlockState, Extent, Replies, Run};
pub use transmission::{Command, Request};

use handshake::Handshake;
use transmission::Transmission;

/// Maximum bytes that the driver must buffer for a step: a write with its header.
pub const INPUT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX as usize + transmission::REQUEST_BYTES;
/// The size of blocks in bytes at which requests are cheapest.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// A disk that clients can attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size in bytes.
    pub size: u64,
    /// Whether changes are refused.
    pub is_read_only: bool,
    /// A text for people; may be empty.
    pub description: String,
}

/// The exports of a server.
pub trait Exports {
    /// The names of all exports, in order. The list is sent to clients as it is, so it must be bounded.
    fn names(&self) -> Vec<String>;

    /// The export with this name. An empty name asks for the default export.
    ///
    /// # Errors
    /// There is none, or this client may not attach it.
    fn find(&self, name: &str) -> Result<Export, Refusal>;
}

/// Why an export cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No export has this name.
    Unknown,
    /// It exists, but may not be attached like this. The text is for people.
    Policy(String),
}

/// An error number in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only, or another client holds it.
    NotPermitted = 1,
    Io = 5,
    /// Too little memory now.
    NoMemory = 12,
    /// The request is malformed, or not within the export.
    Invalid = 22,
    /// No space is left, or a write is not within the export.
    NoSpace = 28,
    /// The data is too large for one chunk.
    Overflow = 75,
    /// The request would not be fast.
    NotSupported = 95,
    Shutdown = 108,
}

/// A violation of the protocol, after which the connection must be closed. Replies written before it are still sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdError {
    /// The client's answer to the greeting has unknown flags.
    #[error("unknown client flags {0:#x}")]
    UnknownClientFlags(u32),
    /// An option or a request does not begin with its magic number.
    #[error("expected magic {expected:#x}, found {found:#x}")]
    WrongMagic { expected: u64, found: u64 },
    /// A client without fixed newstyle sent another option than the export's name.
    #[error("option {0} without fixed newstyle negotiation")]
    NotFixedNewstyle(u32),
    /// The option or the data of a write is so large that it is not even skipped.
    #[error("{bytes} bytes of {what}, over the limit of {limit}")]
    TooLarge {
        /// The part of the message.
        what: &'static str,
        bytes: u32,
        limit: u32,
    },
    /// The client negotiates without end.
    #[error("too many options")]
    TooManyOptions,
    /// The name in `NBD_OPT_EXPORT_NAME`, which has no error reply, is not one that this client may attach.
    #[error("no such export, or not for this client")]
    UnknownExport,
    /// The client sent bytes after its request to disconnect, or the driver went on after an error.
    #[error("the connection is closed")]
    Closed,
}

/// The result of [`Connection::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next step needs at least this many bytes in the buffer, at most [`INPUT_BYTES_MAX`].
    NeedsBytes(usize),
    /// Input was processed, and answered if necessary.
    Continue,
    /// The client has attached this export: requests follow.
    Attached {
        /// The name by which the client asked for it.
        name: String,
        /// The export, as the client sees it.
        export: Export,
    },
    /// A request to execute and answer.
    Request(Request),
    /// The client disconnects in an orderly way: the requests in progress end, their replies and those written are
    /// sent, and then the connection is closed.
    Disconnect,
}

/// The protocol's state of one client's connection.
#[derive(Clone, Debug)]
pub struct Connection {
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
    Closed,
}

impl Connection {
    /// A new connection, and the greeting to send.
    #[must_use]
    pub fn new() -> (Self, Bytes) {
        let (handshake, greeting) = Handshake::new();
        (Self { phase: Phase::Handshake(handshake) }, greeting)
    }

    /// Processes one option or request, if `input` contains it as a whole, and removes it from there. Replies are
    /// appended to `out`.
    ///
    /// # Errors
    /// The client violates the protocol: the connection must be closed once `out` is sent.
    pub fn advance(
        &mut self,
        input: &mut BytesMut,
        exports: &dyn Exports,
        out: &mut Vec<Bytes>,
    ) -> Result<Step, NbdError> {
        let step = match &mut self.phase {
            Phase::Closed => Err(NbdError::Closed),
            Phase::Transmission(transmission) => transmission.advance(input, out),
            Phase::Handshake(handshake) => match handshake.advance(input, exports, out) {
                Ok(handshake::Step::Attached(attached)) => {
                    let handshake::Attached { name, export, is_structured, has_context } = *attached;
                    self.phase = Phase::Transmission(Transmission::new(&export, is_structured, has_context));
                    Ok(Step::Attached { name, export })
                }
                Ok(handshake::Step::Other(step)) => Ok(step),
                Err(error) => Err(error),
            },
        };
        if matches!(step, Err(_) | Ok(Step::Disconnect)) && !self.is_attached() {
            self.phase = Phase::Closed;
        } else if let (Phase::Transmission(transmission), Err(_) | Ok(Step::Disconnect)) = (&mut self.phase, &step) {
            // The format of replies is still needed.
            transmission.close();
        }
        step
    }

    /// Whether the client has attached an export.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// Sets the size of the attached export in bytes, after it was changed. Clients learn the new size only when they
    /// connect again, but may use it at once.
    pub fn resize(&mut self, size: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.resize(size);
        }
    }

    /// The encoder for replies to this client's requests.
    #[must_use]
    pub fn replies(&self) -> Replies {
        Replies { is_structured: matches!(&self.phase, Phase::Transmission(it) if it.is_structured()) }
    }
}

impl Errno {
    /// The number in the protocol.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }
}
