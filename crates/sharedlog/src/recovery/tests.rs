//! A recovery with units and a registry played by the test, and the successors of projections.

use base::{Boot, Incarnation, Member, NodeId};

use super::*;
use crate::{Extent, LogId, Stripe};

const EPOCH: ProjectionEpoch = ProjectionEpoch(3);

fn sequencer(boot: u64) -> SequencerId {
    SequencerId { node: NodeId(1), boot: Boot(boot) }
}

fn extent(from: u64, chains: &[&[u64]]) -> Extent {
    let chains = chains.iter().map(|chain| chain.iter().copied().map(UnitId).collect()).collect();
    Extent::new(Position(from), 1, chains)
}

fn projection(extents: &[Extent]) -> Projection {
    let newest_unit = extents.iter().flat_map(Extent::units).max().unwrap_or_default();
    let (sequencer, extents) = (sequencer(1), extents.to_vec());
    Projection { log: LogId(1), epoch: EPOCH, sequencer, start: Position(10), newest_unit, extents }
}

/// Units 1 to 9 are on the nodes with the same numbers; units 11 to 19 are on nodes 1 to 9.
fn homes() -> Homes {
    let of =
        |unit: u64| (UnitId(unit), Member { node: NodeId((unit % 10) as u32), incarnation: Incarnation(unit % 10) });
    (1..20).map(of).collect()
}

struct Harness {
    recovery: Recovery,
    now: Monotonic,
    asked: Vec<(AskId, UnitId, Command)>,
    proposed: Vec<Projection>,
    ended: Option<Ended>,
}

impl Harness {
    fn begin(old: Projection, leave_out: &[u64], spares: &[u64]) -> Self {
        let plan = Plan {
            sequencer: sequencer(2),
            leave_out: leave_out.iter().copied().map(UnitId).collect(),
            leaving: BTreeSet::new(),
            spares: spares.iter().copied().map(UnitId).collect(),
            homes: homes(),
            lost: BTreeSet::new(),
            at_least: Position(0),
            stripes: 1,
            width: 1,
            copies: 2,
        };
        Self::with(old, plan)
    }

    fn with(old: Projection, plan: Plan) -> Self {
        let recovery = Recovery::begin(old, plan, Timing::default(), Monotonic(1));
        let mut harness = Self { recovery, now: Monotonic(1), asked: Vec::new(), proposed: Vec::new(), ended: None };
        harness.carry_out();
        harness
    }

    fn carry_out(&mut self) {
        for action in self.recovery.take_actions() {
            match action {
                Action::Ask { ask, unit, request: Request::Command(command) } => {
                    self.asked.push((ask, unit, command.command().clone()));
                }
                Action::Ask { .. } => panic!("a recovery sends only commands"),
                Action::Propose(projection) => self.proposed.push(projection),
                Action::SetTimer(_) => {}
                Action::Done(ended) => self.ended = Some(ended),
            }
        }
    }

    /// Answers the last request to a unit.
    fn answer(&mut self, unit: u64, reply: Reply) {
        let asked = self.asked.iter().rev().find(|(_, asked, _)| *asked == UnitId(unit));
        let (ask, ..) = asked.expect("a request was sent");
        self.recovery.answered(*ask, reply, self.now);
        self.carry_out();
    }

    fn sealed(&mut self, unit: u64, tail: u64) {
        self.answer(unit, Reply::Sealed(report(tail, &[])));
    }

    /// The first proposal, after the lease of the replaced sequencer has expired.
    fn proposed(&mut self) -> Projection {
        self.wait(LEASE_GRACE);
        self.proposed[0].clone()
    }

    fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
        self.recovery.timer(self.now);
        self.carry_out();
    }
}

fn report(tail: u64, whole: &[(Stripe, Position)]) -> Report {
    Report { sealed: EPOCH, tail: Position(tail), trimmed: Position(0), damaged: 0, whole: whole.to_vec() }
}

#[test]
fn responders_stay_and_log_resumes_above_tail() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2], &[3, 4]])]), &[], &[]);
    for (unit, tail) in [(1, 17), (2, 11), (3, 9)] {
        harness.sealed(unit, tail);
    }
    assert_eq!(harness.proposed, [], "the last unit may still reply");
    harness.sealed(4, 19);
    let wanted = Projection {
        epoch: EPOCH.next(),
        start: Position(19),
        sequencer: sequencer(2),
        ..projection(&[extent(0, &[&[1, 2], &[3, 4]])])
    };
    assert_eq!(harness.proposed(), wanted);
    harness.recovery.verdict(ProposalOutcome::Newest(wanted.clone()), harness.now);
    harness.carry_out();
    assert_eq!(harness.ended, Some(Ended::Installed(wanted)));
}

#[test]
fn waits_for_sequencer_lease_expiry() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2], &[3, 4]])]), &[], &[]);
    harness.sealed(1, 17);
    harness.wait(Duration::from_millis(60));
    harness.sealed(3, 9);
    harness.wait(Duration::from_millis(1));
    for unit in [2, 4] {
        harness.sealed(unit, 17);
    }
    harness.wait(Duration(LEASE_GRACE.0 - 1_000_001));
    assert_eq!(harness.proposed, [], "the wait starts when each chain has a sealed unit");
    harness.wait(Duration(1));
    assert_eq!(harness.proposed.len(), 1);
}

#[test]
fn requires_sealed_unit_in_every_chain() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2], &[3, 4]])]), &[], &[]);
    harness.sealed(1, 17);
    harness.sealed(2, 17);
    for _ in 0..20 {
        harness.wait(Duration::from_millis(100));
    }
    assert_eq!((harness.proposed.len(), &harness.ended), (0, &None));
    let seals = harness.asked.iter().filter(|(_, unit, _)| *unit == UnitId(3)).count();
    assert!(seals > 15, "requests are retransmitted");
    harness.sealed(4, 30);
    harness.wait(Duration::from_millis(1));
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 2], &[4]])]);
    assert_eq!(harness.proposed().start, Position(30));
    harness.wait(Timing::default().limit);
    assert_eq!(harness.ended, Some(Ended::OutOfTime));
}

#[test]
fn slow_unit_is_dropped_unless_last_copy() {
    let old = || projection(&[extent(0, &[&[1, 2]]), extent(4, &[&[2, 3]])]);
    let mut harness = Harness::begin(old(), &[2], &[]);
    harness.sealed(2, 12);
    harness.sealed(1, 12);
    assert_eq!(harness.proposed, [], "the second chain has no other unit yet");
    harness.sealed(3, 12);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1]]), extent(4, &[&[3]])]);
    let mut harness = Harness::begin(old(), &[2, 3], &[]);
    harness.sealed(2, 12);
    harness.sealed(1, 12);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 2]]), extent(4, &[&[2]])]);
}

/// The unit's node has become silent.
#[test]
fn silent_unit_is_dropped_unless_it_replies() {
    let stop_waiting_for = |harness: &mut Harness, units: &[u64]| {
        harness.recovery.stop_waiting_for(&units.iter().copied().map(UnitId).collect(), harness.now);
        harness.carry_out();
    };
    for answers in [false, true] {
        let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2, 3]])]), &[], &[]);
        assert_eq!(harness.recovery.unanswered(), [UnitId(1), UnitId(2), UnitId(3)]);
        stop_waiting_for(&mut harness, &[2]);
        harness.sealed(1, 12);
        assert_eq!(harness.proposed, [], "the third unit may still reply");
        assert_eq!(harness.recovery.unanswered(), [UnitId(3)]);
        if answers {
            harness.sealed(2, 12);
        }
        harness.sealed(3, 12);
        let chain: &[u64] = if answers { &[1, 2, 3] } else { &[1, 3] };
        assert_eq!(harness.proposed().extents, [extent(0, &[chain])]);
    }
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]]), extent(4, &[&[2, 3]])]), &[], &[]);
    stop_waiting_for(&mut harness, &[1, 2]);
    harness.sealed(3, 12);
    assert_eq!(harness.proposed, [], "no other unit holds these entries");
    harness.sealed(2, 12);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[2]]), extent(4, &[&[2, 3]])]);
}

#[test]
fn started_spares_serve_new_positions() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[7, 8, 9]);
    harness.sealed(1, 15);
    harness.wait(Timing::default().patience);
    let begin = |unit, from| {
        let stripes = vec![Stripe { from: Position(from), count: 1, index: 0, width: 1 }];
        let disk = Incarnation(unit);
        (UnitId(unit), Command::Begin { disk, log: LogId(1), epoch: EPOCH, trimmed: Position(0), stripes })
    };
    let last = |harness: &Harness| harness.asked.last().map(|(_, unit, command)| (*unit, command.clone()));
    assert_eq!(last(&harness), Some(begin(7, 15)));
    assert_eq!(harness.proposed, []);
    harness.answer(7, Reply::Elsewhere);
    assert_eq!(last(&harness), Some(begin(8, 15)), "another spare is used");
    harness.answer(8, Reply::Begun(report(0, &[])));
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1]]), extent(15, &[&[1, 8]])]);
    assert_eq!(harness.proposed().newest_unit, UnitId(8));
}

/// A spare had started; then its node left, or another spare replaced it.
#[test]
fn gone_spare_is_skipped_at_once() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[7, 8]);
    harness.sealed(1, 15);
    harness.wait(Timing::default().patience);
    harness.answer(7, Reply::Begun(report(0, &[])));
    assert_eq!(harness.proposed.len(), 1);
    let refuse = |harness: &mut Harness, unit| {
        harness.recovery.verdict(ProposalOutcome::UnitsGone(vec![UnitId(unit)]), harness.now);
        harness.carry_out();
    };
    refuse(&mut harness, 7);
    harness.answer(8, Reply::Begun(report(0, &[])));
    assert_eq!(harness.proposed.last().map(|proposed| proposed.newest_unit), Some(UnitId(8)), "another spare is used");
    let proposed = harness.proposed.len();
    refuse(&mut harness, 7);
    assert_eq!(harness.proposed.len(), proposed, "the verdict refers to the earlier proposal");
    refuse(&mut harness, 8);
    assert_eq!(harness.proposed.last().map(|proposed| &proposed.extents[..]), Some(&[extent(0, &[&[1]])][..]));
    harness.recovery.verdict(ProposalOutcome::Unfit, harness.now);
    harness.carry_out();
    assert_eq!(harness.ended, Some(Ended::NoSuccessor));
}

#[test]
fn proceeds_without_unresponsive_spares() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[7]);
    harness.sealed(1, 15);
    harness.wait(Timing::default().patience);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1]])]);
}

#[test]
fn complete_unit_joins_older_chain() {
    let old = projection(&[extent(0, &[&[1], &[3]]), extent(10, &[&[1, 7], &[3, 8]])]);
    let wanted = [(7, 0), (8, 1)].map(|(unit, index)| Healing {
        unit: UnitId(unit),
        stripe: Stripe { from: Position(0), count: 2, index, width: 1 },
        to: Position(10),
    });
    assert_eq!(healings(&old, 2, &homes(), &BTreeSet::new()), wanted);
    let of = |missing: [u64; 2]| {
        let mut harness = Harness::begin(old.clone(), &[], &[]);
        harness.sealed(1, 30);
        harness.sealed(3, 30);
        for (healing, missing) in wanted.iter().zip(missing) {
            let whole = [(healing.stripe, Position(missing))];
            harness.answer(healing.unit.0, Reply::Sealed(report(30, &whole)));
        }
        harness.proposed().extents.clone()
    };
    assert_eq!(of([8, 9]), old.extents);
    assert_eq!(of([10, 9]), [extent(0, &[&[1, 7], &[3]]), extent(10, &[&[1, 7], &[3, 8]])]);
    assert_eq!(of([10, 11]), [extent(0, &[&[1, 7], &[3, 8]])], "equal extents are joined");
}

/// A copy on the same node does not count.
#[test]
fn chain_units_are_on_distinct_nodes() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2], &[3, 4]])]), &[], &[11, 13, 12]);
    harness.sealed(1, 15);
    harness.sealed(3, 15);
    harness.wait(Timing::default().patience);
    for unit in [13, 11] {
        harness.answer(unit, Reply::Begun(report(0, &[])));
    }
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1], &[3]]), extent(15, &[&[3, 11], &[1, 13]])]);
    // The unit with the same index is on the node of the remaining unit.
    let old =
        projection(&[extent(0, &[&[1], &[3]]), extent(10, &[&[1, 13], &[3, 12]]), extent(30, &[&[3, 11], &[1, 12]])]);
    let healed: Vec<_> =
        healings(&old, 2, &homes(), &BTreeSet::new()).iter().map(|healing| (healing.to.0, healing.unit.0)).collect();
    assert_eq!(healed, [(10, 12), (10, 11)], "unit 11 cannot share a chain with unit 1");
    let unplaced = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[77]);
    assert!(!unplaced.recovery.plan.homes.may_join(UnitId(77), &[]));
}

/// A new chain must be full; otherwise the old chains stay.
#[test]
fn new_chain_starts_full() {
    let chains_with = |spares: &[u64]| {
        let spares = spares.iter().copied().map(UnitId).collect::<Vec<_>>();
        let plan = Plan {
            sequencer: sequencer(2),
            leave_out: BTreeSet::new(),
            leaving: BTreeSet::new(),
            spares: spares.clone(),
            homes: homes(),
            lost: BTreeSet::new(),
            at_least: Position(0),
            stripes: 3,
            width: 1,
            copies: 2,
        };
        let mut harness = Harness::with(projection(&[extent(0, &[&[1, 2]])]), plan);
        harness.sealed(1, 15);
        harness.sealed(2, 15);
        for spare in spares {
            if harness.asked.iter().any(|(_, unit, _)| *unit == spare) {
                harness.answer(spare.0, Reply::Begun(report(0, &[])));
            }
        }
        harness.proposed().last().chains.len()
    };
    assert_eq!(chains_with(&[]), 1);
    assert_eq!(chains_with(&[3]), 1);
    assert_eq!(chains_with(&[3, 13]), 1, "both units are on one node");
    assert_eq!(chains_with(&[3, 13, 4]), 2);
    assert_eq!(chains_with(&[3, 4, 5, 6, 7]), 3);
}

/// A chain of an extent that was closed earlier stays unchanged if none of its units replies.
#[test]
fn silent_old_chain_does_not_block_recovery() {
    let mut old = projection(&[extent(0, &[&[1, 2], &[3]]), extent(10, &[&[1, 4], &[3, 5]])]);
    old.start = Position(10);
    let mut harness = Harness::begin(old, &[], &[]);
    harness.sealed(4, 15);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed, [], "the last extent has a chain without a sealed unit");
    harness.sealed(5, 16);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 2], &[3]]), extent(10, &[&[4], &[5]])]);
    // A trimmed extent needs no unit at all.
    let mut old = projection(&[extent(0, &[&[1, 2], &[3]]), extent(10, &[&[4], &[5]])]);
    old.start = Position(10);
    let mut harness = Harness::begin(old, &[], &[]);
    harness.answer(4, Reply::Sealed(Report { trimmed: Position(10), ..report(15, &[]) }));
    harness.sealed(5, 16);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed().extents, [extent(10, &[&[4], &[5]])]);
}

/// Only an operator can declare units lost, and an abandoned chain stays abandoned.
#[test]
fn declared_lost_chain_is_abandoned() {
    let late = |mut harness: Harness| {
        harness.wait(Timing::default().patience);
        harness
    };
    let begin = |lost: &[u64]| {
        let plan = Plan {
            sequencer: sequencer(2),
            leave_out: BTreeSet::new(),
            leaving: BTreeSet::new(),
            spares: [7, 8].map(UnitId).to_vec(),
            homes: homes(),
            lost: lost.iter().copied().map(UnitId).collect(),
            at_least: Position(40),
            stripes: 2,
            width: 1,
            copies: 2,
        };
        let mut harness = Harness::with(projection(&[extent(0, &[&[1, 2], &[3, 4]])]), plan);
        harness.sealed(1, 15);
        harness.sealed(2, 15);
        harness
    };
    assert!(late(begin(&[])).asked.iter().all(|(_, unit, _)| unit.0 < 5), "waits for units 3 and 4");
    assert!(late(begin(&[3])).asked.iter().all(|(_, unit, _)| unit.0 < 5), "waits for unit 4");
    let mut harness = begin(&[1, 3, 4]);
    for unit in [7, 8] {
        harness.answer(unit, Reply::Begun(report(0, &[])));
    }
    let extents = [extent(0, &[&[1, 2], &[]]), extent(40, &[&[1, 2], &[7, 8]])];
    assert_eq!(harness.proposed().extents, extents, "unit 1 is alive, although it is declared lost");
    assert_eq!(healings(&harness.proposed(), 2, &homes(), &BTreeSet::new()), []);
}

/// A unit with damage is not a complete copy.
#[test]
fn damaged_unit_counts_as_missing() {
    let damaged = |harness: &mut Harness| harness.answer(1, Reply::Sealed(Report { damaged: 1, ..report(15, &[]) }));
    // The recovery waits longer than usual for the undamaged unit.
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[]);
    damaged(&mut harness);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed, []);
    harness.sealed(2, 15);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 2]])]);
    // The undamaged unit is not left out in favour of the damaged one.
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[2], &[]);
    damaged(&mut harness);
    harness.wait(Timing::default().patience);
    assert_eq!(harness.proposed, []);
    harness.sealed(2, 15);
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 2]])]);
    // In the end the recovery continues; a chain of an older extent stays unchanged until its other unit returns.
    let mut old = projection(&[extent(0, &[&[1, 3]]), extent(10, &[&[1, 2]])]);
    old.start = Position(10);
    let mut harness = Harness::begin(old, &[], &[]);
    damaged(&mut harness);
    harness.wait(Duration(Timing::default().limit.0 / 2));
    assert_eq!(harness.proposed().extents, [extent(0, &[&[1, 3]]), extent(10, &[&[1]])]);
}

#[test]
fn newer_projection_ends_recovery() {
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[]);
    harness.answer(1, Reply::Sealed(Report { sealed: EPOCH.next(), ..Report::default() }));
    assert_eq!(harness.ended, Some(Ended::Lost));
    let mut harness = Harness::begin(projection(&[extent(0, &[&[1, 2]])]), &[], &[]);
    harness.sealed(1, 5);
    harness.sealed(2, 5);
    harness.recovery.verdict(ProposalOutcome::Newest(projection(&[extent(0, &[&[1, 2]])])), harness.now);
    harness.carry_out();
    assert_eq!(harness.ended, None, "the replaced projection");
    let mut other = harness.proposed();
    other.start = Position(11);
    harness.recovery.verdict(ProposalOutcome::Newest(other), harness.now);
    harness.carry_out();
    assert_eq!(harness.ended, Some(Ended::Lost));
}
