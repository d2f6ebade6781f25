//! Routing of requests, and their outcomes when nodes do not reply.

use base::{Boot, NodeId, Timestamp};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use state_machine::{ClientSessionId, LockOwner, SessionStamp, StateMachine as _};
use tablets::request::{Mutation, Scan, TableRequest, Write};
use tablets::{TableResponse, Tablet};

use super::*;
use crate::contract::Event;
use crate::request::Ask;
use crate::testing::{Bench, Cluster, empty};

const TABLE: CohortId = CohortId(2);
const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// A node without a replica of the table, which is on nodes 1, 2 and 3.
fn outsider() -> Bench {
    Bench::start(empty(5, 5)).with_table(5, "t", &[])
}

fn of_table(request: TableRequest) -> Request {
    Request::Table { table: "t".into(), request: Ask::Tablet(request) }
}

fn get() -> Request {
    of_table(TableRequest::Get {
        key: "k".into(),
        columns: tablets::request::Columns::default(),
        consistency: Consistency::Strong,
    })
}

fn write(stamp: Option<SessionStamp>) -> Request {
    let mutations = vec![Mutation { column: "c".into(), value: Some("v".into()), condition: None }];
    of_table(TableRequest::Write(Write { stamp, key: "k".into(), mutations }))
}

fn stamp() -> SessionStamp {
    SessionStamp { session: ClientSessionId(3), sequence: 1, first_incomplete: 1 }
}

/// Returns the nodes asked since the last call, with the request numbers.
fn asked(bench: &mut Bench) -> Vec<(NodeId, u64)> {
    let sent = std::mem::take(&mut bench.sent);
    let number = |message| if let Message::Forward { request, .. } = message { Some(request) } else { None };
    sent.into_iter().filter_map(|(to, message)| Some((to, number(message)?))).collect()
}

fn say(bench: &mut Bench, from: NodeId, message: Message) {
    bench.step(Event::Message { from, boot: Boot(1), message });
}

#[test]
fn silent_leader_is_abandoned() {
    let mut bench = outsider();
    bench.node.cluster.routes.insert(TABLE, NodeId(2));
    bench.ask(1, get());
    assert_eq!(asked(&mut bench).iter().map(|(node, _)| *node).collect::<Vec<_>>(), [NodeId(2)]);
    bench.pass(HALF_A_SECOND);
    let again = asked(&mut bench);
    assert!(again.len() == 1 && again[0].0 != NodeId(2), "{again:?}");
    for number in 2..8 {
        bench.ask(number, get());
    }
    assert!(asked(&mut bench).iter().all(|(node, _)| *node != NodeId(2)), "a silent node gets no further requests");
    let (node, request) = again[0];
    let rows = Ok(Response::Tablet(TableResponse::row(Vec::new())));
    say(&mut bench, node, Message::Answer { request, outcome: rows.clone() });
    assert_eq!(bench.answers.get(&RequestId(1)), Some(&rows));
}

#[test]
fn follows_leader_redirect() {
    let mut bench = outsider();
    bench.ask(1, get());
    let (first, request) = asked(&mut bench)[0];
    let leader = NodeId(if first == NodeId(3) { 1 } else { 3 });
    say(&mut bench, first, Message::NotLeader { request, cohort: TABLE, leader: Some(leader) });
    assert_eq!(asked(&mut bench)[0].0, leader);
}

/// The silent node may have executed the write. It is not repeated, and its outcome is unknown.
#[test]
fn unstamped_write_is_forwarded_once() {
    let mut bench = outsider();
    bench.ask(1, write(None));
    assert_eq!(asked(&mut bench).len(), 1);
    bench.pass(Duration::from_millis(9_000));
    assert_eq!((asked(&mut bench).len(), bench.answers.len()), (0, 0));
    bench.pass(Duration::from_millis(2_000));
    assert!(matches!(bench.answers[&RequestId(1)], Err(Failure::Unknown(_))));
}

/// The retry of a stamped write returns the first attempt's outcome. Without one, the write is not reported as undone.
#[test]
fn retried_stamped_write_stays_in_doubt() {
    let (expected, actual) = (Timestamp(1), Timestamp(2));
    let refused = Failure::VersionMismatch { column: "c".into(), expected, actual };
    let check = |answer: Outcome, expected: fn(&Outcome) -> bool| {
        let mut bench = outsider();
        bench.ask(1, write(Some(stamp())));
        let first = asked(&mut bench)[0];
        bench.pass(HALF_A_SECOND);
        let second = asked(&mut bench)[0];
        assert_ne!(first.0, second.0);
        say(&mut bench, second.0, Message::Answer { request: second.1, outcome: answer });
        let outcome = &bench.answers[&RequestId(1)];
        assert!(expected(outcome), "{outcome:?}");
    };
    let is_unknown = |outcome: &Outcome| matches!(outcome, Err(Failure::Unknown(_)));
    check(Ok(Response::Tablet(TableResponse::Written { version: Timestamp(7) })), |outcome| outcome.is_ok());
    check(Err(refused), |outcome| matches!(outcome, Err(Failure::VersionMismatch { .. })));
    check(Err(Failure::UnknownSession(ClientSessionId(3))), is_unknown);
    check(Err(Failure::Overloaded("full".into())), is_unknown);
    check(Err(Failure::Unavailable("no leader".into())), is_unknown);
}

#[test]
fn redirect_keeps_write_in_doubt() {
    let mut bench = outsider();
    bench.ask(1, write(Some(stamp())));
    asked(&mut bench);
    bench.pass(HALF_A_SECOND);
    let (second, request) = asked(&mut bench)[0];
    say(&mut bench, second, Message::NotLeader { request, cohort: TABLE, leader: None });
    bench.step(Event::Stop);
    assert!(matches!(bench.answers[&RequestId(1)], Err(Failure::Unknown(_))));
}

/// Each request goes to the range of its key, or of the start of its scan.
#[test]
fn routes_requests_by_key_range() {
    let mut bench = Bench::start(empty(5, 5)).with_table(5, "t", &["m"]);
    let (first, second) = (TABLE, CohortId(3));
    bench.node.cluster.routes.insert(first, NodeId(1));
    bench.node.cluster.routes.insert(second, NodeId(2));
    let mut goes = |request: TableRequest| {
        bench.ask(1, of_table(request));
        let sent = std::mem::take(&mut bench.sent);
        let cohort = |message| if let Message::Forward { cohort, .. } = message { Some(cohort) } else { None };
        sent.into_iter().find_map(|(_, message)| cohort(message)).expect("the request is forwarded")
    };
    let get = |key: &'static str| TableRequest::Get {
        key: key.into(),
        columns: tablets::request::Columns::default(),
        consistency: Consistency::Strong,
    };
    assert_eq!((goes(get("a")), goes(get("lz")), goes(get("m")), goes(get("z"))), (first, first, second, second));
    let delete = TableRequest::DeleteRow { stamp: None, key: "n".into() };
    assert_eq!((goes(delete), goes(TableRequest::OpenSession { key: "".into() })), (second, first));
    let scan = |reverse, continuation: Option<&'static str>| {
        let continuation = continuation.map(bytes::Bytes::from);
        TableRequest::Scan { scan: Scan { reverse, continuation, ..Scan::default() }, consistency: Consistency::Strong }
    };
    let forwards = (goes(scan(false, None)), goes(scan(false, Some("l"))), goes(scan(false, Some("m"))));
    assert_eq!(forwards, (first, first, second));
    assert_eq!(
        (goes(scan(true, None)), goes(scan(true, Some("n"))), goes(scan(true, Some("m")))),
        (second, second, first)
    );
}

/// A tablet that does not own the key reports so and the request is rerouted: it is never "not found" or refused.
#[test]
fn misrouted_request_is_rerouted() {
    let mut bench = outsider();
    bench.ask(1, get());
    let (node, request) = asked(&mut bench)[0];
    say(&mut bench, node, Message::ElsewhereNow { request });
    assert!(bench.answers.is_empty());
    // The catalog has no leader in this test, so the current range can't be determined.
    bench.pass(Duration::from_millis(11_000));
    assert!(matches!(bench.answers[&RequestId(1)], Err(Failure::Unavailable(_))));
}

/// In a cluster of one node, its node leads every range, and each range has received its key range.
#[test]
fn ranges_store_rows_separately() {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    let split_at = crate::testing::split_at(&["m", "d"]);
    bench.ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at,
            options: TableOptions::of(Tablet::KIND),
        })),
    );
    for (number, key) in (2..).zip(["a", "d", "z"]) {
        let mutations = vec![Mutation { column: "c".into(), value: Some("v".into()), condition: None }];
        bench.ask(number, of_table(TableRequest::Write(Write { stamp: None, key: key.into(), mutations })));
    }
    bench.pass(Duration::from_millis(2_000));
    assert!((2..5).all(|number| matches!(
        bench.answers[&RequestId(number)],
        Ok(Response::Tablet(TableResponse::Written { .. }))
    )));
    bench.ask(5, of_table(TableRequest::Scan { scan: Scan::default(), consistency: Consistency::Strong }));
    let Ok(Response::Tablet(TableResponse::Rows { rows, continuation, .. })) = &bench.answers[&RequestId(5)] else {
        panic!("expected rows")
    };
    assert_eq!((rows.len(), continuation.clone()), (1, Some("d".into())));
    bench.ask(6, Request::Status);
    let Ok(Response::Status(status)) = &bench.answers[&RequestId(6)] else { panic!("expected a status") };
    let ranges: Vec<String> = status.cohorts.iter().map(|cohort| cohort.range.to_string()).collect();
    assert_eq!(ranges[1..], ["[\"\", \"d\")", "[\"d\", \"m\")", "[\"m\", end)"]);
    bench.ask(7, Request::Catalog(CatalogRequest::DescribeTable("t".into())));
    let Ok(Response::Catalog(CatalogResponse::Table(table))) = &bench.answers[&RequestId(7)] else {
        panic!("expected a table")
    };
    let cohorts: Vec<(u32, &[u32])> = table.ranges.iter().map(|range| (range.cohort, &range.members[..])).collect();
    assert_eq!(cohorts, [(2, &[1][..]), (3, &[1]), (4, &[1])]);
}

#[test]
fn log_name_rule_applies_to_new_logs() {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    let create = || Request::Log(LogRequest::Create { name: "-l".into(), stripes: 0, copies: 0 });
    bench.ask(1, create());
    assert!(matches!(bench.answers[&RequestId(1)], Err(Failure::Invalid(_))));

    // Created as before the naming rule existed.
    let (query, deadline) = (bench.node.create_log("-l".into(), 0, 0), Monotonic::NEVER);
    bench.node.begin(ReplyTo::Client(RequestId(2)), deadline, Target::Cohort(CohortId::CATALOG), query, bench.now);
    bench.pass(Duration::from_millis(1_000));
    let created = |existed| Ok(Response::Log(sharedlog::request::LogResponse::Created { existed }));
    assert_eq!(bench.answers[&RequestId(2)], created(false));
    bench.ask(3, create());
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(bench.answers[&RequestId(3)], created(true));

    bench.ask(4, Request::Status);
    let Ok(Response::Status(status)) = &bench.answers[&RequestId(4)] else { panic!("an immediate reply") };
    let logs: Vec<Option<&str>> = status.cohorts.iter().map(|cohort| cohort.log.as_deref()).collect();
    assert_eq!(logs, [None, Some("-l")], "the catalog, and the log's unit");
}

fn connection(bench: &mut Bench, node: u32, is_open: bool) {
    bench.step(Event::PeerConnection { peer: NodeId(node), is_open });
}

/// A message for a node without a connection would be dropped, and a write would be in doubt. So it waits, and the error
/// says that nothing was done, and why.
#[test]
fn disconnected_nodes_are_not_asked() {
    let mut bench = outsider();
    [1, 2, 3].into_iter().for_each(|node| connection(&mut bench, node, false));
    bench.ask(1, write(Some(stamp())));
    assert_eq!(asked(&mut bench), []);
    connection(&mut bench, 3, true);
    let (node, request) = asked(&mut bench)[0];
    assert_eq!(node, NodeId(3));
    connection(&mut bench, 3, false);
    say(&mut bench, node, Message::NotLeader { request, cohort: TABLE, leader: Some(NodeId(2)) });
    assert_eq!(asked(&mut bench), []);
    bench.pass(Duration::from_millis(10_000));
    let down = "3 of 3 replicas of range [\"\", end) of table t are down (nodes 1, 2, 3)";
    assert_eq!(bench.answers[&RequestId(1)], Err(Failure::Unavailable(down.into())));
}

fn drop_table(name: &str) -> Request {
    CatalogRequest::Change(CatalogCommand::BeginDrop { name: name.to_owned(), force: false }).into()
}

/// A leader that is cut off answers a write that it has proposed "unknown". Without a lease it proposes no other one.
#[test]
fn leader_without_majority_proposes_nothing() {
    let mut cluster = Cluster::start();
    cluster.pass(Duration::from_millis(3_000));
    let leads = |bench: &Bench| bench.node.led_catalog().is_some();
    let leader = cluster.nodes.iter().position(leads).expect("a leader");
    let others: Vec<String> = (0..3).filter(|node| *node != leader).map(|node| (node + 1).to_string()).collect();
    let down = format!("2 of 3 replicas of the catalog are down (nodes {})", others.join(", "));
    cluster.cut_off = Some(cluster.nodes[leader].node.me().node);
    cluster.nodes[leader].ask(1, drop_table("a"));
    cluster.pass(Duration::from_millis(450));
    assert!(leads(&cluster.nodes[leader]) && cluster.nodes[leader].answers.is_empty());
    cluster.nodes[leader].ask(2, drop_table("b"));
    cluster.pass(Duration::from_millis(11_000));
    let answers = &cluster.nodes[leader].answers;
    assert_eq!(answers[&RequestId(1)], Err(Failure::Unknown(down.clone())));
    assert_eq!(answers[&RequestId(2)], Err(Failure::Unavailable(down)));
}

/// A transaction that only reads one row is not validated at its commit: without leases, the leader checks that it still
/// is one, as for any strong read.
#[test]
fn transactional_read_without_leases_is_strong() {
    let mut cluster = Cluster::start();
    for bench in &mut cluster.nodes {
        bench.node.config.timing.leases = false;
    }
    cluster.pass(Duration::from_millis(3_000));
    let options = TableOptions::of(Tablet::KIND);
    let create = CatalogCommand::CreateTable { name: "t".into(), split_at: Vec::new(), options };
    cluster.nodes[0].ask(1, CatalogRequest::Change(create).into());
    cluster.pass(Duration::from_millis(3_000));
    cluster.nodes[0].ask(2, write(None));
    cluster.pass(Duration::from_millis(1_000));
    assert!(cluster.nodes[0].answers[&RequestId(2)].is_ok(), "{:?}", cluster.nodes[0].answers);
    let leads = |bench: &Bench| bench.node.replicas.get(&TABLE).is_some_and(|replica| replica.cohort.leads());
    let leader = cluster.nodes.iter().position(leads).expect("a leader");
    let consistency = Consistency::Locking(LockOwner { started: Timestamp(1), id: 1 });
    let columns = tablets::request::Columns::default();
    let read = of_table(TableRequest::Get { key: "k".into(), columns, consistency });
    cluster.nodes[leader].ask(3, read.clone());
    cluster.pass(Duration::from_millis(100));
    let answer = &cluster.nodes[leader].answers[&RequestId(3)];
    assert!(matches!(answer, Ok(Response::Dated { as_of, .. }) if as_of.timestamp > Timestamp(0)), "{answer:?}");
    cluster.cut_off = Some(cluster.nodes[leader].node.me().node);
    cluster.nodes[leader].ask(4, read);
    cluster.pass(Duration::from_millis(2_000));
    assert!(!cluster.nodes[leader].answers.contains_key(&RequestId(4)), "it may lead no more");
}
