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

/// Versions of one key that are stepped over one by one before seeking past the others.
const STEPS_MAX: usize = 8;

/// A search for a newer version, with the versions that may still be stepped over.
struct Search<'a> {
    range: &'a Range,
    since: Timestamp,
    left: usize,
    /// The last key that was stepped over in the current source; empty before the first.
    key: Vec<u8>,
    /// Its versions that were stepped over.
    steps: usize,
}

/// What follows from a version.
enum Step {
    /// Examine the next version.
    Next,
    /// Seek past all versions of [`Search::key`]: they are older.
    Pass,
    /// The source has no newer version in the range.
    End,
    /// The answer is known.
    Found(Changed),
}

impl View {
    /// Whether any version in a range of whole rows is newer than a moment. Sources without newer versions are skipped,
    /// so usually only the newest memtable is searched. For a single row, an SSTable is read only if its filter may hold
    /// the row. Steps over at most `steps_max` versions in total; a key with many versions counts as a few.
    ///
    /// The answer is right if the moment is not before the watermark of any flush or compaction that the view includes,
    /// also one on another replica that its SSTables come from. These drop no version that is newer than their
    /// watermark, not even a tombstone that deletes nothing. Before the watermark, a change can be missed.
    ///
    /// Includes versions newer than the last applied entry, if an entry is being applied concurrently. Excludes the
    /// tombstone of the first row if the range starts within that row.
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
        let mut search = Search { range, since, left: steps_max, key: Vec::new(), steps: 0 };
        // Not the recent memtables: what is newer than the moment is also in SSTables.
        for memtable in self.memtables().filter(|memtable| memtable.newest_timestamp() > since) {
            let mut cursor = memtable.cursor();
            search.begin();
            cursor.seek(&range.start, Timestamp(i64::MAX));
            loop {
                match search.step(cursor.current()) {
                    Step::Next => cursor.next(),
                    Step::Pass => cursor.seek(&search.key, Timestamp(i64::MIN)),
                    Step::End => break,
                    Step::Found(changed) => return Ok(changed),
                }
            }
        }
        let blocks = Blocks { cache: &self.cache, io };
        let row = range.single_row();
        for (_, sstable) in self.sstables() {
            let meta = sstable.meta();
            if meta.timestamps.1 <= since
                || !range.ends_after(&meta.first_key)
                || *meta.last_key < *range.start
                || row.is_some_and(|row| !sstable.may_hold(row))
            {
                continue;
            }
            let mut cursor = sstable.cursor(blocks);
            search.begin();
            cursor.seek(&range.start, Timestamp(i64::MAX))?;
            loop {
                match search.step(cursor.current()) {
                    Step::Next => cursor.next()?,
                    Step::Pass => cursor.seek(&search.key, Timestamp(i64::MIN))?,
                    Step::End => break,
                    Step::Found(changed) => return Ok(changed),
                }
            }
        }
        Ok(Changed::No)
    }
}

impl Search<'_> {
    /// Begins with another source.
    fn begin(&mut self) {
        self.key.clear();
        self.steps = 0;
    }

    /// Examines a version. Those of a key arrive newest first, so one that is not newer than the moment is followed only
    /// by such ones of the key.
    fn step(&mut self, version: Option<VersionRef<'_>>) -> Step {
        let Some(version) = version.filter(|version| self.range.ends_after(version.key)) else { return Step::End };
        if version.timestamp > self.since {
            return Step::Found(Changed::At(version.timestamp));
        }
        let Some(left) = self.left.checked_sub(1) else { return Step::Found(Changed::TooManyVersions) };
        self.left = left;
        if *self.key != *version.key {
            self.key.clear();
            self.key.extend_from_slice(version.key);
            self.steps = 0;
        }
        self.steps += 1;
        // Once per key: a version with the lowest possible timestamp remains after the seek.
        if self.steps == STEPS_MAX { Step::Pass } else { Step::Next }
    }
}
