//! Configurations of primary/backup ranges.

use base::{Configuration, Epoch};

use super::*;
use crate::options::Replication;

fn member(number: u32) -> Member {
    node(number, u64::from(number)).member
}

/// A primary/backup table of one range on nodes 1 to 3; its cohort is 2. There are five nodes.
fn managed() -> (Catalog, Log) {
    let (mut catalog, mut log) = with_nodes(5);
    let options = TableOptions { replication: Some(Replication::PrimaryBackup), ..TableOptions::of(TABLET) };
    apply(&mut catalog, &mut log, &CatalogCommand::CreateTable { name: "t".into(), split_at: Vec::new(), options });
    (catalog, log)
}

const COHORT: CohortId = CohortId(2);

fn wanted(version: u64, nodes: &[u32], primary: u32) -> CatalogCommand {
    let members = nodes.iter().map(|number| member(*number)).collect();
    let configuration = Configuration { version: Epoch(version), members, primary: member(primary), loss: Epoch(0) };
    CatalogCommand::Configure { cohort: COHORT, configuration }
}

fn state(catalog: &Catalog, cohort: CohortId) -> (u64, Vec<u32>, u32) {
    let found = catalog.configuration_of(cohort).expect("it is a primary/backup range");
    (found.version.0, found.members.iter().map(|member| member.node.0).collect(), found.primary.node.0)
}

#[test]
fn first_configuration_comes_with_table() {
    let (mut catalog, mut log) = managed();
    assert_eq!(state(&catalog, COHORT), (1, vec![1, 2, 3], 3));
    apply(&mut catalog, &mut log, &create("p"));
    assert_eq!(catalog.configuration_of(CohortId(3)), None);
    assert_eq!(catalog.configurations().count(), 1);
    let options = TableOptions { replication: Some(Replication::Paxos), ..TableOptions::of(TABLET) };
    let other = CatalogCommand::CreateTable { name: "t".into(), split_at: Vec::new(), options };
    let (outcome, _) = apply(&mut catalog, &mut log, &other);
    let exists = "table t already exists, with replication \"primary-backup\"";
    assert_eq!(outcome, Some(Err(Failure::Exists(exists.into()))));
}

#[test]
fn first_petition_for_version_wins() {
    let (mut catalog, mut log) = managed();
    let configured = (None, Some(Change::Configured { cohort: COHORT }));
    assert_eq!(apply(&mut catalog, &mut log, &wanted(2, &[1, 2], 1)), configured);
    // The primary wanted to remove a secondary at the same time.
    assert_eq!(apply(&mut catalog, &mut log, &wanted(2, &[1, 3], 3)), (None, None));
    assert_eq!(state(&catalog, COHORT), (2, vec![1, 2], 1));
    // The former primary is only a candidate now.
    assert_eq!(apply(&mut catalog, &mut log, &wanted(3, &[1, 2, 3], 3)), (None, None));
    assert_eq!(apply(&mut catalog, &mut log, &wanted(4, &[1], 1)), (None, None));
    assert_eq!(apply(&mut catalog, &mut log, &wanted(3, &[1, 2, 3], 1)), configured);
    assert_eq!(apply(&mut catalog, &mut log, &wanted(4, &[1, 2, 3, 4], 1)), (None, None), "4 has no replica");
    assert_eq!(state(&catalog, COHORT), (3, vec![1, 2, 3], 1));
    let unknown = CatalogCommand::Configure {
        cohort: CohortId(9),
        configuration: Configuration::new(Epoch(2), vec![member(1)], member(1)),
    };
    assert_eq!(apply(&mut catalog, &mut log, &unknown), (None, None));
}

#[test]
fn planned_member_is_added() {
    let (mut catalog, mut log) = managed();
    let nodes = [1, 2, 4].map(NodeId).to_vec();
    apply(&mut catalog, &mut log, &CatalogCommand::BeginMove { cohort: COHORT, nodes, force: false });
    apply(&mut catalog, &mut log, &wanted(2, &[1, 2, 3, 4], 3));
    assert_eq!(state(&catalog, COHORT), (2, vec![1, 2, 3, 4], 3));
    apply(&mut catalog, &mut log, &wanted(3, &[1, 2, 3, 4], 4));
    apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort: COHORT, plan: 1 });
    // A member keeps its replica although the plan does not name it any more.
    let is_on = |catalog: &Catalog| catalog.part_of(COHORT).is_some_and(|part| part.is_on(member(3)));
    assert!(is_on(&catalog));
    apply(&mut catalog, &mut log, &wanted(4, &[1, 2, 4], 4));
    assert!(!is_on(&catalog));
}

#[test]
fn split_inherits_configuration() {
    let (mut catalog, mut log) = managed();
    apply(&mut catalog, &mut log, &wanted(2, &[1, 3], 3));
    apply(&mut catalog, &mut log, &CatalogCommand::BeginSplit { name: "t".into(), key: "m".into() });
    let child = CohortId(3);
    assert_eq!(state(&catalog, child), (2, vec![1, 3], 3));
    assert_eq!(apply(&mut catalog, &mut log, &wanted(3, &[1, 2, 3], 3)), (None, None), "it only loses members now");
    apply(&mut catalog, &mut log, &wanted(3, &[1], 1));
    assert_eq!(state(&catalog, child), (3, vec![1], 1));
    apply(&mut catalog, &mut log, &CatalogCommand::EndSplit { name: "t".into(), child });
    apply(&mut catalog, &mut log, &wanted(4, &[1, 2], 1));
    assert_eq!((state(&catalog, COHORT).0, state(&catalog, child).0), (4, 3));
    let chunks: Vec<Bytes> = Chunks::of(catalog.snapshot()).collect();
    let loaded = load::<CatalogSnapshot>(CohortId::CATALOG, &chunks).expect("the checkpoint is whole");
    let loaded = loaded.into_machine(state_machine::NoStorage);
    assert_eq!(state(&loaded, COHORT), (4, vec![1, 2], 1));
}

#[test]
fn primary_backup_excludes_main_memory() {
    let reason = "replication \"primary-backup\" cannot be combined with durability \"memory\"";
    for (durability, expected) in [(None, Ok(())), (Some(Durability::Memory), Err(Failure::Invalid(reason.into())))] {
        let replication = Some(Replication::PrimaryBackup);
        let options = TableOptions { replication, durability, ..TableOptions::of(TABLET) };
        let request = CatalogCommand::CreateTable { name: "t".into(), split_at: Vec::new(), options };
        assert_eq!(crate::validate(&request.into()), expected);
    }
}

#[test]
fn declared_loss_leaves_one_member() {
    let (mut catalog, mut log) = managed();
    let declare =
        |table: &str, node| CatalogCommand::DeclareLoss { table: table.into(), cohort: COHORT, node: NodeId(node) };
    let loss = |catalog: &Catalog| catalog.configuration_of(COHORT).map(|configuration| configuration.loss);
    let (outcome, _) = apply(&mut catalog, &mut log, &declare("u", 2));
    assert!(matches!(outcome, Some(Err(Failure::UnknownTable(_)))));
    let (outcome, _) = apply(&mut catalog, &mut log, &declare("t", 5));
    assert!(matches!(outcome, Some(Err(Failure::Precondition(_)))), "it has no replica");
    let (outcome, change) = apply(&mut catalog, &mut log, &declare("t", 2));
    assert_eq!((outcome, change), (Some(Ok(CatalogResponse::MoveBegun)), Some(Change::MoveBegun)));
    assert_eq!((state(&catalog, COHORT), loss(&catalog)), ((2, vec![2], 2), Some(Epoch(2))));
    let planned: Vec<Vec<Member>> = catalog.moves().map(|planned| planned.members).collect();
    assert_eq!(planned, [vec![member(2)]], "the others delete their replicas");
    apply(&mut catalog, &mut log, &wanted(3, &[2], 2));
    assert_eq!(loss(&catalog), Some(Epoch(2)), "a petition does not change it");
    assert_eq!(catalog.replacements(&[], &[]), [], "the move is in progress");
    apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort: COHORT, plan: 1 });
    let nodes = vec![NodeId(2), NodeId(1), NodeId(3)];
    assert_eq!(catalog.replacements(&[], &[]), [(COHORT, nodes)], "the table should have three replicas");
}

#[test]
fn planned_reduction_is_kept() {
    let (mut catalog, mut log) = managed();
    let nodes = vec![NodeId(3)];
    apply(&mut catalog, &mut log, &CatalogCommand::BeginMove { cohort: COHORT, nodes, force: true });
    apply(&mut catalog, &mut log, &wanted(2, &[3], 3));
    apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort: COHORT, plan: 1 });
    assert_eq!(catalog.replacements(&[], &[]), []);
}

#[test]
fn absent_members_are_replaced() {
    let (mut catalog, mut log) = managed();
    let absent = vec![NodeId(3)];
    assert_eq!(catalog.replacements(&absent, &[]), [], "it is still a member");
    apply(&mut catalog, &mut log, &wanted(2, &[1, 2], 1));
    assert_eq!(catalog.replacements(&[], &[]), [], "it may return");
    let nodes = [1, 2, 4].map(NodeId).to_vec();
    assert_eq!(catalog.replacements(&absent, &[]), [(COHORT, nodes.clone())]);
    assert_eq!(catalog.replacements(&[3, 4, 5].map(NodeId), &[]), [], "there is no spare node");
    let (outcome, change) = apply(&mut catalog, &mut log, &CatalogCommand::Replace { absent, suspected: vec![] });
    assert_eq!((outcome, change), (None, Some(Change::MoveBegun)));
    let planned: Vec<Vec<Member>> = catalog.moves().map(|planned| planned.members).collect();
    assert_eq!(planned, [nodes.into_iter().map(|node| member(node.0)).collect::<Vec<_>>()]);
    // Another member is lost while the move waits for it, and node 4 has joined already.
    apply(&mut catalog, &mut log, &wanted(3, &[1], 1));
    assert_eq!(catalog.replacements(&[3].map(NodeId), &[]), [], "the move goes on");
    let nodes = [1, 4, 5].map(NodeId).to_vec();
    assert_eq!(catalog.replacements(&[2, 3].map(NodeId), &[]), [(COHORT, nodes)]);
    assert_eq!(catalog.replacements(&[2, 3].map(NodeId), &[NodeId(5)]), [], "the spare node may be down");
}

#[test]
fn split_after_declared_loss_inherits_no_loss() {
    let (mut catalog, mut log) = managed();
    apply(&mut catalog, &mut log, &CatalogCommand::DeclareLoss { table: "t".into(), cohort: COHORT, node: NodeId(2) });
    let split = CatalogCommand::BeginSplit { name: "t".into(), key: "m".into() };
    let (outcome, _) = apply(&mut catalog, &mut log, &split);
    assert!(matches!(outcome, Some(Err(Failure::Unavailable(_)))), "its replicas are not restored: {outcome:?}");
    apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort: COHORT, plan: 1 });
    apply(&mut catalog, &mut log, &CatalogCommand::Replace { absent: vec![], suspected: vec![] });
    apply(&mut catalog, &mut log, &wanted(3, &[1, 2], 2));
    apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort: COHORT, plan: 2 });
    let (outcome, change) = apply(&mut catalog, &mut log, &split);
    let Some(Change::SplitBegun { child }) = change else { panic!("{outcome:?}") };
    let loss = |catalog: &Catalog, cohort| catalog.configuration_of(cohort).map(|known| known.loss);
    assert_eq!((loss(&catalog, COHORT), loss(&catalog, child)), (Some(Epoch(2)), Some(Epoch(0))));
    apply(&mut catalog, &mut log, &CatalogCommand::EndSplit { name: "t".into(), child });
    assert_eq!((loss(&catalog, COHORT), loss(&catalog, child)), (Some(Epoch(2)), Some(Epoch(0))));
}
