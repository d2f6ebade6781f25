use base::Duration;
use bytes::Bytes;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::{AskId, Batch, LogId, Position, sequencer};
use state_machine::{Failure, StateMachine as _};
use store::Recovered;

use crate::contract::RequestId;
use crate::request::{Outcome, Request, Response};
use crate::testing::{Bench, Cluster, empty};

/// A cluster of one node, with a log.
pub(super) fn alone() -> Bench {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    let create = LogRequest::Create { name: "l".into(), stripes: 0, copies: 0 };
    assert_eq!(ask(&mut bench, 1, create), Ok(LogResponse::Created { existed: false }));
    bench
}

pub(super) fn ask(bench: &mut Bench, number: u64, request: LogRequest) -> Result<LogResponse, Failure> {
    bench.ask(number, Request::Log(request));
    bench.pass(Duration::from_millis(1_000));
    said(bench.answers.get(&RequestId(number)).expect("a reply was sent"))
}

pub(super) fn said(outcome: &Outcome) -> Result<LogResponse, Failure> {
    match outcome {
        Ok(Response::Log(response)) => Ok(response.clone()),
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Err(failure.clone()),
    }
}

pub(super) fn append(record: &'static str) -> LogRequest {
    let batch = Batch::of(&[Bytes::from_static(record.as_bytes())]).expect("within the limits");
    LogRequest::Append { log: "l".into(), batch, stamp: None }
}

fn read(from: u64, count: u32) -> LogRequest {
    LogRequest::Read { log: "l".into(), from: Position(from), count, wait: Duration::ZERO, bytes: BATCH_BYTES_MAX }
}

pub(super) fn records(response: Result<LogResponse, Failure>) -> Vec<Bytes> {
    let Ok(LogResponse::Entries(entries)) = response else { panic!("{response:?}") };
    let record = |entry: LogEntry| match entry.content {
        Content::Data(data) => data.batch.records().expect("own encoding")[0].clone(),
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(record).collect()
}

/// The disk contents after a restart.
fn restarted(bench: &Bench) -> Recovered {
    let mut recovered = empty(1, 1);
    recovered.boot = base::Boot(2);
    recovered.records = bench.appended.clone();
    recovered.cohorts = bench.manifests.last().expect("a manifest was written").0.clone();
    recovered
}

#[test]
fn reads_follow_append_order() {
    let mut bench = alone();
    for (number, record) in [(2, "a"), (3, "b"), (4, "c")] {
        assert_eq!(ask(&mut bench, number, append(record)), Ok(LogResponse::Appended(Position(number - 2))));
    }
    assert_eq!(ask(&mut bench, 5, LogRequest::Tail { log: "l".into() }), Ok(LogResponse::Tail(Position(3))));
    assert_eq!(records(ask(&mut bench, 6, read(0, 10))), ["a", "b", "c"]);
    assert_eq!(records(ask(&mut bench, 7, read(1, 1))), ["b"]);
    assert_eq!(records(ask(&mut bench, 8, read(9, 1))), [""; 0], "the position is unwritten");
    let trim = LogRequest::Trim { log: "l".into(), before: Position(2) };
    assert_eq!(ask(&mut bench, 9, trim), Ok(LogResponse::Trimmed));
    let Ok(LogResponse::Entries(entries)) = ask(&mut bench, 10, read(1, 1)) else { panic!("expected entries") };
    assert_eq!(entries[0].content, Content::Trimmed { mark: Position(2) });
    assert_eq!(bench.node.logs.by_id.values().map(|log| log.calls.len()).sum::<usize>(), 0);
}

/// A read returns no more bytes than requested, and reports when the first entry is larger.
#[test]
fn read_byte_limit() {
    let mut bench = alone();
    for (number, bytes) in [(2, 100), (3, 100), (4, 3 << 20)] {
        let batch = Batch::of(&[Bytes::from(vec![7; bytes])]).expect("within the limits");
        let request = LogRequest::Append { log: "l".into(), batch, stamp: None };
        ask(&mut bench, number, request).expect("the append succeeds");
    }
    let read =
        |from, bytes| LogRequest::Read { log: "l".into(), from: Position(from), count: 9, wait: Duration::ZERO, bytes };
    assert_eq!(records(ask(&mut bench, 5, read(0, 1_000))).len(), 2);
    assert_eq!(ask(&mut bench, 6, read(2, 1_000)), Ok(LogResponse::Larger));
    assert_eq!(records(ask(&mut bench, 7, read(2, BATCH_BYTES_MAX)))[0].len(), 3 << 20);
}

#[test]
fn unknown_and_existing_log_errors() {
    let mut bench = alone();
    let tail = LogRequest::Tail { log: "m".into() };
    assert_eq!(ask(&mut bench, 2, tail), Err(Failure::UnknownLog("m".into())));
    let again = LogRequest::Create { name: "l".into(), stripes: 1, copies: 0 };
    assert_eq!(ask(&mut bench, 3, again), Ok(LogResponse::Created { existed: true }));
    let other = LogRequest::Create { name: "l".into(), stripes: 2, copies: 0 };
    assert!(matches!(ask(&mut bench, 4, other), Err(Failure::Exists(_))));
    let many = LogRequest::Create { name: "m".into(), stripes: 1, copies: 2 };
    assert!(matches!(ask(&mut bench, 5, many), Err(Failure::Precondition(_))), "the cluster has one node");
    assert_eq!(ask(&mut bench, 6, LogRequest::List), Ok(LogResponse::Logs(vec!["l".into()])));
}

/// The node itself sends stripes to its units, because a recovery's message may be lost.
#[test]
fn node_sends_stripes_to_its_units() {
    let mut bench = alone();
    for number in 2..7 {
        ask(&mut bench, number, append("a")).expect("the append succeeds");
    }
    let before = bench.appended.len();
    let old = bench.node.catalog().log("l").expect("the log exists").clone();
    let mut projection = old.projection.clone();
    (projection.epoch, projection.start) = (projection.epoch.next(), Position(9));
    projection.extents.push(sharedlog::Extent { from: Position(9), ..projection.extents[0].clone() });
    let (unit, stripes) = (projection.units()[0], projection.stripes_of(projection.units()[0]));
    let project = catalog::CatalogCommand::Project { projection: Box::new(projection) }.encode();
    let now = bench.now;
    let catalog = bench.node.replicas.get_mut(&base::CohortId::CATALOG).expect("every node has a catalog replica");
    catalog.cohort.propose(project, now, &mut bench.node.outgoing.outbox);
    bench.node.drain(base::CohortId::CATALOG, now);
    bench.pass(Duration::from_millis(1_000));
    let cohort = catalog::cohort_of(unit).expect("within the range of the type");
    let stripes_of = |bench: &Bench| {
        let unit = bench.node.replicas[&cohort].state.as_unit().expect("a log unit");
        unit.stripes().collect::<Vec<_>>()
    };
    assert_eq!((stripes_of(&bench), stripes.len()), (stripes.clone(), 2));
    // The process ends before the stripes are in the unit's log: they are sent when the unit opens.
    let mut recovered = restarted(&bench);
    let last = recovered.records.iter().rposition(|record| {
        record.cohort == cohort && matches!(&record.body, base::LogRecord::Entry(entry) if !entry.payload.is_empty())
    });
    let last = last.expect("the unit has logged its stripes");
    assert!(last >= before);
    recovered.records.remove(last);
    let mut again = Bench::start(recovered);
    assert_eq!(stripes_of(&again), stripes[..1]);
    again.pass(Duration::from_millis(5_000));
    assert_eq!(stripes_of(&again), stripes);
}

/// The sequencer loses its state in a restart. The units do not.
#[test]
fn restart_resumes_at_log_tail() {
    let mut bench = alone();
    ask(&mut bench, 2, append("a")).expect("the append succeeds");
    let mut again = Bench::start(restarted(&bench));
    again.pass(Duration::from_millis(5_000));
    assert_eq!(ask(&mut again, 1, append("b")), Ok(LogResponse::Appended(Position(1))));
    assert_eq!(records(ask(&mut again, 2, read(0, 9))), ["a", "b"]);
}

/// Three nodes with a log that has an entry, and the index of a node that uses it and is not its sequencer.
fn with_log_elsewhere() -> (Cluster, LogId, usize) {
    let mut cluster = Cluster::start();
    cluster.pass(Duration::from_millis(5_000));
    let ask = |cluster: &mut Cluster, node: usize, number, request| {
        cluster.nodes[node].ask(number, Request::Log(request));
        cluster.pass(Duration::from_millis(1_000));
        said(&cluster.nodes[node].answers[&RequestId(number)])
    };
    let create = LogRequest::Create { name: "l".into(), stripes: 0, copies: 0 };
    ask(&mut cluster, 0, 1, create).expect("the log is created");
    assert_eq!(ask(&mut cluster, 0, 2, append("a")), Ok(LogResponse::Appended(Position(0))));
    let log = cluster.nodes[0].node.catalog().log("l").expect("the log exists");
    let (id, source) = (log.id, usize::from(log.projection.sequencer.node == base::NodeId(1)));
    let tail = LogRequest::Tail { log: "l".into() };
    assert_eq!(ask(&mut cluster, source, 3, tail), Ok(LogResponse::Tail(Position(1))));
    (cluster, id, source)
}

/// A reply to the tail request of a former process arrives late. It does not cover appends that have completed since,
/// and its number may match an open request.
#[test]
fn ignores_answer_to_former_process() {
    let (mut cluster, id, source) = with_log_elsewhere();
    let tail = || LogRequest::Tail { log: "l".into() };
    let bench = &mut cluster.nodes[source];
    bench.ask(4, Request::Log(tail()));
    assert!(!bench.answers.contains_key(&RequestId(4)), "the sequencer is another node");
    let (former, now) = (base::Boot(0), bench.now);
    for number in 0..100 {
        bench.node.sequencer_answered(id, former, AskId(number), sequencer::Reply::Tail(Position(0)), now);
    }
    cluster.pass(Duration::from_millis(1_000));
    assert_eq!(said(&cluster.nodes[source].answers[&RequestId(4)]), Ok(LogResponse::Tail(Position(1))));
}

#[cfg(feature = "canary")]
#[test]
fn answer_to_former_process_is_found() {
    base::canary::plant(Some(base::canary::Bug::AnswerToFormerProcess));
    let outcome = std::panic::catch_unwind(ignores_answer_to_former_process);
    base::canary::plant(None);
    assert!(outcome.is_err());
}

/// The node was paused past all deadlines: an append in progress at the log's client machine may have been executed.
#[test]
fn dispatched_append_times_out_unknown() {
    let (mut cluster, _, source) = with_log_elsewhere();
    let bench = &mut cluster.nodes[source];
    bench.ask(4, Request::Log(append("b")));
    bench.ask(5, Request::Log(LogRequest::Tail { log: "l".into() }));
    assert!(!bench.answers.contains_key(&RequestId(4)), "the sequencer is another node");
    bench.now.monotonic = bench.now.monotonic + Duration::from_millis(60_000);
    bench.step(crate::contract::Event::Timer);
    let [append, tail] = [4, 5].map(|number| said(&bench.answers[&RequestId(number)]));
    assert!(matches!(append, Err(Failure::Unknown(_) | Failure::MayLie { .. })), "{append:?}");
    assert!(matches!(tail, Err(Failure::Unavailable(_))), "{tail:?}");
}

/// The end of the log is pushed to a reader that has come there.
#[test]
fn tail_reads_complete_or_time_out() {
    let mut bench = alone();
    let waiting = |from| LogRequest::Read {
        log: "l".into(),
        from: Position(from),
        count: 10,
        wait: Duration::from_millis(500),
        bytes: BATCH_BYTES_MAX,
    };
    assert_eq!(records(ask(&mut bench, 2, waiting(0))), [""; 0]);
    bench.ask(3, Request::Log(waiting(0)));
    assert!(!bench.answers.contains_key(&RequestId(3)));
    assert_eq!(ask(&mut bench, 4, append("a")), Ok(LogResponse::Appended(Position(0))));
    assert_eq!(records(said(&bench.answers[&RequestId(3)])), ["a"]);
    bench.ask(5, Request::Log(waiting(1)));
    bench.step(crate::contract::Event::GivenUp { requests: [RequestId(5)].into() });
    assert_eq!(bench.node.logs.by_id.values().map(|log| log.calls.len()).sum::<usize>(), 0);
}

/// Requests in progress end with the drop of their log, and its name can be reused.
#[test]
fn dropped_log_frees_its_name() {
    let mut bench = alone();
    ask(&mut bench, 2, append("a")).expect("the append succeeds");
    let awaited = LogRequest::Read {
        log: "l".into(),
        from: Position(1),
        count: 1,
        wait: Duration::from_millis(9_000),
        bytes: BATCH_BYTES_MAX,
    };
    bench.ask(3, Request::Log(awaited));
    let drop = || LogRequest::Drop { name: "l".into(), force: false };
    assert_eq!(ask(&mut bench, 4, drop()), Ok(LogResponse::Dropped));
    let unknown = || Err(Failure::UnknownLog("l".into()));
    assert_eq!(said(&bench.answers[&RequestId(3)]), unknown());
    for (number, request) in [(5, append("b")), (6, read(0, 1)), (7, drop())] {
        assert_eq!(ask(&mut bench, number, request), unknown());
    }
    assert!(bench.node.logs.by_id.is_empty() && bench.node.replicas.keys().eq(&[base::CohortId::CATALOG]));
    let create = LogRequest::Create { name: "l".into(), stripes: 0, copies: 0 };
    assert_eq!(ask(&mut bench, 8, create), Ok(LogResponse::Created { existed: false }));
    assert_eq!(records(ask(&mut bench, 9, read(0, 1))), [""; 0], "nothing of the old one shows");
    assert_eq!(ask(&mut bench, 10, append("c")), Ok(LogResponse::Appended(Position(0))));
}

/// A unit that has logged the drop refuses appends and reads of clients that do not know of it yet.
#[test]
fn drop_seals_all_units() {
    let (mut cluster, id, _) = with_log_elsewhere();
    let units: Vec<_> = cluster.nodes[0].node.catalog().units().collect();
    let leader = cluster.nodes.iter().position(|bench| bench.node.led_catalog().is_some()).expect("a leader");
    for (cohort, _) in &units {
        let now = cluster.nodes[leader].now;
        cluster.nodes[leader].node.ask_to_drop(*cohort, sharedlog::log_unit::LogUnit::KIND, now);
    }
    cluster.pass(Duration::from_millis(500));
    for (cohort, member) in units {
        let bench = &cluster.nodes[member.node.0 as usize - 1];
        let sealed = bench.node.replicas[&cohort].state.as_unit().expect("a log unit").sealed();
        assert_eq!(sealed, sharedlog::ProjectionEpoch(u64::MAX), "log {id}");
    }
}

/// A log whose only copy is on a node that is lost can be dropped by a declaration of the loss.
#[test]
fn forced_drop_needs_no_lost_unit() {
    let mut cluster = Cluster::start();
    cluster.pass(Duration::from_millis(5_000));
    let create = LogRequest::Create { name: "l".into(), stripes: 1, copies: 1 };
    cluster.nodes[0].ask(1, Request::Log(create));
    cluster.pass(Duration::from_millis(1_000));
    let log = cluster.nodes[0].node.catalog().log("l").expect("the log exists").clone();
    let lost = log.units[0].1.node;
    cluster.cut_off = Some(lost);
    let asked = if lost.0 == 1 { 1 } else { 0 };
    cluster.pass(Duration::from_millis(5_000));
    let leader = (0..3).find(|node| *node + 1 != lost.0 as usize && cluster.nodes[*node].node.led_catalog().is_some());
    let leader = leader.unwrap_or(asked);
    let drop = |force| Request::Log(LogRequest::Drop { name: "l".into(), force });
    cluster.nodes[leader].ask(2, drop(false));
    cluster.pass(Duration::from_millis(10_500));
    let failed = said(&cluster.nodes[leader].answers[&RequestId(2)]);
    let Err(Failure::Unknown(why)) = failed else { panic!("{failed:?}") };
    let unit = format!("unit {} of log l is down (node {lost})", log.id);
    assert!(why.starts_with("log l is being dropped, but ") && why.contains(&unit) && why.contains("--force"), "{why}");
    cluster.nodes[leader].ask(3, drop(true));
    cluster.pass(Duration::from_millis(5_000));
    assert_eq!(said(&cluster.nodes[leader].answers[&RequestId(3)]), Ok(LogResponse::Dropped));
    assert_eq!(cluster.nodes[leader].node.catalog().units().count(), 0);
    // The node returns and removes the unit.
    let cohort = log.cohort();
    assert!(cluster.nodes[lost.0 as usize - 1].node.replicas.contains_key(&cohort));
    cluster.cut_off = None;
    cluster.pass(Duration::from_millis(5_000));
    assert!(!cluster.nodes[lost.0 as usize - 1].node.replicas.contains_key(&cohort));
}
