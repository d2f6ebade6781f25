//! The commands in a tablet's log: the payloads of its entries.
//!
//! A payload is one tag byte and the command's fields. Decoded byte strings share the payload's buffer. An *empty*
//! payload is a leader's barrier (guarantee 1) and not a command: it has no effect.
//!
//! Client requests are validated before they are proposed (`validate`). These decoders check the format only: limits
//! may differ between versions of Loggos, and every replica must interpret a committed entry identically.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Text, Wire, Writer};
use base::{CohortId, KeyRange, Membership, Timestamp};
use bytes::Bytes;
use state_machine::LockOwner;

use crate::request::{ClientSessionId, Mismatch, SessionStamp, Write};
use crate::transaction::{Coordinator, Participant, Prepare, RowChange, TransactionId, TransactionPart};

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
        key: Bytes,
        /// The columns, each with its new value; none deletes the column.
        columns: Vec<(Bytes, Option<Bytes>)>,
    },
    /// Deletes a row, with all its columns.
    DeleteRow {
        /// The stamp of the write in its session.
        stamp: Option<SessionStamp>,
        key: Bytes,
    },
    /// Writes nothing, because a condition was not met. The session records the refusal, so that a retry is not
    /// executed (guarantee 10).
    Refuse {
        /// The stamp of the write in its session.
        stamp: Option<SessionStamp>,
        key: Bytes,
        mismatch: Mismatch,
    },
    /// Commits a transaction: its version is the timestamp of this entry. The proposer has validated its reads.
    Commit {
        stamp: SessionStamp,
        key: Bytes,
        /// The writes in this range.
        writes: Vec<RowChange>,
        /// The other ranges, which have prepared.
        participants: Vec<Participant>,
    },
    /// Aborts a transaction, because its reads were not valid any more. The session records that, as for a refusal.
    Conflict {
        stamp: SessionStamp,
        key: Bytes,
        /// Why, for the client.
        reason: String,
    },
    /// Prepares a transaction: the range holds the locks of its reads and writes until it is resolved. The proposer has
    /// validated its reads. Has no effect while the transaction is prepared.
    Prepare {
        /// Where the outcome is decided.
        coordinator: Coordinator,
        /// The priority of its locks.
        owner: LockOwner,
        /// The keys that were read.
        reads: Vec<KeyRange>,
        /// The writes in this range.
        writes: Vec<RowChange>,
    },
    /// Ends a prepared transaction. Has no effect if this prepare is resolved.
    Resolve {
        transaction: TransactionId,
        /// The timestamp of the prepare's entry.
        prepared: Timestamp,
        /// The commit timestamp, not above that of this entry; none if it is aborted.
        committed: Option<Timestamp>,
    },
    /// Aborts a transaction, unless it has an outcome.
    Abort { stamp: SessionStamp, key: Bytes },
    /// All participants have resolved these transactions: no one will ask for their outcome again.
    Forget { transactions: Vec<TransactionId> },
    /// Ends sessions, each unless it was used after the given timestamp (guarantee 10).
    ExpireSessions {
        /// The sessions, each with the last use that the proposer saw.
        sessions: Vec<(ClientSessionId, Timestamp)>,
    },
    /// Raises the watermark: reads as of an earlier moment are rejected, and versions that only such reads could see
    /// may be dropped (guarantee 16).
    Watermark(Timestamp),
}

base::wire! {
    enum Command, "tablet command" {
        1 => OpenSession { key },
        2 => Write { stamp, key, columns },
        3 => ExpireSessions { sessions },
        4 => Watermark(watermark),
        5 => DeleteRow { stamp, key },
        6 => Refuse { stamp, key, mismatch },
        7 => AssignRange { range },
        8 => Drop,
        9 => Split { key, child, members },
        10 => DeclareLoss,
        11 => Commit { stamp, key, writes, participants },
        12 => Conflict { stamp, key, reason as Text("reason of an abort") },
        13 => Prepare { coordinator, owner, reads, writes },
        14 => Resolve { transaction, prepared, committed },
        15 => Abort { stamp, key },
        16 => Forget { transactions },
    }
}

impl Command {
    /// A write without conditions, or with all conditions met.
    #[must_use]
    pub fn unconditional(write: Write) -> Self {
        let Write { stamp, key, mutations } = write;
        let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
        Self::Write { stamp, key, columns }
    }

    /// The command that prepares a transaction.
    pub(crate) fn prepare(prepare: &Prepare) -> Self {
        let Prepare { coordinator, owner, part: TransactionPart { reads, writes } } = prepare.clone();
        let mut reads: Vec<KeyRange> = reads.into_iter().map(|read| read.range).collect();
        if planted(Bug::PreparedReadsNotLocked) {
            reads.clear();
        }
        Self::Prepare { coordinator, owner, reads, writes }
    }

    /// The keys that it changes or refers to: it has an effect only if the tablet owns all of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let (key, writes) = match self {
            Self::OpenSession { key }
            | Self::Write { key, .. }
            | Self::DeleteRow { key, .. }
            | Self::Refuse { key, .. }
            | Self::Conflict { key, .. }
            | Self::Abort { key, .. } => (Some(key), &[][..]),
            Self::Commit { key, writes, .. } => (Some(key), &writes[..]),
            Self::Prepare { writes, .. } => (None, &writes[..]),
            Self::Resolve { .. }
            | Self::Forget { .. }
            | Self::AssignRange { .. }
            | Self::Split { .. }
            | Self::Drop
            | Self::DeclareLoss
            | Self::ExpireSessions { .. }
            | Self::Watermark(_) => (None, &[][..]),
        };
        key.into_iter().chain(writes.iter().map(|change| &change.key))
    }

    /// Encodes the command as an entry's payload.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(self.bytes_hint());
        Wire::encode(self, &mut out);
        out.finish()
    }

    /// Encoded bytes of a write, or more, so that its payload is allocated once.
    fn bytes_hint(&self) -> usize {
        let Self::Write { key, columns, .. } = self else { return 64 };
        let fields = |(column, value): &(Bytes, Option<Bytes>)| 9 + column.len() + value.as_ref().map_or(0, Bytes::len);
        34 + key.len() + columns.iter().map(fields).sum::<usize>()
    }

    /// Decodes an entry's payload that is not empty. Byte strings are slices of it.
    ///
    /// # Errors
    /// The payload is not a tablet command. For a committed entry this is fatal: the node must halt.
    pub fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        Self::from_bytes(payload)
    }
}

#[cfg(test)]
mod tests;
