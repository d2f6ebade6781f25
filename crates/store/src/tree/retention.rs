//! Decides which versions are dead: no read at or above the watermark can observe their absence (guarantee 16). Flushes
//! and compactions drop them, and two states are equal if their live versions are.
//!
//! Live versions of a key are those above the watermark, and the newest at or below it. The latter is dead too if it is
//! older than a row tombstone at or below the watermark, or if it is a tombstone and no older version exists elsewhere
//! that it deletes.

use base::Timestamp;
use base::canary::{Bug, planted};

use crate::cell;
use crate::sstable::VersionRef;

/// A tombstone that may be dropped.
#[derive(Clone, Copy)]
pub(super) enum Tombstone<'a> {
    /// Deletes older versions of this key.
    OfCell(&'a [u8]),
    /// Deletes older versions of all keys with this prefix.
    OfRow(&'a [u8]),
}

/// Classifies versions that arrive in order.
pub(super) struct Retention {
    watermark: Timestamp,
    /// Timestamp of the previous version, if any.
    last: Option<Timestamp>,
    key: Vec<u8>,
    /// Length of the key's row part.
    row_bytes: usize,
    /// Whether a version of the key at or below the watermark was seen.
    is_settled: bool,
    /// The newest tombstone of the row at or below the watermark.
    row_deleted: Option<Timestamp>,
}

impl Retention {
    /// For a flush or a compaction.
    pub(super) fn of_job(watermark: Timestamp) -> Self {
        Self::new(if planted(Bug::WatermarkIgnored) { Timestamp(i64::MAX) } else { watermark })
    }

    pub(super) fn new(watermark: Timestamp) -> Self {
        Self { watermark, last: None, key: Vec::new(), row_bytes: 0, is_settled: false, row_deleted: None }
    }

    /// Starts within a row, after its tombstone.
    pub(super) fn within_row(&mut self, row_prefix: &[u8], deleted: Option<Timestamp>) {
        self.key = row_prefix.to_vec();
        self.row_bytes = row_prefix.len();
        self.row_deleted = deleted.filter(|deleted| *deleted <= self.watermark);
    }

    /// Whether it is another copy of the version that was classified last.
    pub(super) fn is_last(&self, version: VersionRef<'_>) -> bool {
        self.last == Some(version.timestamp) && *self.key == *version.key
    }

    /// Whether a version is live. `deletes_elsewhere` returns whether a tombstone with that timestamp may delete
    /// versions that are not classified here.
    pub(super) fn lives(
        &mut self,
        version: VersionRef<'_>,
        deletes_elsewhere: impl FnOnce(Tombstone<'_>, Timestamp) -> bool,
    ) -> bool {
        let VersionRef { key, timestamp, value, .. } = version;
        if *self.key == *key && self.last.is_some() {
            // A version in two sources occurs twice, and so does the version where a job resumes.
            if self.last == Some(timestamp) {
                return false;
            }
        } else {
            self.enter(key);
        }
        self.last = Some(timestamp);
        if timestamp > self.watermark {
            return true;
        }
        if std::mem::replace(&mut self.is_settled, true) {
            return false;
        }
        let is_row = self.row_bytes == key.len();
        let is_covered = !is_row && self.row_deleted.is_some_and(|deleted| timestamp < deleted);
        if is_covered || value.is_some() {
            return !is_covered;
        }
        if is_row {
            self.row_deleted = Some(timestamp);
        }
        let tombstone = if is_row { Tombstone::OfRow(key) } else { Tombstone::OfCell(key) };
        deletes_elsewhere(tombstone, timestamp)
    }

    fn enter(&mut self, key: &[u8]) {
        if self.row_bytes == 0 || !key.starts_with(&self.key[..self.row_bytes]) {
            self.row_bytes = cell::row_prefix_bytes(key);
            self.row_deleted = None;
        }
        self.key.clear();
        self.key.extend_from_slice(key);
        self.is_settled = false;
    }
}
