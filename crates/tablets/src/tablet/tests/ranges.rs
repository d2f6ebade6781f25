//! A tablet serves its own range and no other (guarantee 19).

use base::{KeyRange, SplitMix64};
use state_machine::interface::{Decision, Evaluated, Read as _};

use super::scans::scanned;
use super::*;
use crate::evaluation::{Evaluation, Question};
use crate::request::Row;
use crate::testing::load;

fn range(start: &str, end: Option<&str>) -> KeyRange {
    KeyRange { start: bytes(start), end: end.map(bytes) }
}

/// A tablet with a range that was assigned by an entry.
fn of(cohort: u32, range: KeyRange) -> (State, Log) {
    let (mut state, mut log) = (testing::fresh(CohortId(cohort)), Log::new());
    log.apply(&mut state, &Command::AssignRange { range });
    (state, log)
}

/// Whether a write is not executed because its row belongs to another range.
fn is_put_elsewhere(state: &mut State, log: &mut Log, command: &Command) -> bool {
    let applied = state.apply(&log.entry(command.encode())).expect("the next entry");
    (applied.outcome, applied.effect) == (None, Some(Effect::Elsewhere))
}

#[test]
fn tablet_without_range_refuses_requests() {
    let (mut state, mut log) = (testing::fresh(CohortId(2)), Log::new());
    let is_refused = |outcome: &Outcome| matches!(outcome, Err(Failure::Unavailable(_)));
    assert!(is_put_elsewhere(&mut state, &mut log, &Command::unconditional(write("k", [put("c", "v")]))));
    assert!(is_put_elsewhere(&mut state, &mut log, &open_session()));
    assert!(is_refused(&get(&state, "k", None)));
    let found = Command::AssignRange { range: range("b", Some("d")) };
    let applied = state.apply(&log.entry(found.encode())).expect("the next entry");
    assert_eq!(applied.effect, Some(Effect::RangeFounded));
    let again = Command::AssignRange { range: KeyRange::all() };
    assert_eq!(state.apply(&log.entry(again.encode())).expect("the next entry").effect, None);
    assert_eq!(tablet(&state).ownership(), &Ownership::Owns(range("b", Some("d"))));
    state.invariants();
}

/// Keys of another range are neither read nor written here, and are never reported as "not found". A rejected write
/// does not use up its stamp.
#[test]
fn rejects_keys_outside_range() {
    let (mut state, mut log) = of(2, range("b", Some("d")));
    let session = open(&mut state, &mut log);
    for key in ["a", "d", "e"] {
        let stray = stamped(write(key, [put("c", "v")]), session, 1, 1);
        assert!(is_put_elsewhere(&mut state, &mut log, &Command::unconditional(stray)), "{key}");
        assert!(is_put_elsewhere(&mut state, &mut log, &Command::DeleteRow { stamp: None, key: bytes(key) }));
        assert!(matches!(get(&state, key, None), Err(Failure::Unavailable(_))));
    }
    assert_eq!(tablet(&state).tree().entries_in_memory(), 0);
    assert!(log.write(&mut state, &stamped(write("b", [put("c", "v")]), session, 1, 1)).is_ok());
    state.invariants();
}

/// Two ranges never assign equal session ids, so a stamp is unknown in any other range.
#[test]
fn session_belongs_to_one_range() {
    let (mut first, mut first_log) = of(2, range("", Some("m")));
    let (mut second, mut second_log) = of(3, range("m", None));
    let session = open(&mut first, &mut first_log);
    let stranger = open(&mut second, &mut second_log);
    assert_ne!(session, stranger);
    let stray = stamped(write("z", [put("c", "v")]), session, 1, 1);
    assert_eq!(second_log.write(&mut second, &stray), Err(Failure::UnknownSession(session)));
    let opened = first_log.apply(&mut first, &open_session());
    assert!(
        matches!(opened, Some(Ok(TableResponse::SessionOpened { range: owned, .. })) if owned == range("", Some("m")))
    );
}

#[test]
fn session_id_limits() {
    let of = |cohort, sequence| ClientSessionId::new(CohortId(cohort), base::Sequence(sequence));
    assert_eq!(of(2, 5), Some(ClientSessionId(2 << 40 | 5)));
    assert_eq!(of(u32::MAX, 5), None);
    assert_eq!(of(2, 1 << 40), None);
    assert!(of((1 << 24) - 1, (1 << 40) - 1).is_some());
}

/// The range and its rows survive a checkpoint.
#[test]
fn checkpoint_preserves_range() {
    let (mut state, mut log) = of(2, range("b", Some("d")));
    log.write(&mut state, &write("c", [put("c", "v")])).unwrap();
    let chunks: Vec<Bytes> = state.chunks();
    let loaded = load(&state, CohortId(2), &chunks).expect("they are whole");
    assert_eq!(tablet(&loaded).ownership(), tablet(&state).ownership());
    let (mut other, mut log) = of(2, range("b", None));
    log.write(&mut other, &write("c", [put("c", "v")])).unwrap();
    assert_ne!(other.logical_hash(), state.logical_hash());
}

/// Over several tablets with adjacent ranges, each scan returns the same as over one tablet: in both directions, with
/// any ends, prefix, limit and split keys. A page may be empty at the end of a range.
#[test]
fn scan_continues_in_next_range() {
    let mut random = SplitMix64::new(3);
    let names = ["a", "ab", "abc", "b", "ba", "bb", "c", "cab", "d"];
    for _ in 0..400 {
        let splits: Vec<&str> = names.iter().copied().filter(|_| random.below(3) == 0).collect();
        let starts: Vec<&str> = std::iter::once("").chain(splits.iter().copied()).collect();
        let ends = splits.iter().copied().map(Some).chain([None]);
        let mut tablets: Vec<(State, Log)> =
            starts.iter().zip(ends).zip(2..).map(|((start, end), cohort)| of(cohort, range(start, end))).collect();
        let (mut whole, mut log) = fresh();
        for key in names.iter().filter(|_| random.below(4) > 0) {
            let row = write(key, [put("c", key)]);
            log.write(&mut whole, &row).unwrap();
            let (state, log) = tablets.iter_mut().find(|(state, _)| owns(state, key)).expect("each key has a range");
            log.write(state, &row).unwrap();
        }
        let mut pick = || names[random.below(names.len() as u64) as usize];
        let (one, other, prefix) = (pick(), pick(), pick());
        let scan = Scan {
            from: bytes(if random.below(2) == 0 { "" } else { one.min(other) }),
            to: (random.below(2) == 0).then(|| bytes(one.max(other))),
            prefix: bytes(if random.below(3) == 0 { prefix } else { "" }),
            reverse: random.below(2) == 0,
            limit: random.below(4) as usize,
            ..Scan::default()
        };
        let states: Vec<&State> = tablets.iter().map(|(state, _)| state).collect();
        assert_eq!(keys(&states, &scan), keys(&[&whole], &scan), "{splits:?} {scan:?}");
    }
}

fn owns(state: &State, key: &str) -> bool {
    tablet(state).ownership().range().is_some_and(|range| range.contains(key.as_bytes()))
}

/// The keys of all pages, each from the tablet that contains the page's position.
fn keys(states: &[&State], scan: &Scan) -> Vec<Bytes> {
    let (mut scan, mut all) = (scan.clone(), Vec::new());
    loop {
        let position = scan.position();
        let holds = |state: &&&State| tablet(state).ownership().range().is_some_and(|range| position.is_in(range));
        let state = states.iter().find(holds).expect("each position has a range");
        let Ok(TableResponse::Rows { rows, continuation, .. }) = scanned(state, &scan) else {
            panic!("a scan gives rows")
        };
        all.extend(rows.into_iter().map(|Row { key, .. }| key));
        let Some(next) = continuation else { return all };
        assert_ne!(scan.continuation, Some(next.clone()), "a scan makes progress");
        scan.continuation = Some(next);
    }
}

/// A dropped tablet answers nothing, deletes everything, and cannot be assigned a range again.
#[test]
fn dropped_tablet_stays_empty() {
    let (mut state, mut log) = of(2, KeyRange::all());
    let session = open(&mut state, &mut log);
    log.write(&mut state, &stamped(write("k", [put("c", "v")]), session, 1, 1)).unwrap();
    let now = log.timestamp;
    log.apply(&mut state, &Command::Watermark(now));
    testing::settle(&mut state, &testing::disk());
    log.write(&mut state, &write("l", [put("c", "v")])).unwrap();
    for change in [Some(Effect::RangeDropped), None] {
        let applied = state.apply(&log.entry(Command::Drop.encode())).expect("the next entry");
        assert_eq!((applied.outcome, applied.effect), (Some(Ok(TableResponse::Dropped)), change));
    }
    log.apply(&mut state, &Command::AssignRange { range: KeyRange::all() });
    let late = stamped(write("k", [put("c", "v")]), session, 2, 1);
    assert!(matches!(log.write(&mut state, &late), Err(Failure::Unavailable(_))));
    assert!(matches!(get(&state, "k", None), Err(Failure::Unavailable(_))));
    assert!(is_put_elsewhere(&mut state, &mut log, &open_session()));
    assert_eq!((state.snapshot_bytes(), tablet(&state).watermark()), (0, now));
    assert_eq!(tablet(&state).tree().entries_in_memory(), 0);
    assert!(tablet(&state).tree().sstables().is_empty(), "SSTables are dropped too");
    state.invariants();
    let chunks: Vec<Bytes> = state.chunks();
    assert_eq!(load(&state, CohortId(2), &chunks).map(|loaded| loaded.logical_hash()), Ok(state.logical_hash()));
}

/// A query on a key of another range has no outcome, so that the client looks up the range again. This includes the
/// evaluation of conditions.
#[test]
fn stray_queries_are_redirected() {
    let (state, _) = of(2, range("b", Some("d")));
    let answer = |question| Evaluation { view: tablet(&state).view_now(), question, waits: true }.answer(Io::Allowed);
    let conditional = |key| Question::Decide(write(key, [if_version(put("c", "v"), 7)]));
    let get = |key: &str| Question::Get { key: bytes(key), columns: Columns::default() };
    let scan = |reverse| Question::Scan(Scan { reverse, ..Scan::default() });
    for question in [conditional("a"), conditional("d"), get("a"), get("d"), scan(false), scan(true)] {
        assert_eq!(answer(question), Ok(Evaluated::Elsewhere));
    }
    assert!(matches!(answer(conditional("b")), Ok(Evaluated::Decided(Decision { refusal: Some(_), .. }))));
    assert_eq!(answer(get("c")), Ok(Evaluated::Outcome(Ok(TableResponse::row(vec![])))));
}
