//! The cache of blocks that all tables of a node share.
//!
//! What it holds depends on what was read before, and what a read costs depends on that; what a read returns never
//! does. It draws no random numbers, so that a simulated run costs the same every time.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use base::CohortId;
use base::canary::{Bug, planted};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::TableId;
use super::block::Block;

/// Bytes that the cache takes for a block beside the block's own, about. Counting them keeps many small blocks from
/// taking more than the bound.
const OVERHEAD_BYTES: usize = 128;

/// Bytes of the block that the cache expects.
const BLOCK_BYTES_EXPECTED: u64 = 4 << 10;

/// Parts of the cache, each with a lock and a share of the bytes of its own: enough that a few threads rarely meet, few
/// enough that a large value still fits in one.
const SHARDS: usize = 8;

/// What a read may do to come by a block that is not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Read it from the file, and keep it.
    Allowed,
    /// Nothing: the read ends with [`super::TableError::NotCached`], and no file was touched. For who must not wait.
    CacheOnly,
    /// Read it from the file, and leave the cache to others: for who reads everything once.
    PassBy,
}

/// By which way blocks are come by.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Where they are looked for first.
    pub cache: &'a BlockCache,
    /// What may be done if they are not there.
    pub io: Io,
}

/// Blocks of all tables of a node, the most wanted of them, up to so many bytes. Threads may share it.
///
/// It knows a block by cohort, number and offset, so it belongs to one node, and a table's number belongs to that table
/// for as long as the cache lives.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<Key, Block, BlockWeighter, BuildHasherDefault<Mixer>>,
}

impl BlockCache {
    /// An empty cache for `bytes` of decoded blocks.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let expected = usize::try_from(bytes / BLOCK_BYTES_EXPECTED).unwrap_or(usize::MAX).max(1);
        let mut options = OptionsBuilder::new();
        options.shards(SHARDS).estimated_items_capacity(expected).weight_capacity(bytes);
        let options = options.build().expect("both capacities are set");
        let blocks =
            Cache::with_options(options, BlockWeighter, BuildHasherDefault::default(), DefaultLifecycle::default());
        Self { blocks }
    }

    /// Bytes of the blocks it holds.
    #[must_use]
    pub fn bytes_held(&self) -> u64 {
        self.blocks.weight()
    }

    pub(super) fn block(&self, table: TableId, offset: u64) -> Option<Block> {
        self.blocks.get(&Key::new(table, offset))
    }

    pub(super) fn insert(&self, table: TableId, offset: u64, block: Block) {
        self.blocks.insert(Key::new(table, offset), block);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    table: TableId,
    offset: u64,
}

impl Key {
    fn new(table: TableId, offset: u64) -> Self {
        if planted(Bug::StaleBlockCached) {
            return Self { table: TableId { number: 0, ..table }, offset };
        }
        Self { table, offset }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { table: TableId { cohort: CohortId(cohort), number }, offset } = *self;
        state.write_u64(u64::from(cohort));
        state.write_u64(number);
        state.write_u64(offset);
    }
}

#[derive(Clone, Copy, Debug)]
struct BlockWeighter;

impl Weighter<Key, Block> for BlockWeighter {
    fn weight(&self, _key: &Key, block: &Block) -> u64 {
        (block.bytes() + OVERHEAD_BYTES) as u64
    }
}

/// A hash of a few numbers, the same in every process: each is mixed in by a multiplication whose halves are folded.
/// Nobody outside chooses these numbers, so nobody can make them collide.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Mixer {
    /// 2^64 divided by the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The constant keeps zeros from multiplying to zero.
        let product = u128::from(self.0 ^ number ^ Self::FACTOR) * u128::from(Self::FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn block(length: usize) -> Block {
        let mut content = vec![7; length];
        content.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        Block::parse(Bytes::from(content)).unwrap()
    }

    #[test]
    fn it_keeps_its_bound_and_gives_only_what_it_was_given() {
        let cache = BlockCache::new(100_000);
        for number in 0..10 {
            let table = TableId { cohort: CohortId(number as u32 % 3), number };
            for offset in 0..100 {
                cache.insert(table, offset * 1000, block(1 + offset as usize * 10));
                assert!(cache.bytes_held() <= 100_000);
                if let Some(found) = cache.block(table, (offset / 2) * 1000) {
                    assert_eq!(found.bytes(), 1 + (offset / 2) as usize * 10 + 8);
                }
                assert!(cache.block(table, offset * 1000 + 1).is_none());
            }
        }
        assert!(cache.bytes_held() > 50_000, "and makes use of it: {}", cache.bytes_held());
        cache.insert(TableId { cohort: CohortId(9), number: 9 }, 0, block(1_000_000));
        assert!(cache.bytes_held() <= 100_000, "what is larger than the cache is not kept");
    }

    #[test]
    fn threads_may_share_it() {
        fn shared<T: Send + Sync>(_: &T) {}
        shared(&BlockCache::new(0));
    }
}
