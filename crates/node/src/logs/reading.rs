//! What this node's doors read of shared logs, within bounds of bytes: what is on its way to a node at one time must
//! be far below what may wait for it with a peer, lest strangers who read much end the connections between nodes.
//!
//! Each read takes as much of its bound as it may bring. One of some positions that finds too little is made one of its
//! first position: an answer may end early. A single position is asked for with a bound that most entries keep to; who
//! is told that its entry is larger takes the whole of it, and asks again. Whoever finds no room waits its turn; but
//! who waits for something to come asks without, for next to nothing.
//!
//! Reads of a few positions, of many, of large entries, and those that wait for something to come have bounds and rows
//! of their own: however many there are of one kind, they are no more than a moment's work at a time, and those of the
//! others don't wait for them.

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

/// Bytes that reads of few positions may bring that are under way. All kinds together are 44 MiB, of the
/// 96 that may wait for a peer.
const SINGLE_BYTES_MAX: usize = 4 << 20;
/// The same of those that wait for something to come, as followers' do: these the doors bound to 16 MiB, too.
pub(super) const WAITING_BYTES_MAX: usize = 16 << 20;
/// The same of those of many positions.
const BULK_BYTES_MAX: usize = 12 << 20;
/// The same of those of an entry that is larger than most.
const LARGE_BYTES_MAX: usize = 12 << 20;
/// Positions from which on a read is one of many.
const BULK_POSITIONS: usize = 16;
/// What each position takes of a bound beside its entry's bytes: some hundred of them on their way, and as much of the
/// machine's time as the others.
const POSITION_BYTES: usize = 512;
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
    single: Row,
    waiting: Row,
    bulk: Row,
    large: Row,
}

/// Those of one kind.
#[derive(Debug, Default)]
struct Row {
    /// Bytes that those under way may bring.
    taken: usize,
    queue: VecDeque<(LogId, PendingId, Step)>,
}

/// What a read is. Each kind has a bound and a row of its own, so that none holds up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of few positions.
    Single,
    /// It waits for something to come.
    Waiting,
    /// Of many positions.
    Bulk,
    /// Of an entry that is larger than most.
    Large,
}

/// A part of its kind's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    of: Kind,
    bytes: usize,
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

impl Kind {
    const ALL: [Self; 4] = [Self::Single, Self::Waiting, Self::Bulk, Self::Large];

    fn of(query: &Query, step: Step) -> Self {
        match query {
            _ if step == Step::Larger => Self::Large,
            query if query.waits() => Self::Waiting,
            Query::Log(LogRequest::Read { count, .. }) if *count as usize >= BULK_POSITIONS => Self::Bulk,
            _ => Self::Single,
        }
    }

    fn bytes_max(self) -> usize {
        match self {
            Self::Single => SINGLE_BYTES_MAX,
            Self::Waiting => WAITING_BYTES_MAX,
            Self::Bulk => BULK_BYTES_MAX,
            Self::Large => LARGE_BYTES_MAX,
        }
    }
}

impl Readings {
    fn row(&mut self, of: Kind) -> &mut Row {
        match of {
            Kind::Single => &mut self.single,
            Kind::Waiting => &mut self.waiting,
            Kind::Bulk => &mut self.bulk,
            Kind::Large => &mut self.large,
        }
    }

    fn take(&mut self, share: Share) -> bool {
        let row = self.row(share.of);
        let taken = row.taken + share.bytes;
        let fits = taken <= share.of.bytes_max();
        if fits {
            row.taken = taken;
        }
        fits
    }

    fn give(&mut self, share: Share) {
        self.row(share.of).taken -= share.bytes;
    }

    fn rows(&self) -> [&Row; 4] {
        [&self.single, &self.waiting, &self.bulk, &self.large]
    }

    /// Those that wait for room.
    pub(super) fn queued(&self) -> BTreeSet<PendingId> {
        self.rows().into_iter().flat_map(|row| &row.queue).map(|(_, id, _)| *id).collect()
    }

    /// These don't wait for room any more.
    pub(super) fn forget(&mut self, reads: &BTreeSet<PendingId>) {
        for of in Kind::ALL {
            self.row(of).queue.retain(|(_, id, _)| !reads.contains(id));
        }
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.rows().into_iter().map(|row| row.taken).sum()
    }
}

impl Node {
    /// Begins a read of a log, or has it wait its turn.
    pub(super) fn read_log(&mut self, log: LogId, id: PendingId, now: Now) {
        let Some(pending) = self.pendings.get(id) else { return };
        let of = Kind::of(&pending.query, Step::First);
        // Who waits for something to come is begun in any case.
        let is_next = of == Kind::Waiting || self.logs.readings.row(of).queue.is_empty();
        if !is_next || !self.begin_reading(log, id, Step::First, now) {
            self.logs.readings.row(of).queue.push_back((log, id, Step::First));
        }
    }

    /// Whether a read could be begun, or is over.
    fn begin_reading(&mut self, log: LogId, id: PendingId, step: Step, now: Now) -> bool {
        let Some(pending) = self.pendings.get(id) else { return true };
        let Query::Log(LogRequest::Read { from, count, wait, bytes, .. }) = &pending.query else { return true };
        let (from, count, wait, bytes) = (*from, *count as usize, *wait, *bytes);
        let deadline = pending.log_deadline();
        let of = Kind::of(&pending.query, step);
        let waits = of == Kind::Waiting;
        let share = |positions: usize, bytes: usize| Share { of, bytes: bytes + positions * POSITION_BYTES };
        let readings = &mut self.logs.readings;
        let many = share(count, bytes.min(ROW_BYTES_MAX));
        let of_one = if of == Kind::Large { bytes } else { bytes.min(ONE_BYTES) };
        let (count, bound, share) = if count > 1 && of != Kind::Large && readings.take(many) {
            (count, bytes, many)
        } else if of != Kind::Bulk && readings.take(share(1, of_one)) {
            (1, of_one, share(1, of_one))
        } else if waits {
            (1, bytes.min(UNCOUNTED_BYTES), Share { of, bytes: 0 })
        } else {
            // One of many positions has its turn soon, too: cut short, it would have to ask again many times.
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
        let wanted = ReadMany { run: Run::of(from, count), wait, bytes: bound };
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
            self.logs.readings.large.queue.push_back((log, id, Step::Larger));
        } else {
            self.complete(id, entries(reading.from, outcome), None);
        }
        self.begin_queued_readings(now);
    }

    /// Begins those that there is room for now.
    pub(super) fn begin_queued_readings(&mut self, now: Now) {
        for of in Kind::ALL {
            while let Some((log, id, step)) = self.logs.readings.row(of).queue.front().copied() {
                if !self.begin_reading(log, id, step, now) {
                    break;
                }
                self.logs.readings.row(of).queue.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_bound_of_its_own() {
        let mut readings = Readings::default();
        for of in Kind::ALL {
            let quarter = Share { of, bytes: of.bytes_max() / 4 };
            assert_eq!((0..9).filter(|_| readings.take(quarter)).count(), 4, "{of:?}");
            readings.give(quarter);
            assert!(readings.take(quarter) && !readings.take(Share { of, bytes: 1 }), "{of:?}");
        }
        assert!(readings.bytes() <= 44 << 20, "far below what may wait for a peer");
    }
}
