//! The positions of one chain within an extent: blocks of `width` consecutive positions, assigned to the chains
//! round-robin.
//!
//! A request for several positions gets consecutive ones. If the width covers a typical request, its appends go down
//! one chain together and cost as many messages and forced writes as in a log with one chain.

use base::codec::{DecodeError, Reader, Wire, Writer};

use crate::limits::{STRIPE_WIDTH_MAX, STRIPES_MAX};
use crate::{Position, PositionRun};

/// The positions of one chain. Blocks are aligned to multiples of the width. If the extent begins within a block, its
/// first block is shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stripe {
    /// First position of the extent.
    pub from: Position,
    /// Number of chains in the extent.
    pub count: u64,
    /// Index of this chain, from 0.
    pub index: u64,
    /// Consecutive positions per block.
    pub width: u64,
}

impl Stripe {
    /// Every position: an extent with one chain from position 0.
    pub(crate) const ALL: Self = Self { from: Position(0), count: 1, index: 0, width: 1 };

    /// Whether the chain holds a position.
    #[must_use]
    pub fn holds(&self, position: Position) -> bool {
        position >= self.from && turn(self.from, self.width, self.count, position) == self.index
    }

    /// The position with index `number` in this stripe, from 0.
    #[must_use]
    pub fn position(&self, number: u64) -> Position {
        let number = number.saturating_add(self.counted(self.from));
        let row = (number / self.width).saturating_mul(self.count).saturating_add(self.index);
        Position(self.base().saturating_add(row.saturating_mul(self.width)).saturating_add(number % self.width))
    }

    /// Number of positions in this stripe below `position`.
    #[must_use]
    pub fn before(&self, position: Position) -> u64 {
        self.counted(position.max(self.from)) - self.counted(self.from)
    }

    /// The longest run of equidistant positions of this stripe from `from` to below `end`, with at most `most`
    /// positions.
    #[must_use]
    pub fn run(&self, from: Position, end: Position, most: usize) -> PositionRun {
        let step = if self.width == 1 { self.count } else { 1 };
        let in_row = if self.width == 1 || self.count == 1 { u64::MAX } else { self.width - from.0 % self.width };
        let left = end.0.saturating_sub(from.0).div_ceil(step);
        PositionRun { from, step, count: left.min(in_row).min(most as u64) as usize }
    }

    /// Start of the block in which the extent begins.
    fn base(&self) -> u64 {
        self.from.0 - self.from.0 % self.width
    }

    /// Number of positions of this chain between the base and `to`.
    fn counted(&self, to: Position) -> u64 {
        let round = self.width * self.count;
        let to = to.0 - self.base();
        to / round * self.width + (to % round).saturating_sub(self.index * self.width).min(self.width)
    }

    /// Sort key: stripes of later extents come after those of earlier ones. An extent that is still empty may get more
    /// chains.
    pub(crate) fn order(&self) -> (Position, u64, u64, u64) {
        (self.from, self.count, self.index, self.width)
    }

    /// Whether every position of this stripe from `position` on is also in `other`.
    pub(crate) fn is_within(&self, other: &Self, position: Position) -> bool {
        let is_aligned = other.count == 1 || self.width == other.width && self.count.is_multiple_of(other.count);
        is_aligned && other.holds(position)
    }

    /// Length of the encoding in bytes.
    pub const BYTES: usize = 16;
}

impl Wire for Stripe {
    const BYTES_MIN: usize = Self::BYTES;

    fn encode(&self, out: &mut Writer) {
        self.from.encode(out);
        encode_count(out, self.count, self.width);
        out.u32(self.index as u32);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let from = Position::decode(input)?;
        let (count, width) = decode_count(input)?;
        let index = u64::from(input.u32()?);
        if index >= count {
            return Err(DecodeError::Invalid { what: "stripe" });
        }
        Ok(Self { from, count, index, width })
    }
}

/// Index of the chain that holds `position`, in an extent that begins at or before it.
pub(crate) fn turn(from: Position, width: u64, count: u64, position: Position) -> u64 {
    (position.0 / width).saturating_sub(from.0 / width) % count
}

/// Writes the number of chains and the width as one `u32`. The upper half is the width minus 1.
pub(crate) fn encode_count(writer: &mut Writer, count: u64, width: u64) {
    writer.u32((width - 1) as u32 * WIDTH_UNIT + count as u32);
}

/// Decodes the number of chains and the width.
pub(crate) fn decode_count(reader: &mut Reader) -> Result<(u64, u64), DecodeError> {
    let both = reader.u32()?;
    let (count, width) = (u64::from(both % WIDTH_UNIT), u64::from(both / WIDTH_UNIT) + 1);
    if count == 0 || count > STRIPES_MAX as u64 || width > STRIPE_WIDTH_MAX {
        return Err(DecodeError::Invalid { what: "stripe" });
    }
    Ok((count, width))
}

/// The lower half is the number of chains.
const WIDTH_UNIT: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the definition: blocks assigned round-robin.
    #[test]
    fn stripe_position_count() {
        for (from, count, width) in [(10, 3, 1), (0, 4, 2), (10, 3, 4), (12, 3, 4), (7, 1, 5), (1, 2, 16)] {
            let block = |position: u64| position / width - from / width;
            for index in 0..count {
                let stripe = Stripe { from: Position(from), count, index, width };
                let is_own = |position: &u64| *position >= from && block((*position).max(from)) % count == index;
                let own: Vec<u64> = (0..200).filter(is_own).collect();
                let held: Vec<u64> = (0..200).filter(|position| stripe.holds(Position(*position))).collect();
                assert_eq!(held, own, "{stripe:?}");
                for position in 0..200 {
                    let before = own.iter().filter(|own| **own < position).count() as u64;
                    assert_eq!(stripe.before(Position(position)), before, "{position} in {stripe:?}");
                }
                for (number, position) in own.iter().enumerate() {
                    assert_eq!(stripe.position(number as u64), Position(*position), "{number} of {stripe:?}");
                }
            }
        }
    }

    #[test]
    fn stripe_arithmetic_does_not_overflow() {
        let last = Position(crate::limits::POSITION_MAX);
        for width in [1, STRIPE_WIDTH_MAX] {
            let stripe = Stripe { from: last, count: STRIPES_MAX as u64, index: STRIPES_MAX as u64 - 1, width };
            assert!(stripe.position(u64::MAX) > last && stripe.before(Position(u64::MAX)) > 0);
        }
    }

    #[test]
    fn stripe_containment() {
        let stripe = |from, count, index, width| Stripe { from: Position(from), count, index, width };
        assert!(stripe(10, 3, 1, 1).is_within(&Stripe::ALL, Position(11)));
        let (fine, coarse) = (stripe(10, 3, 1, 1), stripe(4, 6, 1, 1));
        assert!(coarse.is_within(&fine, Position(11)) && !fine.is_within(&coarse, Position(11)));
        assert!(!coarse.is_within(&fine, Position(12)));
        for (one, other) in [(stripe(3, 4, 1, 4), stripe(9, 2, 0, 4)), (stripe(9, 2, 0, 4), stripe(3, 2, 0, 4))] {
            for first in (0..100).map(Position).filter(|first| one.holds(*first) && one.is_within(&other, *first)) {
                let own = (first.0..200).map(Position).filter(|position| one.holds(*position));
                assert!(own.into_iter().all(|position| other.holds(position)), "{one:?} in {other:?} from {first}");
            }
        }
        let first = (9..100).map(Position).find(|first| stripe(9, 2, 0, 4).is_within(&stripe(3, 2, 0, 4), *first));
        assert_eq!(first, Some(Position(9)), "for any start of the extents");
    }

    #[test]
    fn missing_width_decodes_as_one() {
        let mut writer = Writer::new();
        for number in [7, 0] {
            writer.u32(number);
        }
        writer.u32(3);
        writer.u32(2);
        // A position is encoded with its lower half first.
        let stripe = Stripe { from: Position(7), count: 3, index: 2, width: 1 };
        assert_eq!(Stripe::decode(&mut Reader::new(writer.finish())), Ok(stripe));
        for stripe in [stripe, Stripe { width: 32, ..stripe }, Stripe { width: STRIPE_WIDTH_MAX, ..stripe }] {
            let mut writer = Writer::new();
            stripe.encode(&mut writer);
            let bytes = writer.finish();
            assert_eq!((bytes.len(), Stripe::decode(&mut Reader::new(bytes))), (Stripe::BYTES, Ok(stripe)));
        }
        let mut writer = Writer::new();
        writer.u64(7);
        writer.u32(u32::MAX);
        writer.u32(0);
        assert!(Stripe::decode(&mut Reader::new(writer.finish())).is_err());
    }
}
