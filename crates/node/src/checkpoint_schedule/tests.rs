use base::{Duration, LogRecord, Sequence, Timestamp};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use state_machine::storage::FileRef;
use state_machine::{Consistency, Failure, StateMachine as _};
use tablets::request::{Columns, Mutation, Scan, TableRequest, Write};
use tablets::{Command, TableResponse, Tablet};

use super::*;
use crate::contract::RequestId;
use crate::request::{Ask, Request, Response};
use crate::testing::{Bench, Cluster, empty};

const TABLE: CohortId = CohortId(2);

/// A cluster of one node, with a table.
fn alone() -> Bench {
    with_retention(Duration::ZERO)
}

/// The same, with a table that retains old versions for this time.
fn with_retention(retention: Duration) -> Bench {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    bench.ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions { retention, ..TableOptions::of(Tablet::KIND) },
        })),
    );
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(bench.answers[&RequestId(1)], Ok(Response::Catalog(CatalogResponse::TableCreated { existed: false })));
    bench
}

fn ask(bench: &mut Bench, number: u64, request: TableRequest) {
    bench.ask(number, Request::Table { table: "t".into(), request: Ask::Tablet(request) });
    assert!(matches!(bench.answers.get(&RequestId(number)), Some(Ok(_))));
}

fn put() -> TableRequest {
    let mutations = vec![Mutation { column: "c".into(), value: Some("v".into()), condition: None }];
    TableRequest::Write(Write { stamp: None, key: "k".into(), mutations })
}

/// Returns the commands appended to the table's log since the last call.
fn commands(bench: &mut Bench) -> Vec<Command> {
    let appended = std::mem::take(&mut bench.appended);
    let payload = |record: base::Record| match record.body {
        LogRecord::Entry(entry) if record.cohort == TABLE && !entry.payload.is_empty() => Some(entry.payload),
        _ => None,
    };
    appended.into_iter().filter_map(payload).map(|payload| Command::decode(payload).expect("a command")).collect()
}

fn tablet(bench: &Bench) -> &Tablet {
    bench.node.replicas[&TABLE].state.as_tablet().expect("a tablet")
}

#[test]
fn idle_table_writes_one_watermark() {
    let mut bench = alone();
    bench.pass(Duration::from_millis(60_000));
    ask(&mut bench, 2, put());
    let written = tablet(&bench).last_timestamp();
    commands(&mut bench);
    bench.pass(Duration::from_millis(600_000));
    let idle = commands(&mut bench);
    assert!(matches!(idle[..], [Command::Watermark(watermark)] if watermark == written), "{idle:?}");
    ask(&mut bench, 3, put());
    commands(&mut bench);
    bench.pass(Duration::from_millis(600_000));
    assert_eq!(commands(&mut bench).len(), 1);
}

#[test]
fn old_versions_follow_table_retention() {
    for (retention, kept_ms) in [(Duration::ZERO, 60_000), (Duration::from_millis(20_000), 20_000)] {
        let mut bench = with_retention(retention);
        bench.pass(bench.node.config.hold_lifetime);
        ask(&mut bench, 2, put());
        let written = tablet(&bench).last_timestamp();
        bench.pass(Duration::from_millis(kept_ms - 1));
        assert!(tablet(&bench).watermark() < written, "not before the retention ends");
        bench.pass(Duration::from_millis(5_000));
        assert_eq!(tablet(&bench).watermark(), written);
    }
}

/// A wall clock that was accepted while it was a year ahead leaves large timestamps. Sessions and old versions still
/// expire on time.
#[test]
fn wall_clock_jump_does_not_block_expiry() {
    let mut bench = alone();
    bench.now.wall.0 += 365 * 86_400 * 1_000_000_000;
    ask(&mut bench, 2, put());
    bench.now.wall.0 -= 365 * 86_400 * 1_000_000_000;
    ask(&mut bench, 3, TableRequest::OpenSession { key: "k".into() });
    ask(&mut bench, 4, put());
    let written = tablet(&bench).last_timestamp();
    bench.pass(Duration::from_millis(65_000));
    assert_eq!(tablet(&bench).watermark(), written);
    assert_eq!(tablet(&bench).sessions_open(), 1);
    bench.pass(Duration::from_millis(535_000));
    assert_eq!(tablet(&bench).sessions_open(), 1, "not before the lifetime ends");
    bench.pass(Duration::from_millis(15_000));
    assert_eq!(tablet(&bench).sessions_open(), 0);
}

fn hold(timestamp: Timestamp) -> Request {
    let request = TableRequest::Hold { key: "k".into(), owner: 7, timestamp, release: false };
    Request::Table { table: "t".into(), request: Ask::Tablet(request) }
}

/// A leader raises the watermark only after the first lifetime of holds, then up to the oldest hold, and past it once
/// the hold is not renewed any more.
fn watermark_waits_for_hold() {
    let mut bench = with_retention(Duration::from_millis(1_000));
    ask(&mut bench, 2, put());
    bench.pass(Duration::from_millis(5_000));
    let first = tablet(&bench).last_timestamp();
    ask(&mut bench, 3, put());
    bench.pass(Duration::from_millis(15_000));
    let second = tablet(&bench).last_timestamp();
    assert!(first < second && tablet(&bench).watermark() < first, "a new leader waits for renewals");
    for number in 0..7 {
        bench.ask(10 + number, hold(first));
        bench.pass(Duration::from_millis(10_000));
        let range = base::KeyRange::default();
        assert_eq!(bench.answers[&RequestId(10 + number)], Ok(Response::Tablet(TableResponse::Held { range })));
    }
    assert_eq!(tablet(&bench).watermark(), first);
    bench.pass(Duration::from_millis(15_000));
    assert_eq!(tablet(&bench).watermark(), first, "not before the hold expires");
    bench.pass(Duration::from_millis(10_000));
    assert_eq!(tablet(&bench).watermark(), second);
    bench.ask(20, hold(first));
    let reason = format!("timestamp {first} is before {second}, the oldest readable one");
    assert_eq!(bench.answers[&RequestId(20)], Err(Failure::Precondition(reason)));
    let future = Timestamp(bench.now.wall.0 + 60_000_000_000);
    bench.ask(21, hold(future));
    let refused = &bench.answers[&RequestId(21)];
    assert!(matches!(refused, Err(Failure::Precondition(reason)) if reason.contains("in the future")), "{refused:?}");
}

#[test]
fn held_versions_are_kept() {
    watermark_waits_for_hold();
}

#[cfg(feature = "canary")]
#[test]
fn watermark_past_hold_is_found() {
    use base::canary::{Bug, plant};
    plant(Some(Bug::WatermarkPassesHold));
    let outcome = std::panic::catch_unwind(watermark_waits_for_hold);
    plant(None);
    assert!(outcome.is_err());
}

/// A checkpoint may contain entries that other disks have forced and the local one has not. It is named only
/// afterwards.
#[test]
fn checkpoint_waits_for_local_log_sync() {
    let mut bench = alone();
    let replica = bench.node.replicas.get_mut(&TABLE).expect("the node has a replica");
    let forced = replica.cohort.forced();
    let named = |sequence: Sequence| CheckpointRef {
        lsn: Lsn { sequence, ..replica.cohort.last() },
        timestamp: Timestamp(1),
        bytes: 1,
    };
    let (early, ready) = (named(forced.next()), named(forced));
    let state = replica.state.snapshot();
    let written =
        |checkpoint| Some(Written { checkpoint, state: state.clone(), membership: Default::default(), flushed: None });
    let named_now = |bench: &Bench| {
        let on_disk = &bench.node.replicas[&TABLE].on_disk;
        (on_disk.checkpoint.as_ref().map(|(at, _)| *at), on_disk.written.as_ref().map(|written| written.checkpoint))
    };
    replica.on_disk.written = written(early);
    bench.node.name_checkpoints(&BTreeSet::from([TABLE]));
    assert_eq!(named_now(&bench), (None, Some(early)));
    bench.node.replicas.get_mut(&TABLE).expect("the node has a replica").on_disk.written = written(ready);
    bench.node.name_checkpoints(&BTreeSet::from([TABLE]));
    assert_eq!(named_now(&bench), (Some(ready), None));
}

/// Memtables stay bounded while the disk is slow, regardless of which tablet owns them.
#[test]
fn memtable_limit_delays_writes() {
    let mut bench = alone();
    bench.node.config.memtables_bytes = 1;
    ask(&mut bench, 2, put());
    bench.ask(3, Request::Table { table: "t".into(), request: Ask::Tablet(put()) });
    bench.pass(Duration::from_millis(1_000));
    assert!(!bench.answers.contains_key(&RequestId(3)));
    let (checkpoint, ..) = bench.node.replicas[&TABLE].on_disk.writing.clone().expect("a flush is in progress");
    bench.step(crate::contract::Event::CheckpointFailed { cohort: TABLE, checkpoint });
    bench.writes_checkpoints = true;
    bench.pass(Duration::from_millis(6_000));
    assert!(matches!(bench.answers.get(&RequestId(3)), Some(Err(Failure::NoSpace(_)))), "the disk was full");
    ask(&mut bench, 4, put());
}

#[test]
fn full_disk_is_read_only() {
    let mut bench = alone();
    ask(&mut bench, 2, put());
    bench.step(crate::contract::Event::DiskFull);
    let of_table = |request| Request::Table { table: "t".into(), request: Ask::Tablet(request) };
    bench.ask(3, of_table(put()));
    let Some(Err(Failure::NoSpace(why))) = bench.answers.get(&RequestId(3)) else { panic!("expected a refusal") };
    assert_eq!(why, "the disk of node 1 is full: its rows are read-only");
    bench.ask(
        4,
        of_table(TableRequest::Get {
            key: "k".into(),
            columns: tablets::request::Columns::default(),
            consistency: Consistency::Strong,
        }),
    );
    assert!(matches!(bench.answers.get(&RequestId(4)), Some(Ok(_))), "{:?}", bench.answers);
    assert_eq!(bench.node.status(bench.now).troubles.len(), 1);
    bench.pass(Duration::from_millis(9_000));
    bench.ask(5, of_table(put()));
    assert!(matches!(bench.answers.get(&RequestId(5)), Some(Ok(_))), "no write has failed recently");
    assert_eq!(bench.node.status(bench.now).troubles, [""; 0]);
}

/// Each kind of request: the changes of rows, then all others.
fn of_each_kind() -> (Vec<Request>, Vec<Request>) {
    let write = |value: Option<&'static str>, condition| {
        let mutations = vec![Mutation { column: "c".into(), value: value.map(Into::into), condition }];
        TableRequest::Write(Write { stamp: None, key: "k".into(), mutations })
    };
    let changes_of_rows = [
        write(Some("v"), None),
        write(None, None),
        write(Some("v"), Some(Timestamp(0))),
        TableRequest::DeleteRow { stamp: None, key: "k".into() },
    ];
    let consistency = Consistency::Strong;
    let others = [
        TableRequest::OpenSession { key: "k".into() },
        TableRequest::Get { key: "k".into(), columns: Columns::default(), consistency },
        TableRequest::Scan { scan: Scan::default(), consistency },
    ];
    let of_catalog = [
        CatalogCommand::BeginSplit { name: "t".into(), key: "m".into() },
        CatalogCommand::BeginDrop { name: "t".into(), force: false },
    ];
    let of_table = |request| Request::Table { table: "t".into(), request: Ask::Tablet(request) };
    let of_catalog = of_catalog.map(|command| Request::Catalog(CatalogRequest::Change(command)));
    (changes_of_rows.map(of_table).into(), others.map(of_table).into_iter().chain(of_catalog).collect())
}

/// Only requests that add data are refused on a full disk, and wait while memtables are full. A split and a drop of the
/// tablet, which the catalog's leader sends, are not.
#[test]
fn only_added_bytes_are_throttled() {
    for is_disk_full in [true, false] {
        let (changes_of_rows, others) = of_each_kind();
        let mut bench = alone();
        bench.writes_checkpoints = true;
        if is_disk_full {
            bench.step(crate::contract::Event::DiskFull);
        } else {
            bench.node.config.memtables_bytes = 0;
        }
        for (number, request) in (10..).zip(changes_of_rows) {
            bench.ask(number, request);
            let answer = bench.answers.get(&RequestId(number));
            let is_refused = matches!(answer, Some(Err(Failure::NoSpace(why))) if why.contains("is full"));
            assert_eq!((is_refused, answer.is_none()), (is_disk_full, !is_disk_full), "{number}: {answer:?}");
        }
        for (number, request) in (20..).zip(others) {
            bench.ask(number, request);
            bench.pass(Duration::from_millis(1_000));
            let answer = bench.answers.get(&RequestId(number));
            assert!(matches!(answer, Some(Ok(_))), "{number}: {answer:?}");
        }
    }
}

/// A restart may find any manifest in progress, so SSTables named by one of them must stay.
#[test]
fn pending_manifest_retains_sstables() {
    let sstable = |number| FileRef { id: FileId { cohort: TABLE, number }, level: 0, bytes: 1, checksum: 0 };
    let mut on_disk = crate::replica::OnDisk::default();
    for number in 1..=3 {
        on_disk.sstables = [sstable(number)].into();
        if number < 3 {
            on_disk.name_sstables(ManifestId(number));
        }
    }
    let named = on_disk.forced(ManifestId(1)).expect("the SSTables have changed");
    assert_eq!(named, [sstable(1), sstable(2), sstable(3)]);
}

#[cfg(feature = "canary")]
#[test]
fn early_sstable_removal_is_found() {
    base::canary::plant(Some(base::canary::Bug::TableRemovedEarly));
    let outcome = std::panic::catch_unwind(pending_manifest_retains_sstables);
    base::canary::plant(None);
    assert!(outcome.is_err());
}

/// A hold survives the loss of the leader that knows it, if it is renewed.
#[test]
fn hold_survives_its_leader() {
    for is_renewed in [true, false] {
        let mut cluster = Cluster::start();
        cluster.pass(Duration::from_millis(5_000));
        let options = TableOptions { retention: Duration::from_millis(1_000), ..TableOptions::of(Tablet::KIND) };
        let create = CatalogCommand::CreateTable { name: "t".into(), split_at: vec![], options };
        cluster.nodes[0].ask(1, Request::Catalog(CatalogRequest::Change(create)));
        cluster.pass(Duration::from_millis(3_000));
        let mut written = Vec::new();
        for number in 2..4 {
            cluster.nodes[0].ask(number, Request::Table { table: "t".into(), request: Ask::Tablet(put()) });
            cluster.pass(Duration::from_millis(5_000));
            written.push(cluster.nodes.iter().map(|bench| tablet(bench).last_timestamp()).max().expect("nodes"));
        }
        let leads = |bench: &Bench| bench.node.replicas[&TABLE].cohort.leads();
        let leader = cluster.nodes.iter().position(leads).expect("a leader");
        cluster.nodes[leader].ask(4, hold(written[0]));
        cluster.pass(Duration::from_millis(100));
        assert!(cluster.nodes[leader].answers[&RequestId(4)].is_ok());
        cluster.cut_off = Some(cluster.nodes[leader].node.me().node);
        cluster.pass(Duration::from_millis(20_000));
        let other = (leader + 1) % 3;
        if is_renewed {
            cluster.nodes[other].ask(5, hold(written[0]));
        }
        cluster.pass(Duration::from_millis(20_000));
        let watermark = tablet(&cluster.nodes[other]).watermark();
        assert_eq!(watermark, written[usize::from(!is_renewed)]);
        assert_eq!(cluster.nodes[other].answers.get(&RequestId(5)).is_some_and(Result::is_ok), is_renewed);
    }
}

/// An election does not restart the idle times of sessions: the new leader has observed the timestamps as a follower.
#[test]
fn election_keeps_session_ages() {
    let mut cluster = Cluster::start();
    for bench in &mut cluster.nodes {
        bench.node.config.session_lifetime = Duration::from_millis(20_000);
    }
    cluster.pass(Duration::from_millis(5_000));
    cluster.nodes[0].ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions::of(Tablet::KIND),
        })),
    );
    cluster.pass(Duration::from_millis(3_000));
    let open = Ask::Tablet(TableRequest::OpenSession { key: "k".into() });
    cluster.nodes[0].ask(2, Request::Table { table: "t".into(), request: open });
    cluster.pass(Duration::from_millis(14_000));
    assert!(cluster.nodes.iter().all(|bench| tablet(bench).sessions_open() == 1), "it is open on every replica");
    let leads = |bench: &Bench| bench.node.replicas[&TABLE].cohort.leads();
    let leader = cluster.nodes.iter().position(leads).expect("a leader");
    cluster.cut_off = Some(cluster.nodes[leader].node.me().node);
    cluster.pass(Duration::from_millis(11_000));
    let others = cluster.nodes.iter().enumerate().filter(|(node, _)| *node != leader);
    assert!(others.map(|(_, bench)| tablet(bench)).all(|tablet| tablet.sessions_open() == 0), "it expires on time");
}
