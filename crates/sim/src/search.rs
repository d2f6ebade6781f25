//! The exhaustive search: every order of events at a small scope.
//!
//! It runs three or four replicas of one cohort, each the real [`replication::Cohort`] with the real replay of its
//! records. The network is the set of all messages ever sent: each may be delivered at any time, any number of times,
//! or never, which covers loss, delay, duplication and reordering. A force may complete at any time. A crash keeps any
//! prefix of the records that were not forced. Time advances in steps that expire every vote and lease.
//!
//! The scope bounds candidacies, entries proposed by clients, crashes, membership changes and steps of time. Within the
//! scope the search is exhaustive, except for reductions that preserve the outcome:
//! * A message is split into parts, and dropped once no receiver can learn from it (`message`).
//! * A force completes at once or, if a crash prevents it, never (`event`).
//! * Events whose effect few other events read are delayed until just before those (`moves`).
//! * States that differ only in the numbers of the replicas are equal (`state`).
//! * States are compared by a 64-bit hash: among 10^8 states, one search in 4,000 confuses two.
//!
//! A test verifies on the whole of a few small scopes that the third and fourth reductions hide nothing.

mod event;
mod managed;
mod message;
mod moves;
mod reached;
mod replica;
mod state;
#[cfg(test)]
mod tests;
mod walk;
mod world;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use base::SplitMix64;
#[cfg(feature = "canary")]
use base::canary::Bug;
pub use managed::{ManagedScope, search as search_managed};
use reached::Counters;
use state::{Choice, Histories, State, describe};
pub use walk::walk;
use world::World;

/// The bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub voters: u64,
    /// Initial learners. There are at most four replicas.
    pub learners: u64,
    /// Membership changes: a learner becomes a voter, or a voter is removed.
    pub changes: u64,
    pub epochs: u64,
    /// Entries that clients propose, in total.
    pub entries: u64,
    /// Crashes of one replica each, followed by an immediate restart.
    pub crashes: u64,
    /// Steps of time, each longer than a lease plus its grace period.
    pub ticks: u64,
    /// Checkpoints that replace a replica's log.
    pub checkpoints: u64,
    /// Leaders that release their epoch.
    pub releases: u64,
    pub forces: Forces,
}

/// Transitions of the first, brief search of each of several scopes.
const BRIEF_TRANSITIONS: u64 = 500_000;

/// One step of time and nothing else.
const NOTHING: Scope = Scope {
    voters: 3,
    learners: 0,
    changes: 0,
    epochs: 0,
    entries: 0,
    crashes: 0,
    ticks: 1,
    checkpoints: 0,
    releases: 0,
    forces: Forces::Eager,
};

/// Small scopes that together expose the lack of any of a cohort's guarantees: four epochs, needed to overwrite an
/// entry of an old epoch that a majority holds (Raft, figure 8); a client's entry, two epochs and a crash; a release;
/// three epochs, needed for a commit point of an old leader; a checkpoint and a crash; three epochs and a crash, needed
/// for a record that is not the newest at its position although its epoch is.
const TELLING: [Scope; 6] = [
    Scope { epochs: 4, ..NOTHING },
    Scope { epochs: 2, entries: 1, crashes: 1, ..NOTHING },
    Scope { epochs: 2, releases: 1, ticks: 0, ..NOTHING },
    Scope { epochs: 3, ..NOTHING },
    Scope { epochs: 2, crashes: 1, checkpoints: 1, ..NOTHING },
    Scope { epochs: 3, crashes: 1, ..NOTHING },
];

/// The same for membership changes: two changes and two epochs; a learner with three voters; and two epochs that each
/// change the membership in a different way, with a leader that loses its change (Ongaro's correction of Raft's
/// single-server changes).
const TELLING_OF_MEMBERS: [Scope; 3] = [
    Scope { changes: 2, epochs: 2, ..NOTHING },
    Scope { learners: 1, epochs: 2, ..NOTHING },
    Scope { voters: 2, learners: 1, changes: 2, epochs: 3, crashes: 1, ..NOTHING },
];

/// The small scopes that expose violations of the given guarantee.
#[must_use]
pub fn telling(guarantee: u8) -> &'static [Scope] {
    if guarantee == 8 { &TELLING_OF_MEMBERS } else { &TELLING }
}

/// All bugs that one cohort can show. Not included, though of the same guarantees: `SegmentsOutOfOrder`,
/// `OldestNotForced` and `IdlePromiseForgotten` concern log segments and several cohorts of a node;
/// `RefusalBeforeCommit`, `ConditionIgnoresUnderWay` and `LostLeadMeansFailed` concern responses to clients. The search
/// models neither.
#[cfg(feature = "canary")]
pub(crate) const OF_ONE_COHORT: &[Bug] = &[
    Bug::AcknowledgeBeforeForce,
    Bug::RestampReproposed,
    Bug::NoPredecessorCheck,
    Bug::CommitOldEpochByCount,
    Bug::ApplyPastMatched,
    Bug::CommitFromOldLeader,
    Bug::PromiseNotForced,
    Bug::PromiseTwice,
    Bug::CandidateNotForced,
    Bug::PrepareIgnoresVote,
    Bug::VoteAfterRestart,
    Bug::AnswerBeforeBarrier,
    Bug::LeaseOfMinority,
    Bug::BeatVouchedBlindly,
    Bug::ReadAfterRelease,
    Bug::RestartedLeaderGoesOn,
    Bug::LastLsnFromLogOnly,
    Bug::ReplayByEpoch,
    Bug::HeldEntryLoggedAgain,
    Bug::TruncateToCommitPoint,
    Bug::TruncationLoggedAgain,
    Bug::PromiseInOnePlace,
    Bug::MembershipOnCommit,
    Bug::MembershipBeforeBarrier,
    Bug::TwoChangesAtOnce,
    Bug::CandidateAcknowledges,
    Bug::AnswerBeforeCommit,
    Bug::ViewStampIsOwn,
    Bug::LeaseCheckedBefore,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forces {
    /// At any time, or never.
    AnyTime,
    /// At once, unless a message of the same step was sent before the force: then at once or never, depending on
    /// whether a crash comes first. Records that need no force are always lost.
    Eager,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub states: u64,
    pub transitions: u64,
    /// Wall-clock duration.
    pub elapsed: Duration,
    /// Whether every state within the scope was visited.
    pub exhausted: bool,
    /// How often each kind of event occurred, by name.
    pub reached: BTreeMap<&'static str, u64>,
    /// The first violation found.
    pub violation: Option<Violation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// A description of the violation.
    pub what: String,
    /// The events that lead to it, in order.
    pub trace: Vec<String>,
}

/// Searches every state within `scope` depth first, for at most `limit`.
#[must_use]
pub fn search(scope: Scope, limit: Duration) -> Report {
    search_within(scope, limit, u64::MAX)
}

fn search_within(scope: Scope, limit: Duration, transitions_max: u64) -> Report {
    let started = Instant::now();
    let mut search = Search::new(scope);
    let mut report = Report::default();
    let mut transitions = 0;
    while let Some((state, choice)) = search.next_choice() {
        transitions += 1;
        if transitions > transitions_max || transitions % 65_536 == 0 && started.elapsed() > limit {
            break;
        }
        if let Err(what) = search.carry_out(state, choice) {
            report.violation = Some(Violation { what, trace: search.trace() });
            break;
        }
    }
    report.exhausted = search.path.is_empty();
    report.states = search.seen.len() as u64;
    report.transitions = transitions;
    report.reached = search.counters.named();
    report.elapsed = started.elapsed();
    report
}

/// Searches several small scopes for a violation, for at most `limit`: first briefly in each scope, since most
/// violations show quickly in one of them, then without that bound.
#[must_use]
pub fn search_small_scopes(scopes: &[Scope], limit: Duration) -> Report {
    let started = Instant::now();
    let mut report = Report::default();
    for transitions_max in [BRIEF_TRANSITIONS, u64::MAX] {
        for scope in scopes.iter().copied() {
            let left = limit.saturating_sub(started.elapsed());
            if report.violation.is_none() && left > Duration::ZERO {
                report = search_within(scope, left, transitions_max);
            }
        }
    }
    report.elapsed = started.elapsed();
    report
}

struct Search {
    world: World,
    histories: Histories,
    seen: HashSet<u64, std::hash::BuildHasherDefault<Identity>>,
    counters: Counters,
    /// The path to the current state: each state, and the index in `choices` of the first choice that remains there.
    path: Vec<(State, usize)>,
    choices: Vec<Choice>,
    scope: Scope,
    /// Whether states that differ only in the numbers of the replicas are equal.
    orders: bool,
}

impl Search {
    fn new(scope: Scope) -> Self {
        let mut search = Self {
            world: World::new(scope),
            histories: Histories::default(),
            seen: HashSet::default(),
            counters: Counters::default(),
            path: Vec::new(),
            choices: Vec::new(),
            scope,
            orders: scope.releases == 0 && scope.changes == 0 && scope.learners == 0 && scope.voters == 3,
        };
        let first = search.start();
        search.enter(first);
        search
    }

    fn start(&mut self) -> State {
        State::start(self.scope, &mut self.world, &mut self.histories)
    }

    /// Normalizes a state; see [`State::in_order`].
    fn in_order(&mut self, state: State) -> State {
        if self.orders { state.in_order(&mut self.world) } else { state }
    }

    fn enter(&mut self, state: State) {
        let state = self.in_order(state);
        if self.seen.insert(state.fingerprint()) {
            let begin = self.choices.len();
            self.path.push((state, begin));
            state.choices(&mut self.world, &mut self.choices);
            shuffle(&mut self.choices[begin..], state.fingerprint());
        }
    }

    /// The next choice to try, deepest first; `None` if the search is complete.
    fn next_choice(&mut self) -> Option<(State, Choice)> {
        loop {
            let (state, begin) = *self.path.last()?;
            if self.choices.len() > begin {
                return self.choices.pop().map(|choice| (state, choice));
            }
            self.path.pop();
        }
    }

    fn carry_out(&mut self, state: State, choice: Choice) -> Result<(), String> {
        if let Some((next, marks)) = state.carry_out(choice, &mut self.world, &mut self.histories)? {
            self.counters.add(marks);
            self.enter(next);
        }
        Ok(())
    }

    /// Describes the choices that lead to the deepest state and to the violation there, with consistent replica
    /// numbers.
    fn trace(&mut self) -> Vec<String> {
        let path: Vec<u64> = self.path.iter().map(|(state, _)| state.fingerprint()).collect();
        let mut state = self.start();
        let mut trace = Vec::new();
        for next in path.into_iter().skip(1).map(Some).chain([None]) {
            let mut choices = Vec::new();
            state.choices(&mut self.world, &mut choices);
            for choice in choices {
                let made = state.carry_out(choice, &mut self.world, &mut self.histories);
                let made = made.map(|made| made.map(|(made, _)| made));
                let leads_on = match (&made, next) {
                    (Ok(Some(made)), Some(next)) => self.in_order(*made).fingerprint() == next,
                    (Err(_), None) => true,
                    _ => false,
                };
                if leads_on {
                    trace.push(describe(&state, choice, &mut self.world));
                    state = made.ok().flatten().unwrap_or(state);
                    break;
                }
            }
        }
        trace
    }
}

/// Shuffles the choices of each state differently: a fixed order would delay some choices throughout the search.
fn shuffle(choices: &mut [Choice], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for place in (1..choices.len()).rev() {
        choices.swap(place, random.below(place as u64 + 1) as usize);
    }
}

/// A hasher for fingerprints, which are hashes already.
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
