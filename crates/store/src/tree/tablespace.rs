//! Resources shared by the trees of one disk.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base::CohortId;

use super::{CompactionJob, Config, FlushJob, Outputs, Pressure, Recent, Site, SstableNumbers, Tree, View};
use crate::identity::Owner;
use crate::sstable::{BlockCache, Sstable};

/// The trees of one disk: owner, sizes, and shared resources.
#[derive(Clone, Debug)]
pub struct Tablespace {
    owner: Owner,
    config: Config,
    cache: Arc<BlockCache>,
    numbers: Arc<Mutex<BTreeMap<CohortId, SstableNumbers>>>,
    pressure: Arc<Pressure>,
    recent: Arc<Recent>,
}

impl Tablespace {
    /// Creates a tablespace with a block cache of `cache_bytes`, and space for `recent_bytes` of flushed memtables.
    #[must_use]
    pub fn new(owner: Owner, config: Config, cache_bytes: u64, recent_bytes: u64) -> Self {
        Self {
            owner,
            config,
            cache: Arc::new(BlockCache::new(cache_bytes)),
            numbers: Arc::default(),
            pressure: Arc::default(),
            recent: Arc::new(Recent::new(recent_bytes)),
        }
    }

    /// The location for a cohort's tree.
    #[must_use]
    pub fn site(&self, cohort: CohortId) -> Site {
        let (owner, config, cache) = (self.owner, self.config, Arc::clone(&self.cache));
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = numbers.entry(cohort).or_default().clone();
        let (pressure, recent) = (Arc::clone(&self.pressure), Arc::clone(&self.recent));
        Site { owner, cohort, config, cache, numbers, pressure, recent }
    }

    #[must_use]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }
}

macro_rules! opaque {
    ($($name:ident),*) => {
        $(impl fmt::Debug for $name {
            /// Prints only the type, because the content may be gigabytes.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

opaque!(Tree, View, FlushJob, CompactionJob, Outputs, Sstable);
