//! The search finds no violation in the product, and finds planted bugs.

use super::*;
use crate::SEARCH_LIMIT;

const TWO: ManagedScope =
    ManagedScope { members: 2, candidates: 0, versions: 1, entries: 1, crashes: 0, damage: false, ticks: 1 };

#[test]
fn managed_search_of_two_versions() {
    let report = super::search(TWO, SEARCH_LIMIT);
    println!("{} states, {:?}, {:?}", report.states, report.elapsed, report.reached);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
}

#[test]
fn managed_search_of_two_versions_with_crash() {
    if !crate::is_whole(4) {
        return;
    }
    let report = super::search(ManagedScope { entries: 2, crashes: 1, ..TWO }, SEARCH_LIMIT);
    println!("{} states, {:?}, {:?}", report.states, report.elapsed, report.reached);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
    for what in ["changes of primary", "removals", "appointments of restarted primaries", "reconciliations"] {
        assert!(report.reached.contains_key(what), "never happened: {what}");
    }
}

#[test]
fn managed_search_of_candidates() {
    let scope = ManagedScope { members: 1, candidates: 1, versions: 2, ..TWO };
    let report = super::search(scope, SEARCH_LIMIT);
    println!("{} states, {:?}, {:?}", report.states, report.elapsed, report.reached);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
    for what in ["additions", "changes of primary", "removals", "reconciliations"] {
        assert!(report.reached.contains_key(what), "never happened: {what}");
    }
}

#[cfg(feature = "canary")]
const BUGS: [Bug; 10] = [
    Bug::ViewWithdrawnAfterPetition,
    Bug::PrimaryPastLease,
    Bug::AppointedBeforeGrace,
    Bug::StaleVersionAccepted,
    Bug::PrimaryGoesOn,
    Bug::DoubtfulAppointed,
    Bug::CommitWithoutMember,
    Bug::CandidateWithGap,
    Bug::JoiningNotCounted,
    Bug::NewPrimaryTruncates,
];

#[cfg(feature = "canary")]
fn telling(bug: Bug) -> ManagedScope {
    match bug {
        Bug::ViewWithdrawnAfterPetition => ManagedScope { members: 1, candidates: 1, versions: 2, entries: 0, ..TWO },
        Bug::JoiningNotCounted => ManagedScope { members: 1, candidates: 1, ticks: 0, ..TWO },
        Bug::CandidateWithGap => ManagedScope { candidates: 1, ..TWO },
        Bug::CommitWithoutMember => ManagedScope { members: 3, ticks: 0, ..TWO },
        Bug::PrimaryGoesOn => ManagedScope { crashes: 1, ..TWO },
        Bug::DoubtfulAppointed => ManagedScope { crashes: 1, damage: true, ..TWO },
        _ => TWO,
    }
}

/// All bugs, or the one named by `MANAGED_BUG`. A failed assertion counts as found.
#[cfg(feature = "canary")]
#[test]
fn managed_search_finds_planted_bugs() {
    use base::canary::plant;

    let is_asked_for = |bug: &Bug| std::env::var("MANAGED_BUG").map_or(true, |name| name == bug.name());
    let mut escaped = Vec::new();
    for bug in BUGS.into_iter().filter(is_asked_for) {
        plant(Some(bug));
        let found = std::panic::catch_unwind(|| super::search(telling(bug), SEARCH_LIMIT));
        plant(None);
        let what = match &found {
            Ok(report) => report.violation.as_ref().map(|found| (found.what.clone(), found.trace.len())),
            Err(_) => Some(("an assertion failed".to_owned(), 0)),
        };
        println!("{}: {what:?}", bug.name());
        if what.is_none() {
            escaped.push(bug.name());
        }
    }
    assert!(escaped.is_empty(), "not found: {escaped:?}");
}
