//! Tests that the tests of the tree find the planted bugs of tables and tree.

use base::canary::{Bug, plant};

use super::*;

/// Whether `run` fails with the bug planted.
fn is_found(bug: Bug, run: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    plant(Some(bug));
    let outcome = std::panic::catch_unwind(run);
    plant(None);
    outcome.is_err()
}

#[test]
fn campaigns_find_what_reads_wrong() {
    let bugs = [
        Bug::FilterOnWholeKey,
        Bug::StaleBlockCached,
        Bug::CompactionLosesVersion,
        Bug::TombstoneDroppedEarly,
        Bug::WatermarkIgnored,
    ];
    for bug in bugs {
        let run = || (0..10).for_each(|seed| campaign(seed, 1_500));
        assert!(is_found(bug, run), "{}", bug.name());
    }
}

#[test]
fn a_state_that_gave_way_is_not_asked() {
    assert!(is_found(Bug::RecentOutlivesState, a_tree_takes_the_tables_of_another_replica_in_the_place_of_its_own));
}

#[test]
fn lost_power_finds_what_was_not_forced() {
    for bug in [Bug::TableNotForced, Bug::TableDirectoryNotForced] {
        let run = || (0..20).for_each(crashes::crash_campaign);
        assert!(is_found(bug, run), "{}", bug.name());
    }
}
