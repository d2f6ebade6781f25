//! A client whose units, sequencer and registry a test plays: what it asks, step by step.

use base::{Boot, NodeId};
use bytes::Bytes;

use super::*;
use crate::unit::{Command, Reply, Request};
use crate::{Entry, Extent, Kind, LogId, SequencerId, UnitId};

const DEADLINE: Duration = Duration::from_millis(10_000);

/// A client, and what it wants that is not answered yet.
struct Bed {
    client: Client,
    now: Monotonic,
    timer: Monotonic,
    units: Vec<(AskId, UnitId, Request)>,
    sequencer: Vec<(AskId, sequencer::Request)>,
    fetches: u32,
    suspects: Vec<Suspect>,
    done: Vec<(Token, Result<Answer, Error>)>,
    tokens: u64,
}

fn projection(epoch: u64, start: u64, chain: &[u64]) -> Projection {
    let chain = chain.iter().copied().map(UnitId).collect();
    Projection {
        log: LogId(1),
        epoch: ProjectionEpoch(epoch),
        sequencer: SequencerId { node: NodeId(1), boot: Boot(epoch) },
        start: Position(start),
        extents: vec![Extent { from: Position(0), chains: vec![chain] }],
    }
}

fn batch() -> Batch {
    Batch::of(&[Bytes::from_static(b"x")]).expect("it is small")
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { client: ClientId(1), sequence }
}

fn data(sequence: u64, since: Option<u64>) -> Data {
    Data { stamp: stamp(sequence), since: since.map(Position), batch: batch() }
}

fn entry(sequence: u64) -> Entry {
    Entry::Data(data(sequence, None))
}

fn write(epoch: u64, position: u64, entry: Entry) -> Request {
    Request::Command(Command::Write { epoch: ProjectionEpoch(epoch), position: Position(position), entry })
}

fn read(epoch: u64, position: u64) -> Request {
    Request::Read { epoch: ProjectionEpoch(epoch), position: Position(position) }
}

fn sealed(epoch: u64) -> Reply {
    Reply::Refused { sealed: ProjectionEpoch(epoch) }
}

impl Bed {
    fn new() -> Self {
        let mut bed = Self {
            client: Client::new(ClientId(9), Timing::default(), 1),
            now: Monotonic(1),
            timer: Monotonic::NEVER,
            units: Vec::new(),
            sequencer: Vec::new(),
            fetches: 0,
            suspects: Vec::new(),
            done: Vec::new(),
            tokens: 0,
        };
        bed.projected(projection(1, 0, &[1, 2]));
        bed
    }

    fn carry_out(&mut self) {
        self.client.invariants();
        for action in self.client.take_actions() {
            match action {
                Action::AskUnit { ask, unit, request } => self.units.push((ask, unit, request)),
                Action::AskSequencer { ask, request, .. } => self.sequencer.push((ask, request)),
                Action::Fetch => self.fetches += 1,
                Action::Suspect { suspect, .. } => self.suspects.push(suspect),
                Action::SetTimer(at) => self.timer = at,
                Action::Done { token, outcome } => self.done.push((token, outcome)),
            }
        }
    }

    fn projected(&mut self, projection: Projection) {
        self.client.projected(projection, self.now);
        self.carry_out();
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    fn append(&mut self, sequence: u64) -> Token {
        let (token, deadline) = (self.token(), self.now + DEADLINE);
        self.client.append(token, batch(), Some(stamp(sequence)), None, deadline, self.now);
        self.carry_out();
        token
    }

    fn read(&mut self, position: u64, wait: Option<u64>) -> Token {
        let (token, deadline) = (self.token(), self.now + DEADLINE);
        let wait = wait.map(Duration::from_millis);
        self.client.read(token, Position(position), wait, true, deadline, self.now);
        self.carry_out();
        token
    }

    /// The one thing that is wanted of a unit.
    fn wants(&mut self, unit: u64, request: &Request) {
        let wanted: Vec<_> = self.units.iter().map(|(_, unit, request)| (*unit, request)).collect();
        assert_eq!(wanted, [(UnitId(unit), request)]);
    }

    /// A unit is asked this, and says that.
    fn step(&mut self, unit: u64, request: &Request, reply: Reply) {
        self.wants(unit, request);
        let (ask, ..) = self.units.remove(0);
        self.client.unit_answered(ask, reply, self.now);
        self.carry_out();
    }

    fn sequenced(&mut self, reply: sequencer::Reply) {
        assert_eq!(self.sequencer.len(), 1, "{:?}", self.sequencer);
        let (ask, _) = self.sequencer.remove(0);
        self.client.sequencer_answered(ask, reply, self.now);
        self.carry_out();
    }

    fn given(&mut self, first: u64, count: u64) {
        self.sequenced(sequencer::Reply::Positions { first: Position(first), count });
    }

    /// Time goes on to the next alarm.
    fn wake(&mut self) {
        assert!(self.timer < Monotonic::NEVER, "nothing would wake it");
        self.now = self.timer;
        self.timer = Monotonic::NEVER;
        self.client.timer(self.now);
        self.carry_out();
    }

    fn ended(&mut self, token: Token) -> Result<Answer, Error> {
        let (of, outcome) = self.done.pop().expect("a call has ended");
        assert_eq!((of, self.done.len()), (token, 0));
        outcome
    }
}

#[test]
fn an_append_goes_down_its_chain() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), Reply::Written);
    bed.step(2, &write(1, 7, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(7))));
    assert_eq!(bed.client.under_way(), 0);
}

#[test]
fn appends_that_wait_share_an_asking_and_later_ones_do_not() {
    let mut bed = Bed::new();
    bed.append(1);
    let asked = bed.sequencer.clone();
    bed.append(2);
    bed.append(3);
    assert_eq!(bed.sequencer, asked, "one is under way");
    bed.given(7, 1);
    let (_, request) = bed.sequencer[0];
    assert_eq!(request, sequencer::Request::Positions { epoch: ProjectionEpoch(1), count: 2 });
    bed.given(9, 2);
    let positions: Vec<_> = bed.units.iter().map(|(_, _, request)| request.clone()).collect();
    assert_eq!(positions, [write(1, 7, entry(1)), write(1, 9, entry(2)), write(1, 10, entry(3))]);
}

#[test]
fn a_position_that_was_filled_is_given_up() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), Reply::Occupied { by: Kind::Junk });
    bed.given(8, 1);
    bed.step(1, &write(1, 8, entry(1)), Reply::Written);
    bed.step(2, &write(1, 8, entry(1)), Reply::Occupied { by: Kind::Junk });
    assert_eq!(bed.ended(token), Err(Error::Conflict { position: Position(8) }));
}

/// Where the projection was replaced the old position comes first: there is the entry, or it never will be.
#[test]
fn an_old_position_is_resolved_before_another_is_taken() {
    let begin = || {
        let mut bed = Bed::new();
        let token = bed.append(1);
        bed.given(7, 1);
        bed.step(1, &write(1, 7, entry(1)), Reply::Written);
        bed.step(2, &write(1, 7, entry(1)), sealed(1));
        assert!(bed.units.is_empty() && bed.fetches > 0);
        (bed, token)
    };
    // It is at the head: it is completed.
    let (mut bed, token) = begin();
    bed.projected(projection(2, 9, &[1, 2]));
    bed.step(1, &write(2, 7, Entry::Junk), Reply::Occupied { by: Kind::Data });
    bed.step(1, &read(2, 7), Reply::Value(entry(1)));
    bed.step(2, &write(2, 7, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(7))));
    // The head that had it was left out: junk takes its place, on all units, before another position is asked for.
    let (mut bed, token) = begin();
    bed.projected(projection(2, 9, &[2, 3]));
    bed.step(2, &write(2, 7, Entry::Junk), Reply::Written);
    assert!(bed.sequencer.is_empty());
    bed.step(3, &write(2, 7, Entry::Junk), sealed(2));
    // It begins anew with the next projection.
    bed.projected(projection(3, 9, &[3]));
    bed.step(3, &write(3, 7, Entry::Junk), Reply::Written);
    bed.given(9, 1);
    bed.step(3, &write(3, 9, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(9))));
    // Nothing was written so far up, and nobody can write there any more but who is given the position again.
    let (mut bed, _) = begin();
    bed.projected(projection(2, 7, &[2]));
    assert!(bed.units.is_empty());
    bed.given(7, 1);
    bed.wants(2, &write(2, 7, entry(1)));
}

#[test]
fn what_is_not_answered_is_asked_again_and_suspected() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    let first = bed.units.remove(0).0;
    while bed.units.is_empty() {
        bed.wake();
    }
    bed.client.unit_answered(first, Reply::Occupied { by: Kind::Data }, bed.now);
    bed.carry_out();
    bed.wants(1, &write(1, 7, entry(1)));
    while bed.done.is_empty() {
        bed.units.clear();
        bed.wake();
    }
    assert!(bed.suspects.contains(&Suspect::Unit(UnitId(1))));
    assert_eq!(bed.ended(token), Err(Error::Unknown { since: Position(7) }));
}

#[test]
fn an_append_without_a_position_surely_was_not_made() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    while bed.done.is_empty() {
        bed.wake();
    }
    assert!(bed.suspects.contains(&Suspect::Sequencer));
    assert_eq!(bed.ended(token), Err(Error::OutOfTime));
    while bed.client.under_way() > 0 {
        bed.wake();
    }
}

/// A position that came too late for its append is filled at once, so that no reader waits for it.
#[test]
fn positions_that_nobody_needs_are_filled() {
    let mut bed = Bed::new();
    bed.client.append(Token(1), batch(), None, None, bed.now + Duration::from_millis(50), bed.now);
    bed.client.append(Token(2), batch(), None, None, bed.now + DEADLINE, bed.now);
    bed.carry_out();
    bed.given(0, 1);
    bed.units.clear();
    let third = bed.now + Duration::from_millis(20);
    bed.client.append(Token(3), batch(), None, None, third, bed.now);
    bed.carry_out();
    let asked = bed.sequencer.len();
    assert_eq!(asked, 1, "for the second; the third waits");
    bed.given(1, 1);
    bed.units.clear();
    while !bed.done.iter().any(|(token, _)| *token == Token(3)) {
        bed.wake();
    }
    bed.given(2, 1);
    let fills = bed.units.iter().filter(|(_, _, request)| *request == write(1, 2, Entry::Junk));
    assert_eq!(fills.count(), 1);
}

#[test]
fn a_read_asks_the_tail_waits_and_fills_head_first() {
    let mut bed = Bed::new();
    let token = bed.read(4, Some(3));
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.wake();
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.wake();
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    bed.step(1, &write(1, 4, Entry::Junk), Reply::Occupied { by: Kind::Data });
    bed.step(1, &read(1, 4), Reply::Value(entry(3)));
    bed.step(2, &write(1, 4, entry(3)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(3, None))));
    let token = bed.read(3, Some(0));
    bed.step(2, &read(1, 3), Reply::Unwritten);
    bed.step(1, &write(1, 3, Entry::Junk), Reply::Written);
    bed.step(2, &write(1, 3, Entry::Junk), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Junk), "the tail is known by now");
}

#[test]
fn nothing_is_done_to_a_position_beyond_the_tail() {
    let mut bed = Bed::new();
    let beyond = Err(Error::BeyondTail { tail: Position(5) });
    let token = bed.read(9, Some(0));
    bed.step(2, &read(1, 9), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(bed.ended(token), beyond);
    let (token, deadline) = (bed.token(), bed.now + DEADLINE);
    bed.client.fill(token, Position(u64::MAX), deadline, bed.now);
    bed.carry_out();
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(bed.ended(token), beyond);
    let token = bed.token();
    bed.client.trim(token, Position(6), deadline, bed.now);
    bed.carry_out();
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(bed.ended(token), beyond);
}

/// That nothing is there is said only by the newest projection's tail: a unit that was left out doesn't hear of entries.
#[test]
fn that_nothing_is_there_is_checked() {
    let mut bed = Bed::new();
    let token = bed.read(4, None);
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Refused { newest: ProjectionEpoch(2) });
    bed.projected(projection(2, 5, &[1]));
    bed.step(1, &read(2, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(1, None))));
    let token = bed.read(3, None);
    bed.step(1, &read(2, 3), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(bed.ended(token), Ok(Answer::Unwritten));
    // A newer projection comes before the answer: what was answered in the older one is not confirmed by its sequencer.
    let token = bed.read(4, None);
    bed.projected(projection(3, 5, &[2]));
    bed.step(1, &read(2, 4), Reply::Unwritten);
    bed.step(2, &read(3, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(1, None))));
}

#[test]
fn a_reader_of_one_entry_looks_back_for_the_first() {
    let second = Entry::Data(data(1, Some(2)));
    let mut bed = Bed::new();
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), Reply::Value(second.clone()));
    bed.step(2, &read(1, 2), Reply::Value(entry(7)));
    bed.step(2, &read(1, 3), Reply::Value(Entry::Junk));
    bed.step(2, &read(1, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Duplicate { of: Position(4) }));
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), Reply::Value(second));
    bed.step(2, &read(1, 2), Reply::Trimmed { mark: Position(5) });
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(1, Some(2)))));
}

#[test]
fn all_units_are_told_of_a_trim_those_of_a_new_projection_too() {
    let mut bed = Bed::new();
    let (token, deadline) = (bed.token(), bed.now + DEADLINE);
    bed.client.trim(token, Position(4), deadline, bed.now);
    bed.carry_out();
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    let trim = |epoch| Request::Command(Command::Trim { epoch: Some(ProjectionEpoch(epoch)), before: Position(4) });
    bed.step(1, &trim(1), Reply::Done);
    bed.step(2, &trim(1), sealed(1));
    bed.projected(projection(2, 9, &[1, 3]));
    bed.step(1, &trim(2), Reply::Done);
    bed.step(3, &trim(2), Reply::Done);
    assert_eq!(bed.ended(token), Ok(Answer::Done));
    let token = bed.token();
    bed.client.trim_one(token, Position(6), deadline, bed.now);
    bed.carry_out();
    bed.step(1, &write(2, 6, Entry::Junk), Reply::Written);
    bed.step(3, &write(2, 6, Entry::Junk), Reply::Written);
    let one = Request::Command(Command::TrimOne { epoch: ProjectionEpoch(2), position: Position(6) });
    bed.step(1, &one, Reply::Done);
    bed.step(3, &one, Reply::Done);
    assert_eq!(bed.ended(token), Ok(Answer::Done));
}

/// Units are sealed, and nobody puts another projection in the old one's place: somebody is told.
#[test]
fn a_seal_without_a_successor_is_told() {
    let mut bed = Bed::new();
    bed.read(4, Some(0));
    bed.step(2, &read(1, 4), sealed(1));
    bed.projected(projection(1, 0, &[1, 2]));
    while bed.suspects.is_empty() {
        bed.wake();
    }
    assert_eq!(bed.suspects, [Suspect::Projection]);
}
