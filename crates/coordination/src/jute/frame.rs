//! Length-prefixed frames.

use bytes::{Buf, Bytes, BytesMut};

/// A received frame without its length prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole frame.
    Whole(Bytes),
    /// A frame above the limit. Only the request header was kept, for an error reply.
    Oversized(Bytes),
}

impl Frame {
    /// The retained bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        let (Self::Whole(bytes) | Self::Oversized(bytes)) = self;
        bytes
    }
}

/// Why the rest of a connection's input is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is negative or far above the limit.
    #[error("frame length {0} is out of range")]
    Length(i32),
}

/// Bytes kept of an oversized frame: xid and operation.
const HEADER_BYTES: usize = 8;
/// Longer frames, as a multiple of the limit, are not skipped but end the connection.
const OVERSIZED_FACTOR: usize = 16;

/// Splits the bytes of a connection into frames.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Remaining bytes of an oversized frame to skip.
    dropping: usize,
    limit: usize,
}

impl Frames {
    /// Creates a decoder for frames of at most `limit` bytes (`jute.maxbuffer`).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), dropping: 0, limit }
    }

    /// Adds received bytes. At most one frame and these bytes are buffered.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let dropped = self.dropping.min(bytes.len());
        bytes.advance(dropped);
        self.dropping -= dropped;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, if it is complete.
    ///
    /// # Errors
    /// When the length is out of range: the connection must be closed.
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide that more bytes may follow")]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let prefix = i32::from_be_bytes(*prefix);
        let length = usize::try_from(prefix).map_err(|_| FrameError::Length(prefix))?;
        if length > self.limit.saturating_mul(OVERSIZED_FACTOR) {
            return Err(FrameError::Length(prefix));
        }
        let kept = if length > self.limit { HEADER_BYTES.min(length) } else { length };
        if self.buffer.len() < 4 + kept {
            return Ok(None);
        }
        self.buffer.advance(4);
        let frame = self.buffer.split_to(kept).freeze();
        if kept == length {
            return Ok(Some(Frame::Whole(frame)));
        }
        let rest = length - kept;
        let here = rest.min(self.buffer.len());
        self.buffer.advance(here);
        self.dropping = rest - here;
        Ok(Some(Frame::Oversized(frame)))
    }

    /// Buffered bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.len()
    }
}
