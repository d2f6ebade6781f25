use base::{Duration, Monotonic};

use super::{BLAMED_FOR, Blame};

/// Whether a unit is blamed after suspicions at these times, in milliseconds.
fn is_blamed(at: &[u64]) -> bool {
    let moment = |at: u64| Monotonic(1) + Duration::from_millis(at);
    let mut blame = Blame::default();
    at.iter().for_each(|at| blame.note(moment(*at)));
    blame.counts(moment(*at.last().expect("some")))
}

#[test]
fn who_is_suspected_for_seconds_is_blamed() {
    assert!(is_blamed(&[5_000, 6_000, 7_000]));
    // As one call says so that gets no answer.
    assert!(is_blamed(&[350, 800, 1_750, 3_600]));
    assert!(is_blamed(&[3_600, 7_400, 11_200]));
    assert!(!is_blamed(&[5_000, 6_000, 6_900]), "it answers again after two seconds");
    assert!(!is_blamed(&[5_000; 99]), "that is one moment");
    assert!(!is_blamed(&[5_000, 6_000, 16_100, 17_100]), "it has answered between");
}

#[test]
fn blame_is_forgotten() {
    let mut blame = Blame::default();
    let at = |seconds: u64| Monotonic(1) + Duration::from_millis(seconds * 1_000);
    (1..=3).for_each(|second| blame.note(at(second)));
    assert!(blame.counts(at(3)) && blame.counts(Monotonic(at(3).0 + BLAMED_FOR.0)));
    assert!(!blame.counts(at(34)));
    blame.note(at(20));
    assert!(blame.counts(at(50)), "it is slow still");
    blame.note(at(99));
    assert!(!blame.counts(at(99)));
}
