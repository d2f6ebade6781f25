//! A flush: writes frozen memtables to an SSTable of the first level (`BigTable`, section 5.4: a minor compaction).

use std::sync::Arc;

use base::Timestamp;
use bytes::Bytes;

use super::Site;
use super::job::{JobError, JobStep, Outputs, Sink};
use super::levels::{Levels, holds_older};
use super::memtable::Memtable;
use super::merge::{Direction, Merge, Source};
use super::recent::Recent;
use super::retention::Retention;
use crate::cell::Range;
use crate::files::Files;

/// Writes frozen memtables as an SSTable.
pub struct FlushJob {
    memtables: Arc<[Arc<Memtable>]>,
    /// All SSTables, which may hold older versions.
    levels: Arc<Levels>,
    step_bytes: u64,
    range: Range,
    place: (Bytes, Timestamp),
    retention: Retention,
    sink: Sink,
    recent: Arc<Recent>,
}

impl FlushJob {
    pub(super) fn new(
        site: Site,
        memtables: Arc<[Arc<Memtable>]>,
        levels: Arc<Levels>,
        watermark: Timestamp,
        range: Range,
    ) -> Self {
        let step_bytes = site.config.step_bytes;
        let recent = Arc::clone(&site.recent);
        // A single SSTable of any size, because the number of SSTables in the first level measures how far compactions
        // lag.
        let sink = Sink::new(site, 0, u64::MAX);
        let retention = Retention::of_job(watermark);
        let place = (range.start.clone(), Timestamp(i64::MAX));
        Self { memtables, levels, step_bytes, range, place, retention, sink, recent }
    }

    /// Runs one step. After the last one the SSTable and its directory are forced.
    ///
    /// # Errors
    /// When a file operation fails. The output is removed, unless the process must end.
    pub fn step<F: Files>(&mut self, files: &F) -> Result<JobStep, JobError> {
        let progress = self.try_step(files);
        if let Err(error) = &progress {
            self.sink.fail(files, error);
        }
        progress
    }

    /// Cancels the job and removes its output. The output of a dropped job is removed at the next start.
    pub fn abandon<F: Files>(mut self, files: &F) {
        self.sink.abandon(files);
    }

    fn try_step<F: Files>(&mut self, files: &F) -> Result<JobStep, JobError> {
        let sources = self.memtables.iter().map(|memtable| Source::Memtable(memtable.cursor()));
        let mut merge = Merge::new(sources.collect(), Direction::Forwards);
        merge.seek(&self.place.0, self.place.1)?;
        let mut bytes = 0;
        while let Some(version) = merge.current().filter(|version| self.range.ends_after(version.key)) {
            // Never between two copies of a version: the next step would begin with the first one again.
            if bytes >= self.step_bytes && !self.retention.is_last(version) {
                self.place = (Bytes::copy_from_slice(version.key), version.timestamp);
                return Ok(JobStep::Working { bytes });
            }
            bytes += version.bytes();
            let levels = &self.levels;
            let lives = self.retention.lives(version, |tombstone, timestamp| {
                levels.sstables().any(|sstable| holds_older(sstable, tombstone, timestamp))
            });
            if lives {
                self.sink.push(files, version)?;
            }
            merge.step()?;
        }
        let sstables = self.sink.finish(files)?;
        // The flushed memtables will be kept in memory next. Frees the space here, off the critical path.
        self.recent.make_room(self.memtables.iter().map(|memtable| memtable.bytes()).sum());
        Ok(JobStep::Done(Outputs { sstables, level: 0, inputs: Vec::new() }))
    }
}
