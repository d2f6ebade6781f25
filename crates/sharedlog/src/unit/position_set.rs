//! The set of positions that a unit holds: exact, and compact while the positions are dense.
//!
//! In a log with n chains, a unit holds about every n-th position. The set knows the unit's stripes and numbers the
//! positions of each consecutively. So a log without holes needs one interval per stripe, and each hole adds one.
//! Positions outside the known stripes are held too, but less compactly.
//!
//! A stripe is assigned without an end, because a log's last extent has none. It ends where the next extent begins: a
//! position belongs to the last stripe in [`Stripe::order`] that contains it. When a stripe is added, positions
//! recorded elsewhere move to it. So the size of the set depends only on its positions and stripes, not on their order
//! of arrival.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Wire, Writer};

use super::intervals::Intervals;
use crate::limits::UNIT_STRIPES_MAX;
use crate::{Position, Stripe};

/// The positions that a unit holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PositionSet {
    /// In order, after a first stripe of all positions. The intervals number the positions within the stripe.
    stripes: Vec<(Stripe, Intervals)>,
}

impl Default for PositionSet {
    fn default() -> Self {
        Self { stripes: vec![(Stripe::ALL, Intervals::default())] }
    }
}

impl PositionSet {
    /// Adds a stripe and moves its positions to it. At the limit it replaces an empty stripe; if there is none, the new
    /// stripe is ignored and its positions stay with the others.
    pub(super) fn tell(&mut self, stripe: Stripe) {
        if self.stripes().any(|known| known == stripe) {
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

    /// The stripes that were added.
    pub(super) fn stripes(&self) -> impl Iterator<Item = Stripe> {
        self.stripes.iter().skip(1).map(|(stripe, _)| *stripe)
    }

    pub(super) fn holds(&self, position: Position) -> bool {
        self.stripes
            .iter()
            .any(|(stripe, numbers)| stripe.holds(position) && numbers.end_of(stripe.before(position)).is_some())
    }

    /// Adds a position that it does not hold.
    pub(super) fn insert(&mut self, position: Position) {
        let fitting = self.stripes.iter_mut().rev().find(|(stripe, _)| stripe.holds(position));
        if let Some((stripe, numbers)) = fitting {
            numbers.insert(stripe.before(position));
        }
    }

    /// Removes every position below one.
    pub(super) fn remove_below(&mut self, position: Position) {
        for (stripe, numbers) in &mut self.stripes {
            numbers.remove_below(stripe.before(position));
        }
    }

    /// The first position of a stripe, from `after` on, that it does not hold.
    pub(super) fn missing(&self, of: Stripe, after: Position) -> Position {
        let mut number = of.before(after);
        'next: loop {
            let position = of.position(number);
            for (stripe, numbers) in self.stripes.iter().rev().filter(|(stripe, _)| stripe.holds(position)) {
                if let Some(end) = numbers.end_of(stripe.before(position)) {
                    // Skips a whole interval if it contains all of the stripe's positions there.
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

    /// Number of intervals, which determines its size.
    pub(super) fn intervals(&self) -> usize {
        self.stripes.iter().map(|(_, numbers)| numbers.count()).sum()
    }
}

impl Wire for PositionSet {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        self.stripes.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let count = input.count(Stripe::BYTES + 4)?;
        if !(1..=UNIT_STRIPES_MAX + 1).contains(&count) {
            return Err(DecodeError::Invalid { what: "number of stripes" });
        }
        let stripes = (0..count).map(|_| Wire::decode(input)).collect::<Result<Vec<(Stripe, Intervals)>, _>>()?;
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

    /// Compares with a plain set, with stripes that overlap in every way.
    #[test]
    fn occupied_matches_set_model() {
        let mut random = SplitMix64::new(2);
        for _ in 0..300 {
            let (mut occupied, mut plain) = (PositionSet::default(), BTreeSet::new());
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
            assert_eq!(PositionSet::decode(&mut Reader::new(writer.finish())), Ok(occupied));
        }
    }

    /// One interval per stripe, even if stripes are added late and out of order.
    #[test]
    fn late_stripes_need_one_interval_each() {
        let old = Stripe { from: Position(0), count: 2, index: 0, width: 1 };
        let new = Stripe { from: Position(1_000), count: 3, index: 1, width: 1 };
        let newest = Stripe { from: Position(4_000), count: 5, index: 0, width: 1 };
        let mut occupied = PositionSet::default();
        // A new unit: the older stripe is copied while new entries arrive in the newer one.
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
        assert!(occupied.intervals() > 100, "the newest stripe is not assigned yet");
        occupied.tell(newest);
        assert_eq!(occupied.intervals(), 3);
        assert_eq!(occupied.missing(newest, Position(4_000)), Position(6_000));
        assert_eq!(occupied.missing(old, Position(0)), Position(1_000));
    }

    #[test]
    fn dense_log_needs_one_interval_per_stripe() {
        let mut occupied = PositionSet::default();
        let stripes = [
            Stripe { from: Position(0), count: 4, index: 1, width: 1 },
            Stripe { from: Position(4_000), count: 3, index: 2, width: 1 },
        ];
        for stripe in stripes {
            occupied.tell(stripe);
            // Out of order, as entries arrive.
            for number in 0..1_000 {
                occupied.insert(stripe.position(number ^ 7));
            }
        }
        assert_eq!(occupied.intervals(), 2);
        assert_eq!(occupied.missing(stripes[0], Position(0)), stripes[0].position(1_000));
    }
}
