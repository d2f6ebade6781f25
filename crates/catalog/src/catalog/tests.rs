use base::{Durability, Duration, Incarnation, KeyRange};
use bytes::Bytes;
use sharedlog::request::LogResponse;
use state_machine::checkpoint::{Chunks, load};
use state_machine::{KeyPosition, Kind, Snapshot as _, StateMachine as _};

use super::*;
use crate::checkpoint::CatalogSnapshot;
use crate::request::CatalogRequest;
use crate::testing::{Log, TABLET};

mod configurations;
mod logs;
mod nodes;

fn node(number: u32, disk: u64) -> NodeRecord {
    let member = Member { node: NodeId(number), incarnation: Incarnation(disk) };
    NodeRecord { member, peer: format!("peer-{number}"), grpc: format!("grpc-{number}"), standing: Standing::Stays }
}

fn apply(catalog: &mut Catalog, log: &mut Log, command: &CatalogCommand) -> (Option<Outcome>, Option<Change>) {
    let result = catalog.apply_entry(&log.entry(command.encode())).expect("the log's next entry");
    catalog.assert_invariants();
    result
}

fn with_nodes(count: u32) -> (Catalog, Log) {
    let (mut catalog, mut log) = (Catalog::empty(), Log::new());
    let nodes = (1..=count).map(|number| node(number, u64::from(number))).collect();
    let applied = apply(&mut catalog, &mut log, &CatalogCommand::RegisterNodes { nodes });
    assert_eq!(applied, (None, Some(Change::NodesChanged)));
    (catalog, log)
}

fn create(name: &str) -> CatalogCommand {
    split(name, &[], 0)
}

fn split(name: &str, split_at: &[&str], replicas: u32) -> CatalogCommand {
    let split_at = split_at.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    CatalogCommand::CreateTable {
        name: name.into(),
        split_at,
        options: TableOptions { replicas, ..TableOptions::of(TABLET) },
    }
}

/// A repeated creation succeeds and reports that the table existed.
#[test]
fn create_is_idempotent() {
    let (mut catalog, mut log) = with_nodes(3);
    let (outcome, change) = apply(&mut catalog, &mut log, &create("t"));
    let table = catalog.table("t").expect("the table exists").clone();
    assert_eq!(outcome, Some(Ok(CatalogResponse::TableCreated { existed: false })));
    assert_eq!(change, Some(Change::TableCreated { name: "t".into() }));
    assert_eq!((table.ranges.len(), table.created, table.options.replicas), (1, log.timestamp, 3));
    assert_eq!((table.ranges[0].cohort, table.ranges[0].members.len()), (CohortId(2), 3));
    let again = apply(&mut catalog, &mut log, &create("t"));
    assert_eq!(again, (Some(Ok(CatalogResponse::TableCreated { existed: true })), None));
    assert_eq!(catalog.table("t"), Some(&table));
    apply(&mut catalog, &mut log, &create("s"));
    assert_eq!(catalog.table("s").map(|table| table.ranges[0].cohort), Some(CohortId(3)));
    assert_eq!(catalog.list(), CatalogResponse::Tables(vec!["s".into(), "t".into()]));
}

fn nodes_of(catalog: &Catalog, name: &str) -> Vec<Vec<u32>> {
    let nodes = |range: &RangeRecord| range.members.iter().map(|member| member.node.0).collect();
    catalog.table(name).expect("the table exists").ranges.iter().map(nodes).collect()
}

/// Spinnaker's Figure 2: over five nodes, each range is placed on three consecutive nodes, one node after the previous
/// range, and the next table continues where the last one ended. Without nodes no table can be created.
#[test]
fn cohorts_overlap_around_ring() {
    let (mut catalog, mut log) = with_nodes(5);
    apply(&mut catalog, &mut log, &split("t", &["200", "400", "600", "800"], 0));
    assert_eq!(nodes_of(&catalog, "t"), [[1, 2, 3], [2, 3, 4], [3, 4, 5], [1, 4, 5], [1, 2, 5]]);
    apply(&mut catalog, &mut log, &split("u", &["m"], 1));
    assert_eq!(nodes_of(&catalog, "u"), [[1], [2]]);
    apply(&mut catalog, &mut log, &split("v", &["m"], 5));
    assert_eq!(nodes_of(&catalog, "v"), [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]);
    apply(&mut catalog, &mut log, &create("w"));
    assert_eq!(nodes_of(&catalog, "w"), [[1, 2, 5]]);
    let cohorts: Vec<u32> = catalog.tables().flat_map(|(_, table)| &table.ranges).map(|range| range.cohort.0).collect();
    assert_eq!(cohorts, (2..=11).collect::<Vec<_>>());
    let refused = apply(&mut Catalog::empty(), &mut Log::new(), &create("t"));
    assert!(matches!(refused, (Some(Err(Failure::Unavailable(_))), None)));
}

/// With fewer nodes than the default number of replicas, a range has one replica on each node. An explicit number of
/// replicas that exceeds the nodes is rejected.
#[test]
fn replicas_limited_by_node_count() {
    let (mut catalog, mut log) = with_nodes(1);
    apply(&mut catalog, &mut log, &create("t"));
    assert_eq!(nodes_of(&catalog, "t"), [[1]]);
    let refused = apply(&mut catalog, &mut log, &split("u", &[], 3));
    let (Some(Err(Failure::Precondition(why))), None) = refused else { panic!("it should be rejected: {refused:?}") };
    assert!(why.contains("3 replicas") && why.ends_with("1 node"), "{why}");
}

/// Ranges are in order of key, regardless of the order of the split keys, and each key belongs to one range.
#[test]
fn key_maps_to_one_range() {
    let (mut catalog, mut log) = with_nodes(3);
    apply(&mut catalog, &mut log, &split("t", &["m", "c", "m", ""], 0));
    let table = catalog.table("t").expect("the table exists");
    let ranges: Vec<KeyRange> = table.ranges().map(|(range, _)| range).collect();
    let range =
        |start: &'static str, end: Option<&'static str>| KeyRange { start: start.into(), end: end.map(Bytes::from) };
    assert_eq!(ranges, [range("", Some("c")), range("c", Some("m")), range("m", None)]);
    let positions = ["", "a", "c", "c\0", "m", "z"].map(|key| KeyPosition::At(Bytes::copy_from_slice(key.as_bytes())));
    let ends = ["a", "c", "c\0", "m", "z"].map(|key| KeyPosition::Below(Some(Bytes::copy_from_slice(key.as_bytes()))));
    for position in positions.into_iter().chain(ends).chain([KeyPosition::Below(None)]) {
        let found = table.at(&position);
        let holders: Vec<_> =
            table.ranges().filter(|(range, _)| position.is_in(range)).map(|(_, range)| range).collect();
        assert_eq!(holders, [found], "{position:?}");
    }
}

/// A repeated creation reports that the table exists, and fails if the split keys or replicas differ.
#[test]
fn conflicting_create_is_rejected() {
    let (mut catalog, mut log) = with_nodes(5);
    apply(&mut catalog, &mut log, &split("t", &["b", "a"], 0));
    let mut again = |split_at: &[&str], replicas| {
        let (outcome, change) = apply(&mut catalog, &mut log, &split("t", split_at, replicas));
        assert_eq!(change, None);
        outcome
    };
    for (split_at, replicas) in [(&["a", "b"][..], 0), (&["b", "a"], 3), (&[], 0), (&[], 3)] {
        assert_eq!(again(split_at, replicas), Some(Ok(CatalogResponse::TableCreated { existed: true })));
    }
    for (split_at, replicas) in [(&["a"][..], 0), (&["a", "b", "c"], 0), (&["a", "c"], 0), (&[], 5)] {
        assert!(matches!(again(split_at, replicas), Some(Err(Failure::Exists(_)))), "{split_at:?} {replicas}");
    }
    let mut keeps = |milliseconds| {
        let retention = Duration::from_millis(milliseconds);
        let create = CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: Vec::new(),
            options: TableOptions { retention, ..TableOptions::of(TABLET) },
        };
        apply(&mut catalog, &mut log, &create).0
    };
    assert_eq!(keeps(60_000), Some(Ok(CatalogResponse::TableCreated { existed: true })), "60 s is the default");
    assert!(matches!(keeps(1), Some(Err(Failure::Exists(_)))));
}

/// The number of ranges in all tables together is limited.
#[test]
fn range_count_limit() {
    let (mut catalog, mut log) = with_nodes(3);
    let keys: Vec<String> = (0..999).map(|number| format!("{number:03}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for number in 0..RANGES_IN_CLUSTER_MAX / 1_000 {
        let (outcome, _) = apply(&mut catalog, &mut log, &split(&format!("t{number}"), &keys, 1));
        assert_eq!(outcome, Some(Ok(CatalogResponse::TableCreated { existed: false })));
    }
    let full = apply(&mut catalog, &mut log, &create("one more"));
    assert!(matches!(full, (Some(Err(Failure::Overloaded(_))), None)), "{full:?}");
}

/// Addresses may change. A different disk under a registered node id is rejected, with all nodes of the same request.
#[test]
fn rejects_known_node_with_empty_disk() {
    let (mut catalog, mut log) = with_nodes(3);
    let moved = NodeRecord { peer: "elsewhere".into(), ..node(2, 2) };
    let nodes = vec![moved.clone()];
    let register = CatalogCommand::RegisterNodes { nodes };
    assert_eq!(apply(&mut catalog, &mut log, &register), (None, Some(Change::NodesChanged)));
    let nodes = vec![node(4, 4), node(2, 99)];
    let refused = apply(&mut catalog, &mut log, &CatalogCommand::RegisterNodes { nodes });
    assert!(matches!(refused, (Some(Err(Failure::Precondition(_))), None)));
    assert_eq!(catalog.nodes().nth(1), Some(&moved));
    assert_eq!(catalog.nodes().count(), 3);
}

/// The numbers of tables and nodes are limited.
#[test]
fn table_and_node_count_limits() {
    let (mut catalog, mut log) = with_nodes(u32::try_from(NODES_MAX).unwrap());
    for number in 0..TABLES_MAX {
        catalog.apply_entry(&log.entry(create(&number.to_string()).encode())).expect("the log's next entry");
    }
    let full = apply(&mut catalog, &mut log, &create("one more"));
    assert!(matches!(full, (Some(Err(Failure::Overloaded(_))), None)));
    let existed = apply(&mut catalog, &mut log, &create("7"));
    assert_eq!(existed.0, Some(Ok(CatalogResponse::TableCreated { existed: true })));
    let nodes = vec![node(5_000, 1)];
    let full = apply(&mut catalog, &mut log, &CatalogCommand::RegisterNodes { nodes });
    assert!(matches!(full, (Some(Err(Failure::Overloaded(_))), None)));
}

/// A barrier only advances the log position. Gaps and undecodable commands are fatal and change nothing.
#[test]
fn rejects_log_gap_and_undecodable_entry() {
    let (mut catalog, mut log) = with_nodes(3);
    assert_eq!(catalog.apply_entry(&log.entry(Bytes::new())), Ok((None, None)));
    let unreadable = log.clone().entry(Bytes::from_static(b"\xff"));
    assert!(matches!(catalog.apply_entry(&unreadable), Err(ApplyError::Undecodable { .. })));
    let skipped = log.entry(Bytes::new());
    let next = log.entry(create("t").encode());
    assert!(matches!(catalog.apply_entry(&next), Err(ApplyError::NotSuccessor { .. })));
    assert_eq!(catalog.last_applied(), skipped.previous);
    assert_eq!(catalog.apply_entry(&skipped), Ok((None, None)));
    assert!(catalog.apply_entry(&next).is_ok());
}

/// Clients no longer find a table that is being dropped. Its name is reserved until the drop ends and can be reused
/// then.
#[test]
fn drop_begins_and_ends() {
    let (mut catalog, mut log) = with_nodes(3);
    apply(&mut catalog, &mut log, &split("t", &["m"], 0));
    apply(&mut catalog, &mut log, &create("u"));
    let begin = CatalogCommand::BeginDrop { name: "t".into(), force: false };
    for _ in 0..2 {
        let begun = apply(&mut catalog, &mut log, &begin);
        assert_eq!(
            begun,
            (None, Some(Change::DropBegun { id: CohortId(2) })),
            "the client is answered when the operation ends"
        );
    }
    assert_eq!((catalog.table("t"), catalog.dropping().count()), (None, 1));
    assert_eq!(catalog.list(), CatalogResponse::Tables(vec!["u".into()]));
    assert_eq!(catalog.describe("t"), Err(Failure::UnknownTable("t".into())));
    assert!(matches!(apply(&mut catalog, &mut log, &create("t")), (Some(Err(Failure::Unavailable(_))), None)));
    let all = || (1..9).map(CohortId).collect::<Vec<_>>();
    assert_eq!(catalog.gone(all()), []);

    let end = |table| CatalogCommand::EndDrop { name: "t".into(), table: CohortId(table) };
    assert_eq!(apply(&mut catalog, &mut log, &end(3)), (None, None), "no table has this id");
    let ended = apply(&mut catalog, &mut log, &end(2));
    assert_eq!(ended, (None, Some(Change::TableDropped { table: CohortId(2) })));
    assert_eq!(catalog.gone(all()), [CohortId(2), CohortId(3)]);
    let unknown = apply(&mut catalog, &mut log, &begin);
    assert_eq!(unknown, (Some(Err(Failure::UnknownTable("t".into()))), None));
    apply(&mut catalog, &mut log, &create("t"));
    assert_eq!(catalog.table("t").map(TableRecord::id), Some(CohortId(5)), "ids are never reused");
    assert_eq!(apply(&mut catalog, &mut log, &end(2)), (None, None), "an end of the former table has no effect");
}

/// A log is dropped like a table, and is neither repaired nor replaced while it is being dropped.
#[test]
fn log_drop_begins_and_ends() {
    let (mut catalog, mut log) = with_nodes(3);
    let sequencer = sharedlog::SequencerId { node: NodeId(1), boot: base::Boot(1) };
    let create = CatalogCommand::CreateLog { name: "l".into(), stripes: 1, copies: 2, sequencer };
    apply(&mut catalog, &mut log, &create);
    let record = catalog.log("l").expect("it was created").clone();
    for force in [false, true, false] {
        let begun = apply(&mut catalog, &mut log, &CatalogCommand::BeginLogDrop { name: "l".into(), force });
        assert_eq!(begun, (None, Some(Change::DropBegun { id: record.cohort() })), "answered when the drop ends");
    }
    assert_eq!((catalog.log("l"), catalog.dropping_logs().count()), (None, 1));
    assert_eq!(catalog.list_logs(), CatalogResponse::Log(LogResponse::Logs(Vec::new())));
    assert_eq!(catalog.describe_log("l"), Err(Failure::UnknownLog("l".into())));
    assert!(matches!(apply(&mut catalog, &mut log, &create), (Some(Err(Failure::Unavailable(_))), None)));
    let mut projection = Box::new(record.projection.clone());
    projection.epoch = projection.epoch.next();
    let refused = apply(&mut catalog, &mut log, &CatalogCommand::Project { projection });
    assert_eq!(refused, (Some(Err(Failure::UnknownLog("l".into()))), None));
    let more = CatalogCommand::AddUnits { log: record.id, nodes: vec![NodeId(3)] };
    assert_eq!(apply(&mut catalog, &mut log, &more), (None, None));

    let chunks: Vec<Bytes> = Chunks::of(catalog.snapshot()).collect();
    let loaded: CatalogSnapshot = load(CohortId::CATALOG, &chunks).expect("its own chunks");
    let loaded = loaded.into_machine(NoStorage);
    assert!(loaded.dropping_logs().eq(catalog.dropping_logs()));
    assert!(loaded.dropping_logs().all(|(_, log)| log.is_drop_forced));

    let units: Vec<CohortId> = catalog.units().map(|(cohort, _)| cohort).collect();
    let end = CatalogCommand::EndLogDrop { name: "l".into(), log: record.id };
    assert_eq!(catalog.gone(units.clone()), []);
    let ended = apply(&mut catalog, &mut log, &end);
    assert_eq!(ended, (None, Some(Change::LogDropped { id: record.cohort() })));
    assert_eq!(catalog.gone(units.clone()), units);
    assert_eq!(apply(&mut catalog, &mut log, &end), (None, None));
    catalog.assert_invariants();
    apply(&mut catalog, &mut log, &create);
    assert!(catalog.log("l").is_some_and(|new| new.id > record.id), "ids are never reused");
}

/// A split in progress does not show in the map, but its new cohort is known. Until it ends the table can neither be
/// dropped nor be split at another key of the same range.
#[test]
fn split_begins_and_ends() {
    let (mut catalog, mut log) = with_nodes(3);
    apply(&mut catalog, &mut log, &split("t", &["m"], 0));
    let begin =
        |key: &str| CatalogCommand::BeginSplit { name: "t".into(), key: Bytes::copy_from_slice(key.as_bytes()) };
    let end = |child| CatalogCommand::EndSplit { name: "t".into(), child: CohortId(child) };
    for _ in 0..2 {
        let begun = apply(&mut catalog, &mut log, &begin("c"));
        assert_eq!(
            begun,
            (None, Some(Change::SplitBegun { child: CohortId(4) })),
            "the client is answered when the operation ends"
        );
    }
    let starts = |catalog: &Catalog| {
        let ranges = &catalog.table("t").expect("the table exists").ranges;
        ranges.iter().map(|range| (range.start.clone(), range.cohort.0)).collect::<Vec<_>>()
    };
    assert_eq!(starts(&catalog), [(Bytes::new(), 2), (Bytes::from("m"), 3)]);
    assert_eq!(catalog.gone(vec![CohortId(4)]), []);
    let members = |cohort| catalog.part_of(CohortId(cohort)).map(|part| part.members.to_vec());
    assert_eq!(members(4), members(2));
    let table = catalog.table("t").expect("the table exists");
    let at = |key: &'static str| table.split_off_at(&KeyPosition::At(key.into()));
    assert_eq!([at("b"), at("c"), at("l"), at("m")], [None, Some(CohortId(4)), Some(CohortId(4)), None]);
    let moved = |cohort| CatalogCommand::BeginMove { cohort: CohortId(cohort), nodes: vec![NodeId(1)], force: true };
    for refused in [begin("d"), CatalogCommand::BeginDrop { name: "t".into(), force: false }, moved(2), moved(4)] {
        let refused = apply(&mut catalog, &mut log, &refused);
        assert!(matches!(refused, (Some(Err(Failure::Unavailable(_))), None)), "{refused:?}");
    }
    let chunks: Vec<Bytes> = Chunks::of(catalog.snapshot()).collect();
    let loaded: CatalogSnapshot = load(CohortId::CATALOG, &chunks).expect("its own chunks");
    assert!(loaded.into_machine(NoStorage).splits().eq(catalog.splits()));

    assert_eq!(apply(&mut catalog, &mut log, &end(3)), (None, None), "no split has this child");
    assert_eq!(apply(&mut catalog, &mut log, &end(4)), (None, Some(Change::SplitEnded { child: CohortId(4) })));
    assert_eq!(apply(&mut catalog, &mut log, &end(4)), (None, None));
    assert_eq!(starts(&catalog), [(Bytes::new(), 2), (Bytes::from("c"), 4), (Bytes::from("m"), 3)]);
    assert_eq!(catalog.splits().count(), 0);
    for key in ["", "c", "m"] {
        let refused = apply(&mut catalog, &mut log, &begin(key));
        assert!(matches!(refused, (Some(Err(Failure::Exists(_))), None)), "{refused:?}");
    }
    let unknown = CatalogCommand::BeginSplit { name: "u".into(), key: "c".into() };
    assert!(matches!(apply(&mut catalog, &mut log, &unknown), (Some(Err(Failure::UnknownTable(_))), None)));
}

/// Durability is set at creation and applies to all ranges of a table. A table in main memory is not split, because a
/// loss could undo the split.
#[test]
fn in_memory_table_is_not_split() {
    let (mut catalog, mut log) = with_nodes(3);
    let create = |durability| CatalogCommand::CreateTable {
        name: "t".into(),
        split_at: Vec::new(),
        options: TableOptions { durability, ..TableOptions::of(TABLET) },
    };
    let mut created = |durability| apply(&mut catalog, &mut log, &create(durability)).0;
    assert_eq!(created(Some(Durability::Memory)), Some(Ok(CatalogResponse::TableCreated { existed: false })));
    for durability in [None, Some(Durability::Memory)] {
        assert_eq!(created(durability), Some(Ok(CatalogResponse::TableCreated { existed: true })));
    }
    assert!(matches!(created(Some(Durability::Forced)), Some(Err(Failure::Exists(_)))));
    let split = CatalogCommand::BeginSplit { name: "t".into(), key: "c".into() };
    assert!(matches!(apply(&mut catalog, &mut log, &split), (Some(Err(Failure::Precondition(_))), None)));
    assert_eq!(catalog.table("t").map(|table| table.options.durability()), Some(Durability::Memory));
}

fn with_transactions(name: &str, transactions: Option<bool>, durability: Option<Durability>) -> CatalogCommand {
    let options = TableOptions { transactions, durability, ..TableOptions::of(TABLET) };
    CatalogCommand::CreateTable { name: name.into(), split_at: Vec::new(), options }
}

/// Tables on disk take part in transactions unless they are created without; tables in main memory never do.
#[test]
fn transactions_default_to_durability() {
    let (mut catalog, mut log) = with_nodes(3);
    let tables = [
        ("default", None, None, true),
        ("forced", None, Some(Durability::Forced), true),
        ("with", Some(true), None, true),
        ("without", Some(false), Some(Durability::Forced), false),
        ("memory", None, Some(Durability::Memory), false),
        ("memory-without", Some(false), Some(Durability::Memory), false),
    ];
    for (name, transactions, durability, takes_part) in tables {
        let command = with_transactions(name, transactions, durability);
        let request = CatalogRequest::Change(command.clone());
        assert_eq!(crate::validate(&request), Ok(()), "{name}");
        let created = apply(&mut catalog, &mut log, &command).0;
        assert_eq!(created, Some(Ok(CatalogResponse::TableCreated { existed: false })), "{name}");
        let record = catalog.table(name).expect("the table exists");
        assert_eq!(record.options.takes_part(), takes_part, "{name}");
        assert_eq!(record.options.transactions, Some(takes_part), "{name}");
        let CatalogResponse::Table(described) = record.describe() else { panic!("a description") };
        assert_eq!(described.transactions, takes_part, "{name}");
    }
    let refused = with_transactions("both", Some(true), Some(Durability::Memory));
    let refused = crate::validate(&CatalogRequest::Change(refused));
    let message = "a table with durability \"memory\" cannot take part in transactions";
    assert_eq!(refused, Err(Failure::Invalid(message.into())));
}

/// An existing table must match the requested option. An option that is not requested is not compared.
#[test]
fn repeated_creation_compares_transactions() {
    let (mut catalog, mut log) = with_nodes(3);
    apply(&mut catalog, &mut log, &with_transactions("with", None, None));
    apply(&mut catalog, &mut log, &with_transactions("without", Some(false), None));
    apply(&mut catalog, &mut log, &with_transactions("memory", None, Some(Durability::Memory)));
    let mut again = |name, transactions| apply(&mut catalog, &mut log, &with_transactions(name, transactions, None)).0;
    let existed = Some(Ok(CatalogResponse::TableCreated { existed: true }));
    let differs = |name, what| Some(Err(Failure::Exists(format!("table {name} already exists, with {what}"))));
    for (name, takes_part) in [("with", true), ("without", false), ("memory", false)] {
        assert_eq!(again(name, None), existed, "{name}");
        assert_eq!(again(name, Some(takes_part)), existed, "{name}");
        let what = if takes_part { "transactions enabled" } else { "transactions disabled" };
        assert_eq!(again(name, Some(!takes_part)), differs(name, what));
    }
}

/// Otherwise the split would never end, and the table could never be dropped.
#[test]
fn kind_without_split_support_is_not_split() {
    let (mut catalog, mut log) = with_nodes(3);
    let options = TableOptions::of(Kind(0xf1));
    let create = CatalogCommand::CreateTable { name: "t".into(), split_at: Vec::new(), options };
    apply(&mut catalog, &mut log, &create);
    let split = CatalogCommand::BeginSplit { name: "t".into(), key: "c".into() };
    let refused = apply(&mut catalog, &mut log, &split);
    let (Some(Err(Failure::Precondition(message))), None) = refused else { panic!("{refused:?}") };
    assert_eq!(message, "table t cannot be split: its state machine does not support splits");
    assert_eq!(catalog.splits().count(), 0);
}

fn move_to(cohort: CohortId, nodes: &[u32], force: bool) -> CatalogCommand {
    CatalogCommand::BeginMove { cohort, nodes: nodes.iter().copied().map(NodeId).collect(), force }
}

/// Fewer replicas than the table should have are planned only on demand. A range that has fewer already may move.
#[test]
fn move_keeps_fault_tolerance() {
    let (mut catalog, mut log) = with_nodes(5);
    apply(&mut catalog, &mut log, &create("t"));
    let cohort = CohortId(2);
    let mut moved = |nodes: &[u32], force| apply(&mut catalog, &mut log, &move_to(cohort, nodes, force));
    let begun = (Some(Ok(CatalogResponse::MoveBegun)), Some(Change::MoveBegun));
    for nodes in [&[2][..], &[1, 2]] {
        let (outcome, change) = moved(nodes, false);
        let message = outcome.expect("an outcome").expect_err("a refusal").to_string();
        assert!(message.starts_with("table t has 3 replicas of each range") && change.is_none(), "{message}");
    }
    assert_eq!(moved(&[2, 3, 4, 5], false), begun);
    assert_eq!(moved(&[2], true), begun);
    assert_eq!(moved(&[3], false), begun, "no fault tolerance is lost");
    assert_eq!(moved(&[3, 4], false), begun);
    assert_eq!(nodes_of(&catalog, "t"), [[3, 4]]);
}

/// A move takes two entries. The leaving members are recorded until the plan is complete, and only the latest plan can
/// end.
#[test]
fn range_move_follows_plan() {
    let (mut catalog, mut log) = with_nodes(5);
    apply(&mut catalog, &mut log, &create("t"));
    let cohort = CohortId(2);
    let begin = |nodes: &[u32]| move_to(cohort, nodes, false);
    let begun = (Some(Ok(CatalogResponse::MoveBegun)), Some(Change::MoveBegun));
    assert_eq!(apply(&mut catalog, &mut log, &begin(&[2, 3, 4])), begun);
    assert_eq!(apply(&mut catalog, &mut log, &begin(&[3, 4, 5])), begun);
    let on = |catalog: &Catalog| -> Vec<u32> {
        let range = catalog.part_of(cohort).expect("it is there");
        catalog.nodes().filter(|node| range.is_on(node.member)).map(|node| node.member.node.0).collect()
    };
    assert_eq!((on(&catalog), nodes_of(&catalog, "t")), (vec![1, 2, 3, 4, 5], vec![vec![3, 4, 5]]));
    let planned: Vec<(u64, usize)> = catalog.moves().map(|planned| (planned.plan, planned.members.len())).collect();
    assert_eq!(planned, [(2, 3)]);
    let split = CatalogCommand::BeginSplit { name: "t".into(), key: "c".into() };
    let refused = apply(&mut catalog, &mut log, &split);
    assert!(matches!(refused, (Some(Err(Failure::Unavailable(_))), None)), "{refused:?}");
    let end = |plan| CatalogCommand::EndMove { cohort, plan };
    assert_eq!(apply(&mut catalog, &mut log, &end(1)), (None, None));
    assert_eq!(on(&catalog).len(), 5, "the end of an outdated plan has no effect");
    assert_eq!(apply(&mut catalog, &mut log, &end(2)), (None, Some(Change::MoveEnded)));
    assert_eq!((on(&catalog), catalog.moves().count()), (vec![3, 4, 5], 0));
    assert!(matches!(apply(&mut catalog, &mut log, &begin(&[])), (Some(Err(Failure::Invalid(_))), None)));
    for refused in [begin(&[9]), move_to(CohortId(9), &[1], false)] {
        let (outcome, change) = apply(&mut catalog, &mut log, &refused);
        assert!(matches!(outcome, Some(Err(Failure::Precondition(_)))) && change.is_none(), "{refused:?}");
    }
}
