//! jute, the encoding of the ZooKeeper protocol: big-endian numbers; buffers, strings and vectors with a length prefix,
//! where -1 means null.
//!
//! Decoding borrows from the frame. It never panics and allocates nothing: vectors stay encoded, are validated once,
//! and are decoded again as they are iterated ([`Sequence`]).

use bytes::{BufMut, Bytes, BytesMut};

mod connect;
mod event;
mod frame;
mod multi;
mod records;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use connect::{ConnectRequest, ConnectResponse, PASSWORD_BYTES, Password};
pub use event::{EventType, KeeperState, WatcherEvent};
pub use frame::{FrameError, Frames};
pub use multi::{Headed, MultiHeader, MultiResult, Operation, Operations, ReadOperation};
pub use records::{AclRecord, IdRecord, Stat};
pub use reply::{
    AclReply, Children2Reply, ChildrenReply, ClientInfo, Create2Reply, DataReply, ErrorReply, NumberReply, PathReply,
    ReplyHeader, StatReply, WhoAmIReply, xid,
};
pub use request::{
    AddWatch, AuthPacket, CheckVersion, Create, CreateKind, Delete, GetAcl, GetChildrenNumber, GetEphemerals,
    PathAndWatch, Reconfig, Request, RequestHeader, SetAcl, SetData, SetWatches, SetWatches2, Sync, WatchesOfType, op,
};

/// Why a frame could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside a field.
    #[error("unexpected end of input: the field needs {wanted} bytes, {left} remain")]
    Truncated {
        /// Length of the field in bytes.
        wanted: usize,
        /// Remaining bytes of the input.
        left: usize,
    },
    /// A length below -1.
    #[error("negative length {0}")]
    NegativeLength(i32),
    /// A string that is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// Null where a value is required.
    #[error("a required string is null")]
    Null,
    /// The value of a field is out of range.
    #[error("invalid {what} {value}")]
    Invalid {
        what: &'static str,
        /// The value that was read.
        value: i32,
    },
    /// An operation that the server does not know.
    #[error("unknown operation {0}")]
    UnknownOperation(i32),
}

/// A frame would exceed its limit. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame exceeds {limit} bytes")]
pub struct FrameTooLong {
    /// The limit in bytes.
    pub limit: usize,
}

/// A value that can be encoded in a frame.
pub trait Record<'a>: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// When the input is too short, or a field is invalid.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    fn encode(&self, writer: &mut Writer);
}

/// Defines a record: its fields in the order of their encoding. The second form is for records without borrowed fields.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident<'a> { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields have the names of zookeeper.jute")]
        pub struct $name<'a> { $(pub $field: $type,)* }
        $crate::jute::record!(@codec $name<'a> { $($field,)* });
    };
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields have the names of zookeeper.jute")]
        pub struct $name { $(pub $field: $type,)* }
        $crate::jute::record!(@codec $name { $($field,)* });
    };
    (@codec $name:ident $(<$life:lifetime>)? { $($field:ident,)* }) => {
        impl<'a> $crate::jute::Record<'a> for $name $(<$life>)? {
            fn decode(reader: &mut $crate::jute::Reader<'a>) -> Result<Self, $crate::jute::DecodeError> {
                Ok(Self { $($field: $crate::jute::Record::decode(reader)?,)* })
            }

            fn encode(&self, writer: &mut $crate::jute::Writer) {
                $($crate::jute::Record::encode(&self.$field, writer);)*
            }
        }
    };
}
use record;

/// Reads values from a frame.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    input: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `input`.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { input }
    }

    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.input
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let left = self.input.len();
        let (value, rest) = self.input.split_first_chunk::<N>().ok_or(DecodeError::Truncated { wanted: N, left })?;
        self.input = rest;
        Ok(*value)
    }

    /// The bytes of a buffer or string; `None` for null.
    fn buffer(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let length = i32::decode(self)?;
        if length == -1 {
            return Ok(None);
        }
        let wanted = usize::try_from(length).map_err(|_| DecodeError::NegativeLength(length))?;
        let left = self.input.len();
        let (value, rest) = self.input.split_at_checked(wanted).ok_or(DecodeError::Truncated { wanted, left })?;
        self.input = rest;
        Ok(Some(value))
    }
}

/// Maximum length of a frame in bytes that its length prefix can express.
const FRAME_BYTES_LIMIT: usize = i32::MAX as usize;

/// Writes values and frames. Bytes beyond the limit of a frame are dropped.
#[derive(Debug)]
pub struct Writer {
    buffer: BytesMut,
    limit: usize,
    is_over_limit: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self::with_chunks(0)
    }
}

impl Writer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer that allocates memory in chunks of this size, for many small frames.
    #[must_use]
    pub fn with_chunks(bytes: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(bytes), limit: FRAME_BYTES_LIMIT, is_over_limit: false }
    }

    /// Returns the written bytes. Their memory is reused once they are dropped.
    pub fn take(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// Writes one frame: its length, then the output of `body`. The caller guarantees that the body is short: its
    /// variable parts were received in one frame.
    pub fn frame(&mut self, body: impl FnOnce(&mut Self)) -> Bytes {
        let frame = self.frame_within(FRAME_BYTES_LIMIT, body);
        debug_assert!(frame.is_ok(), "the content of one frame fits into another one");
        frame.unwrap_or_default()
    }

    /// Writes one frame of at most `limit` bytes, including its length.
    ///
    /// # Errors
    /// When `body` writes more. At most `limit` bytes of it were buffered.
    pub fn frame_within(&mut self, limit: usize, body: impl FnOnce(&mut Self)) -> Result<Bytes, FrameTooLong> {
        self.buffer.clear();
        (self.limit, self.is_over_limit) = (limit.min(FRAME_BYTES_LIMIT), false);
        self.raw(&[0; 4]);
        body(self);
        let is_over_limit = std::mem::take(&mut self.is_over_limit);
        self.limit = FRAME_BYTES_LIMIT;
        match i32::try_from(self.buffer.len().wrapping_sub(4)) {
            Ok(length) if !is_over_limit => {
                self.buffer[..4].copy_from_slice(&length.to_be_bytes());
                Ok(self.take())
            }
            _ => {
                // Frees the memory.
                self.buffer = BytesMut::new();
                Err(FrameTooLong { limit })
            }
        }
    }

    /// Whether the frame exceeds its limit. Further output is dropped.
    #[must_use]
    pub const fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        if bytes.len() > self.limit - self.buffer.len() {
            self.is_over_limit = true;
        }
        if !self.is_over_limit {
            self.buffer.put_slice(bytes);
        }
    }

    fn length(&mut self, length: usize) {
        match i32::try_from(length) {
            Ok(length) => length.encode(self),
            Err(_) => self.is_over_limit = true,
        }
    }

    pub fn sequence<'a, T: Record<'a>>(&mut self, items: impl ExactSizeIterator<Item = T>) {
        self.length(items.len());
        items.for_each(|item| item.encode(self));
    }
}

macro_rules! number {
    ($($type:ty)*) => {$(
        impl<'a> Record<'a> for $type {
            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                reader.array().map(Self::from_be_bytes)
            }

            fn encode(&self, writer: &mut Writer) {
                writer.raw(&self.to_be_bytes());
            }
        }
    )*};
}

number!(i32 i64);

impl<'a> Record<'a> for bool {
    /// Like Java: any value but zero is true.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.array::<1>().map(|[byte]| byte != 0)
    }

    fn encode(&self, writer: &mut Writer) {
        writer.raw(&[u8::from(*self)]);
    }
}

impl<'a> Record<'a> for Option<&'a [u8]> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.buffer()
    }

    fn encode(&self, writer: &mut Writer) {
        match self {
            Some(bytes) => {
                writer.length(bytes.len());
                writer.raw(bytes);
            }
            None => (-1).encode(writer),
        }
    }
}

impl<'a> Record<'a> for Option<&'a str> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.buffer()?.map(|bytes| str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)).transpose()
    }

    fn encode(&self, writer: &mut Writer) {
        self.map(str::as_bytes).encode(writer);
    }
}

impl<'a> Record<'a> for &'a str {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Option::<&str>::decode(reader)?.ok_or(DecodeError::Null)
    }

    fn encode(&self, writer: &mut Writer) {
        Some(*self).encode(writer);
    }
}

/// A vector: either a slice of values, or validated but still encoded. A null vector decodes as an empty one.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a, T>(Items<'a, T>);

#[derive(Clone, Copy, Debug)]
enum Items<'a, T> {
    Given(&'a [T]),
    Encoded { count: usize, bytes: &'a [u8] },
}

impl<'a, T> Sequence<'a, T> {
    /// A vector of these values.
    #[must_use]
    pub const fn of(items: &'a [T]) -> Self {
        Self(Items::Given(items))
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Items::Given(items) => items.len(),
            Items::Encoded { count, .. } => count,
        }
    }

    /// Whether the vector is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Record<'a> + Copy> Sequence<'a, T> {
    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (given, count, bytes): (&[T], usize, &[u8]) = match self.0 {
            Items::Given(items) => (items, 0, &[]),
            Items::Encoded { count, bytes } => (&[], count, bytes),
        };
        let mut reader = Reader::new(bytes);
        let encoded = (0..count).map_while(move |_| T::decode(&mut reader).ok());
        given.iter().copied().chain(encoded)
    }
}

impl<'a, T: Record<'a> + Copy + PartialEq> PartialEq for Sequence<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Record<'a> + Copy + Eq> Eq for Sequence<'a, T> {}

impl<'a, T: Record<'a> + Copy> Record<'a> for Sequence<'a, T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length = i32::decode(reader)?;
        if length < -1 {
            return Err(DecodeError::NegativeLength(length));
        }
        let count = usize::try_from(length).unwrap_or(0);
        let bytes = reader.rest();
        for _ in 0..count {
            T::decode(reader)?;
        }
        Ok(Self(Items::Encoded { count, bytes: &bytes[..bytes.len() - reader.rest().len()] }))
    }

    fn encode(&self, writer: &mut Writer) {
        writer.length(self.len());
        self.iter().for_each(|item| item.encode(writer));
    }
}
