//! The blocks of a stripe in a log-structured merge tree.
//!
//! A row of the tree is a *chunk* of 256 blocks (1 MiB), and a block is a column of it. So a hole of a whole chunk is
//! one tombstone of a row, and a trim of a large disk takes few of them. A block that was never written, or that is in
//! a hole, has no value. A block of zeros that is allocated has an empty value. All others have values of 4 KiB.
//!
//! Reads are as of the last applied entry. Only the newest version of a block is needed for that, so older ones may be
//! dropped as soon as a checkpoint is taken.

use std::ops::Range as Numbers;

use base::canary::{Bug, planted};
use base::{Entry, Timestamp};
use bytes::Bytes;
use state_machine::{LogicalHash, owned};
use store::cell::{self, Range};
use store::sstable::{Io, SstableError};
use store::tree::{Direction, Tree, View};

use super::request::{BlockChange, BlockExtent, BlockRun, BlockState};
use crate::layout::{BLOCK_BYTES, StripeId};

/// Blocks of a chunk: as many as a column name of one byte can number.
pub(crate) const BLOCKS_IN_CHUNK: u64 = 256;
/// Bytes of a block's key: stripe, chunk, block in the chunk.
pub(crate) const KEY_BYTES: usize = 8;
/// Bytes of it that form the row.
const ROW_BYTES: usize = KEY_BYTES - 1;
/// Reads of at most this many blocks look up each block, which can skip SSTables by their filters. Larger ones iterate.
const LOOKUPS_MAX: u64 = 4;
/// Maximum versions that a query of the allocation steps over.
const STATUS_STEPS_MAX: usize = 16_384;
/// A block of zeros, for comparison.
const ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// The key of a block, which sorts like its number.
pub(crate) fn key_of(stripe: StripeId, block: u64) -> [u8; KEY_BYTES] {
    debug_assert!(block >> 48 == 0, "block numbers are validated");
    (u64::from(stripe.0) << 48 | block & ((1 << 48) - 1)).to_be_bytes()
}

fn cell_of(stripe: StripeId, block: u64) -> Vec<u8> {
    let key = key_of(stripe, block);
    cell::encode(&key[..ROW_BYTES], &key[ROW_BYTES..])
}

/// The number of a block from its row and column; none if they are not those of a block.
fn block_of(row: &[u8], column: &[u8]) -> Option<u64> {
    let mut key = [0; KEY_BYTES];
    if row.len() != ROW_BYTES || column.len() != 1 {
        return None;
    }
    key[..ROW_BYTES].copy_from_slice(row);
    key[ROW_BYTES..].copy_from_slice(column);
    Some(u64::from_be_bytes(key) & ((1 << 48) - 1))
}

/// Applies a change. Reads nothing.
pub(super) fn apply(tree: &mut Tree, stripe: StripeId, change: &BlockChange, entry: &Entry) {
    match change {
        BlockChange::Data { first, data } => {
            for (block, content) in (*first..).zip(data.chunks_exact(BLOCK_BYTES as usize)) {
                let is_zero = content == ZEROES;
                let value = if is_zero { Bytes::new() } else { owned(&data.slice_ref(content), entry.payload.len()) };
                tree.put(cell_of(stripe, block).into(), entry.timestamp, Some(value));
            }
        }
        BlockChange::Zero { first, count, keeps_allocated: true } => {
            for block in *first..first.saturating_add(*count) {
                tree.put(cell_of(stripe, block).into(), entry.timestamp, Some(Bytes::new()));
            }
        }
        BlockChange::Zero { first, count, keeps_allocated: false } => {
            let lost = u64::from(planted(Bug::DiskTrimLost) && *count > 1);
            let end = first.saturating_add(*count) - lost;
            let mut block = *first;
            while block < end {
                if block.is_multiple_of(BLOCKS_IN_CHUNK) && end - block >= BLOCKS_IN_CHUNK {
                    tree.delete_row(&key_of(stripe, block)[..ROW_BYTES], entry.timestamp);
                    block += BLOCKS_IN_CHUNK;
                } else {
                    tree.put(cell_of(stripe, block).into(), entry.timestamp, None);
                    block += 1;
                }
            }
        }
    }
}

/// The content of a block as of a moment; empty if it is zero.
pub(super) fn read_one(
    view: &View,
    stripe: StripeId,
    block: u64,
    at: Timestamp,
    io: Io,
) -> Result<Bytes, SstableError> {
    let key = key_of(stripe, block);
    let newest = view.newest(&key[..ROW_BYTES], &key[ROW_BYTES..], at, io)?;
    Ok(newest.map(|(_, value)| value).unwrap_or_default())
}

/// The content of blocks as of a moment.
pub(super) fn read(
    view: &View,
    stripe: StripeId,
    blocks: Numbers<u64>,
    at: Timestamp,
    io: Io,
) -> Result<Vec<BlockRun>, SstableError> {
    let mut runs = Runs::new(blocks.start);
    if blocks.end - blocks.start <= LOOKUPS_MAX {
        for block in blocks.clone() {
            let value = read_one(view, stripe, block, at, io)?;
            runs.add(block, value);
        }
    } else {
        let mut cells = view.cells(range(stripe, &blocks), Direction::Forwards, at, io);
        for cell in &mut cells {
            let cell = cell?;
            if let Some(block) = block_of(&cell.row, &cell.column) {
                runs.add(block, cell.value);
            }
        }
    }
    Ok(runs.finish(blocks.end))
}

/// The allocation of blocks as of a moment: of all, or of the first ones if that takes too many steps; at least of one.
pub(super) fn status(
    view: &View,
    stripe: StripeId,
    blocks: Numbers<u64>,
    at: Timestamp,
    io: Io,
) -> Result<Vec<BlockExtent>, SstableError> {
    let mut extents: Vec<BlockExtent> = Vec::new();
    let mut next = blocks.start;
    let mut add = |count: u64, state: BlockState| match extents.last_mut() {
        _ if count == 0 => {}
        Some(last) if last.state == state => last.count += count,
        _ => extents.push(BlockExtent { count, state }),
    };
    let cells = view.cells(range(stripe, &blocks), Direction::Forwards, at, io);
    let mut cells = cells.with_limits(STATUS_STEPS_MAX, STATUS_STEPS_MAX);
    for cell in &mut cells {
        let cell = cell?;
        let Some(block) = block_of(&cell.row, &cell.column) else { continue };
        add(block - next, BlockState::Hole);
        add(1, if cell.value.is_empty() { BlockState::Zero } else { BlockState::Data });
        next = block + 1;
    }
    let end = match cells.cut() {
        None => blocks.end,
        Some(cut) => match &cut.column {
            Some(column) if !column.is_empty() => block_of(&cut.row, column).map_or(next, |block| block + 1),
            _ => block_of(&cut.row, &[0]).unwrap_or(next),
        },
    };
    // A chunk has fewer versions than the limit, so the iteration gets beyond the first block.
    add(end.clamp(next, blocks.end) - next, BlockState::Hole);
    Ok(extents)
}

fn range(stripe: StripeId, blocks: &Numbers<u64>) -> Range {
    Range { start: cell_of(stripe, blocks.start).into(), end: Some(cell_of(stripe, blocks.end).into()) }
}

/// Adds the content of all blocks in a range of cells to a hash.
pub(super) fn hash(view: &View, range: Range, at: Timestamp, hash: &mut LogicalHash) -> Result<(), SstableError> {
    for cell in view.cells(range, Direction::Forwards, at, Io::Allowed) {
        let cell = cell?;
        hash.bytes(&cell.row);
        hash.bytes(&cell.column);
        hash.bytes(&cell.value);
    }
    Ok(())
}

/// Combines adjacent blocks into runs.
struct Runs {
    runs: Vec<BlockRun>,
    /// The values of the current run of data.
    data: Vec<Bytes>,
    zeroes: u64,
    next: u64,
}

impl Runs {
    fn new(first: u64) -> Self {
        Self { runs: Vec::new(), data: Vec::new(), zeroes: 0, next: first }
    }

    fn add(&mut self, block: u64, value: Bytes) {
        self.skip_to(block);
        if value.is_empty() {
            self.skip_to(block + 1);
            return;
        }
        if self.zeroes > 0 {
            self.runs.push(BlockRun::Zeroes(std::mem::take(&mut self.zeroes)));
        }
        self.data.push(value);
        self.next = block + 1;
    }

    /// Adds zeros up to a block.
    fn skip_to(&mut self, block: u64) {
        if block > self.next {
            self.end_data();
            self.zeroes += block - self.next;
            self.next = block;
        }
    }

    fn end_data(&mut self) {
        let run = match &self.data[..] {
            [] => return,
            [one] => one.clone(),
            several => several.concat().into(),
        };
        self.data.clear();
        self.runs.push(BlockRun::Data(run));
    }

    fn finish(mut self, end: u64) -> Vec<BlockRun> {
        self.skip_to(end);
        self.end_data();
        if self.zeroes > 0 {
            self.runs.push(BlockRun::Zeroes(self.zeroes));
        }
        self.runs
    }
}
