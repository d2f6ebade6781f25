//! Converts between messages of the columns service and the node's requests and responses, for unary calls and streams
//! alike.

use api::columns as message;
use base::{KeyRange, Timestamp};
use bytes::Bytes;
use node::request::{Request, Response};
use state_machine::{ClientSessionId, Failure, SessionStamp};
use tablets::TableResponse;
use tablets::request::{Cell, Columns, Mutation, Part, Rest, Row, TableRequest, Write};

use crate::limits::REPLY_BYTES_MAX;
use crate::reads;

/// A request to a table.
#[derive(Debug)]
pub(crate) struct TableCall {
    table: String,
    request: TableRequest,
}

impl From<TableCall> for Request {
    fn from(TableCall { table, request }: TableCall) -> Self {
        Self::table(table, request)
    }
}

impl From<message::GetRequest> for TableCall {
    fn from(asked: message::GetRequest) -> Self {
        let message::GetRequest { table, key, columns, options, columns_after, names_only } = asked;
        let named = (!columns.is_empty()).then_some(columns);
        let columns = Columns { named, part: Part { after: columns_after, names_only } };
        Self { table, request: TableRequest::Get { key, columns, consistency: reads::consistency(options) } }
    }
}

impl From<message::PutRequest> for TableCall {
    fn from(message::PutRequest { table, key, column, value, stamp }: message::PutRequest) -> Self {
        of_one(table, stamp, key, column, Some(value), None)
    }
}

impl From<message::DeleteRequest> for TableCall {
    fn from(message::DeleteRequest { table, key, column, stamp }: message::DeleteRequest) -> Self {
        of_one(table, stamp, key, column, None, None)
    }
}

impl From<message::ConditionalPutRequest> for TableCall {
    fn from(asked: message::ConditionalPutRequest) -> Self {
        let message::ConditionalPutRequest { table, key, column, value, version, stamp } = asked;
        of_one(table, stamp, key, column, Some(value), Some(version))
    }
}

impl From<message::ConditionalDeleteRequest> for TableCall {
    fn from(asked: message::ConditionalDeleteRequest) -> Self {
        let message::ConditionalDeleteRequest { table, key, column, version, stamp } = asked;
        of_one(table, stamp, key, column, None, Some(version))
    }
}

impl From<message::WriteRequest> for TableCall {
    fn from(message::WriteRequest { table, key, mutations, stamp }: message::WriteRequest) -> Self {
        let mutations = mutations.into_iter().map(mutation).collect();
        Self { table, request: TableRequest::Write(Write { stamp: stamp.map(session_stamp), key, mutations }) }
    }
}

impl From<message::DeleteRowRequest> for TableCall {
    fn from(message::DeleteRowRequest { table, key, stamp }: message::DeleteRowRequest) -> Self {
        Self { table, request: TableRequest::DeleteRow { stamp: stamp.map(session_stamp), key } }
    }
}

impl From<message::OpenSessionRequest> for TableCall {
    fn from(message::OpenSessionRequest { table, key }: message::OpenSessionRequest) -> Self {
        Self { table, request: TableRequest::OpenSession { key } }
    }
}

/// A write of a single column.
fn of_one(
    table: String,
    stamp: Option<message::SessionStamp>,
    key: Bytes,
    column: Bytes,
    value: Option<Bytes>,
    condition: Option<i64>,
) -> TableCall {
    let mutations = vec![mutation(message::Mutation { column, value, condition })];
    TableCall { table, request: TableRequest::Write(Write { stamp: stamp.map(session_stamp), key, mutations }) }
}

fn mutation(message: message::Mutation) -> Mutation {
    let message::Mutation { column, value, condition } = message;
    Mutation { column, value, condition: condition.map(Timestamp) }
}

fn session_stamp(message: message::SessionStamp) -> SessionStamp {
    let message::SessionStamp { session, sequence, first_incomplete } = message;
    SessionStamp { session: ClientSessionId(session), sequence, first_incomplete }
}

/// The response to a write, if it is one.
pub(crate) fn written(response: &Response) -> Option<message::WriteResponse> {
    match response {
        Response::Tablet(TableResponse::Written { version }) => Some(message::WriteResponse { version: version.0 }),
        _ => None,
    }
}

/// The response to opening a session, if it is one.
pub(crate) fn session_opened(response: &Response) -> Option<message::OpenSessionResponse> {
    match response {
        Response::Tablet(TableResponse::SessionOpened { session, range: KeyRange { start, end } }) => {
            Some(message::OpenSessionResponse { session: session.0, start: start.clone(), end: end.clone() })
        }
        _ => None,
    }
}

pub(crate) fn row(row: Row) -> message::Row {
    message::Row { key: row.key, cells: cells(row.cells) }
}

fn cells(cells: Vec<Cell>) -> Vec<message::Cell> {
    cells
        .into_iter()
        .map(|Cell { column, value, version }| message::Cell { column, value, version: version.0 })
        .collect()
}

/// Approximate bytes of a row in a response.
pub(crate) fn row_bytes(row: &[Cell]) -> usize {
    /// Maximum framing overhead of one cell.
    const CELL_FRAMING_BYTES: usize = 32;
    row.iter().map(|cell| cell.column.len() + cell.value.len() + CELL_FRAMING_BYTES).sum()
}

/// The response to a read of a row, if it fits.
pub(crate) fn row_that_fits(
    row: Vec<Cell>,
    rest: Option<Rest>,
    as_of: Option<message::AsOf>,
) -> Result<message::GetResponse, Failure> {
    let bytes = row_bytes(&row);
    if bytes > REPLY_BYTES_MAX {
        let wrong = format!("the row has {bytes} bytes, which exceeds {REPLY_BYTES_MAX}: read it in parts");
        return Err(Failure::Invalid(wrong));
    }
    Ok(message::GetResponse { cells: cells(row), as_of, rest: rest.map(self::rest) })
}

pub(crate) fn rest(Rest { after, at }: Rest) -> message::Rest {
    message::Rest { columns_after: after, at_ns: at.0 }
}
