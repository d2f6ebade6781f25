use base::Duration;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use state_machine::{Consistency, Failure, StateMachine as _};
use store::manifest::CheckpointRef;
use tablets::request::{Mutation, TableRequest, Write};
use tablets::{TableResponse, Tablet};

use super::*;
use crate::contract::RequestId;
use crate::request::{Ask, Request, Response};
use crate::testing::{Bench, empty, split_at};

const FIRST: CohortId = CohortId(2);
const SECOND: CohortId = CohortId(3);

/// A cluster of one node, with a table of two ranges and one row.
fn alone() -> Bench {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    bench.ask(
        1,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: split_at(&["m"]),
            options: TableOptions::of(Tablet::KIND),
        })),
    );
    bench.ask(2, of_table(put()));
    bench.pass(Duration::from_millis(2_000));
    assert!(matches!(bench.answers[&RequestId(2)], Ok(Response::Tablet(TableResponse::Written { .. }))));
    bench
}

fn of_table(request: TableRequest) -> Request {
    Request::Table { table: "t".into(), request: Ask::Tablet(request) }
}

fn put() -> TableRequest {
    let mutations = vec![Mutation { column: "c".into(), value: Some("v".into()), condition: None }];
    TableRequest::Write(Write { stamp: None, key: "k".into(), mutations })
}

fn get() -> TableRequest {
    TableRequest::Get {
        key: "k".into(),
        columns: tablets::request::Columns::default(),
        consistency: Consistency::Strong,
    }
}

#[test]
fn dropped_table_frees_its_name() {
    let mut bench = alone();
    bench
        .ask(3, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(Duration::from_millis(100));
    assert_eq!(bench.answers[&RequestId(3)], Ok(Response::Catalog(CatalogResponse::TableDropped)));
    for (number, request) in [
        (4, of_table(get())),
        (5, of_table(put())),
        (6, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false }))),
    ] {
        bench.ask(number, request);
        assert_eq!(bench.answers[&RequestId(number)], Err(Failure::UnknownTable("t".into())));
    }
    bench.ask(
        7,
        Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec![],
            options: TableOptions::of(Tablet::KIND),
        })),
    );
    bench.pass(Duration::from_millis(2_000));
    bench.ask(8, of_table(get()));
    assert_eq!(
        bench.answers[&RequestId(8)],
        Ok(Response::Tablet(TableResponse::row(Vec::new()))),
        "nothing of the old one shows"
    );
    assert!(bench.node.replicas.keys().eq(&[CohortId::CATALOG, CohortId(4)]));
}

/// If a manifest omitted the promises of a dropped cohort before the catalog's own checkpoint reflects the drop, a
/// restart would create that cohort anew.
#[test]
fn promises_kept_until_catalog_checkpoint() {
    let mut bench = alone();
    bench
        .ask(3, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(Duration::from_millis(1_000));
    assert!(!bench.node.replicas.contains_key(&FIRST));
    let (cohorts, gone) = bench.manifests.last().expect("a manifest was written").clone();
    assert!(cohorts.contains_key(&FIRST) && cohorts.contains_key(&SECOND) && gone.is_empty());

    bench.manifests.clear();
    let dropped_at = bench.node.catalog().last_applied();
    // The checkpoint requested by the drop is written.
    let (cohort, flushed) = (CohortId::CATALOG, None);
    let (checkpoint, ..) =
        bench.node.replicas[&cohort].on_disk.writing.clone().expect("a checkpoint is requested at once");
    bench.step(crate::contract::Event::CheckpointWritten { cohort, checkpoint, bytes: 1, flushed });
    let (cohorts, gone) = bench.manifests.last().expect("the checkpoint is named").clone();
    let named = cohorts[&CohortId::CATALOG].checkpoint;
    assert!(matches!(named, Some(CheckpointRef { lsn, .. }) if lsn == dropped_at), "{named:?}");
    assert!(!cohorts.contains_key(&FIRST) && !cohorts.contains_key(&SECOND));
    assert_eq!(gone, BTreeSet::from([FIRST, SECOND]));
}

/// Log records of a dropped and forgotten cohort are discarded after a restart, too.
#[test]
fn restart_ignores_dropped_table() {
    let mut bench = alone();
    bench.writes_checkpoints = true;
    bench
        .ask(3, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(Duration::from_millis(1_000));
    let (cohorts, _) = bench.manifests.last().expect("a manifest was written").clone();
    let mut recovered = empty(1, 1);
    recovered.boot = base::Boot(2);
    let state = &bench.node.replicas[&CohortId::CATALOG].state;
    recovered.checkpoints.insert(CohortId::CATALOG, state.snapshot().chunks().collect());
    recovered.records = bench.appended.clone();
    recovered.cohorts = cohorts;
    assert!(recovered.records.iter().any(|record| record.cohort == FIRST) && !recovered.cohorts.contains_key(&FIRST));
    let again = Bench::start(recovered);
    assert!(again.node.replicas.keys().eq(&[CohortId::CATALOG]) && again.node.hosting.stopped.is_empty());
    assert_eq!(again.manifests.last().expect("a manifest was written").1, BTreeSet::from([FIRST, SECOND]));
}

/// Flushes the rows of the first range, which creates an SSTable and a checkpoint on disk.
fn flush(bench: &mut Bench) {
    bench.writes_checkpoints = true;
    bench.node.replicas.get_mut(&FIRST).expect("the replica runs").on_disk.is_wanted = true;
    bench.pass(Duration::from_millis(100));
    assert_eq!(sstables(bench), 1);
    assert_eq!(bench.manifests.last().expect("the manifest names it").0[&FIRST].sstables.len(), 1);
}

fn sstables(bench: &Bench) -> usize {
    store::files::Files::list(&bench.disk, store::sstable::DIRECTORY).expect("a working disk").len()
}

/// The manifest names the SSTables of its checkpoint until the next checkpoint releases them.
#[test]
fn checkpoint_removes_dropped_tablet_sstables() {
    let mut bench = alone();
    flush(&mut bench);
    bench.writes_checkpoints = false;
    let before = bench.node.replicas[&FIRST].on_disk.lsn();
    let now = bench.now;
    bench.node.ask_to_drop(FIRST, Tablet::KIND, now);
    bench.pass(Duration::from_millis(100));
    let replica = &bench.node.replicas[&FIRST];
    assert_eq!(replica.state.ownership(), Some(&state_machine::Ownership::Dropped));
    assert_eq!(
        (replica.manifest(false).sstables.len(), sstables(&bench)),
        (1, 1),
        "the SSTables belong to the old checkpoint"
    );
    assert!(replica.whole_state().is_none(), "no snapshot to send");
    let (checkpoint, state, _) = replica.on_disk.writing.clone().expect("another checkpoint is requested at once");
    assert!(crate::node::newer(state.last_applied(), before));
    bench.step(crate::contract::Event::CheckpointWritten { cohort: FIRST, checkpoint, bytes: 1, flushed: None });
    bench.pass(Duration::from_millis(100));
    assert_eq!((bench.node.replicas[&FIRST].manifest(false).sstables.len(), sstables(&bench)), (0, 0));
    assert!(bench.node.replicas[&FIRST].whole_state().is_some_and(|whole| whole.files.is_empty()));
}

/// The SSTables of a removed cohort stay while a manifest names them or a read uses them.
#[test]
fn dropped_sstables_removed_with_promises() {
    let mut bench = alone();
    flush(&mut bench);
    let view = bench.node.replicas[&FIRST].state.as_tablet().expect("a tablet").view_now();
    bench.writes_checkpoints = false;
    bench
        .ask(3, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name: "t".into(), force: false })));
    bench.pass(Duration::from_millis(1_000));
    assert!(!bench.node.replicas.contains_key(&FIRST));
    assert_eq!((bench.manifests.last().expect("one").0[&FIRST].sstables.len(), sstables(&bench)), (1, 1));

    let (cohort, flushed) = (CohortId::CATALOG, None);
    let (checkpoint, ..) =
        bench.node.replicas[&cohort].on_disk.writing.clone().expect("a checkpoint is requested at once");
    bench.step(crate::contract::Event::CheckpointWritten { cohort, checkpoint, bytes: 1, flushed });
    assert!(!bench.manifests.last().expect("one").0.contains_key(&FIRST));
    assert_eq!(sstables(&bench), 1, "a read still uses the SSTable");
    drop(view);
    bench.pass(Duration::from_millis(1_000));
    assert_eq!(sstables(&bench), 0);
}
