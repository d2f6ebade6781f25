//! The search exhausts small scopes without a violation in the product, and finds planted bugs. Larger scopes take
//! longer than a test should: run `loggos sim --search`; the scopes are in `docs/benchmarks.md`.

use std::collections::BTreeSet;
use std::time::Duration;

use base::Lsn;

use super::state::State;
use super::world::ORDERS;
use super::{Forces, NOTHING, Scope, Search, search};
use crate::SEARCH_LIMIT;

const SMALL: Scope = Scope { entries: 1, epochs: 2, ticks: 0, ..NOTHING };

#[test]
fn exhaustive_search_of_two_epochs() {
    let report = search(SMALL, SEARCH_LIMIT);
    println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
}

#[test]
fn exhaustive_search_of_two_epochs_with_crash() {
    if !crate::is_whole(1) {
        return;
    }
    let report = search(Scope { crashes: 1, ticks: 1, ..SMALL }, SEARCH_LIMIT);
    println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
    for what in [
        "leaders of epoch 2",
        "client entries in epoch 1",
        "client entries in epoch 2",
        "truncations",
        "re-proposals",
        "commits",
        "records lost",
    ] {
        assert!(report.reached.contains_key(what), "never happened: {what}");
    }
}

#[test]
fn search_of_one_epoch_with_crash() {
    if !crate::is_whole(2) {
        return;
    }
    let scope = Scope { epochs: 1, crashes: 1, forces: Forces::AnyTime, ..SMALL };
    let report = search(scope, Duration::from_secs(20));
    println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
    assert_eq!(report.violation, None);
}

/// A learner that becomes a voter, a voter that is removed, and a crash, with every order of two epochs around them.
#[test]
fn search_of_membership_changes() {
    if !crate::is_whole(3) {
        return;
    }
    // With a client's entry in addition to the crash there are 7 million states, also without a violation.
    let of_two = Scope { voters: 2, learners: 1, ..SMALL };
    for scope in [
        Scope { changes: 1, entries: 0, ticks: 1, ..SMALL },
        Scope { changes: 2, entries: 0, ticks: 1, ..of_two },
        Scope { changes: 1, crashes: 1, entries: 0, ticks: 1, ..of_two },
    ] {
        let report = search(scope, SEARCH_LIMIT);
        println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
        assert_eq!(report.violation, None);
        assert!(report.exhausted, "{scope:?}");
        assert!(report.reached.contains_key("membership changes"));
    }
}

/// The externally visible state: logs, promises, leaders, applied entries. Excludes what quiet events change.
type Observation = (Vec<(Vec<Lsn>, Vec<Lsn>, u64, Option<u8>, Option<u64>)>, Vec<Lsn>);

fn seen(search: &Search, state: &State, order: [u8; 3]) -> Observation {
    let mut replicas = vec![(Vec::new(), Vec::new(), 0, None, None); 3];
    for (cell, place) in state.cells.iter().zip(order) {
        let replica = &search.world.get(*cell).local.replica;
        let cohort = &replica.cohort;
        let log = cohort.entries().map(|entry| entry.lsn).collect();
        let promised = cohort.promised();
        let candidate = promised.candidate.map(|member| order[member.node.0 as usize - 1]);
        let leads = cohort.leads().then(|| cohort.committed().0);
        replicas[usize::from(place)] = (log, replica.durable.clone(), promised.epoch.0, candidate, leads);
    }
    (replicas, search.histories.chosen.get(state.chosen).clone())
}

/// All externally visible states of a scope, independent of replica numbers.
fn all_seen(scope: Scope, reduced: bool) -> BTreeSet<Observation> {
    let mut search = Search::new(scope);
    search.orders &= reduced;
    search.world.puts_off &= reduced;
    let mut all = BTreeSet::new();
    while let Some((state, choice)) = search.next_choice() {
        let depth = search.path.len();
        assert_eq!(search.carry_out(state, choice), Ok(()));
        if search.path.len() > depth {
            let (state, _) = search.path[depth];
            all.insert(
                ORDERS.map(|order| seen(&search, &state, order)).into_iter().min().expect("ORDERS is not empty"),
            );
        }
    }
    all
}

#[test]
fn state_reduction_is_sound() {
    if !crate::is_whole(0) {
        return;
    }
    for scope in [
        Scope { ticks: 1, ..SMALL },
        Scope { entries: 0, ticks: 1, crashes: 1, ..SMALL },
        Scope { epochs: 3, entries: 0, ticks: 1, ..SMALL },
    ] {
        let (all, reduced) = (all_seen(scope, false), all_seen(scope, true));
        println!("{scope:?}: {} states, {} with reductions", all.len(), reduced.len());
        all.difference(&reduced).take(3).for_each(|missed| println!("missed: {missed:?}"));
        reduced.difference(&all).take(3).for_each(|more| println!("invented: {more:?}"));
        assert!(all == reduced);
    }
}

#[cfg(feature = "canary")]
mod canary {
    use std::panic::catch_unwind;
    use std::time::{Duration, Instant};

    use base::canary::{Bug, plant};

    use super::super::{OF_ONE_COHORT, Scope, search_small_scopes, telling, walk};
    use super::{Forces, SMALL};
    use crate::SEARCH_LIMIT;

    /// The bugs that take longest to find, with the numbers of [`crate::is_whole`].
    const SLOW: [(Bug, usize); 2] = [(Bug::CommitOldEpochByCount, 3), (Bug::LastLsnFromLogOnly, 6)];

    /// A failed assertion counts as found.
    #[test]
    fn search_finds_planted_bugs_of_one_cohort() {
        let is_selected = |bug: &&Bug| SLOW.iter().all(|(slow, number)| slow != *bug || crate::is_whole(*number));
        for bug in OF_ONE_COHORT.iter().filter(is_selected) {
            let started = Instant::now();
            plant(Some(*bug));
            let found =
                catch_unwind(|| search_small_scopes(telling(bug.guarantee()), SEARCH_LIMIT).violation.is_some())
                    .unwrap_or(true);
            plant(None);
            println!("{}: {:?}", bug.name(), started.elapsed());
            assert!(found, "{} was not found", bug.name());
        }
    }

    #[test]
    fn search_without_bug_finds_no_violation() {
        if !crate::is_whole(5) {
            return;
        }
        for scopes in [telling(1), telling(8)] {
            assert_eq!(search_small_scopes(scopes, Duration::from_secs(15)).violation, None);
        }
    }

    #[test]
    fn random_walks_find_planted_bugs() {
        let scope = Scope { epochs: 3, entries: 2, crashes: 2, ticks: 3, forces: Forces::AnyTime, ..SMALL };
        for bug in
            [Bug::AcknowledgeBeforeForce, Bug::ApplyPastMatched, Bug::RestampReproposed, Bug::TruncationLoggedAgain]
        {
            plant(Some(bug));
            let found = catch_unwind(|| walk(scope, 1, SEARCH_LIMIT).violation.is_some());
            plant(None);
            assert!(found.unwrap_or(true), "{} was not found", bug.name());
        }
    }
}
