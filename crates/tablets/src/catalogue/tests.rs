use base::Incarnation;
use bytes::Bytes;

use super::*;
use crate::testing::Log;

fn node(number: u32, disk: u64) -> NodeRecord {
    let member = Member { node: NodeId(number), incarnation: Incarnation(disk) };
    NodeRecord { member, peer: format!("peer-{number}"), grpc: format!("grpc-{number}") }
}

fn apply(catalogue: &mut Catalogue, log: &mut Log, command: &CatalogueCommand) -> (Option<Outcome>, Option<Change>) {
    let result = catalogue.apply(&log.entry(command.encode())).expect("the log's next entry");
    catalogue.invariants();
    result
}

fn with_nodes(count: u32) -> (Catalogue, Log) {
    let (mut catalogue, mut log) = (Catalogue::new(), Log::new());
    let nodes = (1..=count).map(|number| node(number, u64::from(number))).collect();
    let applied = apply(&mut catalogue, &mut log, &CatalogueCommand::RegisterNodes { nodes });
    assert_eq!(applied, (None, None));
    (catalogue, log)
}

fn create(name: &str) -> CatalogueCommand {
    CatalogueCommand::CreateTable { name: name.into() }
}

/// A table is created once, and says so to those who come later.
#[test]
fn creation_is_idempotent() {
    let (mut catalogue, mut log) = with_nodes(3);
    let (outcome, change) = apply(&mut catalogue, &mut log, &create("t"));
    let table = catalogue.table("t").expect("it was created").clone();
    assert_eq!(outcome, Some(Ok(Response::TableCreated { existed: false })));
    assert_eq!(change, Some(Change::TableCreated { name: "t".into(), table: table.clone() }));
    assert_eq!((table.cohort, table.created, table.members.len()), (CohortId(2), log.timestamp, 3));
    let again = apply(&mut catalogue, &mut log, &create("t"));
    assert_eq!(again, (Some(Ok(Response::TableCreated { existed: true })), None));
    assert_eq!(catalogue.table("t"), Some(&table));
    apply(&mut catalogue, &mut log, &create("s"));
    assert_eq!(catalogue.table("s").map(|table| table.cohort), Some(CohortId(3)));
    assert_eq!(catalogue.list(), Response::Tables(vec!["s".into(), "t".into()]));
}

/// Over five nodes, each cohort lies one node further on; without nodes there can be no table.
#[test]
fn members_go_round_the_ring() {
    let (mut catalogue, mut log) = with_nodes(5);
    let expected = [[1, 2, 3], [2, 3, 4], [3, 4, 5], [1, 4, 5], [1, 2, 5], [1, 2, 3]];
    for (number, expected) in expected.iter().enumerate() {
        let name = format!("t{number}");
        apply(&mut catalogue, &mut log, &create(&name));
        let members = &catalogue.table(&name).expect("it was created").members;
        assert_eq!(members.iter().map(|member| member.node.0).collect::<Vec<_>>(), expected);
    }
    let refused = apply(&mut Catalogue::new(), &mut Log::new(), &create("t"));
    assert!(matches!(refused, (Some(Err(Failure::Unavailable(_))), None)));
}

/// Addresses may change; another disk under a known name is refused, and all that came with it.
#[test]
fn an_empty_disk_under_a_known_name_is_refused() {
    let (mut catalogue, mut log) = with_nodes(3);
    let moved = NodeRecord { peer: "elsewhere".into(), ..node(2, 2) };
    let nodes = vec![moved.clone()];
    let register = CatalogueCommand::RegisterNodes { nodes };
    assert_eq!(apply(&mut catalogue, &mut log, &register), (None, None));
    let nodes = vec![node(4, 4), node(2, 99)];
    let refused = apply(&mut catalogue, &mut log, &CatalogueCommand::RegisterNodes { nodes });
    assert!(matches!(refused, (Some(Err(Failure::Invalid(_))), None)));
    assert_eq!(catalogue.nodes().nth(1), Some(&moved));
    assert_eq!(catalogue.nodes().count(), 3);
}

/// There are only so many tables and nodes.
#[test]
fn tables_and_nodes_are_bounded() {
    let (mut catalogue, mut log) = with_nodes(u32::try_from(NODES_MAX).unwrap());
    for number in 0..TABLES_MAX {
        catalogue.apply(&log.entry(create(&number.to_string()).encode())).expect("the log's next entry");
    }
    let full = apply(&mut catalogue, &mut log, &create("one more"));
    assert!(matches!(full, (Some(Err(Failure::Overloaded(_))), None)));
    let existed = apply(&mut catalogue, &mut log, &create("7"));
    assert_eq!(existed.0, Some(Ok(Response::TableCreated { existed: true })));
    let nodes = vec![node(5_000, 1)];
    let full = apply(&mut catalogue, &mut log, &CatalogueCommand::RegisterNodes { nodes });
    assert!(matches!(full, (Some(Err(Failure::Overloaded(_))), None)));
}

/// Barriers change nothing but the place in the log; gaps and unreadable commands are fatal and change nothing.
#[test]
fn only_the_next_readable_entry_is_applied() {
    let (mut catalogue, mut log) = with_nodes(3);
    assert_eq!(catalogue.apply(&log.entry(Bytes::new())), Ok((None, None)));
    let unreadable = log.clone().entry(Bytes::from_static(b"\xff"));
    assert!(matches!(catalogue.apply(&unreadable), Err(ApplyError::Undecodable { .. })));
    let skipped = log.entry(Bytes::new());
    let next = log.entry(create("t").encode());
    assert!(matches!(catalogue.apply(&next), Err(ApplyError::NotSuccessor { .. })));
    assert_eq!(catalogue.last_applied(), skipped.previous);
    assert_eq!(catalogue.apply(&skipped), Ok((None, None)));
    assert!(catalogue.apply(&next).is_ok());
}
