//! What a read of a log by itself, or in a stream, asks the node for, one thing after the other.
//!
//! One that may wait does so for its first position alone, and for next to nothing: it may take long, and must not keep
//! from others what it has no use for yet. Then, as any other, it asks for as much as its entries are likely to have;
//! and if the first is larger, for as much as any entry may have. Whoever asks sees to it that there is room for each.

use std::sync::Arc;

use sharedlog::Position;
use tablets::request::{Failure, LogRequest, LogResponse, Outcome, Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::allowance::Allowance;
use crate::limits::{
    READ_BYTES_MAX, SHORT_WAIT_MAX, WAITING_READ_BYTES, WAITING_READS_LONG_MAX, WAITING_READS_MAX,
    WAITING_READS_OF_ONE_MAX,
};

/// A read under way.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    log: String,
    from: Position,
    count: u32,
    wait: base::Duration,
    wants: Wants,
}

/// What it asks for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Something at its first position, once that is there.
    Something,
    /// What so many entries are likely to have.
    Likely { count: usize },
    /// What any entry may have.
    Most,
}

impl Reading {
    /// The read that a request is, if it is one. The log's name is taken from there.
    pub(crate) fn of(request: &mut Request) -> Option<Self> {
        let Request::Log(LogRequest::Read { log, from, count, wait, .. }) = request else { return None };
        let (log, from, count, wait) = (std::mem::take(log), *from, *count, *wait);
        let wants = match wait {
            base::Duration::ZERO => Wants::Likely { count: count as usize },
            _ => Wants::Something,
        };
        Some(Self { log, from, count, wait, wants })
    }

    pub(crate) fn wants(&self) -> Wants {
        self.wants
    }

    pub(crate) fn log(&self) -> &str {
        &self.log
    }

    /// What the node is asked, where there is room for so many bytes.
    pub(crate) fn request(&self, room: usize) -> Request {
        let (log, from) = (self.log.clone(), self.from);
        let (count, wait, bytes) = match self.wants {
            Wants::Something => (1, self.wait, WAITING_READ_BYTES),
            Wants::Likely { .. } | Wants::Most => (self.count, base::Duration::ZERO, room.min(READ_BYTES_MAX)),
        };
        Request::Log(LogRequest::Read { log, from, count, wait, bytes })
    }

    /// The node has answered: that is what it comes to, or there is more to ask for.
    pub(crate) fn heard(&mut self, outcome: Outcome) -> Option<Outcome> {
        let is_larger = matches!(&outcome, Ok(Response::Log(LogResponse::Larger)));
        let is_more = match (&outcome, self.wants) {
            (Ok(Response::Log(LogResponse::Entries(entries))), Wants::Something) => {
                self.count > 1 && !entries.is_empty()
            }
            _ => is_larger && self.wants != Wants::Most,
        };
        if !is_more {
            return Some(outcome);
        }
        self.wants = match self.wants {
            Wants::Something => Wants::Likely { count: self.count as usize },
            Wants::Likely { .. } | Wants::Most => Wants::Most,
        };
        None
    }
}

/// Places for reads that wait for something to come, of all connections.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    all: Arc<Semaphore>,
    /// Those that waits of any length may have.
    long: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitPlace {
    _of_all: OwnedSemaphorePermit,
    _of_long: Option<OwnedSemaphorePermit>,
    _of_one: OwnedSemaphorePermit,
}

impl Default for Waits {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { all: places(WAITING_READS_MAX), long: places(WAITING_READS_LONG_MAX) }
    }
}

impl Waits {
    /// A place for a read of that connection.
    pub(crate) fn take(&self, reading: &Reading, of_one: &Allowance) -> Result<WaitPlace, Failure> {
        let take = |places: &Arc<Semaphore>, most: usize, whose: &str| {
            Arc::clone(places).try_acquire_owned().map_err(|_| {
                let instead = "who follows a log subscribes to it";
                Failure::Overloaded(format!("{most} reads of {whose} wait for something to come: {instead}"))
            })
        };
        let of_one = take(of_one.waits(), WAITING_READS_OF_ONE_MAX, "this connection")?;
        let is_long = reading.wait > SHORT_WAIT_MAX;
        let of_long = is_long.then(|| take(&self.long, WAITING_READS_LONG_MAX, "this node's clients")).transpose()?;
        let of_all = take(&self.all, WAITING_READS_MAX, "this node's clients")?;
        Ok(WaitPlace { _of_all: of_all, _of_long: of_long, _of_one: of_one })
    }
}

/// What is told whose connection had no room for it by its deadline.
pub(crate) fn no_room() -> Failure {
    Failure::Overloaded("reads of this connection have taken all that it may have at one time".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use tablets::request::{Content, LogEntry};

    use super::*;

    pub(crate) fn read_of(log: &str, count: u32, wait_ms: u64) -> Reading {
        let wait = base::Duration::from_millis(wait_ms);
        let (log, from) = (log.to_owned(), Position(7));
        Reading::of(&mut Request::Log(LogRequest::Read { log, from, count, wait, bytes: READ_BYTES_MAX }))
            .expect("a read")
    }

    fn read(count: u32, wait_ms: u64) -> Reading {
        read_of("l", count, wait_ms)
    }

    /// One that was told that its first entry is larger.
    pub(crate) fn most(log: &str) -> Reading {
        Reading { wants: Wants::Most, ..read_of(log, 1, 0) }
    }

    /// Count, wait and bytes of what is asked.
    fn asked(reading: &Reading, room: usize) -> (u32, u64, usize) {
        let Request::Log(LogRequest::Read { from: Position(7), count, wait, bytes, .. }) = reading.request(room) else {
            panic!("{reading:?}")
        };
        (count, wait.as_millis(), bytes)
    }

    fn entries(count: u64) -> Outcome {
        let entry = |position| LogEntry { position: Position(7 + position), content: Content::Junk };
        Ok(Response::Log(LogResponse::Entries((0..count).map(entry).collect())))
    }

    const LARGER: Outcome = Ok(Response::Log(LogResponse::Larger));

    #[test]
    fn who_waits_asks_for_little_and_then_for_all() {
        let mut reading = read(10, 500);
        assert_eq!((reading.wants(), asked(&reading, 0)), (Wants::Something, (1, 500, WAITING_READ_BYTES)));
        assert_eq!(reading.heard(entries(1)), None);
        assert_eq!((reading.wants(), asked(&reading, 9_000)), (Wants::Likely { count: 10 }, (10, 0, 9_000)));
        assert_eq!(reading.heard(LARGER), None);
        assert_eq!((reading.wants(), asked(&reading, 1 << 30)), (Wants::Most, (10, 0, READ_BYTES_MAX)));
        assert_eq!(reading.heard(entries(3)), Some(entries(3)));
    }

    #[test]
    fn what_is_all_ends_it() {
        for (count, wait, outcome) in [(1, 500, entries(1)), (10, 500, entries(0)), (10, 0, entries(0))] {
            assert_eq!(read(count, wait).heard(outcome.clone()), Some(outcome));
        }
        let failure: Outcome = Err(Failure::Unavailable(String::new()));
        for wait in [0, 500] {
            assert_eq!(read(1, wait).heard(failure.clone()), Some(failure.clone()));
            assert_eq!(read(1, wait).heard(LARGER), None);
        }
        assert_eq!(most("l").heard(LARGER), Some(LARGER), "the node answers what it was not asked");
    }

    #[test]
    fn places_for_those_who_wait_are_bounded() {
        let (waits, long, short) = (Waits::default(), read(1, 251), read(1, 250));
        let take_all = |reading: &Reading, of_one: &Allowance| {
            std::iter::from_fn(|| waits.take(reading, of_one).ok()).collect::<Vec<_>>()
        };
        let one = Allowance::default();
        let mut of_one = take_all(&long, &one);
        assert_eq!(of_one.len(), WAITING_READS_OF_ONE_MAX);
        let others: Vec<_> = (0..8).map(|_| Allowance::default()).collect();
        let of_others: Vec<_> = others.iter().flat_map(|other| take_all(&long, other)).collect();
        assert_eq!(of_one.len() + of_others.len(), WAITING_READS_LONG_MAX);
        let brief: Vec<_> = others.iter().flat_map(|other| take_all(&short, other)).collect();
        assert_eq!(WAITING_READS_LONG_MAX + brief.len(), WAITING_READS_MAX);
        let last = Allowance::default();
        assert!(matches!(waits.take(&short, &last), Err(Failure::Overloaded(_))));
        of_one.pop();
        assert!(waits.take(&short, &last).is_ok() && waits.take(&long, &last).is_ok());
    }
}
