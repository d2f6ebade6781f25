use base::Duration;
use catalog::CatalogCommand;
use sharedlog::request::LogRequest;
use tablets::Tablet;

use super::*;
use crate::contract::RequestId;
use crate::request::Request;
use crate::testing::{Bench, empty};

/// The table and first key of each replica, in order of cohort, and whether its entries wait for their timestamps.
fn waits(bench: &Bench) -> Vec<(&str, &[u8], bool)> {
    let replicas = bench.node.replicas.iter().map(|(_, replica)| replica);
    replicas.map(|replica| (&*replica.table, &*replica.range.start, replica.cohort.config().waits)).collect()
}

/// Only ranges of tables that take part in transactions wait: not the catalog, and not the units of shared logs. A range
/// that is split off does as its table does, also after a restart.
#[test]
fn only_transactional_tables_wait() {
    let mut bench = Bench::start(empty(1, 1));
    bench.pass(Duration::from_millis(5_000));
    let table = TableOptions::of(Tablet::KIND);
    let tables = [
        ("with", table),
        ("without", TableOptions { transactions: Some(false), ..table }),
        ("memory", TableOptions { durability: Some(Durability::Memory), ..table }),
    ];
    let create = |(name, options): (&str, _)| {
        Request::from(CatalogCommand::CreateTable { name: name.into(), split_at: Vec::new(), options })
    };
    let split = |name: &str| Request::from(CatalogCommand::BeginSplit { name: name.into(), key: "m".into() });
    let log = Request::Log(LogRequest::Create { name: "l".into(), stripes: 1, copies: 1 });
    let requests = tables.into_iter().map(create).chain([log, split("with"), split("without")]);
    for (number, request) in (1..).zip(requests) {
        bench.ask(number, request);
        bench.pass(Duration::from_millis(2_000));
        assert!(matches!(bench.answers.get(&RequestId(number)), Some(Ok(_))), "{:?}", bench.answers);
    }
    let expected: [(&str, &[u8], bool); 7] = [
        ("", b"", false),
        ("with", b"", true),
        ("without", b"", false),
        ("memory", b"", false),
        ("", b"", false),
        ("with", b"m", true),
        ("without", b"m", false),
    ];
    assert_eq!(waits(&bench), expected);
    let mut recovered = empty(1, 1);
    recovered.boot = base::Boot(2);
    recovered.records = bench.appended.clone();
    recovered.cohorts = bench.manifests.last().expect("a manifest was written").0.clone();
    let mut again = Bench::start(recovered);
    again.pass(Duration::from_millis(5_000));
    assert_eq!(waits(&again), expected);
}
