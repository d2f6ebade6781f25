//! Reads of logs by calls of their own: within what their connection may read ahead of what its client takes.

use std::sync::Arc;

use api::log::{ReadRequest, ReadResponse};
use tablets::request::{LogResponse, Response};
use tonic::Status;

use super::translate;
use crate::allowance::{Allowance, Share};
use crate::columns::{Answer, deadline, submit, unexpected};
use crate::reading::{Reading, Waits, Wants, no_room};
use crate::{Gateway, Held, refusal};

/// Reads, once there is something and the connection may have it.
pub(super) async fn read<G: Gateway>(
    gateway: &G,
    waits: &Waits,
    mut call: tonic::Request<ReadRequest>,
) -> Answer<ReadResponse> {
    let mut request = translate::read(std::mem::take(call.get_mut()));
    // What is refused is refused at once.
    tablets::validate(&request).map_err(|failure| refusal::status(&failure))?;
    let mut reading = Reading::of(&mut request).ok_or_else(|| Status::internal("a read is none"))?;
    let allowance = Allowance::of(&call);
    loop {
        // What it had before is given back by now: who waits for more must not keep others from theirs.
        let (share, held): (_, Held) = match reading.wants() {
            Wants::Something => {
                let place = waits.take(&reading, &allowance).map_err(|failure| refusal::status(&failure))?;
                (None, Some(Arc::new(place)))
            }
            Wants::Likely { .. } | Wants::Most => {
                let share = in_time(&call, allowance.take(&reading)).await?;
                let held = share.held();
                (Some(share), held)
            }
        };
        let room = share.as_ref().map_or(0, Share::bytes);
        let outcome = submit(gateway, &call, reading.request(room), held).await;
        let Some(outcome) = reading.heard(outcome) else { continue };
        let response = outcome.map_err(|failure| refusal::status(&failure))?;
        if let (Some(share), Response::Log(LogResponse::Entries(entries))) = (&share, &response) {
            share.came_to(entries);
        }
        let mut answer = tonic::Response::new(translate::entries(response).map_err(|other| unexpected(&other))?);
        if let Some(share) = share {
            answer.extensions_mut().insert(share);
        }
        return Ok(answer);
    }
}

/// A share within the call's deadline.
async fn in_time<T>(call: &tonic::Request<T>, share: impl Future<Output = Share>) -> Result<Share, Status> {
    tokio::time::timeout(deadline(call).node, share).await.map_err(|_| refusal::status(&no_room()))
}
