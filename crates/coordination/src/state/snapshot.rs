//! Snapshots of the state: a stream of records, cut into pieces of equal size regardless of record boundaries.
//!
//! The first record holds everything but the tree; each further one holds a node; an empty record ends the stream.
//! Records are length-prefixed.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use bytes::{Buf, Bytes, BytesMut};

use super::State;
use super::servers::Servers;
use crate::entry::{Position, write_count};
use crate::limits::SNAPSHOT_PIECE_BYTES;
use crate::session::Session;
use crate::tree::TreeBuilder;

const FORMAT: u8 = 1;

/// Progress of a snapshot.
#[derive(Debug, Default)]
pub(super) enum Writing {
    #[default]
    Idle,
    Under(BytesMut),
    /// The last record was written.
    Ended(BytesMut),
}

impl State {
    /// Begins a snapshot of the current state. A snapshot in progress is cancelled.
    pub fn begin_snapshot(&mut self) {
        let mut out = Writer::new();
        out.u32(0);
        out.u8(FORMAT);
        out.u64(self.next.0);
        out.i64(self.zxid);
        out.u64(self.opened);
        let missed = usize::from(planted(Bug::SnapshotMissesSession) && !self.sessions.is_empty());
        write_count(self.sessions.len() - missed, &mut out);
        self.sessions.iter().skip(missed).for_each(|(id, session)| session.write(*id, &mut out));
        self.servers.write(&mut out);
        self.tree.begin_snapshot();
        let mut stream = BytesMut::new();
        end_record(out, &mut stream);
        self.snapshot = Writing::Under(stream);
    }

    /// The next piece of the snapshot in progress; none after the last one.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        while let Writing::Under(stream) = &mut self.snapshot
            && stream.len() < SNAPSHOT_PIECE_BYTES
        {
            let mut out = Writer::new();
            out.u32(0);
            let has_node = self.tree.write_next(&mut out);
            end_record(out, stream);
            if !has_node {
                self.snapshot = Writing::Ended(std::mem::take(stream));
            }
        }
        match &mut self.snapshot {
            Writing::Under(stream) => Some(stream.split_to(SNAPSHOT_PIECE_BYTES).freeze()),
            Writing::Ended(stream) if !stream.is_empty() => {
                Some(stream.split_to(stream.len().min(SNAPSHOT_PIECE_BYTES)).freeze())
            }
            Writing::Ended(_) | Writing::Idle => {
                self.end_snapshot();
                None
            }
        }
    }

    /// Whether there are further pieces.
    #[must_use]
    pub fn has_piece(&self) -> bool {
        match &self.snapshot {
            Writing::Idle => false,
            Writing::Under(_) => true,
            Writing::Ended(stream) => !stream.is_empty(),
        }
    }

    /// Cancels the snapshot in progress.
    pub fn end_snapshot(&mut self) {
        self.snapshot = Writing::Idle;
        self.tree.end_snapshot();
    }
}

/// Sets the record's length and appends it to the stream.
fn end_record(mut record: Writer, stream: &mut BytesMut) {
    let length = u32::try_from(record.len() - 4).expect("a record holds one node or the sessions");
    record.patch_u32(0, length);
    stream.extend_from_slice(record.as_slice());
}

/// Reads a snapshot piece by piece.
#[derive(Debug, Default)]
pub struct Restorer {
    stream: BytesMut,
    head: Option<State>,
    tree: TreeBuilder,
    is_whole: bool,
}

impl Restorer {
    /// Takes the next piece.
    ///
    /// # Errors
    /// When it does not continue a snapshot.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), DecodeError> {
        self.stream.extend_from_slice(piece);
        while let Some(length) = self.stream.first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if self.stream.len() < 4 + length {
                break;
            }
            if self.is_whole {
                return Err(DecodeError::TrailingBytes(self.stream.len()));
            }
            self.stream.advance(4);
            let record = self.stream.split_to(length).freeze();
            self.record(record)?;
        }
        Ok(())
    }

    fn record(&mut self, record: Bytes) -> Result<(), DecodeError> {
        self.is_whole = record.is_empty();
        if self.is_whole {
            return Ok(());
        }
        let mut reader = Reader::new(record);
        if self.head.is_none() {
            self.head = Some(read_head(&mut reader)?);
        } else {
            self.tree.read_next(&mut reader)?;
        }
        reader.end()
    }

    /// The state.
    ///
    /// # Errors
    /// When the snapshot is incomplete.
    pub fn finish(self) -> Result<State, DecodeError> {
        let head = self.head.filter(|_| self.is_whole && self.stream.is_empty());
        let head = head.ok_or(DecodeError::Invalid { what: "end of a snapshot" })?;
        Ok(State { tree: self.tree.finish()?, ..head })
    }
}

fn read_head(reader: &mut Reader) -> Result<State, DecodeError> {
    let format = reader.u8()?;
    if format != FORMAT {
        return Err(DecodeError::UnknownTag { what: "format of a snapshot", tag: format.into() });
    }
    let mut state = State { next: Position(reader.u64()?), ..State::default() };
    state.zxid = reader.i64()?;
    state.opened = reader.u64()?;
    for _ in 0..reader.count(56)? {
        let (id, session) = Session::read(reader)?;
        state.sessions.insert(id, session);
    }
    state.servers = Servers::read(reader)?;
    Ok(state)
}
