//! Room for what reads of logs bring, from when the node is asked until it answers: so much of all streams together is on its
//! way between the logs' units and the door.
//!
//! Whoever finds none waits its turn, and is woken when that has come and there is room. A place in the queue holds all behind it
//! up, so it is for those alone that are polled when they are woken: not for a stream whose client has yet to take a message.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::limits::{READS_BYTES_MAX, TURN_TIME_MAX};

/// The room of all streams of a door.
#[derive(Debug, Default)]
pub(crate) struct Room {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes.
    taken: usize,
    /// Who waits, in the order of their numbers.
    queue: VecDeque<Waiter>,
    last: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
    /// When it was first and was woken.
    woken_at: Option<Instant>,
}

/// A place in the queue, or none.
#[derive(Debug, Default)]
pub(crate) struct Turn(Option<u64>);

impl Room {
    /// Takes room if there is some, nobody waits for any, and no more than `most` is taken then.
    pub(crate) fn take_at_once(&self, bytes: usize, most: usize) -> bool {
        let mut state = self.state();
        let fits = state.queue.is_empty() && state.taken + bytes <= most.min(READS_BYTES_MAX);
        if fits {
            state.taken += bytes;
        }
        fits
    }

    /// Takes room in turn. If there is none yet, the waker is woken when that may have changed.
    pub(crate) fn take(&self, turn: &mut Turn, bytes: usize, waker: &Waker) -> bool {
        let mut state = self.state();
        state.skip_absent(turn.0);
        let place = turn.0.and_then(|number| state.place(number));
        let is_first = place.map_or(state.queue.is_empty(), |place| place == 0);
        if is_first && state.taken + bytes <= READS_BYTES_MAX {
            state.taken += bytes;
            if place.is_some() {
                state.queue.pop_front();
            }
            turn.0 = None;
            wake_first(state);
            return true;
        }
        match place {
            Some(place) => {
                let waiter = &mut state.queue[place];
                waiter.waker.clone_from(waker);
                // It has come.
                waiter.woken_at = None;
            }
            None => {
                state.last += 1;
                let number = state.last;
                state.queue.push_back(Waiter { number, waker: waker.clone(), woken_at: None });
                turn.0 = Some(number);
            }
        }
        false
    }

    /// Leaves the queue.
    pub(crate) fn leave(&self, turn: &mut Turn) {
        let Some(number) = turn.0.take() else { return };
        let mut state = self.state();
        if let Some(place) = state.place(number) {
            state.queue.remove(place);
            if place == 0 {
                wake_first(state);
            }
        }
    }

    /// Gives room back.
    pub(crate) fn give(&self, bytes: usize) {
        if bytes > 0 {
            let mut state = self.state();
            state.taken -= bytes;
            wake_first(state);
        }
    }

    /// Nothing that holds this lock panics half-way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.state().taken
    }
}

impl State {
    fn place(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, |waiter| waiter.number).ok()
    }

    /// Whoever is first, was woken and has not come for long loses its place: its client took back what it had said that it takes.
    fn skip_absent(&mut self, here: Option<u64>) {
        let is_absent = |waiter: &mut Waiter| {
            here != Some(waiter.number) && waiter.woken_at.is_some_and(|woken_at| woken_at.elapsed() > TURN_TIME_MAX)
        };
        if self.queue.pop_front_if(is_absent).is_some()
            && let Some(first) = self.queue.front_mut()
        {
            first.woken_at = Some(Instant::now());
            first.waker.wake_by_ref();
        }
    }
}

/// Has the first of the queue look again, once the lock is free.
fn wake_first(mut state: MutexGuard<'_, State>) {
    let first = state.queue.front_mut().map(|first| {
        first.woken_at.get_or_insert_with(Instant::now);
        first.waker.clone()
    });
    drop(state);
    first.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiter {
        turn: Turn,
        woken: Arc<Woken>,
    }

    impl Waiter {
        fn new() -> Self {
            Self { turn: Turn::default(), woken: Arc::default() }
        }

        fn takes(&mut self, room: &Room, bytes: usize) -> bool {
            room.take(&mut self.turn, bytes, &Waker::from(Arc::clone(&self.woken)))
        }

        fn was_woken(&self) -> bool {
            self.woken.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    #[test]
    fn who_finds_no_room_has_its_turn() {
        let room = Room::default();
        let [mut all, mut large, mut small] = [(); 3].map(|()| Waiter::new());
        assert!(all.takes(&room, READS_BYTES_MAX - 10));
        assert!(!large.takes(&room, 20));
        assert!(!small.takes(&room, 5), "it would fit, and comes after the large one");
        assert!(!room.take_at_once(5, READS_BYTES_MAX));
        room.give(5);
        assert!(large.was_woken() && !small.was_woken());
        assert!(!large.takes(&room, 20));
        room.give(5);
        assert!(large.was_woken());
        assert!(large.takes(&room, 20));
        assert!(small.was_woken(), "its turn has come");
        assert!(!small.takes(&room, 5));
        room.give(20);
        assert!(small.was_woken() && small.takes(&room, 5));
        assert!(room.take_at_once(5, READS_BYTES_MAX));
        room.give(READS_BYTES_MAX - 20 + 10);
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn who_does_not_come_loses_its_turn() {
        let room = Room::default();
        let [mut all, mut absent, mut second] = [(); 3].map(|()| Waiter::new());
        assert!(all.takes(&room, READS_BYTES_MAX));
        assert!(!absent.takes(&room, 1) && !second.takes(&room, 1));
        room.give(READS_BYTES_MAX);
        assert!(absent.was_woken());
        assert!(!second.takes(&room, 1), "the first may be on its way");
        let woken_at = room.state().queue[0].woken_at.expect("its turn has come");
        room.state().queue[0].woken_at = woken_at.checked_sub(2 * TURN_TIME_MAX);
        assert!(second.takes(&room, 1));
        assert!(absent.takes(&room, 1), "it has another turn");
        assert!(room.state().queue.is_empty());
    }

    #[test]
    fn who_leaves_holds_nobody_up() {
        let room = Room::default();
        let [mut all, mut first, mut second] = [(); 3].map(|()| Waiter::new());
        assert!(all.takes(&room, READS_BYTES_MAX));
        assert!(!first.takes(&room, 1) && !second.takes(&room, 1));
        room.leave(&mut first.turn);
        assert!(second.was_woken() && !first.was_woken());
        room.give(READS_BYTES_MAX);
        assert!(second.takes(&room, 1));
        assert!(first.takes(&room, 1), "nobody waits any more");
        room.leave(&mut first.turn);
        assert!(!room.take_at_once(10, 5) && room.take_at_once(3, 5), "no more than was said");
    }
}
