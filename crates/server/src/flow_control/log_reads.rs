//! Reads of logs reserve memory for their results before they are sent to the node.
//!
//! A read reserves memory from its connection's response budget, like any response, and from a budget for all reads in
//! flight, because their results pass through the queues between nodes. Reads wait for both budgets in order of arrival.
//!
//! A read requests the usual size of its entries; if the first entry is larger, it is repeated with the maximum size. A
//! read that waits for an entry requests a tiny size, without a reservation, and is repeated once the entry exists.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use base::budget::{ByteBudget, Reservation};
use node::request::{Outcome, Request, Response};
use sharedlog::Position;
use sharedlog::request::{LogRequest, LogResponse};
use tokio::sync::Mutex as Turn;
use tokio::time::timeout_at;

use super::replies::size;
use super::{Connection, Held, SMALL_BYTES, no_room};
use crate::Gateway;
use crate::limits::READ_BYTES_MAX;

/// Counted for each position in addition to its entry: message overhead, and CPU time of the node.
const POSITION_BYTES: usize = 512;
/// Usual size of an entry.
const USUAL_ENTRY_BYTES: usize = 16 << 10;
/// Limit of a read that assumes entries of the usual size.
const USUAL_BYTES_MAX: usize = 1 << 20;

/// A budget that serves waiters in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct InTurn(pub(super) ByteBudget, pub(super) Arc<Turn<()>>);

impl InTurn {
    async fn reserve(&self, bytes: usize) -> Reservation {
        let _turn = self.1.lock().await;
        poll_fn(|context| self.0.poll_reserve(bytes, context.waker()).map_or(Poll::Pending, Poll::Ready)).await
    }

    fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let _turn = self.1.try_lock().ok()?;
        self.0.try_reserve(bytes)
    }
}

impl Connection {
    /// Waits for memory for a read: for its response, and for the read in flight.
    pub(crate) async fn read_room(self: &Arc<Self>, bytes: usize, positions: usize) -> (Reservation, Held) {
        let response = self.read_responses.reserve(bytes).await;
        let log_read = self.log_reads.reserve(bytes + positions * POSITION_BYTES).await;
        (response, Held { _log_read: Some(log_read), ..Held::of(self) })
    }

    /// [`Connection::read_room`] without waiting; `None` if memory is short or there are waiters.
    pub(crate) fn try_read_room(self: &Arc<Self>, bytes: usize, positions: usize) -> Option<(Reservation, Held)> {
        let response = self.read_responses.try_reserve(bytes)?;
        let log_read = self.log_reads.try_reserve(bytes + positions * POSITION_BYTES)?;
        Some((response, Held { _log_read: Some(log_read), ..Held::of(self) }))
    }

    /// Memory for a subscription's read that waits at the tail. `None` if memory is nearly full: then the read asks for
    /// [`SMALL_BYTES`] only, to detect new entries.
    pub(crate) fn try_tail_room(self: &Arc<Self>, bytes: usize) -> Option<(Reservation, Held)> {
        let response = self.responses.try_reserve(bytes)?;
        let log_read = self.tail_reads.try_reserve(bytes)?;
        Some((response, Held { _log_read: Some(log_read), ..Held::of(self) }))
    }
}

/// A client's read, and its next step.
#[derive(Clone, Debug)]
pub(crate) struct LogRead {
    log: String,
    from: Position,
    count: u32,
    /// How long to wait for the first entry.
    wait: base::Duration,
    /// Size to request after the wait.
    bytes: usize,
}

impl LogRead {
    /// The read in a request, if it is a read.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let Request::Log(LogRequest::Read { log, from, count, wait, .. }) = request else { return None };
        let bytes = (*count as usize).saturating_mul(USUAL_ENTRY_BYTES).min(USUAL_BYTES_MAX);
        Some(Self { log: log.clone(), from: *from, count: *count, wait: *wait, bytes })
    }

    fn waits(&self) -> bool {
        self.wait > base::Duration::ZERO
    }

    /// The next request to the node with its memory, if that is available without waiting.
    pub(crate) fn try_ask(&self, connection: &Arc<Connection>) -> Option<(Request, Reservation, Held)> {
        let room = if self.waits() { None } else { connection.try_read_room(self.bytes, self.count as usize) };
        room.map(|(room, held)| (self.request(), room, held))
    }

    fn request(&self) -> Request {
        let (count, bytes) = if self.waits() { (1, SMALL_BYTES) } else { (self.count, self.bytes) };
        Request::Log(LogRequest::Read { log: self.log.clone(), from: self.from, count, wait: self.wait, bytes })
    }

    /// Handles a response of the node; returns whether another request is needed.
    pub(crate) fn needs_another_read(&mut self, outcome: &Outcome) -> bool {
        let is_larger = matches!(outcome, Ok(Response::Log(LogResponse::Larger)));
        let has_come = matches!(outcome, Ok(Response::Log(LogResponse::Entries(entries))) if !entries.is_empty());
        if self.waits() && (is_larger || (has_come && self.count > 1)) {
            self.wait = base::Duration::ZERO;
            return true;
        }
        let asks_for_more = is_larger && self.bytes < READ_BYTES_MAX;
        self.bytes = if asks_for_more { READ_BYTES_MAX } else { self.bytes };
        asks_for_more
    }

    /// Carries the read out by its deadline; returns the outcome and its memory.
    pub(crate) async fn carry_out<G: Gateway>(
        mut self,
        gateway: &G,
        connection: &Arc<Connection>,
        deadline: Instant,
    ) -> (Outcome, Option<Reservation>) {
        loop {
            // The previous step's memory is released by now: a read that waits must not hold any.
            let (mut room, mut held) = (None, Held::of(connection));
            if !self.waits() {
                match timeout_at(deadline.into(), connection.read_room(self.bytes, self.count as usize)).await {
                    Ok(taken) => (room, held) = (Some(taken.0), taken.1),
                    Err(_) => return (Err(no_room()), None),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = gateway.submit(self.request(), left, held).await;
            if !self.needs_another_read(&outcome) {
                room.iter_mut().for_each(|room| room.shrink_to(outcome.as_ref().map_or(0, size)));
                return (outcome, room);
            }
        }
    }
}
