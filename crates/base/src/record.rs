//! Records of the write-ahead log. The crate `store` frames them; their meaning at replay is in `replication`.

use bytes::Bytes;

use crate::{CohortId, Lsn, Sequence, SharedMembership, Timestamp};

/// An entry of a cohort's log. Its LSN, bytes and timestamp never change, and it contains its predecessor's LSN. So
/// logs with the same LSN have the same prefix (guarantee 1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
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
    pub body: LogRecord,
}

impl Entry {
    /// Approximate bytes in a frame: the payload and a fixed part.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + 49 + self.members.as_ref().map_or(0, |members| members.bytes())
    }
}

crate::wire! { struct Entry { lsn, previous, timestamp, payload, members } }
crate::wire! { struct Record { cohort, body } }
crate::wire! {
    enum LogRecord, "log record" {
        1 => Entry(entry),
        2 => Truncation { from },
        3 => CommitPoint(lsn),
    }
}

impl Record {
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
}
