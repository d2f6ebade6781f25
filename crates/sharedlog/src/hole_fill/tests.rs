//! A hole fill with units and fills played by the test.

use base::{Boot, NodeId};

use super::*;
use crate::{Extent, LogId, ProjectionEpoch, SequencerId};

const CONFIG: Config = Config { age: Duration(100), again: Duration(10), window: 2 };

fn projection(epoch: u64, chains: &[&[u64]]) -> Projection {
    let chains = chains.iter().map(|chain| chain.iter().copied().map(UnitId).collect()).collect();
    Projection {
        log: LogId(1),
        epoch: ProjectionEpoch(epoch),
        sequencer: SequencerId { node: NodeId(1), boot: Boot(1) },
        start: Position(9),
        newest_unit: UnitId(9),
        extents: vec![Extent::new(Position(0), 1, chains)],
    }
}

struct Bed {
    fill: HoleFill,
    now: Monotonic,
    timer: Option<Monotonic>,
    tails: u32,
    asked: Vec<(AskId, u64, Request)>,
    fills: Vec<u64>,
}

impl Bed {
    fn begin() -> Self {
        let fill = HoleFill::begin(projection(1, &[&[1, 2], &[3]]), CONFIG, Monotonic(1));
        let mut bed = Self { fill, now: Monotonic(1), timer: None, tails: 0, asked: Vec::new(), fills: Vec::new() };
        bed.carry_out();
        bed
    }

    fn carry_out(&mut self) {
        for action in self.fill.take_actions() {
            match action {
                Action::Tail => self.tails += 1,
                Action::Ask { ask, unit, request } => self.asked.push((ask, unit.0, request)),
                Action::Fill(position) => self.fills.push(position.0),
                Action::SetTimer(at) => self.timer = Some(at),
            }
        }
    }

    fn wait(&mut self, span: u64) {
        self.now = Monotonic(self.now.0 + span);
        self.timer = None;
        self.fill.timer(self.now);
        self.carry_out();
    }

    fn tail(&mut self, tail: u64) {
        self.fill.tail(Ok(Position(tail)), self.now);
        self.carry_out();
    }

    fn answer(&mut self, unit: u64, holes: &[u64]) {
        let (ask, of, _) = self.asked.remove(0);
        assert_eq!(of, unit);
        let holes = holes.iter().copied().map(Position).collect();
        self.fill.answered(ask, Reply::Holes(holes), self.now);
        self.carry_out();
    }

    fn filled(&mut self, position: u64, outcome: &Result<Answer, Error>) {
        self.fill.filled(Position(position), outcome, self.now);
        self.carry_out();
    }
}

#[test]
fn fills_only_old_holes() {
    let mut bed = Bed::begin();
    assert_eq!(bed.tails, 1);
    bed.tail(9);
    bed.wait(50);
    bed.tail(40);
    assert!(bed.asked.is_empty());
    bed.wait(50);
    let stripe = |index| Stripe { from: Position(0), count: 2, index, width: 1 };
    let holes = |index, from, to| Request::Holes {
        epoch: ProjectionEpoch(1),
        stripe: stripe(index),
        from: Position(from),
        to: Position(to),
    };
    assert_eq!(bed.asked[0].2, holes(1, 0, 9), "the tails of the chains are asked");
    // A full reply, so there may be more holes.
    bed.answer(3, &[1, 3, 5]);
    assert_eq!((bed.fills.clone(), bed.asked.len()), (vec![1, 3], 0));
    bed.filled(1, &Ok(Answer::Junk));
    assert_eq!(bed.fills, [1, 3, 5]);
    assert_eq!(bed.asked[0].2, holes(1, 6, 9));
    bed.answer(3, &[]);
    assert_eq!(bed.asked[0].2, holes(0, 0, 9));
    bed.filled(3, &Err(Error::OutOfTime));
    assert_eq!(bed.fills, [1, 3, 5, 3], "it is filled again");
    bed.answer(2, &[]);
    assert_eq!(bed.fill.done, Position(0));
    bed.filled(3, &Ok(Answer::Junk));
    bed.filled(5, &Ok(Answer::Junk));
    assert_eq!(bed.fill.done, Position(9));
    bed.fill.given_out(Position(40), bed.now);
    bed.wait(50);
    assert_eq!(bed.asked[0].2, holes(1, 9, 40));
}

#[test]
fn retries_silent_unit() {
    let mut bed = Bed::begin();
    bed.tail(9);
    bed.wait(100);
    assert_eq!(bed.asked.len(), 1);
    bed.wait(10);
    let (old, ..) = bed.asked.remove(0);
    assert_eq!(bed.asked.len(), 1);
    bed.fill.answered(old, Reply::Holes(vec![Position(1)]), bed.now);
    bed.answer(3, &[]);
    bed.answer(2, &[4]);
    assert_eq!(bed.fills, [4]);
}

#[test]
fn idles_while_all_positions_are_filled() {
    let mut bed = Bed::begin();
    bed.tail(9);
    bed.wait(100);
    bed.answer(3, &[]);
    bed.answer(2, &[]);
    bed.tail(9);
    let tails = bed.tails;
    bed.wait(1_000);
    assert_eq!((bed.tails, bed.timer), (tails, None));
    bed.fill.given_out(Position(9), bed.now);
    bed.carry_out();
    assert_eq!(bed.timer, None);
    bed.fill.given_out(Position(10), bed.now);
    bed.carry_out();
    assert_eq!(bed.timer, Some(Monotonic(bed.now.0 + 100)));
    bed.wait(100);
    assert_eq!(bed.tails, tails + 1);
}
