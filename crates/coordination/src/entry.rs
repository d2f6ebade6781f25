//! Entries of the coordination log.
//!
//! A server joins with [`Entry::Join`]; the position of that entry is its id. A restarted server gets another id, so
//! that a delayed append of the previous process is not attributed to it (guarantee 28). All its further entries are
//! batches, numbered from 1 and applied in the order of these numbers: a retried append may put a batch into the log
//! twice, and concurrent appends may put it in front of its predecessor.

use std::sync::Arc;

use base::Timestamp;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::acl::Id;
use crate::jute::{PASSWORD_BYTES, Password};
use crate::limits::{BATCH_ITEMS_MAX, IDENTITIES_MAX};

#[cfg(test)]
mod tests;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

number! {
    /// A position of the log.
    Position(u64)
}

number! {
    /// A server: the position of the entry with which it joined.
    ServerId(u64)
}

number! {
    SessionId(i64)
}

number! {
    /// How often a session has changed its connection.
    MoveEpoch(u32)
}

impl Position {
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Join {
        /// Random, unique to this process: the server recognizes its own entry by it.
        nonce: u128,
    },
    /// Items of a server.
    Batch(Arc<Batch>),
}

/// Items of one server, applied in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The server that created it.
    pub server: ServerId,
    /// Counts the server's batches from 1, without gaps.
    pub number: u64,
    /// The server's wall clock when it created the batch. Times in stats come from it.
    pub time_ms: i64,
    /// Identities of the connections that sent the requests.
    pub identities: Vec<Vec<Id>>,
    pub items: Vec<Item>,
}

/// One step of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Opens a session. The state assigns its id.
    Open {
        timeout_ms: u32,
        /// Generated randomly by the server.
        password: Password,
    },
    /// Moves a session to a new connection, if the password is the session's.
    Move {
        session: SessionId,
        /// The password sent by the client.
        password: Password,
        /// The newly negotiated timeout.
        timeout_ms: u32,
    },
    /// A write, or the end of a session.
    Request {
        /// Session, epoch and sequence number.
        stamp: Stamp,
        /// Index into the batch's identities.
        identities: u32,
        op: i32,
        /// The operation's record, as the client sent it.
        body: Bytes,
    },
    /// The client has sent a frame since the last touch.
    Touch { session: SessionId, epoch: MoveEpoch },
    /// Ends a session, unless it was touched after this (guarantee 21).
    Expire {
        session: SessionId,
        /// The last touch known to the server that proposes the expiry.
        last_touch: Position,
    },
    /// Deletes a container or TTL node, unless it was changed.
    Collect {
        path: Box<str>,
        /// The transaction that last changed it.
        mzxid: i64,
        /// The transaction that last changed its children.
        pzxid: i64,
    },
    /// A snapshot is stored in the log.
    SnapshotKept {
        /// The snapshot includes all positions below this one.
        next: Position,
    },
}

/// The order of a session's requests (guarantee 22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub session: SessionId,
    pub epoch: MoveEpoch,
    /// Counts the requests of the connection from 1, without gaps.
    pub sequence: u64,
}

/// Format version, the first byte of an entry.
const FORMAT: u8 = 1;

mod tag {
    pub(super) const JOIN: u8 = 1;
    pub(super) const BATCH: u8 = 2;

    pub(super) const OPEN: u8 = 1;
    pub(super) const MOVE: u8 = 2;
    pub(super) const REQUEST: u8 = 3;
    pub(super) const TOUCH: u8 = 4;
    pub(super) const EXPIRE: u8 = 5;
    pub(super) const COLLECT: u8 = 6;
    pub(super) const SNAPSHOT_KEPT: u8 = 7;
}

impl Entry {
    /// The encoding in the log.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Join { nonce } => {
                let mut out = Writer::new();
                out.u8(FORMAT);
                out.u8(tag::JOIN);
                out.u128(*nonce);
                out.finish()
            }
            Self::Batch(batch) => batch.encode(),
        }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// When the bytes are not an entry.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8()?;
        if format != FORMAT {
            return Err(DecodeError::UnknownTag { what: "format", tag: format.into() });
        }
        let entry = match reader.u8()? {
            tag::JOIN => Self::Join { nonce: reader.u128()? },
            tag::BATCH => Self::Batch(Arc::new(Batch::read(&mut reader)?)),
            unknown => return Err(DecodeError::UnknownTag { what: "entry", tag: unknown.into() }),
        };
        reader.end()?;
        Ok(entry)
    }
}

impl Batch {
    /// The encoding in the log.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let identities: usize = self.identities.iter().map(|ids| identities_len(ids)).sum();
        let items: usize = self.items.iter().map(Item::encoded_len).sum();
        let mut out = Writer::with_capacity(64 + identities + items);
        out.u8(FORMAT);
        out.u8(tag::BATCH);
        self.write(&mut out);
        out.finish()
    }

    /// Writes the item without a tag.
    pub(crate) fn write(&self, out: &mut Writer) {
        out.u64(self.server.0);
        out.u64(self.number);
        out.i64(self.time_ms);
        write_count(self.identities.len(), out);
        for ids in &self.identities {
            write_count(ids.len(), out);
            for id in ids {
                out.bytes(id.scheme.as_bytes());
                out.bytes(id.id.as_bytes());
            }
        }
        write_count(self.items.len(), out);
        self.items.iter().for_each(|item| item.write(out));
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        let server = ServerId(reader.u64()?);
        let number = reader.u64()?;
        let time_ms = reader.i64()?;
        let mut identities = Vec::new();
        for _ in 0..bounded(reader.count(4)?, BATCH_ITEMS_MAX, "number of identities")? {
            let count = bounded(reader.count(8)?, IDENTITIES_MAX, "number of identities")?;
            let ids = (0..count).map(|_| Ok(Id { scheme: text(reader)?, id: text(reader)? }));
            identities.push(ids.collect::<Result<_, DecodeError>>()?);
        }
        let count = bounded(reader.count(1)?, BATCH_ITEMS_MAX, "number of items")?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(Item::read(reader)?);
        }
        Ok(Self { server, number, time_ms, identities, items })
    }

    /// The server's wall clock when it created the batch.
    #[must_use]
    pub const fn time_of(wall: Timestamp) -> i64 {
        wall.0.div_euclid(1_000_000)
    }
}

impl Item {
    /// Upper bound of the encoded size, without identities.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        40 + match self {
            Self::Request { body, .. } => body.len(),
            Self::Collect { path, .. } => path.len(),
            _ => 0,
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Self::Open { timeout_ms, password } => {
                out.u8(tag::OPEN);
                out.u32(*timeout_ms);
                out.raw(password);
            }
            Self::Move { session, password, timeout_ms } => {
                out.u8(tag::MOVE);
                out.i64(session.0);
                out.raw(password);
                out.u32(*timeout_ms);
            }
            Self::Request { stamp, identities, op, body } => {
                out.u8(tag::REQUEST);
                out.i64(stamp.session.0);
                out.u32(stamp.epoch.0);
                out.u64(stamp.sequence);
                out.u32(*identities);
                out.u32(op.cast_unsigned());
                out.bytes(body);
            }
            Self::Touch { session, epoch } => {
                out.u8(tag::TOUCH);
                out.i64(session.0);
                out.u32(epoch.0);
            }
            Self::Expire { session, last_touch } => {
                out.u8(tag::EXPIRE);
                out.i64(session.0);
                out.u64(last_touch.0);
            }
            Self::Collect { path, mzxid, pzxid } => {
                out.u8(tag::COLLECT);
                out.bytes(path.as_bytes());
                out.i64(*mzxid);
                out.i64(*pzxid);
            }
            Self::SnapshotKept { next } => {
                out.u8(tag::SNAPSHOT_KEPT);
                out.u64(next.0);
            }
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8()? {
            tag::OPEN => Self::Open { timeout_ms: reader.u32()?, password: password(reader)? },
            tag::MOVE => {
                Self::Move { session: SessionId(reader.i64()?), password: password(reader)?, timeout_ms: reader.u32()? }
            }
            tag::REQUEST => Self::Request {
                stamp: Stamp {
                    session: SessionId(reader.i64()?),
                    epoch: MoveEpoch(reader.u32()?),
                    sequence: reader.u64()?,
                },
                identities: reader.u32()?,
                op: reader.u32()?.cast_signed(),
                body: reader.bytes()?,
            },
            tag::TOUCH => Self::Touch { session: SessionId(reader.i64()?), epoch: MoveEpoch(reader.u32()?) },
            tag::EXPIRE => Self::Expire { session: SessionId(reader.i64()?), last_touch: Position(reader.u64()?) },
            tag::COLLECT => Self::Collect { path: text(reader)?, mzxid: reader.i64()?, pzxid: reader.i64()? },
            tag::SNAPSHOT_KEPT => Self::SnapshotKept { next: Position(reader.u64()?) },
            unknown => return Err(DecodeError::UnknownTag { what: "item", tag: unknown.into() }),
        })
    }
}

/// Encoded size of a connection's identities.
pub(crate) fn identities_len(ids: &[Id]) -> usize {
    4 + ids.iter().map(|id| 8 + id.scheme.len() + id.id.len()).sum::<usize>()
}

pub(crate) fn write_count(count: usize, out: &mut Writer) {
    out.u32(u32::try_from(count).expect("limits bound all counts"));
}

fn bounded(count: usize, max: usize, what: &'static str) -> Result<usize, DecodeError> {
    if count > max { Err(DecodeError::Invalid { what }) } else { Ok(count) }
}

pub(crate) fn password(reader: &mut Reader) -> Result<Password, DecodeError> {
    let bytes = reader.raw(PASSWORD_BYTES)?;
    Password::try_from(&bytes[..]).map_err(|_| DecodeError::Invalid { what: "password" })
}

pub(crate) fn text(reader: &mut Reader) -> Result<Box<str>, DecodeError> {
    let bytes = reader.bytes()?;
    str::from_utf8(&bytes).map(Into::into).map_err(|_| DecodeError::Invalid { what: "text" })
}
