//! Replies to requests. Their data is not copied: it is appended to the output as it is.

use bytes::{BufMut, Bytes, BytesMut};

use super::Errno;
use super::constants::{DONE, SIMPLE_REPLY, STATE_HOLE, STATE_ZERO, STRUCTURED_REPLY, chunk};
use super::handshake::CONTEXT_ID;

/// Maximum bytes of a message in a reply, so that it fits into its field and a client's buffer.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// Zeros that are sent where a reply has no chunks for holes.
const ZEROES: &[u8] = &[0; 64 << 10];

/// Bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// These bytes; not empty.
    Data(Bytes),
    /// This many zeros; not 0.
    Zeroes(u32),
}

impl Run {
    /// The number of bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        match self {
            Self::Data(data) => data.len() as u32,
            Self::Zeroes(length) => *length,
        }
    }
}

/// The allocation of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Data,
    /// Zeros for which space is allocated.
    Zero,
    /// Nothing: the bytes are zeros.
    Hole,
}

/// Bytes of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of bytes; not 0.
    pub length: u32,
    pub state: BlockState,
}

/// Encodes the replies to one client. Segments of a reply are appended to an output, and sent in this order, with no
/// other reply between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    pub(super) is_structured: bool,
}

impl Replies {
    /// The reply to any request but a read or a query of blocks.
    pub fn done(self, cookie: u64, out: &mut Vec<Bytes>) {
        // Both kinds of reply are valid for these; the simple one is shorter.
        out.push(simple(0, cookie));
    }

    /// The reply to a request that failed; the message is for people. `offset` is where it failed, if that is known.
    pub fn error(self, cookie: u64, errno: Errno, message: &str, offset: Option<u64>, out: &mut Vec<Bytes>) {
        if !self.is_structured {
            out.push(simple(errno.number(), cookie));
            return;
        }
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
        let length = 6 + message.len() + if offset.is_some() { 8 } else { 0 };
        let mut reply = header(DONE, kind, cookie, length, length);
        reply.put_u32(errno.number());
        reply.put_u16(message.len() as u16);
        reply.put_slice(message.as_bytes());
        if let Some(offset) = offset {
            reply.put_u64(offset);
        }
        out.push(reply.freeze());
    }

    /// The reply to a read at `offset`: the bytes read, which must be as many as the client asked for. `is_whole` is
    /// that of the request.
    pub fn read(self, cookie: u64, offset: u64, is_whole: bool, runs: Vec<Run>, out: &mut Vec<Bytes>) {
        if !self.is_structured {
            out.push(simple(0, cookie));
            return runs.into_iter().for_each(|run| plain(run, out));
        }
        if is_whole && runs.len() > 1 {
            let length: usize = runs.iter().map(|run| run.length() as usize).sum();
            let mut chunk = header(DONE, chunk::OFFSET_DATA, cookie, 8 + length, 8);
            chunk.put_u64(offset);
            out.push(chunk.freeze());
            return runs.into_iter().for_each(|run| plain(run, out));
        }
        if runs.is_empty() {
            debug_assert!(false, "a read has at least one byte");
            out.push(header(DONE, chunk::NONE, cookie, 0, 0).freeze());
        }
        let (mut offset, last) = (offset, runs.len().saturating_sub(1));
        for (place, run) in runs.into_iter().enumerate() {
            let flags = if place == last { DONE } else { 0 };
            let length = run.length();
            match run {
                Run::Data(data) => {
                    let mut chunk = header(flags, chunk::OFFSET_DATA, cookie, 8 + data.len(), 8);
                    chunk.put_u64(offset);
                    out.extend([chunk.freeze(), data]);
                }
                Run::Zeroes(length) => {
                    let mut chunk = header(flags, chunk::OFFSET_HOLE, cookie, 12, 12);
                    chunk.put_u64(offset);
                    chunk.put_u32(length);
                    out.push(chunk.freeze());
                }
            }
            offset += u64::from(length);
        }
    }

    /// The reply to a query of blocks: extents from the first byte that the client asked about, at least one. The
    /// client has negotiated structured replies.
    pub fn block_status(self, cookie: u64, extents: &[Extent], out: &mut Vec<Bytes>) {
        debug_assert!(!extents.is_empty() && self.is_structured, "an extent for a client that can receive it");
        let length = 4 + 8 * extents.len();
        let mut reply = header(DONE, chunk::BLOCK_STATUS, cookie, length, length);
        reply.put_u32(CONTEXT_ID);
        for Extent { length, state } in extents {
            reply.put_u32(*length);
            reply.put_u32(match state {
                BlockState::Data => 0,
                BlockState::Zero => STATE_ZERO,
                BlockState::Hole => STATE_HOLE | STATE_ZERO,
            });
        }
        out.push(reply.freeze());
    }
}

fn simple(error: u32, cookie: u64) -> Bytes {
    let mut reply = BytesMut::with_capacity(16);
    reply.put_u32(SIMPLE_REPLY);
    reply.put_u32(error);
    reply.put_u64(cookie);
    reply.freeze()
}

/// The header of a chunk with `length` bytes, of which the first `fields` follow in the same segment.
fn header(flags: u16, kind: u16, cookie: u64, length: usize, fields: usize) -> BytesMut {
    let mut chunk = BytesMut::with_capacity(20 + fields);
    chunk.put_u32(STRUCTURED_REPLY);
    chunk.put_u16(flags);
    chunk.put_u16(kind);
    chunk.put_u64(cookie);
    chunk.put_u32(length as u32);
    chunk
}

fn plain(run: Run, out: &mut Vec<Bytes>) {
    match run {
        Run::Data(data) => out.push(data),
        Run::Zeroes(length) => {
            let mut left = length as usize;
            while left > 0 {
                let now = left.min(ZEROES.len());
                out.push(Bytes::from_static(&ZEROES[..now]));
                left -= now;
            }
        }
    }
}
