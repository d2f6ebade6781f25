//! A player with reads that the test answers.

use super::*;
use crate::{Batch, ClientId, Stamp};

const CONFIG: Config = Config { window: 4, poll: Duration::from_millis(5), wait: Duration(100) };

fn data(sequence: u64) -> Data {
    let batch = Batch::of(&[]).expect("within the limits");
    Data { stamp: Stamp { client: ClientId(1), sequence }, batch }
}

struct Harness {
    player: Player,
    now: Monotonic,
    reads: Vec<u64>,
    waits: Vec<u64>,
    runs: Vec<usize>,
    tails: u32,
}

impl Harness {
    fn new(next: u64) -> Self {
        let player = Player::new(CONFIG, Position(next), Duplicates::default());
        let mut harness =
            Self { player, now: Monotonic(1), reads: Vec::new(), waits: Vec::new(), runs: Vec::new(), tails: 0 };
        harness.player.nudge(harness.now);
        harness.carry_out();
        harness
    }

    fn carry_out(&mut self) {
        self.player.invariants();
        for action in self.player.take_actions() {
            match action {
                Action::Read { run, wait } => {
                    self.reads.extend(run.positions().map(|position| position.0));
                    self.waits.extend(run.positions().map(|_| wait.0));
                    self.runs.push(run.count);
                }
                Action::Tail => self.tails += 1,
                Action::SetTimer(_) => {}
            }
        }
    }

    fn tail(&mut self, tail: u64) {
        self.player.tail(Ok(Position(tail)), self.now);
        self.carry_out();
    }

    fn answer(&mut self, position: u64, outcome: Result<LogReply, Error>) {
        self.answer_run(PositionRun::of(Position(position), 1), outcome.map(|answer| LogReply::Range(vec![answer])));
    }

    fn answer_run(&mut self, run: PositionRun, outcome: Result<LogReply, Error>) {
        self.player.read(run, outcome, self.now);
        self.carry_out();
    }

    fn take(&mut self) -> Vec<u64> {
        let mut taken = Vec::new();
        while let Some(delivery) = self.player.take(self.now) {
            match delivery {
                Delivery::Entry { position, .. } => taken.push(position.0),
                Delivery::Lost { position } => taken.push(2_000 + position.0),
                Delivery::Trimmed { mark } => {
                    taken.push(1_000 + mark.0);
                    break;
                }
            }
        }
        self.carry_out();
        taken
    }
}

#[test]
fn reads_ahead_and_delivers_in_order() {
    let mut harness = Harness::new(2);
    assert_eq!((harness.tails, harness.reads.len()), (1, 0), "the tail is queried first");
    harness.tail(9);
    assert_eq!(harness.reads, [2, 3, 4, 5]);
    harness.answer(4, Ok(LogReply::Entry(data(3))));
    harness.answer(3, Ok(LogReply::Junk));
    assert_eq!(harness.take(), [0; 0]);
    harness.answer(2, Ok(LogReply::Entry(data(1))));
    assert_eq!(harness.take(), [2, 4]);
    assert_eq!(harness.reads, [2, 3, 4, 5, 6, 7, 8]);
    harness.answer(5, Ok(LogReply::Entry(data(3))));
    harness.answer(6, Ok(LogReply::Entry(data(2))));
    assert_eq!(harness.take(), [6], "the second entry of a stamp is skipped");
    assert_eq!(harness.player.next(), Position(7));
}

/// A range read may be answered in part: the other positions are read again.
#[test]
fn partial_range_read_is_continued() {
    let mut harness = Harness::new(0);
    harness.tail(40);
    assert_eq!(harness.runs, [4]);
    let row =
        |sequences: std::ops::Range<u64>| Ok(LogReply::Range(sequences.map(|of| LogReply::Entry(data(of))).collect()));
    harness.answer_run(PositionRun::of(Position(0), 4), row(1..4));
    assert_eq!(harness.runs, [4, 1]);
    assert_eq!(harness.reads, [0, 1, 2, 3, 3]);
    assert_eq!(harness.take(), [0, 1, 2]);
    harness.answer_run(PositionRun::of(Position(3), 1), row(4..5));
    assert_eq!(harness.take(), [3]);
    assert_eq!(harness.player.next(), Position(4));
    assert!(harness.reads.ends_with(&[4, 5, 6, 7]), "{:?}", harness.reads);
    harness.answer_run(PositionRun::of(Position(4), 2), Err(Error::BeyondTail { tail: Position(4) }));
    harness.answer_run(PositionRun::of(Position(4), 2), Err(Error::OutOfTime));
    assert_eq!(harness.reads.len(), 9, "positions beyond the tail are not read again");
}

/// A position that was beyond the tail, although later ones were not, is read again.
#[test]
fn gap_is_reread() {
    let mut harness = Harness::new(0);
    harness.tail(4);
    harness.answer_run(PositionRun::of(Position(1), 3), Ok(LogReply::Range(vec![LogReply::Junk; 3])));
    harness.answer(0, Err(Error::BeyondTail { tail: Position(0) }));
    harness.now = harness.now + CONFIG.poll;
    harness.player.timer(harness.now);
    harness.carry_out();
    harness.tail(9);
    assert!(harness.reads.ends_with(&[0]), "{:?}", harness.reads);
}

#[test]
fn retries_failed_reads_up_to_new_tail() {
    let mut harness = Harness::new(0);
    harness.tail(3);
    assert_eq!(harness.reads, [0, 1, 2]);
    harness.answer(0, Err(Error::OutOfTime));
    assert_eq!(harness.reads, [0, 1, 2, 0]);
    harness.answer(0, Ok(LogReply::Entry(data(1))));
    // A newer sequencer starts at 1.
    harness.answer(2, Err(Error::BeyondTail { tail: Position(1) }));
    harness.answer(1, Err(Error::BeyondTail { tail: Position(1) }));
    assert_eq!(harness.take(), [0]);
    harness.now = harness.now + CONFIG.poll;
    harness.player.timer(harness.now);
    harness.carry_out();
    assert_eq!(harness.tails, 2);
    harness.tail(2);
    assert_eq!(harness.reads, [0, 1, 2, 0, 1]);
}

/// The holes of a dead writer are waited for once, however many there are.
#[test]
fn holes_share_one_wait() {
    let mut harness = Harness::new(0);
    harness.tail(9);
    assert_eq!(harness.waits, [100; 4]);
    harness.now = Monotonic(harness.now.0 + 60);
    for position in 0..4 {
        harness.answer(position, Ok(LogReply::Junk));
    }
    assert_eq!(harness.take(), [0; 0]);
    assert_eq!(harness.waits[4..], [40; 4], "all were learned at the same time");
    harness.now = Monotonic(harness.now.0 + 60);
    (4..8).for_each(|position| harness.answer(position, Ok(LogReply::Junk)));
    assert_eq!(harness.take(), [0; 0]);
    assert_eq!((&harness.reads[8..], &harness.waits[8..]), (&[8][..], &[0][..]));
}

#[test]
fn read_ahead_backpressure_and_trim_report() {
    let mut harness = Harness::new(0);
    harness.tail(100);
    for position in 0..4 {
        harness.answer(position, Ok(LogReply::Entry(data(1 + position))));
    }
    assert_eq!(harness.reads.len(), 4);
    assert_eq!(harness.take(), [0, 1, 2, 3]);
    harness.answer(4, Ok(LogReply::Lost));
    assert_eq!(harness.take(), [2_004], "a lost position is delivered as lost");
    harness.answer(5, Ok(LogReply::Trimmed { mark: Position(2) }));
    harness.answer(6, Ok(LogReply::Trimmed { mark: Position(7) }));
    assert_eq!(harness.take(), [1_007], "a position trimmed individually is skipped");
    assert_eq!(harness.take(), [1_007]);
}
