//! The state of the log after recovery: pending records, the batch in flight, and the index. Pure: it builds batches,
//! and the driver writes and forces them.

use std::collections::{BTreeMap, VecDeque};

use base::{CohortId, Force, LogRecord, Record, Sequence};

use super::frame::{self, BatchIdentity, BatchLocation, HEADER_BYTES, padded};
use super::index::Index;
use super::read::ReadPlan;
use super::segments::Segments;
use super::{BATCH_BYTES_MAX, LogPosition};
use crate::AlignedBuffer;
use crate::error::RecordTooLarge;
use crate::files::{File, FileError};
use crate::identity::Owner;

/// A write to the log: `bytes` go to `offset` of the segment, which is then forced. No other batch is built until
/// [`LogWriter::forced`] is called.
#[derive(Clone, Debug)]
pub struct Batch {
    pub segment: u64,
    /// Byte offset in the segment.
    pub offset: u64,
    /// The data: whole blocks.
    pub bytes: AlignedBuffer,
    /// The last append covered by this batch; for an echo, by the previous batch.
    pub through: u64,
}

impl Batch {
    /// Writes and forces the batch. The log's thread does nothing else.
    ///
    /// # Errors
    /// When the disk fails: the state of the batch is unknown, and the process must end (guarantee 25).
    pub fn execute<F: File>(&self, segment: &F) -> Result<(), FileError> {
        segment.write_at(self.offset, &self.bytes)?;
        segment.sync()
    }
}

#[derive(Clone, Debug)]
struct Pending {
    write: u64,
    record: Record,
}

#[derive(Clone, Debug)]
struct InFlight {
    identity: BatchIdentity,
    records: Vec<Pending>,
    through: u64,
}

/// The log of one node, owned by the machine's thread.
#[derive(Clone, Debug)]
pub struct LogWriter {
    pub(super) owner: Owner,
    pub(super) segment_bytes: u64,
    pub(super) segments: Segments,
    pub(super) index: Index,
    /// Position of the next batch, if it fits there.
    tail: LogPosition,
    /// The last forced batch, and whether a later batch names it.
    last: BatchIdentity,
    named: bool,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    in_flight: Option<InFlight>,
    /// The buffer of a forced batch, for reuse.
    spare: Option<AlignedBuffer>,
    /// Numbers of the last append, the last that requested a force now, the last that requested one soon, the last in a
    /// batch, and the last forced.
    appended: u64,
    wanted: u64,
    wanted_soon: u64,
    taken: u64,
    forced: u64,
}

impl LogWriter {
    /// A log that ends at `tail`, with nothing before it.
    pub(super) fn new(owner: Owner, segment_bytes: u64, segments: Segments, tail: LogPosition) -> Self {
        Self {
            owner,
            segment_bytes,
            segments,
            index: Index::default(),
            tail,
            last: BatchIdentity::default(),
            named: true,
            pending: VecDeque::new(),
            pending_bytes: 0,
            in_flight: None,
            spare: None,
            appended: 0,
            wanted: 0,
            wanted_soon: 0,
            taken: 0,
            forced: 0,
        }
    }

    /// Size of the largest record that fits in a segment.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        usize::try_from(self.segment_bytes).unwrap_or(usize::MAX) - HEADER_BYTES
    }

    /// Appends a record with its number. With `Force::Now` it is in the next batch or the one after. With `Force::Soon`
    /// the driver ensures that there will be a batch ([`LogWriter::hurry`]). Otherwise it waits for the next batch.
    ///
    /// # Errors
    /// When the record does not fit in a segment; nothing is appended.
    ///
    /// # Panics
    /// When the number is not higher than the last one.
    pub fn append(&mut self, write: u64, record: Record, force: Force) -> Result<(), RecordTooLarge> {
        assert!(write > self.appended, "append numbers increase");
        let (bytes, limit) = (record.size(), self.record_bytes_max());
        if bytes > limit {
            return Err(RecordTooLarge { bytes, limit });
        }
        self.appended = write;
        self.pending_bytes += bytes;
        self.pending.push_back(Pending { write, record });
        if force == Force::Soon {
            self.wanted_soon = write;
        }
        if force == Force::Now || self.pending_bytes >= self.batch_bytes_max() {
            self.wanted = write;
        }
        Ok(())
    }

    /// Whether no batch is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    /// The last forced append.
    #[must_use]
    pub fn forced_through(&self) -> u64 {
        self.forced
    }

    /// Whether a force is requested soon, and no batch is due anyway.
    #[must_use]
    pub fn has_time(&self) -> bool {
        self.wanted_soon > self.taken && self.wanted <= self.taken
    }

    /// Turns requests to force soon into requests to force now.
    pub fn hurry(&mut self) {
        self.wanted = self.wanted.max(self.wanted_soon);
    }

    /// The next batch, if a force is requested: all pending records, up to [`BATCH_BYTES_MAX`]. `None` while its
    /// segment is not prepared.
    ///
    /// # Panics
    /// While a batch is in flight.
    pub fn next_batch(&mut self) -> Option<Batch> {
        assert!(self.is_idle(), "at most one batch is in flight");
        if self.wanted <= self.taken {
            return None;
        }
        let (count, bytes) = self.next_batch_extent();
        let position = self.place(padded(bytes))?;
        let records: Vec<Pending> = self.pending.drain(..count).collect();
        self.pending_bytes -= bytes - HEADER_BYTES;
        self.taken = records.last().map_or(self.taken, |last| last.write);
        Some(self.launch(position, records, bytes))
    }

    /// A batch that only names the last one, unless a later one already does; for idle times. Until the last batch is
    /// named, damage to it looks like a torn write (guarantee 7).
    ///
    /// # Panics
    /// While a batch is in flight.
    pub fn echo(&mut self) -> Option<Batch> {
        assert!(self.is_idle(), "at most one batch is in flight");
        if self.named {
            return None;
        }
        let position = self.place(padded(HEADER_BYTES))?;
        Some(self.launch(position, Vec::new(), HEADER_BYTES))
    }

    /// The batch in flight is forced. Returns the last append that it covers.
    ///
    /// # Panics
    /// When no batch is in flight.
    pub fn forced(&mut self) -> u64 {
        let InFlight { identity, records, through } = self.in_flight.take().expect("a batch is in flight");
        assert!(through >= self.forced && identity.position >= self.tail, "the log only grows");
        self.named = records.is_empty();
        self.note(&identity, records.iter().map(|pending| &pending.record));
        self.forced = through;
        through
    }

    /// Reuses the buffer of a forced batch, unless it is unusually large.
    pub fn recycle(&mut self, batch: Batch) {
        self.spare = Some(batch.bytes).filter(|bytes| bytes.len() <= BATCH_BYTES_MAX);
    }

    /// Records a forced batch and its records.
    pub(super) fn note<'a>(&mut self, identity: &BatchIdentity, records: impl Iterator<Item = &'a Record> + Clone) {
        let segment = identity.position.segment(self.segment_bytes);
        self.segments.note(segment, records.clone());
        self.index.note(identity, records);
        self.last = *identity;
        self.tail = identity.end();
    }

    /// After recovery: whether a later batch names the last one.
    pub(super) fn set_named(&mut self, named: bool) {
        self.named = named;
    }

    /// The segments that may be released: strictly oldest first, only those covered by checkpoints of all cohorts
    /// (`floors`: the sequence of each; 0 for a cohort that is missing), and only while the log is longer than
    /// `keep_bytes`. The segment of the last batch stays.
    #[must_use]
    pub fn dispensable(&self, floors: &BTreeMap<CohortId, Sequence>, keep_bytes: u64) -> Vec<u64> {
        let last = self.last.position.segment(self.segment_bytes);
        self.segments.dispensable(floors, last, keep_bytes / self.segment_bytes)
    }

    /// Segments were released, and the manifest that names the new oldest one is forced in both places. Their files may
    /// now be recycled.
    pub fn released(&mut self, gone: &[u64], oldest: u64) {
        self.segments.release(gone);
        self.index.forget_before(LogPosition::new(oldest, 0, self.segment_bytes));
    }

    /// The segments of this log and their jobs.
    pub fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// Whether a later batch names the last forced one. Until then, damage to it looks like a torn write (guarantee 7).
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Position of the next batch, if it fits in its segment.
    #[must_use]
    pub fn tail(&self) -> LogPosition {
        self.tail
    }

    /// The number of the tail's segment.
    #[must_use]
    pub fn current_segment(&self) -> u64 {
        // A tail at the end of a segment is the start of the next one, which is needed next.
        self.tail.segment(self.segment_bytes)
    }

    /// A plan to read the live entries of a cohort from `from` on, about `bytes` of them, as far as they are forced and
    /// no pending record invalidates them. `None` if the log does not hold the first one.
    #[must_use]
    pub fn plan_read(&self, cohort: CohortId, from: Sequence, bytes: usize) -> Option<ReadPlan> {
        let waiting = self.in_flight.iter().flat_map(|batch| &batch.records).chain(&self.pending);
        let below = waiting
            .filter(|pending| pending.record.cohort == cohort)
            .filter(|pending| !matches!(pending.record.body, LogRecord::CommitPoint(_)))
            .map(|pending| pending.record.sequence())
            .min();
        ReadPlan::new(self, cohort, from, below, bytes)
    }

    /// Checks the invariants; for tests and the simulator.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        let sum: usize = self.pending.iter().map(|pending| pending.record.size()).sum();
        assert_eq!(self.pending_bytes, sum, "pending_bytes matches the pending records");
        assert!(self.forced <= self.taken && self.taken <= self.appended && self.wanted <= self.appended);
        assert!(self.wanted_soon <= self.appended);
        assert!(self.last.end() <= self.tail, "the tail is not before the end of the last batch");
        self.index.invariants();
    }

    fn batch_bytes_max(&self) -> usize {
        BATCH_BYTES_MAX.min(usize::try_from(self.segment_bytes).unwrap_or(usize::MAX))
    }

    /// Number of records in the next batch, at least one, and an upper bound of its unpadded size.
    fn next_batch_extent(&self) -> (usize, usize) {
        let (mut count, mut bytes) = (0, HEADER_BYTES);
        for pending in &self.pending {
            let more = bytes + pending.record.size();
            if count > 0 && more > self.batch_bytes_max() {
                break;
            }
            (count, bytes) = (count + 1, more);
        }
        (count, bytes)
    }

    /// The position of a batch of `bytes`, if its segment is prepared.
    fn place(&self, bytes: usize) -> Option<LogPosition> {
        let room = self.segment_bytes - self.tail.offset(self.segment_bytes);
        let segment = self.tail.segment(self.segment_bytes);
        let position =
            if bytes as u64 <= room { self.tail } else { LogPosition::new(segment + 1, 0, self.segment_bytes) };
        self.segments.is_prepared(position.segment(self.segment_bytes)).then_some(position)
    }

    fn launch(&mut self, position: LogPosition, records: Vec<Pending>, bytes: usize) -> Batch {
        let segment = position.segment(self.segment_bytes);
        let place = BatchLocation { owner: self.owner, position, segment };
        let records_of_batch = records.iter().map(|pending| &pending.record);
        let mut identity = BatchIdentity::default();
        let room = self.spare.take().unwrap_or_else(|| AlignedBuffer::zeroed(0));
        let mut encoded = room.rewritten(padded(bytes), |out| {
            identity = frame::encode(&place, &self.last, records_of_batch, out);
        });
        assert!(identity.length as usize <= bytes, "a record is not longer than its estimate");
        encoded.shorten(padded(identity.length as usize));
        let through = records.last().map_or(self.forced, |last| last.write);
        self.in_flight = Some(InFlight { identity, records, through });
        Batch { segment, offset: position.offset(self.segment_bytes), bytes: encoded, through }
    }
}
