//! Tests that the tests of the tree find the planted bugs of SSTables and tree.

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
fn wrong_read_bugs_are_found() {
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
fn replaced_state_is_not_read() {
    assert!(is_found(Bug::RecentOutlivesState, tree_installs_sstables_of_other_replica));
}

#[test]
fn missing_fsync_bugs_are_found() {
    for bug in [Bug::TableNotForced, Bug::TableDirectoryNotForced] {
        let run = || (0..20).for_each(crashes::crash_campaign);
        assert!(is_found(bug, run), "{}", bug.name());
    }
}
