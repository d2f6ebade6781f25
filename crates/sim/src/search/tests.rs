//! The search exhausts small scopes and finds nothing in the product; with a bug planted it finds that. Larger scopes
//! take longer than a test may: `loggos sim --search`, and `docs/guarantees.md` has what they came to.

use std::time::Duration;

use super::{Forces, Scope, search};

const SMALL: Scope =
    Scope { epochs: 2, entries: 1, crashes: 0, ticks: 0, checkpoints: 0, releases: 0, forces: Forces::Eager };

#[test]
fn two_epochs_are_exhausted_and_hold() {
    let report = search(SMALL, Duration::from_secs(120));
    println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
    assert_eq!(report.violation, None);
    assert!(report.exhausted);
}

#[test]
fn one_epoch_with_a_crash_and_forces_at_any_time_holds() {
    let scope = Scope { epochs: 1, crashes: 1, forces: Forces::AnyTime, ..SMALL };
    let report = search(scope, Duration::from_secs(20));
    println!("{} states, {} transitions, {:?}", report.states, report.transitions, report.elapsed);
    assert_eq!(report.violation, None);
}

#[cfg(feature = "canary")]
mod canary {
    use std::panic::catch_unwind;
    use std::time::Duration;

    use base::canary::{Bug, plant};

    use super::super::{Scope, walk};
    use super::{Forces, SMALL};

    /// Bugs that walks of the small world meet within a second or so. A broken assertion counts as found.
    const FOUND_SOON: &[Bug] = &[
        Bug::AcknowledgeBeforeForce,
        Bug::AnswerBeforeBarrier,
        Bug::AnswerBeforeCommit,
        Bug::ApplyPastMatched,
        Bug::HeldEntryLoggedAgain,
        Bug::NoPredecessorCheck,
        Bug::PromiseTwice,
        Bug::RestampReproposed,
        Bug::RestartedLeaderGoesOn,
        Bug::TruncationLoggedAgain,
    ];

    #[test]
    fn walks_find_planted_bugs() {
        let scope = Scope { epochs: 3, entries: 2, crashes: 2, ticks: 3, forces: Forces::AnyTime, ..SMALL };
        for bug in FOUND_SOON {
            plant(Some(*bug));
            let found = catch_unwind(|| walk(scope, 1, Duration::from_secs(60)).violation.is_some());
            plant(None);
            assert!(found.unwrap_or(true), "{} was not found", bug.name());
        }
    }
}
