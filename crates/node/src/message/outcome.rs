//! The codec of answers between nodes.

use base::codec::{DecodeError, Reader, Writer};
use base::{Durability, Duration, KeyRange, NodeId, Timestamp};
use sharedlog::{Position, Projection, ProjectionEpoch, UnitId};
use tablets::command::{NODE_BYTES_MIN, decode_node, encode_node};
use tablets::request::{
    AsOf, Cell, ExtentDescription, Failure, LogDescription, LogResponse, NodeDescription, Outcome, RangeDescription,
    Response, Row, SessionId, TableDescription,
};

use super::logs;
use super::query::{decode_optional, optional, text};

/// The least an encoded cell takes: two lengths and a version.
const CELL_BYTES_MIN: usize = 16;

/// The least an encoded range takes: a key's length, whether it has an end, its cohort, the number of members.
const RANGE_BYTES_MIN: usize = 13;

pub(super) fn encode(outcome: &Outcome, out: &mut Writer) {
    match outcome {
        Ok(response) => encode_response(response, out),
        Err(failure) => encode_failure(failure, out),
    }
}

fn encode_response(response: &Response, out: &mut Writer) {
    match response {
        Response::TableCreated { existed } => {
            out.u8(1);
            out.bool(*existed);
        }
        Response::Tables(names) => {
            out.u8(2);
            out.u32(length(names.len()));
            names.iter().for_each(|name| out.bytes(name.as_bytes()));
        }
        Response::SessionOpened { session, range } => {
            out.u8(3);
            out.u64(session.0);
            range.encode(out);
        }
        Response::Written { version } => {
            out.u8(4);
            out.i64(version.0);
        }
        Response::Row(cells) => {
            out.u8(5);
            encode_cells(cells, out);
        }
        Response::Rows { rows, continuation } => {
            out.u8(6);
            out.u32(length(rows.len()));
            for row in rows {
                out.bytes(&row.key);
                encode_cells(&row.cells, out);
            }
            optional(continuation.as_ref(), out);
        }
        Response::Table(table) => {
            out.u8(7);
            encode_table(table, out);
        }
        Response::TableDropped => out.u8(8),
        Response::RangeSplit { cohort } => {
            out.u8(9);
            out.u32(*cohort);
        }
        Response::Dated { response, as_of } => {
            out.u8(10);
            as_of.encode(out);
            encode_response(response, out);
        }
        Response::MoveBegun => out.u8(11),
        Response::PlanDone => out.u8(12),
        Response::LeaveBegun => out.u8(13),
        Response::Nodes(nodes) => {
            out.u8(14);
            out.u32(length(nodes.len()));
            for NodeDescription { record, ranges } in nodes {
                encode_node(record, out);
                out.u32(*ranges);
            }
        }
        Response::Unit(reply) => {
            out.u8(15);
            logs::encode_reply(reply, out);
        }
        Response::Log(response) => match response {
            LogResponse::Created { existed } => {
                out.u8(16);
                out.bool(*existed);
            }
            LogResponse::Logs(names) => {
                out.u8(17);
                out.u32(length(names.len()));
                names.iter().for_each(|name| out.bytes(name.as_bytes()));
            }
            LogResponse::Log(log) => {
                out.u8(18);
                encode_log(log, out);
            }
            LogResponse::Projected(projection) => {
                out.u8(19);
                out.bytes(&projection.encode());
            }
            LogResponse::UnitsGone(units) => {
                out.u8(20);
                out.u32(length(units.len()));
                units.iter().for_each(|unit| out.u64(unit.0));
            }
            // A node answers for the log itself: what it comes to is never forwarded.
            _ => encode_failure(&Failure::Invalid("that answer is not forwarded".to_owned()), out),
        },
        // A node answers for itself only: its status is never forwarded.
        Response::Status(_) => encode_failure(&Failure::Invalid("a status is not forwarded".to_owned()), out),
    }
}

fn encode_table(table: &TableDescription, out: &mut Writer) {
    let TableDescription { ranges, created, replicas, retention, durability } = table;
    out.i64(created.0);
    out.u32(*replicas);
    out.u64(retention.0);
    durability.encode(out);
    out.u32(length(ranges.len()));
    for RangeDescription { range, cohort, members, is_moving } in ranges {
        range.encode(out);
        out.u32(*cohort);
        out.u32(length(members.len()));
        members.iter().for_each(|node| out.u32(*node));
        out.bool(*is_moving);
    }
}

fn encode_cells(cells: &[Cell], out: &mut Writer) {
    out.u32(length(cells.len()));
    for cell in cells {
        out.bytes(&cell.column);
        out.bytes(&cell.value);
        out.i64(cell.version.0);
    }
}

fn encode_failure(failure: &Failure, out: &mut Writer) {
    let (tag, message) = match failure {
        Failure::VersionMismatch { column, expected, actual } => {
            out.u8(32);
            out.bytes(column);
            out.i64(expected.0);
            out.i64(actual.0);
            return;
        }
        Failure::UnknownSession(session) => {
            out.u8(33);
            out.u64(session.0);
            return;
        }
        Failure::UnknownTable(table) => (34, table),
        Failure::UnknownLog(log) => (40, log),
        Failure::MayLie { since } => {
            out.u8(41);
            out.u64(since.0);
            return;
        }
        Failure::Invalid(message) => (35, message),
        Failure::Overloaded(message) => (36, message),
        Failure::Unavailable(message) => (37, message),
        Failure::Unknown(message) => (38, message),
        Failure::Exists(message) => (39, message),
        Failure::Forgotten(message) => (42, message),
    };
    out.u8(tag);
    out.bytes(message.as_bytes());
}

pub(super) fn decode(input: &mut Reader) -> Result<Outcome, DecodeError> {
    Ok(match input.u8()? {
        1 => Ok(Response::TableCreated { existed: input.bool()? }),
        2 => {
            let count = input.count(4)?;
            Ok(Response::Tables((0..count).map(|_| text(input)).collect::<Result<_, _>>()?))
        }
        3 => {
            let session = SessionId(input.u64()?);
            Ok(Response::SessionOpened { session, range: KeyRange::decode(input)? })
        }
        4 => Ok(Response::Written { version: Timestamp(input.i64()?) }),
        5 => Ok(decode_row_answer(input)?),
        6 => Ok(decode_page(input)?),
        7 => Ok(Response::Table(decode_table(input)?)),
        8 => Ok(Response::TableDropped),
        9 => Ok(Response::RangeSplit { cohort: input.u32()? }),
        10 => {
            let as_of = AsOf::decode(input)?;
            match input.u8()? {
                5 => Ok(dated(decode_row_answer(input)?, as_of)),
                6 => Ok(dated(decode_page(input)?, as_of)),
                tag => return Err(DecodeError::UnknownTag { what: "dated answer", tag: u64::from(tag) }),
            }
        }
        11 => Ok(Response::MoveBegun),
        12 => Ok(Response::PlanDone),
        13 => Ok(Response::LeaveBegun),
        14 => {
            let node = |input: &mut Reader| Ok(NodeDescription { record: decode_node(input)?, ranges: input.u32()? });
            let count = input.count(NODE_BYTES_MIN + 4)?;
            Ok(Response::Nodes((0..count).map(|_| node(input)).collect::<Result<_, DecodeError>>()?))
        }
        15 => Ok(Response::Unit(Box::new(logs::decode_reply(input)?))),
        16 => Ok(Response::Log(LogResponse::Created { existed: input.bool()? })),
        17 => {
            let count = input.count(4)?;
            let names = (0..count).map(|_| text(input)).collect::<Result<_, _>>()?;
            Ok(Response::Log(LogResponse::Logs(names)))
        }
        18 => Ok(Response::Log(LogResponse::Log(Box::new(decode_log(input)?)))),
        19 => Ok(Response::Log(LogResponse::Projected(Box::new(Projection::decode(input.bytes()?)?)))),
        20 => {
            let units = (0..input.count(8)?).map(|_| input.u64().map(UnitId));
            Ok(Response::Log(LogResponse::UnitsGone(units.collect::<Result<_, _>>()?)))
        }
        32 => Err(Failure::VersionMismatch {
            column: input.bytes()?,
            expected: Timestamp(input.i64()?),
            actual: Timestamp(input.i64()?),
        }),
        33 => Err(Failure::UnknownSession(SessionId(input.u64()?))),
        34 => Err(Failure::UnknownTable(text(input)?)),
        35 => Err(Failure::Invalid(text(input)?)),
        36 => Err(Failure::Overloaded(text(input)?)),
        37 => Err(Failure::Unavailable(text(input)?)),
        38 => Err(Failure::Unknown(text(input)?)),
        39 => Err(Failure::Exists(text(input)?)),
        40 => Err(Failure::UnknownLog(text(input)?)),
        41 => Err(Failure::MayLie { since: Position(input.u64()?) }),
        42 => Err(Failure::Forgotten(text(input)?)),
        tag => return Err(DecodeError::UnknownTag { what: "answer", tag: u64::from(tag) }),
    })
}

fn encode_log(log: &LogDescription, out: &mut Writer) {
    let LogDescription { id, epoch, sequencer, stripes, copies, extents } = log;
    out.u64(*id);
    out.u64(epoch.0);
    out.u32(sequencer.0);
    out.u32(*stripes);
    out.u32(*copies);
    out.u32(length(extents.len()));
    for ExtentDescription { from, width, chains } in extents {
        out.u64(from.0);
        out.u64(*width);
        out.u32(length(chains.len()));
        for chain in chains {
            out.u32(length(chain.len()));
            for (unit, node) in chain {
                out.u64(*unit);
                out.u32(node.0);
            }
        }
    }
}

fn decode_log(input: &mut Reader) -> Result<LogDescription, DecodeError> {
    let (id, epoch, sequencer) = (input.u64()?, ProjectionEpoch(input.u64()?), NodeId(input.u32()?));
    let (stripes, copies) = (input.u32()?, input.u32()?);
    let chain = |input: &mut Reader| {
        (0..input.count(12)?).map(|_| Ok((input.u64()?, NodeId(input.u32()?)))).collect::<Result<_, DecodeError>>()
    };
    let extent = |input: &mut Reader| {
        let (from, width) = (Position(input.u64()?), input.u64()?);
        let chains = (0..input.count(4)?).map(|_| chain(input)).collect::<Result<_, DecodeError>>()?;
        Ok(ExtentDescription { from, width, chains })
    };
    let extents = (0..input.count(20)?).map(|_| extent(input)).collect::<Result<_, DecodeError>>()?;
    Ok(LogDescription { id, epoch, sequencer, stripes, copies, extents })
}

fn decode_table(input: &mut Reader) -> Result<TableDescription, DecodeError> {
    let (created, replicas, retention) = (Timestamp(input.i64()?), input.u32()?, Duration(input.u64()?));
    let durability = Durability::decode(input)?;
    let range = |input: &mut Reader| {
        let (range, cohort) = (KeyRange::decode(input)?, input.u32()?);
        let members = (0..input.count(4)?).map(|_| input.u32()).collect::<Result<_, _>>()?;
        Ok(RangeDescription { range, cohort, members, is_moving: input.bool()? })
    };
    let ranges = (0..input.count(RANGE_BYTES_MIN)?).map(|_| range(input)).collect::<Result<_, DecodeError>>()?;
    Ok(TableDescription { ranges, created, replicas, retention, durability })
}

fn dated(response: Response, as_of: AsOf) -> Response {
    Response::Dated { response: Box::new(response), as_of: Box::new(as_of) }
}

fn decode_row_answer(input: &mut Reader) -> Result<Response, DecodeError> {
    Ok(Response::Row(decode_cells(input)?))
}

fn decode_page(input: &mut Reader) -> Result<Response, DecodeError> {
    let count = input.count(8)?;
    let rows = (0..count).map(|_| decode_row(input)).collect::<Result<_, _>>()?;
    Ok(Response::Rows { rows, continuation: decode_optional(input)? })
}

fn decode_row(input: &mut Reader) -> Result<Row, DecodeError> {
    Ok(Row { key: input.bytes()?, cells: decode_cells(input)? })
}

fn decode_cells(input: &mut Reader) -> Result<Vec<Cell>, DecodeError> {
    let count = input.count(CELL_BYTES_MIN)?;
    (0..count)
        .map(|_| Ok(Cell { column: input.bytes()?, value: input.bytes()?, version: Timestamp(input.i64()?) }))
        .collect()
}

fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
