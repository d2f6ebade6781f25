//! Calls of the columns service within one process: the same messages as over gRPC, without a connection.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::columns as message;
use crate::common::Refusal;

/// A request to the node of this process.
#[derive(Debug)]
pub enum Request {
    /// `OpenSession`
    OpenSession(message::OpenSessionRequest),
    /// `Get`
    Get(message::GetRequest),
    /// `Scan`
    Scan(message::ScanRequest),
    /// `Write`
    Write(message::WriteRequest),
    /// `DeleteRow`
    DeleteRow(message::DeleteRowRequest),
    /// `CommitTransaction`
    CommitTransaction(message::CommitTransactionRequest),
    /// `UnlockTransaction`
    UnlockTransaction(message::UnlockTransactionRequest),
    /// `Clock`
    Clock,
}

/// The response to a request.
#[derive(Debug)]
pub enum Response {
    /// To `OpenSession`.
    SessionOpened(message::OpenSessionResponse),
    /// To `Get`.
    Row(message::GetResponse),
    /// To `Scan`.
    Rows(message::ScanResponse),
    /// To `Write` and `DeleteRow`.
    Written(message::WriteResponse),
    /// To `CommitTransaction`.
    TransactionCommitted(message::CommitTransactionResponse),
    /// To `UnlockTransaction`.
    TransactionUnlocked,
    /// To `Clock`.
    Clock(message::ClockResponse),
}

/// The response, or the refusal as in a stream.
pub type Outcome = Result<Response, Box<Refusal>>;

/// The outcome of a request, now or later.
pub enum Answer {
    /// It is known.
    Now(Outcome),
    /// It follows by the deadline. A request continues if the future is dropped.
    Later(Pin<Box<dyn Future<Output = Outcome> + Send>>),
}

/// The node of this process.
pub trait Columns: Debug + Send + Sync {
    /// Submits a request, which the node answers within `time`.
    fn ask(&self, request: Request, time: Duration) -> Answer;
}
