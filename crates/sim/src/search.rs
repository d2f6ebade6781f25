//! The exhaustive search: every order of events at small scope.
//!
//! Three replicas of one cohort, the real [`replication::Cohort`] with the real replay of its records. The network is the
//! set of all messages ever sent: each may be delivered at any time, any number of times, or never, which is loss,
//! delay, duplication and reordering at once. A force may come at any time; a crash keeps any part of the records that
//! were not forced, from the oldest on. Time moves in steps that let every vote and lease lapse.
//!
//! What is bounded: how often a replica stands for election, how many entries clients propose, how many replicas crash,
//! how many steps time makes. Within the bounds the search is exhaustive; the first candidate is always replica 1, since
//! replicas differ in nothing but their numbers.

mod replica;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use base::SplitMix64;
use state::{Network, State};

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Candidacies.
    pub epochs: u64,
    /// Entries that clients propose, in all.
    pub entries: u64,
    /// Crashes of one replica each, with a restart at once.
    pub crashes: u64,
    /// Steps of time, each longer than a lease and its grace.
    pub ticks: u64,
    /// Checkpoints that take the place of a replica's log.
    pub checkpoints: u64,
    /// Leaders that release their epoch.
    pub releases: u64,
    /// When forces come.
    pub forces: Forces,
}

/// When forces come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forces {
    /// At any time, or never.
    AnyTime,
    /// At once, if nothing of what the same step wanted to say has left before; otherwise at any time. Records that
    /// nothing forces are always lost.
    Eager,
}

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Different states seen.
    pub states: u64,
    /// Events carried out.
    pub transitions: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Whether every state within the scope was seen.
    pub exhausted: bool,
    /// The first violation found, with the events that lead to it.
    pub violation: Option<Violation>,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub what: String,
    /// The events that lead there, in order.
    pub trace: Vec<String>,
}

/// Searches every state within `scope`, for at most `limit`, depth first.
#[must_use]
pub fn search(scope: Scope, limit: Duration) -> Report {
    let started = Instant::now();
    let mut network = Network::default();
    let mut seen: HashSet<u64, std::hash::BuildHasherDefault<Identity>> = HashSet::default();
    let mut transitions = 0;
    let first = State::start(scope, &mut network);
    seen.insert(first.fingerprint());
    let mut path = vec![(first.events(&network), first)];
    let mut taken: Vec<String> = Vec::new();
    let mut report = Report { states: 1, transitions: 0, elapsed: Duration::ZERO, exhausted: true, violation: None };
    while let Some((events, state)) = path.last_mut() {
        let Some(event) = events.pop() else {
            path.pop();
            taken.pop();
            continue;
        };
        transitions += 1;
        if transitions % 65_536 == 0 && started.elapsed() > limit {
            report.exhausted = false;
            break;
        }
        match state.carry_out(&event, &mut network) {
            Ok(Some(next)) if seen.insert(next.fingerprint()) => {
                taken.push(event.describe(&network));
                path.push((next.events(&network), next));
            }
            Ok(_) => {}
            Err(what) => {
                taken.push(event.describe(&network));
                report.exhausted = false;
                report.violation = Some(Violation { what, trace: taken });
                break;
            }
        }
    }
    report.states = seen.len() as u64;
    report.transitions = transitions;
    report.elapsed = started.elapsed();
    report
}

/// Walks through the scope at random, again and again from the start, for at most `limit`: exhausts nothing, and meets
/// what is rare sooner than a search in order.
#[must_use]
pub fn walk(scope: Scope, seed: u64, limit: Duration) -> Report {
    let started = Instant::now();
    let mut random = SplitMix64::new(seed);
    let mut network = Network::default();
    let mut report = Report { states: 0, transitions: 0, elapsed: Duration::ZERO, exhausted: false, violation: None };
    while report.violation.is_none() && started.elapsed() < limit {
        if network.is_large() {
            network = Network::default();
        }
        report.violation = one_walk(scope, &mut random, &mut network, &mut report.transitions);
    }
    report.elapsed = started.elapsed();
    report
}

/// Steps of one walk: several times what it takes to use a small scope up.
const WALK_STEPS: u32 = 300;
/// One step in so many is a choice or an accident, the others go on with what is under way.
const CHOICE_EVERY: u64 = 8;
/// Every so many steps, on average, other replicas are cut off from each other.
const CUT_EVERY: u64 = 20;

fn one_walk(scope: Scope, random: &mut SplitMix64, network: &mut Network, steps: &mut u64) -> Option<Violation> {
    let mut state = State::start(scope, network);
    let mut trace = Vec::new();
    // One replica is cut off from the others, or (3) none is.
    let mut alone = 3;
    for _ in 0..WALK_STEPS {
        if random.below(CUT_EVERY) == 0 {
            alone = random.below(5) as usize;
        }
        let chooses = random.below(CHOICE_EVERY) == 0;
        let mut events = state.events(network);
        events.retain(|event| {
            let crosses =
                event.sender(network).is_some_and(|from| (from == alone) != (event.place(network) == Some(alone)));
            event.is_progress() != chooses && !crosses
        });
        let Some(event) = events.get(random.below(events.len() as u64) as usize).copied() else { continue };
        *steps += 1;
        match state.carry_out(&event, network) {
            Ok(Some(next)) => {
                trace.push(event);
                state = next;
            }
            Ok(None) => {}
            Err(what) => {
                trace.push(event);
                let trace = trace.iter().map(|event| event.describe(network)).collect();
                return Some(Violation { what, trace });
            }
        }
    }
    None
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
