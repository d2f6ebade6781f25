//! Wall clocks with a bound on their errors, as transactions need them: within its bound, a clock drifts, jumps and
//! stops for a while. In some runs one machine's clock *lies* for a while: its error exceeds the bound that it states.
//!
//! The error is a function of the seed and of true time, so that it needs no events and draws no random numbers of the
//! run: the same faults strike with and without bounds.

use base::{Duration, NodeId, SplitMix64};

use crate::world::{MILLISECOND, Options, TrueTime};

/// Mean duration of a phase of drift, a jump or a freeze.
const PHASE: TrueTime = 150 * MILLISECOND;
/// Lowest bound of a machine.
const LEAST: u64 = 1_000;

/// A wall clock with a bound on its error.
#[derive(Clone, Debug)]
pub(super) struct BoundedClock {
    seed: u64,
    phase: TrueTime,
    /// The stated bound in nanoseconds.
    uncertainty: u64,
    lie: Option<Lie>,
}

/// The clock has a greater error than it states.
#[derive(Clone, Debug)]
struct Lie {
    begin: TrueTime,
    end: TrueTime,
    /// Added to the error, in nanoseconds.
    error: i64,
}

impl BoundedClock {
    /// The clock of a machine, if the run's clocks have bounds.
    pub(super) fn draw(options: &Options, node: NodeId) -> Option<Self> {
        if options.clock_uncertainty == 0 {
            return None;
        }
        let seed = options.clock_seed ^ (u64::from(node.0) << 32);
        let mut random = SplitMix64::new(seed);
        // Machines have different bounds, and one of the greatest.
        let uncertainty = (options.clock_uncertainty >> [0, 0, 1, 4][random.below(4) as usize]).max(LEAST);
        let phase = PHASE / 2 + random.below(PHASE);
        let lies = options.lying_node == Some(node);
        let lie = lies.then(|| Lie::draw(options, &mut random));
        Some(Self { seed, phase, uncertainty, lie })
    }

    pub(super) fn uncertainty(&self) -> Duration {
        Duration(self.uncertainty)
    }

    /// The lowest error that the clock ever has, in nanoseconds.
    pub(super) fn least_error(&self) -> i64 {
        let lie = self.lie.as_ref().map_or(0, |lie| lie.error.min(0));
        lie - self.uncertainty.cast_signed()
    }

    /// The wall clock minus true time, in nanoseconds.
    pub(super) fn error(&self, time: TrueTime) -> i64 {
        let lie = self.lie.as_ref().filter(|lie| (lie.begin..lie.end).contains(&time)).map_or(0, |lie| lie.error);
        self.bounded_error(time) + lie
    }

    /// Each phase leads from one error to the next.
    fn bounded_error(&self, time: TrueTime) -> i64 {
        let (number, within) = (time / self.phase, time % self.phase);
        let (from, to) = (self.turning_point(number), self.turning_point(number + 1));
        let mut random = self.random(number, 2);
        let (kind, begin) = (random.below(4), random.below(self.phase));
        match kind {
            // Drifts.
            0 | 1 => {
                let drift = i128::from(to - from) * i128::from(within) / i128::from(self.phase);
                from + i64::try_from(drift).unwrap_or(0)
            }
            _ if within < begin => from,
            // Stops for as long as the bound allows, and jumps.
            2 => {
                let frozen = from.saturating_sub((within - begin).cast_signed());
                if frozen >= -self.uncertainty.cast_signed() { frozen } else { to }
            }
            // Jumps, possibly back.
            _ => to,
        }
    }

    /// The error at the start of a phase; often the greatest possible.
    fn turning_point(&self, number: u64) -> i64 {
        let mut random = self.random(number, 1);
        let bound = self.uncertainty.cast_signed();
        match random.below(6) {
            0 => bound,
            1 => -bound,
            _ => random.below(2 * self.uncertainty + 1).cast_signed() - bound,
        }
    }

    fn random(&self, number: u64, purpose: u64) -> SplitMix64 {
        SplitMix64::new(SplitMix64::new(self.seed ^ (number << 2) ^ purpose).draw())
    }
}

impl Lie {
    /// A lie during the fault phase: an error up to some bounds beyond, or of more than a second.
    fn draw(options: &Options, random: &mut SplitMix64) -> Self {
        let begin = random.below(options.fault_time / 2);
        let end = begin + options.fault_time / 4 + random.below(options.fault_time / 4);
        let least = 3 * options.clock_uncertainty;
        let error = if random.below(3) == 0 { random.below(1 << 40) } else { random.below(10 * least) };
        let error = (least + error).cast_signed();
        Self { begin, end, error: if random.below(2) == 0 { error } else { -error } }
    }
}
