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

struct Harness {
    fill: HoleFill,
    now: Monotonic,
    timer: Option<Monotonic>,
    tails: u32,
    asked: Vec<(AskId, u64, Request)>,
    fills: Vec<u64>,
}

impl Harness {
    fn begin() -> Self {
        let fill = HoleFill::begin(projection(1, &[&[1, 2], &[3]]), CONFIG, Monotonic(1));
        let mut harness = Self { fill, now: Monotonic(1), timer: None, tails: 0, asked: Vec::new(), fills: Vec::new() };
        harness.carry_out();
        harness
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

    fn filled(&mut self, position: u64, outcome: &Result<LogReply, Error>) {
        self.fill.filled(Position(position), outcome, self.now);
        self.carry_out();
    }
}

#[test]
fn fills_only_old_holes() {
    let mut harness = Harness::begin();
    assert_eq!(harness.tails, 1);
    harness.tail(9);
    harness.wait(50);
    harness.tail(40);
    assert!(harness.asked.is_empty());
    harness.wait(50);
    let stripe = |index| Stripe { from: Position(0), count: 2, index, width: 1 };
    let holes = |index, from, to| Request::Holes {
        epoch: ProjectionEpoch(1),
        stripe: stripe(index),
        from: Position(from),
        to: Position(to),
    };
    assert_eq!(harness.asked[0].2, holes(1, 0, 9), "requests go to the tails of the chains");
    // A full reply, so there may be more holes.
    harness.answer(3, &[1, 3, 5]);
    assert_eq!((harness.fills.clone(), harness.asked.len()), (vec![1, 3], 0));
    harness.filled(1, &Ok(LogReply::Junk));
    assert_eq!(harness.fills, [1, 3, 5]);
    assert_eq!(harness.asked[0].2, holes(1, 6, 9));
    harness.answer(3, &[]);
    assert_eq!(harness.asked[0].2, holes(0, 0, 9));
    harness.filled(3, &Err(Error::OutOfTime));
    assert_eq!(harness.fills, [1, 3, 5, 3], "the fill is repeated");
    harness.answer(2, &[]);
    assert_eq!(harness.fill.done, Position(0));
    harness.filled(3, &Ok(LogReply::Junk));
    harness.filled(5, &Ok(LogReply::Junk));
    assert_eq!(harness.fill.done, Position(9));
    harness.fill.handed_out(Position(40), harness.now);
    harness.wait(50);
    assert_eq!(harness.asked[0].2, holes(1, 9, 40));
}

#[test]
fn retries_silent_unit() {
    let mut harness = Harness::begin();
    harness.tail(9);
    harness.wait(100);
    assert_eq!(harness.asked.len(), 1);
    harness.wait(10);
    let (old, ..) = harness.asked.remove(0);
    assert_eq!(harness.asked.len(), 1);
    harness.fill.answered(old, Reply::Holes(vec![Position(1)]), harness.now);
    harness.answer(3, &[]);
    harness.answer(2, &[4]);
    assert_eq!(harness.fills, [4]);
}

#[test]
fn idles_while_all_positions_are_filled() {
    let mut harness = Harness::begin();
    harness.tail(9);
    harness.wait(100);
    harness.answer(3, &[]);
    harness.answer(2, &[]);
    harness.tail(9);
    let tails = harness.tails;
    harness.wait(1_000);
    assert_eq!((harness.tails, harness.timer), (tails, None));
    harness.fill.handed_out(Position(9), harness.now);
    harness.carry_out();
    assert_eq!(harness.timer, None);
    harness.fill.handed_out(Position(10), harness.now);
    harness.carry_out();
    assert_eq!(harness.timer, Some(Monotonic(harness.now.0 + 100)));
    harness.wait(100);
    assert_eq!(harness.tails, tails + 1);
}
