//! The exhaustive search: every order of events at small scope.
//!
//! Three or four replicas of one cohort, the real [`replication::Cohort`] with the real replay of its records. The
//! network is the set of all messages ever sent: each may be delivered at any time, any number of times, or never,
//! which is loss, delay, duplication and reordering at once. A force may come at any time; a crash keeps any part of
//! the records that were not forced, from the oldest on. Time moves in steps that let every vote and lease lapse.
//!
//! What is bounded: how often a replica stands for election, how many entries clients propose, how many replicas crash,
//! how many members come or go, how many steps time makes. Within the bounds the search is exhaustive, up to what makes
//! no difference:
//! * what a message tells is split into parts, and dropped when nobody can learn from it any more (`message`);
//! * a force comes at once or, if a crash makes it so, never (`event`);
//! * what only few other events look at is put off until just before these (`moves`);
//! * states that differ in nothing but who is who are the same (`state`);
//! * states are told apart by 64 bits of a hash: among 10^8 states, one in 4,000 searches confuses two.
//!
//! That the last but one and the one before it hide nothing is a test, with the whole of a few small scopes.

mod event;
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
use reached::Counters;
use state::{Choice, Histories, State, describe};
pub use walk::walk;
use world::World;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Replicas that vote at the beginning.
    pub voters: u64,
    /// Replicas that are candidate members at the beginning. There are four replicas at most.
    pub learners: u64,
    /// Changes of the membership: a learner becomes a voter, or a voter goes.
    pub changes: u64,
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

/// One step of time, and nothing else.
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

/// Small scopes that between them show what goes wrong without one of the guarantees of a cohort: four reigns, as it
/// takes to overwrite an entry of an old epoch that a majority holds (Raft, figure 8); a client's entry, two reigns and
/// a crash; a release; three reigns, as it takes for an old leader's commit point; a checkpoint and a crash; three
/// reigns and a crash, as it takes for a record that is not the newest of its place though its epoch is.
const TELLING: [Scope; 6] = [
    Scope { epochs: 4, ..NOTHING },
    Scope { epochs: 2, entries: 1, crashes: 1, ..NOTHING },
    Scope { epochs: 2, releases: 1, ticks: 0, ..NOTHING },
    Scope { epochs: 3, ..NOTHING },
    Scope { epochs: 2, crashes: 1, checkpoints: 1, ..NOTHING },
    Scope { epochs: 3, crashes: 1, ..NOTHING },
];

/// The same for members that come and go: two changes and two reigns; a learner beside three voters; and two reigns
/// that would each go one step in another direction, of whose leaders one forgets its step (Ongaro's correction of
/// Raft's single-server changes).
const TELLING_OF_MEMBERS: [Scope; 3] = [
    Scope { changes: 2, epochs: 2, ..NOTHING },
    Scope { learners: 1, epochs: 2, ..NOTHING },
    Scope { voters: 2, learners: 1, changes: 2, epochs: 3, crashes: 1, ..NOTHING },
];

/// The small scopes that tell of a guarantee of a cohort.
#[must_use]
pub fn telling(guarantee: u8) -> &'static [Scope] {
    if guarantee == 8 { &TELLING_OF_MEMBERS } else { &TELLING }
}

/// Every bug that one cohort can show. Not among them, of the same guarantees: `SegmentsOutOfOrder`, `OldestNotForced`
/// and `IdlePromiseForgotten` are about segments of the log and several cohorts of a node, `RefusalBeforeCommit`,
/// `ConditionIgnoresUnderWay` and `LostLeadMeansFailed` about what clients are answered; the search's world has none of
/// these.
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

/// When forces come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forces {
    /// At any time, or never.
    AnyTime,
    /// At once, unless something that the same step wanted to say has left before: then at once or never, whichever a
    /// crash makes of it. Records that nothing forces are always lost.
    Eager,
}

/// What a search came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different states seen.
    pub states: u64,
    /// Events carried out.
    pub transitions: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Whether every state within the scope was seen.
    pub exhausted: bool,
    /// How often what has happened.
    pub reached: BTreeMap<&'static str, u64>,
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
    let mut search = Search::new(scope);
    let mut report = Report::default();
    let mut transitions = 0;
    while let Some((state, choice)) = search.next_choice() {
        transitions += 1;
        if transitions % 65_536 == 0 && started.elapsed() > limit {
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

/// Looks for a violation in several small scopes, for at most `limit`: for a little while in each, since most that can
/// go wrong shows soon in one of them, and then for as long as it takes.
#[must_use]
pub fn search_small_scopes(scopes: &[Scope], limit: Duration) -> Report {
    let started = Instant::now();
    let mut report = Report::default();
    for at_most in [limit / 30, limit] {
        for scope in scopes.iter().copied() {
            let left = limit.saturating_sub(started.elapsed());
            if report.violation.is_none() && left > Duration::ZERO {
                report = search(scope, left.min(at_most));
            }
        }
    }
    report.elapsed = started.elapsed();
    report
}

/// A search under way.
struct Search {
    world: World,
    histories: Histories,
    seen: HashSet<u64, std::hash::BuildHasherDefault<Identity>>,
    counters: Counters,
    /// Where it is, and how it came there: states, and where the choices begin that are still to be made there.
    path: Vec<(State, usize)>,
    choices: Vec<Choice>,
    scope: Scope,
    /// Whether states that differ only in who is who are the same.
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

    /// See [`State::in_order`].
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

    /// The next choice to be made, deepest first; none if every one was.
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

    /// The choices that lead to the deepest state and to what is wrong there, with the replicas under the same numbers
    /// throughout.
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

/// An order of its own for the choices of each state: in any fixed order some choices come late throughout.
fn shuffle(choices: &mut [Choice], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for place in (1..choices.len()).rev() {
        choices.swap(place, random.below(place as u64 + 1) as usize);
    }
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
