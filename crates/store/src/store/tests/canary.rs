//! Tests that this crate's own tests find its planted bugs.

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
fn ordering_bugs_are_found() {
    for bug in [Bug::SegmentsOutOfOrder, Bug::OldestNotForced] {
        let run = || {
            for seed in 0..400 {
                campaign(seed, 40);
            }
        };
        assert!(is_found(bug, run), "{}", bug.name());
    }
}

#[test]
fn ignored_damage_is_found() {
    for (bug, damaged) in [(Bug::DamagedTailCut, 3), (Bug::DamageSkipped, 2)] {
        let run = || {
            let disk = formatted();
            let mut store = open(disk.clone(), CONFIG).unwrap().0;
            for number in 1..=3 {
                let record = crate::testing::entry(1, number, b"payload");
                crate::testing::write(&mut store, number, record).unwrap();
            }
            let echo = store.echo().unwrap();
            execute(&mut store, &echo).unwrap();
            assert!(disk.flip_bit(&crate::log::segment_path(1), (damaged - 1) * 4096 + 90, 1));
            assert!(open(disk, CONFIG).unwrap().1.damage.is_some());
        };
        run();
        assert!(is_found(bug, run), "{}", bug.name());
    }
}

#[test]
fn unrepaired_manifest_is_found() {
    let run = one_copy_manifest_start_is_crash_safe;
    assert!(is_found(Bug::ManifestNotMended, run));
}
