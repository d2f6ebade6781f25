//! The stamps of a client's appends: a retry carries the stamp of the first attempt, so that readers deliver it once.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use api::log::Stamp;

/// Stamps the appends of one client, to all its logs.
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
    /// The stamp of the next append.
    pub(crate) fn next(&self) -> Stamp {
        Stamp { client: self.client, sequence: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

/// A number that no other client has: the standard library's own keys are drawn at random for each process.
fn drawn() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(since_epoch.as_nanos());
    // Numbers from 2^63 on belong to nodes.
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
