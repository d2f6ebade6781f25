//! A frozen state and its chunks: what a checkpoint file holds, and what a replica far behind is sent. Bulk data is not
//! among it: that is in the storage's files, which go along.
//!
//! The chunks are, in order: a header (the kind of machine, the cohort, through which entry, and what the kind adds), the
//! parts of the state, and an end that counts the chunks before it and carries the checksum of them all, one after the
//! other. Each part is packed into chunks of [`CHUNK_BYTES`] at most, or of one record if that alone is more (a value may
//! have 8 MiB): so a chunk always fits into one message between nodes.
//!
//! Everything that decides a later outcome travels along: last LSN and timestamp, the range, the sessions with their
//! outcomes, the watermark (guarantees 9, 10, 16, 17 and 19). Nothing in a chunk that arrives is believed: every field and
//! every order is checked, and the seal before there is a state.

use std::fmt;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Lsn, Timestamp};
use bytes::Bytes;
use store::cell;

use crate::progress::Progress;
use crate::state_machine::{Kind, StateMachine};

/// Bytes of a chunk, at most, unless one record is larger.
pub const CHUNK_BYTES: usize = 1 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"loggos-s");
/// A change of any layout is a new version.
const VERSION: u32 = 6;

const HEADER: u8 = 1;
/// The first tag that a machine's own parts may have. They come in the order of their tags.
pub const FIRST_PART: u8 = 2;
const END: u8 = u8::MAX;

/// Why chunks are no checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Chunks are missing, or too many, or not those that were written.
    #[error("the checkpoint is not whole: {0}")]
    NotWhole(&'static str),
    /// A version of Loggos wrote it that this one doesn't know.
    #[error("the checkpoint has format {0}, which this version doesn't know")]
    UnknownFormat(u32),
    /// It is of another cohort.
    #[error("the checkpoint is of cohort {found}, not of {expected}")]
    OtherCohort {
        /// The cohort asked for.
        expected: CohortId,
        /// The cohort that it is of.
        found: CohortId,
    },
    /// It is of another kind of state machine, or of one that is not known.
    #[error("the checkpoint is of state machine kind {0}, which the cohort doesn't have")]
    OtherKind(u8),
    /// The bytes are nothing that was ever written.
    #[error("the checkpoint can't be read: {0}")]
    Undecodable(#[from] DecodeError),
    /// No state has ever been so.
    #[error("the checkpoint holds what no state can: {0}")]
    Impossible(&'static str),
}

/// Where the parts of a snapshot go on: after the record of that key in the part of that tag. The default is before the
/// first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The tag of the chunk that was given last; 0: none was.
    pub tag: u8,
    /// The key of the last record in it, in a form of the machine's own.
    pub last: Bytes,
}

/// Something that is written as chunks.
pub trait Chunked: Clone + fmt::Debug {
    /// The kind of state machine that it is a state of.
    fn kind(&self) -> Kind;

    /// How far it has come.
    fn progress(&self) -> &Progress;

    /// Appends what the kind adds to the header.
    fn header(&self, out: &mut Writer);

    /// The chunk that follows: a tag, from [`FIRST_PART`] on, and what it holds. None after the last.
    fn part(&self, _after: &Cursor) -> Option<(Bytes, Cursor)> {
        None
    }
}

/// What a job on a storage may not let go of.
#[derive(Clone, Debug)]
pub struct Keep {
    /// No read at an earlier moment will come: versions that only such reads could see may go (guarantee 16).
    pub watermark: Timestamp,
    /// The cells that are the machine's own; others may go (guarantee 19).
    pub cells: cell::Range,
}

impl Keep {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self { watermark: Timestamp(0), cells: cell::Range::all() }
    }
}

/// A frozen state, without the data in its storage.
pub trait Snapshot: Chunked + Send + 'static {
    /// The machine whose state it is.
    type Machine: StateMachine<Snapshot = Self>;
    /// What reads it back from chunks.
    type Loader: Loader<Snapshot = Self>;

    /// What must be kept in the storage for whoever starts from this.
    fn keep(&self) -> Keep;

    /// Whether the machine's table is dropped in it.
    fn is_dropped(&self) -> bool {
        false
    }

    /// The machine, with the data that it had.
    fn into_machine(self, storage: <Self::Machine as StateMachine>::Storage) -> Self::Machine;
}

/// A snapshot in the making, from chunks that came from disk or from a peer.
pub trait Loader: Clone + fmt::Debug + Sized {
    /// What it makes.
    type Snapshot;

    /// Begins with what the kind has added to the header.
    ///
    /// # Errors
    /// When it can't be one.
    fn begin(progress: Progress, header: Reader) -> Result<Self, LoadError>;

    /// Takes a part.
    ///
    /// # Errors
    /// When it can't be one.
    fn part(&mut self, tag: u8, _input: Reader) -> Result<(), LoadError> {
        Err(unexpected(tag))
    }

    /// Ends: all parts were there.
    ///
    /// # Errors
    /// When what they hold together can't be a state.
    fn finish(self) -> Result<Self::Snapshot, LoadError>;
}

/// A snapshot's chunks, one at a time. Nothing is made before it is asked for, so that a transfer of minutes holds one
/// chunk.
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

    /// Whether the end was given.
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

/// The last chunk: how many chunks come before it, and the checksum of them all.
#[must_use]
pub fn end(count: u64, checksum: u32) -> Bytes {
    let mut out = Writer::new();
    out.u8(END);
    out.u64(count);
    out.u32(checksum);
    out.finish()
}

/// What a chunk is, whichever the machine.
#[derive(Debug)]
pub enum Frame {
    /// The header, and what the kind has added to it.
    Header(Kind, Progress, Reader),
    /// A part, and what comes after its tag.
    Part(u8, Reader),
    /// The end of all.
    End,
}

/// Checks the frame of chunks as they come: header first, tags in order, the seal last.
#[derive(Clone, Debug)]
pub struct Frames {
    cohort: CohortId,
    count: u64,
    checksum: u32,
    last_tag: u8,
}

impl Frames {
    /// Of a checkpoint of that cohort.
    #[must_use]
    pub fn new(cohort: CohortId) -> Self {
        Self { cohort, count: 0, checksum: 0, last_tag: 0 }
    }

    /// Looks at the next chunk.
    ///
    /// # Errors
    /// When it can't follow those before it.
    pub fn next(&mut self, chunk: &Bytes) -> Result<Frame, LoadError> {
        let tag = chunk.first().copied().unwrap_or_default();
        if tag < self.last_tag {
            return Err(LoadError::Impossible("chunks out of their order"));
        }
        let frame = match tag {
            _ if self.count == 0 => header(chunk, self.cohort)?,
            END if *chunk == end(self.count, self.checksum) => Frame::End,
            END => return Err(LoadError::NotWhole("the last chunk is not the end of those before")),
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
    let untouched = progress.last_applied == Lsn::ZERO;
    if progress.last_timestamp.0 < 0 || untouched != (progress.last_timestamp == Timestamp(0)) {
        return Err(LoadError::Impossible("a last timestamp that doesn't go with the last entry"));
    }
    Ok(Frame::Header(kind, progress, input))
}

/// The snapshot that all of these chunks hold.
///
/// # Errors
/// When they are not all the chunks of one snapshot of this cohort and kind, whole and in order. Whatever the bytes are,
/// this doesn't panic.
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
            (Frame::Part(..) | Frame::End, None) => return Err(LoadError::NotWhole("there is more after the end")),
        }
    }
    whole.ok_or(LoadError::NotWhole("the end is missing"))
}

/// The refusal of a chunk that the machine doesn't have.
#[must_use]
pub fn unexpected(tag: u8) -> LoadError {
    LoadError::Undecodable(DecodeError::UnknownTag { what: "checkpoint chunk", tag: u64::from(tag) })
}

/// What a part is made of.
pub trait Record: Copy {
    /// Bytes that it takes, at most.
    fn size(&self) -> usize;

    /// Appends it to `out`.
    fn encode(&self, out: &mut Writer);
}

/// Packs records of one sort into a chunk: a tag, and records until it is full. Gives the last of them too; none if
/// there are no records.
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
