use std::fmt;

use base::{KeyRange, Sequence, SplitMix64};
use state_machine::checkpoint::{CHUNK_BYTES, Chunks, Frame, Frames, end};
use state_machine::{LockOwner, SessionStamp, StateMachine};

use super::*;
use crate::command::Command;
use crate::request::TableResponse;
use crate::testing::{
    Log, State, Tested as _, delete, fresh, if_version, load, noise, put, stamped, tablet_of_all, write,
};
use crate::transaction::{Coordinator, Participant, RowChange};

const COHORT: CohortId = CohortId(2);

fn session(sequence: u64) -> ClientSessionId {
    ClientSessionId::new(COHORT, Sequence(sequence)).expect("small numbers")
}

fn open_session() -> Command {
    Command::OpenSession { key: Bytes::new() }
}

/// A tablet with rows, sessions with outcomes of both kinds, and a watermark.
fn small_tablet() -> State {
    let (mut state, mut log) = (tablet_of_all(COHORT), Log::new());
    for _ in 0..3 {
        log.apply(&mut state, &open_session());
    }
    for number in 1..=5 {
        let mutations = [put("a", "1"), if_version(put("b", "2"), 0)];
        let _ = log.write(&mut state, &stamped(write("k", mutations), session(2), number, 1));
        log.write(&mut state, &write(&format!("row {number}"), [put("a", "x"), put("b", "y")])).unwrap();
        log.write(&mut state, &write("row 2", [delete("a")])).unwrap();
    }
    log.apply(&mut state, &Command::Watermark(Timestamp(70)));
    state
}

/// A tablet with prepared and decided transactions.
fn tablet_with_transactions() -> State {
    let mut state = small_tablet();
    let mut log = Log::after(&state);
    let row = |key: &str| RowChange {
        key: key.to_owned().into(),
        deletes_row: key == "b",
        columns: vec![("c".into(), Some("v".into())), ("d".into(), None)],
    };
    for number in 1..=3 {
        let stamp = |session| SessionStamp { session, sequence: number, first_incomplete: 1 };
        let coordinator = Coordinator { table: "t".into(), key: "k".into(), stamp: stamp(ClientSessionId(99)) };
        let owner = LockOwner { started: Timestamp(5), id: number };
        let reads = vec![KeyRange { start: "x".into(), end: None }];
        let writes = vec![row(&format!("prepared {number}"))];
        log.apply(&mut state, &Command::Prepare { coordinator, owner, reads, writes });
        let participants = vec![Participant { cohort: CohortId(9), prepared: Timestamp(8) }];
        let (stamp, key) = (stamp(session(1)), Bytes::from("b"));
        log.apply(&mut state, &Command::Commit { stamp, key, writes: vec![row("b")], participants });
    }
    assert_eq!((state.prepared().len(), state.decided().len()), (3, 3));
    state
}

fn chunks(state: &State) -> Vec<Bytes> {
    state.chunks()
}

fn is_send<T: Send + Clone + fmt::Debug>(_: &T) {}

/// A state restored from chunks is equal, and its next checkpoint is identical.
#[test]
fn checkpoint_round_trip() {
    for state in [fresh(COHORT), tablet_of_all(COHORT), small_tablet(), tablet_with_transactions()] {
        let snapshot = state.snapshot();
        is_send(&snapshot);
        let pieces = chunks(&state);
        let loaded = load(&state, COHORT, &pieces).expect("the chunks are complete");
        loaded.invariants();
        assert_eq!(loaded.logical_hash(), state.logical_hash());
        assert_eq!(loaded.last_applied(), state.last_applied());
        assert_eq!(loaded.last_timestamp(), state.last_timestamp());
        assert_eq!((snapshot.progress().last_applied, snapshot.progress().cohort), (state.last_applied(), COHORT));
        assert_eq!(chunks(&loaded), pieces);
        assert_eq!(loaded.snapshot_bytes(), state.snapshot_bytes());
        assert_eq!((loaded.prepared(), loaded.decided()), (state.prepared(), state.decided()));
        assert_eq!(loaded.held_locks(), state.held_locks());
    }
}

/// A chunk that is missing, duplicated, truncated or altered is detected.
#[test]
fn rejects_damaged_chunks() {
    for state in [small_tablet(), tablet_with_transactions()] {
        let whole = chunks(&state);
        let refused = |pieces: &[Bytes]| assert!(load(&state, COHORT, pieces).is_err());
        refused(&[]);
        assert!(matches!(load(&state, CohortId(3), &whole), Err(LoadError::OtherCohort { .. })));
        for index in 0..whole.len() {
            let mut pieces = whole.clone();
            pieces.remove(index);
            refused(&pieces);
            let mut pieces = whole.clone();
            pieces.insert(index, whole[index].clone());
            refused(&pieces);
            for byte in 0..whole[index].len() {
                let mut pieces = whole.clone();
                pieces[index] = whole[index].slice(..byte);
                refused(&pieces);
                let mut changed = whole[index].to_vec();
                changed[byte] ^= 0x10;
                pieces[index] = changed.into();
                refused(&pieces);
            }
        }
    }
}

/// Arbitrary bytes under a valid checksum are rejected, or yield a state that keeps its invariants and applies further
/// entries.
#[test]
fn fuzz_chunks_under_valid_checksum() {
    let mut random = SplitMix64::new(5);
    let mut loaded = 0;
    for state in [small_tablet(), tablet_with_transactions()] {
        let whole = chunks(&state);
        for _ in 0..50_000 {
            let mut pieces = whole[..whole.len() - 1].to_vec();
            forge(&mut pieces, &mut random);
            let checksum = pieces.iter().fold(0, |checksum, chunk| base::checksum_append(checksum, chunk));
            pieces.push(end(pieces.len() as u64, checksum));
            if let Ok(mut state) = load(&state, COHORT, &pieces) {
                loaded += 1;
                go_on(&mut state);
            }
        }
    }
    assert!(loaded > 500, "changed values load: {loaded}");
}

fn forge(pieces: &mut Vec<Bytes>, random: &mut SplitMix64) {
    let index = random.below(pieces.len() as u64) as usize;
    let mut chunk = pieces[index].to_vec();
    let at = random.below(chunk.len() as u64) as usize;
    match random.below(8) {
        0 => chunk.truncate(at),
        1 => chunk = noise(random, at).into(),
        2 => pieces.push(chunk.clone().into()),
        3 => chunk[at..].fill(0xff),
        _ => chunk[at] = random.draw().to_le_bytes()[0],
    }
    pieces[index] = chunk.into();
}

fn go_on(state: &mut State) {
    state.invariants();
    if state.last_applied().sequence.0 == u64::MAX || state.last_timestamp().0 > i64::MAX - 100 {
        return;
    }
    let mut log = Log::after(state);
    let numbered = stamped(write("k", [put("a", "1")]), session(2), 6, 2);
    let _ = log.write(state, &numbered);
    log.apply(state, &open_session());
    let now = log.timestamp;
    log.apply(state, &Command::Watermark(now));
    // The forged range may not contain the key.
    let _ = log.write(state, &write("row 2", [put("a", "1"), delete("b")]));
    state.invariants();
}

/// A tablet with many sessions, each with outcomes.
fn busy_tablet() -> State {
    let (mut state, mut log) = (tablet_of_all(COHORT), Log::new());
    for _ in 0..100 {
        let Some(Ok(TableResponse::SessionOpened { session, .. })) = log.apply(&mut state, &open_session()) else {
            panic!("there is room for a session");
        };
        for number in 1..=1_000 {
            let _ = log.write(&mut state, &stamped(write("k", [put("c", "v")]), session, number, 1));
        }
    }
    state
}

/// Chunks keep their size limit.
#[test]
fn chunks_are_bounded() {
    let state = busy_tablet();
    let pieces = chunks(&state);
    assert!(pieces.len() > 3);
    assert!(pieces.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
    let loaded = load(&state, COHORT, &pieces).expect("the chunks are complete");
    assert_eq!(loaded.logical_hash(), state.logical_hash());
}

/// Chunks are created on demand, and a copy of a partly read iterator continues with the same chunks. A loader that
/// rejected a chunk accepts no other.
#[test]
fn chunk_iteration_can_resume() {
    let mut state = busy_tablet();
    let whole = chunks(&state);
    let mut left = Chunks::of(state.snapshot());
    let mut log = Log::after(&state);
    let _ = log.write(&mut state, &stamped(write("k", [put("c", "v")]), session(1), 2, 2));
    let mut frames = Frames::new(COHORT);
    for (index, chunk) in whole.iter().enumerate() {
        assert_eq!(left.clone().collect::<Vec<_>>(), whole[index..]);
        assert_eq!(left.next().as_ref(), Some(chunk));
        let is_end = matches!(frames.next(chunk).expect("the next"), Frame::End);
        assert_eq!((left.is_at_end(), is_end), (index + 1 == whole.len(), index + 1 == whole.len()));
    }
    assert!(left.next().is_none());
    assert!(frames.next(&whole[0]).is_err(), "no chunk may follow the end");
    assert!(Frames::new(COHORT).next(&whole[1]).is_err(), "the header comes first");
}
