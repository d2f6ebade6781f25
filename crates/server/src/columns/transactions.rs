//! Converts between messages about transactions and the node's requests and responses.

use std::collections::BTreeMap;

use api::columns as message;
use api::columns::resolve_transaction_response::Outcome;
use base::{KeyRange, Timestamp};
use node::request::{Request, Response, TransactionRequest};
use state_machine::failure::invalid;
use state_machine::{ClientSessionId, Failure, LockOwner, SessionStamp};
use tablets::transaction::{ReadSpan, RowChange, TransactionOutcome, TransactionPart};
use tablets::{TableRequest, TableResponse};

/// The owner of locks; without one the oldest.
pub(crate) fn owner(message: Option<message::TransactionOwner>) -> LockOwner {
    let message::TransactionOwner { started_ns, id } = message.unwrap_or_default();
    LockOwner { started: Timestamp(started_ns), id }
}

/// A transaction without a stamp is refused when it is validated.
fn stamp(message: Option<message::SessionStamp>) -> SessionStamp {
    let message::SessionStamp { session, sequence, first_incomplete } = message.unwrap_or_default();
    SessionStamp { session: ClientSessionId(session), sequence, first_incomplete }
}

/// The request to commit a transaction.
pub(crate) fn commit(asked: message::CommitTransactionRequest) -> Result<TransactionRequest, Failure> {
    let message::CommitTransactionRequest { table, key, stamp, owner, reads, writes } = asked;
    let mut parts = BTreeMap::<String, TransactionPart>::new();
    for message::TransactionRead { table, start, end, seen_ns } in reads {
        let read = ReadSpan { range: KeyRange { start, end }, seen: Timestamp(seen_ns) };
        parts.entry(table).or_default().reads.push(read);
    }
    for message::TransactionWrite { table, key, mutations, delete_row } in writes {
        if mutations.iter().any(|mutation| mutation.condition.is_some()) {
            return Err(invalid("the writes of a transaction have no conditions: read the column in the transaction"));
        }
        let columns = mutations.into_iter().map(|mutation| (mutation.column, mutation.value)).collect();
        let change = RowChange { key, deletes_row: delete_row, columns };
        parts.entry(table).or_default().writes.push(change);
    }
    let (stamp, owner) = (self::stamp(stamp), self::owner(owner));
    Ok(TransactionRequest { stamp, table, key, owner, parts: parts.into_iter().collect() })
}

/// The response to a commit, if it is one. A commit that was sent again does not know how long the first one waited.
pub(crate) fn committed(response: &Response) -> Option<message::CommitTransactionResponse> {
    let (timestamp, uncertainty, waited) = match response {
        Response::Tablet(TableResponse::Committed { timestamp, uncertainty, waited }) => {
            (*timestamp, uncertainty.0, waited.0)
        }
        Response::Tablet(TableResponse::Written { version }) => (*version, 0, 0),
        _ => return None,
    };
    let (timestamp_ns, uncertainty_ns, commit_wait_ns) = (timestamp.0, uncertainty, waited);
    Some(message::CommitTransactionResponse { timestamp_ns, uncertainty_ns, commit_wait_ns })
}

/// The request for the outcome of a transaction.
pub(crate) fn resolve(asked: message::ResolveTransactionRequest) -> Request {
    let message::ResolveTransactionRequest { table, key, stamp } = asked;
    Request::table(table, TableRequest::Abort { key, stamp: self::stamp(stamp) })
}

/// The outcome of a transaction, if the response is one.
pub(crate) fn outcome(response: &Response) -> Option<message::ResolveTransactionResponse> {
    let Response::Tablet(TableResponse::Outcome(outcome)) = response else { return None };
    let (outcome, timestamp_ns) = match outcome {
        TransactionOutcome::Committed { timestamp, .. } => (Outcome::Committed, timestamp.0),
        TransactionOutcome::Aborted => (Outcome::Aborted, 0),
        TransactionOutcome::Forgotten => (Outcome::Forgotten, 0),
    };
    Some(message::ResolveTransactionResponse { outcome: outcome.into(), timestamp_ns })
}
