//! Scenes of two-phase commit, played message by message: `testdata/two_phase.txt`. And the division by range.
//!
//! Range `r2` holds the keys below `m`, `r3` those below `t`, and `r4` the others. Node `n2` leads `r2`, and so on; `n1`
//! and `n5` lead no range. A transaction `#1` has the number 1 in a session of `r2`, which coordinates it.
//!
//! A script consists of comments (`#` and a space) and blocks. A block is one or more commands, a line `----`, and their
//! output up to an empty line. With `UPDATE_GOLDEN=1` the test rewrites the script.
//!
//! | command | effect |
//! |---|---|
//! | `start` | begins a new scene |
//! | `commit n1 #1 a=1 z=2 b?0` | a transaction that writes two rows, and has read one as of timestamp 0 |
//! | `cancel n1 #1` | the deadline of the client passes |
//! | `deliver`, `deliver r3`, `deliver all` | delivers the first message (to a range), or all, and the replies |
//! | `fail r3 unavailable` | the first message to a range is not delivered: its sender gets this failure |
//! | `lose r3` | the first message to a range is delivered, but its sender gets the reply "unknown" |
//! | `wait 500` | advances the clock of all nodes, in ms, and runs their timers |
//! | `end-session` | the session of the transactions expires |
//! | `restart n1` | a node loses its state |
//! | `state` | prints the rows and transactions of the ranges |

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::{env, fs};

use base::{Duration, KeyRange};
use state_machine::interface::{Effect, Evaluated, Payload, Read as _, ReadStep};
use state_machine::range_map::TableRanges;
use state_machine::{ClientSessionId, Failure, KeyPosition, LockOwner, Ownership, SessionStamp, StateMachine as _};
use store::sstable::Io;

use super::division::divide;
use super::*;
use crate::command::Command;
use crate::request::{Columns, TableResponse};
use crate::tablet::Tablet;
use crate::testing::{Log, fresh};
use crate::transaction::{ReadSpan, RowChange, TransactionOutcome, TransactionPart, TransactionRequest};

const IN_DOUBT: Duration = Duration::from_millis(2_000);
/// The time that a client gives a transaction.
const PATIENCE_OF_CLIENT: Duration = Duration::from_millis(10_000);

/// A map with one table, `t`.
struct Map(Vec<(KeyRange, CohortId)>);

impl RangeMap for Map {
    type Table = Self;

    fn table(&self, name: &str) -> Option<&Self> {
        (name == "t").then_some(self)
    }

    fn is_gone(&self, _: CohortId) -> bool {
        false
    }
}

impl TableRanges for Map {
    fn created(&self) -> Timestamp {
        Timestamp(0)
    }

    fn takes_part(&self) -> bool {
        true
    }

    fn cohort_at(&self, position: &KeyPosition) -> CohortId {
        self.0.iter().find(|(range, _)| position.is_in(range)).expect("the ranges cover all keys").1
    }

    fn cohorts(&self) -> impl Iterator<Item = (KeyRange, CohortId)> {
        self.0.iter().cloned()
    }
}

fn map() -> Map {
    let keys = |start: &'static str, end: Option<&'static str>| KeyRange {
        start: Bytes::from_static(start.as_bytes()),
        end: end.map(|end| Bytes::from_static(end.as_bytes())),
    };
    let ranges = [keys("", Some("m")), keys("m", Some("t")), keys("t", None)];
    Map(ranges.into_iter().zip([2, 3, 4].map(CohortId)).collect())
}

struct Message {
    from: usize,
    to: CohortId,
    request: TableRequest,
    /// None once the sender has forgotten the request.
    tag: Option<ReplyTag>,
}

struct Scene {
    map: Map,
    nodes: Vec<TwoPhase>,
    ranges: Vec<(Tablet, Log)>,
    session: ClientSessionId,
    in_flight: VecDeque<Message>,
    now: Monotonic,
    /// The last timestamp in any log.
    timestamp: Timestamp,
    output: String,
}

impl Scene {
    fn new() -> Self {
        let map = map();
        let range = |(keys, cohort): &(KeyRange, CohortId)| {
            let mut tablet = fresh(*cohort);
            tablet.ownership = Ownership::Owns(keys.clone());
            (tablet, Log::new())
        };
        let mut scene = Self {
            nodes: (0..5).map(|_| TwoPhase::new(IN_DOUBT)).collect(),
            ranges: map.0.iter().map(range).collect(),
            map,
            session: ClientSessionId(0),
            in_flight: VecDeque::new(),
            now: Monotonic(0),
            timestamp: Timestamp(0),
            output: String::new(),
        };
        match scene.apply(CohortId(2), &Command::OpenSession { key: Bytes::new() }) {
            Some(Ok(TableResponse::SessionOpened { session, .. })) => scene.session = session,
            other => panic!("{other:?}"),
        }
        scene
    }

    fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["start"] => *self = Self::new(),
            ["commit", at, call, ref rows @ ..] => {
                let (at, request) = (node(at), self.request(number(call), rows));
                let until = self.now + PATIENCE_OF_CLIENT;
                let call = Call(number(call));
                self.nodes[at].start(call, &request, &self.map, until, self.now).expect("the table exists");
                self.act(at);
            }
            ["cancel", at, call] => self.nodes[node(at)].cancelled(Call(number(call))),
            ["deliver", "all"] => {
                while let Some(message) = self.in_flight.pop_front() {
                    self.deliver(&message, None);
                }
            }
            ["deliver"] => {
                let message = self.in_flight.pop_front().expect("a message is in flight");
                self.deliver(&message, None);
            }
            ["deliver", to] => {
                let message = self.first_to(to);
                self.deliver(&message, None);
            }
            ["lose", to] => {
                let message = self.first_to(to);
                self.deliver(&message, Some(Failure::Unknown("no reply".to_owned())));
            }
            ["fail", to, why] => {
                let message = self.first_to(to);
                self.answer(message.from, message.tag, Err(failure(why)));
            }
            ["wait", millis] => {
                self.now = self.now + Duration::from_millis(number(millis));
                for at in 0..self.nodes.len() {
                    for cohort in self.nodes[at].take_due(self.now) {
                        let tablet = self.ranges.iter().map(|(tablet, _)| tablet).find(|it| cohort_of(it) == cohort);
                        self.nodes[at].check(cohort, tablet, self.now);
                        self.act(at);
                    }
                }
            }
            ["restart", at] => {
                let at = node(at);
                self.nodes[at] = TwoPhase::new(IN_DOUBT);
                self.in_flight.iter_mut().filter(|message| message.from == at).for_each(|message| message.tag = None);
                for (tablet, _) in self.ranges.iter().filter(|(tablet, _)| leader(cohort_of(tablet)) == at) {
                    self.nodes[at].applied(cohort_of(tablet), None, self.now);
                }
            }
            ["end-session"] => {
                let sessions = vec![(self.session, self.timestamp)];
                self.apply(CohortId(2), &Command::ExpireSessions { sessions });
            }
            ["state"] => self.state(),
            _ => panic!("unknown command: {command}"),
        }
    }

    fn request(&self, sequence: u64, rows: &[&str]) -> TransactionRequest {
        let stamp = SessionStamp { session: self.session, sequence, first_incomplete: 1 };
        let mut part = TransactionPart::default();
        for row in rows {
            if let Some((key, value)) = row.split_once('=') {
                let columns = vec![("c".into(), Some(value.to_owned().into()))];
                part.writes.push(RowChange { key: key.to_owned().into(), deletes_row: false, columns });
            } else {
                let (key, seen) = row.split_once('?').expect("a read");
                let (start, end) = (key.to_owned().into(), Some(format!("{key}\0").into()));
                let seen = Timestamp(seen.parse().expect("a timestamp"));
                part.reads.push(ReadSpan { range: KeyRange { start, end }, seen });
            }
        }
        let owner = LockOwner { started: Timestamp(1), id: sequence };
        TransactionRequest { stamp, table: "t".into(), key: "a".into(), owner, parts: vec![("t".into(), part)] }
    }

    fn first_to(&mut self, range: &str) -> Message {
        let to = |message: &Message| format!("r{}", message.to.0) == range;
        let index = self.in_flight.iter().position(to).expect("a message to the range is in flight");
        self.in_flight.remove(index).expect("its index was found")
    }

    /// Executes a request. The sender gets the reply, or this failure in its place.
    fn deliver(&mut self, message: &Message, failure: Option<Failure>) {
        let outcome = self.execute(message.to, &message.request);
        let request = describe(&message.request);
        let _ = writeln!(self.output, "r{}: {request}: {}", message.to.0, describe_outcome(&outcome));
        self.answer(message.from, message.tag, failure.map_or(outcome, Err));
        self.act(leader(message.to));
    }

    fn answer(&mut self, at: usize, tag: Option<ReplyTag>, outcome: Outcome) {
        if let Some(tag) = tag {
            self.nodes[at].answered(tag, outcome, &self.map, self.now);
            self.act(at);
        }
    }

    fn execute(&mut self, cohort: CohortId, request: &TableRequest) -> Outcome {
        let command = match self.range(cohort).0.propose(request) {
            Payload::Command(command) => command,
            Payload::Refuse(failure) => return Err(failure),
            Payload::Decide(evaluation) => match evaluation.answer(Io::Allowed).expect("the disk can be read") {
                Evaluated::Decided(decision) => decision.command,
                Evaluated::Outcome(outcome) => return outcome,
                other => panic!("{other:?}"),
            },
        };
        let command = Command::decode(command).expect("a command");
        self.apply(cohort, &command).expect("a request has an outcome")
    }

    fn apply(&mut self, cohort: CohortId, command: &Command) -> Option<Outcome> {
        let timestamp = self.timestamp;
        let (tablet, log) = self.range(cohort);
        log.timestamp = timestamp;
        let applied = tablet.apply(&log.entry(command.encode())).expect("the log's next entry");
        self.timestamp = log.timestamp;
        let decided = match applied.effect {
            Some(Effect::Own(decided)) => Some(decided),
            Some(Effect::Locked(_)) => None,
            _ => return applied.outcome,
        };
        self.nodes[leader(cohort)].applied(cohort, decided, self.now);
        applied.outcome
    }

    fn range(&mut self, cohort: CohortId) -> (&mut Tablet, &mut Log) {
        let range = self.ranges.iter_mut().find(|(tablet, _)| cohort_of(tablet) == cohort);
        let (tablet, log) = range.expect("a range");
        (tablet, log)
    }

    /// Carries out the actions of a node.
    fn act(&mut self, at: usize) {
        for (cohort, transaction) in self.nodes[at].take_decided() {
            let tablet = self.ranges.iter().map(|(tablet, _)| tablet).find(|it| cohort_of(it) == cohort);
            self.nodes[at].announce(cohort, transaction, tablet, self.now);
        }
        for action in self.nodes[at].take_actions() {
            let _ = write!(self.output, "n{}", at + 1);
            match action {
                Action::Send { to, request, deadline, tag } => {
                    let to = match to {
                        Destination::Cohort(cohort) => cohort,
                        Destination::Table(_) => {
                            let position = state_machine::Request::position(&request).expect("a key");
                            self.map.cohort_at(&position)
                        }
                    };
                    let ms = deadline.since(self.now).as_millis();
                    let _ = writeln!(self.output, " -> r{}: {} within {ms} ms", to.0, describe(&request));
                    self.in_flight.push_back(Message { from: at, to, request, tag });
                }
                Action::Reply { call, outcome } => {
                    let _ = writeln!(self.output, " replies to #{}: {}", call.0, describe_outcome(&outcome));
                }
                Action::Propose { cohort, command } => {
                    let command = Command::decode(command).expect("a command");
                    let _ = writeln!(self.output, " proposes to r{}: {}", cohort.0, describe_command(&command));
                    self.apply(cohort, &command);
                }
            }
        }
    }

    fn state(&mut self) {
        for (tablet, _) in &self.ranges {
            let mut line = format!("r{}:", cohort_of(tablet).0);
            for key in ["a", "b", "n", "z"] {
                let view = tablet.view_now();
                if !KeyPosition::At(key.into()).is_in(tablet.ownership.range().expect("a range")) {
                    continue;
                }
                let row = view.get(&key.into(), &Columns::default(), Io::Allowed).expect("the disk can be read");
                if let Ok(TableResponse::Row { cells, .. }) = row
                    && let Some(cell) = cells.first()
                {
                    let value = String::from_utf8_lossy(&cell.value).into_owned();
                    let _ = write!(line, " {key}={value}@{}", cell.version.0);
                }
            }
            for (id, prepared) in tablet.prepared() {
                let _ = write!(line, " prepared #{}@{}", id.sequence, prepared.timestamp.0);
            }
            for (id, decided) in tablet.decided() {
                let _ = write!(line, " decided #{}@{}", id.sequence, decided.timestamp.0);
            }
            let _ = writeln!(self.output, "{line}");
        }
        for (index, machine) in self.nodes.iter().enumerate().filter(|(_, machine)| !machine.is_idle()) {
            let driven: String = machine.driven().map(|it| format!(" drives #{}", it.stamp.sequence)).collect();
            let _ = writeln!(self.output, "n{}: busy{driven}", index + 1);
        }
    }
}

fn cohort_of(tablet: &Tablet) -> CohortId {
    tablet.progress.cohort
}

/// The index of the node that leads a range.
fn leader(cohort: CohortId) -> usize {
    cohort.0 as usize - 1
}

fn number(word: &str) -> u64 {
    word.trim_start_matches('#').parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

/// The index of a node named `n1`, `n2` and so on.
fn node(word: &str) -> usize {
    word.trim_start_matches('n').parse::<usize>().unwrap_or_else(|_| panic!("not a node: {word}")) - 1
}

fn failure(word: &str) -> Failure {
    let why = "no leader".to_owned();
    match word {
        "unavailable" => Failure::Unavailable(why),
        "unknown" => Failure::Unknown(why),
        "precondition" => Failure::Precondition(why),
        _ => panic!("unknown failure: {word}"),
    }
}

fn describe(request: &TableRequest) -> String {
    let rows = |part: &TransactionPart| {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let value = |change: &RowChange| change.columns[0].1.as_ref().map(text).unwrap_or_default();
        let writes = part.writes.iter().map(|change| format!(" {}={}", text(&change.key), value(change)));
        let reads = part.reads.iter().map(|read| format!(" {}?{}", text(&read.range.start), read.seen.0));
        writes.chain(reads).collect::<String>()
    };
    match request {
        TableRequest::Prepare(prepare) => {
            format!("prepare #{}{}", prepare.coordinator.stamp.sequence, rows(&prepare.part))
        }
        TableRequest::Commit(commit) => {
            let participants = describe_participants(&commit.participants);
            format!("commit #{}{}{participants}", commit.stamp.sequence, rows(&commit.part))
        }
        TableRequest::Abort { stamp, .. } => format!("abort #{}", stamp.sequence),
        TableRequest::Resolve { transaction, prepared, committed } => {
            let outcome =
                committed.map_or_else(|| "aborted".to_owned(), |timestamp| format!("committed@{}", timestamp.0));
            format!("resolve #{}@{} {outcome}", transaction.sequence, prepared.0)
        }
        other => panic!("{other:?}"),
    }
}

fn describe_participants(participants: &[Participant]) -> String {
    participants.iter().map(|it| format!(" r{}@{}", it.cohort.0, it.prepared.0)).collect()
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Ok(TableResponse::Prepared { timestamp }) => format!("prepared@{}", timestamp.0),
        Ok(TableResponse::Written { version }) => format!("committed@{}", version.0),
        Ok(TableResponse::Resolved) => "resolved".to_owned(),
        Ok(TableResponse::Outcome(TransactionOutcome::Committed { timestamp, unresolved })) => {
            format!("was committed@{}, unresolved:{}", timestamp.0, describe_participants(unresolved))
        }
        Ok(TableResponse::Outcome(outcome)) => format!("{outcome:?}").to_lowercase(),
        Ok(other) => panic!("{other:?}"),
        Err(failure) => failure.to_string(),
    }
}

fn describe_command(command: &Command) -> String {
    match command {
        Command::Forget { transactions } => {
            format!("forget{}", transactions.iter().map(|id| format!(" #{}", id.sequence)).collect::<String>())
        }
        other => panic!("{other:?}"),
    }
}

/// Runs a script, and returns it with the current output.
fn play(text: &str) -> String {
    let (mut scene, mut played, mut lines) = (Scene::new(), String::new(), text.lines());
    while let Some(line) = lines.next() {
        let _ = writeln!(played, "{line}");
        if line == "----" {
            played.push_str(&std::mem::take(&mut scene.output));
            // The recorded output.
            if lines.any(str::is_empty) {
                played.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with("# ") {
            scene.run(line);
        }
    }
    assert!(scene.output.is_empty(), "the last block has no ----");
    played
}

#[test]
fn golden_script() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/two_phase.txt");
    let text = fs::read_to_string(path).expect("the script");
    let played = play(&text);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, played).expect("a writable directory");
    }
    for (number, (expected, actual)) in text.lines().zip(played.lines()).enumerate() {
        assert_eq!(actual, expected, "{path}:{}; UPDATE_GOLDEN=1 rewrites the output", number + 1);
    }
    assert_eq!(text.len(), played.len(), "{path}");
}

/// Each of 10,000 reads covers two of three ranges.
#[test]
fn reads_in_many_ranges_are_limited() {
    let request = |reads: usize| {
        let range = KeyRange { start: "n".into(), end: None };
        let part = TransactionPart { reads: vec![ReadSpan { range, seen: Timestamp(1) }; reads], writes: vec![] };
        TransactionRequest { parts: vec![("t".into(), part)], ..Scene::new().request(1, &[]) }
    };
    let (coordinator, parts) = divide(&map(), &request(10_000)).expect("it is within the limit");
    assert_eq!(coordinator, CohortId(2));
    assert_eq!(parts.keys().map(|cohort| cohort.0).collect::<Vec<_>>(), [3, 4]);
    assert!(matches!(divide(&map(), &request(10_001)), Err(Failure::Invalid(_))));
}

#[test]
fn unknown_table_begins_nothing() {
    let mut machine = TwoPhase::new(IN_DOUBT);
    let request = TransactionRequest { table: "u".into(), ..Scene::new().request(1, &["a=1"]) };
    let started = machine.start(Call(1), &request, &map(), Monotonic(1), Monotonic(0));
    assert_eq!(started, Err(Failure::UnknownTable("u".to_owned())));
    assert!(machine.is_idle() && machine.take_actions().is_empty());
}

/// A range that waits to be split asks the coordinator after 250 ms, once.
#[test]
fn hurry_asks_sooner() {
    let mut scene = Scene::new();
    scene.run("commit n1 #1 a=1 z=1");
    scene.run("deliver r4");
    let (tablet, ms) = (&scene.ranges[2].0, |millis| Monotonic(0) + Duration::from_millis(millis));
    let machine = &mut scene.nodes[3];
    machine.hurry(CohortId(4), Some(tablet), ms(0));
    assert_eq!(machine.next_timer(), Some(ms(250)));
    for (at, asks) in [(250, 1), (750, 0), (1_250, 0)] {
        for cohort in machine.take_due(ms(at)) {
            machine.check(cohort, Some(tablet), ms(at));
        }
        assert_eq!(machine.take_actions().len(), asks, "{at}");
        machine.hurry(CohortId(4), Some(tablet), ms(at));
    }
}

/// An unlock is answered without the rows.
#[test]
fn unlock_is_answered_at_once() {
    let request = TableRequest::Unlock { key: "a".into(), owner: LockOwner { started: Timestamp(1), id: 1 } };
    let step = Scene::new().ranges[0].0.read(&request);
    assert!(matches!(step, ReadStep::Answer(Ok(TableResponse::Unlocked))));
}
