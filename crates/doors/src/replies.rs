//! The outcomes of one stream's requests, on their way from the node to the stream.

use std::collections::HashMap;
use std::mem;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tablets::request::{Failure, LogResponse, Outcome, Response};

use crate::columns::translate::row_bytes;
use crate::limits::{STREAM_ANSWER_BYTES_MAX, STREAMS_ANSWER_BYTES_MAX, STREAMS_CROWDED_BYTES, STREAMS_FULL_BYTES};
use crate::log::translate::entry_bytes;
use crate::reads;
use crate::room::{Room, Turn};
use crate::taking::Taking;

/// Gathers outcomes until the stream takes them. Whoever gives many wakes the stream once.
///
/// What clients don't take is bounded here, for each stream and for all: an answer past the bounds becomes the refusal
/// of a read, which did nothing. What a write came to is a few bytes, and always fits.
#[derive(Debug)]
pub struct Replies {
    gathered: Mutex<Gathered>,
    /// Bytes of answers that are in no message yet.
    bytes: AtomicUsize,
    bytes_of_all: Arc<AtomicUsize>,
    room: Arc<Room>,
    /// By its connection's client.
    taking: Taking,
    /// The stream has gone. It is said while `gathered` is locked: from then on nothing is charged.
    is_given_up: AtomicBool,
}

/// The stream's own hold of its replies: when it goes, nobody waits for them any more.
#[derive(Debug)]
pub(crate) struct Owned(Arc<Replies>);

#[derive(Debug, Default)]
struct Gathered {
    outcomes: Vec<(u64, Outcome)>,
    waker: Option<Waker>,
    /// Room that reads under way have, by ticket.
    reserved: HashMap<u64, usize>,
    /// The stream's place among those that wait for room.
    turn: Turn,
}

impl Owned {
    pub(crate) fn new(replies: Replies) -> Self {
        Self(Arc::new(replies))
    }

    /// For whoever gives them.
    pub(crate) fn shared(&self) -> &Arc<Replies> {
        &self.0
    }
}

impl Deref for Owned {
    type Target = Replies;

    fn deref(&self) -> &Replies {
        &self.0
    }
}

impl Drop for Owned {
    /// Whoever gives replies may hold them for long, and nobody takes what is here.
    fn drop(&mut self) {
        let outcomes = {
            let mut gathered = self.0.gathered();
            self.0.is_given_up.store(true, Ordering::Relaxed);
            self.0.release(self.0.bytes.load(Ordering::Relaxed));
            mem::take(&mut gathered.outcomes)
        };
        drop(outcomes);
    }
}

impl Replies {
    pub(crate) fn new(bytes_of_all: Arc<AtomicUsize>, room: Arc<Room>, taking: Taking) -> Self {
        let (gathered, bytes, is_given_up) = Default::default();
        Self { gathered, bytes, bytes_of_all, room, taking, is_given_up }
    }

    /// What is known of the connection's client.
    pub(crate) fn taking(&self) -> &Taking {
        &self.taking
    }

    /// Whether the stream has gone, so that nobody waits for them any more.
    pub fn are_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Gives the outcome of the request with this ticket.
    pub fn give(&self, ticket: u64, outcome: Outcome) {
        let (waker, reserved) = {
            let mut gathered = self.gathered();
            if !self.are_given_up() {
                gathered.outcomes.push((ticket, self.bounded(outcome)));
            }
            (gathered.waker.take(), gathered.reserved.remove(&ticket))
        };
        self.give_back(reserved.unwrap_or_default());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes room for what a read will bring, if there is some and no more than `most` is taken then. It is to be
    /// [kept](Self::keep).
    pub(crate) fn take_room_at_once(&self, bytes: usize, most: usize) -> bool {
        self.room.take_at_once(bytes, most)
    }

    /// The same in turn: if there is none yet, the stream is woken when there may be. It must be one that looks again
    /// then.
    pub(crate) fn take_room(&self, bytes: usize, context: &Context<'_>) -> bool {
        self.room.take(&mut self.gathered().turn, bytes, context.waker())
    }

    /// The stream waits for room no longer.
    pub(crate) fn leave_queue(&self) {
        self.room.leave(&mut self.gathered().turn);
    }

    /// Room was taken for what is asked under this ticket: it is given back with the answer, whether or not the stream
    /// is there still.
    pub(crate) fn keep(&self, ticket: u64, bytes: usize) {
        if bytes > 0 {
            self.taking.charge(bytes);
            self.gathered().reserved.insert(ticket, bytes);
        }
    }

    fn give_back(&self, reserved: usize) {
        self.taking.release(reserved);
        self.room.give(reserved);
    }

    /// Nothing that holds this lock panics half-way.
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All outcomes there are; none: the stream is woken when there are some.
    pub(crate) fn take(&self, context: &Context<'_>) -> Vec<(u64, Outcome)> {
        let mut gathered = self.gathered();
        if gathered.outcomes.is_empty() {
            gathered.waker = Some(context.waker().clone());
        }
        mem::take(&mut gathered.outcomes)
    }

    /// An answer of so many bytes waits that did not come from the node.
    pub(crate) fn charge(&self, bytes: usize) {
        self.add(bytes);
    }

    /// What waits here, and in all streams together.
    fn add(&self, bytes: usize) -> (usize, usize) {
        self.taking.charge(bytes);
        let of_this = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (of_this, self.bytes_of_all.fetch_add(bytes, Ordering::Relaxed) + bytes)
    }

    /// Whether so much waits, here or in all streams together, that nothing more should be asked.
    pub(crate) fn are_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= STREAM_ANSWER_BYTES_MAX || self.of_all_are_full()
    }

    /// The same of all streams together.
    pub(crate) fn of_all_are_full(&self) -> bool {
        self.bytes_of_all.load(Ordering::Relaxed) >= STREAMS_FULL_BYTES
    }

    /// Whether so much waits in all streams together that it should be for clients that take it.
    pub(crate) fn are_crowded(&self) -> bool {
        self.bytes_of_all.load(Ordering::Relaxed) >= STREAMS_CROWDED_BYTES
    }

    /// An answer of so many bytes is in a message now, which others count, or never will be.
    pub(crate) fn release(&self, bytes: usize) {
        self.taking.release(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes_of_all.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn bounded(&self, outcome: Outcome) -> Outcome {
        let bytes = size(&outcome);
        if bytes == 0 {
            return outcome;
        }
        let (of_this, of_all) = self.add(bytes);
        if of_this <= STREAM_ANSWER_BYTES_MAX && of_all <= STREAMS_ANSWER_BYTES_MAX {
            return outcome;
        }
        self.release(bytes);
        Err(Failure::Overloaded("too many bytes of answers wait for their clients to take them".to_owned()))
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.release(self.bytes.load(Ordering::Relaxed));
        self.leave_queue();
        let reserved = mem::take(&mut self.gathered().reserved);
        self.give_back(reserved.into_values().sum());
    }
}

/// Bytes of an outcome that its stream is charged for: those of a row, or of entries of a log.
pub(crate) fn size(outcome: &Outcome) -> usize {
    let Ok(response) = outcome else { return 0 };
    match reads::content(response) {
        Response::Row(cells) => row_bytes(cells),
        Response::Log(LogResponse::Entries(entries)) => entries.iter().map(entry_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::READS_BYTES_MAX;
    use base::Timestamp;
    use tablets::request::Cell;

    fn row(bytes: usize) -> Outcome {
        Ok(Response::Row(vec![Cell { column: "c".into(), value: vec![0; bytes].into(), version: Timestamp(1) }]))
    }

    fn taken(replies: &Replies) -> Vec<(u64, Outcome)> {
        replies.take(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn answers_that_nobody_takes_are_bounded() {
        let all = Arc::new(AtomicUsize::new(0));
        let replies = Replies::new(Arc::clone(&all), Arc::default(), Taking::default());
        replies.give(1, row(STREAM_ANSWER_BYTES_MAX - 1_024));
        replies.give(2, row(1_024));
        replies.give(3, Ok(Response::Written { version: Timestamp(1) }));
        let given = taken(&replies);
        assert!(matches!(given[1], (2, Err(Failure::Overloaded(_)))));
        assert!(matches!(given[2], (3, Ok(_))));
        replies.release(size(&given[0].1));
        replies.give(4, row(1_024));
        assert!(matches!(taken(&replies)[..], [(4, Ok(_))]));
        drop(replies);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    /// However long the node holds what one of its requests is answered with.
    #[test]
    fn a_stream_that_has_gone_is_charged_for_nothing() {
        let all = Arc::new(AtomicUsize::new(0));
        let replies = Owned::new(Replies::new(Arc::clone(&all), Arc::default(), Taking::default()));
        let held = Arc::clone(replies.shared());
        held.give(1, row(1_000));
        assert!(all.load(Ordering::Relaxed) >= 1_000);
        drop(replies);
        held.give(2, row(1_000));
        assert_eq!(all.load(Ordering::Relaxed), 0);
        assert!(held.gathered().outcomes.is_empty());
        drop(held);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_answer_takes_the_place_of_its_room() {
        let room = Arc::new(Room::default());
        let replies = Replies::new(Arc::default(), Arc::clone(&room), Taking::default());
        for (ticket, bytes) in [(1, 100), (2, 20), (3, 3)] {
            assert!(replies.take_room_at_once(bytes, READS_BYTES_MAX));
            replies.keep(ticket, bytes);
        }
        replies.give(2, row(5));
        assert_eq!(room.taken(), 103);
        replies.give(1, Err(Failure::Overloaded(String::new())));
        assert_eq!(room.taken(), 3);
        assert!(!replies.take_room(READS_BYTES_MAX, &Context::from_waker(Waker::noop())));
        drop(replies);
        assert_eq!(room.taken(), 0);
        assert!(room.take_at_once(1, 1), "nobody waits any more");
    }
}
