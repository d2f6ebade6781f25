//! Reads of logs: each has room for what it may bring before the node is asked.
//!
//! The response takes room of its connection, as any other, and keeps it until it leaves. What all reads together may
//! bring that the node has not answered is bounded as well, since it passes the queues between nodes. Reads wait for
//! room in turn: for that of their connection, and then for that of all.
//!
//! A read asks for what its entries usually have; where the first entry is larger, it asks again, with room for any
//! entry. One that waits for something to come asks for one very small entry without room, and for all once that is
//! there.

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

/// What each position counts beside its entry: part of a message, and of the node's time.
const POSITION_BYTES: usize = 512;
/// What an entry has, as a rule ...
const USUAL_ENTRY_BYTES: usize = 16 << 10;
/// ... and what a read asks for at most at first.
const USUAL_BYTES_MAX: usize = 1 << 20;

/// A budget whose bytes are given out in turn.
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
    /// Room for a read, in turn: for its response, and until the node has answered.
    pub(crate) async fn read_room(self: &Arc<Self>, bytes: usize, positions: usize) -> (Reservation, Held) {
        let response = self.read_responses.reserve(bytes).await;
        let log_read = self.log_reads.reserve(bytes + positions * POSITION_BYTES).await;
        (response, Held { _log_read: Some(log_read), ..Held::of(self) })
    }

    /// The same, if it is there and nobody waits for any.
    pub(crate) fn try_read_room(self: &Arc<Self>, bytes: usize, positions: usize) -> Option<(Reservation, Held)> {
        let response = self.read_responses.try_reserve(bytes)?;
        let log_read = self.log_reads.try_reserve(bytes + positions * POSITION_BYTES)?;
        Some((response, Held { _log_read: Some(log_read), ..Held::of(self) }))
    }
}

/// What is left to do of a read that a client asks for.
#[derive(Clone, Debug)]
pub(crate) struct LogRead {
    log: String,
    from: Position,
    count: u32,
    /// How long it waits for something to come.
    wait: base::Duration,
    /// What it asks for, once it doesn't wait.
    bytes: usize,
}

impl LogRead {
    /// The read that a request is, if it is one.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let Request::Log(LogRequest::Read { log, from, count, wait, .. }) = request else { return None };
        let bytes = (*count as usize).saturating_mul(USUAL_ENTRY_BYTES).min(USUAL_BYTES_MAX);
        Some(Self { log: log.clone(), from: *from, count: *count, wait: *wait, bytes })
    }

    fn waits(&self) -> bool {
        self.wait > base::Duration::ZERO
    }

    /// What the node is asked next, and room for what it brings if that is there.
    pub(crate) fn try_ask(&self, connection: &Arc<Connection>) -> Option<(Request, Reservation, Held)> {
        let room = if self.waits() { None } else { connection.try_read_room(self.bytes, self.count as usize) };
        room.map(|(room, held)| (self.request(), room, held))
    }

    fn request(&self) -> Request {
        let (count, bytes) = if self.waits() { (1, SMALL_BYTES) } else { (self.count, self.bytes) };
        Request::Log(LogRequest::Read { log: self.log.clone(), from: self.from, count, wait: self.wait, bytes })
    }

    /// The node has answered; whether there is more to ask for.
    pub(crate) fn goes_on(&mut self, outcome: &Outcome) -> bool {
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

    /// Carries the read out by its deadline: its outcome, with room for it.
    pub(crate) async fn carry_out<G: Gateway>(
        mut self,
        gateway: &G,
        connection: &Arc<Connection>,
        deadline: Instant,
    ) -> (Outcome, Option<Reservation>) {
        loop {
            // What it had before is given back by now: one that waits must not keep others from their room.
            let (mut room, mut held) = (None, Held::of(connection));
            if !self.waits() {
                match timeout_at(deadline.into(), connection.read_room(self.bytes, self.count as usize)).await {
                    Ok(taken) => (room, held) = (Some(taken.0), taken.1),
                    Err(_) => return (Err(no_room()), None),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = gateway.submit(self.request(), left, held).await;
            if !self.goes_on(&outcome) {
                room.iter_mut().for_each(|room| room.shrink_to(outcome.as_ref().map_or(0, size)));
                return (outcome, room);
            }
        }
    }
}
