//! The clocks of a machine: a monotonic clock with a small rate error, and a wall clock with arbitrary errors.

use base::canary::{Bug, planted};
use base::{Monotonic, Now, SplitMix64, Timestamp};

use super::{Options, TrueTime};

/// A time in 2025.
const WALL_START: i64 = 1_750_000_000_000_000_000;

/// The clocks of one machine, which outlive its processes.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// The monotonic clock at true time 0.
    start: u64,
    /// Rate error in parts per million; positive runs fast.
    rate: i64,
    wall_offset: i64,
    /// The lowest offset so far.
    least_offset: i64,
    /// Time not counted because of a planted bug.
    left_out: u64,
}

impl Clocks {
    pub(crate) fn draw(options: &Options, random: &mut SplitMix64) -> Self {
        let bound = options.clock_rate.cast_signed();
        let rate = match random.below(4) {
            0 => bound,
            1 => -bound,
            _ => random.below(2 * options.clock_rate + 1).cast_signed() - bound,
        };
        Self { start: random.below(1 << 40), rate, wall_offset: 0, least_offset: 0, left_out: 0 }
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
        let wall = WALL_START.saturating_add(time.cast_signed()).saturating_add(self.wall_offset);
        Now { monotonic: self.monotonic(time), wall: Timestamp(wall), uncertainty: None }
    }

    /// The reading of the wall clock at its lowest offset so far.
    pub(crate) fn least_wall(&self, time: TrueTime) -> Timestamp {
        Timestamp(WALL_START.saturating_add(time.cast_signed()).saturating_add(self.least_offset))
    }

    /// Sets the wall clock to an arbitrary time.
    pub(crate) fn jump(&mut self, random: &mut SplitMix64) {
        self.wall_offset = match random.below(6) {
            0 => 0,
            1 => i64::MAX,
            2 => i64::MIN,
            3 => -(random.below(1 << 40).cast_signed()),
            4 => random.below(1 << 40).cast_signed(),
            _ => random.draw().cast_signed(),
        };
        self.least_offset = self.least_offset.min(self.wall_offset);
    }

    /// The machine was suspended for `span`. Its monotonic clock counts that time, unless the planted bug is active.
    pub(crate) fn suspended(&mut self, span: TrueTime) {
        if planted(Bug::SuspendedTimeNotCounted) {
            self.left_out += span;
        }
    }
}
