//! The log service: each call becomes one [`LogRequest`] to the node, and each [`LogResponse`] one message. A
//! subscription is many reads ([`subscription`]).

mod ahead;
mod alone;
mod streamed;
mod subscription;
pub(crate) mod translate;

use std::sync::Arc;

use api::log::{self as message, SubscribeRequest};
use api::servers::log_server::Log;
use sharedlog::Position;
use tablets::request::{LogRequest, LogResponse, Request, Response};
use tonic::Status;

use self::streamed::{Appends, Reads};
use self::subscription::Subscription;
use crate::allowance::Allowance;
use crate::columns::{Answer, answer, ask, unexpected};
use crate::frames::{HandedOver, hand_over};
use crate::stream::Streams;
use crate::{Gateway, refusal};

pub(crate) struct Door<G> {
    gateway: Arc<G>,
    streams: Arc<Streams>,
}

impl<G: Gateway> Door<G> {
    pub(crate) fn new(gateway: Arc<G>, streams: Arc<Streams>) -> Self {
        Self { gateway, streams }
    }

    async fn ask<T: Sync>(&self, call: &tonic::Request<T>, request: LogRequest) -> Result<Response, Status> {
        ask(&*self.gateway, call, Request::Log(request)).await
    }
}

#[tonic::async_trait]
impl<G: Gateway> Log for Door<G> {
    async fn create_log(
        &self,
        mut call: tonic::Request<message::CreateLogRequest>,
    ) -> Answer<message::CreateLogResponse> {
        let message::CreateLogRequest { log: name, stripes, copies } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::Create { name, stripes, copies }).await? {
            Response::Log(LogResponse::Created { existed }) => answer(message::CreateLogResponse { existed }),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_logs(&self, call: tonic::Request<message::ListLogsRequest>) -> Answer<message::ListLogsResponse> {
        match self.ask(&call, LogRequest::List).await? {
            Response::Log(LogResponse::Logs(logs)) => answer(message::ListLogsResponse { logs }),
            other => Err(unexpected(&other)),
        }
    }

    async fn describe_log(
        &self,
        mut call: tonic::Request<message::DescribeLogRequest>,
    ) -> Answer<message::DescribeLogResponse> {
        let name = std::mem::take(&mut call.get_mut().log);
        match self.ask(&call, LogRequest::Describe { name }).await? {
            Response::Log(LogResponse::Log(known)) => answer(translate::description(*known)),
            other => Err(unexpected(&other)),
        }
    }

    async fn append(&self, mut call: tonic::Request<message::AppendRequest>) -> Answer<message::AppendResponse> {
        let request = translate::append(std::mem::take(call.get_mut())).map_err(|failure| refusal::status(&failure))?;
        let response = ask(&*self.gateway, &call, request).await?;
        translate::appended(&response).map(tonic::Response::new).ok_or_else(|| unexpected(&response))
    }

    type AppendStreamStream = HandedOver<message::AppendStreamResponse>;

    async fn append_stream(
        &self,
        call: tonic::Request<tonic::Streaming<message::AppendStreamRequest>>,
    ) -> Answer<Self::AppendStreamStream> {
        Ok(hand_over(self.streams.begin::<_, Appends>(Arc::clone(&self.gateway), call)?))
    }

    async fn read(&self, call: tonic::Request<message::ReadRequest>) -> Answer<message::ReadResponse> {
        alone::read(&*self.gateway, self.streams.waits(), call).await
    }

    type ReadStreamStream = HandedOver<message::ReadStreamResponse>;

    async fn read_stream(
        &self,
        call: tonic::Request<tonic::Streaming<message::ReadStreamRequest>>,
    ) -> Answer<Self::ReadStreamStream> {
        Ok(hand_over(self.streams.begin::<_, Reads>(Arc::clone(&self.gateway), call)?))
    }

    async fn tail(&self, mut call: tonic::Request<message::TailRequest>) -> Answer<message::TailResponse> {
        let log = std::mem::take(&mut call.get_mut().log);
        match self.ask(&call, LogRequest::Tail { log }).await? {
            Response::Log(LogResponse::Tail(tail)) => answer(message::TailResponse { position: tail.0 }),
            other => Err(unexpected(&other)),
        }
    }

    async fn trim(&self, mut call: tonic::Request<message::TrimRequest>) -> Answer<message::TrimResponse> {
        let message::TrimRequest { log, before } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::Trim { log, before: Position(before) }).await? {
            Response::Log(LogResponse::Trimmed) => answer(message::TrimResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn trim_position(
        &self,
        mut call: tonic::Request<message::TrimPositionRequest>,
    ) -> Answer<message::TrimPositionResponse> {
        let message::TrimPositionRequest { log, position } = std::mem::take(call.get_mut());
        match self.ask(&call, LogRequest::TrimOne { log, position: Position(position) }).await? {
            Response::Log(LogResponse::Trimmed) => answer(message::TrimPositionResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    type SubscribeStream = HandedOver<message::SubscribeResponse>;

    async fn subscribe(&self, call: tonic::Request<SubscribeRequest>) -> Answer<Self::SubscribeStream> {
        let allowance = Allowance::of(&call);
        let SubscribeRequest { log, from } = call.into_inner();
        let (gateway, from) = (Arc::clone(&self.gateway), Position(from));
        Ok(hand_over(Subscription::begin(gateway, &self.streams, allowance.taking(), log, from)?))
    }
}
