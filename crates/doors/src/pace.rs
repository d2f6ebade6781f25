//! The reads of logs in one stream: the node is asked for no more at a time than the stream may read ahead of what its
//! client takes.
//!
//! A message may hold a thousand reads of the largest entries. Put to the node at once they would keep all others'
//! waiting there, and their answers would be too many to be kept. So they wait here, in their order, until there is
//! room for what each is likely to bring; those that wait for something to come are put to the node at once, and take
//! their room when it has.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use tablets::request::{Failure, LogResponse, Outcome, Response};

use crate::guess::Guess;
use crate::limits::{READ_AHEAD_BYTES_MAX, READ_BYTES_MAX};
use crate::log::translate::entry_bytes;
use crate::reading::{Reading, Waits, Wants};
use crate::{Held, Ticketed};

/// The reads of a stream that have no answer yet.
#[derive(Debug)]
pub(crate) struct Pace {
    waits: Waits,
    /// By ticket.
    reads: HashMap<u64, Read>,
    /// Those that will wait for something to come.
    idle: VecDeque<u64>,
    /// Those that want room.
    queue: VecDeque<u64>,
    /// Bytes that those under way may bring.
    under_way: usize,
    guess: Guess,
}

#[derive(Debug)]
struct Read {
    reading: Reading,
    /// The node answers by then.
    deadline: Instant,
    /// Bytes that it may bring, while it is under way.
    room: usize,
}

impl Pace {
    pub(crate) fn new(waits: Waits) -> Self {
        let (idle, queue) = (VecDeque::new(), VecDeque::new());
        Self { waits, reads: HashMap::new(), idle, queue, under_way: 0, guess: Guess::default() }
    }

    /// Takes in what the stream asks, if it is a read of a log.
    pub(crate) fn take(&mut self, asked: Ticketed, now: Instant) -> Option<Ticketed> {
        let Some(reading) = Reading::of(&asked.request) else { return Some(asked) };
        let row = if reading.wants() == Wants::Something { &mut self.idle } else { &mut self.queue };
        row.push_back(asked.ticket);
        self.reads.insert(asked.ticket, Read { reading, deadline: now + asked.deadline, room: 0 });
        None
    }

    /// What the node may be asked next, or why it can't be. So many bytes of answers have not left.
    pub(crate) fn next(&mut self, unsent: usize, now: Instant) -> Option<Result<Ticketed, (u64, Failure)>> {
        while let Some(ticket) = self.idle.pop_front() {
            let Some(read) = self.reads.get(&ticket) else { continue };
            return Some(match self.waits.take() {
                Ok(place) => Ok(read.asked(ticket, Some(place), now)),
                Err(failure) => {
                    self.reads.remove(&ticket);
                    Err((ticket, failure))
                }
            });
        }
        while let Some(ticket) = self.queue.front().copied() {
            let Some(read) = self.reads.get_mut(&ticket) else {
                self.queue.pop_front();
                continue;
            };
            let room = match read.reading.wants() {
                Wants::Likely { count } => self.guess.bytes_of(count),
                Wants::Something | Wants::Most => READ_BYTES_MAX,
            };
            if self.under_way + unsent + room > READ_AHEAD_BYTES_MAX {
                return None;
            }
            self.queue.pop_front();
            read.room = room;
            self.under_way += room;
            return Some(Ok(read.asked(ticket, None, now)));
        }
        None
    }

    /// The node has answered what the stream asked: that is what it comes to, if it is all.
    pub(crate) fn heard(&mut self, ticket: u64, outcome: Outcome) -> Option<Outcome> {
        let Some(read) = self.reads.get_mut(&ticket) else { return Some(outcome) };
        self.under_way -= std::mem::take(&mut read.room);
        if let Ok(Response::Log(LogResponse::Entries(entries))) = &outcome {
            entries.iter().for_each(|entry| self.guess.saw(entry_bytes(entry)));
        }
        let outcome = read.reading.heard(outcome);
        match (&outcome, read.reading.wants()) {
            (Some(_), _) => drop(self.reads.remove(&ticket)),
            // It was its turn already.
            (None, Wants::Most) => self.queue.push_front(ticket),
            (None, _) => self.queue.push_back(ticket),
        }
        outcome
    }

    /// The door has answered for the node.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.under_way -= self.reads.remove(&ticket).map_or(0, |read| read.room);
    }
}

impl Read {
    fn asked(&self, ticket: u64, held: Held, now: Instant) -> Ticketed {
        let deadline = self.deadline.saturating_duration_since(now);
        Ticketed { ticket, request: self.reading.request(self.room), deadline, held }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use sharedlog::{Batch, ClientId, Data, Position, Stamp};
    use tablets::request::{Content, LogEntry, LogRequest, Request};

    use super::*;
    use crate::limits::WAITING_READS_MAX;

    fn read(ticket: u64, count: u32, wait_ms: u64) -> Ticketed {
        let (log, from, wait) = ("l".to_owned(), Position(7), base::Duration::from_millis(wait_ms));
        let request = Request::Log(LogRequest::Read { log, from, count, wait, bytes: READ_BYTES_MAX });
        Ticketed { ticket, request, deadline: Duration::from_secs(10), held: None }
    }

    fn entry(bytes: usize) -> LogEntry {
        let batch = Batch::of(&[vec![7; bytes].into()]).expect("it is small");
        let data = Data { stamp: Stamp { client: ClientId(3), sequence: 4 }, oldest_open: 4, since: None, batch };
        LogEntry { position: Position(7), content: Content::Data(data) }
    }

    fn entries(bytes: &[usize]) -> Outcome {
        Ok(Response::Log(LogResponse::Entries(bytes.iter().map(|bytes| entry(*bytes)).collect())))
    }

    const LARGER: Outcome = Ok(Response::Log(LogResponse::Larger));

    /// Ticket and bytes of all that is asked next.
    fn asked(pace: &mut Pace, unsent: usize) -> Vec<(u64, usize)> {
        let next = std::iter::from_fn(|| pace.next(unsent, Instant::now()));
        let bytes = |request: &Request| match request {
            Request::Log(LogRequest::Read { bytes, .. }) => *bytes,
            other => panic!("{other:?}"),
        };
        next.map(|asked| asked.map(|asked| (asked.ticket, bytes(&asked.request))).expect("there is a place")).collect()
    }

    fn with_reads(tickets: std::ops::Range<u64>) -> Pace {
        let mut pace = Pace::new(Waits::default());
        for ticket in tickets {
            assert!(pace.take(read(ticket, 1, 0), Instant::now()).is_none());
        }
        pace
    }

    #[test]
    fn what_is_no_read_is_not_held_back() {
        let request = Request::Log(LogRequest::Tail { log: "l".to_owned() });
        let asked = Ticketed { ticket: 1, request, deadline: Duration::ZERO, held: None };
        assert!(with_reads(0..0).take(asked, Instant::now()).is_some());
    }

    #[test]
    fn no_more_is_asked_than_there_is_room_for() {
        let mut pace = with_reads(0..1_000);
        let first = asked(&mut pace, 0);
        assert_eq!(first.len(), 128, "nothing is known yet");
        for (ticket, _) in &first {
            assert_eq!(pace.heard(*ticket, entries(&[2_000_000])), Some(entries(&[2_000_000])));
        }
        let unsent = 4 << 20;
        let second = asked(&mut pace, unsent);
        assert_eq!(second, [(128, 2_500_070)]);
        assert_eq!(asked(&mut pace, unsent), []);
        assert_eq!(asked(&mut pace, 0), [(129, 2_500_070), (130, 2_500_070)]);
        for ticket in 128..131 {
            pace.heard(ticket, Err(Failure::Overloaded(String::new())));
        }
        assert_eq!(asked(&mut pace, READ_AHEAD_BYTES_MAX), []);
        assert_eq!(asked(&mut pace, 0).len(), 3);
    }

    #[test]
    fn small_ones_are_many_at_a_time() {
        let mut pace = with_reads(0..3_000);
        let (ticket, _) = asked(&mut pace, READ_AHEAD_BYTES_MAX - (64 << 10))[0];
        pace.heard(ticket, entries(&[100]));
        assert_eq!(asked(&mut pace, 0).len(), 2_048);
    }

    #[test]
    fn a_larger_entry_is_read_before_what_comes_after_it() {
        let mut pace = with_reads(0..200);
        assert_eq!(asked(&mut pace, 0).len(), 128);
        assert_eq!(pace.heard(5, LARGER), None);
        assert_eq!(asked(&mut pace, 0), [], "there is room for a small one, and it is not the next");
        for ticket in (0..128).filter(|ticket| *ticket != 5) {
            pace.heard(ticket, entries(&[50_000]));
        }
        assert_eq!(asked(&mut pace, 0)[0], (5, READ_BYTES_MAX));
        assert_eq!(pace.heard(5, entries(&[3_000_000])), Some(entries(&[3_000_000])));
    }

    #[test]
    fn who_waits_takes_no_room_until_something_has_come() {
        let mut pace = with_reads(0..1);
        for ticket in 10..200 {
            pace.take(read(ticket, 2, 500), Instant::now());
        }
        let idle = asked(&mut pace, READ_AHEAD_BYTES_MAX);
        assert_eq!((idle.len(), idle[0].1), (190, crate::limits::WAITING_READ_BYTES));
        assert_eq!(pace.heard(10, entries(&[])), Some(entries(&[])), "nothing came");
        assert_eq!(pace.heard(11, entries(&[1])), None);
        assert_eq!(asked(&mut pace, 0).iter().map(|asked| asked.0).collect::<Vec<_>>(), [0, 11]);
        assert_eq!(pace.heard(11, entries(&[1, 1])), Some(entries(&[1, 1])));
    }

    #[test]
    fn who_finds_no_place_to_wait_is_refused() {
        let waits = Waits::default();
        let places: Vec<Arc<_>> = (0..WAITING_READS_MAX).map(|_| waits.take().expect("there is one")).collect();
        let mut pace = Pace::new(waits);
        pace.take(read(1, 1, 500), Instant::now());
        assert!(matches!(pace.next(0, Instant::now()), Some(Err((1, Failure::Overloaded(_))))));
        drop(places);
        pace.take(read(2, 1, 500), Instant::now());
        let asked = pace.next(0, Instant::now()).expect("there is a place").expect("and it waits");
        assert!(asked.held.is_some() && pace.next(0, Instant::now()).is_none());
    }

    #[test]
    fn what_is_forgotten_takes_no_room() {
        let mut pace = with_reads(0..130);
        let first = asked(&mut pace, 0);
        for (ticket, _) in first {
            pace.forget(ticket);
        }
        pace.forget(128);
        assert_eq!(asked(&mut pace, 0).len(), 1);
        assert_eq!(pace.heard(5, LARGER), Some(LARGER), "nobody asks again");
    }
}
