//! The columns service: each call becomes one [`Request`] to the node, and each [`Response`] one message.

mod streamed;
pub(crate) mod transactions;
pub(crate) mod translate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::columns::{self as message, WriteResponse};
use api::servers::columns_server::Columns;
use base::{Durability, Interval, KeyRange, Timestamp};
use bytes::Bytes;
use catalog::{
    CatalogCommand, CatalogRequest, CatalogResponse, RangeDescription, Replication, TableDescription, TableOptions,
};
use node::request::{Ask, Request, Response, validate_client, validate_translation_server};
use sharedlog::validate::TRANSLATION_SERVER_KEY;
use state_machine::StateMachine as _;
use tablets::request::{Part, Rest, Row, Scan, TableRequest};
use tablets::{TableResponse, Tablet};
use tonic::Status;

use self::streamed::Rows;
use self::translate::TableCall;
use crate::deadline::{Arrival, Deadline};
use crate::flow_control::call::{Call, HandedOver};
use crate::flow_control::replies::size;
use crate::stream::Streams;
use crate::{Gateway, Held, reads, refusal};

pub(crate) struct Handler<G> {
    gateway: Arc<G>,
    streams: Arc<Streams>,
}

const NANOSECONDS_IN_MS: u64 = 1_000_000;

/// The result of a call.
pub(crate) type RpcResult<T> = Result<tonic::Response<T>, Status>;

impl<G: Gateway> Handler<G> {
    pub(crate) fn new(gateway: Arc<G>, streams: Arc<Streams>) -> Self {
        Self { gateway, streams }
    }

    async fn ask_table<T: Default + Into<TableCall>>(&self, mut call: tonic::Request<T>) -> Result<Response, Status> {
        let request: TableCall = std::mem::take(call.get_mut()).into();
        ask(&*self.gateway, &call, request.into()).await
    }

    async fn change<T: Default + Into<TableCall>>(&self, call: tonic::Request<T>) -> RpcResult<WriteResponse> {
        let response = self.ask_table(call).await?;
        translate::written(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }
}

/// Sends the request to the node, within the limits and the call's deadline, and reserves memory for the response.
pub(crate) async fn ask<T, G: Gateway>(
    gateway: &G,
    request: &tonic::Request<T>,
    asked: Request,
) -> Result<Response, Status> {
    let refusal = |failure| refusal::status(&failure);
    let is_translation_server = request.metadata().contains_key(TRANSLATION_SERVER_KEY);
    let validate = if is_translation_server { validate_translation_server } else { validate_client };
    validate(&asked).map_err(refusal)?;
    let call = Call::of(request)?;
    call.connection.admit(&asked, Instant::now()).map_err(refusal)?;
    // The node accounts for the decoded request from here on.
    call.message_taken();
    let (deadline, changes) = (deadline(request), asked.changes());
    let answer = gateway.submit(asked, deadline.node, Held::of(&call.connection));
    let response = deadline.guard(changes, answer).await.map_err(refusal)?;
    call.reserve_response(size(&response)).map_err(refusal)?;
    Ok(response)
}

/// The remaining time of a call.
pub(crate) fn deadline<T>(call: &tonic::Request<T>) -> Deadline {
    let elapsed = call.extensions().get::<Arrival>().map_or(Duration::ZERO, |arrival| arrival.0.elapsed());
    Deadline::of(call.metadata(), elapsed)
}

/// Status for a response of the wrong type: an internal error.
pub(crate) fn unexpected(response: &Response) -> Status {
    tracing::error!(?response, "unexpected response type");
    Status::internal("unexpected response type")
}

/// The durability requested for a new table, if specified.
fn wanted(durability: i32) -> Result<Option<Durability>, Status> {
    match message::Durability::try_from(durability) {
        Ok(message::Durability::Unspecified) => Ok(None),
        Ok(message::Durability::Forced) => Ok(Some(Durability::Forced)),
        Ok(message::Durability::Memory) => Ok(Some(Durability::Memory)),
        Err(_) => Err(Status::invalid_argument(format!("unknown durability {durability}"))),
    }
}

/// The replication requested for a new table, if specified.
fn wanted_replication(replication: i32) -> Result<Option<Replication>, Status> {
    match message::Replication::try_from(replication) {
        Ok(message::Replication::Unspecified) => Ok(None),
        Ok(message::Replication::Paxos) => Ok(Some(Replication::Paxos)),
        Ok(message::Replication::PrimaryBackup) => Ok(Some(Replication::PrimaryBackup)),
        Err(_) => Err(Status::invalid_argument(format!("unknown replication {replication}"))),
    }
}

fn replication_message(replication: Replication) -> message::Replication {
    match replication {
        Replication::Paxos => message::Replication::Paxos,
        Replication::PrimaryBackup => message::Replication::PrimaryBackup,
    }
}

fn durability_message(durability: Durability) -> message::Durability {
    match durability {
        Durability::Forced => message::Durability::Forced,
        Durability::Memory => message::Durability::Memory,
    }
}

#[tonic::async_trait]
impl<G: Gateway> Columns for Handler<G> {
    async fn create_table(
        &self,
        mut call: tonic::Request<message::CreateTableRequest>,
    ) -> RpcResult<message::CreateTableResponse> {
        let message::CreateTableRequest {
            table: name,
            split_at,
            replicas,
            retention_ms,
            durability,
            transactions,
            replication,
        } = std::mem::take(call.get_mut());
        let (durability, replication) = (wanted(durability)?, wanted_replication(replication)?);
        let retention = base::Duration(retention_ms.saturating_mul(NANOSECONDS_IN_MS));
        match ask(
            &*self.gateway,
            &call,
            Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
                name,
                split_at,
                options: TableOptions {
                    replicas,
                    retention,
                    durability,
                    transactions,
                    replication,
                    ..TableOptions::of(Tablet::KIND)
                },
            })),
        )
        .await?
        {
            Response::Catalog(CatalogResponse::TableCreated { existed }) => {
                answer(message::CreateTableResponse { existed })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn list_tables(
        &self,
        call: tonic::Request<message::ListTablesRequest>,
    ) -> RpcResult<message::ListTablesResponse> {
        match ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::ListTables)).await? {
            Response::Catalog(CatalogResponse::Tables(tables)) => answer(message::ListTablesResponse { tables }),
            other => Err(unexpected(&other)),
        }
    }

    async fn describe_table(
        &self,
        mut call: tonic::Request<message::DescribeTableRequest>,
    ) -> RpcResult<message::DescribeTableResponse> {
        let name = std::mem::take(&mut call.get_mut().table);
        match ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::DescribeTable(name))).await? {
            Response::Catalog(CatalogResponse::Table(TableDescription {
                ranges,
                created,
                replicas,
                retention,
                durability,
                transactions,
                replication,
                disk_bytes: _,
            })) => {
                let ranges = ranges.into_iter().map(range).collect();
                let retention_ms = retention.0 / NANOSECONDS_IN_MS;
                let (created_ns, durability) = (created.0, durability_message(durability).into());
                answer(message::DescribeTableResponse {
                    ranges,
                    created_ns,
                    replicas,
                    retention_ms,
                    durability,
                    transactions,
                    replication: replication_message(replication).into(),
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn drop_table(
        &self,
        mut call: tonic::Request<message::DropTableRequest>,
    ) -> RpcResult<message::DropTableResponse> {
        let message::DropTableRequest { table: name, force } = std::mem::take(call.get_mut());
        let begin = CatalogCommand::BeginDrop { name, force };
        match ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::Change(begin))).await? {
            Response::Catalog(CatalogResponse::TableDropped) => answer(message::DropTableResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn open_session(
        &self,
        call: tonic::Request<message::OpenSessionRequest>,
    ) -> RpcResult<message::OpenSessionResponse> {
        let response = self.ask_table(call).await?;
        translate::session_opened(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }

    async fn get(&self, call: tonic::Request<message::GetRequest>) -> RpcResult<message::GetResponse> {
        match reads::undated(self.ask_table(call).await?) {
            (Response::Tablet(TableResponse::Row { cells, rest }), as_of) => {
                answer(translate::row_that_fits(cells, rest, as_of).map_err(|failure| refusal::status(&failure))?)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    async fn put(&self, call: tonic::Request<message::PutRequest>) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn delete(&self, call: tonic::Request<message::DeleteRequest>) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn conditional_put(&self, call: tonic::Request<message::ConditionalPutRequest>) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn conditional_delete(
        &self,
        call: tonic::Request<message::ConditionalDeleteRequest>,
    ) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn write(&self, call: tonic::Request<message::WriteRequest>) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn delete_row(&self, call: tonic::Request<message::DeleteRowRequest>) -> RpcResult<WriteResponse> {
        self.change(call).await
    }

    async fn scan(&self, mut call: tonic::Request<message::ScanRequest>) -> RpcResult<message::ScanResponse> {
        let (table, request) = scan(std::mem::take(call.get_mut()));
        match reads::undated(ask(&*self.gateway, &call, Request::Table { table, request: Ask::Tablet(request) }).await?)
        {
            (Response::Tablet(TableResponse::Rows { rows, continuation, rest }), as_of) => {
                answer(scanned(rows, continuation, rest, as_of))
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    async fn commit_transaction(
        &self,
        mut call: tonic::Request<message::CommitTransactionRequest>,
    ) -> RpcResult<message::CommitTransactionResponse> {
        let transaction = transactions::commit(std::mem::take(call.get_mut())).map_err(|it| refusal::status(&it))?;
        let response = ask(&*self.gateway, &call, Request::Transaction(Box::new(transaction))).await?;
        transactions::committed(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }

    async fn resolve_transaction(
        &self,
        mut call: tonic::Request<message::ResolveTransactionRequest>,
    ) -> RpcResult<message::ResolveTransactionResponse> {
        let request = transactions::resolve(std::mem::take(call.get_mut()));
        let response = ask(&*self.gateway, &call, request).await?;
        transactions::outcome(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }

    async fn unlock_transaction(
        &self,
        mut call: tonic::Request<message::UnlockTransactionRequest>,
    ) -> RpcResult<message::UnlockTransactionResponse> {
        let message::UnlockTransactionRequest { table, key, owner } = std::mem::take(call.get_mut());
        let request = Request::table(table, TableRequest::Unlock { key, owner: transactions::owner(owner) });
        match ask(&*self.gateway, &call, request).await? {
            Response::Tablet(TableResponse::Unlocked) => answer(message::UnlockTransactionResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn hold_versions(
        &self,
        mut call: tonic::Request<message::HoldVersionsRequest>,
    ) -> RpcResult<message::HoldVersionsResponse> {
        let message::HoldVersionsRequest { table, key, timestamp_ns, owner, release } = std::mem::take(call.get_mut());
        let request = TableRequest::Hold { key, owner, timestamp: Timestamp(timestamp_ns), release };
        match ask(&*self.gateway, &call, Request::table(table, request)).await? {
            Response::Tablet(TableResponse::Held { range: KeyRange { start, end } }) => {
                answer(message::HoldVersionsResponse { start, end })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn clock(&self, call: tonic::Request<message::ClockRequest>) -> RpcResult<message::ClockResponse> {
        match ask(&*self.gateway, &call, Request::Clock).await? {
            Response::Clock(interval) => answer(clock(interval)),
            other => Err(unexpected(&other)),
        }
    }

    type StreamStream = HandedOver<message::StreamResponse>;

    async fn stream(
        &self,
        call: tonic::Request<tonic::Streaming<message::StreamRequest>>,
    ) -> RpcResult<Self::StreamStream> {
        self.streams.begin::<_, Rows>(&self.gateway, call)
    }
}

/// The table of a scan, and the request.
pub(crate) fn scan(asked: message::ScanRequest) -> (String, TableRequest) {
    let message::ScanRequest { table, start, end, prefix, reverse, limit, continuation, options, .. } = asked;
    let part = Part { after: asked.columns_after, names_only: asked.names_only };
    let columns = Some(asked.columns).filter(|columns| !columns.is_empty());
    let scan = Scan { from: start, to: end, prefix, reverse, limit: limit as usize, continuation, columns, part };
    (table, TableRequest::Scan { scan, consistency: reads::consistency(options) })
}

/// The response to a scan.
pub(crate) fn scanned(
    rows: Vec<Row>,
    continuation: Option<Bytes>,
    rest: Option<Rest>,
    as_of: Option<message::AsOf>,
) -> message::ScanResponse {
    let rows = rows.into_iter().map(translate::row).collect();
    message::ScanResponse { rows, continuation, as_of, rest: rest.map(translate::rest) }
}

pub(crate) fn clock(Interval { earliest, latest }: Interval) -> message::ClockResponse {
    message::ClockResponse { earliest_ns: earliest.0, latest_ns: latest.0 }
}

pub(crate) fn answer<T>(message: T) -> RpcResult<T> {
    Ok(tonic::Response::new(message))
}

fn range(described: RangeDescription) -> message::Range {
    let RangeDescription { range, cohort, members, is_moving, configuration } = described;
    let configuration = configuration.map(|known| message::Configuration {
        version: known.version.0,
        primary: known.primary.node.0,
        members: known.members.iter().map(|member| member.node.0).collect(),
    });
    message::Range { start: range.start, end: range.end, cohort, members, is_moving, configuration }
}
