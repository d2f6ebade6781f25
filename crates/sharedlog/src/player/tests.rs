//! A player whose reads a test answers.

use super::*;
use crate::{Batch, ClientId, Stamp};

const CONFIG: Config = Config { window: 4, poll: Duration::from_millis(5) };

fn data(sequence: u64) -> Data {
    let batch = Batch::of(&[]).expect("it is empty");
    Data { stamp: Stamp { client: ClientId(1), sequence }, since: None, batch }
}

struct Bed {
    player: Player,
    now: Monotonic,
    reads: Vec<u64>,
    tails: u32,
}

impl Bed {
    fn new(next: u64) -> Self {
        let player = Player::new(CONFIG, Position(next), Duplicates::default());
        let mut bed = Self { player, now: Monotonic(1), reads: Vec::new(), tails: 0 };
        bed.player.nudge(bed.now);
        bed.carry_out();
        bed
    }

    fn carry_out(&mut self) {
        self.player.invariants();
        for action in self.player.take_actions() {
            match action {
                Action::Read(position) => self.reads.push(position.0),
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
        self.player.read(Position(position), outcome, self.now);
        self.carry_out();
    }

    /// The positions of what is delivered.
    fn take(&mut self) -> Vec<u64> {
        let mut taken = Vec::new();
        while let Some(delivery) = self.player.take(self.now) {
            match delivery {
                Delivery::Entry { position, .. } => taken.push(position.0),
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
fn it_reads_ahead_within_its_window_and_delivers_in_order() {
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

#[test]
fn what_failed_is_read_again_and_what_was_given_out_in_vain_is_not_waited_for() {
    let mut bed = Bed::new(0);
    bed.tail(3);
    assert_eq!(bed.reads, [0, 1, 2]);
    bed.answer(0, Err(Error::OutOfTime));
    assert_eq!(bed.reads, [0, 1, 2, 0]);
    bed.answer(0, Ok(Answer::Entry(data(1))));
    // A newer sequencer begins at 1.
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

#[test]
fn who_takes_nothing_has_nothing_read_and_a_trim_is_told() {
    let mut bed = Bed::new(0);
    bed.tail(100);
    for position in 0..4 {
        bed.answer(position, Ok(Answer::Entry(data(1 + position))));
    }
    assert_eq!(bed.reads.len(), 4);
    assert_eq!(bed.take(), [0, 1, 2, 3]);
    bed.answer(4, Ok(Answer::Trimmed { mark: Position(2) }));
    bed.answer(5, Ok(Answer::Trimmed { mark: Position(7) }));
    assert_eq!(bed.take(), [1_007], "one position that was given up by itself is passed over");
    assert_eq!(bed.take(), [1_007]);
}
