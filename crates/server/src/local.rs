//! The columns service within the process of the node: the same translation as for gRPC clients, without a connection.
//! Its callers limit the memory of their requests themselves.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use api::columns as message;
use api::local;
use node::request::{Ask, Outcome, Request, Response, validate_client};
use state_machine::Failure;
use tablets::TableResponse;
use tablets::request::TableRequest;

use crate::columns::translate::{self, TableCall};
use crate::columns::{clock, scan, scanned, transactions, unexpected};
use crate::deadline::Deadline;
use crate::{Gateway, Held, reads, refusal};

/// The node of this process, for clients within it.
pub struct LocalNode<G>(Arc<G>);

impl<G> fmt::Debug for LocalNode<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalNode")
    }
}

impl<G: Gateway> LocalNode<G> {
    /// The node behind a gateway.
    #[must_use]
    pub fn new(gateway: G) -> Self {
        Self(Arc::new(gateway))
    }
}

impl<G: Gateway> local::Columns for LocalNode<G> {
    fn ask(&self, request: local::Request, time: Duration) -> local::Answer {
        let is_commit = matches!(request, local::Request::CommitTransaction(_));
        let asked = translated(request).and_then(|asked| validate_client(&asked).map(|()| asked));
        let asked = match asked {
            Ok(asked) => asked,
            Err(failure) => return local::Answer::Now(Err(Box::new(refusal::streamed(&failure)))),
        };
        let (deadline, changes, gateway) = (Deadline::of_local(time), asked.changes(), Arc::clone(&self.0));
        let mut outcome: Pin<Box<dyn Future<Output = Outcome> + Send>> =
            Box::pin(async move { gateway.submit(asked, deadline.node, Held::default()).await });
        // Most reads are answered at once.
        match outcome.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => local::Answer::Now(response(outcome, is_commit)),
            Poll::Pending => {
                local::Answer::Later(Box::pin(
                    async move { response(deadline.guard(changes, outcome).await, is_commit) },
                ))
            }
        }
    }
}

fn translated(request: local::Request) -> Result<Request, Failure> {
    let call: TableCall = match request {
        local::Request::OpenSession(request) => request.into(),
        local::Request::Get(request) => request.into(),
        local::Request::Write(request) => request.into(),
        local::Request::DeleteRow(request) => request.into(),
        local::Request::Scan(request) => {
            let (table, scan) = scan(request);
            return Ok(Request::Table { table, request: Ask::Tablet(scan) });
        }
        local::Request::CommitTransaction(request) => {
            return Ok(Request::Transaction(Box::new(transactions::commit(request)?)));
        }
        local::Request::UnlockTransaction(message::UnlockTransactionRequest { table, key, owner }) => {
            return Ok(Request::table(table, TableRequest::Unlock { key, owner: transactions::owner(owner) }));
        }
        local::Request::Clock => return Ok(Request::Clock),
    };
    Ok(call.into())
}

fn response(outcome: Outcome, is_commit: bool) -> local::Outcome {
    outcome
        .and_then(|response| message_of(response, is_commit))
        .map_err(|failure| Box::new(refusal::streamed(&failure)))
}

/// The message for a response. The commit of a transaction and a write may have the same one.
fn message_of(response: Response, is_commit: bool) -> Result<local::Response, Failure> {
    if is_commit && let Some(committed) = transactions::committed(&response) {
        return Ok(local::Response::TransactionCommitted(committed));
    }
    Ok(match reads::undated(response) {
        (Response::Tablet(TableResponse::Row { cells, rest }), as_of) => {
            local::Response::Row(translate::row_that_fits(cells, rest, as_of)?)
        }
        (Response::Tablet(TableResponse::Rows { rows, continuation, rest }), as_of) => {
            local::Response::Rows(scanned(rows, continuation, rest, as_of))
        }
        (Response::Tablet(TableResponse::Unlocked), _) => local::Response::TransactionUnlocked,
        (Response::Clock(interval), _) => local::Response::Clock(clock(interval)),
        (Response::Tablet(TableResponse::Written { version }), _) => {
            local::Response::Written(message::WriteResponse { version: version.0 })
        }
        (other, _) => {
            let opened = translate::session_opened(&other).map(local::Response::SessionOpened);
            opened.ok_or_else(|| Failure::Unavailable(unexpected(&other).message().to_owned()))?
        }
    })
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;

    #[test]
    fn commit_that_was_a_write_is_committed() {
        let written = || Response::Tablet(TableResponse::Written { version: Timestamp(7) });
        assert!(matches!(message_of(written(), false), Ok(local::Response::Written(_))));
        let committed = message_of(written(), true);
        assert!(matches!(committed, Ok(local::Response::TransactionCommitted(answer)) if answer.timestamp_ns == 7));
    }
}
