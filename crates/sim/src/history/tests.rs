//! Hand-written histories, each good or bad for one reason; then generated ones, also checked by brute force.

mod generate;
mod generated;
mod script;

use super::{Kind, Summary, check};
use script::script;

fn good(text: &str) -> Summary {
    check(&script(text)).unwrap_or_else(|violation| panic!("{violation}"))
}

fn bad(kind: Kind, text: &str) {
    match check(&script(text)) {
        Ok(summary) => panic!("passed as {summary:?}:\n{text}"),
        Err(violation) => {
            assert_eq!(violation.kind, kind, "{violation}");
            assert!(!violation.suspects.is_empty() && !violation.excerpt.is_empty(), "{violation}");
        }
    }
}

#[test]
fn history_summary() {
    let summary = good(
        "k 0..1 write a=x -> 1
         k 2..5 read all -> a=x@1
         k 4..6 write a=y -> unknown
         k 7..8 read a -> a=y@2
         l 0..9 read all -> nothing",
    );
    assert_eq!(summary, Summary { operations: 5, keys: 2, unknown: 1, overlapping: 3 });
    assert_eq!(good(""), Summary::default());
}

#[test]
fn read_may_see_either_side_of_overlapping_write() {
    good("k 0..10 write a=x -> 1 \n k 1..2 read a -> nothing \n k 3..4 read a -> a=x@1");
    bad(
        Kind::Inexplicable,
        "k 0..10 write a=x -> 1 \n k 5..6 write a- -> unknown \n k 1..2 read a -> a=x@1 \n k 3..4 read a -> nothing",
    );
    bad(Kind::Inexplicable, "k 0..10 write a=x -> 1 \n k 1..2 read a -> a=x@1 \n k 3..4 read a -> nothing");
    // Operations that touch at one instant overlap.
    good("k 0..5 write a=x -> 1 \n k 5..6 read a -> nothing");
}

#[test]
fn stale_reads() {
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 write a=y -> 2 \n k 4..5 read a -> a=x@1");
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 write a- -> 2 \n k 4..5 read all -> a=x@1");
    bad(Kind::Misplaced, "k 0..1 read a -> a=x@1 \n k 2..3 write a=x -> 1");
    good("k 0..1 write a=x -> 1 \n k 2..9 write a=y -> 2 \n k 4..5 read a -> a=x@1 \n k 10..11 read a -> a=y@2");
}

#[test]
fn lost_acknowledged_writes() {
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 read a -> nothing");
    bad(Kind::Misplaced, "k 0..1 write a=x b=x -> 1 \n k 2..3 read all -> b=x@1");
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 write a=y -> unknown \n k 2..3 read a -> nothing");
    good("k 0..1 write a=x -> 1 \n k 2..3 write a- -> unknown \n k 8..9 read a -> nothing");
    // A delete that was called too late does not explain it.
    bad(Kind::Inexplicable, "k 0..1 write a=x -> 1 \n k 8..9 write a- -> unknown \n k 2..3 read a -> nothing");
    // One unknown delete cannot take effect twice.
    let twice = "k 0..1 write a=x -> 1 \n k 2.. write a- -> unknown \n k 3..4 read a -> nothing
                 k 5..6 write a=y -> 5 \n k 7..8 read a -> nothing";
    bad(Kind::Inexplicable, twice);
    good(&format!("{twice} \n k 2.. write a- -> unknown"));
}

#[test]
fn double_applied_write() {
    // By a late retry of an acknowledged write, by a retry of an unknown one, and with the same version as before.
    bad(Kind::Unwritten, "k 0..1 write a=x -> 1 \n k 2..3 write a=y -> 2 \n k 4..5 read a -> a=x@3");
    bad(
        Kind::Unwritten,
        "k 0.. write a=x -> unknown \n k 2..3 read a -> a=x@1 \n k 4..5 write a=y -> 2 \n k 6..7 read a -> a=x@3",
    );
    bad(
        Kind::Misplaced,
        "k 0.. write a=x -> unknown \n k 2..3 read a -> a=x@1 \n k 4..5 write a=y -> 2 \n k 6..7 read a -> a=x@1",
    );
    // Two unknown writes of one value may be seen twice, but not three times.
    let pair = "k 0.. write a=x -> unknown \n k 0.. write a=x -> unknown \n k 2..3 read a -> a=x@1
                k 4..5 write a=y -> 2 \n k 6..7 read a -> a=x@3";
    good(pair);
    bad(Kind::Inexplicable, &format!("{pair} \n k 8..9 write a- -> 4 \n k 10..11 read a -> a=x@5"));
}

#[test]
fn failed_write_is_never_visible() {
    good("k 0..1 write a=x -> not done \n k 2..3 read a -> nothing");
    bad(Kind::Unwritten, "k 0..1 write a=x -> not done \n k 2..3 read a -> a=x@1");
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 write a- -> not done \n k 4..5 read a -> nothing");
    good("k 0..1 write a=x -> not done \n k 0..1 write a=x -> unknown \n k 2..3 read a -> a=x@1");
}

#[test]
fn versions_increase_with_time() {
    bad(Kind::Versions, "k 0..1 write a=x -> 2 \n k 2..3 write b=y -> 1");
    bad(Kind::Versions, "k 0..9 write a=x -> 1 \n k 2..3 write b=y -> 1");
    good("k 0..9 write a=x -> 2 \n k 2..3 write b=y -> 1");
    good("k 0..1 write a=x -> 2 \n l 2..3 write a=y -> 2");
    // No version remains between 1 and 2 for the delete that would be needed.
    let tight = "k 0..1 write a=x -> 1 \n k 2.. write a- -> unknown \n k 2..9 read a -> nothing";
    bad(Kind::Inexplicable, &format!("{tight} \n k 3..4 read b -> nothing \n k 4..5 write b=y a=z?0 -> 2"));
    good(&format!("{tight} \n k 3..4 read b -> nothing \n k 4..5 write b=y a=z?0 -> 3"));
    bad(Kind::Malformed, "k 0..1 write a=x -> 0");
}

#[test]
fn refusals_match_versions() {
    let written = "k 0..1 write a=x b=x -> 5 \n";
    good(&format!("{written} k 2..3 write a=y?4 -> refused a 4 5"));
    good(&format!("{written} k 2..3 write a=y?0 -> refused a 0 5"));
    bad(Kind::Misplaced, &format!("{written} k 2..3 write a=y?4 -> refused a 4 0"));
    bad(Kind::Unwritten, &format!("{written} k 2..3 write a=y?4 -> refused a 4 3"));
    bad(Kind::Malformed, &format!("{written} k 2..3 write a=y?5 -> refused a 5 5"));
    bad(Kind::Malformed, &format!("{written} k 2..3 write a=y?4 -> refused b 4 5"));
    // A refusal names the first condition that fails: those before it held.
    good(&format!("{written} k 2..3 write a=y?5 b=y?4 -> refused b 4 5"));
    bad(Kind::Unwritten, &format!("{written} k 2..3 write a=y?3 b=y?4 -> refused b 4 5"));
    bad(Kind::Misplaced, &format!("{written} k 2..3 write a=y?0 b=y?4 -> refused b 4 5"));
    // A refusal changes nothing.
    bad(Kind::Unwritten, &format!("{written} k 2..3 write a=y?4 -> refused a 4 5 \n k 4..5 read a -> a=y@6"));
    // The condition may have met an unknown put or delete.
    good(&format!("{written} k 2.. write a=z -> unknown \n k 2..3 write a=y?5 -> refused a 5 9"));
    good(&format!("{written} k 2.. write a- -> unknown \n k 2..3 write a=y?5 -> refused a 5 0"));
    bad(Kind::Unwritten, &format!("{written} k 4.. write a=z -> unknown \n k 2..3 write a=y?5 -> refused a 5 9"));
}

#[test]
fn successful_conditions_held() {
    good("k 0..1 write a=x?0 -> 1 \n k 2..3 write a=y?1 -> 2 \n k 4..5 write a-?2 -> 3 \n k 6..7 write a=z?0 -> 4");
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..3 write a=y?0 -> 2");
    // A lost update: both replaced version 1.
    bad(Kind::Misplaced, "k 0..1 write a=x -> 1 \n k 2..9 write a=y?1 -> 2 \n k 2..9 write a=z?1 -> 3");
    bad(Kind::Unwritten, "k 0..1 write a=x -> 1 \n k 2..3 write a=y?7 -> 8");
    // The condition shows that the unknown write took effect, and with which version.
    good("k 0..1 write a=x -> unknown \n k 2..3 write a=y?7 -> 8");
    bad(Kind::Misplaced, "k 0..1 write a=x -> unknown \n k 2..3 write a=y?7 -> 8 \n k 4..5 read a -> a=x@7");
    good("k 0..1 write a=x -> 1 \n k 2.. write a- -> unknown \n k 3..4 write a=y?0 -> 8");
}

#[test]
fn write_is_atomic() {
    let written = "k 0..1 write a=x b=x -> 1 \n k 2..9 write a=y b=y -> 2 \n";
    good(&format!("{written} k 3..4 read all -> a=y@2 b=y@2"));
    bad(Kind::Misplaced, &format!("{written} k 3..4 read all -> a=y@2 b=x@1"));
    bad(Kind::Unwritten, &format!("{written} k 3..4 read all -> a=x@2 b=y@2"));
    bad(Kind::Inexplicable, &format!("{written} k 3..4 read b -> b=y@2 \n k 5..6 read a -> a=x@1"));
    bad(Kind::Misplaced, &format!("{written} k 3..4 read all -> a=y@2"));
    // Only half of an unknown delete is visible.
    let half = "k 0..1 write a=x b=x -> 1 \n k 2.. write a- b- -> unknown \n";
    bad(Kind::Inexplicable, &format!("{half} k 3..4 read all -> a=x@1"));
    good(&format!("{half} k 3..4 read all -> nothing"));
}

#[test]
fn unknown_write_applies_late_or_never() {
    good("k 0..1 write a=x -> unknown \n k 50..51 read a -> nothing \n k 60..61 read a -> a=x@9");
    good("k 0..1 write a=x -> unknown \n k 2..3 write a=y -> 5 \n k 4..5 read a -> a=y@5 \n k 6..7 read a -> a=x@6");
    bad(Kind::Inexplicable, "k 0..1 write a=x -> unknown \n k 2..3 read a -> a=x@9 \n k 4..5 read a -> nothing");
    bad(Kind::Unwritten, "k 2..3 read a -> a=x@9 \n k 4..5 write a=x -> unknown");
    // Its version must fit between those of the writes around it.
    bad(Kind::Misplaced, "k 0..1 write a=x -> unknown \n k 2..3 write a=y -> 5 \n k 4..5 read a -> a=x@4");
    // A write that never returned is unknown, even with a recorded outcome.
    good("k 0.. write a=x -> 3 \n k 2..3 read a -> nothing \n k 4..5 read a -> a=x@9");
    // A read that never returned constrains nothing.
    good("k 0.. read a -> a=x@3");
}

#[test]
fn unknown_write_can_be_refused() {
    good("k 0..1 write a=x -> 1 \n k 2..3 write a=y?1 -> unknown \n k 4..5 write a=z?1 -> 5");
    bad(
        Kind::Misplaced,
        "k 0..1 write a=x -> 1 \n k 2..3 write a=y?1 -> unknown \n k 4..5 write a=z?1 -> 5 \n k 6..7 read a -> a=y@6",
    );
    // A delete conditional on a version that only another unknown write can have produced.
    let chain = "k 0..1 write a=x b=x -> 1 \n k 2..3 write a=y -> unknown \n k 4..5 write b- a-?4 -> unknown";
    good(&format!("{chain} \n k 6..7 read all -> nothing"));
    good(&format!("{chain} \n k 6..7 read all -> a=y@4 b=x@1"));
    bad(Kind::Inexplicable, &format!("{chain} \n k 6..7 read all -> a=x@1"));
    bad(Kind::Inexplicable, &format!("{chain} \n k 6..7 write b=z -> 4 \n k 8..9 read all -> nothing"));
}

#[test]
fn malformed_answers() {
    bad(Kind::Malformed, "k 0..1 write a=x b=x -> 1 \n k 2..3 read a -> a=x@1 b=x@1");
    bad(Kind::Malformed, "k 0..1 write a=x -> 1 \n k 2..3 read a -> a=x@1 a=x@1");
    bad(Kind::Malformed, "k 0..1 write a=x -> 1 \n k 3..2 read a -> a=x@1");
}

#[test]
fn violation_message() {
    let history = script(
        "k 0..1 write a=x -> 1 \n k 2..3 write a=y?1 -> 2 \n k 4..5 read a -> a=x@1 \n k 9..9 read a -> nothing",
    );
    let violation = check(&history[..3]).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "row \"k\" is not linearizable: #2 comes after #1, which returned before it was called; and before #1, which \
         overwrites the version of \"a\" that it saw\n\
         > #1 client 1 [2, 3] write \"a\"=\"y\" if 1 -> written 2\n\
         > #2 client 2 [4, 5] read \"a\" -> \"a\"=\"x\"@1\n"
    );
    assert_eq!((&violation.key[..], violation.suspects), (&b"k"[..], vec![1, 2]));
}
