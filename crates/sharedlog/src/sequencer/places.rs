//! The places of appends that are known by their stamps (guarantee 20).
//!
//! A caller that hears nothing of its append tries it again, elsewhere, under the same stamp; the attempt that it gave
//! up may go on all the same, and later than the other. So the sequencer gives one append one place in its epoch,
//! whoever asks: the head of the chain takes the first that comes, and the other finds its own stamp there.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};

use crate::limits::{PLACES_CLIENTS_MAX, PLACES_MAX};
use crate::sequencer::{Named, Placed};
use crate::{ClientId, Position, Stamp};

/// What is known of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It needs a place.
    New,
    /// It has this one.
    At(Placed),
    /// Its client has said that it is decided: nobody waits for it any more.
    Decided,
    /// It may have one of before all that is remembered.
    Forgotten {
        /// Where that begins.
        known_from: Position,
    },
}

/// Which append has which place.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    of: BTreeMap<Stamp, Placed>,
    /// The same by position: what was given first is forgotten first.
    at: BTreeMap<Position, Stamp>,
    floors: BTreeMap<ClientId, Floor>,
    /// The clients by when they asked last: who hasn't for longest is forgotten first.
    by_use: BTreeMap<u64, ClientId>,
    /// Counts what was asked.
    uses: u64,
    /// Of what was known something is forgotten that lies below.
    forgotten_below: Position,
    /// Below this something may lie that nobody has told of.
    lacks_below: Position,
}

/// What a client has said.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    /// Its oldest append that isn't decided.
    oldest_open: u64,
    /// When it asked last.
    used: u64,
    /// What was given out by then lies below.
    below: Position,
}

impl Places {
    /// Looks an append up, and forgets what its client says is decided.
    pub(super) fn look_up(&mut self, named: &Named) -> Place {
        let Named { stamp, oldest_open, decided, since } = *named;
        let floor = self.raise(stamp.client, oldest_open);
        let of_client = |sequence| Stamp { client: stamp.client, sequence };
        while let Some((past, placed)) = self.of.range(of_client(0)..of_client(floor)).next() {
            let (past, position) = (*past, placed.position);
            self.of.remove(&past);
            self.at.remove(&position);
        }
        if stamp.sequence < floor {
            return Place::Decided;
        }
        let known_from = self.forgotten_below.max(self.lacks_below);
        match self.of.get(&stamp) {
            // It has lain there; another head, that hasn't told yet, may have it later on.
            Some(placed) if since.is_some() && placed.position < self.lacks_below => Place::Forgotten { known_from },
            Some(placed) if decided.is_none_or(|decided| placed.position > decided) => Place::At(*placed),
            Some(_) => Place::New,
            None if since.is_some_and(|since| since < known_from) && !planted(Bug::ForgottenPlaced) => {
                Place::Forgotten { known_from }
            }
            None => Place::New,
        }
    }

    /// Not all is known that lies below, as far as others have told.
    pub(super) fn lacks_below(&mut self, position: Position) {
        self.lacks_below = position;
    }

    fn forget_below(&mut self, position: Position) {
        self.forgotten_below = self.forgotten_below.max(position);
    }

    /// An append lies there since an epoch before. Should it have two places the last one counts: it was given since the
    /// head of the first didn't have the append, be it that another had.
    pub(super) fn remember(&mut self, stamp: Stamp, position: Position) {
        if self.of.get(&stamp).is_none_or(|placed| position > placed.position) {
            self.put(stamp, Placed { position, oldest_open: stamp.sequence });
        }
    }

    /// A client says which of its appends is the oldest that isn't decided: which is it, with all that was said before?
    fn raise(&mut self, client: ClientId, oldest_open: u64) -> u64 {
        self.uses += 1;
        let floor = self.floors.entry(client).or_default();
        self.by_use.remove(&floor.used);
        // What was forgotten since then may have been the last.
        let below = self.at.last_key_value().map_or(Position(0), |(last, _)| last.next()).max(floor.below);
        *floor = Floor { oldest_open: oldest_open.max(floor.oldest_open), used: self.uses, below };
        let raised = floor.oldest_open;
        self.by_use.insert(self.uses, client);
        if self.floors.len() > PLACES_CLIENTS_MAX
            && let Some((_, client)) = self.by_use.pop_first()
        {
            let forgotten = self.floors.remove(&client);
            self.forget_below(forgotten.map_or(Position(0), |floor| floor.below));
        }
        raised
    }

    /// An append has its place there from now on.
    pub(super) fn put(&mut self, stamp: Stamp, placed: Placed) {
        if let Some(former) = self.of.insert(stamp, placed) {
            self.at.remove(&former.position);
        }
        self.at.insert(placed.position, stamp);
        if self.at.len() > PLACES_MAX
            && let Some((position, stamp)) = self.at.pop_first()
        {
            self.of.remove(&stamp);
            self.forget_below(position.next());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(client: u64, sequence: u64, oldest_open: u64) -> Named {
        Named { stamp: Stamp { client: ClientId(client), sequence }, oldest_open, decided: None, since: None }
    }

    /// Whatever its number is.
    #[test]
    fn the_client_that_asked_longest_ago_is_forgotten_first() {
        let mut places = Places::default();
        let clients: Vec<u64> = (1..=PLACES_CLIENTS_MAX as u64).rev().collect();
        for client in &clients {
            assert_eq!(places.look_up(&named(*client, 9, 9)), Place::New);
        }
        let (longest_ago, others) = clients.split_first().expect("there are some");
        // The smallest number, and it has just asked.
        assert_eq!(places.look_up(&named(1, 8, 8)), Place::Decided);
        assert_eq!(places.look_up(&named(u64::MAX, 1, 1)), Place::New);
        assert_eq!(places.floors.len(), PLACES_CLIENTS_MAX);
        for client in others {
            assert_eq!(places.look_up(&named(*client, 8, 8)), Place::Decided, "client {client}");
        }
        assert_eq!(places.look_up(&named(*longest_ago, 8, 8)), Place::New, "what it said is forgotten");
    }

    #[test]
    fn places_and_clients_take_bounded_memory() {
        let mut places = Places::default();
        for turn in 0..2 * PLACES_MAX as u64 {
            let named = named(turn % 11, 1 + turn / 11, 1);
            assert_eq!(places.look_up(&named), Place::New);
            places.put(named.stamp, Placed { position: Position(turn), oldest_open: 1 });
            assert!(places.of.len() <= PLACES_MAX && places.of.len() == places.at.len());
            assert!(places.floors.len() <= PLACES_CLIENTS_MAX && places.floors.len() == places.by_use.len());
        }
        let turn = 2 * PLACES_MAX as u64 - 1;
        assert!(matches!(places.look_up(&named(turn % 11, 1 + turn / 11, 1)), Place::At(_)));
        assert_eq!(places.look_up(&named(0, 1, 1)), Place::New, "what was given first is forgotten first");
    }

    /// Whoever comes again after that, for something that was decided, is not given another place.
    #[test]
    fn a_client_that_is_forgotten_takes_with_it_all_that_it_was_given() {
        let mut places = Places::default();
        let first = named(0, 1, 1);
        assert_eq!(places.look_up(&first), Place::New);
        places.put(first.stamp, Placed { position: Position(50), oldest_open: 1 });
        // That is decided, and no place of anybody's is remembered when it asks for the last time.
        for _ in 0..2 {
            assert_eq!(places.look_up(&named(0, 2, 2)), Place::New);
        }
        for client in 1..=PLACES_CLIENTS_MAX as u64 {
            assert_eq!(places.look_up(&named(client, 1, 1)), Place::New);
        }
        let again = |since| Named { since: Some(Position(since)), ..first };
        assert_eq!(places.look_up(&again(50)), Place::Forgotten { known_from: Position(51) });
        assert_eq!(places.look_up(&again(51)), Place::New);
    }

    /// It lay there once; another head may know of a later place, and hasn't told yet.
    #[test]
    fn a_place_below_what_is_known_is_none_for_who_says_how_far_back_it_may_lie() {
        let mut places = Places::default();
        let (named, placed) = (named(0, 1, 1), Placed { position: Position(7), oldest_open: 1 });
        places.remember(named.stamp, Position(7));
        let since = Named { since: Some(Position(3)), ..named };
        assert_eq!(places.look_up(&since), Place::At(placed));
        places.lacks_below(Position(8));
        assert_eq!(places.look_up(&since), Place::Forgotten { known_from: Position(8) });
        assert_eq!(places.look_up(&named), Place::At(placed), "it is the best that is known");
        places.lacks_below(Position(7));
        assert_eq!(places.look_up(&since), Place::At(placed));
    }
}
