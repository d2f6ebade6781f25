//! Whether keys have changed since a moment: the validation of a transaction at its commit.

use base::Timestamp;

use super::view::View;
use crate::cell::Range;
use crate::sstable::{Blocks, Io, SstableError, VersionRef};

/// Whether a range of keys has changed since a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It has no newer version.
    No,
    /// It has a version with this newer timestamp: a value, or a tombstone of a cell or row.
    At(Timestamp),
    /// The limit on versions was reached before that was known.
    TooManyVersions,
}

/// A search for a newer version, with the versions that may still be stepped over.
struct Search<'a> {
    range: &'a Range,
    since: Timestamp,
    left: usize,
}

impl View {
    /// Whether any version in a range of keys is newer than a moment. Sources without newer versions are skipped, so
    /// usually only the newest memtable is searched. In all others it steps over at most `steps_max` versions.
    ///
    /// The answer is right if the moment is not before the watermark of any flush or compaction: these drop no version
    /// that is newer than their watermark, not even a tombstone.
    ///
    /// # Errors
    /// When a block is unreadable or damaged, or not cached and `io` forbids reading it.
    pub fn changed_since(
        &self,
        range: &Range,
        since: Timestamp,
        steps_max: usize,
        io: Io,
    ) -> Result<Changed, SstableError> {
        let mut search = Search { range, since, left: steps_max };
        for memtable in self.memtables().filter(|memtable| memtable.newest_timestamp() > since) {
            let mut cursor = memtable.cursor();
            cursor.seek(&range.start, Timestamp(i64::MAX));
            while let Some(changed) = search.step(cursor.current()) {
                match changed {
                    Changed::No => cursor.next(),
                    found => return Ok(found),
                }
            }
        }
        let blocks = Blocks { cache: &self.cache, io };
        for (_, sstable) in self.sstables() {
            let meta = sstable.meta();
            let is_beside = !range.ends_after(&meta.first_key) || *meta.last_key < *range.start;
            if meta.timestamps.1 <= since || is_beside {
                continue;
            }
            let mut cursor = sstable.cursor(blocks);
            cursor.seek(&range.start, Timestamp(i64::MAX))?;
            while let Some(changed) = search.step(cursor.current()) {
                match changed {
                    Changed::No => cursor.next()?,
                    found => return Ok(found),
                }
            }
        }
        Ok(Changed::No)
    }
}

impl Search<'_> {
    /// Examines a version. None at the end of the range, [`Changed::No`] to go on.
    fn step(&mut self, version: Option<VersionRef<'_>>) -> Option<Changed> {
        let version = version.filter(|version| self.range.ends_after(version.key))?;
        if version.timestamp > self.since {
            return Some(Changed::At(version.timestamp));
        }
        let Some(left) = self.left.checked_sub(1) else { return Some(Changed::TooManyVersions) };
        self.left = left;
        Some(Changed::No)
    }
}
