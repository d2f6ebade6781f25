//! One unit, command by command, with its values in a map.

use std::collections::BTreeMap;

use base::SplitMix64;

use super::*;
use crate::{Batch, ClientId, Data, Kind, Stamp, Stripe};

/// A unit and its values.
#[derive(Default)]
struct Bed {
    unit: Unit,
    values: BTreeMap<Position, Kept>,
}

fn entry(sequence: u64) -> Entry {
    let batch = Batch::of(&[Bytes::from_static(b"x")]).expect("it is small");
    Entry::Data(Data { stamp: Stamp { client: ClientId(1), sequence }, since: None, batch })
}

fn epoch(number: u64) -> ProjectionEpoch {
    ProjectionEpoch(number)
}

fn begin(sealed: u64, trimmed: u64, stripes: &[Stripe]) -> Command {
    Command::Begin { log: LogId(1), epoch: epoch(sealed), trimmed: Position(trimmed), stripes: stripes.to_vec() }
}

fn write(in_epoch: u64, position: u64, entry: Entry) -> Command {
    Command::Write { epoch: epoch(in_epoch), position: Position(position), entry }
}

impl Bed {
    fn begun() -> Self {
        let mut bed = Self::default();
        assert!(matches!(bed.apply(begin(0, 0, &[])), Reply::Begun(_)));
        bed
    }

    fn apply(&mut self, command: Command) -> Reply {
        let decoded = Command::decode(command.encode()).expect("it was just encoded");
        assert_eq!(decoded, command);
        let outcome = self.unit.apply(command);
        self.unit.invariants();
        self.carry_out(outcome)
    }

    fn carry_out(&mut self, outcome: Outcome) -> Reply {
        let mark = self.unit.trimmed();
        match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Store { position, kept, reply } => {
                self.values.insert(position, kept);
                reply
            }
            Outcome::Forget { before, reply } => {
                self.values = self.values.split_off(&before);
                reply
            }
            Outcome::Look { position } => found(self.values.get(&position).cloned(), mark),
            Outcome::Compare { position, entry } => compared(self.values.get(&position), &entry, mark),
        }
    }

    fn read(&mut self, in_epoch: u64, position: u64) -> Reply {
        let request = Request::Read { epoch: epoch(in_epoch), position: Position(position) };
        match self.unit.meet(request) {
            Met::Answer(outcome) => self.carry_out(outcome),
            Met::Log { .. } => panic!("a read changes nothing"),
        }
    }
}

#[test]
fn a_position_is_written_once() {
    let mut bed = Bed::begun();
    assert_eq!(bed.read(1, 3), Reply::Unwritten);
    assert_eq!(bed.apply(write(1, 3, entry(1))), Reply::Written);
    assert_eq!(bed.apply(write(1, 3, entry(1))), Reply::Written, "the same again");
    assert_eq!(bed.apply(write(1, 3, entry(2))), Reply::Occupied { by: Kind::Data });
    assert_eq!(bed.apply(write(1, 3, Entry::Junk)), Reply::Occupied { by: Kind::Data });
    assert_eq!(bed.apply(write(1, 0, Entry::Junk)), Reply::Written);
    assert_eq!(bed.apply(write(1, 0, entry(1))), Reply::Occupied { by: Kind::Junk });
    assert_eq!(bed.read(1, 3), Reply::Value(entry(1)));
    assert_eq!(bed.unit.tail(), Position(4));
    bed.values.remove(&Position(3));
    assert_eq!(bed.read(1, 3), Reply::Damaged, "what should be there is known");
}

#[test]
fn a_sealed_epoch_is_refused_and_the_next_is_not() {
    let mut bed = Bed::begun();
    bed.apply(write(1, 5, entry(1)));
    let report = Report { sealed: epoch(1), tail: Position(6), trimmed: Position(0), whole: Vec::new() };
    assert_eq!(bed.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report.clone()));
    assert_eq!(bed.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report), "again");
    let refused = Reply::Refused { sealed: epoch(1) };
    assert_eq!(bed.apply(write(1, 6, entry(2))), refused);
    assert_eq!(bed.apply(write(1, 5, entry(1))), refused, "also what it holds");
    assert_eq!(bed.read(1, 5), refused);
    assert_eq!(bed.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(2) }), refused);
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), refused);
    let confirm = |bed: &Bed, number| bed.unit.meet(Request::Confirm { epoch: epoch(number) });
    assert_eq!(confirm(&bed, 1), Met::Answer(Outcome::Reply(refused)));
    assert_eq!(confirm(&bed, 2), Met::Answer(Outcome::Reply(Reply::Confirmed)));
    assert_eq!(bed.apply(write(2, 6, entry(2))), Reply::Written);
    let mut bed = Bed { unit: Unit::decode(bed.unit.encode()).expect("it was just encoded"), values: bed.values };
    assert_eq!(bed.apply(write(1, 7, entry(3))), Reply::Refused { sealed: epoch(1) }, "after a restart, too");
}

/// What changes something goes to the log, and nothing else does.
#[test]
fn what_changes_nothing_is_answered_without_the_log() {
    let mut bed = Bed::begun();
    bed.apply(write(1, 5, entry(1)));
    let is_logged =
        |bed: &Bed, command: Command| matches!(bed.unit.meet(Request::Command(command)), Met::Log { early: None, .. });
    assert!(is_logged(&bed, Command::Seal { epoch: epoch(1) }));
    assert!(is_logged(&bed, write(1, 6, entry(1))));
    assert!(!is_logged(&bed, write(1, 5, entry(2))));
    assert!(!is_logged(&bed, write(0, 6, entry(2))), "its epoch was sealed when the unit began");
    assert!(is_logged(&bed, Command::Trim { epoch: Some(epoch(1)), before: Position(2) }));
    assert!(!is_logged(&bed, Command::TrimOne { epoch: epoch(1), position: Position(4) }));
    bed.apply(Command::Seal { epoch: epoch(2) });
    assert!(!is_logged(&bed, Command::Seal { epoch: epoch(2) }));
    assert!(!is_logged(&bed, Command::Seal { epoch: epoch(1) }));
}

#[test]
fn trimming_takes_what_lies_below_and_nothing_else() {
    let mut bed = Bed::begun();
    for position in 0..8 {
        bed.apply(write(1, position, entry(position)));
    }
    assert_eq!(bed.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(3) }), Reply::Done);
    assert_eq!(bed.apply(Command::Trim { epoch: None, before: Position(1) }), Reply::Done, "the mark does not sink");
    assert_eq!(bed.read(1, 2), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.apply(write(1, 1, entry(9))), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.read(1, 3), Reply::Value(entry(3)));
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), Reply::Done);
    assert_eq!(bed.read(1, 5), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.apply(write(1, 5, entry(5))), Reply::Trimmed { mark: Position(3) }, "it is not written again");
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(9) }), Reply::Unwritten);
    assert_eq!(bed.values.len(), 5);
    assert_eq!(bed.unit.tail(), Position(8));
}

#[test]
fn only_an_empty_unit_begins() {
    let mut bed = Bed::default();
    assert_eq!(bed.apply(write(1, 0, entry(1))), Reply::Unknown);
    assert_eq!(bed.apply(Command::Seal { epoch: epoch(1) }), Reply::Unknown);
    assert_eq!(bed.read(1, 0), Reply::Unknown);
    assert!(matches!(bed.apply(begin(3, 10, &[])), Reply::Begun(_)));
    assert!(matches!(bed.apply(begin(4, 12, &[])), Reply::Begun(_)), "another recovery wants it");
    assert_eq!(bed.apply(write(4, 20, entry(1))), Reply::Refused { sealed: epoch(4) });
    assert_eq!(bed.apply(write(5, 11, entry(1))), Reply::Trimmed { mark: Position(12) });
    assert_eq!(bed.apply(write(5, 20, entry(1))), Reply::Written);
    assert_eq!(bed.apply(begin(6, 0, &[])), Reply::NotEmpty);
    bed.apply(Command::Trim { epoch: None, before: Position(30) });
    assert_eq!(bed.apply(begin(6, 0, &[])), Reply::NotEmpty, "nor one that has given up what it held");
}

/// A copy is of no epoch, and a unit says how far it has come.
#[test]
fn a_unit_says_when_it_is_whole() {
    let stripe = Stripe { from: Position(4), count: 2, index: 1 };
    let mut bed = Bed::default();
    bed.apply(begin(7, 6, &[]));
    let missing = |reply: Reply| match reply {
        Reply::Told(report) => report.whole,
        other => panic!("{other:?}"),
    };
    let tell = || Command::Tell { stripes: vec![stripe] };
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(7))], "what lies below the mark is not missed");
    let copy = |position, entry| Command::Copy { position: Position(position), kept: Kept::Entry(entry) };
    assert_eq!(bed.apply(copy(9, entry(1))), Reply::Written);
    assert_eq!(bed.apply(copy(9, entry(1))), Reply::Written);
    assert_eq!(bed.apply(copy(9, entry(2))), Reply::Occupied { by: Kind::Data });
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(7))]);
    let trimmed = Command::Copy { position: Position(7), kept: Kept::Trimmed };
    assert_eq!(bed.apply(trimmed), Reply::Written);
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(11))]);
    assert_eq!(bed.read(8, 7), Reply::Trimmed { mark: Position(6) });
}

/// A unit of a long log that has no holes is small.
#[test]
fn a_dense_log_takes_little_memory() {
    let stripe = Stripe { from: Position(0), count: 3, index: 2 };
    let mut unit = Unit::new();
    unit.apply(begin(0, 0, &[stripe]));
    for number in 0..30_000 {
        unit.apply(write(1, stripe.position(number ^ 3).0, Entry::Junk));
    }
    assert_eq!(unit.intervals(), 1);
    assert!(unit.encode().len() < 128);
}

/// Commands in any order: the same state and the same answers on every replica, after a checkpoint too, and nothing that was
/// read changes but to trimmed.
#[test]
fn replicas_agree_and_positions_do_not_change() {
    let mut random = SplitMix64::new(5);
    for _ in 0..200 {
        let (mut one, mut other) = (Bed::begun(), Bed::begun());
        let mut seen: BTreeMap<u64, Reply> = BTreeMap::new();
        for _ in 0..80 {
            let (in_epoch, position) = (1 + random.below(4), random.below(12));
            let command = match random.below(12) {
                0 => Command::Seal { epoch: epoch(random.below(3)) },
                1 => Command::Trim { epoch: Some(epoch(in_epoch)), before: Position(position / 2) },
                2 => Command::TrimOne { epoch: epoch(in_epoch), position: Position(position) },
                3 => {
                    let count = 1 + random.below(3);
                    let stripe = Stripe { from: Position(position), count, index: random.below(count) };
                    Command::Tell { stripes: vec![stripe] }
                }
                4..7 => write(in_epoch, position, Entry::Junk),
                _ => write(in_epoch, position, entry(random.below(5))),
            };
            assert_eq!(one.apply(command.clone()), other.apply(command));
            if random.chance(100_000) {
                other.unit = Unit::decode(other.unit.encode()).expect("it was just encoded");
            }
            assert_eq!(one.unit, other.unit);
            for position in 0..12 {
                let now = one.read(9, position);
                let before = seen.insert(position, now.clone()).unwrap_or(Reply::Unwritten);
                let is_same = before == now || before == Reply::Unwritten || matches!(now, Reply::Trimmed { .. });
                assert!(is_same, "{before:?} became {now:?}");
            }
        }
    }
}

#[test]
fn decoders_survive_any_bytes() {
    let stripes = vec![Stripe { from: Position(1), count: 2, index: 1 }];
    let commands = [
        begin(1, 2, &stripes),
        write(3, 4, entry(5)),
        Command::Copy { position: Position(6), kept: Kept::Trimmed },
        Command::Seal { epoch: epoch(7) },
        Command::Trim { epoch: Some(epoch(8)), before: Position(9) },
        Command::Trim { epoch: None, before: Position(9) },
        Command::TrimOne { epoch: epoch(8), position: Position(9) },
        Command::Tell { stripes },
    ];
    let mut random = SplitMix64::new(3);
    let mut bed = Bed::begun();
    for command in commands {
        let bytes = command.encode();
        assert_eq!(Command::decode(bytes.clone()), Ok(command.clone()));
        bed.apply(command);
        let state = bed.unit.encode();
        assert_eq!(Unit::decode(state.clone()).as_ref(), Ok(&bed.unit));
        for (at, bytes) in (0..bytes.len()).map(|at| (at, &bytes)).chain((0..state.len()).map(|at| (at, &state))) {
            let mut damaged = bytes.to_vec();
            damaged[at] = random.draw() as u8;
            for other in [Bytes::from(damaged), bytes.slice(..at)] {
                let _ = Command::decode(other.clone());
                if let Ok(unit) = Unit::decode(other) {
                    let _ = (unit.report(), unit.holds(Position(3)));
                }
            }
        }
    }
}
