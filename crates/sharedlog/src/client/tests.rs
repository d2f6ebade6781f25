//! A client with units, a sequencer and a registry played by the test: checks its requests step by step.

use base::{Boot, NodeId};
use bytes::Bytes;

use super::*;
use crate::limits::ROW_BYTES_MAX;
use crate::unit::{Command, Reply, Request};
use crate::{Entry, Extent, Kept, Kind, LogId, SequencerId, Stamp, UnitId};

const DEADLINE: Duration = Duration::from_millis(10_000);

/// A client and its unanswered requests.
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
        newest_unit: UnitId(9),
        extents: vec![Extent::new(Position(0), 1, vec![chain])],
    }
}

fn batch() -> Batch {
    Batch::of(&[Bytes::from_static(b"x")]).expect("it is small")
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
        let (_, asked) = self.sequencer.first().expect("the sequencer is asked");
        let sequencer::Request::Positions { count: wanted, .. } = asked else { panic!("{asked:?}") };
        assert!(count <= *wanted, "{count} positions are given, {wanted} were asked for");
        self.sequenced(sequencer::Reply::Positions { first: Position(first), count });
    }

    /// Advances the time to the next timer.
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
fn append_follows_chain_order() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), Reply::Written);
    bed.step(2, &write(1, 7, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(7))));
    assert_eq!(bed.client.under_way(), 0);
}

#[test]
fn waiting_appends_share_sequencer_request() {
    let mut bed = Bed::new();
    bed.append(1);
    let asked = bed.sequencer.clone();
    bed.append(2);
    bed.append(3);
    assert_eq!(bed.sequencer, asked, "one is under way");
    bed.given(7, 1);
    assert_eq!(bed.sequencer[0].1, positions(1, 2));
    bed.given(9, 2);
    let positions: Vec<_> = bed.units.iter().map(|(_, _, request)| request.clone()).collect();
    assert_eq!(positions, [write(1, 7, entry(1)), write(1, 9, entry(2)), write(1, 10, entry(3))]);
}

/// Each append gets its own stamp from the client.
#[test]
fn unstamped_appends_get_distinct_stamps() {
    let mut bed = Bed::new();
    for token in [1, 2] {
        bed.client.append(Token(token), batch(), None, bed.now + DEADLINE, bed.now);
        bed.carry_out();
    }
    bed.given(0, 1);
    bed.given(1, 1);
    let stamp = |request: &Request| match request {
        Request::Command(command) => match command.command() {
            Command::Write { entry, .. } => entry.stamp(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let stamps: Vec<_> = bed.units.iter().filter_map(|(_, _, request)| stamp(request)).collect();
    assert_eq!(stamps, [1, 2].map(|sequence| Stamp { client: ClientId(9), sequence }));
}

#[test]
fn append_abandons_filled_position() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), Reply::Occupied { by: Kind::Junk });
    bed.given(8, 1);
    bed.step(1, &write(1, 8, entry(1)), Reply::Written);
    bed.step(2, &write(1, 8, entry(1)), Reply::Occupied { by: Kind::Junk });
    assert_eq!(bed.ended(token), Err(Error::Conflict { position: Position(8) }));
}

/// The entry may have been there, and readers may have seen it: the caller decides.
#[test]
fn append_at_trimmed_position_is_unknown() {
    let trimmed = || Reply::Trimmed { mark: Position(9) };
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), trimmed());
    assert_eq!(bed.ended(token), Err(Error::Unknown { position: Position(7) }));
    assert!(bed.sequencer.is_empty() && bed.client.under_way() == 0);

    let token = bed.append(2);
    bed.given(8, 1);
    bed.step(1, &write(1, 8, entry(2)), Reply::Written);
    bed.step(2, &write(1, 8, entry(2)), trimmed());
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(8))), "the head has taken it");
}

/// After a new projection the old position is resolved first: it holds the entry, or never will.
#[test]
fn resolves_old_position_before_new_one() {
    let begin = || {
        let mut bed = Bed::new();
        let token = bed.append(1);
        bed.given(7, 1);
        bed.step(1, &write(1, 7, entry(1)), Reply::Written);
        bed.step(2, &write(1, 7, entry(1)), sealed(1));
        assert!(bed.units.is_empty() && bed.fetches > 0);
        (bed, token)
    };
    // The head holds the entry: it is completed.
    let (mut bed, token) = begin();
    bed.projected(projection(2, 9, &[1, 2]));
    bed.step(1, &write(2, 7, Entry::Junk), Reply::Occupied { by: Kind::Data });
    bed.step(1, &read(2, 7), Reply::Value(entry(1)));
    bed.step(2, &write(2, 7, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(7))));
    // The head that held it was removed: the position is filled on all units before another one is requested.
    let (mut bed, token) = begin();
    bed.projected(projection(2, 9, &[2, 3]));
    bed.step(2, &write(2, 7, Entry::Junk), Reply::Written);
    assert!(bed.sequencer.is_empty());
    bed.step(3, &write(2, 7, Entry::Junk), sealed(2));
    // The fill restarts in the next projection.
    bed.projected(projection(3, 9, &[3]));
    bed.step(3, &write(3, 7, Entry::Junk), Reply::Written);
    bed.given(9, 1);
    bed.step(3, &write(3, 9, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(9))));
    // The position is not below the new start: only its next owner can write there.
    let (mut bed, _) = begin();
    bed.projected(projection(2, 7, &[2]));
    assert!(bed.units.is_empty());
    bed.given(7, 1);
    bed.wants(2, &write(2, 7, entry(1)));
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
    let mut bed = Bed::new();
    let call = |(answers, is_row)| {
        let (token, deadline) = (bed.token(), bed.now + Duration::from_millis(60));
        if is_row {
            let wanted = ReadMany { run: Run::of(Position(0), 1), wait: Wait::No, bytes: 100 };
            bed.client.read_many(token, wanted, deadline, bed.now);
        } else {
            bed.client.read(token, Position(0), None, deadline, bed.now);
        }
        bed.carry_out();
        let asks: Vec<AskId> = bed.units.drain(..).map(|(ask, unit, _)| (ask, unit == UnitId(2)).0).collect();
        let value = || Reply::Many(vec![Reply::Value(entry(1))]);
        if let Answers::InTime = answers {
            asks.iter().for_each(|ask| bed.client.unit_answered(*ask, value(), bed.now));
            bed.carry_out();
        }
        while bed.done.is_empty() {
            bed.wake();
        }
        if let Answers::Late = answers {
            asks.iter().for_each(|ask| bed.client.unit_answered(*ask, value(), bed.now));
            bed.carry_out();
        }
        bed.done.clear();
        std::mem::take(&mut bed.suspects)
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
        assert!(of(&[Late; 8]).concat().is_empty(), "it answers");
    }
}

#[test]
fn retries_and_suspects_on_timeout() {
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
    assert_eq!(bed.ended(token), Err(Error::Unknown { position: Position(7) }));
}

#[test]
fn append_without_position_is_definite_failure() {
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

/// A position that arrives after its append has ended is filled at once, so that no reader waits for it.
#[test]
fn fills_unused_positions() {
    let mut bed = Bed::new();
    bed.client.append(Token(1), batch(), None, bed.now + Duration::from_millis(50), bed.now);
    bed.client.append(Token(2), batch(), None, bed.now + DEADLINE, bed.now);
    bed.carry_out();
    bed.given(0, 1);
    bed.units.clear();
    let third = bed.now + Duration::from_millis(20);
    bed.client.append(Token(3), batch(), None, third, bed.now);
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
fn read_waits_then_fills_head_first() {
    let mut bed = Bed::new();
    let token = bed.read(4, Some(3));
    let awaited = |wait| {
        let (epoch, position) = (ProjectionEpoch(1), Position(4));
        Request::Await { epoch, position, wait: Duration::from_millis(wait), bytes: BATCH_BYTES_MAX }
    };
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.step(2, &awaited(3), Reply::Unwritten);
    bed.wake();
    bed.step(2, &awaited(1), Reply::Unwritten);
    bed.wake();
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    bed.step(1, &write(1, 4, Entry::Junk), Reply::Occupied { by: Kind::Data });
    bed.step(1, &read(1, 4), Reply::Value(entry(3)));
    bed.step(2, &write(1, 4, entry(3)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(3))));
    let token = bed.read(3, Some(0));
    bed.step(2, &read(1, 3), Reply::Unwritten);
    bed.step(1, &write(1, 3, Entry::Junk), Reply::Written);
    bed.step(2, &write(1, 3, Entry::Junk), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Junk), "the tail is known by now");
}

/// A watch fills nothing when its wait is over; the sequencer confirms that the position is unwritten.
#[test]
fn watch_does_not_fill() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    for (tail, outcome) in [(5, row([])), (4, Err(Error::BeyondTail { tail: Position(4) }))] {
        bed.read_many(4, 1, Wait::Watch(Duration::from_millis(3)));
        bed.reply(1, &read(2, 4), Reply::Unwritten);
        let (epoch, position, wait) = (ProjectionEpoch(2), Position(4), Duration::from_millis(3));
        let awaited = Request::Await { epoch, position, wait, bytes: BATCH_BYTES_MAX };
        bed.wants(1, &awaited);
        bed.now = bed.now + wait;
        bed.reply(1, &awaited, Reply::Unwritten);
        bed.sequenced(sequencer::Reply::Tail(Position(tail)));
        assert_eq!(bed.done.pop().map(|done| done.1), Some(outcome));
    }
    // An entry that arrives during the watch is returned.
    bed.read_many(4, 1, Wait::Watch(Duration::from_millis(1_000)));
    // The first read used a part of the wait.
    bed.now = bed.now + Duration::from_millis(20);
    bed.reply(1, &read(2, 4), Reply::Unwritten);
    let (epoch, position, wait) = (ProjectionEpoch(2), Position(4), Duration::from_millis(980));
    let awaited = Request::Await { epoch, position, wait, bytes: BATCH_BYTES_MAX };
    bed.reply(1, &awaited, Reply::Value(entry(4)));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([Answer::Entry(data(4))])));
    assert_eq!(bed.client.under_way(), 0);
}

#[test]
fn cancel_ends_dependent_calls() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    let gone = [bed.read_many(4, 5, Wait::No), bed.read_many(9, 1, Wait::First(Duration::from_millis(1_000)))];
    let stays = bed.read_many(6, 1, Wait::No);
    bed.client.give_up(&gone.into(), bed.now);
    bed.carry_out();
    assert_eq!(bed.done, gone.map(|token| (token, Err(Error::OutOfTime))));
    bed.client.give_up(&gone.into(), bed.now);
    bed.reply(1, &read(2, 6), Reply::Value(entry(6)));
    assert_eq!(bed.done.pop(), Some((stays, row([Answer::Entry(data(6))]))));
    assert_eq!(bed.client.under_way(), 0);
}

#[test]
fn rejects_positions_beyond_tail() {
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

/// No call waits for a timeout of an older projection once a newer one is known.
#[test]
fn new_projection_resumes_all_calls() {
    let mut bed = Bed::new();
    let (in_doubt, wanting) = (bed.append(1), bed.append(2));
    bed.given(7, 1);
    let (write_ask, ..) = bed.units.remove(0);
    let read_token = bed.read(3, Some(0));
    let (read_ask, ..) = bed.units.remove(0);
    // Some failures, so that the timeouts are long.
    for _ in 0..6 {
        bed.wake();
    }
    bed.units.clear();
    bed.sequencer.clear();
    bed.projected(projection(2, 9, &[2]));
    let asked: Vec<_> = bed.units.iter().map(|(_, unit, request)| (unit.0, request.clone())).collect();
    assert_eq!(asked, [(2, write(2, 7, Entry::Junk)), (2, read(2, 3))]);
    assert_eq!(bed.sequencer.iter().map(|(_, request)| *request).collect::<Vec<_>>(), [positions(2, 1)]);
    // Replies from the older epoch are ignored.
    bed.client.unit_answered(write_ask, Reply::Written, bed.now);
    bed.client.unit_answered(read_ask, Reply::Value(entry(5)), bed.now);
    bed.carry_out();
    assert_eq!(bed.done, []);
    let (ask, ..) = bed.units.remove(0);
    bed.client.unit_answered(ask, Reply::Written, bed.now);
    bed.carry_out();
    bed.step(2, &read(2, 3), Reply::Value(entry(4)));
    assert_eq!(bed.ended(read_token), Ok(Answer::Entry(data(4))));
    bed.given(9, 1);
    bed.step(2, &write(2, 9, entry(2)), Reply::Written);
    assert_eq!(bed.ended(wanting), Ok(Answer::Appended(Position(9))));
    bed.given(10, 1);
    bed.step(2, &write(2, 10, entry(1)), Reply::Written);
    assert_eq!(bed.ended(in_doubt), Ok(Answer::Appended(Position(10))));
}

/// A read of a trimmed or lost position says so, and a trim does not wait for units of extents that are trimmed
/// completely.
#[test]
fn lost_extent_is_reported_and_trims_proceed() {
    let mut bed = Bed::new();
    let extent =
        |from: u64, chain: &[u64]| Extent::new(Position(from), 1, vec![chain.iter().copied().map(UnitId).collect()]);
    let mut lost = projection(2, 20, &[]);
    lost.extents = vec![extent(0, &[]), extent(10, &[3]), extent(20, &[1, 2])];
    bed.projected(lost);
    let token = bed.read(4, Some(0));
    assert_eq!(bed.ended(token), Ok(Answer::Lost));
    let (token, deadline) = (bed.token(), bed.now + DEADLINE);
    bed.client.fill(token, Position(4), deadline, bed.now);
    bed.carry_out();
    assert_eq!(bed.ended(token), Ok(Answer::Lost));
    bed.client.trim(token, Position(20), deadline, bed.now);
    bed.carry_out();
    let trim = Request::Command(Command::Trim { epoch: Some(ProjectionEpoch(2)), before: Position(20) }.into());
    bed.wants(3, &trim);
    bed.units.clear();
    while bed.units.is_empty() {
        bed.wake();
    }
    bed.step(1, &trim, Reply::Done);
    bed.step(2, &trim, Reply::Done);
    assert_eq!(bed.ended(token), Ok(Answer::Done));
}

/// A read that finds damage repairs it.
#[test]
fn read_repairs_damage() {
    let mut bed = Bed::new();
    bed.projected(projection(2, 9, &[1, 2, 3]));
    let mend = |with: Entry| Request::Command(Command::Mend { position: Position(4), kept: Kept::Entry(with) }.into());
    let token = bed.read(4, None);
    bed.step(3, &read(2, 4), Reply::Damaged);
    bed.step(2, &read(2, 4), Reply::Damaged);
    bed.step(1, &read(2, 4), Reply::Value(entry(5)));
    bed.step(2, &mend(entry(5)), Reply::Written);
    bed.step(3, &mend(entry(5)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(5))));
    assert_eq!(bed.suspects, [Suspect::Unit(UnitId(3)), Suspect::Unit(UnitId(2))]);
    // A fill finds the entry on the next unit and repairs the head.
    let (token, deadline) = (bed.token(), bed.now + DEADLINE);
    bed.client.fill(token, Position(4), deadline, bed.now);
    bed.carry_out();
    bed.step(1, &write(2, 4, Entry::Junk), Reply::Damaged);
    bed.step(2, &read(2, 4), Reply::Value(entry(5)));
    bed.step(1, &mend(entry(5)), Reply::Written);
    bed.step(2, &write(2, 4, entry(5)), Reply::Damaged);
    bed.step(2, &mend(entry(5)), Reply::Written);
    bed.step(3, &write(2, 4, entry(5)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(5))));
}

/// A position that no unit can read is neither invented nor treated as unwritten: another projection or the deadline
/// ends the call.
#[test]
fn unrecoverable_damage_is_reported() {
    let mut bed = Bed::new();
    let token = bed.read(4, Some(0));
    let fill = bed.token();
    bed.sequencer.clear();
    bed.client.note_tail(ProjectionEpoch(1), Position(9));
    bed.client.fill(fill, Position(5), bed.now + DEADLINE, bed.now);
    bed.carry_out();
    while bed.done.len() < 2 {
        match bed.units.pop() {
            Some((ask, unit, _)) => {
                // The second unit has no entry at position 5; a writer may still be writing it.
                let is_five = unit == UnitId(2) && bed.client.asks.get(&ask) == Some(&2);
                let reply = if is_five { Reply::Unwritten } else { Reply::Damaged };
                bed.client.unit_answered(ask, reply, bed.now);
                bed.carry_out();
            }
            None => bed.wake(),
        }
    }
    bed.done.sort_by_key(|(token, _)| *token);
    let damaged = |position: u64| Err(Error::Damaged { position: Position(position) });
    assert_eq!(bed.done, [(token, damaged(4)), (fill, damaged(5))]);
}

/// An append repairs units after the head with its own entry. For a damaged head it asks the units after it.
#[test]
fn append_repairs_damaged_replica() {
    let mut bed = Bed::new();
    let token = bed.append(1);
    bed.given(7, 1);
    bed.step(1, &write(1, 7, entry(1)), Reply::Written);
    bed.step(2, &write(1, 7, entry(1)), Reply::Damaged);
    let mend = Request::Command(Command::Mend { position: Position(7), kept: Kept::Entry(entry(1)) }.into());
    bed.step(2, &mend, Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(7))));
    let token = bed.append(1);
    bed.given(8, 1);
    bed.step(1, &write(1, 8, entry(1)), Reply::Damaged);
    bed.step(1, &write(1, 8, Entry::Junk), Reply::Damaged);
    bed.step(2, &read(1, 8), Reply::Unwritten);
    assert!(bed.units.is_empty(), "it may not decide");
    bed.projected(projection(2, 9, &[2]));
    bed.step(2, &write(2, 8, Entry::Junk), Reply::Written);
    bed.given(9, 1);
    bed.step(2, &write(2, 9, entry(1)), Reply::Written);
    assert_eq!(bed.ended(token), Ok(Answer::Appended(Position(9))));
}

/// A tail reported before the projection was replaced is not valid in the newer one.
#[test]
fn stale_epoch_tail_is_ignored() {
    for trims in [false, true] {
        let mut bed = Bed::new();
        let (token, deadline) = (bed.token(), bed.now + DEADLINE);
        if trims {
            bed.client.trim(token, Position(8), deadline, bed.now);
        } else {
            bed.client.fill(token, Position(7), deadline, bed.now);
        }
        bed.carry_out();
        let (old, _) = bed.sequencer.remove(0);
        bed.projected(projection(2, 5, &[1, 2]));
        bed.client.sequencer_answered(old, sequencer::Reply::Tail(Position(9)), bed.now);
        bed.carry_out();
        assert!(bed.units.is_empty(), "position 7 may be given out again");
        bed.sequenced(sequencer::Reply::Tail(Position(6)));
        assert_eq!(bed.ended(token), Err(Error::BeyondTail { tail: Position(6) }));
    }
}

/// Only the tail of the newest projection can say that a position is unwritten: a unit that was removed from the log
/// may lack entries.
#[test]
fn unwritten_reply_is_verified() {
    let mut bed = Bed::new();
    let token = bed.read(4, None);
    bed.step(2, &read(1, 4), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Refused { newest: ProjectionEpoch(2) });
    bed.projected(projection(2, 5, &[1]));
    bed.step(1, &read(2, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(1))));
    let token = bed.read(3, None);
    bed.step(1, &read(2, 3), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    assert_eq!(bed.ended(token), Ok(Answer::Unwritten));
    // A newer projection arrives before the reply: the reply from the older one is ignored.
    let token = bed.read(4, None);
    let (old, ..) = bed.units.remove(0);
    bed.projected(projection(3, 5, &[2]));
    bed.client.unit_answered(old, Reply::Unwritten, bed.now);
    bed.carry_out();
    bed.step(2, &read(3, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Entry(data(1))));
}

#[test]
fn trim_reaches_units_of_new_projection() {
    let mut bed = Bed::new();
    let (token, deadline) = (bed.token(), bed.now + DEADLINE);
    bed.client.trim(token, Position(4), deadline, bed.now);
    bed.carry_out();
    bed.sequenced(sequencer::Reply::Tail(Position(5)));
    let trim =
        |epoch| Request::Command(Command::Trim { epoch: Some(ProjectionEpoch(epoch)), before: Position(4) }.into());
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
    let one = Request::Command(Command::TrimOne { epoch: ProjectionEpoch(2), position: Position(6) }.into());
    bed.step(1, &one, Reply::Done);
    bed.step(3, &one, Reply::Done);
    assert_eq!(bed.ended(token), Ok(Answer::Done));
}

/// Units are sealed without a successor: the client reports the projection.
#[test]
fn seal_without_successor_is_reported() {
    let mut bed = Bed::new();
    bed.read(4, Some(0));
    bed.step(2, &read(1, 4), sealed(1));
    bed.projected(projection(1, 0, &[1, 2]));
    while bed.suspects.is_empty() {
        bed.wake();
    }
    assert_eq!(bed.suspects, [Suspect::Projection]);
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
    Request::ReadMany { epoch: ProjectionEpoch(epoch), run: Run { from: Position(from), step, count }, bytes }
}

impl Bed {
    fn read_many(&mut self, from: u64, count: usize, wait: Wait) -> Token {
        self.read_some(from, count, wait, BATCH_BYTES_MAX)
    }

    fn read_some(&mut self, from: u64, count: usize, wait: Wait, bytes: usize) -> Token {
        let (token, deadline) = (self.token(), self.now + DEADLINE);
        let wanted = ReadMany { run: Run::of(Position(from), count), wait, bytes };
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

fn row(answers: impl IntoIterator<Item = Answer>) -> Result<Answer, Error> {
    Ok(Answer::Range(answers.into_iter().collect()))
}

fn values(sequences: &[u64]) -> Reply {
    Reply::Many(sequences.iter().map(|sequence| Reply::Value(entry(*sequence))).collect())
}

#[test]
fn range_read_queries_each_tail_once() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    let token = bed.read_many(4, 5, Wait::No);
    assert_eq!(bed.units.len(), 2);
    bed.reply(3, &many(2, 5, 2, 2), values(&[5, 7]));
    bed.reply(1, &many(2, 4, 2, 3), values(&[4, 6, 8]));
    let all = (4..9).map(|sequence| Answer::Entry(data(sequence)));
    assert_eq!(bed.done, [(token, row(all))]);
    assert_eq!(bed.client.under_way(), 0);
}

/// A range read ends at a short reply or an unwritten position; the first position behaves as in a single read.
#[test]
fn range_read_ends_at_gap() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    bed.read_many(4, 5, Wait::First(Duration::from_millis(5)));
    bed.reply(3, &many(2, 5, 2, 2), Reply::Many(vec![Reply::Value(entry(5)), Reply::Unwritten]));
    bed.reply(1, &many(2, 4, 2, 3), values(&[4, 6, 8]));
    let told = [4, 5, 6].map(|sequence| Answer::Entry(data(sequence)));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row(told.clone())));
    bed.read_many(4, 5, Wait::No);
    bed.reply(3, &many(2, 5, 2, 2), values(&[5, 7]));
    bed.reply(1, &many(2, 4, 2, 3), values(&[4]));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row(told[..2].to_vec())));
    bed.read_many(41, 3, Wait::No);
    bed.reply(1, &share(2, 42, 1, 1, 3), Reply::Many(vec![Reply::Unwritten]));
    bed.reply(3, &share(2, 41, 2, 2, 3), Reply::Many(vec![Reply::Unwritten; 2]));
    bed.step(3, &read(2, 41), Reply::Unwritten);
    bed.sequenced(sequencer::Reply::Tail(Position(41)));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(Err(Error::BeyondTail { tail: Position(41) })));
    assert_eq!(bed.client.under_way(), 0);
}

/// Damaged positions, and holes that are waited for, are read individually.
#[test]
fn range_read_retries_holes_and_damage_singly() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    bed.read_many(1, 6, Wait::Each(Duration::ZERO));
    bed.reply(
        1,
        &share(2, 2, 2, 3, 6),
        Reply::Many(vec![Reply::Unwritten, Reply::Trimmed { mark: Position(1) }, Reply::Value(entry(6))]),
    );
    bed.reply(3, &share(2, 1, 2, 3, 6), Reply::Many(vec![Reply::Damaged, Reply::Value(Entry::Junk), Reply::Damaged]));
    // The hole is filled.
    bed.reply(1, &read(2, 2), Reply::Unwritten);
    bed.reply(1, &write(2, 2, Entry::Junk), Reply::Written);
    for position in [1, 5] {
        bed.reply(3, &read(2, position), Reply::Damaged);
        bed.reply(2, &read(2, position), Reply::Value(entry(position)));
        let kept = Kept::Entry(entry(position));
        let mend = Request::Command(Command::Mend { position: Position(position), kept }.into());
        bed.reply(3, &mend, Reply::Written);
    }
    let of = |sequence| Answer::Entry(data(sequence));
    let trimmed = Answer::Trimmed { mark: Position(1) };
    let all = [of(1), Answer::Junk, Answer::Junk, trimmed, of(5), of(6)];
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row(all)));
    assert!(bed.suspects.contains(&Suspect::Unit(UnitId(3))));
}

/// After a newer projection the tails are asked again. At the deadline a range read returns the answers so far.
#[test]
fn range_read_continues_until_deadline() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    bed.read_many(4, 4, Wait::No);
    bed.reply(3, &share(2, 5, 2, 2, 4), sealed(2));
    let late = bed.units.pop().expect("the other tail");
    let mut newer = two_chains(3);
    newer.extents[0].chains[1].pop();
    bed.projected(newer);
    bed.client.unit_answered(late.0, values(&[1, 2]), bed.now);
    bed.carry_out();
    bed.reply(1, &share(3, 4, 2, 2, 4), values(&[4, 6]));
    assert_eq!(bed.done, []);
    bed.wants(2, &share(3, 5, 2, 2, 4));
    while bed.done.is_empty() {
        bed.wake();
    }
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([Answer::Entry(data(4))])));
    assert_eq!(bed.client.under_way(), 0);
}

/// Entries above the size limit are not returned: the first one is an answer of its own, any other ends the range read.
#[test]
fn range_read_byte_limit() {
    let mut bed = Bed::new();
    bed.projected(two_chains(2));
    let bounded = |from, step, count, bytes| {
        let run = Run { from: Position(from), step, count };
        Request::ReadMany { epoch: ProjectionEpoch(2), run, bytes }
    };
    let larger = || Reply::Many(vec![]);
    bed.read_some(4, 4, Wait::No, 40);
    bed.reply(3, &bounded(5, 2, 2, 20), larger());
    bed.reply(1, &bounded(4, 2, 2, 20), values(&[4, 6]));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([Answer::Entry(data(4))])));

    bed.read_some(5, 4, Wait::No, 40);
    bed.reply(3, &bounded(5, 2, 2, 20), larger());
    bed.reply(3, &bounded(5, 1, 1, 40), values(&[5]));
    bed.reply(1, &bounded(6, 2, 2, 20), larger());
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([Answer::Entry(data(5))])));

    bed.read_some(5, 1, Wait::First(Duration::from_millis(5)), 40);
    bed.reply(3, &bounded(5, 1, 1, 40), Reply::Many(vec![Reply::Unwritten]));
    let (epoch, position, wait) = (ProjectionEpoch(2), Position(5), Duration::from_millis(5));
    bed.reply(3, &Request::Await { epoch, position, wait, bytes: 40 }, larger());
    assert_eq!(bed.done.pop().map(|done| done.1), Some(Ok(Answer::Larger)));
    bed.read_some(5, 1, Wait::No, BATCH_BYTES_MAX);
    bed.reply(3, &read(2, 5), values(&[5]).each()[0].clone());
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([Answer::Entry(data(5))])));
    assert_eq!(bed.client.under_way(), 0);
}
