//! The outcomes of one stream's requests, on their way from the node to the stream.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use base::budget::{ByteBudget, Reservation};
use node::request::{Outcome, Response};
use sharedlog::request::LogResponse;
use tablets::TableResponse;

use super::{Connection, SMALL_BYTES, lock, no_room};
use crate::columns::translate::row_bytes;
use crate::log::translate::entry_bytes;
use crate::reads;

/// Queues outcomes for the stream. A batch of outcomes wakes the stream once.
///
/// A read's answer that does not fit in memory is replaced by a refusal. The outcome of a write always fits.
#[derive(Debug)]
pub struct Replies {
    gathered: Mutex<(Vec<Reply>, Option<Waker>)>,
    responses: ByteBudget,
    /// The stream is gone. Set while `gathered` is locked.
    is_given_up: AtomicBool,
}

/// The outcome of one request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) ticket: u64,
    pub(crate) outcome: Outcome,
    pub(crate) bytes: usize,
    /// None if it is small.
    pub(crate) room: Option<Reservation>,
}

impl Replies {
    pub(crate) fn new(connection: &Connection) -> Arc<Self> {
        let (gathered, responses) = (Mutex::default(), connection.responses.clone());
        Arc::new(Self { gathered, responses, is_given_up: AtomicBool::new(false) })
    }

    /// Whether the stream is gone.
    pub fn are_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Drops all replies, because the stream has ended while the node may still hold a reference.
    pub(crate) fn give_up(&self) {
        let mut gathered = lock(&self.gathered);
        self.is_given_up.store(true, Ordering::Relaxed);
        *gathered = Default::default();
    }

    /// Queues the outcome of the request with this ticket.
    pub fn give(&self, ticket: u64, outcome: Outcome) {
        let reply = self.counted(ticket, outcome);
        let mut gathered = lock(&self.gathered);
        if !self.are_given_up() {
            gathered.0.push(reply);
        }
        let waker = gathered.1.take();
        drop(gathered);
        waker.into_iter().for_each(Waker::wake);
    }

    fn counted(&self, ticket: u64, outcome: Outcome) -> Reply {
        let bytes = outcome.as_ref().map_or(0, size);
        let room = match &outcome {
            _ if bytes <= SMALL_BYTES => return Reply { ticket, outcome, bytes, room: None },
            // Memory for log entries was reserved before they were read.
            Ok(Response::Log(_)) => Some(self.responses.charge(bytes)),
            _ => self.responses.try_reserve(bytes),
        };
        let outcome = if room.is_some() { outcome } else { Err(no_room()) };
        Reply { ticket, outcome, bytes, room }
    }

    /// Takes all outcomes. If there are none, the stream is woken for the next.
    pub(crate) fn take(&self, context: &Context<'_>) -> Vec<Reply> {
        let (replies, waker) = &mut *lock(&self.gathered);
        if replies.is_empty() {
            *waker = Some(context.waker().clone());
        }
        mem::take(replies)
    }
}

/// Bytes of a response that are counted: those of rows, or of entries of a log.
pub(crate) fn size(response: &Response) -> usize {
    match reads::content(response) {
        Response::Tablet(TableResponse::Row { cells, .. }) => row_bytes(cells),
        Response::Tablet(TableResponse::Rows { rows, .. }) => {
            rows.iter().map(|row| row.key.len() + row_bytes(&row.cells)).sum()
        }
        Response::Log(LogResponse::Entries(entries)) => entries.iter().map(entry_bytes).sum(),
        _ => 0,
    }
}
