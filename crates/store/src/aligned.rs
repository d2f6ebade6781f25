//! A buffer for direct IO.

use std::fmt;
use std::ops::{Deref, DerefMut};

use base::codec::Writer;
use bytes::{BufMut as _, Bytes, BytesMut};

use crate::BLOCK_BYTES;

/// Bytes with an address that is a multiple of [`BLOCK_BYTES`]. Avoids `unsafe`: a buffer with one spare block, used from the
/// first aligned address. The buffer never grows, so its allocation does not move.
pub struct AlignedBuffer {
    room: BytesMut,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let room = BytesMut::zeroed(len + BLOCK_BYTES);
        Self { start: padding_before(&room), room, len }
    }

    /// `len` bytes, which `write` appends to a buffer that others may be in. Missing ones are zeros.
    ///
    /// # Panics
    /// When it appends more.
    #[must_use]
    pub fn written(len: usize, write: impl FnOnce(&mut Writer)) -> Self {
        Self { room: BytesMut::new(), start: 0, len: 0 }.rewritten(len, write)
    }

    /// The same, in this buffer if it is large enough.
    ///
    /// # Panics
    /// When `write` appends more than `len` bytes.
    #[must_use]
    pub fn rewritten(self, len: usize, write: impl FnOnce(&mut Writer)) -> Self {
        let mut room = self.room;
        room.clear();
        if room.capacity() < len + BLOCK_BYTES {
            room = BytesMut::with_capacity(len + BLOCK_BYTES);
        }
        let start = padding_before(&room);
        room.put_bytes(0, start);
        let mut out = Writer::over(room);
        write(&mut out);
        assert!(out.len() <= start + len, "what is written fits");
        let mut room = out.into_buffer();
        room.put_bytes(0, start + len - room.len());
        debug_assert_eq!(padding_before(&room), start, "the buffer did not move");
        Self { room, start, len }
    }

    /// The content, without a copy. It keeps one block more in memory.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.room.freeze().slice(self.start..self.start + self.len)
    }

    /// Keeps only the first `len` bytes.
    ///
    /// # Panics
    /// When it is not longer.
    pub fn shorten(&mut self, len: usize) {
        assert!(len <= self.len, "shorten does not lengthen");
        self.len = len;
    }

    /// Copies `bytes`, padded with zeros to `len`, into this buffer if it is large enough, or into a new one.
    ///
    /// # Panics
    /// When `len` is less than the length of `bytes`.
    #[must_use]
    pub fn refilled(self, bytes: &[u8], len: usize) -> Self {
        self.rewritten(len, |out| out.raw(bytes))
    }
}

/// Bytes from the beginning of a buffer to its first aligned address.
fn padding_before(room: &BytesMut) -> usize {
    (BLOCK_BYTES - room.as_ptr().addr() % BLOCK_BYTES) % BLOCK_BYTES
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        Self::written(self.len, |out| out.raw(self))
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refill_clears_stale_bytes() {
        let mut buffer = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
        buffer.fill(7);
        let address = buffer.as_ptr();
        let buffer = buffer.refilled(&[1, 2], BLOCK_BYTES);
        assert_eq!((&buffer[..3], buffer.len(), buffer.as_ptr()), (&[1, 2, 0][..], BLOCK_BYTES, address));
        assert!(buffer[2..].iter().all(|byte| *byte == 0));
        let buffer = buffer.refilled(&[3; 3 * BLOCK_BYTES], 3 * BLOCK_BYTES);
        assert_eq!((buffer.as_ptr().addr() % BLOCK_BYTES, buffer[3 * BLOCK_BYTES - 1]), (0, 3));
    }
}
