//! The two-level index: index blocks refer to data blocks, and the top index refers to index blocks.
//!
//! The key and timestamp of an entry are a *separator*: not before the last version of its block, and before the first
//! version of the next one. The value is the block's handle. So the first entry not before a target refers to the block
//! that contains the target or its place. If the separator is past the block's last version, the target may be the
//! first version of the next block.

use base::Timestamp;

use super::block::{BlockBuilder, shared_bytes};
use super::frame::Handle;
use super::{Malformed, varint};

/// Minimum entries of an index block, whatever their size: with keys of maximum length the top index would otherwise be
/// as large as the keys themselves.
const ENTRIES_MIN: usize = 8;

/// Builds one block of an index.
#[derive(Default)]
pub(super) struct IndexBuilder {
    block: BlockBuilder,
    value: Vec<u8>,
}

impl IndexBuilder {
    pub(super) fn add(&mut self, (key, timestamp): (&[u8], Timestamp), handle: Handle) {
        self.value.clear();
        varint::put(&mut self.value, handle.offset);
        varint::put(&mut self.value, u64::from(handle.length));
        self.block.add(key, timestamp, Some(&self.value));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.block.entries() == 0
    }

    /// Whether an index block is full.
    pub(super) fn is_full(&self, block_bytes: usize) -> bool {
        self.block.bytes() >= block_bytes && self.block.entries() >= ENTRIES_MIN
    }

    pub(super) fn last(&self) -> (&[u8], Timestamp) {
        self.block.last()
    }

    pub(super) fn finish(&mut self) -> &[u8] {
        self.block.finish()
    }

    pub(super) fn clear(&mut self) {
        self.block.clear();
    }
}

/// Decodes the handle in an entry's value.
pub(super) fn handle(value: Option<&[u8]>) -> Result<Handle, Malformed> {
    let value = value.ok_or(Malformed)?;
    let mut at = 0;
    let offset = varint::take(value, &mut at).ok_or(Malformed)?;
    let length = varint::take(value, &mut at).and_then(|length| u32::try_from(length).ok()).ok_or(Malformed)?;
    if at == value.len() { Ok(Handle { offset, length }) } else { Err(Malformed) }
}

/// A short separator between the last version of a block and a next block that begins with the key `next`.
///
/// It is never equal to `next`, with any timestamp: a search for the newest version of `next` must find its block
/// directly.
pub(super) fn separator<'a>(last: (&'a [u8], Timestamp), next: &'a [u8]) -> (&'a [u8], Timestamp) {
    let length = shared_bytes(last.0, next) + 1;
    if length < last.0.len() && length < next.len() { (&next[..length], Timestamp(i64::MAX)) } else { last }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sstable::compare;

    #[test]
    fn separator_is_short_and_in_range() {
        for (last, next, expected) in [
            ("apple", "banana", "b"),
            ("apple", "apricot", "apr"),
            ("a", "b", "a"),
            ("row1", "row2", "row1"),
            ("row", "row/column", "row"),
            ("row", "row", "row"),
            ("", "row", ""),
        ] {
            let last = (last.as_bytes(), Timestamp(7));
            let found = separator(last, next.as_bytes());
            assert_eq!(found.0, expected.as_bytes());
            assert!(compare(last, found).is_le());
            assert!(compare(found, (next.as_bytes(), Timestamp(6))).is_lt());
        }
    }

    #[test]
    fn rejects_invalid_handles() {
        for value in [None, Some(&[][..]), Some(&[1]), Some(&[1, 2, 3]), Some(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 1])] {
            assert!(handle(value).is_err());
        }
        assert_eq!(handle(Some(&[1, 2])), Ok(Handle { offset: 1, length: 2 }));
    }
}
