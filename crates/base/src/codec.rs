//! The binary codec of frames, records and messages: little-endian numbers, byte strings with their length first.
//!
//! Decoding never panics and never allocates more than the input holds: a byte string is a slice of the input's own
//! buffer.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{Epoch, Lsn, Sequence};

/// Why bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside a field.
    #[error("the input ends inside a field: {wanted} bytes wanted, {left} left")]
    Truncated {
        /// Bytes the field needs.
        wanted: usize,
        /// Bytes that were left.
        left: usize,
    },
    /// A tag that this version does not know.
    #[error("unknown {what} tag {tag}")]
    UnknownTag {
        /// The kind of thing that was to be read.
        what: &'static str,
        /// The tag.
        tag: u64,
    },
    /// A field holds a value that it can't have.
    #[error("invalid {what}")]
    Invalid {
        /// The field.
        what: &'static str,
    },
    /// Bytes are left over after the last field.
    #[error("{0} bytes left over")]
    TrailingBytes(usize),
}

/// Writes fields one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    buffer: BytesMut,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(capacity) }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.buffer.put_u8(value);
    }

    /// A boolean, as one byte.
    pub fn bool(&mut self, value: bool) {
        self.buffer.put_u8(u8::from(value));
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.buffer.put_u32_le(value);
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.buffer.put_u64_le(value);
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, value: i64) {
        self.buffer.put_i64_le(value);
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) {
        self.buffer.put_u128_le(value);
    }

    /// An LSN: its epoch, then its sequence.
    pub fn lsn(&mut self, lsn: Lsn) {
        self.u64(lsn.epoch.0);
        self.u64(lsn.sequence.0);
    }

    /// A byte string: its length as four bytes, then its bytes.
    ///
    /// # Panics
    /// When the string is longer than `u32::MAX`, which every limit forbids.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("limits keep byte strings below 4 GiB"));
        self.buffer.put_slice(bytes);
    }

    /// A byte string that may be absent: whether it is there, then the string.
    pub fn optional(&mut self, bytes: Option<&Bytes>) {
        self.bool(bytes.is_some());
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }

    /// A number of items, as [`Reader::count`] reads it.
    ///
    /// # Panics
    /// When it is above `u32::MAX`, which every limit forbids.
    pub fn count(&mut self, items: usize) {
        self.u32(u32::try_from(items).expect("limits keep counts below 2^32"));
    }

    /// Bytes without their length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// What was written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// Overwrites four bytes written before, for a length or checksum known only later.
    ///
    /// # Panics
    /// When `at + 4` lies past what was written.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        self.buffer[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Ends the writing.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }

    /// Gives what was written so far, and begins anew. Once that is dropped its room is written to again.
    pub fn take(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// Forgets what was written after so many bytes.
    pub fn truncate(&mut self, length: usize) {
        self.buffer.truncate(length);
    }

    /// Forgets what was written, and keeps the room.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }
}

/// Reads fields one after the other. Byte strings share the input's buffer.
#[derive(Clone, Debug)]
pub struct Reader {
    input: Bytes,
}

impl Reader {
    /// A reader of `input`.
    #[must_use]
    pub fn new(input: Bytes) -> Self {
        Self { input }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.input.len()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let left = self.input.len();
        let field = self.input.first_chunk::<N>().copied().ok_or(DecodeError::Truncated { wanted: N, left })?;
        let _ = self.input.split_to(N);
        Ok(field)
    }

    /// One byte.
    ///
    /// # Errors
    /// When the input ends first; so with every method below.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    /// A boolean.
    ///
    /// # Errors
    /// Also when the byte is neither 0 nor 1.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid { what: "boolean" }),
        }
    }

    /// Four bytes.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Eight bytes, signed.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.take()?))
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.take()?))
    }

    /// An LSN.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        Ok(Lsn { epoch: Epoch(self.u64()?), sequence: Sequence(self.u64()?) })
    }

    /// A byte string, sharing the input's buffer.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let wanted = self.u32()? as usize;
        self.raw(wanted)
    }

    /// A byte string that may be absent, as [`Writer::optional`] writes it.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn optional(&mut self) -> Result<Option<Bytes>, DecodeError> {
        if self.bool()? { Ok(Some(self.bytes()?)) } else { Ok(None) }
    }

    /// A byte string that is UTF-8.
    ///
    /// # Errors
    /// When the input ends first, or `what` is not UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| DecodeError::Invalid { what })
    }

    /// Exactly `wanted` bytes, sharing the input's buffer.
    ///
    /// # Errors
    /// When the input ends first.
    pub fn raw(&mut self, wanted: usize) -> Result<Bytes, DecodeError> {
        let left = self.input.len();
        if wanted > left {
            return Err(DecodeError::Truncated { wanted, left });
        }
        Ok(self.input.split_to(wanted))
    }

    /// The number of items that follow, refused when so many can't be in what is left: each takes `item_bytes` at
    /// least.
    ///
    /// # Errors
    /// When the count is a lie, or the input ends first.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        let wanted = count.saturating_mul(item_bytes);
        if wanted > self.left() {
            return Err(DecodeError::Truncated { wanted, left: self.left() });
        }
        Ok(count)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When bytes are left over.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.input.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes(self.input.len())) }
    }
}
