//! A compaction: tables of one level are merged with those below that they overlap, and what is dead is left out
//! (`BigTable`, section 5.4; the choice of levels and tables is that of `LevelDB`).

use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Lsn, Timestamp};
use bytes::Bytes;

use super::job::{JobError, Outputs, Progress, Sink, span};
use super::levels::{LEVELS, Levels, Span, bytes_of, holds_older};
use super::merge::{Direction, Merge, Source};
use super::retention::Retention;
use super::run::RunCursor;
use super::{Config, Site};
use crate::cell::Range;
use crate::files::Files;
use crate::sstable::{Blocks, Io, Table, TableError};

/// What a compaction works on.
#[derive(Clone)]
pub(super) struct Choice {
    /// The level that has too much, or too much that is dead.
    pub(super) level: usize,
    /// The level that takes what is left: the next, or the same.
    pub(super) into: usize,
    /// Tables of the first; of level 0 the newest first.
    pub(super) upper: Vec<Arc<Table>>,
    /// The tables of the next that they overlap.
    pub(super) lower: Vec<Arc<Table>>,
}

impl Choice {
    fn swept<F: Files>(&self, files: &F) -> Result<Self, TableError> {
        let swept = |tables: &[Arc<Table>]| -> Result<Vec<_>, TableError> {
            tables.iter().map(|table| table.swept(files).map(Arc::new)).collect()
        };
        Ok(Self { upper: swept(&self.upper)?, lower: swept(&self.lower)?, ..*self })
    }
}

/// A table is written anew if that rids it of one version in so many.
const DEAD_SHARE: u64 = 2;

/// How full a level is, in thousandths of what it may have.
fn fullness(levels: &Levels, level: usize, config: &Config) -> u64 {
    let (has, may_have) = match level {
        0 => (levels.level(0).len() as u64, config.level0_tables as u64),
        _ => (levels.bytes(level), config.level_bytes(level)),
    };
    has.saturating_mul(1000) / may_have.max(1)
}

/// Chooses what is to be compacted, if any level has too much, or else too much that is dead or outside the range. The
/// cursors say through which key each level was compacted already: it goes round, so that all of it comes by turns.
pub(super) fn choose(
    levels: &Levels,
    config: &Config,
    cursors: &[Bytes; LEVELS],
    watermark: Timestamp,
    range: &Range,
) -> Option<Choice> {
    let scores = (0..LEVELS - 1).map(|level| (fullness(levels, level, config), level));
    // Of equally full ones the first, whose tables cost every read.
    let (score, level) = scores.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
    if score < 1000 {
        return choose_dead(levels, watermark).or_else(|| choose_foreign(levels, range));
    }
    if level == 0 {
        return choose_of_first(levels, config);
    }
    let tables = levels.level(level);
    let next = tables.iter().find(|table| table.meta().first_key > cursors[level]);
    let upper = vec![Arc::clone(next.or_else(|| tables.first())?)];
    let lower = levels.overlapping(level + 1, &Span::of_all(&upper)?);
    Some(Choice { level, into: level + 1, upper, lower })
}

/// Of the first level. Its tables go down once they are as much as what they would be merged with there, or as the next
/// level may have. Until then some of the newest become one, which stays: versions that are kept for the retention's
/// sake alone mostly die there, and what comes down takes much with it (lazy levelling: Dayan and Idreos, "Dostoevsky",
/// SIGMOD 2018).
fn choose_of_first(levels: &Levels, config: &Config) -> Option<Choice> {
    let upper = oldest_and_overlapping(levels.level(0));
    let lower = levels.overlapping(1, &Span::of_all(&upper)?);
    if upper.len() == 1 || bytes_of(&upper) >= bytes_of(&lower).min(config.level1_bytes) {
        return Some(Choice { level: 0, into: 1, upper, lower });
    }
    let cheapest = cheapest_to_merge(&upper);
    Some(Choice { level: 0, into: 0, upper: upper[..cheapest].to_vec(), lower: Vec::new() })
}

/// How many of the newest tables, two at least, are merged with the fewest bytes for each table that there is less.
fn cheapest_to_merge(tables: &[Arc<Table>]) -> usize {
    let sums = tables.iter().scan(0, |sum, table| {
        *sum += table.meta().bytes;
        Some(*sum)
    });
    let costs = sums.enumerate().skip(1).map(|(fewer, bytes)| (bytes / fewer as u64, fewer + 1));
    costs.min().map_or(tables.len(), |(_, count)| count)
}

/// A table that is to be written anew where it stands, since much of it is superseded below the watermark: what was
/// kept for a watermark that stood still for long may lie deep, where nothing new comes by, or in the first level when
/// writers rest. The next writing leaves nothing of it, so no table is chosen for ever.
fn choose_dead(levels: &Levels, watermark: Timestamp) -> Option<Choice> {
    let is_mostly_dead = |table: &&Arc<Table>| {
        let meta = table.meta();
        meta.superseded.saturating_mul(DEAD_SHARE) >= meta.entries && meta.timestamps.1 <= watermark
    };
    let found = levels.iter().find_map(|(level, tables)| Some((level, tables.iter().find(is_mostly_dead)?)));
    let (level, table) = found?;
    Some(Choice { level, into: level, upper: vec![Arc::clone(table)], lower: Vec::new() })
}

/// A table that is to be written anew where it stands, since some of it was split off with another range. The next
/// writing leaves nothing of that, so each is chosen once.
fn choose_foreign(levels: &Levels, range: &Range) -> Option<Choice> {
    let is_foreign = |table: &&Arc<Table>| {
        let meta = table.meta();
        meta.first_key < range.start || !range.ends_after(&meta.last_key)
    };
    let found = levels.iter().find_map(|(level, tables)| Some((level, tables.iter().find(is_foreign)?)));
    let (level, table) = found?;
    Some(Choice { level, into: level, upper: vec![Arc::clone(table)], lower: Vec::new() })
}

/// The oldest table of the first level, and all that overlap it or each other.
fn oldest_and_overlapping(tables: &[Arc<Table>]) -> Vec<Arc<Table>> {
    let mut chosen: Vec<_> = tables.last().cloned().into_iter().collect();
    loop {
        let Some(span) = Span::of_all(&chosen) else { return chosen };
        let wider: Vec<_> = tables.iter().filter(|table| span.overlaps(table)).cloned().collect();
        if wider.len() == chosen.len() {
            return wider;
        }
        chosen = wider;
    }
}

/// Merges tables into new ones, a level lower.
pub struct CompactionJob {
    choice: Choice,
    /// The same tables, opened to be read from one end to the other; none before the first step.
    swept: Option<Choice>,
    /// All other tables that may hold something older than a tombstone here.
    others: Vec<Arc<Table>>,
    site: Site,
    /// What is kept.
    range: Range,
    /// The version that comes next; none at the end.
    place: Option<(Bytes, Timestamp)>,
    retention: Retention,
    sink: Sink,
    dropped_through: Lsn,
}

impl CompactionJob {
    pub(super) fn new(site: Site, choice: Choice, levels: &Levels, watermark: Timestamp, range: Range) -> Self {
        let inputs = || choice.upper.iter().chain(&choice.lower);
        let is_input = |table: &Arc<Table>| inputs().any(|input| input.id() == table.id());
        let others = levels.tables().filter(|table| !is_input(table)).cloned().collect();
        let lsns = span(inputs().map(|table| table.meta().lsns));
        // The first level's tables are counted: one, however large.
        let table_bytes = if choice.into == 0 { u64::MAX } else { site.config.table_bytes };
        let sink = Sink::new(site.clone(), choice.into as u8, table_bytes, lsns);
        let retention = Retention::of_job(watermark);
        let place = Some((range.start.clone(), Timestamp(i64::MAX)));
        Self { choice, swept: None, others, site, range, place, retention, sink, dropped_through: Lsn::ZERO }
    }

    /// Whether writes will have to wait, for it or for one that comes after it, unless it ends soon.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.site.pressure.is_any()
    }

    /// Bytes of versions that a step reads, about.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.site.config.step_bytes
    }

    /// The level whose tables are merged with those below.
    #[must_use]
    pub fn level(&self) -> usize {
        self.choice.level
    }

    /// Bytes of the tables that are read.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.inputs().map(|table| table.meta().bytes).sum()
    }

    /// Does some of the work. After the last step the new tables are forced, and so is their directory.
    ///
    /// # Errors
    /// When a file operation fails, or a table can't be believed. What was written is removed again, unless the process
    /// must end.
    pub fn step<F: Files>(&mut self, files: &F) -> Result<Progress, JobError> {
        let progress = self.try_step(files);
        if let Err(error) = &progress {
            self.sink.fail(files, error);
        }
        progress
    }

    /// Ends the job before it is done, and removes what it has written. One that is only dropped leaves that to the
    /// next start.
    pub fn abandon<F: Files>(mut self, files: &F) {
        self.sink.abandon(files);
    }

    fn inputs(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.choice.upper.iter().chain(&self.choice.lower)
    }

    fn try_step<F: Files>(&mut self, files: &F) -> Result<Progress, JobError> {
        let moves = self.choice.into != self.choice.level;
        if let ([table], []) = (&self.choice.upper[..], &self.choice.lower[..])
            && moves
        {
            // Nothing to merge it with: the table moves as it is.
            return Ok(self.done(vec![Arc::clone(table)]));
        }
        let bytes = merge_some(self, files)?;
        if self.place.is_some() {
            return Ok(Progress::Working { bytes });
        }
        let tables = self.sink.finish(files)?;
        Ok(self.done(tables))
    }

    fn done(&self, tables: Vec<Arc<Table>>) -> Progress {
        let inputs = self.inputs().cloned().collect();
        let level = self.choice.into as u8;
        Progress::Done(Outputs { tables, level, inputs, dropped_through: self.dropped_through })
    }
}

/// Merges until enough was read, and says how much that was. The job's place is where to go on, none at the end.
fn merge_some<F: Files>(job: &mut CompactionJob, files: &F) -> Result<u64, JobError> {
    let CompactionJob { choice, swept, others, site, range, place, retention, sink, dropped_through } = job;
    let Some((key, timestamp)) = place.take() else { return Ok(0) };
    let swept = match swept {
        Some(swept) => swept,
        none => none.insert(choice.swept(files)?),
    };
    let mut merge = merge_of(swept, Blocks { cache: &site.cache, io: Io::PassBy });
    merge.seek(&key, timestamp)?;
    let mut bytes = 0;
    while let Some(version) = merge.current().filter(|version| range.ends_after(version.key)) {
        if bytes >= site.config.step_bytes {
            *place = Some((Bytes::copy_from_slice(version.key), version.timestamp));
            break;
        }
        bytes += version.bytes();
        let lives = retention.lives(version, |tombstone, timestamp| {
            !planted(Bug::TombstoneDroppedEarly) && others.iter().any(|table| holds_older(table, tombstone, timestamp))
        });
        if lives {
            sink.push(files, version)?;
        } else {
            *dropped_through = (*dropped_through).max(version.lsn);
        }
        merge.step()?;
    }
    Ok(bytes)
}

fn merge_of<'a>(choice: &'a Choice, blocks: Blocks<'a>) -> Merge<'a> {
    // Tables of the first level overlap: each is a run of its own.
    let upper = if choice.level == 0 { choice.upper.chunks(1) } else { choice.upper.chunks(usize::MAX) };
    let lower = choice.lower.chunks(usize::MAX);
    let sources = upper.chain(lower).map(|run| Source::Run(Box::new(RunCursor::new(run, blocks))));
    Merge::new(sources.collect(), Direction::Forwards)
}
