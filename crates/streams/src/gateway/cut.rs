//! Cuts a client's change into changes of blocks, each within one stripe.

use base::canary::{Bug, planted};
use bytes::Bytes;

use crate::layout::{BLOCK_BYTES, Layout, StripeId};
use crate::stripe::request::{BlockChange, HOLE_BLOCKS_MAX, PartialBlock, WRITE_DATA_BYTES_MAX, ZERO_BLOCKS_MAX};

/// Zeros for parts of blocks.
const ZEROES: &[u8] = &[0; BLOCK_BYTES as usize];
/// Approximate bytes in memory of a tombstone or an empty value.
const CELL_BYTES: usize = 64;

/// A change of blocks, or of a part of one, in one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Whole(BlockChange),
    Part(PartialBlock),
}

impl Change {
    /// The first block, and the block after the last one.
    pub(super) fn span(&self) -> (u64, u64) {
        match self {
            Self::Whole(change) => {
                let (first, count) = change.span();
                (first, first.saturating_add(count))
            }
            Self::Part(part) => (part.block, part.block + 1),
        }
    }

    /// Bytes that it adds to a log entry, or to the memory of a replica.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Whole(BlockChange::Data { data, .. }) => data.len(),
            Self::Whole(BlockChange::Zero { count, keeps_allocated: true, .. }) => *count as usize * CELL_BYTES,
            Self::Whole(BlockChange::Zero { count, .. }) => (count / 256 + count.min(&512)) as usize * CELL_BYTES,
            Self::Part(_) => BLOCK_BYTES as usize,
        }
    }
}

/// The changes of a write.
pub(super) fn write(layout: &Layout, offset: u64, data: &Bytes) -> Vec<(StripeId, Change)> {
    let mut changes = Vec::new();
    for fragment in layout.fragments(offset, data.len() as u64) {
        let start = (fragment.offset - offset) as usize;
        let mut rest = data.slice(start..start + fragment.length as usize);
        let mut local = fragment.local;
        while !rest.is_empty() {
            let (block, within) = (local / BLOCK_BYTES, local % BLOCK_BYTES);
            let left = rest.len() as u64;
            let is_part = within != 0 || left < BLOCK_BYTES;
            let length = match is_part {
                true => left.min(BLOCK_BYTES - within),
                false => left.min(WRITE_DATA_BYTES_MAX as u64) / BLOCK_BYTES * BLOCK_BYTES,
            };
            let data = rest.split_to(length as usize);
            let change = match is_part {
                true => Change::Part(PartialBlock { block, start: within as u32, data }),
                false => Change::Whole(BlockChange::Data { first: block, data }),
            };
            changes.push((fragment.stripe, change));
            local += length;
        }
    }
    changes
}

/// The changes that make bytes zero. A trim is the same without the parts of blocks.
pub(super) fn zero(
    layout: &Layout,
    offset: u64,
    length: u64,
    keeps_allocated: bool,
    is_trim: bool,
) -> Vec<(StripeId, Change)> {
    let limit = if keeps_allocated { ZERO_BLOCKS_MAX } else { HOLE_BLOCKS_MAX };
    let mut changes = Vec::new();
    for stripe in (0..layout.stripes()).map(StripeId) {
        let (mut local, end) = layout.local(stripe, offset, length);
        while local < end {
            let (block, within, left) = (local / BLOCK_BYTES, local % BLOCK_BYTES, end - local);
            if within != 0 || left < BLOCK_BYTES {
                let length = left.min(BLOCK_BYTES - within);
                if planted(Bug::DiskZeroRounded) {
                    let change = BlockChange::Zero { first: block, count: 1, keeps_allocated };
                    changes.push((stripe, Change::Whole(change)));
                } else if !is_trim {
                    let data = Bytes::from_static(&ZEROES[..length as usize]);
                    changes.push((stripe, Change::Part(PartialBlock { block, start: within as u32, data })));
                }
                local += length;
            } else {
                let count = (left / BLOCK_BYTES).min(limit);
                let change = BlockChange::Zero { first: block, count, keeps_allocated };
                changes.push((stripe, Change::Whole(change)));
                local += count * BLOCK_BYTES;
            }
        }
    }
    changes
}
