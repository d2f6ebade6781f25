//! Stamps of a client's appends. A retry carries the stamp of the first attempt, so that readers deliver the entry
//! once.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use api::log::Stamp;

/// Assigns the stamps of one client. Each log has a sequence of its own: readers remember consecutive sequences of a
/// client as one interval.
#[derive(Debug)]
pub(crate) struct Stamps {
    client: u64,
    last: Mutex<BTreeMap<String, u64>>,
}

impl Default for Stamps {
    fn default() -> Self {
        Self { client: drawn(), last: Mutex::default() }
    }
}

impl Stamps {
    /// The stamp for the next append to a log.
    pub(crate) fn next(&self, log: &str) -> Stamp {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = match last.get_mut(log) {
            Some(last) => {
                *last += 1;
                *last
            }
            None => *last.entry(log.to_owned()).or_insert(1),
        };
        Stamp { client: self.client, sequence }
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
    fn stamp_sequences_per_log() {
        let (one, other) = (Stamps::default(), Stamps::default());
        assert_ne!(one.client, other.client);
        let sequences = ["a", "b", "a", "a"].map(|log| one.next(log).sequence);
        assert_eq!((sequences, other.next("a").sequence), ([1, 1, 2, 3], 1));
    }
}
