//! Nodes joining and leaving.

use super::*;
use crate::request::NodeDescription;

fn add(node: NodeRecord) -> CatalogCommand {
    CatalogCommand::AddNode { node }
}

fn leave(node: u32) -> CatalogCommand {
    CatalogCommand::BeginLeave { node: NodeId(node) }
}

fn off(absent: &[u32]) -> CatalogCommand {
    CatalogCommand::MoveOff { absent: absent.iter().copied().map(NodeId).collect() }
}

fn gone(node: u32) -> CatalogCommand {
    CatalogCommand::EndLeave { node: NodeId(node) }
}

fn refused(applied: (Option<Outcome>, Option<Change>), says: &str) {
    let (outcome, change) = applied;
    let Some(Err(failure)) = outcome else { panic!("it is not rejected: {outcome:?}") };
    assert!(failure.to_string().contains(says) && change.is_none(), "{failure}");
}

#[test]
fn join_is_idempotent_and_ids_are_not_reused() {
    let (mut catalog, mut log) = with_nodes(3);
    let (outcome, change) = apply(&mut catalog, &mut log, &add(node(5, 50)));
    assert_eq!((outcome, change), (Some(Ok(catalog.list_nodes())), Some(Change::NodesChanged)));
    apply(&mut catalog, &mut log, &add(node(5, 50)));
    assert_eq!(catalog.nodes().count(), 4, "adding a node is idempotent");
    refused(apply(&mut catalog, &mut log, &add(node(5, 51))), "number 5 is taken");
    refused(apply(&mut catalog, &mut log, &add(node(3, 51))), "number 3 is taken");
    refused(apply(&mut catalog, &mut log, &add(NodeRecord { grpc: "grpc-2".into(), ..node(6, 6) })), "node 2");
    apply(&mut catalog, &mut log, &leave(5));
    apply(&mut catalog, &mut log, &gone(5));
    refused(apply(&mut catalog, &mut log, &add(node(5, 50))), "has left");
    refused(apply(&mut catalog, &mut log, &add(node(5, 51))), "number 5 is taken");
    let (mut blank, mut log) = (Catalog::empty(), Log::new());
    refused(apply(&mut blank, &mut log, &add(node(5, 50))), "not registered yet");
    refused(apply(&mut blank, &mut log, &leave(1)), "not registered yet");
}

/// The replicas of a leaving node move to the nodes with the fewest ranges. It has left once nothing is placed on it.
#[test]
fn node_leaves_once_unreferenced() {
    let (mut catalog, mut log) = with_nodes(5);
    // The placement is 1-2-3, 2-3-4, 3-4-5, 4-5-1.
    apply(&mut catalog, &mut log, &split("t", &["c", "m", "x"], 3));
    assert_eq!(apply(&mut catalog, &mut log, &gone(3)), (None, None), "the node is not leaving");
    assert_eq!(
        apply(&mut catalog, &mut log, &leave(3)),
        (Some(Ok(CatalogResponse::LeaveBegun)), Some(Change::NodesChanged))
    );
    assert_eq!(apply(&mut catalog, &mut log, &off(&[])), (None, Some(Change::MoveBegun)));
    assert_eq!(nodes_of(&catalog, "t"), [vec![1, 2, 5], vec![1, 2, 4], vec![2, 4, 5], vec![1, 4, 5]]);
    assert_eq!(apply(&mut catalog, &mut log, &off(&[])), (None, None), "moving off is idempotent");
    let ranges = |catalog: &Catalog| match catalog.list_nodes() {
        CatalogResponse::Nodes(nodes) => {
            nodes.into_iter().map(|NodeDescription { ranges, .. }| ranges).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(ranges(&catalog), [3, 3, 3, 3, 3], "replicas stay until they are moved");
    let back = CatalogCommand::BeginMove { cohort: CohortId(2), nodes: [1, 2, 3].map(NodeId).to_vec(), force: false };
    refused(apply(&mut catalog, &mut log, &back), "leaving");
    apply(&mut catalog, &mut log, &create("u"));
    assert!(!nodes_of(&catalog, "u")[0].contains(&3), "a leaving node gets no new replicas");
    assert_eq!(apply(&mut catalog, &mut log, &gone(3)), (None, None));
    for cohort in [2, 3, 4].map(CohortId) {
        assert_eq!(apply(&mut catalog, &mut log, &gone(3)), (None, None));
        apply(&mut catalog, &mut log, &CatalogCommand::EndMove { cohort, plan: 1 });
    }
    assert_eq!(apply(&mut catalog, &mut log, &gone(3)), (None, Some(Change::NodesChanged)));
    assert_eq!(apply(&mut catalog, &mut log, &gone(3)), (None, None));
    assert_eq!(catalog.nodes().map(|node| node.member.node.0).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!(
        apply(&mut catalog, &mut log, &leave(3)).0,
        Some(Ok(CatalogResponse::LeaveBegun)),
        "the node has already left"
    );
    let back = CatalogCommand::BeginMove { cohort: CohortId(2), nodes: [1, 2, 3].map(NodeId).to_vec(), force: false };
    refused(apply(&mut catalog, &mut log, &back), "no node 3");
}

/// A range that is being split is moved when `MoveOff` is proposed again.
#[test]
fn splitting_range_moves_later() {
    let (mut catalog, mut log) = with_nodes(4);
    apply(&mut catalog, &mut log, &create("t"));
    apply(&mut catalog, &mut log, &CatalogCommand::BeginSplit { name: "t".into(), key: "m".into() });
    apply(&mut catalog, &mut log, &leave(2));
    apply(&mut catalog, &mut log, &off(&[]));
    assert_eq!((catalog.moves().count(), catalog.ranges_on(node(2, 2).member)), (0, 2));
    apply(&mut catalog, &mut log, &CatalogCommand::EndSplit { name: "t".into(), child: CohortId(3) });
    assert_eq!(apply(&mut catalog, &mut log, &gone(2)), (None, None));
    apply(&mut catalog, &mut log, &off(&[]));
    assert_eq!(nodes_of(&catalog, "t"), [vec![1, 3, 4], vec![1, 3, 4]]);
}

/// Suspected nodes are chosen last.
#[test]
fn moves_prefer_live_nodes() {
    let (mut catalog, mut log) = with_nodes(5);
    apply(&mut catalog, &mut log, &create("t"));
    apply(&mut catalog, &mut log, &leave(1));
    apply(&mut catalog, &mut log, &off(&[4]));
    assert_eq!(nodes_of(&catalog, "t"), [vec![2, 3, 5]]);
    apply(&mut catalog, &mut log, &leave(5));
    apply(&mut catalog, &mut log, &off(&[4]));
    assert_eq!(nodes_of(&catalog, "t"), [vec![2, 3, 4]]);
}

#[test]
fn leave_refused_below_replica_count() {
    let (mut catalog, mut log) = with_nodes(6);
    apply(&mut catalog, &mut log, &leave(6));
    apply(&mut catalog, &mut log, &split("t", &[], 5));
    refused(apply(&mut catalog, &mut log, &leave(1)), "5 are needed");
    refused(apply(&mut catalog, &mut log, &leave(9)), "no node 9");
    let (mut catalog, mut log) = with_nodes(3);
    refused(apply(&mut catalog, &mut log, &leave(1)), "3 are needed");
}
