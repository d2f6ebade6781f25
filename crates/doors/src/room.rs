//! Room for what reads of logs bring, from when the node is asked until it answers: so much of all streams together is
//! on its way between the logs' units and the door.
//!
//! Whoever finds none waits its turn, and is woken when that has come and there is room. A place in the queue holds all
//! behind it up, so it is for those alone that are polled when they are woken: not for a stream whose client has yet to
//! take a message.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::limits::READS_BYTES_MAX;

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
    queue: VecDeque<(u64, Waker)>,
    last: u64,
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
            Some(place) => state.queue[place].1.clone_from(waker),
            None => {
                state.last += 1;
                let number = state.last;
                state.queue.push_back((number, waker.clone()));
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
        self.queue.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

/// Has the first of the queue look again, once the lock is free.
fn wake_first(state: MutexGuard<'_, State>) {
    let first = state.queue.front().map(|(_, waker)| waker.clone());
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
