//! Which appends lie where, of positions that were looked through lately.
//!
//! Who looks back from an entry that may be a duplicate goes through thousands of positions, and so does who looks back
//! from the next such entry: through almost the same ones. What a decided position holds never changes, so what is
//! known of it holds for as long as it is kept: for a few windows of positions, those that were looked through last.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::{KNOWN_BLOCK, KNOWN_BLOCKS_MAX};
use crate::{Position, Stamp};

/// A position, and which append lies there, if one does.
pub(super) type Noted = (Position, Option<Stamp>);

/// What is known of positions.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By the number of each.
    blocks: BTreeMap<u64, Box<[Told]>>,
    /// As they were begun.
    begun: VecDeque<u64>,
}

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

impl Known {
    /// Looks for an append from one position on, to before another.
    pub(super) fn find(&self, stamp: Stamp, from: Position, to: Position) -> Found {
        let mut first = from.0;
        while first < to.0 {
            let (number, begin) = (first / KNOWN_BLOCK, first % KNOWN_BLOCK);
            let Some(block) = self.blocks.get(&number) else { return Found::Unknown(Position(first)) };
            let end = (to.0 - number * KNOWN_BLOCK).min(KNOWN_BLOCK);
            for (place, told) in (begin..).zip(&block[begin as usize..end as usize]) {
                let position = Position(number * KNOWN_BLOCK + place);
                match told {
                    Told::Unknown => return Found::Unknown(position),
                    Told::Append(is) if *is == stamp => return Found::At(position),
                    Told::Nothing | Told::Append(_) => {}
                }
            }
            first = (number + 1) * KNOWN_BLOCK;
        }
        Found::Nowhere
    }

    /// Notes what lies at positions that are decided.
    pub(super) fn note(&mut self, noted: impl IntoIterator<Item = Noted>) {
        for (position, stamp) in noted {
            let number = position.0 / KNOWN_BLOCK;
            let block = self.blocks.entry(number).or_insert_with(|| {
                self.begun.push_back(number);
                vec![Told::Unknown; KNOWN_BLOCK as usize].into()
            });
            block[(position.0 % KNOWN_BLOCK) as usize] = stamp.map_or(Told::Nothing, Told::Append);
            if self.begun.len() > KNOWN_BLOCKS_MAX
                && let Some(oldest) = self.begun.pop_front()
            {
                self.blocks.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { client: ClientId(1), sequence }
    }

    fn find(known: &Known, sequence: u64, from: u64, to: u64) -> Found {
        known.find(stamp(sequence), Position(from), Position(to))
    }

    #[test]
    fn the_first_of_an_append_is_found_as_far_as_all_is_known() {
        let mut known = Known::default();
        assert_eq!(find(&known, 1, 3, 3), Found::Nowhere);
        assert_eq!(find(&known, 1, 3, 9), Found::Unknown(Position(3)));
        let each = [Some(5), None, Some(1), Some(1)];
        known.note((3..).map(Position).zip(each.map(|sequence| sequence.map(stamp))));
        assert_eq!(find(&known, 1, 3, 9), Found::At(Position(5)));
        assert_eq!(find(&known, 1, 6, 9), Found::At(Position(6)));
        assert_eq!(find(&known, 5, 3, 9), Found::At(Position(3)));
        assert_eq!(find(&known, 2, 3, 9), Found::Unknown(Position(7)));
        assert_eq!(find(&known, 2, 3, 7), Found::Nowhere);
        assert_eq!(find(&known, 5, 2, 7), Found::Unknown(Position(2)));
    }

    #[test]
    fn so_much_is_kept() {
        let mut known = Known::default();
        let all = KNOWN_BLOCK * (KNOWN_BLOCKS_MAX as u64 + 1);
        known.note((0..all).map(|position| (Position(position), Some(stamp(position)))));
        assert_eq!((known.blocks.len(), known.begun.len()), (KNOWN_BLOCKS_MAX, KNOWN_BLOCKS_MAX));
        assert_eq!(find(&known, 0, 0, all), Found::Unknown(Position(0)));
        assert_eq!(find(&known, 0, KNOWN_BLOCK, all), Found::Nowhere);
        assert_eq!(find(&known, all - 1, KNOWN_BLOCK, all), Found::At(Position(all - 1)));
    }
}
