//! Stamps of a client's appends. A retry carries the stamp of the first attempt, so that readers deliver the entry
//! once.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use api::log::Stamp;

/// Assigns the stamps of one client, for appends to all its logs.
#[derive(Debug)]
pub(crate) struct Stamps {
    client: u64,
    last: AtomicU64,
}

impl Default for Stamps {
    fn default() -> Self {
        Self { client: drawn(), last: AtomicU64::new(0) }
    }
}

impl Stamps {
    /// The stamp for the next append.
    pub(crate) fn next(&self) -> Stamp {
        Stamp { client: self.client, sequence: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

/// A unique client number: the standard library's hash keys are random for each process.
fn drawn() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(since_epoch.as_nanos());
    // Numbers from 2^63 on are reserved for nodes.
    (hasher.finish() >> 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_numbers_of_their_own_and_count_their_appends() {
        let (one, other) = (Stamps::default(), Stamps::default());
        assert_ne!(one.client, other.client);
        assert_eq!([one.next().sequence, one.next().sequence, other.next().sequence], [1, 2, 1]);
    }
}
