//! A single unit with its values in a map.

use std::collections::BTreeMap;
use std::convert::Infallible;

use base::SplitMix64;

use super::*;
use crate::limits::{BATCH_BYTES_MAX, MANY_BYTES_MAX};
use crate::{Batch, ClientId, Data, Kind, Run, Stamp, Stripe};

const DISK: Incarnation = Incarnation(77);

/// A unit and its values.
struct Bed {
    unit: Unit,
    values: BTreeMap<Position, Kept>,
}

impl Default for Bed {
    fn default() -> Self {
        Self { unit: Unit::new(DISK), values: BTreeMap::new() }
    }
}

fn entry(sequence: u64) -> Entry {
    let batch = Batch::of(&[Bytes::from_static(b"x")]).expect("it is small");
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
        match self.unit.meet(&request) {
            Met::Answer(outcome) => self.carry_out(outcome),
            Met::Log { .. } => panic!("a read changes nothing"),
        }
    }
}

#[test]
fn position_is_write_once() {
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
fn sealed_epoch_is_fenced() {
    let mut bed = Bed::begun();
    bed.apply(write(1, 5, entry(1)));
    let report = Report { sealed: epoch(1), tail: Position(6), ..Report::default() };
    assert_eq!(bed.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report.clone()));
    assert_eq!(bed.apply(Command::Seal { epoch: epoch(1) }), Reply::Sealed(report), "again");
    let refused = Reply::Refused { sealed: epoch(1) };
    assert_eq!(bed.apply(write(1, 6, entry(2))), refused);
    assert_eq!(bed.apply(write(1, 5, entry(1))), refused, "also what it holds");
    assert_eq!(bed.read(1, 5), refused);
    assert_eq!(bed.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(2) }), refused);
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), refused);
    let confirm = |bed: &Bed, number| bed.unit.meet(&Request::Confirm { epoch: epoch(number) });
    assert_eq!(confirm(&bed, 1), Met::Answer(Outcome::Reply(refused)));
    assert_eq!(confirm(&bed, 2), Met::Answer(Outcome::Reply(Reply::Confirmed)));
    assert_eq!(bed.apply(write(2, 6, entry(2))), Reply::Written);
    let mut bed = Bed { unit: Unit::decode(bed.unit.encode()).expect("it was just encoded"), values: bed.values };
    assert_eq!(bed.apply(write(1, 7, entry(3))), Reply::Refused { sealed: epoch(1) }, "after a restart, too");
}

/// Only commands that change the state go to the log.
#[test]
fn no_op_commands_bypass_log() {
    let mut bed = Bed::begun();
    bed.apply(write(1, 5, entry(1)));
    let is_logged = |bed: &Bed, command: Command| {
        matches!(bed.unit.meet(&Request::Command(command.into())), Met::Log { early: None, .. })
    };
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
fn trim_removes_only_positions_below() {
    let mut bed = Bed::begun();
    for position in 0..8 {
        bed.apply(write(1, position, entry(1 + position)));
    }
    assert_eq!(bed.apply(Command::Trim { epoch: Some(epoch(1)), before: Position(3) }), Reply::Done);
    assert_eq!(bed.apply(Command::Trim { epoch: None, before: Position(1) }), Reply::Done, "the mark does not sink");
    assert_eq!(bed.read(1, 2), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.apply(write(1, 1, entry(9))), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.read(1, 3), Reply::Value(entry(4)));
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) }), Reply::Done);
    assert_eq!(bed.read(1, 5), Reply::Trimmed { mark: Position(3) });
    assert_eq!(bed.apply(write(1, 5, entry(5))), Reply::Trimmed { mark: Position(3) }, "it is not written again");
    assert_eq!(bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(9) }), Reply::Unwritten);
    assert_eq!(bed.values.len(), 5);
    assert_eq!(bed.unit.tail(), Position(8));
}

#[test]
fn only_empty_unit_starts() {
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

/// A damaged position counts as missing until it is restored; a readable value is never overwritten.
#[test]
fn damage_is_reported_and_repaired() {
    let stripe = Stripe { from: Position(0), count: 1, index: 0, width: 1 };
    let mut bed = Bed::default();
    bed.apply(begin(0, 0, &[stripe]));
    (0..6).for_each(|position| assert_eq!(bed.apply(write(1, position, entry(1 + position))), Reply::Written));
    let mend =
        |position: u64, with: u64| Command::Mend { position: Position(position), kept: Kept::Entry(entry(with)) };
    let damaged = |position: u64| Command::Damaged { position: Position(position) };
    let of = |bed: &Bed| (bed.unit.report().damaged, bed.unit.report().whole[0].1.0);
    assert_eq!(bed.apply(mend(3, 9)), Reply::Occupied { by: Kind::Data }, "it can be read");
    assert_eq!(bed.apply(mend(8, 9)), Reply::Unwritten, "there is nothing to be mended");
    assert_eq!(of(&bed), (0, 6));
    bed.values.remove(&Position(3));
    assert_eq!(bed.apply(damaged(3)), Reply::Damaged);
    bed.apply(damaged(8));
    assert_eq!(of(&bed), (1, 3), "it is missed");
    assert_eq!((bed.read(1, 3), bed.apply(write(1, 3, entry(4)))), (Reply::Damaged, Reply::Damaged));
    bed.unit = Unit::decode(bed.unit.encode()).expect("it was just encoded");
    assert_eq!(bed.apply(mend(3, 4)), Reply::Written);
    assert_eq!((bed.read(1, 3), of(&bed)), (Reply::Value(entry(4)), (0, 6)));
    // A copy repairs damage too, and a trim removes it.
    bed.apply(damaged(4));
    assert_eq!(bed.copy(4, Kept::Entry(entry(5))), Reply::Written);
    bed.apply(damaged(5));
    bed.apply(Command::TrimOne { epoch: epoch(1), position: Position(5) });
    bed.apply(damaged(2));
    bed.apply(Command::Trim { epoch: None, before: Position(3) });
    assert_eq!(of(&bed), (0, 6));
}

/// Each position gets the reply that a single read would get, within the limits of one reply.
#[test]
fn read_many_matches_single_reads() {
    let mut bed = Bed::begun();
    (1..12).filter(|position| position % 4 != 3).for_each(|position| {
        bed.apply(write(1, position, entry(position)));
    });
    bed.apply(Command::Trim { epoch: None, before: Position(2) });
    bed.apply(Command::Damaged { position: Position(5) });
    let many = |bed: &mut Bed, in_epoch: u64, from: u64, step: u64, count: usize| {
        let run = Run { from: Position(from), step, count };
        match bed.unit.meet(&Request::ReadMany { epoch: epoch(in_epoch), run, bytes: BATCH_BYTES_MAX }) {
            Met::Answer(outcome) => bed.carry_out(outcome),
            Met::Log { .. } => panic!("a read changes nothing"),
        }
    };
    for (from, step) in [(0, 1), (0, 2), (1, 4), (3, 1), (4, 1), (5, 3), (9, 9)] {
        let Reply::Many(replies) = many(&mut bed, 1, from, step, 9) else { panic!("it is not refused") };
        let alone = (0..).map(|number| bed.read(1, from + number * step));
        assert_eq!(replies, alone.take(replies.len()).collect::<Vec<_>>(), "{from} {step}");
        assert!((1..=MANY_MAX).contains(&replies.len()));
    }
    let is_short = |reply: Reply, count: usize| matches!(reply, Reply::Many(replies) if replies.len() == count);
    assert!(is_short(many(&mut bed, 1, 6, 1, 2), 2), "it is asked for no more");
    assert!(is_short(many(&mut bed, 1, 0, 1, 0), 0));
    let long = Entry::Data(Data {
        stamp: Stamp { client: ClientId(1), sequence: 20 },
        batch: Batch::of(&[Bytes::from(vec![7; 100])]).expect("it is small"),
    });
    bed.apply(write(1, 20, long.clone()));
    bed.apply(write(1, 21, entry(21)));
    bed.apply(write(1, 19, entry(19)));
    assert_eq!(many(&mut bed, 1, 20, 1, 2), Reply::Many(vec![Reply::Value(long)]), "one in any case, and no more");
    assert!(is_short(many(&mut bed, 1, 19, 1, 3), 1));
    let bounded = |bed: &mut Bed, from: u64, bytes: usize| match bed.unit.meet(&Request::ReadMany {
        epoch: epoch(1),
        run: Run::of(Position(from), 3),
        bytes,
    }) {
        Met::Answer(outcome) => bed.carry_out(outcome),
        Met::Log { .. } => panic!("a read changes nothing"),
    };
    assert!(is_short(bounded(&mut bed, 20, 100), 0), "it is larger than who asks would have");
    assert!(is_short(bounded(&mut bed, 9, 1), 0));
    assert!(is_short(bounded(&mut bed, 12, 0), 3), "nothing lies there");
}

#[test]
fn holes_are_reported_in_batches() {
    let mut bed = Bed::begun();
    [1, 2, 5, 9].into_iter().for_each(|position| {
        bed.apply(write(1, position, entry(1 + position)));
    });
    let stripe = Stripe { from: Position(0), count: 1, index: 0, width: 1 };
    let holes = |bed: &Bed, from: u64, to: u64| {
        let request = Request::Holes { epoch: epoch(1), stripe, from: Position(from), to: Position(to) };
        match bed.unit.meet(&request) {
            Met::Answer(Outcome::Reply(Reply::Holes(holes))) => holes.iter().map(|hole| hole.0).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(holes(&bed, 0, 20), [0, 3, 4]);
    assert_eq!(holes(&bed, 5, 9), [6, 7, 8]);
    assert_eq!(holes(&bed, 1, 4), [3]);
    bed.apply(Command::Trim { epoch: None, before: Position(4) });
    assert_eq!(holes(&bed, 0, 7), [4, 6]);
}

/// The unit was created for another disk, so it does not start on a blank disk of the same node.
#[test]
fn unit_starts_only_on_own_disk() {
    let blank = Unit::new(Incarnation(78));
    assert_eq!(blank.meet(&Request::Command(begin(3, 0, &[]).into())), Met::Answer(Outcome::Reply(Reply::Elsewhere)));
    let mut bed = Bed { unit: blank, values: BTreeMap::new() };
    assert_eq!(bed.apply(begin(3, 0, &[])), Reply::Elsewhere);
    assert_eq!(bed.apply(write(4, 0, entry(1))), Reply::Unknown);
    assert_eq!(Unit::decode(bed.unit.encode()), Ok(bed.unit));
}

/// A copy has no epoch, and the unit reports its progress.
#[test]
fn unit_reports_completeness() {
    let stripe = Stripe { from: Position(4), count: 2, index: 1, width: 1 };
    let mut bed = Bed::default();
    bed.apply(begin(7, 6, &[]));
    let missing = |reply: Reply| match reply {
        Reply::Told(report) => report.whole,
        other => panic!("{other:?}"),
    };
    let tell = || Command::Tell { stripes: vec![stripe] };
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(7))], "what lies below the mark is not missed");
    assert_eq!(bed.copy(9, Kept::Entry(entry(1))), Reply::Written);
    assert_eq!(bed.copy(9, Kept::Entry(entry(1))), Reply::Written);
    assert_eq!(bed.copy(9, Kept::Entry(entry(2))), Reply::Occupied { by: Kind::Data });
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(7))]);
    assert_eq!(bed.copy(7, Kept::Trimmed), Reply::Written);
    assert_eq!(missing(bed.apply(tell())), [(stripe, Position(11))]);
    assert_eq!(bed.read(8, 7), Reply::Trimmed { mark: Position(6) });
}

/// A command with many copies has the same effect as each copy alone.
#[test]
fn copy_many_matches_single_copies() {
    let mut random = SplitMix64::new(8);
    for _ in 0..300 {
        let (mut one, mut other) = (Bed::begun(), Bed::begun());
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
    let unknown = Met::Answer(Outcome::Reply(Reply::Unknown));
    assert_eq!(nobody.meet(&Request::Command(Command::CopyMany { copies: copies.clone() }.into())), unknown);
    let many = Command::CopyMany { copies: vec![copies[0].clone(); MANY_MAX + 1] };
    assert!(Command::decode(many.encode()).is_err(), "too many at one time");
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
        let (mut one, mut other) = (Bed::begun(), Bed::begun());
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
                    Command::Tell { stripes: vec![stripe] }
                }
                4..7 => write(in_epoch, position, Entry::Junk),
                _ => write(in_epoch, position, entry(1 + random.below(5))),
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
        Command::Tell { stripes },
        Command::Damaged { position: Position(6) },
        Command::Mend { position: Position(6), kept: Kept::Trimmed },
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
