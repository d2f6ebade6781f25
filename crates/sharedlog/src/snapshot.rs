//! Snapshots of what the players of a log have come to, kept in the log itself (guarantee 20).
//!
//! A snapshot is a state as of a position: all below was played. Its *parts* are entries of the log, and so is its *pointer*,
//! which names them. Who begins once the log was trimmed looks for a pointer ([`Finder`]) from the mark on, takes the
//! state, and plays on from the snapshot's position.
//!
//! *What a trim may take.* A [`Keeper`] appends the pointer once every part is known to lie on its whole chain, and says
//! that what is below the snapshot's position may be trimmed once the pointer is known to, too. Its player has passed
//! that position's predecessor, so that something is held there; every position that is given out from then on is
//! higher, whatever becomes of the sequencer. So the parts and the pointer lie at the snapshot's position or after it.
//! Trim to that position for the sake of the snapshot, and it is whole: to any mark that is trimmed to so there is
//! a pointer at the mark or after it, of a snapshot of that position or a later one. Of several keepers at one time the
//! one whose snapshot is newest may trim another's parts; then its own is the one that is found.
//!
//! A part that may lie in the log, and is not known to, is appended anew. What lies there of it is nobody's.

use base::canary::{Bug, planted};
use base::checksum;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::client::{Answer, Error};
use crate::duplicates::Duplicates;
use crate::limits::{POSITION_MAX, SNAPSHOT_PART_BYTES, SNAPSHOT_PARTS_AT_ONCE, SNAPSHOT_PARTS_MAX};
use crate::{Batch, Position, Run};

/// The first record of a part; the second one is what it holds.
const PART: &[u8] = b"loggos: a part of a snapshot";
/// The first record of a pointer; the second one names the parts.
const POINTER: &[u8] = b"loggos: a snapshot";
/// Positions that are looked through at one time.
const LOOK: usize = 64;

/// What players have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// All below was played.
    pub next: Position,
    /// The appends that were seen there.
    pub duplicates: Duplicates,
    /// What the players made of it.
    pub state: Bytes,
}

/// A snapshot takes more parts than a pointer names: [`SNAPSHOT_PARTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a snapshot of {bytes} bytes is too large: with the appends that were seen it may have {max}",
    max = SNAPSHOT_PARTS_MAX * SNAPSHOT_PART_BYTES
)]
pub struct SnapshotTooLarge {
    /// How large it is.
    pub bytes: usize,
}

/// Whether these are the records of a snapshot's entry: players pass over it.
#[must_use]
pub fn is_of_snapshot(records: &[Bytes]) -> bool {
    matches!(records, [first, _] if first == PART || first == POINTER)
}

/// Names a snapshot's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pointer {
    next: Position,
    /// Of all parts together.
    bytes: u64,
    checksum: u32,
    /// Where they lie, in their order.
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

impl Snapshot {
    fn encode(&self) -> Bytes {
        let none = Duplicates::default();
        let duplicates = if planted(Bug::TableNotInSnapshot) { &none } else { &self.duplicates };
        let mut writer = Writer::with_capacity(self.state.len());
        writer.bytes(&duplicates.encode());
        writer.bytes(&self.state);
        writer.finish()
    }

    fn decode(next: Position, bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (duplicates, state) = (Duplicates::decode(reader.bytes()?)?, reader.bytes()?);
        reader.end()?;
        Ok(Self { next, duplicates, state })
    }
}

/// Something that is to lie in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Wanting,
    UnderWay,
    At(Position),
}

/// What an append of a keeper's has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It lies there, on the whole chain.
    At(Position),
    /// It may lie there.
    InDoubt(Position),
    /// It doesn't lie in the log, or nobody knows where.
    Failed,
}

impl From<&Result<Answer, Error>> for Appended {
    fn from(outcome: &Result<Answer, Error>) -> Self {
        match outcome {
            Ok(Answer::Appended(position)) => Self::At(*position),
            Err(Error::Unknown { position }) => Self::InDoubt(*position),
            _ => Self::Failed,
        }
    }
}

/// Keeps a snapshot in its log.
#[derive(Debug)]
pub struct Keeper {
    next: Position,
    bytes: Bytes,
    parts: Vec<Piece>,
    pointer: Piece,
}

impl Keeper {
    /// What is to be kept. Its player has passed the position before the snapshot's.
    ///
    /// # Errors
    /// When it is too large.
    pub fn new(snapshot: &Snapshot) -> Result<Self, SnapshotTooLarge> {
        if snapshot.state.len() >= SNAPSHOT_PARTS_MAX * SNAPSHOT_PART_BYTES {
            return Err(SnapshotTooLarge { bytes: snapshot.state.len() });
        }
        let bytes = snapshot.encode();
        let parts = bytes.len().div_ceil(SNAPSHOT_PART_BYTES);
        if parts > SNAPSHOT_PARTS_MAX {
            return Err(SnapshotTooLarge { bytes: bytes.len() });
        }
        Ok(Self { next: snapshot.next, bytes, parts: vec![Piece::Wanting; parts], pointer: Piece::Wanting })
    }

    /// What is to be appended now, with a number for [`Keeper::appended`]. None, while enough is under way, or once all
    /// lies in the log.
    pub fn next_append(&mut self) -> Option<(usize, Batch)> {
        let under_way = self.parts.iter().filter(|piece| **piece == Piece::UnderWay).count();
        let wanting = self.parts.iter().position(|piece| *piece == Piece::Wanting);
        let (number, records) = match wanting {
            Some(number) if under_way < SNAPSHOT_PARTS_AT_ONCE => {
                self.parts[number] = Piece::UnderWay;
                let from = number * SNAPSHOT_PART_BYTES;
                let part = self.bytes.slice(from..self.bytes.len().min(from + SNAPSHOT_PART_BYTES));
                (number, [Bytes::from_static(PART), part])
            }
            None if self.pointer == Piece::Wanting => {
                let positions = self.parts.iter().map(|piece| if let Piece::At(at) = piece { Some(*at) } else { None });
                let parts = positions.collect::<Option<Vec<_>>>()?;
                self.pointer = Piece::UnderWay;
                let (bytes, checksum) = (self.bytes.len() as u64, checksum(&self.bytes));
                let pointer = Pointer { next: self.next, bytes, checksum, parts };
                (self.parts.len(), [Bytes::from_static(POINTER), pointer.encode()])
            }
            _ => return None,
        };
        Some((number, Batch::of(&records).expect("it is smaller than the largest")))
    }

    /// An append has ended.
    pub fn appended(&mut self, number: usize, outcome: Appended) {
        let piece = match outcome {
            Appended::At(position) => Piece::At(position),
            Appended::InDoubt(position) if planted(Bug::PartInDoubtNamed) => Piece::At(position),
            Appended::InDoubt(_) | Appended::Failed => Piece::Wanting,
        };
        match self.parts.get_mut(number) {
            Some(part) => *part = piece,
            None => self.pointer = piece,
        }
    }

    /// Where the pointer lies, once it is known to.
    #[must_use]
    pub fn kept_at(&self) -> Option<Position> {
        if let Piece::At(position) = self.pointer { Some(position) } else { None }
    }

    /// What lies below this the snapshot needs no more; none, as long as it isn't kept.
    #[must_use]
    pub fn may_trim_below(&self) -> Option<Position> {
        let is_early = planted(Bug::TrimmedBeforeKept) && self.pointer != Piece::Wanting;
        (self.kept_at().is_some() || is_early).then_some(self.next)
    }
}

/// What lies at a position, for a [`Finder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum There {
    /// These records.
    Records(Vec<Bytes>),
    /// Nothing, and never will; or what lay there is lost, or was given up by itself.
    Nothing,
    /// What lies below was given up, this position with it.
    TrimmedBelow(Position),
}

impl There {
    /// What an answer to a read of a position says; none, if it says nothing of it.
    #[must_use]
    pub fn of(answer: &Answer, position: Position) -> Option<Self> {
        match answer {
            Answer::Entry(data) => Some(data.batch.records().map_or(Self::Nothing, Self::Records)),
            Answer::Trimmed { mark } if *mark > position => Some(Self::TrimmedBelow(*mark)),
            Answer::Junk | Answer::Lost | Answer::Trimmed { .. } => Some(Self::Nothing),
            _ => None,
        }
    }
}

/// What a finder wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Where the log ends; [`Finder::tail`].
    Tail,
    /// What lies at positions in a row; [`Finder::read`]. A hole is waited for, and filled.
    Read(Run),
    /// Nothing more: [`Finder::found`] says what it has come to.
    Nothing,
}

/// What a finder has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first snapshot that the log has.
    Snapshot(Snapshot),
    /// None that can be had.
    Nothing {
        /// What lies below was trimmed: it can't be played either.
        mark: Position,
    },
}

/// Looks for a snapshot in a log.
#[derive(Debug)]
pub struct Finder {
    mark: Position,
    /// Where it looks next.
    next: Position,
    /// Where the log ended, at some time since the mark was told.
    tail: Option<Position>,
    fetching: Option<Fetching>,
    found: Option<Snapshot>,
}

#[derive(Debug)]
struct Fetching {
    pointer: Pointer,
    /// So many parts have come.
    count: usize,
    /// What they hold.
    bytes: Vec<u8>,
}

impl Finder {
    /// What lies below the mark is trimmed, as far as is known.
    #[must_use]
    pub fn new(mark: Position) -> Self {
        Self { mark, next: mark, tail: None, fetching: None, found: None }
    }

    /// What it wants to know now: the same until it was told something.
    #[must_use]
    pub fn wants(&self) -> Wanted {
        if let Some(Fetching { pointer, count, .. }) = &self.fetching {
            return Wanted::Read(Run::of(pointer.parts[*count], 1));
        }
        match self.tail {
            _ if self.found.is_some() => Wanted::Nothing,
            None => Wanted::Tail,
            Some(tail) if tail <= self.next => Wanted::Nothing,
            Some(tail) => Wanted::Read(Run::of(self.next, LOOK.min((tail.0 - self.next.0) as usize))),
        }
    }

    /// What it has come to.
    #[must_use]
    pub fn found(self) -> Found {
        self.found.map_or(Found::Nothing { mark: self.mark }, Found::Snapshot)
    }

    /// Where the log ends.
    pub fn tail(&mut self, tail: Position) {
        self.tail = Some(tail);
    }

    /// What lies at the first of the positions that it wants to read. What wasn't told it wants anew.
    pub fn read(&mut self, there: impl IntoIterator<Item = There>) {
        for there in there {
            let goes_on = match there {
                There::TrimmedBelow(mark) => {
                    // There is a newer snapshot, and the log may have grown.
                    *self = Self::new(mark.max(self.mark));
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

    /// Looks at what comes next, and whether it is to look further.
    fn look(&mut self, there: There) -> bool {
        let at = self.next;
        self.next = at.next();
        let There::Records(records) = there else { return true };
        let [first, body] = &records[..] else { return true };
        if first != POINTER {
            return true;
        }
        // Its parts were placed after what it is of, and before it.
        let is_sound = |pointer: &Pointer| {
            let mut parts = pointer.parts.iter();
            !pointer.parts.is_empty() && parts.all(|part| (pointer.next..at).contains(part))
        };
        match Pointer::decode(body.clone()) {
            Ok(pointer) if pointer.next >= self.mark && is_sound(&pointer) => {
                self.fetching = Some(Fetching { pointer, count: 0, bytes: Vec::new() });
                false
            }
            // It is of a time before, or no pointer.
            _ => true,
        }
    }

    fn take_part(&mut self, there: There) {
        let Some(mut fetching) = self.fetching.take() else { return };
        let There::Records(records) = there else { return };
        let [first, part] = &records[..] else { return };
        let Fetching { pointer, count, bytes } = &mut fetching;
        // Where something else lies, the snapshot can't be had. Another may be, further on.
        if first != PART || bytes.len() as u64 + part.len() as u64 > pointer.bytes {
            return;
        }
        bytes.extend_from_slice(part);
        *count += 1;
        if *count < pointer.parts.len() {
            self.fetching = Some(fetching);
        } else if bytes.len() as u64 == pointer.bytes && checksum(bytes) == pointer.checksum {
            self.found = Snapshot::decode(pointer.next, std::mem::take(bytes).into()).ok();
        }
    }

    /// Checks what must hold between any two steps.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        assert!(self.mark <= self.next && self.next.0 <= POSITION_MAX, "it looks at what is kept");
        let is_short = |fetching: &Fetching| fetching.count < fetching.pointer.parts.len();
        assert!(self.fetching.as_ref().is_none_or(is_short), "what is whole is taken");
    }
}

#[cfg(test)]
mod tests;
