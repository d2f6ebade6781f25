//! A client with units, a sequencer and a registry played by the test: checks its requests step by step.

use base::{Boot, NodeId};
use bytes::Bytes;

use super::*;
use crate::limits::ROW_BYTES_MAX;
use crate::unit::{Command, Reply, Request};
use crate::{Entry, Extent, Kept, Kind, LogId, SequencerId, Stamp, UnitId};

const DEADLINE: Duration = Duration::from_millis(10_000);

/// A client and its unanswered requests.
struct Harness {
    client: Client,
    now: Monotonic,
    timer: Monotonic,
    units: Vec<(AskId, UnitId, Request)>,
    sequencer: Vec<(AskId, sequencer::Request)>,
    fetches: u32,
    suspects: Vec<Suspect>,
    done: Vec<(Token, Result<LogReply, Error>)>,
    tokens: u64,
}

fn projection(epoch: u64, start: u64, chain: &[u64]) -> Projection {
    let chain = chain.iter().copied().map(UnitId).collect();
    Projection {
        log: LogId(1),
        epoch: ProjectionEpoch(epoch),
        sequencer: SequencerId { node: NodeId(1), boot: Boot(epoch) },
        start: Position(start),
        newest_unit: UnitId(9),
        extents: vec![Extent::new(Position(0), 1, vec![chain])],
    }
}

fn batch() -> Batch {
    Batch::of(&[Bytes::from_static(b"x")]).expect("within the limits")
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { client: ClientId(1), sequence }
}

fn data(sequence: u64) -> Data {
    Data { stamp: stamp(sequence), batch: batch() }
}

fn entry(sequence: u64) -> Entry {
    Entry::Data(data(sequence))
}

fn write(epoch: u64, position: u64, entry: Entry) -> Request {
    Request::Command(Command::Write { epoch: ProjectionEpoch(epoch), position: Position(position), entry }.into())
}

fn read(epoch: u64, position: u64) -> Request {
    Request::Read { epoch: ProjectionEpoch(epoch), position: Position(position) }
}

fn sealed(epoch: u64) -> Reply {
    Reply::Refused { sealed: ProjectionEpoch(epoch) }
}

fn positions(epoch: u64, count: u64) -> sequencer::Request {
    sequencer::Request::Positions { epoch: ProjectionEpoch(epoch), client: ClientId(9), count }
}

impl Harness {
    fn new() -> Self {
        let mut harness = Self {
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
        harness.projected(projection(1, 0, &[1, 2]));
        harness
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
        self.client.append(token, batch(), Some(stamp(sequence)), deadline, self.now);
        self.carry_out();
        token
    }

    fn read(&mut self, position: u64, wait: Option<u64>) -> Token {
        let (token, deadline) = (self.token(), self.now + DEADLINE);
        let wait = wait.map(Duration::from_millis);
        self.client.read(token, Position(position), wait, deadline, self.now);
        self.carry_out();
        token
    }

    /// Checks that exactly one request to a unit is pending.
    fn wants(&mut self, unit: u64, request: &Request) {
        let wanted: Vec<_> = self.units.iter().map(|(_, unit, request)| (*unit, request)).collect();
        assert_eq!(wanted, [(UnitId(unit), request)]);
    }

    /// Checks the pending request to a unit and answers it.
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
        let (_, asked) = self.sequencer.first().expect("a request to the sequencer");
        let sequencer::Request::Positions { count: wanted, .. } = asked else { panic!("{asked:?}") };
        assert!(count <= *wanted, "{count} positions are given, {wanted} were asked for");
        self.sequenced(sequencer::Reply::Positions { first: Position(first), count });
    }

    /// Advances the time to the next timer.
    fn wake(&mut self) {
        assert!(self.timer < Monotonic::NEVER, "no timer is set");
        self.now = self.timer;
        self.timer = Monotonic::NEVER;
        self.client.timer(self.now);
        self.carry_out();
    }

    fn ended(&mut self, token: Token) -> Result<LogReply, Error> {
        let (of, outcome) = self.done.pop().expect("a call has ended");
        assert_eq!((of, self.done.len()), (token, 0));
        outcome
    }
}

#[test]
fn append_follows_chain_order() {
    let mut harness = Harness::new();
    let token = harness.append(1);
    harness.given(7, 1);
    harness.step(1, &write(1, 7, entry(1)), Reply::Written);
    harness.step(2, &write(1, 7, entry(1)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(7))));
    assert_eq!(harness.client.under_way(), 0);
}

#[test]
fn waiting_appends_share_sequencer_request() {
    let mut harness = Harness::new();
    harness.append(1);
    let asked = harness.sequencer.clone();
    harness.append(2);
    harness.append(3);
    assert_eq!(harness.sequencer, asked, "one request is in flight");
    harness.given(7, 1);
    assert_eq!(harness.sequencer[0].1, positions(1, 2));
    harness.given(9, 2);
    let positions: Vec<_> = harness.units.iter().map(|(_, _, request)| request.clone()).collect();
    assert_eq!(positions, [write(1, 7, entry(1)), write(1, 9, entry(2)), write(1, 10, entry(3))]);
}

/// Each append gets its own stamp from the client.
#[test]
fn unstamped_appends_get_distinct_stamps() {
    let mut harness = Harness::new();
    for token in [1, 2] {
        harness.client.append(Token(token), batch(), None, harness.now + DEADLINE, harness.now);
        harness.carry_out();
    }
    harness.given(0, 1);
    harness.given(1, 1);
    let stamp = |request: &Request| match request {
        Request::Command(command) => match command.command() {
            Command::Write { entry, .. } => entry.stamp(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let stamps: Vec<_> = harness.units.iter().filter_map(|(_, _, request)| stamp(request)).collect();
    assert_eq!(stamps, [1, 2].map(|sequence| Stamp { client: ClientId(9), sequence }));
}

#[test]
fn append_abandons_filled_position() {
    let mut harness = Harness::new();
    let token = harness.append(1);
    harness.given(7, 1);
    harness.step(1, &write(1, 7, entry(1)), Reply::Occupied { by: Kind::Junk });
    harness.given(8, 1);
    harness.step(1, &write(1, 8, entry(1)), Reply::Written);
    harness.step(2, &write(1, 8, entry(1)), Reply::Occupied { by: Kind::Junk });
    assert_eq!(harness.ended(token), Err(Error::Conflict { position: Position(8) }));
}

/// The entry may have been there, and readers may have seen it: the caller decides.
#[test]
fn append_at_trimmed_position_is_unknown() {
    let trimmed = || Reply::Trimmed { mark: Position(9) };
    let mut harness = Harness::new();
    let token = harness.append(1);
    harness.given(7, 1);
    harness.step(1, &write(1, 7, entry(1)), trimmed());
    assert_eq!(harness.ended(token), Err(Error::Unknown { position: Position(7) }));
    assert!(harness.sequencer.is_empty() && harness.client.under_way() == 0);

    let token = harness.append(2);
    harness.given(8, 1);
    harness.step(1, &write(1, 8, entry(2)), Reply::Written);
    harness.step(2, &write(1, 8, entry(2)), trimmed());
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(8))), "the head holds the entry");
}

/// After a new projection the old position is resolved first: it holds the entry, or never will.
#[test]
fn resolves_old_position_before_new_one() {
    let begin = || {
        let mut harness = Harness::new();
        let token = harness.append(1);
        harness.given(7, 1);
        harness.step(1, &write(1, 7, entry(1)), Reply::Written);
        harness.step(2, &write(1, 7, entry(1)), sealed(1));
        assert!(harness.units.is_empty() && harness.fetches > 0);
        (harness, token)
    };
    // The head holds the entry: it is completed.
    let (mut harness, token) = begin();
    harness.projected(projection(2, 9, &[1, 2]));
    harness.step(1, &write(2, 7, Entry::Junk), Reply::Occupied { by: Kind::Data });
    harness.step(1, &read(2, 7), Reply::Value(entry(1)));
    harness.step(2, &write(2, 7, entry(1)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(7))));
    // The head that held it was removed: the position is filled on all units before another one is requested.
    let (mut harness, token) = begin();
    harness.projected(projection(2, 9, &[2, 3]));
    harness.step(2, &write(2, 7, Entry::Junk), Reply::Written);
    assert!(harness.sequencer.is_empty());
    harness.step(3, &write(2, 7, Entry::Junk), sealed(2));
    // The fill restarts in the next projection.
    harness.projected(projection(3, 9, &[3]));
    harness.step(3, &write(3, 7, Entry::Junk), Reply::Written);
    harness.given(9, 1);
    harness.step(3, &write(3, 9, entry(1)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(9))));
    // The position is not below the new start: only its next owner can write there.
    let (mut harness, _) = begin();
    harness.projected(projection(2, 7, &[2]));
    assert!(harness.units.is_empty());
    harness.given(7, 1);
    harness.wants(2, &write(2, 7, entry(1)));
}

/// How a unit answers reads with a deadline of 60 ms.
#[derive(Clone, Copy)]
enum Answers {
    InTime,
    Late,
    Never,
}

/// The suspects reported at the end of each read of one position; some are range reads.
fn suspected(of: impl IntoIterator<Item = (Answers, bool)>) -> Vec<Vec<Suspect>> {
    let mut harness = Harness::new();
    let call = |(answers, is_row)| {
        let (token, deadline) = (harness.token(), harness.now + Duration::from_millis(60));
        if is_row {
            let wanted = ReadMany { run: PositionRun::of(Position(0), 1), wait: Wait::No, bytes: 100 };
            harness.client.read_many(token, wanted, deadline, harness.now);
        } else {
            harness.client.read(token, Position(0), None, deadline, harness.now);
        }
        harness.carry_out();
        let asks: Vec<AskId> = harness.units.drain(..).map(|(ask, unit, _)| (ask, unit == UnitId(2)).0).collect();
        let value = || Reply::Many(vec![Reply::Value(entry(1))]);
        if let Answers::InTime = answers {
            asks.iter().for_each(|ask| harness.client.unit_answered(*ask, value(), harness.now));
            harness.carry_out();
        }
        while harness.done.is_empty() {
            harness.wake();
        }
        if let Answers::Late = answers {
            asks.iter().for_each(|ask| harness.client.unit_answered(*ask, value(), harness.now));
            harness.carry_out();
        }
        harness.done.clear();
        std::mem::take(&mut harness.suspects)
    };
    of.into_iter().map(call).collect()
}

/// Calls shorter than the reply timeout count together until the unit answers again.
#[test]
fn unresponsive_unit_is_suspected() {
    use Answers::{InTime, Late, Never};
    let unit = || vec![Suspect::Unit(UnitId(2))];
    for is_row in [false, true] {
        let of = |answers: &[Answers]| suspected(answers.iter().map(|answers| (*answers, is_row)));
        assert_eq!(of(&[Never; 6]), [vec![], vec![], vec![], unit(), unit(), unit()], "rows: {is_row}");
        assert!(of(&[Never, Never, InTime, Never, Never, Never, InTime, Never]).concat().is_empty());
        assert!(of(&[Late; 8]).concat().is_empty(), "the unit replies");
    }
}

#[test]
fn retries_and_suspects_on_timeout() {
    let mut harness = Harness::new();
    let token = harness.append(1);
    harness.given(7, 1);
    let first = harness.units.remove(0).0;
    while harness.units.is_empty() {
        harness.wake();
    }
    harness.client.unit_answered(first, Reply::Occupied { by: Kind::Data }, harness.now);
    harness.carry_out();
    harness.wants(1, &write(1, 7, entry(1)));
    while harness.done.is_empty() {
        harness.units.clear();
        harness.wake();
    }
    assert!(harness.suspects.contains(&Suspect::Unit(UnitId(1))));
    assert_eq!(harness.ended(token), Err(Error::Unknown { position: Position(7) }));
}

#[test]
fn append_without_position_is_definite_failure() {
    let mut harness = Harness::new();
    let token = harness.append(1);
    while harness.done.is_empty() {
        harness.wake();
    }
    assert!(harness.suspects.contains(&Suspect::Sequencer));
    assert_eq!(harness.ended(token), Err(Error::OutOfTime));
    while harness.client.under_way() > 0 {
        harness.wake();
    }
}

/// A position that arrives after its append has ended is filled at once, so that no reader waits for it.
#[test]
fn fills_unused_positions() {
    let mut harness = Harness::new();
    harness.client.append(Token(1), batch(), None, harness.now + Duration::from_millis(50), harness.now);
    harness.client.append(Token(2), batch(), None, harness.now + DEADLINE, harness.now);
    harness.carry_out();
    harness.given(0, 1);
    harness.units.clear();
    let third = harness.now + Duration::from_millis(20);
    harness.client.append(Token(3), batch(), None, third, harness.now);
    harness.carry_out();
    let asked = harness.sequencer.len();
    assert_eq!(asked, 1, "one position for the second append; the third waits");
    harness.given(1, 1);
    harness.units.clear();
    while !harness.done.iter().any(|(token, _)| *token == Token(3)) {
        harness.wake();
    }
    harness.given(2, 1);
    let fills = harness.units.iter().filter(|(_, _, request)| *request == write(1, 2, Entry::Junk));
    assert_eq!(fills.count(), 1);
}

#[test]
fn read_waits_then_fills_head_first() {
    let mut harness = Harness::new();
    let token = harness.read(4, Some(3));
    let awaited = |wait| {
        let (epoch, position) = (ProjectionEpoch(1), Position(4));
        Request::Await { epoch, position, wait: Duration::from_millis(wait), bytes: BATCH_BYTES_MAX }
    };
    harness.step(2, &read(1, 4), Reply::Unwritten);
    harness.step(2, &awaited(3), Reply::Unwritten);
    harness.wake();
    harness.step(2, &awaited(1), Reply::Unwritten);
    harness.wake();
    harness.step(2, &read(1, 4), Reply::Unwritten);
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    harness.step(1, &write(1, 4, Entry::Junk), Reply::Occupied { by: Kind::Data });
    harness.step(1, &read(1, 4), Reply::Value(entry(3)));
    harness.step(2, &write(1, 4, entry(3)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Entry(data(3))));
    let token = harness.read(3, Some(0));
    harness.step(2, &read(1, 3), Reply::Unwritten);
    harness.step(1, &write(1, 3, Entry::Junk), Reply::Written);
    harness.step(2, &write(1, 3, Entry::Junk), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Junk), "the tail is already known");
}

/// A watch fills nothing when its wait is over; the sequencer confirms that the position is unwritten.
#[test]
fn watch_does_not_fill() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    for (tail, outcome) in [(5, row([])), (4, Err(Error::BeyondTail { tail: Position(4) }))] {
        harness.read_many(4, 1, Wait::Watch(Duration::from_millis(3)));
        harness.reply(1, &read(2, 4), Reply::Unwritten);
        let (epoch, position, wait) = (ProjectionEpoch(2), Position(4), Duration::from_millis(3));
        let awaited = Request::Await { epoch, position, wait, bytes: BATCH_BYTES_MAX };
        harness.wants(1, &awaited);
        harness.now = harness.now + wait;
        harness.reply(1, &awaited, Reply::Unwritten);
        harness.sequenced(sequencer::Reply::Tail(Position(tail)));
        assert_eq!(harness.done.pop().map(|done| done.1), Some(outcome));
    }
    // An entry that arrives during the watch is returned.
    harness.read_many(4, 1, Wait::Watch(Duration::from_millis(1_000)));
    // The first read used a part of the wait.
    harness.now = harness.now + Duration::from_millis(20);
    harness.reply(1, &read(2, 4), Reply::Unwritten);
    let (epoch, position, wait) = (ProjectionEpoch(2), Position(4), Duration::from_millis(980));
    let awaited = Request::Await { epoch, position, wait, bytes: BATCH_BYTES_MAX };
    harness.reply(1, &awaited, Reply::Value(entry(4)));
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row([LogReply::Entry(data(4))])));
    assert_eq!(harness.client.under_way(), 0);
}

#[test]
fn cancel_ends_dependent_calls() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    let gone = [harness.read_many(4, 5, Wait::No), harness.read_many(9, 1, Wait::First(Duration::from_millis(1_000)))];
    let stays = harness.read_many(6, 1, Wait::No);
    harness.client.give_up(&gone.into(), harness.now);
    harness.carry_out();
    assert_eq!(harness.done, gone.map(|token| (token, Err(Error::OutOfTime))));
    harness.client.give_up(&gone.into(), harness.now);
    harness.reply(1, &read(2, 6), Reply::Value(entry(6)));
    assert_eq!(harness.done.pop(), Some((stays, row([LogReply::Entry(data(6))]))));
    assert_eq!(harness.client.under_way(), 0);
}

#[test]
fn rejects_positions_beyond_tail() {
    let mut harness = Harness::new();
    let beyond = Err(Error::BeyondTail { tail: Position(5) });
    let token = harness.read(9, Some(0));
    harness.step(2, &read(1, 9), Reply::Unwritten);
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(harness.ended(token), beyond);
    let (token, deadline) = (harness.token(), harness.now + DEADLINE);
    harness.client.fill(token, Position(u64::MAX), deadline, harness.now);
    harness.carry_out();
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(harness.ended(token), beyond);
    let token = harness.token();
    harness.client.trim(token, Position(6), deadline, harness.now);
    harness.carry_out();
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(harness.ended(token), beyond);
}

/// No call waits for a timeout of an older projection once a newer one is known.
#[test]
fn new_projection_resumes_all_calls() {
    let mut harness = Harness::new();
    let (in_doubt, wanting) = (harness.append(1), harness.append(2));
    harness.given(7, 1);
    let (write_ask, ..) = harness.units.remove(0);
    let read_token = harness.read(3, Some(0));
    let (read_ask, ..) = harness.units.remove(0);
    // Some failures, so that the timeouts are long.
    for _ in 0..6 {
        harness.wake();
    }
    harness.units.clear();
    harness.sequencer.clear();
    harness.projected(projection(2, 9, &[2]));
    let asked: Vec<_> = harness.units.iter().map(|(_, unit, request)| (unit.0, request.clone())).collect();
    assert_eq!(asked, [(2, write(2, 7, Entry::Junk)), (2, read(2, 3))]);
    assert_eq!(harness.sequencer.iter().map(|(_, request)| *request).collect::<Vec<_>>(), [positions(2, 1)]);
    // Replies from the older epoch are ignored.
    harness.client.unit_answered(write_ask, Reply::Written, harness.now);
    harness.client.unit_answered(read_ask, Reply::Value(entry(5)), harness.now);
    harness.carry_out();
    assert_eq!(harness.done, []);
    let (ask, ..) = harness.units.remove(0);
    harness.client.unit_answered(ask, Reply::Written, harness.now);
    harness.carry_out();
    harness.step(2, &read(2, 3), Reply::Value(entry(4)));
    assert_eq!(harness.ended(read_token), Ok(LogReply::Entry(data(4))));
    harness.given(9, 1);
    harness.step(2, &write(2, 9, entry(2)), Reply::Written);
    assert_eq!(harness.ended(wanting), Ok(LogReply::Appended(Position(9))));
    harness.given(10, 1);
    harness.step(2, &write(2, 10, entry(1)), Reply::Written);
    assert_eq!(harness.ended(in_doubt), Ok(LogReply::Appended(Position(10))));
}

/// A read of a trimmed or lost position says so, and a trim does not wait for units of extents that are trimmed
/// completely.
#[test]
fn lost_extent_is_reported_and_trims_proceed() {
    let mut harness = Harness::new();
    let extent =
        |from: u64, chain: &[u64]| Extent::new(Position(from), 1, vec![chain.iter().copied().map(UnitId).collect()]);
    let mut lost = projection(2, 20, &[]);
    lost.extents = vec![extent(0, &[]), extent(10, &[3]), extent(20, &[1, 2])];
    harness.projected(lost);
    let token = harness.read(4, Some(0));
    assert_eq!(harness.ended(token), Ok(LogReply::Lost));
    let (token, deadline) = (harness.token(), harness.now + DEADLINE);
    harness.client.fill(token, Position(4), deadline, harness.now);
    harness.carry_out();
    assert_eq!(harness.ended(token), Ok(LogReply::Lost));
    harness.client.trim(token, Position(20), deadline, harness.now);
    harness.carry_out();
    let trim = Request::Command(Command::Trim { epoch: Some(ProjectionEpoch(2)), before: Position(20) }.into());
    harness.wants(3, &trim);
    harness.units.clear();
    while harness.units.is_empty() {
        harness.wake();
    }
    harness.step(1, &trim, Reply::Done);
    harness.step(2, &trim, Reply::Done);
    assert_eq!(harness.ended(token), Ok(LogReply::Done));
}

/// A read that finds damage repairs it.
#[test]
fn read_repairs_damage() {
    let mut harness = Harness::new();
    harness.projected(projection(2, 9, &[1, 2, 3]));
    let repair =
        |with: Entry| Request::Command(Command::Repair { position: Position(4), kept: Kept::Entry(with) }.into());
    let token = harness.read(4, None);
    harness.step(3, &read(2, 4), Reply::Damaged);
    harness.step(2, &read(2, 4), Reply::Damaged);
    harness.step(1, &read(2, 4), Reply::Value(entry(5)));
    harness.step(2, &repair(entry(5)), Reply::Written);
    harness.step(3, &repair(entry(5)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Entry(data(5))));
    assert_eq!(harness.suspects, [Suspect::Unit(UnitId(3)), Suspect::Unit(UnitId(2))]);
    // A fill finds the entry on the next unit and repairs the head.
    let (token, deadline) = (harness.token(), harness.now + DEADLINE);
    harness.client.fill(token, Position(4), deadline, harness.now);
    harness.carry_out();
    harness.step(1, &write(2, 4, Entry::Junk), Reply::Damaged);
    harness.step(2, &read(2, 4), Reply::Value(entry(5)));
    harness.step(1, &repair(entry(5)), Reply::Written);
    harness.step(2, &write(2, 4, entry(5)), Reply::Damaged);
    harness.step(2, &repair(entry(5)), Reply::Written);
    harness.step(3, &write(2, 4, entry(5)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Entry(data(5))));
}

/// A position that no unit can read is neither invented nor treated as unwritten: another projection or the deadline
/// ends the call.
#[test]
fn unrecoverable_damage_is_reported() {
    let mut harness = Harness::new();
    let token = harness.read(4, Some(0));
    let fill = harness.token();
    harness.sequencer.clear();
    harness.client.note_tail(ProjectionEpoch(1), Position(9));
    harness.client.fill(fill, Position(5), harness.now + DEADLINE, harness.now);
    harness.carry_out();
    while harness.done.len() < 2 {
        match harness.units.pop() {
            Some((ask, unit, _)) => {
                // The second unit has no entry at position 5; a writer may still be writing it.
                let is_five = unit == UnitId(2) && harness.client.asks.get(&ask) == Some(&2);
                let reply = if is_five { Reply::Unwritten } else { Reply::Damaged };
                harness.client.unit_answered(ask, reply, harness.now);
                harness.carry_out();
            }
            None => harness.wake(),
        }
    }
    harness.done.sort_by_key(|(token, _)| *token);
    let damaged = |position: u64| Err(Error::Damaged { position: Position(position) });
    assert_eq!(harness.done, [(token, damaged(4)), (fill, damaged(5))]);
}

/// An append repairs units after the head with its own entry. For a damaged head it asks the units after it.
#[test]
fn append_repairs_damaged_replica() {
    let mut harness = Harness::new();
    let token = harness.append(1);
    harness.given(7, 1);
    harness.step(1, &write(1, 7, entry(1)), Reply::Written);
    harness.step(2, &write(1, 7, entry(1)), Reply::Damaged);
    let repair = Request::Command(Command::Repair { position: Position(7), kept: Kept::Entry(entry(1)) }.into());
    harness.step(2, &repair, Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(7))));
    let token = harness.append(1);
    harness.given(8, 1);
    harness.step(1, &write(1, 8, entry(1)), Reply::Damaged);
    harness.step(1, &write(1, 8, Entry::Junk), Reply::Damaged);
    harness.step(2, &read(1, 8), Reply::Unwritten);
    assert!(harness.units.is_empty(), "no fill while the head is damaged");
    harness.projected(projection(2, 9, &[2]));
    harness.step(2, &write(2, 8, Entry::Junk), Reply::Written);
    harness.given(9, 1);
    harness.step(2, &write(2, 9, entry(1)), Reply::Written);
    assert_eq!(harness.ended(token), Ok(LogReply::Appended(Position(9))));
}

/// A tail reported before the projection was replaced is not valid in the newer one.
#[test]
fn stale_epoch_tail_is_ignored() {
    for trims in [false, true] {
        let mut harness = Harness::new();
        let (token, deadline) = (harness.token(), harness.now + DEADLINE);
        if trims {
            harness.client.trim(token, Position(8), deadline, harness.now);
        } else {
            harness.client.fill(token, Position(7), deadline, harness.now);
        }
        harness.carry_out();
        let (old, _) = harness.sequencer.remove(0);
        harness.projected(projection(2, 5, &[1, 2]));
        harness.client.sequencer_answered(old, sequencer::Reply::Tail(Position(9)), harness.now);
        harness.carry_out();
        assert!(harness.units.is_empty(), "position 7 may be given out again");
        harness.sequenced(sequencer::Reply::Tail(Position(6)));
        assert_eq!(harness.ended(token), Err(Error::BeyondTail { tail: Position(6) }));
    }
}

/// Only the tail of the newest projection can say that a position is unwritten: a unit that was removed from the log
/// may lack entries.
#[test]
fn unwritten_reply_is_verified() {
    let mut harness = Harness::new();
    let token = harness.read(4, None);
    harness.step(2, &read(1, 4), Reply::Unwritten);
    harness.sequenced(sequencer::Reply::Refused { newest: ProjectionEpoch(2) });
    harness.projected(projection(2, 5, &[1]));
    harness.step(1, &read(2, 4), Reply::Value(entry(1)));
    assert_eq!(harness.ended(token), Ok(LogReply::Entry(data(1))));
    let token = harness.read(3, None);
    harness.step(1, &read(2, 3), Reply::Unwritten);
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(harness.ended(token), Ok(LogReply::Unwritten));
    // A newer projection arrives before the reply: the reply from the older one is ignored.
    let token = harness.read(4, None);
    let (old, ..) = harness.units.remove(0);
    harness.projected(projection(3, 5, &[2]));
    harness.client.unit_answered(old, Reply::Unwritten, harness.now);
    harness.carry_out();
    harness.step(2, &read(3, 4), Reply::Value(entry(1)));
    assert_eq!(harness.ended(token), Ok(LogReply::Entry(data(1))));
}

#[test]
fn trim_reaches_units_of_new_projection() {
    let mut harness = Harness::new();
    let (token, deadline) = (harness.token(), harness.now + DEADLINE);
    harness.client.trim(token, Position(4), deadline, harness.now);
    harness.carry_out();
    harness.sequenced(sequencer::Reply::Tail(Position(5)));
    let trim =
        |epoch| Request::Command(Command::Trim { epoch: Some(ProjectionEpoch(epoch)), before: Position(4) }.into());
    harness.step(1, &trim(1), Reply::Done);
    harness.step(2, &trim(1), sealed(1));
    harness.projected(projection(2, 9, &[1, 3]));
    harness.step(1, &trim(2), Reply::Done);
    harness.step(3, &trim(2), Reply::Done);
    assert_eq!(harness.ended(token), Ok(LogReply::Done));
    let token = harness.token();
    harness.client.trim_one(token, Position(6), deadline, harness.now);
    harness.carry_out();
    harness.step(1, &write(2, 6, Entry::Junk), Reply::Written);
    harness.step(3, &write(2, 6, Entry::Junk), Reply::Written);
    let one = Request::Command(Command::TrimOne { epoch: ProjectionEpoch(2), position: Position(6) }.into());
    harness.step(1, &one, Reply::Done);
    harness.step(3, &one, Reply::Done);
    assert_eq!(harness.ended(token), Ok(LogReply::Done));
}

/// Units are sealed without a successor: the client reports the projection.
#[test]
fn seal_without_successor_is_reported() {
    let mut harness = Harness::new();
    harness.read(4, Some(0));
    harness.step(2, &read(1, 4), sealed(1));
    harness.projected(projection(1, 0, &[1, 2]));
    while harness.suspects.is_empty() {
        harness.wake();
    }
    assert_eq!(harness.suspects, [Suspect::Projection]);
}

/// Two chains, of one unit and of two.
fn two_chains(epoch: u64) -> Projection {
    let mut projection = projection(epoch, 40, &[1]);
    projection.extents[0].chains.push(vec![UnitId(2), UnitId(3)]);
    projection
}

/// A part of a range read of five positions, with its share of the bytes.
fn many(epoch: u64, from: u64, step: u64, count: usize) -> Request {
    share(epoch, from, step, count, 5)
}

fn share(epoch: u64, from: u64, step: u64, count: usize, of: usize) -> Request {
    let bytes = ROW_BYTES_MAX * count / of;
    Request::ReadMany { epoch: ProjectionEpoch(epoch), run: PositionRun { from: Position(from), step, count }, bytes }
}

impl Harness {
    fn read_many(&mut self, from: u64, count: usize, wait: Wait) -> Token {
        self.read_some(from, count, wait, BATCH_BYTES_MAX)
    }

    fn read_some(&mut self, from: u64, count: usize, wait: Wait, bytes: usize) -> Token {
        let (token, deadline) = (self.token(), self.now + DEADLINE);
        let wanted = ReadMany { run: PositionRun::of(Position(from), count), wait, bytes };
        self.client.read_many(token, wanted, deadline, self.now);
        self.carry_out();
        token
    }

    /// Answers one of the pending requests to units.
    fn reply(&mut self, unit: u64, request: &Request, reply: Reply) {
        let at = self.units.iter().position(|(_, of, wanted)| (*of, wanted) == (UnitId(unit), request));
        let Some(at) = at else { panic!("{request:?} is not asked, but {:?}", self.units) };
        let (ask, ..) = self.units.remove(at);
        self.client.unit_answered(ask, reply, self.now);
        self.carry_out();
    }
}

fn row(answers: impl IntoIterator<Item = LogReply>) -> Result<LogReply, Error> {
    Ok(LogReply::Range(answers.into_iter().collect()))
}

fn values(sequences: &[u64]) -> Reply {
    Reply::Many(sequences.iter().map(|sequence| Reply::Value(entry(*sequence))).collect())
}

#[test]
fn range_read_queries_each_tail_once() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    let token = harness.read_many(4, 5, Wait::No);
    assert_eq!(harness.units.len(), 2);
    harness.reply(3, &many(2, 5, 2, 2), values(&[5, 7]));
    harness.reply(1, &many(2, 4, 2, 3), values(&[4, 6, 8]));
    let all = (4..9).map(|sequence| LogReply::Entry(data(sequence)));
    assert_eq!(harness.done, [(token, row(all))]);
    assert_eq!(harness.client.under_way(), 0);
}

/// A range read ends at a short reply or an unwritten position; the first position behaves as in a single read.
#[test]
fn range_read_ends_at_gap() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    harness.read_many(4, 5, Wait::First(Duration::from_millis(5)));
    harness.reply(3, &many(2, 5, 2, 2), Reply::Many(vec![Reply::Value(entry(5)), Reply::Unwritten]));
    harness.reply(1, &many(2, 4, 2, 3), values(&[4, 6, 8]));
    let answers = [4, 5, 6].map(|sequence| LogReply::Entry(data(sequence)));
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row(answers.clone())));
    harness.read_many(4, 5, Wait::No);
    harness.reply(3, &many(2, 5, 2, 2), values(&[5, 7]));
    harness.reply(1, &many(2, 4, 2, 3), values(&[4]));
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row(answers[..2].to_vec())));
    harness.read_many(41, 3, Wait::No);
    harness.reply(1, &share(2, 42, 1, 1, 3), Reply::Many(vec![Reply::Unwritten]));
    harness.reply(3, &share(2, 41, 2, 2, 3), Reply::Many(vec![Reply::Unwritten; 2]));
    harness.step(3, &read(2, 41), Reply::Unwritten);
    harness.sequenced(sequencer::Reply::Tail(Position(41)));
    assert_eq!(harness.done.pop().map(|done| done.1), Some(Err(Error::BeyondTail { tail: Position(41) })));
    assert_eq!(harness.client.under_way(), 0);
}

/// Damaged positions, and holes that are waited for, are read individually.
#[test]
fn range_read_retries_holes_and_damage_singly() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    harness.read_many(1, 6, Wait::Each(Duration::ZERO));
    harness.reply(
        1,
        &share(2, 2, 2, 3, 6),
        Reply::Many(vec![Reply::Unwritten, Reply::Trimmed { mark: Position(1) }, Reply::Value(entry(6))]),
    );
    harness.reply(
        3,
        &share(2, 1, 2, 3, 6),
        Reply::Many(vec![Reply::Damaged, Reply::Value(Entry::Junk), Reply::Damaged]),
    );
    // The hole is filled.
    harness.reply(1, &read(2, 2), Reply::Unwritten);
    harness.reply(1, &write(2, 2, Entry::Junk), Reply::Written);
    for position in [1, 5] {
        harness.reply(3, &read(2, position), Reply::Damaged);
        harness.reply(2, &read(2, position), Reply::Value(entry(position)));
        let kept = Kept::Entry(entry(position));
        let repair = Request::Command(Command::Repair { position: Position(position), kept }.into());
        harness.reply(3, &repair, Reply::Written);
    }
    let of = |sequence| LogReply::Entry(data(sequence));
    let trimmed = LogReply::Trimmed { mark: Position(1) };
    let all = [of(1), LogReply::Junk, LogReply::Junk, trimmed, of(5), of(6)];
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row(all)));
    assert!(harness.suspects.contains(&Suspect::Unit(UnitId(3))));
}

/// After a newer projection the tails are asked again. At the deadline a range read returns the answers so far.
#[test]
fn range_read_continues_until_deadline() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    harness.read_many(4, 4, Wait::No);
    harness.reply(3, &share(2, 5, 2, 2, 4), sealed(2));
    let late = harness.units.pop().expect("the other tail");
    let mut newer = two_chains(3);
    newer.extents[0].chains[1].pop();
    harness.projected(newer);
    harness.client.unit_answered(late.0, values(&[1, 2]), harness.now);
    harness.carry_out();
    harness.reply(1, &share(3, 4, 2, 2, 4), values(&[4, 6]));
    assert_eq!(harness.done, []);
    harness.wants(2, &share(3, 5, 2, 2, 4));
    while harness.done.is_empty() {
        harness.wake();
    }
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row([LogReply::Entry(data(4))])));
    assert_eq!(harness.client.under_way(), 0);
}

/// Entries above the size limit are not returned: the first one is an answer of its own, any other ends the range read.
#[test]
fn range_read_byte_limit() {
    let mut harness = Harness::new();
    harness.projected(two_chains(2));
    let bounded = |from, step, count, bytes| {
        let run = PositionRun { from: Position(from), step, count };
        Request::ReadMany { epoch: ProjectionEpoch(2), run, bytes }
    };
    let larger = || Reply::Many(vec![]);
    harness.read_some(4, 4, Wait::No, 40);
    harness.reply(3, &bounded(5, 2, 2, 20), larger());
    harness.reply(1, &bounded(4, 2, 2, 20), values(&[4, 6]));
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row([LogReply::Entry(data(4))])));

    harness.read_some(5, 4, Wait::No, 40);
    harness.reply(3, &bounded(5, 2, 2, 20), larger());
    harness.reply(3, &bounded(5, 1, 1, 40), values(&[5]));
    harness.reply(1, &bounded(6, 2, 2, 20), larger());
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row([LogReply::Entry(data(5))])));

    harness.read_some(5, 1, Wait::First(Duration::from_millis(5)), 40);
    harness.reply(3, &bounded(5, 1, 1, 40), Reply::Many(vec![Reply::Unwritten]));
    let (epoch, position, wait) = (ProjectionEpoch(2), Position(5), Duration::from_millis(5));
    harness.reply(3, &Request::Await { epoch, position, wait, bytes: 40 }, larger());
    assert_eq!(harness.done.pop().map(|done| done.1), Some(Ok(LogReply::Larger)));
    harness.read_some(5, 1, Wait::No, BATCH_BYTES_MAX);
    harness.reply(3, &read(2, 5), values(&[5]).each()[0].clone());
    assert_eq!(harness.done.pop().map(|done| done.1), Some(row([LogReply::Entry(data(5))])));
    assert_eq!(harness.client.under_way(), 0);
}
