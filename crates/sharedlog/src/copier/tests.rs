//! A copier whose reads and unit a test plays.

use super::*;
use crate::unit::Report;
use crate::{ProjectionEpoch, Stripe};

const CONFIG: Config = Config { window: 2, again: Duration::from_millis(10), failures: 2 };
const STRIPE: Stripe = Stripe { from: Position(0), count: 2, index: 1 };

struct Bed {
    copier: Copier,
    now: Monotonic,
    asked: Vec<(AskId, Command)>,
    reads: Vec<u64>,
    ended: Option<bool>,
}

impl Bed {
    fn begin() -> Self {
        let healing = Healing { unit: UnitId(7), stripe: STRIPE, to: Position(8) };
        let copier = Copier::begin(vec![healing], CONFIG, Monotonic(1));
        let mut bed = Self { copier, now: Monotonic(1), asked: Vec::new(), reads: Vec::new(), ended: None };
        bed.carry_out();
        bed
    }

    fn carry_out(&mut self) {
        for action in self.copier.take_actions() {
            match action {
                Action::Ask { ask, unit, request: Request::Command(command) } => {
                    assert_eq!(unit, UnitId(7));
                    self.asked.push((ask, command));
                }
                Action::Ask { .. } => panic!("a copier only gives commands"),
                Action::Read(position) => self.reads.push(position.0),
                Action::SetTimer(_) => {}
                Action::Done { is_whole } => self.ended = Some(is_whole),
            }
        }
    }

    fn answer(&mut self, reply: Reply) -> Command {
        let (ask, command) = self.asked.remove(0);
        self.copier.answered(ask, reply, self.now);
        self.carry_out();
        command
    }

    fn told(&mut self, missing: u64) {
        let whole = vec![(STRIPE, Position(missing))];
        let report = Report { sealed: ProjectionEpoch(1), tail: Position(9), trimmed: Position(0), whole };
        assert_eq!(self.answer(Reply::Told(report)), Command::Tell { stripes: vec![STRIPE] });
    }

    fn read(&mut self, position: u64, answer: Answer) {
        self.copier.read(Position(position), Ok(answer), self.now);
        self.carry_out();
    }

    fn late(&mut self) {
        self.now = self.now + CONFIG.again;
        self.copier.timer(self.now);
        self.carry_out();
    }
}

#[test]
fn it_copies_what_is_missing_and_has_the_unit_say_that_it_is_whole() {
    let mut bed = Bed::begin();
    bed.told(3);
    assert_eq!(bed.reads, [3, 5], "two at one time");
    bed.read(5, Answer::Junk);
    let junk = |position| Command::Copy { position: Position(position), kept: Kept::Entry(Entry::Junk) };
    assert_eq!(bed.answer(Reply::Written), junk(5));
    assert_eq!(bed.reads, [3, 5, 7]);
    bed.read(3, Answer::Trimmed { mark: Position(4) });
    assert_eq!(bed.answer(Reply::Done), Command::Trim { epoch: None, before: Position(4) });
    bed.read(7, Answer::Trimmed { mark: Position(4) });
    let trimmed = Command::Copy { position: Position(7), kept: Kept::Trimmed };
    assert_eq!(bed.answer(Reply::Written), trimmed);
    bed.told(7);
    assert_eq!(bed.reads, [3, 5, 7, 7], "it says otherwise");
    bed.read(7, Answer::Trimmed { mark: Position(4) });
    bed.answer(Reply::Written);
    bed.told(9);
    assert_eq!(bed.ended, Some(true));
}

#[test]
fn what_is_not_answered_is_asked_again_and_then_given_up() {
    let mut bed = Bed::begin();
    bed.late();
    assert_eq!(bed.asked.len(), 2);
    bed.asked.remove(0);
    bed.told(7);
    bed.read(7, Answer::Junk);
    let asked = bed.asked[0].1.clone();
    bed.late();
    assert_eq!(bed.asked.iter().map(|(_, command)| command).collect::<Vec<_>>(), [&asked, &asked]);
    bed.late();
    assert_eq!(bed.ended, None);
    bed.late();
    assert_eq!(bed.ended, Some(false));
}

#[test]
fn a_unit_that_holds_something_else_is_not_made_whole() {
    let mut bed = Bed::begin();
    bed.told(7);
    bed.read(7, Answer::Junk);
    bed.answer(Reply::Occupied { by: crate::Kind::Data });
    assert_eq!(bed.ended, Some(false));
}
