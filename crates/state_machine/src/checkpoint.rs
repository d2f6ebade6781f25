//! Snapshots as chunks: the content of a checkpoint file, and of a snapshot transfer to a replica that is far behind.
//! Bulk data is not included: it is in the storage's files, which are transferred with the chunks.
//!
//! The chunks are, in order: a header (kind of machine, cohort, last entry, and fields of the kind), the parts of the
//! state, and an end with the number and the checksum of all chunks before it. A part is packed into chunks of at most
//! [`CHUNK_BYTES`], or of a single record if that is larger (a value may have 8 MiB). So a chunk always fits into one
//! message between nodes.
//!
//! A snapshot contains everything that determines later outcomes: last LSN and timestamp, the range, the sessions with
//! their outcomes, the watermark (guarantees 9, 10, 16, 17 and 19). Received chunks are not trusted: every field, every
//! order and the checksum are checked before a state is created.

use std::fmt;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Lsn, Timestamp};
use bytes::Bytes;
use store::cell;

use crate::interface::{Kind, StateMachine};
use crate::progress::Progress;

/// Maximum bytes of a chunk, unless a single record is larger.
pub const CHUNK_BYTES: usize = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"loggos-s");
/// Incremented with every change of any layout.
const VERSION: u32 = 6;

const HEADER: u8 = 1;
/// The first tag available for the parts of a machine. Parts are in order of tag.
pub const FIRST_PART: u8 = 2;
const END: u8 = u8::MAX;

/// Why chunks are not a valid checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Chunks are missing, surplus or altered.
    #[error("the checkpoint is incomplete: {0}")]
    NotWhole(&'static str),
    /// A version of Loggos with an unknown format wrote it.
    #[error("unsupported checkpoint format {0}")]
    UnknownFormat(u32),
    /// It belongs to another cohort.
    #[error("the checkpoint belongs to cohort {found}, not {expected}")]
    OtherCohort {
        /// The cohort asked for.
        expected: CohortId,
        /// The cohort of the checkpoint.
        found: CohortId,
    },
    /// It belongs to another or an unknown kind of state machine.
    #[error("the checkpoint has state machine kind {0}, not the cohort's")]
    OtherKind(u8),
    /// The bytes are not a valid encoding.
    #[error("cannot decode the checkpoint: {0}")]
    Undecodable(#[from] DecodeError),
    /// The content violates an invariant of the state.
    #[error("invalid checkpoint content: {0}")]
    Impossible(&'static str),
}

/// A position within the parts of a snapshot: after the record with key `last` in the part with tag `tag`. The default
/// is before the first record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The tag of the previous chunk; 0 before the first.
    pub tag: u8,
    /// The key of the last record in it, encoded by the machine.
    pub last: Bytes,
}

/// A state that can be written as chunks.
pub trait Chunked: Clone + fmt::Debug {
    /// The kind of its state machine.
    fn kind(&self) -> Kind;

    fn progress(&self) -> &Progress;

    /// Appends the kind's own fields to the header.
    fn header(&self, out: &mut Writer);

    /// The chunk after a position, starting with its tag ([`FIRST_PART`] or higher), and the position after it. None at
    /// the end.
    fn part(&self, _after: &Cursor) -> Option<(Bytes, Cursor)> {
        None
    }
}

/// The data that a flush or compaction must preserve.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The lowest timestamp that can be read: versions visible only below it may be dropped (guarantee 16).
    pub watermark: Timestamp,
    /// The cells that the machine owns; others may be dropped (guarantee 19).
    pub cells: cell::Range,
}

impl Keep {
    #[must_use]
    pub fn all() -> Self {
        Self { watermark: Timestamp(0), cells: cell::Range::all() }
    }
}

/// A snapshot of a state, without the data in its storage.
pub trait Snapshot: Chunked + Send + 'static {
    /// The type of machine.
    type Machine: StateMachine<Snapshot = Self>;
    /// The loader that restores it from chunks.
    type Loader: Loader<Snapshot = Self>;

    /// The storage data that a restart from this snapshot needs.
    fn keep(&self) -> Keep;

    /// Whether the machine's table was dropped in it.
    fn is_dropped(&self) -> bool {
        false
    }

    /// Restores the machine, with its storage.
    fn into_machine(self, storage: <Self::Machine as StateMachine>::Storage) -> Self::Machine;
}

/// Restores a snapshot from chunks that were read from disk or received from a peer.
pub trait Loader: Clone + fmt::Debug + Sized {
    /// The type of snapshot.
    type Snapshot;

    /// Begins with the kind's own fields of the header.
    ///
    /// # Errors
    /// The fields are invalid.
    fn begin(progress: Progress, header: Reader) -> Result<Self, LoadError>;

    /// Adds a part.
    ///
    /// # Errors
    /// The part is invalid.
    fn part(&mut self, tag: u8, _input: Reader) -> Result<(), LoadError> {
        Err(unexpected(tag))
    }

    /// Completes the snapshot after its last part.
    ///
    /// # Errors
    /// The parts together are not a valid state.
    fn finish(self) -> Result<Self::Snapshot, LoadError>;
}

/// Iterates over a snapshot's chunks. Each chunk is created on demand, so that a slow transfer holds one chunk in
/// memory.
#[derive(Clone, Debug)]
pub struct Chunks<S> {
    snapshot: S,
    next: Next,
    count: u64,
    checksum: u32,
}

#[derive(Clone, Debug)]
enum Next {
    Header,
    Part(Cursor),
    Nothing,
}

impl<S: Chunked> Chunks<S> {
    /// All chunks of a snapshot.
    #[must_use]
    pub fn of(snapshot: S) -> Self {
        Self { snapshot, next: Next::Header, count: 0, checksum: 0 }
    }

    /// Whether the last chunk was returned.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }

    fn header(&self) -> Bytes {
        let progress = self.snapshot.progress();
        let mut out = Writer::new();
        out.u8(HEADER);
        out.u64(MAGIC);
        out.u32(VERSION);
        out.u8(self.snapshot.kind().0);
        out.u32(progress.cohort.0);
        out.lsn(progress.last_applied);
        out.i64(progress.last_timestamp.0);
        out.u32(progress.losses);
        self.snapshot.header(&mut out);
        out.finish()
    }
}

impl<S: Chunked> Iterator for Chunks<S> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let chunk = match &self.next {
            Next::Nothing => return None,
            Next::Header => {
                let header = self.header();
                self.next = Next::Part(Cursor::default());
                header
            }
            Next::Part(after) => match self.snapshot.part(after) {
                Some((chunk, cursor)) => {
                    self.next = Next::Part(cursor);
                    chunk
                }
                None => {
                    self.next = Next::Nothing;
                    end(self.count, self.checksum)
                }
            },
        };
        self.count += 1;
        self.checksum = base::checksum_append(self.checksum, &chunk);
        Some(chunk)
    }
}

/// The last chunk: the number of chunks before it, and their checksum.
#[must_use]
pub fn end(count: u64, checksum: u32) -> Bytes {
    let mut out = Writer::new();
    out.u8(END);
    out.u64(count);
    out.u32(checksum);
    out.finish()
}

/// The type of a chunk, common to all machines.
#[derive(Debug)]
pub enum Frame {
    /// The header, with the kind's own fields.
    Header(Kind, Progress, Reader),
    /// A part: its tag, and the content after it.
    Part(u8, Reader),
    /// The end of the checkpoint.
    End,
}

/// Validates the sequence of chunks: header first, parts in order of tag, checksum last.
#[derive(Clone, Debug)]
pub struct Frames {
    cohort: CohortId,
    count: u64,
    checksum: u32,
    last_tag: u8,
}

impl Frames {
    /// Starts before the first chunk of a checkpoint of this cohort.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { cohort, count: 0, checksum: 0, last_tag: 0 }
    }

    /// Validates the next chunk.
    ///
    /// # Errors
    /// The chunk cannot follow the previous ones.
    pub fn next(&mut self, chunk: &Bytes) -> Result<Frame, LoadError> {
        let tag = chunk.first().copied().unwrap_or_default();
        if tag < self.last_tag {
            return Err(LoadError::Impossible("chunks out of order"));
        }
        let frame = match tag {
            _ if self.count == 0 => header(chunk, self.cohort)?,
            END if *chunk == end(self.count, self.checksum) => Frame::End,
            END => return Err(LoadError::NotWhole("the count or checksum of the chunks is wrong")),
            FIRST_PART..END => {
                let mut input = Reader::new(chunk.clone());
                Frame::Part(input.u8()?, input)
            }
            _ => return Err(unexpected(tag)),
        };
        self.last_tag = tag;
        self.count += 1;
        self.checksum = base::checksum_append(self.checksum, chunk);
        Ok(frame)
    }
}

fn header(chunk: &Bytes, expected: CohortId) -> Result<Frame, LoadError> {
    let mut input = Reader::new(chunk.clone());
    if input.u8()? != HEADER || input.u64()? != MAGIC {
        return Err(LoadError::Impossible("the first chunk is not a header"));
    }
    let version = input.u32()?;
    if version != VERSION {
        return Err(LoadError::UnknownFormat(version));
    }
    let kind = Kind(input.u8()?);
    let found = CohortId(input.u32()?);
    if found != expected {
        return Err(LoadError::OtherCohort { expected, found });
    }
    let (last_applied, last_timestamp, losses) = (input.lsn()?, Timestamp(input.i64()?), input.u32()?);
    let progress = Progress { cohort: found, last_applied, last_timestamp, losses };
    if last_applied.sequence.0 > i64::MAX as u64 {
        return Err(LoadError::Impossible("sequence out of range"));
    }
    let untouched = progress.last_applied == Lsn::ZERO;
    if progress.last_timestamp.0 < 0 || untouched != (progress.last_timestamp == Timestamp(0)) {
        return Err(LoadError::Impossible("the last timestamp does not match the last entry"));
    }
    Ok(Frame::Header(kind, progress, input))
}

/// Restores a snapshot from its chunks.
///
/// # Errors
/// The chunks are not a complete snapshot of this cohort and kind, in order. No input causes a panic.
pub fn load<S: Snapshot>(cohort: CohortId, chunks: &[Bytes]) -> Result<S, LoadError> {
    let mut frames = Frames::new(cohort);
    let mut loader: Option<S::Loader> = None;
    let mut whole = None;
    for chunk in chunks {
        match (frames.next(chunk)?, loader.take()) {
            (Frame::Header(kind, progress, header), None) if kind == S::Machine::KIND && whole.is_none() => {
                loader = Some(S::Loader::begin(progress, header)?);
            }
            (Frame::Header(kind, ..), _) => return Err(LoadError::OtherKind(kind.0)),
            (Frame::Part(tag, input), Some(mut parts)) => {
                parts.part(tag, input)?;
                loader = Some(parts);
            }
            (Frame::End, Some(parts)) => whole = Some(parts.finish()?),
            (Frame::Part(..) | Frame::End, None) => return Err(LoadError::NotWhole("chunks follow the end")),
        }
    }
    whole.ok_or(LoadError::NotWhole("the end is missing"))
}

/// The error for a chunk tag that the machine does not have.
#[must_use]
pub fn unexpected(tag: u8) -> LoadError {
    LoadError::Undecodable(DecodeError::UnknownTag { what: "checkpoint chunk", tag: u64::from(tag) })
}

/// A record of a part.
pub trait Record: Copy {
    fn size(&self) -> usize;

    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut Writer);
}

/// Packs records of one type into a chunk, after its tag, until it is full. Also returns the last record packed; none
/// if there are no records.
pub fn pack<R: Record>(tag: u8, records: impl Iterator<Item = R>) -> Option<(Bytes, R)> {
    let mut records = records.peekable();
    let mut last = records.next()?;
    let mut out = Writer::with_capacity(1 + last.size());
    out.u8(tag);
    last.encode(&mut out);
    while let Some(record) = records.next_if(|record| out.len() + record.size() <= CHUNK_BYTES) {
        record.encode(&mut out);
        last = record;
    }
    Some((out.finish(), last))
}
