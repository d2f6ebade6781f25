//! The block cache shared by all SSTables and streams of a node.
//!
//! The content of the cache and the cost of a read depend on earlier reads; the result of a read does not. The cache
//! uses no random numbers, so a simulated run always has the same cost.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use base::CohortId;
use base::canary::{Bug, planted};
use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::SstableId;
use super::block::Block;

/// Approximate overhead per cached block in bytes. Counting it keeps many small blocks within the limit.
const OVERHEAD_BYTES: usize = 128;

const BLOCK_BYTES_EXPECTED: u64 = 4 << 10;

/// Shards, each with its own lock and part of the capacity: enough to make lock contention rare, and few enough for a
/// large value to fit in one.
const SHARDS: usize = 8;

/// How to handle a block that is not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Read it from the file, and cache it.
    Allowed,
    /// Fail with [`super::SstableError::NotCached`] without accessing the file. For callers that must not block.
    CacheOnly,
    /// Read it from the file without caching it. For sequential scans.
    PassBy,
}

#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The cache to look in first.
    pub cache: &'a BlockCache,
    /// How to handle a miss.
    pub io: Io,
}

/// Caches the most useful blocks of all SSTables of a node, up to a size limit. Thread-safe.
///
/// It identifies a block by cohort, number and offset, so it belongs to one node, and an SSTable number must not be
/// reused while the cache exists.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<Key, Cached, BlockWeighter, BuildHasherDefault<Mixer>>,
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

    /// Size of the cached blocks.
    #[must_use]
    pub fn bytes_held(&self) -> u64 {
        self.blocks.weight()
    }

    pub(super) fn block(&self, sstable: SstableId, offset: u64) -> Option<Block> {
        match self.blocks.get(&Key::new(sstable, offset))? {
            Cached::Block(block) => Some(block),
            Cached::Page(_) => None,
        }
    }

    /// The content of a block of a file that is written in place.
    pub(crate) fn page(&self, file: SstableId, block: u64) -> Option<Bytes> {
        match self.blocks.get(&Key::new(file, block))? {
            Cached::Page(content) => Some(content),
            Cached::Block(_) => None,
        }
    }

    /// Caches a block of a file that is written in place.
    pub(crate) fn insert_page(&self, file: SstableId, block: u64, content: Bytes) {
        self.blocks.insert(Key::new(file, block), Cached::Page(content));
    }

    /// A block of a file that is written in place has changed.
    pub(crate) fn remove_page(&self, file: SstableId, block: u64) {
        self.blocks.remove(&Key::new(file, block));
    }

    pub(super) fn insert(&self, sstable: SstableId, offset: u64, block: Block) {
        self.blocks.insert(Key::new(sstable, offset), Cached::Block(block));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    sstable: SstableId,
    offset: u64,
}

impl Key {
    fn new(sstable: SstableId, offset: u64) -> Self {
        if planted(Bug::StaleBlockCached) {
            return Self { sstable: SstableId { number: 0, ..sstable }, offset };
        }
        Self { sstable, offset }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { sstable: SstableId { cohort: CohortId(cohort), number }, offset } = *self;
        state.write_u64(u64::from(cohort));
        state.write_u64(number);
        state.write_u64(offset);
    }
}

#[derive(Clone, Debug)]
enum Cached {
    Block(Block),
    Page(Bytes),
}

#[derive(Clone, Copy, Debug)]
struct BlockWeighter;

impl Weighter<Key, Cached> for BlockWeighter {
    fn weight(&self, _key: &Key, cached: &Cached) -> u64 {
        let bytes = match cached {
            Cached::Block(block) => block.bytes(),
            Cached::Page(content) => content.len(),
        };
        (bytes + OVERHEAD_BYTES) as u64
    }
}

/// A hash of a few integers, equal in every process: multiplies and folds the halves of the product. The integers are
/// not chosen by clients, so collision attacks are not possible.
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
        // The constant avoids a product of zero.
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

    fn block(length: usize) -> Block {
        let mut content = vec![7; length];
        content.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        Block::parse(Bytes::from(content)).unwrap()
    }

    #[test]
    fn cache_capacity_and_lookup() {
        let cache = BlockCache::new(100_000);
        for number in 0..10 {
            let sstable = SstableId { cohort: CohortId(number as u32 % 3), number };
            for offset in 0..100 {
                cache.insert(sstable, offset * 1000, block(1 + offset as usize * 10));
                assert!(cache.bytes_held() <= 100_000);
                if let Some(found) = cache.block(sstable, (offset / 2) * 1000) {
                    assert_eq!(found.bytes(), 1 + (offset / 2) as usize * 10 + 8);
                }
                assert!(cache.block(sstable, offset * 1000 + 1).is_none());
            }
        }
        assert!(cache.bytes_held() > 50_000, "the cache uses its capacity: {}", cache.bytes_held());
        cache.insert(SstableId { cohort: CohortId(9), number: 9 }, 0, block(1_000_000));
        assert!(cache.bytes_held() <= 100_000, "a block larger than the cache is not kept");
    }

    #[test]
    fn block_cache_is_send_and_sync() {
        fn shared<T: Send + Sync>(_: &T) {}
        shared(&BlockCache::new(0));
    }
}
