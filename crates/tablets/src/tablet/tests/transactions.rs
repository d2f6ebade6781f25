//! Transactions: one outcome for each, the same on every replica; prepared ones hold rows and locks until they are
//! resolved (guarantee 18).

use base::{KeyRange, Membership};
use state_machine::interface::{Awaited, Evaluated, Read as _, View as _};
use state_machine::{ClientSessionId, KeyOwner, LockOwner};

use super::*;
use crate::evaluation::{Evaluation, Question};
use crate::request::{Consistency, SessionStamp, TableRequest};
use crate::tablet::transactions::PREPARED_BYTES_MAX;
use crate::transaction::{
    Commit, Coordinator, Participant, Prepare, ReadSpan, RowChange, TransactionId, TransactionOutcome, TransactionPart,
};

const OWNER: LockOwner = LockOwner { started: Timestamp(5), id: 6 };

fn stamp(session: ClientSessionId, sequence: u64) -> SessionStamp {
    SessionStamp { session, sequence, first_incomplete: 1 }
}

fn row(key: &str, value: &str) -> RowChange {
    RowChange { key: bytes(key), deletes_row: false, columns: vec![(bytes("c"), Some(bytes(value)))] }
}

fn participant(prepared: i64) -> Participant {
    Participant { cohort: CohortId(7), prepared: Timestamp(prepared) }
}

fn commit(stamp: SessionStamp, key: &str, value: &str, participants: &[Participant]) -> Command {
    Command::Commit { stamp, key: bytes(key), writes: vec![row(key, value)], participants: participants.to_vec() }
}

fn abort(stamp: SessionStamp, key: &str) -> Command {
    Command::Abort { stamp, key: bytes(key) }
}

fn coordinator(sequence: u64) -> Coordinator {
    Coordinator { table: "other".into(), key: bytes("k"), stamp: stamp(ClientSessionId(99), sequence) }
}

fn transaction(sequence: u64) -> TransactionId {
    TransactionId { session: ClientSessionId(99), sequence }
}

fn prepare(sequence: u64, reads: &[(&str, &str)], writes: &[RowChange]) -> Command {
    let range = |(start, end): &(&str, &str)| KeyRange { start: bytes(start), end: Some(bytes(end)) };
    let (reads, writes) = (reads.iter().map(range).collect(), writes.to_vec());
    Command::Prepare { coordinator: coordinator(sequence), owner: OWNER, reads, writes }
}

fn resolve(sequence: u64, prepared: i64, committed: Option<i64>) -> Command {
    let (transaction, prepared) = (transaction(sequence), Timestamp(prepared));
    Command::Resolve { transaction, prepared, committed: committed.map(Timestamp) }
}

fn outcome(outcome: TransactionOutcome) -> Option<Outcome> {
    Some(Ok(TableResponse::Outcome(outcome)))
}

fn committed(timestamp: i64, unresolved: &[Participant]) -> Option<Outcome> {
    let (timestamp, unresolved) = (Timestamp(timestamp), unresolved.to_vec());
    outcome(TransactionOutcome::Committed { timestamp, unresolved })
}

fn prepared(timestamp: i64) -> Option<Outcome> {
    Some(Ok(TableResponse::Prepared { timestamp: Timestamp(timestamp) }))
}

fn is_aborted(outcome: Option<&Outcome>) -> bool {
    matches!(outcome, Some(Err(Failure::Aborted(_))))
}

fn value_at(state: &State, key: &str, moment: i64) -> Option<(String, i64)> {
    let view = state.view_now();
    let read = view.get_at(&bytes(key), &Columns::default(), Timestamp(moment), Io::Allowed).expect("a working disk");
    let Ok(TableResponse::Row { cells, .. }) = read else { panic!("{read:?}") };
    cells.first().map(|cell| (String::from_utf8_lossy(&cell.value).into_owned(), cell.version.0))
}

fn found(value: &str, version: i64) -> Option<(String, i64)> {
    Some((value.to_owned(), version))
}

#[test]
fn commit_is_executed_once() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let first = commit(stamp(session, 1), "k", "1", &[]);
    assert_eq!(log.apply(&mut state, &first), Some(written(20)));
    log.write(&mut state, &write("k", [put("c", "2")])).unwrap();
    assert_eq!(log.apply(&mut state, &first), committed(20, &[]), "the first outcome");
    let other = commit(stamp(session, 1), "k", "3", &[participant(5)]);
    assert_eq!(log.apply(&mut state, &other), committed(20, &[]), "the content does not count");
    assert!(state.decided().is_empty() && read(&state, "k") == [cell("c", "2", 30)]);
    let unknown = commit(stamp(ClientSessionId(77), 1), "k", "4", &[participant(5)]);
    assert!(matches!(log.apply(&mut state, &unknown), Some(Err(Failure::UnknownSession(_)))));
    assert!(state.decided().is_empty() && read(&state, "k") == [cell("c", "2", 30)]);
    state.invariants();
}

/// The session is a write-once register for the outcome.
#[test]
fn first_outcome_counts() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let reason = || "it took too long".to_owned();
    let conflict = |number| Command::Conflict { stamp: stamp(session, number), key: bytes("k"), reason: reason() };
    // A conflict, then everything else.
    assert!(is_aborted(log.apply(&mut state, &conflict(1)).as_ref()));
    assert!(is_aborted(log.apply(&mut state, &conflict(1)).as_ref()));
    assert!(is_aborted(log.apply(&mut state, &commit(stamp(session, 1), "k", "1", &[participant(5)])).as_ref()));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "k")), outcome(TransactionOutcome::Aborted));
    // An abort, then everything else.
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 2), "k")), outcome(TransactionOutcome::Aborted));
    assert!(is_aborted(log.apply(&mut state, &commit(stamp(session, 2), "k", "1", &[participant(5)])).as_ref()));
    assert!(is_aborted(log.apply(&mut state, &conflict(2)).as_ref()));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 2), "k")), outcome(TransactionOutcome::Aborted));
    assert!(read(&state, "k").is_empty() && state.decided().is_empty());
    // A commit, then everything else.
    let participants = [participant(5), Participant { cohort: CohortId(8), ..participant(6) }];
    let version = log.timestamp.0 + 10;
    assert_eq!(log.apply(&mut state, &commit(stamp(session, 3), "k", "3", &participants)), Some(written(version)));
    assert_eq!(log.apply(&mut state, &conflict(3)), committed(version, &participants));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 3), "k")), committed(version, &participants));
    assert_eq!(read(&state, "k"), [cell("c", "3", version)]);
    let loaded = testing::copy(&state);
    assert_eq!(log.apply(&mut { loaded }, &abort(stamp(session, 3), "k")), committed(version, &participants));
    state.invariants();
}

/// A decision outlives its session, until it is forgotten. An outcome that is not known any more is none.
#[test]
fn decisions_until_forgotten() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let id = TransactionId { session, sequence: 1 };
    log.apply(&mut state, &commit(stamp(session, 1), "k", "1", &[participant(5)]));
    // The client knows the outcome of the first transaction.
    let next = SessionStamp { first_incomplete: 2, ..stamp(session, 2) };
    log.apply(&mut state, &abort(next, "k"));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "k")), committed(20, &[participant(5)]));
    let delayed = commit(stamp(session, 1), "k", "again", &[participant(5)]);
    assert!(matches!(log.apply(&mut state, &delayed), Some(Err(Failure::Unknown(_)))));
    let now = log.timestamp;
    log.apply(&mut state, &Command::ExpireSessions { sessions: vec![(session, now)] });
    assert_eq!(state.sessions_open(), 0);
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "k")), committed(20, &[participant(5)]));
    let others = TransactionId { sequence: 2, ..id };
    log.apply(&mut state, &Command::Forget { transactions: vec![others] });
    assert_eq!(state.decided().len(), 1);
    log.apply(&mut state, &Command::Forget { transactions: vec![id, others] });
    assert!(state.decided().is_empty());
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "k")), outcome(TransactionOutcome::Forgotten));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 9), "k")), outcome(TransactionOutcome::Forgotten));
    assert!(matches!(log.apply(&mut state, &delayed), Some(Err(Failure::UnknownSession(_)))));
    assert_eq!(read(&state, "k"), [cell("c", "1", 20)]);
    state.invariants();
}

/// While its session remembers it, a transaction that all participants have resolved is committed, but for no prepare.
#[test]
fn outcome_after_resolution() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    log.apply(&mut state, &commit(stamp(session, 1), "k", "1", &[participant(5)]));
    log.apply(&mut state, &Command::Forget { transactions: vec![TransactionId { session, sequence: 1 }] });
    let said = log.apply(&mut state, &abort(stamp(session, 1), "k"));
    assert_eq!(said, committed(20, &[]));
    let Some(Ok(TableResponse::Outcome(said))) = said else { unreachable!() };
    assert_eq!(said.of(participant(5)), None, "a late prepare is another one");
    let known = TransactionOutcome::Committed { timestamp: Timestamp(20), unresolved: vec![participant(5)] };
    assert_eq!((known.of(participant(5)), known.of(participant(6))), (Some(Timestamp(20)), None));
}

/// A second prepare finds the first one. A prepare that was resolved is not resolved again, nor is a later one of the
/// same transaction resolved with it.
#[test]
fn each_prepare_is_resolved_once() {
    let (mut state, mut log) = fresh();
    let first = prepare(1, &[("a", "c")], &[row("k", "1")]);
    let applied = state.apply(&log.entry(first.encode())).unwrap();
    assert_eq!(applied.outcome, prepared(10));
    let locks = state.held_locks();
    assert_eq!((applied.effect, locks.len()), (Some(Effect::Locked(locks[0].clone())), 1));
    assert_eq!((locks[0].owner, locks[0].spans().len(), locks[0].changed().count()), (Some(OWNER), 2, 1));
    let again = state.apply(&log.entry(first.encode())).unwrap();
    assert_eq!((again.outcome, again.effect), (prepared(10), None));
    let resolved = || Some(Ok(TableResponse::Resolved));
    for other in [resolve(1, 9, Some(20)), resolve(1, 20, Some(20)), resolve(2, 10, Some(20)), resolve(2, 10, None)] {
        let applied = state.apply(&log.entry(other.encode())).unwrap();
        assert_eq!((applied.outcome, applied.effect), (resolved(), None), "another prepare");
    }
    assert_eq!((state.prepared().len(), value_at(&state, "k", i64::MAX)), (1, None));
    let done = state.apply(&log.entry(resolve(1, 10, Some(15)).encode())).unwrap();
    assert_eq!((done.outcome, done.effect), (resolved(), Some(Effect::Released(locks[0].clone()))));
    assert!(state.prepared().is_empty() && state.held_locks().is_empty());
    assert_eq!(read(&state, "k"), [cell("c", "1", 15)]);
    // The prepare arrives once more, from a network that delayed it.
    assert_eq!(log.apply(&mut state, &first), prepared(log.timestamp.0));
    let late = log.timestamp.0;
    log.apply(&mut state, &resolve(1, 10, Some(15)));
    assert_eq!(state.prepared().len(), 1);
    let applied = state.apply(&log.entry(resolve(1, late, None).encode())).unwrap();
    assert!(matches!(applied.effect, Some(Effect::Released(_))));
    assert_eq!(read(&state, "k"), [cell("c", "1", 15)]);
    state.invariants();
}

/// The writes appear with the commit timestamp, which is below that of the entry that resolves the transaction: in gets,
/// scans and reads as of a moment, also below the watermark and after flushes.
#[test]
fn resolved_writes_have_commit_timestamp() {
    for is_settled in [false, true] {
        let (mut state, mut log) = fresh();
        let disk = testing::disk();
        for key in ["a", "k", "z"] {
            log.write(&mut state, &write(key, [put("c", "old"), put("d", "old")])).unwrap();
        }
        let replaced = RowChange { deletes_row: true, ..row("k", "new") };
        let deleted = RowChange { key: bytes("z"), deletes_row: true, columns: vec![] };
        assert_eq!(log.apply(&mut state, &prepare(1, &[], &[row("a", "new"), replaced, deleted])), prepared(40));
        log.write(&mut state, &write("other", [put("c", "x")])).unwrap();
        log.write(&mut state, &write("other", [put("c", "y")])).unwrap();
        if is_settled {
            log.apply(&mut state, &Command::Watermark(Timestamp(30)));
            testing::settle(&mut state, &disk);
        }
        log.apply(&mut state, &resolve(1, 40, Some(45)));
        let replica = testing::copy(&state);
        if is_settled {
            testing::settle(&mut state, &disk);
        }
        assert_eq!(state.logical_hash(), replica.logical_hash());
        for moment in [30, 44] {
            assert_eq!(
                (value_at(&state, "a", moment), value_at(&state, "k", moment)),
                (found("old", 10), found("old", 20))
            );
            assert_eq!(value_at(&state, "z", moment), found("old", 30));
        }
        for moment in [45, 50, i64::MAX] {
            assert_eq!(
                (value_at(&state, "a", moment), value_at(&state, "k", moment)),
                (found("new", 45), found("new", 45))
            );
            assert_eq!(value_at(&state, "z", moment), None);
        }
        assert_eq!(read(&state, "a"), [cell("c", "new", 45), cell("d", "old", 10)]);
        assert_eq!(read(&state, "k"), [cell("c", "new", 45)], "the rest of the row is deleted");
        for reverse in [false, true] {
            let scan = |moment| {
                let scan = Scan { reverse, ..Scan::default() };
                match state.view_now().scan_at(&scan, Timestamp(moment), Io::Allowed).expect("a working disk") {
                    Ok(TableResponse::Rows { rows, .. }) => rows.iter().map(|row| row.cells.len()).collect::<Vec<_>>(),
                    other => panic!("{other:?}"),
                }
            };
            let mut rows = vec![2, 1, 1];
            if reverse {
                rows.reverse();
            }
            assert_eq!((scan(44), scan(i64::MAX)), (vec![2, 2, 2], rows));
        }
        log.apply(&mut state, &Command::Watermark(Timestamp(i64::MAX)));
        testing::settle(&mut state, &disk);
        assert_eq!(read(&state, "k"), [cell("c", "new", 45)]);
        state.invariants();
    }
}

fn evaluated(state: &State, request: &TableRequest, moment: Option<i64>) -> Evaluated<TableResponse> {
    let view = state.view_now();
    let view = moment.map_or(Ok(view.clone()), |moment| view.at(Timestamp(moment))).expect("a readable moment");
    Evaluation::of(request, view).expect("it reads").answer(Io::Allowed).expect("a working disk")
}

/// Reads wait for a prepared transaction that may change their result, except timeline reads.
#[test]
fn reads_wait_for_prepared_rows() {
    let (mut state, mut log) = fresh();
    for key in ["a", "k", "z"] {
        log.write(&mut state, &write(key, [put("c", "old")])).unwrap();
    }
    assert_eq!(log.apply(&mut state, &prepare(1, &[("a", "b")], &[row("k", "new")])), prepared(40));
    let timeline = Consistency::Timeline { at_least: None, stale_ok: true };
    let get = |key, consistency| TableRequest::Get { key: bytes(key), columns: Columns::default(), consistency };
    let waits = |request: &TableRequest, moment: Option<i64>| match evaluated(&state, request, moment) {
        Evaluated::Unresolved(awaited) => {
            assert_eq!(awaited, Awaited { at: Timestamp(moment.unwrap_or(40)), first: Timestamp(40) });
            true
        }
        _ => false,
    };
    for consistency in [Consistency::Strong, Consistency::Anywhere, Consistency::At(Timestamp(40))] {
        assert!(waits(&get("k", consistency), None));
        assert!(!waits(&get("a", consistency), None), "it was only read");
        assert!(!waits(&get("z", consistency), None));
    }
    assert!(waits(&get("k", Consistency::Strong), Some(40)));
    assert!(!waits(&get("k", Consistency::Strong), Some(39)), "it commits later than it was prepared");
    assert!(!waits(&get("k", timeline), None));
    let scan = |from: &str, to: Option<&str>, reverse| {
        let scan = Scan { from: bytes(from), to: to.map(bytes), reverse, ..Scan::default() };
        TableRequest::Scan { scan, consistency: Consistency::Strong }
    };
    for reverse in [false, true] {
        for (from, to, expected) in [
            ("", None, true),
            ("k", Some("l"), true),
            ("", Some("k"), false),
            ("k\0", None, false),
            ("l", Some("z"), false),
        ] {
            assert_eq!(waits(&scan(from, to, reverse), None), expected, "{from} {to:?} {reverse}");
            assert!(!waits(&scan(from, to, reverse), Some(39)));
        }
        assert!(!waits(&scan("k", Some("k"), reverse), None), "no keys");
    }
    let TableRequest::Scan { scan: rest, .. } = scan("", None, false) else { unreachable!() };
    let page = |continuation: &str, reverse, consistency| {
        let scan = Scan { continuation: Some(bytes(continuation)), reverse, ..rest.clone() };
        TableRequest::Scan { scan, consistency }
    };
    assert!(!waits(&page("l", false, Consistency::Strong), None), "the page begins after it");
    assert!(waits(&page("k", false, Consistency::Strong), None) && !waits(&page("k", true, Consistency::Strong), None));
    assert!(!waits(&page("a", false, timeline), None));
    // A change does not wait here, because the latches of a prepared transaction exclude it.
    let decides = Question::Decide(write("k", [if_version(put("c", "x"), 20)]));
    let decided = Evaluation::deciding(decides, state.view_now()).answer(Io::Allowed).expect("a working disk");
    assert!(matches!(decided, Evaluated::Decided(_)));
    log.apply(&mut state, &resolve(1, 40, None));
    assert!(matches!(evaluated(&state, &get("k", Consistency::Strong), None), Evaluated::Outcome(_)));
    assert_eq!(read(&state, "k"), [cell("c", "old", 20)]);
}

/// A split gives the decisions to the range that holds the coordinator's key.
#[test]
fn split_divides_decisions() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    for (number, key) in [(1, "a"), (2, "m"), (3, "z")] {
        log.apply(&mut state, &commit(stamp(session, number), key, "1", &[participant(5)]));
    }
    let (mut child, mut child_log) = super::splits::split_off(&mut state, &mut log, "m");
    let ids = |state: &State| state.decided().keys().map(|id| id.sequence).collect::<Vec<_>>();
    assert_eq!((ids(&state), ids(&child)), (vec![1], vec![2, 3]));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "a")), committed(20, &[participant(5)]));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 2), "m")), None, "it asks the other range");
    assert_eq!(child_log.apply(&mut child, &abort(stamp(session, 2), "m")), committed(30, &[participant(5)]));
    assert_eq!(log.apply(&mut state, &commit(stamp(session, 4), "z", "1", &[])), None);
    // The stamp was not used up.
    assert!(child_log.apply(&mut child, &commit(stamp(session, 4), "z", "1", &[])).is_some_and(|it| it.is_ok()));
    assert_eq!(testing::copy(&child).logical_hash(), child.logical_hash());
}

/// A transaction with rows in two ranges has no effect in one of them.
#[test]
fn parts_outside_of_range_are_not_executed() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    super::splits::split_off(&mut state, &mut log, "m");
    let writes = vec![row("a", "1"), row("z", "1")];
    let both =
        Command::Commit { stamp: stamp(session, 1), key: bytes("a"), writes: writes.clone(), participants: vec![] };
    for command in [both, prepare(1, &[], &writes), prepare(1, &[("a", "z")], &[row("a", "1")])] {
        let applied = state.apply(&log.entry(command.encode())).unwrap();
        assert_eq!((applied.outcome, applied.effect), (None, Some(Effect::Elsewhere)));
    }
    assert!(state.prepared().is_empty() && read(&state, "a").is_empty());
    let part = |key: &str, range: KeyRange| TransactionPart {
        reads: vec![ReadSpan { range, seen: log.timestamp }],
        writes: vec![row(key, "1")],
    };
    let within = KeyRange { start: bytes("a"), end: Some(bytes("m")) };
    let refused = |state: &State, part: TransactionPart| {
        let (stamp, key, participants) = (stamp(session, 1), bytes("a"), Vec::new());
        let commit = Commit { stamp, key, owner: OWNER, part: part.clone(), participants };
        let prepare = Prepare { coordinator: coordinator(1), owner: OWNER, part };
        [TableRequest::Commit(Box::new(commit)), TableRequest::Prepare(Box::new(prepare))].map(|request| {
            match state.propose(&request) {
                Payload::Refuse(failure) => Some(failure),
                Payload::Decide(_) => None,
                Payload::Command(command) => panic!("{command:?}"),
            }
        })
    };
    assert_eq!(refused(&state, part("a", within.clone())), [None, None]);
    for part in [part("z", within), part("a", KeyRange::all())] {
        // Another attempt may have committed it before the split, so this is no abort.
        let [commit, prepare] = refused(&state, part);
        assert!(matches!(commit, Some(Failure::Unavailable(_))), "{commit:?}");
        assert!(matches!(prepare, Some(Failure::Aborted(_))), "{prepare:?}");
    }
    let owner = state.ownership().owner_of(&state_machine::KeyPosition::At(bytes("z")));
    assert_eq!(owner, KeyOwner::Other);
}

#[test]
fn unresolved_transactions_block_split_and_drop() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let split = Command::Split { key: bytes("m"), child: CohortId(9), members: Membership::default() };
    let is_refused = |outcome: Option<Outcome>| matches!(outcome, Some(Err(Failure::Unavailable(_))));
    let Some(Ok(TableResponse::Prepared { timestamp })) = log.apply(&mut state, &prepare(1, &[("a", "b")], &[])) else {
        panic!("it is prepared")
    };
    assert!(is_refused(log.apply(&mut state, &split)) && is_refused(log.apply(&mut state, &Command::Drop)));
    assert!(state.children().is_empty() && state.ownership().range().is_some());
    log.apply(&mut state, &resolve(1, timestamp.0, None));
    log.apply(&mut state, &commit(stamp(session, 1), "k", "1", &[participant(5)]));
    assert!(is_refused(log.apply(&mut state, &Command::Drop)), "a participant may ask for the decision");
    log.apply(&mut state, &Command::Forget { transactions: vec![TransactionId { session, sequence: 1 }] });
    assert_eq!(log.apply(&mut state, &Command::Drop), Some(Ok(TableResponse::Dropped)));
    assert_eq!(log.apply(&mut state, &abort(stamp(session, 1), "k")), None);
    state.invariants();
}

/// Prepared and decided transactions are part of the state that replicas compare.
#[test]
fn transactions_are_hashed() {
    let (mut one, mut log) = fresh();
    let session = open(&mut one, &mut log);
    let mut hashes = vec![one.logical_hash()];
    let base = testing::copy(&one);
    let commands = [
        prepare(1, &[], &[row("k", "1")]),
        prepare(1, &[("a", "b")], &[row("k", "1")]),
        prepare(2, &[], &[row("k", "1")]),
        commit(stamp(session, 1), "k", "1", &[participant(5)]),
        commit(stamp(session, 1), "k", "1", &[participant(6)]),
        commit(stamp(session, 1), "k", "1", &[]),
    ];
    for command in commands {
        let (mut state, mut log) = (testing::copy(&base), log.clone());
        log.apply(&mut state, &command);
        hashes.push(state.logical_hash());
    }
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}

/// A range takes a limited number of bytes of prepared transactions.
#[test]
fn prepared_bytes_are_limited() {
    let (mut state, mut log) = fresh();
    let value = "x".repeat(8 << 20);
    let count = PREPARED_BYTES_MAX / value.len();
    let ask = |number: u64| {
        let part = TransactionPart { reads: vec![], writes: vec![row(&number.to_string(), "1")] };
        TableRequest::Prepare(Box::new(Prepare { coordinator: coordinator(number), owner: OWNER, part }))
    };
    for number in 0..count as u64 {
        assert!(matches!(state.propose(&ask(100)), Payload::Decide(_)));
        log.apply(&mut state, &prepare(number, &[], &[row(&number.to_string(), &value)]));
    }
    assert!(matches!(state.propose(&ask(100)), Payload::Refuse(Failure::Overloaded(_))));
    assert!(matches!(state.propose(&ask(3)), Payload::Decide(_)), "one that is prepared finds its timestamp");
    assert!(state.holds_locks_of(&ask(3)) && !state.holds_locks_of(&ask(100)));
    let timestamp = state.prepared()[&transaction(0)].timestamp;
    log.apply(&mut state, &resolve(0, timestamp.0, None));
    assert!(matches!(state.propose(&ask(100)), Payload::Decide(_)));
    state.invariants();
}

/// A small value does not keep the buffer of the entry that prepared it.
#[test]
fn resolved_values_do_not_pin_entry_buffer() {
    let (mut state, mut log) = fresh();
    let large = "x".repeat(1_000_000);
    let entry = log.entry(prepare(1, &[], &[row("a", &large), row("b", &"y".repeat(2_000))]).encode());
    state.apply(&entry).unwrap();
    log.apply(&mut state, &resolve(1, 10, Some(10)));
    let range = entry.payload.as_ptr_range();
    for (key, is_kept) in [("a", true), ("b", false)] {
        let Ok(TableResponse::Row { cells, .. }) = get(&state, key, None) else { panic!("a get gives a row") };
        assert_eq!(range.contains(&cells[0].value.as_ptr()), is_kept, "{key}");
    }
}

/// Validation: a newer version in what was read is a conflict, also of a row that did not exist, and a moment before the
/// watermark can't be validated.
#[test]
fn conflicts_are_found() {
    let (mut state, mut log) = fresh();
    log.write(&mut state, &write("k", [put("c", "1")])).unwrap();
    log.write(&mut state, &write("l", [put("c", "1")])).unwrap();
    log.apply(&mut state, &Command::DeleteRow { stamp: None, key: bytes("m") });
    let conflict = |state: &State, start: &str, end: Option<&str>, seen| {
        let range = KeyRange { start: bytes(start), end: end.map(bytes) };
        let reads = [
            ReadSpan { range: KeyRange { start: bytes("x"), end: None }, seen: state.last_timestamp() },
            ReadSpan { range, seen: Timestamp(seen) },
        ];
        state.view_now().conflict(&reads, Io::Allowed).expect("a working disk")
    };
    for (start, end, newest) in [("k", Some("k\0"), 10), ("a", Some("l\0"), 20), ("m", Some("n"), 30), ("", None, 30)] {
        assert!(conflict(&state, start, end, newest - 1).is_some());
        assert_eq!(conflict(&state, start, end, newest), None);
    }
    assert_eq!(conflict(&state, "a", Some("k"), 0), None);
    log.apply(&mut state, &Command::Watermark(Timestamp(25)));
    assert_eq!(conflict(&state, "a", Some("k"), 25), None);
    let Some(reason) = conflict(&state, "a", Some("k"), 24) else { panic!("it is too old") };
    assert!(reason.contains("24") && reason.contains("25"), "{reason}");
}

/// The range is split between two attempts of a transaction. A delayed prepare of the first one, for keys of both parts,
/// is not answered for the prepare of the second one.
#[test]
fn earlier_prepare_counts_for_its_own_keys() {
    let (mut state, mut log) = fresh();
    let _ = open(&mut state, &mut log);
    super::splits::split_off(&mut state, &mut log, "m");
    let prepared = log.apply(&mut state, &prepare(1, &[], &[row("a", "1")]));
    assert!(matches!(prepared, Some(Ok(TableResponse::Prepared { .. }))));
    let part = TransactionPart { reads: vec![], writes: vec![row("a", "1"), row("z", "1")] };
    let request = TableRequest::Prepare(Box::new(Prepare { coordinator: coordinator(1), owner: OWNER, part }));
    assert!(matches!(state.propose(&request), Payload::Refuse(Failure::Aborted(_))));
}
