//! The memtable: writes that are not in an SSTable yet (`BigTable`, section 5.3).
//!
//! One thread writes and any number read concurrently, without waiting for each other. A reader sees everything that
//! was added before it learned of a timestamp, and ignores newer versions.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering as Memory};

use base::Timestamp;
use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map::Entry;

use crate::cell;
use crate::sstable::{VersionRef, compare};

/// Approximate memory overhead per version: the links of the map, and two allocations.
pub const CELL_OVERHEAD_BYTES: usize = 160;

#[derive(Debug)]
pub(super) struct Memtable {
    versions: SkipMap<VersionKey, Option<Bytes>>,
    bytes: AtomicU64,
    row_tombstones: AtomicU64,
    /// Minimum and maximum timestamp; inverted while empty.
    timestamps: (AtomicI64, AtomicI64),
    /// Minimum and maximum key head, likewise. Log units write in the order of positions, so their memtables rarely
    /// overlap in keys.
    heads: (AtomicU64, AtomicU64),
}

/// The sort key of a version. Most comparisons are decided by the head, which is in the map's own memory; the key costs
/// another memory access.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionKey {
    head: u64,
    key: Bytes,
    timestamp: Timestamp,
}

/// A sort key with a borrowed key, for lookups.
#[derive(Clone, Copy)]
struct VersionKeyRef<'a> {
    head: u64,
    key: &'a [u8],
    timestamp: Timestamp,
}

/// A stored or a borrowed sort key, so that lookups need no copy.
trait AsVersionKey {
    fn as_version_key(&self) -> VersionKeyRef<'_>;
}

impl AsVersionKey for VersionKey {
    fn as_version_key(&self) -> VersionKeyRef<'_> {
        VersionKeyRef { head: self.head, key: &self.key, timestamp: self.timestamp }
    }
}

impl AsVersionKey for VersionKeyRef<'_> {
    fn as_version_key(&self) -> VersionKeyRef<'_> {
        *self
    }
}

impl<'a> VersionKeyRef<'a> {
    fn new(key: &'a [u8], timestamp: Timestamp) -> Self {
        Self { head: head(key), key, timestamp }
    }

    #[inline]
    fn compare(self, other: VersionKeyRef<'_>) -> Ordering {
        let by_key = || compare((self.key, self.timestamp), (other.key, other.timestamp));
        self.head.cmp(&other.head).then_with(by_key)
    }
}

/// The first bytes of a key's row as a number with the same order, padded with zeros; ties are decided by the full key.
fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(first) if !first.contains(&0) => u64::from_be_bytes(*first),
        _ => cell::row_head(key),
    }
}

impl PartialEq for dyn AsVersionKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn AsVersionKey + '_ {}

impl Ord for dyn AsVersionKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_version_key().compare(other.as_version_key())
    }
}

impl PartialOrd for dyn AsVersionKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for VersionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_version_key().compare(other.as_version_key())
    }
}

impl PartialOrd for VersionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Borrow<dyn AsVersionKey + 'a> for VersionKey {
    fn borrow(&self) -> &(dyn AsVersionKey + 'a) {
        self
    }
}

impl Memtable {
    pub(super) fn new() -> Self {
        Self {
            versions: SkipMap::new(),
            bytes: AtomicU64::new(0),
            row_tombstones: AtomicU64::new(0),
            timestamps: (AtomicI64::new(i64::MAX), AtomicI64::new(i64::MIN)),
            heads: (AtomicU64::new(u64::MAX), AtomicU64::new(0)),
        }
    }

    /// Adds a version; adding the same one again has no effect. Must be called by one thread only.
    pub(super) fn put(&self, key: Bytes, timestamp: Timestamp, value: Option<Bytes>) {
        // Counted before insertion, so that a reader that sees the version finds it counted.
        let bytes = key.len() + value.as_ref().map_or(0, Bytes::len) + CELL_OVERHEAD_BYTES;
        self.bytes.fetch_add(bytes as u64, Memory::Release);
        if value.is_none() && cell::row_prefix_bytes(&key) == key.len() {
            self.row_tombstones.fetch_add(1, Memory::Release);
        }
        self.timestamps.0.fetch_min(timestamp.0, Memory::Release);
        self.timestamps.1.fetch_max(timestamp.0, Memory::Release);
        let version_key = VersionKey { head: head(&key), key, timestamp };
        self.heads.0.fetch_min(version_key.head, Memory::Release);
        self.heads.1.fetch_max(version_key.head, Memory::Release);
        // An existing version is not replaced by an equal one, because a concurrent reader could miss it meanwhile.
        let is_other = {
            let value = value.clone();
            move |known: &Option<Bytes>| *known != value
        };
        self.versions.compare_insert(version_key, value, is_other);
    }

    /// The newest version of exactly this key that is not newer than `at`: its timestamp, and its value unless it is a
    /// tombstone.
    pub(super) fn newest(&self, key: &[u8], at: Timestamp) -> Option<(Timestamp, Option<Bytes>)> {
        let wanted = VersionKeyRef::new(key, at);
        let is_within =
            self.heads.0.load(Memory::Acquire) <= wanted.head && wanted.head <= self.heads.1.load(Memory::Acquire);
        if !is_within {
            return None;
        }
        let found = self.at_or_after(wanted)?;
        let VersionKey { key: found_key, timestamp, .. } = found.key();
        (*found_key == key).then(|| (*timestamp, found.value().clone()))
    }

    fn at_or_after(&self, wanted: VersionKeyRef<'_>) -> Option<Entry<'_, VersionKey, Option<Bytes>>> {
        let version_key: &dyn AsVersionKey = &wanted;
        self.versions.lower_bound(Bound::Included(version_key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    pub(super) fn entries(&self) -> usize {
        self.versions.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Memory::Acquire)
    }

    pub(super) fn has_row_tombstones(&self) -> bool {
        self.row_tombstones.load(Memory::Acquire) > 0
    }

    /// The maximum timestamp; the lowest possible one without versions.
    pub(super) fn newest_timestamp(&self) -> Timestamp {
        Timestamp(self.timestamps.1.load(Memory::Acquire))
    }

    pub(super) fn cursor(&self) -> MemtableCursor<'_> {
        MemtableCursor { memtable: self, entry: None }
    }
}

/// A cursor over the versions of a memtable, on one or nowhere. It moves like [`crate::sstable::SstableCursor`] but
/// never fails.
pub(super) struct MemtableCursor<'a> {
    memtable: &'a Memtable,
    entry: Option<Entry<'a, VersionKey, Option<Bytes>>>,
}

impl MemtableCursor<'_> {
    #[inline]
    pub(super) fn current(&self) -> Option<VersionRef<'_>> {
        let entry = self.entry.as_ref()?;
        let VersionKey { key, timestamp, .. } = entry.key();
        Some(VersionRef { key, timestamp: *timestamp, value: entry.value().as_deref() })
    }

    pub(super) fn value(&self) -> Option<Bytes> {
        self.entry.as_ref()?.value().clone()
    }

    pub(super) fn seek(&mut self, key: &[u8], at: Timestamp) {
        self.entry = self.memtable.at_or_after(VersionKeyRef::new(key, at));
    }

    pub(super) fn seek_before(&mut self, key: &[u8], at: Timestamp) {
        let version_key: &dyn AsVersionKey = &VersionKeyRef::new(key, at);
        self.entry = self.memtable.versions.upper_bound(Bound::Excluded(version_key));
    }

    pub(super) fn seek_to_last(&mut self) {
        self.entry = self.memtable.versions.back();
    }

    pub(super) fn next(&mut self) {
        self.entry = self.entry.take().and_then(|entry| entry.next());
    }

    pub(super) fn previous(&mut self) {
        self.entry = self.entry.take().and_then(|entry| entry.prev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memtable_lookup_by_head() {
        let key = |position: u64| cell::encode(&position.to_be_bytes(), b"c");
        let memtable = Memtable::new();
        let at = Timestamp(9);
        assert_eq!(memtable.newest(&key(0), at), None);
        for position in [700, 300, 500] {
            memtable.put(key(position).into(), Timestamp(5), Some(vec![position as u8].into()));
        }
        for position in [0, 299, 300, 301, 500, 700, 701, u64::MAX] {
            let is_there = [300, 500, 700].contains(&position);
            assert_eq!(memtable.newest(&key(position), at).is_some(), is_there, "{position}");
        }
        // The same head, but another key.
        assert_eq!(memtable.newest(&cell::encode(&300_u64.to_be_bytes(), b"d"), at), None);
        assert_eq!(memtable.newest(&cell::encode(&[&300_u64.to_be_bytes()[..], b"x"].concat(), b"c"), at), None);
    }
}
