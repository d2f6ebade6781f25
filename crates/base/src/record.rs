//! What the write-ahead log carries for a cohort. The log's frames are `store`'s; what the records *mean* at replay is
//! `replication`'s.

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Writer};
use crate::{CohortId, Lsn, Membership, Sequence, SharedMembership, Timestamp};

/// One entry of a cohort's log. It keeps its LSN, bytes and timestamp for ever, and carries its predecessor's LSN, so
/// that logs which hold the same LSN hold the same prefix (guarantee 1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Its name.
    pub lsn: Lsn,
    /// The name of the entry before it.
    pub previous: Lsn,
    /// Its commit timestamp: greater than that of every entry before it.
    pub timestamp: Timestamp,
    /// What the state machine is to do; empty for a leader's barrier and for a change of the membership.
    pub payload: Bytes,
    /// Who has a part in the cohort from this entry on, where that changes (guarantee 8). It is nothing to the state
    /// machine.
    pub members: Option<SharedMembership>,
}

/// A record of one cohort in the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogRecord {
    /// An accepted entry: at replay it kills every earlier record of its cohort with the same or a higher sequence.
    Entry(Entry),
    /// A cut: at replay it kills every earlier record of its cohort with this or a higher sequence.
    Truncation {
        /// The first sequence that is cut.
        from: Sequence,
    },
    /// Everything up to here is known to be committed. Never forced for its own sake.
    CommitPoint(Lsn),
}

/// A record as it lies in the log that all cohorts of a node share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whose it is.
    pub cohort: CohortId,
    /// What it says.
    pub body: LogRecord,
}

impl Entry {
    /// Bytes this entry takes in a frame, roughly: its payload and a fixed part.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + 49 + self.members.as_ref().map_or(0, |members| members.bytes())
    }

    /// Appends the entry to `out`.
    pub fn encode(&self, out: &mut Writer) {
        out.lsn(self.lsn);
        out.lsn(self.previous);
        out.i64(self.timestamp.0);
        out.bytes(&self.payload);
        out.bool(self.members.is_some());
        if let Some(members) = &self.members {
            members.encode(out);
        }
    }

    /// Reads what [`Entry::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not an entry.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            lsn: input.lsn()?,
            previous: input.lsn()?,
            timestamp: Timestamp(input.i64()?),
            payload: input.bytes()?,
            members: input.bool()?.then(|| Membership::decode(input).map(SharedMembership::new)).transpose()?,
        })
    }
}

impl Record {
    const ENTRY: u8 = 1;
    const TRUNCATION: u8 = 2;
    const COMMIT_POINT: u8 = 3;

    /// The sequence that this record holds or speaks of: what must be in a checkpoint before the log may forget it.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        match &self.body {
            LogRecord::Entry(entry) => entry.lsn.sequence,
            LogRecord::Truncation { from } => *from,
            LogRecord::CommitPoint(lsn) => lsn.sequence,
        }
    }

    /// Bytes this record takes in a batch, roughly.
    #[must_use]
    pub fn size(&self) -> usize {
        match &self.body {
            LogRecord::Entry(entry) => entry.size() + 5,
            LogRecord::Truncation { .. } | LogRecord::CommitPoint(_) => 24,
        }
    }

    /// Appends the record to `out`.
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.cohort.0);
        match &self.body {
            LogRecord::Entry(entry) => {
                out.u8(Self::ENTRY);
                entry.encode(out);
            }
            LogRecord::Truncation { from } => {
                out.u8(Self::TRUNCATION);
                out.u64(from.0);
            }
            LogRecord::CommitPoint(lsn) => {
                out.u8(Self::COMMIT_POINT);
                out.lsn(*lsn);
            }
        }
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a record.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let cohort = CohortId(input.u32()?);
        let body = match input.u8()? {
            Self::ENTRY => LogRecord::Entry(Entry::decode(input)?),
            Self::TRUNCATION => LogRecord::Truncation { from: Sequence(input.u64()?) },
            Self::COMMIT_POINT => LogRecord::CommitPoint(input.lsn()?),
            tag => {
                return Err(DecodeError::UnknownTag { what: "log record", tag: u64::from(tag) });
            }
        };
        Ok(Self { cohort, body })
    }
}
