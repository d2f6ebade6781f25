//! Walks through a scope at random, again and again from the start: they exhaust nothing, and meet what is rare and far
//! away sooner than a search in order.

use std::time::{Duration, Instant};

use base::SplitMix64;

use super::event::Event;
use super::state::{Choice, Histories, State, describe};
use super::world::{REPLICAS, World};
use super::{Report, Scope, Violation};

/// Steps of one walk: several times what it takes to use a small scope up.
const WALK_STEPS: u32 = 300;
/// One step in so many is a choice or an accident, the others go on with what is under way.
const CHOICE_EVERY: u64 = 8;
/// Every so many steps, on average, other replicas are cut off from each other.
const CUT_EVERY: u64 = 20;
/// The tables are begun anew when they have grown so large.
const CELLS_MAX: usize = 1 << 19;

/// Walks for at most `limit`, until something is wrong.
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
    // One replica is cut off from the others, or (past the last) none is.
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

/// Whether a choice only goes on with what is under way; none if it is a message that is cut off.
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
