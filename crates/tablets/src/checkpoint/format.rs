//! The tags and fields of chunks. A change of anything here is a new [`VERSION`].

use base::codec::Writer;
use bytes::Bytes;

/// The first eight bytes after a header's tag.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"loggos-s");
pub(crate) const VERSION: u32 = 5;

/// What a chunk holds. Chunks come in the order of their tags.
pub(crate) const HEADER: u8 = 1;
pub(crate) const NODES: u8 = 2;
pub(crate) const TABLES: u8 = 3;
pub(crate) const LOGS: u8 = 4;
pub(crate) const SESSIONS: u8 = 5;
pub(crate) const END: u8 = 6;

/// Whose state it is.
pub(crate) const CATALOGUE: u8 = 1;
pub(crate) const TABLET: u8 = 2;
pub(crate) const UNIT: u8 = 3;

/// The outcome of a session's write.
pub(crate) const WRITTEN: u8 = 1;
pub(crate) const MISMATCH: u8 = 2;

/// The chunk that seals `count` chunks before it, whose bytes one after the other have `checksum`.
pub(crate) fn end(count: u64, checksum: u32) -> Bytes {
    let mut out = Writer::new();
    out.u8(END);
    out.u64(count);
    out.u32(checksum);
    out.finish()
}
