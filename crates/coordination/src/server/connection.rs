//! A client's connection.

use std::collections::VecDeque;
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};
use bytes::Bytes;
use core::net::IpAddr;

use super::TailId;
use crate::ErrorCode;
use crate::acl::Id;
use crate::entry::{MoveEpoch, SessionId};
use crate::jute::{Frame, Password, xid};
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_REQUESTS_MAX, STALE_PERCENT};

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing was received.
    Greeting,
    /// The entry that opens or moves the session is under way.
    Connecting(Connecting),
    /// It has a session.
    Established(Established),
}

#[derive(Debug)]
pub(super) struct Connecting {
    /// The session to be continued, if any, and the password that was given.
    pub(super) session: Option<(SessionId, Password)>,
    pub(super) timeout: Duration,
    pub(super) last_zxid_seen: i64,
    /// What the client said of servers that are read-only; none if it said nothing.
    pub(super) read_only: Option<bool>,
    /// Frames that were sent before the reply.
    pub(super) early: Vec<Frame>,
    pub(super) early_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Established {
    pub(super) session: SessionId,
    pub(super) epoch: MoveEpoch,
    pub(super) timeout: Duration,
    /// Writes sent to the log so far.
    pub(super) sequence: u64,
    /// Whether it was admitted while the log took no appends.
    pub(super) is_read_only: bool,
}

/// A request whose reply has not been sent. Replies leave in order.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) xid: i32,
    /// Bytes that it takes while it waits.
    pub(super) bytes: usize,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A write in a batch, and its reply once it is applied.
    Submitted { reply: Option<Bytes> },
    /// A write that is not in a batch yet, since a read before it waits for the tail.
    Held { op: i32, body: Bytes },
    /// A read, and the tail that it waits for.
    Read { op: i32, body: Bytes, tail: Option<TailId> },
    /// A read that was answered, or an event behind one.
    Answered(Bytes),
    /// A request that fails without a look at the tree.
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
    /// Frames that are held back until the session is known to be touched.
    pub(super) held: Vec<Bytes>,
    pub(super) held_bytes: usize,
    pub(super) is_output_full: bool,
    pub(super) is_paused: bool,
    /// Whether the session has ended and the connection ends with the last reply.
    pub(super) is_closing: bool,
    /// When the last frame came.
    pub(super) heard: Monotonic,
    /// When the last batch was made that touches the session.
    pub(super) touching: Monotonic,
    /// When the last one was made that is applied.
    pub(super) touched: Monotonic,
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
            is_closing: false,
            heard: now,
            touching: now,
            touched: now,
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

    /// Whether the session may have expired by the time at which the client, were it sent something now, would give up
    /// its connection (see [`STALE_PERCENT`]).
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

    /// Whether frames are held back: the client takes none, or may not be sent any.
    pub(super) fn is_held_back(&self, now: Monotonic) -> bool {
        self.is_output_full || self.is_stale(now)
    }

    pub(super) fn push(&mut self, xid: i32, bytes: usize, work: Work) {
        self.queue_bytes += bytes;
        self.tail_waits += usize::from(work.waits_for_tail());
        self.queue.push_back(Pending { xid, bytes, work });
    }

    pub(super) fn pop(&mut self) {
        if let Some(done) = self.queue.pop_front() {
            self.queue_bytes -= done.bytes;
            self.tail_waits -= usize::from(done.work.waits_for_tail());
        }
    }

    /// The write at this place of the queue goes into a batch.
    pub(super) fn take_held(&mut self, index: usize) -> Option<(i32, Bytes)> {
        let pending = self.queue.get_mut(index)?;
        let Work::Held { op, body } = &pending.work else { return None };
        let held = (*op, body.clone());
        pending.work = Work::Submitted { reply: None };
        self.tail_waits -= 1;
        Some(held)
    }

    /// Replies at the front of the queue that were made and not sent.
    pub(super) fn replies_made(&self) -> usize {
        let is_made = |pending: &&Pending| {
            matches!(pending.work, Work::Submitted { reply: Some(_) } | Work::Answered(_) | Work::Failed(_))
        };
        self.queue.iter().take_while(is_made).count()
    }

    pub(super) fn insert_event(&mut self, index: usize, event: Bytes) {
        self.queue_bytes += event.len();
        let bytes = event.len();
        self.queue.insert(index, Pending { xid: xid::NOTIFICATION, bytes, work: Work::Answered(event) });
    }

    /// Whether as much waits as may; for one that is paused, whether more than half as much does.
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

    /// Whether a read that waits for the tail, or a write behind one, is in the queue.
    pub(super) const fn waits_for_tail(&self) -> bool {
        self.tail_waits > 0
    }
}
