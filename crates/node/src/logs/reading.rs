//! What this node's doors read of shared logs, within one bound of bytes: what is on its way to a node at one time must
//! be far below what may wait for it with a peer, lest strangers who read much end the connections between nodes.
//!
//! Each read takes as much of the bound as it may bring. One of many positions that finds too little is made one of its
//! first position: an answer may end early. A single position is asked for with a bound that most entries keep to; who
//! is told that its entry is larger takes the whole of it, and asks again. Whoever finds no room waits its turn; but
//! who waits for something to come asks without, for next to nothing.

use std::collections::{BTreeSet, VecDeque};

use base::{Duration, Now};
use sharedlog::client::{Answer, Error, ReadMany, Wait};
use sharedlog::limits::ROW_BYTES_MAX;
use sharedlog::{LogId, Position, Run};
use tablets::request::LogRequest;

use crate::logs::calls::{Call, entries};
use crate::message::Query;
use crate::node::Node;
use crate::pending::PendingId;

/// Bytes that all reads under way may bring, those of subscriptions too, which the doors bound to 16 MiB: below the 64
/// MiB that may wait for a peer.
const READING_BYTES_MAX: usize = 40 << 20;
/// The same of those that wait for something to come: for so long as they do, they leave room for the others.
pub(super) const WAITING_BYTES_MAX: usize = 16 << 20;
/// What a read of a single position may bring at first.
const ONE_BYTES: usize = 64 << 10;
/// What one may bring that takes nothing of the bound, since it waits.
const UNCOUNTED_BYTES: usize = 1 << 10;

/// What it takes to fill a position, as a rule. Whose deadline leaves no time for that after its wait only watches:
/// others may want to wait for longer.
const FILLING: Duration = Duration::from_millis(50);
/// It is told so long before its deadline that nothing has come.
const SAYING: Duration = Duration::from_millis(100);

/// The reads under way, and those that wait for room.
#[derive(Debug, Default)]
pub(super) struct Readings {
    taken: Share,
    queue: VecDeque<(LogId, PendingId, Step)>,
}

/// A part of the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    bytes: usize,
    /// Of these, what waits for something to come.
    waiting: usize,
}

/// How far a read has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    First,
    /// The first entry is larger than what was asked for: it by itself, as large as may be.
    Larger,
}

/// A read that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    from: Position,
    share: Share,
    /// What its first entry may have is less than who asked allows for.
    is_short: bool,
}

impl Readings {
    fn take(&mut self, share: Share) -> bool {
        let (bytes, waiting) = (self.taken.bytes + share.bytes, self.taken.waiting + share.waiting);
        let fits = bytes <= READING_BYTES_MAX && waiting <= WAITING_BYTES_MAX;
        if fits {
            self.taken = Share { bytes, waiting };
        }
        fits
    }

    fn give(&mut self, share: Share) {
        self.taken.bytes -= share.bytes;
        self.taken.waiting -= share.waiting;
    }

    /// Those that wait for room.
    pub(super) fn queued(&self) -> BTreeSet<PendingId> {
        self.queue.iter().map(|(_, id, _)| *id).collect()
    }

    /// These don't wait for room any more.
    pub(super) fn forget(&mut self, reads: &BTreeSet<PendingId>) {
        self.queue.retain(|(_, id, _)| !reads.contains(id));
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.taken.bytes
    }
}

impl Node {
    /// Begins a read of a log, or has it wait its turn.
    pub(super) fn read_log(&mut self, log: LogId, id: PendingId, now: Now) {
        if self.logs.readings.queue.is_empty() && self.begin_reading(log, id, Step::First, now) {
            return;
        }
        if !self.is_waiting(id) || !self.begin_reading(log, id, Step::First, now) {
            self.logs.readings.queue.push_back((log, id, Step::First));
        }
    }

    /// Whether a read waits for something to come. It is begun in any case.
    fn is_waiting(&self, id: PendingId) -> bool {
        self.pendings.get(id).is_some_and(|pending| pending.query.waits())
    }

    /// Whether a read could be begun, or is over.
    fn begin_reading(&mut self, log: LogId, id: PendingId, step: Step, now: Now) -> bool {
        let Some(pending) = self.pendings.get(id) else { return true };
        let Query::Log(LogRequest::Read { from, count, wait, bytes, .. }) = &pending.query else { return true };
        let (from, count, wait, bytes) = (*from, *count as usize, *wait, *bytes);
        let deadline = pending.log_deadline();
        let waits = wait > Duration::ZERO && step == Step::First;
        let share = |bytes| Share { bytes, waiting: if waits { bytes } else { 0 } };
        let readings = &mut self.logs.readings;
        let many = share(bytes.min(ROW_BYTES_MAX));
        let one = share(if step == Step::Larger { bytes } else { bytes.min(ONE_BYTES) });
        let (count, bound, share) = if count > 1 && step == Step::First && readings.take(many) {
            (count, bytes, many)
        } else if readings.take(one) {
            (1, one.bytes, one)
        } else if waits {
            (1, bytes.min(UNCOUNTED_BYTES), Share::default())
        } else {
            return false;
        };
        let reading = Reading { from, share, is_short: bound < bytes };
        let left = deadline.since(now.monotonic);
        let of_left = |time: Duration| time.0.min(left.0 / 4);
        let wait = match () {
            () if !waits => Wait::No,
            () if wait.0.saturating_add(of_left(FILLING)) <= left.0 => Wait::First(wait),
            () => Wait::Watch(Duration(left.0 - of_left(SAYING))),
        };
        let wanted = ReadMany { run: Run::of(from, count), wait, look_back: true, bytes: bound };
        self.call(log, Call::Read(id, reading), |client, token| {
            client.read_many(token, wanted, deadline, now.monotonic);
        });
        true
    }

    /// A read has come to its end: it is answered, or has yet to be made of a larger entry. Others may have room now.
    pub(super) fn reading_ended(
        &mut self,
        log: LogId,
        id: PendingId,
        reading: Reading,
        outcome: Result<Answer, Error>,
        now: Now,
    ) {
        self.logs.readings.give(reading.share);
        if outcome == Ok(Answer::Larger) && reading.is_short {
            self.logs.readings.queue.push_back((log, id, Step::Larger));
        } else {
            self.complete(id, entries(reading.from, outcome), None);
        }
        self.begin_queued_readings(now);
    }

    /// Begins those that there is room for now.
    pub(super) fn begin_queued_readings(&mut self, now: Now) {
        while let Some((log, id, step)) = self.logs.readings.queue.front().copied() {
            if !self.begin_reading(log, id, step, now) {
                break;
            }
            self.logs.readings.queue.pop_front();
        }
    }
}
