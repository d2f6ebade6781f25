//! A flush: what is frozen becomes a table of the first level (`BigTable`, section 5.4: a minor compaction).

use std::sync::Arc;

use base::{Lsn, Timestamp};
use bytes::Bytes;

use super::Site;
use super::job::{JobError, Outputs, Progress, Sink};
use super::levels::{Levels, holds_older};
use super::memtable::Memtable;
use super::merge::{Direction, Merge, Source};
use super::retention::Retention;
use crate::files::Files;

/// Writes frozen memtables, one as a rule, as one table.
pub struct FlushJob {
    /// Those that follow one another, the newest first.
    memtables: Vec<Arc<Memtable>>,
    /// All that may hold something older.
    levels: Arc<Levels>,
    step_bytes: u64,
    /// The version that comes next.
    place: Option<(Bytes, Timestamp)>,
    retention: Retention,
    sink: Sink,
    dropped_through: Lsn,
}

impl FlushJob {
    pub(super) fn new(site: Site, memtables: &[Arc<Memtable>], levels: Arc<Levels>, watermark: Timestamp) -> Self {
        let step_bytes = site.config.step_bytes;
        let memtables = memtables.to_vec();
        let lsns = memtables.iter().map(|memtable| memtable.lsns());
        let lsns = lsns.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default();
        // One table, however large: the number of tables of the first level says how far compactions lag behind.
        let sink = Sink::new(site, 0, u64::MAX, lsns);
        let retention = Retention::of_job(watermark);
        Self { memtables, levels, step_bytes, place: None, retention, sink, dropped_through: Lsn::ZERO }
    }

    /// Does some of the work. After the last step the table is forced, and so is its directory.
    ///
    /// # Errors
    /// When a file operation fails. What was written is removed again, unless the process must end.
    pub fn step<F: Files>(&mut self, files: &F) -> Result<Progress, JobError> {
        let progress = self.try_step(files);
        if let Err(error) = &progress {
            self.sink.fail(files, error);
        }
        progress
    }

    /// Ends the job before it is done, and removes what it has written. One that is only dropped leaves that to the next
    /// start.
    pub fn abandon<F: Files>(mut self, files: &F) {
        self.sink.abandon(files);
    }

    fn try_step<F: Files>(&mut self, files: &F) -> Result<Progress, JobError> {
        let Self { memtables, levels, step_bytes, place, retention, sink, dropped_through } = self;
        let sources = memtables.iter().map(|memtable| Source::Memtable(memtable.cursor()));
        let mut merge = Merge::new(sources.collect(), Direction::Forwards);
        match place {
            Some((key, timestamp)) => merge.seek(key, *timestamp)?,
            None => merge.seek(b"", Timestamp(i64::MAX))?,
        }
        let mut bytes = 0;
        while let Some(version) = merge.current() {
            if bytes >= *step_bytes {
                *place = Some((Bytes::copy_from_slice(version.key), version.timestamp));
                return Ok(Progress::Working { bytes });
            }
            bytes += version.bytes();
            let lives = retention.lives(version, |tombstone, timestamp| {
                levels.tables().any(|table| holds_older(table, tombstone, timestamp))
            });
            if lives {
                sink.push(files, version)?;
            } else {
                *dropped_through = (*dropped_through).max(version.lsn);
            }
            merge.step()?;
        }
        let tables = sink.finish(files)?;
        Ok(Progress::Done(Outputs { tables, level: 0, inputs: Vec::new(), dropped_through: *dropped_through }))
    }
}
