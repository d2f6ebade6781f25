//! A request as it is put to the cohort that answers it.

use base::codec::{DecodeError, Reader, Writer};
use base::{Duration, Membership, Timestamp};
use bytes::Bytes;
use sharedlog::unit;
use store::tree::CELL_OVERHEAD_BYTES;
use tablets::command::{decode_stamp, encode_stamp};
use tablets::request::{Consistency, LogRequest, Mutation, Scan, SessionStamp, TableRequest, Write};
use tablets::{CatalogueCommand, Command, Position};

use super::logs;

/// What a cohort is asked: something to be decided by its log, or something to be read from its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Writes a row, if its conditions are met.
    Write(Write),
    /// Opens a session in the range that holds a key.
    OpenSession {
        /// The key.
        key: Bytes,
    },
    /// Puts a command into the tablet's log.
    Command(Command),
    /// Puts a command into the catalogue's log.
    Catalogue(CatalogueCommand),
    /// Reads columns of a row.
    Get {
        /// The row.
        key: Bytes,
        /// The columns; none: all.
        columns: Option<Vec<Bytes>>,
        /// What it may show.
        consistency: Consistency,
    },
    /// Reads rows.
    Scan {
        /// Which.
        scan: Scan,
        /// What it may show.
        consistency: Consistency,
    },
    /// Reads the tables' names.
    ListTables,
    /// Asks whether there is such a table.
    FindTable(String),
    /// Reads which nodes there are.
    ListNodes,
    /// Reads what is known of a table.
    DescribeTable(String),
    /// Asks a log unit.
    Unit(unit::Request),
    /// Reads the logs' names.
    ListLogs,
    /// Reads what is known of a log.
    DescribeLog(String),
    /// Asks a shared log, which is many cohorts: it is never put to one, nor to another node.
    Log(LogRequest),
    /// Brings the cohort's membership one step on toward a plan, and says whether it is there.
    Plan(Membership),
}

impl Query {
    /// What a table is asked.
    #[must_use]
    pub fn of_table(request: TableRequest) -> Self {
        match request {
            TableRequest::OpenSession { key } => Self::OpenSession { key },
            TableRequest::Write(write) => Self::Write(write),
            TableRequest::DeleteRow { stamp, key } => Self::Command(Command::DeleteRow { stamp, key }),
            TableRequest::Get { key, columns, consistency } => Self::Get { key, columns, consistency },
            TableRequest::Scan { scan, consistency } => Self::Scan { scan, consistency },
        }
    }

    /// Whether it only reads: it may be asked again at will. Otherwise a log decides.
    #[must_use]
    pub fn reads(&self) -> bool {
        match self {
            Self::Write(_) | Self::OpenSession { .. } | Self::Command(_) | Self::Catalogue(_) | Self::Plan(_) => false,
            Self::Get { .. } | Self::Scan { .. } | Self::ListTables | Self::FindTable(_) => true,
            Self::DescribeTable(_) | Self::ListNodes | Self::ListLogs | Self::DescribeLog(_) => true,
            Self::Unit(request) => !matches!(request, unit::Request::Command(_)),
            Self::Log(request) => !request.changes(),
        }
    }

    /// Whether it is a read of a log that waits for something to come.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Log(LogRequest::Read { wait, .. }) if *wait > Duration::ZERO)
    }

    /// What it may show, if it reads; what reads no rows reads strongly.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        match self {
            Self::Get { consistency, .. } | Self::Scan { consistency, .. } => *consistency,
            _ => Consistency::Strong,
        }
    }

    /// The write, if it is one that may have conditions.
    #[must_use]
    pub fn write(&self) -> Option<&Write> {
        if let Self::Write(write) = self { Some(write) } else { None }
    }

    /// Bytes that it adds to a memtable, if it writes a row.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let key = self.row().map_or(0, |row| row.len() + CELL_OVERHEAD_BYTES);
        let of = |cell: &Mutation| key + cell.column.len() + cell.value.as_ref().map_or(0, Bytes::len);
        let cells = self.write().map_or(key, |write| write.mutations.iter().map(of).sum());
        cells as u64
    }

    /// Which write of which session it is, if it is one of a session.
    #[must_use]
    pub fn stamp(&self) -> Option<&SessionStamp> {
        match self {
            Self::Write(write) => write.stamp.as_ref(),
            Self::Command(Command::DeleteRow { stamp, .. }) => stamp.as_ref(),
            _ => None,
        }
    }

    /// Where in a table's keys it begins, if it is put to the range that holds that place.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::OpenSession { key } | Self::Get { key, .. } => Some(Position::At(key.clone())),
            Self::Scan { scan, .. } => Some(scan.position()),
            _ => self.row().cloned().map(Position::At),
        }
    }

    /// The row that it changes, if it changes one.
    #[must_use]
    pub fn row(&self) -> Option<&Bytes> {
        match self {
            Self::Write(write) => Some(&write.key),
            Self::Command(Command::DeleteRow { key, .. }) => Some(key),
            _ => None,
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Command(command) => {
                out.u8(1);
                out.bytes(&command.encode());
            }
            Self::Catalogue(command) => {
                out.u8(2);
                out.bytes(&command.encode());
            }
            Self::Get { key, columns, consistency } => {
                out.u8(3);
                consistency.encode(out);
                out.bytes(key);
                out.bool(columns.is_some());
                if let Some(columns) = columns {
                    out.u32(u32::try_from(columns.len()).unwrap_or(u32::MAX));
                    columns.iter().for_each(|column| out.bytes(column));
                }
            }
            Self::Scan { scan, consistency } => {
                out.u8(4);
                consistency.encode(out);
                encode_scan(scan, out);
            }
            Self::ListTables => out.u8(5),
            Self::FindTable(name) => {
                out.u8(6);
                out.bytes(name.as_bytes());
            }
            Self::Write(write) => {
                out.u8(7);
                encode_write(write, out);
            }
            Self::OpenSession { key } => {
                out.u8(8);
                out.bytes(key);
            }
            Self::DescribeTable(name) => {
                out.u8(9);
                out.bytes(name.as_bytes());
            }
            Self::Plan(plan) => {
                out.u8(10);
                plan.encode(out);
            }
            Self::ListNodes => out.u8(11),
            Self::Unit(request) => {
                out.u8(12);
                logs::encode_request(request, out);
            }
            Self::ListLogs => out.u8(13),
            Self::DescribeLog(name) => {
                out.u8(14);
                out.bytes(name.as_bytes());
            }
            Self::Log(_) => out.u8(u8::MAX),
        }
    }

    pub(super) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            1 => Self::Command(Command::decode(input.bytes()?)?),
            2 => Self::Catalogue(CatalogueCommand::decode(input.bytes()?)?),
            3 => {
                let (consistency, key) = (Consistency::decode(input)?, input.bytes()?);
                let columns = if input.bool()? {
                    let count = input.count(4)?;
                    Some((0..count).map(|_| input.bytes()).collect::<Result<_, _>>()?)
                } else {
                    None
                };
                Self::Get { key, columns, consistency }
            }
            4 => Self::Scan { consistency: Consistency::decode(input)?, scan: decode_scan(input)? },
            5 => Self::ListTables,
            6 => Self::FindTable(text(input)?),
            7 => Self::Write(decode_write(input)?),
            8 => Self::OpenSession { key: input.bytes()? },
            9 => Self::DescribeTable(text(input)?),
            10 => Self::Plan(Membership::decode(input)?),
            11 => Self::ListNodes,
            12 => Self::Unit(logs::decode_request(input)?),
            13 => Self::ListLogs,
            14 => Self::DescribeLog(text(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "query", tag: u64::from(tag) }),
        })
    }
}

fn encode_write(write: &Write, out: &mut Writer) {
    encode_stamp(write.stamp.as_ref(), out);
    out.bytes(&write.key);
    out.u32(u32::try_from(write.mutations.len()).unwrap_or(u32::MAX));
    for Mutation { column, value, condition } in &write.mutations {
        out.bytes(column);
        optional(value.as_ref(), out);
        out.bool(condition.is_some());
        if let Some(version) = condition {
            out.i64(version.0);
        }
    }
}

fn decode_write(input: &mut Reader) -> Result<Write, DecodeError> {
    let (stamp, key) = (decode_stamp(input)?, input.bytes()?);
    let mutation = |input: &mut Reader| {
        let (column, value) = (input.bytes()?, decode_optional(input)?);
        let condition = if input.bool()? { Some(Timestamp(input.i64()?)) } else { None };
        Ok(Mutation { column, value, condition })
    };
    let mutations = (0..input.count(6)?).map(|_| mutation(input)).collect::<Result<_, DecodeError>>()?;
    Ok(Write { stamp, key, mutations })
}

fn encode_scan(scan: &Scan, out: &mut Writer) {
    out.bytes(&scan.from);
    optional(scan.to.as_ref(), out);
    out.bytes(&scan.prefix);
    out.bool(scan.reverse);
    out.u64(scan.limit as u64);
    optional(scan.continuation.as_ref(), out);
}

fn decode_scan(input: &mut Reader) -> Result<Scan, DecodeError> {
    Ok(Scan {
        from: input.bytes()?,
        to: decode_optional(input)?,
        prefix: input.bytes()?,
        reverse: input.bool()?,
        limit: usize::try_from(input.u64()?).unwrap_or(usize::MAX),
        continuation: decode_optional(input)?,
    })
}

pub(super) fn optional(value: Option<&Bytes>, out: &mut Writer) {
    out.bool(value.is_some());
    if let Some(value) = value {
        out.bytes(value);
    }
}

pub(super) fn decode_optional(input: &mut Reader) -> Result<Option<Bytes>, DecodeError> {
    if input.bool()? { Ok(Some(input.bytes()?)) } else { Ok(None) }
}

pub(super) fn text(input: &mut Reader) -> Result<String, DecodeError> {
    String::from_utf8(input.bytes()?.to_vec()).map_err(|_| DecodeError::Invalid { what: "text" })
}
