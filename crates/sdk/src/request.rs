//! Requests and responses of the client library, independent of the transport.

use std::time::Duration;

use api::admin::{
    AddNodeRequest, DeclareLossRequest, LeadRangeRequest, ListNodesRequest, MoveRangeRequest, NodesResponse,
    RemoveNodeRequest, SplitRangeRequest, SplitRangeResponse, StatusRequest, StatusResponse,
};
use api::columns::streamed_answer::Answer as StreamedAnswer;
use api::columns::streamed_request::Request as StreamedRequest;
use api::columns::{self as message, SessionStamp};
use api::disks;
use api::frugal::REQUEST_FIELDS_MAX;
use api::{local, log};
use base::KeyRange;
use bytes::Bytes;
use client::{Ask, CohortLsn, Effect, Fault, NodeResponse, Pace, ScanStart, Sent, Stamp};
use prost::Message;

use crate::{fault, reads};

/// Larger requests are sent as single calls, so that requests behind them in a stream are not delayed.
const STREAMED_BYTES_MAX: usize = 512 << 10;

#[derive(Clone, Debug)]
pub(crate) enum ApiRequest {
    CreateTable(message::CreateTableRequest),
    DropTable(message::DropTableRequest),
    ListTables,
    DescribeTable(message::DescribeTableRequest),
    Get(message::GetRequest),
    Scan(message::ScanRequest),
    Write(message::WriteRequest),
    DeleteRow(message::DeleteRowRequest),
    CommitTransaction(message::CommitTransactionRequest),
    /// Opens a session that only the caller uses.
    OpenSession(message::OpenSessionRequest),
    ResolveTransaction(message::ResolveTransactionRequest),
    UnlockTransaction(message::UnlockTransactionRequest),
    HoldVersions(message::HoldVersionsRequest),
    Clock,
    Status(StatusRequest),
    SplitRange(SplitRangeRequest),
    MoveRange(MoveRangeRequest),
    LeadRange(LeadRangeRequest),
    DeclareLoss(DeclareLossRequest),
    AddNode(AddNodeRequest),
    RemoveNode(RemoveNodeRequest),
    ListNodes(ListNodesRequest),
    Log(ApiLogRequest),
    /// A request of a translation server.
    CoordinationLog(ApiLogRequest),
    CreateDisk(disks::CreateDiskRequest),
    GetDisk(disks::GetDiskRequest),
    ListDisks,
    ReleaseDisk(disks::ReleaseDiskRequest),
    ResizeDisk(disks::ResizeDiskRequest),
    CheckDisk(disks::CheckDiskRequest),
    DeleteDisk(disks::DeleteDiskRequest),
}

/// A request about a shared log.
#[derive(Clone, Debug)]
pub(crate) enum ApiLogRequest {
    Create(log::CreateLogRequest),
    Drop(log::DropLogRequest),
    List,
    Describe(log::DescribeLogRequest),
    /// The caller sets the stamp, for retries. Without one it is never repeated.
    Append(log::AppendRequest),
    Read(log::ReadRequest),
    Tail(log::TailRequest),
    Trim(log::TrimRequest),
    TrimPosition(log::TrimPositionRequest),
}

#[derive(Debug)]
pub(crate) enum ApiResponse {
    TableCreated(message::CreateTableResponse),
    TableDropped,
    Tables(message::ListTablesResponse),
    Table(message::DescribeTableResponse),
    Row(message::GetResponse),
    Rows(message::ScanResponse),
    Written(message::WriteResponse),
    TransactionCommitted(message::CommitTransactionResponse),
    /// The number of the session.
    SessionOpened(u64),
    TransactionOutcome(message::ResolveTransactionResponse),
    TransactionUnlocked,
    VersionsHeld(message::HoldVersionsResponse),
    Clock(message::ClockResponse),
    Status(Box<StatusResponse>),
    RangeSplit(SplitRangeResponse),
    MoveBegun,
    Leads,
    Nodes(NodesResponse),
    LeaveBegun,
    Log(ApiLogResponse),
    DiskCreated(disks::CreateDiskResponse),
    Disk(disks::GetDiskResponse),
    Disks(disks::ListDisksResponse),
    DiskReleased,
    DiskResized,
    DiskChecked(disks::CheckDiskResponse),
    DiskDeleted,
}

/// A response about a shared log.
#[derive(Debug)]
pub(crate) enum ApiLogResponse {
    Created(log::CreateLogResponse),
    Dropped,
    Logs(log::ListLogsResponse),
    Log(log::DescribeLogResponse),
    Appended(log::AppendResponse),
    Entries(log::ReadResponse),
    Tail(log::TailResponse),
    Trimmed,
}

impl ApiLogRequest {
    fn effect(&self) -> Effect {
        match self {
            Self::Create(_) | Self::Drop(_) | Self::Trim(_) | Self::TrimPosition(_) => Effect::Repeatable,
            Self::List | Self::Describe(_) | Self::Read(_) | Self::Tail(_) => Effect::Reads,
            Self::Append(append) if append.stamp.is_none() => Effect::AppendsOnce,
            Self::Append(_) => Effect::Appends,
        }
    }

    fn pace(&self) -> Pace {
        match self {
            Self::Append(_) | Self::Tail(_) => Pace::Prompt,
            Self::Read(read) if read.count <= 1 && read.wait_ms == 0 => Pace::Prompt,
            _ => Pace::Slow,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Append(append) => append.records.iter().map(Bytes::len).sum(),
            _ => 0,
        }
    }
}

impl ApiRequest {
    /// The request with the properties that the client state machine needs.
    pub(crate) fn ask(self, stamp: Option<Stamp>) -> Ask<Self> {
        let (effect, pace) = match &self {
            Self::CreateTable(_)
            | Self::DropTable(_)
            | Self::SplitRange(_)
            | Self::MoveRange(_)
            | Self::LeadRange(_) => (Effect::Repeatable, Pace::Slow),
            Self::CreateDisk(_) | Self::ResizeDisk(_) | Self::ReleaseDisk(_) | Self::DeleteDisk(_) => {
                (Effect::Repeatable, Pace::Slow)
            }
            Self::GetDisk(_) | Self::ListDisks | Self::CheckDisk(_) => (Effect::Reads, Pace::Slow),
            Self::DeclareLoss(_) | Self::AddNode(_) | Self::RemoveNode(_) => (Effect::Repeatable, Pace::Slow),
            Self::ListNodes(_) => (Effect::Reads, Pace::Slow),
            Self::ListTables | Self::DescribeTable(_) | Self::Scan(_) | Self::Status(_) => (Effect::Reads, Pace::Slow),
            Self::Get(_) => (Effect::Reads, Pace::Prompt),
            Self::Write(_) | Self::DeleteRow(_) => (Effect::Writes, Pace::Prompt),
            // It takes several rounds, and a second driver does not help.
            Self::CommitTransaction(_) => (Effect::Commits, Pace::Slow),
            Self::OpenSession(_) => (Effect::OpensSession, Pace::Prompt),
            Self::ResolveTransaction(_) => (Effect::Repeatable, Pace::Slow),
            Self::UnlockTransaction(_) | Self::HoldVersions(_) | Self::Clock => (Effect::Reads, Pace::Prompt),
            Self::Log(request) | Self::CoordinationLog(request) => (request.effect(), request.pace()),
        };
        let (table, key, bytes) = match &self {
            Self::Get(request) => (request.table.clone(), request.key.clone(), 0),
            Self::Write(request) => {
                let values = request.mutations.iter().filter_map(|mutation| mutation.value.as_ref());
                (request.table.clone(), request.key.clone(), values.map(Bytes::len).sum())
            }
            Self::DeleteRow(request) => (request.table.clone(), request.key.clone(), 0),
            Self::CommitTransaction(request) => (request.table.clone(), request.key.clone(), request.encoded_len()),
            Self::OpenSession(request) => (request.table.clone(), request.key.clone(), 0),
            Self::ResolveTransaction(request) => (request.table.clone(), request.key.clone(), 0),
            Self::UnlockTransaction(request) => (request.table.clone(), request.key.clone(), 0),
            Self::HoldVersions(request) => (request.table.clone(), request.key.clone(), 0),
            Self::Scan(request) => {
                let begin = request.continuation.clone().unwrap_or_else(|| request.start.clone());
                (request.table.clone(), begin, 0)
            }
            Self::Log(request) | Self::CoordinationLog(request) => (String::new(), Bytes::new(), request.bytes()),
            _ => (String::new(), Bytes::new(), 0),
        };
        let anywhere = match &self {
            Self::Get(get) if reads::is_for_any_replica(get.options.as_ref()) => Some(ScanStart::At(key.clone())),
            Self::Scan(scan) if reads::is_for_any_replica(scan.options.as_ref()) => Some(position(scan)),
            _ => None,
        };
        Ask { table, key, effect, pace, bytes, anywhere, stamp, request: self }
    }
}

/// The position where a scan begins or continues. A reverse scan of a prefix without an end is sent to the range of the
/// prefix itself.
fn position(scan: &message::ScanRequest) -> ScanStart {
    let message::ScanRequest { start: from, end: to, prefix, continuation, .. } = scan;
    if !scan.reverse {
        let from = from.max(prefix);
        return ScanStart::At(continuation.as_ref().map_or(from, |next| next.max(from)).clone());
    }
    match (continuation, to) {
        (Some(end), _) | (None, Some(end)) => ScanStart::Below(Some(end.clone())),
        (None, None) if !prefix.is_empty() => ScanStart::At(prefix.clone()),
        (None, None) => ScanStart::Below(None),
    }
}

/// A request for a stream.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) request: message::StreamedRequest,
    /// Bytes and fields as the server counts them.
    pub(crate) bytes: usize,
    pub(crate) fields: usize,
}

/// Converts a request for a stream. Returns it unchanged if it must be sent as a single call.
pub(crate) fn streamed(sent: Sent<ApiRequest>, number: u64, time: Duration) -> Result<Streamed, Box<Sent<ApiRequest>>> {
    /// Fields of a batch item and of the largest request, without its lists.
    const FIELDS_BESIDE: usize = 16;
    let listed = match &sent {
        Sent::OpenSession { .. } | Sent::Request { request: ApiRequest::DeleteRow(_), .. } => 0,
        Sent::Request { request: ApiRequest::Get(get), .. } => get.columns.len(),
        Sent::Request { request: ApiRequest::Write(write), .. } => write.mutations.len(),
        Sent::Request { .. } => return Err(Box::new(sent)),
    };
    let bytes = match &sent {
        Sent::OpenSession { key, .. } => key.len(),
        Sent::Request { request: ApiRequest::Get(request), .. } => request.encoded_len(),
        Sent::Request { request: ApiRequest::Write(request), .. } => request.encoded_len(),
        Sent::Request { .. } => 0,
    };
    if bytes > STREAMED_BYTES_MAX || listed + FIELDS_BESIDE > REQUEST_FIELDS_MAX {
        return Err(Box::new(sent));
    }
    let request = match sent {
        Sent::OpenSession { table, key } => StreamedRequest::OpenSession(message::OpenSessionRequest { table, key }),
        Sent::Request { request: ApiRequest::Get(request), seen, .. } => StreamedRequest::Get(get_after(request, seen)),
        Sent::Request { request: ApiRequest::Write(request), stamp, .. } => {
            StreamedRequest::Write(stamped(request, stamp))
        }
        Sent::Request { request: ApiRequest::DeleteRow(request), stamp, .. } => {
            StreamedRequest::DeleteRow(message::DeleteRowRequest { stamp: stamp.map(session_stamp), ..request })
        }
        other => return Err(Box::new(other)),
    };
    let deadline_ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1);
    let request = message::StreamedRequest { number, deadline_ms, request: Some(request) };
    Ok(Streamed { request, bytes: bytes + 64, fields: listed + FIELDS_BESIDE })
}

/// Converts a request for the node of this process. Returns it unchanged if it must be sent over a connection.
pub(crate) fn for_local_node(sent: Sent<ApiRequest>) -> Result<local::Request, Box<Sent<ApiRequest>>> {
    Ok(match sent {
        Sent::OpenSession { table, key } => local::Request::OpenSession(message::OpenSessionRequest { table, key }),
        Sent::Request { request: ApiRequest::Get(request), seen, .. } => local::Request::Get(get_after(request, seen)),
        Sent::Request { request: ApiRequest::Scan(request), seen, .. } => {
            local::Request::Scan(scan_after(request, seen))
        }
        Sent::Request { request: ApiRequest::Write(request), stamp, .. } => {
            local::Request::Write(stamped(request, stamp))
        }
        Sent::Request { request: ApiRequest::DeleteRow(request), stamp, .. } => {
            let stamp = stamp.map(session_stamp);
            local::Request::DeleteRow(message::DeleteRowRequest { stamp, ..request })
        }
        Sent::Request { request: ApiRequest::CommitTransaction(request), stamp, .. } => {
            let stamp = stamp.map(session_stamp);
            local::Request::CommitTransaction(message::CommitTransactionRequest { stamp, ..request })
        }
        Sent::Request { request: ApiRequest::UnlockTransaction(request), .. } => {
            local::Request::UnlockTransaction(request)
        }
        Sent::Request { request: ApiRequest::Clock, .. } => local::Request::Clock,
        other => return Err(Box::new(other)),
    })
}

/// A read for the leader of a range, for the node of this process: its table and first key, and the request.
pub(crate) fn local_read(request: &ApiRequest) -> Option<(&str, &[u8], local::Request)> {
    match request {
        ApiRequest::Get(get) if !reads::is_for_any_replica(get.options.as_ref()) => {
            Some((&get.table, &get.key, local::Request::Get(get.clone())))
        }
        ApiRequest::Scan(scan) if !scan.reverse && !reads::is_for_any_replica(scan.options.as_ref()) => {
            let begin = scan.continuation.as_ref().unwrap_or(&scan.start).max(&scan.prefix);
            Some((&scan.table, begin, local::Request::Scan(scan.clone())))
        }
        _ => None,
    }
}

/// The result of a request to the node of this process.
pub(crate) fn of_local_node(outcome: local::Outcome) -> Result<NodeResponse<ApiResponse>, Fault> {
    Ok(match outcome.map_err(|refusal| fault::of_refusal(*refusal))? {
        local::Response::SessionOpened(opened) => session_opened(opened),
        local::Response::Row(row) => row_response(row),
        local::Response::Rows(rows) => rows_response(rows),
        local::Response::Written(written) => NodeResponse::Of(ApiResponse::Written(written)),
        local::Response::TransactionCommitted(committed) => {
            NodeResponse::Of(ApiResponse::TransactionCommitted(committed))
        }
        local::Response::TransactionUnlocked => NodeResponse::Of(ApiResponse::TransactionUnlocked),
        local::Response::Clock(clock) => NodeResponse::Of(ApiResponse::Clock(clock)),
    })
}

/// Adds the latest state that the client has seen to a request.
pub(crate) fn scan_after(request: message::ScanRequest, seen: Option<CohortLsn>) -> message::ScanRequest {
    message::ScanRequest { options: reads::after(request.options, seen), ..request }
}

/// Adds the latest state that the client has seen to a request.
pub(crate) fn get_after(request: message::GetRequest, seen: Option<CohortLsn>) -> message::GetRequest {
    message::GetRequest { options: reads::after(request.options, seen), ..request }
}

pub(crate) fn stamped(request: message::WriteRequest, stamp: Option<Stamp>) -> message::WriteRequest {
    message::WriteRequest { stamp: stamp.map(session_stamp), ..request }
}

pub(crate) fn session_stamp(Stamp { session, sequence, first_incomplete }: Stamp) -> SessionStamp {
    SessionStamp { session, sequence, first_incomplete }
}

pub(crate) fn session_opened(response: message::OpenSessionResponse) -> NodeResponse<ApiResponse> {
    let message::OpenSessionResponse { session, start, end } = response;
    NodeResponse::Session { session, range: KeyRange { start, end } }
}

pub(crate) fn row_response(row: message::GetResponse) -> NodeResponse<ApiResponse> {
    let as_of = row.as_of.clone();
    reads::answered(ApiResponse::Row(row), as_of.as_ref())
}

pub(crate) fn rows_response(rows: message::ScanResponse) -> NodeResponse<ApiResponse> {
    let as_of = rows.as_of.clone();
    reads::answered(ApiResponse::Rows(rows), as_of.as_ref())
}

/// The result in a stream's response.
pub(crate) fn of_stream(answer: Option<StreamedAnswer>) -> Result<NodeResponse<ApiResponse>, Fault> {
    match answer {
        Some(StreamedAnswer::Get(row)) => Ok(row_response(row)),
        Some(StreamedAnswer::Write(written)) => Ok(NodeResponse::Of(ApiResponse::Written(written))),
        Some(StreamedAnswer::OpenSession(opened)) => Ok(session_opened(opened)),
        Some(StreamedAnswer::Refusal(refusal)) => Err(fault::of_refusal(refusal)),
        None => Err(Fault::Unknown("unsupported kind of response".to_owned())),
    }
}
