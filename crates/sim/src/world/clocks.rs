//! The clocks of a machine: a monotonic clock with a small rate error, and a wall clock with arbitrary errors, or with a
//! bound on its error.

mod bounded;

use base::canary::{Bug, planted};
use base::{Monotonic, NodeId, Now, SplitMix64, Timestamp};

use bounded::BoundedClock;

use super::{Options, TrueTime};

/// A time in 2025.
pub(super) const WALL_START: i64 = 1_750_000_000_000_000_000;

/// The clocks of one machine, which outlive its processes.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// The monotonic clock at true time 0.
    start: u64,
    /// Rate error in parts per million; positive runs fast.
    rate: i64,
    /// Zero for a clock with a bound.
    wall_offset: i64,
    bounded: Option<BoundedClock>,
    /// The lowest offset so far.
    least_offset: i64,
    /// Time not counted because of a planted bug.
    left_out: u64,
}

impl Clocks {
    pub(crate) fn draw(options: &Options, node: NodeId, random: &mut SplitMix64) -> Self {
        let bound = options.clock_rate.cast_signed();
        let rate = match random.below(4) {
            0 => bound,
            1 => -bound,
            _ => random.below(2 * options.clock_rate + 1).cast_signed() - bound,
        };
        let bounded = BoundedClock::draw(options, node);
        let least_offset = bounded.as_ref().map_or(0, BoundedClock::least_error);
        Self { start: random.below(1 << 40), rate, wall_offset: 0, bounded, least_offset, left_out: 0 }
    }

    pub(crate) fn monotonic(&self, time: TrueTime) -> Monotonic {
        let drift = i128::from(time) * i128::from(self.rate) / 1_000_000;
        let shown = i128::from(self.start) + i128::from(time) + drift;
        Monotonic(u64::try_from(shown).unwrap_or(0) - self.left_out)
    }

    /// The true time at which the monotonic clock will show `shown`, or slightly later.
    pub(crate) fn true_time(&self, shown: Monotonic, now: TrueTime) -> TrueTime {
        let local = self.monotonic(now);
        if shown <= local {
            return now;
        }
        let ahead = u128::from(shown.0 - local.0);
        let scaled = ahead * 1_000_000 / u128::from((1_000_000 + self.rate).unsigned_abs());
        now.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX)).saturating_add(1)
    }

    pub(crate) fn now(&self, time: TrueTime) -> Now {
        let offset = self.bounded.as_ref().map_or(self.wall_offset, |clock| clock.error(time));
        let wall = WALL_START.saturating_add(time.cast_signed()).saturating_add(offset);
        let uncertainty = self.bounded.as_ref().map(BoundedClock::uncertainty);
        Now { monotonic: self.monotonic(time), wall: Timestamp(wall), uncertainty }
    }

    /// The reading of the wall clock at its lowest offset so far.
    pub(crate) fn least_wall(&self, time: TrueTime) -> Timestamp {
        Timestamp(WALL_START.saturating_add(time.cast_signed()).saturating_add(self.least_offset))
    }

    /// Sets the wall clock to an arbitrary time, unless it has a bound.
    pub(crate) fn jump(&mut self, random: &mut SplitMix64) {
        let offset = match random.below(6) {
            0 => 0,
            1 => i64::MAX,
            2 => i64::MIN,
            3 => -(random.below(1 << 40).cast_signed()),
            4 => random.below(1 << 40).cast_signed(),
            _ => random.draw().cast_signed(),
        };
        if self.bounded.is_some() {
            return;
        }
        self.wall_offset = offset;
        self.least_offset = self.least_offset.min(self.wall_offset);
    }

    /// The machine was suspended for `span`. Its monotonic clock counts that time, unless the planted bug is active.
    pub(crate) fn suspended(&mut self, span: TrueTime) {
        if planted(Bug::SuspendedTimeNotCounted) {
            self.left_out += span;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{MILLISECOND, SECOND};

    fn options(uncertainty: u64, liar: Option<NodeId>) -> Options {
        Options {
            clock_uncertainty: uncertainty,
            lying_node: liar,
            clock_seed: 5,
            fault_time: SECOND * 8,
            ..Options::draw(1)
        }
    }

    fn error(clocks: &Clocks, time: TrueTime) -> i64 {
        clocks.now(time).wall.0 - WALL_START - time.cast_signed()
    }

    /// The clock uses its full error bound: it jumps, and stops for a while.
    #[test]
    fn bounded_clocks_stay_in_bounds() {
        for uncertainty in [1_000, 100_000, 10_000_000] {
            let options = options(uncertainty, None);
            let mut random = SplitMix64::new(1);
            let (mut widest, mut back, mut still) = (0, 0, 0);
            for node in (1..=3).map(NodeId) {
                let mut clocks = Clocks::draw(&options, node, &mut random);
                let mut last = clocks.now(0);
                for time in (0..20 * SECOND).step_by(MILLISECOND as usize / 4) {
                    let now = clocks.now(time);
                    let stated = now.uncertainty.unwrap().0;
                    assert!(error(&clocks, time).unsigned_abs() <= stated && stated <= uncertainty);
                    widest = widest.max(stated * u64::from(error(&clocks, time).unsigned_abs() == stated));
                    back += u32::from(now.wall < last.wall);
                    still += u32::from(now.wall == last.wall);
                    last = now;
                    clocks.jump(&mut random);
                }
                let least = clocks.least_wall(7);
                assert!(least <= clocks.now(7).wall);
            }
            assert!(widest > 0, "some clock reached its bound");
            assert!(uncertainty < 10_000_000 || back > 0 && still > 0, "{back} {still}");
        }
    }

    #[test]
    fn lying_clock_exceeds_bound_for_a_while() {
        let options = options(10_000, Some(NodeId(2)));
        let mut random = SplitMix64::new(1);
        for node in (1..=3).map(NodeId) {
            let clocks = Clocks::draw(&options, node, &mut random);
            let lies = |time: TrueTime| error(&clocks, time).unsigned_abs() > clocks.now(time).uncertainty.unwrap().0;
            let lying = (0..8_000).filter(|time| lies(time * MILLISECOND)).count();
            assert!(if node == NodeId(2) { (2_000..4_001).contains(&lying) } else { lying == 0 }, "{lying}");
            assert!(!lies(8 * SECOND) && !lies(30 * SECOND));
            assert!(
                (0..8_000).all(|time| clocks.least_wall(time * MILLISECOND) <= clocks.now(time * MILLISECOND).wall)
            );
        }
    }

    #[test]
    fn third_of_seeds_has_bounds() {
        let drawn: Vec<Options> = (0..3_000).map(Options::draw).collect();
        let bounded = drawn.iter().filter(|options| options.clock_uncertainty > 0).count();
        let lying = drawn.iter().filter(|options| options.lying_node.is_some()).count();
        assert!((1_000..1_250).contains(&bounded) && (150..300).contains(&lying), "{bounded} {lying}");
    }
}
