//! Iterates over the versions that a read at or above the watermark can observe.

use base::Timestamp;

use super::merge::{Direction, Merge};
use super::retention::Retention;
use super::view::View;
use crate::cell::{self, Range};
use crate::sstable::{Io, SstableError, Version};

/// The live versions of a view, in order. Excludes tombstones at or below the watermark, together with everything that
/// they delete.
///
/// It ends after an error.
pub struct Versions<'a> {
    view: &'a View,
    merge: Merge<'a>,
    retention: Retention,
    range: Range,
    watermark: Timestamp,
    at: Timestamp,
    io: Io,
    is_new: bool,
    is_ended: bool,
}

impl<'a> Versions<'a> {
    pub(super) fn new(view: &'a View, range: Range, watermark: Timestamp, at: Timestamp, io: Io) -> Self {
        let merge = view.merge(&range, Direction::Forwards, io);
        let retention = Retention::new(watermark);
        Self { view, merge, retention, range, watermark, at, io, is_new: true, is_ended: false }
    }

    fn next_version(&mut self) -> Result<Option<Version>, SstableError> {
        if std::mem::replace(&mut self.is_new, false) {
            self.begin()?;
        }
        while let Some(version) = self.merge.current().filter(|version| self.range.ends_after(version.key)) {
            let lives = version.timestamp <= self.at && self.retention.lives(version, |_, _| false);
            let version = lives.then(|| version.to_version(self.merge.value()));
            self.merge.step()?;
            if version.is_some() {
                return Ok(version);
            }
        }
        Ok(None)
    }

    fn begin(&mut self) -> Result<(), SstableError> {
        let start = &self.range.start;
        let prefix_bytes = cell::row_prefix_bytes(start);
        // A range that starts within a row starts after its tombstone.
        if prefix_bytes < start.len() {
            let prefix = &start[..prefix_bytes];
            let deleted = self.view.row_deleted(prefix, self.watermark.min(self.at), self.io)?;
            self.retention.within_row(prefix, deleted);
        }
        self.merge.seek(start, Timestamp(i64::MAX))
    }
}

impl Iterator for Versions<'_> {
    type Item = Result<Version, SstableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_ended {
            return None;
        }
        let next = self.next_version();
        self.is_ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}
