//! Which appends lie where, of positions that were looked through lately.
//!
//! Who looks back from an entry that may be a duplicate goes through thousands of positions, and so does who looks back
//! from the next such entry: through almost the same ones. What a decided position holds never changes, so what is
//! known of it holds for as long as it is kept: until newer ones are as many as are kept, or for a while after the last
//! one came. That a position was given up is for ever, too: nothing before an entry counts then that lies there.

use std::collections::{BTreeMap, VecDeque};

use base::{Monotonic, SplitMix64};

use crate::limits::{STAMPS_BLOCK, STAMPS_BLOCKS_MAX, STAMPS_KEPT};
use crate::{Position, Stamp};

/// A position that is decided, and which append lies there, if one does.
pub(super) type Noted = (Position, Option<Stamp>);

/// What is known of positions.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// By the number of each.
    blocks: BTreeMap<u64, Block>,
    /// As they were begun.
    begun: VecDeque<u64>,
    /// When the last one came.
    noted: Monotonic,
}

/// What is known of positions in a row.
#[derive(Debug)]
struct Block {
    told: Box<[Told]>,
    unknown: usize,
    /// Whoever isn't in it isn't here, so that few blocks need to be gone through.
    filter: [u64; FILTER_WORDS],
}

/// Two bits of an append's are set among 2,048: of a full block of others, one in twenty has both.
const FILTER_WORDS: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Unknown,
    Nothing,
    Append(Stamp),
}

/// What comes of looking for an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It lies here, and nowhere before.
    At(Position),
    /// It lies nowhere before this, of which nothing is known.
    Unknown(Position),
    Nowhere,
}

impl Stamps {
    /// Looks for an append from one position on, to before another.
    pub(super) fn find(&self, stamp: Stamp, from: Position, to: Position) -> Found {
        let bits = bits(stamp);
        let mut first = from.0;
        while first < to.0 {
            let (number, begin) = (first / STAMPS_BLOCK, first % STAMPS_BLOCK);
            let Some(block) = self.blocks.get(&number) else { return Found::Unknown(Position(first)) };
            let end = (to.0 - number * STAMPS_BLOCK).min(STAMPS_BLOCK);
            if block.unknown > 0 || block.may_have(bits) {
                for (place, told) in (begin..).zip(&block.told[begin as usize..end as usize]) {
                    let position = Position(number * STAMPS_BLOCK + place);
                    match told {
                        Told::Unknown => return Found::Unknown(position),
                        Told::Append(is) if *is == stamp => return Found::At(position),
                        Told::Nothing | Told::Append(_) => {}
                    }
                }
            }
            first = (number + 1) * STAMPS_BLOCK;
        }
        Found::Nowhere
    }

    /// Notes what lies at positions that are decided.
    pub(super) fn note(&mut self, noted: impl IntoIterator<Item = Noted>, now: Monotonic) {
        for (position, stamp) in noted {
            self.noted = now;
            let number = position.0 / STAMPS_BLOCK;
            let block = self.blocks.entry(number).or_insert_with(|| {
                self.begun.push_back(number);
                Block::new()
            });
            block.note(position.0 % STAMPS_BLOCK, stamp);
            if self.begun.len() > STAMPS_BLOCKS_MAX
                && let Some(oldest) = self.begun.pop_front()
            {
                self.blocks.remove(&oldest);
            }
        }
    }

    /// When all is forgotten, if nothing more comes.
    pub(super) fn forgotten_at(&self) -> Option<Monotonic> {
        if self.blocks.is_empty() { None } else { Some(self.noted + STAMPS_KEPT) }
    }

    /// Forgets all, if it is time.
    pub(super) fn forget(&mut self, now: Monotonic) {
        if self.forgotten_at().is_some_and(|at| at <= now) {
            *self = Self::default();
        }
    }
}

impl Block {
    fn new() -> Self {
        let told = vec![Told::Unknown; STAMPS_BLOCK as usize].into();
        Self { told, unknown: STAMPS_BLOCK as usize, filter: [0; FILTER_WORDS] }
    }

    fn note(&mut self, place: u64, stamp: Option<Stamp>) {
        let told = &mut self.told[place as usize];
        self.unknown -= usize::from(*told == Told::Unknown);
        *told = stamp.map_or(Told::Nothing, Told::Append);
        for bit in stamp.map(bits).into_iter().flatten() {
            self.filter[bit / 64] |= 1 << (bit % 64);
        }
    }

    fn may_have(&self, bits: [usize; 2]) -> bool {
        bits.into_iter().all(|bit| self.filter[bit / 64] & 1 << (bit % 64) != 0)
    }
}

/// An append's bits in a filter.
fn bits(stamp: Stamp) -> [usize; 2] {
    let drawn = SplitMix64::new(stamp.client.0.rotate_left(32) ^ stamp.sequence).draw() as usize;
    [drawn, drawn >> 32].map(|bit| bit % (FILTER_WORDS * 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    const NOW: Monotonic = Monotonic(7);

    fn stamp(sequence: u64) -> Stamp {
        Stamp { client: ClientId(1), sequence }
    }

    fn find(stamps: &Stamps, sequence: u64, from: u64, to: u64) -> Found {
        stamps.find(stamp(sequence), Position(from), Position(to))
    }

    #[test]
    fn the_first_of_an_append_is_found_as_far_as_all_is_known() {
        let mut stamps = Stamps::default();
        assert_eq!(find(&stamps, 1, 3, 3), Found::Nowhere);
        assert_eq!(find(&stamps, 1, 3, 9), Found::Unknown(Position(3)));
        let each = [Some(5), None, Some(1), Some(1)];
        stamps.note((3..).map(Position).zip(each.map(|sequence| sequence.map(stamp))), NOW);
        assert_eq!(find(&stamps, 1, 3, 9), Found::At(Position(5)));
        assert_eq!(find(&stamps, 1, 6, 9), Found::At(Position(6)));
        assert_eq!(find(&stamps, 5, 3, 9), Found::At(Position(3)));
        assert_eq!(find(&stamps, 2, 3, 9), Found::Unknown(Position(7)));
        assert_eq!(find(&stamps, 2, 3, 7), Found::Nowhere);
        assert_eq!(find(&stamps, 5, 2, 7), Found::Unknown(Position(2)));
    }

    #[test]
    fn so_much_is_kept_and_so_long() {
        let mut stamps = Stamps::default();
        assert_eq!(stamps.forgotten_at(), None);
        let all = STAMPS_BLOCK * (STAMPS_BLOCKS_MAX as u64 + 1);
        stamps.note((0..all).map(|position| (Position(position), Some(stamp(position)))), NOW);
        assert_eq!((stamps.blocks.len(), stamps.begun.len()), (STAMPS_BLOCKS_MAX, STAMPS_BLOCKS_MAX));
        assert_eq!(find(&stamps, 0, 0, all), Found::Unknown(Position(0)));
        assert_eq!(find(&stamps, 0, STAMPS_BLOCK, all), Found::Nowhere);
        for of in STAMPS_BLOCK..all {
            assert_eq!(find(&stamps, of, STAMPS_BLOCK, all), Found::At(Position(of)));
        }
        assert_eq!(stamps.forgotten_at(), Some(NOW + STAMPS_KEPT));
        stamps.note([], NOW + STAMPS_KEPT);
        stamps.forget(Monotonic(NOW.0 + STAMPS_KEPT.0 - 1));
        assert_eq!(stamps.blocks.len(), STAMPS_BLOCKS_MAX);
        stamps.forget(NOW + STAMPS_KEPT);
        assert!(stamps.blocks.is_empty() && stamps.begun.is_empty());
    }
}
