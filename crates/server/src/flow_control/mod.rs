//! Flow control: memory for clients stays below a limit, and a slow consumer does not block other clients.
//!
//! There are two budgets ([`ClientBudgets`]), each with a child for each connection: *requests* are counted from their
//! first byte until they are answered, *responses* from their creation until they are written to the socket. A request
//! or response that does not fit is rejected (`RESOURCE_EXHAUSTED`), but a read of a log waits ([`log_reads`]). While
//! memory is short, responses that make no progress are reset ([`call`]).

pub(crate) mod call;
pub(crate) mod log_reads;
pub(crate) mod replies;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use base::budget::{ByteBudget, ClientBudgets, Reservation};
use base::limits::grpc::{SESSIONS_AT_ONCE, SESSIONS_PER_S};
use state_machine::Failure;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::Service;

use self::call::{Call, RequestBody, ResponseBody};
use self::log_reads::InTurn;
use crate::deadline::Arrival;
use crate::refusal;

/// While a budget is nearly full, each connection may use one in this many parts of it.
const CONNECTION_SHARES: usize = 16;
/// Minimum of a share: two of the largest log entries.
const SHARE_BYTES_MIN: usize = 8 << 20;
/// Limit of log reads in flight below the tail. Their results pass through the queues between nodes, which hold 96 MiB.
const LOG_READS_BYTES_MAX: usize = 20 << 20;
/// Limit of the subscriptions' reads that wait at a tail: one append may answer all of them at once.
const TAIL_READS_BYTES_MAX: usize = 16 << 20;
/// Memory of a call without its messages. It includes a response of up to [`SMALL_BYTES`].
const CALL_BYTES: usize = 8 << 10;
pub(crate) const SMALL_BYTES: usize = 1 << 10;
/// Memory of a request in a stream until its answer is sent. It includes an answer of up to [`SMALL_BYTES`].
pub(crate) const STREAMED_BYTES: usize = 2 << 10;
/// Largest part of a response that is passed to HTTP/2 at a time.
const CHUNK_BYTES: usize = 32 << 10;
/// A response without progress for this long is reset while memory is short.
const RESPONSE_IDLE_MAX: Duration = Duration::from_secs(1);
/// How often idle responses are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The memory for clients of a node.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    requests: ByteBudget,
    responses: ByteBudget,
    log_reads: InTurn,
    tail_reads: ByteBudget,
    /// Shares of a connection in both.
    shares: [usize; 2],
    connections: Mutex<Vec<Weak<Connection>>>,
}

/// The memory for one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) requests: ByteBudget,
    pub(crate) responses: ByteBudget,
    /// The same budget, for reads of logs.
    read_responses: InTurn,
    /// Shared by all connections.
    log_reads: InTurn,
    /// Shared by all connections.
    tail_reads: ByteBudget,
    /// The last call's number, and the calls in progress by number.
    calls: Mutex<(u64, HashMap<u64, Weak<Call>>)>,
    sessions: Mutex<SessionAllowance>,
}

/// How many sessions a connection may open, so that one client cannot fill the table of a range.
#[derive(Debug)]
struct SessionAllowance {
    left: f64,
    at: Instant,
}

impl Connection {
    /// Counts the request if it opens a session.
    ///
    /// # Errors
    /// `Overloaded` when the connection has opened too many.
    pub(crate) fn admit(&self, request: &node::request::Request, now: Instant) -> Result<(), Failure> {
        if !request.opens_session() {
            return Ok(());
        }
        let allowance = &mut *lock(&self.sessions);
        let gained = now.saturating_duration_since(allowance.at).as_secs_f64() * SESSIONS_PER_S;
        (allowance.left, allowance.at) = ((allowance.left + gained).min(SESSIONS_AT_ONCE), now);
        if allowance.left < 1.0 {
            return Err(Failure::Overloaded(format!(
                "this connection has opened too many sessions: {SESSIONS_AT_ONCE} at once, then {SESSIONS_PER_S} per second"
            )));
        }
        allowance.left -= 1.0;
        Ok(())
    }
}

/// Memory of a request until the node has answered it, even if its client disconnects before that.
#[derive(Debug, Default)]
pub struct Held {
    connection: Option<Arc<Connection>>,
    request: Option<Reservation>,
    _log_read: Option<Reservation>,
}

impl ClientMemory {
    pub(crate) fn new(budgets: ClientBudgets) -> Self {
        let (requests, responses) = (budgets.grpc_requests, budgets.grpc_responses);
        let log_reads = InTurn(ByteBudget::new(LOG_READS_BYTES_MAX), Arc::default());
        let tail_reads = ByteBudget::new(TAIL_READS_BYTES_MAX);
        let shares = [&requests, &responses].map(|budget| (budget.limit() / CONNECTION_SHARES).max(SHARE_BYTES_MIN));
        Self { requests, responses, log_reads, tail_reads, shares, connections: Mutex::default() }
    }

    /// Registers a new connection.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        let [of_requests, of_responses] = self.shares;
        let (requests, responses) = (self.requests.child(of_requests), self.responses.child(of_responses));
        let read_responses = InTurn(responses.clone(), Arc::default());
        let (log_reads, tail_reads) = (self.log_reads.clone(), self.tail_reads.clone());
        let calls = Mutex::default();
        let sessions = Mutex::new(SessionAllowance { left: SESSIONS_AT_ONCE, at: Instant::now() });
        let connection = Connection { requests, responses, read_responses, log_reads, tail_reads, calls, sessions };
        let connection = Arc::new(connection);
        lock(&self.connections).push(Arc::downgrade(&connection));
        connection
    }

    /// Resets idle responses while client memory is nearly full. Never returns.
    pub(crate) async fn sweep(&self) {
        loop {
            sleep(SWEEP_INTERVAL).await;
            lock(&self.connections).retain(|connection| connection.strong_count() > 0);
            if !self.requests.is_short() && !self.responses.is_short() {
                continue;
            }
            // Calls and connections must be dropped without a lock held.
            let connections: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
            let calls_of =
                |of: &Arc<Connection>| lock(&of.calls).1.values().filter_map(Weak::upgrade).collect::<Vec<_>>();
            let calls: Vec<_> = connections.iter().flat_map(calls_of).collect();
            let reset = calls.iter().filter(|call| call.reset_if_idle()).count();
            if reset > 0 {
                tracing::info!(responses = reset, "client memory is nearly full: idle responses were reset");
            }
        }
    }
}

impl Held {
    pub(crate) fn of(connection: &Arc<Connection>) -> Self {
        Self { connection: Some(Arc::clone(connection)), ..Self::default() }
    }

    /// Reserves memory for the decoded request, until this is dropped.
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

/// Serves a call within the budgets, and records its [`Arrival`].
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

/// Refusal of a request, or of a read.
pub(crate) fn no_room() -> Failure {
    Failure::Overloaded("this node's client memory is full".to_owned())
}

/// No code that holds such a lock panics, so the state is consistent even if the lock is poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
