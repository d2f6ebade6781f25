//! The versions of one column: what it was when.
//!
//! Invariant: timestamps fall strictly from the newest to the oldest. A deleted column's newest version has no value (a
//! tombstone): its version number is 0, as if it had never been there (Spinnaker, section 3).
//!
//! Which versions a read at or above a watermark can tell apart, [`Versions::dead`] knows: those before the newest at or
//! below the watermark are out of sight, and so is that one if it is a tombstone, for a column without any version reads
//! the same. Everything that compares or ships states looks through this rule.

use base::Timestamp;
use bytes::Bytes;

/// What a column was from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) timestamp: Timestamp,
    /// None: deleted.
    pub(crate) value: Option<Bytes>,
}

/// A column's history; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    newest: Version,
    /// The oldest first: old versions go from the front, new ones come at the end.
    older: Vec<Version>,
}

/// Bytes of a version beside its value, roughly.
const VERSION_BYTES: usize = size_of::<Version>();

impl Version {
    pub(crate) fn bytes(&self) -> usize {
        VERSION_BYTES + self.value.as_ref().map_or(0, Bytes::len)
    }
}

impl Versions {
    pub(crate) fn new(newest: Version) -> Self {
        Self { newest, older: Vec::new() }
    }

    pub(crate) fn newest(&self) -> &Version {
        &self.newest
    }

    /// The version number that conditions are compared with: 0 if the column is deleted.
    pub(crate) fn current(&self) -> Timestamp {
        if self.newest.value.is_some() { self.newest.timestamp } else { Timestamp(0) }
    }

    /// The version in force at a moment; none if the column was not there yet. It may be a tombstone.
    pub(crate) fn at(&self, moment: Timestamp) -> Option<&Version> {
        if self.newest.timestamp <= moment {
            return Some(&self.newest);
        }
        let after = self.older.partition_point(|version| version.timestamp <= moment);
        after.checked_sub(1).map(|index| &self.older[index])
    }

    /// Adds a version. Of two with one timestamp (a write that names a column twice) the later takes the other's place,
    /// which is given back.
    pub(crate) fn push(&mut self, version: Version) -> Option<Version> {
        assert!(version.timestamp >= self.newest.timestamp, "versions grow");
        let before = std::mem::replace(&mut self.newest, version);
        if before.timestamp == self.newest.timestamp {
            return Some(before);
        }
        self.older.push(before);
        None
    }

    /// The history that a checkpoint lists, the newest version first; none if the timestamps don't fall.
    pub(crate) fn from_newest_first(mut versions: Vec<Version>) -> Option<Self> {
        if !versions.is_sorted_by(|newer, older| newer.timestamp > older.timestamp) {
            return None;
        }
        versions.reverse();
        let newest = versions.pop()?;
        Some(Self { newest, older: versions })
    }

    fn oldest(&self) -> &Version {
        self.older.first().unwrap_or(&self.newest)
    }

    /// How many of the oldest versions no read at or above `watermark` can tell from absence; all, if the column as such
    /// is out of sight.
    pub(crate) fn dead(&self, watermark: Timestamp) -> usize {
        let below = if self.newest.timestamp <= watermark {
            self.len()
        } else {
            self.older.partition_point(|version| version.timestamp <= watermark)
        };
        match below.checked_sub(1) {
            Some(last) if self.oldest_first(last).value.is_some() => last,
            _ => below,
        }
    }

    fn oldest_first(&self, index: usize) -> &Version {
        self.older.get(index).unwrap_or(&self.newest)
    }

    /// Drops the `dead` oldest versions, less than all of them, and gives back the bytes they took.
    pub(crate) fn drop_oldest(&mut self, dead: usize) -> usize {
        let bytes = self.older.drain(..dead).map(|version| version.bytes()).sum();
        if self.older.is_empty() {
            self.older = Vec::new();
        }
        bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.older.len() + 1
    }

    /// Whether a higher watermark will let something go.
    pub(crate) fn has_garbage_to_come(&self) -> bool {
        !self.older.is_empty() || self.newest.value.is_none()
    }

    /// The versions that a read at or above `watermark` can tell apart, the newest first.
    pub(crate) fn living(&self, watermark: Timestamp) -> impl Iterator<Item = &Version> {
        let living = self.len() - self.dead(watermark);
        std::iter::once(&self.newest).chain(self.older.iter().rev()).take(living)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.newest.bytes() + self.older.iter().map(Version::bytes).sum::<usize>()
    }

    /// Whether all are timestamps that entries can have had.
    pub(crate) fn fit(&self, last_timestamp: Timestamp) -> bool {
        self.newest.timestamp <= last_timestamp && self.oldest().timestamp > Timestamp(0)
    }

    pub(crate) fn invariants(&self, last_timestamp: Timestamp) {
        let all = || self.older.iter().chain(std::iter::once(&self.newest));
        assert!(all().zip(all().skip(1)).all(|(older, newer)| older.timestamp < newer.timestamp), "versions grow");
        assert!(self.fit(last_timestamp), "a version is the timestamp of an entry that was applied; 0 means absent");
    }
}
