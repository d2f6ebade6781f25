//! Decides when a state may keep a slice of an entry's buffer.
//!
//! Decoded byte strings are slices of the buffer of an entry or a checkpoint chunk, and one slice keeps the whole
//! buffer in memory. The entry's buffer may itself be a slice of a message with a megabyte of entries. So a value is
//! copied unless it is a large part of any such message.

use bytes::Bytes;

/// Smaller values are copied. This is a quarter of the maximum batch in one message between nodes (1 MiB), so a larger
/// value keeps at most four times its own size in memory.
const COPY_BELOW_BYTES: usize = 256 << 10;

/// A slice is kept only if it is at least one n-th of its buffer. So the memory held is at most n times the memory
/// accounted for.
const KEPT_PART: usize = 4;

/// Returns `slice`, which is part of a buffer of `buffer_bytes`, in a form that may be kept for long.
#[must_use]
pub fn owned(slice: &Bytes, buffer_bytes: usize) -> Bytes {
    if slice.len() < COPY_BELOW_BYTES || slice.len().saturating_mul(KEPT_PART) < buffer_bytes {
        Bytes::copy_from_slice(slice)
    } else {
        slice.clone()
    }
}
