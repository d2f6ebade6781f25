//! Sends a request as a single gRPC call.

use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::columns as message;
use api::columns::columns_client::ColumnsClient;
use api::log::ListLogsRequest;
use api::log::log_client::LogClient;
use client::{Answer, Fault, Sent};
use sharedlog::validate::TRANSLATION_SERVER_KEY;
use tokio::time::timeout;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Extensions, Request};

use crate::request::{
    Asked, LogAsked, LogTold, Told, get_after, row_told, rows_told, session_opened, session_stamp, stamped,
};
use crate::{fault, reads};

/// Maximum bytes of a response: twice the servers' limit.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Sends a request and waits up to `time` for the response.
pub(crate) async fn call(channel: Channel, sent: Sent<Asked>, time: Duration) -> Result<Answer<Told>, Fault> {
    match timeout(time, begin(channel, sent, time)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(fault::of(&status)),
        Err(_) => Err(Fault::Silent),
    }
}

pub(crate) fn columns(channel: Channel) -> ColumnsClient<Channel> {
    ColumnsClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn begin(channel: Channel, sent: Sent<Asked>, time: Duration) -> Result<Answer<Told>, tonic::Status> {
    let mut client = columns(channel.clone());
    let (asked, stamp, seen) = match sent {
        Sent::OpenSession { table, key } => {
            let request = message::OpenSessionRequest { table, key };
            return Ok(session_opened(client.open_session(timed(request, time)).await?.into_inner()));
        }
        Sent::Request { request, stamp, seen, .. } => (request, stamp, seen),
    };
    let told = match asked {
        Asked::CreateTable(request) => {
            Told::TableCreated(client.create_table(timed(request, time)).await?.into_inner())
        }
        Asked::DropTable(request) => {
            client.drop_table(timed(request, time)).await?;
            Told::TableDropped
        }
        Asked::ListTables => {
            Told::Tables(client.list_tables(timed(message::ListTablesRequest {}, time)).await?.into_inner())
        }
        Asked::DescribeTable(request) => Told::Table(client.describe_table(timed(request, time)).await?.into_inner()),
        Asked::Get(request) => {
            return Ok(row_told(client.get(timed(get_after(request, seen), time)).await?.into_inner()));
        }
        Asked::Scan(request) => {
            let request = message::ScanRequest { options: reads::after(request.options, seen), ..request };
            return Ok(rows_told(client.scan(timed(request, time)).await?.into_inner()));
        }
        Asked::Write(request) => Told::Written(client.write(timed(stamped(request, stamp), time)).await?.into_inner()),
        Asked::DeleteRow(request) => {
            let request = message::DeleteRowRequest { stamp: stamp.map(session_stamp), ..request };
            Told::Written(client.delete_row(timed(request, time)).await?.into_inner())
        }
        Asked::SplitRange(request) => {
            Told::RangeSplit(AdminClient::new(channel).split_range(timed(request, time)).await?.into_inner())
        }
        Asked::MoveRange(request) => {
            AdminClient::new(channel).move_range(timed(request, time)).await?;
            Told::MoveBegun
        }
        Asked::AddNode(request) => {
            Told::Nodes(AdminClient::new(channel).add_node(timed(request, time)).await?.into_inner())
        }
        Asked::RemoveNode(request) => {
            AdminClient::new(channel).remove_node(timed(request, time)).await?;
            Told::LeaveBegun
        }
        Asked::ListNodes(request) => {
            Told::Nodes(AdminClient::new(channel).list_nodes(timed(request, time)).await?.into_inner())
        }
        Asked::Log(asked) => Told::Log(ask_log(channel, asked, time, &MetadataMap::new()).await?),
        Asked::CoordinationLog(asked) => Told::Log(ask_log(channel, asked, time, &translation_server()).await?),
        Asked::Status(request) => {
            Told::Status(Box::new(AdminClient::new(channel).status(timed(request, time)).await?.into_inner()))
        }
    };
    Ok(Answer::Of(told))
}

pub(crate) fn logs(channel: Channel) -> LogClient<Channel> {
    LogClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn ask_log(
    channel: Channel,
    asked: LogAsked,
    time: Duration,
    metadata: &MetadataMap,
) -> Result<LogTold, tonic::Status> {
    fn with<Q>(request: Q, time: Duration, metadata: &MetadataMap) -> Request<Q> {
        let mut request = Request::from_parts(metadata.clone(), Extensions::new(), request);
        request.set_timeout(time);
        request
    }
    let mut client = logs(channel);
    Ok(match asked {
        LogAsked::Create(request) => {
            LogTold::Created(client.create_log(with(request, time, metadata)).await?.into_inner())
        }
        LogAsked::List => LogTold::Logs(client.list_logs(with(ListLogsRequest {}, time, metadata)).await?.into_inner()),
        LogAsked::Describe(request) => {
            LogTold::Log(client.describe_log(with(request, time, metadata)).await?.into_inner())
        }
        LogAsked::Append(request) => {
            LogTold::Appended(client.append(with(request, time, metadata)).await?.into_inner())
        }
        LogAsked::Read(request) => LogTold::Entries(client.read(with(request, time, metadata)).await?.into_inner()),
        LogAsked::Tail(request) => LogTold::Tail(client.tail(with(request, time, metadata)).await?.into_inner()),
        LogAsked::Trim(request) => {
            client.trim(with(request, time, metadata)).await?;
            LogTold::Trimmed
        }
        LogAsked::TrimPosition(request) => {
            client.trim_position(with(request, time, metadata)).await?;
            LogTold::Trimmed
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
