//! Snapshots of the players' state, stored in the log itself (guarantee 20).
//!
//! A snapshot is the state at a position: the result of all entries below. Its *parts* are entries of the log, and so
//! is its *pointer*, which lists them. A reader that starts after the log was trimmed searches for a pointer from the
//! trim mark on ([`Finder`]), loads the state, and continues from the snapshot's position.
//!
//! *When to trim.* A [`Keeper`] appends the pointer once every part is known to be on its whole chain. Once the pointer
//! is too, positions below the snapshot's position may be trimmed. The player has passed the position before the
//! snapshot's, so that position is written, and every position handed out later is higher, even by another sequencer.
//! So the parts and the pointer are at or above the snapshot's position, and a trim to that position keeps the snapshot
//! complete: for any such trim mark there is a pointer at or above the mark, to a snapshot of that position or a later
//! one. With several keepers, the one with the newest snapshot may trim another's parts; a finder then finds the newest
//! one.
//!
//! A part with an unknown outcome is appended again. Its first copy is never referenced.

use base::canary::{Bug, planted};
use base::checksum_append;
use base::codec::{DecodeError, Reader, Wire as _, Writer};
use bytes::{Bytes, BytesMut};

use crate::client::{Error, LogReply};
use crate::duplicates::Duplicates;
use crate::limits::{POSITION_MAX, SNAPSHOT_PART_BYTES, SNAPSHOT_PARTS_AT_ONCE, SNAPSHOT_PARTS_MAX};
use crate::{Batch, Position, PositionRun};

/// First record of a part; the second record is its content.
const PART: &[u8] = b"loggos: a part of a snapshot";
/// First record of a pointer; the second record lists the parts.
const POINTER: &[u8] = b"loggos: a snapshot";
/// Positions read at one time in a search.
const LOOK: usize = 64;

/// The state of players at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The state includes all entries below this position.
    pub next: Position,
    /// The appends delivered below this position.
    pub duplicates: Duplicates,
    pub state: Bytes,
}

/// A snapshot needs more than [`SNAPSHOT_PARTS_MAX`] parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "snapshot too large: {bytes} bytes, limit {max} (including the deduplication state)",
    max = SNAPSHOT_PARTS_MAX * SNAPSHOT_PART_BYTES
)]
pub struct SnapshotTooLarge {
    /// Size of the snapshot.
    pub bytes: usize,
}

/// Whether these are the records of a snapshot's part or pointer, which players skip.
#[must_use]
pub fn is_of_snapshot(records: &[Bytes]) -> bool {
    matches!(records, [first, _] if first == PART || first == POINTER)
}

/// The list of a snapshot's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pointer {
    next: Position,
    /// Size and checksum of all parts together.
    bytes: u64,
    checksum: u32,
    /// Positions of the parts, in order.
    parts: Vec<Position>,
}

impl Pointer {
    fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.next.0);
        writer.u64(self.bytes);
        writer.u32(self.checksum);
        writer.u32(self.parts.len() as u32);
        self.parts.iter().for_each(|position| writer.u64(position.0));
        writer.finish()
    }

    fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (next, bytes, checksum) = (Position::decode(&mut reader)?, reader.u64()?, reader.u32()?);
        let count = reader.count(8)?;
        if count > SNAPSHOT_PARTS_MAX || bytes > (count * SNAPSHOT_PART_BYTES) as u64 {
            return Err(DecodeError::Invalid { what: "number of parts" });
        }
        let parts = (0..count).map(|_| Position::decode(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self { next, bytes, checksum, parts })
    }
}

/// The state of one append of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Wanting,
    UnderWay,
    At(Position),
}

/// The outcome of one append of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The whole chain holds it at this position.
    At(Position),
    /// The append may have happened at this position.
    InDoubt(Position),
    /// The append failed or has no known position.
    Failed,
}

impl From<&Result<LogReply, Error>> for Appended {
    fn from(outcome: &Result<LogReply, Error>) -> Self {
        match outcome {
            Ok(LogReply::Appended(position)) => Self::At(*position),
            Err(Error::Unknown { position }) => Self::InDoubt(*position),
            _ => Self::Failed,
        }
    }
}

/// Keeps a snapshot in its log.
///
/// The state may be passed in as it is produced ([`Keeper::begin`], [`Keeper::push`], [`Keeper::end`]): the memory of a
/// part is freed once the part is in the log.
#[derive(Debug)]
pub struct Keeper {
    next: Position,
    /// Bytes that do not fill a part yet.
    gathered: BytesMut,
    /// The size and checksum of everything passed in so far.
    bytes: u64,
    checksum: u32,
    /// Each part with its bytes, which are dropped once it is in the log.
    parts: Vec<(Piece, Bytes)>,
    is_ended: bool,
    pointer: Piece,
}

impl Keeper {
    /// Starts a snapshot of all positions below `next`, with the deduplication state at that position. The player must
    /// have passed the position before `next`.
    #[must_use]
    pub fn begin(next: Position, duplicates: &Duplicates) -> Self {
        let none = Duplicates::default();
        let duplicates = if planted(Bug::TableNotInSnapshot) { &none } else { duplicates };
        let mut writer = Writer::new();
        writer.bytes(&duplicates.encode());
        let mut keeper = Self {
            next,
            gathered: BytesMut::new(),
            bytes: 0,
            checksum: 0,
            parts: Vec::new(),
            is_ended: false,
            pointer: Piece::Wanting,
        };
        keeper.take(writer.as_slice());
        keeper
    }

    /// Adds the next bytes of the state.
    ///
    /// # Errors
    /// When the snapshot is too large.
    pub fn push(&mut self, state: &[u8]) -> Result<(), SnapshotTooLarge> {
        let bytes = (self.bytes as usize).saturating_add(state.len());
        if bytes > SNAPSHOT_PARTS_MAX * SNAPSHOT_PART_BYTES {
            return Err(SnapshotTooLarge { bytes });
        }
        self.take(state);
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) {
        debug_assert!(!self.is_ended, "bytes after the end of a snapshot");
        self.bytes += bytes.len() as u64;
        self.checksum = checksum_append(self.checksum, bytes);
        self.gathered.extend_from_slice(bytes);
        while self.gathered.len() >= SNAPSHOT_PART_BYTES {
            let part = self.gathered.split_to(SNAPSHOT_PART_BYTES).freeze();
            self.parts.push((Piece::Wanting, part));
        }
    }

    /// The state is complete.
    pub fn end(&mut self) {
        self.is_ended = true;
        if !self.gathered.is_empty() {
            let part = std::mem::take(&mut self.gathered).freeze();
            self.parts.push((Piece::Wanting, part));
        }
    }

    /// A keeper of a whole snapshot.
    ///
    /// # Errors
    /// When it is too large.
    pub fn new(snapshot: &Snapshot) -> Result<Self, SnapshotTooLarge> {
        let mut keeper = Self::begin(snapshot.next, &snapshot.duplicates);
        keeper.push(&snapshot.state)?;
        keeper.end();
        Ok(keeper)
    }

    /// Whether to wait before passing in more: enough parts are in memory.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.parts.iter().filter(|(piece, _)| !matches!(piece, Piece::At(_))).count() >= SNAPSHOT_PARTS_AT_ONCE
    }

    /// The next append, with a number for [`Keeper::appended`]. `None` while the maximum is in flight, or after the
    /// last one.
    pub fn next_append(&mut self) -> Option<(usize, Batch)> {
        let under_way = self.parts.iter().filter(|(piece, _)| *piece == Piece::UnderWay).count();
        let wanting = self.parts.iter().position(|(piece, _)| *piece == Piece::Wanting);
        let (number, records) = match wanting {
            Some(number) if under_way < SNAPSHOT_PARTS_AT_ONCE => {
                let (piece, part) = &mut self.parts[number];
                *piece = Piece::UnderWay;
                (number, [Bytes::from_static(PART), part.clone()])
            }
            None if self.is_ended && self.pointer == Piece::Wanting => {
                let at = |(piece, _): &(Piece, Bytes)| if let Piece::At(at) = piece { Some(*at) } else { None };
                let parts = self.parts.iter().map(at).collect::<Option<Vec<_>>>()?;
                self.pointer = Piece::UnderWay;
                let pointer = Pointer { next: self.next, bytes: self.bytes, checksum: self.checksum, parts };
                (self.parts.len(), [Bytes::from_static(POINTER), pointer.encode()])
            }
            _ => return None,
        };
        Some((number, Batch::of(&records).expect("a part is smaller than the largest batch")))
    }

    /// Handles the outcome of an append.
    pub fn appended(&mut self, number: usize, outcome: Appended) {
        let piece = match outcome {
            Appended::At(position) => Piece::At(position),
            Appended::InDoubt(position) if planted(Bug::PartInDoubtNamed) => Piece::At(position),
            Appended::InDoubt(_) | Appended::Failed => Piece::Wanting,
        };
        match self.parts.get_mut(number) {
            Some((part, bytes)) => {
                *part = piece;
                if let Piece::At(_) = piece {
                    *bytes = Bytes::new();
                }
            }
            None => self.pointer = piece,
        }
    }

    /// Position of the pointer, once it is stored.
    #[must_use]
    pub fn kept_at(&self) -> Option<Position> {
        if let Piece::At(position) = self.pointer { Some(position) } else { None }
    }

    /// Positions below this may be trimmed; `None` until the snapshot is stored.
    #[must_use]
    pub fn may_trim_below(&self) -> Option<Position> {
        let is_early = planted(Bug::TrimmedBeforeKept) && self.pointer != Piece::Wanting;
        (self.kept_at().is_some() || is_early).then_some(self.next)
    }
}

/// The content of a position, for a [`Finder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum There {
    /// An entry with these records.
    Records(Vec<Bytes>),
    /// No records: junk, lost, or trimmed individually.
    Nothing,
    /// All positions below this one are trimmed, including the requested one.
    TrimmedBelow(Position),
}

impl There {
    /// Converts the answer to a read; `None` if it is not final.
    #[must_use]
    pub fn of(answer: &LogReply, position: Position) -> Option<Self> {
        match answer {
            LogReply::Entry(data) => Some(data.batch.records().map_or(Self::Nothing, Self::Records)),
            LogReply::Trimmed { mark } if *mark > position => Some(Self::TrimmedBelow(*mark)),
            LogReply::Junk | LogReply::Lost | LogReply::Trimmed { .. } => Some(Self::Nothing),
            _ => None,
        }
    }
}

/// The next input that a finder needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The tail of the log; call [`Finder::tail`].
    Tail,
    /// The content of consecutive positions; call [`Finder::read`]. Holes must be filled.
    Read(PositionRun),
    /// The search has ended; call [`Finder::found`].
    Nothing,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first complete snapshot in the log.
    Snapshot(Snapshot),
    Nothing {
        /// Positions below are trimmed, so the log cannot be played from the start either unless this is 0.
        mark: Position,
    },
}

/// Receives the application's state of a snapshot, in order, as its parts are read. So a large state can be decoded
/// without being held in memory as bytes. Dropped if the snapshot turns out to be incomplete.
pub trait Collect: Default {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// When they do not continue a state; the finder then searches for a later snapshot.
    fn push(&mut self, bytes: &[u8]) -> Result<(), DecodeError>;
}

impl Collect for BytesMut {
    fn push(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// A snapshot found by a finder.
#[derive(Debug)]
pub struct Collected<C> {
    /// The state includes all entries below this position.
    pub next: Position,
    /// The appends delivered below this position.
    pub duplicates: Duplicates,
    /// The collector of the application's state.
    pub state: C,
}

/// Searches a log for a snapshot.
#[derive(Debug)]
pub struct Finder<C = BytesMut> {
    mark: Position,
    /// Next position to read.
    next: Position,
    /// The tail, queried after the mark was learned.
    tail: Option<Position>,
    fetching: Option<Fetching<C>>,
    found: Option<Collected<C>>,
}

#[derive(Debug)]
struct Fetching<C> {
    pointer: Pointer,
    /// Number of parts read.
    count: usize,
    /// The size and checksum of the parts read.
    bytes: u64,
    checksum: u32,
    /// The start of the first parts, until they include the deduplication state, which precedes the application's
    /// state.
    head: BytesMut,
    duplicates: Option<Duplicates>,
    state: C,
}

impl<C: Collect> Fetching<C> {
    fn new(pointer: Pointer) -> Self {
        Self { pointer, count: 0, bytes: 0, checksum: 0, head: BytesMut::new(), duplicates: None, state: C::default() }
    }

    fn push(&mut self, part: &[u8]) -> Result<(), DecodeError> {
        self.count += 1;
        self.bytes += part.len() as u64;
        self.checksum = checksum_append(self.checksum, part);
        if self.bytes > self.pointer.bytes {
            return Err(DecodeError::Invalid { what: "size of a snapshot" });
        }
        if self.duplicates.is_some() {
            return self.state.push(part);
        }
        self.head.extend_from_slice(part);
        let Some(length) = self.head.first_chunk::<4>() else { return Ok(()) };
        let end = 4 + u32::from_le_bytes(*length) as usize;
        if self.head.len() >= end {
            let head = std::mem::take(&mut self.head).freeze();
            self.duplicates = Some(Duplicates::decode(head.slice(4..end))?);
            self.state.push(&head[end..])?;
        }
        Ok(())
    }

    fn finish(self) -> Option<Collected<C>> {
        let is_whole = self.bytes == self.pointer.bytes && self.checksum == self.pointer.checksum;
        let duplicates = self.duplicates.filter(|_| is_whole)?;
        Some(Collected { next: self.pointer.next, duplicates, state: self.state })
    }
}

impl Finder {
    /// Creates a finder of a whole snapshot. Positions below `mark` are known to be trimmed.
    #[must_use]
    pub fn new(mark: Position) -> Self {
        Self::collecting(mark)
    }

    /// The result of the search.
    #[must_use]
    pub fn found(self) -> Found {
        match self.collected() {
            Ok(Collected { next, duplicates, state }) => {
                Found::Snapshot(Snapshot { next, duplicates, state: state.freeze() })
            }
            Err(mark) => Found::Nothing { mark },
        }
    }
}

impl<C: Collect> Finder<C> {
    /// Creates a finder that passes the state to a collector. Positions below `mark` are known to be trimmed.
    #[must_use]
    pub fn collecting(mark: Position) -> Self {
        Self { mark, next: mark, tail: None, fetching: None, found: None }
    }

    /// The result of the search.
    ///
    /// # Errors
    /// No complete snapshot; positions below this one are trimmed.
    pub fn collected(self) -> Result<Collected<C>, Position> {
        self.found.ok_or(self.mark)
    }

    /// The next input needed. Unchanged until an input arrives.
    #[must_use]
    pub fn wants(&self) -> Wanted {
        if let Some(Fetching { pointer, count, .. }) = &self.fetching {
            return Wanted::Read(PositionRun::of(pointer.parts[*count], 1));
        }
        match self.tail {
            _ if self.found.is_some() => Wanted::Nothing,
            None => Wanted::Tail,
            Some(tail) if tail <= self.next => Wanted::Nothing,
            Some(tail) => Wanted::Read(PositionRun::of(self.next, LOOK.min((tail.0 - self.next.0) as usize))),
        }
    }

    /// Supplies the tail of the log.
    pub fn tail(&mut self, tail: Position) {
        self.tail = Some(tail);
    }

    /// Supplies the content of the first requested positions. The finder requests the others again.
    pub fn read(&mut self, there: impl IntoIterator<Item = There>) {
        for there in there {
            let goes_on = match there {
                There::TrimmedBelow(mark) => {
                    // A newer snapshot exists, and the log may have grown.
                    *self = Self::collecting(mark.max(self.mark));
                    false
                }
                there if self.fetching.is_some() => {
                    self.take_part(there);
                    false
                }
                there => self.look(there),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Examines the next position. Returns whether to continue with the one after it.
    fn look(&mut self, there: There) -> bool {
        let at = self.next;
        self.next = at.next();
        let There::Records(records) = there else { return true };
        let [first, body] = &records[..] else { return true };
        if first != POINTER {
            return true;
        }
        // The parts are at or above the snapshot's position and below the pointer.
        let is_sound = |pointer: &Pointer| {
            let mut parts = pointer.parts.iter();
            !pointer.parts.is_empty() && parts.all(|part| (pointer.next..at).contains(part))
        };
        match Pointer::decode(body.clone()) {
            Ok(pointer) if pointer.next >= self.mark && is_sound(&pointer) => {
                self.fetching = Some(Fetching::new(pointer));
                false
            }
            // The snapshot is older than the mark, or the entry is not a pointer.
            _ => true,
        }
    }

    fn take_part(&mut self, there: There) {
        let Some(mut fetching) = self.fetching.take() else { return };
        let There::Records(records) = there else { return };
        let [first, part] = &records[..] else { return };
        // A part is missing, so this snapshot is incomplete. A later one may be complete.
        if first != PART || fetching.push(part).is_err() {
            return;
        }
        if fetching.count < fetching.pointer.parts.len() {
            self.fetching = Some(fetching);
        } else {
            self.found = fetching.finish();
        }
    }

    /// Checks the invariants that hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is violated.
    pub fn invariants(&self) {
        assert!(
            self.mark <= self.next && self.next.0 <= POSITION_MAX,
            "the finder reads positions at or above the trim mark"
        );
        let is_short = |fetching: &Fetching<C>| fetching.count < fetching.pointer.parts.len();
        assert!(self.fetching.as_ref().is_none_or(is_short), "a complete snapshot ends the search");
    }
}

#[cfg(test)]
mod tests;
