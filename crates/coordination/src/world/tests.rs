//! Runs many seeds without a bug, and finds each planted bug with some seed.

use std::ops::Range;

use super::*;

/// Seeds from 0. `COORDINATION_SEEDS` sets their number, `COORDINATION_FIRST` the first one.
fn seeds(usual: u64) -> Range<u64> {
    let asked = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let first = asked("COORDINATION_FIRST").unwrap_or(0);
    first..first + asked("COORDINATION_SEEDS").unwrap_or(usual)
}

#[test]
fn random_seeds_hold_invariants() {
    let mut counters: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(60) {
        let outcome = run(seed);
        assert_eq!(outcome.violation, None, "seed {seed}, {:?}", outcome.counters);
        for (what, times) in outcome.counters {
            *counters.entry(what).or_default() += times;
        }
    }
    println!("{counters:#?}");
    let must_happen = [
        "appends failed",
        "appends twice in the log",
        "batches that waited for another",
        "connections broken",
        "crashes",
        "events",
        "expiries",
        "expiries without effect",
        "locks",
        "moves",
        "multis undone",
        "oversized credentials",
        "pauses",
        "reads after a sync",
        "requests of sessions that have moved",
        "servers partitioned",
        "servers removed",
        "servers that missed a trim",
        "sessions closed",
        "sessions that ended",
        "slow consumers",
        "snapshots",
        "stalls",
        "syncs of the flooding client",
        "trims",
        "turns with much output",
    ];
    let missing: Vec<_> = must_happen.iter().filter(|what| !counters.contains_key(**what)).collect();
    assert!(missing.is_empty(), "events that no seed covered: {missing:?}");
}

#[test]
fn seed_is_deterministic() {
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed));
    }
}

/// All bugs, or the one named by `COORDINATION_BUG`.
#[cfg(feature = "canary")]
#[test]
fn coordination_bugs_are_found() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use base::canary::{Bug, plant};

    const BUGS: [Bug; 19] = [
        Bug::ExpiryIgnoresTouch,
        Bug::ExpirerCountsStalls,
        Bug::StaleServerAnswers,
        Bug::EphemeralsOutliveExpiry,
        Bug::SnapshotMissesSession,
        Bug::LateRequestOfMovedSession,
        Bug::BatchOutOfOrder,
        Bug::SnapshotMissesEarlyBatch,
        Bug::ReadOvertakesWrite,
        Bug::DuplicateBatchApplied,
        Bug::OwnBatchEarly,
        Bug::OwnDuplicateSkipped,
        Bug::IdentitiesUnbounded,
        Bug::LateSnapshotEventCounts,
        Bug::WatchAfterReply,
        Bug::SyncAnsweredAtOnce,
        Bug::UnreachedTailReplaced,
        Bug::TurnOutputUnbounded,
        Bug::MultiKeepsFirst,
    ];
    std::panic::set_hook(Box::new(|_| {}));
    let mut escaped = Vec::new();
    let is_asked_for = |bug: &Bug| std::env::var("COORDINATION_BUG").map_or(true, |name| name == bug.name());
    for bug in BUGS.into_iter().filter(is_asked_for) {
        let found = seeds(300).find_map(|seed| {
            plant(Some(bug));
            let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
            plant(None);
            match outcome {
                Ok(outcome) => outcome.violation.map(|what| (seed, what)),
                Err(_) => Some((seed, "an assertion failed".to_owned())),
            }
        });
        match found {
            Some((seed, what)) => {
                let what: String = what.chars().take(150).collect();
                println!("{:<28} {seed:>6} {what}", bug.name());
            }
            None => escaped.push(bug.name()),
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(escaped, [""; 0], "bugs that no seed found");
}
