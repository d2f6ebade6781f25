//! The blocks of a stripe in an in-place store ([`store::stream`]), under their numbers in the stripe.
//!
//! A block that was never written, or that was trimmed, is a hole. A block of zeros that is allocated has no content
//! either. All others have content of 4 KiB.

use std::ops::Range as Numbers;

use base::canary::{Bug, planted};
use base::{Entry, Sequence};
use state_machine::{LogicalHash, owned};
use store::sstable::Io;
use store::stream::{Empty, Piece, StreamError, StreamStore, StreamView};

use super::request::{BlockChange, BlockExtent, BlockRun, BlockState};
use crate::layout::{BLOCK_BYTES, StripeId};

/// Bytes of a block's key.
pub(crate) const KEY_BYTES: usize = 8;
/// Maximum steps of a query of the allocation, which blocks writers.
const STATUS_STEPS_MAX: usize = 16_384;
/// Number of blocks that are added to a hash at once.
const HASHED_BLOCKS: u64 = 256;
/// A block of zeros, for comparison.
const ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The key of a block for locks, which sorts like its number.
pub(crate) fn key_of(stripe: StripeId, block: u64) -> [u8; KEY_BYTES] {
    debug_assert!(block >> 48 == 0, "block numbers are validated");
    (u64::from(stripe.0) << 48 | block & ((1 << 48) - 1)).to_be_bytes()
}

/// Applies changes. Reads nothing.
pub(super) fn apply(store: &mut StreamStore, changes: &[BlockChange], entry: &Entry) {
    let mut edit = store.edit(entry.lsn.sequence);
    for change in changes {
        match change {
            BlockChange::Data { first, data } => {
                // The blocks share one buffer. They are flushed at the same time.
                let data = owned(data, entry.payload.len());
                for (block, content) in (*first..).zip(data.chunks_exact(BLOCK_BYTES as usize)) {
                    if content == ZEROES {
                        edit.clear(block..block + 1, Empty::Zero);
                    } else {
                        edit.put(block, data.slice_ref(content));
                    }
                }
            }
            BlockChange::Zero { first, count, keeps_allocated } => {
                let lost = u64::from(planted(Bug::DiskTrimLost) && !keeps_allocated && *count > 1);
                let to = if *keeps_allocated { Empty::Zero } else { Empty::Hole };
                edit.clear(*first..first.saturating_add(*count) - lost, to);
            }
        }
    }
}

/// The content of blocks.
pub(super) fn read(view: &StreamView, blocks: Numbers<u64>, io: Io) -> Result<Vec<BlockRun>, StreamError> {
    let run = |piece| match piece {
        Piece::Zeroes(count) => BlockRun::Zeroes(count),
        Piece::Data(data) => BlockRun::Data(data),
    };
    Ok(view.read(blocks, io)?.into_iter().map(run).collect())
}

/// The allocation of blocks: of all, or of the first ones if that takes too many steps; at least of one.
pub(super) fn status(view: &StreamView, blocks: Numbers<u64>) -> Result<Vec<BlockExtent>, StreamError> {
    let extent = |(count, state)| BlockExtent { count, state: state_of(state) };
    Ok(view.states(blocks, STATUS_STEPS_MAX)?.into_iter().map(extent).collect())
}

fn state_of(state: store::stream::BlockState) -> BlockState {
    match state {
        store::stream::BlockState::Hole => BlockState::Hole,
        store::stream::BlockState::Zero => BlockState::Zero,
        store::stream::BlockState::Data => BlockState::Data,
    }
}

/// Adds the states and the content of all blocks to a hash.
pub(super) fn hash(view: &StreamView, hash: &mut LogicalHash) -> Result<(), StreamError> {
    let mut block = 0;
    while block < u64::MAX {
        for (count, state) in view.states(block..u64::MAX, STATUS_STEPS_MAX)? {
            if state == store::stream::BlockState::Zero {
                hash.bytes(&block.to_be_bytes());
                hash.bytes(&count.to_be_bytes());
            }
            if state == store::stream::BlockState::Data {
                let end = block + count;
                for first in (block..end).step_by(HASHED_BLOCKS as usize) {
                    let mut number = first;
                    for piece in view.read(first..end.min(first + HASHED_BLOCKS), Io::PassBy)? {
                        let Piece::Data(data) = piece else { continue };
                        for content in data.chunks_exact(BLOCK_BYTES as usize) {
                            hash.bytes(&number.to_be_bytes());
                            hash.bytes(content);
                            number += 1;
                        }
                    }
                }
            }
            block += count;
        }
    }
    Ok(())
}

/// The view of a machine that has applied entries through this one.
pub(super) fn view(store: &StreamStore, applied: Sequence) -> StreamView {
    store.view().as_of(applied)
}
