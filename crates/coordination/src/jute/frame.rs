//! Length-prefixed frames.

use bytes::{Buf, Bytes, BytesMut};

/// Why the rest of a connection's input is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is negative or above the limit.
    #[error("frame length {length} is out of range: at most {limit} bytes (jute.maxbuffer)")]
    Length {
        length: i32,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Splits the bytes of a connection into frames.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    limit: usize,
}

impl Frames {
    /// Creates a decoder for frames of at most `limit` bytes (`jute.maxbuffer`).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit }
    }

    /// Adds received bytes. At most one frame and these bytes are buffered.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame without its length prefix, if it is complete.
    ///
    /// # Errors
    /// When the length is out of range: the connection must be closed, as in ZooKeeper.
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide that more bytes may follow")]
    pub fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let prefix = i32::from_be_bytes(*prefix);
        let length = usize::try_from(prefix).ok().filter(|length| *length <= self.limit);
        let length = length.ok_or(FrameError::Length { length: prefix, limit: self.limit })?;
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.len()
    }
}
