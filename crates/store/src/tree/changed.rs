//! Detects changes of keys after a timestamp, to validate a transaction at its commit.

use base::Timestamp;

use super::view::View;
use crate::cell::Range;
use crate::sstable::{Blocks, Io, SstableError, VersionRef};

/// Whether a range of keys has changed after a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It has no newer version.
    No,
    /// The range has a version with this later timestamp: a value, or a tombstone of a cell or row.
    At(Timestamp),
    /// The search reached its limit on versions.
    TooManyVersions,
}

/// Versions of one key that are stepped over one by one before seeking past the others.
const STEPS_MAX: usize = 8;

/// The state of a search for a newer version.
struct Search<'a> {
    range: &'a Range,
    since: Timestamp,
    /// The number of versions that it may still step over.
    left: usize,
    /// The last key that was stepped over in the current source; empty before the first.
    key: Vec<u8>,
    /// Its versions that were stepped over.
    steps: usize,
}

/// The next step after a version.
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
    /// Whether any version in a range of whole rows is newer than `since`. Memtables and SSTables without newer versions
    /// are skipped, so usually only the newest memtable is searched. For a single row, an SSTable is read only if its
    /// filter matches the row. Steps over at most `steps_left` versions in total, which it subtracts, and over at most eight
    /// of each key.
    ///
    /// The answer is correct if `since` is not before the watermark of any flush or compaction that created an SSTable
    /// of the view, on this replica or on the one that sent the SSTable. A flush or compaction keeps every version newer
    /// than its watermark, including tombstones that delete nothing. Before the watermark, a change can be missed.
    ///
    /// While an entry is applied concurrently, its versions may count. A range that starts within a row excludes the
    /// tombstones of that row.
    ///
    /// # Errors
    /// When a block is unreadable or damaged, or not cached and `io` forbids reading it.
    pub fn changed_since(
        &self,
        range: &Range,
        since: Timestamp,
        steps_left: &mut usize,
        io: Io,
    ) -> Result<Changed, SstableError> {
        let mut search = Search { range, since, left: *steps_left, key: Vec::new(), steps: 0 };
        let changed = self.search(&mut search, io);
        *steps_left = search.left;
        changed
    }

    fn search(&self, search: &mut Search<'_>, io: Io) -> Result<Changed, SstableError> {
        let Search { range, since, .. } = *search;
        // Recent memtables are not searched: their versions are also in SSTables.
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

    /// Examines a version. The versions of a key are visited newest first, so if one is not newer than `since`, the others
    /// of the key are not either.
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
