//! The reads of logs in one stream: the node is asked for no more at a time than their connection may read ahead of what
//! its client takes.
//!
//! A message may hold a thousand reads of the largest entries. Put to the node at once they would keep all others'
//! waiting there, and their answers would be too many to be kept. So they wait here, in their order, until there is
//! room for what each is likely to bring; those that wait for something to come are put to the node at once, and take
//! their room when it has.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tablets::request::{Failure, LogResponse, Outcome, Response};

use crate::allowance::{Allowance, Common, Share, Short};
use crate::reading::{Reading, Waits, Wants, no_room};
use crate::{Held, Ticketed};

/// The reads of a stream that have no answer yet.
#[derive(Debug)]
pub(crate) struct Pace {
    waits: Waits,
    allowance: Allowance,
    common: Common,
    /// The next read waits for what other connections have taken.
    is_short: bool,
    /// By ticket.
    reads: HashMap<u64, Read>,
    /// Those that will wait for something to come.
    idle: VecDeque<u64>,
    /// Those that want room.
    queue: VecDeque<u64>,
}

#[derive(Debug)]
struct Read {
    reading: Reading,
    /// The node answers by then.
    deadline: Instant,
    /// The node is asked.
    is_under_way: bool,
    share: Option<Share>,
}

impl Pace {
    pub(crate) fn new(waits: Waits, allowance: Allowance, common: Common) -> Self {
        Self {
            waits,
            allowance,
            common,
            is_short: false,
            reads: HashMap::new(),
            idle: VecDeque::new(),
            queue: VecDeque::new(),
        }
    }

    /// Takes in what the stream asks, if it is a read of a log.
    pub(crate) fn take(&mut self, mut asked: Ticketed, now: Instant) -> Option<Ticketed> {
        let Some(reading) = Reading::of(&mut asked.request) else { return Some(asked) };
        let row = if reading.wants() == Wants::Something { &mut self.idle } else { &mut self.queue };
        row.push_back(asked.ticket);
        let deadline = now + asked.deadline;
        self.reads.insert(asked.ticket, Read { reading, deadline, is_under_way: false, share: None });
        None
    }

    /// Whether the next read waits for what other connections have taken.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// What the node may be asked next, or why it can't be.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Result<Ticketed, (u64, Failure)>> {
        self.is_short = false;
        while let Some(ticket) = self.idle.pop_front() {
            let Some(read) = self.reads.get_mut(&ticket) else { continue };
            return Some(match self.waits.take(&read.reading, &self.allowance) {
                Ok(place) => Ok(read.asked(ticket, Some(Arc::new(place)), now)),
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
            if read.deadline <= now {
                self.queue.pop_front();
                self.reads.remove(&ticket);
                return Some(Err((ticket, no_room())));
            }
            let share = match self.allowance.take_at_once(&read.reading, &self.common) {
                Ok(share) => share,
                Err(short) => {
                    self.is_short = short == Short::OfAll;
                    return None;
                }
            };
            self.queue.pop_front();
            let held = share.held();
            read.share = Some(share);
            return Some(Ok(read.asked(ticket, held, now)));
        }
        None
    }

    /// The node has answered what the stream asked: that is what it comes to, if it is all, and its share, to be kept
    /// until it has left.
    pub(crate) fn heard(&mut self, ticket: u64, outcome: Outcome) -> Option<(Outcome, Option<Share>)> {
        let Some(read) = self.reads.get_mut(&ticket) else { return Some((outcome, None)) };
        let share = read.share.take();
        read.is_under_way = false;
        match (read.reading.heard(outcome), read.reading.wants()) {
            (Some(outcome), _) => {
                self.reads.remove(&ticket);
                if let (Some(share), Ok(Response::Log(LogResponse::Entries(entries)))) = (&share, &outcome) {
                    share.came_to(entries);
                }
                return Some((outcome, share));
            }
            // It was its turn already.
            (None, Wants::Most) => self.queue.push_front(ticket),
            (None, _) => self.queue.push_back(ticket),
        }
        None
    }

    /// The door answers for the node: why, of those that the node was not asked.
    pub(crate) fn forget(&mut self, ticket: u64) -> Option<Failure> {
        let read = self.reads.remove(&ticket)?;
        (!read.is_under_way).then(no_room)
    }

    /// Drops the places of those that were forgotten.
    pub(crate) fn tidy(&mut self) {
        self.queue.retain(|ticket| self.reads.contains_key(ticket));
    }
}

impl Read {
    fn asked(&mut self, ticket: u64, held: Held, now: Instant) -> Ticketed {
        self.is_under_way = true;
        let room = self.share.as_ref().map_or(0, Share::bytes);
        let deadline = self.deadline.saturating_duration_since(now);
        Ticketed { ticket, request: self.reading.request(room), deadline, held }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sharedlog::{Batch, ClientId, Data, Position, Stamp};
    use tablets::request::{Content, LogEntry, LogRequest, Request};

    use super::*;
    use crate::limits::{READ_BYTES_MAX, WAITING_READ_BYTES, WAITING_READS_OF_ONE_MAX};
    use crate::reading::tests::{most, read_of};

    fn read(ticket: u64, count: u32, wait_ms: u64) -> Ticketed {
        let (log, from, wait) = ("l".to_owned(), Position(7), base::Duration::from_millis(wait_ms));
        let request = Request::Log(LogRequest::Read { log, from, count, wait, bytes: READ_BYTES_MAX });
        Ticketed { ticket, request, deadline: Duration::from_secs(10), held: None }
    }

    fn entries(bytes: &[usize]) -> Outcome {
        let entry = |bytes: &usize| {
            let batch = Batch::of(&[vec![7; *bytes].into()]).expect("it is small");
            let data = Data { stamp: Stamp { client: ClientId(3), sequence: 4 }, oldest_open: 4, batch };
            LogEntry { position: Position(7), content: Content::Data(data) }
        };
        Ok(Response::Log(LogResponse::Entries(bytes.iter().map(entry).collect())))
    }

    const LARGER: Outcome = Ok(Response::Log(LogResponse::Larger));

    /// Ticket and bytes of all that is asked next.
    fn asked(pace: &mut Pace) -> Vec<(u64, usize)> {
        let next = std::iter::from_fn(|| pace.next(Instant::now()));
        let bytes = |request: &Request| match request {
            Request::Log(LogRequest::Read { bytes, .. }) => *bytes,
            other => panic!("{other:?}"),
        };
        next.map(|asked| asked.map(|asked| (asked.ticket, bytes(&asked.request))).expect("there is a place")).collect()
    }

    fn tickets(asked: &[(u64, usize)]) -> Vec<u64> {
        asked.iter().map(|asked| asked.0).collect()
    }

    fn with_reads(tickets: std::ops::Range<u64>) -> Pace {
        let mut pace = Pace::new(Waits::default(), Allowance::default(), Common::default());
        for ticket in tickets {
            assert!(pace.take(read(ticket, 1, 0), Instant::now()).is_none());
        }
        pace
    }

    /// The same where entries have been so large.
    fn with_reads_of(bytes: usize, tickets: std::ops::Range<u64>) -> Pace {
        let pace = with_reads(tickets);
        let Ok(Response::Log(LogResponse::Entries(entries))) = entries(&[bytes]) else { unreachable!() };
        pace.allowance.take_at_once(&most("l"), &pace.common).expect("there is room").came_to(&entries);
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
        assert_eq!(asked(&mut with_reads(0..1_000)).len(), 128, "nothing is known yet");
        let mut pace = with_reads_of(2_000_000, 0..1_000);
        assert_eq!(tickets(&asked(&mut pace)), [0, 1, 2]);
        let (outcome, share) = pace.heard(1, entries(&[1_500_000])).expect("it is all");
        assert_eq!(outcome, entries(&[1_500_000]));
        assert_eq!(asked(&mut pace), [], "it has not left");
        drop(share);
        assert_eq!(tickets(&asked(&mut pace)), [3]);
        for ticket in [0, 2, 3] {
            assert!(pace.heard(ticket, Err(Failure::Overloaded(String::new()))).is_some());
        }
        assert_eq!(tickets(&asked(&mut pace)), [4, 5, 6]);
        // All of a connection's streams and calls have it together.
        let mut other = Pace::new(Waits::default(), pace.allowance.clone(), Common::default());
        other.take(read(1, 1, 0), Instant::now());
        assert_eq!(asked(&mut other), []);
        drop(pace);
        assert_eq!(tickets(&asked(&mut other)), [1]);
    }

    #[test]
    fn small_ones_are_many_at_a_time() {
        assert_eq!(asked(&mut with_reads_of(100, 0..3_000)).len(), 2_048);
    }

    #[test]
    fn a_larger_entry_is_read_before_what_comes_after_it() {
        let mut pace = with_reads(0..200);
        assert_eq!(asked(&mut pace).len(), 128);
        assert!(pace.heard(5, LARGER).is_none());
        assert_eq!(asked(&mut pace), [], "there is room for a small one, and it is not the next");
        for ticket in (0..128).filter(|ticket| *ticket != 5) {
            pace.heard(ticket, entries(&[50_000]));
        }
        assert_eq!(asked(&mut pace)[0], (5, READ_BYTES_MAX));
        assert_eq!(pace.heard(5, entries(&[3_000_000])).map(|heard| heard.0), Some(entries(&[3_000_000])));
    }

    #[test]
    fn who_waits_takes_no_room_until_something_has_come() {
        let mut pace = with_reads(0..1);
        for ticket in 10..200 {
            pace.take(read(ticket, 2, 500), Instant::now());
        }
        let all = [(); 2].map(|()| pace.allowance.take_at_once(&most("l"), &pace.common).expect("there is room"));
        let idle = asked(&mut pace);
        assert_eq!((idle.len(), idle[0].1), (190, WAITING_READ_BYTES));
        assert_eq!(pace.heard(10, entries(&[])).map(|heard| heard.0), Some(entries(&[])), "nothing came");
        assert!(pace.heard(11, entries(&[1])).is_none());
        drop(all);
        assert_eq!(tickets(&asked(&mut pace)), [0, 11]);
        assert_eq!(pace.heard(11, entries(&[1, 1])).map(|heard| heard.0), Some(entries(&[1, 1])));
    }

    #[test]
    fn who_finds_no_place_to_wait_is_refused() {
        let mut pace = with_reads(0..0);
        let place = || pace.waits.take(&read_of("l", 1, 500), &pace.allowance).expect("there is one");
        let places: Vec<_> = (0..WAITING_READS_OF_ONE_MAX).map(|_| place()).collect();
        pace.take(read(1, 1, 500), Instant::now());
        assert!(matches!(pace.next(Instant::now()), Some(Err((1, Failure::Overloaded(_))))));
        drop(places);
        pace.take(read(2, 1, 500), Instant::now());
        let asked = pace.next(Instant::now()).expect("there is a place").expect("and it waits");
        assert!(asked.held.is_some() && pace.next(Instant::now()).is_none());
    }

    #[test]
    fn who_had_no_turn_by_its_deadline_is_told_why() {
        let mut pace = with_reads(0..3);
        let late = Instant::now() + Duration::from_secs(20);
        assert!(matches!(pace.next(late), Some(Err((0, Failure::Overloaded(_))))));
        assert!(matches!(pace.forget(1), Some(Failure::Overloaded(_))));
        assert_eq!(tickets(&asked(&mut pace)), [2]);
        assert_eq!(pace.forget(2), None, "the node was asked");
        assert_eq!(pace.heard(2, LARGER).map(|heard| heard.0), Some(LARGER), "nobody asks again");
    }

    #[test]
    fn what_is_forgotten_leaves_nothing_behind() {
        let mut pace = with_reads(0..1_000);
        (0..1_000).for_each(|ticket| drop(pace.forget(ticket)));
        pace.tidy();
        assert_eq!((pace.queue.len(), pace.reads.len()), (0, 0));
    }
}
