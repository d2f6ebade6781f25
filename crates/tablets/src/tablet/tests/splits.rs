//! A split yields two tablets that together contain all rows and sessions of the original (guarantees 10, 16, 17, 19).

use base::{KeyRange, Membership};

use super::*;

const CHILD: CohortId = CohortId(9);

fn split(key: &str) -> Command {
    Command::Split { key: bytes(key), child: CHILD, members: Membership::default() }
}

/// Applies a split, and returns the new tablet with its log.
pub(super) fn split_off(state: &mut State, log: &mut Log, key: &str) -> (State, Log) {
    let applied = state.apply(&log.entry(split(key).encode())).expect("the next entry");
    assert_eq!(applied.outcome, Some(Ok(TableResponse::Split)));
    let Some(Effect::RangeSplit { child: CHILD, range, .. }) = applied.effect else { panic!("{:?}", applied.effect) };
    let site = testing::tree(CHILD).site().clone();
    let child = state.split_off(range, site).expect("tablets split");
    child.invariants();
    state.invariants();
    let log = Log::after(&child);
    (child, log)
}

fn is_elsewhere(state: &mut State, log: &mut Log, write: Write) -> bool {
    let applied = state.apply(&log.entry(Command::unconditional(write).encode())).expect("the next entry");
    applied.outcome.is_none() && applied.effect == Some(Effect::Elsewhere)
}

#[test]
fn split_partitions_keys_and_sessions() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let outcomes: Vec<Outcome> = ["a", "m", "z"]
        .iter()
        .zip(1..)
        .map(|(key, number)| log.write(&mut state, &stamped(write(key, [put("c", key)]), session, number, 1)))
        .collect();
    log.apply(&mut state, &Command::Watermark(Timestamp(20)));
    let before = log.timestamp;
    let (mut child, mut child_log) = split_off(&mut state, &mut log, "m");
    assert_eq!(tablet(&child).ownership(), &Ownership::Owns(KeyRange { start: bytes("m"), end: None }));
    assert_eq!((tablet(&child).watermark(), child.last_timestamp()), (Timestamp(20), log.timestamp));
    assert!(child.last_timestamp() > before, "versions keep increasing in both");

    assert!(is_elsewhere(&mut state, &mut log, stamped(write("m", [put("c", "new")]), session, 4, 1)));
    assert!(is_elsewhere(&mut child, &mut child_log, write("a", [put("c", "new")])));
    let refused = Command::Refuse {
        stamp: None,
        key: bytes("z"),
        mismatch: crate::request::Mismatch { column: bytes("c"), expected: Timestamp(1), actual: Timestamp(2) },
    };
    assert_eq!(log.apply(&mut state, &refused), None, "the refusal is not recorded");
    // A retry finds the outcome of the first attempt in the tablet that has the row now. A write that was rejected
    // there is executed.
    assert_eq!(log.write(&mut state, &stamped(write("a", [put("c", "x")]), session, 1, 1)), outcomes[0]);
    assert_eq!(child_log.write(&mut child, &stamped(write("m", [put("c", "x")]), session, 2, 1)), outcomes[1]);
    assert_eq!(child_log.write(&mut child, &stamped(write("z", [put("c", "x")]), session, 3, 1)), outcomes[2]);
    assert!(child_log.write(&mut child, &stamped(write("m", [put("c", "new")]), session, 4, 1)).is_ok());
    assert_eq!(read(&state, "a")[0].1, "a");
    assert_eq!((&read(&child, "m")[0].1[..], &read(&child, "z")[0].1[..]), ("new", "z"));
    // Opening a session returns the range of the tablet.
    let opened = log.apply(&mut state, &open_session());
    let kept = KeyRange { start: Bytes::new(), end: Some(bytes("m")) };
    assert!(matches!(opened, Some(Ok(TableResponse::SessionOpened { range, .. })) if range == kept));
    assert_eq!(testing::copy(&child).logical_hash(), child.logical_hash(), "a checkpoint is complete");
}

/// A second entry of the same split has no effect; an invalid split is rejected without partial effects.
#[test]
fn split_is_idempotent_and_validated() {
    let (mut state, mut log) = fresh();
    split_off(&mut state, &mut log, "m");
    let again = state.apply(&log.entry(split("m").encode())).expect("the next entry");
    assert_eq!((again.outcome, again.effect), (Some(Ok(TableResponse::Split)), None));
    for key in ["", "m", "z"] {
        let other = Command::Split { key: bytes(key), child: CohortId(10), members: Membership::default() };
        assert!(matches!(log.apply(&mut state, &other), Some(Err(Failure::Precondition(_)))), "{key}");
    }
    assert_eq!(tablet(&state).children(), [CHILD]);
    let mut unfounded = testing::fresh(CohortId(2));
    let refused = Log::new().apply(&mut unfounded, &split("m"));
    assert!(matches!(refused, Some(Err(Failure::Unavailable(_)))));
}

/// Replicas with different tables and memtables begin equal after a split. Flushes and compactions remove the rows of
/// the other side.
#[test]
fn replicas_agree_after_split() {
    let (mut one, mut log) = fresh();
    let disk = testing::disk();
    let mut other = testing::copy(&one);
    for round in 0..4 {
        for number in 0..300 {
            let command = Command::unconditional(write(&format!("{number:03}"), [put("c", &round.to_string())]));
            let entry = log.entry(command.encode());
            one.apply(&entry).expect("the next entry");
            other.apply(&entry).expect("the next entry");
        }
        if round < 3 {
            testing::settle(&mut one, &disk);
        }
    }
    let mut others_log = log.clone();
    let (mut child, _) = split_off(&mut one, &mut log, "100");
    let (others_child, _) = split_off(&mut other, &mut others_log, "100");
    assert_eq!(one.logical_hash(), other.logical_hash());
    assert_eq!(child.logical_hash(), others_child.logical_hash());
    for state in [&mut one, &mut child] {
        let before = state.logical_hash();
        testing::settle(state, &disk);
        assert_eq!(state.logical_hash(), before);
        state.invariants();
    }
    let rows = |state: &State| {
        let all = store::cell::Range::all();
        let view = tablet(state).tree().view();
        view.versions(all, log.timestamp, log.timestamp, Io::Allowed).count()
    };
    assert_eq!((rows(&one), rows(&child)), (100, 200), "the other side's rows are gone");
}
