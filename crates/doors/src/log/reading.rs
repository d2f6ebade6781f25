//! Reads of logs by calls of their own: within what their connection may read ahead of what its client takes.

use std::sync::Arc;

use api::log::{ReadRequest, ReadResponse};
use prost::Message;
use tablets::request::{Failure, LogRequest, LogResponse, Request, Response};
use tonic::Status;

use super::translate;
use crate::allowance::{Allowance, Share};
use crate::columns::{Answer, ask, deadline, unexpected};
use crate::limits::{READ_BYTES_MAX, WAITING_READ_BYTES};
use crate::{Gateway, refusal};

/// Reads, once there is something and the connection may have it.
pub(super) async fn read<G: Gateway>(gateway: &G, mut call: tonic::Request<ReadRequest>) -> Answer<ReadResponse> {
    let wanted = std::mem::take(call.get_mut());
    let part = |message: &ReadRequest, bytes| {
        let mut request = translate::read(message.clone());
        if let Request::Log(LogRequest::Read { bytes: most, .. }) = &mut request {
            *most = bytes;
        }
        request
    };
    // What is refused is refused at once.
    tablets::validate(&part(&wanted, READ_BYTES_MAX)).map_err(|failure| refusal::status(&failure))?;
    if wanted.wait_ms > 0 {
        // It may wait for long, and takes nothing of what others need meanwhile.
        let first = ReadRequest { count: 1, ..wanted.clone() };
        match ask(gateway, &call, part(&first, WAITING_READ_BYTES)).await? {
            Response::Log(LogResponse::Larger) => {}
            response => {
                let entries = entries(response)?;
                if wanted.count <= 1 || entries.entries.is_empty() {
                    return Ok(tonic::Response::new(entries));
                }
            }
        }
    }
    let allowance = call.extensions().get::<Allowance>().cloned().unwrap_or_default();
    let now = ReadRequest { wait_ms: 0, ..wanted };
    let mut share = in_time(&call, allowance.likely()).await?;
    let mut response = ask(gateway, &call, part(&now, share.bytes().min(READ_BYTES_MAX))).await?;
    if let Response::Log(LogResponse::Larger) = response {
        // What it has is given back first: who waits for more must not keep others from theirs.
        drop(share);
        share = in_time(&call, allowance.most()).await?;
        response = ask(gateway, &call, part(&now, READ_BYTES_MAX)).await?;
    }
    let entries = entries(response)?;
    share.came_to(entries.encoded_len());
    let mut answer = tonic::Response::new(entries);
    answer.extensions_mut().insert(Arc::new(share));
    Ok(answer)
}

fn entries(response: Response) -> Result<ReadResponse, Status> {
    translate::entries(response).map_err(|response| unexpected(&response))
}

/// A share within the call's deadline.
async fn in_time<T>(call: &tonic::Request<T>, share: impl Future<Output = Share>) -> Result<Share, Status> {
    tokio::time::timeout(deadline(call).node, share).await.map_err(|_| {
        let full = "reads of this connection have taken all that it may have at one time";
        refusal::status(&Failure::Overloaded(full.to_owned()))
    })
}
