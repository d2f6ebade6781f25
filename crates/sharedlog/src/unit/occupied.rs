//! Which positions a unit holds: exact, and small while they lie dense.
//!
//! A unit holds every n-th position of a log of n chains. It is told of its stripes, and numbers the positions of each
//! one by one: so a log without holes is one interval of each stripe, and each hole is one more. What fits no stripe
//! that it was told of is held as well, in more room.
//!
//! A stripe is told without an end, as that of a log's last extent has none. It ends where the next extent begins: a
//! position is counted in the last stripe, in [`Stripe::order`], that has it. What was counted elsewhere before that
//! stripe was told moves. So how large a set is depends on its positions and the stripes, not on the order in which
//! they came.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};

use super::intervals::Intervals;
use crate::limits::UNIT_STRIPES_MAX;
use crate::{Position, Stripe};

/// The positions that a unit holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Occupied {
    /// In their order, after one of all positions. The numbers are those of a stripe's own positions.
    stripes: Vec<(Stripe, Intervals)>,
}

impl Default for Occupied {
    fn default() -> Self {
        Self { stripes: vec![(Stripe::ALL, Intervals::default())] }
    }
}

impl Occupied {
    /// Tells of a stripe. Positions of its own move to it. Where there are too many stripes, one without a position
    /// gives way; if there is none, the new one's positions are held among the others'.
    pub(super) fn tell(&mut self, stripe: Stripe) {
        if self.told().any(|known| known == stripe) {
            return;
        }
        if self.stripes.len() > UNIT_STRIPES_MAX {
            let empty = self.stripes.iter().skip(1).position(|(_, numbers)| numbers.is_empty());
            let Some(empty) = empty else { return };
            self.stripes.remove(empty + 1);
        }
        let after = |(other, _): &(Stripe, Intervals)| other.order() <= stripe.order();
        let at = 1 + self.stripes[1..].iter().take_while(|known| after(known)).count();
        let at = if planted(Bug::StripesOverlap) { self.stripes.len() } else { at };
        let mut own = Intervals::default();
        for (other, numbers) in &mut self.stripes[..at] {
            for number in numbers.from(other.before(stripe.from)) {
                let position = other.position(number);
                if stripe.holds(position) && !planted(Bug::StripesOverlap) {
                    numbers.remove(number);
                    own.insert(stripe.before(position));
                }
            }
        }
        self.stripes.insert(at, (stripe, own));
    }

    /// The stripes that it was told of.
    pub(super) fn told(&self) -> impl Iterator<Item = Stripe> {
        self.stripes.iter().skip(1).map(|(stripe, _)| *stripe)
    }

    pub(super) fn holds(&self, position: Position) -> bool {
        self.stripes
            .iter()
            .any(|(stripe, numbers)| stripe.holds(position) && numbers.end_of(stripe.before(position)).is_some())
    }

    /// Adds a position that it doesn't hold.
    pub(super) fn insert(&mut self, position: Position) {
        let fitting = self.stripes.iter_mut().rev().find(|(stripe, _)| stripe.holds(position));
        if let Some((stripe, numbers)) = fitting {
            numbers.insert(stripe.before(position));
        }
    }

    /// Forgets what lies before a position.
    pub(super) fn remove_below(&mut self, position: Position) {
        for (stripe, numbers) in &mut self.stripes {
            numbers.remove_below(stripe.before(position));
        }
    }

    /// The first position of a stripe, at or after one, that it doesn't hold.
    pub(super) fn missing(&self, of: Stripe, after: Position) -> Position {
        let mut number = of.before(after);
        'next: loop {
            let position = of.position(number);
            for (stripe, numbers) in self.stripes.iter().rev().filter(|(stripe, _)| stripe.holds(position)) {
                if let Some(end) = numbers.end_of(stripe.before(position)) {
                    // A whole interval at once where all of the stripe's positions are in it.
                    let is_within = of.is_within(stripe, position);
                    number = if is_within { of.before(stripe.position(end)).max(number + 1) } else { number + 1 };
                    continue 'next;
                }
            }
            return position;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stripes.iter().all(|(_, numbers)| numbers.is_empty())
    }

    /// How many intervals it is made of: what its size depends on.
    pub(super) fn intervals(&self) -> usize {
        self.stripes.iter().map(|(_, numbers)| numbers.count()).sum()
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.u32(self.stripes.len() as u32);
        for (stripe, numbers) in &self.stripes {
            stripe.encode(writer);
            numbers.encode(writer);
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = reader.count(Stripe::BYTES + 4)?;
        if !(1..=UNIT_STRIPES_MAX + 1).contains(&count) {
            return Err(DecodeError::Invalid { what: "number of stripes" });
        }
        let read = |reader: &mut Reader| Ok((Stripe::decode(reader)?, Intervals::decode(reader)?));
        let stripes = (0..count).map(|_| read(reader)).collect::<Result<Vec<_>, _>>()?;
        let is_sorted = stripes[1..].is_sorted_by_key(|(stripe, _)| stripe.order()) || planted(Bug::StripesOverlap);
        if stripes[0].0 != Stripe::ALL || !is_sorted {
            return Err(DecodeError::Invalid { what: "first stripe" });
        }
        Ok(Self { stripes })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base::SplitMix64;

    use super::*;

    /// Against a plain set, with stripes that overlap in every way.
    #[test]
    fn it_is_a_set_whatever_the_stripes() {
        let mut random = SplitMix64::new(2);
        for _ in 0..300 {
            let (mut occupied, mut plain) = (Occupied::default(), BTreeSet::new());
            for _ in 0..60 {
                let position = Position(random.below(50));
                match random.below(10) {
                    0 => {
                        let (count, width) = (1 + random.below(4), 1 + random.below(4));
                        occupied.tell(Stripe { from: position, count, index: random.below(count), width });
                    }
                    1 => {
                        occupied.remove_below(position);
                        plain = plain.split_off(&position);
                    }
                    _ if plain.insert(position) => occupied.insert(position),
                    _ => assert!(occupied.holds(position)),
                }
                for position in (0..55).map(Position) {
                    assert_eq!(occupied.holds(position), plain.contains(&position), "{position}");
                }
                let (count, width) = (1 + random.below(4), 1 + random.below(4));
                let stripe = Stripe { from: Position(random.below(20)), count, index: random.below(count), width };
                let after = Position(random.below(30));
                let mut own = (after.0.max(stripe.from.0)..).map(Position).filter(|position| stripe.holds(*position));
                let missing = own.find(|position| !plain.contains(position));
                assert_eq!(Some(occupied.missing(stripe, after)), missing, "{stripe:?} after {after}");
            }
            let mut writer = Writer::new();
            occupied.encode(&mut writer);
            assert_eq!(Occupied::decode(&mut Reader::new(writer.finish())), Ok(occupied));
        }
    }

    /// However late a stripe is told, and in whatever order: an interval for each.
    #[test]
    fn what_is_told_late_takes_no_more() {
        let old = Stripe { from: Position(0), count: 2, index: 0, width: 1 };
        let new = Stripe { from: Position(1_000), count: 3, index: 1, width: 1 };
        let newest = Stripe { from: Position(4_000), count: 5, index: 0, width: 1 };
        let mut occupied = Occupied::default();
        // A new unit: the older stripe is copied to it, while entries come in the newer one.
        occupied.tell(new);
        occupied.tell(old);
        for position in (0..1_000).filter(|position| old.holds(Position(*position))) {
            occupied.insert(Position(position));
        }
        for position in (1_000..6_000).map(Position) {
            if if position < newest.from { new.holds(position) } else { newest.holds(position) } {
                occupied.insert(position);
            }
        }
        assert!(occupied.intervals() > 100, "it doesn't know of the newest yet");
        occupied.tell(newest);
        assert_eq!(occupied.intervals(), 3);
        assert_eq!(occupied.missing(newest, Position(4_000)), Position(6_000));
        assert_eq!(occupied.missing(old, Position(0)), Position(1_000));
    }

    #[test]
    fn a_dense_log_takes_one_interval_of_each_stripe() {
        let mut occupied = Occupied::default();
        let stripes = [
            Stripe { from: Position(0), count: 4, index: 1, width: 1 },
            Stripe { from: Position(4_000), count: 3, index: 2, width: 1 },
        ];
        for stripe in stripes {
            occupied.tell(stripe);
            // Out of order, as they come.
            for number in 0..1_000 {
                occupied.insert(stripe.position(number ^ 7));
            }
        }
        assert_eq!(occupied.intervals(), 2);
        assert_eq!(occupied.missing(stripes[0], Position(0)), stripes[0].position(1_000));
    }
}
