use base::{ClusterId, NodeId};
use bytes::Bytes;
use state_machine::checkpoint::{Chunks, load};
use store::identity::Owner;
use store::tree::{Config, Tablespace};

use super::*;
use crate::{Batch, ClientId, Data, Entry as Value, LogId, PositionRun, Stamp};

type State = LogUnit;

/// Creates entries, each the successor of the previous one.
#[derive(Clone, Debug)]
struct Log {
    last: Lsn,
    timestamp: Timestamp,
}

impl Log {
    fn new() -> Self {
        Self { last: Lsn::ZERO, timestamp: Timestamp(0) }
    }

    fn entry(&mut self, payload: Bytes) -> Entry {
        let lsn = Lsn::new(self.last.epoch.0.max(1), self.last.sequence.0 + 1);
        self.timestamp = Timestamp(self.timestamp.0 + 10);
        let entry = Entry { lsn, previous: self.last, timestamp: self.timestamp, payload, members: None };
        self.last = lsn;
        entry
    }
}

/// An empty tree with small SSTables.
fn tree(cohort: CohortId) -> Tree {
    let (cluster, node, incarnation) = (ClusterId(1), NodeId(1), Incarnation(1));
    let config = Config { sstable_bytes: 8 << 10, level0_sstables: 2, level1_bytes: 16 << 10, ..Config::DEFAULT };
    Tree::new(Tablespace::new(Owner { cluster, node, incarnation }, config, 1 << 20, 1 << 20).site(cohort))
}

/// A unit restored from the checkpoint, with the same values.
fn copy(unit: &LogUnit) -> LogUnit {
    let chunks: Vec<Bytes> = Chunks::of(unit.snapshot()).collect();
    let snapshot: UnitSnapshot = load(unit.progress.cohort, &chunks).expect("own chunks");
    let mut values = tree(unit.progress.cohort);
    let oldest = Timestamp(i64::MIN);
    for version in unit.tree.view().versions(cell::Range::all(), oldest, Timestamp(i64::MAX), Io::Allowed) {
        let version = version.expect("the disk is readable");
        values.put(version.key, version.timestamp, version.value);
    }
    snapshot.into_machine(values)
}

const EPOCH: ProjectionEpoch = ProjectionEpoch(1);

fn unit() -> (State, Log) {
    let cohort = CohortId(7);
    let mut state = LogUnit::new(cohort, Incarnation(5), tree(cohort));
    let mut log = Log::new();
    let stripes = vec![Stripe { from: Position(0), count: 1, index: 0, width: 1 }];
    let begin = Command::Begin {
        disk: Incarnation(5),
        log: LogId(7),
        epoch: ProjectionEpoch(0),
        trimmed: Position(0),
        stripes,
    };
    assert!(matches!(tell(&mut state, &mut log, &begin), Reply::Begun(_)));
    (state, log)
}

fn value(number: u64) -> Value {
    let stamp = Stamp { client: ClientId(1), sequence: number };
    let batch = Batch::of(&[Bytes::from(number.to_string())]).expect("within the limits");
    Value::Data(Data { stamp, batch })
}

fn write(position: u64, number: u64) -> Command {
    Command::Write { epoch: EPOCH, position: Position(position), entry: value(number) }
}

fn answered(answer: UnitResponse) -> Reply {
    match answer {
        UnitResponse::Reply(reply) => reply,
        UnitResponse::Lookup(lookup) => match lookup.answer(Io::Allowed) {
            Ok(Evaluated::Outcome(Ok(reply))) => *reply,
            other => panic!("{other:?}"),
        },
    }
}

fn hash_of(unit: &LogUnit) -> u64 {
    let mut hash = LogicalHash::new();
    unit.hash(&mut hash).expect("the disk is readable");
    hash.finish()
}

/// The reply to a logged command, including any lookup.
fn tell(state: &mut State, log: &mut Log, command: &Command) -> Reply {
    let applied = state.apply(&log.entry(command.encode())).expect("the next entry");
    match (applied.outcome, applied.effect) {
        (None, Some(Effect::Own(answer))) => answered(answer),
        other => panic!("{other:?}"),
    }
}

fn read(state: &State, epoch: ProjectionEpoch, position: u64) -> Reply {
    ask(state, &Request::Read { epoch, position: Position(position) })
}

fn ask(state: &State, request: &Request) -> Reply {
    answered(state.decide(request).expect("a read needs no log entry"))
}

#[test]
fn writes_once_and_reads_back() {
    let (mut state, mut log) = unit();
    assert_eq!(tell(&mut state, &mut log, &write(3, 1)), Reply::Written);
    assert_eq!(tell(&mut state, &mut log, &write(3, 1)), Reply::Written, "a retransmission");
    assert!(matches!(tell(&mut state, &mut log, &write(3, 2)), Reply::Occupied { .. }));
    assert_eq!((read(&state, EPOCH, 3), read(&state, EPOCH, 2)), (Reply::Value(value(1)), Reply::Unwritten));
    state.invariants();
}

#[test]
fn read_many_in_one_lookup() {
    let (mut state, mut log) = unit();
    for position in [0, 1, 3] {
        assert_eq!(tell(&mut state, &mut log, &write(position, position + 1)), Reply::Written);
    }
    let many = |from, step, count| {
        ask(
            &state,
            &Request::ReadMany { epoch: EPOCH, run: PositionRun { from: Position(from), step, count }, bytes: 1 << 20 },
        )
    };
    let most = crate::limits::MANY_MAX as u64;
    let all = (0..most.min(5)).map(|position| read(&state, EPOCH, position)).collect();
    assert_eq!(many(0, 1, 5), Reply::Many(all));
    assert_eq!(many(1, 2, 2), Reply::Many(vec![Reply::Value(value(2)), Reply::Value(value(4))]));
    let far = many(0, 1, 100_000);
    assert!(matches!(far, Reply::Many(replies) if replies.len() == crate::limits::MANY_MAX));
    let old = Request::ReadMany { epoch: ProjectionEpoch(0), run: PositionRun::of(Position(0), 5), bytes: 1 << 20 };
    assert!(matches!(ask(&state, &old), Reply::Refused { .. }));
}

/// Each position is handled separately: compared if it is held, and stored if it is not.
#[test]
fn copy_many_in_one_command() {
    let (mut state, mut log) = unit();
    assert_eq!(tell(&mut state, &mut log, &write(1, 1)), Reply::Written);
    let copies = |of: &[(u64, u64)]| {
        let copy = |(position, number): &(u64, u64)| (Position(*position), crate::Kept::Entry(value(*number)));
        Command::CopyMany { copies: of.iter().map(copy).collect() }
    };
    let occupied = Reply::Occupied { by: crate::Kind::Data };
    let said = tell(&mut state, &mut log, &copies(&[(0, 5), (1, 1), (2, 6)]));
    assert_eq!(said, Reply::Many(vec![Reply::Written; 3]));
    let said = tell(&mut state, &mut log, &copies(&[(0, 7), (3, 8), (2, 6)]));
    assert_eq!(said, Reply::Many(vec![occupied.clone(), Reply::Written, Reply::Written]));
    let again = ask(&state, &Request::Command(copies(&[(0, 7), (3, 8)]).into()));
    assert_eq!(again, Reply::Many(vec![occupied, Reply::Written]), "no log entry");
    let values = [5, 1, 6, 8].map(|number| Reply::Value(value(number)));
    assert_eq!([0, 1, 2, 3].map(|position| read(&copy(&state), EPOCH, position)), values);
}

/// A checkpoint preserves the unit's state, above all its seal.
#[test]
fn checkpoint_preserves_seal_and_entries() {
    let (mut state, mut log) = unit();
    for position in 0..5 {
        assert_eq!(tell(&mut state, &mut log, &write(position, position + 1)), Reply::Written);
    }
    let trim = Command::Trim { epoch: Some(EPOCH), before: Position(2) };
    assert_eq!(tell(&mut state, &mut log, &trim), Reply::Done);
    let mut again = copy(&state);
    assert_eq!(hash_of(&again), hash_of(&state));
    assert!(matches!(tell(&mut again, &mut log, &Command::Seal { epoch: EPOCH }), Reply::Sealed(_)));
    let mut again = copy(&again);
    assert!(matches!(tell(&mut again, &mut log, &write(9, 9)), Reply::Refused { .. }));
    assert!(matches!(read(&again, EPOCH, 3), Reply::Refused { .. }));
    assert_eq!(read(&again, EPOCH.next(), 3), Reply::Value(value(4)));
    again.invariants();
}

/// Compactions may drop trimmed values.
#[test]
fn trimmed_cells_are_reclaimable() {
    let (mut state, mut log) = unit();
    for position in 0..4 {
        tell(&mut state, &mut log, &write(position, position + 1));
    }
    tell(&mut state, &mut log, &Command::Trim { epoch: Some(EPOCH), before: Position(3) });
    let kept = state.snapshot().keep().cells;
    let held = [2, 3].map(|position| kept.start <= key(Position(position)));
    assert_eq!((held, kept.end), ([false, true], None));
    assert_eq!(read(&state, EPOCH, 2), Reply::Trimmed { mark: Position(3) });
}

#[test]
fn rejects_undecodable_commands() {
    let (mut state, mut log) = unit();
    assert!(state.apply(&log.clone().entry(Bytes::from_static(b"\xff"))).is_err());
    assert_eq!(tell(&mut state, &mut log, &write(0, 1)), Reply::Written);
}
