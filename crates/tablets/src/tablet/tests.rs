use base::CohortId;
use base::limits::{SESSION_WINDOW, SESSIONS_MAX};
use bytes::Bytes;
use store::sstable::Io;

use super::*;
use crate::request::{Cell, Columns, Part, Scan, Write};
use crate::testing::{self, Log, State, Tested as _, bytes, delete, if_version, put, stamped, write};

mod model;
mod ranges;
mod scans;
mod splits;
mod transactions;

fn fresh() -> (State, Log) {
    (testing::tablet_of_all(CohortId(2)), Log::new())
}

fn get(state: &State, key: &str, columns: Option<&[Bytes]>) -> Outcome {
    tablet(state).view_now().get(&bytes(key), &all_or(columns), Io::Allowed).expect("the disk can be read")
}

fn all_or(named: Option<&[Bytes]>) -> Columns {
    Columns { named: named.map(<[Bytes]>::to_vec), part: Part::default() }
}

fn tablet(state: &State) -> &Tablet {
    state
}

fn open(state: &mut State, log: &mut Log) -> ClientSessionId {
    match log.apply(state, &testing::open_session(state)) {
        Some(Ok(TableResponse::SessionOpened { session, .. })) => session,
        other => panic!("a session should be open, not {other:?}"),
    }
}

/// Opens a session in the first range.
fn open_session() -> Command {
    Command::OpenSession { key: Bytes::new() }
}

fn read(state: &State, key: &str) -> Vec<(String, String, i64)> {
    let Ok(TableResponse::Row { cells, .. }) = get(state, key, None) else { panic!("a get gives a row") };
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    cells.iter().map(|cell| (text(&cell.column), text(&cell.value), cell.version.0)).collect()
}

fn cell(column: &str, value: &str, version: i64) -> (String, String, i64) {
    (column.into(), value.into(), version)
}

fn mismatch(column: &str, expected: i64, actual: i64) -> Outcome {
    let (expected, actual) = (Timestamp(expected), Timestamp(actual));
    Err(Failure::VersionMismatch { column: bytes(column), expected, actual })
}

fn written(version: i64) -> Outcome {
    Ok(TableResponse::Written { version: Timestamp(version) })
}

/// A version is its entry's timestamp. A write is atomic, the first unmet condition is reported, and an absent or
/// deleted column has version 0.
#[test]
fn conditions_are_checked_before_write() {
    let (mut state, mut log) = fresh();
    assert_eq!(log.write(&mut state, &write("k", [put("a", "1"), if_version(put("b", "1"), 0)])), written(10));
    let refused = write("k", [put("c", "2"), if_version(delete("a"), 10), if_version(put("b", "2"), 9)]);
    assert_eq!(log.write(&mut state, &refused), mismatch("b", 9, 10));
    let refused = write("k", [if_version(put("x", ""), 5), if_version(put("b", "2"), 9)]);
    assert_eq!(log.write(&mut state, &refused), mismatch("x", 5, 0));
    assert_eq!(read(&state, "k"), [cell("a", "1", 10), cell("b", "1", 10)]);
    assert_eq!(log.write(&mut state, &write("k", [if_version(delete("a"), 10), put("b", "2")])), written(40));
    assert_eq!(read(&state, "k"), [cell("b", "2", 40)]);
    assert_eq!(log.write(&mut state, &write("k", [if_version(put("a", "3"), 10)])), mismatch("a", 10, 0));
    assert_eq!(log.write(&mut state, &write("k", [if_version(put("a", "3"), 0)])), written(60));
    state.invariants();
}

/// If a column is named twice, which the endpoint rejects, the last mutation takes effect on all replicas.
#[test]
fn last_mutation_of_column_wins() {
    let (mut state, mut log) = fresh();
    log.write(&mut state, &write("k", [put("a", "1"), put("a", "2"), put("b", "1"), delete("b")])).unwrap();
    state.invariants();
    assert_eq!(read(&state, "k"), [cell("a", "2", 10)]);
}

/// A read as of a moment sees the state at that moment, down to the watermark.
#[test]
fn reads_as_of_timestamp() {
    let (mut state, mut log) = fresh();
    for value in ["1", "2", "3"] {
        log.write(&mut state, &write("k", [put("a", value)])).unwrap();
    }
    log.write(&mut state, &write("k", [delete("a")])).unwrap();
    log.write(&mut state, &write("k", [put("a", "5")])).unwrap();
    let at = |state: &State, moment| {
        tablet(state)
            .view_now()
            .get_at(&bytes("k"), &Columns::default(), Timestamp(moment), Io::Allowed)
            .expect("the disk can be read")
    };
    let one = |value, version| {
        Ok(TableResponse::row(vec![Cell { column: bytes("a"), value: bytes(value), version: Timestamp(version) }]))
    };
    let none = || Ok(TableResponse::row(vec![]));
    assert_eq!(at(&state, 9), none());
    assert_eq!(at(&state, 29), one("2", 20));
    assert_eq!(at(&state, 45), none());
    log.apply(&mut state, &Command::Watermark(Timestamp(25)));
    log.apply(&mut state, &Command::Watermark(Timestamp(15)));
    assert_eq!(tablet(&state).watermark(), Timestamp(25), "a watermark never falls");
    assert_eq!(at(&state, 25), one("2", 20));
    assert_eq!(at(&state, 30), one("3", 30));
    assert_eq!(at(&state, 50), one("5", 50));
    assert!(matches!(at(&state, 24), Err(Failure::Precondition(_))));
    log.apply(&mut state, &Command::Watermark(Timestamp(i64::MAX)));
    assert_eq!(tablet(&state).watermark(), log.timestamp, "a watermark is capped at the last timestamp");
}

/// Compactions free the space of deleted rows and old versions, without a visible effect.
#[test]
fn compaction_drops_dead_data() {
    let (mut state, mut log) = fresh();
    let disk = testing::disk();
    for round in 0..3 {
        for number in 0..500 {
            log.write(&mut state, &write(&number.to_string(), [put("a", &round.to_string()), put("b", "x")])).unwrap();
        }
        testing::settle(&mut state, &disk);
    }
    for number in 0..500 {
        log.write(&mut state, &write(&number.to_string(), [delete("a"), delete("b")])).unwrap();
    }
    let last = log.timestamp;
    log.apply(&mut state, &Command::Watermark(last));
    let hash = state.logical_hash();
    testing::settle(&mut state, &disk);
    testing::settle(&mut state, &disk);
    assert_eq!(state.logical_hash(), hash);
    let left: u64 = tablet(&state).tree().level_sizes().iter().map(|(_, bytes)| bytes).sum();
    assert!(left < 4_096, "{left} bytes remain");
    state.invariants();
}

/// A retry returns the first outcome, including a refusal, and is not executed again.
#[test]
fn session_write_is_exactly_once() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let first = stamped(write("k", [put("a", "1")]), session, 1, 1);
    let refused = stamped(write("k", [if_version(put("a", "2"), 0)]), session, 2, 1);
    assert_eq!(log.write(&mut state, &first), written(20));
    assert_eq!(log.write(&mut state, &refused), mismatch("a", 0, 20));
    log.write(&mut state, &write("k", [delete("a")])).unwrap();
    assert_eq!(log.write(&mut state, &refused), mismatch("a", 0, 20));
    assert_eq!(log.write(&mut state, &first), written(20));
    assert_eq!(read(&state, "k"), []);
    let loaded = testing::copy(&state);
    assert_eq!(log.write(&mut { loaded }, &first), written(20), "checkpoints contain the outcomes");
}

/// A number below the floor has an unknown outcome, and one above the window is not executed. Neither changes the rows.
#[test]
fn session_window() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let numbered = |number: u64, first| stamped(write("k", [put("a", &number.to_string())]), session, number, first);
    let last = SESSION_WINDOW;
    assert!(log.write(&mut state, &numbered(last, 1)).is_ok());
    assert!(matches!(log.write(&mut state, &numbered(last + 1, 1)), Err(Failure::Invalid(_))));
    assert!(log.write(&mut state, &numbered(last + 1, 2)).is_ok());
    let Err(Failure::Unknown(message)) = log.write(&mut state, &numbered(1, 1)) else {
        panic!("it is below the floor")
    };
    assert!(message.contains("outcome already acknowledged"));
    assert!(log.write(&mut state, &numbered(2, u64::MAX)).is_ok(), "a stamp cannot acknowledge its own write");
    assert!(log.write(&mut state, &numbered(u64::MAX, u64::MAX)).is_ok());
    state.invariants();
}

/// The write of an unknown or expired session is not executed. A session that was used in the meantime does not expire.
#[test]
fn unused_sessions_expire() {
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let numbered = |number| stamped(write("k", [put("a", "1")]), session, number, number);
    let seen = tablet(&state).sessions_unused_since(Timestamp(11));
    assert_eq!(seen, [(session, Timestamp(10))]);
    assert_eq!(tablet(&state).sessions_unused_since(Timestamp(10)), []);
    log.write(&mut state, &numbered(1)).unwrap();
    assert_eq!(log.apply(&mut state, &Command::ExpireSessions { sessions: seen }), None);
    assert_eq!(tablet(&state).sessions_open(), 1, "the session was used in the meantime");
    let seen = tablet(&state).sessions_unused_since(Timestamp(i64::MAX));
    log.apply(&mut state, &Command::ExpireSessions { sessions: seen });
    assert_eq!(tablet(&state).sessions_open(), 0);
    let before = read(&state, "k");
    assert_eq!(log.write(&mut state, &numbered(1)), Err(Failure::UnknownSession(session)));
    assert_eq!(log.write(&mut state, &numbered(2)), Err(Failure::UnknownSession(session)));
    assert_eq!(read(&state, "k"), before);
    state.invariants();
}

/// After a loss the log reuses sequence numbers. A session that is opened then never gets the id of a lost one, also
/// after a restart from a checkpoint.
#[test]
fn session_ids_are_unique_after_data_loss() {
    let (mut state, mut log) = fresh();
    let (mut left, mut after) = (testing::copy(&state), log.clone());
    let lost: Vec<ClientSessionId> = (0..5).map(|_| open(&mut state, &mut log)).collect();
    assert_eq!(after.apply(&mut left, &Command::DeclareLoss), None);
    let mut left = testing::copy(&left);
    assert_eq!(left.progress.losses, 1);
    let opened: Vec<ClientSessionId> = (0..5).map(|_| open(&mut left, &mut after)).collect();
    assert!(opened.iter().all(|session| !lost.contains(session)), "{opened:?} {lost:?}");
    left.invariants();
    testing::copy(&left).invariants();
}

/// A full table evicts sessions that never wrote, then the longest idle, equally on all replicas. A retry of an evicted
/// session's write is never executed.
#[test]
fn sessions_are_bounded() {
    let (mut state, mut log) = fresh();
    let sessions: Vec<ClientSessionId> = (0..3).map(|_| open(&mut state, &mut log)).collect();
    let numbered = |session, number| stamped(write("k", [put("a", "1")]), session, number, 1);
    // The last two write, so the first is evicted before them although they have been idle as long as all others.
    for session in &sessions[1..] {
        log.write(&mut state, &numbered(*session, 1)).unwrap();
    }
    let idle: Vec<ClientSessionId> = (3..SESSIONS_MAX).map(|_| open(&mut state, &mut log)).collect();
    assert_eq!(tablet(&state).sessions_open(), SESSIONS_MAX);
    let full = state.logical_hash();
    let mut copy = testing::copy(&state);
    let mut copied_log = log.clone();
    let (fresh, same) = (open(&mut state, &mut log), open(&mut copy, &mut copied_log));
    assert_eq!(fresh, same);
    assert_eq!(state.logical_hash(), copy.logical_hash(), "a replica that loaded a checkpoint evicts the same");
    assert_ne!(state.logical_hash(), full);
    assert_eq!(tablet(&state).sessions_open(), SESSIONS_MAX - 1_000 + 1);
    state.invariants();
    let before = read(&state, "k");
    for evicted in [sessions[0], idle[0], idle[998]] {
        assert_eq!(log.write(&mut state, &numbered(evicted, 1)), Err(Failure::UnknownSession(evicted)));
    }
    assert_eq!(read(&state, "k"), before);
    for kept in [sessions[1], sessions[2], idle[999], fresh] {
        assert!(log.write(&mut state, &numbered(kept, 2)).is_ok(), "{kept:?}");
    }
}

/// Among sessions that wrote, the longest idle are evicted, and a retry of their writes is answered "unknown session".
#[test]
fn idle_writers_are_evicted_last() {
    let (mut state, mut log) = fresh();
    let numbered = |session, number| stamped(write("k", [put("a", "1")]), session, number, 1);
    let sessions: Vec<ClientSessionId> = (0..SESSIONS_MAX).map(|_| open(&mut state, &mut log)).collect();
    for session in &sessions {
        log.write(&mut state, &numbered(*session, 1)).unwrap();
    }
    log.write(&mut state, &numbered(sessions[0], 2)).unwrap();
    open(&mut state, &mut log);
    let before = read(&state, "k");
    for evicted in [sessions[1], sessions[1_000]] {
        assert_eq!(log.write(&mut state, &numbered(evicted, 1)), Err(Failure::UnknownSession(evicted)));
    }
    for kept in [sessions[0], sessions[1_001]] {
        assert!(log.write(&mut state, &numbered(kept, 1)).is_ok(), "a retry returns the first outcome");
    }
    assert_eq!(read(&state, "k"), before);
    state.invariants();
}

/// Only the direct successor is applied, with a later timestamp and a valid command. Any other entry is fatal and has
/// no effect.
#[test]
fn applies_only_next_entry() {
    let (mut state, mut log) = fresh();
    log.write(&mut state, &write("k", [put("a", "1")])).unwrap();
    let hash = state.logical_hash();
    let next = log.clone().entry(open_session().encode());
    let lsn = |epoch, sequence| Lsn::new(epoch, sequence);
    let wrong = [
        Entry { lsn: lsn(1, 3), ..next.clone() },
        Entry { lsn: lsn(1, 1), ..next.clone() },
        Entry { lsn: lsn(0, 2), ..next.clone() },
        Entry { previous: lsn(1, 2), ..next.clone() },
        Entry { previous: lsn(0, 1), ..next.clone() },
        Entry { timestamp: log.timestamp, ..next.clone() },
        Entry { payload: Bytes::from_static(&[0]), ..next.clone() },
    ];
    for entry in &wrong {
        assert!(state.apply(entry).is_err());
        assert_eq!(state.logical_hash(), hash);
    }
    let error = |entry| testing::copy(&state).apply(entry).unwrap_err();
    assert!(matches!(error(&wrong[0]), ApplyError::NotSuccessor { .. }));
    assert!(matches!(error(&wrong[5]), ApplyError::TimestampNotAfter { .. }));
    assert!(matches!(error(&wrong[6]), ApplyError::Undecodable { .. }));
    let later = Entry { lsn: lsn(7, 2), ..next };
    assert!(state.apply(&later).is_ok(), "an entry of a later epoch may follow");
}

/// A small value does not keep its entry's buffer in memory; a large one is not copied.
#[test]
fn small_values_do_not_pin_entry_buffer() {
    let (mut state, mut log) = fresh();
    let large = "x".repeat(1_000_000);
    let command = Command::unconditional(write("k", [put("large", &large), put("small", "1")]));
    let entry = log.entry(command.encode());
    state.apply(&entry).unwrap();
    let range = entry.payload.as_ptr_range();
    let Ok(TableResponse::Row { cells, .. }) = get(&state, "k", None) else { panic!("a get gives a row") };
    for cell in cells {
        assert_eq!(range.contains(&cell.value.as_ptr()), cell.column == "large");
    }
}

/// The planted bug evicts an idle writer from a full table, although other sessions never wrote.
#[cfg(feature = "canary")]
#[test]
fn writer_eviction_is_found() {
    use base::canary::{Bug, plant};
    let (mut state, mut log) = fresh();
    let writer = open(&mut state, &mut log);
    let once = stamped(write("k", [put("a", "1")]), writer, 1, 1);
    let first = log.write(&mut state, &once);
    for _ in 1..SESSIONS_MAX {
        open(&mut state, &mut log);
    }
    for (bug, outcome) in [(None, first), (Some(Bug::WriterEvicted), Err(Failure::UnknownSession(writer)))] {
        let (mut state, mut log) = (testing::copy(&state), log.clone());
        plant(bug);
        open(&mut state, &mut log);
        assert_eq!(log.write(&mut state, &once), outcome);
    }
    plant(None);
}

/// Each planted bug has its documented effect.
#[cfg(feature = "canary")]
#[test]
fn planted_bugs_change_outcomes() {
    use base::canary::{Bug, plant};
    let (mut state, mut log) = fresh();
    let session = open(&mut state, &mut log);
    let once = stamped(write("k", [put("a", "1")]), session, 1, 1);
    let first = log.write(&mut state, &once);

    plant(Some(Bug::DedupeOnlyInFlight));
    assert_ne!(log.write(&mut testing::copy(&state), &once), first);
    plant(Some(Bug::DedupeNotInCheckpoint));
    let log = Log::after(&state);
    let mut loaded = testing::copy(&state);
    assert_ne!(log.clone().write(&mut loaded, &once), first);
    plant(Some(Bug::UnknownSessionExecuted));
    let unknown = stamped(write("k", [put("a", "1")]), ClientSessionId(77), 1, 1);
    assert!(log.clone().write(&mut testing::copy(&state), &unknown).is_ok());
    plant(None);
}
