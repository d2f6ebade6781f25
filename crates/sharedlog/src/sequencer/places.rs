//! The places of appends that are known by their stamps (guarantee 20).
//!
//! A caller that hears nothing of its append tries it again, elsewhere, under the same stamp; the attempt that it gave up may go on all
//! the same, and later than the other. So the sequencer gives one append one place in its epoch, whoever asks: the head of the chain
//! takes the first that comes, and the other finds its own stamp there.

use std::collections::BTreeMap;

use crate::limits::{DUPLICATES_CLIENTS_MAX, PLACES_MAX};
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
}

/// Which append has which place.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    of: BTreeMap<Stamp, Placed>,
    /// The same by position: what was given first is forgotten first.
    at: BTreeMap<Position, Stamp>,
    /// Of each client, its oldest append that isn't decided, as far as was said.
    floors: BTreeMap<ClientId, u64>,
}

impl Places {
    /// Looks an append up, and forgets what its client says is decided.
    pub(super) fn look_up(&mut self, named: &Named) -> Place {
        let Named { stamp, oldest_open, decided } = *named;
        if !self.floors.contains_key(&stamp.client) && self.floors.len() >= DUPLICATES_CLIENTS_MAX {
            self.floors.pop_first();
        }
        let floor = self.floors.entry(stamp.client).or_default();
        *floor = oldest_open.max(*floor);
        let floor = *floor;
        let of_client = |sequence| Stamp { client: stamp.client, sequence };
        while let Some((past, placed)) = self.of.range(of_client(0)..of_client(floor)).next() {
            let (past, position) = (*past, placed.position);
            self.of.remove(&past);
            self.at.remove(&position);
        }
        if stamp.sequence < floor {
            return Place::Decided;
        }
        match self.of.get(&stamp) {
            Some(placed) if decided.is_none_or(|decided| placed.position > decided) => Place::At(*placed),
            _ => Place::New,
        }
    }

    /// An append has its place there from now on.
    pub(super) fn put(&mut self, stamp: Stamp, placed: Placed) {
        if let Some(former) = self.of.insert(stamp, placed) {
            self.at.remove(&former.position);
        }
        self.at.insert(placed.position, stamp);
        if self.at.len() > PLACES_MAX
            && let Some((_, stamp)) = self.at.pop_first()
        {
            self.of.remove(&stamp);
        }
    }
}
