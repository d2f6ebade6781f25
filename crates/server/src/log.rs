//! The log service: each call becomes one [`LogRequest`] to the node, and each [`LogResponse`] one message. A
//! subscription consists of many reads ([`subscription`]).

mod streamed;
mod subscription;
pub(crate) mod translate;

use std::sync::Arc;
use std::time::Instant;

use api::log::{self as message, SubscribeRequest};
use api::servers::log_server::Log;
use node::request::{Request, Response};
use sharedlog::Position;
use sharedlog::request::{LogRequest, LogResponse};
use sharedlog::validate::COORDINATION_LOG;
use tonic::Status;

use self::streamed::{Appends, Reads};
use crate::columns::{RpcResult, answer, ask, deadline, unexpected};
use crate::flow_control::call::{Call, HandedOver};
use crate::flow_control::log_reads::LogRead;
use crate::stream::Streams;
use crate::{Gateway, refusal};

pub(crate) struct Handler<G> {
    gateway: Arc<G>,
    streams: Arc<Streams>,
}

impl<G: Gateway> Handler<G> {
    pub(crate) fn new(gateway: Arc<G>, streams: Arc<Streams>) -> Self {
        Self { gateway, streams }
    }

    async fn ask<T: Sync>(&self, call: &tonic::Request<T>, request: LogRequest) -> Result<Response, Status> {
        ask(&*self.gateway, call, Request::Log(request)).await
    }
}

#[tonic::async_trait]
impl<G: Gateway> Log for Handler<G> {
    async fn create_log(
        &self,
        mut call: tonic::Request<message::CreateLogRequest>,
    ) -> RpcResult<message::CreateLogResponse> {
        let message::CreateLogRequest { log: name, stripes, copies } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::Create { name, stripes, copies }).await? {
            Response::Log(LogResponse::Created { existed }) => answer(message::CreateLogResponse { existed }),
            other => Err(unexpected(&other)),
        }
    }

    async fn drop_log(&self, mut call: tonic::Request<message::DropLogRequest>) -> RpcResult<message::DropLogResponse> {
        let message::DropLogRequest { log: name, force } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::Drop { name, force }).await? {
            Response::Log(LogResponse::Dropped) => answer(message::DropLogResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_logs(&self, call: tonic::Request<message::ListLogsRequest>) -> RpcResult<message::ListLogsResponse> {
        match self.ask(&call, LogRequest::List).await? {
            Response::Log(LogResponse::Logs(mut logs)) => {
                logs.retain(|name| name != COORDINATION_LOG);
                answer(message::ListLogsResponse { logs })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn describe_log(
        &self,
        mut call: tonic::Request<message::DescribeLogRequest>,
    ) -> RpcResult<message::DescribeLogResponse> {
        let name = std::mem::take(&mut call.get_mut().log);
        match self.ask(&call, LogRequest::Describe { name }).await? {
            Response::Log(LogResponse::Log(known)) => answer(translate::description(*known)),
            other => Err(unexpected(&other)),
        }
    }

    async fn append(&self, mut call: tonic::Request<message::AppendRequest>) -> RpcResult<message::AppendResponse> {
        let request = translate::append(std::mem::take(call.get_mut())).map_err(|failure| refusal::status(&failure))?;
        let response = ask(&*self.gateway, &call, request).await?;
        translate::appended(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }

    type AppendStreamStream = HandedOver<message::AppendStreamResponse>;

    async fn append_stream(
        &self,
        call: tonic::Request<tonic::Streaming<message::AppendStreamRequest>>,
    ) -> RpcResult<Self::AppendStreamStream> {
        self.streams.begin::<_, Appends>(&self.gateway, call)
    }

    async fn read(&self, mut request: tonic::Request<message::ReadRequest>) -> RpcResult<message::ReadResponse> {
        let read_request = translate::read(std::mem::take(request.get_mut()));
        node::request::validate(&read_request).map_err(|failure| refusal::status(&failure))?;
        let read = LogRead::of(&read_request).ok_or_else(|| Status::internal("the request is not a read"))?;
        let (call, deadline) = (Call::of(&request)?, deadline(&request));
        call.message_taken();
        let carried_out = async {
            let (outcome, room) =
                read.carry_out(&*self.gateway, &call.connection, Instant::now() + deadline.node).await;
            call.hold_response(room);
            outcome
        };
        let response = deadline.guard(false, carried_out).await.map_err(|failure| refusal::status(&failure))?;
        translate::entries(response).map(tonic::Response::new).map_err(|other| unexpected(&other))
    }

    type ReadStreamStream = HandedOver<message::ReadStreamResponse>;

    async fn read_stream(
        &self,
        call: tonic::Request<tonic::Streaming<message::ReadStreamRequest>>,
    ) -> RpcResult<Self::ReadStreamStream> {
        self.streams.begin::<_, Reads>(&self.gateway, call)
    }

    async fn tail(&self, mut call: tonic::Request<message::TailRequest>) -> RpcResult<message::TailResponse> {
        let log = std::mem::take(&mut call.get_mut().log);
        match self.ask(&call, LogRequest::Tail { log }).await? {
            Response::Log(LogResponse::Tail(tail)) => answer(message::TailResponse { position: tail.0 }),
            other => Err(unexpected(&other)),
        }
    }

    async fn trim(&self, mut call: tonic::Request<message::TrimRequest>) -> RpcResult<message::TrimResponse> {
        let message::TrimRequest { log, before } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::Trim { log, before: Position(before) }).await? {
            Response::Log(LogResponse::Trimmed) => answer(message::TrimResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn trim_position(
        &self,
        mut call: tonic::Request<message::TrimPositionRequest>,
    ) -> RpcResult<message::TrimPositionResponse> {
        let message::TrimPositionRequest { log, position } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::TrimOne { log, position: Position(position) }).await? {
            Response::Log(LogResponse::Trimmed) => answer(message::TrimPositionResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    type SubscribeStream = HandedOver<message::SubscribeResponse>;

    async fn subscribe(&self, request: tonic::Request<SubscribeRequest>) -> RpcResult<Self::SubscribeStream> {
        let (call, SubscribeRequest { log, start }) = (Call::of(&request)?, request.into_inner());
        call.message_taken();
        let (gateway, from) = (Arc::clone(&self.gateway), Position(start));
        subscription::begin(gateway, &self.streams, &call, log, from)
    }
}
