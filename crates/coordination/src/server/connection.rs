//! A client's connection.

use std::collections::VecDeque;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;
use core::net::IpAddr;

use super::TailId;
use super::statistics::{Answered, ClientStatistics};
use crate::ErrorCode;
use crate::acl::Id;
use crate::entry::{MoveEpoch, SessionId};
use crate::jute::{Password, op, xid};
use crate::limits::{CONNECTION_TURN_BYTES, QUEUE_BYTES_MAX, QUEUE_REQUESTS_MAX, STALE_PERCENT};

#[derive(Debug)]
pub(super) enum Phase {
    /// Waiting for the connect request.
    Greeting,
    /// Waiting for the entry that opens or moves the session.
    Connecting(Connecting),
    Established(Established),
}

#[derive(Debug)]
pub(super) struct Connecting {
    /// The session to continue, if any, and the password sent by the client.
    pub(super) session: Option<(SessionId, Password)>,
    pub(super) timeout: Duration,
    pub(super) last_zxid_seen: i64,
    /// The client's read-only flag; none if the request has none.
    pub(super) read_only: Option<bool>,
    /// When the connect request arrived.
    pub(super) arrived: Monotonic,
    /// Frames received before the reply was sent.
    pub(super) early: Vec<Bytes>,
    pub(super) early_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Established {
    pub(super) session: SessionId,
    pub(super) epoch: MoveEpoch,
    pub(super) timeout: Duration,
    /// Sequence number of the last write.
    pub(super) sequence: u64,
    /// Whether it was accepted in read-only mode, without an entry in the log.
    pub(super) is_read_only: bool,
}

/// A request without a reply. Replies are sent in order.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) arrived: Monotonic,
    /// Bytes charged to the queue.
    pub(super) bytes: usize,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A write that was submitted, and its reply once it is applied.
    Submitted { reply: Option<Bytes> },
    /// A write that is not submitted yet because a read ahead of it waits for the tail.
    Held { op: i32, body: Bytes },
    /// A read, and the tail request it waits for.
    Read { op: i32, body: Bytes, tail: Option<TailId> },
    /// A reply that was produced and not sent, or an event behind one.
    Answered(Bytes),
    /// A request that fails without access to the tree.
    Failed(ErrorCode),
}

impl Work {
    const fn waits_for_tail(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Read { tail: Some(_), .. })
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) address: IpAddr,
    pub(super) password: Password,
    pub(super) ids: Arc<[Id]>,
    pub(super) phase: Phase,
    pub(super) queue: VecDeque<Pending>,
    pub(super) queue_bytes: usize,
    tail_waits: usize,
    /// Frames held back until the session is touched or the output buffer drains.
    pub(super) held: Vec<Bytes>,
    pub(super) held_bytes: usize,
    pub(super) is_output_full: bool,
    pub(super) is_paused: bool,
    /// The last turn in which frames were sent, and their bytes.
    turn: u64,
    turn_bytes: usize,
    /// Whether replies wait for the next turn.
    pub(super) is_deferred: bool,
    /// Whether the session has ended and the connection closes after the last reply.
    pub(super) is_closing: bool,
    /// When the last frame was received.
    pub(super) last_received: Monotonic,
    /// When the last touch was submitted.
    pub(super) touching: Monotonic,
    /// When the last applied touch was submitted.
    pub(super) touched: Monotonic,
    pub(super) statistics: ClientStatistics,
}

impl Connection {
    pub(super) fn new(address: IpAddr, password: Password, now: Monotonic) -> Self {
        Self {
            address,
            password,
            ids: [Id::of_address(address)].into(),
            phase: Phase::Greeting,
            queue: VecDeque::new(),
            queue_bytes: 0,
            tail_waits: 0,
            held: Vec::new(),
            held_bytes: 0,
            is_output_full: false,
            is_paused: false,
            turn: 0,
            turn_bytes: 0,
            is_deferred: false,
            is_closing: false,
            last_received: now,
            touching: now,
            touched: now,
            statistics: ClientStatistics::default(),
        }
    }

    pub(super) const fn established(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Established(established) => Some(established),
            _ => None,
        }
    }

    pub(super) const fn established_mut(&mut self) -> Option<&mut Established> {
        match &mut self.phase {
            Phase::Established(established) => Some(established),
            _ => None,
        }
    }

    /// Whether the session could expire before a client that receives a frame now would time out (see
    /// [`STALE_PERCENT`]).
    pub(super) fn is_stale(&self, now: Monotonic) -> bool {
        if planted(Bug::StaleServerAnswers) {
            return false;
        }
        let awaits_touch = !self.is_closing;
        self.established().is_some_and(|established| {
            awaits_touch
                && !established.is_read_only
                && now.since(self.touched) >= established.timeout.percent(STALE_PERCENT)
        })
    }

    /// Whether output is held back, because the client is slow or its session stale.
    pub(super) fn is_held_back(&self, now: Monotonic) -> bool {
        self.is_output_full || self.is_stale(now)
    }

    /// Counts bytes that are sent in a turn.
    pub(super) const fn note_sent(&mut self, turn: u64, bytes: usize) {
        if self.turn != turn {
            (self.turn, self.turn_bytes) = (turn, 0);
        }
        self.turn_bytes += bytes;
    }

    /// Whether this turn has sent enough on this connection.
    pub(super) const fn has_had_its_turn(&self, turn: u64) -> bool {
        self.turn == turn && self.turn_bytes >= CONNECTION_TURN_BYTES
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.queue_bytes += pending.bytes;
        self.tail_waits += usize::from(pending.work.waits_for_tail());
        self.queue.push_back(pending);
    }

    /// Removes the first request; returns it for the statistics, unless it is an event.
    pub(super) fn pop(&mut self) -> Option<Answered> {
        let Pending { xid, op, arrived, bytes, work } = self.queue.pop_front()?;
        self.queue_bytes -= bytes;
        self.tail_waits -= usize::from(work.waits_for_tail());
        let is_write = matches!(work, Work::Submitted { .. });
        (xid != xid::NOTIFICATION || op != op::ERROR).then_some(Answered { xid, op, arrived, is_write })
    }

    /// Marks a held write as submitted and returns it.
    pub(super) fn take_held(&mut self, index: usize) -> Option<(i32, Bytes)> {
        let pending = self.queue.get_mut(index)?;
        let Work::Held { op, body } = &pending.work else { return None };
        let held = (*op, body.clone());
        pending.work = Work::Submitted { reply: None };
        self.tail_waits -= 1;
        Some(held)
    }

    /// Number of produced but unsent replies at the front of the queue.
    pub(super) fn replies_made(&self) -> usize {
        let is_made = |pending: &&Pending| {
            matches!(pending.work, Work::Submitted { reply: Some(_) } | Work::Answered(_) | Work::Failed(_))
        };
        self.queue.iter().take_while(is_made).count()
    }

    pub(super) fn insert_event(&mut self, index: usize, event: Bytes) {
        self.queue_bytes += event.len();
        let bytes = event.len();
        let (xid, op, arrived) = (xid::NOTIFICATION, op::ERROR, self.last_received);
        self.queue.insert(index, Pending { xid, op, arrived, bytes, work: Work::Answered(event) });
    }

    /// Whether the queue is at its limit, or at half of it if reading is paused.
    pub(super) fn is_full(&self) -> bool {
        let share = if self.is_paused { 2 } else { 1 };
        let (early, early_bytes) = match &self.phase {
            Phase::Connecting(connecting) => (connecting.early.len(), connecting.early_bytes),
            _ => (0, 0),
        };
        self.is_output_full
            || self.queue.len() + early >= QUEUE_REQUESTS_MAX / share
            || self.queue_bytes + early_bytes >= QUEUE_BYTES_MAX / share
    }

    /// Whether the queue has a read that waits for the tail, or a write behind one.
    pub(super) const fn waits_for_tail(&self) -> bool {
        self.tail_waits > 0
    }
}
