//! Transactions: the parts of their requests, and the state that a range keeps about them (Spanner, section 4; guarantee
//! 18).
//!
//! A transaction reads at the leaders of its ranges, and records the keys and the timestamp of the state of each read. The
//! client buffers its writes. The commit contains both. A range *validates* its part: no key that was read may have a
//! version newer than the timestamp of that read. Locks only prevent wasted work.
//!
//! If one range holds all keys, a single entry of its log commits the transaction, and the timestamp of that entry is
//! the version of all writes. Otherwise one range, the *coordinator*, decides (two-phase commit):
//!
//! 1. Every other range *prepares*: it validates its part, and its log records the reads and writes. From then on the
//!    range holds their locks, under any leader, until the transaction is resolved.
//! 2. The coordinator validates its own part and commits: the timestamp of that entry is the commit timestamp. It is not
//!    below any of the prepares, so in each range it is above everything that was visible before the prepare.
//! 3. The coordinator's leader *resolves* the transaction in the other ranges, which then write their parts with the
//!    commit timestamp. The decision is *forgotten* once all have done so.
//!
//! **Identity.** A transaction is identified by the stamp of its commit: a number in a session of the range that holds the
//! coordinator's key. That session is a write-once register: it records the first of commit and abort, and every retry
//! gets that outcome. Anyone may propose an abort to learn the outcome. A split gives both ranges the session, but only
//! one of them holds the key, and with it the decision.
//!
//! **Repeated prepares.** A delayed prepare may arrive after its transaction was resolved and forgotten. It is never
//! committed: a decision names each prepare by its timestamp, and applies to no other. If a range asks about a prepare that
//! no decision names, the reply is that it is aborted.

use std::collections::BTreeSet;

use base::codec::Text;
use base::{CohortId, KeyRange, Timestamp};
use bytes::Bytes;
use state_machine::{
    ClientSessionId, Failure, KeyPosition, LockKeys, LockMode, LockOwner, LockSpan, Locks, SessionStamp,
};
use store::tree::CELL_OVERHEAD_BYTES;

use crate::request::TableRequest;
use crate::validate::{check_part, check_totals};

/// Why a transaction is aborted if another one has changed a row that it has read.
pub const CONFLICT: &str = "another transaction or write has changed what it has read";
/// Why a transaction must be tried again: a range admits none for a short time.
pub const DRAINING: &str =
    "the range is about to be split or dropped, and accepts no transactions over several ranges now";
/// Why a transaction is not executed if its keys are not those of the range any more.
pub(crate) const SPLIT: &str = "a range was split or dropped meanwhile";

/// The identity of a transaction: its commit's number in a session of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    pub session: ClientSessionId,
    /// The number of the commit in the session.
    pub sequence: u64,
}

impl From<&SessionStamp> for TransactionId {
    fn from(stamp: &SessionStamp) -> Self {
        Self { session: stamp.session, sequence: stamp.sequence }
    }
}

/// Where the outcome of a transaction is decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    pub table: String,
    /// The range that holds this key decides.
    pub key: Bytes,
    /// The stamp of the commit.
    pub stamp: SessionStamp,
}

/// Keys that a transaction has read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadSpan {
    pub range: KeyRange,
    /// The timestamp of the state that was read.
    pub seen: Timestamp,
}

/// The change of a row by a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowChange {
    pub key: Bytes,
    /// Whether the row is deleted first, with all its columns.
    pub deletes_row: bool,
    /// The columns, each with its new value; none deletes the column.
    pub columns: Vec<(Bytes, Option<Bytes>)>,
}

/// A transaction to be committed: its reads and its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRequest {
    /// Identifies the transaction: a number in a session of the range that holds `key` in `table`. That range decides
    /// about the transaction.
    pub stamp: SessionStamp,
    /// The table of the session.
    pub table: String,
    /// The key of the session.
    pub key: Bytes,
    /// The priority of its locks.
    pub owner: LockOwner,
    /// The reads and writes in each table.
    pub parts: Vec<(String, TransactionPart)>,
}

/// The part of a transaction that concerns one range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransactionPart {
    /// The keys that were read.
    pub reads: Vec<ReadSpan>,
    /// The rows to change, each at most once.
    pub writes: Vec<RowChange>,
}

/// A range that has prepared a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Participant {
    pub cohort: CohortId,
    /// The timestamp of the prepare's entry, which identifies the prepare.
    pub prepared: Timestamp,
}

/// Commits a transaction, as its coordinator or as the only range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    pub stamp: SessionStamp,
    pub key: Bytes,
    /// The priority of its locks.
    pub owner: LockOwner,
    /// The part of this range.
    pub part: TransactionPart,
    /// The other ranges, which have prepared.
    pub participants: Vec<Participant>,
}

/// Prepares a transaction in a range that is not its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prepare {
    /// Where the outcome is decided.
    pub coordinator: Coordinator,
    /// The priority of its locks.
    pub owner: LockOwner,
    /// The part of this range.
    pub part: TransactionPart,
}

/// The outcome of a transaction according to its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransactionOutcome {
    Committed {
        /// The version of all its writes.
        timestamp: Timestamp,
        /// The participants, until all of them are known to have resolved it; then none.
        unresolved: Vec<Participant>,
    },
    /// It is aborted for good.
    Aborted,
    /// It is not known any more, and will never be committed from here on.
    Forgotten,
}

impl TransactionOutcome {
    /// The commit timestamp for this prepare; none if it is aborted.
    #[must_use]
    pub fn of(&self, participant: Participant) -> Option<Timestamp> {
        match self {
            Self::Committed { timestamp, unresolved } if unresolved.contains(&participant) => Some(*timestamp),
            _ => None,
        }
    }
}

base::wire! { struct TransactionId { session, sequence } }
base::wire! { struct Coordinator { table as Text("table name"), key, stamp } }
base::wire! { struct ReadSpan { range, seen } }
base::wire! { struct RowChange { key, deletes_row, columns } }
base::wire! { struct TransactionPart { reads, writes } }
base::wire! { struct Participant { cohort, prepared } }
base::wire! { struct Commit { stamp, key, owner, part, participants } }
base::wire! { struct Prepare { coordinator, owner, part } }
base::wire! {
    enum TransactionOutcome, "outcome of a transaction" {
        1 => Committed { timestamp, unresolved },
        2 => Aborted,
        3 => Forgotten,
    }
}

impl TransactionRequest {
    /// Checks its format and limits, and the names of its tables by `check_table_name`.
    ///
    /// # Errors
    /// [`Failure::Invalid`] with the reason.
    pub fn validate(&self, check_table_name: impl Fn(&str) -> Result<(), Failure>) -> Result<(), Failure> {
        check_table_name(&self.table)?;
        let mut whole = TransactionPart::default();
        for (table, part) in &self.parts {
            check_table_name(table)?;
            check_part(part)?;
            whole.reads.extend(part.reads.iter().cloned());
            whole.writes.extend(part.writes.iter().cloned());
        }
        let mut tables = BTreeSet::new();
        if !self.parts.iter().all(|(table, _)| tables.insert(table)) {
            return Err(Failure::Invalid("the transaction names a table twice".to_owned()));
        }
        check_totals(&whole)?;
        crate::validate(&TableRequest::Abort { key: self.key.clone(), stamp: self.stamp })
    }

    /// Approximate bytes of its keys, values and names.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let parts = self.parts.iter().map(|(table, part)| table.len() + part.held_bytes());
        self.table.len() + self.key.len() + parts.sum::<usize>()
    }
}

impl Commit {
    /// The least timestamp of its entry: that of the last prepare.
    #[must_use]
    pub fn floor(&self) -> Timestamp {
        self.participants.iter().map(|participant| participant.prepared).max().unwrap_or_default()
    }
}

impl RowChange {
    /// Bytes that it adds to the storage's memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let key = self.key.len() + CELL_OVERHEAD_BYTES;
        let of = |(column, value): &(Bytes, Option<Bytes>)| key + column.len() + value.as_ref().map_or(0, Bytes::len);
        let deletion = if self.deletes_row { key } else { 0 };
        (deletion + self.columns.iter().map(of).sum::<usize>()) as u64
    }

    /// Bytes of its key, names and values.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let of = |(column, value): &(Bytes, Option<Bytes>)| 64 + column.len() + value.as_ref().map_or(0, Bytes::len);
        64 + self.key.len() + self.columns.iter().map(of).sum::<usize>()
    }
}

impl TransactionPart {
    /// Its locks: reads are shared, writes are of this mode.
    #[must_use]
    pub fn locks(&self, writes: LockMode) -> Locks {
        locks(self.reads.iter().map(|read| &read.range), &self.writes, writes)
    }

    /// The position of one of its keys.
    #[must_use]
    pub fn position(&self) -> KeyPosition {
        let of_write = self.writes.first().map(|change| change.key.clone());
        let of_read = || self.reads.first().map(|read| read.range.start.clone());
        KeyPosition::At(of_write.or_else(of_read).unwrap_or_default())
    }

    /// Bytes that it adds to the storage's memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.writes.iter().map(RowChange::bytes).sum()
    }

    /// Bytes of its keys, names and values.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let of_read = |read: &ReadSpan| 80 + read.range.start.len() + read.range.end.as_ref().map_or(0, Bytes::len);
        self.reads.iter().map(of_read).sum::<usize>() + self.writes.iter().map(RowChange::held_bytes).sum::<usize>()
    }
}

/// Maximum ranges of keys with a lock of their own. More are locked as one range that covers all of them: the cost of
/// comparing ranges grows with the square of their number.
const RANGE_LOCKS_MAX: usize = 500;

/// The locks of ranges that were read and rows that are changed.
pub(crate) fn locks<'a>(reads: impl Iterator<Item = &'a KeyRange>, writes: &[RowChange], mode: LockMode) -> Locks {
    let shared = |keys| LockSpan { keys, mode: LockMode::Shared };
    let (mut rows, mut ranges) = (Vec::new(), Vec::new());
    for range in reads {
        match LockKeys::of(range) {
            keys @ LockKeys::Key(_) => rows.push(shared(keys)),
            LockKeys::Range(range) => ranges.push(range),
        }
    }
    if ranges.len() > RANGE_LOCKS_MAX {
        let start = ranges.iter().map(|range| range.start.clone()).min().unwrap_or_default();
        let is_open = ranges.iter().any(|range| range.end.is_none());
        let end = ranges.iter().filter_map(|range| range.end.clone()).max().filter(|_| !is_open);
        ranges = vec![KeyRange { start, end }];
    }
    let writes = writes.iter().map(|change| LockSpan { keys: LockKeys::Key(change.key.clone()), mode });
    Locks::several(rows.into_iter().chain(ranges.into_iter().map(LockKeys::Range).map(shared)).chain(writes).collect())
}
