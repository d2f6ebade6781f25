//! A single unit with its values in a map.

use std::collections::BTreeMap;
use std::convert::Infallible;

use base::SplitMix64;

use super::*;
use crate::limits::{BATCH_BYTES_MAX, MANY_BYTES_MAX};
use crate::{Batch, ClientId, Data, Kind, PositionRun, Stamp, Stripe};

const DISK: Incarnation = Incarnation(77);

/// A unit and its values.
struct Harness {
    unit: Unit,
    values: BTreeMap<Position, Kept>,
}

impl Default for Harness {
    fn default() -> Self {
        Self { unit: Unit::new(DISK), values: BTreeMap::new() }
    }
}

fn entry(sequence: u64) -> Entry {
    let batch = Batch::of(&[Bytes::from_static(b"x")]).expect("within the limits");
    Entry::Data(Data { stamp: Stamp { client: ClientId(1), sequence }, batch })
}

fn epoch(number: u64) -> ProjectionEpoch {
    ProjectionEpoch(number)
}

fn begin(sealed: u64, trimmed: u64, stripes: &[Stripe]) -> Command {
    Command::Begin {
        disk: DISK,
        log: LogId(1),
        epoch: epoch(sealed),
        trimmed: Position(trimmed),
        stripes: stripes.to_vec(),
    }
}

fn write(in_epoch: u64, position: u64, entry: Entry) -> Command {
    Command::Write { epoch: epoch(in_epoch), position: Position(position), entry }
}

impl Harness {
    fn begun() -> Self {
        let mut harness = Self::default();
        assert!(matches!(harness.apply(begin(0, 0, &[])), Reply::Begun(_)));
        harness
    }

    fn apply(&mut self, command: Command) -> Reply {
        let decoded = Command::decode(command.encode()).expect("own encoding");
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
            Outcome::Many { each, bytes } => {
                let replies = each.into_iter().map(|outcome| Ok::<_, Infallible>(self.carry_out(outcome)));
                let Ok(many) = Reply::of_many(replies, bytes);
                many
            }
        }
    }

    fn copy(&mut self, position: u64, kept: Kept) -> Reply {
        match self.apply(Command::CopyMany { copies: vec![(Position(position), kept)] }) {
            Reply::Many(mut replies) if replies.len() == 1 => replies.remove(0),
            reply => reply,
        }
    }

    fn read(&mut self, in_epoch: u64, position: u64) -> Reply {
        let request = Request::Read { epoch: epoch(in_epoch), position: Position(position) };
        match self.unit.decide(&request) {
            Decision::Answer(outcome) => self.carry_out(outcome),
            Decision::Log { .. } => panic!("a read needs no log entry"),
        }
    }
}

#[test]
fn position_is_write_once() {
    let mut harness = Harness::begun();
    assert_eq!(harness.read(1, 3), Reply::Unwritten);
    assert_eq!(harness.apply(write(1, 3, entry(1))), Reply::Written);
    assert_eq!(harness.apply(write(1, 3, entry(1))), Reply::Written, "a retransmission");
    assert_eq!(harness.apply(write(1, 3, entry(2))), Reply::Occupied { by: Kind::Data });
    assert_eq!(harness.apply(write(1, 3, Entry::Junk)), Reply::Occupied { by: Kind::Data });
    assert_eq!(harness.apply(write(1, 0, Entry::Junk)), Reply::Written);
    assert_eq!(harness.apply(write(1, 0, entry(1))), Reply::Occupied { by: Kind::Junk });
    assert_eq!(harness.read(1, 3), Reply::Value(entry(1)));
    assert_eq!(harness.unit.tail(), Position(4));
    harness.values.remove(&Position(3));
    assert_eq!(harness.read(1, 3), Reply::Damaged, "the unit knows that it held a value");
}

#[test]
fn sealed_epoch_is_fenced() {
    let mut harness = Harness::begun();
    harness.apply(write(1, 5, entry(1)));
    let report = Report { sealed: epoch(1), tail: Position(6), ..Report::default() };
    assert_eq!(harness.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report.clone()));
    assert_eq!(harness.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report), "again");
    let refused = Reply::Refused { sealed: epoch(1) };
    assert_eq!(harness.apply(write(1, 6, entry(2))), refused);
    assert_eq!(harness.apply(write(1, 5, entry(1))), refused, "also for a held position");
    assert_eq!(harness.read(1, 5), refused);
    assert_eq!(harness.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(2) }), refused);
    assert_eq!(harness.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), refused);
    let confirm = |harness: &Harness, number| harness.unit.decide(&Request::Confirm { epoch: epoch(number) });
    assert_eq!(confirm(&harness, 1), Decision::Answer(Outcome::Reply(refused)));
    assert_eq!(confirm(&harness, 2), Decision::Answer(Outcome::Reply(Reply::Confirmed)));
    assert_eq!(harness.apply(write(2, 6, entry(2))), Reply::Written);
    let mut harness =
        Harness { unit: Unit::decode(harness.unit.encode()).expect("own encoding"), values: harness.values };
    assert_eq!(harness.apply(write(1, 7, entry(3))), Reply::Refused { sealed: epoch(1) }, "also after a restart");
}

/// Only commands that change the state go to the log.
#[test]
fn no_op_commands_bypass_log() {
    let mut harness = Harness::begun();
    harness.apply(write(1, 5, entry(1)));
    let is_logged = |harness: &Harness, command: Command| {
        matches!(harness.unit.decide(&Request::Command(command.into())), Decision::Log { early: None, .. })
    };
    assert!(is_logged(&harness, Command::Seal { epoch: epoch(1) }));
    assert!(is_logged(&harness, write(1, 6, entry(1))));
    assert!(!is_logged(&harness, write(1, 5, entry(2))));
    assert!(!is_logged(&harness, write(0, 6, entry(2))), "the unit starts sealed in this epoch");
    assert!(is_logged(&harness, Command::Trim { epoch: Some(epoch(1)), before: Position(2) }));
    assert!(!is_logged(&harness, Command::TrimOne { epoch: epoch(1), position: Position(4) }));
    harness.apply(Command::Seal { epoch: epoch(2) });
    assert!(!is_logged(&harness, Command::Seal { epoch: epoch(2) }));
    assert!(!is_logged(&harness, Command::Seal { epoch: epoch(1) }));
}

#[test]
fn trim_removes_only_positions_below() {
    let mut harness = Harness::begun();
    for position in 0..8 {
        harness.apply(write(1, position, entry(1 + position)));
    }
    assert_eq!(harness.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(3) }), Reply::Done);
    assert_eq!(
        harness.apply(Command::Trim { epoch: None, before: Position(1) }),
        Reply::Done,
        "the mark never decreases"
    );
    assert_eq!(harness.read(1, 2), Reply::Trimmed { mark: Position(3) });
    assert_eq!(harness.apply(write(1, 1, entry(9))), Reply::Trimmed { mark: Position(3) });
    assert_eq!(harness.read(1, 3), Reply::Value(entry(4)));
    assert_eq!(harness.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), Reply::Done);
    assert_eq!(harness.read(1, 5), Reply::Trimmed { mark: Position(3) });
    assert_eq!(
        harness.apply(write(1, 5, entry(5))),
        Reply::Trimmed { mark: Position(3) },
        "a trimmed position is not written again"
    );
    assert_eq!(harness.apply(Command::TrimOne { epoch: epoch(1), position: Position(9) }), Reply::Unwritten);
    assert_eq!(harness.values.len(), 5);
    assert_eq!(harness.unit.tail(), Position(8));
}

/// A drop may be applied before the unit has begun.
#[test]
fn dropped_unit_stays_sealed() {
    let mut harness = Harness::default();
    assert!(matches!(harness.apply(Command::Seal { epoch: DROPPED }), Reply::Sealed(_)));
    assert!(matches!(harness.apply(begin(0, 0, &[])), Reply::Begun(_)));
    assert_eq!(harness.apply(write(1, 0, entry(1))), Reply::Refused { sealed: DROPPED });
}

#[test]
fn only_empty_unit_starts() {
    let mut harness = Harness::default();
    assert_eq!(harness.apply(write(1, 0, entry(1))), Reply::Unknown);
    assert_eq!(harness.apply(Command::Seal { epoch: epoch(1) }), Reply::Unknown);
    assert_eq!(harness.read(1, 0), Reply::Unknown);
    assert!(matches!(harness.apply(begin(3, 10, &[])), Reply::Begun(_)));
    assert!(matches!(harness.apply(begin(4, 12, &[])), Reply::Begun(_)), "another recovery may start it");
    assert_eq!(harness.apply(write(4, 20, entry(1))), Reply::Refused { sealed: epoch(4) });
    assert_eq!(harness.apply(write(5, 11, entry(1))), Reply::Trimmed { mark: Position(12) });
    assert_eq!(harness.apply(write(5, 20, entry(1))), Reply::Written);
    assert_eq!(harness.apply(begin(6, 0, &[])), Reply::NotEmpty);
    harness.apply(Command::Trim { epoch: None, before: Position(30) });
    assert_eq!(harness.apply(begin(6, 0, &[])), Reply::NotEmpty, "a unit that was trimmed is not empty");
}

/// A damaged position counts as missing until it is restored; a readable value is never overwritten.
#[test]
fn damage_is_reported_and_repaired() {
    let stripe = Stripe { from: Position(0), count: 1, index: 0, width: 1 };
    let mut harness = Harness::default();
    harness.apply(begin(0, 0, &[stripe]));
    (0..6).for_each(|position| assert_eq!(harness.apply(write(1, position, entry(1 + position))), Reply::Written));
    let repair =
        |position: u64, with: u64| Command::Repair { position: Position(position), kept: Kept::Entry(entry(with)) };
    let damaged = |position: u64| Command::Damaged { position: Position(position) };
    let of = |harness: &Harness| (harness.unit.report().damaged, harness.unit.report().whole[0].1.0);
    assert_eq!(harness.apply(repair(3, 9)), Reply::Occupied { by: Kind::Data }, "the value is readable");
    assert_eq!(harness.apply(repair(8, 9)), Reply::Unwritten, "an unwritten position needs no repair");
    assert_eq!(of(&harness), (0, 6));
    harness.values.remove(&Position(3));
    assert_eq!(harness.apply(damaged(3)), Reply::Damaged);
    harness.apply(damaged(8));
    assert_eq!(of(&harness), (1, 3), "the position counts as missing");
    assert_eq!((harness.read(1, 3), harness.apply(write(1, 3, entry(4)))), (Reply::Damaged, Reply::Damaged));
    harness.unit = Unit::decode(harness.unit.encode()).expect("own encoding");
    assert_eq!(harness.apply(repair(3, 4)), Reply::Written);
    assert_eq!((harness.read(1, 3), of(&harness)), (Reply::Value(entry(4)), (0, 6)));
    // A copy repairs damage too, and a trim removes it.
    harness.apply(damaged(4));
    assert_eq!(harness.copy(4, Kept::Entry(entry(5))), Reply::Written);
    harness.apply(damaged(5));
    harness.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) });
    harness.apply(damaged(2));
    harness.apply(Command::Trim { epoch: None, before: Position(3) });
    assert_eq!(of(&harness), (0, 6));
}

/// Each position gets the reply that a single read would get, within the limits of one reply.
#[test]
fn read_many_matches_single_reads() {
    let mut harness = Harness::begun();
    (1..12).filter(|position| position % 4 != 3).for_each(|position| {
        harness.apply(write(1, position, entry(position)));
    });
    harness.apply(Command::Trim { epoch: None, before: Position(2) });
    harness.apply(Command::Damaged { position: Position(5) });
    let many = |harness: &mut Harness, in_epoch: u64, from: u64, step: u64, count: usize| {
        let run = PositionRun { from: Position(from), step, count };
        match harness.unit.decide(&Request::ReadMany { epoch: epoch(in_epoch), run, bytes: BATCH_BYTES_MAX }) {
            Decision::Answer(outcome) => harness.carry_out(outcome),
            Decision::Log { .. } => panic!("a read needs no log entry"),
        }
    };
    for (from, step) in [(0, 1), (0, 2), (1, 4), (3, 1), (4, 1), (5, 3), (9, 9)] {
        let Reply::Many(replies) = many(&mut harness, 1, from, step, 9) else { panic!("expected replies") };
        let alone = (0..).map(|number| harness.read(1, from + number * step));
        assert_eq!(replies, alone.take(replies.len()).collect::<Vec<_>>(), "{from} {step}");
        assert!((1..=MANY_MAX).contains(&replies.len()));
    }
    let is_short = |reply: Reply, count: usize| matches!(reply, Reply::Many(replies) if replies.len() == count);
    assert!(is_short(many(&mut harness, 1, 6, 1, 2), 2), "only two positions are requested");
    assert!(is_short(many(&mut harness, 1, 0, 1, 0), 0));
    let long = Entry::Data(Data {
        stamp: Stamp { client: ClientId(1), sequence: 20 },
        batch: Batch::of(&[Bytes::from(vec![7; 100])]).expect("within the limits"),
    });
    harness.apply(write(1, 20, long.clone()));
    harness.apply(write(1, 21, entry(21)));
    harness.apply(write(1, 19, entry(19)));
    assert_eq!(many(&mut harness, 1, 20, 1, 2), Reply::Many(vec![Reply::Value(long)]), "exactly one value");
    assert!(is_short(many(&mut harness, 1, 19, 1, 3), 1));
    let bounded = |harness: &mut Harness, from: u64, bytes: usize| match harness.unit.decide(&Request::ReadMany {
        epoch: epoch(1),
        run: PositionRun::of(Position(from), 3),
        bytes,
    }) {
        Decision::Answer(outcome) => harness.carry_out(outcome),
        Decision::Log { .. } => panic!("a read needs no log entry"),
    };
    assert!(is_short(bounded(&mut harness, 20, 100), 0), "the value exceeds the requested size");
    assert!(is_short(bounded(&mut harness, 9, 1), 0));
    assert!(is_short(bounded(&mut harness, 12, 0), 3), "the positions are unwritten");
}

#[test]
fn holes_are_reported_in_batches() {
    let mut harness = Harness::begun();
    [1, 2, 5, 9].into_iter().for_each(|position| {
        harness.apply(write(1, position, entry(1 + position)));
    });
    let stripe = Stripe { from: Position(0), count: 1, index: 0, width: 1 };
    let holes = |harness: &Harness, from: u64, to: u64| {
        let request = Request::Holes { epoch: epoch(1), stripe, from: Position(from), to: Position(to) };
        match harness.unit.decide(&request) {
            Decision::Answer(Outcome::Reply(Reply::Holes(holes))) => {
                holes.iter().map(|hole| hole.0).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(holes(&harness, 0, 20), [0, 3, 4]);
    assert_eq!(holes(&harness, 5, 9), [6, 7, 8]);
    assert_eq!(holes(&harness, 1, 4), [3]);
    harness.apply(Command::Trim { epoch: None, before: Position(4) });
    assert_eq!(holes(&harness, 0, 7), [4, 6]);
}

/// The unit was created for another disk, so it does not start on a blank disk of the same node.
#[test]
fn unit_starts_only_on_own_disk() {
    let blank = Unit::new(Incarnation(78));
    assert_eq!(
        blank.decide(&Request::Command(begin(3, 0, &[]).into())),
        Decision::Answer(Outcome::Reply(Reply::Elsewhere))
    );
    let mut harness = Harness { unit: blank, values: BTreeMap::new() };
    assert_eq!(harness.apply(begin(3, 0, &[])), Reply::Elsewhere);
    assert_eq!(harness.apply(write(4, 0, entry(1))), Reply::Unknown);
    assert_eq!(Unit::decode(harness.unit.encode()), Ok(harness.unit));
}

/// A copy has no epoch, and the unit reports its progress.
#[test]
fn unit_reports_completeness() {
    let stripe = Stripe { from: Position(4), count: 2, index: 1, width: 1 };
    let mut harness = Harness::default();
    harness.apply(begin(7, 6, &[]));
    let missing = |reply: Reply| match reply {
        Reply::StripesAssigned(report) => report.whole,
        other => panic!("{other:?}"),
    };
    let tell = || Command::AssignStripes { stripes: vec![stripe] };
    assert_eq!(missing(harness.apply(tell())), [(stripe, Position(7))], "positions below the mark are not missing");
    assert_eq!(harness.copy(9, Kept::Entry(entry(1))), Reply::Written);
    assert_eq!(harness.copy(9, Kept::Entry(entry(1))), Reply::Written);
    assert_eq!(harness.copy(9, Kept::Entry(entry(2))), Reply::Occupied { by: Kind::Data });
    assert_eq!(missing(harness.apply(tell())), [(stripe, Position(7))]);
    assert_eq!(harness.copy(7, Kept::Trimmed), Reply::Written);
    assert_eq!(missing(harness.apply(tell())), [(stripe, Position(11))]);
    assert_eq!(harness.read(8, 7), Reply::Trimmed { mark: Position(6) });
}

/// A command with many copies has the same effect as each copy alone.
#[test]
fn copy_many_matches_single_copies() {
    let mut random = SplitMix64::new(8);
    for _ in 0..300 {
        let (mut one, mut other) = (Harness::begun(), Harness::begun());
        for _ in 0..20 {
            let position = random.below(9);
            let command = match random.below(8) {
                0 => Command::Trim { epoch: None, before: Position(position / 3) },
                1 => Command::TrimOne { epoch: epoch(1), position: Position(position) },
                2 => Command::Damaged { position: Position(position) },
                3 => write(1, position, entry(1 + random.below(3))),
                _ => {
                    let kept = |random: &mut SplitMix64| match random.below(4) {
                        0 => Kept::Trimmed,
                        1 => Kept::Entry(Entry::Junk),
                        _ => Kept::Entry(entry(1 + random.below(2))),
                    };
                    let copies: Vec<_> = (0..1 + random.below(3)).map(|_| Position(random.below(9))).collect();
                    let copies: Vec<_> = copies.into_iter().map(|position| (position, kept(&mut random))).collect();
                    if copies.iter().map(|(_, kept)| kept.value_bytes()).sum::<usize>() <= MANY_BYTES_MAX {
                        let alone = copies.iter().map(|(position, kept)| other.copy(position.0, kept.clone()));
                        let alone: Vec<_> = alone.collect();
                        assert_eq!(one.apply(Command::CopyMany { copies }), Reply::Many(alone));
                    }
                    continue;
                }
            };
            assert_eq!(one.apply(command.clone()), other.apply(command));
        }
        assert_eq!((one.unit, one.values), (other.unit, other.values));
    }
    let nobody = Unit::new(DISK);
    let copies = vec![(Position(1), Kept::Trimmed); 2];
    let unknown = Decision::Answer(Outcome::Reply(Reply::Unknown));
    assert_eq!(nobody.decide(&Request::Command(Command::CopyMany { copies: copies.clone() }.into())), unknown);
    let many = Command::CopyMany { copies: vec![copies[0].clone(); MANY_MAX + 1] };
    assert!(Command::decode(many.encode()).is_err(), "too many copies in one command");
    let values = (1..).zip(0..MANY_MAX).map(|(position, _)| (Position(position), Kept::Entry(entry(1)))).collect();
    let fits = Command::decode(Command::CopyMany { copies: values }.encode()).is_ok();
    assert_eq!(fits, MANY_MAX * 9 <= MANY_BYTES_MAX);
}

/// A unit of a long log without holes is small.
#[test]
fn dense_log_memory_is_small() {
    let stripe = Stripe { from: Position(0), count: 3, index: 2, width: 1 };
    let mut unit = Unit::new(DISK);
    unit.apply(begin(0, 0, &[stripe]));
    for number in 0..30_000 {
        unit.apply(write(1, stripe.position(number ^ 3).0, Entry::Junk));
    }
    assert_eq!(unit.intervals(), 1);
    assert!(unit.encode().len() < 128);
}

/// Random commands: the same state and replies on every replica, also after a checkpoint, and a position that was read
/// changes only to trimmed.
#[test]
fn replicas_agree_and_positions_are_immutable() {
    let mut random = SplitMix64::new(5);
    for _ in 0..200 {
        let (mut one, mut other) = (Harness::begun(), Harness::begun());
        let mut seen: BTreeMap<u64, Reply> = BTreeMap::new();
        for _ in 0..80 {
            let (in_epoch, position) = (1 + random.below(4), random.below(12));
            let command = match random.below(12) {
                0 => Command::Seal { epoch: epoch(random.below(3)) },
                1 => Command::Trim { epoch: Some(epoch(in_epoch)), before: Position(position / 2) },
                2 => Command::TrimOne { epoch: epoch(in_epoch), position: Position(position) },
                3 => {
                    let (count, width) = (1 + random.below(3), 1 + random.below(3));
                    let stripe = Stripe { from: Position(position), count, index: random.below(count), width };
                    Command::AssignStripes { stripes: vec![stripe] }
                }
                4..7 => write(in_epoch, position, Entry::Junk),
                _ => write(in_epoch, position, entry(1 + random.below(5))),
            };
            assert_eq!(one.apply(command.clone()), other.apply(command));
            if random.chance(100_000) {
                other.unit = Unit::decode(other.unit.encode()).expect("own encoding");
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
fn fuzz_command_decoders() {
    let stripes = vec![Stripe { from: Position(1), count: 2, index: 1, width: 1 }];
    let commands = [
        begin(1, 2, &stripes),
        write(3, 4, entry(5)),
        Command::CopyMany { copies: vec![(Position(6), Kept::Trimmed), (Position(7), Kept::Entry(entry(1)))] },
        Command::Seal { epoch: epoch(7) },
        Command::Trim { epoch: Some(epoch(8)), before: Position(9) },
        Command::Trim { epoch: None, before: Position(9) },
        Command::TrimOne { epoch: epoch(8), position: Position(9) },
        Command::AssignStripes { stripes },
        Command::Damaged { position: Position(6) },
        Command::Repair { position: Position(6), kept: Kept::Trimmed },
    ];
    let mut random = SplitMix64::new(3);
    let mut harness = Harness::begun();
    for command in commands {
        let bytes = command.encode();
        assert_eq!(Command::decode(bytes.clone()), Ok(command.clone()));
        harness.apply(command);
        let state = harness.unit.encode();
        assert_eq!(Unit::decode(state.clone()).as_ref(), Ok(&harness.unit));
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
