//! Recovery of the log at startup: forces existing files, reads them, distinguishes a torn end from damage, and cleans
//! the end.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{CohortId, Lsn, Record};

use super::frame::{self, BatchIdentity, BatchLocation, Frame};
use super::segments::{self, Segments};
use super::writer::LogWriter;
use super::{BATCH_BYTES_MAX, LogPosition};
use crate::files::{File, FileError, Files, OpenOptions, ReadAt as _, remove_if_exists, write_zeros};
use crate::identity::Owner;
use crate::manifest::Manifest;
use crate::{AlignedBuffer, BLOCK_BYTES};

/// Maximum bytes affected by one torn batch: the largest entry alone, or a full batch.
const TORN_BYTES_MAX: u64 = (base::limits::ENTRY_BYTES_MAX + BATCH_BYTES_MAX) as u64;

/// A forced part of the log is unreadable: it and everything after it may have been acknowledged (guarantee 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where the log should continue but is unreadable.
    pub position: LogPosition,
    /// A valid batch after it, which proves that it continued. `None` if a file is missing or too short, or if the log
    /// ends before the end recorded in the manifest.
    pub witness: Option<LogPosition>,
}

/// Receives the records of the log in order, up to any damage, so that the whole log need not be in memory.
pub trait LogSink {
    /// The next record, with the LSN of its cohort's checkpoint; [`Lsn::ZERO`] without one.
    fn take(&mut self, record: Record, checkpoint: Lsn);
}

/// Keeps the whole log; for tests.
impl LogSink for Vec<Record> {
    fn take(&mut self, record: Record, _checkpoint: Lsn) {
        self.push(record);
    }
}

#[derive(Debug)]
pub struct RecoveredLog {
    /// Cohorts with records in the log.
    pub cohorts: BTreeSet<CohortId>,
    /// Any damage. The caller must first write the doubt of every cohort to the manifest, forced in both places, then
    /// call [`cut_damaged`], and only then write to the log.
    pub damage: Option<Damage>,
    /// The log, ready for appending.
    pub writer: LogWriter,
    /// Bytes zeroed at the end, after a torn write or because of stale frames.
    pub cut_bytes: u64,
}

/// Reads the log from the manifest's oldest segment on and cuts off a torn end. Passes the records to `sink`.
///
/// # Errors
/// When a file operation fails.
pub fn recover<F: Files>(
    files: &F,
    owner: Owner,
    manifest: &Manifest,
    sink: &mut impl LogSink,
) -> Result<RecoveredLog, FileError> {
    let segment_bytes = manifest.segment_bytes;
    remove_if_exists(files, &segments::temporary())?;
    // A segment with an unforced name would be lost together with everything forced in it.
    files.sync_dir(segments::DIRECTORY)?;
    let mut scan = Scan::open(files, owner, manifest)?;
    let segments = Segments::new(segment_bytes, scan.prepared, std::mem::take(&mut scan.spare).into());
    let mut writer = LogWriter::new(owner, segment_bytes, segments, scan.tail);
    let mut cohorts = BTreeSet::new();
    let checkpoint = |cohort: CohortId| Some(manifest.cohorts.get(&cohort)?.checkpoint?.lsn);
    let damage = loop {
        match scan.step()? {
            Step::Batch(identity, records) => {
                writer.set_named(records.is_empty());
                writer.note(&identity, records.iter());
                cohorts.extend(records.iter().map(|record| record.cohort));
                for record in records {
                    let through = checkpoint(record.cohort).unwrap_or(Lsn::ZERO);
                    sink.take(record, through);
                }
            }
            Step::Skipped => {}
            Step::End => break None,
            Step::Damage(damage) => break Some(damage),
        }
    };
    let cut_bytes = if damage.is_none() { scan.cut_torn()? } else { 0 };
    if damage.is_some() {
        writer.segments_mut().end_at(scan.tail.segment(segment_bytes));
    }
    Ok(RecoveredLog { cohorts, damage, writer, cut_bytes })
}

/// Cuts off the log after damage, so that the next recovery finds a clean end: removes later segments, last first,
/// zeroes the rest of the damaged one, and extends segments that are too short. After a crash in the middle the log is
/// still damaged, or already cut.
///
/// # Errors
/// When a file operation fails.
pub fn cut_damaged<F: Files>(files: &F, segment_bytes: u64, damage: &Damage) -> Result<(), FileError> {
    let damaged = damage.position.segment(segment_bytes);
    let names = files.list(segments::DIRECTORY)?;
    let numbers = names.iter().filter_map(|name| segments::parse_name(name));
    let (later, kept): (Vec<u64>, Vec<u64>) = numbers.partition(|number| *number > damaged);
    for number in later.into_iter().rev() {
        files.remove(&segments::path(number))?;
    }
    files.sync_dir(segments::DIRECTORY)?;
    for number in kept {
        let file = files.open(&segments::path(number), OpenOptions::DIRECT)?;
        lengthen(&file, segment_bytes)?;
        if number == damaged {
            zero(&file, damage.position.offset(segment_bytes), segment_bytes)?;
        }
    }
    Ok(())
}

/// Extends a segment that is too short with zeros.
fn lengthen<H: File>(file: &H, segment_bytes: u64) -> Result<(), FileError> {
    let length = file.len()?;
    if length >= segment_bytes {
        return Ok(());
    }
    // Its last partial block may be a batch that only lacks padding.
    let last = length - length % BLOCK_BYTES as u64;
    let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
    file.read_at(last, &mut block)?;
    file.write_at(last, &block)?;
    write_zeros(file, last + BLOCK_BYTES as u64, segment_bytes)?;
    file.sync()
}

/// Overwrites non-zero blocks from `from` to `to` with zeros and forces them. Returns the number of bytes.
fn zero<H: File>(file: &H, from: u64, to: u64) -> Result<u64, FileError> {
    const STEP: usize = 1 << 20;
    let blank = AlignedBuffer::zeroed(BLOCK_BYTES);
    let mut content = AlignedBuffer::zeroed(STEP.min(usize::try_from(to.saturating_sub(from)).unwrap_or(STEP)));
    let (mut at, mut zeroed) = (from, 0);
    while at < to {
        let read = file.read_at(at, &mut content)?;
        for (place, block) in content[..read].chunks(BLOCK_BYTES).enumerate() {
            let offset = at + (place * BLOCK_BYTES) as u64;
            if offset < to && block != &blank[..block.len()] {
                file.write_at(offset, &blank)?;
                zeroed += BLOCK_BYTES as u64;
            }
        }
        if read < content.len() {
            break;
        }
        at += read as u64;
    }
    if zeroed > 0 {
        file.sync()?;
    }
    Ok(zeroed)
}

enum Step {
    Batch(BatchIdentity, Vec<Record>),
    /// Skipped an unreadable batch (only with a planted bug).
    Skipped,
    End,
    Damage(Damage),
}

/// A batch at its position.
struct Found {
    position: LogPosition,
    frame: Frame,
}

/// A scan of the log, batch by batch.
struct Scan<F: Files> {
    owner: Owner,
    segment_bytes: u64,
    /// The segments from the oldest on.
    files: BTreeMap<u64, F::File>,
    /// Whether a segment number is missing, including the oldest.
    has_gap: bool,
    /// Whether a segment is shorter than it should be.
    is_short: bool,
    /// The log was forced at least through here.
    forced: LogPosition,
    /// The last segment before a gap.
    prepared: u64,
    spare: Vec<u64>,
    /// Content of the recently read segments.
    loaded: BTreeMap<u64, AlignedBuffer>,
    tail: LogPosition,
    /// The last batch read; `None` before the first, because its predecessor may have been released.
    last: Option<BatchIdentity>,
}

impl<F: Files> Scan<F> {
    fn open(files: &F, owner: Owner, manifest: &Manifest) -> Result<Self, FileError> {
        let (segment_bytes, oldest) = (manifest.segment_bytes, manifest.oldest_segment);
        let names = files.list(segments::DIRECTORY)?;
        let numbers = names.iter().filter_map(|name| segments::parse_name(name));
        let (spare, numbers): (Vec<u64>, Vec<u64>) = numbers.partition(|number| *number < oldest);
        let mut opened = BTreeMap::new();
        let mut is_short = false;
        for number in numbers {
            let file = files.open(&segments::path(number), OpenOptions::DIRECT)?;
            // Unforced data of an earlier process must not be used and then lost.
            file.sync()?;
            is_short |= file.len()? < segment_bytes;
            opened.insert(number, file);
        }
        let unbroken = opened.keys().zip(oldest..).take_while(|(number, expected)| **number == *expected).count();
        let mut prepared = (oldest + unbroken as u64).saturating_sub(1);
        let mut has_gap = unbroken < opened.len() || unbroken == 0;
        if let Some(last) = opened.keys().last().filter(|_| planted(Bug::SegmentsOutOfOrder)) {
            (prepared, has_gap) = (*last, false);
        }
        Ok(Self {
            owner,
            segment_bytes,
            has_gap,
            is_short,
            forced: manifest.log_end,
            prepared,
            files: opened,
            spare,
            loaded: BTreeMap::new(),
            tail: LogPosition::new(oldest, 0, segment_bytes),
            last: None,
        })
    }

    /// Finds the next batch, or determines how the log ends.
    fn step(&mut self) -> Result<Step, FileError> {
        if let Some(found) = self.successor()? {
            return Ok(match found.frame.records() {
                Ok(records) => {
                    self.tail = found.frame.identity.end();
                    self.last = Some(found.frame.identity);
                    Step::Batch(found.frame.identity, records)
                }
                // Intact, but not in a format that this version writes: it must not be cut off silently.
                Err(_) => Step::Damage(Damage { position: self.tail, witness: Some(found.position) }),
            });
        }
        match self.witness()? {
            Some(witness) if planted(Bug::DamageSkipped) => {
                (self.tail, self.last) = (witness, None);
                Ok(Step::Skipped)
            }
            Some(witness) => Ok(Step::Damage(Damage { position: self.tail, witness: Some(witness) })),
            None if (self.has_gap || self.is_short || self.tail < self.forced) && !planted(Bug::DamageSkipped) => {
                Ok(Step::Damage(Damage { position: self.tail, witness: None }))
            }
            None => Ok(Step::End),
        }
    }

    /// The batch after the last one: directly after it, or at the start of the next segment if it did not fit.
    fn successor(&mut self) -> Result<Option<Found>, FileError> {
        let here = self.frame_at(self.tail)?;
        if let Some(frame) = here.filter(|frame| self.last.is_none_or(|last| frame.previous == last)) {
            return Ok(Some(Found { position: self.tail, frame }));
        }
        let Some(last) = self.last else { return Ok(None) };
        let position = self.start_after(self.tail.segment(self.segment_bytes));
        let is_tolerated = planted(Bug::SegmentsOutOfOrder);
        let there = self.frame_at(position)?.filter(|frame| frame.previous == last || is_tolerated);
        Ok(there.map(|frame| Found { position, frame }))
    }

    fn start_after(&self, segment: u64) -> LogPosition {
        let mut next = segment + 1;
        if planted(Bug::SegmentsOutOfOrder) {
            next = self.files.range(next..).next().map_or(next, |(number, _)| *number);
        }
        LogPosition::new(next, 0, self.segment_bytes)
    }

    /// The first valid batch at or after the tail. A batch at the tail that does not name the last one proves that
    /// batches are missing.
    fn witness(&mut self) -> Result<Option<LogPosition>, FileError> {
        let Some(first) = self.first_valid(self.tail)? else { return Ok(None) };
        let is_ignored = planted(Bug::DamagedTailCut)
            && first.frame.is_echo()
            && self.first_valid(first.frame.identity.end())?.is_none();
        Ok((!is_ignored).then_some(first.position))
    }

    /// The first valid batch at or after `from`, in any segment.
    fn first_valid(&mut self, from: LogPosition) -> Result<Option<Found>, FileError> {
        let segment_bytes = self.segment_bytes;
        let segments: Vec<u64> = self.files.range(from.segment(segment_bytes)..).map(|(number, _)| *number).collect();
        for segment in segments {
            let mut position = from.max(LogPosition::new(segment, 0, segment_bytes));
            while position.segment(segment_bytes) == segment {
                if let Some(frame) = self.frame_at(position)? {
                    return Ok(Some(Found { position, frame }));
                }
                position = LogPosition(position.0.saturating_add(BLOCK_BYTES as u64));
            }
        }
        Ok(None)
    }

    fn frame_at(&mut self, position: LogPosition) -> Result<Option<Frame>, FileError> {
        let segment = position.segment(self.segment_bytes);
        if !self.load(segment)? {
            return Ok(None);
        }
        let offset = usize::try_from(position.offset(self.segment_bytes)).unwrap_or(usize::MAX);
        let place = BatchLocation { owner: self.owner, position, segment };
        Ok(self.loaded[&segment].get(offset..).and_then(|bytes| frame::parse(bytes, &place)))
    }

    /// Reads a segment into memory, unless it is there; false if it does not exist. Keeps at most two.
    fn load(&mut self, segment: u64) -> Result<bool, FileError> {
        if self.loaded.contains_key(&segment) {
            return Ok(true);
        }
        let Some(file) = self.files.get(&segment) else { return Ok(false) };
        let tail = self.tail.segment(self.segment_bytes);
        self.loaded.retain(|held, _| *held == tail);
        let mut content = AlignedBuffer::zeroed(usize::try_from(self.segment_bytes).unwrap_or(0));
        // A short file counts as one that ends in zeros: the loss is then detected like any damage.
        let _ = file.read_at(0, &mut content)?;
        self.loaded.insert(segment, content);
        Ok(true)
    }

    /// Zeroes the possible remains of one torn batch: after the tail, and at the start of the next segment.
    fn cut_torn(&mut self) -> Result<u64, FileError> {
        let segment = self.tail.segment(self.segment_bytes);
        let here = self.tail.offset(self.segment_bytes);
        let mut cut = 0;
        for (segment, from) in [(segment, here), (segment + 1, 0)] {
            if let Some(file) = self.files.get(&segment) {
                cut += zero(file, from, self.segment_bytes.min(from.saturating_add(TORN_BYTES_MAX)))?;
            }
        }
        Ok(cut)
    }
}
