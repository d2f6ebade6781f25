//! Frames between nodes: a length, a CRC-32C and a payload that starts with its type.
//!
//! ```text
//! length u32 | crc32c u32 of the payload | payload: kind u8, fields
//!                                          | of a message: kind u8, shard u16, message
//! ```
//!
//! A connection opens with a `Hello` in each direction, or a `Refusal` in its place, followed by messages. The
//! first fields of both (magic, protocol version) keep their positions in all future versions, so that different
//! versions can identify each other.
//!
//! Bytes from a socket are untrusted: nothing here panics on them, a frame longer than its connection's limit closes
//! the connection before memory is allocated for it, and a buffer grows only as bytes arrive.

use std::io;

use base::codec::{DecodeError, Reader, Wire as _, Writer};
use base::{ClusterId, Incarnation, NodeId, StartHistory};
use bytes::Bytes;
use node::message::Message;

/// Identifies a hello of a Loggos node.
const MAGIC: u64 = u64::from_le_bytes(*b"loggos/p");
/// Version of the protocol between nodes: nodes of different versions refuse each other.
pub(crate) const PROTOCOL_VERSION: u32 = 17;
/// The shard of every message: a node has one machine.
const SHARD: u16 = 0;
const HEADER_BYTES: usize = 8;
/// Maximum frame of an unverified peer: a hello takes less than 700 bytes, a refusal a line of text more.
pub(crate) const UNVERIFIED_FRAME_BYTES_MAX: usize = 64 << 10;
/// Buffer reserved for a read from a member's socket.
const READ_BYTES: usize = 64 << 10;
/// The same for an unverified peer's socket; small, so that a thousand of them stay cheap.
const UNVERIFIED_READ_BYTES: usize = 1 << 10;
/// A buffer that a large frame has made larger than this is released.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A frame from this size on is read into a buffer of its own, if it has not arrived as a whole.
const OWN_BUFFER_BYTES_MIN: usize = 64 << 10;

/// Why bytes are not valid frames.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// Longer than the limit of this connection.
    #[error("frame of {bytes} bytes exceeds the limit of {limit} bytes")]
    TooLong { bytes: usize, limit: usize },
    /// Too short to contain its type.
    #[error("empty frame")]
    Empty,
    /// Corrupted, or not a frame.
    #[error("frame checksum mismatch: computed {found:08x}, received {stated:08x}")]
    Checksum { stated: u32, found: u32 },
    /// The magic number is missing.
    #[error("not the Loggos peer protocol")]
    Magic,
    /// Its fields cannot be decoded.
    #[error("malformed: {0}")]
    Malformed(#[from] DecodeError),
}

/// Identifies the sender: its node, disk and process start, and the intended receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) to: NodeId,
    /// The start of the sender's process, and the ones before it on its disk.
    pub(crate) starts: StartHistory,
    /// The sender's address for peers, as `address:port`: a node may not know it yet if the sender has just joined.
    pub(crate) address: String,
}

/// Why a node refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusalKind {
    Version,
    /// A node of another cluster.
    Cluster,
    /// Addressed to another node: a configured address is wrong.
    Recipient,
    /// The node, or the disk under its number, is not a member (guarantee 6).
    NotMember,
    /// The disk of the sender was rolled back to an older copy (guarantee 6).
    RolledBack,
    /// The node was removed from the cluster permanently.
    Left,
}

/// A rejected connection: the rejecting node, the kind of error for programs, and the reason as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) reason: String,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    Refusal(Refusal),
    /// A message for the machine, not decoded yet.
    Message(Bytes),
}

const HELLO: u8 = 1;
const REFUSAL: u8 = 2;
const MESSAGE: u8 = 3;

impl Frame {
    pub(crate) fn decode(payload: Bytes) -> Result<Self, FrameError> {
        let mut input = Reader::new(payload);
        match input.u8().map_err(|_| FrameError::Empty)? {
            HELLO => Hello::decode(input).map(Self::Hello),
            REFUSAL => Refusal::decode(input).map(Self::Refusal),
            MESSAGE => {
                let shard = input.u16()?;
                if shard != SHARD {
                    return Err(DecodeError::UnknownTag { what: "shard", tag: u64::from(shard) }.into());
                }
                let left = input.left();
                Ok(Self::Message(input.raw(left)?))
            }
            tag => Err(DecodeError::UnknownTag { what: "frame", tag: u64::from(tag) }.into()),
        }
    }
}

impl Hello {
    /// Appends the hello's frame to `out`.
    pub(crate) fn encode(&self, out: &mut Writer) {
        framed(out, HELLO, |out| {
            out.u64(MAGIC);
            out.u32(self.version);
            out.u128(self.cluster.0);
            out.u32(self.node.0);
            out.u64(self.incarnation.0);
            out.u32(self.to.0);
            self.starts.encode(out);
            out.bytes(self.address.as_bytes());
        });
    }

    fn decode(mut input: Reader) -> Result<Self, FrameError> {
        if input.u64()? != MAGIC {
            return Err(FrameError::Magic);
        }
        let mut hello = Self {
            version: input.u32()?,
            cluster: ClusterId(input.u128()?),
            node: NodeId(input.u32()?),
            incarnation: Incarnation(input.u64()?),
            to: NodeId(input.u32()?),
            starts: StartHistory::default(),
            address: String::new(),
        };
        // Another version may have other fields after these.
        if hello.version == PROTOCOL_VERSION {
            hello.starts = StartHistory::decode(&mut input)?;
            hello.address = String::from_utf8_lossy(&input.bytes()?).into_owned();
            input.end()?;
        }
        Ok(hello)
    }
}

impl Refusal {
    /// Appends the refusal's frame to `out`.
    pub(crate) fn encode(&self, out: &mut Writer) {
        framed(out, REFUSAL, |out| {
            out.u64(MAGIC);
            out.u8(self.kind.tag());
            out.u128(self.cluster.0);
            out.u32(self.node.0);
            out.u64(self.incarnation.0);
            out.bytes(self.reason.as_bytes());
        });
    }

    fn decode(mut input: Reader) -> Result<Self, FrameError> {
        if input.u64()? != MAGIC {
            return Err(FrameError::Magic);
        }
        Ok(Self {
            kind: RefusalKind::from_tag(input.u8()?)?,
            cluster: ClusterId(input.u128()?),
            node: NodeId(input.u32()?),
            incarnation: Incarnation(input.u64()?),
            reason: String::from_utf8_lossy(&input.bytes()?).into_owned(),
        })
    }
}

impl RefusalKind {
    const ALL: [Self; 6] =
        [Self::Version, Self::Cluster, Self::Recipient, Self::NotMember, Self::RolledBack, Self::Left];

    fn tag(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Cluster => 2,
            Self::Recipient => 3,
            Self::NotMember => 4,
            Self::RolledBack => 5,
            Self::Left => 6,
        }
    }

    fn from_tag(tag: u8) -> Result<Self, DecodeError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.tag() == tag)
            .ok_or_else(|| DecodeError::UnknownTag { what: "refusal", tag: u64::from(tag) })
    }
}

/// Appends a message's frame to `out`.
pub(crate) fn encode_message(message: &Message, out: &mut Writer) {
    framed(out, MESSAGE, |out| {
        out.u16(SHARD);
        message.encode(out);
    });
}

fn framed(out: &mut Writer, kind: u8, fields: impl FnOnce(&mut Writer)) {
    let start = out.len();
    out.u32(0);
    out.u32(0);
    out.u8(kind);
    let kept = out.kept_bytes();
    fields(out);
    let length = out.len() - start - HEADER_BYTES + out.kept_bytes() - kept;
    let length = u32::try_from(length).expect("limits keep messages below 4 GiB");
    let payload = start + HEADER_BYTES;
    let checksum = match out.kept_bytes() {
        0 => base::checksum(&out.as_slice()[payload..]),
        _ => out.pieces(payload).fold(base::checksum(&[]), base::checksum_append),
    };
    out.patch_u32(start, length);
    out.patch_u32(start + 4, checksum);
}

/// Bytes received and not yet returned as frames.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    buffer: Vec<u8>,
    /// A long frame that has arrived in part. The buffer is empty meanwhile.
    long: Option<LongFrame>,
    /// Whether the peer has been verified as a member.
    trusted: bool,
}

/// A frame with a buffer of its own, which has room for nothing else.
#[derive(Debug)]
struct LongFrame {
    checksum: u32,
    payload: Vec<u8>,
}

impl FrameBuffer {
    /// Marks the peer as a member: it may send messages, and gets large buffers.
    pub(crate) fn trust(&mut self) {
        self.trusted = true;
    }

    /// Makes room, and calls `read` to append bytes. Returns the number of bytes read; 0 at the end of the stream.
    pub(crate) fn read_by(&mut self, read: impl FnOnce(&mut Vec<u8>) -> io::Result<usize>) -> io::Result<usize> {
        if let Some(long) = &mut self.long {
            return read(&mut long.payload);
        }
        let room = if self.trusted { READ_BYTES } else { UNVERIFIED_READ_BYTES.max(self.buffer.len()) };
        self.buffer.reserve(room);
        read(&mut self.buffer)
    }

    /// Takes the complete frames, after verifying their checksums. Each has a buffer of its own, so that it takes no more
    /// memory than its own bytes, however long it lives: allocators do not release a part of a buffer.
    pub(crate) fn take_frames(&mut self, frames: &mut Vec<Bytes>) -> Result<(), FrameError> {
        if let Some(long) = self.long.take_if(|long| long.payload.len() == long.payload.capacity()) {
            check(&long.payload, long.checksum)?;
            frames.push(long.payload.into());
        }
        let limit = if self.trusted { base::limits::PEER_MESSAGE_BYTES_MAX } else { UNVERIFIED_FRAME_BYTES_MAX };
        let mut start = 0;
        while let Some((length, checksum)) = header(&self.buffer[start..]) {
            if length > limit {
                return Err(FrameError::TooLong { bytes: length, limit });
            }
            let payload = start + HEADER_BYTES;
            let end = payload + length;
            let Some(bytes) = self.buffer.get(payload..end) else {
                if length >= OWN_BUFFER_BYTES_MIN && self.trusted {
                    let mut own = Vec::new();
                    own.reserve_exact(length);
                    // It must end where the frame ends; an allocator may give more.
                    if own.capacity() == length {
                        own.extend_from_slice(&self.buffer[payload..]);
                        self.long = Some(LongFrame { checksum, payload: own });
                        start = self.buffer.len();
                    }
                }
                break;
            };
            check(bytes, checksum)?;
            frames.push(Bytes::copy_from_slice(bytes));
            start = end;
        }
        self.buffer.drain(..start);
        if self.buffer.capacity() > KEPT_BYTES_MAX && self.buffer.len() < KEPT_BYTES_MAX / 2 {
            self.buffer.shrink_to(KEPT_BYTES_MAX / 2);
        }
        Ok(())
    }
}

fn check(payload: &[u8], stated: u32) -> Result<(), FrameError> {
    let found = base::checksum(payload);
    if found == stated { Ok(()) } else { Err(FrameError::Checksum { stated, found }) }
}

fn header(buffer: &[u8]) -> Option<(usize, u32)> {
    let (length, rest) = buffer.split_first_chunk::<4>()?;
    let (checksum, _) = rest.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*checksum)))
}

#[cfg(test)]
mod tests;
