//! Flow control: memory for clients stays below a bound, and a client that doesn't read doesn't stop others.
//!
//! Two budgets of the node count it, each with a child for each connection: one of *requests*, from the first byte that
//! arrives to the answer, and one of *responses*, from when the node has made them until they are written to the socket.
//! So a node full of responses still takes requests. What finds no room is refused (`RESOURCE_EXHAUSTED`), or waits if it
//! is a read of a log ([`log_reads`]). While memory is short, a response that makes no progress is reset ([`call`]).

pub(crate) mod call;
pub(crate) mod log_reads;
pub(crate) mod replies;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use base::budget::{ByteBudget, Reservation};
use machine::Failure;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::Service;

use self::call::{Call, RequestBody, ResponseBody};
use self::log_reads::InTurn;
use crate::deadline::Arrival;
use crate::refusal;

/// How many connections have a share of a budget each, while it is short.
const CONNECTION_SHARES: usize = 16;
/// Such a share, at least: two of the largest entries of logs.
const SHARE_BYTES_MIN: usize = 8 << 20;
/// What reads of logs may bring that the node has not answered. A peer refuses to answer a node for which 24 MiB wait.
const LOG_READS_BYTES_MAX: usize = 20 << 20;
/// What a call takes besides its messages, or with messages of [`SMALL_BYTES`] at most: these are not counted.
const CALL_BYTES: usize = 8 << 10;
pub(crate) const SMALL_BYTES: usize = 1 << 10;
/// What a request in a stream takes until its answer leaves, or with as small an answer.
pub(crate) const STREAMED_BYTES: usize = 2 << 10;
/// Bytes of a response that are handed to HTTP/2 at a time.
const CHUNK_BYTES: usize = 32 << 10;
/// While memory is short, a response of which nothing was taken for so long is reset ...
const RESPONSE_IDLE_MAX: Duration = Duration::from_secs(1);
/// ... by a sweep, which comes so often.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The memory for clients of a node.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    requests: ByteBudget,
    responses: ByteBudget,
    log_reads: InTurn,
    share: usize,
    connections: Mutex<Vec<Weak<Connection>>>,
}

/// One connection's part of it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) requests: ByteBudget,
    pub(crate) responses: ByteBudget,
    /// The same budget, for reads of logs.
    read_responses: InTurn,
    /// Of all connections.
    log_reads: InTurn,
    /// Those under way, and how many there were.
    calls: Mutex<(u64, HashMap<u64, Weak<Call>>)>,
}

/// What a request takes until the node has answered it, whether or not its client is still there.
#[derive(Debug, Default)]
pub struct Held {
    connection: Option<Arc<Connection>>,
    request: Option<Reservation>,
    _log_read: Option<Reservation>,
}

impl ClientMemory {
    /// Of so many bytes: half for requests, half for responses.
    pub(crate) fn new(bytes: usize) -> Self {
        let [requests, responses] = [bytes / 2; 2].map(ByteBudget::new);
        let log_reads = InTurn(ByteBudget::new(LOG_READS_BYTES_MAX), Arc::default());
        let share = (bytes / 2 / CONNECTION_SHARES).max(SHARE_BYTES_MIN);
        Self { requests, responses, log_reads, share, connections: Mutex::default() }
    }

    /// For another connection.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        let [requests, responses] = [&self.requests, &self.responses].map(|budget| budget.child(self.share));
        let read_responses = InTurn(responses.clone(), Arc::default());
        let (log_reads, calls) = (self.log_reads.clone(), Mutex::default());
        let connection = Arc::new(Connection { requests, responses, read_responses, log_reads, calls });
        lock(&self.connections).push(Arc::downgrade(&connection));
        connection
    }

    /// Resets responses that make no progress while memory is short, for ever.
    pub(crate) async fn sweep(&self) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            lock(&self.connections).retain(|connection| connection.strong_count() > 0);
            if !self.requests.is_short() && !self.responses.is_short() {
                continue;
            }
            // What is upgraded is let go of when nothing is locked.
            let connections: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
            let calls_of =
                |of: &Arc<Connection>| lock(&of.calls).1.values().filter_map(Weak::upgrade).collect::<Vec<_>>();
            let calls: Vec<_> = connections.iter().flat_map(calls_of).collect();
            let reset = calls.iter().filter(|call| call.reset_if_idle()).count();
            if reset > 0 {
                tracing::info!(responses = reset, "memory for clients is short: idle responses were reset");
            }
        }
    }
}

impl Held {
    pub(crate) fn of(connection: &Arc<Connection>) -> Self {
        Self { connection: Some(Arc::clone(connection)), ..Self::default() }
    }

    /// Reserves the bytes that the request takes in memory, until this is dropped.
    ///
    /// # Errors
    /// `Overloaded` when the memory for requests is full.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Failure> {
        if let Some(connection) = self.connection.as_ref().filter(|_| bytes > SMALL_BYTES) {
            self.request = Some(connection.requests.try_reserve(bytes).ok_or_else(no_room)?);
        }
        Ok(())
    }
}

/// Serves a call within the budgets, and stamps it with its [`Arrival`].
pub(crate) async fn serve(
    memory: Arc<ClientMemory>,
    mut routes: Routes,
    mut request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    let call = match Call::begin(&connection.unwrap_or_else(|| memory.connection())) {
        Ok(call) => call,
        Err(failure) => return Ok(refusal::status(&failure).into_http()),
    };
    request.extensions_mut().insert(Arrival(Instant::now()));
    request.extensions_mut().insert(Arc::clone(&call));
    let request = request.map(|inner| Body::new(RequestBody { inner, call: Arc::clone(&call), patience: None }));
    Ok(routes.call(request).await?.map(|made| Body::new(ResponseBody::new(made, call))))
}

/// Why a request is refused, or a read that did nothing.
pub(crate) fn no_room() -> Failure {
    Failure::Overloaded("this node's memory for clients is full".to_owned())
}

/// Nothing that holds such a lock panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
