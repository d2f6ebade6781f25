//! Every n-th position from some position on: what one chain of an extent holds.

use base::codec::{DecodeError, Reader, Writer};

use crate::Position;
use crate::limits::STRIPES_MAX;

/// The positions `from + index`, `from + index + count`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stripe {
    /// Where the extent begins.
    pub from: Position,
    /// How many chains it has.
    pub count: u64,
    /// Which of them this is, from 0.
    pub index: u64,
}

impl Stripe {
    /// Every position.
    pub(crate) const ALL: Self = Self { from: Position(0), count: 1, index: 0 };

    /// Whether a position is one of its own.
    #[must_use]
    pub fn holds(&self, position: Position) -> bool {
        position >= self.from && (position.0 - self.from.0) % self.count == self.index
    }

    /// Its n-th position, from 0.
    #[must_use]
    pub fn position(&self, number: u64) -> Position {
        Position(self.from.0.saturating_add(self.index).saturating_add(number.saturating_mul(self.count)))
    }

    /// How many of its positions lie before a position.
    #[must_use]
    pub fn before(&self, position: Position) -> u64 {
        let first = self.from.0.saturating_add(self.index);
        position.0.saturating_sub(first).div_ceil(self.count)
    }

    /// Stripes of later extents come after those of earlier ones. An extent that holds nothing yet may be given more
    /// chains.
    pub(crate) fn order(&self) -> (Position, u64, u64) {
        (self.from, self.count, self.index)
    }

    /// Whether all of its positions from `position` on are the other's too.
    pub(crate) fn is_within(&self, other: &Self, position: Position) -> bool {
        self.count.is_multiple_of(other.count) && other.holds(position)
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.from.0);
        writer.u32(self.count as u32);
        writer.u32(self.index as u32);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let from = Position::decode(reader)?;
        let (count, index) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
        if count == 0 || count > STRIPES_MAX as u64 || index >= count {
            return Err(DecodeError::Invalid { what: "stripe" });
        }
        Ok(Self { from, count, index })
    }

    /// Bytes of one, encoded.
    pub(crate) const BYTES: usize = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_counted_within_their_stripe() {
        let stripe = Stripe { from: Position(10), count: 3, index: 1 };
        let own: Vec<u64> = (0..24).filter(|position| stripe.holds(Position(*position))).collect();
        assert_eq!(own, [11, 14, 17, 20, 23]);
        for (number, position) in own.iter().enumerate() {
            assert_eq!(stripe.position(number as u64), Position(*position));
            assert_eq!(stripe.before(Position(*position)), number as u64);
            assert_eq!(stripe.before(Position(position + 1)), number as u64 + 1);
        }
        assert!(stripe.is_within(&Stripe::ALL, Position(11)));
        let coarser = Stripe { from: Position(4), count: 6, index: 1 };
        assert!(coarser.is_within(&stripe, Position(11)));
        assert!(!stripe.is_within(&coarser, Position(11)));
        assert!(!coarser.is_within(&stripe, Position(12)));
    }
}
