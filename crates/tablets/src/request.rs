//! Requests to a range of a table, and its responses: the API of Spinnaker's section 3, with sessions for retries
//! (guarantee 10). The endpoints, the node and the simulator use these types; the gRPC messages are in `api`.

use base::canary::{Bug, planted};
use base::codec::Size64;
use base::{CohortId, Duration, KeyRange, Membership, Timestamp};
use bytes::Bytes;
use state_machine::interface::{Hold, Request, Response};
use state_machine::{Failure, KeyPosition, LockKeys, LockMode, LockOwner, LockSpan, Locks};
use store::tree::CELL_OVERHEAD_BYTES;

use crate::tablet::reads::{bounds, least};
use crate::transaction::{Commit, Prepare, TransactionId, TransactionOutcome};

pub use state_machine::{AsOf, ClientSessionId, Consistency, SessionStamp};

/// The outcome of a request to a range.
pub type Outcome = state_machine::Outcome<TableResponse>;

/// A change of one column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    pub column: Bytes,
    /// The new value; none deletes the column.
    pub value: Option<Bytes>,
    /// The version that the column must have for the *whole write* to execute; `Timestamp(0)`: it must be absent.
    pub condition: Option<Timestamp>,
}

/// An atomic write of one row: all mutations or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// Makes retries idempotent; without a stamp a retry may execute again.
    pub stamp: Option<SessionStamp>,
    pub key: Bytes,
    /// The changes: at least one, and at most one for each column.
    pub mutations: Vec<Mutation>,
}

impl Write {
    /// Whether it has conditions on the current versions.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.mutations.iter().any(|mutation| mutation.condition.is_some())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// The first column with an unmet condition.
    pub column: Bytes,
    pub expected: Timestamp,
    /// The actual version; 0 if the column is absent.
    pub actual: Timestamp,
}

/// How rows that are too large for one response are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Allows the response to end within a row ([`Rest`]), and begins it after this column; empty: at the beginning of
    /// the row. None: a row that is too large is refused.
    pub after: Option<Bytes>,
    /// Return the columns' names and versions with empty values.
    pub names_only: bool,
}

impl Part {
    /// Whether the response may end within a row.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.after.is_some()
    }

    /// The column after which the response begins, if it begins within a row.
    #[must_use]
    pub fn start(&self) -> Option<&Bytes> {
        self.after.as_ref().filter(|after| !after.is_empty())
    }
}

/// The columns of a row to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Columns {
    /// Their names, in the order of the response; none: all columns.
    pub named: Option<Vec<Bytes>>,
    /// How they are read if the response has no room for all.
    pub part: Part,
}

/// The rest of a row that is returned in parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rest {
    /// Continues the row: [`Part::after`] of the next request.
    pub after: Bytes,
    /// The moment that was read. A read of the rest as of this moment ([`Consistency::At`]) yields the same row.
    pub at: Timestamp,
}

/// The rows to scan, their order and number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scan {
    /// The first key, inclusive; empty: the beginning of the table.
    pub from: Bytes,
    /// The end key, exclusive; none: the end of the table.
    pub to: Option<Bytes>,
    /// Only keys with this prefix.
    pub prefix: Bytes,
    /// Scan from the last key to the first.
    pub reverse: bool,
    /// Maximum rows; 0: as many as fit into a page.
    pub limit: usize,
    /// The continuation of the previous page: the first key that may follow, inclusive. In reverse it is the end key of
    /// the remaining rows, exclusive.
    pub continuation: Option<Bytes>,
    /// The columns to read; none: all. Rows without any of them are left out.
    pub columns: Option<Vec<Bytes>>,
    /// How rows that are too large are read. If it begins within a row, that is the row of the continuation, and in
    /// reverse the part ends before the column.
    pub part: Part,
}

/// A request to the range that contains the request's position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TableRequest {
    /// Opens a session in the range that contains a key.
    OpenSession {
        /// The key; empty: the first range.
        key: Bytes,
    },
    Write(Write),
    /// Deletes a row, with all its columns.
    DeleteRow {
        stamp: Option<SessionStamp>,
        key: Bytes,
    },
    /// Reads the named columns of a row, or all.
    Get {
        key: Bytes,
        /// The columns to read.
        columns: Columns,
        consistency: Consistency,
    },
    /// Reads a page of rows.
    Scan {
        /// The rows to read.
        scan: Scan,
        consistency: Consistency,
    },
    /// Commits a transaction, as its coordinator or as its only range.
    Commit(Box<Commit>),
    /// Prepares a transaction. Only the node that drives its commit sends it.
    Prepare(Box<Prepare>),
    /// Ends a prepared transaction. Only nodes send it.
    Resolve {
        transaction: TransactionId,
        /// The timestamp of the prepare that is meant.
        prepared: Timestamp,
        /// The commit timestamp; none if it is aborted.
        committed: Option<Timestamp>,
    },
    /// Returns the outcome of a transaction, and aborts it if it has none yet.
    Abort {
        key: Bytes,
        stamp: SessionStamp,
    },
    /// Releases the read locks of a transaction in the range that holds a key.
    Unlock {
        key: Bytes,
        owner: LockOwner,
    },
    /// Keeps the versions that a reader at a timestamp needs, in the range that contains a key, until the hold is released or expires.
    Hold {
        /// The key; empty: the first range.
        key: Bytes,
        /// Identifies the hold, together with the timestamp. Every further request with both renews it.
        owner: u64,
        timestamp: Timestamp,
        /// Release the hold instead.
        release: bool,
    },
    /// Splits the range. Only the catalog's leader sends it.
    Split {
        /// The first key of the new range.
        key: Bytes,
        /// The new range's cohort.
        child: CohortId,
        /// The members of the new cohort.
        members: Membership,
    },
    /// Drops the range. Only the catalog's leader sends it.
    Drop,
}

/// One column in a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pub column: Bytes,
    pub value: Bytes,
    /// Its version: the commit timestamp of the write.
    pub version: Timestamp,
}

/// One row in a response, with its columns in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub key: Bytes,
    /// The columns that exist.
    pub cells: Vec<Cell>,
}

/// A successful response of a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TableResponse {
    /// The session was opened.
    SessionOpened {
        session: ClientSessionId,
        /// The keys that the session can write: the range of its tablet.
        range: KeyRange,
    },
    /// The write was applied.
    Written {
        /// The new version of every column that the write put.
        version: Timestamp,
    },
    /// The requested columns that exist; may be empty.
    Row {
        cells: Vec<Cell>,
        /// The rest, if these are a part of them.
        rest: Option<Rest>,
    },
    /// A page of rows.
    Rows {
        rows: Vec<Row>,
        /// The position of the next page; none: the scan is complete.
        continuation: Option<Bytes>,
        /// If the page ends within a row: the rest of the row, which begins at the continuation.
        rest: Option<Rest>,
    },
    /// The transaction is prepared, by the entry with this timestamp.
    Prepared { timestamp: Timestamp },
    /// The transaction is not prepared any more.
    Resolved,
    /// What became of a transaction.
    Outcome(TransactionOutcome),
    /// The transaction is committed.
    Committed {
        /// The version of all its writes.
        timestamp: Timestamp,
        /// The uncertainty of the leader's clock.
        uncertainty: Duration,
        /// How long the entry waited for its timestamp to pass, beyond the time that its replication took.
        waited: Duration,
    },
    /// The transaction has no read locks any more.
    Unlocked,
    /// The hold was made, renewed or released.
    Held {
        /// The keys of the range, to which the hold applies.
        range: KeyRange,
    },
    /// The range was split.
    Split,
    /// The range was dropped.
    Dropped,
}

impl From<Mismatch> for Failure {
    fn from(Mismatch { column, expected, actual }: Mismatch) -> Self {
        Self::VersionMismatch { column, expected, actual }
    }
}

impl TableResponse {
    /// The columns of a whole row.
    #[must_use]
    pub fn row(cells: Vec<Cell>) -> Self {
        Self::Row { cells, rest: None }
    }
}

impl TableRequest {
    fn row(&self) -> Option<&Bytes> {
        match self {
            Self::Write(write) => Some(&write.key),
            Self::DeleteRow { key, .. } => Some(key),
            _ => None,
        }
    }
}

impl Request for TableRequest {
    fn validate(&self) -> Result<(), Failure> {
        crate::validate(self)
    }

    fn reads(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Scan { .. } | Self::Unlock { .. } | Self::Hold { .. })
    }

    /// A write with a stamp is executed at most once (guarantee 10). Splits and drops may be repeated.
    fn is_idempotent(&self) -> bool {
        match self {
            Self::Get { .. }
            | Self::Scan { .. }
            | Self::Split { .. }
            | Self::Drop
            | Self::Commit(_)
            | Self::Prepare(_)
            | Self::Resolve { .. }
            | Self::Abort { .. }
            | Self::Unlock { .. }
            | Self::Hold { .. } => true,
            Self::Write(write) => write.stamp.is_some(),
            Self::DeleteRow { stamp, .. } => stamp.is_some(),
            Self::OpenSession { .. } => false,
        }
    }

    fn consistency(&self) -> Consistency {
        match self {
            Self::Get { consistency, .. } | Self::Scan { consistency, .. } => *consistency,
            _ => Consistency::Strong,
        }
    }

    fn position(&self) -> Option<KeyPosition> {
        match self {
            Self::OpenSession { key }
            | Self::Get { key, .. }
            | Self::Abort { key, .. }
            | Self::Unlock { key, .. }
            | Self::Hold { key, .. } => Some(KeyPosition::At(key.clone())),
            Self::Commit(commit) => Some(KeyPosition::At(commit.key.clone())),
            Self::Scan { scan, .. } => Some(scan.position()),
            _ => self.row().cloned().map(KeyPosition::At),
        }
    }

    /// A condition is evaluated on the row, so a conditional write locks it exclusively. A split or drop waits for
    /// prepared transactions, and later changes wait for it.
    fn locks(&self) -> Locks {
        match self {
            Self::Commit(commit) if commit.participants.is_empty() => return commit.part.locks(LockMode::Blind),
            Self::Commit(commit) => return commit.part.locks(LockMode::Blind).of(commit.owner),
            Self::Prepare(prepare) => return prepare.part.locks(LockMode::Exclusive).of(prepare.owner),
            Self::Split { .. } if planted(Bug::SplitWhilePrepared) => return Locks::NONE,
            Self::Split { .. } | Self::Drop => return Locks::all(LockMode::Exclusive),
            Self::Get { key, consistency, .. } if consistency.locks_for().is_some() => {
                return Locks::key(key.clone(), LockMode::Shared);
            }
            Self::Scan { scan, consistency } if consistency.locks_for().is_some() => {
                let keys = bounds(scan).map(|(start, end)| LockKeys::Range(KeyRange { start, end }));
                return keys.map_or(Locks::NONE, |keys| Locks::one(LockSpan { keys, mode: LockMode::Shared }));
            }
            _ => {}
        }
        let is_conditional = matches!(self, Self::Write(write) if write.is_conditional());
        let mode = if is_conditional { LockMode::Exclusive } else { LockMode::Blind };
        self.row().cloned().map_or(Locks::NONE, |key| Locks::key(key, mode))
    }

    fn owner(&self) -> Option<LockOwner> {
        match self {
            Self::Commit(commit) => Some(commit.owner),
            Self::Prepare(prepare) => Some(prepare.owner),
            Self::Get { consistency, .. } | Self::Scan { consistency, .. } => consistency.locks_for(),
            _ => None,
        }
    }

    fn opens_session(&self) -> bool {
        matches!(self, Self::OpenSession { .. })
    }

    /// A participant asks a table for the outcome of a transaction until the table is dropped everywhere.
    fn is_for_remnant(&self) -> bool {
        matches!(self, Self::Abort { .. })
    }

    fn unlocks(&self) -> Option<LockOwner> {
        if let Self::Unlock { owner, .. } = self { Some(*owner) } else { None }
    }

    fn hold(&self) -> Option<Hold> {
        match self {
            Self::Hold { owner, timestamp, release, .. } => {
                Some(Hold { owner: *owner, timestamp: *timestamp, release: *release })
            }
            _ => None,
        }
    }

    fn needs_clock(&self) -> bool {
        matches!(self, Self::Commit(_) | Self::Prepare(_))
    }

    fn floor(&self) -> Timestamp {
        match self {
            Self::Commit(commit) if !planted(Bug::CommitBelowPrepare) => commit.floor(),
            Self::Resolve { committed: Some(timestamp), .. } if !planted(Bug::ResolveBelowCommit) => *timestamp,
            _ => Timestamp(0),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Commit(commit) => return commit.part.bytes(),
            Self::Prepare(prepare) => return prepare.part.bytes(),
            _ => {}
        }
        let Some(row) = self.row() else { return 0 };
        let key = row.len() + CELL_OVERHEAD_BYTES;
        let of = |cell: &Mutation| key + cell.column.len() + cell.value.as_ref().map_or(0, Bytes::len);
        let cells = if let Self::Write(write) = self { write.mutations.iter().map(of).sum() } else { key };
        cells as u64
    }

    fn held_bytes(&self) -> usize {
        match self {
            Self::OpenSession { key } | Self::DeleteRow { key, .. } | Self::Split { key, .. } => key.len(),
            Self::Write(write) => {
                let mutations = write.mutations.iter();
                let columns = mutations.map(|m| 64 + m.column.len() + m.value.as_ref().map_or(0, Bytes::len));
                write.key.len() + columns.sum::<usize>()
            }
            Self::Get { key, columns, .. } => {
                let named = columns.named.iter().flatten().map(|column| 32 + column.len());
                key.len() + columns.part.after.as_ref().map_or(0, Bytes::len) + named.sum::<usize>()
            }
            Self::Scan { scan: Scan { from, to, prefix, continuation, columns, part, .. }, .. } => {
                let optional = [to, continuation, &part.after].into_iter().flatten().map(Bytes::len);
                let named = columns.iter().flatten().map(|column| 32 + column.len());
                from.len() + prefix.len() + optional.sum::<usize>() + named.sum::<usize>()
            }
            Self::Commit(commit) => commit.key.len() + commit.participants.len() * 16 + commit.part.held_bytes(),
            Self::Prepare(prepare) => prepare.coordinator.key.len() + prepare.part.held_bytes(),
            Self::Abort { key, .. } | Self::Unlock { key, .. } | Self::Hold { key, .. } => key.len(),
            Self::Resolve { .. } | Self::Drop => 0,
        }
    }
}

impl Response for TableResponse {
    fn is_of_read(&self) -> bool {
        matches!(self, Self::Row { .. } | Self::Rows { .. } | Self::Held { .. })
    }

    fn committed(self, uncertainty: Duration, waited: Duration) -> Self {
        match self {
            Self::Written { version: timestamp } => Self::Committed { timestamp, uncertainty, waited },
            other => other,
        }
    }
}

base::wire! {
    enum TableRequest, "request to a range" {
        1 => Write(write),
        2 => OpenSession { key },
        3 => DeleteRow { stamp, key },
        4 => Get { consistency, key, columns },
        5 => Scan { consistency, scan },
        6 => Split { key, child, members },
        7 => Drop,
        8 => Commit(commit),
        9 => Prepare(prepare),
        10 => Resolve { transaction, prepared, committed },
        11 => Abort { key, stamp },
        12 => Unlock { key, owner },
        13 => Hold { key, owner, timestamp, release },
    }
}

base::wire! { struct Write { stamp, key, mutations } }
base::wire! { struct Mutation { column, value, condition } }
base::wire! { struct Mismatch { column, expected, actual } }
base::wire! { struct Scan { from, to, prefix, reverse, limit as Size64, continuation, columns, part } }
base::wire! { struct Columns { named, part } }
base::wire! { struct Part { after, names_only } }
base::wire! { struct Rest { after, at } }

base::wire! {
    enum TableResponse, "response of a range" {
        1 => SessionOpened { session, range },
        2 => Written { version },
        3 => Row { cells, rest },
        4 => Rows { rows, continuation, rest },
        5 => Split,
        6 => Dropped,
        7 => Prepared { timestamp },
        8 => Resolved,
        9 => Outcome(outcome),
        10 => Committed { timestamp, uncertainty, waited },
        11 => Unlocked,
        12 => Held { range },
    }
}

base::wire! { struct Row { key, cells } }
base::wire! { struct Cell { column, value, version } }

impl Scan {
    /// If it continues within a row: the row, and the column beyond which it continues.
    #[must_use]
    pub fn within_row(&self) -> Option<(&[u8], &Bytes)> {
        let (column, position) = (self.part.start()?, self.continuation.as_deref()?);
        // In reverse, the continuation is the successor of the row's key.
        let row = if self.reverse { position.strip_suffix(&[0])? } else { position };
        Some((row, column))
    }

    /// The position at which it begins or continues. Forward, this is the greatest of its lower bounds; in reverse, it
    /// is just below the least of its upper bounds.
    #[must_use]
    pub fn position(&self) -> KeyPosition {
        if self.reverse {
            let end = least(least(self.to.clone(), KeyRange::of_prefix(&self.prefix).end), self.continuation.clone());
            if end.as_ref().is_some_and(Bytes::is_empty) {
                // No key is below the empty one, so any range can return the empty result.
                return KeyPosition::At(Bytes::new());
            }
            return KeyPosition::Below(end);
        }
        let from = self.from.clone().max(self.prefix.clone());
        KeyPosition::At(self.continuation.clone().unwrap_or_default().max(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn scan_start_position() {
        let scan = Scan { from: key("b"), to: Some(key("x")), prefix: key("c"), ..Scan::default() };
        assert_eq!(scan.position(), KeyPosition::At(key("c")));
        assert_eq!(Scan { continuation: Some(key("cc")), ..scan.clone() }.position(), KeyPosition::At(key("cc")));
        assert_eq!(Scan { continuation: Some(key("a")), ..scan.clone() }.position(), KeyPosition::At(key("c")));
        let back = Scan { reverse: true, ..scan };
        assert_eq!(back.position(), KeyPosition::Below(Some(key("d"))));
        assert_eq!(Scan { continuation: Some(key("cc")), ..back }.position(), KeyPosition::Below(Some(key("cc"))));
        assert_eq!(Scan { reverse: true, ..Scan::default() }.position(), KeyPosition::Below(None));
        let nothing = Scan { reverse: true, to: Some(key("")), ..Scan::default() };
        assert_eq!(nothing.position(), KeyPosition::At(key("")));
    }

    /// Changes of rows lock the row and add bytes; nothing else does.
    #[test]
    fn locks_and_bytes_of_each_request() {
        let write = |value, condition| {
            let mutations = vec![Mutation { column: key("c"), value, condition }];
            TableRequest::Write(Write { stamp: None, key: key("k"), mutations })
        };
        let row = |mode| Locks::key(key("k"), mode);
        let two = Mutation { column: key("d"), value: None, condition: Some(Timestamp(0)) };
        let TableRequest::Write(mut mixed) = write(None, None) else { unreachable!() };
        mixed.mutations.push(two);
        let consistency = Consistency::Strong;
        let cases = [
            (write(Some(key("v")), None), row(LockMode::Blind)),
            (write(None, None), row(LockMode::Blind)),
            (write(Some(key("v")), Some(Timestamp(3))), row(LockMode::Exclusive)),
            (write(None, Some(Timestamp(3))), row(LockMode::Exclusive)),
            (TableRequest::Write(mixed), row(LockMode::Exclusive)),
            (TableRequest::DeleteRow { stamp: None, key: key("k") }, row(LockMode::Blind)),
            (TableRequest::OpenSession { key: key("k") }, Locks::NONE),
            (TableRequest::Get { key: key("k"), columns: Columns::default(), consistency }, Locks::NONE),
            (TableRequest::Scan { scan: Scan::default(), consistency }, Locks::NONE),
        ];
        for (request, locks) in cases {
            assert_eq!(request.locks(), locks, "{request:?}");
            assert_eq!(request.bytes() > 0, locks != Locks::NONE, "{request:?}");
        }
        let split = TableRequest::Split { key: key("k"), child: CohortId(9), members: Membership::default() };
        for request in [split, TableRequest::Drop] {
            assert_eq!((request.locks(), request.bytes()), (Locks::all(LockMode::Exclusive), 0));
        }
    }
}
