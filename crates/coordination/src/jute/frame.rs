//! Frames: a length of four bytes, then so many bytes.

use bytes::{Buf, Bytes, BytesMut};

/// What the stream of a connection is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole frame, without its length.
    Whole(Bytes),
    /// A frame above the limit, of which only the beginning was kept: enough for a request's header, to which an error
    /// can be replied.
    Oversized(Bytes),
}

impl Frame {
    /// The bytes that were kept.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        let (Self::Whole(bytes) | Self::Oversized(bytes)) = self;
        bytes
    }
}

/// Why nothing more can be read from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No client sends such a length.
    #[error("frame length {0} is out of range")]
    Length(i32),
}

/// Bytes that are kept of a frame above the limit: xid and operation.
const HEADER_BYTES: usize = 8;
/// A frame so many times longer than the limit is no mistake to be answered.
const OVERSIZED_FACTOR: usize = 16;

/// Splits the bytes of a connection into frames.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Bytes of an oversized frame that are still to be dropped.
    dropping: usize,
    limit: usize,
}

impl Frames {
    /// Frames of at most `limit` bytes (`jute.maxbuffer`).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), dropping: 0, limit }
    }

    /// Takes bytes that were received. At most one frame and these bytes are held.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let dropped = self.dropping.min(bytes.len());
        bytes.advance(dropped);
        self.dropping -= dropped;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, if it was received whole.
    ///
    /// # Errors
    /// When the length is negative or absurd: the connection can't be continued.
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

    /// Bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.len()
    }
}
