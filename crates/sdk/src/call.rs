//! Sends a request as a single gRPC call.

use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::columns as message;
use api::columns::columns_client::ColumnsClient;
use api::disks::ListDisksRequest;
use api::disks::disks_client::DisksClient;
use api::log::ListLogsRequest;
use api::log::log_client::LogClient;
use client::{Fault, NodeResponse, Sent};
use sharedlog::validate::TRANSLATION_SERVER_KEY;
use tokio::time::timeout;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Extensions, Request};

use crate::fault;
use crate::request::{
    ApiLogRequest, ApiLogResponse, ApiRequest, ApiResponse, get_after, row_response, rows_response, scan_after,
    session_opened, session_stamp, stamped,
};

/// Maximum bytes of a response: twice the servers' limit.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Sends a request and waits up to `time` for the response.
pub(crate) async fn call(
    channel: Channel,
    sent: Sent<ApiRequest>,
    time: Duration,
) -> Result<NodeResponse<ApiResponse>, Fault> {
    match timeout(time, begin(channel, sent, time)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(fault::of(&status)),
        Err(_) => Err(Fault::Silent),
    }
}

pub(crate) fn columns(channel: Channel) -> ColumnsClient<Channel> {
    ColumnsClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn begin(
    channel: Channel,
    sent: Sent<ApiRequest>,
    time: Duration,
) -> Result<NodeResponse<ApiResponse>, tonic::Status> {
    let mut client = columns(channel.clone());
    let (request, stamp, seen) = match sent {
        Sent::OpenSession { table, key } => {
            let request = message::OpenSessionRequest { table, key };
            return Ok(session_opened(client.open_session(timed(request, time)).await?.into_inner()));
        }
        Sent::Request { request, stamp, seen, .. } => (request, stamp, seen),
    };
    let response = match request {
        ApiRequest::CreateTable(request) => {
            ApiResponse::TableCreated(client.create_table(timed(request, time)).await?.into_inner())
        }
        ApiRequest::DropTable(request) => {
            client.drop_table(timed(request, time)).await?;
            ApiResponse::TableDropped
        }
        ApiRequest::ListTables => {
            ApiResponse::Tables(client.list_tables(timed(message::ListTablesRequest {}, time)).await?.into_inner())
        }
        ApiRequest::DescribeTable(request) => {
            ApiResponse::Table(client.describe_table(timed(request, time)).await?.into_inner())
        }
        ApiRequest::Get(request) => {
            return Ok(row_response(client.get(timed(get_after(request, seen), time)).await?.into_inner()));
        }
        ApiRequest::Scan(request) => {
            return Ok(rows_response(client.scan(timed(scan_after(request, seen), time)).await?.into_inner()));
        }
        ApiRequest::Write(request) => {
            ApiResponse::Written(client.write(timed(stamped(request, stamp), time)).await?.into_inner())
        }
        ApiRequest::DeleteRow(request) => {
            let request = message::DeleteRowRequest { stamp: stamp.map(session_stamp), ..request };
            ApiResponse::Written(client.delete_row(timed(request, time)).await?.into_inner())
        }
        ApiRequest::CommitTransaction(request) => {
            let request = message::CommitTransactionRequest { stamp: stamp.map(session_stamp), ..request };
            let committed = client.commit_transaction(timed(request, time)).await?;
            ApiResponse::TransactionCommitted(committed.into_inner())
        }
        // The state machine sends it as `Sent::OpenSession`.
        ApiRequest::OpenSession(request) => {
            return Ok(session_opened(client.open_session(timed(request, time)).await?.into_inner()));
        }
        ApiRequest::ResolveTransaction(request) => {
            ApiResponse::TransactionOutcome(client.resolve_transaction(timed(request, time)).await?.into_inner())
        }
        ApiRequest::UnlockTransaction(request) => {
            client.unlock_transaction(timed(request, time)).await?;
            ApiResponse::TransactionUnlocked
        }
        ApiRequest::HoldVersions(request) => {
            ApiResponse::VersionsHeld(client.hold_versions(timed(request, time)).await?.into_inner())
        }
        ApiRequest::Clock => {
            ApiResponse::Clock(client.clock(timed(message::ClockRequest {}, time)).await?.into_inner())
        }
        ApiRequest::CreateDisk(request) => {
            ApiResponse::DiskCreated(DisksClient::new(channel).create_disk(timed(request, time)).await?.into_inner())
        }
        ApiRequest::ListDisks => {
            let listed = DisksClient::new(channel).list_disks(timed(ListDisksRequest {}, time)).await?;
            ApiResponse::Disks(listed.into_inner())
        }
        ApiRequest::GetDisk(request) => {
            ApiResponse::Disk(DisksClient::new(channel).get_disk(timed(request, time)).await?.into_inner())
        }
        ApiRequest::ReleaseDisk(request) => {
            DisksClient::new(channel).release_disk(timed(request, time)).await?;
            ApiResponse::DiskReleased
        }
        ApiRequest::CheckDisk(request) => {
            ApiResponse::DiskChecked(DisksClient::new(channel).check_disk(timed(request, time)).await?.into_inner())
        }
        ApiRequest::ResizeDisk(request) => {
            DisksClient::new(channel).resize_disk(timed(request, time)).await?;
            ApiResponse::DiskResized
        }
        ApiRequest::DeleteDisk(request) => {
            DisksClient::new(channel).delete_disk(timed(request, time)).await?;
            ApiResponse::DiskDeleted
        }
        ApiRequest::SplitRange(request) => {
            ApiResponse::RangeSplit(AdminClient::new(channel).split_range(timed(request, time)).await?.into_inner())
        }
        ApiRequest::LeadRange(request) => {
            AdminClient::new(channel).lead_range(timed(request, time)).await?;
            ApiResponse::Leads
        }
        ApiRequest::MoveRange(request) => {
            AdminClient::new(channel).move_range(timed(request, time)).await?;
            ApiResponse::MoveBegun
        }
        ApiRequest::DeclareLoss(request) => {
            AdminClient::new(channel).declare_loss(timed(request, time)).await?;
            ApiResponse::MoveBegun
        }
        ApiRequest::AddNode(request) => {
            ApiResponse::Nodes(AdminClient::new(channel).add_node(timed(request, time)).await?.into_inner())
        }
        ApiRequest::RemoveNode(request) => {
            AdminClient::new(channel).remove_node(timed(request, time)).await?;
            ApiResponse::LeaveBegun
        }
        ApiRequest::ListNodes(request) => {
            ApiResponse::Nodes(AdminClient::new(channel).list_nodes(timed(request, time)).await?.into_inner())
        }
        ApiRequest::Log(request) => ApiResponse::Log(ask_log(channel, request, time, &MetadataMap::new()).await?),
        ApiRequest::CoordinationLog(request) => {
            ApiResponse::Log(ask_log(channel, request, time, &translation_server()).await?)
        }
        ApiRequest::Status(request) => {
            ApiResponse::Status(Box::new(AdminClient::new(channel).status(timed(request, time)).await?.into_inner()))
        }
    };
    Ok(NodeResponse::Of(response))
}

pub(crate) fn logs(channel: Channel) -> LogClient<Channel> {
    LogClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn ask_log(
    channel: Channel,
    request: ApiLogRequest,
    time: Duration,
    metadata: &MetadataMap,
) -> Result<ApiLogResponse, tonic::Status> {
    fn with<Q>(request: Q, time: Duration, metadata: &MetadataMap) -> Request<Q> {
        let mut request = Request::from_parts(metadata.clone(), Extensions::new(), request);
        request.set_timeout(time);
        request
    }
    let mut client = logs(channel);
    Ok(match request {
        ApiLogRequest::Create(request) => {
            ApiLogResponse::Created(client.create_log(with(request, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Drop(request) => {
            client.drop_log(with(request, time, metadata)).await?;
            ApiLogResponse::Dropped
        }
        ApiLogRequest::List => {
            ApiLogResponse::Logs(client.list_logs(with(ListLogsRequest {}, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Describe(request) => {
            ApiLogResponse::Log(client.describe_log(with(request, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Append(request) => {
            ApiLogResponse::Appended(client.append(with(request, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Read(request) => {
            ApiLogResponse::Entries(client.read(with(request, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Tail(request) => {
            ApiLogResponse::Tail(client.tail(with(request, time, metadata)).await?.into_inner())
        }
        ApiLogRequest::Trim(request) => {
            client.trim(with(request, time, metadata)).await?;
            ApiLogResponse::Trimmed
        }
        ApiLogRequest::TrimPosition(request) => {
            client.trim_position(with(request, time, metadata)).await?;
            ApiLogResponse::Trimmed
        }
    })
}

/// Marks a request as one of a translation server.
fn translation_server() -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert(TRANSLATION_SERVER_KEY, MetadataValue::from_static("1"));
    metadata
}

fn timed<Q>(request: Q, time: Duration) -> Request<Q> {
    let mut request = Request::new(request);
    request.set_timeout(time);
    request
}
