//! What the log carries for a state machine: the payload of an entry.
//!
//! A payload is one tag byte and the command's fields; byte strings share the payload's buffer when it is read. An
//! *empty* payload is a leader's barrier (guarantee 1) and no command: states take it as "nothing happens".
//!
//! What a client may ask was checked before it was proposed (`validate`), so these decoders check form only: limits may
//! differ between versions of Loggos, and an entry that is in the log must mean the same to all of them.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, KeyRange, Membership, Timestamp};
use bytes::Bytes;

use crate::request::{Mismatch, SessionId, SessionStamp, Write};

/// What a tablet is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// From here on the tablet owns that range, and answers for it (guarantee 19). Whoever leads it first takes the
    /// range from the catalog; a second such entry changes nothing.
    Found {
        /// The range.
        range: KeyRange,
    },
    /// From here on the tablet's keys from that one on are another's, which begins with all that this tablet knows of
    /// them (guarantee 19). A second such entry changes nothing.
    Split {
        /// The first key of the other.
        key: Bytes,
        /// The other's cohort.
        child: CohortId,
        /// The members that it begins with: those of this one, as the catalog knows them. They don't change
        /// meanwhile.
        members: Membership,
    },
    /// From here on the tablet owns nothing, and its rows may go: its table is dropped (guarantee 19).
    Drop,
    /// What was acknowledged before may be lost, from some entry on that nobody knows (guarantee 11).
    DeclareLoss,
    /// Open a session, named for this entry's sequence.
    OpenSession {
        /// A key that it is to be good for.
        key: Bytes,
    },
    /// Write columns of a row. Whoever proposed it has found its conditions met ([`crate::TabletView::decide`]).
    Write {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// The columns, each with its new value; none deletes it.
        columns: Vec<(Bytes, Option<Bytes>)>,
    },
    /// Delete a row, with all its columns.
    DeleteRow {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
    },
    /// Write nothing, since a condition was not met: the session is to remember it, lest a retry be executed
    /// (guarantee 10).
    Refuse {
        /// Which write of which session it is.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// What was not met.
        mismatch: Mismatch,
    },
    /// Forget sessions, each unless it was used after the given moment (guarantee 10).
    ExpireSessions {
        /// The sessions, each with its last use as the proposer saw it.
        sessions: Vec<(SessionId, Timestamp)>,
    },
    /// Nobody will read at an earlier moment any more: versions that only such reads could see may go (guarantee 16).
    Watermark(Timestamp),
}

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;
const EXPIRE_SESSIONS: u8 = 3;
const WATERMARK: u8 = 4;
const DELETE_ROW: u8 = 5;
const REFUSE: u8 = 6;
const FOUND: u8 = 7;
const DROP: u8 = 8;
const SPLIT: u8 = 9;
const DECLARE_LOSS: u8 = 10;

impl Command {
    /// A write that has no conditions, or whose conditions are met.
    #[must_use]
    pub fn unconditional(write: Write) -> Self {
        let Write { stamp, key, mutations } = write;
        let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
        Self::Write { stamp, key, columns }
    }

    /// The key that it is about, if it is about one.
    pub(crate) fn key(&self) -> Option<&Bytes> {
        match self {
            Self::OpenSession { key }
            | Self::Write { key, .. }
            | Self::DeleteRow { key, .. }
            | Self::Refuse { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Found { range } => {
                let mut out = Writer::new();
                out.u8(FOUND);
                range.encode(&mut out);
                out.finish()
            }
            Self::Split { key, child, members } => {
                let mut out = Writer::with_capacity(9 + key.len() + members.bytes());
                out.u8(SPLIT);
                out.bytes(key);
                out.u32(child.0);
                members.encode(&mut out);
                out.finish()
            }
            Self::Drop => Bytes::from_static(&[DROP]),
            Self::DeclareLoss => Bytes::from_static(&[DECLARE_LOSS]),
            Self::OpenSession { key } => {
                let mut out = Writer::with_capacity(5 + key.len());
                out.u8(OPEN_SESSION);
                out.bytes(key);
                out.finish()
            }
            Self::Write { stamp, key, columns } => encode_write(stamp.as_ref(), key, columns),
            Self::DeleteRow { stamp, key } => {
                let mut out = Writer::with_capacity(30 + key.len());
                out.u8(DELETE_ROW);
                SessionStamp::encode(stamp.as_ref(), &mut out);
                out.bytes(key);
                out.finish()
            }
            Self::Refuse { stamp, key, mismatch } => {
                let mut out = Writer::with_capacity(50 + key.len() + mismatch.column.len());
                out.u8(REFUSE);
                SessionStamp::encode(stamp.as_ref(), &mut out);
                out.bytes(key);
                out.bytes(&mismatch.column);
                out.i64(mismatch.expected.0);
                out.i64(mismatch.actual.0);
                out.finish()
            }
            Self::ExpireSessions { sessions } => {
                let mut out = Writer::with_capacity(5 + 16 * sessions.len());
                out.u8(EXPIRE_SESSIONS);
                out.count(sessions.len());
                for (session, last_used) in sessions {
                    out.u64(session.0);
                    out.i64(last_used.0);
                }
                out.finish()
            }
            Self::Watermark(watermark) => {
                let mut out = Writer::with_capacity(9);
                out.u8(WATERMARK);
                out.i64(watermark.0);
                out.finish()
            }
        }
    }

    /// Reads an entry's payload that is not empty. Byte strings are slices of it.
    ///
    /// # Errors
    /// When it is not a tablet's command. If it came through the log, that is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(payload);
        let command = match input.u8()? {
            FOUND => Self::Found { range: KeyRange::decode(&mut input)? },
            SPLIT => {
                let (key, child) = (input.bytes()?, CohortId(input.u32()?));
                Self::Split { key, child, members: Membership::decode(&mut input)? }
            }
            DROP => Self::Drop,
            DECLARE_LOSS => Self::DeclareLoss,
            OPEN_SESSION => Self::OpenSession { key: input.bytes()? },
            WRITE => decode_write(&mut input)?,
            DELETE_ROW => Self::DeleteRow { stamp: SessionStamp::decode(&mut input)?, key: input.bytes()? },
            REFUSE => Self::Refuse {
                stamp: SessionStamp::decode(&mut input)?,
                key: input.bytes()?,
                mismatch: Mismatch {
                    column: input.bytes()?,
                    expected: Timestamp(input.i64()?),
                    actual: Timestamp(input.i64()?),
                },
            },
            EXPIRE_SESSIONS => {
                let sessions = (0..input.count(16)?)
                    .map(|_| Ok((SessionId(input.u64()?), Timestamp(input.i64()?))))
                    .collect::<Result<_, DecodeError>>()?;
                Self::ExpireSessions { sessions }
            }
            WATERMARK => Self::Watermark(Timestamp(input.i64()?)),
            tag => return Err(DecodeError::UnknownTag { what: "tablet command", tag: u64::from(tag) }),
        };
        input.end()?;
        Ok(command)
    }
}

fn encode_write(stamp: Option<&SessionStamp>, key: &Bytes, columns: &[(Bytes, Option<Bytes>)]) -> Bytes {
    let fields = |(column, value): &(Bytes, Option<Bytes>)| 9 + column.len() + value.as_ref().map_or(0, Bytes::len);
    let mut out = Writer::with_capacity(34 + key.len() + columns.iter().map(fields).sum::<usize>());
    out.u8(WRITE);
    SessionStamp::encode(stamp, &mut out);
    out.bytes(key);
    out.count(columns.len());
    for (column, value) in columns {
        out.bytes(column);
        out.bool(value.is_some());
        if let Some(value) = value {
            out.bytes(value);
        }
    }
    out.finish()
}

fn decode_write(input: &mut Reader) -> Result<Command, DecodeError> {
    let stamp = SessionStamp::decode(input)?;
    let key = input.bytes()?;
    let column = |input: &mut Reader| {
        let column = input.bytes()?;
        let value = if input.bool()? { Some(input.bytes()?) } else { None };
        Ok((column, value))
    };
    let columns = (0..input.count(5)?).map(|_| column(input)).collect::<Result<_, DecodeError>>()?;
    Ok(Command::Write { stamp, key, columns })
}

#[cfg(test)]
mod tests;
