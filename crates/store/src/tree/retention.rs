//! Which versions are dead: no read at or above the watermark can tell that they are gone (guarantee 16). Flushes and
//! compactions leave them out, and two states are equal if what is left of them is.
//!
//! Of each key every version above the watermark lives, and the newest at or below it. But that one is dead too if a
//! row tombstone at or below the watermark covers it; and if it is a tombstone itself, once there is nothing left
//! elsewhere that it deletes.

use base::Timestamp;
use base::canary::{Bug, planted};

use crate::cell;
use crate::sstable::VersionRef;

/// A tombstone that may be left out.
#[derive(Clone, Copy)]
pub(super) enum Tombstone<'a> {
    /// It deletes what is not newer of this key.
    OfCell(&'a [u8]),
    /// It deletes what is not newer of every key that begins with this.
    OfRow(&'a [u8]),
}

/// Judges versions that come in their order.
pub(super) struct Retention {
    watermark: Timestamp,
    /// The version before, if there was one.
    last: Option<Timestamp>,
    key: Vec<u8>,
    /// Bytes of the key that are its row's.
    row_bytes: usize,
    /// Whether a version of the key was met that is not above the watermark.
    is_settled: bool,
    /// The newest tombstone of the row that is not above the watermark.
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

    /// Begins within a row, of which a tombstone was passed over.
    pub(super) fn within_row(&mut self, row_prefix: &[u8], deleted: Option<Timestamp>) {
        self.key = row_prefix.to_vec();
        self.row_bytes = row_prefix.len();
        self.row_deleted = deleted.filter(|deleted| *deleted <= self.watermark);
    }

    /// Whether a version lives. `deletes_elsewhere` says of a tombstone with that timestamp whether it may delete
    /// something that is not among the versions judged here.
    pub(super) fn lives(
        &mut self,
        version: VersionRef<'_>,
        deletes_elsewhere: impl FnOnce(Tombstone<'_>, Timestamp) -> bool,
    ) -> bool {
        let VersionRef { key, timestamp, value, .. } = version;
        if *self.key == *key && self.last.is_some() {
            // One that two sources have is met twice, and one that a job begins again from once more.
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
        let is_covered = !is_row && self.row_deleted.is_some_and(|deleted| timestamp <= deleted);
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
