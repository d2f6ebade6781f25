//! A buffer for direct IO.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::BLOCK_BYTES;

/// Bytes with an address that is a multiple of [`BLOCK_BYTES`]. Avoids `unsafe`: a vector with one spare block, used
/// from the first aligned address. The vector never grows, so its allocation does not move.
pub struct AlignedBuffer {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let room = vec![0; len + BLOCK_BYTES];
        let start = (BLOCK_BYTES - room.as_ptr().addr() % BLOCK_BYTES) % BLOCK_BYTES;
        Self { room, start, len }
    }
}

impl AlignedBuffer {
    /// Copies `bytes`, padded with zeros to `len`, into this buffer if it is large enough, or into a new one.
    ///
    /// # Panics
    /// When `len` is less than the length of `bytes`.
    #[must_use]
    pub fn refilled(mut self, bytes: &[u8], len: usize) -> Self {
        if self.start + len > self.room.len() {
            self = Self::zeroed(len);
        }
        self.len = len;
        let (content, padding) = self.split_at_mut(bytes.len());
        content.copy_from_slice(bytes);
        padding.fill(0);
        self
    }
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
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
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
