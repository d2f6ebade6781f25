//! The columns service: each call becomes one [`Request`] to the node, and each [`Response`] one message.

use std::sync::Arc;
use std::time::Duration;

use api::columns::{self as message, WriteResponse};
use api::servers::columns_server::Columns;
use base::{KeyRange, Timestamp};
use bytes::Bytes;
use tablets::request::{
    Cell, Failure, Mutation, RangeDescription, Request, Response, Row, Scan, SessionId, SessionStamp, TableDescription,
    TableRequest, Write,
};
use tonic::Status;

use crate::deadline::{Arrival, Deadline};
use crate::limits::REPLY_BYTES_MAX;
use crate::{Gateway, refusal};

pub(crate) struct Door<G> {
    gateway: Arc<G>,
}

/// What every call comes to.
type Answer<T> = Result<tonic::Response<T>, Status>;

impl<G: Gateway> Door<G> {
    pub(crate) fn new(gateway: Arc<G>) -> Self {
        Self { gateway }
    }

    async fn ask_table<T>(
        &self,
        call: &tonic::Request<T>,
        table: String,
        request: TableRequest,
    ) -> Result<Response, Status> {
        ask(&*self.gateway, call, Request::Table { table, request }).await
    }

    async fn write<T>(&self, call: &tonic::Request<T>, table: String, write: Write) -> Answer<WriteResponse> {
        self.change(call, table, TableRequest::Write(write)).await
    }

    async fn change<T>(&self, call: &tonic::Request<T>, table: String, request: TableRequest) -> Answer<WriteResponse> {
        match self.ask_table(call, table, request).await? {
            Response::Written { version } => answer(WriteResponse { version: version.0 }),
            other => Err(unexpected(&other)),
        }
    }
}

/// Asks the node, within the limits and the call's deadline.
pub(crate) async fn ask<T, G: Gateway>(
    gateway: &G,
    call: &tonic::Request<T>,
    request: Request,
) -> Result<Response, Status> {
    tablets::validate(&request).map_err(|failure| refusal::status(&failure))?;
    let elapsed = call.extensions().get::<Arrival>().map_or(Duration::ZERO, |arrival| arrival.0.elapsed());
    let deadline = Deadline::of(call.metadata(), elapsed);
    let changes = request.changes();
    let outcome = deadline.guard(changes, gateway.submit(request, deadline.node)).await;
    outcome.map_err(|failure| refusal::status(&failure))
}

/// The node answered another question than it was asked: a fault of ours, which a client can only report.
pub(crate) fn unexpected(response: &Response) -> Status {
    tracing::error!(?response, "the node's answer does not fit its question");
    Status::internal("the node's answer does not fit the question")
}

#[tonic::async_trait]
impl<G: Gateway> Columns for Door<G> {
    async fn create_table(
        &self,
        mut call: tonic::Request<message::CreateTableRequest>,
    ) -> Answer<message::CreateTableResponse> {
        let message::CreateTableRequest { table: name, split_at, replicas } = std::mem::take(call.get_mut());
        match ask(&*self.gateway, &call, Request::CreateTable { name, split_at, replicas }).await? {
            Response::TableCreated { existed } => answer(message::CreateTableResponse { existed }),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_tables(
        &self,
        call: tonic::Request<message::ListTablesRequest>,
    ) -> Answer<message::ListTablesResponse> {
        match ask(&*self.gateway, &call, Request::ListTables).await? {
            Response::Tables(tables) => answer(message::ListTablesResponse { tables }),
            other => Err(unexpected(&other)),
        }
    }

    async fn describe_table(
        &self,
        mut call: tonic::Request<message::DescribeTableRequest>,
    ) -> Answer<message::DescribeTableResponse> {
        let name = std::mem::take(&mut call.get_mut().table);
        match ask(&*self.gateway, &call, Request::DescribeTable { name }).await? {
            Response::Table(TableDescription { ranges, created, replicas }) => {
                let ranges = ranges.into_iter().map(range).collect();
                answer(message::DescribeTableResponse { ranges, created: created.0, replicas })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn drop_table(
        &self,
        mut call: tonic::Request<message::DropTableRequest>,
    ) -> Answer<message::DropTableResponse> {
        let name = std::mem::take(&mut call.get_mut().table);
        match ask(&*self.gateway, &call, Request::DropTable { name }).await? {
            Response::TableDropped => answer(message::DropTableResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn open_session(
        &self,
        mut call: tonic::Request<message::OpenSessionRequest>,
    ) -> Answer<message::OpenSessionResponse> {
        let message::OpenSessionRequest { table, key } = std::mem::take(call.get_mut());
        match self.ask_table(&call, table, TableRequest::OpenSession { key }).await? {
            Response::SessionOpened { session, range: KeyRange { start, end } } => {
                answer(message::OpenSessionResponse { session: session.0, start, end })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn get(&self, mut call: tonic::Request<message::GetRequest>) -> Answer<message::GetResponse> {
        let message::GetRequest { table, key, columns } = std::mem::take(call.get_mut());
        let columns = (!columns.is_empty()).then_some(columns);
        match self.ask_table(&call, table, TableRequest::Get { key, columns }).await? {
            Response::Row(row) => answer(message::GetResponse { cells: row_that_fits(row)? }),
            other => Err(unexpected(&other)),
        }
    }

    async fn put(&self, mut call: tonic::Request<message::PutRequest>) -> Answer<WriteResponse> {
        let message::PutRequest { table, key, column, value, stamp } = std::mem::take(call.get_mut());
        self.write(&call, table, of_one(stamp, key, column, Some(value), None)).await
    }

    async fn delete(&self, mut call: tonic::Request<message::DeleteRequest>) -> Answer<WriteResponse> {
        let message::DeleteRequest { table, key, column, stamp } = std::mem::take(call.get_mut());
        self.write(&call, table, of_one(stamp, key, column, None, None)).await
    }

    async fn conditional_put(&self, mut call: tonic::Request<message::ConditionalPutRequest>) -> Answer<WriteResponse> {
        let message::ConditionalPutRequest { table, key, column, value, version, stamp } =
            std::mem::take(call.get_mut());
        self.write(&call, table, of_one(stamp, key, column, Some(value), Some(version))).await
    }

    async fn conditional_delete(
        &self,
        mut call: tonic::Request<message::ConditionalDeleteRequest>,
    ) -> Answer<WriteResponse> {
        let message::ConditionalDeleteRequest { table, key, column, version, stamp } = std::mem::take(call.get_mut());
        self.write(&call, table, of_one(stamp, key, column, None, Some(version))).await
    }

    async fn write(&self, mut call: tonic::Request<message::WriteRequest>) -> Answer<WriteResponse> {
        let message::WriteRequest { table, key, mutations, stamp } = std::mem::take(call.get_mut());
        let mutations = mutations.into_iter().map(mutation).collect();
        self.write(&call, table, Write { stamp: stamp.map(session_stamp), key, mutations }).await
    }

    async fn delete_row(&self, mut call: tonic::Request<message::DeleteRowRequest>) -> Answer<WriteResponse> {
        let message::DeleteRowRequest { table, key, stamp } = std::mem::take(call.get_mut());
        let request = TableRequest::DeleteRow { stamp: stamp.map(session_stamp), key };
        self.change(&call, table, request).await
    }

    async fn scan(&self, mut call: tonic::Request<message::ScanRequest>) -> Answer<message::ScanResponse> {
        let message::ScanRequest { table, from, to, prefix, reverse, limit, continuation } =
            std::mem::take(call.get_mut());
        let scan = Scan { from, to, prefix, reverse, limit: limit as usize, continuation };
        match self.ask_table(&call, table, TableRequest::Scan(scan)).await? {
            Response::Rows { rows, continuation } => {
                answer(message::ScanResponse { rows: rows.into_iter().map(row).collect(), continuation })
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn answer<T>(message: T) -> Answer<T> {
    Ok(tonic::Response::new(message))
}

/// The write of a single column.
fn of_one(
    stamp: Option<message::SessionStamp>,
    key: Bytes,
    column: Bytes,
    value: Option<Bytes>,
    condition: Option<i64>,
) -> Write {
    let mutations = vec![mutation(message::Mutation { column, value, condition })];
    Write { stamp: stamp.map(session_stamp), key, mutations }
}

fn mutation(message: message::Mutation) -> Mutation {
    let message::Mutation { column, value, condition } = message;
    Mutation { column, value, condition: condition.map(Timestamp) }
}

fn session_stamp(message: message::SessionStamp) -> SessionStamp {
    let message::SessionStamp { session, sequence, first_incomplete } = message;
    SessionStamp { session: SessionId(session), sequence, first_incomplete }
}

fn range(RangeDescription { range, cohort, members }: RangeDescription) -> message::Range {
    message::Range { start: range.start, end: range.end, cohort, members }
}

fn row(row: Row) -> message::Row {
    message::Row { key: row.key, cells: cells(row.cells) }
}

fn cells(cells: Vec<Cell>) -> Vec<message::Cell> {
    cells
        .into_iter()
        .map(|Cell { column, value, version }| message::Cell { column, value, version: version.0 })
        .collect()
}

/// The cells of a row, unless they are more than an answer can hold.
fn row_that_fits(row: Vec<Cell>) -> Result<Vec<message::Cell>, Status> {
    /// What the framing of one cell adds, at most.
    const CELL_FRAMING_BYTES: usize = 32;
    let bytes: usize = row.iter().map(|cell| cell.column.len() + cell.value.len() + CELL_FRAMING_BYTES).sum();
    if bytes > REPLY_BYTES_MAX {
        let wrong = format!("the row has {bytes} bytes, an answer at most {REPLY_BYTES_MAX}: name the columns wanted");
        return Err(refusal::status(&Failure::Invalid(wrong)));
    }
    Ok(cells(row))
}
