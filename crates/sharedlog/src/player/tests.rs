//! A player with reads that the test answers.

use super::*;
use crate::{Batch, ClientId, Stamp};

const CONFIG: Config = Config { window: 4, poll: Duration::from_millis(5), wait: Duration(100) };

fn data(sequence: u64) -> Data {
    let batch = Batch::of(&[]).expect("it is empty");
    Data { stamp: Stamp { client: ClientId(1), sequence }, batch }
}

struct Bed {
    player: Player,
    now: Monotonic,
    reads: Vec<u64>,
    waits: Vec<u64>,
    runs: Vec<usize>,
    tails: u32,
}

impl Bed {
    fn new(next: u64) -> Self {
        let player = Player::new(CONFIG, Position(next), Duplicates::default());
        let mut bed =
            Self { player, now: Monotonic(1), reads: Vec::new(), waits: Vec::new(), runs: Vec::new(), tails: 0 };
        bed.player.nudge(bed.now);
        bed.carry_out();
        bed
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

    fn answer(&mut self, position: u64, outcome: Result<Answer, Error>) {
        self.answer_run(Run::of(Position(position), 1), outcome.map(|answer| Answer::Range(vec![answer])));
    }

    fn answer_run(&mut self, run: Run, outcome: Result<Answer, Error>) {
        self.player.read(run, outcome, self.now);
        self.carry_out();
    }

    /// Positions of the deliveries.
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
    let mut bed = Bed::new(2);
    assert_eq!((bed.tails, bed.reads.len()), (1, 0), "the tail comes first");
    bed.tail(9);
    assert_eq!(bed.reads, [2, 3, 4, 5]);
    bed.answer(4, Ok(Answer::Entry(data(3))));
    bed.answer(3, Ok(Answer::Junk));
    assert_eq!(bed.take(), [0; 0]);
    bed.answer(2, Ok(Answer::Entry(data(1))));
    assert_eq!(bed.take(), [2, 4]);
    assert_eq!(bed.reads, [2, 3, 4, 5, 6, 7, 8]);
    bed.answer(5, Ok(Answer::Entry(data(3))));
    bed.answer(6, Ok(Answer::Entry(data(2))));
    assert_eq!(bed.take(), [6], "the second of a stamp is passed over");
    assert_eq!(bed.player.next(), Position(7));
}

/// A range read may be answered in part: the other positions are read again.
#[test]
fn partial_range_read_is_continued() {
    let mut bed = Bed::new(0);
    bed.tail(40);
    assert_eq!(bed.runs, [4]);
    let row =
        |sequences: std::ops::Range<u64>| Ok(Answer::Range(sequences.map(|of| Answer::Entry(data(of))).collect()));
    bed.answer_run(Run::of(Position(0), 4), row(1..4));
    assert_eq!(bed.runs, [4, 1]);
    assert_eq!(bed.reads, [0, 1, 2, 3, 3]);
    assert_eq!(bed.take(), [0, 1, 2]);
    bed.answer_run(Run::of(Position(3), 1), row(4..5));
    assert_eq!(bed.take(), [3]);
    assert_eq!(bed.player.next(), Position(4));
    assert!(bed.reads.ends_with(&[4, 5, 6, 7]), "{:?}", bed.reads);
    bed.answer_run(Run::of(Position(4), 2), Err(Error::BeyondTail { tail: Position(4) }));
    bed.answer_run(Run::of(Position(4), 2), Err(Error::OutOfTime));
    assert_eq!(bed.reads.len(), 9, "what is beyond the tail is not read again");
}

/// A position that was beyond the tail, although later ones were not, is read again.
#[test]
fn gap_is_reread() {
    let mut bed = Bed::new(0);
    bed.tail(4);
    bed.answer_run(Run::of(Position(1), 3), Ok(Answer::Range(vec![Answer::Junk; 3])));
    bed.answer(0, Err(Error::BeyondTail { tail: Position(0) }));
    bed.now = bed.now + CONFIG.poll;
    bed.player.timer(bed.now);
    bed.carry_out();
    bed.tail(9);
    assert!(bed.reads.ends_with(&[0]), "{:?}", bed.reads);
}

#[test]
fn retries_failed_reads_up_to_new_tail() {
    let mut bed = Bed::new(0);
    bed.tail(3);
    assert_eq!(bed.reads, [0, 1, 2]);
    bed.answer(0, Err(Error::OutOfTime));
    assert_eq!(bed.reads, [0, 1, 2, 0]);
    bed.answer(0, Ok(Answer::Entry(data(1))));
    // A newer sequencer starts at 1.
    bed.answer(2, Err(Error::BeyondTail { tail: Position(1) }));
    bed.answer(1, Err(Error::BeyondTail { tail: Position(1) }));
    assert_eq!(bed.take(), [0]);
    bed.now = bed.now + CONFIG.poll;
    bed.player.timer(bed.now);
    bed.carry_out();
    assert_eq!(bed.tails, 2);
    bed.tail(2);
    assert_eq!(bed.reads, [0, 1, 2, 0, 1]);
}

/// The holes of a dead writer are waited for once, however many there are.
#[test]
fn holes_share_one_wait() {
    let mut bed = Bed::new(0);
    bed.tail(9);
    assert_eq!(bed.waits, [100; 4]);
    bed.now = Monotonic(bed.now.0 + 60);
    for position in 0..4 {
        bed.answer(position, Ok(Answer::Junk));
    }
    assert_eq!(bed.take(), [0; 0]);
    assert_eq!(bed.waits[4..], [40; 4], "they were told at the same time");
    bed.now = Monotonic(bed.now.0 + 60);
    (4..8).for_each(|position| bed.answer(position, Ok(Answer::Junk)));
    assert_eq!(bed.take(), [0; 0]);
    assert_eq!((&bed.reads[8..], &bed.waits[8..]), (&[8][..], &[0][..]));
}

#[test]
fn read_ahead_backpressure_and_trim_report() {
    let mut bed = Bed::new(0);
    bed.tail(100);
    for position in 0..4 {
        bed.answer(position, Ok(Answer::Entry(data(1 + position))));
    }
    assert_eq!(bed.reads.len(), 4);
    assert_eq!(bed.take(), [0, 1, 2, 3]);
    bed.answer(4, Ok(Answer::Lost));
    assert_eq!(bed.take(), [2_004], "what is lost is told, not passed over");
    bed.answer(5, Ok(Answer::Trimmed { mark: Position(2) }));
    bed.answer(6, Ok(Answer::Trimmed { mark: Position(7) }));
    assert_eq!(bed.take(), [1_007], "one position that was given up by itself is passed over");
    assert_eq!(bed.take(), [1_007]);
}
