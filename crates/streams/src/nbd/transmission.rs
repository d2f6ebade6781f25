//! The transmission: requests, and the check of each against the export.

use bytes::{Buf, Bytes, BytesMut};

use super::constants::{self, REQUEST, command, flag};
use super::{Errno, Export, NbdError, PAYLOAD_BYTES_MAX, Replies, Step};

/// Magic, flags, type, cookie, offset, length.
pub(super) const REQUEST_BYTES: usize = 28;
/// Maximum bytes of the data of a refused write, which are skipped. With more, the connection is closed.
const SKIPPED_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;

/// A valid request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's number of the request, to be sent back with the reply.
    pub cookie: u64,
    pub offset: u64,
    /// The number of bytes; that of the data of a write. 0 for a flush.
    pub length: u32,
    pub command: Command,
}

/// The command of a request. The flag FUA has no field: every write is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Read {
        /// Whether the reply must not be divided into chunks (`NBD_CMD_FLAG_DF`).
        is_whole: bool,
    },
    Write(Bytes),
    /// Make all answered writes durable.
    Flush,
    /// The content of the bytes is not needed any more.
    Trim,
    /// The bytes will be read soon.
    Cache,
    /// Make the bytes zero.
    WriteZeroes {
        /// Whether the space must stay allocated (`NBD_CMD_FLAG_NO_HOLE`).
        keeps_allocated: bool,
        /// Whether to fail if that is as slow as a write (`NBD_CMD_FLAG_FAST_ZERO`).
        must_be_fast: bool,
    },
    /// Return which bytes are allocated.
    BlockStatus {
        /// Whether to return a single extent (`NBD_CMD_FLAG_REQ_ONE`).
        is_single: bool,
    },
}

impl Request {
    /// Bytes of data that it takes in memory until it is answered: written ones, or those to be read.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.command {
            Command::Write(_) | Command::Read { .. } => self.length as usize,
            _ => 0,
        }
    }
}

/// The flags of an export for a client.
pub(super) fn flags(export: &Export, is_structured: bool) -> u16 {
    use constants::transmission::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    if is_structured {
        flags |= SEND_DF;
    }
    flags | if export.is_read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO }
}

/// The state of the transmission.
#[derive(Clone, Debug)]
pub(super) struct Transmission {
    size: u64,
    is_read_only: bool,
    is_structured: bool,
    has_context: bool,
    /// Bytes of the data of a refused write that are still to be skipped.
    skipped: usize,
    is_closed: bool,
}

impl Transmission {
    pub(super) fn new(export: &Export, is_structured: bool, has_context: bool) -> Self {
        let Export { size, is_read_only, .. } = *export;
        Self { size, is_read_only, is_structured, has_context, skipped: 0, is_closed: false }
    }

    pub(super) fn is_structured(&self) -> bool {
        self.is_structured
    }

    pub(super) fn resize(&mut self, size: u64) {
        self.size = size;
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn advance(&mut self, input: &mut BytesMut, out: &mut Vec<Bytes>) -> Result<Step, NbdError> {
        if self.is_closed {
            return Err(NbdError::Closed);
        }
        if self.skipped > 0 {
            if input.is_empty() {
                return Ok(Step::NeedsBytes(1));
            }
            let now = self.skipped.min(input.len());
            input.advance(now);
            self.skipped -= now;
            return Ok(Step::Continue);
        }
        let mut header = &input[..];
        if header.len() < REQUEST_BYTES {
            return Ok(Step::NeedsBytes(REQUEST_BYTES));
        }
        let magic = header.get_u32();
        if magic != REQUEST {
            return Err(NbdError::WrongMagic { expected: u64::from(REQUEST), found: u64::from(magic) });
        }
        let (flags, kind, cookie) = (header.get_u16(), header.get_u16(), header.get_u64());
        let (offset, length) = (header.get_u64(), header.get_u32());
        if kind == command::DISCONNECT {
            input.advance(REQUEST_BYTES);
            return Ok(Step::Disconnect);
        }
        let command = match self.check(kind, flags, offset, length) {
            Ok(command) => command,
            Err((errno, message)) => {
                if kind == command::WRITE {
                    if length > SKIPPED_BYTES_MAX {
                        return Err(NbdError::TooLarge { what: "a write", bytes: length, limit: PAYLOAD_BYTES_MAX });
                    }
                    self.skipped = length as usize;
                }
                input.advance(REQUEST_BYTES);
                Replies { is_structured: self.is_structured }.error(cookie, errno, message, None, out);
                return Ok(Step::Continue);
            }
        };
        let whole = REQUEST_BYTES + if kind == command::WRITE { length as usize } else { 0 };
        if input.len() < whole {
            return Ok(Step::NeedsBytes(whole));
        }
        let mut data = input.split_to(whole).freeze();
        data.advance(REQUEST_BYTES);
        let command = if let Command::Write(_) = command { Command::Write(data) } else { command };
        Ok(Step::Request(Request { cookie, offset, length, command }))
    }

    /// The command of a request, without its data, if the request is valid.
    fn check(&self, kind: u16, flags: u16, offset: u64, length: u32) -> Result<Command, (Errno, &'static str)> {
        let has = |flag: u16| flags & flag != 0;
        let (command, permitted) = match kind {
            command::READ => (Command::Read { is_whole: has(flag::DF) }, if self.is_structured { flag::DF } else { 0 }),
            command::WRITE => (Command::Write(Bytes::new()), 0),
            command::FLUSH => (Command::Flush, 0),
            command::TRIM => (Command::Trim, 0),
            command::CACHE => (Command::Cache, 0),
            command::WRITE_ZEROES => {
                let (keeps_allocated, must_be_fast) = (has(flag::NO_HOLE), has(flag::FAST_ZERO));
                (Command::WriteZeroes { keeps_allocated, must_be_fast }, flag::NO_HOLE | flag::FAST_ZERO)
            }
            command::BLOCK_STATUS => (Command::BlockStatus { is_single: has(flag::REQ_ONE) }, flag::REQ_ONE),
            _ => return Err((Errno::Invalid, "unknown command")),
        };
        if flags & !(permitted | flag::FUA) != 0 {
            return Err((Errno::Invalid, "flag not permitted for this command"));
        }
        let changes = matches!(command, Command::Write(_) | Command::Trim | Command::WriteZeroes { .. });
        if changes && self.is_read_only {
            return Err((Errno::NotPermitted, "the export is read-only"));
        }
        if command == Command::Flush {
            let is_plain = offset == 0 && length == 0;
            return if is_plain { Ok(command) } else { Err((Errno::Invalid, "a flush has no offset and no length")) };
        }
        if length == 0 {
            return Err((Errno::Invalid, "the length is 0"));
        }
        let has_data = matches!(command, Command::Read { .. } | Command::Write(_));
        if has_data && length > PAYLOAD_BYTES_MAX {
            return Err((Errno::Invalid, "more than 32 MiB in one request"));
        }
        if offset.checked_add(u64::from(length)).is_none_or(|end| end > self.size) {
            let is_write = matches!(command, Command::Write(_) | Command::WriteZeroes { .. });
            return Err((if is_write { Errno::NoSpace } else { Errno::Invalid }, "beyond the end of the export"));
        }
        if matches!(command, Command::BlockStatus { .. }) && !self.has_context {
            return Err((Errno::Invalid, "no metadata context was negotiated"));
        }
        Ok(command)
    }
}
