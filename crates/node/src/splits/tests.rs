use base::{Duration, Lsn};
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use replication::Replay;
use state_machine::{AsOf, Consistency, Failure, StateMachine as _};
use tablets::request::{Mutation, TableRequest, Write};
use tablets::{TableResponse, Tablet};

use super::*;
use crate::contract::RequestId;
use crate::request::{Ask, Request, Response};
use crate::testing::{Bench, empty};

const PARENT: CohortId = CohortId(2);
const CHILD: CohortId = CohortId(3);

/// A cluster of one node, with a table and two rows.
fn alone() -> Bench {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    bench.ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: Vec::new(),
            options: TableOptions::of(Tablet::KIND),
        })),
    );
    bench.pass(Duration::from_millis(2_000));
    for (number, key) in [(2, "a"), (3, "z")] {
        bench.ask(number, put(key));
        assert!(matches!(bench.answers[&RequestId(number)], Ok(Response::Tablet(TableResponse::Written { .. }))));
    }
    bench
}

fn of_table(request: TableRequest) -> Request {
    Request::Table { table: "t".into(), request: Ask::Tablet(request) }
}

fn put(key: &'static str) -> Request {
    let mutations = vec![Mutation { column: "c".into(), value: Some(key.into()), condition: None }];
    of_table(TableRequest::Write(Write { stamp: None, key: key.into(), mutations }))
}

fn split(key: &'static str) -> Request {
    Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginSplit { name: "t".into(), key: key.into() }))
}

/// Reads both rows and returns their total number of columns.
fn rows(bench: &mut Bench, number: u64) -> usize {
    let mut cells = 0;
    for (number, key) in [(number, "a"), (number + 1, "z")] {
        bench.ask(
            number,
            of_table(TableRequest::Get {
                key: key.into(),
                columns: tablets::request::Columns::default(),
                consistency: Consistency::Strong,
            }),
        );
        bench.pass(Duration::from_millis(100));
        let Ok(Response::Tablet(TableResponse::Row { cells: row, .. })) = &bench.answers[&RequestId(number)] else {
            panic!("{:?}", bench.answers)
        };
        cells += row.len();
    }
    cells
}

/// The state that a timeline read of a row is based on.
fn timeline(bench: &mut Bench, number: u64, key: &'static str) -> AsOf {
    let consistency = Consistency::Timeline { at_least: None, stale_ok: false };
    bench.ask(
        number,
        of_table(TableRequest::Get { key: key.into(), columns: tablets::request::Columns::default(), consistency }),
    );
    bench.pass(Duration::from_millis(100));
    let Ok(Response::Dated { response, as_of }) = &bench.answers[&RequestId(number)] else {
        panic!("{:?}", bench.answers)
    };
    assert!(
        matches!(&**response, Response::Tablet(TableResponse::Row { cells, .. }) if cells.len() == 1),
        "{response:?}"
    );
    (**as_of).clone()
}

/// By its own log, a tablet returns nothing outside its range, not even rows that it applied before the split.
#[test]
fn child_tablet_serves_split_range() {
    let mut bench = alone();
    let before = timeline(&mut bench, 4, "z");
    bench.ask(5, split("m"));
    bench.pass(Duration::from_millis(1_000));
    let (kept, given) = (timeline(&mut bench, 6, "a"), timeline(&mut bench, 7, "z"));
    assert_eq!([before.place.cohort, kept.place.cohort, given.place.cohort], [PARENT, PARENT, CHILD]);
    assert!(before.timestamp < given.timestamp && before.range.contains(b"z") && !kept.range.contains(b"z"));
}

fn restart(bench: &Bench) -> Bench {
    let mut recovered = empty(1, 1);
    recovered.boot = base::Boot(2);
    recovered.records = bench.appended.clone();
    recovered.cohorts = bench.manifests.last().expect("a manifest was written").0.clone();
    Bench::start(recovered)
}

#[test]
fn both_halves_serve_after_split() {
    let mut bench = alone();
    bench.ask(4, split("m"));
    bench.pass(Duration::from_millis(100));
    assert_eq!(bench.answers[&RequestId(4)], Ok(Response::Catalog(CatalogResponse::RangeSplit { cohort: CHILD.0 })));
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(rows(&mut bench, 5), 2);
    let starts: Vec<_> = bench
        .node
        .catalog()
        .table("t")
        .expect("the table exists")
        .ranges
        .iter()
        .map(|range| range.start.clone())
        .collect();
    assert_eq!(starts, ["", "m"]);
    bench.ask(9, split("m"));
    assert!(matches!(bench.answers[&RequestId(9)], Err(Failure::Exists(_))));
    bench.ask(
        10,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginSplit { name: "u".into(), key: "m".into() })),
    );
    assert_eq!(bench.answers[&RequestId(10)], Err(Failure::UnknownTable("u".into())));
    bench.ask(
        11,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })),
    );
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(bench.answers[&RequestId(11)], Ok(Response::Catalog(CatalogResponse::TableDropped)));
    assert!(bench.node.replicas.keys().eq(&[CohortId::CATALOG]));
}

/// Before a manifest names the new range, a restart recreates it from the parent's log.
#[test]
fn restart_recreates_child_from_parent_log() {
    let mut bench = alone();
    bench.ask(4, split("m"));
    bench.pass(Duration::from_millis(1_000));
    bench.ask(5, put("z"));
    let mut again = restart(&bench);
    assert!(again.node.replicas.contains_key(&CHILD));
    let replica = &again.node.replicas[&CHILD];
    assert!(replica.cohort.last() >= bench.node.replicas[&CHILD].cohort.last());
    again.pass(Duration::from_millis(2_000));
    assert_eq!(rows(&mut again, 1), 2);
}

/// The map is ahead of the logs: it contains a range that was split off the child of another range, while neither split
/// is applied.
#[test]
fn child_waits_for_parent_replica() {
    let mut bench = alone();
    let of_before = bench.appended.len();
    for (number, key) in [(4, "m"), (5, "t")] {
        bench.ask(number, split(key));
        bench.pass(Duration::from_millis(1_000));
    }
    assert!(bench.node.replicas.contains_key(&CohortId(CHILD.0 + 1)));
    let mut place = 0;
    bench.appended.retain(|record| {
        place += 1;
        record.cohort == CohortId::CATALOG || (place <= of_before && record.cohort == PARENT)
    });
    let (cohorts, _) = bench.manifests.last_mut().expect("a manifest was written");
    cohorts.retain(|cohort, _| *cohort <= PARENT);
    let again = restart(&bench);
    assert!(again.node.catalog().parts().count() == 3);
    assert!(again.node.replicas.keys().eq(&[CohortId::CATALOG, PARENT]));
}

/// A damaged disk lost the checkpoint of a child after the parent was removed from this node. The parent has no state
/// for the child, so it is not started.
#[test]
fn removed_parent_starts_no_child() {
    let mut bench = alone();
    bench.ask(4, split("m"));
    bench.pass(Duration::from_millis(1_000));
    bench.ask(5, put("z"));
    let mut again = restart(&bench);
    again.node.end_replica(PARENT, false);
    let (cohorts, _) = bench.manifests.last().expect("a manifest was written");
    let mut replay = Replay::after(Lsn::ZERO);
    let records = bench.appended.iter().filter(|record| record.cohort == CHILD);
    records.for_each(|record| replay.record(record.body.clone()));
    let child = StoppedReplica { manifest: cohorts[&CHILD].clone(), replay, ..StoppedReplica::default() };
    again.node.end_replica(CHILD, false);
    again.node.hosting.stopped.insert(CHILD, child);
    assert!(again.node.is_rested_on(PARENT));
    again.node.hosting.stopped.get_mut(&PARENT).expect("the replica was stopped").manifest.is_retired = true;
    assert!(!again.node.is_rested_on(PARENT));
}

/// A checkpoint of the parent waits for one of the child.
#[test]
fn parent_checkpoint_waits_for_child() {
    let mut bench = alone();
    bench.ask(4, split("m"));
    bench.pass(Duration::from_millis(1_000));
    let parent = bench.node.replicas.get_mut(&PARENT).expect("the replica runs");
    assert_eq!(parent.unsettled, [CHILD]);
    parent.on_disk.is_wanted = true;
    bench.pass(Duration::from_millis(100));
    assert!(bench.node.replicas[&PARENT].on_disk.writing.is_none());
    let (checkpoint, ..) =
        bench.node.replicas[&CHILD].on_disk.writing.clone().expect("a checkpoint is requested at once");
    bench.writes_checkpoints = true;
    bench.step(crate::contract::Event::CheckpointFailed { cohort: CHILD, checkpoint });
    bench.pass(Duration::from_millis(10_000));
    assert!(bench.node.replicas[&PARENT].unsettled.is_empty());
    let (cohorts, _) = bench.manifests.last().expect("a manifest was written");
    assert!(cohorts[&PARENT].checkpoint.is_some() && cohorts[&CHILD].checkpoint.is_some());
    assert_eq!(cohorts[&CHILD].sstables.len(), 1);
}
