//! A buffer fit for IO past the page cache.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::BLOCK_BYTES;

/// Bytes whose address is a multiple of [`BLOCK_BYTES`]. Kept without `unsafe`: a vector with a block to spare, of which
/// the part that begins at a multiple is used. The vector is never made longer, so its heap stays where it is.
pub struct AlignedBuffer {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let room = vec![0; len + BLOCK_BYTES];
        let start = (BLOCK_BYTES - room.as_ptr().addr() % BLOCK_BYTES) % BLOCK_BYTES;
        Self { room, start, len }
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
