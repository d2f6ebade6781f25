//! Random walks through a scope, restarted repeatedly: they exhaust nothing, but reach rare and distant states sooner
//! than a systematic search.

use std::time::{Duration, Instant};

use base::SplitMix64;

use super::event::Event;
use super::state::{Choice, Histories, State, describe};
use super::world::{REPLICAS, World};
use super::{Report, Scope, Violation};

/// Steps of one walk: several times as many as use up a small scope.
const WALK_STEPS: u32 = 300;
/// One step in this many is a decision or a fault; the others complete work in flight.
const CHOICE_EVERY: u64 = 8;
/// Average number of steps between changes of the isolated replica.
const CUT_EVERY: u64 = 20;
/// The interners are cleared when they exceed this number of cells.
const CELLS_MAX: usize = 1 << 19;

/// Walks for at most `limit`, until it finds a violation.
#[must_use]
pub fn walk(scope: Scope, seed: u64, limit: Duration) -> Report {
    let started = Instant::now();
    let mut random = SplitMix64::new(seed);
    let mut world = World::new(scope);
    let mut histories = Histories::default();
    let mut report = Report::default();
    while report.violation.is_none() && started.elapsed() < limit {
        if world.size() > CELLS_MAX {
            world = World::new(scope);
        }
        report.violation = one_walk(scope, &mut random, &mut world, &mut histories, &mut report.transitions);
    }
    report.elapsed = started.elapsed();
    report
}

fn one_walk(
    scope: Scope,
    random: &mut SplitMix64,
    world: &mut World,
    histories: &mut Histories,
    steps: &mut u64,
) -> Option<Violation> {
    let mut state = State::start(scope, world, histories);
    let mut trace = Vec::new();
    let mut choices = Vec::new();
    // The replica that is isolated from the others, if in range.
    let mut alone = REPLICAS;
    for _ in 0..WALK_STEPS {
        if random.below(CUT_EVERY) == 0 {
            alone = random.below(REPLICAS as u64 + 2) as usize;
        }
        let chooses = random.below(CHOICE_EVERY) == 0;
        choices.clear();
        state.choices(world, &mut choices);
        choices.retain(|choice| is_progress(&state, *choice, alone, world) == Some(!chooses));
        let Some(choice) = choices.get(random.below(choices.len() as u64) as usize).copied() else { continue };
        *steps += 1;
        match state.carry_out(choice, world, histories) {
            Ok(Some((next, _))) => {
                trace.push((state, choice));
                state = next;
            }
            Ok(None) => {}
            Err(what) => {
                trace.push((state, choice));
                let trace = trace.iter().map(|(state, choice)| describe(state, *choice, world)).collect();
                return Some(Violation { what, trace });
            }
        }
    }
    None
}

/// Whether a choice only completes work in flight; `None` if it delivers a message across the partition.
fn is_progress(state: &State, choice: Choice, alone: usize, world: &mut World) -> Option<bool> {
    let Some((index, event)) = state.event(choice, world) else { return Some(false) };
    if let Event::Deliver(number) = event {
        let from = world.envelope(number).from.0 as usize - 1;
        if (from == alone) != (index == alone) {
            return None;
        }
    }
    Some(event.is_progress())
}
