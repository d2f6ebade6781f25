//! The commands in a tablet's log: the payloads of its entries.
//!
//! A payload is one tag byte and the command's fields. Decoded byte strings share the payload's buffer. An *empty*
//! payload is a leader's barrier (guarantee 1) and not a command: it has no effect.
//!
//! Client requests are validated before they are proposed (`validate`). These decoders check the format only: limits
//! may differ between versions of Loggos, and every replica must interpret a committed entry identically.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, KeyRange, Membership, Timestamp};
use bytes::Bytes;

use crate::request::{ClientSessionId, Mismatch, SessionStamp, Write};

/// A command of a tablet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Assigns the range that the tablet owns and serves from here on (guarantee 19). The first leader takes the range
    /// from the catalog. A second such entry has no effect.
    AssignRange { range: KeyRange },
    /// Splits the range. From here on, the keys at and above `key` belong to another tablet, which begins with this
    /// tablet's state for them (guarantee 19). A second entry of the same split has no effect.
    Split {
        /// The first key of the new range.
        key: Bytes,
        /// The new range's cohort.
        child: CohortId,
        /// The members of the new cohort: those of this one according to the catalog. They do not change during a
        /// split.
        members: Membership,
    },
    /// The table is dropped: from here on the tablet owns nothing, and its rows may be deleted (guarantee 19).
    Drop,
    /// Acknowledged entries may be lost, from an unknown entry on (guarantee 11).
    DeclareLoss,
    /// Opens a session. Its id contains the sequence of this entry.
    OpenSession {
        /// A key that the session must be able to write.
        key: Bytes,
    },
    /// Writes columns of a row. The proposer has found the conditions met ([`crate::TabletView::decide`]).
    Write {
        /// The stamp of the write in its session.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// The columns, each with its new value; none deletes the column.
        columns: Vec<(Bytes, Option<Bytes>)>,
    },
    /// Deletes a row, with all its columns.
    DeleteRow {
        /// The stamp of the write in its session.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
    },
    /// Writes nothing, because a condition was not met. The session records the refusal, so that a retry is not
    /// executed (guarantee 10).
    Refuse {
        /// The stamp of the write in its session.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
        /// The unmet condition.
        mismatch: Mismatch,
    },
    /// Ends sessions, each unless it was used after the given timestamp (guarantee 10).
    ExpireSessions {
        /// The sessions, each with the last use that the proposer saw.
        sessions: Vec<(ClientSessionId, Timestamp)>,
    },
    /// Raises the watermark: reads as of an earlier moment are rejected, and versions that only such reads could see
    /// may be dropped (guarantee 16).
    Watermark(Timestamp),
}

const OPEN_SESSION: u8 = 1;
const WRITE: u8 = 2;
const EXPIRE_SESSIONS: u8 = 3;
const WATERMARK: u8 = 4;
const DELETE_ROW: u8 = 5;
const REFUSE: u8 = 6;
const ASSIGN_RANGE: u8 = 7;
const DROP: u8 = 8;
const SPLIT: u8 = 9;
const DECLARE_LOSS: u8 = 10;

impl Command {
    /// A write without conditions, or with all conditions met.
    #[must_use]
    pub fn unconditional(write: Write) -> Self {
        let Write { stamp, key, mutations } = write;
        let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
        Self::Write { stamp, key, columns }
    }

    /// The keys that it changes or refers to: it has an effect only if the tablet owns all of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let key = match self {
            Self::OpenSession { key }
            | Self::Write { key, .. }
            | Self::DeleteRow { key, .. }
            | Self::Refuse { key, .. } => Some(key),
            Self::AssignRange { .. }
            | Self::Split { .. }
            | Self::Drop
            | Self::DeclareLoss
            | Self::ExpireSessions { .. }
            | Self::Watermark(_) => None,
        };
        key.into_iter()
    }

    /// Encodes the command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::AssignRange { range } => {
                let mut out = Writer::new();
                out.u8(ASSIGN_RANGE);
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

    /// Decodes an entry's payload that is not empty. Byte strings are slices of it.
    ///
    /// # Errors
    /// The payload is not a tablet command. For a committed entry this is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(payload);
        let command = match input.u8()? {
            ASSIGN_RANGE => Self::AssignRange { range: KeyRange::decode(&mut input)? },
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
                    .map(|_| Ok((ClientSessionId(input.u64()?), Timestamp(input.i64()?))))
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
