//! Transactions on one node, which leads all ranges, and on three.

use base::{KeyRange, LogRecord, Record, Timestamp};
use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, TableOptions};
use state_machine::{ClientSessionId, Consistency, LockOwner, SessionStamp, StateMachine as _};
use tablets::request::{Columns, Mutation, Write};
use tablets::transaction::{
    Commit, Coordinator, Participant, Prepare, ReadSpan, RowChange, TransactionId, TransactionOutcome, TransactionPart,
};
use tablets::{Command, TableRequest, TableResponse, Tablet};

use super::*;
use crate::contract::RequestId;
use crate::request::{Request, TransactionRequest};
use crate::testing::{Bench, Cluster, empty};

const FIRST: CohortId = CohortId(2);
const SECOND: CohortId = CohortId(3);

const OLD: LockOwner = LockOwner { started: Timestamp(1), id: 1 };
const YOUNG: LockOwner = LockOwner { started: Timestamp(2), id: 1 };

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn create(transactions: bool) -> Request {
    let options = TableOptions { transactions: Some(transactions), ..TableOptions::of(Tablet::KIND) };
    Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
        name: "t".into(),
        split_at: vec!["m".into()],
        options,
    }))
}

/// A node with a table of two ranges, divided at `m`, and a session in the first.
fn alone() -> (Bench, ClientSessionId) {
    with_uncertainty(ms(5))
}

fn with_uncertainty(uncertainty: Duration) -> (Bench, ClientSessionId) {
    let mut bench = Bench::start(empty(1, 1));
    bench.now.uncertainty = Some(uncertainty);
    bench.pass(ms(5_000));
    bench.ask(1, create(true));
    bench.pass(ms(3_000));
    let session = open(&mut bench, 2);
    (bench, session)
}

fn open(bench: &mut Bench, number: u64) -> ClientSessionId {
    bench.ask(number, of_table(TableRequest::OpenSession { key: "a".into() }));
    bench.pass(ms(1_000));
    match &bench.answers[&RequestId(number)] {
        Ok(Response::Tablet(TableResponse::SessionOpened { session, .. })) => *session,
        other => panic!("{other:?}"),
    }
}

fn of_table(request: TableRequest) -> Request {
    Request::table("t", request)
}

fn put(key: &'static str, value: &'static str) -> Request {
    let mutations = vec![Mutation { column: "c".into(), value: Some(value.into()), condition: None }];
    of_table(TableRequest::Write(Write { stamp: None, key: key.into(), mutations }))
}

fn get(key: &'static str, consistency: Consistency) -> Request {
    of_table(TableRequest::Get { key: key.into(), columns: Columns::default(), consistency })
}

fn stamp(session: ClientSessionId, sequence: u64) -> SessionStamp {
    SessionStamp { session, sequence, first_incomplete: 1 }
}

fn row(key: &'static str, value: &'static str) -> RowChange {
    RowChange { key: key.into(), deletes_row: false, columns: vec![("c".into(), Some(value.into()))] }
}

fn read(key: &'static str, seen: Timestamp) -> ReadSpan {
    let end = [key.as_bytes(), &[0]].concat();
    ReadSpan { range: KeyRange { start: key.into(), end: Some(end.into()) }, seen }
}

fn part(reads: &[ReadSpan], writes: &[RowChange]) -> TransactionPart {
    TransactionPart { reads: reads.to_vec(), writes: writes.to_vec() }
}

fn transaction(stamp: SessionStamp, owner: LockOwner, part: TransactionPart) -> Request {
    let (table, key, parts) = ("t".into(), "a".into(), vec![("t".into(), part)]);
    Request::Transaction(Box::new(TransactionRequest { stamp, table, key, owner, parts }))
}

fn transaction_id(stamp: SessionStamp) -> TransactionId {
    TransactionId::from(&stamp)
}

impl Bench {
    /// The value of a row, by a strong read.
    fn value(&mut self, key: &'static str) -> Option<Bytes> {
        let number = 1_000_000 + self.answers.len() as u64;
        self.ask(number, get(key, Consistency::Strong));
        self.pass(ms(200));
        match self.answers.get(&RequestId(number)) {
            Some(Ok(Response::Tablet(TableResponse::Row { cells, .. }))) => {
                cells.first().map(|cell| cell.value.clone())
            }
            other => panic!("{key}: {other:?}"),
        }
    }

    fn answer(&self, number: u64) -> &Outcome {
        self.answers.get(&RequestId(number)).unwrap_or_else(|| panic!("{number} is not answered"))
    }

    fn committed(&self, number: u64) -> Timestamp {
        match self.answer(number) {
            Ok(Response::Tablet(TableResponse::Committed { timestamp, .. })) => *timestamp,
            Ok(Response::Tablet(TableResponse::Written { version })) => *version,
            Ok(Response::Tablet(TableResponse::Outcome(TransactionOutcome::Committed { timestamp, .. }))) => *timestamp,
            other => panic!("{other:?}"),
        }
    }

    fn is_aborted(&self, number: u64) -> bool {
        matches!(self.answer(number), Err(Failure::Aborted(_)))
    }

    fn tablet(&self, cohort: CohortId) -> &Tablet {
        self.node.replicas[&cohort].state.as_tablet().expect("it is a range of a table")
    }

    /// Sends a part to a range as a driver would that fails immediately afterwards.
    fn direct(&mut self, number: u64, cohort: CohortId, request: TableRequest) {
        let deadline = self.now.monotonic + ms(10_000);
        let query = Query::Machine(request.into());
        self.node.begin(ReplyTo::Client(RequestId(number)), deadline, Target::Cohort(cohort), query, self.now);
        self.step(crate::contract::Event::Timer);
    }

    fn prepare(&mut self, number: u64, stamp: SessionStamp, owner: LockOwner, part: TransactionPart) {
        let coordinator = Coordinator { table: "t".into(), key: "a".into(), stamp };
        self.direct(number, SECOND, TableRequest::Prepare(Box::new(Prepare { coordinator, owner, part })));
    }

    fn prepared(&self, number: u64) -> Timestamp {
        match self.answer(number) {
            Ok(Response::Tablet(TableResponse::Prepared { timestamp })) => *timestamp,
            other => panic!("{other:?}"),
        }
    }

    /// The participant has resolved a transaction, and the coordinator has not forgotten it.
    fn pass_until_resolved(&mut self) {
        while self.tablet(FIRST).decided().is_empty() || !self.tablet(SECOND).prepared().is_empty() {
            self.pass(ms(5));
        }
    }

    /// Checks that no node holds state of a transaction.
    fn rests(&self) {
        for cohort in [FIRST, SECOND] {
            let tablet = self.tablet(cohort);
            assert!(tablet.prepared().is_empty() && tablet.decided().is_empty(), "{cohort}: {tablet:?}");
            assert!(self.node.replicas[&cohort].latches.is_empty(), "{cohort}");
        }
        assert!(self.node.transactions.machine.is_idle(), "{:?}", self.node.transactions);
        self.node.invariants();
    }

    /// The node after a restart, with the records that its log retains.
    fn restarted(&self, mut retains: impl FnMut(&Record) -> bool) -> Self {
        let mut recovered = empty(1, 1);
        recovered.boot = base::Boot(2);
        recovered.records = self.appended.iter().filter(|record| retains(record)).cloned().collect();
        recovered.cohorts = self.manifests.last().expect("a manifest was written").0.clone();
        let mut bench = Self::start(recovered);
        bench.now = Now { monotonic: Monotonic(1), ..self.now };
        bench
    }
}

fn command(record: &Record) -> Option<Command> {
    match &record.body {
        LogRecord::Entry(entry) if record.cohort >= FIRST && !entry.payload.is_empty() => {
            Command::decode(entry.payload.clone()).ok()
        }
        _ => None,
    }
}

#[test]
fn commits_in_one_range() {
    let (mut bench, session) = alone();
    let now = bench.tablet(FIRST).last_timestamp();
    let both = part(&[read("b", now)], &[row("a", "1"), row("b", "1")]);
    bench.ask(3, transaction(stamp(session, 1), OLD, both.clone()));
    bench.pass(ms(100));
    let timestamp = bench.committed(3);
    assert!(matches!(bench.answer(3), Ok(Response::Tablet(TableResponse::Committed { uncertainty, .. }))
        if *uncertainty == ms(5)));
    assert_eq!((bench.value("a"), bench.value("b")), (Some("1".into()), Some("1".into())));
    // Once more, and another one that has seen what this one has replaced.
    bench.ask(4, transaction(stamp(session, 1), OLD, both.clone()));
    bench.ask(5, transaction(stamp(session, 2), OLD, both));
    bench.pass(ms(100));
    assert_eq!(bench.committed(4), timestamp);
    assert!(bench.is_aborted(5));
    let counts = bench.node.transactions.counts;
    assert_eq!((counts.committed, counts.aborted_by_conflict), (2, 1));
    bench.rests();
}

#[test]
fn commits_in_two_ranges() {
    let (mut bench, session) = alone();
    bench.ask(3, transaction(stamp(session, 1), OLD, part(&[], &[row("a", "1"), row("z", "1")])));
    bench.pass(ms(100));
    let timestamp = bench.committed(3);
    for key in ["a", "z"] {
        assert_eq!(bench.value(key), Some("1".into()));
    }
    assert!(bench.tablet(SECOND).last_timestamp() >= timestamp);
    bench.pass(ms(1_500));
    bench.rests();
    let forgotten = bench.appended.iter().filter_map(command).filter(|it| matches!(it, Command::Forget { .. }));
    assert_eq!(forgotten.count(), 1);
    let resolved = bench.appended.iter().filter_map(command).filter(|it| matches!(it, Command::Resolve { .. }));
    assert_eq!(resolved.count(), 1);
}

/// The participant has resolved the transaction, and the coordinator is about to forget it.
#[test]
fn repeated_commit_resolves_nothing_again() {
    let (mut bench, session) = alone();
    let both = part(&[], &[row("a", "1"), row("z", "1")]);
    let request = transaction(stamp(session, 1), OLD, both);
    bench.ask(3, request.clone());
    bench.pass_until_resolved();
    let resolved = |bench: &Bench| {
        bench.appended.iter().filter_map(command).filter(|it| matches!(it, Command::Resolve { .. })).count()
    };
    assert_eq!((resolved(&bench), bench.tablet(FIRST).decided().len()), (1, 1));
    let participants = bench.tablet(FIRST).decided().values().next().expect("it is decided").participants.clone();
    let (stamp, part) = (stamp(session, 1), part(&[], &[row("a", "1")]));
    let commit = Commit { stamp, key: "a".into(), owner: OLD, part, participants };
    bench.direct(4, FIRST, TableRequest::Commit(Box::new(commit)));
    bench.pass(ms(20));
    assert_eq!(bench.committed(4), bench.committed(3));
    bench.pass(ms(2_000));
    assert_eq!(resolved(&bench), 1);
    bench.rests();
}

/// Another driver prepares when the participant has resolved the transaction already.
#[test]
fn prepare_after_resolution_is_released() {
    let (mut bench, session) = alone();
    let request = transaction(stamp(session, 1), OLD, part(&[], &[row("a", "1"), row("z", "1")]));
    bench.ask(3, request.clone());
    bench.pass_until_resolved();
    assert!(bench.tablet(SECOND).prepared().is_empty());
    bench.ask(4, request);
    bench.pass(ms(500));
    assert_eq!(bench.committed(4), bench.committed(3));
    assert!(bench.tablet(SECOND).prepared().is_empty());
    bench.pass(ms(3_000));
    bench.rests();
    assert_eq!(bench.node.counters.doubts_resolved, 0);
}

/// A client names a state that no range can have shown, in one range and in two.
#[test]
fn reads_of_the_future_abort() {
    let (mut bench, session) = alone();
    let reads = [read("z", Timestamp(i64::MAX))];
    let in_one = transaction(stamp(session, 1), OLD, part(&reads, &[row("z", "1")]));
    let in_two = transaction(stamp(session, 2), OLD, part(&reads, &[row("a", "1")]));
    for (number, request) in [(3, in_one), (4, in_two)] {
        bench.ask(number, request);
        bench.pass(ms(100));
        assert!(bench.is_aborted(number), "{:?}", bench.answer(number));
    }
    bench.pass(ms(3_000));
    bench.rests();
}

/// A table that was read is dropped, and another one of the same name is created.
#[test]
fn reads_of_replaced_table_abort() {
    let (mut bench, session) = alone();
    let reads = [read("b", bench.tablet(FIRST).last_timestamp())];
    bench.ask(3, transaction(stamp(session, 1), OLD, part(&reads, &[row("a", "1")])));
    bench.pass(ms(100));
    assert!(bench.answer(3).is_ok());
    bench
        .ask(4, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(ms(3_000));
    bench.ask(5, create(true));
    bench.pass(ms(3_000));
    let session = open(&mut bench, 6);
    bench.ask(7, transaction(stamp(session, 1), OLD, part(&reads, &[row("a", "1")])));
    bench.pass(ms(100));
    assert!(bench.is_aborted(7), "{:?}", bench.answer(7));
}

/// The state at a participant has changed since the read, then at the coordinator.
#[test]
fn conflict_in_any_range_aborts() {
    for key in ["a", "z"] {
        let (mut bench, session) = alone();
        bench.ask(3, put("a", "0"));
        bench.ask(4, put("z", "0"));
        bench.pass(ms(100));
        let seen = |bench: &Bench| {
            [read("a", bench.tablet(FIRST).last_timestamp()), read("z", bench.tablet(SECOND).last_timestamp())]
        };
        let reads = seen(&bench);
        bench.ask(5, put(key, "1"));
        bench.pass(ms(100));
        let writes = [row("a", "2"), row("z", "2")];
        bench.ask(6, transaction(stamp(session, 1), OLD, part(&reads, &writes)));
        bench.pass(ms(100));
        assert!(bench.is_aborted(6), "{key}");
        let other = if key == "a" { "z" } else { "a" };
        assert_eq!((bench.value(key), bench.value(other)), (Some("1".into()), Some("0".into())));
        // The outcome is definite: the same stamp is never executed.
        let reads = seen(&bench);
        bench.ask(7, transaction(stamp(session, 1), OLD, part(&reads, &writes)));
        bench.ask(8, transaction(stamp(session, 2), OLD, part(&reads, &writes)));
        bench.pass(ms(1_000));
        assert!(bench.is_aborted(7));
        assert!(bench.is_aborted(8) || bench.committed(8) > Timestamp(0));
        bench.pass(ms(6_500));
        bench.rests();
    }
}

/// A commit with reads that are older than the retention is refused with both timestamps, by the coordinator or by a
/// participant. A retry returns the same reason. A read at such a timestamp is refused in the same way.
#[test]
fn too_old_names_both_timestamps() {
    for (key, cohort) in [("a", FIRST), ("z", SECOND)] {
        let (mut bench, session) = alone();
        bench.ask(3, put(key, "0"));
        bench.pass(ms(100));
        let oldest = bench.tablet(cohort).last_timestamp();
        let old = Timestamp(oldest.0 - 1);
        let both = part(&[read(key, old)], &[row("a", "1"), row("z", "1")]);
        bench.node.propose(cohort, Command::Watermark(oldest).encode(), bench.now);
        bench.pass(ms(100));
        assert_eq!(bench.tablet(cohort).watermark(), oldest);
        bench.ask(5, transaction(stamp(session, 1), OLD, both.clone()));
        bench.ask(6, get(key, Consistency::At(old)));
        bench.pass(ms(1_000));
        let is_named = |text: String| text.contains(&old.to_string()) && text.contains(&oldest.to_string());
        let text = |bench: &Bench, number| bench.answer(number).as_ref().expect_err("it is too old").to_string();
        assert!(bench.is_aborted(5) && is_named(text(&bench, 5)), "{:?}", bench.answer(5));
        assert!(matches!(bench.answer(6), Err(Failure::Precondition(_))) && is_named(text(&bench, 6)));
        bench.ask(7, transaction(stamp(session, 1), OLD, both));
        bench.pass(ms(1_000));
        assert!(bench.is_aborted(7) && is_named(text(&bench, 7)), "{:?}", bench.answer(7));
        bench.rests();
    }
}

/// A driver dies after a prepare. Changes and reads of the rows wait until the participant has asked, which aborts the
/// transaction.
#[test]
fn participant_asks_about_transaction_in_doubt() {
    let (mut bench, session) = alone();
    bench.ask(3, put("y", "0"));
    bench.pass(ms(100));
    bench.prepare(
        4,
        stamp(session, 1),
        OLD,
        part(&[read("y", bench.tablet(SECOND).last_timestamp())], &[row("z", "1")]),
    );
    bench.pass(ms(100));
    bench.prepared(4);
    bench.ask(5, put("z", "2"));
    bench.ask(6, put("y", "2"));
    bench.ask(7, get("z", Consistency::Strong));
    bench.ask(8, get("y", Consistency::Strong));
    bench.ask(9, put("x", "2"));
    bench.ask(10, get("z", Consistency::Timeline { at_least: None, stale_ok: true }));
    bench.pass(Duration(crate::NodeConfig::default().in_doubt.0 / 2));
    for waits in [5, 6, 7] {
        assert!(!bench.answers.contains_key(&RequestId(waits)), "{waits}");
    }
    for answered in [8, 9, 10] {
        assert!(bench.answer(answered).is_ok(), "{answered}");
    }
    bench.pass(ms(2_000));
    for answered in [5, 6, 7] {
        assert!(bench.answer(answered).is_ok(), "{answered}");
    }
    assert_eq!(bench.node.counters.doubts_resolved, 1);
    assert_eq!((bench.value("z"), bench.value("y")), (Some("2".into()), Some("2".into())));
    // The driver was only slow.
    let participants = vec![Participant { cohort: SECOND, prepared: bench.prepared(4) }];
    let (stamp, part) = (stamp(session, 1), part(&[], &[row("a", "1")]));
    let commit = Commit { stamp, key: "a".into(), owner: OLD, part, participants };
    bench.direct(11, FIRST, TableRequest::Commit(Box::new(commit)));
    bench.pass(ms(1_000));
    assert!(bench.is_aborted(11));
    assert_eq!(bench.value("a"), None);
    bench.rests();
}

/// At any time, some transaction is prepared in the range. A strong scan ends nevertheless. It waits for those prepared
/// before it began, and shows their changes, and for those prepared before these were resolved.
#[test]
fn strong_scan_passes_later_transactions() {
    for consistency in [Consistency::Strong, Consistency::Anywhere, Consistency::Locking(YOUNG)] {
        let (mut bench, session) = alone();
        let rows = ["p", "q", "r"];
        let stamps: Vec<SessionStamp> = (1..5).map(|number| stamp(session, number)).collect();
        let prepare = |bench: &mut Bench, index: usize| {
            bench.prepare(10 + index as u64, stamps[index], OLD, part(&[], &[row(rows[index], "1")]));
            bench.pass(ms(100));
            bench.prepared(10 + index as u64);
        };
        let resolve = |bench: &mut Bench, index: usize| {
            let (transaction, prepared) = (transaction_id(stamps[index]), bench.prepared(10 + index as u64));
            let committed = Timestamp(bench.tablet(SECOND).last_timestamp().0 + 1);
            let committed = Some(committed);
            bench.direct(20 + index as u64, SECOND, TableRequest::Resolve { transaction, prepared, committed });
            bench.pass(ms(100));
            assert!(bench.answer(20 + index as u64).is_ok());
        };
        prepare(&mut bench, 0);
        let scan = tablets::request::Scan { from: "m".into(), ..Default::default() };
        bench.ask(3, of_table(TableRequest::Scan { scan, consistency }));
        bench.pass(ms(100));
        for index in [1, 2] {
            assert!(!bench.answers.contains_key(&RequestId(3)), "{consistency:?} {index}");
            prepare(&mut bench, index);
            resolve(&mut bench, index - 1);
        }
        assert_eq!(bench.tablet(SECOND).prepared().len(), 1);
        let (response, seen) = match bench.answer(3).clone().expect("only a later transaction is prepared") {
            Response::Dated { response, as_of } => (*response, Some(as_of.timestamp)),
            response => (response, None),
        };
        let Response::Tablet(TableResponse::Rows { rows: found, .. }) = response else { panic!("{response:?}") };
        // The second one has a commit timestamp above the prepare of the third.
        assert_eq!(found.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), ["p"]);
        if let Some(seen) = seen {
            // The state that it names is the one that it has shown, so that a commit is aborted.
            let span = ReadSpan { range: KeyRange { start: "m".into(), end: None }, seen };
            resolve(&mut bench, 2);
            bench.ask(4, transaction(stamps[3], OLD, part(&[span], &[row("a", "1")])));
            bench.pass(ms(1_000));
            assert!(bench.is_aborted(4), "{:?}", bench.answer(4));
        }
    }
}

/// A new leader holds the locks of prepared transactions before it admits a change.
#[test]
fn new_leader_holds_prepared_locks() {
    let (mut bench, session) = alone();
    bench.prepare(3, stamp(session, 1), OLD, part(&[], &[row("z", "1")]));
    bench.pass(ms(100));
    bench.prepared(3);
    let mut again = bench.restarted(|_| true);
    again.ask(4, put("z", "2"));
    again.ask(5, put("y", "2"));
    again.pass(Duration(crate::NodeConfig::default().in_doubt.0 / 2));
    assert_eq!(again.tablet(SECOND).prepared().len(), 1);
    assert!(!again.answers.contains_key(&RequestId(4)) && again.answer(5).is_ok());
    again.pass(ms(6_000));
    assert!(again.answer(4).is_ok());
    assert_eq!(again.value("z"), Some("2".into()));
    again.rests();
}

/// The coordinator's leader dies when it has committed, before any participant knows. The new one informs them.
#[test]
fn new_leader_tells_participants() {
    let (mut bench, session) = alone();
    bench.ask(3, transaction(stamp(session, 1), OLD, part(&[], &[row("a", "1"), row("z", "1")])));
    bench.pass(ms(2_000));
    let timestamp = bench.committed(3);
    let (mut has_committed, mut is_over) = (false, false);
    let mut again = bench.restarted(|record| {
        let command = command(record);
        has_committed |= matches!(command, Some(Command::Commit { .. }));
        is_over |= has_committed && matches!(command, Some(Command::Resolve { .. } | Command::Forget { .. }));
        !is_over
    });
    assert!(is_over && again.tablet(FIRST).decided().is_empty(), "entries are applied when they are committed");
    again.pass(ms(8_000));
    assert_eq!((again.value("a"), again.value("z")), (Some("1".into()), Some("1".into())));
    let TransactionId { session, sequence } = transaction_id(stamp(session, 1));
    let resolved = again.appended.iter().filter_map(command).any(|command| {
        matches!(command, Command::Resolve { transaction, committed, .. }
            if transaction == TransactionId { session, sequence } && committed == Some(timestamp))
    });
    assert!(resolved);
    again.rests();
}

/// A prepare that is sent again is answered, although the first one holds its locks.
#[test]
fn repeated_prepare_is_answered() {
    // Entries wait 200 ms for their timestamps.
    let (mut bench, session) = with_uncertainty(ms(100));
    let part = part(&[read("y", bench.tablet(SECOND).last_timestamp())], &[row("z", "1")]);
    for number in 3..6 {
        bench.prepare(number, stamp(session, 1), OLD, part.clone());
        bench.pass(ms(20));
        assert!(!bench.answers.contains_key(&RequestId(number)));
    }
    bench.pass(ms(500));
    bench.prepare(6, stamp(session, 1), OLD, part);
    bench.pass(ms(500));
    for number in 4..7 {
        assert_eq!(bench.prepared(number), bench.prepared(3));
    }
    assert_eq!(bench.tablet(SECOND).prepared().len(), 1);
    bench.pass(ms(6_000));
    bench.rests();
}

/// The keys of a commit are in several ranges since a split. That is no outcome: an earlier attempt may have committed.
#[test]
fn commit_of_split_range_is_not_aborted() {
    let (mut bench, session) = alone();
    let (stamp, part) = (stamp(session, 1), part(&[], &[row("a", "1"), row("z", "1")]));
    let commit = Commit { stamp, key: "a".into(), owner: OLD, part, participants: vec![] };
    bench.direct(3, FIRST, TableRequest::Commit(Box::new(commit)));
    assert!(matches!(bench.answer(3), Err(Failure::Unavailable(_))), "{:?}", bench.answer(3));
    bench.rests();
}

/// A transaction in several ranges does not wait for an older one, but for a younger one, also behind other changes.
#[test]
fn older_transactions_have_priority() {
    for (holder, asker, is_refused) in [(OLD, YOUNG, true), (YOUNG, OLD, false)] {
        let (mut bench, session) = alone();
        bench.prepare(3, stamp(session, 1), holder, part(&[], &[row("z", "1")]));
        bench.pass(ms(100));
        let writes = [row("a", "2"), row("z", "2")];
        bench.ask(4, transaction(stamp(session, 2), asker, part(&[], &writes)));
        bench.pass(ms(1_000));
        assert_eq!(bench.answers.contains_key(&RequestId(4)), is_refused);
        if is_refused {
            assert!(bench.is_aborted(4));
        }
        bench.pass(ms(6_000));
        assert_eq!(bench.is_aborted(4), is_refused);
        let counts = bench.node.transactions.counts;
        assert_eq!((counts.aborted_by_priority, counts.lock_waits), (u64::from(is_refused), u64::from(!is_refused)));
        let expected = if is_refused { None } else { Some("2".into()) };
        assert_eq!((bench.value("a"), bench.value("z")), (expected.clone(), expected));
        bench.pass(ms(1_000));
        bench.rests();
    }
}

/// The rest of the deadline is for the decision, so the outcome is definite.
#[test]
fn deadline_while_preparing() {
    let (mut bench, session) = alone();
    bench.prepare(3, stamp(session, 1), YOUNG, part(&[], &[row("z", "1")]));
    bench.pass(ms(100));
    let deadline = bench.now.monotonic + ms(2_000);
    let request = transaction(stamp(session, 2), OLD, part(&[], &[row("a", "2"), row("z", "2")]));
    bench.step(crate::contract::Event::Request { id: RequestId(4), deadline, request });
    bench.pass(ms(1_400));
    assert!(!bench.answers.contains_key(&RequestId(4)));
    bench.pass(ms(200));
    assert!(bench.is_aborted(4), "{:?}", bench.answer(4));
    bench.pass(ms(6_000));
    assert_eq!((bench.value("a"), bench.value("z")), (None, None));
    bench.rests();
}

/// Reads of a transaction lock out younger ones and not older ones, nor writes without a transaction.
#[test]
fn read_locks_give_priority() {
    let (mut bench, session) = alone();
    bench.ask(3, put("a", "0"));
    bench.pass(ms(100));
    bench.ask(4, get("a", Consistency::Locking(OLD)));
    bench.pass(ms(100));
    let Ok(Response::Dated { as_of, .. }) = bench.answer(4) else { panic!("{:?}", bench.answer(4)) };
    let seen = as_of.timestamp;
    bench.ask(5, transaction(stamp(session, 1), YOUNG, part(&[read("a", seen)], &[row("a", "1")])));
    bench.pass(ms(500));
    assert!(!bench.answers.contains_key(&RequestId(5)), "it waits for the older one");
    bench.ask(6, transaction(stamp(session, 2), OLD, part(&[read("a", seen)], &[row("a", "2")])));
    bench.pass(ms(500));
    bench.committed(6);
    assert!(bench.is_aborted(5));
    bench.ask(7, get("a", Consistency::Locking(OLD)));
    bench.pass(ms(100));
    bench.ask(8, put("a", "3"));
    bench.pass(ms(100));
    assert!(bench.answer(8).is_ok(), "it has priority");
    bench.ask(9, get("b", Consistency::Locking(OLD)));
    bench.pass(ms(100));
    bench.ask(10, of_table(TableRequest::Unlock { key: "b".into(), owner: OLD }));
    bench.ask(11, transaction(stamp(session, 3), YOUNG, part(&[], &[row("b", "1")])));
    bench.pass(ms(100));
    bench.committed(11);
    assert!(bench.node.replicas[&FIRST].read_locks.is_empty());
    bench.rests();
}

/// A locking read that waits ends when its transaction does, and a copy that arrives afterwards locks nothing.
#[test]
fn ended_transactions_lock_nothing() {
    let (mut bench, session) = alone();
    bench.ask(3, get("a", Consistency::ForUpdate(OLD)));
    bench.pass(ms(100));
    assert!(bench.answer(3).is_ok());
    bench.ask(4, get("a", Consistency::ForUpdate(YOUNG)));
    bench.pass(ms(100));
    assert!(!bench.answers.contains_key(&RequestId(4)), "it waits");
    bench.ask(5, of_table(TableRequest::Unlock { key: "a".into(), owner: YOUNG }));
    bench.pass(ms(1));
    assert!(bench.answer(4).is_ok(), "{:?}", bench.answer(4));
    bench.ask(6, of_table(TableRequest::Unlock { key: "a".into(), owner: OLD }));
    bench.ask(7, get("a", Consistency::ForUpdate(OLD)));
    bench.pass(ms(100));
    assert!(bench.answer(7).is_ok() && bench.node.replicas[&FIRST].read_locks.is_empty());
    bench.ask(8, transaction(stamp(session, 1), YOUNG, part(&[], &[row("a", "1")])));
    bench.pass(ms(100));
    bench.committed(8);
    bench.rests();
}

/// A split waits for a prepared transaction. Meanwhile, writes and reads go on, and new transactions over several ranges
/// are refused. The range asks the coordinator earlier than usual, which aborts the transaction if its driver has died.
#[test]
fn split_waits_for_prepared_transaction() {
    for is_alive in [true, false] {
        let (mut bench, session) = alone();
        bench.prepare(3, stamp(session, 1), OLD, part(&[], &[row("z", "1")]));
        bench.pass(ms(100));
        let prepared = bench.prepared(3);
        let split = CatalogCommand::BeginSplit { name: "t".into(), key: "s".into() };
        bench.ask(4, Request::Catalog(CatalogRequest::Change(split)));
        bench.pass(ms(50));
        bench.ask(5, put("x", "1"));
        bench.ask(6, put("n", "1"));
        bench.ask(7, get("n", Consistency::Strong));
        let alone = part(&[read("z", bench.tablet(SECOND).last_timestamp())], &[row("y", "1")]);
        bench.prepare(8, stamp(session, 2), OLD, alone);
        bench.prepare(9, stamp(session, 1), OLD, part(&[], &[row("z", "1")]));
        bench.pass(ms(50));
        for number in [5, 6, 7] {
            assert!(bench.answer(number).is_ok(), "{number}: {:?}", bench.answer(number));
        }
        assert!(matches!(bench.answer(8), Err(Failure::Unavailable(_))), "{:?}", bench.answer(8));
        assert_eq!(bench.prepared(9), prepared, "it is answered for what is prepared");
        assert!(!bench.answers.contains_key(&RequestId(4)));
        if is_alive {
            let participants = vec![Participant { cohort: SECOND, prepared }];
            let (stamp, part) = (stamp(session, 1), part(&[], &[row("a", "1")]));
            let commit = Commit { stamp, key: "a".into(), owner: OLD, part, participants };
            bench.direct(10, FIRST, TableRequest::Commit(Box::new(commit)));
        }
        bench.pass(ms(700));
        assert!(bench.answer(4).is_ok(), "{:?}", bench.answer(4));
        assert_eq!(bench.node.counters.doubts_resolved, u64::from(!is_alive));
        let expected = is_alive.then(|| Bytes::from("1"));
        assert_eq!((bench.value("a"), bench.value("z")), (expected.clone(), expected));
        assert_eq!((bench.value("n"), bench.value("x")), (Some("1".into()), Some("1".into())));
        bench.ask(11, transaction(stamp(session, 3), OLD, part(&[], &[row("n", "2"), row("x", "2")])));
        bench.pass(ms(2_000));
        assert!(bench.answer(11).is_ok(), "{:?}", bench.answer(11));
        assert!(bench.node.replicas.iter().all(|(_, replica)| replica.latches.is_empty()));
    }
}

/// Requests that end while they wait for latches leave nothing behind.
#[test]
fn waiting_requests_end_at_their_deadlines() {
    let (mut bench, session) = alone();
    bench.prepare(
        3,
        stamp(session, 1),
        YOUNG,
        part(&[read("y", bench.tablet(SECOND).last_timestamp())], &[row("z", "1")]),
    );
    bench.pass(ms(100));
    let requests = [
        put("z", "2"),
        put("y", "2"),
        get("z", Consistency::Locking(OLD)),
        get("z", Consistency::Strong),
        transaction(stamp(session, 2), OLD, part(&[], &[row("a", "2"), row("z", "2")])),
        transaction(stamp(session, 3), OLD, part(&[], &[row("y", "2"), row("z", "2")])),
    ];
    for (number, request) in (10..).zip(requests) {
        let deadline = bench.now.monotonic + ms(1_000 + number);
        bench.step(crate::contract::Event::Request { id: RequestId(number), deadline, request });
    }
    bench.pass(ms(2_000));
    for number in 10..16 {
        assert!(bench.answer(number).is_err(), "{number}: {:?}", bench.answer(number));
    }
    bench.pass(ms(6_000));
    assert_eq!((bench.value("a"), bench.value("y"), bench.value("z")), (None, None, None));
    bench.rests();
}

#[test]
fn refused_without_clock_or_option() {
    let (mut bench, session) = alone();
    bench.now.uncertainty = None;
    bench.pass(ms(1_000));
    for (number, writes) in [(3, vec![row("a", "1")]), (4, vec![row("a", "1"), row("z", "1")])] {
        bench.ask(number, transaction(stamp(session, number), OLD, part(&[], &writes)));
        bench.pass(ms(500));
        assert!(matches!(bench.answer(number), Err(Failure::Precondition(_))), "{:?}", bench.answer(number));
    }
    assert!((bench.value("a"), bench.value("z")) == (None, None));
    bench.pass(ms(6_500));
    bench.rests();

    let mut bench = Bench::start(empty(1, 1));
    bench.now.uncertainty = Some(ms(5));
    bench.pass(ms(5_000));
    bench.ask(1, create(false));
    bench.pass(ms(3_000));
    let session = open(&mut bench, 2);
    bench.ask(3, transaction(stamp(session, 1), OLD, part(&[], &[row("a", "1")])));
    bench.prepare(4, stamp(session, 1), OLD, part(&[], &[row("z", "1")]));
    let other = TransactionRequest {
        stamp: stamp(session, 1),
        table: "u".into(),
        key: "a".into(),
        owner: OLD,
        parts: vec![("u".into(), part(&[], &[row("a", "1")]))],
    };
    bench.ask(5, Request::Transaction(Box::new(other)));
    bench.pass(ms(500));
    assert!(matches!(bench.answer(3), Err(Failure::Precondition(_))), "{:?}", bench.answer(3));
    assert!(matches!(bench.answer(4), Err(Failure::Precondition(_))), "{:?}", bench.answer(4));
    assert_eq!(*bench.answer(5), Err(Failure::UnknownTable("u".into())));
    bench.rests();
}

/// Three nodes with a table of two ranges, and a session in the first.
fn three() -> (Cluster, ClientSessionId) {
    let mut cluster = Cluster::start();
    cluster.nodes.iter_mut().for_each(|bench| bench.now.uncertainty = Some(ms(5)));
    cluster.pass(ms(6_000));
    cluster.nodes[0].ask(1, create(true));
    cluster.pass(ms(5_000));
    cluster.nodes[0].ask(2, of_table(TableRequest::OpenSession { key: "a".into() }));
    cluster.pass(ms(1_000));
    let session = match cluster.nodes[0].answer(2) {
        Ok(Response::Tablet(TableResponse::SessionOpened { session, .. })) => *session,
        other => panic!("{other:?}"),
    };
    (cluster, session)
}

fn leader(cluster: &Cluster, cohort: CohortId) -> usize {
    let leads = |bench: &Bench| bench.node.replicas[&cohort].cohort.leads();
    cluster.nodes.iter().position(leads).expect("there is a leader")
}

/// A transaction can be driven by any node, and sent again to any node.
#[test]
fn any_node_drives_a_commit() {
    let (mut cluster, session) = three();
    for (number, node) in [(3, 0), (4, 1), (5, 2)] {
        let request = transaction(stamp(session, number), OLD, part(&[], &[row("a", "1"), row("z", "1")]));
        cluster.nodes[node].ask(number, request.clone());
        cluster.nodes[(node + 1) % 3].ask(number, request);
        cluster.pass(ms(1_000));
        assert_eq!(cluster.nodes[node].committed(number), cluster.nodes[(node + 1) % 3].committed(number));
    }
    cluster.pass(ms(7_000));
    cluster.nodes.iter().for_each(Bench::rests);
    let states = [FIRST, SECOND].map(|cohort| cluster.nodes[leader(&cluster, cohort)].tablet(cohort).last_timestamp());
    assert!(states.iter().all(|timestamp| *timestamp > Timestamp(0)));
}

/// Two transactions change two rows in opposite order of the ranges: there is no deadlock, and the older one commits.
#[test]
fn opposite_order_is_no_deadlock() {
    let (mut cluster, session) = three();
    cluster.nodes[1].ask(3, of_table(TableRequest::OpenSession { key: "z".into() }));
    cluster.pass(ms(500));
    let Ok(Response::Tablet(TableResponse::SessionOpened { session: other, .. })) = cluster.nodes[1].answer(3) else {
        panic!("{:?}", cluster.nodes[1].answer(3))
    };
    let (other, writes) = (*other, [row("a", "1"), row("z", "1")]);
    let reversed = TransactionRequest {
        stamp: stamp(other, 1),
        table: "t".into(),
        key: "z".into(),
        owner: YOUNG,
        parts: vec![("t".into(), part(&[], &[row("a", "2"), row("z", "2")]))],
    };
    cluster.nodes[0].ask(4, transaction(stamp(session, 1), OLD, part(&[], &writes)));
    cluster.nodes[1].ask(5, Request::Transaction(Box::new(reversed)));
    cluster.pass(ms(2_000));
    cluster.nodes[0].committed(4);
    let young = cluster.nodes[1].answer(5).clone();
    assert!(matches!(young, Err(Failure::Aborted(_)) | Ok(_)), "{young:?}");
    cluster.pass(ms(6_000));
    cluster.nodes.iter().for_each(Bench::rests);
}

/// The leader of the coordinator's range is cut off with a transaction that it drives. The others resolve it.
#[test]
fn transactions_survive_their_leader() {
    let (mut cluster, session) = three();
    let first = leader(&cluster, FIRST);
    let request = transaction(stamp(session, 1), OLD, part(&[], &[row("a", "1"), row("z", "1")]));
    cluster.nodes[first].ask(3, request.clone());
    cluster.cut_off = Some(cluster.nodes[first].node.me().node);
    cluster.pass(ms(8_000));
    let other = (first + 1) % 3;
    cluster.nodes[other].ask(4, request);
    cluster.pass(ms(9_000));
    let outcome = cluster.nodes[other].answer(4).clone();
    assert!(matches!(outcome, Ok(_) | Err(Failure::Aborted(_))), "{outcome:?}");
    cluster.cut_off = None;
    cluster.pass(ms(9_000));
    cluster.nodes.iter().for_each(Bench::rests);
    let now: Vec<_> = [("a", FIRST), ("z", SECOND)]
        .map(|(key, cohort)| {
            let tablet = cluster.nodes[leader(&cluster, cohort)].tablet(cohort);
            tablet
                .view_now()
                .get(&key.into(), &Columns::default(), store::sstable::Io::Allowed)
                .expect("a working disk")
        })
        .into();
    let cells = |outcome: &tablets::request::Outcome| match outcome {
        Ok(TableResponse::Row { cells, .. }) => cells.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((cells(&now[0]), cells(&now[1])), if outcome.is_ok() { (1, 1) } else { (0, 0) });
}

/// A table is dropped while another one has prepared a transaction that it coordinates. The outcome is the first of
/// the commit, which was sent before the drop began, and the abort.
#[test]
fn table_being_dropped_decides_its_transactions() {
    let (mut bench, session) = alone();
    let options = TableOptions { transactions: Some(true), ..TableOptions::of(Tablet::KIND) };
    let create = CatalogCommand::CreateTable { name: "u".into(), split_at: vec![], options };
    bench.ask(3, Request::Catalog(CatalogRequest::Change(create)));
    bench.pass(ms(3_000));
    let other = CohortId(4);
    let commit = |number, key: &'static str, participants| Commit {
        stamp: stamp(session, number),
        key: "a".into(),
        owner: OLD,
        part: part(&[], &[row(key, "1")]),
        participants,
    };
    // A decision of another transaction keeps the drop waiting.
    let kept = commit(1, "b", vec![Participant { cohort: CohortId(999), prepared: Timestamp(1) }]);
    bench.direct(4, FIRST, TableRequest::Commit(Box::new(kept)));
    let coordinator = Coordinator { table: "t".into(), key: "a".into(), stamp: stamp(session, 2) };
    let prepare = Prepare { coordinator, owner: OLD, part: part(&[], &[row("z", "1")]) };
    bench.direct(5, other, TableRequest::Prepare(Box::new(prepare)));
    bench.pass(ms(200));
    let prepared = bench.prepared(5);
    bench
        .ask(6, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(ms(4_000));
    assert!(bench.tablet(FIRST).ownership().range().is_some(), "the drop waits");
    assert!(bench.tablet(other).prepared().is_empty());
    let late = commit(2, "a", vec![Participant { cohort: other, prepared }]);
    bench.direct(7, FIRST, TableRequest::Commit(Box::new(late)));
    bench.pass(ms(1_000));
    assert!(bench.is_aborted(7), "{:?}", bench.answer(7));
}

/// The clock loses its bound while an entry waits for its timestamp.
#[test]
fn commit_wait_outlasts_the_bound() {
    let (mut bench, _) = with_uncertainty(ms(200));
    bench.pass(ms(1_000));
    bench.ask(10, put("a", "1"));
    bench.pass(ms(5));
    bench.now.uncertainty = Some(ms(251));
    bench.ask(11, put("b", "1"));
    bench.pass(ms(350));
    assert!(!bench.answers.contains_key(&RequestId(10)), "its timestamp may not have passed");
    bench.pass(ms(100));
    assert!(bench.answer(10).is_ok() && bench.answer(11).is_ok());
    bench.ask(12, put("c", "1"));
    bench.pass(ms(5));
    assert!(bench.answer(12).is_ok(), "without a bound there is no wait");
}

/// A participant's clock is an hour ahead. Its time does not spread to the coordinator's range.
#[test]
fn wrong_clock_does_not_spread() {
    let (mut bench, session) = alone();
    bench.pass(ms(1_000));
    let prepared = Timestamp(bench.now.wall.0 + 3_600_000_000_000);
    let participants = vec![Participant { cohort: SECOND, prepared }];
    let (stamp_1, part_1) = (stamp(session, 1), part(&[], &[row("a", "1")]));
    let commit = Commit { stamp: stamp_1, key: "a".into(), owner: OLD, part: part_1, participants };
    bench.direct(4, FIRST, TableRequest::Commit(Box::new(commit)));
    bench.pass(ms(500));
    assert!(matches!(bench.answer(4), Err(Failure::Precondition(_))), "{:?}", bench.answer(4));
    bench.ask(5, transaction(stamp(session, 2), OLD, part(&[], &[row("b", "1")])));
    bench.pass(ms(200));
    assert!(bench.answer(5).is_ok(), "{:?}", bench.answer(5));
}
