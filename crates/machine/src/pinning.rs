//! What of an entry's buffer a state may keep hold of.
//!
//! Decoded byte strings are slices of the entry's (or a checkpoint chunk's) buffer, and one slice keeps the whole
//! buffer alive. The entry's own buffer may be a slice too, of a message that brought a whole megabyte of entries: so a
//! value is copied out, unless it is so large that no such message is many times its size.

use bytes::Bytes;

/// Below this a value is copied. A quarter of what one message between nodes gathers (1 MiB): a larger value pins no
/// more than four times its own size.
const COPY_BELOW_BYTES: usize = 256 << 10;

/// A slice is kept only if it is this part (one n-th) of its buffer at least: memory held is bounded by n times what is
/// accounted for.
const KEPT_PART: usize = 4;

/// `slice`, which lies in a buffer of `buffer_bytes`, as something that may be kept for long.
#[must_use]
pub fn owned(slice: &Bytes, buffer_bytes: usize) -> Bytes {
    if slice.len() < COPY_BELOW_BYTES || slice.len().saturating_mul(KEPT_PART) < buffer_bytes {
        Bytes::copy_from_slice(slice)
    } else {
        slice.clone()
    }
}
