//! Requests to a range of a table, and its responses: the API of Spinnaker's section 3, with sessions for retries
//! (guarantee 10). The endpoints, the node and the simulator use these types; the gRPC messages are in `api`.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, KeyRange, Membership, Timestamp};
use bytes::Bytes;
use state_machine::interface::{Request, Response, Wire};
use state_machine::{Failure, KeyPosition, LockMode, Locks};
use store::tree::CELL_OVERHEAD_BYTES;

use crate::tablet::reads::{after_prefix, least};

pub use state_machine::{AsOf, ClientSessionId, Consistency, SessionStamp};

/// The outcome of a request to a range.
pub type Outcome = state_machine::Outcome<TableResponse>;

/// A change of one column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The column's name.
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
    /// The row.
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

/// An unmet condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// The first column with an unmet condition.
    pub column: Bytes,
    /// The expected version.
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
    /// Writes a row.
    Write(Write),
    /// Deletes a row, with all its columns.
    DeleteRow {
        /// Makes retries idempotent.
        stamp: Option<SessionStamp>,
        /// The row.
        key: Bytes,
    },
    /// Reads the named columns of a row, or all.
    Get {
        /// The row.
        key: Bytes,
        /// The columns to read.
        columns: Columns,
        /// The consistency level.
        consistency: Consistency,
    },
    /// Reads a page of rows.
    Scan {
        /// The rows to read.
        scan: Scan,
        /// The consistency level.
        consistency: Consistency,
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
    /// The column's name.
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
        matches!(self, Self::Get { .. } | Self::Scan { .. })
    }

    /// A write with a stamp is executed at most once (guarantee 10). Splits and drops may be repeated.
    fn is_idempotent(&self) -> bool {
        match self {
            Self::Get { .. } | Self::Scan { .. } | Self::Split { .. } | Self::Drop => true,
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
            Self::OpenSession { key } | Self::Get { key, .. } => Some(KeyPosition::At(key.clone())),
            Self::Scan { scan, .. } => Some(scan.position()),
            _ => self.row().cloned().map(KeyPosition::At),
        }
    }

    /// A condition is evaluated on the row, so a conditional write locks it exclusively.
    fn locks(&self) -> Locks {
        let is_conditional = matches!(self, Self::Write(write) if write.is_conditional());
        let mode = if is_conditional { LockMode::Exclusive } else { LockMode::Blind };
        self.row().cloned().map_or(Locks::None, |key| Locks::key(key, mode))
    }

    fn bytes(&self) -> u64 {
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
            Self::Scan { scan: Scan { from, to, prefix, continuation, part, .. }, .. } => {
                let optional = [to, continuation, &part.after].into_iter().flatten().map(Bytes::len);
                from.len() + prefix.len() + optional.sum::<usize>()
            }
            Self::Drop => 0,
        }
    }
}

impl Response for TableResponse {
    fn is_of_read(&self) -> bool {
        matches!(self, Self::Row { .. } | Self::Rows { .. })
    }
}

const WRITE: u8 = 1;
const OPEN_SESSION: u8 = 2;
const DELETE_ROW: u8 = 3;
const GET: u8 = 4;
const SCAN: u8 = 5;
const SPLIT: u8 = 6;
const DROP: u8 = 7;

impl Wire for TableRequest {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Write(write) => {
                out.u8(WRITE);
                encode_write(write, out);
            }
            Self::OpenSession { key } => {
                out.u8(OPEN_SESSION);
                out.bytes(key);
            }
            Self::DeleteRow { stamp, key } => {
                out.u8(DELETE_ROW);
                SessionStamp::encode(stamp.as_ref(), out);
                out.bytes(key);
            }
            Self::Get { key, columns, consistency } => {
                out.u8(GET);
                consistency.encode(out);
                out.bytes(key);
                out.bool(columns.named.is_some());
                if let Some(named) = &columns.named {
                    out.count(named.len());
                    named.iter().for_each(|column| out.bytes(column));
                }
                encode_part(&columns.part, out);
            }
            Self::Scan { scan, consistency } => {
                out.u8(SCAN);
                consistency.encode(out);
                encode_scan(scan, out);
            }
            Self::Split { key, child, members } => {
                out.u8(SPLIT);
                out.bytes(key);
                out.u32(child.0);
                members.encode(out);
            }
            Self::Drop => out.u8(DROP),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            WRITE => Self::Write(decode_write(input)?),
            OPEN_SESSION => Self::OpenSession { key: input.bytes()? },
            DELETE_ROW => Self::DeleteRow { stamp: SessionStamp::decode(input)?, key: input.bytes()? },
            GET => {
                let (consistency, key) = (Consistency::decode(input)?, input.bytes()?);
                let named = if input.bool()? {
                    let count = input.count(4)?;
                    Some((0..count).map(|_| input.bytes()).collect::<Result<_, _>>()?)
                } else {
                    None
                };
                let columns = Columns { named, part: decode_part(input)? };
                Self::Get { key, columns, consistency }
            }
            SCAN => Self::Scan { consistency: Consistency::decode(input)?, scan: decode_scan(input)? },
            SPLIT => {
                let (key, child) = (input.bytes()?, CohortId(input.u32()?));
                Self::Split { key, child, members: Membership::decode(input)? }
            }
            DROP => Self::Drop,
            tag => return Err(DecodeError::UnknownTag { what: "request to a range", tag: u64::from(tag) }),
        })
    }
}

const SESSION_OPENED: u8 = 1;
const WRITTEN: u8 = 2;
const ROW: u8 = 3;
const ROWS: u8 = 4;
const SPLIT_DONE: u8 = 5;
const DROPPED: u8 = 6;

/// Minimum bytes of an encoded cell: two lengths and a version.
const CELL_BYTES_MIN: usize = 16;

impl Wire for TableResponse {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::SessionOpened { session, range } => {
                out.u8(SESSION_OPENED);
                out.u64(session.0);
                range.encode(out);
            }
            Self::Written { version } => {
                out.u8(WRITTEN);
                out.i64(version.0);
            }
            Self::Row { cells, rest } => {
                out.u8(ROW);
                encode_cells(cells, out);
                encode_rest(rest.as_ref(), out);
            }
            Self::Rows { rows, continuation, rest } => {
                out.u8(ROWS);
                out.count(rows.len());
                for row in rows {
                    out.bytes(&row.key);
                    encode_cells(&row.cells, out);
                }
                out.optional(continuation.as_ref());
                encode_rest(rest.as_ref(), out);
            }
            Self::Split => out.u8(SPLIT_DONE),
            Self::Dropped => out.u8(DROPPED),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            SESSION_OPENED => {
                let session = ClientSessionId(input.u64()?);
                Self::SessionOpened { session, range: KeyRange::decode(input)? }
            }
            WRITTEN => Self::Written { version: Timestamp(input.i64()?) },
            ROW => Self::Row { cells: decode_cells(input)?, rest: decode_rest(input)? },
            ROWS => {
                let count = input.count(8)?;
                let row = |input: &mut Reader| Ok(Row { key: input.bytes()?, cells: decode_cells(input)? });
                let rows = (0..count).map(|_| row(input)).collect::<Result<_, DecodeError>>()?;
                Self::Rows { rows, continuation: input.optional()?, rest: decode_rest(input)? }
            }
            SPLIT_DONE => Self::Split,
            DROPPED => Self::Dropped,
            tag => return Err(DecodeError::UnknownTag { what: "response of a range", tag: u64::from(tag) }),
        })
    }
}

fn encode_cells(cells: &[Cell], out: &mut Writer) {
    out.count(cells.len());
    for cell in cells {
        out.bytes(&cell.column);
        out.bytes(&cell.value);
        out.i64(cell.version.0);
    }
}

fn decode_cells(input: &mut Reader) -> Result<Vec<Cell>, DecodeError> {
    let count = input.count(CELL_BYTES_MIN)?;
    (0..count)
        .map(|_| Ok(Cell { column: input.bytes()?, value: input.bytes()?, version: Timestamp(input.i64()?) }))
        .collect()
}

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
            let end = least(least(self.to.clone(), after_prefix(&self.prefix)), self.continuation.clone());
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

fn encode_write(write: &Write, out: &mut Writer) {
    SessionStamp::encode(write.stamp.as_ref(), out);
    out.bytes(&write.key);
    out.count(write.mutations.len());
    for Mutation { column, value, condition } in &write.mutations {
        out.bytes(column);
        out.optional(value.as_ref());
        out.bool(condition.is_some());
        if let Some(version) = condition {
            out.i64(version.0);
        }
    }
}

fn decode_write(input: &mut Reader) -> Result<Write, DecodeError> {
    let (stamp, key) = (SessionStamp::decode(input)?, input.bytes()?);
    let mutation = |input: &mut Reader| {
        let (column, value) = (input.bytes()?, input.optional()?);
        let condition = if input.bool()? { Some(Timestamp(input.i64()?)) } else { None };
        Ok(Mutation { column, value, condition })
    };
    let mutations = (0..input.count(6)?).map(|_| mutation(input)).collect::<Result<_, DecodeError>>()?;
    Ok(Write { stamp, key, mutations })
}

fn encode_scan(scan: &Scan, out: &mut Writer) {
    out.bytes(&scan.from);
    out.optional(scan.to.as_ref());
    out.bytes(&scan.prefix);
    out.bool(scan.reverse);
    out.u64(scan.limit as u64);
    out.optional(scan.continuation.as_ref());
    encode_part(&scan.part, out);
}

fn decode_scan(input: &mut Reader) -> Result<Scan, DecodeError> {
    Ok(Scan {
        from: input.bytes()?,
        to: input.optional()?,
        prefix: input.bytes()?,
        reverse: input.bool()?,
        limit: usize::try_from(input.u64()?).unwrap_or(usize::MAX),
        continuation: input.optional()?,
        part: decode_part(input)?,
    })
}

fn encode_part(part: &Part, out: &mut Writer) {
    out.optional(part.after.as_ref());
    out.bool(part.names_only);
}

fn decode_part(input: &mut Reader) -> Result<Part, DecodeError> {
    Ok(Part { after: input.optional()?, names_only: input.bool()? })
}

fn encode_rest(rest: Option<&Rest>, out: &mut Writer) {
    out.bool(rest.is_some());
    if let Some(Rest { after, at }) = rest {
        out.bytes(after);
        out.i64(at.0);
    }
}

fn decode_rest(input: &mut Reader) -> Result<Option<Rest>, DecodeError> {
    Ok(if input.bool()? { Some(Rest { after: input.bytes()?, at: Timestamp(input.i64()?) }) } else { None })
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
            (TableRequest::OpenSession { key: key("k") }, Locks::None),
            (TableRequest::Get { key: key("k"), columns: Columns::default(), consistency }, Locks::None),
            (TableRequest::Scan { scan: Scan::default(), consistency }, Locks::None),
            (TableRequest::Split { key: key("k"), child: CohortId(9), members: Membership::default() }, Locks::None),
            (TableRequest::Drop, Locks::None),
        ];
        for (request, locks) in cases {
            assert_eq!(request.locks(), locks, "{request:?}");
            assert_eq!(request.bytes() > 0, locks != Locks::None, "{request:?}");
        }
    }
}
