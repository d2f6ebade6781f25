//! A compaction: merges SSTables of one level with the overlapping ones of the next, and drops dead versions
//! (`BigTable`, section 5.4; levels and SSTables are chosen as in `LevelDB`).

use std::sync::Arc;

use base::Timestamp;
use base::canary::{Bug, planted};
use bytes::Bytes;

use super::job::{JobError, JobStep, Outputs, Sink};
use super::levels::{LEVELS, Levels, Span, bytes_of, holds_older};
use super::merge::{Direction, Merge, Source};
use super::retention::Retention;
use super::sorted_run::RunCursor;
use super::{Config, Site};
use crate::cell::Range;
use crate::files::Files;
use crate::sstable::{Blocks, Io, Sstable, SstableError};

/// The inputs of a compaction.
#[derive(Clone)]
pub(super) struct Choice {
    /// The level that is too large, or has too much dead data.
    pub(super) level: usize,
    /// The level of the output: the next or the same.
    pub(super) into: usize,
    /// SSTables of `level`; in level 0 newest first.
    pub(super) upper: Vec<Arc<Sstable>>,
    /// The overlapping SSTables of the next level.
    pub(super) lower: Vec<Arc<Sstable>>,
}

impl Choice {
    fn swept<F: Files>(&self, files: &F) -> Result<Self, SstableError> {
        let swept = |sstables: &[Arc<Sstable>]| -> Result<Vec<_>, SstableError> {
            sstables.iter().map(|sstable| sstable.swept(files).map(Arc::new)).collect()
        };
        Ok(Self { upper: swept(&self.upper)?, lower: swept(&self.lower)?, ..*self })
    }
}

/// An SSTable is rewritten if that drops one version in this many.
const DEAD_SHARE: u64 = 2;

/// Fullness of a level, in thousandths of its maximum.
fn fullness(levels: &Levels, level: usize, config: &Config) -> u64 {
    let (has, may_have) = match level {
        0 => (levels.level(0).len() as u64, config.level0_sstables as u64),
        _ => (levels.bytes(level), config.level_bytes(level)),
    };
    has.saturating_mul(1000) / may_have.max(1)
}

/// Chooses a compaction, if any level is too large, or else has too much dead or out-of-range data. The cursors hold
/// the key through which each level was compacted, so that all parts of a level take turns.
pub(super) fn choose(
    levels: &Levels,
    config: &Config,
    cursors: &[Bytes; LEVELS],
    watermark: Timestamp,
    range: &Range,
) -> Option<Choice> {
    let scores = (0..LEVELS - 1).map(|level| (fullness(levels, level, config), level));
    // Among equally full levels the first, because every read checks its SSTables.
    let (score, level) = scores.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
    if score < 1000 {
        return choose_dead(levels, watermark).or_else(|| choose_foreign(levels, range));
    }
    if level == 0 {
        return choose_of_first(levels, config);
    }
    let sstables = levels.level(level);
    let next = sstables.iter().find(|sstable| sstable.meta().first_key > cursors[level]);
    let upper = vec![Arc::clone(next.or_else(|| sstables.first())?)];
    let lower = levels.overlapping(level + 1, &Span::of_all(&upper)?);
    Some(Choice { level, into: level + 1, upper, lower })
}

/// For the first level. Its SSTables move down once they are as large as the SSTables they would be merged with, or as
/// the next level's maximum. Until then some of the newest are merged within the level: most versions that are kept
/// only for the retention time die there, and merges into the next level carry more data (lazy levelling: Dayan and
/// Idreos, "Dostoevsky", SIGMOD 2018).
fn choose_of_first(levels: &Levels, config: &Config) -> Option<Choice> {
    let upper = oldest_and_overlapping(levels.level(0));
    let lower = levels.overlapping(1, &Span::of_all(&upper)?);
    if upper.len() == 1 || bytes_of(&upper) >= bytes_of(&lower).min(config.level1_bytes) {
        return Some(Choice { level: 0, into: 1, upper, lower });
    }
    let cheapest = cheapest_to_merge(&upper);
    Some(Choice { level: 0, into: 0, upper: upper[..cheapest].to_vec(), lower: Vec::new() })
}

/// The number of newest SSTables, at least two, with the lowest merge cost per eliminated SSTable.
fn cheapest_to_merge(sstables: &[Arc<Sstable>]) -> usize {
    let sums = sstables.iter().scan(0, |sum, sstable| {
        *sum += sstable.meta().bytes;
        Some(*sum)
    });
    let costs = sums.enumerate().skip(1).map(|(fewer, bytes)| (bytes / fewer as u64, fewer + 1));
    costs.min().map_or(sstables.len(), |(_, count)| count)
}

/// An SSTable to rewrite in place, because much of it is superseded below the watermark. Versions kept while the
/// watermark did not advance may be in a deep level without new writes, or in the first level while writers are idle.
/// Rewriting drops all of them, so no SSTable is chosen repeatedly.
fn choose_dead(levels: &Levels, watermark: Timestamp) -> Option<Choice> {
    let is_mostly_dead = |sstable: &&Arc<Sstable>| {
        let meta = sstable.meta();
        meta.superseded.saturating_mul(DEAD_SHARE) >= meta.entries && meta.timestamps.1 <= watermark
    };
    let found = levels.iter().find_map(|(level, sstables)| Some((level, sstables.iter().find(is_mostly_dead)?)));
    let (level, sstable) = found?;
    Some(Choice { level, into: level, upper: vec![Arc::clone(sstable)], lower: Vec::new() })
}

/// An SSTable to rewrite in place, because part of it belongs to a range that was split off. Rewriting drops that part,
/// so each SSTable is chosen once.
fn choose_foreign(levels: &Levels, range: &Range) -> Option<Choice> {
    let is_foreign = |sstable: &&Arc<Sstable>| {
        let meta = sstable.meta();
        meta.first_key < range.start || !range.ends_after(&meta.last_key)
    };
    let found = levels.iter().find_map(|(level, sstables)| Some((level, sstables.iter().find(is_foreign)?)));
    let (level, sstable) = found?;
    Some(Choice { level, into: level, upper: vec![Arc::clone(sstable)], lower: Vec::new() })
}

/// The oldest SSTable of the first level, and all SSTables that overlap it directly or transitively.
fn oldest_and_overlapping(sstables: &[Arc<Sstable>]) -> Vec<Arc<Sstable>> {
    let mut chosen: Vec<_> = sstables.last().cloned().into_iter().collect();
    loop {
        let Some(span) = Span::of_all(&chosen) else { return chosen };
        let wider: Vec<_> = sstables.iter().filter(|sstable| span.overlaps(sstable)).cloned().collect();
        if wider.len() == chosen.len() {
            return wider;
        }
        chosen = wider;
    }
}

/// Merges SSTables into new ones, usually one level lower.
pub struct CompactionJob {
    choice: Choice,
    /// The same SSTables, opened for sequential reads; `None` before the first step.
    swept: Option<Choice>,
    /// All other SSTables that may hold versions older than a tombstone.
    others: Vec<Arc<Sstable>>,
    site: Site,
    range: Range,
    /// The next version; `None` at the end.
    place: Option<(Bytes, Timestamp)>,
    retention: Retention,
    sink: Sink,
}

impl CompactionJob {
    pub(super) fn new(site: Site, choice: Choice, levels: &Levels, watermark: Timestamp, range: Range) -> Self {
        let inputs = || choice.upper.iter().chain(&choice.lower);
        let is_input = |sstable: &Arc<Sstable>| inputs().any(|input| input.id() == sstable.id());
        let others = levels.sstables().filter(|sstable| !is_input(sstable)).cloned().collect();
        // SSTables of the first level are counted, so its output is a single SSTable of any size.
        let sstable_bytes = if choice.into == 0 { u64::MAX } else { site.config.sstable_bytes };
        let sink = Sink::new(site.clone(), choice.into as u8, sstable_bytes);
        let retention = Retention::of_job(watermark);
        let place = Some((range.start.clone(), Timestamp(i64::MAX)));
        Self { choice, swept: None, others, site, range, place, retention, sink }
    }

    /// Whether writes will stall, for this compaction or a later one, unless it ends soon.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.site.pressure.is_any()
    }

    /// Approximate bytes of versions per step.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.site.config.step_bytes
    }

    /// The level of the upper input SSTables.
    #[must_use]
    pub fn level(&self) -> usize {
        self.choice.level
    }

    /// Size of the input SSTables.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.inputs().map(|sstable| sstable.meta().bytes).sum()
    }

    /// Runs one step. After the last one the new SSTables and their directory are forced.
    ///
    /// # Errors
    /// When a file operation fails, or an SSTable is damaged. The output is removed, unless the process must end.
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

    fn inputs(&self) -> impl Iterator<Item = &Arc<Sstable>> {
        self.choice.upper.iter().chain(&self.choice.lower)
    }

    fn try_step<F: Files>(&mut self, files: &F) -> Result<JobStep, JobError> {
        let moves = self.choice.into != self.choice.level;
        if let ([sstable], []) = (&self.choice.upper[..], &self.choice.lower[..])
            && moves
        {
            // Nothing to merge: the SSTable moves unchanged.
            return Ok(self.done(vec![Arc::clone(sstable)]));
        }
        let bytes = merge_some(self, files)?;
        if self.place.is_some() {
            return Ok(JobStep::Working { bytes });
        }
        let sstables = self.sink.finish(files)?;
        Ok(self.done(sstables))
    }

    fn done(&self, sstables: Vec<Arc<Sstable>>) -> JobStep {
        let inputs = self.inputs().cloned().collect();
        let level = self.choice.into as u8;
        JobStep::Done(Outputs { sstables, level, inputs })
    }
}

/// Merges until a step is complete, and returns the bytes read. Leaves the next position in `place`, `None` at the end.
fn merge_some<F: Files>(job: &mut CompactionJob, files: &F) -> Result<u64, JobError> {
    let CompactionJob { choice, swept, others, site, range, place, retention, sink } = job;
    let Some((key, timestamp)) = place.take() else { return Ok(0) };
    let swept = match swept {
        Some(swept) => swept,
        none => none.insert(choice.swept(files)?),
    };
    let mut merge = merge_of(swept, Blocks { cache: &site.cache, io: Io::PassBy });
    merge.seek(&key, timestamp)?;
    let mut bytes = 0;
    while let Some(version) = merge.current().filter(|version| range.ends_after(version.key)) {
        // Never between two copies of a version: the next step would begin with the first one again.
        if bytes >= site.config.step_bytes && !retention.is_last(version) {
            *place = Some((Bytes::copy_from_slice(version.key), version.timestamp));
            break;
        }
        bytes += version.bytes();
        let lives = retention.lives(version, |tombstone, timestamp| {
            !planted(Bug::TombstoneDroppedEarly)
                && others.iter().any(|sstable| holds_older(sstable, tombstone, timestamp))
        });
        if lives {
            sink.push(files, version)?;
        }
        merge.step()?;
    }
    Ok(bytes)
}

fn merge_of<'a>(choice: &'a Choice, blocks: Blocks<'a>) -> Merge<'a> {
    // SSTables of the first level overlap, so each is its own run.
    let upper = if choice.level == 0 { choice.upper.chunks(1) } else { choice.upper.chunks(usize::MAX) };
    let lower = choice.lower.chunks(usize::MAX);
    let sources = upper.chain(lower).map(|run| Source::Run(Box::new(RunCursor::new(run, blocks))));
    Merge::new(sources.collect(), Direction::Forwards)
}
