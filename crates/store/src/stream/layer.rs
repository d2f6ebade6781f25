//! Changes of a stream that are in memory and in the log, but not in the data file.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::read::BlockState;
use crate::BLOCK_BYTES;

/// Approximate memory of a change beyond its content, in bytes.
pub const CHANGE_OVERHEAD_BYTES: u64 = 96;

/// A state without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// The block has no space on the disk. It reads as zeros.
    Hole,
    /// The block has space, and is zero.
    Zero,
}

/// Changes: the newest state of each changed block.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    blocks: BTreeMap<u64, Bytes>,
    /// Ranges that were made empty: start to end and state. They do not overlap, and a block in `blocks` is newer.
    ranges: BTreeMap<u64, (u64, Empty)>,
}

impl Layer {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ranges.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        let blocks = self.blocks.len() as u64 * (BLOCK_BYTES as u64 + CHANGE_OVERHEAD_BYTES);
        blocks + self.ranges.len() as u64 * CHANGE_OVERHEAD_BYTES
    }

    pub(super) fn put(&mut self, block: u64, content: Bytes) {
        self.blocks.insert(block, content);
    }

    pub(super) fn clear(&mut self, range: Range<u64>, to: Empty) {
        let Range { mut start, mut end } = range;
        let inside: Vec<u64> = self.blocks.range(start..end).map(|(block, _)| *block).collect();
        inside.iter().for_each(|block| _ = self.blocks.remove(block));
        // What remains of older ranges on both sides; equal neighbors become one range.
        let touching = |(from, (until, _)): (&u64, &(u64, Empty))| (*from <= end && *until >= start).then_some(*from);
        let old: Vec<u64> = self.ranges.range(..=end).rev().map_while(touching).collect();
        for from in old {
            let Some((until, state)) = self.ranges.remove(&from) else { continue };
            if state == to {
                (start, end) = (start.min(from), end.max(until));
                continue;
            }
            if from < start {
                self.ranges.insert(from, (start, state));
            }
            if until > end {
                self.ranges.insert(end, (until, state));
            }
        }
        self.ranges.insert(start, (end, to));
    }

    /// The content of a block that is data.
    pub(super) fn content(&self, block: u64) -> Option<&Bytes> {
        self.blocks.get(&block)
    }

    /// The state of a block; none if it has not changed.
    pub(super) fn state(&self, block: u64) -> Option<BlockState> {
        if self.blocks.contains_key(&block) {
            return Some(BlockState::Data);
        }
        let (_, (end, state)) = self.ranges.range(..=block).next_back()?;
        (block < *end).then(|| (*state).into())
    }

    /// The blocks with data, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.blocks.iter().map(|(block, content)| (*block, content))
    }

    /// The blocks with data from this one on, in order.
    pub(super) fn blocks_from(&self, first: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        self.blocks.range(first..).map(|(block, content)| (*block, content))
    }

    /// The ranges that are empty apart from blocks with data, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (Range<u64>, Empty)> {
        self.ranges.iter().map(|(start, (end, state))| (*start..*end, *state))
    }

    /// These changes, and then later ones.
    pub(super) fn followed_by(mut self, later: Self) -> Self {
        later.ranges().for_each(|(range, to)| self.clear(range, to));
        self.blocks.extend(later.blocks);
        self
    }
}

#[cfg(test)]
mod tests {
    use base::SplitMix64;

    use super::*;

    #[test]
    fn newest_state_of_each_block() {
        for seed in 0..200 {
            let mut random = SplitMix64::new(seed);
            let mut layers = [Layer::default(), Layer::default()];
            let mut model = vec![None; 64];
            for step in 0..60 {
                let layer = &mut layers[step / 30];
                let (start, to) = (random.below(64), random.below(3));
                let end = (start + 1 + random.below(16)).min(64);
                match to {
                    0 => {
                        layer.put(start, Bytes::from(vec![step as u8; 2]));
                        model[start as usize] = Some(BlockState::Data);
                    }
                    1 => {
                        layer.clear(start..end, Empty::Hole);
                        model[start as usize..end as usize].fill(Some(BlockState::Hole));
                    }
                    _ => {
                        layer.clear(start..end, Empty::Zero);
                        model[start as usize..end as usize].fill(Some(BlockState::Zero));
                    }
                }
            }
            let [earlier, later] = layers;
            let whole = earlier.followed_by(later);
            let states: Vec<_> = (0..64).map(|block| whole.state(block)).collect();
            assert_eq!(states, model, "seed {seed}");
            let mut last = None;
            for (range, to) in whole.ranges() {
                assert!(range.start < range.end && last.is_none_or(|(end, _)| end <= range.start), "seed {seed}");
                assert_ne!(last, Some((range.start, to)), "equal neighbors are one range, seed {seed}");
                last = Some((range.end, to));
            }
        }
    }
}
