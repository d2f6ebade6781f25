//! Equidistant positions: the unit of a request for many positions.

use base::codec::{DecodeError, Size32};

use crate::Position;
use crate::limits::POSITION_MAX;

/// Equidistant positions: `from`, `from + step`, and so on, `count` in all. With a step of 1 they are consecutive; a
/// chain in an extent of n chains with a width of 1 holds positions with a step of n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionRun {
    pub from: Position,
    /// Distance between two positions, at least 1.
    pub step: u64,
    pub count: usize,
}

impl PositionRun {
    #[must_use]
    pub fn of(from: Position, count: usize) -> Self {
        Self { from, step: 1, count }
    }

    /// The positions in ascending order.
    pub fn positions(self) -> impl Iterator<Item = Position> {
        (0..self.count as u64).map(move |number| self.position(number))
    }

    /// The position with index `number`, from 0.
    #[must_use]
    pub fn position(self, number: u64) -> Position {
        Position(self.from.0.saturating_add(number.saturating_mul(self.step)).min(POSITION_MAX))
    }

    /// The run without its first `count` positions.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        Self { from: self.position(count as u64), count: self.count.saturating_sub(count), ..self }
    }

    /// The first `count` positions of the run.
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        Self { count: self.count.min(count), ..self }
    }
}

base::wire! {
    struct PositionRun { from, step, count as Size32 } checked by |run| {
        if run.step == 0 { Err(DecodeError::Invalid { what: "step" }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use base::codec::Wire as _;

    use super::*;

    #[test]
    fn run_splits_at_its_positions() {
        let run = PositionRun { from: Position(5), step: 3, count: 4 };
        let positions = |run: PositionRun| run.positions().map(|position| position.0).collect::<Vec<_>>();
        assert_eq!(positions(run), [5, 8, 11, 14]);
        assert_eq!((positions(run.first(2)), positions(run.after(2))), (vec![5, 8], vec![11, 14]));
        assert_eq!((positions(run.first(9)), positions(run.after(9))), (vec![5, 8, 11, 14], vec![]));
        let far = PositionRun { from: Position(POSITION_MAX - 1), step: u64::MAX, count: 3 };
        assert!(far.positions().all(|position| position.0 <= POSITION_MAX), "a position overflows");
        assert_eq!(PositionRun::from_bytes(run.to_bytes()), Ok(run));
    }
}
