//! The binary codec of frames, records and messages: little-endian numbers, and byte strings after their length.
//!
//! Decoding never panics and never allocates more than the size of the input: a decoded byte string is a slice of the
//! input's buffer.

use bytes::{BufMut, Bytes, BytesMut};

#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wire;

pub use wire::{AtMost, Framed, OrZero, Present, Size32, Size64, Text, Wire, WireAs};

use crate::{Epoch, Lsn, Sequence};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside a field.
    #[error("unexpected end of input: {wanted} bytes expected, {left} left")]
    Truncated {
        /// Bytes that the field needs.
        wanted: usize,
        /// Bytes that were available.
        left: usize,
    },
    /// The tag is unknown in this version.
    #[error("unknown {what} tag {tag}")]
    UnknownTag {
        /// The kind of object to decode.
        what: &'static str,
        tag: u64,
    },
    /// The value of a field is out of range.
    #[error("invalid {what}")]
    Invalid { what: &'static str },
    /// Bytes remain after the last field.
    #[error("{0} trailing bytes")]
    TrailingBytes(usize),
}

/// Byte strings from this size on are not copied by a writer that [keeps them](Writer::by_reference): a slice of its own in
/// the socket's call costs less.
const KEPT_BYTES_MIN: usize = 16 << 10;

/// Writes fields in sequence.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    buffer: BytesMut,
    /// Long byte strings that are not copied, if they need not be.
    kept: Option<Box<Kept>>,
}

/// The byte strings that a writer keeps, each with the number of bytes of its buffer before it.
#[derive(Clone, Debug, Default)]
struct Kept {
    strings: Vec<(usize, Bytes)>,
    bytes: usize,
}

impl Writer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(capacity), kept: None }
    }

    /// A writer that does not copy long byte strings. Its content is in several pieces ([`Writer::take_pieces`]).
    #[must_use]
    pub fn by_reference() -> Self {
        Self { buffer: BytesMut::new(), kept: Some(Box::default()) }
    }

    /// A writer that appends to this buffer.
    #[must_use]
    pub fn over(buffer: BytesMut) -> Self {
        Self { buffer, kept: None }
    }

    /// Returns the buffer, with everything that was written.
    #[must_use]
    pub fn into_buffer(self) -> BytesMut {
        self.buffer
    }

    pub fn u8(&mut self, value: u8) {
        self.buffer.put_u8(value);
    }

    /// A boolean, as one byte.
    pub fn bool(&mut self, value: bool) {
        self.buffer.put_u8(u8::from(value));
    }

    pub fn u16(&mut self, value: u16) {
        self.buffer.put_u16_le(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.buffer.put_u32_le(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.buffer.put_u64_le(value);
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, value: i64) {
        self.buffer.put_i64_le(value);
    }

    pub fn u128(&mut self, value: u128) {
        self.buffer.put_u128_le(value);
    }

    /// An LSN: its epoch, then its sequence.
    pub fn lsn(&mut self, lsn: Lsn) {
        self.u64(lsn.epoch.0);
        self.u64(lsn.sequence.0);
    }

    /// A byte string: its length as four bytes, then the bytes.
    ///
    /// # Panics
    /// If the string is longer than `u32::MAX`; all limits are lower.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("limits keep byte strings below 4 GiB"));
        self.buffer.put_slice(bytes);
    }

    /// A byte string that need not be copied: like [`Writer::bytes`].
    ///
    /// # Panics
    /// Like [`Writer::bytes`].
    pub fn shared(&mut self, bytes: &Bytes) {
        let kept = self.kept.as_mut().filter(|_| bytes.len() >= KEPT_BYTES_MIN);
        let Some(kept) = kept else { return self.bytes(bytes) };
        self.buffer.put_u32_le(u32::try_from(bytes.len()).expect("limits keep byte strings below 4 GiB"));
        kept.bytes += bytes.len();
        kept.strings.push((self.buffer.len(), bytes.clone()));
    }

    /// An optional byte string: a presence flag, then the string.
    pub fn optional(&mut self, bytes: Option<&Bytes>) {
        self.bool(bytes.is_some());
        if let Some(bytes) = bytes {
            self.shared(bytes);
        }
    }

    /// A number of items, for [`Reader::count`].
    ///
    /// # Panics
    /// If it is above `u32::MAX`; all limits are lower.
    pub fn count(&mut self, items: usize) {
        self.u32(u32::try_from(items).expect("limits keep counts below 2^32"));
    }

    /// Bytes without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Bytes written so far, without those that it keeps by reference.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes that it keeps by reference.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.bytes)
    }

    /// The pieces of everything after the first `from` bytes of [`Writer::len`], in order.
    pub fn pieces(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        let strings = self.kept.iter().flat_map(|kept| &kept.strings).filter(move |(at, _)| *at > from);
        let mut copied = from;
        let pieces = strings.flat_map(move |(at, string)| {
            let before = &self.buffer[std::mem::replace(&mut copied, *at)..*at];
            [before, &string[..]]
        });
        let last = self.kept.as_ref().and_then(|kept| Some(kept.strings.last()?.0)).map_or(from, |at| at.max(from));
        pieces.chain(std::iter::once(&self.buffer[last..]))
    }

    /// Passes the written bytes to `take` in order, and clears the writer.
    pub fn take_pieces(&mut self, mut take: impl FnMut(Bytes)) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.bytes > 0) {
            kept.bytes = 0;
            let mut taken = 0;
            for (at, string) in kept.strings.drain(..) {
                take(self.buffer.split_to(at - taken).freeze());
                take(string);
                taken = at;
            }
        }
        take(self.buffer.split().freeze());
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// Overwrites four bytes, for a length or checksum that is known only later.
    ///
    /// # Panics
    /// If `at + 4` is beyond the bytes written.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        self.buffer[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the bytes written.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.buffer.freeze()
    }

    /// Returns the bytes written so far, and starts again. The buffer is reused once the returned bytes are dropped.
    pub fn take(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// Discards everything after the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.buffer.truncate(length);
        if let Some(kept) = &mut self.kept {
            kept.strings.retain(|(at, _)| *at <= length);
            kept.bytes = kept.strings.iter().map(|(_, string)| string.len()).sum();
        }
    }

    /// Discards everything, and keeps the buffer.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }
}

/// Reads fields in sequence. Byte strings share the input's buffer.
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
    /// The input is too short; this also holds for all methods below.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    /// A boolean.
    ///
    /// # Errors
    /// The byte is neither 0 nor 1, or the input is too short.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid { what: "boolean" }),
        }
    }

    /// Two bytes.
    ///
    /// # Errors
    /// The input is too short.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// The input is too short.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// The input is too short.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Eight bytes, signed.
    ///
    /// # Errors
    /// The input is too short.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.take()?))
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// The input is too short.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.take()?))
    }

    /// An LSN.
    ///
    /// # Errors
    /// The input is too short.
    pub fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        Ok(Lsn { epoch: Epoch(self.u64()?), sequence: Sequence(self.u64()?) })
    }

    /// A byte string that shares the input's buffer.
    ///
    /// # Errors
    /// The input is too short.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let wanted = self.u32()? as usize;
        self.raw(wanted)
    }

    /// An optional byte string, as written by [`Writer::optional`].
    ///
    /// # Errors
    /// The input is too short.
    pub fn optional(&mut self) -> Result<Option<Bytes>, DecodeError> {
        if self.bool()? { Ok(Some(self.bytes()?)) } else { Ok(None) }
    }

    /// A byte string in UTF-8.
    ///
    /// # Errors
    /// The input is too short, or `what` is not UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| DecodeError::Invalid { what })
    }

    /// Exactly `wanted` bytes that share the input's buffer.
    ///
    /// # Errors
    /// The input is too short.
    pub fn raw(&mut self, wanted: usize) -> Result<Bytes, DecodeError> {
        let left = self.input.len();
        if wanted > left {
            return Err(DecodeError::Truncated { wanted, left });
        }
        Ok(self.input.split_to(wanted))
    }

    /// The number of items that follow. `item_bytes` is the minimum size of an item.
    ///
    /// # Errors
    /// The remaining input is too short for this number of items.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        let wanted = count.saturating_mul(item_bytes);
        if wanted > self.left() {
            return Err(DecodeError::Truncated { wanted, left: self.left() });
        }
        Ok(count)
    }

    /// Ends reading.
    ///
    /// # Errors
    /// Bytes remain.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.input.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes(self.input.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that keeps long strings has the same content in pieces, also after a part is discarded.
    #[test]
    fn kept_strings_are_in_order() {
        let (short, long) = (Bytes::from_static(b"short"), Bytes::from(vec![7; KEPT_BYTES_MIN]));
        let (mut plain, mut keeps) = (Writer::new(), Writer::by_reference());
        for out in [&mut plain, &mut keeps] {
            out.shared(&long);
            out.u8(1);
            out.optional(Some(&long));
            out.shared(&short);
        }
        assert_eq!((keeps.kept_bytes(), keeps.len() + keeps.kept_bytes()), (2 * long.len(), plain.len()));
        let from = 4;
        let rest: Vec<u8> = keeps.pieces(from).flatten().copied().collect();
        assert_eq!(rest, plain.as_slice()[from + long.len()..], "the first string is before that");
        let end = keeps.len();
        keeps.shared(&long);
        keeps.truncate(end);
        let mut pieces = Vec::new();
        keeps.take_pieces(|piece| pieces.push(piece));
        assert_eq!(pieces[1].as_ptr(), long.as_ptr(), "not copied");
        assert_eq!(pieces.concat(), plain.as_slice());
        assert!(keeps.is_empty() && keeps.kept_bytes() == 0);
        keeps.u8(9);
        keeps.take_pieces(|piece| assert_eq!(piece[..], [9]));
    }
}
