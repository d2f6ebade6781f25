//! Records of the write-ahead log. The crate `store` frames them; their meaning at replay is in `replication`.

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Writer};
use crate::{CohortId, Lsn, Membership, Sequence, SharedMembership, Timestamp};

/// An entry of a cohort's log. Its LSN, bytes and timestamp never change, and it contains its predecessor's LSN. So
/// logs with the same LSN have the same prefix (guarantee 1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Identifies the entry.
    pub lsn: Lsn,
    /// The LSN of the entry before it.
    pub previous: Lsn,
    /// Its commit timestamp: greater than that of every earlier entry.
    pub timestamp: Timestamp,
    /// The command of the state machine; empty for a leader's barrier and for a membership change.
    pub payload: Bytes,
    /// The membership of the cohort from this entry on, if it changes (guarantee 8). The state machine ignores it.
    pub members: Option<SharedMembership>,
}

/// A record of one cohort in the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogRecord {
    /// An accepted entry. At replay it overrides all earlier records of its cohort with the same or a higher sequence.
    Entry(Entry),
    /// A truncation. At replay it overrides all earlier records of its cohort with this or a higher sequence.
    Truncation {
        /// The first truncated sequence.
        from: Sequence,
    },
    /// All entries up to this one are known to be committed. It is synced only together with other records.
    CommitPoint(Lsn),
}

/// A record in the log that all cohorts of a node share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The cohort of the record.
    pub cohort: CohortId,
    /// The content.
    pub body: LogRecord,
}

impl Entry {
    /// Approximate bytes in a frame: the payload and a fixed part.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + 49 + self.members.as_ref().map_or(0, |members| members.bytes())
    }

    /// Appends the encoding to `out`.
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

    /// Decodes the output of [`Entry::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding.
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

    /// The sequence that this record refers to. A checkpoint must include it before the log may delete the record.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        match &self.body {
            LogRecord::Entry(entry) => entry.lsn.sequence,
            LogRecord::Truncation { from } => *from,
            LogRecord::CommitPoint(lsn) => lsn.sequence,
        }
    }

    /// Approximate bytes in a batch.
    #[must_use]
    pub fn size(&self) -> usize {
        match &self.body {
            LogRecord::Entry(entry) => entry.size() + 5,
            LogRecord::Truncation { .. } | LogRecord::CommitPoint(_) => 24,
        }
    }

    /// Appends the encoding to `out`.
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

    /// Decodes the output of [`Record::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding.
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
