//! A copier with reads and a unit played by the test.

use super::*;
use crate::unit::Report;
use crate::{Batch, ClientId, Data, ProjectionEpoch, Stamp, Stripe};

const CONFIG: Config = Config { window: 2, again: Duration::from_millis(10), failures: 2 };
const STRIPE: Stripe = Stripe { from: Position(0), count: 2, index: 1, width: 1 };

struct Harness {
    copier: Copier,
    now: Monotonic,
    asked: Vec<(AskId, Command)>,
    reads: Vec<PositionRun>,
    ended: Option<bool>,
}

impl Harness {
    fn begin() -> Self {
        let healing = Healing { unit: UnitId(7), stripe: STRIPE, to: Position(20) };
        let copier = Copier::begin(vec![healing], CONFIG, Monotonic(1));
        let mut harness = Self { copier, now: Monotonic(1), asked: Vec::new(), reads: Vec::new(), ended: None };
        harness.carry_out();
        harness
    }

    fn carry_out(&mut self) {
        for action in self.copier.take_actions() {
            match action {
                Action::Ask { ask, unit, request: Request::Command(command) } => {
                    assert_eq!(unit, UnitId(7));
                    self.asked.push((ask, command.command().clone()));
                }
                Action::Ask { request, .. } => panic!("{request:?}"),
                Action::Read(run) => self.reads.push(run),
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

    fn report(&mut self, missing: u64) {
        let whole = vec![(STRIPE, Position(missing))];
        let report = Report { sealed: ProjectionEpoch(1), tail: Position(9), trimmed: Position(0), damaged: 0, whole };
        assert_eq!(self.answer(Reply::StripesAssigned(report)), Command::AssignStripes { stripes: vec![STRIPE] });
    }

    /// Ends the first read in progress.
    fn read(&mut self, answers: Vec<LogReply>) {
        let run = self.reads.remove(0);
        self.copier.read(run, Ok(LogReply::Range(answers)), self.now);
        self.carry_out();
    }

    fn reading(&self) -> Vec<Vec<u64>> {
        self.reads.iter().map(|run| run.positions().map(|position| position.0).collect()).collect()
    }

    fn late(&mut self) {
        self.now = self.now + CONFIG.again;
        self.copier.timer(self.now);
        self.carry_out();
    }
}

fn copies(copies: impl IntoIterator<Item = (u64, Kept)>) -> Command {
    Command::CopyMany { copies: copies.into_iter().map(|(position, kept)| (Position(position), kept)).collect() }
}

fn written(count: usize) -> Reply {
    Reply::Many(vec![Reply::Written; count])
}

const JUNK: Kept = Kept::Entry(Entry::Junk);

#[test]
fn copies_missing_and_confirms_complete() {
    let mut harness = Harness::begin();
    harness.report(3);
    assert_eq!(harness.reading(), [[3, 5, 7], [9, 11, 13]], "two runs in flight");
    harness.read(vec![LogReply::Junk, LogReply::Trimmed { mark: Position(2) }, LogReply::Junk]);
    assert_eq!(harness.answer(written(3)), copies([(3, JUNK), (5, Kept::Trimmed), (7, JUNK)]));
    assert_eq!(harness.reading(), [vec![9, 11, 13], vec![15, 17, 19]]);
    // Positions below the chain's mark are trimmed here too, and only positions that were read are copied.
    harness.read(vec![LogReply::Trimmed { mark: Position(12) }; 2]);
    assert_eq!(harness.answer(Reply::Done), Command::Trim { epoch: None, before: Position(12) });
    assert_eq!(harness.reading(), [vec![15, 17, 19], vec![13]]);
    harness.read(vec![LogReply::Junk]);
    assert_eq!(harness.answer(written(1)), copies([(15, JUNK)]));
    assert_eq!(harness.reading(), [vec![13], vec![17, 19]]);
    harness.read(vec![LogReply::Junk]);
    harness.answer(Reply::Many(vec![Reply::Trimmed { mark: Position(14) }]));
    harness.read(vec![LogReply::Junk, LogReply::Trimmed { mark: Position(30) }]);
    assert_eq!(harness.answer(written(1)), copies([(17, JUNK)]));
    harness.read(vec![LogReply::Junk]);
    harness.answer(written(1));
    harness.report(17);
    assert_eq!(harness.reading(), [[17, 19]], "the unit reports missing positions");
    harness.read(vec![LogReply::Junk; 2]);
    // The unit answered only a part.
    harness.answer(written(1));
    assert_eq!(harness.reading(), [[19]]);
    harness.read(vec![LogReply::Junk]);
    harness.answer(written(1));
    harness.report(21);
    assert_eq!(harness.ended, Some(true));
}

/// A command is limited in bytes, unless it has a single value.
#[test]
fn large_values_are_copied_in_batches() {
    let data = |sequence: u64, bytes: usize| Data {
        stamp: Stamp { client: ClientId(1), sequence },
        batch: Batch::of(&[vec![7; bytes].into()]).expect("within the limits"),
    };
    let kept = |data: &Data| Kept::Entry(Entry::Data(data.clone()));
    let (long, short) = (data(1, 2 * MANY_BYTES_MAX), data(2, 1));
    let mut harness = Harness::begin();
    harness.report(15);
    harness.read(vec![LogReply::Entry(short.clone()), LogReply::Entry(long.clone()), LogReply::Entry(short.clone())]);
    assert_eq!(harness.answer(written(1)), copies([(15, kept(&short))]));
    harness.read(vec![LogReply::Entry(long.clone()), LogReply::Entry(short.clone())]);
    assert_eq!(harness.answer(written(1)), copies([(17, kept(&long))]));
    harness.read(vec![LogReply::Entry(short.clone())]);
    assert_eq!(harness.answer(written(1)), copies([(19, kept(&short))]));
    harness.report(21);
    assert_eq!(harness.ended, Some(true));
}

#[test]
fn copy_retries_then_gives_up() {
    let mut harness = Harness::begin();
    harness.late();
    assert_eq!(harness.asked.len(), 2);
    harness.asked.remove(0);
    harness.report(19);
    harness.read(vec![]);
    assert_eq!(harness.reading(), [[19]], "the copy got no reply");
    harness.read(vec![LogReply::Junk]);
    let asked = harness.asked[0].1.clone();
    harness.late();
    assert_eq!(harness.asked.iter().map(|(_, command)| command).collect::<Vec<_>>(), [&asked, &asked]);
    harness.late();
    assert_eq!(harness.ended, None);
    harness.late();
    assert_eq!(harness.ended, Some(false));
}

#[test]
fn conflicting_unit_is_not_completed() {
    let refused = [Reply::Occupied { by: crate::Kind::Data }, Reply::Damaged];
    for reply in refused.into_iter().flat_map(|reply| [reply.clone(), Reply::Many(vec![Reply::Written, reply])]) {
        let mut harness = Harness::begin();
        harness.report(17);
        harness.read(vec![LogReply::Junk; 2]);
        harness.answer(reply);
        assert_eq!(harness.ended, Some(false));
    }
    let mut harness = Harness::begin();
    harness.report(17);
    harness.read(vec![LogReply::Junk, LogReply::Lost]);
    assert_eq!(harness.ended, Some(false), "a position on an abandoned chain cannot be copied");
}
